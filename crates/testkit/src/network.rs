//! Databases behind a network, for tests of many at a time: calls take time, connections are opened, kept and counted, and some
//! servers refuse them, or never answer.
//!
//! A [`MemoryStore`] that deletes done messages stores the data. A connection counts from when it is open until its
//! store rests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Change, ClaimRequest, Cursor, Enqueued, Error, ErrorKind, Expired, Filter, Finding, HistoryEntry, Holder,
    Join, JoinFilter, JoinId, JoinListing, Lease, Listing, LockWait, Look, MemoryStore, Message, MessageId,
    NewMessage, Pause, Reaped, Record, Result, Retention, Settled, SettledBatch, Settlement, Source, Stats,
    StepListing, Store, StoreAdmin, Topics, Turn,
};
use tokio::time::{Instant, sleep};

/// How a server answers connection attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// It takes connections.
    #[default]
    Open,
    /// It refuses them, at once.
    Refused,
    /// It does not answer attempts to connect. Open connections still work.
    Silent,
    /// It is gone: neither attempts to connect nor calls on open connections are answered.
    Gone,
    /// It does not let this password in.
    Locked,
}

/// A network of databases. Clones are the same network.
#[derive(Clone, Debug)]
pub struct Network {
    shape: Shape,
    seen: Arc<Mutex<Seen>>,
}

/// How long things take in it.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Opening a connection.
    pub connect: Duration,
    /// A call.
    pub call: Duration,
    /// Until a client gives up waiting for a connection.
    pub patience: Duration,
}

#[derive(Debug, Default)]
struct Seen {
    open: usize,
    most_open: usize,
    attempts: usize,
    most_attempts: usize,
    opened: u64,
    calls: u64,
    servers: HashMap<String, Server>,
    /// When claims found something, by database: the first since the last question.
    claimed: HashMap<String, Instant>,
    /// Every claim that was answered: of which database, and how many it found.
    claims: Vec<(String, usize)>,
    /// Claims under way, and the most there ever were at a time, by database.
    claiming: HashMap<String, (usize, usize)>,
    /// How often a store was made, and a connection attempted, by database.
    stores: HashMap<String, usize>,
    connects: HashMap<String, usize>,
    /// Calls that found their database, by database.
    reached: HashMap<String, u64>,
}

#[derive(Debug, Default)]
struct Server {
    reach: Reach,
    /// Whether settling fails.
    is_read_only: bool,
    password: String,
    store: Option<MemoryStore>,
}

impl Network {
    /// A network of this shape, without any database yet.
    pub fn new(shape: Shape) -> Self {
        Self { shape, seen: Arc::default() }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// The database of this name; it is there once it was asked for.
    pub fn database(&self, name: &str) -> MemoryStore {
        let mut seen = self.seen();
        seen.servers
            .entry(name.to_owned())
            .or_default()
            .store
            .get_or_insert_with(|| MemoryStore::new().keep_done(false))
            .clone()
    }

    /// Says how this database answers from now on. Connections that are open stay so.
    pub fn set(&self, name: &str, reach: Reach) {
        self.seen().servers.entry(name.to_owned()).or_default().reach = reach;
    }

    /// Makes every settlement and renewal of this database fail from now on, or succeed again.
    pub fn set_read_only(&self, name: &str, is_read_only: bool) {
        self.seen().servers.entry(name.to_owned()).or_default().is_read_only = is_read_only;
    }

    /// Sets a database's password; connections that are open stay so.
    pub fn set_password(&self, name: &str, password: &str) {
        self.seen().servers.entry(name.to_owned()).or_default().password = password.to_owned();
    }

    /// How many connections are open, and the most that ever were.
    pub fn connections(&self) -> (usize, usize) {
        let seen = self.seen();
        (seen.open, seen.most_open)
    }

    /// The most attempts at a connection that were ever waiting for an answer.
    pub fn most_attempts(&self) -> usize {
        self.seen().most_attempts
    }

    /// How many connections were opened, and calls made.
    pub fn counts(&self) -> (u64, u64) {
        let seen = self.seen();
        (seen.opened, seen.calls)
    }

    /// How many calls found this database.
    pub fn reached(&self, name: &str) -> u64 {
        self.seen().reached.get(name).copied().unwrap_or_default()
    }

    /// When a claim first found something there, since this was last asked.
    pub fn take_claimed(&self, name: &str) -> Option<Instant> {
        self.seen().claimed.remove(name)
    }

    /// Every claim that was answered: of which database, and how many it found.
    pub fn claims(&self) -> Vec<(String, usize)> {
        self.seen().claims.clone()
    }

    /// The most claims of this database that were ever under way at a time.
    pub fn most_claims_at_a_time(&self, name: &str) -> usize {
        self.seen().claiming.get(name).map_or(0, |(_, most)| *most)
    }

    /// How many stores were made of this database.
    pub fn stores(&self, name: &str) -> usize {
        self.seen().stores.get(name).copied().unwrap_or_default()
    }

    /// How often a connection to this database was attempted.
    pub fn connects(&self, name: &str) -> usize {
        self.seen().connects.get(name).copied().unwrap_or_default()
    }

    /// The source of a database, with this password.
    pub fn source(&self, name: &str, password: &str) -> RemoteSource {
        RemoteSource { network: self.clone(), name: name.to_owned(), password: password.to_owned() }
    }
}

/// A database of a network, as discoveries describe it.
#[derive(Clone, Debug)]
pub struct RemoteSource {
    network: Network,
    name: String,
    password: String,
}

impl PartialEq for RemoteSource {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.password == other.password
    }
}

impl Source for RemoteSource {
    type Store = Remote;

    fn open(&self) -> Result<Remote> {
        let store = self.network.database(&self.name);
        *self.network.seen().stores.entry(self.name.clone()).or_default() += 1;
        let pool = Pool { password: self.password.clone(), ..Pool::default() };
        Ok(Remote {
            network: self.network.clone(),
            name: self.name.clone(),
            store,
            pool: Arc::new(Mutex::new(pool)),
        })
    }

    fn change(&self, store: &Remote) -> Result<bool> {
        if store.name != self.name {
            return Ok(false);
        }
        store.pool().password.clone_from(&self.password);
        store.close_idle();
        Ok(true)
    }
}

/// A store over a database of a network. Clones share one pool of connections.
#[derive(Clone, Debug)]
pub struct Remote {
    network: Network,
    name: String,
    store: MemoryStore,
    pool: Arc<Mutex<Pool>>,
}

#[derive(Debug, Default)]
struct Pool {
    idle: usize,
    password: String,
}

impl Remote {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap()
    }

    fn close_idle(&self) {
        let idle = std::mem::take(&mut self.pool().idle);
        self.network.seen().open -= idle;
    }

    fn unavailable(&self, why: &str) -> Error {
        Error::new(ErrorKind::Unavailable, why.to_owned()).with_context("database", &self.name)
    }

    fn reach(&self) -> Reach {
        self.network.seen().servers.get(&self.name).map_or(Reach::Refused, |server| server.reach)
    }

    /// Fails if the database takes no settlements.
    fn check_writable(&self) -> Result<()> {
        if self.network.seen().servers.get(&self.name).is_some_and(|server| server.is_read_only) {
            return Err(Error::new(ErrorKind::Database, "the database is read-only"));
        }
        Ok(())
    }

    async fn connect(&self) -> Result<()> {
        {
            let mut pool = self.pool();
            if pool.idle > 0 {
                pool.idle -= 1;
                return Ok(());
            }
        }
        let password = self.pool().password.clone();
        let reach = {
            let mut seen = self.network.seen();
            seen.attempts += 1;
            *seen.connects.entry(self.name.clone()).or_default() += 1;
            seen.most_attempts = seen.most_attempts.max(seen.attempts);
            seen.servers.get(&self.name).map_or(Reach::Refused, |server| match server.reach {
                Reach::Open if server.password != password => Reach::Locked,
                reach => reach,
            })
        };
        let Shape { connect, patience, .. } = self.network.shape;
        let is_answered = !matches!(reach, Reach::Silent | Reach::Gone);
        sleep(if is_answered { connect } else { patience }).await;
        let mut seen = self.network.seen();
        seen.attempts -= 1;
        match reach {
            Reach::Open => {}
            Reach::Refused => return Err(self.unavailable("the connection was refused")),
            Reach::Silent | Reach::Gone => return Err(self.unavailable("no answer in time")),
            Reach::Locked => return Err(Error::new(ErrorKind::Permission, "the login was refused")),
        }
        seen.open += 1;
        seen.opened += 1;
        seen.most_open = seen.most_open.max(seen.open);
        Ok(())
    }

    async fn reached<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.connect().await?;
        if self.reach() == Reach::Gone {
            sleep(self.network.shape.patience).await;
            self.network.seen().open -= 1;
            return Err(self.unavailable("the connection was lost"));
        }
        sleep(self.network.shape.call).await;
        {
            let mut seen = self.network.seen();
            seen.calls += 1;
            *seen.reached.entry(self.name.clone()).or_default() += 1;
        }
        let outcome = call.await;
        self.pool().idle += 1;
        outcome
    }
}

/// Counts a claim while it is under way.
struct Claiming<'a>(&'a Remote);

impl<'a> Claiming<'a> {
    fn begin(remote: &'a Remote) -> Self {
        let mut seen = remote.network.seen();
        let (now, most) = seen.claiming.entry(remote.name.clone()).or_default();
        *now += 1;
        *most = (*most).max(*now);
        Self(remote)
    }
}

impl Drop for Claiming<'_> {
    fn drop(&mut self) {
        if let Some((now, _)) = self.0.network.seen().claiming.get_mut(&self.0.name) {
            *now -= 1;
        }
    }
}

#[async_trait]
impl Store for Remote {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        let _claiming = Claiming::begin(self);
        let messages = self.reached(self.store.claim(request)).await?;
        self.network.seen().claims.push((self.name.clone(), messages.len()));
        if !messages.is_empty() {
            self.network.seen().claimed.entry(self.name.clone()).or_insert_with(Instant::now);
        }
        Ok(messages)
    }

    fn name(&self) -> String {
        format!("network {}", self.name)
    }

    async fn rest(&self) {
        self.close_idle();
    }

    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        self.reached(self.store.enqueue(messages)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let settle = async {
            self.check_writable()?;
            self.store.settle(settlements).await
        };
        self.reached(settle).await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        let renew = async {
            self.check_writable()?;
            self.store.renew(leases, lease).await
        };
        self.reached(renew).await
    }

    async fn reap(&self, limit: u32) -> Result<Reaped> {
        self.reached(self.store.reap(limit)).await
    }

    async fn expire(&self, limit: u32) -> Result<Expired> {
        self.reached(self.store.expire(limit)).await
    }

    async fn park(&self, limit: u32) -> Result<u64> {
        self.reached(self.store.park(limit)).await
    }

    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        self.reached(self.store.hasten(topics, limit)).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        self.reached(self.store.prune(retention, limit)).await
    }

    async fn look(&self, join: JoinId) -> Result<Look> {
        self.reached(self.store.look(join)).await
    }

    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        self.reached(self.store.continue_join(join, wait, continuation)).await
    }

    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        self.reached(self.store.prune_joins(keep, limit)).await
    }

    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        self.reached(self.store.turn(job, turn)).await
    }

    async fn paused(&self) -> Result<Topics> {
        self.reached(self.store.paused()).await
    }

    async fn identity(&self) -> Result<Option<String>> {
        self.reached(self.store.identity()).await
    }

    async fn nudge(&self) -> Result<()> {
        self.reached(self.store.nudge()).await
    }

    async fn check(&self) -> Result<()> {
        self.reached(self.store.check()).await
    }
}

#[async_trait]
impl StoreAdmin for Remote {
    async fn stats(&self) -> Result<Stats> {
        self.reached(self.store.stats()).await
    }

    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        self.reached(self.store.list(filter, after, limit)).await
    }

    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        self.reached(self.store.show(id)).await
    }

    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.reached(self.store.requeue(change)).await
    }

    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.reached(self.store.bury(change)).await
    }

    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        self.reached(self.store.join(id)).await
    }

    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        self.reached(self.store.joins(filter, after, limit)).await
    }

    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        self.reached(self.store.steps(join, after, limit)).await
    }

    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        self.reached(self.store.pause(topics, by, why)).await
    }

    async fn resume(&self, topics: &str) -> Result<bool> {
        self.reached(self.store.resume(topics)).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.reached(self.store.pauses()).await
    }

    async fn holder(&self, id: MessageId) -> Result<Option<Holder>> {
        self.reached(self.store.holder(id)).await
    }

    async fn lock_waits(&self) -> Result<Vec<LockWait>> {
        self.reached(self.store.lock_waits()).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.reached(self.store.examine()).await
    }
}
