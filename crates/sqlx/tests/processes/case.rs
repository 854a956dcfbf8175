//! One case: a database of its own, processes of its own, and the comparison at the end. Also the patience that all cases
//! share: they wait for conditions, with deadlines.
//!
//! A case cleans up also when it fails.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Mutex;
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

/// How long something may take that must come, on a machine that is slow and busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The grace of a shutdown. No handler takes nearly as long, so a worker that gets SIGTERM ends before.
pub const GRACE: Duration = Duration::from_secs(90);

/// A database, and the journal in it.
pub struct Case<D: Base> {
    pub url: String,
    pub store: SqlStore<D>,
    /// Connections as an application has them.
    pub users: Pool<<D as Dialect>::Db>,
    pub journal: Journal<D>,
    /// The workers' default settings.
    orders: Orders,
    /// The processes that have died with their leases.
    gone: Mutex<Vec<String>>,
}

/// Runs a case and drops its database, also after a failure.
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

/// The result of a future, or its panic.
pub async fn caught<T>(future: impl Future<Output = T>) -> std::thread::Result<T> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(answer)) => Poll::Ready(Ok(answer)),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

/// How many outcomes a settlement has at most.
pub const SETTLE_BATCH: u64 = 8;

/// Settings of W-S: leases are reaped every second, but last longer than any case. So nothing loses one because the machine is
/// slow; a case whose workers die lets theirs run out.
pub fn settings() -> Value {
    json!({
        "workers": CONCURRENCY, "lease": "10m", "reap": "1s", "retry_base": "50ms", "retry_max": "1s",
        "poll_ceiling": "200ms", "shutdown_grace": format!("{}s", GRACE.as_secs()), "cancel_grace": "500ms",
        "stats": "off", "settle_batch": SETTLE_BATCH,
    })
}

/// Settings with which a claim whose answer was lost comes back in time.
pub fn short_lease(orders: &mut Orders) {
    orders.settings = settings_with(&json!({ "lease": "10s" }));
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
            guilty_ms: None,
            silent: false,
        };
        Self { url: url.to_owned(), store, users, journal, orders, gone: Mutex::default() }
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
            eventually("a worker delivers", begun).await;
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

    /// A process has died: lets its leases run out, without waiting for them.
    pub async fn died(&self, process: &str) {
        self.gone.lock().unwrap().push(process.to_owned());
        self.run_out().await;
    }

    /// Lets the leases of all that have died run out. Their last claim may take place after their death, so this is repeated.
    pub async fn run_out(&self) {
        let gone = self.gone.lock().unwrap().clone();
        for process in gone {
            if self.journal.leased(&process).await.is_ok_and(|leased| leased > 0) {
                let mut connection = self.users.acquire().await.unwrap();
                // One that deadlocks with a worker is repeated, too.
                let _ = D::run(&mut connection, D::run_out(&process)).await;
            }
        }
    }

    /// Waits until nothing is ready or leased, and answers how long that took.
    pub async fn drained(&self) -> Duration {
        let (begun, most) = (Instant::now(), PATIENCE);
        while !self.journal.backlog().await.is_ok_and(|backlog| backlog == 0) {
            self.run_out().await;
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

    /// Compares the state with the promises.
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
    // However slow a settlement is: no handler starts while a batch is gathered, one more batch may be under way, and running
    // ones may still finish.
    let unsettled = 2 * SETTLE_BATCH + CONCURRENCY;
    Allowed { concurrency: CONCURRENCY, unsettled, ends: ends.into(), ..Allowed::default() }
}

/// Waits for a condition.
pub async fn eventually(what: &str, condition: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition().await {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} in vain: {what}");
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
