//! The fixture of the store in memory, and the pattern for others.
//!
//! Its clock runs like a database's and can be put forward; it must never stand still, or ties would hide mistakes.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use posthaste_core::store::memory::Savepoint;
use posthaste_core::{Clock, MemoryStore, MemoryTransaction, MessageId};
use tokio::sync::OwnedMutexGuard;

use crate::fixture::Fixture;

/// The machine's time, put forward.
#[derive(Debug, Default)]
struct Ahead(Mutex<Duration>);

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + *self.0.lock().unwrap()
    }
}

/// A store in memory whose clock can be put forward.
#[derive(Debug)]
pub struct MemoryFixture {
    clock: Arc<Ahead>,
    store: MemoryStore,
    writer: Arc<tokio::sync::Mutex<()>>,
    /// Of the one transaction that is open.
    savepoint: Mutex<Option<Savepoint>>,
}

/// A transaction of [`MemoryFixture`].
#[derive(Debug)]
pub struct MemoryFixtureTransaction {
    transaction: MemoryTransaction,
    _writer: OwnedMutexGuard<()>,
}

#[async_trait]
impl Fixture for MemoryFixture {
    type Store = MemoryStore;
    type Transaction = MemoryFixtureTransaction;

    /// The store in memory looks at every row for every message: by design the plainest code, not the fastest.
    const MANY: usize = 4_000;

    async fn create() -> Self {
        let clock = Arc::new(Ahead::default());
        Self {
            store: MemoryStore::with_clock(clock.clone()),
            clock,
            writer: Arc::default(),
            savepoint: Mutex::default(),
        }
    }

    fn store(&self) -> &MemoryStore {
        &self.store
    }

    fn store_that_deletes(&self) -> MemoryStore {
        self.store.clone().keep_done(false)
    }

    async fn now(&self) -> SystemTime {
        self.clock.now()
    }

    async fn advance(&self, by: Duration) {
        *self.clock.0.lock().unwrap() += by;
    }

    /// One at a time, as with SQLite: the store in memory has no row locks, so of two open transactions neither would
    /// wait for the other's duplicate.
    async fn begin(&self) -> MemoryFixtureTransaction {
        let writer = self.writer.clone().lock_owned().await;
        MemoryFixtureTransaction { transaction: self.store.begin(), _writer: writer }
    }

    fn connection<'a>(&self, tx: &'a mut MemoryFixtureTransaction) -> &'a mut MemoryTransaction {
        &mut tx.transaction
    }

    async fn savepoint(&self, transaction: &mut MemoryTransaction) {
        *self.savepoint.lock().unwrap() = Some(transaction.savepoint());
    }

    async fn rollback_to_savepoint(&self, transaction: &mut MemoryTransaction) {
        transaction.rollback_to(self.savepoint.lock().unwrap().as_ref().unwrap());
    }

    async fn commit(&self, tx: MemoryFixtureTransaction) {
        tx.transaction.commit();
    }

    async fn rollback(&self, tx: MemoryFixtureTransaction) {
        drop(tx);
    }

    async fn spoil(&self, _: MessageId) -> bool {
        false
    }

    async fn archived(&self) -> Vec<MessageId> {
        self.store.archived().iter().map(|record| record.message.id).collect()
    }

    async fn destroy(self) {}
}
