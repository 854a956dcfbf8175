//! The sink: its connection, its channels that each serve one batch at a time, and the verdicts from the server's
//! answers.
//!
//! A connection is made when it is needed and never mended; a channel that has seen trouble is closed and never used again.
//! Nothing here waits without a deadline.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use lapin::Channel;
use lapin::options::ConfirmSelectOptions;
use lapin::types::ShortString;
use posthaste_core::{Batch, Message, MessageId, Result, Sink, SinkError, Verdict};
use tokio::time::{Instant, timeout_at};

use crate::link::{Link, Trouble};
use crate::options::RabbitOptions;
use crate::properties::properties;
use crate::quiet::quietly;
use crate::remembered::Remembered;
use crate::sending::Sending;
use crate::server::RabbitServer;
use crate::window::{Answer, Parcel};

/// Sends messages to RabbitMQ, and knows what became of each.
///
/// Every message is persistent, published as mandatory and confirmed by the server before it counts as taken. One that no
/// queue takes is unroutable, and comes again at no cost when there is one.
///
/// ```no_run
/// use posthaste_core::{Guarded, MemoryStore, Outbox, SinkOptions};
/// use posthaste_rabbitmq::{RabbitOptions, RabbitSink};
///
/// # async fn run() -> posthaste_core::Result<()> {
/// let sink = RabbitSink::new(RabbitOptions::new("amqp://localhost", "shop")?)?;
/// let outbox = Outbox::builder(MemoryStore::new())
///     .sink("order.*", Guarded::with(sink, SinkOptions::new().batch(500)))
///     .build()
///     .await?;
/// # let _ = outbox; Ok(()) }
/// ```
#[derive(Clone)]
pub struct RabbitSink {
    shared: Arc<Shared>,
}

struct Shared {
    options: RabbitOptions,
    /// The connection, once there is one. The holder of the lock may be opening it.
    session: tokio::sync::Mutex<Option<Arc<Session>>>,
    /// Messages that were under way when a connection was lost: one of them may be the reason.
    suspects: Remembered<MessageId>,
    /// Exchanges and routing keys whose messages were not confirmed the last time, although the server lived.
    stalled: Remembered<(ShortString, ShortString)>,
}

/// A connection, and its idle channels.
pub(crate) struct Session {
    pub(crate) link: Link,
    idle: Mutex<Vec<Channel>>,
}

impl RabbitSink {
    /// A sink with these options. It connects when the first batch is sent.
    pub fn new(options: RabbitOptions) -> Result<Self> {
        options.check()?;
        Ok(Self {
            shared: Arc::new(Shared {
                options,
                session: tokio::sync::Mutex::default(),
                suspects: Remembered::default(),
                stalled: Remembered::default(),
            }),
        })
    }

    pub(crate) fn suspects(&self) -> &Remembered<MessageId> {
        &self.shared.suspects
    }

    pub(crate) fn stalled(&self) -> &Remembered<(ShortString, ShortString)> {
        &self.shared.stalled
    }

    pub(crate) fn server(&self) -> &RabbitServer {
        &self.shared.options.server
    }

    /// The connection; a new one if there is none, or the one there was is lost.
    pub(crate) async fn session(&self, deadline: Instant) -> Result<Arc<Session>, SinkError> {
        let locking = timeout_at(deadline, self.shared.session.lock());
        let mut current = locking.await.map_err(|_| self.unreachable(&Trouble::Late))?;
        if let Some(session) = current.as_ref().filter(|session| session.link.is_up()) {
            return match session.link.blocked() {
                None => Ok(Arc::clone(session)),
                Some(reason) => Err(blocked(&reason)),
            };
        }
        *current = None;
        let session = self.own_session(deadline).await?;
        *current = Some(Arc::clone(&session));
        Ok(session)
    }

    /// A connection that no other batch uses.
    pub(crate) async fn own_session(&self, deadline: Instant) -> Result<Arc<Session>, SinkError> {
        let link = Link::connect(self.server(), deadline).await.map_err(|why| self.unreachable(&why))?;
        Ok(Arc::new(Session { link, idle: Mutex::default() }))
    }

    fn unreachable(&self, trouble: &Trouble) -> SinkError {
        SinkError::down(format!("RabbitMQ at {}: {trouble}", self.server()))
    }

    /// Forgets a connection that is lost; the next call makes another.
    pub(crate) async fn forget(&self, session: &Arc<Session>) {
        let mut current = self.shared.session.lock().await;
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, session)) {
            *current = None;
        }
    }

    /// Opens a channel, or finds the connection lost.
    pub(crate) async fn channel(
        &self,
        session: &Arc<Session>,
        deadline: Instant,
    ) -> Result<Channel, SinkError> {
        let deadline = deadline.min(Instant::now() + self.server().patience);
        match session.channel(deadline).await {
            Ok(channel) => Ok(channel),
            Err(trouble) => {
                // Blocked, it answers nothing; it is not lost for that.
                if let Some(reason) = session.link.blocked() {
                    return Err(blocked(&reason));
                }
                self.forget(session).await;
                Err(self.unreachable(&trouble))
            }
        }
    }

    /// The arguments for publishing a message, or why it cannot be published.
    fn parcel<'a>(&self, index: usize, message: &'a Message) -> Result<Parcel<'a>, SinkError> {
        let options = &self.shared.options;
        let size = message.payload.len();
        if size > options.max_message_bytes {
            let most = options.max_message_bytes;
            return Err(SinkError::too_large(format!(
                "the payload has {size} bytes; RabbitMQ takes at most {most}"
            )));
        }
        let (exchange, routing_key) = options.destination(message.topic.as_str()).ok_or_else(|| {
            SinkError::unroutable("the route gave an exchange or a routing key of more than 255 bytes")
        })?;
        let properties = properties(message, &options.source).ok_or_else(|| {
            SinkError::refused("a header's name has more than 255 bytes, which AMQP cannot carry")
        })?;
        Ok(Parcel { index, payload: &message.payload, exchange, routing_key, properties })
    }
}

impl Session {
    pub(crate) fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Channel>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A channel that confirms, for one batch.
    async fn channel(&self, deadline: Instant) -> Result<Channel, Trouble> {
        let idle = std::iter::from_fn(|| self.idle().pop()).find(|channel| channel.status().connected());
        if let Some(channel) = idle {
            return Ok(channel);
        }
        let channel = self.link.channel(deadline).await?;
        let confirming = quietly(channel.confirm_select(ConfirmSelectOptions::default()));
        timeout_at(deadline, confirming).await.map_err(|_| Trouble::Late)??;
        Ok(channel)
    }
}

pub(crate) fn blocked(reason: &str) -> SinkError {
    SinkError::down(format!("blocked by the broker: {reason}"))
}

pub(crate) fn verdict(parcel: &Parcel<'_>, answer: Answer) -> Option<Verdict> {
    let Parcel { exchange, routing_key, .. } = parcel;
    match answer {
        Answer::Kept => Some(Ok(())),
        Answer::Returned => Some(Err(SinkError::unroutable(format!(
            "no queue takes it: exchange `{exchange}`, routing key `{routing_key}`; bind a queue"
        )))),
        Answer::Refused => {
            Some(Err(SinkError::busy("RabbitMQ refused it: a queue is full, or not available")))
        }
        Answer::Unknown => None,
    }
}

/// The effect of a channel's end on unanswered messages to one exchange: errors for some, and windows in which the others
/// are sent again.
pub(crate) fn regroup<'a>(
    code: u16,
    text: &str,
    mut open: Vec<Parcel<'a>>,
) -> (Vec<(usize, SinkError)>, Vec<Vec<Parcel<'a>>>) {
    let all = |open: Vec<Parcel<'a>>, error: &SinkError| {
        (open.iter().map(|parcel| (parcel.index, error.clone())).collect(), Vec::new())
    };
    match code {
        NOT_FOUND => all(open, &SinkError::unroutable(format!("{text}; declare it"))),
        ACCESS_REFUSED => {
            // A user may be allowed some routing keys of an exchange and not others.
            open.sort_by(|a, b| a.routing_key.as_str().cmp(b.routing_key.as_str()));
            let mut keys = chunks(open, |a, b| a.routing_key == b.routing_key);
            if keys.len() > 1 {
                return (Vec::new(), keys);
            }
            let error = SinkError::unroutable(format!("{text}; give the user this permission"));
            all(keys.pop().unwrap_or_default(), &error)
        }
        CONTENT_TOO_LARGE | PRECONDITION_FAILED
            if code == CONTENT_TOO_LARGE || text.contains("larger than") =>
        {
            // There is one limit, so whichever is the largest is beyond it.
            let largest = (0..open.len()).max_by_key(|n| open[*n].payload.len());
            let judged = largest.map(|n| open.swap_remove(n)).map(|parcel| {
                let remedy = "lower max_message_bytes of the sink to what the server takes";
                (parcel.index, SinkError::too_large(format!("{text}; {remedy}")))
            });
            (judged.into_iter().collect(), if open.is_empty() { Vec::new() } else { vec![open] })
        }
        // Something is wrong with one of them: alone, each tells. The server's text may quote a header, so it is not told.
        _ if open.len() > 1 => (Vec::new(), chunks(open, |_, _| false)),
        PRECONDITION_FAILED => {
            all(open, &SinkError::refused("RabbitMQ does not accept a property or a header of it (code 406)"))
        }
        _ => all(open, &SinkError::busy(format!("RabbitMQ closed the channel with code {code}"))),
    }
}

const CONTENT_TOO_LARGE: u16 = 311;
const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const PRECONDITION_FAILED: u16 = 406;

/// Runs of neighbours that belong together.
pub(crate) fn chunks<T>(items: Vec<T>, together: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    for item in items {
        match chunks.last_mut() {
            Some(chunk) if chunk.last().is_some_and(|last| together(last, &item)) => chunk.push(item),
            _ => chunks.push(vec![item]),
        }
    }
    chunks
}

#[async_trait]
impl Sink for RabbitSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        let mut sending = Sending::new(self, batch);
        for (index, message) in batch.iter().enumerate() {
            match self.parcel(index, message) {
                Ok(parcel) => sending.add(parcel),
                Err(error) => sending.judge(index, Err(error)),
            }
        }
        sending.send(self.shared.options.window as usize).await
    }

    /// Connects if there is no connection, and opens a channel: only a server that is there answers that.
    async fn probe(&self) -> Verdict {
        let deadline = Instant::now() + self.server().patience;
        let session = self.session(deadline).await?;
        // An idle channel would not tell whether the server is still there.
        session.idle().clear();
        let channel = self.channel(&session, deadline).await?;
        session.idle().push(channel);
        Ok(())
    }

    fn name(&self) -> String {
        let options = &self.shared.options;
        format!("rabbitmq {} {}", options.server, options.exchange).trim_end().to_owned()
    }
}

impl fmt::Debug for RabbitSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RabbitSink").field(&self.shared.options).finish()
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
