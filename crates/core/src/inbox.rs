//! The inbox: a consumer acts upon each message once, however often it is delivered.
//!
//! The row that remembers a message and the consumer's own changes commit together, or not at all. Nothing here talks to a
//! broker: a broker's consumer hands over a [`Received`] and gets the reply to send.

mod consumer;
mod received;

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tracing::{debug, error, info};

pub use self::consumer::{Consume, ConsumeFn, Consumer, Disposal, Tries};
pub use self::received::Received;
use crate::dispatch::call::unpanicked;
use crate::error::{Error, ErrorKind, Result};
use crate::housekeeping::next_turn;
use crate::schedule::Schedule;
use crate::shutdown::Shutdown;
use crate::store::inbox::{InboxEntry, InboxStore, Once};
use crate::store::{MAX_PRUNE_BATCH, Turn};
use crate::text;

/// The most bytes of a consumer's name.
pub const MAX_CONSUMER_BYTES: usize = 100;

const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);

/// Remembers what one consumer has acted upon. Cloning it is cheap, and all clones are the same inbox.
///
/// ```
/// use posthaste_core::{Inbox, MemoryStore, MessageId, Received};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let store = MemoryStore::new();
/// let inbox = Inbox::new(store.clone(), "inventory")?;
/// let message = Received::new("orders", MessageId::new(), "order.placed", "{}");
///
/// for _ in 0..2 {                                              // delivered twice,
///     let mut tx = store.begin();
///     if inbox.once(&mut tx, &message).await?.is_first() {
///         println!("stock reserved");                          // acted upon once: your own changes, in the same transaction
///     }
///     tx.commit();                                             // both, or neither
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Inbox<S> {
    store: S,
    consumer: Arc<str>,
    keep_for: Duration,
    keep_payload: bool,
    prune: Schedule,
}

impl<S> Inbox<S> {
    /// The inbox of this consumer: 1 to 100 bytes. Another consumer has its own.
    pub fn new(store: S, consumer: impl Into<String>) -> Result<Self> {
        let consumer = text::required("the consumer's name", consumer.into(), MAX_CONSUMER_BYTES)?;
        Ok(Self {
            store,
            consumer: consumer.into(),
            keep_for: WEEK,
            keep_payload: false,
            prune: Schedule::every(Duration::from_secs(300)),
        })
    }

    /// How long it remembers: longer than the broker may take to deliver a message again. Default: 7 days.
    ///
    /// Refused: less than a second.
    pub fn keep_for(mut self, keep: Duration) -> Result<Self> {
        if keep < Duration::from_secs(1) {
            return Err(Error::new(
                ErrorKind::Configuration,
                format!("an inbox that remembers for {keep:?} is none"),
            )
            .with_remedy(
                "give it at least a second, and more than the broker may take to deliver a message again",
            ));
        }
        self.keep_for = keep;
        Ok(self)
    }

    /// Keeps payloads in the inbox, too, for audit. Default: only their hashes.
    #[must_use]
    pub fn keep_payload(mut self, keep: bool) -> Self {
        self.keep_payload = keep;
        self
    }

    /// When it prunes rows older than [`keep_for`](Self::keep_for). Default: every 5 minutes.
    #[must_use]
    pub fn prune(mut self, schedule: Schedule) -> Self {
        self.prune = schedule;
        self
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Whose inbox it is.
    pub fn consumer(&self) -> &str {
        &self.consumer
    }

    /// How long until it is to forget again, and in which turn; none if never.
    pub(crate) fn next_turn(&self) -> Option<(Duration, Turn)> {
        next_turn(&self.prune)
    }

    /// The same over another store.
    pub(crate) fn over<T>(&self, store: T) -> Inbox<T> {
        let Self { consumer, keep_for, keep_payload, prune, .. } = self;
        let (consumer, prune) = (Arc::clone(consumer), prune.clone());
        Inbox { store, consumer, keep_for: *keep_for, keep_payload: *keep_payload, prune }
    }
}

impl<S: InboxStore> Inbox<S> {
    /// Remembers a message in your own transaction, and says whether it is there for the first time. Act only then, in the
    /// same transaction; and if acting fails, roll back, so that the next delivery finds no row.
    ///
    /// [`Once::Altered`] is a defect of the sender: one id for two messages. Do not act, and report it.
    pub async fn once(&self, connection: &mut S::Connection, message: &Received) -> Result<Once> {
        let hash: [u8; 32] = Sha256::digest(&message.payload).into();
        let entry = InboxEntry {
            consumer: &self.consumer,
            source: &message.source,
            message_id: message.id,
            topic: &message.topic,
            payload_hash: &hash,
            payload: self.keep_payload.then_some(&message.payload[..]),
            occurred_at: message.occurred_at,
        };
        message.check()?;
        let once = self.store.remember(connection, &entry).await?;
        if once == Once::Altered {
            error!(
                consumer = &*self.consumer, message_id = %message.id, topic = message.topic, source = message.source,
                "a message id was used again with another payload"
            );
        }
        Ok(once)
    }

    /// Prunes rows older than [`keep_for`](Self::keep_for), now. Returns their number.
    pub async fn forget(&self) -> Result<u64> {
        let mut forgotten = 0;
        loop {
            let batch = self.store.forget(&self.consumer, self.keep_for, MAX_PRUNE_BATCH).await?;
            forgotten += batch;
            if batch < u64::from(MAX_PRUNE_BATCH) {
                return Ok(forgotten);
            }
        }
    }

    /// The same, if it is this process's turn.
    pub(crate) async fn forget_in_turn(&self, turn: Turn) -> Result<u64> {
        let job = format!("inbox {}", self.consumer);
        if self.store.turn(&job, turn).await? { self.forget().await } else { Ok(0) }
    }

    /// Prunes by the schedule, until the shutdown begins. Consumers do this by themselves; call it if you call
    /// [`once`](Self::once) yourself. However many processes there are, one of them prunes at a time.
    pub async fn run(&self, shutdown: impl Into<Shutdown>) {
        let shutdown = shutdown.into();
        loop {
            let Some((wait, turn)) = self.next_turn() else { return shutdown.begun().await };
            tokio::select! {
                biased;
                () = shutdown.begun() => return,
                () = tokio::time::sleep(wait) => {}
            }
            match unpanicked(self.forget_in_turn(turn)).await {
                Ok(0) => debug!(consumer = &*self.consumer, "inbox: nothing to forget"),
                Ok(rows) => info!(consumer = &*self.consumer, rows, "inbox: forgotten"),
                Err(error) => {
                    error!(consumer = &*self.consumer, error = ?error, "the inbox could not be pruned");
                }
            }
        }
    }
}
