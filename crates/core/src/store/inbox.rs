//! Store operations for consumers: a row per handled message, in the transaction in which the consumer acts.
//!
//! A store only records. The inbox decides whether a repeated message is skipped, and what a changed one means.

use std::time::{Duration, SystemTime};

use crate::error::Result;
use crate::id::MessageId;
use crate::store::TransactionalStore;

/// A message as the inbox remembers it. It is known by consumer, source and message id together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct InboxEntry<'a> {
    /// The consumer's name: 1 to 100 bytes.
    pub consumer: &'a str,
    /// Where it came from: 1 to 255 bytes.
    pub source: &'a str,
    /// Its id, as its source knows it.
    pub message_id: MessageId,
    /// Its topic, at most 255 bytes.
    pub topic: &'a str,
    /// The SHA-256 of its payload.
    pub payload_hash: &'a [u8; 32],
    /// Its payload, if it is to be kept for audit.
    pub payload: Option<&'a [u8]>,
    /// When it happened, by its publisher's account.
    pub occurred_at: Option<SystemTime>,
}

/// Shows nothing of the content.
impl std::fmt::Debug for InboxEntry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxEntry")
            .field("consumer", &self.consumer)
            .field("message_id", &self.message_id)
            .finish_non_exhaustive()
    }
}

/// The result of recording a message in an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// It was not there; now it is, if the transaction commits. Act.
    First,
    /// It was there: this consumer has acted upon it.
    Repeated,
    /// It was there with another payload: a sender uses one id for two messages. Nothing was changed.
    Altered,
}

impl Once {
    /// Whether to act.
    pub fn is_first(self) -> bool {
        self == Self::First
    }
}

/// An inbox row, for audit.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxRecord {
    /// Its topic.
    pub topic: String,
    /// The SHA-256 of its payload.
    pub payload_hash: [u8; 32],
    /// Its payload, if it was kept.
    pub payload: Option<Vec<u8>>,
    /// When it happened, by its publisher's account.
    pub occurred_at: Option<SystemTime>,
    /// When the consumer acted upon it, by the database's clock.
    pub received_at: SystemTime,
}

impl InboxRecord {
    /// A row with these columns.
    pub fn new(
        topic: String,
        payload_hash: [u8; 32],
        payload: Option<Vec<u8>>,
        occurred_at: Option<SystemTime>,
        received_at: SystemTime,
    ) -> Self {
        Self { topic, payload_hash, payload, occurred_at, received_at }
    }
}

/// Shows nothing of the content.
impl std::fmt::Debug for InboxRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InboxRecord")
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.as_ref().map(Vec::len))
            .field("received_at", &self.received_at)
            .finish_non_exhaustive()
    }
}

/// A database whose transactions can record handled messages.
pub trait InboxStore: TransactionalStore {
    /// Remembers a message through the user's own connection, unless it is there.
    ///
    /// # Behavior
    /// - As [`TransactionalStore::insert`]: never begins, commits, rolls back or retries, and a message that is there does not
    ///   doom the transaction.
    /// - While another transaction that remembers the same message is open, it waits for that one: if it commits, the message
    ///   is there, and if it rolls back, it is not. Databases that cannot wait, or would deadlock, answer with an error of the
    ///   kind [`Conflict`](crate::ErrorKind::Conflict) or [`Busy`](crate::ErrorKind::Busy), never with two times `First`.
    /// - One round trip for a message that is not there, at most two for one that is.
    /// - Names are compared byte by byte. `received_at` is the database's now.
    fn remember(
        &self,
        connection: &mut Self::Connection,
        entry: &InboxEntry<'_>,
    ) -> impl Future<Output = Result<Once>> + Send;

    /// The inbox row of a message, if there is one.
    fn remembered(
        &self,
        consumer: &str,
        source: &str,
        message_id: MessageId,
    ) -> impl Future<Output = Result<Option<InboxRecord>>> + Send;

    /// Forgets what this consumer received longer ago than this.
    ///
    /// # Behavior
    /// - At most `limit` (1 to 1,000) rows; a caller repeats it until it answers less than that.
    /// - Of this consumer alone, by the database's clock.
    fn forget(&self, consumer: &str, keep: Duration, limit: u32) -> impl Future<Output = Result<u64>> + Send;
}
