//! Fan-in: a join counts the ends of the messages that are its steps, and when the last one has come, a continuation is
//! sent.
//!
//! A join is counted by the database in the very transaction that ends a step; nothing here counts anything. The words of
//! the protocol: join, step, continuation.

pub(crate) mod wait;

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

pub use self::wait::JoinWait;
use crate::error::{Error, ErrorKind, Result};
use crate::event::IntoMessage;
use crate::id::MessageId;
use crate::message::{Enqueued, MAX_NAME_BYTES, NewMessage, When};
use crate::text;

/// The most bytes of a join's metadata.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;
/// The topic of messages that wait for a join, unless the outbox is told otherwise.
pub const DEFAULT_WAIT_TOPIC: &str = "join.wait";

/// The identity of a join, made before any SQL: a UUID of version 7.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct JoinId(Uuid);

impl JoinId {
    /// A new id, greater than every id made before in this process.
    #[allow(clippy::new_without_default, reason = "a default that differs every time would surprise")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id with this value.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Its value.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// Its sixteen bytes, in network order.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl From<Uuid> for JoinId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for JoinId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Uuid::parse_str(text).map(Self).map_err(|source| {
            Error::invalid("join id is not a UUID", "give it like 0198c7a1-…").with_source(source)
        })
    }
}

impl fmt::Display for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for JoinId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where a join is in its life. Whatever is not pending is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum JoinStatus {
    /// Steps are missing.
    Pending = 0,
    /// All steps were done.
    Completed = 1,
    /// All steps have come to their end, and at least one of them failed.
    Failed = 2,
    /// Somebody cancelled it.
    Cancelled = 3,
    /// Its deadline passed before all steps had come to their end.
    Expired = 4,
}

impl JoinStatus {
    /// Every status.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Completed, Self::Failed, Self::Cancelled, Self::Expired];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown join status in the database").with_context("code", code)
        })
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for JoinStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What is known of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum StepStatus {
    /// It has not come to its end.
    Pending = 0,
    /// It was done, and counted.
    Completed = 1,
    /// It failed for good, and was counted.
    Failed = 2,
    /// It was done after the join had been cancelled or had expired: recorded, but not counted.
    LateCompleted = 3,
    /// It failed for good after the join had been cancelled or had expired: recorded, but not counted.
    LateFailed = 4,
}

impl StepStatus {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Completed, Self::Failed, Self::LateCompleted, Self::LateFailed];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown step status in the database").with_context("code", code)
        })
    }
}

impl fmt::Display for StepStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::LateCompleted => "late completed",
            Self::LateFailed => "late failed",
        })
    }
}

/// How a step came to its end, when that is reported by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// It is done.
    Completed,
    /// It failed for good.
    Failed,
}

impl StepEnd {
    /// The status of a step that is counted so.
    pub const fn status(self) -> StepStatus {
        match self {
            Self::Completed => StepStatus::Completed,
            Self::Failed => StepStatus::Failed,
        }
    }
}

/// A join that has not been started yet, as a store gets it: checked, and with its id already made.
///
/// [`expecting`](Self::expecting) and [`of`](Self::of) begin one; see [`JoinBuilder`].
#[derive(Clone, PartialEq, Eq)]
pub struct NewJoin {
    id: JoinId,
    grouping_key: Option<String>,
    expected_steps: u32,
    metadata: Option<String>,
    expires: Option<When>,
}

impl NewJoin {
    /// A join of so many steps, some or all of which are attached later.
    pub fn expecting(steps: u32) -> JoinBuilder {
        JoinBuilder::new(Some(steps))
    }

    /// A join of these steps; more can be added by [`step`](JoinBuilder::step).
    pub fn of<M: IntoMessage>(steps: impl IntoIterator<Item = M>) -> JoinBuilder {
        JoinBuilder::new(None).steps(steps)
    }

    /// Its identity.
    pub fn id(&self) -> JoinId {
        self.id
    }

    /// What it belongs to.
    pub fn grouping_key(&self) -> Option<&str> {
        self.grouping_key.as_deref()
    }

    /// How many steps have to come to their end.
    pub fn expected_steps(&self) -> u32 {
        self.expected_steps
    }

    /// What its owner wants to remember about it.
    pub fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    /// After when it is given up.
    pub fn expires(&self) -> Option<When> {
        self.expires
    }
}

impl fmt::Debug for NewJoin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the grouping key and the metadata: they are the user's.
        f.debug_struct("NewJoin")
            .field("id", &self.id)
            .field("expected_steps", &self.expected_steps)
            .finish_non_exhaustive()
    }
}

/// Gathers a join, its steps, and what waits for it; [`Outbox::start_join`](crate::Outbox::start_join) stores all of it in
/// one transaction.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use posthaste_core::{JoinWait, MemoryStore, NewJoin, NewMessage, Outbox};
///
/// let store = MemoryStore::new();
/// let outbox = Outbox::builder(store.clone()).build().await?;
/// let mut tx = store.begin();
/// let join = outbox.start_join(&mut tx, NewJoin::of(["customers", "orders", "products"].map(|what| {
///         NewMessage::bytes(format!("extract.{what}"), "")
///     }))
///     .grouping_key("customer-12")
///     .wait(JoinWait::on_complete(NewMessage::bytes("etl.transform", "customer-12"))
///         .on_fail(NewMessage::bytes("etl.extract.failed", "customer-12")))
/// ).await?;
/// tx.commit();
/// assert_eq!(join.steps.len(), 3);
/// # Ok(()) }
/// ```
#[must_use = "a builder does nothing until the join is started"]
pub struct JoinBuilder {
    id: JoinId,
    /// Whether somebody else may have started it, under this id, before.
    known: bool,
    expected: Option<u32>,
    grouping_key: Option<String>,
    metadata: Option<String>,
    expires: Option<When>,
    steps: Vec<Result<NewMessage>>,
    waits: Vec<JoinWait>,
}

impl fmt::Debug for JoinBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the grouping key and the metadata: they are the user's.
        f.debug_struct("JoinBuilder")
            .field("id", &self.id)
            .field("expected", &self.expected)
            .field("steps", &self.steps)
            .field("waits", &self.waits)
            .finish_non_exhaustive()
    }
}

/// A join, taken apart for being started.
pub(crate) struct Parts {
    pub(crate) steps: Vec<NewMessage>,
    pub(crate) waits: Vec<JoinWait>,
    pub(crate) join: NewJoin,
    /// Whether its steps are all that it expects.
    pub(crate) whole: bool,
    /// Whether it may be stored already.
    pub(crate) known: bool,
}

impl JoinBuilder {
    fn new(expected: Option<u32>) -> Self {
        Self {
            id: JoinId::new(),
            known: false,
            expected,
            grouping_key: None,
            metadata: None,
            expires: None,
            steps: Vec::new(),
            waits: Vec::new(),
        }
    }

    /// Its identity. Default: a new UUID of version 7. Starting a join that is stored already changes nothing: its steps are
    /// not published, nor its waits, again. So a handler that starts one, and may be called twice, derives this from its
    /// message's id.
    pub fn id(mut self, id: impl Into<JoinId>) -> Self {
        (self.id, self.known) = (id.into(), true);
        self
    }

    /// What it belongs to: a customer, a workflow. At most 255 bytes; empty means none.
    pub fn grouping_key(mut self, key: impl Into<String>) -> Self {
        self.grouping_key = Some(key.into());
        self
    }

    /// What you want to remember about it, of any form. At most 64 KiB; empty means none.
    pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
        self.metadata = Some(metadata.into());
        self
    }

    /// A deadline: if steps are missing this long after the database's now, the join has expired, and failure continuations
    /// are sent.
    pub fn expires_after(mut self, delay: Duration) -> Self {
        self.expires = Some(When::After(delay));
        self
    }

    /// A deadline at this time.
    pub fn expires_at(mut self, time: SystemTime) -> Self {
        self.expires = Some(When::At(time.max(SystemTime::UNIX_EPOCH)));
        self
    }

    /// Adds a step: a message that is published with the join, and attached to it.
    pub fn step(mut self, message: impl IntoMessage) -> Self {
        self.steps.push(message.into_message());
        self
    }

    /// Adds steps.
    pub fn steps<M: IntoMessage>(mut self, messages: impl IntoIterator<Item = M>) -> Self {
        self.steps.extend(messages.into_iter().map(IntoMessage::into_message));
        self
    }

    /// Adds what is to happen when the join is over. A join may have any number of these.
    pub fn wait(mut self, wait: JoinWait) -> Self {
        self.waits.push(wait);
        self
    }

    pub(crate) fn parts(self) -> Result<Parts> {
        let steps: Vec<NewMessage> = self.steps.into_iter().collect::<Result<_>>()?;
        let given = u32::try_from(steps.len()).unwrap_or(u32::MAX);
        let expected = self.expected.unwrap_or(given);
        if expected == 0 || i32::try_from(expected).is_err() {
            return Err(Error::invalid(
                format!("the join expects {expected} steps"),
                "give it at least 1, and at most 2147483647",
            ));
        }
        if given > expected {
            return Err(too_many_steps(self.id, expected, given));
        }
        let join = NewJoin {
            id: self.id,
            grouping_key: text::optional("grouping key", self.grouping_key, MAX_NAME_BYTES)?,
            expected_steps: expected,
            metadata: text::optional("metadata", self.metadata, MAX_METADATA_BYTES)?,
            expires: self.expires.map(|when| when.check("the join's expiry")).transpose()?,
        };
        if join.id.as_uuid().is_nil() {
            return Err(Error::invalid("join id is the nil UUID", "leave it out or give one of your own"));
        }
        Ok(Parts { steps, waits: self.waits, join, whole: self.expected.is_none(), known: self.known })
    }

    /// The join alone, without its steps and waits, for calls to a store.
    pub fn build(self) -> Result<NewJoin> {
        self.parts().map(|parts| parts.join)
    }
}

impl Parts {
    /// What a join whose steps are all that it expects really expects: steps that turned out to be one message count once.
    pub(crate) fn expect(&mut self, steps: usize) {
        if self.whole {
            self.join.expected_steps = u32::try_from(steps).unwrap_or(u32::MAX).max(1);
        }
    }
}

/// What was stored by [`Outbox::start_join`](crate::Outbox::start_join).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedJoin {
    /// The join.
    pub id: JoinId,
    /// Whether it was started now. If it was stored before, nothing was changed, and the lists are empty.
    pub new: bool,
    /// What became of the steps that were given with it, in their order.
    pub steps: Vec<Enqueued>,
    /// The messages that wait for it, in the order of their waits.
    pub waits: Vec<MessageId>,
}

/// Everything that is stored about a join.
#[derive(Clone, PartialEq, Eq, serde::Serialize)]
pub struct Join {
    /// Its identity.
    pub id: JoinId,
    /// What it belongs to.
    pub grouping_key: Option<String>,
    /// Where it is in its life.
    pub status: JoinStatus,
    /// How many steps have to come to their end.
    pub expected_steps: u32,
    /// How many messages are attached to it.
    pub attached_steps: u32,
    /// How many of them were done.
    pub completed_steps: u32,
    /// How many of them failed for good.
    pub failed_steps: u32,
    /// What its owner wanted to remember about it.
    pub metadata: Option<String>,
    /// When it was started, by the database's clock.
    pub created_at: SystemTime,
    /// When its counters or its status last changed.
    pub updated_at: SystemTime,
    /// When it ceased to be pending.
    pub ended_at: Option<SystemTime>,
    /// After when it is given up.
    pub expires_at: Option<SystemTime>,
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the grouping key and the metadata: they are the user's.
        f.debug_struct("Join")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("expected_steps", &self.expected_steps)
            .field("attached_steps", &self.attached_steps)
            .field("completed_steps", &self.completed_steps)
            .field("failed_steps", &self.failed_steps)
            .finish_non_exhaustive()
    }
}

/// A message that is a step of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    /// The message.
    pub message: MessageId,
    /// What is known of it.
    pub status: StepStatus,
    /// When it was attached.
    pub created_at: SystemTime,
    /// When its status last changed.
    pub updated_at: SystemTime,
}

/// A join that has come to its end, with what was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJoin {
    /// Its identity.
    pub id: JoinId,
    /// How it ended.
    pub status: JoinStatus,
    /// How many steps had to come to their end.
    pub expected_steps: u32,
    /// How many of them were done.
    pub completed_steps: u32,
    /// How many of them failed for good.
    pub failed_steps: u32,
}

/// What a message that waits for a join finds when it looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is no such join.
    Unknown,
    /// Steps are missing.
    Pending {
        /// How long until its deadline, if it has one.
        expires_in: Option<Duration>,
    },
    /// It has come to its end.
    Over(EndedJoin),
    /// It has come to its end by this look: its deadline had passed.
    Expired(EndedJoin),
}

/// What attaching did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// How many messages became steps by it; the others were steps already.
    pub new: u32,
    /// The join, if it came to its end by it: its last steps had been done or dead before.
    pub ended: Option<EndedJoin>,
}

/// What a report of a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Whether the join's counters moved: not for a step that was counted before, nor for a join that is over.
    pub counted: bool,
    /// The join, if it came to its end by it.
    pub ended: Option<EndedJoin>,
}

/// The error for a join that does not exist.
pub fn unknown_join(id: JoinId) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such join")
        .with_context("join_id", id)
        .with_remedy("start it first, in this transaction or in one that has committed, in the same database")
}

/// The error for a message that cannot become a step because it is not stored.
pub fn unknown_step(join: JoinId, message: MessageId) -> Error {
    Error::new(ErrorKind::NotFound, "the message is not stored, so nobody would ever count it")
        .with_context("join_id", join)
        .with_context("message_id", message)
        .with_remedy("publish it first, and attach it in the same transaction")
}

/// The error for a message that is not a step of the join.
pub fn not_a_step(join: JoinId, message: MessageId) -> Error {
    Error::new(ErrorKind::NotFound, "the message is not a step of the join")
        .with_context("join_id", join)
        .with_context("message_id", message)
        .with_remedy("attach it first")
}

/// The error for steps beyond those that a join expects.
pub fn too_many_steps(join: JoinId, expected: u32, attached: u32) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("these are more steps than the join expects: {attached} instead of {expected}"),
    )
    .with_context("join_id", join)
    .with_remedy("start it with as many as it will have")
}

/// The error for a new step of a join that is over.
pub fn join_is_over(join: JoinId, status: JoinStatus) -> Error {
    Error::new(ErrorKind::Refused, format!("the join is over: {status}"))
        .with_context("join_id", join)
        .with_remedy("start another")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> NewMessage {
        NewMessage::bytes("t", "").build().unwrap()
    }

    #[test]
    fn codes_are_stable_and_reversible() {
        assert_eq!(JoinStatus::ALL.map(JoinStatus::code), [0, 1, 2, 3, 4]);
        assert_eq!(StepStatus::ALL.map(StepStatus::code), [0, 1, 2, 3, 4]);
        assert_eq!(JoinStatus::from_code(4).unwrap(), JoinStatus::Expired);
        assert!(JoinStatus::from_code(5).is_err() && StepStatus::from_code(-1).is_err());
    }

    /// JOIN-002: a join of no steps is refused before any SQL.
    #[test]
    fn a_join_expects_at_least_one_step() {
        let error = NewJoin::expecting(0).build().unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid input: the join expects 0 steps; give it at least 1, and at most 2147483647"
        );
        assert!(NewJoin::of(Vec::<NewMessage>::new()).build().is_err());
        assert!(NewJoin::expecting(u32::MAX).build().is_err());
        assert_eq!(NewJoin::of([step(), step()]).build().unwrap().expected_steps(), 2);
        assert_eq!(
            NewJoin::expecting(1).steps([step(), step()]).build().unwrap_err().kind(),
            ErrorKind::Refused
        );
    }

    /// JOIN-003, JOIN-004: an empty grouping key is none, a long one is refused.
    #[test]
    fn grouping_keys_have_a_limit() {
        let join = |key: &str| NewJoin::expecting(1).grouping_key(key).build();
        assert_eq!(join("").unwrap().grouping_key(), None);
        assert_eq!(join(&"k".repeat(255)).unwrap().grouping_key().map(str::len), Some(255));
        assert_eq!(join(&"k".repeat(256)).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert!(NewJoin::expecting(1).metadata("m".repeat(65_537)).build().is_err());
    }

    #[test]
    fn a_bad_step_is_told_when_the_join_is_built() {
        assert!(NewJoin::of([NewMessage::bytes("", "")]).build().is_err());
        assert!(NewJoin::expecting(1).id(Uuid::nil()).build().is_err());
        assert!(NewJoin::expecting(1).expires_after(Duration::MAX).build().is_err());
    }
}
