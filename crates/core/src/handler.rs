//! Handlers, which users write: their arguments and their results.
//!
//! A handler is an async function of up to four values that can be taken out of a delivery. A stored name never selects
//! its types: they are the function's own.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::dispatch::progress::Progress;
use crate::error::Error;
use crate::event::Event;
use crate::message::{MAX_DELAY, Message};
use crate::outbox::{Home, Outbox};
use crate::outcome::{Failure, FailureClass};
use crate::store::Store;

/// A handler's result: done, or why not.
pub type HandlerResult = Result<(), HandlerError>;

/// Done; for handlers that are closures, whose type needs a hint.
pub fn handled() -> HandlerResult {
    Ok(())
}

/// Why a handler is not done with a message, and what to do with the message.
///
/// Any error becomes one by `?`: the message is tried again later, and costs an attempt, unless the error, or one of its
/// sources, says that something is down (a transient [`Error`](crate::Error), or an I/O error about a connection); then it
/// costs none.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::{HandlerError, HandlerResult, Message};
///
/// async fn charge(message: Message) -> HandlerResult {
///     let amount: u64 = std::str::from_utf8(&message.payload)?.parse()?;     // an attempt
///     match amount {
///         0 => Err(HandlerError::dead("nothing to charge")),                 // never again
///         1..100 => Err(HandlerError::defer(Duration::from_secs(3600))),     // later, at no cost
///         _ => Ok(()),
///     }
/// }
/// ```
pub struct HandlerError(pub(crate) Answer);

/// The outcome of a message whose handler was not done with it.
#[derive(Debug)]
pub(crate) enum Answer {
    Retry {
        failure: Failure,
        after: Option<Duration>,
    },
    /// The sink is down; it is left alone for this long at least.
    Down {
        failure: Failure,
        pause: Duration,
    },
    Defer(Duration),
    Dead(Failure),
}

impl HandlerError {
    /// Again after this delay, at most 100 years, instead of the policy's; it costs an attempt.
    pub fn retry_after(delay: Duration, why: impl fmt::Display) -> Self {
        Self(Answer::Retry { failure: Failure::business(why), after: Some(delay.min(MAX_DELAY)) })
    }

    /// Not yet: again after this delay, at most 100 years, at no cost.
    pub fn defer(delay: Duration) -> Self {
        Self(Answer::Defer(delay.min(MAX_DELAY)))
    }

    /// Never: the message is dead.
    pub fn dead(why: impl fmt::Display) -> Self {
        Self(Answer::Dead(Failure::permanent(why)))
    }

    /// Something that others need, too, is down: again later, at no cost, for as long as the outbox's `outage_limit`.
    pub fn infrastructure(why: impl fmt::Display) -> Self {
        Self(Answer::Retry { failure: Failure::infrastructure(why), after: None })
    }

    /// It panicked: a failed attempt.
    pub(crate) fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::from(format!("the handler panicked: {}", text.unwrap_or("no text")))
    }

    /// The same with a failure of any class: dead at once for classes that cannot succeed.
    pub fn failed(failure: Failure) -> Self {
        Self(match failure.class() {
            FailureClass::Business | FailureClass::Infrastructure | FailureClass::Unroutable => {
                Answer::Retry { failure, after: None }
            }
            _ => Answer::Dead(failure),
        })
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the text, which may echo a payload.
        self.0.fmt(f)
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let error = error.into();
        let class = if is_outage(&*error) { FailureClass::Infrastructure } else { FailureClass::Business };
        Self(Answer::Retry { failure: Failure::new(class, chain(&*error)), after: None })
    }
}

/// An error and what its sources have to add.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        source = error.source();
    }
    text
}

fn is_outage(error: &(dyn StdError + 'static)) -> bool {
    use std::io::ErrorKind as Io;
    let mut next = Some(error);
    while let Some(error) = next {
        if error.downcast_ref::<Error>().is_some_and(Error::is_transient) {
            return true;
        }
        if let Some(io) = error.downcast_ref::<std::io::Error>() {
            let down = [
                Io::ConnectionRefused,
                Io::ConnectionReset,
                Io::ConnectionAborted,
                Io::NotConnected,
                Io::BrokenPipe,
                Io::TimedOut,
                Io::HostUnreachable,
                Io::NetworkUnreachable,
                Io::NetworkDown,
            ];
            return down.contains(&io.kind());
        }
        next = error.source();
    }
    false
}

/// A message on its way into handlers, with what their extractors take from.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub(crate) message: Arc<Message>,
    pub(crate) states: Arc<States>,
    pub(crate) progress: Arc<Progress>,
    /// The outbox that it came from.
    pub(crate) home: Arc<dyn Home>,
}

impl Arrival {
    /// The message.
    pub fn message(&self) -> &Message {
        &self.message
    }
}

/// The outbox that a message came from: an argument of handlers that serve many databases, or publish more.
///
/// ```
/// use posthaste_core::{HandlerError, HandlerResult, MemoryStore, Message, NewMessage, Origin};
///
/// async fn forward(message: Message, origin: Origin) -> HandlerResult {
///     let outbox = origin.outbox::<MemoryStore>()?;             // the one that the message is in
///     outbox.enqueue(NewMessage::bytes("order.noted", message.payload)).await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Origin(Arc<dyn Home>);

impl Origin {
    /// The store's name: the tenant's key, if it is one of many.
    pub fn store(&self) -> &str {
        self.0.name()
    }

    /// The outbox, if its store is of this type.
    pub fn outbox<S: Store>(&self) -> crate::error::Result<Outbox<S>> {
        Outbox::of_home(&self.0)
    }
}

impl Extract for Origin {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        Ok(Self(Arc::clone(&arrival.home)))
    }
}

/// The outbox's state that a handler's extractors need.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    id: TypeId,
    name: &'static str,
}

impl Need {
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }
}

/// Types that can be an argument of a handler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    note = "arguments are `Delivery<E>` of a type that implements `Deserialize`, `Message`, `Arc<Message>`, `Shared<T>`, \
            `Cancellation`, `Origin`, or a type of yours with `Extract`"
)]
pub trait Extract: Sized + Send {
    /// Takes it out of a delivery. An error is the handler's answer.
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError>;

    /// The state that it needs; asked once, when the outbox is built.
    fn need() -> Option<Need> {
        None
    }
}

/// The whole message, with any payload.
impl Extract for Message {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        Ok(Message::clone(&arrival.message))
    }
}

/// The whole message, shared instead of cloned.
impl Extract for Arc<Message> {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        Ok(Arc::clone(&arrival.message))
    }
}

/// An event, decoded, with the message that it came in.
///
/// A payload that is not such an event makes the message dead, with the place at which decoding failed.
pub struct Delivery<E> {
    event: E,
    message: Arc<Message>,
    cancellation: Cancellation,
}

impl<E> Delivery<E> {
    /// The message that it came in.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Which attempt this is; 1 is the first.
    pub fn attempt(&self) -> u32 {
        self.message.attempts.saturating_add(1)
    }

    /// Tells when to stop: the lease was lost, the handler timed out, or the outbox shuts down.
    pub fn cancellation(&self) -> &Cancellation {
        &self.cancellation
    }

    /// The event alone.
    pub fn into_event(self) -> E {
        self.event
    }
}

impl<E> Deref for Delivery<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.event
    }
}

impl<E> fmt::Debug for Delivery<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the event: it is the payload.
        f.debug_struct("Delivery").field("message", &self.message).finish_non_exhaustive()
    }
}

impl<E: DeserializeOwned + Send> Extract for Delivery<E> {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        let event = arrival.message.json().map_err(HandlerError::dead)?;
        Ok(Self {
            event,
            message: Arc::clone(&arrival.message),
            cancellation: Cancellation::extract(arrival)?,
        })
    }
}

/// Tells a handler when to stop. One that does not listen is dropped after the outbox's `cancel_grace`.
#[derive(Clone, Debug)]
pub struct Cancellation(Arc<Progress>);

impl Cancellation {
    /// Resolves when the handler is to stop.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }

    /// Whether the handler is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

impl Extract for Cancellation {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        Ok(Self(Arc::clone(&arrival.progress)))
    }
}

/// A value that handlers share, given to the outbox's builder by `share`.
#[derive(Clone, Copy, Debug)]
pub struct Shared<T>(pub T);

impl<T: Clone + Send + Sync + 'static> Extract for Shared<T> {
    fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
        let state = arrival.states.get::<T>();
        state.map(Self).ok_or_else(|| {
            HandlerError::infrastructure(format!("nothing shared of type {}", type_name::<T>()))
        })
    }

    fn need() -> Option<Need> {
        Some(Need { id: TypeId::of::<T>(), name: type_name::<T>() })
    }
}

/// The values that handlers share, one of each type.
#[derive(Default)]
pub(crate) struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Clone + Send + Sync + 'static>(&mut self, state: T) {
        self.0.insert(TypeId::of::<T>(), Box::new(state));
    }

    fn get<T: Clone + 'static>(&self) -> Option<T> {
        self.0.get(&TypeId::of::<T>()).and_then(|state| state.downcast_ref::<T>()).cloned()
    }

    pub(crate) fn has(&self, need: &Need) -> bool {
        self.0.contains_key(&need.id)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the values: connections and secrets are among them.
        f.debug_struct("States").field("count", &self.0.len()).finish()
    }
}

/// A handler's answer under way.
pub type Answering = Pin<Box<dyn Future<Output = HandlerResult> + Send>>;

#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler",
    note = "a handler is an async function of one to four arguments that returns `HandlerResult`, or a `Result<(), E>`",
    note = "its arguments are `Delivery<E>` of a type that implements `Deserialize`, `Message`, `Arc<Message>`, `Shared<T>`, \
            `Cancellation`, `Origin`, or a type of yours with `Extract`; none of them is a reference"
)]
/// Functions that can handle a message: async functions and closures of up to four [`Extract`] arguments, with any
/// error.
pub trait Handler<Args>: Send + Sync + 'static {
    /// Handles a message.
    fn call(&self, arrival: &Arrival) -> Answering;

    /// The state that its arguments need.
    fn needs() -> Vec<Need>;
}

/// The arguments of a handler whose first one is an event, and so says the topic.
#[diagnostic::on_unimplemented(
    message = "the arguments `{Self}` do not say the topic",
    note = "the first argument of a handler for `on` is a `Delivery<E>` of an `Event`; for others use `on_topic`"
)]
pub trait OfEvent {
    /// The topic.
    const TOPIC: &'static str;
}

macro_rules! handlers {
    ($first:ident $($more:ident)*) => {
        impl<F, Answered, E, $first, $($more),*> Handler<($first, $($more,)*)> for F
        where
            F: Fn($first, $($more),*) -> Answered + Send + Sync + 'static,
            Answered: Future<Output = Result<(), E>> + Send + 'static,
            E: Into<HandlerError>,
            $first: Extract,
            $($more: Extract,)*
        {
            fn call(&self, arrival: &Arrival) -> Answering {
                let extracted = (|| Ok(($first::extract(arrival)?, $($more::extract(arrival)?,)*)))();
                match extracted {
                    Err(error) => Box::pin(std::future::ready(Err(error))),
                    #[allow(non_snake_case, reason = "a value is called like its type")]
                    Ok(($first, $($more,)*)) => {
                        let answer = self($first, $($more),*);
                        Box::pin(async move { answer.await.map_err(Into::into) })
                    }
                }
            }

            fn needs() -> Vec<Need> {
                [$first::need(), $($more::need()),*].into_iter().flatten().collect()
            }
        }

        impl<E: Event, $($more),*> OfEvent for (Delivery<E>, $($more,)*) {
            const TOPIC: &'static str = E::TOPIC;
        }
    };
}

handlers!(A);
handlers!(A B);
handlers!(A B C);
handlers!(A B C D);
