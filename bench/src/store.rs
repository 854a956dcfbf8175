//! The databases that are measured, and a fresh one in them for every repetition.
//!
//! [`Product`] is what differs between them; [`Room`] is one fresh database. Nothing outside a database named `bench_…`, or a
//! file in a temporary folder, is ever written.

mod mariadb;
mod postgres;
mod sqlite;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use posthaste::{JoinStore, StoreAdmin, StoreOptions, Transactions};
use sqlx::pool::PoolOptions;
use sqlx::{Connection, Database, Pool, Transaction};

pub(crate) use self::mariadb::Mariadb;
pub(crate) use self::postgres::Postgres;
pub(crate) use self::sqlite::Sqlite;
use crate::measure::Result;
use crate::meter::Reading;

/// How long a connection is waited for: long enough for the busiest run, short enough to be told.
const ACQUIRE: Duration = Duration::from_secs(30);

/// A connection of this database's driver.
pub(crate) type Conn<P> = <<P as Product>::Db as Database>::Connection;
type Options<P> = <Conn<P> as Connection>::Options;

/// A database product: what differs.
pub(crate) trait Product: Send + Sync + 'static {
    type Db: Database;
    type Store: Transactions<Connection = Conn<Self>, Transaction = Transaction<'static, Self::Db>>
        + StoreAdmin
        + JoinStore
        + Clone;

    const NAME: &'static str;
    /// How a transaction that will write begins.
    const BEGIN: &'static str;
    /// Makes the tables of the floor and of the limit.
    const TABLES: &'static str;
    /// Inserts the business row, with one text.
    const NOTE: &'static str;
    /// Inserts a message as barely as can be, with one text.
    const BARE: &'static str;
    /// Reads and deletes a batch of bare messages, where that is the limit of every drain.
    const DESTROY: Option<&'static str> = None;
    /// Begins a transaction and claims ten messages in it, where a caller may do that.
    const IDLE_CLAIM: Option<&'static str> = None;
    /// Whether a database has these tables, and the store's, from the start.
    const TEMPLATE: bool = false;
    /// Whether the server can copy a message itself, so that a million of them is made quickly.
    const COPIES: bool = false;
    /// How many messages per second a steady load offers.
    const OFFERED: u64;

    /// The server's version.
    fn version(&self) -> impl Future<Output = Result<String>> + Send;
    /// Makes a database.
    fn create(&self, name: &str) -> impl Future<Output = Result> + Send;
    /// Drops it, even with open connections.
    fn discard(&self, name: &str) -> impl Future<Output = Result> + Send;
    /// Where it is.
    fn url(&self, name: &str) -> String;
    /// How users connect to it.
    fn options(url: &str) -> Result<Options<Self>>;
    /// A store in it.
    fn open(url: &str, options: &StoreOptions) -> impl Future<Output = Result<Self::Store>> + Send;
    /// Creates or updates the store's tables.
    fn migrate(store: &Self::Store) -> impl Future<Output = Result> + Send;
    /// Closes all connections of the store.
    fn close(store: &Self::Store) -> impl Future<Output = ()> + Send;
    /// Runs a statement with one text bound to it.
    fn run(connection: &mut Conn<Self>, sql: &'static str, text: &str)
    -> impl Future<Output = Result> + Send;
    /// Runs statements without any.
    fn batch(connection: &mut Conn<Self>, sql: &'static str) -> impl Future<Output = Result> + Send;
    /// Brings the server to the state from which runs are comparable.
    fn checkpoint(connection: &mut Conn<Self>) -> impl Future<Output = Result> + Send;
    /// Updates the planner's statistics.
    fn analyze(connection: &mut Conn<Self>) -> impl Future<Output = Result> + Send;
    /// Counts that can be read at once.
    fn early(connection: &mut Conn<Self>) -> impl Future<Output = Result<Reading>> + Send;
    /// Counts that are complete when all other connections are closed.
    fn late(connection: &mut Conn<Self>) -> impl Future<Output = Result<Reading>> + Send;
    /// Fills the bare table.
    fn fill_bare(_: &mut Conn<Self>, _: u64, _: &str) -> impl Future<Output = Result> + Send {
        async { Err("there is no destructive read to fill the table for".into()) }
    }
    /// Inserts many bare messages in one statement.
    fn bare_many(_: &mut Conn<Self>, _: &[String]) -> impl Future<Output = Result> + Send {
        async { Err("there is no such statement".into()) }
    }
    /// Copies one of the stored messages, ready or done, so many times.
    fn copy(_: &mut Conn<Self>, _: u64, _done: bool) -> impl Future<Output = Result> + Send {
        async { Err("there is no such statement".into()) }
    }
    /// Leaves nothing behind that was made for all rooms.
    fn finish(&self) -> impl Future<Output = Result> + Send {
        async { Ok(()) }
    }
    /// Runs a statement, and answers how many rows it gave.
    fn fetch(_: &mut Conn<Self>, _: &'static str) -> impl Future<Output = Result<u64>> + Send {
        async { Ok(0) }
    }
    /// Takes a snapshot and writes a row, in a transaction that stays open.
    fn hold(connection: &mut Conn<Self>) -> impl Future<Output = Result> + Send;
}

/// A fresh database, which is dropped by [`close`](Self::close).
pub(crate) struct Room<P: Product> {
    product: Arc<P>,
    name: String,
    /// For readings only, on one connection.
    watch: Pool<P::Db>,
}

impl<P: Product> Room<P> {
    pub(crate) async fn open(product: &Arc<P>) -> Result<Self> {
        let name = format!("bench_{:012x}", fastrand::u64(..1 << 48));
        product.create(&name).await?;
        let watch = pool::<P>(&product.url(&name), 1).await?;
        let room = Self { product: Arc::clone(product), name, watch };
        if !P::TEMPLATE {
            P::batch(&mut *room.watch.acquire().await?, P::TABLES).await?;
        }
        Ok(room)
    }

    pub(crate) fn url(&self) -> String {
        self.product.url(&self.name)
    }

    /// A pool as users have it.
    pub(crate) async fn pool(&self, connections: u32) -> Result<Pool<P::Db>> {
        pool::<P>(&self.url(), connections).await
    }

    /// A store with its tables.
    pub(crate) async fn store(&self, keep_done: bool) -> Result<P::Store> {
        self.store_with(&StoreOptions::new().acquire_timeout(ACQUIRE).keep_done(keep_done)).await
    }

    /// The same with other options.
    pub(crate) async fn store_with(&self, options: &StoreOptions) -> Result<P::Store> {
        let store = P::open(&self.url(), options).await?;
        P::migrate(&store).await?;
        Ok(store)
    }

    pub(crate) async fn checkpoint(&self) -> Result {
        P::checkpoint(&mut *self.watch.acquire().await?).await
    }

    pub(crate) async fn analyze(&self) -> Result {
        P::analyze(&mut *self.watch.acquire().await?).await
    }

    /// Copies of a stored message, ready or done.
    pub(crate) async fn copy(&self, messages: u64, done: bool) -> Result {
        P::copy(&mut *self.watch.acquire().await?, messages, done).await
    }

    /// Another session, whose transaction stays open until the pool is closed, if it is to.
    pub(crate) async fn hold(&self, hold: bool) -> Result<Held<P>> {
        if !hold {
            return Ok(Held(None));
        }
        let mut connection = self.pool(1).await?.acquire().await?.detach();
        P::hold(&mut connection).await?;
        Ok(Held(Some(connection)))
    }

    /// Another session, which has claimed messages in a transaction that stays open.
    pub(crate) async fn idle_claim(&self) -> Result<Held<P>> {
        let claim = P::IDLE_CLAIM.ok_or("this database has no claim in the caller's transaction")?;
        let mut connection = self.pool(1).await?.acquire().await?.detach();
        P::batch(&mut connection, claim).await?;
        Ok(Held(Some(connection)))
    }

    pub(crate) async fn early_reading(&self) -> Result<Reading> {
        P::early(&mut *self.watch.acquire().await?).await
    }

    pub(crate) async fn late_reading(&self) -> Result<Reading> {
        P::late(&mut *self.watch.acquire().await?).await
    }

    /// Ends it, with all that is in it.
    pub(crate) async fn close(self) -> Result {
        self.watch.close().await;
        self.product.discard(&self.name).await
    }
}

/// A session whose transaction is open.
pub(crate) struct Held<P: Product>(Option<Conn<P>>);

impl<P: Product> Held<P> {
    pub(crate) async fn close(self) {
        if let Some(connection) = self.0 {
            // It wanted nothing but to be there.
            let _ = connection.close().await;
        }
    }
}

/// Does something in a fresh database, which goes away however that ends.
pub(crate) async fn in_room<P, F, T>(product: Arc<P>, work: F) -> Result<T>
where
    P: Product,
    F: for<'a> FnOnce(&'a Room<P>) -> BoxFuture<'a, Result<T>>,
{
    let room = Room::open(&product).await?;
    let outcome = work(&room).await;
    let closed = room.close().await;
    let outcome = outcome?;
    closed?;
    Ok(outcome)
}

async fn pool<P: Product>(url: &str, connections: u32) -> Result<Pool<P::Db>> {
    // As the store's own pools: otherwise a ping before every transaction would be measured.
    let options = PoolOptions::<P::Db>::new()
        .max_connections(connections)
        .acquire_timeout(ACQUIRE)
        .test_before_acquire(false);
    Ok(options.connect_with(P::options(url)?).await?)
}

/// Another thread's panic does not invalidate the value.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The URL of another database of the same server.
fn with_database(url: &str, name: &str) -> String {
    let (place, query) = url.split_once('?').map_or((url, None), |(place, query)| (place, Some(query)));
    let start = place.find("://").map_or(0, |at| at + 3);
    let end = place[start..].find('/').map_or(place.len(), |at| start + at);
    let query = query.map(|query| format!("?{query}")).unwrap_or_default();
    format!("{}/{name}{query}", &place[..end])
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn only_the_database_of_a_url_changes() {
        for (url, other) in [
            ("postgres://ada@host:5432/test", "postgres://ada@host:5432/x"),
            ("postgres://ada@host:5432", "postgres://ada@host:5432/x"),
            ("mysql://a:b@host/test?ssl-mode=disabled", "mysql://a:b@host/x?ssl-mode=disabled"),
        ] {
            assert_eq!(with_database(url, "x"), other);
        }
    }
}
