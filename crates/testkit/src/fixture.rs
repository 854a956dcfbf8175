//! Everything the suite needs of a store: how to create an empty one, how to let time pass for it, and how a user of
//! its database opens a transaction.
//!
//! A fixture prepares and inspects; it must never do the store's own work.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use posthaste_core::{
    Change, Failure, Filter, InboxStore, JoinFilter, JoinStatus, JoinStore, MessageId, Outcome, Retention,
    Settlement, State, Store, StoreAdmin, TransactionalStore, Transactions,
};

/// One fresh, empty store for one test. It panics on any error.
#[async_trait]
pub trait Fixture: Sized + Send + Sync + 'static {
    /// The store. Clones of it are handed to tasks.
    type Store: Transactions + JoinStore + InboxStore + StoreAdmin + Clone;
    /// A real transaction of a user's own.
    type Transaction: Send;

    /// How many messages the largest case uses.
    const MANY: usize = 20_000;

    /// Whether there is a database to test with. If not, every case prints that and passes.
    fn available() -> bool {
        true
    }

    /// A fresh, empty, migrated store that no other test sees.
    async fn create() -> Self;

    /// The store, which keeps done messages.
    fn store(&self) -> &Self::Store;

    /// The same tables, but done messages are deleted at once.
    fn store_that_deletes(&self) -> Self::Store;

    /// What time it is for the store, give or take a second.
    async fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Lets time pass for the store. Real databases move every stored time into the past, those of the history, of the
    /// jobs, of joins and their steps, of the inbox, and the time of occurrence included.
    async fn advance(&self, by: Duration);

    /// Begins a transaction. Cases never hold two at a time in one task: some databases have one writer.
    async fn begin(&self) -> Self::Transaction;

    /// The connection that publishing takes.
    fn connection<'a>(
        &self,
        tx: &'a mut Self::Transaction,
    ) -> &'a mut <Self::Store as TransactionalStore>::Connection;

    /// Sets a savepoint, as a user would with a statement; one at a time is enough.
    async fn savepoint(&self, connection: &mut <Self::Store as TransactionalStore>::Connection);

    /// Goes back to the savepoint.
    async fn rollback_to_savepoint(&self, connection: &mut <Self::Store as TransactionalStore>::Connection);

    /// Commits.
    async fn commit(&self, tx: Self::Transaction);

    /// Rolls back.
    async fn rollback(&self, tx: Self::Transaction);

    /// Makes the stored row undecodable, by headers that are no JSON; false if the store cannot have such rows.
    async fn spoil(&self, id: MessageId) -> bool;

    /// The ids in the archive, oldest first.
    async fn archived(&self) -> Vec<MessageId>;

    /// Empties the store of messages and joins; archive and inbox may stay. The default does it message by message.
    async fn clear(&self) {
        clear_through_the_api(self).await;
    }

    /// Drops what `create` made. Called only after success, so that you can inspect a failure.
    async fn destroy(self);
}

/// Empties a store with nothing but its own verbs.
pub async fn clear_through_the_api<F: Fixture>(fixture: &F) {
    let store = fixture.store();
    let everything = Change::new(Filter::default(), "testkit", "clear").unwrap().limit(10_000);
    // The steps of a pending join cannot be pruned.
    cancel_joins(fixture).await;
    loop {
        let leased = Filter { state: Some(State::Leased), ..Filter::default() };
        let page = store.list(&leased, None, 200).await.unwrap().records;
        let failure = Failure::permanent("cleared");
        let fail = |lease| Settlement::new(lease, Outcome::Fail { failure: failure.clone() });
        let settlements: Vec<_> = page.iter().map(|record| fail(record.message.lease())).collect();
        store.settle(&settlements).await.unwrap();
        let buried = store.bury(&everything).await.unwrap().len();
        // Retention is over only when more than none has passed.
        fixture.advance(Duration::from_secs(60)).await;
        let retention = Retention::done(Duration::ZERO).dead(Duration::ZERO);
        let pruned = store.prune(&retention, 1_000).await.unwrap();
        if page.is_empty() && buried == 0 && pruned == 0 {
            break;
        }
    }
    while store.prune_joins(Duration::ZERO, 1_000).await.unwrap() > 0 {}
    let left = store.list(&Filter::default(), None, 1).await.unwrap().records;
    assert!(left.is_empty(), "the store could not be cleared: {left:?}");
    let left = store.joins(&JoinFilter::default(), None, 1).await.unwrap().joins;
    assert!(left.is_empty(), "the store could not be cleared of joins: {left:?}");
}

async fn cancel_joins<F: Fixture>(fixture: &F) {
    let store = fixture.store();
    let pending = JoinFilter { status: Some(JoinStatus::Pending), ..JoinFilter::default() };
    loop {
        let page = store.joins(&pending, None, 200).await.unwrap().joins;
        if page.is_empty() {
            return;
        }
        let mut tx = fixture.begin().await;
        for join in &page {
            store.cancel_join(fixture.connection(&mut tx), join.id).await.unwrap();
        }
        fixture.commit(tx).await;
    }
}
