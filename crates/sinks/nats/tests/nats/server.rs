//! Servers: the shared one, and private ones that can be stopped, killed and started again on the same port.
//!
//! A private server listens on loopback only, keeps its files in a temporary folder, and ends with its test.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::support::{LONG, eventually};

/// The shared server's URL, if there is one.
pub(crate) fn shared_url() -> Option<String> {
    std::env::var("POSTHASTE_TEST_NATS").ok().filter(|url| !url.is_empty())
}

/// Where the shared server is.
pub(crate) fn shared() -> Option<SocketAddr> {
    let url = shared_url()?;
    let place = url.rsplit('/').next().unwrap().rsplit('@').next().unwrap();
    Some(place.replace("localhost", "127.0.0.1").parse().unwrap())
}

/// Where the server's program is, if it is installed.
fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join("nats-server")).find(|file| file.is_file())
}

/// A private server.
pub(crate) struct Server {
    program: PathBuf,
    folder: TempDir,
    addr: SocketAddr,
    config: Option<String>,
    process: Option<Child>,
}

impl Server {
    /// Starts one with JetStream and these lines of configuration; none if the program is not here.
    pub(crate) async fn start(config: Option<&str>) -> Option<Self> {
        let Some(program) = program() else {
            eprintln!("skipped: nats-server is not installed");
            return None;
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        drop(listener);
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self { program, folder, addr, config: config.map(ToOwned::to_owned), process: None };
        server.up().await;
        Some(server)
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://{}", self.addr)
    }

    /// Starts it, or starts it again with its stored data.
    pub(crate) async fn up(&mut self) {
        let mut command = Command::new(&self.program);
        command.args(["-a", "127.0.0.1", "-p", &self.addr.port().to_string()]);
        match &self.config {
            None => {
                command.arg("-js").arg("-sd").arg(self.folder.path().join("js"));
            }
            Some(config) => {
                let file = self.folder.path().join("server.conf");
                std::fs::write(&file, config.replace("FOLDER", self.folder.path().to_str().unwrap()))
                    .unwrap();
                command.arg("-c").arg(file);
            }
        }
        let log = self.folder.path().join("log");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.stdout(std::process::Stdio::null()).stderr(log).kill_on_drop(true);
        self.process = Some(command.spawn().unwrap());
        let addr = self.addr;
        eventually("the server greets", async || {
            let Ok(mut stream) = TcpStream::connect(addr).await else { return false };
            let mut greeting = [0; 4];
            stream.read_exact(&mut greeting).await.is_ok() && &greeting == b"INFO"
        })
        .await;
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        let pid = process.id().unwrap().to_string();
        let asked = Command::new("sh").args(["-c", r#"kill -s TERM "$0""#, &pid]).status().await.unwrap();
        assert!(asked.success());
        tokio::time::timeout(LONG, process.wait()).await.unwrap().unwrap();
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) {
        self.process.take().unwrap().kill().await.unwrap();
    }
}
