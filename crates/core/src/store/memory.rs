//! A store in memory: the reference that says, in the plainest code, what every other store must do.
//!
//! It is always compiled, for users' tests and for simulation, and never a substitute for testing against a real
//! database. Nothing here may be clever: other stores are compared with it, row by row.

mod admin;
mod inbox;
mod joins;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use self::inbox::{InboxTable, Remembered};
use self::joins::{Change, Changed, Joins};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::id::{Lease, MessageId, WorkItemId, WorkerId};
use crate::join::{EndedJoin, JoinId, JoinStatus, Look, StepEnd};
use crate::message::{Enqueued, MAX_DELAY, Message, NewMessage, When};
use crate::order::OrderPolicy;
use crate::outcome::{Failure, FailureClass, MAX_LEASE_LOSSES, Outcome, Settled, Settlement, State};
use crate::store::admin::{HistoryEntry, Pause, Record};
use crate::store::{
    Birth, ClaimRequest, Expired, MAX_BATCH, MAX_PRUNE_BATCH, Reaped, Retention, SettledBatch, Store,
    TransactionalStore, Transactions, Turn, check_batch, check_lease, distinct,
};
use crate::topic::{Topic, Topics};

/// A store in memory.
///
/// ```
/// use posthaste_core::{ClaimRequest, MemoryStore, NewMessage, Store, WorkerId};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let store = MemoryStore::new();
/// store.enqueue(&[NewMessage::bytes("greeting", "hello").build()?]).await?;
/// let claimed = store.claim(&ClaimRequest::new(WorkerId::new("me")?)).await?;
/// assert_eq!(&claimed[0].payload[..], b"hello");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    keep_done: bool,
    queue: Arc<Mutex<Queue>>,
    inbox: InboxTable,
}

#[derive(Debug, Default)]
struct Queue {
    last_seq: i64,
    rows: BTreeMap<i64, Row>,
    archive: Vec<Record>,
    turns: BTreeMap<String, SystemTime>,
    pauses: BTreeMap<String, Pause>,
    joins: Joins,
}

#[derive(Clone, Debug)]
struct Row {
    record: Record,
    dedup: Option<[u8; 32]>,
    history: Vec<HistoryEntry>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// An empty store that uses the machine's clock and keeps done messages.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }

    /// An empty store that goes by this clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { clock, keep_done: true, queue: Arc::default(), inbox: InboxTable::default() }
    }

    /// Whether acked messages are kept as done, until they are pruned, or deleted at once. Default: kept.
    #[must_use]
    pub fn keep_done(mut self, keep: bool) -> Self {
        self.keep_done = keep;
        self
    }

    /// A transaction, for publishing in it.
    pub fn begin(&self) -> MemoryTransaction {
        MemoryTransaction {
            store: self.clone(),
            pending: Vec::new(),
            changes: Vec::new(),
            remembered: self.inbox.begin(),
        }
    }

    /// The archive, oldest first.
    pub fn archived(&self) -> Vec<Record> {
        self.lock().archive.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transaction on a [`MemoryStore`]: its messages become visible at [`commit`](Self::commit), and vanish if it is
/// dropped.
#[derive(Debug)]
pub struct MemoryTransaction {
    store: MemoryStore,
    pending: Vec<Row>,
    changes: Vec<Change>,
    remembered: Remembered,
}

impl MemoryTransaction {
    /// Makes everything visible at once. A message whose dedup key another transaction has used meanwhile, and a change of
    /// a join that another transaction has made impossible, are left out: a database would have made one of the two wait,
    /// which this store cannot.
    pub fn commit(self) {
        let now = self.store.clock.now();
        let mut queue = self.store.lock();
        self.remembered.keep();
        for row in self.pending {
            if queue.twin_of(row.record.message.id, row.dedup.as_ref()).is_none() {
                queue.rows.insert(row.seq(), row);
            }
        }
        for change in self.changes {
            let states = states_of(queue.rows.values());
            if let Ok(changed) = queue.joins.apply(&change, &states, now) {
                queue.over(&changed.ended().into_iter().collect::<Vec<_>>(), now);
                // Another transaction has ended the join since: a database would have made that wait for this one.
                if let (Change::WaitForEnd(_, wait), Changed::Waits(Look::Over(_))) = (&change, &changed) {
                    queue.rouse(*wait, now);
                }
            }
        }
    }

    /// A point to go back to.
    pub fn savepoint(&self) -> Savepoint {
        Savepoint { rows: self.pending.len(), changes: self.changes.len(), remembered: self.remembered.len() }
    }

    /// Forgets messages published since.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) {
        self.pending.truncate(savepoint.rows);
        self.changes.truncate(savepoint.changes);
        self.remembered.truncate(savepoint.remembered);
    }

    /// Makes a change to joins, as far as this transaction alone sees it.
    fn change(&mut self, change: Change) -> Result<Changed> {
        let now = self.store.clock.now();
        let queue = self.store.lock();
        let states = states_of(self.pending.iter().chain(queue.rows.values()));
        let mut seen = queue.joins.clone();
        for earlier in &self.changes {
            // Its error was reported when it was created.
            let _ = seen.apply(earlier, &states, now);
        }
        let changed = seen.apply(&change, &states, now)?;
        drop(queue);
        self.changes.push(match (change, &changed) {
            (Change::Wait(join, wait), Changed::Waits(Look::Pending { .. })) => {
                Change::WaitForEnd(join, wait)
            }
            (change, _) => change,
        });
        Ok(changed)
    }
}

fn states_of<'a>(rows: impl Iterator<Item = &'a Row>) -> HashMap<MessageId, State> {
    rows.map(|row| (row.record.message.id, row.record.state)).collect()
}

/// A point in a [`MemoryTransaction`] to go back to.
#[derive(Debug)]
pub struct Savepoint {
    rows: usize,
    changes: usize,
    remembered: usize,
}

impl Row {
    fn seq(&self) -> i64 {
        self.record.message.item.get()
    }

    fn key(&self) -> Option<&str> {
        self.record.message.key.as_deref()
    }

    fn is_due(&self, now: SystemTime) -> bool {
        self.record.state == State::Ready && !self.record.parked && self.record.message.due_at <= now
    }

    fn is_expired(&self, now: SystemTime) -> bool {
        self.record.message.expires_at.is_some_and(|expires| expires <= now)
    }

    /// Whether messages of its key that were enqueued after it must wait.
    fn holds_key(&self) -> bool {
        matches!(self.record.state, State::Ready | State::Leased) || self.record.holds_key()
    }

    fn unlease(&mut self, state: State) -> Option<WorkerId> {
        self.record.state = state;
        self.record.leased_until = None;
        self.record.worker.take()
    }

    fn lease(&mut self, worker: &WorkerId, until: SystemTime) {
        self.record.state = State::Leased;
        self.record.message.epoch += 1;
        self.record.worker = Some(worker.clone());
        self.record.leased_until = Some(until);
    }

    fn record_failure(&mut self, failure: &Failure) {
        self.record.error_class = Some(failure.class());
        self.record.last_error = Some(failure.text().to_owned());
    }

    fn die(&mut self, now: SystemTime, failure: &Failure) {
        self.unlease(State::Dead);
        if std::mem::take(&mut self.record.parked) {
            self.record.message.due_at = now;
        }
        self.record.done_at = Some(now);
        self.record_failure(failure);
    }

    fn settle(&mut self, now: SystemTime, outcome: &Outcome) {
        let later = now + outcome.delay();
        match outcome {
            Outcome::Ack => {
                self.record.done_by = self.unlease(State::Done);
                self.record.done_at = Some(now);
            }
            Outcome::Abandon { failure, max_attempts, .. } => {
                let over = if failure.class().costs_attempt() {
                    self.record.message.attempts += 1;
                    self.record.message.failing_since = None;
                    self.record.message.attempts >= *max_attempts
                } else {
                    let since = *self.record.message.failing_since.get_or_insert(now);
                    outcome.max_age().is_some_and(|age| since + age <= now)
                };
                if over {
                    self.die(now, failure);
                } else {
                    self.unlease(State::Ready);
                    self.record.message.due_at = later;
                    self.record_failure(failure);
                }
            }
            Outcome::Defer { .. } => {
                self.unlease(State::Ready);
                self.record.message.due_at = later;
            }
            Outcome::Release => {
                self.unlease(State::Ready);
            }
            Outcome::Fail { failure } => self.die(now, failure),
        }
    }
}

impl Queue {
    fn next_seq(&mut self) -> i64 {
        self.last_seq += 1;
        self.last_seq
    }

    fn twin_of(&self, id: MessageId, dedup: Option<&[u8; 32]>) -> Option<MessageId> {
        find_twin(self.rows.values(), id, dedup)
    }

    /// Makes rows of messages that have no twin, neither here nor among the rows placed before.
    fn place(
        &mut self,
        messages: &[NewMessage],
        placed: &mut Vec<Row>,
        now: SystemTime,
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        let mut enqueued = Vec::with_capacity(messages.len());
        for message in messages {
            let twin = find_twin(placed.iter(), message.id(), message.dedup())
                .or_else(|| self.twin_of(message.id(), message.dedup()));
            enqueued.push(match twin {
                Some(id) => Enqueued::Duplicate { id },
                None => {
                    let row = row_of(message, self.next_seq(), now, birth)?;
                    let lease = (row.record.state == State::Leased).then(|| row.record.message.lease());
                    placed.push(row);
                    Enqueued::New { id: message.id(), lease }
                }
            });
        }
        Ok(enqueued)
    }

    /// Counts the ends of messages in their joins, in the order of the joins' ids.
    fn count(&mut self, ended: &[(MessageId, StepEnd)], now: SystemTime) -> Vec<EndedJoin> {
        let mut joins: Vec<EndedJoin> = Vec::new();
        for (message, end) in ended {
            joins.extend(self.joins.count(*message, *end, now));
        }
        joins.sort_by_key(|join| join.id);
        self.over(&joins, now);
        joins
    }

    /// Makes the messages due that wait for joins which are over.
    fn over(&mut self, joins: &[EndedJoin], now: SystemTime) {
        for join in joins {
            for wait in self.joins.waiting(join.id) {
                self.rouse(wait, now);
            }
        }
    }

    /// Makes a message due, if it waits.
    fn rouse(&mut self, wait: MessageId, now: SystemTime) {
        let row = self.rows.values_mut().find(|row| row.record.message.id == wait);
        if let Some(row) = row.filter(|row| row.record.state == State::Ready && !row.record.parked) {
            row.record.message.due_at = row.record.message.due_at.min(now);
        }
    }

    fn paused(&self) -> Result<Topics> {
        Topics::of(self.pauses.keys())
    }

    /// The rows whose turn it is in their key.
    fn heads(&self) -> HashMap<&str, i64> {
        let mut heads = HashMap::new();
        for (seq, row) in &self.rows {
            if let Some(key) = row.key().filter(|_| row.holds_key()) {
                heads.entry(key).or_insert(*seq);
            }
        }
        heads
    }

    /// The keys that a dead message with the policy `park` holds back, with the first such message.
    fn parked_keys(&self) -> HashMap<String, i64> {
        let mut keys = HashMap::new();
        for (seq, row) in &self.rows {
            if row.record.holds_key() && row.record.message.order == OrderPolicy::Park {
                keys.entry(row.key().unwrap_or_default().to_owned()).or_insert(*seq);
            }
        }
        keys
    }

    /// Makes the messages parked behind this row due again.
    fn unpark_behind(&mut self, seq: i64, key: Option<&str>, now: SystemTime) {
        let Some(key) = key else { return };
        for (_, row) in self.rows.range_mut(seq + 1..) {
            if row.record.parked && row.key() == Some(key) {
                row.record.parked = false;
                row.record.message.due_at = now;
            }
        }
    }
}

fn find_twin<'a>(
    mut rows: impl Iterator<Item = &'a Row>,
    id: MessageId,
    dedup: Option<&[u8; 32]>,
) -> Option<MessageId> {
    rows.find(|row| row.record.message.id == id || (dedup.is_some() && row.dedup.as_ref() == dedup))
        .map(|row| row.record.message.id)
}

fn row_of(message: &NewMessage, seq: i64, now: SystemTime, birth: Birth<'_>) -> Result<Row> {
    let at = |when: When| match when {
        When::Now => now,
        When::After(delay) => now + delay,
        When::At(time) => time,
    };
    let stored = Message {
        item: WorkItemId::new(seq),
        epoch: 0,
        id: message.id(),
        topic: Topic::new(message.topic())?,
        key: message.key().map(str::to_owned),
        order: message.order().unwrap_or_default(),
        payload: message.shared_payload(),
        content_type: message.content_type().to_owned(),
        headers: message.headers().clone(),
        correlation_id: message.correlation_id().map(str::to_owned),
        aggregate_type: message.aggregate_type().map(str::to_owned),
        aggregate_id: message.aggregate_id().map(str::to_owned),
        tenant_id: message.tenant_id().map(str::to_owned),
        priority: message.priority(),
        attempts: 0,
        lease_losses: 0,
        failing_since: None,
        handled: Vec::new(),
        occurred_at: message.occurred_at().unwrap_or(now),
        created_at: now,
        due_at: at(message.due()).max(now),
        expires_at: message.expires().map(at),
    };
    let mut row = Row {
        record: Record {
            message: stored,
            state: State::Ready,
            parked: false,
            leased_until: None,
            worker: None,
            done_at: None,
            done_by: None,
            error_class: None,
            last_error: None,
        },
        dedup: message.dedup().copied(),
        history: Vec::new(),
    };
    if let Birth::Leased { worker, lease } = birth.for_message(message) {
        row.lease(worker, now + lease);
    }
    Ok(row)
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        let now = self.clock.now();
        let mut queue = self.lock();
        let mut placed = Vec::new();
        let enqueued = queue.place(messages, &mut placed, now, Birth::Ready)?;
        queue.rows.extend(placed.into_iter().map(|row| (row.seq(), row)));
        Ok(enqueued)
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        request.check()?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let (heads, paused) = (queue.heads(), queue.paused()?);
        let mut claimable: Vec<&Row> = queue
            .rows
            .values()
            .filter(|row| row.is_due(now) && !row.is_expired(now))
            .filter(|row| request.get_topics().contains(row.record.message.topic.as_str()))
            .filter(|row| !paused.contains(row.record.message.topic.as_str()))
            .filter(|row| row.key().is_none_or(|key| heads.get(key) == Some(&row.seq())))
            .collect();
        claimable.sort_by_key(|row| (row.record.message.priority, row.record.message.due_at, row.seq()));
        let (clean, suspects): (Vec<&Row>, Vec<&Row>) =
            claimable.into_iter().partition(|row| row.record.message.lease_losses == 0);
        let overdue = suspects.first().filter(|row| row.record.message.due_at + request.get_lease() < now);
        let chosen: Vec<i64> = match overdue {
            Some(suspect) => vec![suspect.seq()],
            None if clean.is_empty() => suspects.iter().take(1).map(|row| row.seq()).collect(),
            None => clean.iter().take(request.get_limit() as usize).map(|row| row.seq()).collect(),
        };
        let mut claimed = Vec::with_capacity(chosen.len());
        for seq in chosen {
            if let Some(row) = queue.rows.get_mut(&seq) {
                row.lease(request.get_worker(), now + request.get_lease());
                claimed.push(row.record.message.clone());
            }
        }
        Ok(claimed)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let (distinct, index) = distinct("settlements", settlements, |settlement| settlement.lease)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let mut settled = Vec::with_capacity(distinct.len());
        let (mut ended, mut deferred) = (Vec::new(), Vec::new());
        for Settlement { lease, outcome, handled } in distinct {
            let seq = lease.item.get();
            settled.push(match queue.rows.get_mut(&seq) {
                None => Settled::Gone,
                Some(row) if row.record.message.epoch != lease.epoch => Settled::Lost,
                Some(row) if row.record.state == State::Leased => {
                    row.settle(now, outcome);
                    if let Some(handled) = handled {
                        row.record.message.handled.clone_from(handled);
                    }
                    let id = row.record.message.id;
                    match row.record.state {
                        State::Done => ended.push((id, StepEnd::Completed)),
                        State::Dead => ended.push((id, StepEnd::Failed)),
                        _ if matches!(outcome, Outcome::Defer { .. }) => deferred.push((seq, id)),
                        _ => {}
                    }
                    if row.record.state == State::Done && !self.keep_done {
                        queue.rows.remove(&seq);
                    }
                    Settled::Applied
                }
                Some(row) if row.record.state == State::Done && *outcome == Outcome::Ack => Settled::Applied,
                Some(_) => Settled::Lost,
            });
        }
        let joins = queue.count(&ended, now);
        for (seq, id) in deferred {
            if queue.joins.waits_for_nothing(id)
                && let Some(row) = queue.rows.get_mut(&seq)
            {
                row.record.message.due_at = now;
            }
        }
        Ok(SettledBatch { settled: index.expand(&settled), joins })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        check_lease(lease)?;
        let (distinct, index) = distinct("leases", leases, |lease| *lease)?;
        let until = self.clock.now() + lease;
        let mut queue = self.lock();
        let mut settled = Vec::with_capacity(distinct.len());
        for lease in distinct {
            settled.push(match queue.rows.get_mut(&lease.item.get()) {
                None => Settled::Gone,
                Some(row) if row.record.state == State::Leased && row.record.message.epoch == lease.epoch => {
                    row.record.leased_until = Some(until);
                    Settled::Applied
                }
                Some(_) => Settled::Lost,
            });
        }
        Ok(index.expand(&settled))
    }

    async fn reap(&self, limit: u32) -> Result<Reaped> {
        check_batch("limit", limit, MAX_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let mut lost: Vec<(SystemTime, i64)> = queue
            .rows
            .values()
            .filter(|row| row.record.state == State::Leased)
            .filter_map(|row| {
                row.record.leased_until.filter(|until| *until < now).map(|until| (until, row.seq()))
            })
            .collect();
        lost.sort_unstable();
        let mut reaped = Reaped::default();
        let mut dead = Vec::new();
        for (_, seq) in lost.into_iter().take(limit as usize) {
            let Some(row) = queue.rows.get_mut(&seq) else { continue };
            row.record.message.lease_losses += 1;
            if row.record.message.lease_losses >= MAX_LEASE_LOSSES {
                row.die(now, &Failure::new(FailureClass::CrashSuspect, FailureClass::CrashSuspect));
                reaped.dead += 1;
                dead.push((row.record.message.id, StepEnd::Failed));
            } else {
                row.unlease(State::Ready);
                row.record.message.due_at = now;
                reaped.ready += 1;
            }
        }
        reaped.joins = queue.count(&dead, now);
        Ok(reaped)
    }

    async fn expire(&self, limit: u32) -> Result<Expired> {
        check_batch("limit", limit, MAX_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let mut joins = queue.joins.expire(None, limit as usize, now);
        queue.over(&joins, now);
        let expired =
            queue.rows.values_mut().filter(|row| row.record.state == State::Ready && row.is_expired(now));
        let mut dead = Vec::new();
        for row in expired.take(limit as usize) {
            row.die(now, &Failure::new(FailureClass::Expired, FailureClass::Expired));
            dead.push((row.record.message.id, StepEnd::Failed));
        }
        joins.extend(queue.count(&dead, now));
        Ok(Expired { messages: dead.len() as u64, joins })
    }

    async fn park(&self, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let keys = queue.parked_keys();
        let mut count = 0;
        for (seq, row) in &mut queue.rows {
            let behind = row.key().and_then(|key| keys.get(key)).is_some_and(|dead| dead < seq);
            if behind && row.is_due(now) && count < u64::from(limit) {
                row.record.parked = true;
                count += 1;
            }
        }
        Ok(count)
    }

    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let waits = |row: &Row| {
            let Record { state, parked, error_class, message, .. } = &row.record;
            *state == State::Ready
                && !parked
                && *error_class == Some(FailureClass::Infrastructure)
                && message.due_at > now
                && topics.contains(message.topic.as_str())
        };
        let waiting = queue.rows.iter().filter(|(_, row)| waits(row));
        let mut waiting: Vec<_> =
            waiting.map(|(seq, row)| (row.record.message.failing_since, *seq)).collect();
        waiting.sort_unstable();
        waiting.truncate(limit as usize);
        for (_, seq) in &waiting {
            if let Some(row) = queue.rows.get_mut(seq) {
                row.record.message.due_at = now;
            }
        }
        Ok(waiting.len() as u64)
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_PRUNE_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let over = |row: &Row| {
            let keep = match row.record.state {
                State::Done => Some(retention.get_done()),
                State::Dead => retention.get_dead(),
                _ => None,
            };
            keep.zip(row.record.done_at).is_some_and(|(keep, done_at)| done_at + keep < now)
        };
        let mut seqs: Vec<(i16, SystemTime, i64)> = queue
            .rows
            .values()
            .filter(|row| over(row) && !queue.joins.needs(row.record.message.id))
            .map(|row| (row.record.state.code(), row.record.done_at.unwrap_or(now), row.seq()))
            .collect();
        seqs.sort_unstable();
        seqs.truncate(limit as usize);
        for (_, _, seq) in &seqs {
            let Some(row) = queue.rows.remove(seq) else { continue };
            if row.record.state == State::Dead {
                queue.unpark_behind(*seq, row.key(), now);
            }
            if retention.is_archive() {
                queue.archive.push(row.record);
            }
        }
        Ok(seqs.len() as u64)
    }

    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        let now = self.clock.now();
        let mut queue = self.lock();
        // A last turn that is yet to come was taken before the clock was put back.
        let last = queue.turns.get(job).copied().filter(|last| *last <= now + Duration::from_secs(60));
        let (mine, at) = match turn {
            Turn::Every(period) => (last.is_none_or(|last| last + period.min(MAX_DELAY) <= now), now),
            Turn::At(time) => (time <= now && last.is_none_or(|last| last < time), time),
        };
        if mine {
            queue.turns.insert(job.to_owned(), at);
        }
        Ok(mine)
    }

    async fn look(&self, join: JoinId) -> Result<Look> {
        let now = self.clock.now();
        let mut queue = self.lock();
        let ended = queue.joins.expire(Some(join), 1, now);
        queue.over(&ended, now);
        Ok(ended.first().map_or_else(|| queue.joins.look(join, now), |join| Look::Expired(*join)))
    }

    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        let now = self.clock.now();
        let mut queue = self.lock();
        let mut placed = Vec::new();
        if !queue.joins.continued(join, wait) {
            return Ok(false);
        }
        queue.place(continuation.map_or(&[], std::slice::from_ref), &mut placed, now, Birth::Ready)?;
        queue.rows.extend(placed.into_iter().map(|row| (row.seq(), row)));
        Ok(true)
    }

    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        check_batch("limit", limit, MAX_PRUNE_BATCH)?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let states = states_of(queue.rows.values());
        let open = |id: MessageId| matches!(states.get(&id), Some(State::Ready | State::Leased));
        let over = queue.joins.all().filter(|entry| entry.join.status != JoinStatus::Pending);
        let mut over: Vec<(Option<SystemTime>, JoinId)> = over
            .filter(|entry| entry.join.ended_at.is_some_and(|at| at + keep.min(MAX_DELAY) < now))
            .filter(|entry| !entry.waits.keys().any(|wait| open(*wait)))
            .map(|entry| (entry.join.ended_at, entry.join.id))
            .collect();
        over.sort_unstable();
        over.truncate(limit as usize);
        for (_, id) in &over {
            queue.joins.remove(*id);
        }
        Ok(over.len() as u64)
    }

    async fn paused(&self) -> Result<Topics> {
        self.lock().paused()
    }

    async fn identity(&self) -> Result<Option<String>> {
        Ok(Some(format!("memory {:p}", Arc::as_ptr(&self.queue))))
    }

    fn name(&self) -> String {
        "memory".to_owned()
    }
}

impl TransactionalStore for MemoryStore {
    type Connection = MemoryTransaction;

    async fn insert(
        &self,
        transaction: &mut MemoryTransaction,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        self.lock().place(messages, &mut transaction.pending, self.clock.now(), birth)
    }

    async fn survivors(&self, transaction: &mut MemoryTransaction, leases: &[Lease]) -> Result<Vec<bool>> {
        let pending =
            |lease: &Lease| transaction.pending.iter().any(|row| row.record.message.lease() == *lease);
        Ok(leases.iter().map(pending).collect())
    }
}

impl Transactions for MemoryStore {
    type Transaction = Box<MemoryTransaction>;

    async fn begin(&self) -> Result<Box<MemoryTransaction>> {
        Ok(Box::new(MemoryStore::begin(self)))
    }

    async fn commit(&self, transaction: Box<MemoryTransaction>) -> Result<()> {
        MemoryTransaction::commit(*transaction);
        Ok(())
    }

    async fn rollback(&self, transaction: Box<MemoryTransaction>) -> Result<()> {
        drop(transaction);
        Ok(())
    }
}
