//! One case: a database of its own, processes of its own, and the comparison at the end. Also the patience that all cases
//! share: they wait for conditions, with deadlines.
//!
//! What a case made is taken back also when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use posthaste_core::{NewMessage, Outbox};
use posthaste_sqlx::{Dialect, SqlStore};
use serde_json::{Value, json};
use sqlx_core::pool::Pool;

use crate::base::Base;
use crate::check::{Allowed, End, Figures, Ledger};
use crate::children::Worker;
use crate::fixture::is_missing;
use crate::journal::{Journal, hex, write_order};
use crate::producer::Producers;
use crate::worker::Orders;

/// How many handlers a worker process of these tests runs at a time.
pub const CONCURRENCY: u64 = 8;

/// A database, and the journal in it.
pub struct Case<D: Base> {
    pub url: String,
    pub store: SqlStore<D>,
    /// Connections as an application has them.
    pub users: Pool<<D as Dialect>::Db>,
    pub journal: Journal<D>,
    /// What its workers are told unless a case says otherwise.
    orders: Orders,
}

/// Runs a case and takes its database back, whatever comes of it.
pub async fn run<D: Base>(body: impl AsyncFnOnce(&Case<D>)) {
    if is_missing(D::NAME) {
        return;
    }
    let (url, options, room) = D::make_room().await;
    let case = Case::<D>::at(&url).await;
    let outcome = caught(body(&case)).await;
    case.close().await;
    D::take_back(&url, &options).await;
    drop(room);
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// What a future answers, or what it panicked with.
pub async fn caught<T>(future: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// Settings of W-S: a lease of two seconds, reaped every second.
pub fn settings() -> Value {
    json!({
        "workers": CONCURRENCY, "lease": "2s", "reap": "1s", "retry_base": "50ms", "retry_max": "1s",
        "poll_ceiling": "200ms", "shutdown_grace": "5s", "cancel_grace": "500ms", "stats": "off",
    })
}

/// The same with some of them changed.
pub fn settings_with(changes: &Value) -> Value {
    let mut settings = settings();
    for (name, value) in changes.as_object().unwrap() {
        settings[name] = value.clone();
    }
    settings
}

impl<D: Base> Case<D> {
    /// A case at a URL where there is nothing yet.
    pub async fn at(url: &str) -> Self {
        let store = SqlStore::<D>::connect_with(url, &D::options(url)).await.unwrap();
        store.migrate().await.unwrap();
        let users = D::pool(url, 8).await.unwrap();
        let journal = Journal::over(users.clone());
        journal.create().await;
        let orders = Orders {
            database: D::NAME.to_owned(),
            url: url.to_owned(),
            name: String::new(),
            settings: settings(),
            hot_pause_ms: None,
            work_ms: 80,
            silent: false,
        };
        Self { url: url.to_owned(), store, users, journal, orders }
    }

    /// Lets go of the database.
    pub async fn close(self) {
        self.store.close().await;
        self.users.close().await;
    }

    /// Publishes messages of these topics, each with its business row, in one transaction.
    pub async fn publish(&self, topics: &[&str]) -> Ledger {
        let outbox = Outbox::builder(self.store.clone()).build().await.unwrap();
        let messages: Vec<_> =
            topics.iter().map(|topic| NewMessage::bytes(*topic, "x").build().unwrap()).collect();
        let mut tx = self.users.begin().await.unwrap();
        outbox.publish_all(&mut tx, &messages).await.unwrap();
        for message in &messages {
            write_order::<D>(&mut tx, message.id()).await.unwrap();
        }
        tx.commit().await.unwrap();
        Ledger { committed: messages.iter().map(|message| hex(message.id())).collect(), refused: Vec::new() }
    }

    /// Starts a worker.
    pub fn worker(&self, name: &str) -> Worker {
        self.worker_with(name, |_| {})
    }

    /// Starts a worker that publishes on the hot path as well.
    pub fn hot_worker(&self, name: &str) -> Worker {
        self.worker_with(name, |orders| orders.hot_pause_ms = Some(40))
    }

    /// Starts a worker with other orders than usual.
    pub fn worker_with(&self, name: &str, change: impl FnOnce(&mut Orders)) -> Worker {
        let mut orders = Orders { name: name.to_owned(), ..self.orders.clone() };
        change(&mut orders);
        Worker::start(&orders)
    }

    /// Waits until each of these has begun to deliver.
    pub async fn are_working(&self, workers: &[&Worker]) {
        for worker in workers {
            let begun = async || self.journal.begun(&worker.name).await.is_ok_and(|begun| begun > 0);
            eventually("a worker delivers", Duration::from_secs(10), begun).await;
        }
    }

    /// Starts producers: together with those on the hot path they keep most of the handlers of two workers busy, so that
    /// something is under way when something happens to them; a little less where one writer at a time is all there is.
    pub fn producers(&self) -> Producers {
        let pause = if D::NAME == "sqlite" { 20 } else { 8 };
        Producers::start::<D>(&self.store, &self.users, 2, Duration::from_millis(pause))
    }

    /// Cuts the connections of the case's workers, and answers how many there were.
    pub async fn cut(&self) -> usize {
        let mut connection = self.users.acquire().await.unwrap();
        let cut = D::texts(&mut connection, D::disconnect(&self.url)).await.unwrap();
        for statement in cut.iter().filter(|statement| !statement.is_empty()) {
            // One that has ended by itself meanwhile cannot be ended again.
            let _ = D::run(&mut connection, statement.clone()).await;
        }
        cut.len()
    }

    /// Waits until nothing is ready or leased, and answers how long that took.
    pub async fn drained(&self, most: Duration) -> Duration {
        let begun = Instant::now();
        while !self.journal.backlog().await.is_ok_and(|backlog| backlog == 0) {
            if begun.elapsed() > most {
                let left = format!(
                    "select concat_ws(' ', count(*), 'in state', state, 'with', lease_losses, 'lost leases') \
                     from {} group by state, lease_losses",
                    D::TABLE
                );
                panic!("the backlog is not gone after {most:?}: {:?}", self.journal.texts(left).await);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        begun.elapsed()
    }

    /// Compares what there is with what was promised.
    pub async fn check(&self, what: &str, ledger: &Ledger, allowed: &Allowed) -> Figures {
        let picture = self.journal.picture().await;
        let suspects = picture.suspects();
        match picture.check(ledger, allowed) {
            Ok(figures) => {
                eprintln!("{} {what}: {figures:?}, messages by lost leases: {suspects:?}", D::NAME);
                assert!(figures.messages > 0 && figures.duplicates <= figures.bound, "{figures:?}");
                figures
            }
            Err(objection) => {
                panic!("{} {what}: {objection}\nmessages by lost leases: {suspects:?}", D::NAME)
            }
        }
    }
}

/// What becomes of the producers' messages: some fail once, some are dead at once.
pub fn allowed() -> Allowed {
    let ends = [
        ("flaky", End { dead: None, attempts: 1, lease_losses: None, error: "" }),
        ("doomed", End { dead: Some(4), attempts: 0, lease_losses: None, error: "never" }),
    ];
    // Handlers take 80 ms, and settlements are 50 ms apart: in that time no more than these can finish, and as many again
    // while a settlement is under way on a slow machine.
    Allowed { concurrency: CONCURRENCY, unsettled: 2 * CONCURRENCY, ends: ends.into(), ..Allowed::default() }
}

/// Waits for a condition.
pub async fn eventually(what: &str, most: Duration, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + most;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited {most:?} in vain: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Makes a test of a case for each of some databases.
macro_rules! on {
    ($($database:ident: $($name:ident = $case:path),+;)+) => {
        $(mod $database {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                crate::case::run::<$crate::case::dialect::$database>($case).await;
            })+
        })+
    };
}
pub(crate) use on;

/// Dialects by the names of their tests.
#[allow(non_camel_case_types, reason = "called like the module of their tests")]
pub mod dialect {
    pub type postgres = posthaste_sqlx::Postgres;
    pub type mysql = posthaste_sqlx::MySql;
    pub type sqlite = posthaste_sqlx::Sqlite;
}
