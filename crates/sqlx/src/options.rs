//! The options of a store.

use std::time::Duration;

use posthaste_core::{Error, ErrorKind, Result};

/// Settings of a store.
///
/// ```
/// use posthaste_sqlx::StoreOptions;
///
/// let options = StoreOptions::new().schema("billing").prefix("out_").keep_done(false);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    pub(crate) schema: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) keep_done: bool,
    pub(crate) max_connections: u32,
    /// Of the store's own pool, if that is to be smaller.
    pub(crate) own_connections: Option<u32>,
    pub(crate) acquire_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) statement_timeout: Option<Duration>,
    pub(crate) listen: bool,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl StoreOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            schema: None,
            prefix: None,
            keep_done: true,
            max_connections: 8,
            own_connections: None,
            acquire_timeout: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(45),
            statement_timeout: None,
            listen: true,
        }
    }

    /// The defaults for one database of many, as in [`Database`](crate::Database): one connection for the store's own work, at
    /// most 4 for transactions that it opens for you, 3 s to wait for one, and no listening. Many databases are polled: a
    /// connection to each, only to listen, is one too many.
    pub const fn tenant() -> Self {
        let mut options =
            Self::new().max_connections(4).acquire_timeout(Duration::from_secs(3)).listen(false);
        // A budget over all databases can count calls. With one connection they are what can be open: a larger pool may open a
        // second one while the first is on its way back from the call before.
        options.own_connections = Some(1);
        options
    }

    /// The schema of the tables: up to 32 ASCII letters, digits and underscores. Default: `posthaste` in PostgreSQL; in
    /// MySQL and MariaDB, where a schema is a database, that of the connection. SQLite has none.
    #[must_use]
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = Some(schema.into());
        self
    }

    /// What every table, index and routine begins with: up to 32 ASCII letters, digits and underscores. Default: nothing
    /// in PostgreSQL, `posthaste_` elsewhere.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Whether acked messages are kept as done, until they are pruned, or deleted at once, which is faster. A dedup key
    /// works for as long as its message is there. Default: kept.
    #[must_use]
    pub const fn keep_done(mut self, keep: bool) -> Self {
        self.keep_done = keep;
        self
    }

    /// The most connections of the store's own pool, and of the one that it opens transactions for you on: 1 to 1,000.
    /// Default: 8. See [`tenant`](Self::tenant) for databases of which there are many.
    #[must_use]
    pub const fn max_connections(mut self, connections: u32) -> Self {
        self.max_connections = connections;
        self.own_connections = None;
        self
    }

    /// How long to wait for a connection of one of these pools: 10 ms to 10 min. Default: 5 s.
    #[must_use]
    pub const fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// How long the server may take to answer a call on the store's own connections: 1 s to 10 min. After that the connection counts
    /// as lost, as after a firewall has forgotten it: the call fails, and the store replaces its connections. Calls that settle or renew
    /// leases get a third of it, so that a retry comes before the leases run out. PostgreSQL is asked to end the store's own
    /// statements somewhat earlier; on MySQL and MariaDB, choose more than the longest statement takes. SQLite has no network and
    /// no such limit. Default: 45 s.
    #[must_use]
    pub const fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// How long a statement of the store's own may run before the database ends it with an error of the kind
    /// [`Busy`](posthaste_core::ErrorKind::Busy): 10 ms to 10 min. For stores that answer requests; a worker needs none. SQLite ends reads
    /// and writes, but waits for the write lock first, for as long again. Default: none but what
    /// [`answer_timeout`](Self::answer_timeout) says.
    #[must_use]
    pub const fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = Some(timeout);
        self
    }

    /// Whether a worker that waits listens for notifications (PostgreSQL's LISTEN), on one connection more
    /// beside the pools, and so hears of new messages before it polls again. Turn it off behind a pooler that gives connections
    /// to transactions, where nothing is ever heard. The other databases have no notifications. Default: on.
    #[must_use]
    pub const fn listen(mut self, listen: bool) -> Self {
        self.listen = listen;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |message: String, remedy: &str| {
            Err(Error::new(ErrorKind::Configuration, message).with_remedy(remedy.to_owned()))
        };
        if !(1..=1_000).contains(&self.max_connections) {
            return refuse(format!("max_connections is {}", self.max_connections), "give it 1 to 1000");
        }
        if !(Duration::from_millis(10)..=Duration::from_secs(600)).contains(&self.acquire_timeout) {
            return refuse(
                format!("acquire_timeout is {:?}", self.acquire_timeout),
                "give it 10 ms to 10 min",
            );
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&self.answer_timeout) {
            return refuse(format!("answer_timeout is {:?}", self.answer_timeout), "give it 1 s to 10 min");
        }
        if let Some(timeout) = self.statement_timeout
            && !(Duration::from_millis(10)..=Duration::from_secs(600)).contains(&timeout)
        {
            return refuse(format!("statement_timeout is {timeout:?}"), "give it 10 ms to 10 min");
        }
        Ok(())
    }
}
