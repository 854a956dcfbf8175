//! The whole story, with real processes and the real broker: orders are placed before any consumer runs, a hundred of them at a
//! time; the inventory comes, is killed in the middle of its work, and comes back; so does the order service. In the end every
//! order has its stock reserved, once.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use posthaste::{SqliteStore, State, StoreAdmin as _};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

const LONG: Duration = Duration::from_secs(120);

/// Where everything of one run is.
struct Scene {
    folder: tempfile::TempDir,
    broker: String,
    name: String,
}

impl Scene {
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command
            .env("STORY_BROKER", &self.broker)
            .env("STORY_EXCHANGE", &self.name)
            .env("STORY_QUEUE", &self.name)
            .env("STORY_LISTEN", "127.0.0.1:0")
            .env("STORY_ORDERS", self.folder.path().join("orders.db"))
            .env("STORY_INVENTORY", self.folder.path().join("inventory.db"))
            .env("STORY_PACE_MS", "100")
            .env("POSTHASTE_UNROUTABLE_DELAY", "300ms")
            .env("POSTHASTE_LEASE", "2s")
            .env("POSTHASTE_REAP", "500ms")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Starts the order service, and answers its address.
    async fn orders(&self) -> (Child, String) {
        let program = env!("CARGO_BIN_EXE_order_service");
        let mut child = self.command(program).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(LONG, lines.next_line()).await.unwrap().unwrap().unwrap();
        let address = line.split("http://").nth(1).unwrap().split('/').next().unwrap().to_owned();
        (child, address)
    }

    fn inventory(&self) -> Child {
        self.command(env!("CARGO_BIN_EXE_inventory_service")).stdout(Stdio::null()).spawn().unwrap()
    }

    /// How often each order has been reserved, and how much is reserved in all.
    async fn reserved(&self) -> (BTreeMap<i64, usize>, i64) {
        let file = self.folder.path().join("inventory.db");
        let Ok(pool) = open(&file).await else { return (BTreeMap::new(), 0) };
        let orders: Vec<(i64,)> =
            sqlx::query_as("select order_id from reservation").fetch_all(&pool).await.unwrap_or_default();
        let stock: Option<(i64,)> =
            sqlx::query_as("select sum(reserved) from stock").fetch_optional(&pool).await.ok().flatten();
        pool.close().await;
        let mut times = BTreeMap::new();
        for (order,) in orders {
            *times.entry(order).or_default() += 1;
        }
        (times, stock.map_or(0, |(sum,)| sum))
    }
}

async fn open(file: &Path) -> Result<SqlitePool, sqlx::Error> {
    SqlitePool::connect_with(SqliteConnectOptions::new().filename(file).read_only(true)).await
}

/// Waits until something is so.
async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < LONG, "it did not become true that {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Places an order, and answers the status and the order's number.
async fn place(address: &str, quantity: i64) -> (u16, i64) {
    let body = format!(r#"{{"item":"lamp","quantity":{quantity}}}"#);
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let order: serde_json::Value = serde_json::from_str(body).unwrap();
    (status, order["order_id"].as_i64().unwrap())
}

/// RMQ-005, RMQ-008, RMQ-009, RMQ-013, INB-001, INB-003, I9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_every_order_has_its_stock_reserved_once() {
    let Ok(broker) = std::env::var("POSTHASTE_TEST_RABBITMQ") else {
        eprintln!("skipped: POSTHASTE_TEST_RABBITMQ is not set");
        return;
    };
    let name = format!("story-{}", std::process::id());
    let scene = Scene { folder: tempfile::tempdir().unwrap(), broker, name };

    // No consumer runs: the service answers the customer at once, and the message waits uncharged.
    let (mut orders, address) = scene.orders().await;
    let asked = Instant::now();
    let (status, first) = place(&address, 1).await;
    assert_eq!(status, 201);
    assert!(asked.elapsed() < LONG / 4, "the customer does not wait for the broker");
    let store = SqliteStore::open(scene.folder.path().join("orders.db")).await.unwrap();
    let listed = async || store.list(&posthaste::Filter::default(), None, 200).await.unwrap().records;
    eventually("the message was unroutable", async || {
        listed()
            .await
            .iter()
            .any(|record| record.last_error.as_ref().is_some_and(|text| text.contains("[INFRA]")))
    })
    .await;
    let waits = listed().await.remove(0);
    assert_eq!(waits.message.attempts, 0);
    assert_ne!(waits.state, State::Done);

    // A hundred customers at the same moment, and the order service dies when they have been answered.
    let placing: Vec<_> = (0..100)
        .map(|n| {
            let address = address.clone();
            tokio::spawn(async move { place(&address, n % 3 + 1).await })
        })
        .collect();
    let mut placed = BTreeMap::from([(first, 1)]);
    for (n, placing) in (0..).zip(placing) {
        let (status, order) = placing.await.unwrap();
        assert_eq!(status, 201);
        assert!(placed.insert(order, n % 3 + 1).is_none(), "one number, one order");
    }
    let messages = listed().await;
    assert_eq!(messages.len(), 101, "every order has its message, and none has two");
    orders.kill().await.unwrap();
    let (mut orders, _) = scene.orders().await;

    // The inventory comes, is killed in the middle, and comes back.
    let mut inventory = scene.inventory();
    eventually("some are reserved", async || scene.reserved().await.0.len() >= 10).await;
    inventory.kill().await.unwrap();
    let before = scene.reserved().await.0.len();
    assert!(before < 101, "it was killed too late to show anything");
    let mut inventory = scene.inventory();
    eventually("all are reserved", async || scene.reserved().await.0.len() == 101).await;
    eventually("all messages are done", async || {
        listed().await.iter().all(|record| record.state == State::Done)
    })
    .await;

    let (times, sum) = scene.reserved().await;
    assert!(times.values().all(|times| *times == 1), "each order once: {times:?}");
    assert!(placed.keys().eq(times.keys()));
    assert_eq!(sum, placed.values().sum::<i64>());
    for record in listed().await {
        assert_eq!(record.message.attempts, 0, "nothing of this was a message's fault");
    }
    orders.kill().await.unwrap();
    inventory.kill().await.unwrap();
    clean_up(&scene).await;
}

/// Removes what this run declared: a broker that others use must not fill up with it.
async fn clean_up(scene: &Scene) {
    let connection =
        lapin::Connection::connect(&scene.broker, lapin::ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    for queue in [scene.name.clone(), format!("{}.dead", scene.name)] {
        channel.queue_delete(queue.into(), lapin::options::QueueDeleteOptions::default()).await.unwrap();
    }
    channel
        .exchange_delete(scene.name.clone().into(), lapin::options::ExchangeDeleteOptions::default())
        .await
        .unwrap();
}
