//! What operators need: statistics, lists, one message with its history, and the verbs that only a person decides.
//!
//! Nothing here may scan the queue: inspecting a system in trouble must not make it worse.

use std::fmt;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::id::{MessageId, WorkItemId, WorkerId};
use crate::join::{Join, JoinId, JoinStatus, Step};
use crate::message::{MAX_NAME_BYTES, Message};
use crate::outcome::{FailureClass, State};
use crate::store::{MAX_BATCH, Store, check_batch};
use crate::text;
use crate::topic::{Topic, Topics};
use crate::words::moment;

/// Up to how many rows statistics count exactly, per state.
pub const STATS_CAP: u32 = 10_000;
/// The most records of one page.
pub const MAX_PAGE: u32 = 200;

/// A number of messages: exact up to [`STATS_CAP`], beyond that "at least so many" or an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Count {
    /// The number.
    pub value: u64,
    /// Whether it is exact.
    pub exact: bool,
}

impl Count {
    /// The count of a query that stopped at one more than the cap.
    pub fn capped(value: u64) -> Self {
        Self { value, exact: value <= u64::from(STATS_CAP) }
    }
}

/// How many messages of one topic are in one state.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TopicCount {
    /// The topic.
    pub topic: String,
    /// The state.
    pub state: State,
    /// How many: of the first [`STATS_CAP`] in that state.
    pub count: Count,
}

/// How the queue is.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Stats {
    /// Ready and due: waiting for a worker.
    pub ready: Count,
    /// Ready and due later: scheduled, or waiting for the next attempt.
    pub scheduled: Count,
    /// Of the scheduled ones: messages that wait for the end of an outage, or for a route.
    pub failing: Count,
    /// Ready, and set aside behind a dead message of their key.
    pub parked: Count,
    /// Owned by workers.
    pub leased: Count,
    /// Delivered, and still kept.
    pub done: Count,
    /// Given up.
    pub dead: Count,
    /// The same by topic, for every state but done; sorted by topic and state.
    pub topics: Vec<TopicCount>,
    /// How long the oldest one that is ready and due has been due.
    pub oldest_ready: Option<Duration>,
    /// For how long the first of the failing messages has failed without a break.
    pub oldest_failing: Option<Duration>,
}

impl Stats {
    /// How many messages are not over: ready, scheduled, parked and leased.
    pub fn pending(&self) -> Count {
        let counts = [self.ready, self.scheduled, self.parked, self.leased];
        Count {
            value: counts.iter().map(|count| count.value).sum(),
            exact: counts.iter().all(|count| count.exact),
        }
    }
}

/// Which messages; everything that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// In this state.
    pub state: Option<State>,
    /// Of these topics. Default: all.
    pub topics: Topics,
    /// With this ordering key.
    pub key: Option<String>,
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// With this correlation id.
    pub correlation_id: Option<String>,
    /// With this class of failure.
    pub class: Option<FailureClass>,
    /// Enqueued at or after this time.
    pub created_from: Option<SystemTime>,
    /// Enqueued before this time.
    pub created_before: Option<SystemTime>,
    /// With one of these ids; empty means any.
    pub ids: Vec<MessageId>,
}

impl Filter {
    /// Refuses what no message could match.
    pub fn check(&self) -> Result<()> {
        for (field, value) in
            [("key", &self.key), ("tenant id", &self.tenant_id), ("correlation id", &self.correlation_id)]
        {
            if let Some(value) = value {
                text::required(field, value.clone(), MAX_NAME_BYTES)?;
            }
        }
        if self.ids.len() > MAX_BATCH as usize {
            return Err(Error::invalid(
                format!("the filter names {} ids", self.ids.len()),
                format!("name at most {MAX_BATCH}"),
            ));
        }
        Ok(())
    }
}

/// Where the next page begins. Opaque; made by [`StoreAdmin::list`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Cursor(WorkItemId);

impl Cursor {
    /// After this row.
    pub const fn after(item: WorkItemId) -> Self {
        Self(item)
    }

    /// The row that was the last of the page before.
    pub const fn item(self) -> WorkItemId {
        self.0
    }
}

/// A page of records, in the order of enqueueing.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// The records.
    pub records: Vec<Record>,
    /// Where the next page begins, if there is one.
    pub next: Option<Cursor>,
}

/// Which joins; everything that is set must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JoinFilter {
    /// Of this grouping key.
    pub grouping_key: Option<String>,
    /// With this status.
    pub status: Option<JoinStatus>,
    /// With this message as a step.
    pub message: Option<MessageId>,
}

impl JoinFilter {
    /// Refuses what no join could match.
    pub fn check(&self) -> Result<()> {
        match &self.grouping_key {
            Some(key) => text::required("grouping key", key.clone(), MAX_NAME_BYTES).map(drop),
            None => Ok(()),
        }
    }
}

/// A page of joins, in the order of their ids, which is the order of their making.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct JoinListing {
    /// The joins.
    pub joins: Vec<Join>,
    /// After which join the next page begins, if there is one.
    pub next: Option<JoinId>,
}

/// A page of a join's steps, in the order of their messages' ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct StepListing {
    /// The steps.
    pub steps: Vec<Step>,
    /// After which message the next page begins, if there is one.
    pub next: Option<MessageId>,
}

/// Everything that is stored about a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The published message.
    pub message: Message,
    /// Where it is in its life.
    pub state: State,
    /// Whether it is ready, but set aside behind a dead message of its key; its due time means nothing then.
    pub parked: bool,
    /// Until when it is leased.
    pub leased_until: Option<SystemTime>,
    /// The worker that holds the lease.
    pub worker: Option<WorkerId>,
    /// When it became done or dead.
    pub done_at: Option<SystemTime>,
    /// The worker that delivered it.
    pub done_by: Option<WorkerId>,
    /// The class of its last failure.
    pub error_class: Option<FailureClass>,
    /// The text of its last failure.
    pub last_error: Option<String>,
}

/// An operator's change of a message, and the message's state before.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct HistoryEntry {
    /// When.
    pub at: SystemTime,
    /// What: `requeue` or `bury`.
    pub action: String,
    /// Who.
    pub by: String,
    /// Why.
    pub why: String,
    /// How many attempts it had then.
    pub attempts: u32,
    /// How many leases it had lost by then.
    pub lease_losses: u32,
    /// The text of its last failure then.
    pub last_error: Option<String>,
}

/// Topics that workers do not claim until they are resumed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Pause {
    /// Which topics: one, or the beginning of some and a `*`, as in `order.*`.
    pub topics: String,
    /// Who paused them.
    pub by: String,
    /// Why.
    pub why: String,
    /// Since when, by the database's clock.
    pub since: SystemTime,
}

impl Pause {
    /// Refuses a pattern, a name or a reason that is not acceptable. Stores call it before any SQL.
    pub fn check(topics: &str, by: &str, why: &str) -> Result<()> {
        Topics::of([topics])?;
        text::required("who changes it", by.to_owned(), WorkerId::MAX_BYTES)?;
        text::required("the reason", why.to_owned(), 1_000).map(drop)
    }
}

/// A session of the database that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Holder {
    /// Which one, as the database's own tools name it, for people to find it and to end it.
    pub session: String,
    /// Known facts: user, program, activity. Never the text of a statement.
    pub about: String,
    /// Since when its transaction is open.
    pub since: Option<SystemTime>,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.session)?;
        if !self.about.is_empty() {
            write!(f, " ({})", self.about)?;
        }
        match self.since {
            Some(since) => write!(f, ", open since {}", moment(since)),
            None => Ok(()),
        }
    }
}

/// A session that uses an outbox and waits for a lock of another session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// The session that waits, as the database's own tools name it.
    pub waiter: String,
    /// For how long it has waited.
    pub waited: Duration,
    /// The session that holds the lock.
    pub holder: Holder,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// As it should be.
    Fine,
    /// Worth knowing.
    Notice,
    /// Not dangerous yet, but will be.
    Warning,
    /// A promise of posthaste's does not hold.
    Danger,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// The check, in one or two words that stay the same: `durability`, `clock`, `oldest transaction`.
    pub check: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The finding.
    pub found: String,
    /// What to do about it, unless it is fine.
    pub remedy: Option<String>,
}

/// A change that an operator makes to many messages.
///
/// ```
/// use posthaste_core::{Change, Filter, Topics};
///
/// let change = Change::new(Filter { topics: Topics::of(["order.*"])?, ..Filter::default() }, "ada", "broker is back")?
///     .limit(500)
///     .dry_run();
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Change {
    filter: Filter,
    by: String,
    why: String,
    limit: u32,
    dry_run: bool,
}

impl Change {
    /// A change of at most 1,000 messages that match, by this person or program, for this reason.
    pub fn new(filter: Filter, by: impl Into<String>, why: impl Into<String>) -> Result<Self> {
        let by = text::required("who changes it", by.into(), WorkerId::MAX_BYTES)?;
        let why = text::required("the reason", text::cut(&why.into(), 1_000), 1_000)?;
        filter.check()?;
        Ok(Self { filter, by, why, limit: 1_000, dry_run: false })
    }

    /// The most messages to change: 1 to 10,000; those enqueued first before the others. Default: 1,000.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    /// Only tell which would be changed.
    #[must_use]
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Which messages.
    pub fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Who.
    pub fn by(&self) -> &str {
        &self.by
    }

    /// Why.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// The most messages to change.
    pub fn get_limit(&self) -> u32 {
        self.limit
    }

    /// Whether nothing is to be changed.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Refuses what makes no sense. Stores call it before any SQL.
    pub fn check(&self) -> Result<()> {
        check_batch("limit", self.limit, MAX_BATCH)
    }
}

/// A database, as operators see it.
#[async_trait]
pub trait StoreAdmin: Store {
    /// How the queue is.
    ///
    /// # Behavior
    /// - Reads at most [`STATS_CAP`] + 1 index entries per state; a larger count is marked as inexact.
    async fn stats(&self) -> Result<Stats>;

    /// A page of records, in the order of enqueueing.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 200). A record that cannot be decoded is an error.
    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing>;

    /// One message, and what operators did to it, oldest first.
    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>>;

    /// Gives dead messages another chance: dead to ready, due now, with no attempts and no lease losses.
    ///
    /// # Behavior
    /// - Only dead ones that match, whatever state the filter names. An expiry that is past is removed.
    /// - Messages that were parked behind one of them are due again.
    /// - Who and why, and what it was like before, go into the history of each.
    /// - Called twice at once for the same set, each message is requeued by one of the two.
    /// - Answers the ids, in the order of enqueueing; with `dry_run` the ids that would be.
    /// - A failed step of a join is pending again, and its failure is taken back from the join's counters, unless it was
    ///   counted in a join that is over: what was counted there stays.
    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>>;

    /// Gives up messages: ready, or dead and holding its key back, to dead with the class `buried`, which holds no key
    /// back.
    ///
    /// # Behavior
    /// - Leased ones are not touched: they are their worker's.
    /// - They count in their joins as failed, as in [`settle`](Store::settle).
    /// - The rest as for [`requeue`](Self::requeue).
    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>>;

    /// One join, and so its progress.
    async fn join(&self, id: JoinId) -> Result<Option<Join>>;

    /// A page of joins, in the order of their ids.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 200), behind the one named.
    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing>;

    /// A page of a join's steps, in the order of their messages' ids; empty for a join that does not exist.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 200), behind the one named.
    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing>;

    /// Pauses topics: from now on no worker, in any language, claims their messages until they are resumed. Publishing,
    /// schedules, expiry and retention go on.
    ///
    /// # Behavior
    /// - A topic, or the beginning of some and a `*`. Answers false, and changes nothing, if the very same is paused already.
    /// - What is leased stays its worker's. A running outbox gives back what waits in its memory within seconds.
    /// - A paused message of a key is still the first of its key: what comes after it waits, too.
    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool>;

    /// Ends a pause. Answers false if these topics, written the same way, are not paused.
    async fn resume(&self, topics: &str) -> Result<bool>;

    /// Lists the pauses, sorted by topics.
    async fn pauses(&self) -> Result<Vec<Pause>>;

    /// Which session keeps a message's row locked, so that claims skip it; `None` if no session does, or the database
    /// cannot tell.
    ///
    /// # Behavior
    /// - Changes nothing, and waits for a lock for a second at most.
    async fn holder(&self, _id: MessageId) -> Result<Option<Holder>> {
        Ok(None)
    }

    /// Lists the sessions that use this outbox and wait for a lock, each with the session that holds it. By default none.
    ///
    /// # Behavior
    /// - Changes nothing, and answers while claims and settlements wait.
    /// - At most 20; first those whose holder waits for nothing itself.
    async fn lock_waits(&self) -> Result<Vec<LockWait>> {
        Ok(Vec::new())
    }

    /// Checks whether the database is set up so that posthaste's promises hold: durability, version, tables and indexes,
    /// clock, old transactions. By default nothing.
    ///
    /// # Behavior
    /// - Changes nothing, reads no messages, and costs little. A check without the needed right is a [`Severity::Notice`].
    async fn examine(&self) -> Result<Vec<Finding>> {
        Ok(Vec::new())
    }
}

impl Record {
    /// Whether it is dead and holds its key back.
    pub fn holds_key(&self) -> bool {
        self.state == State::Dead
            && self.message.key.is_some()
            && self.message.order != crate::order::OrderPolicy::Skip
            && self.error_class.is_none_or(FailureClass::holds_key)
    }

    /// The topic.
    pub fn topic(&self) -> &Topic {
        &self.message.topic
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_need_a_name_and_a_reason() {
        assert!(Change::new(Filter::default(), "", "because").is_err());
        assert!(Change::new(Filter::default(), "ada", "").is_err());
        let change = Change::new(Filter::default(), "ada", "x".repeat(5_000)).unwrap();
        assert_eq!(change.why().len(), 1_000);
        assert!(change.clone().limit(0).check().is_err() && change.check().is_ok());
        let too_long = Filter { key: Some("k".repeat(256)), ..Filter::default() };
        assert!(Change::new(too_long, "ada", "because").is_err());
    }
}
