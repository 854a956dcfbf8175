//! One delivery of a broker through a consumer's handler: in a transaction with the inbox row, and what to answer the broker.
//!
//! The broker is answered after the commit, never before. Database futures are run to their end, so a handler here has no
//! time-out: it has the database's own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument as _, debug, error, info, info_span, warn};

use super::{Inbox, Received};
use crate::dispatch::call::caught;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Answer, HandlerError, HandlerResult};
use crate::metrics::{self, count_with};
use crate::outcome::Failure;
use crate::redact::redact_received;
use crate::retry::{DEFAULT_MAX_ATTEMPTS, ExponentialBackoff, RetryPolicy, delay_of};
use crate::shutdown::Shutdown;
use crate::store::Transactions;
use crate::store::inbox::{InboxStore, Once};
use crate::trace::TraceContext;

/// How often a transaction that lost a conflict with another one is run again at once.
const CONFLICTS: u32 = 5;

/// What acts upon messages: a type of yours, or an async function.
///
/// Everything it changes through the connection commits together with the inbox row, or not at all. It must not commit or
/// roll back. Effects elsewhere are repeated if the message comes again.
///
/// ```
/// use posthaste_core::{Consume, HandlerResult, MemoryStore, MemoryTransaction, Received};
///
/// struct Stock { shelf: &'static str }
///
/// impl Consume<MemoryStore> for Stock {
///     async fn consume(&self, _tx: &mut MemoryTransaction, order: &Received) -> HandlerResult {
///         println!("{} reserved on shelf {}", order.id, self.shelf);
///         Ok(())                                              // an error would mean: roll back, and again later
///     }
/// }
///
/// async fn reserve(_tx: &mut MemoryTransaction, order: &Received) -> HandlerResult {
///     println!("{} reserved", order.id);
///     Ok(())
/// }
/// # fn takes(_: impl Consume<MemoryStore>) {}
/// # takes(Stock { shelf: "A" });
/// # takes(reserve);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot act upon messages of `{S}`",
    note = "it is an async function of `&mut` the store's connection and `&Received` that returns `HandlerResult`, or a type \
            that implements `Consume`"
)]
pub trait Consume<S: InboxStore>: Send + Sync + 'static {
    /// Acts upon a message, in the transaction that this connection has open.
    fn consume(
        &self,
        connection: &mut S::Connection,
        message: &Received,
    ) -> impl Future<Output = HandlerResult> + Send;
}

/// An async function of a connection and a message, for one lifetime of both.
#[doc(hidden)]
pub trait ConsumeFn<'a, C>: Send + Sync {
    /// Calls it.
    fn call(
        &self,
        connection: &'a mut C,
        message: &'a Received,
    ) -> impl Future<Output = HandlerResult> + Send + 'a;
}

impl<'a, C: 'a, F, Answered> ConsumeFn<'a, C> for F
where
    F: Fn(&'a mut C, &'a Received) -> Answered + Send + Sync,
    Answered: Future<Output = HandlerResult> + Send + 'a,
{
    fn call(
        &self,
        connection: &'a mut C,
        message: &'a Received,
    ) -> impl Future<Output = HandlerResult> + Send + 'a {
        self(connection, message)
    }
}

impl<S: InboxStore, F> Consume<S> for F
where
    S::Connection: 'static,
    F: for<'a> ConsumeFn<'a, S::Connection> + 'static,
{
    async fn consume(&self, connection: &mut S::Connection, message: &Received) -> HandlerResult {
        self.call(connection, message).await
    }
}

/// What to answer the broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposal {
    /// Done, now or before: it need not come again.
    Ack,
    /// Not done, and nothing was changed: again after this delay.
    Again {
        /// How long to wait.
        after: Duration,
        /// Whether it costs one of the message's attempts.
        charged: bool,
    },
    /// It will never succeed, or has used its attempts: to the dead letters.
    Dead(Failure),
}

/// How often a message has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Attempts that were charged.
    pub charged: u32,
    /// Failures without charge since the last attempt that was.
    pub free: u32,
}

impl Tries {
    /// Counts what became of a delivery.
    pub fn count(&mut self, disposal: &Disposal) {
        match disposal {
            Disposal::Again { charged: true, .. } => *self = Self { charged: self.charged + 1, free: 0 },
            Disposal::Again { charged: false, .. } => self.free += 1,
            _ => {}
        }
    }
}

/// A handler behind an inbox, with its retry policy. The crates of brokers run it.
pub struct Consumer<S, H> {
    inbox: Inbox<S>,
    /// The name of the inbox's store.
    store: Arc<str>,
    handler: Arc<H>,
    retry: Arc<dyn RetryPolicy>,
    max_attempts: u32,
}

impl<S: Clone, H> Clone for Consumer<S, H> {
    fn clone(&self) -> Self {
        Self {
            inbox: self.inbox.clone(),
            store: Arc::clone(&self.store),
            handler: Arc::clone(&self.handler),
            retry: Arc::clone(&self.retry),
            max_attempts: self.max_attempts,
        }
    }
}

impl<S, H> fmt::Debug for Consumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("max_attempts", &self.max_attempts).finish_non_exhaustive()
    }
}

impl<S: InboxStore + Transactions, H: Consume<S>> Consumer<S, H> {
    /// This handler behind this inbox: ten attempts, 2 s to 60 s apart.
    pub fn new(inbox: Inbox<S>, handler: H) -> Self {
        Self {
            store: inbox.store().name().into(),
            inbox,
            handler: Arc::new(handler),
            retry: Arc::new(ExponentialBackoff::default()),
            max_attempts: DEFAULT_MAX_ATTEMPTS,
        }
    }

    /// How long to wait before the next attempt.
    #[must_use]
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Arc::new(policy);
        self
    }

    /// How many attempts a message has before it is a dead letter; 0 counts as 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// The inbox.
    pub fn inbox(&self) -> &Inbox<S> {
        &self.inbox
    }

    /// Prunes the inbox by its schedule, until the shutdown begins.
    pub async fn housekeep(&self, shutdown: Shutdown) {
        self.inbox.run(shutdown).await;
    }

    /// Waits until the database is there and has the tables that this code knows. False if the shutdown has begun before.
    ///
    /// An error means that waiting does not help, for example because the tables are missing. Consumers check this first;
    /// otherwise a wrong deployment would look healthy until its first message.
    pub async fn ready(&self, shutdown: &Shutdown) -> Result<bool> {
        loop {
            match self.inbox.store().check().await {
                Ok(()) => return Ok(true),
                Err(error) if error.is_transient() => {
                    warn!(consumer = self.inbox.consumer(), error = ?error, "no database yet");
                }
                Err(error) => return Err(error.during("consume")),
            }
            tokio::select! {
                biased;
                () = shutdown.begun() => return Ok(false),
                () = tokio::time::sleep(Duration::from_secs(1)) => {}
            }
        }
    }

    /// Acts upon a message that has failed so often before, unless it was acted upon already, and says what to answer.
    pub async fn receive(&self, message: &Received, tries: Tries) -> Disposal {
        let context = TraceContext::from_headers(&message.headers)
            .map_or_else(TraceContext::new, |context| context.child());
        let span = info_span!(
            "consume",
            consumer = self.inbox.consumer(),
            message_id = %message.id,
            topic = message.topic,
            attempt = tries.charged.saturating_add(1),
            trace_id = %context.trace_hex(),
            span_id = %context.span_hex(),
        );
        context.scope(self.act(message, tries).instrument(span)).await
    }

    async fn act(&self, message: &Received, tries: Tries) -> Disposal {
        let mut conflicts = 0;
        let acted = loop {
            match self.attempt(message).await {
                // Nothing was changed, and the conflict is over: try again before replying to the broker.
                Err(Unfinished::Store(error)) if is_conflict(&error) && conflicts < CONFLICTS => {
                    conflicts += 1;
                    let pause = Duration::from_millis(5).mul_f64(fastrand::f64() * f64::from(conflicts));
                    tokio::time::sleep(pause).await;
                }
                acted => break acted,
            }
        };
        let topic = message.topic.as_str();
        match acted {
            Ok(Once::First) => {
                info!("acted upon");
                count_with(metrics::CONSUMED, &self.store, "topic", topic, 1);
                Disposal::Ack
            }
            Ok(Once::Repeated) => {
                debug!("acted upon before");
                count_with(metrics::REPEATED, &self.store, "topic", topic, 1);
                Disposal::Ack
            }
            Ok(Once::Altered) => {
                Disposal::Dead(Failure::permanent("the message id was used before with another payload"))
            }
            Err(Unfinished::Store(error)) => self.failed(message, tries, HandlerError::from(error).0),
            Err(Unfinished::Handler(HandlerError(answer))) => self.failed(message, tries, answer),
        }
    }

    /// One transaction: remember, act, commit.
    async fn attempt(&self, message: &Received) -> Result<Once, Unfinished> {
        let store = self.inbox.store();
        let mut transaction = store.begin().await?;
        let once = self.inbox.once(&mut transaction, message).await?;
        if once.is_first() {
            let acting = async { self.handler.consume(&mut transaction, message).await };
            let acted = caught(acting).await.unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic)));
            if let Err(refusal) = acted {
                // What cannot be rolled back is rolled back by the database when the connection is gone.
                if let Err(error) = store.rollback(transaction).await {
                    warn!(error = ?error, "the transaction could not be rolled back");
                }
                return Err(Unfinished::Handler(refusal));
            }
            // Some databases silently treat the COMMIT of a failed transaction as a rollback, so check before.
            store.survivors(&mut transaction, &[]).await?;
        }
        // If the outcome is unknown, the next delivery finds the row, or does not.
        store.commit(transaction).await?;
        Ok(once)
    }

    fn failed(&self, message: &Received, tries: Tries, answer: Answer) -> Disposal {
        let again = |failure: Failure, after: Option<Duration>| {
            let charged = failure.class().costs_attempt();
            let last = charged && tries.charged.saturating_add(1) >= self.max_attempts;
            let attempt = if charged { tries.charged } else { tries.free }.saturating_add(1);
            let delay = after.unwrap_or_else(|| delay_of(&*self.retry, attempt, fastrand::f64()));
            (failure, (!last).then_some((delay, charged)))
        };
        let (failure, delay) = match answer {
            Answer::Defer(after) => {
                debug!(?after, "deferred");
                return Disposal::Again { after, charged: false };
            }
            Answer::Dead(failure) => (failure, None),
            Answer::Retry { failure, after } => again(failure, after),
            Answer::Down { failure, pause } => again(failure, Some(pause)),
        };
        let failure = failure.map_text(|text| redact_received(text, message));
        let class = failure.class();
        metrics::count_failure(metrics::CONSUME_FAILED, &self.store, &message.topic, class);
        match delay {
            Some((after, charged)) => {
                error!(%class, error = failure.text(), again_after = ?after, "a consumer's handler failed");
                Disposal::Again { after, charged }
            }
            None => {
                error!(%class, error = failure.text(), "a consumer's handler failed for good");
                Disposal::Dead(failure)
            }
        }
    }
}

/// Why a transaction did not complete.
enum Unfinished {
    Store(Error),
    Handler(HandlerError),
}

impl From<Error> for Unfinished {
    fn from(error: Error) -> Self {
        Self::Store(error)
    }
}

/// Whether an error is one of a transaction that lost a conflict, or whose commit is unknown.
fn is_conflict(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Conflict | ErrorKind::CommitUnknown)
}
