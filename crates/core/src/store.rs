//! The seam that every database implements.
//!
//! [`Store`] is what workers need, [`TransactionalStore`] what publishers need, [`StoreAdmin`] what operators need.
//! The contract of each call stands here, once; implementations stay silent unless their database surprises. One
//! suite, in `posthaste-testkit`, decides whether a store keeps it.

pub mod admin;
pub mod inbox;
pub mod join;
pub mod memory;

use std::fmt::Debug;
use std::ops::DerefMut;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::id::{Lease, MessageId, WorkerId};
use crate::join::{EndedJoin, JoinId, Look};
use crate::message::{Enqueued, MAX_DELAY, Message, NewMessage, When};
use crate::outcome::{Settled, Settlement};
use crate::topic::Topics;
pub use admin::StoreAdmin;

/// The most messages of one claim, one settlement, one renewal, or one batch of housekeeping.
pub const MAX_BATCH: u32 = 10_000;
/// The most rows that one call to prune removes.
pub const MAX_PRUNE_BATCH: u32 = 1_000;
/// The default length of a lease.
pub const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// The default limit of a claim.
pub const DEFAULT_CLAIM_LIMIT: u32 = 50;

const MAX_LEASE: Duration = Duration::from_secs(24 * 3600);

/// What to claim, for whom, and for how long.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    worker: WorkerId,
    limit: u32,
    lease: Duration,
    topics: Topics,
}

impl ClaimRequest {
    /// Up to 50 messages of any topic, for 30 seconds.
    pub fn new(worker: WorkerId) -> Self {
        Self { worker, limit: DEFAULT_CLAIM_LIMIT, lease: DEFAULT_LEASE, topics: Topics::all() }
    }

    /// The most messages to take: 1 to 10,000. Default: 50.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// How long the lease lasts: 1 ms to 24 h. Default: 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// The topics that this worker can handle. Default: all.
    #[must_use]
    pub fn topics(mut self, topics: Topics) -> Self {
        self.topics = topics;
        self
    }

    /// The claiming worker.
    pub fn get_worker(&self) -> &WorkerId {
        &self.worker
    }

    /// The most messages to take.
    pub fn get_limit(&self) -> u32 {
        self.limit
    }

    /// How long the lease lasts.
    pub fn get_lease(&self) -> Duration {
        self.lease
    }

    /// The topics that this worker can handle.
    pub fn get_topics(&self) -> &Topics {
        &self.topics
    }

    /// Refuses what makes no sense. Stores call it before any SQL.
    pub fn check(&self) -> Result<()> {
        check_batch("claim limit", self.limit, MAX_BATCH)?;
        check_lease(self.lease)
    }
}

/// Refuses a batch of none, and one so large that it could only be a mistake.
pub fn check_batch(what: &str, size: u32, max: u32) -> Result<()> {
    if (1..=max).contains(&size) {
        return Ok(());
    }
    Err(Error::invalid(format!("{what} is {size}"), format!("give it 1 to {max}")))
}

/// Refuses a lease that is too short to renew, and one that would hide a crash for days.
pub fn check_lease(lease: Duration) -> Result<()> {
    if (Duration::from_millis(1)..=MAX_LEASE).contains(&lease) {
        return Ok(());
    }
    Err(Error::invalid(
        format!("lease is {lease:?}"),
        "give it 1 ms to 24 h; 10 s to 300 s suit most handlers",
    ))
}

/// The state in which messages are stored.
#[derive(Clone, Copy, Debug)]
pub enum Birth<'a> {
    /// Ready, to be found by a claim.
    Ready,
    /// Leased to this worker, which delivers them from memory after the commit. Messages with a key, a due time or an
    /// expiry are stored ready all the same: only a claim can tell whether it is their turn.
    Leased {
        /// The worker.
        worker: &'a WorkerId,
        /// For how long.
        lease: Duration,
    },
}

impl<'a> Birth<'a> {
    /// The state in which this message is stored.
    pub fn for_message(self, message: &NewMessage) -> Birth<'a> {
        if Self::is_at_once(message) { self } else { Birth::Ready }
    }

    /// Whether this message may be stored leased.
    pub(crate) fn is_at_once(message: &NewMessage) -> bool {
        message.key().is_none() && message.due() == When::Now && message.expires().is_none()
    }
}

/// The distinct leases of a batch, in their order, and where each of the batch's answers comes from.
///
/// Of several settlements for one lease the first decides; sending the others to the database would leave the choice
/// to its planner.
pub fn distinct<'a, T>(
    what: &str,
    batch: &'a [T],
    lease: impl Fn(&T) -> Lease,
) -> Result<(Vec<&'a T>, Answers)> {
    if batch.len() > MAX_BATCH as usize {
        return Err(Error::invalid(
            format!("{} {what} in one batch", batch.len()),
            format!("give at most {MAX_BATCH}"),
        ));
    }
    let mut order: Vec<(Lease, usize)> = batch.iter().map(lease).zip(0..).collect();
    order.sort_unstable();
    let mut sent: Vec<&T> = Vec::with_capacity(batch.len());
    let mut places = vec![None; batch.len()];
    let mut last = None;
    for (lease, place) in order {
        if last.replace(lease) != Some(lease) {
            places[place] = Some(sent.len());
            sent.push(&batch[place]);
        }
    }
    Ok((sent, Answers(places)))
}

/// The position of each member of a batch among those that were sent to the database.
#[derive(Debug)]
pub struct Answers(Vec<Option<usize>>);

impl Answers {
    /// One answer per member of the batch: the database's, in order, or lost for one that repeated a lease.
    pub fn expand(&self, sent: &[Settled]) -> Vec<Settled> {
        let answer = |place: &Option<usize>| match place {
            Some(place) => sent.get(*place).copied().unwrap_or(Settled::Gone),
            None => Settled::Lost,
        };
        self.0.iter().map(answer).collect()
    }
}

/// The result of a settlement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettledBatch {
    /// One answer per settlement, in their order.
    pub settled: Vec<Settled>,
    /// The joins that came to their end by it.
    pub joins: Vec<EndedJoin>,
}

/// The result of a reap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// How many messages are ready again.
    pub ready: u64,
    /// How many messages lost one lease too many and are dead.
    pub dead: u64,
    /// The joins that came to their end by it.
    pub joins: Vec<EndedJoin>,
}

/// The result of an expiry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expired {
    /// How many messages are dead.
    pub messages: u64,
    /// The joins that came to their end by it: of these messages, or because their own deadline had passed.
    pub joins: Vec<EndedJoin>,
}

/// How long messages are kept after their end.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::Retention;
///
/// let week = Duration::from_secs(7 * 24 * 3600);
/// let retention = Retention::done(week).dead(4 * week).archive();
/// # let _ = retention;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    done: Duration,
    dead: Option<Duration>,
    archive: bool,
}

impl Retention {
    /// Done messages are kept for this long; dead ones for ever.
    pub const fn done(keep: Duration) -> Self {
        Self { done: keep, dead: None, archive: false }
    }

    /// Dead messages are kept for this long. Pruning one gives it up: it no longer holds its key back.
    #[must_use]
    pub const fn dead(mut self, keep: Duration) -> Self {
        self.dead = Some(keep);
        self
    }

    /// Messages are moved to the archive table instead of being deleted; what operators did to them is kept, too.
    #[must_use]
    pub const fn archive(mut self) -> Self {
        self.archive = true;
        self
    }

    /// How long done messages are kept.
    pub fn get_done(&self) -> Duration {
        self.done.min(MAX_DELAY)
    }

    /// How long dead messages are kept; none is for ever.
    pub fn get_dead(&self) -> Option<Duration> {
        self.dead.map(|keep| keep.min(MAX_DELAY))
    }

    /// Whether messages are archived.
    pub const fn is_archive(&self) -> bool {
        self.archive
    }
}

/// Which turn of a job is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// One that comes this long after the last one.
    Every(Duration),
    /// The one of this time, which the database's clock must have reached.
    At(SystemTime),
}

/// A database, as workers see it.
///
/// # Behavior of every call
///
/// - Every time is the database's own. Durations go in; the database adds them to its clock.
/// - One call is one transaction. A conflict with another transaction is tried again, at most five times; a call
///   that fails changed nothing, unless its kind is [`CommitUnknown`](crate::ErrorKind::CommitUnknown).
/// - The returned futures must be run to their end: a dropped one leaves its connection in an unknown state.
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    /// Checks that the database can be reached and that its tables are the ones this code knows.
    ///
    /// # Behavior
    /// - Tables missing or older: [`SchemaMissing`](crate::ErrorKind::SchemaMissing); newer:
    ///   [`SchemaTooNew`](crate::ErrorKind::SchemaTooNew). Nothing is created or changed.
    async fn check(&self) -> Result<()>;

    /// Stores messages in a transaction of its own and commits it.
    ///
    /// # Behavior
    /// - As [`TransactionalStore::insert`] with [`Birth::Ready`]: all of them, or none.
    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>>;

    /// Takes messages that can start now: ready to leased.
    ///
    /// # Behavior
    /// - At most `limit`, in the order of priority, due time and enqueueing; an empty answer is no error.
    /// - Only what is ready, due, not expired, of one of the topics, and, if it has a key, the first of its key that is
    ///   neither done nor dead (a dead one that holds its key back counts as not over).
    /// - No message is ever returned to two callers at a time.
    /// - Suspects, that is messages which lost a lease, are claimed one at a time and alone, in the same order: after the
    ///   clean ones, but before them once the first of them has been due for longer than the lease that is asked for.
    /// - Each message gets an epoch that no claim of it had before, and never will; it is not zero. Epochs have no order.
    /// - A row that cannot be decoded becomes dead, and stops nothing else.
    /// - Nothing of a topic that is [paused](StoreAdmin::pause).
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>>;

    /// Applies outcomes to leased messages, all in one transaction.
    ///
    /// # Behavior
    /// - Answers one [`Settled`] per settlement, in their order. Only a leased message whose epoch is the lease's
    ///   changes; that its lease has run out does not matter as long as no other worker took the message over.
    /// - An ack of a message that is done with the same epoch is [`Settled::Applied`].
    /// - A message that another session of the database keeps locked for seconds is [`Settled::Locked`], or the whole call fails as
    ///   [`Busy`](crate::ErrorKind::Busy) if the database cannot pass it; with the former, the others are settled.
    /// - Ack: done, or no longer there if the store does not keep what is done. Abandon: ready after the delay with one
    ///   attempt more (none more for classes that cost none), or dead if that reaches `max_attempts`. Defer: ready
    ///   after the delay. Release: ready at once. Fail: dead. Abandon and fail record their failure.
    /// - An abandon that costs no attempt notes since when such failures have gone on without a break, and the message is
    ///   dead once that is `max_age` ago; an abandon that costs one, and a requeue, break it.
    /// - The lines about receivers, if given, replace the stored ones with every outcome.
    /// - At most [`MAX_BATCH`] settlements; of several for one lease, the first decides and the others are lost.
    /// - A message that is done or dead by it counts, in the same transaction, in every join that it is a pending step of:
    ///   as completed, or as failed. A join that is complete by it ends, is told, and makes the messages that wait for it due.
    /// - A message that waits for a join, and is deferred when the join is over already, is due at once.
    /// - Counting cannot fail, and costs nothing for messages that are in no join.
    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch>;

    /// Lets leases last this long from now, all in one statement.
    ///
    /// # Behavior
    /// - Answers one [`Settled`] per lease, in their order; a lost one is not renewed.
    /// - A lease that has run out is renewed if no other worker took the message over.
    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>>;

    /// Takes messages back whose lease has run out: leased to ready, or to dead at the fifth loss.
    ///
    /// # Behavior
    /// - One conditional change: a message that is renewed or settled in the same moment is either reaped or not, never
    ///   both. Attempts are unchanged, lease losses grow by one.
    /// - At most `limit`, the ones that ran out first before the others.
    /// - What is dead by it counts in its joins, as in [`settle`](Self::settle).
    async fn reap(&self, limit: u32) -> Result<Reaped>;

    /// Gives up messages that no worker claimed before their expiry, ready to dead, and joins whose deadline has
    /// passed, pending to expired.
    ///
    /// # Behavior
    /// - At most `limit` of each. The messages' class is `expired`, and they do not hold their key back.
    /// - Deadlines first; then the messages count in their joins, as in [`settle`](Self::settle).
    async fn expire(&self, limit: u32) -> Result<Expired>;

    /// Sets aside the due messages of keys that a dead message with the policy `park` holds back.
    ///
    /// # Behavior
    /// - At most `limit`. They stay ready, but are due only when the dead one is requeued, buried or pruned.
    async fn park(&self, limit: u32) -> Result<u64>;

    /// Makes messages due now that wait for the end of an outage.
    ///
    /// # Behavior
    /// - At most `limit` messages of these topics that are ready, due later, not parked, and whose last failure was of the class
    ///   infrastructure; the ones that have failed for longest before the others.
    /// - Nothing else of them changes: neither their attempts, nor since when they fail, nor their place in their key.
    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64>;

    /// Removes, or archives, messages whose retention is over.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 1,000); a caller repeats it until it answers less than that.
    /// - Never a ready or leased one, nor one that is a step of a pending join.
    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64>;

    /// Checks a join, for a message that waits for it.
    ///
    /// # Behavior
    /// - A pending join whose deadline has passed expires by it, as in [`expire`](Self::expire).
    async fn look(&self, join: JoinId) -> Result<Look>;

    /// Stores the continuation that a waiting message sends, in a transaction of its own, and answers true; unless that
    /// message has sent one before: then nothing is stored.
    ///
    /// # Behavior
    /// - That it was sent is remembered with the join, not by the continuation's row, which may be gone by then.
    /// - Without a continuation it only remembers. For a join that is not there nothing is stored.
    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool>;

    /// Removes joins that have been over for longer than this, with their steps and waits.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 1,000) joins; a caller repeats it until it answers less than that.
    /// - Never a pending one, nor one that a message still waits for.
    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64>;

    /// Whether it is the caller's turn to do this job: yes for one caller per turn, however many ask.
    ///
    /// # Behavior
    /// - The answer is yes if the job never had a turn, or its last turn is before the one that is asked for; the turn is
    ///   then taken. See [`Turn`].
    /// - A last turn more than a minute in the future does not count: the database's clock was put back.
    async fn turn(&self, job: &str, turn: Turn) -> Result<bool>;

    /// Lists the topics that are paused now, for workers with messages that they did not claim. By default none.
    async fn paused(&self) -> Result<Topics> {
        Ok(Topics::none())
    }

    /// Where the messages are, for people to read in logs; without any secret.
    fn name(&self) -> String {
        "store".to_owned()
    }

    /// A stable identity of the queue, or `None` if the database has none.
    ///
    /// # Behavior
    /// - Two queues never have the same identity at a time. One queue may change its own, when its server starts again.
    async fn identity(&self) -> Result<Option<String>> {
        Ok(None)
    }

    /// Closes unused connections; the next call opens one again. By default does nothing.
    async fn rest(&self) {}

    /// Tells other processes that there may be something to claim; a hint, which may get lost. By default nothing.
    async fn nudge(&self) -> Result<()> {
        Ok(())
    }

    /// Resolves when there may be something to claim. By default never: polling is the guarantee, this the hint.
    async fn wakeup(&self) {
        std::future::pending::<()>().await;
    }
}

/// A database whose transactions publishing can join.
pub trait TransactionalStore: Store {
    /// A connection of the user's, in the transaction that is open on it.
    type Connection: Send + 'static;

    /// Stores messages through the user's own connection.
    ///
    /// # Behavior
    /// - Never begins, commits, rolls back, retries, runs DDL or notifies: what the user does with the
    ///   transaction, or savepoint, decides about the messages. Outside of a transaction each call is one of its own,
    ///   unless its batch is too large for one statement.
    /// - One round trip for a batch without duplicates; a long batch may take one more, to prepare its statement.
    /// - A message whose id or dedup key is stored already is not stored again; the answer names the stored one, and
    ///   the user's transaction goes on.
    /// - `due_at` is the later of the database's now and the message's own due time.
    /// - Any error of the database is returned as it came; whether the transaction can go on is the database's rule.
    fn insert(
        &self,
        connection: &mut Self::Connection,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> impl Future<Output = Result<Vec<Enqueued>>> + Send;

    /// Which of these messages, stored leased through the same connection, are still there.
    ///
    /// # Behavior
    /// - Sees what the connection's own transaction sees: a row that went with a savepoint is not there.
    /// - In a transaction that can no longer commit it is an error, for no leases at all, too, where the database would take
    ///   COMMIT for a rollback without a word; elsewhere nothing is there.
    fn survivors(
        &self,
        connection: &mut Self::Connection,
        leases: &[Lease],
    ) -> impl Future<Output = Result<Vec<bool>>> + Send;
}

/// A database that can open transactions for its user, too.
pub trait Transactions: TransactionalStore {
    /// An open transaction. Dropped without a commit, it is rolled back.
    type Transaction: DerefMut<Target = Self::Connection> + Send;

    /// Opens a transaction, on a connection with the settings that a user would expect.
    fn begin(&self) -> impl Future<Output = Result<Self::Transaction>> + Send;

    /// Commits a transaction that has not failed. If the user has used the connection, ask for
    /// [survivors](TransactionalStore::survivors) before. An error of the kind
    /// [`CommitUnknown`](crate::ErrorKind::CommitUnknown) leaves open whether it took place; after any other nothing was
    /// committed.
    fn commit(&self, transaction: Self::Transaction) -> impl Future<Output = Result<()>> + Send;

    /// Rolls back.
    fn rollback(&self, transaction: Self::Transaction) -> impl Future<Output = Result<()>> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_requests_are_refused() {
        let request = ClaimRequest::new(WorkerId::new("w").unwrap());
        assert!(request.check().is_ok());
        for (bad, says) in [
            (request.clone().limit(0), "claim limit is 0; give it 1 to 10000"),
            (request.clone().limit(10_001), "claim limit is 10001"),
            (request.clone().lease(Duration::ZERO), "lease is 0ns; give it 1 ms to 24 h"),
            (request.lease(Duration::from_secs(100_000)), "lease is 100000s"),
        ] {
            let error = bad.check().unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
