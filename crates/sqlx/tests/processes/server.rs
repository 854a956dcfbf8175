//! A database server of a test's own, to be restarted at will: a fresh folder, a free port, a child of this process.
//!
//! The servers that tests share are never touched. One of these ends with its test: it is killed when it is dropped, and
//! it is in the test's own process group.

use std::ffi::OsString;
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::case::PATIENCE;
use crate::children::send;

/// How a product is installed, started and told to stop.
pub struct Recipe {
    prepare: Vec<OsString>,
    serve: Vec<OsString>,
    /// The signals of a shutdown that does not wait for clients, and of one that is as good as a crash.
    pub fast: &'static str,
    pub immediate: &'static str,
}

/// A server, running or about to be started again.
pub struct Server {
    recipe: Recipe,
    child: Option<Child>,
    pub port: u16,
    folder: TempDir,
}

impl Server {
    /// A fresh server; none if its programs are not on this machine.
    pub fn new(account: &str, recipe: impl FnOnce(&Path, u16) -> Option<Recipe>) -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let recipe = recipe(folder.path(), port)?;
        if is_root() {
            let number = |flag| answer(Command::new("id").args([flag, account]))?.parse().ok();
            chown(folder.path(), Some(number("-u")?), Some(number("-g")?)).unwrap();
        }
        let mut server = Self { recipe, child: None, port, folder };
        let prepared = server.command(&server.recipe.prepare).status().unwrap();
        assert!(prepared.success(), "the server's folder could not be prepared: {prepared}");
        server.start();
        Some(server)
    }

    fn command(&self, words: &[OsString]) -> Command {
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn start(&mut self) {
        self.child = Some(self.command(&self.recipe.serve).spawn().unwrap());
    }

    /// Stops it by this signal, waits until it is gone, and starts it again.
    pub async fn restart(&mut self, signal: &str) {
        let mut child = self.child.take().unwrap();
        send(signal, child.id());
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the server does not stop");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.start();
    }

    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            send(self.recipe.fast, child.id());
            let deadline = Instant::now() + Duration::from_secs(5);
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// PostgreSQL, of the newest version that Debian has installed or the search path has.
pub fn postgres() -> Option<Server> {
    Server::new("postgres", |folder, port| {
        let versions = Path::new("/usr/lib/postgresql").read_dir().into_iter().flatten().flatten();
        let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max();
        let bin = match newest {
            Some(newest) => Path::new("/usr/lib/postgresql").join(newest.to_string()).join("bin"),
            None => find("initdb")?.parent()?.to_owned(),
        };
        // It refuses to run as root.
        let mut user: Vec<OsString> = Vec::new();
        if is_root() {
            let setpriv = find("setpriv")?.into_os_string();
            user =
                vec![setpriv, "--reuid=postgres".into(), "--regid=postgres".into(), "--clear-groups".into()];
        }
        let data = folder.join("data");
        let words = |program: &str, more: &[&str]| {
            let own = [bin.join(program).into_os_string(), "-D".into(), data.clone().into_os_string()];
            user.iter().cloned().chain(own).chain(more.iter().map(OsString::from)).collect::<Vec<_>>()
        };
        let sockets = format!("unix_socket_directories={}", folder.display());
        let port = port.to_string();
        Some(Recipe {
            prepare: words(
                "initdb",
                &["-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C"],
            ),
            serve: words("postgres", &["-p", &port, "-c", "listen_addresses=127.0.0.1", "-c", &sockets]),
            fast: "INT",
            immediate: "QUIT",
        })
    })
}

/// MariaDB.
pub fn mariadb() -> Option<Server> {
    Server::new("mysql", |folder, port| {
        let data = format!("--datadir={}", folder.join("data").display());
        // A server that starts deletes the temporary tables in its folder: not those of its neighbours.
        let temporary = format!("--tmpdir={}", folder.display());
        let mut common: Vec<OsString> = vec!["--no-defaults".into(), data.into(), temporary.into()];
        if is_root() {
            common.push("--user=mysql".into());
        }
        let words = |program: PathBuf, more: Vec<String>| {
            let own = [program.into_os_string()].into_iter().chain(common.clone());
            own.chain(more.into_iter().map(OsString::from)).collect::<Vec<_>>()
        };
        let root = ["--auth-root-authentication-method=normal", "--skip-test-db"].map(str::to_owned);
        let serve = vec![
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--socket={}", folder.join("s.sock").display()),
            format!("--pid-file={}", folder.join("pid").display()),
            "--skip-log-bin".to_owned(),
            "--innodb-buffer-pool-size=64M".to_owned(),
        ];
        Some(Recipe {
            prepare: words(find("mariadb-install-db")?, root.into()),
            serve: words(find("mariadbd")?, serve),
            fast: "TERM",
            immediate: "KILL",
        })
    })
}

fn answer(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn is_root() -> bool {
    answer(Command::new("id").arg("-u")).is_some_and(|user| user == "0")
}

/// A program in the search path, or where distributions put servers.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}
