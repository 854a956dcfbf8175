//! A store that counts the calls to another one, and can be told to fail some of them, or to hold answers back.
//!
//! Tests of costs count with it, tests of outages fail with it. What it does not fail it passes on unchanged.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Attached, Birth, Change, ClaimRequest, Cursor, EndedJoin, Enqueued, Error, ErrorKind, Expired, Filter,
    Finding, HistoryEntry, Holder, InboxEntry, InboxRecord, InboxStore, Join, JoinFilter, JoinId,
    JoinListing, JoinStore, Lease, Listing, LockWait, Look, Message, MessageId, NewJoin, NewMessage, Once,
    Pause, Reaped, Record, Reported, Result, Retention, Settled, SettledBatch, Settlement, Stats, StepEnd,
    StepListing, Store, StoreAdmin, Topics, TransactionalStore, Transactions, Turn, WorkItemId,
};
use tokio::sync::{Notify, Semaphore};

/// Counts the calls to a store. Clones count together.
#[derive(Clone, Debug)]
pub struct Counting<S> {
    store: S,
    counts: Arc<Mutex<Counts>>,
    woken: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Counts {
    calls: BTreeMap<&'static str, u64>,
    failing: BTreeMap<&'static str, (u64, ErrorKind)>,
    held: BTreeMap<&'static str, Arc<Semaphore>>,
    lost_commits: u64,
    refused: Option<WorkItemId>,
    endless_prune: bool,
    largest_claim: usize,
    answered_claims: u64,
}

impl<S> Counting<S> {
    /// Counts the calls to this store.
    pub fn new(store: S) -> Self {
        Self { store, counts: Arc::default(), woken: Arc::default() }
    }

    /// The store itself, for calls that are not to be counted.
    pub fn inner(&self) -> &S {
        &self.store
    }

    /// How often this operation was called.
    pub fn calls(&self, operation: &str) -> u64 {
        self.counts.lock().unwrap().calls.get(operation).copied().unwrap_or_default()
    }

    /// Every operation that was called, and how often.
    pub fn all(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().unwrap().calls.clone()
    }

    /// Wakes its waiters, as a notification from another process does.
    pub fn wake(&self) {
        self.woken.notify_one();
    }

    /// Resets all counts.
    pub fn reset(&self) {
        self.counts.lock().unwrap().calls.clear();
    }

    /// How many messages the largest claim returned.
    pub fn largest_claim(&self) -> usize {
        self.counts.lock().unwrap().largest_claim
    }

    /// How many claims were answered. A claim does not contain messages that were enqueued after it.
    pub fn answered_claims(&self) -> u64 {
        self.counts.lock().unwrap().answered_claims
    }

    /// Makes the next so many calls of this operation fail, as if the database could not be reached.
    pub fn fail(&self, operation: &'static str, times: u64) {
        self.counts.lock().unwrap().failing.insert(operation, (times, ErrorKind::Unavailable));
    }

    /// Lets the next so many calls of this operation lose a conflict.
    pub fn conflict(&self, operation: &'static str, times: u64) {
        self.counts.lock().unwrap().failing.insert(operation, (times, ErrorKind::Conflict));
    }

    /// Refuses every settlement of this message, and with it the whole batch; none takes that back.
    pub fn refuse(&self, item: Option<WorkItemId>) {
        self.counts.lock().unwrap().refused = item;
    }

    /// Loses the answers of the next so many commits: they take place, but the caller does not learn of it.
    pub fn lose_commits(&self, times: u64) {
        self.counts.lock().unwrap().lost_commits = times;
    }

    /// Makes every call of `prune` report that there is more to do, or stops doing so.
    pub fn prune_endlessly(&self, endlessly: bool) {
        self.counts.lock().unwrap().endless_prune = endlessly;
    }

    /// Holds back the answers of this operation, `claim`, `look`, `paused`, `prune` or `turn`: it takes place at once, but its caller waits.
    pub fn hold(&self, operation: &'static str) {
        self.counts.lock().unwrap().held.insert(operation, Arc::new(Semaphore::new(0)));
    }

    /// Lets the answers go that were held back.
    pub fn let_go(&self, operation: &'static str) {
        if let Some(held) = self.counts.lock().unwrap().held.remove(operation) {
            held.close();
        }
    }

    async fn answer(&self, operation: &'static str) {
        let held = self.counts.lock().unwrap().held.get(operation).cloned();
        if let Some(held) = held {
            // It yields no message; it only ends when it is closed.
            let _ = held.acquire().await;
        }
    }

    fn count(&self, operation: &'static str) -> Result<()> {
        let mut counts = self.counts.lock().unwrap();
        *counts.calls.entry(operation).or_default() += 1;
        match counts.failing.get_mut(operation) {
            Some((left, kind)) if *left > 0 => {
                *left -= 1;
                Err(Error::new(*kind, "the database is away, for a test").during(operation))
            }
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl<S: Store> Store for Counting<S> {
    async fn check(&self) -> Result<()> {
        self.count("check")?;
        self.store.check().await
    }

    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        self.count("enqueue")?;
        self.store.enqueue(messages).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        self.count("claim")?;
        let claimed = self.store.claim(request).await?;
        self.answer("claim").await;
        let mut counts = self.counts.lock().unwrap();
        counts.largest_claim = counts.largest_claim.max(claimed.len());
        counts.answered_claims += 1;
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        self.count("settle")?;
        let refused = self.counts.lock().unwrap().refused;
        if settlements.iter().any(|settlement| Some(settlement.lease.item) == refused) {
            return Err(Error::new(ErrorKind::Database, "one of these is refused"));
        }
        self.store.settle(settlements).await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        self.count("renew")?;
        self.store.renew(leases, lease).await
    }

    async fn reap(&self, limit: u32) -> Result<Reaped> {
        self.count("reap")?;
        self.store.reap(limit).await
    }

    async fn expire(&self, limit: u32) -> Result<Expired> {
        self.count("expire")?;
        self.store.expire(limit).await
    }

    async fn park(&self, limit: u32) -> Result<u64> {
        self.count("park")?;
        self.store.park(limit).await
    }

    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        self.count("hasten")?;
        self.store.hasten(topics, limit).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        self.count("prune")?;
        let pruned = self.store.prune(retention, limit).await?;
        self.answer("prune").await;
        Ok(if self.counts.lock().unwrap().endless_prune { u64::from(limit) } else { pruned })
    }

    async fn look(&self, join: JoinId) -> Result<Look> {
        self.count("look")?;
        let look = self.store.look(join).await?;
        self.answer("look").await;
        Ok(look)
    }

    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        self.count("continue_join")?;
        self.store.continue_join(join, wait, continuation).await
    }

    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        self.count("prune_joins")?;
        self.store.prune_joins(keep, limit).await
    }

    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        self.count("turn")?;
        let taken = self.store.turn(job, turn).await;
        self.answer("turn").await;
        taken
    }

    async fn paused(&self) -> Result<Topics> {
        self.count("paused")?;
        let paused = self.store.paused().await?;
        self.answer("paused").await;
        Ok(paused)
    }

    fn name(&self) -> String {
        self.store.name()
    }

    async fn identity(&self) -> Result<Option<String>> {
        self.count("identity")?;
        self.store.identity().await
    }

    async fn rest(&self) {
        let _ = self.count("rest");
        self.store.rest().await;
    }

    async fn nudge(&self) -> Result<()> {
        self.count("nudge")?;
        self.store.nudge().await
    }

    async fn wakeup(&self) {
        tokio::select! {
            () = self.store.wakeup() => {}
            () = self.woken.notified() => {}
        }
    }
}

impl<S: TransactionalStore> TransactionalStore for Counting<S> {
    type Connection = S::Connection;

    async fn insert(
        &self,
        connection: &mut S::Connection,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        self.count("insert")?;
        self.store.insert(connection, messages, birth).await
    }

    async fn survivors(&self, connection: &mut S::Connection, leases: &[Lease]) -> Result<Vec<bool>> {
        self.count("survivors")?;
        self.store.survivors(connection, leases).await
    }
}

impl<S: JoinStore> JoinStore for Counting<S> {
    async fn has_join(&self, connection: &mut S::Connection, join: JoinId) -> Result<bool> {
        self.count("has_join")?;
        self.store.has_join(connection, join).await
    }

    async fn start_join(&self, connection: &mut S::Connection, join: &NewJoin) -> Result<()> {
        self.count("start_join")?;
        self.store.start_join(connection, join).await
    }

    async fn attach(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        self.count("attach")?;
        self.store.attach(connection, join, messages).await
    }

    async fn report(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<Reported> {
        self.count("report")?;
        self.store.report(connection, join, message, end).await
    }

    async fn cancel_join(&self, connection: &mut S::Connection, join: JoinId) -> Result<Option<EndedJoin>> {
        self.count("cancel_join")?;
        self.store.cancel_join(connection, join).await
    }

    async fn wait_for_join(
        &self,
        connection: &mut S::Connection,
        join: JoinId,
        wait: MessageId,
    ) -> Result<Look> {
        self.count("wait_for_join")?;
        self.store.wait_for_join(connection, join, wait).await
    }
}

impl<S: InboxStore> InboxStore for Counting<S> {
    async fn remember(&self, connection: &mut S::Connection, entry: &InboxEntry<'_>) -> Result<Once> {
        self.count("remember")?;
        self.store.remember(connection, entry).await
    }

    async fn remembered(
        &self,
        consumer: &str,
        source: &str,
        message_id: MessageId,
    ) -> Result<Option<InboxRecord>> {
        self.count("remembered")?;
        self.store.remembered(consumer, source, message_id).await
    }

    async fn forget(&self, consumer: &str, keep: Duration, limit: u32) -> Result<u64> {
        self.count("forget")?;
        self.store.forget(consumer, keep, limit).await
    }
}

impl<S: Transactions> Transactions for Counting<S> {
    type Transaction = S::Transaction;

    async fn begin(&self) -> Result<S::Transaction> {
        self.count("begin")?;
        self.store.begin().await
    }

    async fn commit(&self, transaction: S::Transaction) -> Result<()> {
        self.count("commit")?;
        self.store.commit(transaction).await?;
        let mut counts = self.counts.lock().unwrap();
        if counts.lost_commits == 0 {
            return Ok(());
        }
        counts.lost_commits -= 1;
        Err(Error::new(ErrorKind::CommitUnknown, "the answer was lost, for a test").during("commit"))
    }

    async fn rollback(&self, transaction: S::Transaction) -> Result<()> {
        self.count("rollback")?;
        self.store.rollback(transaction).await
    }
}

#[async_trait]
impl<S: StoreAdmin> StoreAdmin for Counting<S> {
    async fn stats(&self) -> Result<Stats> {
        self.count("stats")?;
        self.store.stats().await
    }

    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        self.count("list")?;
        self.store.list(filter, after, limit).await
    }

    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        self.count("show")?;
        self.store.show(id).await
    }

    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.count("requeue")?;
        self.store.requeue(change).await
    }

    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        self.count("bury")?;
        self.store.bury(change).await
    }
    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        self.count("join")?;
        self.store.join(id).await
    }

    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        self.count("joins")?;
        self.store.joins(filter, after, limit).await
    }

    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        self.count("steps")?;
        self.store.steps(join, after, limit).await
    }

    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        self.count("pause")?;
        self.store.pause(topics, by, why).await
    }

    async fn resume(&self, topics: &str) -> Result<bool> {
        self.count("resume")?;
        self.store.resume(topics).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.count("pauses")?;
        self.store.pauses().await
    }

    async fn holder(&self, id: MessageId) -> Result<Option<Holder>> {
        self.count("holder")?;
        self.store.holder(id).await
    }

    async fn lock_waits(&self) -> Result<Vec<LockWait>> {
        self.count("lock_waits")?;
        self.store.lock_waits().await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.count("examine")?;
        self.store.examine().await
    }
}
