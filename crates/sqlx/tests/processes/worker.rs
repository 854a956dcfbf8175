//! The worker process: an outbox with handlers that write into the journal, and a producer on the hot path beside it.
//!
//! It is a test of this program that does nothing unless it is started with orders. It must never outlive the test that
//! started it, and never say what became of a message: the tables do.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::{
    HandlerError, HandlerResult, Message, NewMessage, Outbox, Policy, Settings, Shared, Topics, handled,
    shutdown_signal,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use serde::{Deserialize, Serialize};

use crate::base::Base;
use crate::fixture::Backend as _;
use crate::journal::{Journal, write_order};

/// The arguments of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub database: String,
    pub url: String,
    pub name: String,
    /// As in a file of settings.
    pub settings: serde_json::Value,
    /// How long the producer on the hot path pauses after each transaction; none means that there is no such producer.
    pub hot_pause_ms: Option<u64>,
    /// How long a handler takes.
    pub work_ms: u64,
    /// How long handlers may take that never end; none means as long as all others.
    pub guilty_ms: Option<u64>,
    /// Whether its last words are of no interest.
    pub silent: bool,
}

impl Orders {
    pub const VARIABLE: &'static str = "POSTHASTE_WORKER_ORDERS";

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap()
    }
}

/// Not a test: the main function of a worker process.
#[test]
#[ignore = "other tests start it as a process of its own"]
fn worker_process() {
    let Ok(orders) = std::env::var(Orders::VARIABLE) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        // The parent process is gone.
        std::process::exit(3);
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(async {
        match orders.database.as_str() {
            Postgres::NAME => serve::<Postgres>(orders).await,
            MySql::NAME => serve::<MySql>(orders).await,
            Sqlite::NAME => serve::<Sqlite>(orders).await,
            other => panic!("no such database: {other}"),
        }
    });
    // A handler that blocks its thread would be waited for.
    runtime.shutdown_background();
}

/// What handlers share.
struct Desk<D: Base> {
    journal: Journal<D>,
    work: Duration,
    quick: Arc<AtomicU64>,
}

impl<D: Base> Clone for Desk<D> {
    fn clone(&self) -> Self {
        Self { journal: self.journal.clone(), work: self.work, quick: Arc::clone(&self.quick) }
    }
}

async fn serve<D: Base>(orders: Orders) {
    let url = D::as_program(&orders.url, &orders.name);
    let store = SqlStore::<D>::connect_with(&url, &D::options(&url)).await.unwrap();
    let settings: Settings = serde_json::from_value(orders.settings.clone()).unwrap();
    let connections = settings.workers.min(6);
    let desk = Desk {
        journal: Journal::<D>::open(&url, &orders.name, connections).await.unwrap(),
        work: Duration::from_millis(orders.work_ms),
        quick: Arc::default(),
    };
    let mut builder = Outbox::builder(store.clone());
    if let Some(most) = orders.guilty_ms {
        let guilty = Topics::of(["pending", "deaf", "loop"]).unwrap();
        builder = builder.policy(guilty, Policy::new().timeout(Duration::from_millis(most)));
    }
    let outbox = builder
        .settings(settings)
        .worker(orders.name)
        .share(desk)
        .on_topic("*", handle::<D>)
        .build()
        .await
        .unwrap();
    let shutdown = shutdown_signal();
    let running = tokio::spawn(outbox.run(shutdown.clone()));
    let producing = tokio::spawn(async move {
        let Some(pause) = orders.hot_pause_ms else { return };
        let mut n = 0;
        while !shutdown.has_begun() {
            // A transaction that fails, fails as a whole; the tables show whether that is so.
            let _ = produce::<D>(&outbox, n).await;
            tokio::time::sleep(Duration::from_millis(pause)).await;
            n += 1;
        }
    });
    running.await.unwrap().unwrap();
    producing.await.unwrap();
    store.close().await;
}

/// A transaction on the hot path: some are rolled back, some have a savepoint that is.
async fn produce<D: Base>(
    outbox: &Outbox<SqlStore<D>>,
    n: u64,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let message = |n: u64| NewMessage::bytes("work", format!("hot {n}")).build();
    let mut tx = outbox.begin().await?;
    let kept = message(n)?;
    tx.publish(&kept).await?;
    write_order::<D>(&mut tx, kept.id()).await?;
    if n % 5 == 2 {
        D::run(&mut tx, "savepoint here".to_owned()).await?;
        let taken_back = message(n)?;
        write_order::<D>(&mut tx, taken_back.id()).await?;
        tx.publish(&taken_back).await?;
        D::run(&mut tx, "rollback to savepoint here".to_owned()).await?;
    }
    if n % 7 == 3 {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(())
}

fn outage(error: sqlx_core::Error) -> HandlerError {
    HandlerError::infrastructure(error)
}

/// The handler of every topic. The topic says what goes wrong.
async fn handle<D: Base>(message: Arc<Message>, Shared(desk): Shared<Desk<D>>) -> HandlerResult {
    if message.topic.as_str() == "block" {
        // Fast ones at first, so that the queues fill up; then none ends.
        if desk.quick.fetch_add(1, Ordering::Relaxed) >= 2_000 {
            std::future::pending::<()>().await;
        }
        return handled();
    }
    desk.journal.begin(&message).await.map_err(outage)?;
    if matches!(message.topic.as_str(), "abort" | "overflow") {
        // Time enough for the dispatcher to claim what would die with it, if it did.
        tokio::time::sleep(desk.work).await;
    }
    let refusal: Option<HandlerError> = match message.topic.as_str() {
        "flaky" if message.attempts == 0 => Some("not at the first attempt".into()),
        "doomed" => Some(HandlerError::dead("never")),
        _ => None,
    };
    if let Some(refusal) = refusal {
        // It has ended, too, and only its settlement is missing.
        desk.journal.finish(&message).await.map_err(outage)?;
        return Err(refusal);
    }
    match message.topic.as_str() {
        "panic" => panic!("poison"),
        "abort" => std::process::abort(),
        "overflow" => assert!(dig(1) > 0, "unreachable"),
        "pending" => std::future::pending().await,
        "deaf" => loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
        },
        "loop" => loop {
            std::thread::sleep(Duration::from_millis(20));
        },
        _ => tokio::time::sleep(desk.work).await,
    }
    desk.journal.finish(&message).await.map_err(outage)?;
    handled()
}

/// Uses up the stack.
#[allow(unconditional_recursion, reason = "that is the point")]
fn dig(depth: u64) -> u64 {
    let ground = [depth; 64];
    std::hint::black_box(ground)[0] + dig(depth + 1) + ground[63]
}
