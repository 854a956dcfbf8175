//! The watchdog: runs one test beneath it, and shows what every process of the test was doing before it kills a test that hangs.
//!
//! cargo-nextest starts each test through `xtask watch`, as a target runner. A test that outlives [`DEADLINE`] has its
//! processes listed, children included, with their threads and stacks; then all of them are killed. The deadline is
//! shorter than nextest's own, which would kill without a word. Stacks of functions need `gdb`; without it the report has
//! what the kernel tells.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::programs;

/// The variable that holds how many seconds a test may take; without it there is no limit.
pub(crate) const DEADLINE: &str = "POSTHASTE_TEST_DEADLINE";
/// How long the debugger may take for one process.
const DEBUGGER_SECONDS: u32 = 30;
/// The most characters of a command line that are shown.
const COMMAND_WIDTH: usize = 160;

/// The watchdog's own main function: runs the test, and ends as it ends.
pub(crate) fn run(words: &[OsString]) -> ExitCode {
    let seconds = std::env::var(DEADLINE).ok().and_then(|text| text.parse().ok());
    match watch(words, seconds.map(Duration::from_secs)) {
        Ok(status) => exit_code(status),
        Err(fault) => {
            eprintln!("Error: {fault}");
            ExitCode::FAILURE
        }
    }
}

fn watch(words: &[OsString], deadline: Option<Duration>) -> Result<ExitStatus, String> {
    let (program, arguments) = words.split_first().ok_or("no program named; xtask starts this for itself")?;
    let mut test = Command::new(program)
        .args(arguments)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.display()))?;
    let root = test.id();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(test.wait()));
    let status = match deadline {
        Some(deadline) => ended.recv_timeout(deadline),
        None => ended.recv().map_err(|_| RecvTimeoutError::Disconnected),
    };
    match status {
        Ok(status) => status.map_err(|error| format!("the test was lost: {error}")),
        Err(RecvTimeoutError::Disconnected) => Err("the test was lost".to_owned()),
        Err(RecvTimeoutError::Timeout) => {
            let hung = tree(&processes(), root, std::process::id());
            eprint!("{}", report(&hung));
            kill(&hung);
            // nextest quotes a line that begins like this as the reason of the failure.
            Err(format!("timed out after {} s; stacks are above", deadline.unwrap_or_default().as_secs()))
        }
    }
}

/// A signal becomes the code that shells use for it, because a process cannot choose to die of another's signal.
fn exit_code(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        eprintln!("Error: the test was ended by signal {signal}");
        return ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX));
    }
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// A process, as `/proc/<id>/stat` describes it.
#[derive(Clone, Debug, PartialEq)]
struct Process {
    id: u32,
    name: String,
    state: char,
    parent: u32,
    group: u32,
    /// When it started, in ticks since boot: two processes with one id differ in this.
    started: u64,
}

impl Process {
    fn read(id: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
    }

    /// Reads `id (name) state parent group …`; the name may contain blanks and parentheses.
    fn parse(stat: &str) -> Option<Self> {
        let (id, rest) = stat.split_once(" (")?;
        let (name, rest) = rest.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        Some(Self {
            id: id.parse().ok()?,
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    fn is_alive(&self) -> bool {
        Self::read(self.id).is_some_and(|now| now.started == self.started)
    }
}

/// Every process of the machine.
fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| Process::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The descendants of `root`, itself included, and every process of a group that one of them or the watchdog leads: a child
/// whose parent has ended belongs to init, but keeps its group.
fn tree(all: &[Process], root: u32, watchdog: u32) -> Vec<Process> {
    let mut ids = BTreeSet::from([root]);
    loop {
        let belongs = |process: &&Process| {
            let Process { id, parent, group, .. } = **process;
            id != watchdog && (ids.contains(&parent) || ids.contains(&group) || group == watchdog)
        };
        let found: BTreeSet<u32> =
            all.iter().filter(belongs).map(|process| process.id).chain([root]).collect();
        if found.len() == ids.len() {
            return all.iter().filter(|process| ids.contains(&process.id)).cloned().collect();
        }
        ids = found;
    }
}

/// What each process was doing.
fn report(processes: &[Process]) -> String {
    let mut text = format!("\n==== the test hangs; its {} processes:\n", processes.len());
    for process in processes {
        let command = fs::read(format!("/proc/{}/cmdline", process.id)).unwrap_or_default();
        let command: String = String::from_utf8_lossy(&command)
            .chars()
            .map(|letter| if letter.is_control() { ' ' } else { letter })
            .take(COMMAND_WIDTH)
            .collect();
        let Process { id, name, state, parent, .. } = process;
        let _ = writeln!(text, "\n== process {id} of {parent}: {name}, {}: {command}", state_name(*state));
        text.push_str(&threads(*id));
        text.push_str(&stacks(*id));
    }
    text.push_str("==== end of the report\n");
    text
}

fn state_name(state: char) -> String {
    match state {
        'R' => "running".to_owned(),
        'S' => "sleeping".to_owned(),
        'D' => "waiting for the disk".to_owned(),
        'T' => "STOPPED by a signal".to_owned(),
        't' => "stopped by a debugger".to_owned(),
        'Z' => "ended, not waited for".to_owned(),
        other => format!("state {other}"),
    }
}

/// A line for each thread: its state, and where in the kernel it waits.
fn threads(id: u32) -> String {
    let Ok(entries) = fs::read_dir(format!("/proc/{id}/task")) else { return String::new() };
    let mut text = String::new();
    for entry in entries.flatten() {
        let read = |name: &str| fs::read_to_string(entry.path().join(name)).unwrap_or_default();
        let Some(thread) = Process::parse(&read("stat")) else { continue };
        let (waits_in, call) = (read("wchan"), read("syscall"));
        let _ = writeln!(
            text,
            "  thread {} {}: {}, in {}, system call {}",
            thread.id,
            thread.name,
            state_name(thread.state),
            if waits_in.is_empty() { "?" } else { &waits_in },
            call.split(' ').next().unwrap_or_default().trim(),
        );
    }
    text
}

/// The functions each thread is in, by the debugger.
fn stacks(id: u32) -> String {
    let Some(gdb) = programs::find("gdb") else {
        return "  (no stacks of functions: gdb is not installed)\n".to_owned();
    };
    let limited = ["-k", "5", &DEBUGGER_SECONDS.to_string()].map(str::to_owned);
    let output = Command::new("timeout")
        .args(limited)
        .arg(gdb)
        .args(["-nx", "-batch", "-p", &id.to_string(), "-ex", "thread apply all backtrace 40"])
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            let interesting = text.lines().filter(|line| line.starts_with('#') || line.starts_with("Thread"));
            interesting.map(|line| format!("  {line}\n")).collect()
        }
        Err(error) => format!("  (no stacks of functions: {error})\n"),
    }
}

/// Kills the processes that are still the same ones.
fn kill(processes: &[Process]) {
    let ids: Vec<String> =
        processes.iter().filter(|process| process.is_alive()).map(|process| process.id.to_string()).collect();
    // The shell's own `kill`: small containers lack the program. One that has just ended is no fault.
    let _ = Command::new("sh").args(["-c", r#"kill -s KILL "$@" 2>/dev/null"#, "sh"]).args(ids).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32, group: u32) -> Process {
        Process { id, name: "x".to_owned(), state: 'S', parent, group, started: 1 }
    }

    #[test]
    fn names_may_contain_anything() {
        let stat = "42 (a) b (c) T 7 40 40 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 977 0 0";
        let expected =
            Process { id: 42, name: "a) b (c".to_owned(), state: 'T', parent: 7, group: 40, started: 977 };
        assert_eq!(Process::parse(stat), Some(expected));
        assert_eq!(Process::parse("nonsense"), None);
    }

    #[test]
    fn orphans_of_the_group_belong_to_the_test() {
        let all = [
            process(1, 0, 1),
            process(10, 1, 10),  // the watchdog, which leads the group
            process(11, 10, 10), // the test
            process(12, 11, 12), // a child with a group of its own
            process(13, 1, 10),  // an orphan
            process(14, 1, 12),  // an orphan of the child
            process(20, 1, 20),  // a stranger
        ];
        let ids: Vec<u32> = tree(&all, 11, 10).iter().map(|process| process.id).collect();
        assert_eq!(ids, [11, 12, 13, 14]);
    }

    #[test]
    fn this_process_is_among_those_that_run() {
        let own = Process::read(std::process::id()).unwrap();
        assert!(own.is_alive() && processes().iter().any(|process| process.id == own.id));
        assert!(!Process { started: own.started + 1, ..own }.is_alive());
    }
}
