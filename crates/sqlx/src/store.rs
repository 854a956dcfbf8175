//! A store over a SQL database: the code that is the same for all dialects, for workers and publishers.
//!
//! No SQL is written here, and nothing is retried that runs in a transaction of the user's.

use std::collections::HashSet;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::store::{MAX_BATCH, MAX_PRUNE_BATCH, check_batch, check_lease, distinct};
use posthaste_core::{
    Birth, ClaimRequest, Enqueued, Error, ErrorKind, Expired, Failure, JoinId, Lease, Look, MAX_LEASE_LOSSES,
    MAX_NAME_BYTES, Message, MessageId, NewMessage, Outcome, Reaped, Result, Retention, Settled,
    SettledBatch, Settlement, State, Store, Topics, TransactionalStore, Transactions, Turn,
};
use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_core::database::Database;
use sqlx_core::pool::Pool;
use sqlx_core::transaction::Transaction;
use tokio::time::{Instant, timeout};

use crate::arg::{Arg, micros, span_micros};
use crate::dialect::{ConnectOptions, Connection, Dialect, chunks};
use crate::error::{not_opened, silent, unknown, unknown_commit, wrap};
use crate::link::Link;
use crate::locks::{LastLook, LockMet};
use crate::migrate::Script;
use crate::naming::Naming;
use crate::options::StoreOptions;
use crate::pools::{Pools, Recipe, Whose};
use crate::retry::Tries;
use crate::row::{self, Columns};
use crate::sql::{Statement, Statements};

mod passing;

/// Runs the body again for as long as it loses conflicts with other transactions.
macro_rules! retrying {
    ($body:expr) => {{
        let mut tries = Tries::default();
        loop {
            match $body.await {
                Err(error) if tries.again(&error).await => {}
                outcome => break outcome,
            }
        }
    }};
}
pub(crate) use retrying;

/// A store over a SQL database; `PgStore`, `MySqlStore` and `SqliteStore` are its names.
///
/// Cloning it is cheap, and all clones share one pool of connections.
pub struct SqlStore<D: Dialect>(Arc<Inner<D>>);

/// The longest period of a job: 100 years, as for all spans of time.
pub(crate) const MAX_PERIOD_MICROS: i64 = 100 * 365 * 24 * 3_600 * 1_000_000;
/// The beginning of the year 9999, up to which every database can count.
pub(crate) const MAX_TIME_MICROS: i64 = 253_370_764_800 * 1_000_000;

struct Inner<D: Dialect> {
    pools: Arc<Pools<D>>,
    naming: Naming,
    statements: Statements,
    keep_done: bool,
    answer_timeout: Duration,
    statement_timeout: Option<Duration>,
    endpoint: String,
    last_look: Arc<LastLook>,
    lock_met: Arc<LockMet>,
}

impl<D: Dialect> Clone for SqlStore<D> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<D: Dialect> fmt::Debug for SqlStore<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore")
            .field("database", &self.0.endpoint)
            .field("outbox", &self.0.naming.full("outbox"))
            .finish_non_exhaustive()
    }
}

impl<D: Dialect> SqlStore<D> {
    /// A store over the database at this URL, with the default settings. Fails at once if it cannot be reached; creates
    /// nothing.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_with(url, &StoreOptions::new()).await
    }

    /// The same with settings.
    pub async fn connect_with(url: &str, options: &StoreOptions) -> Result<Self> {
        Self::open_with(Self::parse(url)?, options).await
    }

    /// The settings in a URL.
    pub(crate) fn parse(url: &str) -> Result<ConnectOptions<D>> {
        let scheme = url.split(':').next().unwrap_or_default();
        if !D::SCHEMES.contains(&scheme) {
            let known = D::SCHEMES.join(":// or ");
            return Err(Error::new(ErrorKind::Configuration, "the URL is not one of this database")
                .during("connect")
                .with_remedy(format!("begin it with {known}://, or use the store of the other database")));
        }
        // Without the slashes a login would be taken for a database's name, and shown.
        if scheme != "sqlite" && !url[scheme.len()..].starts_with("://") {
            return Err(Error::new(ErrorKind::Configuration, "the database URL cannot be understood")
                .during("connect")
                .with_remedy(format!("begin it with {scheme}://")));
        }
        if scheme != "sqlite" {
            crate::url::check_fragment(url)?;
        }
        crate::url::check_options(url, D::URL_OPTIONS)?;
        // The driver's own message may quote the URL, and with it a password.
        url.parse::<ConnectOptions<D>>().map_err(|_| {
            Error::new(ErrorKind::Configuration, "the database URL cannot be understood")
                .during("connect")
                .with_remedy(
                    "write it like postgres://user:password@host:5432/database, mysql://… or sqlite://file.db, and check \
                     its port and options",
                )
        })
    }

    /// The same with the driver's own options instead of a URL.
    pub async fn open_with(connect: ConnectOptions<D>, options: &StoreOptions) -> Result<Self> {
        let store = Self::lazy(connect, options)?;
        let endpoint = &store.0.endpoint;
        // The pool waits for a server that refuses connections; a first one of our own tells at once.
        let connect = store.0.pools.connect_options();
        let first =
            tokio::time::timeout(options.acquire_timeout, Connection::<D>::connect_with(&connect)).await;
        let first =
            first.map_err(|_| store.name_writer(not_opened::<D>(endpoint, options.acquire_timeout)))?;
        let first = first.map_err(|error| store.wrap("connect", error))?;
        first.close().await.map_err(|error| store.wrap("connect", error))?;
        store.0.pools.was_reached();
        Ok(store)
    }

    /// The same without any connection yet.
    pub(crate) fn lazy(connect: ConnectOptions<D>, options: &StoreOptions) -> Result<Self> {
        let naming = Self::checked(options)?;
        D::check_options(&connect)?;
        let endpoint = D::endpoint(&connect);
        let pools = Pools::made(Recipe::new(connect, options), naming.channel());
        Ok(Self::build(pools, naming, endpoint, options))
    }

    /// A store over a pool that you have already. Acks and renewals then wait for a connection behind your own queries,
    /// so prefer [`connect`](Self::connect) for workers. Transactions that the store opens for you are of that pool, too.
    /// The store never closes its idle connections.
    ///
    /// Set `idle_timeout(None)` and `max_lifetime(None)` on it: with either, sqlx 0.9 starts a maintenance task that in rare cases
    /// spins for ever.
    pub fn from_pool(pool: Pool<D::Db>, options: &StoreOptions) -> Result<Self> {
        let naming = Self::checked(options)?;
        let endpoint = D::endpoint(&pool.connect_options());
        let pools = Pools::given(pool, options, naming.channel());
        Ok(Self::build(pools, naming, endpoint, options))
    }

    fn build(pools: Pools<D>, naming: Naming, endpoint: String, options: &StoreOptions) -> Self {
        let statements = Statements::new(&D::FILES, &naming);
        let StoreOptions { keep_done, answer_timeout, statement_timeout, .. } = *options;
        let pools = Arc::new(pools);
        let (last_look, lock_met) = (Arc::default(), Arc::default());
        Self(Arc::new(Inner {
            pools,
            naming,
            statements,
            keep_done,
            answer_timeout,
            statement_timeout,
            endpoint,
            last_look,
            lock_met,
        }))
    }

    fn checked(options: &StoreOptions) -> Result<Naming> {
        options.check()?;
        Self::naming(options)
    }

    /// Lets all clones go on with connections that are made like this. False, and nothing happens, if that is another
    /// database or another queue in it, or if it takes another store.
    pub(crate) fn replace_connections(
        &self,
        connect: ConnectOptions<D>,
        options: &StoreOptions,
    ) -> Result<bool> {
        let asked = Self::checked(options)?;
        D::check_options(&connect)?;
        let Inner { pools, naming, keep_done, answer_timeout, statement_timeout, endpoint, .. } = &*self.0;
        Ok(*endpoint == D::endpoint(&connect)
            && *naming == asked
            && *keep_done == options.keep_done
            && *answer_timeout == options.answer_timeout
            && *statement_timeout == options.statement_timeout
            && pools.change(Recipe::new(connect, options)))
    }

    pub(crate) fn naming(options: &StoreOptions) -> Result<Naming> {
        let schema = options.schema.clone().or(D::DEFAULT_SCHEMA.map(str::to_owned));
        let prefix = options.prefix.clone().unwrap_or_else(|| D::DEFAULT_PREFIX.to_owned());
        let naming = Naming::new(schema, prefix, D::QUOTE)?;
        D::check_naming(&naming)?;
        Ok(naming)
    }

    /// Creates or updates the tables and routines; harmless if they are up to date, and if many processes do it at once.
    /// Answers the version that is there now. It runs on a connection of its own, only when it is called.
    pub async fn migrate(&self) -> Result<u32> {
        let script = Script::new(&D::FILES, &self.0.naming);
        let options = self.0.pools.connect_options();
        self.watched("migrate", D::migrate(&options, &script))
            .await?
            .map_err(|error| error.during("migrate").with_context("database", &self.0.endpoint))
    }

    /// The SQL that [`migrate`](Self::migrate) runs on an empty database, for people with a tool of their own.
    pub fn migration_sql(options: &StoreOptions) -> Result<String> {
        let script = Script::new(&D::FILES, &Self::naming(options)?);
        Ok(D::print(&script))
    }

    /// The store's pool, as it is now: a rest, or another login, puts another in its place, and closes this one. Its
    /// connections have settings for a queue's own statements; use it for nothing else.
    pub fn pool(&self) -> Pool<D::Db> {
        self.0.pools.pool(Whose::Ours)
    }

    /// Closes all connections for good, once the statements and transactions under way have ended.
    pub async fn close(&self) {
        self.0.pools.close().await;
    }

    /// The same store with another choice about done messages; it shares the connections.
    #[must_use]
    pub fn keep_done(&self, keep: bool) -> Self {
        let Inner { pools, naming, statements, endpoint, last_look, lock_met, .. } = &*self.0;
        Self(Arc::new(Inner {
            pools: Arc::clone(pools),
            naming: naming.clone(),
            statements: statements.clone(),
            keep_done: keep,
            answer_timeout: self.0.answer_timeout,
            statement_timeout: self.0.statement_timeout,
            endpoint: endpoint.clone(),
            last_look: Arc::clone(last_look),
            lock_met: Arc::clone(lock_met),
        }))
    }

    pub(crate) fn get_naming(&self) -> &Naming {
        &self.0.naming
    }

    pub(crate) fn pool_of(&self, whose: Whose) -> Pool<D::Db> {
        self.0.pools.pool(whose)
    }

    pub(crate) fn connect_options(&self) -> ConnectOptions<D> {
        self.0.pools.connect_options()
    }

    pub(crate) fn endpoint(&self) -> &str {
        &self.0.endpoint
    }

    pub(crate) fn last_look(&self) -> &LastLook {
        &self.0.last_look
    }

    pub(crate) fn statements(&self) -> &Statements {
        &self.0.statements
    }

    pub(crate) fn wrap(&self, operation: &'static str, error: SqlxError) -> Error {
        self.name_writer(wrap::<D>(operation, &self.0.endpoint, error))
    }

    pub(crate) async fn acquire(&self, operation: &'static str) -> Result<Link<D>> {
        self.0.pools.acquire().await.map_err(|error| self.wrap(operation, error))
    }

    /// Waits for the answer to a call on a connection of our own, but no longer than a living server takes. Then the connection counts
    /// as lost: the call's future is dropped, the connection closed, and those beside it replaced.
    pub(crate) async fn answer<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, SqlxError>>,
    ) -> Result<T> {
        if !D::IS_REMOTE {
            return self.interrupted(call).await.map_err(|error| self.wrap(operation, error));
        }
        let keeps_leases = matches!(operation, "settle" | "renew");
        let patience = self.0.answer_timeout / if keeps_leases { 3 } else { 1 };
        let began = Instant::now();
        timeout(patience, self.watched(operation, call)).await.unwrap_or_else(|_| {
            self.0.pools.fell_silent(began);
            Err(silent(operation, &self.0.endpoint, patience))
        })
    }

    /// Waits for a call to a database in this process, and interrupts it when its time is over.
    async fn interrupted<T>(&self, call: impl Future<Output = Result<T, SqlxError>>) -> Result<T, SqlxError> {
        let Some(limit) = self.0.statement_timeout else { return call.await };
        let mut call = pin!(call);
        match timeout(limit, &mut call).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let interrupt = self.0.pools.interrupt();
                let _interrupting = interrupt.begin();
                call.await
            }
        }
    }

    /// Begins a transaction of our own: with [`Dialect::BEGIN`], or to only read, with [`Dialect::BEGIN_READ`].
    pub(crate) async fn begin_own<'c>(
        &self,
        operation: &'static str,
        link: &'c mut Link<D>,
        statement: &'static str,
    ) -> Result<Transaction<'c, D::Db>> {
        self.answer(operation, (**link).begin_with(statement)).await
    }

    pub(crate) async fn commit_own(&self, operation: &'static str, tx: Transaction<'_, D::Db>) -> Result<()> {
        self.answer(operation, tx.commit()).await.map_err(unknown)
    }

    /// Runs one statement, by itself a transaction, and tries again if it lost a conflict.
    pub(crate) async fn fetch(
        &self,
        operation: &'static str,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<<D::Db as Database>::Row>> {
        retrying!(self.fetch_once(operation, statement, args))
    }

    async fn fetch_once(
        &self,
        operation: &'static str,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<<D::Db as Database>::Row>> {
        let mut link = self.acquire(operation).await?;
        self.answer(operation, D::fetch(&mut link, statement, args)).await
    }

    /// Runs a statement that answers with how many messages it changed: as one number, or a row of 1 for each.
    async fn count(&self, operation: &'static str, statement: &Statement, args: &[Arg<'_>]) -> Result<u64> {
        let rows = self.fetch(operation, statement, args).await?;
        rows.iter().map(|row| Ok(u64::try_from(row.int(0)?).unwrap_or_default())).sum()
    }

    async fn enqueue_once(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        if chunks::<D>(messages).len() == 1 && !D::insert_is_long(messages) {
            let mut link = self.acquire("enqueue").await?;
            return self.insert_own("enqueue", &mut link, messages).await.map_err(unknown);
        }
        let mut link = self.acquire("enqueue").await?;
        let mut tx = self.begin_own("enqueue", &mut link, D::BEGIN).await?;
        let mut enqueued = Vec::with_capacity(messages.len());
        for chunk in chunks::<D>(messages) {
            enqueued.extend(self.insert_own("enqueue", &mut tx, chunk).await?);
        }
        self.commit_own("enqueue", tx).await?;
        Ok(enqueued)
    }

    /// Inserts what fits into one statement, on a connection of our own.
    pub(crate) async fn insert_own(
        &self,
        operation: &'static str,
        connection: &mut Connection<D>,
        messages: &[NewMessage],
    ) -> Result<Vec<Enqueued>> {
        let insert = D::insert(connection, self.statements(), messages, Birth::Ready);
        self.answer(operation, insert).await?.map_err(|error| error.during(operation))
    }

    /// Runs a statement that may end messages; see [`Dialect::sweep`].
    pub(crate) async fn sweep(
        &self,
        operation: &'static str,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<<D::Db as Database>::Row>> {
        retrying!(async {
            let mut link = self.acquire(operation).await?;
            self.answer(operation, D::sweep(&mut link, &self.0.statements, statement, args)).await
        })
    }

    async fn prune_once(&self, retention: &Retention, limit: u32) -> Result<u64> {
        let Statements { over, pending_steps, archive, prune, forget, .. } = self.statements();
        let keep = [
            Arg::int(span_micros(retention.get_done())),
            Arg::Int(retention.get_dead().map(span_micros)),
            Arg::int(limit),
        ];
        let mut link = self.acquire("prune").await?;
        let mut tx = self.begin_own("prune", &mut link, D::BEGIN).await?;
        let rows = self.answer("prune", D::fetch(&mut tx, over, &keep)).await?;
        let found: Vec<i64> = rows.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
        if found.is_empty() {
            return Ok(0);
        }
        // A join may have got one of them as a step after that statement began, and before it locked the message. Now all are locked.
        let steps = self.answer("prune", D::fetch(&mut tx, pending_steps, &[Arg::Ints(&found)])).await?;
        let kept: HashSet<i64> = steps.iter().map(|row| row.int(0)).collect::<Result<_>>()?;
        let mut seqs = Vec::with_capacity(rows.len());
        let mut given_up = Vec::new();
        for (row, seq) in rows.iter().zip(found).filter(|(_, seq)| !kept.contains(seq)) {
            seqs.push(seq);
            if let Some(key) =
                row.opt_text(1)?.filter(|_| row.small(2).is_ok_and(|code| code == State::Dead.code()))
            {
                given_up.push((seq, key));
            }
        }
        if seqs.is_empty() {
            return Ok(0);
        }
        if retention.is_archive() {
            self.answer("prune", D::execute(&mut tx, archive, &[Arg::Ints(&seqs)])).await?;
        }
        self.answer("prune", D::execute(&mut tx, prune, &[Arg::Ints(&seqs)])).await?;
        if !retention.is_archive() {
            self.answer("prune", D::execute(&mut tx, forget, &[Arg::Ints(&seqs)])).await?;
        }
        self.unpark("prune", &mut tx, &given_up).await?;
        self.commit_own("prune", tx).await?;
        Ok(seqs.len() as u64)
    }

    /// Makes the messages parked behind these due again.
    pub(crate) async fn unpark(
        &self,
        operation: &'static str,
        connection: &mut Connection<D>,
        holders: &[(i64, String)],
    ) -> Result<()> {
        if holders.is_empty() {
            return Ok(());
        }
        let seqs: Vec<i64> = holders.iter().map(|(seq, _)| *seq).collect();
        let keys = holders.iter().map(|(_, key)| Some(key.as_str())).collect();
        let args = [Arg::Ints(&seqs), Arg::Texts(Some(keys))];
        self.answer(operation, D::execute(connection, &self.statements().unpark, &args)).await.map(drop)
    }
}

#[async_trait]
impl<D: Dialect> Store for SqlStore<D> {
    async fn check(&self) -> Result<()> {
        let rows = self.fetch("check", &self.statements().version, &[]).await?;
        let found = rows.first().map_or(Ok(0), |row| row.count(0))?;
        let script = Script::new(&D::FILES, &self.0.naming);
        let checked = script.check(script.version(), found);
        checked.map_err(|error| error.during("check").with_context("database", &self.0.endpoint))
    }

    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        retrying!(self.enqueue_once(messages))
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        request.check().map_err(|error| error.during("claim"))?;
        let [exact, prefixes] = Arg::topics(request.get_topics());
        let args = [
            Arg::text(request.get_worker().as_str()),
            Arg::int(request.get_limit()),
            Arg::Span(request.get_lease()),
            exact,
            prefixes,
        ];
        let rows = self.fetch("claim", &self.statements().claim, &args).await?;
        let mut messages = Vec::with_capacity(rows.len());
        let mut spoiled = Vec::new();
        for row in &rows {
            match row::message(row) {
                Ok(message) => messages.push(message),
                Err(error) => {
                    tracing::error!(
                        message_id = row.id(2).ok().map(tracing::field::display), store = %self.name(), %error,
                        "a message cannot be decoded and is dead"
                    );
                    let failure = Failure::permanent(format!("cannot be decoded: {error}"));
                    spoiled.push(Settlement::new(row::lease(row)?, Outcome::Fail { failure }));
                }
            }
        }
        if !spoiled.is_empty() {
            self.settle(&spoiled).await?;
        }
        // Not every database gives changed rows back in an order.
        messages.sort_by_key(|message| (message.priority, message.due_at, message.item));
        Ok(messages)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let (distinct, answers) = distinct("settlements", settlements, |settlement| settlement.lease)?;
        if distinct.is_empty() {
            return Ok(SettledBatch::default());
        }
        let batch: Result<_> = retrying!(self.settle_once(&distinct));
        let SettledBatch { settled, joins } = batch?;
        Ok(SettledBatch { settled: answers.expand(&settled), joins })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        check_lease(lease).map_err(|error| error.during("renew"))?;
        let (distinct, answers) = distinct("leases", leases, |lease| *lease)?;
        if distinct.is_empty() {
            return Ok(Vec::new());
        }
        let settled: Result<_> = retrying!(self.renew_once(&distinct, lease));
        Ok(answers.expand(&settled?))
    }

    async fn reap(&self, limit: u32) -> Result<Reaped> {
        check_batch("limit", limit, MAX_BATCH).map_err(|error| error.during("reap"))?;
        let args = [Arg::int(limit), Arg::int(MAX_LEASE_LOSSES)];
        let rows = self.sweep("reap", &self.statements().reap, &args).await?;
        let (counts, joins) = row::ended_joins(&rows)?;
        let mut reaped = Reaped { joins, ..Reaped::default() };
        for row in counts {
            reaped.ready += u64::try_from(row.int(0)?).unwrap_or_default();
            reaped.dead += u64::try_from(row.int(6)?).unwrap_or_default();
        }
        Ok(reaped)
    }

    async fn expire(&self, limit: u32) -> Result<Expired> {
        check_batch("limit", limit, MAX_BATCH).map_err(|error| error.during("expire"))?;
        let rows = self.sweep("expire", &self.statements().expire, &[Arg::int(limit)]).await?;
        let (counts, joins) = row::ended_joins(&rows)?;
        let count = |row: &<D::Db as Database>::Row| Ok(u64::try_from(row.int(0)?).unwrap_or_default());
        let messages = counts.into_iter().map(count).sum::<Result<u64>>()?;
        Ok(Expired { messages, joins })
    }

    async fn look(&self, join: JoinId) -> Result<Look> {
        self.look_at(join).await
    }

    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        retrying!(self.continue_once(join, wait, continuation))
    }

    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_PRUNE_BATCH).map_err(|error| error.during("prune joins"))?;
        retrying!(self.prune_joins_once(keep, limit))
    }

    async fn park(&self, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_BATCH).map_err(|error| error.during("park"))?;
        self.count("park", &self.statements().park, &[Arg::int(limit)]).await
    }

    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_BATCH).map_err(|error| error.during("hasten"))?;
        let [exact, prefixes] = Arg::topics(topics);
        self.count("hasten", &self.statements().hasten, &[exact, prefixes, Arg::int(limit)]).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_PRUNE_BATCH).map_err(|error| error.during("prune"))?;
        retrying!(self.prune_once(retention, limit))
    }

    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        if job.is_empty() || job.len() > MAX_NAME_BYTES {
            return Err(Error::new(ErrorKind::InvalidInput, format!("a job's name has {} bytes", job.len()))
                .during("turn")
                .with_remedy(format!("give it 1 to {MAX_NAME_BYTES}")));
        }
        let (period, at) = match turn {
            Turn::Every(period) => (Some(span_micros(period).min(MAX_PERIOD_MICROS)), None),
            Turn::At(time) => (None, Some(micros(time).min(MAX_TIME_MICROS))),
        };
        let args = [Arg::text(job), Arg::Int(period), Arg::Int(at)];
        Ok(!self.fetch("turn", &self.statements().turn, &args).await?.is_empty())
    }

    async fn paused(&self) -> Result<Topics> {
        let rows = self.fetch("paused", &self.statements().pauses, &[]).await?;
        let topics = rows.iter().map(|row| row.text(0)).collect::<Result<Vec<String>>>()?;
        Topics::of(topics)
    }

    fn name(&self) -> String {
        format!("{} {}", self.0.endpoint, self.0.naming.full("outbox"))
    }

    async fn identity(&self) -> Result<Option<String>> {
        let rows = self.fetch("identity", &self.statements().identity, &[]).await?;
        let row = rows.first().ok_or_else(|| self.wrap("identity", SqlxError::RowNotFound))?;
        let Some(place) =
            D::place(row.text(0)?).map_err(|error| self.wrap("identity", SqlxError::Io(error)))?
        else {
            return Ok(None);
        };
        let Naming { schema, prefix, .. } = &self.0.naming;
        let schema = schema.clone().or(row.opt_text(1)?).unwrap_or_default();
        let mut queue = format!("{schema}.{prefix}");
        if row.bool(2)? {
            queue.make_ascii_lowercase();
        }
        Ok(Some(format!("{} {place} {queue}", D::SCHEMES[0])))
    }

    async fn rest(&self) {
        self.0.pools.rest().await;
    }

    async fn nudge(&self) -> Result<()> {
        if !D::LISTENS {
            return Ok(());
        }
        let mut link = self.acquire("nudge").await?;
        self.answer("nudge", D::nudge(&mut link, &self.0.naming.channel())).await
    }

    async fn wakeup(&self) {
        self.0.pools.wakeup().await;
    }
}

impl<D: Dialect> TransactionalStore for SqlStore<D> {
    type Connection = Connection<D>;

    async fn insert(
        &self,
        connection: &mut Connection<D>,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let mut enqueued = Vec::with_capacity(messages.len());
        for chunk in chunks::<D>(messages) {
            let inserted = D::insert(connection, self.statements(), chunk, birth).await;
            let inserted = inserted.map_err(|error| self.wrap("publish", error))?;
            enqueued.extend(inserted.map_err(|error| error.during("publish"))?);
        }
        Ok(enqueued)
    }

    async fn survivors(&self, connection: &mut Connection<D>, leases: &[Lease]) -> Result<Vec<bool>> {
        if leases.is_empty() && !D::COMMIT_MAY_ROLL_BACK {
            return Ok(Vec::new());
        }
        let Statements { survivors, version, .. } = self.statements();
        if leases.is_empty() {
            // Any statement tells whether the transaction still works; this one every role may run.
            let alive = D::fetch(connection, version, &[]).await;
            return alive.map(|_| Vec::new()).map_err(|error| self.wrap("commit", error));
        }
        let rows = D::fetch(connection, survivors, &[Arg::Leases(leases)]).await;
        let rows = rows.map_err(|error| self.wrap("commit", error))?;
        rows.iter().map(|row| row.bool(0)).collect()
    }
}

impl<D: Dialect> Transactions for SqlStore<D> {
    type Transaction = Transaction<'static, D::Db>;

    async fn begin(&self) -> Result<Self::Transaction> {
        self.0.pools.begin_users(D::BEGIN_USER).await.map_err(|error| self.wrap("begin", error))
    }

    async fn commit(&self, transaction: Self::Transaction) -> Result<()> {
        transaction.commit().await.map_err(|error| unknown_commit(self.wrap("commit", error)))
    }

    async fn rollback(&self, transaction: Self::Transaction) -> Result<()> {
        transaction.rollback().await.map_err(|error| self.wrap("rollback", error))
    }
}
