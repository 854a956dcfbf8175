//! Cleaning up, even if this process is killed.
//!
//! A destructor runs when a stage fails or code panics, but not on Ctrl-C, SIGTERM or SIGKILL, and without unsafe
//! code or dependencies no signal can be caught. So every server runs beneath a second copy of this program, the
//! guard, which holds the reading end of a pipe. The pipe closes when the owner drops its [`Guard`] and equally
//! when the owner dies of anything at all; either way the guard then stops the server and deletes its folder.
//! There is one way to clean up, and it is used on every run. Guards have a process group of their own, so that
//! Ctrl-C in a terminal, which goes to the whole foreground group, does not take them along.
//!
//! Not covered: SIGKILL sent to a guard itself, and tools that end every process of a session or container at once. A
//! stage that was running when this program got SIGTERM or SIGKILL goes on for itself and loses its servers; Ctrl-C
//! reaches the stage too.
//!
//! A guard must never print when all went well: the summary has the last word.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use crate::programs;

/// How long a server may take to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a guard looks whether its server is still there.
const GLANCE: Duration = Duration::from_millis(50);
/// Parts command lines given in one.
const SEPARATOR: &str = "--";

/// How to run a private server.
pub(crate) struct Recipe {
    /// Fills the data folder; runs to its end before the server starts. Nothing to do if it is empty.
    pub(crate) prepare: Vec<OsString>,
    /// The server, in the foreground.
    pub(crate) serve: Vec<OsString>,
    /// The signal that asks it to stop, as `kill -s` names it.
    pub(crate) stop: &'static str,
    /// Ends processes that the server leaves running; runs when it has stopped. Nothing to do if it is empty.
    pub(crate) afterwards: Vec<OsString>,
}

/// The owner's end of the pipe: dropping it cleans up, and waits until that is done.
pub(crate) struct Guard {
    process: Child,
}

impl Guard {
    /// Runs a server in `folder`; in the end stops it and deletes the folder.
    pub(crate) fn server(recipe: &Recipe, folder: &Path) -> Result<Self, String> {
        let mut orders: Vec<OsString> = vec!["server".into(), recipe.stop.into(), folder.into()];
        orders.extend_from_slice(&recipe.prepare);
        orders.push(SEPARATOR.into());
        orders.extend_from_slice(&recipe.serve);
        orders.push(SEPARATOR.into());
        orders.extend_from_slice(&recipe.afterwards);
        Self::start(own_copy()?.args(orders))
    }

    /// Runs a command in the end, with the environment it was given here.
    pub(crate) fn finally(command: &Command) -> Result<Self, String> {
        let mut guard = own_copy()?;
        guard.arg("finally").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(name, value),
                None => guard.env_remove(name),
            };
        }
        Self::start(&mut guard)
    }

    fn start(guard: &mut Command) -> Result<Self, String> {
        let process = guard
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start a guard: {error}"))?;
        Ok(Self { process })
    }

    /// Whether the guard gave up before it was told to; it has said why on the terminal.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        // Its exit code is of no use here: the guard reports for itself what it could not do.
        let _ = self.process.wait();
    }
}

/// This program once more, about to be a guard.
fn own_copy() -> Result<Command, String> {
    let program =
        std::env::current_exe().map_err(|error| format!("cannot find this program's file: {error}"))?;
    let mut command = Command::new(program);
    command.arg("guard");
    Ok(command)
}

/// The guard's own main function.
pub(crate) fn obey(orders: &[OsString]) -> ExitCode {
    let verdict = match orders {
        [kind, stop, folder, commands @ ..] if kind == "server" => {
            keep_server(&stop.to_string_lossy(), &PathBuf::from(folder), commands)
        }
        [kind, program, arguments @ ..] if kind == "finally" => {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            programs::answer(Command::new(program).args(arguments)).map(drop)
        }
        _ => Err("xtask starts guards for itself; see `cargo xtask help`".to_owned()),
    };
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("xtask guard: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn keep_server(stop: &str, folder: &Path, commands: &[OsString]) -> Result<(), String> {
    let owner = watch_owner();
    let log = folder.join("log");
    let served = serve(stop, &log, commands, &owner);
    if served.is_err() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].iter().for_each(|line| eprintln!("  {line}"));
    }
    let removed =
        fs::remove_dir_all(folder).map_err(|error| format!("cannot delete {}: {error}", folder.display()));
    served.and(removed)
}

fn serve(stop: &str, log: &Path, commands: &[OsString], owner: &Receiver<()>) -> Result<(), String> {
    let file = File::create(log).map_err(|error| format!("cannot write {}: {error}", log.display()))?;
    let output = || file.try_clone().map_or_else(|_| Stdio::null(), Stdio::from);
    let mut commands = commands.split(|word| word == SEPARATOR);
    let mut next = || commands.next().ok_or("a server has three command lines");
    let (prepare, serve, afterwards) = (next()?, next()?, next()?);
    run(prepare, &output)?;
    // The owner may have died while the folder was prepared.
    if matches!(owner.try_recv(), Err(TryRecvError::Disconnected)) {
        return Ok(());
    }
    let served = attend(spawn(serve, &output)?, stop, owner);
    // Processes that the server started must not outlive it.
    let cleaned = run(afterwards, &output);
    served.and(cleaned)
}

/// Stays with the server until the owner is gone.
fn attend(mut server: Child, stop: &str, owner: &Receiver<()>) -> Result<(), String> {
    while matches!(owner.recv_timeout(GLANCE), Err(RecvTimeoutError::Timeout)) {
        if let Ok(Some(status)) = server.try_wait() {
            return Err(format!("the server ended by itself ({status}); its last words are above"));
        }
    }
    end(&mut server, stop)
}

/// Asks the server to stop, and insists when it does not.
fn end(server: &mut Child, signal: &str) -> Result<(), String> {
    // The shell's own `kill`, because small containers lack the program of that name.
    let asked =
        Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, signal, &server.id().to_string()]).status();
    let deadline = Instant::now() + PATIENCE;
    while asked.is_ok() && Instant::now() < deadline {
        if let Ok(Some(_)) = server.try_wait() {
            return Ok(());
        }
        std::thread::sleep(GLANCE);
    }
    server
        .kill()
        .and_then(|()| server.wait())
        .map_err(|error| format!("cannot end process {}: {error}", server.id()))?;
    Err(format!("the server ignored SIG{signal} for {} s and was killed", PATIENCE.as_secs()))
}

/// A channel that hangs up as soon as the owner's end of the pipe is closed.
fn watch_owner() -> Receiver<()> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        drop(sender);
    });
    receiver
}

fn run(words: &[OsString], output: &dyn Fn() -> Stdio) -> Result<(), String> {
    if words.is_empty() {
        return Ok(());
    }
    let spelled = programs::spelled(words);
    match spawn(words, output)?.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{spelled}` failed ({status})")),
        Err(error) => Err(format!("`{spelled}` was lost: {error}")),
    }
}

fn spawn(words: &[OsString], output: &dyn Fn() -> Stdio) -> Result<Child, String> {
    let (program, arguments) = words.split_first().ok_or("no program named")?;
    Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output())
        .stderr(output())
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))
}
