//! Consumers as users run them: processes with an inbox, killed after the inbox row, after the effect, with the COMMIT under way,
//! and after it but before the broker was told (crash points B1 to B4). Everything is delivered again, and has its effect
//! exactly once (I9).
//!
//! The broker is a table of these tests: a message is delivered until it is acked there, outside of the consumer's transaction.

use std::io::Read as _;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt as _;
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{
    Consumer, Disposal, HandlerResult, Inbox, MessageId, Received, Shutdown, Tries, handled,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::{Effects, Mode, Proxy};
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::case::{Case, PATIENCE, on};
use crate::fixture::{Backend as _, Connection, in_the_clear};

const MESSAGES: usize = 30;
const CONSUMER: &str = "stock";

on! {
    postgres: slow_after_the_row = super::after_the_row, slow_after_the_effect = super::after_the_effect,
        slow_commit_under_way = super::commit_under_way, slow_before_the_ack = super::before_the_ack;
    mysql: slow_after_the_row = super::after_the_row, slow_after_the_effect = super::after_the_effect,
        slow_commit_under_way = super::commit_under_way, slow_before_the_ack = super::before_the_ack;
    sqlite: slow_after_the_row = super::after_the_row, slow_after_the_effect = super::after_the_effect,
        slow_before_the_ack = super::before_the_ack;
}

/// Where a consumer process ends itself, in the third message that it acts upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Crash {
    Never,
    AfterRow,
    AfterEffect,
    BeforeAck,
}

/// The arguments of a consumer process.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Orders {
    database: String,
    /// Where the consumer connects to.
    url: String,
    /// Where the broker is.
    broker: String,
    crash: Crash,
}

const VARIABLE: &str = "POSTHASTE_CONSUMER_ORDERS";

/// A consumer process. It is killed when it is dropped, and ends by itself when the pipe to it closes.
struct Process(Child);

impl Process {
    fn start(orders: &Orders) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "inbox::consumer_process", "--ignored", "--nocapture", "--test-threads=1"])
            .env(VARIABLE, serde_json::to_string(orders).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(if orders.crash == Crash::Never { Stdio::inherit() } else { Stdio::null() })
            .spawn();
        Self(child.unwrap())
    }

    /// Waits for its end; none if it was killed by a signal.
    async fn ended(mut self) -> Option<i32> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.code().is_some() || status.signal().is_some());
                return status.code();
            }
            assert!(begun.elapsed() < PATIENCE, "a consumer does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test: the main function of a consumer process.
#[test]
#[ignore = "other tests start it as a process of its own"]
fn consumer_process() {
    let Ok(orders) = std::env::var(VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // The parent process is gone.
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        match orders.database.as_str() {
            Postgres::NAME => serve::<Postgres>(orders).await,
            MySql::NAME => serve::<MySql>(orders).await,
            Sqlite::NAME => serve::<Sqlite>(orders).await,
            other => panic!("no such database: {other}"),
        }
    });
}

type Acting<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// Tells the compiler that a function takes references of any lifetime.
fn handler<C, H>(handler: H) -> H
where
    H: for<'a> Fn(&'a mut C, &'a Received) -> Acting<'a> + Send + Sync + 'static,
{
    handler
}

/// Takes the broker's messages, one after the other, until there are no more.
async fn serve<D: Base>(orders: Orders) {
    let store = SqlStore::<D>::connect_with(&orders.url, &D::options(&orders.url)).await.unwrap();
    let broker = D::pool(&orders.broker, 1).await.unwrap();
    let acted = Arc::new(AtomicU64::new(0));
    let (count, crash) = (Arc::clone(&acted), orders.crash);
    let reserve = handler(move |connection: &mut Connection<D>, message: &Received| {
        let third = count.fetch_add(1, Ordering::SeqCst) == 2;
        Box::pin(async move {
            abort_if(third && crash == Crash::AfterRow);
            let effect =
                format!("insert into effects (consumer, message) values ('{CONSUMER}', '{}')", message.id);
            D::run(connection, effect).await?;
            abort_if(third && crash == Crash::AfterEffect);
            handled()
        })
    });
    let consumer = Consumer::new(Inbox::new(store.clone(), CONSUMER).unwrap(), reserve);
    let shutdown = Shutdown::new();
    let housekeeper = tokio::spawn({
        let (consumer, shutdown) = (consumer.clone(), shutdown.clone());
        async move { consumer.housekeep(shutdown).await }
    });
    loop {
        let mut connection = broker.acquire().await.unwrap();
        let next = "select message from broker where acked = 0 order by message limit 1".to_owned();
        let Some(id) = D::texts(&mut connection, next).await.unwrap().pop() else { break };
        let message = Received::new("shop", id.parse().unwrap(), "order.placed", format!("payload of {id}"));
        drop(connection);
        match consumer.receive(&message, Tries::default()).await {
            Disposal::Ack => {}
            // Again, and soon, without a back-off.
            Disposal::Again { .. } => continue,
            dead @ Disposal::Dead(_) => panic!("{dead:?}"),
        }
        abort_if(orders.crash == Crash::BeforeAck && acted.load(Ordering::SeqCst) == 3);
        let mut connection = broker.acquire().await.unwrap();
        D::run(&mut connection, format!("update broker set acked = 1 where message = '{id}'")).await.unwrap();
    }
    shutdown.begin();
    housekeeper.await.unwrap();
    store.close().await;
}

fn abort_if(so: bool) {
    if so {
        std::process::abort();
    }
}

async fn run<D: Base>(case: &Case<D>, sql: String) {
    D::run(&mut case.users.acquire().await.unwrap(), sql).await.unwrap();
}

/// A broker with unhandled messages.
async fn broker<D: Base>(case: &Case<D>) -> Vec<MessageId> {
    let (counter, name) = (D::COUNTER, D::NAME_TYPE);
    run(case, format!("create table broker (message {name} not null primary key, acked integer not null)"))
        .await;
    run(
        case,
        format!("create table effects (n {counter}, consumer {name} not null, message {name} not null)"),
    )
    .await;
    let messages: Vec<_> = (0..MESSAGES).map(|_| MessageId::new()).collect();
    for message in &messages {
        run(case, format!("insert into broker (message, acked) values ('{message}', 0)")).await;
    }
    messages
}

fn orders<D: Base>(case: &Case<D>, crash: Crash) -> Orders {
    Orders { database: D::NAME.to_owned(), url: case.url.clone(), broker: case.url.clone(), crash }
}

/// Lets a healthy consumer finish, delivers everything once more, to two of them at once, and compares.
async fn finish<D: Base>(case: &Case<D>, what: &str, messages: &[MessageId]) {
    for round in 0..2 {
        let both = [Process::start(&orders(case, Crash::Never)), Process::start(&orders(case, Crash::Never))];
        for process in both {
            assert_eq!(process.ended().await, Some(0), "{what}");
        }
        assert_eq!(case.journal.number("count(*)", "broker where acked = 0").await.unwrap(), 0);
        let mut effects = Effects::default();
        for message in case.journal.texts("select message from effects".to_owned()).await.unwrap() {
            effects.add(CONSUMER, message);
        }
        assert_eq!(effects.exactly_once(&[CONSUMER], messages), Ok(()), "{what}, round {round}");
        let rows = case.journal.number("count(*)", &format!("{}_inbox", D::TABLE)).await.unwrap();
        assert_eq!(rows, MESSAGES as u64, "{what}");
        run(case, "update broker set acked = 0".to_owned()).await;
    }
}

/// Five processes in a row crash at the same point; they leave the state as if they had never started, or as if they had
/// finished.
async fn crashes<D: Base>(case: &Case<D>, crash: Crash) {
    let messages = broker(case).await;
    for n in 1..=5 {
        assert_eq!(Process::start(&orders(case, crash)).ended().await, None, "{crash:?}");
        // Two acked by each; the third is committed only by a process that got as far as that.
        let effects = case.journal.number("count(*)", "effects").await.unwrap();
        assert_eq!(effects, if crash == Crash::BeforeAck { 3 * n } else { 2 * n }, "{crash:?}");
    }
    finish(case, &format!("{crash:?}"), &messages).await;
}

/// Crash point B1, INB-002.
async fn after_the_row<D: Base>(case: &Case<D>) {
    crashes(case, Crash::AfterRow).await;
}

/// Crash point B2, INB-002.
async fn after_the_effect<D: Base>(case: &Case<D>) {
    crashes(case, Crash::AfterEffect).await;
}

/// Crash point B4, INB-001.
async fn before_the_ack<D: Base>(case: &Case<D>) {
    crashes(case, Crash::BeforeAck).await;
}

/// Crash point B3, rule 7: the COMMIT is sent, its answer is cut off, and the process is killed before it could ask again.
async fn commit_under_way<D: Base>(case: &Case<D>) {
    let messages = broker(case).await;
    let (login, rest) = case.url.split_once('@').unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let server: SocketAddr = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
    let commit = if D::NAME == "mysql" { b"\x03COMMIT".to_vec() } else { b"COMMIT\0".to_vec() };
    for n in 1..=3 {
        let proxy = Proxy::start(server).await.unwrap();
        let url = in_the_clear(&format!("{login}@{}/{path}", proxy.addr()));
        proxy.set(Mode::CutAfterRequest(commit.clone()));
        // The first two crash soon after it; the last one goes on, and finds out by itself.
        let crash = if n < 3 { Crash::BeforeAck } else { Crash::Never };
        let process = Process::start(&Orders { url, ..orders(case, crash) });
        assert_eq!(process.ended().await, (crash == Crash::Never).then_some(0));
        assert_eq!(proxy.answers_lost(), 1, "a commit was cut");
    }
    finish(case, "commit under way", &messages).await;
}
