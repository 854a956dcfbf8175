//! The consumer: pulls messages that can start now, handles them behind an inbox, and answers the server after the
//! commit.
//!
//! The server is never answered before the transaction has committed. Transactions are run to their end, also when the
//! connection is lost or the consumer stops.

mod delivery;
mod tries;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::consumer::pull::Config as PullConfig;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::stream::ConsumerErrorKind;
use futures_util::StreamExt as _;
use posthaste_core::{
    Consume, Consumer, Error, ErrorKind, InboxStore, Result, Shutdown, SinkError, Transactions,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};
use tracing::{error, info, warn};

use self::delivery::Underway;
use self::tries::Memory;
use crate::link::Link;
use crate::options::{NatsOptions, refused};
use crate::subject;

/// How long a pull waits for messages. A shutdown waits for it, and gives back messages that the server has sent
/// meanwhile.
const PULL: Duration = Duration::from_secs(1);
/// How long the server may take longer than that to say that there is nothing.
const GRACE: Duration = Duration::from_secs(3);
/// How long it may take to answer a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between which pauses a connection is tried again.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// What becomes of messages that will never succeed, or have used their attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetter {
    /// They are published to this subject, acknowledged by the stream that has it, and then terminated. The headers say why.
    Subject(String),
    /// They are terminated: the server does not deliver them again, and they stay in their stream for as long as that keeps
    /// them.
    Terminate,
}

/// Runs a [`Consumer`] on a durable pull consumer of JetStream.
///
/// - The server gets its acknowledgement after the commit, and confirms it. A message whose acknowledgement is lost comes again, and the
///   inbox sees to it that it has no effect again.
/// - An attempt is a delivery, as the server counts them, less those that failed without charge while this process remembers
///   them. A crash costs an attempt.
/// - While a handler runs, the server is told so three times in every `ack_wait`.
///
/// See the [crate] for an example.
pub struct NatsConsumer<S, H> {
    shared: Arc<Shared<S, H>>,
}

struct Shared<S, H> {
    options: NatsOptions,
    consumer: Consumer<S, H>,
    stream: String,
    durable: String,
    dead: DeadLetter,
    concurrency: u32,
    memory: Mutex<Memory>,
    underway: Underway,
}

impl<S, H> fmt::Debug for NatsConsumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConsumer")
            .field("options", &self.shared.options)
            .field("stream", &self.shared.stream)
            .field("durable", &self.shared.durable)
            .field("dead", &self.shared.dead)
            .field("concurrency", &self.shared.concurrency)
            .finish_non_exhaustive()
    }
}

impl<S, H> NatsConsumer<S, H>
where
    S: InboxStore + Transactions,
    H: Consume<S>,
    Self: Send + Sync,
{
    /// Feeds this consumer from the durable consumer of this name, of this stream.
    ///
    /// Refused: names that NATS does not take, and a subject for dead letters that is none.
    pub fn new(
        options: NatsOptions,
        consumer: Consumer<S, H>,
        stream: impl Into<String>,
        durable: impl Into<String>,
        dead: DeadLetter,
    ) -> Result<Self> {
        let (stream, durable) = (stream.into(), durable.into());
        subject::check_name("the name of the stream", &stream)?;
        subject::check_name("the name of the durable consumer", &durable)?;
        if let DeadLetter::Subject(place) = &dead {
            subject::check("the subject of dead letters", place)?;
        }
        let (memory, underway) = (Mutex::default(), Underway::default());
        let shared = Shared { options, consumer, stream, durable, dead, concurrency: 4, memory, underway };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// How many messages are acted upon at a time: 1 to 1,000. Default: 4. No more are pulled than can start at once. The
    /// durable consumer's `max_ack_pending` bounds all processes together.
    pub fn concurrency(mut self, messages: u32) -> Result<Self> {
        if !(1..=1_000).contains(&messages) {
            return Err(refused(format!("the concurrency of a consumer is {messages}"), "give it 1 to 1000"));
        }
        // Nothing else uses it before it runs.
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.concurrency = messages;
        }
        Ok(self)
    }

    /// Creates the durable consumer, unless there is one of its name. Name, acknowledgements and the number of deliveries
    /// are set here, overriding the configuration.
    pub async fn declare(&self, config: PullConfig) -> Result<()> {
        let shared = &self.shared;
        let link = Link::open(&shared.options).await.map_err(unavailable)?;
        if shared.find(&link).await.is_ok() {
            return Ok(());
        }
        let config = PullConfig {
            durable_name: Some(shared.durable.clone()),
            ack_policy: AckPolicy::Explicit,
            max_deliver: -1,
            ..config
        };
        let creating = link.context().create_consumer_on_stream(config, &shared.stream);
        let created = timeout(PATIENCE, creating).await.map_err(|_| unavailable("no answer"))?;
        created.map(drop).map_err(|error| {
            Error::new(ErrorKind::Refused, "the durable consumer was not created")
                .with_context("stream", &shared.stream)
                .with_context("durable", &shared.durable)
                .with_remedy("create the stream first, and check the configuration")
                .with_source(error)
        })
    }

    /// Handles messages, and prunes the inbox, until the shutdown begins. Then handlers finish, and messages that have not
    /// started are given back. If the shutdown is to end at once, running ones are given back, too, and finish in the
    /// background.
    ///
    /// A server that cannot be reached is tried again and again. An error means that it was reached, and that there is no such
    /// durable consumer, or one that acknowledges by itself, or gives up by itself; or that the inbox's tables are missing.
    pub async fn run(&self, shutdown: impl Into<Shutdown>) -> Result<()> {
        let (shared, shutdown) = (&self.shared, shutdown.into());
        if !Arc::clone(shared).ready(&shutdown).await? {
            return Ok(());
        }
        let Some((mut link, mut pulls)) = shared.first(&shutdown).await? else { return Ok(()) };
        // Apart, so that no statement of it is cut off if this future is dropped.
        let (own, until) = (Arc::clone(shared), shutdown.clone());
        let housekeeping = tokio::spawn(async move { own.consumer.housekeep(until).await });
        let slots = Arc::new(Semaphore::new(shared.concurrency as usize));
        let mut pause = SHORTEST_PAUSE;
        loop {
            let ended = Arc::clone(shared).pull(&link, &pulls, &slots, &shutdown).await;
            if shutdown.has_begun() {
                break;
            }
            if let Ended::WithWork = ended {
                pause = SHORTEST_PAUSE;
            }
            link.close();
            warn!(stream = shared.stream, durable = shared.durable, ?pause, "the connection was lost");
            loop {
                tokio::select! {
                    () = shutdown.begun() => break,
                    () = tokio::time::sleep(pause) => {}
                }
                pause = (pause * 2).min(LONGEST_PAUSE);
                match shared.open().await {
                    Ok(opened) => {
                        (link, pulls) = opened;
                        break;
                    }
                    Err(error) => warn!(error = ?error, "still no connection"),
                }
            }
            if shutdown.has_begun() {
                break;
            }
        }
        shared.finish(&link, &slots, &shutdown).await;
        let _ = housekeeping.await;
        Ok(())
    }
}

/// Why pulling ended.
enum Ended {
    /// The connection was lost, after something was received through it.
    WithWork,
    /// It was lost at once, or the shutdown has begun.
    Otherwise,
}

impl<S, H> Shared<S, H>
where
    S: InboxStore + Transactions,
    H: Consume<S>,
{
    /// Waits for the database; false if the shutdown has begun before. Apart, for the same reason as housekeeping.
    async fn ready(self: Arc<Self>, shutdown: &Shutdown) -> Result<bool> {
        let until = shutdown.clone();
        let asked = tokio::spawn(async move { self.consumer.ready(&until).await }).await;
        asked.map_err(|error| unavailable("the check of the inbox's tables broke off").with_source(error))?
    }

    /// The first connection: tried until it stands, unless the configuration is wrong.
    async fn first(&self, shutdown: &Shutdown) -> Result<Option<(Arc<Link>, PullConsumer)>> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            match self.open().await {
                Ok(opened) => return Ok(Some(opened)),
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    warn!(error = ?error, ?pause, "no connection yet");
                }
                Err(error) => return Err(error),
            }
            tokio::select! {
                () = shutdown.begun() => return Ok(None),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn open(&self) -> Result<(Arc<Link>, PullConsumer)> {
        let link = Link::open(&self.options).await.map_err(unavailable)?;
        let pulls = self.find(&link).await?;
        info!(stream = self.stream, durable = self.durable, "consuming");
        Ok((Arc::new(link), pulls))
    }

    /// The durable consumer, if it is one that this can work with.
    async fn find(&self, link: &Link) -> Result<PullConsumer> {
        let asking = link.context().get_consumer_from_stream::<PullConfig, _, _>(&self.durable, &self.stream);
        let found = timeout(PATIENCE, asking).await.map_err(|_| unavailable("JetStream does not answer"))?;
        let named =
            |error: Error| error.with_context("stream", &self.stream).with_context("durable", &self.durable);
        let found = found.map_err(|error| {
            if link.has_ended() {
                return unavailable("the connection was lost");
            }
            let kind = match error.kind() {
                ConsumerErrorKind::JetStream(answer) if answer.code() == 404 => ErrorKind::NotFound,
                ConsumerErrorKind::InvalidConsumerType => ErrorKind::Configuration,
                _ => ErrorKind::Unavailable,
            };
            let missing = Error::new(kind, "the durable consumer cannot be had");
            named(missing.with_remedy("create it, or call `declare`").with_source(error))
        })?;
        let config = &found.cached_info().config;
        if config.ack_policy != AckPolicy::Explicit {
            return Err(named(refused(
                "the durable consumer does not wait for acknowledgements",
                "create it with the acknowledgement policy `explicit`",
            )));
        }
        if config.max_deliver > 0 {
            return Err(named(refused(
                "the durable consumer gives up by itself, and nobody would be told",
                "set its max_deliver to -1: attempts are counted here",
            )));
        }
        Ok(found)
    }

    /// Pulls and starts, until the connection is lost or the shutdown begins.
    async fn pull(
        self: Arc<Self>,
        link: &Arc<Link>,
        pulls: &PullConsumer,
        slots: &Arc<Semaphore>,
        shutdown: &Shutdown,
    ) -> Ended {
        let config = &pulls.cached_info().config;
        let patience = config.backoff.first().copied().unwrap_or(config.ack_wait).min(config.ack_wait);
        let mut ended = Ended::Otherwise;
        while !shutdown.has_begun() && !link.has_ended() {
            let free = tokio::select! {
                () = shutdown.begun() => return ended,
                () = link.ended() => return ended,
                permit = Arc::clone(slots).acquire_owned() => permit,
            };
            let Ok(free) = free else { return ended };
            // Only messages that can start now: waiting ones would run out of their time.
            let count = 1 + slots.available_permits();
            drop(free);
            let asked = pulls.batch().max_messages(count).expires(PULL).messages().await;
            let Ok(mut batch) = asked else { return ended };
            let deadline = Instant::now() + PULL + GRACE;
            loop {
                let message = tokio::select! {
                    () = link.ended() => return ended,
                    message = tokio::time::timeout_at(deadline, batch.next()) => message,
                };
                match message {
                    Ok(Some(Ok(message))) => {
                        ended = Ended::WithWork;
                        self.start(link, message, slots, shutdown, patience).await;
                    }
                    // The server could not answer the pull: the consumer was deleted, or the server stops.
                    Ok(Some(Err(error))) => {
                        error!(error = %error, stream = self.stream, durable = self.durable, "a pull failed");
                        return ended;
                    }
                    Ok(None) => break,
                    // It has not even said that there is nothing.
                    Err(_) => return ended,
                }
            }
        }
        ended
    }
}

fn unavailable(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unavailable, why).with_remedy("is NATS running, with JetStream?")
}

/// For logs: why a dead letter was not taken.
fn text(error: &SinkError) -> &str {
    error.failure().text()
}
