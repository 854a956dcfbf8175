//! A relay's process, its log, and a caller that writes HTTP by hand; databases and brokers with places of their own.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste::{MessageId, MySqlStore, NewMessage, PgStore, SqliteStore, StoreAdmin, StoreOptions};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// How long anything that must come may take.
pub const PATIENCE: Duration = Duration::from_secs(120);
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_posthaste");

/// Waits until it is so.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The variable's value; none, with a line that says so, if it is not set.
pub fn server(variable: &str) -> Option<String> {
    let url = std::env::var(variable).ok();
    if url.is_none() {
        eprintln!("skipped: {variable} is not set");
    }
    url
}

/// A name that no other test has.
pub fn unique(stem: &str) -> String {
    format!("{stem}_{:x}_{:04x}", std::process::id(), fastrand::u16(..))
}

/// A folder with a configuration in it.
pub struct Scene {
    pub folder: TempDir,
    pub environment: BTreeMap<String, String>,
}

impl Scene {
    pub fn new(config: &str) -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap(), environment: BTreeMap::new() };
        scene.write(config);
        scene
    }

    /// One with a database in a file, that is migrated, and everything sent to nowhere.
    pub async fn small(more: &str) -> Self {
        let scene = Self::new("");
        let file = scene.folder.path().join("shop.db");
        SqliteStore::open(&file).await.unwrap().migrate().await.unwrap();
        scene.write(&format!(
            "[databases.shop]\nurl = \"sqlite:{}\"\n[sinks.nowhere]\nurl = \"null:\"\n\
             [[routes]]\ntopics = [\"sent.*\"]\nsink = \"nowhere\"\n{more}",
            file.display()
        ));
        scene
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Replaces the configuration, as an editor does: at once.
    pub fn write(&self, config: &str) {
        let next = self.folder.path().join("next.toml");
        std::fs::write(&next, config).unwrap();
        std::fs::rename(next, self.config()).unwrap();
    }

    pub fn config(&self) -> std::path::PathBuf {
        self.folder.path().join("relay.toml")
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(PROGRAM);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("POSTHASTE_")) {
            command.env_remove(name);
        }
        command.envs(&self.environment).env("NO_COLOR", "1").stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// Runs `relay --config …` with these arguments to its end: its exit code and output.
    pub async fn finish(&self, args: &[&str]) -> (i32, String, String) {
        let run = self.command().arg("relay").arg("--config").arg(self.config()).args(args).output();
        let output = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Starts a relay, and waits until it listens.
    pub async fn start(&self) -> Relay {
        self.start_with(&[]).await
    }

    /// The same with more arguments.
    pub async fn start_with(&self, args: &[&str]) -> Relay {
        let mut command = self.command();
        let says = std::fs::read_to_string(self.config()).unwrap().contains("\nlisten = ");
        if !says && !self.environment.contains_key("POSTHASTE__HTTP__LISTEN") {
            command.env("POSTHASTE__HTTP__LISTEN", "127.0.0.1:0");
        }
        command.arg("relay").arg("--config").arg(self.config()).args(args);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let written = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                written.lock().unwrap().push(line);
            }
        });
        let mut relay = Relay { child, log, address: String::new() };
        eventually("the relay starts", async || relay.has("the relay starts")).await;
        relay.address = relay.line("the relay starts")["listen"].as_str().unwrap().to_owned();
        relay
    }
}

/// A relay that runs.
pub struct Relay {
    pub child: Child,
    log: Arc<Mutex<Vec<String>>>,
    pub address: String,
}

impl Relay {
    pub fn log(&self) -> String {
        self.log.lock().unwrap().join("\n")
    }

    pub fn has(&self, message: &str) -> bool {
        self.count(message) > 0
    }

    /// How many lines have this message.
    pub fn count(&self, message: &str) -> usize {
        let message = format!("\"message\":\"{message}");
        self.log.lock().unwrap().iter().filter(|line| line.contains(&message)).count()
    }

    pub fn line(&self, message: &str) -> Value {
        let message = format!("\"message\":\"{message}");
        let log = self.log.lock().unwrap();
        serde_json::from_str(log.iter().find(|line| line.contains(&message)).unwrap()).unwrap()
    }

    /// All lines with this message.
    pub fn lines(&self, message: &str) -> Vec<Value> {
        let message = format!("\"message\":\"{message}");
        let log = self.log.lock().unwrap();
        log.iter()
            .filter(|line| line.contains(&message))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().unwrap().to_string();
        let told = std::process::Command::new("kill").args(["-s", name, &id]).status().unwrap();
        assert!(told.success());
    }

    pub async fn ended(&mut self) -> ExitStatus {
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => status.unwrap(),
            Err(_) => panic!("the relay did not end:\n{}", self.log()),
        }
    }

    pub async fn stop(mut self) {
        self.signal("TERM");
        let ended = self.ended().await;
        assert_eq!(ended.code(), Some(0), "{}", self.log());
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call("POST", path, &[("content-type", "application/json")], &body.to_string()).await
    }

    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("connection: close\r\ncontent-length: {}\r\n\r\n", body.len()));
        self.raw([head.as_bytes(), body.as_bytes()].concat()).await
    }

    /// Sends these bytes, and reads until the relay closes.
    pub async fn raw(&self, bytes: Vec<u8>) -> Answer {
        tokio::time::timeout(PATIENCE, talk(&self.address, &bytes)).await.unwrap()
    }
}

/// Gets an answer that may take its time.
pub async fn get(address: String, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    tokio::time::timeout(PATIENCE * 5, talk(&address, request.as_bytes())).await.unwrap()
}

async fn talk(address: &str, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The relay may close before it has read everything.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    Answer::of(&answer)
}

/// The relay's response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    fn of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let mut body = body.to_owned();
        if head.to_lowercase().contains("transfer-encoding: chunked") {
            let lines: Vec<&str> = body.split("\r\n").collect();
            body = lines.iter().skip(1).step_by(2).copied().collect();
        }
        Self { status, head: head.to_lowercase(), body }
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Every refusal has the one shape.
    pub fn refused(&self, status: u16) -> &Self {
        assert_eq!(self.status, status, "{self:?}");
        let json = self.json();
        assert!(json["error"]["kind"].is_string() && json["error"]["message"].is_string(), "{json}");
        self
    }
}

/// A database of a test's own.
pub struct Base {
    /// Lines for its section.
    pub section: String,
    pub store: Arc<dyn StoreAdmin>,
}

impl Base {
    pub async fn postgres(url: &str) -> Self {
        let schema = unique("relay");
        let store = PgStore::connect_with(
            url,
            &StoreOptions::new().acquire_timeout(PATIENCE).schema(&schema).listen(false),
        )
        .await
        .unwrap();
        store.migrate().await.unwrap();
        Self { section: format!("url = \"{url}\"\nschema = \"{schema}\"\n"), store: Arc::new(store) }
    }

    pub async fn mysql(url: &str) -> Self {
        let prefix = format!("{}_", unique("r"));
        let store =
            MySqlStore::connect_with(url, &StoreOptions::new().acquire_timeout(PATIENCE).prefix(&prefix))
                .await
                .unwrap();
        store.migrate().await.unwrap();
        Self { section: format!("url = \"{url}\"\nprefix = \"{prefix}\"\n"), store: Arc::new(store) }
    }

    pub async fn sqlite(file: &Path) -> Self {
        let store = SqliteStore::open(file).await.unwrap();
        store.migrate().await.unwrap();
        Self { section: format!("url = \"sqlite:{}\"\n", file.display()), store: Arc::new(store) }
    }

    /// Stores so many messages; their ids.
    pub async fn fill(&self, topic: &str, count: usize) -> Vec<MessageId> {
        let messages: Vec<NewMessage> =
            (0..count).map(|i| NewMessage::json(topic, &i).build().unwrap()).collect();
        let ids = messages.iter().map(NewMessage::id).collect();
        for batch in messages.chunks(200) {
            self.store.enqueue(batch).await.unwrap();
        }
        ids
    }

    pub async fn done(&self) -> u64 {
        self.store.stats().await.unwrap().done.value
    }

    pub async fn leased(&self) -> u64 {
        self.store.stats().await.unwrap().leased.value
    }

    pub async fn is_done(&self, count: usize) {
        eventually(&format!("{count} messages are done"), async || self.done().await == count as u64).await;
        let stats = self.store.stats().await.unwrap();
        assert_eq!((stats.pending().value, stats.dead.value), (0, 0));
    }
}
