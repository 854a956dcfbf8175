//! A RabbitMQ of the test's own, to be stopped, killed and starved. It costs seconds of CPU: one per run is enough.
//!
//! Its name, its ports and its epmd are its own, and all of them end with it.

use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use tokio::time::{Instant, sleep, timeout};

/// Where packages put the server itself; the command in the path is a wrapper that drops the environment.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";

pub(crate) struct Node {
    folder: tempfile::TempDir,
    name: String,
    pub(crate) port: u16,
    pub(crate) tls_port: u16,
    dist_port: u16,
    epmd_port: u16,
    epmd: Child,
    server: Option<Child>,
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Node {
    pub(crate) fn available() -> bool {
        Path::new(PROGRAMS).join("rabbitmq-server").exists()
    }

    /// Starts it, with these lines in its configuration; `{tls}` stands for the port of TLS.
    pub(crate) async fn start(configuration: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let [port, tls_port, dist_port, epmd_port] = [(); 4].map(|()| free_port());
        let configuration = configuration.replace("{tls}", &tls_port.to_string());
        std::fs::write(folder.path().join("rabbitmq.conf"), configuration).unwrap();
        std::fs::write(folder.path().join("plugins"), "[].").unwrap();
        let epmd = Command::new("epmd")
            .args(["-address", "127.0.0.1", "-port", &epmd_port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let name = format!("posthaste-{port}@localhost");
        let mut node = Self { folder, name, port, tls_port, dist_port, epmd_port, epmd, server: None };
        node.boot().await;
        node
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(Path::new(PROGRAMS).join(program));
        let path = |name: &str| self.folder.path().join(name);
        command
            .env("HOME", self.folder.path())
            .env("RABBITMQ_NODENAME", &self.name)
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", self.port.to_string())
            .env("RABBITMQ_DIST_PORT", self.dist_port.to_string())
            .env("ERL_EPMD_PORT", self.epmd_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_MNESIA_BASE", path("data"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_PID_FILE", path("pid"))
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"))
            .env("RABBITMQ_CONF_ENV_FILE", path("none"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins"))
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none",
            )
            .current_dir(self.folder.path());
        command
    }

    /// Starts it, or starts it again, and waits until it takes connections.
    pub(crate) async fn boot(&mut self) {
        let log = || std::fs::File::create(self.folder.path().join("output")).unwrap();
        let mut command = self.command("rabbitmq-server");
        // A group of its own: the script, the virtual machine, and its helpers end together.
        command.process_group(0).stdin(Stdio::null()).stdout(log()).stderr(log());
        self.server = Some(command.spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(180);
        loop {
            let url = self.url();
            let connecting = Connection::connect(&url, ConnectionProperties::default());
            if let Ok(Ok(connection)) = timeout(Duration::from_secs(30), connecting).await {
                connection.close(200, "OK".into()).await.unwrap();
                return;
            }
            let output = || std::fs::read_to_string(self.folder.path().join("output")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the node does not start: {}", output());
            sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    /// An operator's command.
    pub(crate) async fn ctl(&self, arguments: &[&str]) {
        let mut command = self.command("rabbitmqctl");
        command.args(["-n", &self.name]).args(arguments).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&mut self) {
        self.signal("-TERM");
        self.ended().await;
    }

    /// Kills it.
    pub(crate) async fn kill(&mut self) {
        self.signal("-KILL");
        self.ended().await;
    }

    fn signal(&self, signal: &str) {
        if let Some(server) = &self.server {
            let group = format!("-{}", server.id());
            let _ = Command::new("kill").args([signal, "--", &group]).stderr(Stdio::null()).status();
        }
    }

    async fn ended(&mut self) {
        let mut server = self.server.take().unwrap();
        tokio::task::spawn_blocking(move || server.wait().unwrap()).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        // The name is free again when the virtual machine is gone, too, and not only the script.
        while std::net::TcpStream::connect(("127.0.0.1", self.dist_port)).is_ok() {
            assert!(Instant::now() < deadline, "the node does not end");
            sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.signal("-KILL");
        if let Some(server) = &mut self.server {
            let _ = server.wait();
        }
        let _ = self.epmd.kill();
        let _ = self.epmd.wait();
    }
}
