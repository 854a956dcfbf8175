//! The seam that every broker implements: a batch in, one verdict per message out.
//!
//! A sink reports what the receiver did. It never decides the outcome of a message, never sleeps between tries, and
//! never touches a database. Batches, deadlines and the circuit breaker around it are [`Guarded`]'s.

mod attend;
mod breaker;
mod flight;
mod guarded;
mod log;

use std::fmt;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::time::Instant;

pub(crate) use self::attend::attend;
pub(crate) use self::guarded::Recovery;
pub use self::guarded::{Guarded, SinkOptions};
pub use self::log::{LogSink, NullSink};
use crate::message::Message;
use crate::outcome::{Failure, FailureClass};

/// What became of one message: taken, for good, or why not.
pub type Verdict = Result<(), SinkError>;

/// A destination of messages: a broker, or another receiver.
///
/// ```
/// use posthaste_core::{Batch, Sink, SinkError, Verdict};
///
/// /// Hands messages to a pipe that takes texts only.
/// #[derive(Debug)]
/// struct Pipe;
///
/// #[async_trait::async_trait]
/// impl Sink for Pipe {
///     fn name(&self) -> String {
///         "pipe".to_owned()
///     }
///
///     async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
///         let write = |text: &str| println!("{} bytes", text.len());
///         batch
///             .iter()
///             .map(|message| match std::str::from_utf8(&message.payload) {
///                 Ok(text) => Ok(write(text)),
///                 Err(_) => Err(SinkError::refused("not a text")),
///             })
///             .collect()
///     }
/// }
/// ```
#[async_trait]
pub trait Sink: Debug + Send + Sync + 'static {
    /// Hands messages over and waits until the receiver has answered for each of them.
    ///
    /// # Behavior
    /// - One verdict per message, in their order. A message is `Ok` only if the receiver has said that it keeps it.
    /// - A batch is not a transaction: some may be taken and others not.
    /// - Whether a message was taken may be unknown: a connection cut after the last byte was sent. The verdict is then
    ///   [`SinkError::down`], and the message comes again, under the same id.
    /// - It answers before the batch's [deadline](Batch::deadline). If it does not, its future is dropped, and everything in the
    ///   batch is taken for unknown; answers that arrive later must not be taken for those of another batch.
    /// - Called for several batches at a time, in any order. A message of a key is never in two of them.
    /// - Connects, and connects again, by itself, at the first call that needs it; one try a call.
    /// - Nothing of a message but its id and topic reaches a log or the text of an error.
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict>;

    /// Whether the receiver can be reached and would take messages, without sending one. Asked before messages are sent again
    /// to a sink that was down; by default yes, and the next message tells.
    async fn probe(&self) -> Verdict {
        Ok(())
    }

    /// Where messages go, for people and for the labels of metrics; without any secret. The same in every process.
    fn name(&self) -> String;
}

/// Messages for one call of a sink. It dereferences to them.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    messages: &'a [Arc<Message>],
    deadline: Instant,
}

impl<'a> Batch<'a> {
    /// These messages, to be answered for before this moment.
    pub fn new(messages: &'a [Arc<Message>], deadline: Instant) -> Self {
        Self { messages, deadline }
    }

    /// The messages.
    pub fn messages(&self) -> &'a [Arc<Message>] {
        self.messages
    }

    /// When all answers must be there.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The same verdict for every message.
    pub fn all(&self, verdict: &Verdict) -> Vec<Verdict> {
        vec![verdict.clone(); self.messages.len()]
    }
}

impl Deref for Batch<'_> {
    type Target = [Arc<Message>];

    fn deref(&self) -> &[Arc<Message>] {
        self.messages
    }
}

impl Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// Why a sink did not take a message.
///
/// Texts are stored with the message and logged: they never quote a payload, a header or a secret.
#[derive(Clone, PartialEq, Eq)]
pub struct SinkError {
    failure: Failure,
    is_down: bool,
}

impl SinkError {
    /// The receiver is down, or was lost before it answered: nothing else can be sent, either. The breaker opens; the message
    /// comes again, at no cost.
    pub fn down(why: impl fmt::Display) -> Self {
        Self { failure: Failure::infrastructure(why), is_down: true }
    }

    /// The receiver does not take this message now, and may take others: a full queue. It comes again, at no cost.
    pub fn busy(why: impl fmt::Display) -> Self {
        Failure::infrastructure(why).into()
    }

    /// No queue or stream takes it: a matter of configuration. It comes again after a long delay, at no cost.
    pub fn unroutable(why: impl fmt::Display) -> Self {
        Failure::new(FailureClass::Unroutable, why).into()
    }

    /// The receiver never takes anything as large as this. The message is dead.
    pub fn too_large(why: impl fmt::Display) -> Self {
        Failure::new(FailureClass::TooLarge, why).into()
    }

    /// The receiver will never take this message. It is dead.
    pub fn refused(why: impl fmt::Display) -> Self {
        Failure::permanent(why).into()
    }

    /// Whether nothing else can be sent, either.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// The recorded text.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    /// Its class.
    pub fn class(&self) -> FailureClass {
        self.failure.class()
    }
}

/// A failure of this message alone.
impl From<Failure> for SinkError {
    fn from(failure: Failure) -> Self {
        Self { failure, is_down: false }
    }
}

impl Debug for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkError")
            .field("class", &self.class())
            .field("is_down", &self.is_down)
            .finish_non_exhaustive()
    }
}
