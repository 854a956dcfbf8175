//! Gathers a join with its steps and waits, before any SQL. Impossible values do not construct.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::{JoinWait, MAX_METADATA_BYTES, too_many_steps};
use crate::error::{Error, Result};
use crate::event::IntoMessage;
use crate::id::{JoinId, MessageId};
use crate::message::{Enqueued, MAX_NAME_BYTES, NewMessage, When};
use crate::text;

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

    /// Its grouping key.
    pub fn grouping_key(&self) -> Option<&str> {
        self.grouping_key.as_deref()
    }

    /// How many steps have to end.
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
    /// Whether it may have been started before, under this id.
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

    /// Sets the grouping key, for example a customer or a workflow. At most 255 bytes; empty means none.
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

    /// Adds a wait: what to send when the join has ended. A join may have any number of these.
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
        if join.id.is_nil() {
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
    /// The number of steps that such a join really expects: steps that turned out to be one message count once.
    pub(crate) fn expect(&mut self, steps: usize) {
        if self.whole {
            self.join.expected_steps = u32::try_from(steps).unwrap_or(u32::MAX).max(1);
        }
    }
}

/// The result of [`Outbox::start_join`](crate::Outbox::start_join).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn step() -> NewMessage {
        NewMessage::bytes("t", "").build().unwrap()
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
        assert!(NewJoin::expecting(1).id(uuid::Uuid::nil()).build().is_err());
        assert!(NewJoin::expecting(1).expires_after(Duration::MAX).build().is_err());
    }
}
