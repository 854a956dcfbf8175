//! The model finds stores that differ from the reference in one point each.

use std::time::Duration;

use posthaste_core::{MemoryStore, MemoryTransaction, MessageId};

use super::*;
use crate::{MemoryFixture, MemoryFixtureTransaction, async_trait};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Bug {
    None,
    KeepsWhatItShouldDelete,
    IgnoresSavepoints,
    CommitsWhatIsRolledBack,
    RunsSlow,
    ForgetsTheArchive,
}

const BUGS: [Bug; 6] = [
    Bug::None,
    Bug::KeepsWhatItShouldDelete,
    Bug::IgnoresSavepoints,
    Bug::CommitsWhatIsRolledBack,
    Bug::RunsSlow,
    Bug::ForgetsTheArchive,
];

/// A store with one bug.
struct Buggy<const BUG: usize>(MemoryFixture);

#[async_trait]
impl<const BUG: usize> Fixture for Buggy<BUG> {
    type Store = MemoryStore;
    type Transaction = MemoryFixtureTransaction;

    async fn create() -> Self {
        Self(MemoryFixture::create().await)
    }
    fn store(&self) -> &MemoryStore {
        self.0.store()
    }
    fn store_that_deletes(&self) -> MemoryStore {
        self.0.store_that_deletes().keep_done(BUGS[BUG] == Bug::KeepsWhatItShouldDelete)
    }
    async fn now(&self) -> SystemTime {
        self.0.now().await
    }
    async fn advance(&self, by: Duration) {
        self.0.advance(if BUGS[BUG] == Bug::RunsSlow && by > UNIT_OF_CLEARING { by / 2 } else { by }).await;
    }
    async fn begin(&self) -> MemoryFixtureTransaction {
        self.0.begin().await
    }
    fn connection<'a>(&self, tx: &'a mut MemoryFixtureTransaction) -> &'a mut MemoryTransaction {
        self.0.connection(tx)
    }
    async fn savepoint(&self, tx: &mut MemoryTransaction) {
        self.0.savepoint(tx).await;
    }
    async fn rollback_to_savepoint(&self, tx: &mut MemoryTransaction) {
        if BUGS[BUG] != Bug::IgnoresSavepoints {
            self.0.rollback_to_savepoint(tx).await;
        }
    }
    async fn commit(&self, tx: MemoryFixtureTransaction) {
        self.0.commit(tx).await;
    }
    async fn rollback(&self, tx: MemoryFixtureTransaction) {
        if BUGS[BUG] == Bug::CommitsWhatIsRolledBack {
            self.0.commit(tx).await;
        }
    }
    async fn spoil(&self, id: MessageId) -> bool {
        self.0.spoil(id).await
    }
    async fn archived(&self) -> Vec<MessageId> {
        if BUGS[BUG] == Bug::ForgetsTheArchive { Vec::new() } else { self.0.archived().await }
    }
    async fn destroy(self) {}
}

const UNIT_OF_CLEARING: Duration = Duration::from_secs(60);

/// The model's result for a store with this bug.
fn verdict<const BUG: usize>() -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(run_model::<Buggy<BUG>>(40));
    }));
    found.err().map_or_else(String::new, |panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// Asserts that the model finds this bug.
fn assert_found<const BUG: usize>() {
    let found = verdict::<BUG>();
    assert!(found.contains("POSTHASTE_MODEL_SEED=20251115"), "{:?} was not found: {found}", BUGS[BUG]);
}

#[test]
fn no_bug_no_difference() {
    assert_eq!(verdict::<0>(), "");
}

#[test]
fn kept_messages_are_found() {
    assert_found::<1>();
}

#[test]
fn ignored_savepoints_are_found() {
    assert_found::<2>();
}

#[test]
fn ignored_rollbacks_are_found() {
    assert_found::<3>();
}

#[test]
fn slow_clocks_are_found() {
    assert_found::<4>();
}

#[test]
fn lost_archives_are_found() {
    assert_found::<5>();
}

/// A difference comes with a sequence from which nothing can be left out.
#[test]
fn sequences_are_shrunk() {
    let found = verdict::<3>();
    let steps = found.matches("Enqueue {").count() + found.matches("Join {").count();
    assert_eq!(steps, 2, "once as the step, once as the sequence: {found}");
    // Steps of a group stay together: later steps of the same group are not reached.
    assert!(found.contains(") at step 1 ("), "{found}");
}
