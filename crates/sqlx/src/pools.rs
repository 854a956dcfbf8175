//! The connections of a store, behind all its clones: opened when they are needed, closed when the store rests, and
//! replaced when its login changes.
//!
//! Replacing them must go unnoticed. Borrowed connections stay valid until they are returned; waiting callers get a connection of
//! the new pool. Nothing here sends a statement.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_core::pool::{Pool, PoolOptions};
use sqlx_core::transaction::Transaction;
use tokio::runtime::Handle;
use tokio::sync::RwLock;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::dialect::{ConnectOptions, Connection, Dialect};
use crate::interrupt::Interrupt;
use crate::link::{Link, Silences};
use crate::listen::{Bell, Listener};
use crate::open_file::{Fate, OpenFile};
use crate::options::StoreOptions;

/// How long a rest waits for connections that are on their way back to their pool, or in use.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// How old a connection may become before it is replaced, so that servers can free its memory.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
/// How long a connection may be idle before it is checked: a round trip before every statement would double the cost of each.
const TRUSTED_IDLE: Duration = Duration::from_secs(1);
/// How long that check may take.
const CHECK_PATIENCE: Duration = Duration::from_secs(1);

/// Whose statements a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose {
    /// Our own, with settings for a queue.
    Ours,
    /// For users' transactions that the store opens, without these settings.
    Users,
}

/// What connections are made of. Not to be shown: there is a password in it.
pub(crate) struct Recipe<D: Dialect> {
    connect: ConnectOptions<D>,
    max_connections: u32,
    own_connections: u32,
    acquire_timeout: Duration,
    answer_timeout: Duration,
    statement_timeout: Option<Duration>,
    interrupt: Interrupt,
    listen: bool,
}

impl<D: Dialect> Recipe<D> {
    pub(crate) fn new(connect: ConnectOptions<D>, options: &StoreOptions) -> Self {
        let StoreOptions {
            max_connections,
            own_connections,
            acquire_timeout,
            answer_timeout,
            statement_timeout,
            listen,
            ..
        } = *options;
        let own_connections = own_connections.unwrap_or(max_connections);
        let interrupt = Interrupt::default();
        Self {
            connect,
            max_connections,
            own_connections,
            acquire_timeout,
            answer_timeout,
            statement_timeout,
            interrupt,
            listen,
        }
    }

    /// How one connection of this kind is made, and the settings of its pool.
    fn parts(&self, whose: Whose) -> (ConnectOptions<D>, PoolOptions<D::Db>) {
        let most = match whose {
            Whose::Ours => self.own_connections,
            Whose::Users => self.max_connections,
        };
        let pool = PoolOptions::<D::Db>::new()
            .max_connections(most)
            .acquire_timeout(self.acquire_timeout)
            // Without both of these the pool has no maintenance task, which can spin for ever: ADR 0028.
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move {
                    let is_fresh = meta.age < MAX_AGE;
                    Ok(is_fresh && (meta.idle_for < TRUSTED_IDLE || answers::<D>(connection).await))
                })
            });
        match whose {
            Whose::Ours => {
                // The server's own limit comes first, so that an answer that is late is one that never comes.
                let usual = self.answer_timeout * 8 / 9;
                let (connect, pool) = D::own_connections(self.connect.clone(), pool, usual);
                match self.statement_timeout {
                    Some(timeout) => D::limit_statements(connect, pool, timeout, &self.interrupt),
                    None => (connect, pool),
                }
            }
            Whose::Users => (D::user_connections(self.connect.clone()), pool),
        }
    }
}

/// Whether an idle connection still answers.
async fn answers<D: Dialect>(connection: &mut Connection<D>) -> bool {
    matches!(timeout(CHECK_PATIENCE, connection.ping()).await, Ok(Ok(())))
}

/// Where the connections come from.
enum Origin<D: Dialect> {
    /// We make them.
    Made(Recipe<D>),
    /// From a pool of the user's, which is never replaced.
    Given { pool: Pool<D::Db>, answer_timeout: Duration, listen: bool },
}

struct Inside<D: Dialect> {
    origin: Origin<D>,
    /// Closed only when the store is closed for good: before we close one, another takes its place.
    ours: Option<Pool<D::Db>>,
    users: Option<Pool<D::Db>>,
    /// When the connections were last replaced because one was silent.
    replaced: Option<Instant>,
    /// The file that the connections have open, if the database is a file.
    file: Option<OpenFile>,
    /// Whether the server has ever answered these pools.
    reached: Arc<AtomicBool>,
    listener: Option<Listener<D>>,
}

/// The pools of a store, shared by all its clones.
pub(crate) struct Pools<D: Dialect> {
    inside: Mutex<Inside<D>>,
    /// Held for reading by tasks that close replaced pools.
    closing: Arc<RwLock<()>>,
    silences: Silences,
    channel: String,
    bell: Arc<Bell>,
    /// How many wait for the bell.
    waiting: AtomicUsize,
}

impl<D: Dialect> Pools<D> {
    /// Pools of our own making; none is made yet.
    pub(crate) fn made(recipe: Recipe<D>, channel: String) -> Self {
        Self::new(Origin::Made(recipe), channel)
    }

    /// A pool that is there already, for everything.
    pub(crate) fn given(pool: Pool<D::Db>, options: &StoreOptions, channel: String) -> Self {
        let pools = Self::new(
            Origin::Given { pool, answer_timeout: options.answer_timeout, listen: options.listen },
            channel,
        );
        // The error says that it has no connection to spare.
        pools.was_reached();
        pools
    }

    fn new(origin: Origin<D>, channel: String) -> Self {
        let inside = Inside {
            origin,
            ours: None,
            users: None,
            replaced: None,
            file: None,
            reached: Arc::default(),
            listener: None,
        };
        Self {
            inside: Mutex::new(inside),
            closing: Arc::default(),
            silences: Silences::default(),
            channel,
            bell: Arc::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inside<D>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool as it is now.
    pub(crate) fn pool(&self, whose: Whose) -> Pool<D::Db> {
        self.lock().pool(whose)
    }

    /// How a connection of our own is made, as it is now.
    pub(crate) fn connect_options(&self) -> ConnectOptions<D> {
        match &self.lock().origin {
            Origin::Made(recipe) => recipe.parts(Whose::Ours).0,
            Origin::Given { pool, .. } => (*pool.connect_options()).clone(),
        }
    }

    /// What ends the statements of our own connections, where the database has no limit of its own.
    pub(crate) fn interrupt(&self) -> Interrupt {
        match &self.lock().origin {
            Origin::Made(recipe) => recipe.interrupt.clone(),
            Origin::Given { .. } => Interrupt::default(),
        }
    }

    /// The server has answered: a caller that waits in vain from now on waits for other calls to end.
    pub(crate) fn was_reached(&self) {
        self.lock().reached.store(true, Ordering::Relaxed);
    }

    /// A connection for a statement of ours.
    pub(crate) async fn acquire(&self) -> Result<Link<D>, SqlxError> {
        loop {
            let (pool, reached) = self.current(Whose::Ours)?;
            let outcome = pool.acquire().await.map(|connection| Link::new(connection, self.silences.clone()));
            if let Some(answer) = self.judge(&reached, outcome) {
                return answer;
            }
        }
    }

    /// A transaction of the user's.
    pub(crate) async fn begin_users(
        &self,
        statement: &'static str,
    ) -> Result<Transaction<'static, D::Db>, SqlxError> {
        loop {
            let (pool, reached) = self.current(Whose::Users)?;
            let outcome = pool.begin_with(statement).await;
            if let Some(answer) = self.judge(&reached, outcome) {
                return answer;
            }
        }
    }

    fn current(&self, whose: Whose) -> Result<(Pool<D::Db>, Arc<AtomicBool>), SqlxError> {
        let mut inside = self.lock();
        self.check_file(&mut inside).map_err(SqlxError::Io)?;
        Ok((inside.pool(whose), Arc::clone(&inside.reached)))
    }

    /// Replaces the connections if another file has taken the place of the one that they have open. Fails while there is none.
    fn check_file(&self, inside: &mut Inside<D>) -> io::Result<()> {
        let Some(file) = &mut inside.file else { return Ok(()) };
        match file.look(Instant::now()) {
            Fate::Same => Ok(()),
            Fate::Gone => Err(file.error("moved or deleted")),
            Fate::Mixed => Err(file.error("replaced, but not its files -wal and -shm,")),
            Fate::Replaced if matches!(inside.origin, Origin::Given { .. }) => Err(file.error("replaced")),
            Fate::Replaced => {
                warn!(file = %file.path().display(), "the database file was replaced, opening the new one");
                let listener = inside.listener.take();
                drop(self.retire(inside, listener));
                Ok(())
            }
        }
    }

    /// The answer to a caller; `None` if the pool was replaced meanwhile and the caller should try the new one.
    fn judge<T>(&self, reached: &AtomicBool, outcome: Result<T, SqlxError>) -> Option<Result<T, SqlxError>> {
        match outcome {
            Ok(_) => {
                reached.store(true, Ordering::Relaxed);
                self.lock().note_file();
            }
            Err(SqlxError::PoolClosed) if !self.lock().is_closed() => return None,
            // The pool goes on trying while connections are refused, and in the end does not say so.
            Err(SqlxError::PoolTimedOut) if D::IS_REMOTE && !reached.load(Ordering::Relaxed) => {
                let no_answer = io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
                return Some(Err(SqlxError::Io(no_answer)));
            }
            Err(_) => {}
        }
        Some(outcome)
    }

    /// A call that began at this moment was not answered: the other connections of that time may be lost as well, and are
    /// replaced.
    pub(crate) fn fell_silent(&self, began: Instant) {
        self.silences.add();
        let mut inside = self.lock();
        let is_replaced = inside.replaced.is_some_and(|replaced| replaced >= began);
        if is_replaced || inside.is_closed() || matches!(inside.origin, Origin::Given { .. }) {
            return;
        }
        inside.replaced = Some(Instant::now());
        let listener = inside.listener.take();
        drop(self.retire(&mut inside, listener));
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.listen(&mut inside);
        }
    }

    /// Closes idle connections, and busy ones when they are returned. Waits for that, but not for long.
    pub(crate) async fn rest(&self) {
        let closing = {
            let mut inside = self.lock();
            if inside.is_closed() || matches!(inside.origin, Origin::Given { .. }) {
                return;
            }
            let nobody_waits = self.waiting.load(Ordering::SeqCst) == 0;
            let listener = if nobody_waits { inside.listener.take() } else { None };
            self.retire(&mut inside, listener)
        };
        if let Some(closing) = closing {
            // It goes on by itself when it is no longer waited for.
            drop(timeout(REST_PATIENCE, closing).await);
        }
    }

    /// From now on connections are made like this. False if they are not of our making, or the store is closed.
    pub(crate) fn change(&self, recipe: Recipe<D>) -> bool {
        let mut inside = self.lock();
        if inside.is_closed() || matches!(inside.origin, Origin::Given { .. }) {
            return false;
        }
        let listener = inside.listener.take();
        drop(self.retire(&mut inside, listener));
        inside.origin = Origin::Made(recipe);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.listen(&mut inside);
        }
        true
    }

    /// Takes the pools out, and closes them and the listener in the background.
    fn retire(&self, inside: &mut Inside<D>, listener: Option<Listener<D>>) -> Option<JoinHandle<()>> {
        let pools = [inside.ours.take(), inside.users.take()];
        inside.reached = Arc::default();
        inside.file = None;
        if pools.iter().all(Option::is_none) && listener.is_none() {
            return None;
        }
        let (Ok(runtime), Ok(open)) = (Handle::try_current(), Arc::clone(&self.closing).try_read_owned())
        else {
            // Without a runtime: idle connections are dropped, busy ones close when they are returned.
            pools.iter().flatten().for_each(|pool| drop(pool.close()));
            return None;
        };
        Some(runtime.spawn(async move {
            // All of them are marked as closed before the first is waited for.
            let closing: Vec<_> = pools.iter().flatten().map(Pool::close).collect();
            if let Some(listener) = listener {
                listener.close().await;
            }
            for pool in closing {
                pool.await;
            }
            drop(open);
        }))
    }

    /// Closes everything for good, once all that is under way has ended.
    pub(crate) async fn close(&self) {
        let (ours, users, listener) = {
            let mut inside = self.lock();
            let (ours, users) = (inside.pool(Whose::Ours), inside.pool(Whose::Users));
            // Marks them; a rest or a change that comes later finds them closed.
            drop((ours.close(), users.close()));
            (ours, users, inside.listener.take())
        };
        if let Some(listener) = listener {
            listener.close().await;
        }
        users.close().await;
        ours.close().await;
        drop(self.closing.write().await);
    }

    /// Resolves when another process has said, or may have said, that there is something to claim.
    pub(crate) async fn wakeup(&self) {
        // Before checking for a listener: a rest in between must see that a task waits.
        let _waiting = Waiting::new(&self.waiting);
        if !self.hears() {
            std::future::pending::<()>().await;
        }
        self.bell.wait().await;
    }

    /// Begins to listen, unless the store is closed.
    fn hears(&self) -> bool {
        let mut inside = self.lock();
        if inside.is_closed() {
            return false;
        }
        self.listen(&mut inside);
        true
    }

    /// Begins to listen, if that is wanted and no task does.
    fn listen(&self, inside: &mut Inside<D>) {
        let (connect, quiet) = match &inside.origin {
            Origin::Made(Recipe { listen: false, .. }) | Origin::Given { listen: false, .. } => return,
            Origin::Made(recipe) => (recipe.parts(Whose::Users).0, recipe.answer_timeout),
            Origin::Given { pool, answer_timeout, .. } => {
                ((*pool.connect_options()).clone(), *answer_timeout)
            }
        };
        if D::LISTENS && inside.listener.is_none() && Handle::try_current().is_ok() {
            inside.listener = Some(Listener::start(connect, self.channel.clone(), &self.bell, quiet));
        }
    }
}

impl<D: Dialect> Inside<D> {
    fn pool(&mut self, whose: Whose) -> Pool<D::Db> {
        let Self { origin, ours, users, .. } = self;
        let place = match whose {
            Whose::Ours => ours,
            Whose::Users => users,
        };
        let make = || match origin {
            Origin::Given { pool, .. } => pool.clone(),
            Origin::Made(recipe) => {
                let (connect, pool) = recipe.parts(whose);
                pool.connect_lazy_with(connect)
            }
        };
        place.get_or_insert_with(make).clone()
    }

    /// Remembers which file the first connection has opened.
    fn note_file(&mut self) {
        if self.file.is_none() {
            self.file = match &self.origin {
                Origin::Made(recipe) => D::file(&recipe.connect),
                Origin::Given { pool, .. } => D::file(&pool.connect_options()),
            }
            .and_then(|path| OpenFile::new(path, Instant::now()));
        }
    }

    /// Whether it is closed for good.
    fn is_closed(&self) -> bool {
        match &self.origin {
            Origin::Given { pool, .. } => pool.is_closed(),
            Origin::Made(_) => [&self.ours, &self.users].into_iter().flatten().any(Pool::is_closed),
        }
    }
}

/// A waiting task, until it is woken or gives up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, feature = "postgres", feature = "mysql", feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::{MySql, Postgres, Sqlite};

    fn has_no_maintenance<D: Dialect>(url: &str) {
        let recipe = Recipe::<D>::new(url.parse().expect("a URL"), &StoreOptions::new());
        for whose in [Whose::Ours, Whose::Users] {
            let (_, pool) = recipe.parts(whose);
            assert_eq!((pool.get_idle_timeout(), pool.get_max_lifetime()), (None, None), "{url} {whose:?}");
        }
    }

    /// The pool's maintenance task can spin for ever, and then the program never ends.
    #[test]
    fn pools_have_no_maintenance_task() {
        has_no_maintenance::<Postgres>("postgres://127.0.0.1/x");
        has_no_maintenance::<MySql>("mysql://127.0.0.1/x");
        has_no_maintenance::<Sqlite>("sqlite://x.db");
    }
}
