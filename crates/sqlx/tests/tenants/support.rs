//! Shared by the tests of tenants: a record of handled messages, running tenants, a directory that a test changes, and a log
//! subscriber.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_core::{
    Discovery, HandlerResult, Message, MessageId, NewMessage, Origin, Result, Shutdown, Tenant, TenantKey,
    TenantState, Tenants, TenantsBuilder,
};
use posthaste_sqlx::{Database, StoreOptions};
use posthaste_testkit::Logs;
use sqlx_core::pool::{Pool, PoolOptions};
use tokio::task::JoinHandle;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::fixture::{Backend, SqlFixture, is_missing, url_of};

/// How long anything that must come may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A handler was called.
#[derive(Clone, Debug)]
pub struct Handled {
    pub store: String,
    pub id: MessageId,
    pub at: Instant,
}

/// Which messages were handled, of which store, in their order.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Vec<Handled>>>);

impl Journal {
    /// A builder whose handler of `t` writes into this journal.
    pub fn builder(&self) -> TenantsBuilder {
        let journal = self.clone();
        Tenants::builder().on_topic("t", move |message: Message, origin: Origin| {
            let handled = Handled { store: origin.store().to_owned(), id: message.id, at: Instant::now() };
            journal.0.lock().unwrap().push(handled);
            async { HandlerResult::Ok(()) }
        })
    }

    pub fn all(&self) -> Vec<Handled> {
        self.0.lock().unwrap().clone()
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub fn of(&self, store: &str) -> Vec<MessageId> {
        let handled = self.0.lock().unwrap();
        handled.iter().filter(|one| one.store == store).map(|one| one.id).collect()
    }

    /// When the first message of each store was handled, of those from this one on.
    pub fn first_of_each(&self, from: usize) -> BTreeMap<String, Instant> {
        let mut first = BTreeMap::new();
        for one in &self.0.lock().unwrap()[from..] {
            first.entry(one.store.clone()).or_insert(one.at);
        }
        first
    }

    /// How many messages of a store were handled more than once.
    pub fn duplicates(&self) -> usize {
        let mut seen = HashSet::new();
        self.all().into_iter().filter(|one| !seen.insert((one.store.clone(), one.id))).count()
    }

    pub async fn reaches(&self, count: usize) {
        eventually(&format!("{count} messages are handled"), async || self.len() >= count).await;
        assert_eq!(self.len(), count);
    }
}

/// Tenants that run until this is stopped.
pub struct Running {
    shutdown: Shutdown,
    task: JoinHandle<Result<()>>,
}

pub fn run(tenants: &Tenants) -> Running {
    let shutdown = Shutdown::new();
    let task = tokio::spawn(tenants.run(shutdown.clone()));
    Running { shutdown, task }
}

impl Running {
    pub async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
    }
}

/// Waits until it is so.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub fn state(tenants: &Tenants, key: &str) -> Option<TenantState> {
    let key = TenantKey::from(key);
    tenants.list().into_iter().find(|info| info.key == key).map(|info| info.state)
}

/// A tenant's failure; empty if there is none.
pub fn trouble(tenants: &Tenants, key: &str) -> String {
    match state(tenants, key) {
        Some(TenantState::Failing { error, .. }) => error,
        _ => String::new(),
    }
}

pub fn draft() -> NewMessage {
    NewMessage::bytes("t", "").build().unwrap()
}

/// A list of tenants that a test changes as it goes.
#[derive(Clone, Debug, Default)]
pub struct Directory(Arc<Mutex<BTreeMap<String, Tenant>>>);

impl Directory {
    pub fn put(&self, tenant: Tenant) {
        self.0.lock().unwrap().insert(tenant.key().to_string(), tenant);
    }

    pub fn remove(&self, key: &str) {
        self.0.lock().unwrap().remove(key);
    }
}

impl Discovery for Directory {
    async fn discover(&self) -> Result<Vec<Tenant>> {
        Ok(self.0.lock().unwrap().values().cloned().collect())
    }
}

/// The store of a fixture, as a description.
pub fn described<D: Backend>(fixture: &SqlFixture<D>, url: &str) -> Database<D> {
    Database::new(url).unwrap().options(of_many(fixture.options.clone()))
}

/// These options, patient: here it is about what happens, not about how soon on a busy machine.
pub fn of_many(options: StoreOptions) -> StoreOptions {
    options.max_connections(2).listen(false).acquire_timeout(PATIENCE)
}

/// PostgreSQL's URL, unless there is none.
pub fn postgres() -> Option<String> {
    if is_missing("postgres") {
        eprintln!("skipped: postgres is not available");
        return None;
    }
    Some(url_of("postgres", "postgres://postgres@127.0.0.1:5432/test"))
}

/// The URL with another name for the database, and with these parameters.
pub fn url_with(url: &str, database: Option<&str>, parameters: &str) -> String {
    let (address, rest) = url.split_once('?').unwrap_or((url, ""));
    let (server, own) = address.rsplit_once('/').unwrap();
    let separator = if rest.is_empty() { "" } else { "&" };
    format!("{server}/{}?{rest}{separator}{parameters}", database.unwrap_or(own))
}

/// A client beside the stores, which prepares and inspects.
pub struct Admin<D: Backend>(pub Pool<D::Db>);

impl<D: Backend> Admin<D> {
    pub async fn new(url: &str) -> Self {
        Self(PoolOptions::new().max_connections(3).acquire_timeout(PATIENCE).connect(url).await.unwrap())
    }

    pub async fn run(&self, sql: impl Into<String>) {
        let mut connection = self.0.acquire().await.unwrap();
        D::run(&mut connection, sql.into()).await.unwrap();
    }

    pub async fn texts(&self, sql: impl Into<String>) -> Vec<String> {
        let mut connection = self.0.acquire().await.unwrap();
        D::texts(&mut connection, sql.into()).await.unwrap()
    }
}

/// Records log lines from this level up. The drivers log so much that recording all of it would dominate the test.
struct Ear(Logs, Level);

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.1
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.0.new_span(span)
    }

    fn record(&self, id: &Id, values: &Record<'_>) {
        self.0.record(id, values);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0.event(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Runs a test on a runtime of its own, which is listened to.
pub fn listened(level: Level, test: impl AsyncFnOnce(Logs)) {
    let logs = Logs::default();
    let heard = logs.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .on_thread_start(move || {
            std::mem::forget(tracing::subscriber::set_default(Ear(heard.clone(), level)));
        })
        .build()
        .unwrap();
    let _listening = tracing::subscriber::set_default(Ear(logs.clone(), level));
    runtime.block_on(test(logs));
}
