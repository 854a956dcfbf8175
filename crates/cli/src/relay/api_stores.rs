//! The connections of the HTTP API: a few to each database, apart from those that deliver, so that no request can slow a delivery.
//!
//! A request gets one of them at once, waits in a bounded queue, or is refused. Its statement ends at the deadline of requests, and the
//! database ends it. Nothing here claims or delivers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use posthaste::{Dialect, Enqueued, Message, NewMessage, Result, Source as _, SqlStore, StoreAdmin, Tenants};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::build;
use super::config::{Config, Database, Http};
use crate::target::with_kind;

/// After how long without a request connections are closed, at the latest after twice as long.
const IDLE: Duration = Duration::from_secs(60);

/// A store that requests use, with its type forgotten.
#[async_trait]
pub(crate) trait ApiAccess: StoreAdmin {
    /// Stores messages through this store, for the outbox that delivers them.
    async fn enqueue_for(
        &self,
        tenants: &Tenants,
        database: &str,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>>;
    /// Decrypts a message. Without its key it stays as it is stored.
    async fn decrypt_for(&self, tenants: &Tenants, database: &str, message: &mut Message) -> Result<()>;
}

#[async_trait]
impl<D: Dialect> ApiAccess for SqlStore<D> {
    async fn enqueue_for(
        &self,
        tenants: &Tenants,
        database: &str,
        messages: Vec<NewMessage>,
    ) -> Result<Vec<Enqueued>> {
        tenants.outbox::<Self>(database).await?.enqueue_all_through(self, messages).await
    }

    async fn decrypt_for(&self, tenants: &Tenants, database: &str, message: &mut Message) -> Result<()> {
        let outbox = tenants.outbox::<Self>(database).await?;
        let _ = outbox.decrypt(message);
        Ok(())
    }
}

/// The stores of all databases.
pub(crate) struct ApiStores(BTreeMap<String, Arc<ApiStore>>);

impl ApiStores {
    /// Opens a store for each database. Nothing is connected yet.
    pub(crate) fn open(config: &Config) -> Result<Arc<Self>> {
        let open = |database: &Database| {
            let store = ApiStore::open(database, &config.http)?;
            Ok((database.name.clone(), Arc::new(store)))
        };
        let stores = Arc::new(Self(config.databases.iter().map(open).collect::<Result<_>>()?));
        tokio::spawn(close_idle(Arc::downgrade(&stores)));
        Ok(stores)
    }

    /// The store of the database of this name.
    pub(crate) fn get(&self, database: &str) -> Option<Arc<ApiStore>> {
        self.0.get(database).map(Arc::clone)
    }

    /// Closes all connections. Those in use close when their requests have ended.
    pub(crate) async fn close(&self) {
        for store in self.0.values() {
            store.store.rest().await;
        }
    }
}

async fn close_idle(stores: Weak<ApiStores>) {
    loop {
        tokio::time::sleep(IDLE).await;
        let Some(stores) = stores.upgrade() else { return };
        for store in stores.0.values().filter(|store| store.was_idle()) {
            store.store.rest().await;
        }
    }
}

/// How requests reach one database.
pub(crate) struct ApiStore {
    store: Arc<dyn ApiAccess>,
    places: Places,
    used: AtomicBool,
}

impl ApiStore {
    fn open(database: &Database, http: &Http) -> Result<Self> {
        let deadline = http.deadline;
        let options = build::options(database, 1)
            .max_connections(http.database_connections)
            .acquire_timeout(deadline)
            .statement_timeout(deadline)
            // Later than the database's own limit: an answer that is not there by then never comes.
            .answer_timeout((deadline + Duration::from_secs(5)).min(Duration::from_secs(600)))
            .listen(false);
        let url = database.url.reveal();
        let store: Arc<dyn ApiAccess> = with_kind!(database.kind, Description =>
            Arc::new(Description::new(url)?.options(options).open()?));
        let connections = database.kind.api_connections(http.database_connections);
        Ok(Self { store, places: Places::new(connections, http.queue), used: AtomicBool::new(false) })
    }

    /// The store, for a caller that has a place.
    pub(crate) fn store(&self) -> &Arc<dyn ApiAccess> {
        &self.store
    }

    /// Waits for one of the connections. None if too many requests wait already.
    pub(crate) async fn enter(&self) -> Option<OwnedSemaphorePermit> {
        self.used.store(true, Ordering::Relaxed);
        self.places.take().await
    }

    fn was_idle(&self) -> bool {
        !self.used.swap(false, Ordering::Relaxed) && self.places.are_free()
    }
}

/// Places for some, and a queue for some more.
struct Places {
    free: Arc<Semaphore>,
    all: usize,
    waiting: AtomicUsize,
    queue: usize,
}

impl Places {
    fn new(places: usize, queue: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(places)), all: places, waiting: AtomicUsize::new(0), queue }
    }

    async fn take(&self) -> Option<OwnedSemaphorePermit> {
        if let Ok(place) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(place);
        }
        let _waiting = Waiting::begin(&self.waiting, self.queue)?;
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    fn are_free(&self) -> bool {
        self.free.available_permits() == self.all
    }
}

/// A request that waits, until it has its place or gives up.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(waiting: &'a AtomicUsize, most: usize) -> Option<Self> {
        let one_more = |waiting| (waiting < most).then_some(waiting + 1);
        waiting.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Self(waiting))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_request_has_a_place_or_waits_or_is_refused() {
        let places = Places::new(1, 2);
        let first = places.take().await.expect("a place is free");
        assert!(!places.are_free());
        let (mut second, mut third) = (Box::pin(places.take()), Box::pin(places.take()));
        assert!((&mut second).now_or_never().is_none() && (&mut third).now_or_never().is_none());
        assert!(places.take().await.is_none(), "two wait already");
        // A request that gives up leaves the queue.
        drop(third);
        let mut fourth = Box::pin(places.take());
        assert!((&mut fourth).now_or_never().is_none());
        drop(first);
        let second = second.await.expect("it is its turn");
        drop(second);
        assert!(fourth.await.is_some());
        assert!(places.are_free());
    }
}
