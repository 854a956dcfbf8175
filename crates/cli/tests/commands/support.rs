//! A fresh store for each test, the command as a process, and texts whose ids and times do not matter.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste::{
    ClaimRequest, Failure, JoinBuilder, Message, MessageBuilder, MessageId, NewMessage, Outbox, Outcome,
    PgStore, Settlement, SqliteStore, StartedJoin, StoreAdmin, StoreOptions, Uuid, WorkerId,
};
use serde_json::Value;
use tempfile::TempDir;

/// A store of its own, with its tables, and how the command finds it.
pub(crate) struct Place {
    pub(crate) store: Arc<dyn StoreAdmin>,
    pub(crate) url: String,
    args: Vec<String>,
    kind: Kind,
}

enum Kind {
    /// With the folder that it lives in.
    Sqlite(SqliteStore, #[allow(dead_code, reason = "it lives as long as this")] TempDir),
    /// With its schema.
    Postgres(PgStore, String),
}

/// Options with patience: the tests are about what happens, not about how soon on a busy machine.
fn patient() -> StoreOptions {
    StoreOptions::new().acquire_timeout(Duration::from_secs(120))
}

pub(crate) fn unique() -> String {
    let random = Uuid::now_v7().simple().to_string();
    format!("c{}{}", &random[4..12], &random[20..])
}

impl Place {
    pub(crate) async fn sqlite() -> Option<Self> {
        let folder = TempDir::new().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
        let store = SqliteStore::connect_with(&url, &patient()).await.unwrap();
        store.migrate().await.unwrap();
        Some(Self {
            store: Arc::new(store.clone()),
            url,
            args: Vec::new(),
            kind: Kind::Sqlite(store, folder),
        })
    }

    /// None, with a line that says so, if there is no server.
    pub(crate) async fn postgres() -> Option<Self> {
        let Ok(url) = std::env::var("POSTHASTE_TEST_POSTGRES") else {
            eprintln!("skipped: POSTHASTE_TEST_POSTGRES is not set");
            return None;
        };
        let schema = unique();
        let store = PgStore::connect_with(&url, &patient().schema(&schema).listen(false)).await.unwrap();
        store.migrate().await.unwrap();
        let args = vec!["--schema".to_owned(), schema.clone()];
        Some(Self { store: Arc::new(store.clone()), url, args, kind: Kind::Postgres(store, schema) })
    }

    /// Takes the store away again.
    pub(crate) async fn end(self) {
        if let Kind::Postgres(_, schema) = &self.kind {
            sql(&self.url, &format!("drop schema {schema} cascade")).await;
        }
    }

    /// How the outbox's table is called, for what only SQL can do.
    pub(crate) fn table(&self) -> String {
        match &self.kind {
            Kind::Sqlite(..) => "posthaste_outbox".to_owned(),
            Kind::Postgres(_, schema) => format!("{schema}.outbox"),
        }
    }

    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.kind, Kind::Postgres(..))
    }

    /// Runs the command on this store.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "")
    }

    /// The same with something on its standard input.
    pub(crate) fn run_with(&self, args: &[&str], input: &str) -> Ran {
        let store = ["--store", &self.url];
        let more = self.args.iter().map(String::as_str);
        let args: Vec<&str> = args.iter().copied().chain(store).chain(more).collect();
        let name = self.store.name();
        let in_json = Value::from(name.clone()).to_string();
        posthaste(&args, input).hide(&in_json[1..in_json.len() - 1], "<store>").hide(&name, "<store>")
    }

    /// The answer in JSON.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        self.run(&args).exits(0).json()
    }

    pub(crate) async fn publish(&self, message: MessageBuilder) -> MessageId {
        self.store.enqueue(&[message.build().unwrap()]).await.unwrap()[0].id()
    }

    pub(crate) async fn claim(&self, lease: Duration) -> Vec<Message> {
        let worker = WorkerId::new("worker-7").unwrap();
        self.store.claim(&ClaimRequest::new(worker).lease(lease)).await.unwrap()
    }

    /// Claims what there is, and decides the same about each.
    pub(crate) async fn settle(&self, outcome: Outcome) {
        let claimed = self.claim(Duration::from_secs(30)).await;
        assert!(!claimed.is_empty(), "nothing could be claimed");
        let settlements: Vec<Settlement> =
            claimed.iter().map(|message| Settlement::new(message.lease(), outcome.clone())).collect();
        self.store.settle(&settlements).await.unwrap();
    }

    pub(crate) async fn start_join(&self, join: JoinBuilder) -> StartedJoin {
        match &self.kind {
            Kind::Sqlite(store, _) => {
                let outbox = Outbox::builder(store.clone()).build().await.unwrap();
                let mut tx = outbox.begin().await.unwrap();
                let started = tx.start_join(join).await.unwrap();
                tx.commit().await.unwrap();
                started
            }
            Kind::Postgres(store, _) => {
                let outbox = Outbox::builder(store.clone()).build().await.unwrap();
                let mut tx = outbox.begin().await.unwrap();
                let started = tx.start_join(join).await.unwrap();
                tx.commit().await.unwrap();
                started
            }
        }
    }

    pub(crate) async fn kill(&self, message: MessageBuilder) -> MessageId {
        let id = self.publish(message).await;
        self.settle(fail("card refused")).await;
        id
    }
}

/// Runs SQL on a connection that is not the store's.
pub(crate) async fn sql(url: &str, text: &str) {
    use sqlx_core::connection::Connection as _;
    use sqlx_core::executor::Executor as _;
    use sqlx_core::raw_sql::raw_sql;
    use sqlx_core::sql_str::AssertSqlSafe;
    let mut connection = sqlx_postgres::PgConnection::connect(url).await.unwrap();
    connection.execute(raw_sql(AssertSqlSafe(text.to_owned()))).await.unwrap();
}

pub(crate) fn message(topic: &str) -> MessageBuilder {
    NewMessage::json(topic, &serde_json::json!({ "canary": "payload-canary" })).header("h", "header-canary")
}

pub(crate) fn fail(text: &str) -> Outcome {
    Outcome::Fail { failure: Failure::permanent(text) }
}

/// The result of a process.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    fn new(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    fn hide(mut self, what: &str, with: &str) -> Self {
        self.out = self.out.replace(what, with);
        self.err = self.err.replace(what, with);
        self
    }

    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "out: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        assert!(self.out.contains(text), "{text:?} is not in: {}\nerr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn warns(self, text: &str) -> Self {
        assert!(self.err.contains(text), "{text:?} is not in: {}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn never(self, text: &str) -> Self {
        assert!(!self.out.contains(text) && !self.err.contains(text), "{text:?} is in: {self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Compares the answer with a file, ids and times apart.
    #[track_caller]
    pub(crate) fn like(self, name: &str) -> Self {
        golden(name, &stable(&self.out));
        self
    }
}

/// A command of ours that sees nothing of this machine's settings.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_posthaste"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for name in
        ["POSTHASTE_STORE", "POSTHASTE_CONFIG", "POSTHASTE_TOKEN", "COLUMNS", "CLICOLOR_FORCE", "FORCE_COLOR"]
    {
        command.env_remove(name);
    }
    command.env("USER", "ada").env("HOSTNAME", "desk");
    command
}

pub(crate) fn posthaste(args: &[&str], input: &str) -> Ran {
    let mut child = command(args).spawn().unwrap();
    // One that refuses its arguments does not read its input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    Ran::new(&child.wait_with_output().unwrap())
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} within two minutes");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[track_caller]
pub(crate) fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.txt"));
    if std::env::var_os("POSTHASTE_UPDATE_DUMPS").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default().replace("\r\n", "\n");
    assert_eq!(
        text, expected,
        "{name}.txt is not what the command says: run this with POSTHASTE_UPDATE_DUMPS=1"
    );
}

/// The text with placeholders for ids (numbered as they appear), times, durations and fractions, and with columns that are two
/// spaces apart, whatever was in them.
pub(crate) fn stable(text: &str) -> String {
    let mut ids: Vec<&str> = Vec::new();
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(id) = rest.get(..36).filter(|id| Uuid::parse_str(id).is_ok()) {
            let n = ids.iter().position(|known| *known == id).unwrap_or_else(|| {
                ids.push(id);
                ids.len() - 1
            });
            out.push_str(&format!("<id {}>", n + 1));
            rest = &rest[36..];
        } else if let Some(length) = time_at(rest) {
            out.push_str("<time>");
            rest = &rest[length..];
        } else if let Some(length) =
            duration_at(rest).filter(|_| !out.ends_with(|c: char| c.is_alphanumeric()))
        {
            out.push_str("<duration>");
            rest = &rest[length..];
        } else if let Some(length) = fraction_at(rest, if out.ends_with("_seconds\": ") { 1 } else { 2 }) {
            out.push_str("<number>");
            rest = &rest[length..];
        } else {
            let c = rest.chars().next().unwrap();
            // Indentation stays; what pads columns does not.
            if !(c == ' ' && out.ends_with("  ") && !out.rsplit('\n').next().unwrap().trim().is_empty()) {
                out.push(c);
            }
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

fn shaped(text: &str, shape: &str) -> bool {
    text.len() >= shape.len()
        && text.bytes().zip(shape.bytes()).all(|(c, s)| if s == b'9' { c.is_ascii_digit() } else { c == s })
}

fn time_at(text: &str) -> Option<usize> {
    ["9999-99-99T99:99:99.999999Z", "9999-99-99 99:99:99 UTC"]
        .iter()
        .find(|shape| shaped(text, shape))
        .map(|shape| shape.len())
}

fn duration_at(text: &str) -> Option<usize> {
    let one = |text: &str| {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let unit = text.get(digits..)?.strip_prefix(' ')?;
        let unit = ["ms", "min", "s", "h", "d"].into_iter().find(|known| {
            unit.strip_prefix(known).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
        })?;
        (digits > 0).then_some(digits + 1 + unit.len())
    };
    let first = one(text)?;
    let second = text[first..].strip_prefix(' ').and_then(one).map_or(0, |length| length + 1);
    Some(first + second)
}

/// The length of a number with at least so many decimal places.
fn fraction_at(text: &str, least: usize) -> Option<usize> {
    let whole = text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = text.get(whole..)?.strip_prefix('.')?;
    let places = rest.bytes().take_while(u8::is_ascii_digit).count();
    (whole > 0 && places >= least).then_some(whole + 1 + places)
}

/// Makes a test of each function for each database.
macro_rules! on_both {
    ($($name:ident),+ $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                if let Some(place) = crate::support::Place::sqlite().await {
                    super::$name(&place).await;
                    place.end().await;
                }
            })+
        }
        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                if let Some(place) = crate::support::Place::postgres().await {
                    super::$name(&place).await;
                    place.end().await;
                }
            })+
        }
    };
}
pub(crate) use on_both;

#[test]
fn placeholders_are_stable() {
    let id = Uuid::now_v7();
    let text = format!("{id}  a      b 3 min 20 s ago {id}\n  in 4 ms at 2027-01-15 08:00:00 UTC 0.0213 1.4");
    assert_eq!(stable(&text), "<id 1>  a  b <duration> ago <id 1>\n  in <duration> at <time> <number> 1.4");
    assert_eq!(stable("\"oldest_seconds\": 0.1"), "\"oldest_seconds\": <number>");
}
