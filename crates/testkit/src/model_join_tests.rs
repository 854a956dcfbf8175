//! The model finds stores that handle joins differently from the reference, in one point each.

use std::time::Duration;

use posthaste_core::{
    Attached, Birth, Change, ClaimRequest, Cursor, EndedJoin, Enqueued, Expired, Failure, FailureClass,
    Filter, Finding, HistoryEntry, Holder, InboxEntry, InboxRecord, InboxStore, Join, JoinFilter, JoinId,
    JoinListing, JoinStore, Lease, Listing, Look, MemoryTransaction, Message, MessageId, NewJoin, NewMessage,
    Once, Outcome, Pause, Reaped, Record, Reported, Result, Retention, Settled, SettledBatch, Settlement,
    State, Stats, StepEnd, StepListing, StepStatus, Store, StoreAdmin, Topics, TransactionalStore,
    Transactions, Turn,
};

use super::*;
use crate::{MemoryFixture, MemoryFixtureTransaction, async_trait};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A message that is over when it is attached is never counted (M-12).
    AttachIgnoresState,
    /// A settlement counts, but does not report that a join ended.
    EndsInSilence,
    /// Steps that end by an ack are not counted.
    AcksDoNotCount,
    /// A step that was counted is counted once more when it is reported (M-13).
    CountsTwice,
    /// Steps that come too late are not recorded.
    ForgetsLateSteps,
    /// The store does not record that a waiting message has sent its continuation.
    ContinuesAgain,
    /// A deadline that has passed goes unnoticed.
    NeverExpires,
    /// Steps of pending joins are pruned (M-24).
    PrunesSteps,
    /// The end of a join does not make due what waits for it.
    LetsThemWait,
}

const BUGS: [Bug; 10] = [
    Bug::None,
    Bug::AttachIgnoresState,
    Bug::EndsInSilence,
    Bug::AcksDoNotCount,
    Bug::CountsTwice,
    Bug::ForgetsLateSteps,
    Bug::ContinuesAgain,
    Bug::NeverExpires,
    Bug::PrunesSteps,
    Bug::LetsThemWait,
];

/// A store with a bug. Changes that the inner store cannot leave out are hidden from reads.
#[derive(Clone, Debug)]
struct Doctored {
    inner: MemoryStore,
    bug: Bug,
}

impl Doctored {
    async fn is_over(&self, message: MessageId) -> bool {
        let shown = self.inner.show(message).await.unwrap();
        shown.is_some_and(|(record, _)| matches!(record.state, State::Done | State::Dead))
    }

    fn doctor(&self, mut join: Join) -> Join {
        if self.bug == Bug::AcksDoNotCount {
            join.completed_steps = 0;
        }
        if self.bug == Bug::CountsTwice && join.completed_steps > 0 {
            join.completed_steps += 1;
        }
        join
    }
}

#[async_trait]
impl Store for Doctored {
    async fn check(&self) -> Result<()> {
        self.inner.check().await
    }
    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        self.inner.enqueue(messages).await
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        let mut claimed = self.inner.claim(request).await?;
        if self.bug == Bug::LetsThemWait {
            let waits = claimed.iter_mut().filter(|message| message.topic.as_str() == "wait");
            waits.for_each(|message| message.failing_since = None);
        }
        Ok(claimed)
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let mut settlements = settlements.to_vec();
        if self.bug == Bug::LetsThemWait {
            self.put_off(&mut settlements).await;
        }
        let mut batch = self.inner.settle(&settlements).await?;
        if self.bug == Bug::EndsInSilence {
            batch.joins.clear();
        }
        Ok(batch)
    }
    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        self.inner.renew(leases, lease).await
    }
    async fn paused(&self) -> Result<Topics> {
        self.inner.paused().await
    }
    async fn reap(&self, limit: u32) -> Result<Reaped> {
        self.inner.reap(limit).await
    }
    async fn expire(&self, limit: u32) -> Result<Expired> {
        self.inner.expire(limit).await
    }
    async fn park(&self, limit: u32) -> Result<u64> {
        self.inner.park(limit).await
    }
    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        self.inner.hasten(topics, limit).await
    }
    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        let pruned = self.inner.prune(retention, limit).await?;
        Ok(if self.bug == Bug::PrunesSteps { pruned + self.steps_that_are_over().await } else { pruned })
    }
    async fn look(&self, join: JoinId) -> Result<Look> {
        if self.bug == Bug::NeverExpires
            && let Some(join) = self.inner.join(join).await?
            && join.expires_at.is_some_and(|_| join.status == posthaste_core::JoinStatus::Pending)
        {
            return Ok(Look::Pending { expires_in: Some(Duration::ZERO) });
        }
        self.inner.look(join).await
    }
    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        let first = self.inner.continue_join(join, wait, continuation).await?;
        if self.bug == Bug::ContinuesAgain && !first && self.inner.join(join).await?.is_some() {
            self.inner.enqueue(continuation.map_or(&[], std::slice::from_ref)).await?;
            return Ok(true);
        }
        Ok(first)
    }
    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        self.inner.prune_joins(keep, limit).await
    }
    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        self.inner.turn(job, turn).await
    }
}

/// What messages are put off with that wait for a join, and must not be seen.
const LATER: &str = "later";

impl Doctored {
    /// Abandoned for an outage is put off as deferred is, except that the end of a join does not matter to it.
    async fn put_off(&self, settlements: &mut [Settlement]) {
        let records = crate::store_suite::records(&self.inner).await;
        for settlement in settlements {
            let record = records.iter().find(|record| record.message.item == settlement.lease.item);
            let waits = record.is_some_and(|record| {
                record.topic().as_str() == "wait"
                    && record.last_error.as_deref().unwrap_or(LATER).ends_with(LATER)
            });
            if let (Outcome::Defer { delay }, true) = (&settlement.outcome, waits) {
                let (delay, failure) = (*delay, Failure::new(FailureClass::Unroutable, LATER));
                settlement.outcome = Outcome::Abandon { delay, failure, max_attempts: 1, max_age: None };
            }
        }
    }

    /// How many messages only a pending join keeps.
    async fn steps_that_are_over(&self) -> u64 {
        let pending =
            JoinFilter { status: Some(posthaste_core::JoinStatus::Pending), ..JoinFilter::default() };
        let mut over = 0;
        for join in self.inner.joins(&pending, None, 200).await.unwrap().joins {
            for step in self.inner.steps(join.id, None, 200).await.unwrap().steps {
                over += u64::from(self.is_over(step.message).await);
            }
        }
        over
    }
}

impl TransactionalStore for Doctored {
    type Connection = MemoryTransaction;

    async fn insert(
        &self,
        transaction: &mut MemoryTransaction,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        self.inner.insert(transaction, messages, birth).await
    }
    async fn survivors(&self, transaction: &mut MemoryTransaction, leases: &[Lease]) -> Result<Vec<bool>> {
        self.inner.survivors(transaction, leases).await
    }
}

impl JoinStore for Doctored {
    async fn has_join(&self, transaction: &mut MemoryTransaction, join: JoinId) -> Result<bool> {
        self.inner.has_join(transaction, join).await
    }
    async fn start_join(&self, transaction: &mut MemoryTransaction, join: &NewJoin) -> Result<()> {
        self.inner.start_join(transaction, join).await
    }
    async fn attach(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        let mut attached = self.inner.attach(transaction, join, messages).await?;
        if self.bug == Bug::AttachIgnoresState {
            attached.ended = None;
        }
        Ok(attached)
    }
    async fn report(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<Reported> {
        self.inner.report(transaction, join, message, end).await
    }
    async fn cancel_join(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
    ) -> Result<Option<EndedJoin>> {
        self.inner.cancel_join(transaction, join).await
    }
    async fn wait_for_join(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        wait: MessageId,
    ) -> Result<Look> {
        self.inner.wait_for_join(transaction, join, wait).await
    }
}

impl InboxStore for Doctored {
    async fn remember(&self, transaction: &mut MemoryTransaction, entry: &InboxEntry<'_>) -> Result<Once> {
        self.inner.remember(transaction, entry).await
    }
    async fn remembered(
        &self,
        consumer: &str,
        source: &str,
        message_id: MessageId,
    ) -> Result<Option<InboxRecord>> {
        self.inner.remembered(consumer, source, message_id).await
    }
    async fn forget(&self, consumer: &str, keep: Duration, limit: u32) -> Result<u64> {
        self.inner.forget(consumer, keep, limit).await
    }
}

impl Transactions for Doctored {
    type Transaction = Box<MemoryTransaction>;

    async fn begin(&self) -> Result<Box<MemoryTransaction>> {
        Transactions::begin(&self.inner).await
    }
    async fn commit(&self, transaction: Box<MemoryTransaction>) -> Result<()> {
        self.inner.commit(transaction).await
    }
    async fn rollback(&self, transaction: Box<MemoryTransaction>) -> Result<()> {
        self.inner.rollback(transaction).await
    }
}

#[async_trait]
impl StoreAdmin for Doctored {
    async fn stats(&self) -> Result<Stats> {
        let mut stats = self.inner.stats().await?;
        if self.bug == Bug::LetsThemWait {
            let records = crate::store_suite::records(&self.inner).await;
            let is_later =
                |record: &&Record| record.last_error.as_ref().is_some_and(|text| text.ends_with(LATER));
            let later = records.iter().filter(is_later).filter(|record| record.state == State::Ready);
            stats.failing.value = stats.failing.value.saturating_sub(later.count() as u64);
        }
        Ok(stats)
    }
    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        let mut listing = self.inner.list(filter, after, limit).await?;
        if self.bug == Bug::LetsThemWait {
            let later =
                |record: &&mut Record| record.last_error.as_ref().is_some_and(|text| text.ends_with(LATER));
            for record in listing.records.iter_mut().filter(later) {
                (record.error_class, record.last_error) = (None, None);
                record.message.failing_since = None;
            }
        }
        Ok(listing)
    }
    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        self.inner.show(id).await
    }
    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.inner.requeue(change).await
    }
    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.inner.bury(change).await
    }
    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        Ok(self.inner.join(id).await?.map(|join| self.doctor(join)))
    }
    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        let mut listing = self.inner.joins(filter, after, limit).await?;
        listing.joins = listing.joins.into_iter().map(|join| self.doctor(join)).collect();
        Ok(listing)
    }
    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        let mut listing = self.inner.steps(join, after, limit).await?;
        if self.bug == Bug::ForgetsLateSteps {
            let late = |status| matches!(status, StepStatus::LateCompleted | StepStatus::LateFailed);
            listing
                .steps
                .iter_mut()
                .filter(|step| late(step.status))
                .for_each(|step| step.status = StepStatus::Pending);
        }
        Ok(listing)
    }
    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        self.inner.pause(topics, by, why).await
    }
    async fn resume(&self, topics: &str) -> Result<bool> {
        self.inner.resume(topics).await
    }
    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.inner.pauses().await
    }
    async fn holder(&self, id: MessageId) -> Result<Option<Holder>> {
        self.inner.holder(id).await
    }
    async fn examine(&self) -> Result<Vec<Finding>> {
        self.inner.examine().await
    }
}

/// The fixture of a store with this bug.
struct Sick<const BUG: usize>(MemoryFixture, Doctored);

#[async_trait]
impl<const BUG: usize> Fixture for Sick<BUG> {
    type Store = Doctored;
    type Transaction = MemoryFixtureTransaction;

    async fn create() -> Self {
        let fixture = MemoryFixture::create().await;
        let store = Doctored { inner: fixture.store().clone(), bug: BUGS[BUG] };
        Self(fixture, store)
    }
    fn store(&self) -> &Doctored {
        &self.1
    }
    fn store_that_deletes(&self) -> Doctored {
        Doctored { inner: self.0.store_that_deletes(), bug: self.1.bug }
    }
    async fn now(&self) -> SystemTime {
        self.0.now().await
    }
    async fn advance(&self, by: Duration) {
        self.0.advance(by).await;
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
        self.0.rollback_to_savepoint(tx).await;
    }
    async fn commit(&self, tx: MemoryFixtureTransaction) {
        self.0.commit(tx).await;
    }
    async fn rollback(&self, tx: MemoryFixtureTransaction) {
        self.0.rollback(tx).await;
    }
    async fn spoil(&self, id: MessageId) -> bool {
        self.0.spoil(id).await
    }
    async fn archived(&self) -> Vec<MessageId> {
        self.0.archived().await
    }
    async fn clear(&self) {
        crate::clear_through_the_api(&self.0).await;
    }
    async fn destroy(self) {}
}

/// The model's result for a store with this bug.
fn verdict<const BUG: usize>() -> String {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        runtime.block_on(run_model::<Sick<BUG>>(40));
    }));
    found.err().map_or_else(String::new, |panic| panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

/// Asserts that the model finds this bug, and says this of it.
fn assert_found<const BUG: usize>(says: &str) {
    let found = verdict::<BUG>();
    assert!(found.contains(says), "{:?} was not found: {found}", BUGS[BUG]);
}

#[test]
fn no_bug_no_difference() {
    assert_eq!(verdict::<0>(), "");
}

#[test]
fn attaching_what_is_over_counts() {
    assert_found::<1>("the answers should be");
}

#[test]
fn ends_are_told() {
    assert_found::<2>("settled should be");
}

#[test]
fn acks_count() {
    assert_found::<3>("completed steps should be");
}

#[test]
fn steps_count_once() {
    assert_found::<4>("completed steps should be");
}

#[test]
fn late_steps_are_recorded() {
    assert_found::<5>("the steps should be");
}

#[test]
fn continuations_are_sent_once() {
    assert_found::<6>("continued should be false");
}

#[test]
fn deadlines_pass() {
    assert_found::<7>("seen should be");
}

#[test]
fn steps_are_kept() {
    assert_found::<8>("pruned should be");
}

#[test]
fn what_waits_is_due_when_its_join_is_over() {
    assert_found::<9>("due at should be");
}
