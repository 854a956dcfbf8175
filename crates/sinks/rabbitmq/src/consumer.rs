//! The consumer: takes messages from a queue and acts upon each once, in a transaction with the inbox row.
//!
//! The server is answered after the commit, never before. A lost connection is replaced, until the shutdown. Running
//! handlers are never cancelled.

mod delivery;
mod incoming;
mod line;
mod waiting;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use posthaste_core::store::Transactions;
use posthaste_core::{Consume, Consumer, Error, ErrorKind, InboxStore, Result, Shutdown};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::{debug, info, warn};

use self::delivery::Work;
pub use self::incoming::Unnamed;
use self::line::Line;
use self::waiting::Waiting;
use crate::link::Trouble;
use crate::quiet::quietly;
use crate::server::{RabbitServer, name_fits, refused};

const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Longer than anything is waited for.
const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Less than RabbitMQ's `consumer_timeout`, 30 minutes, which it checks once a minute.
const HOLD: Duration = Duration::from_secs(20 * 60);

/// Where messages go that will never succeed, or have used their attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeadLetter {
    /// To this queue, with headers that say why ([`ERROR_HEADER`](crate::ERROR_HEADER) and others). It must exist; a dead
    /// letter that it does not take stays where it was.
    Queue(String),
    /// Rejected, so that the server sends it where the queue's own `x-dead-letter-exchange`, or a policy, says. **Without one
    /// the server drops it.**
    BrokerPolicy,
}

/// Runs a handler behind an inbox on a queue of RabbitMQ.
///
/// - A message is acked after the transaction with its effect has been committed. If the connection is lost in between it
///   comes again, and the inbox knows it.
/// - One whose handler failed is held, and tried again after the delay of the retry policy. After the last attempt it is a
///   [dead letter](DeadLetter). Attempts are counted in this process; a quorum queue's own count is added to them. One that
///   waits for longer than [`hold`](Self::hold) is given back meanwhile.
/// - It is known by its `message_id` and its `app_id`. One without an id is a dead letter, too, unless
///   [`id_of`](Self::id_of) finds one for it.
/// - Several are worked on at a time, and a failed one is overtaken: for strict order, use a [`prefetch`](Self::prefetch) of 1.
///
/// ```no_run
/// use posthaste_core::{Consumer, HandlerResult, Inbox, MemoryStore, MemoryTransaction, Received, shutdown_signal};
/// use posthaste_rabbitmq::{DeadLetter, RabbitConsumer, RabbitServer};
///
/// async fn reserve(_tx: &mut MemoryTransaction, order: &Received) -> HandlerResult {
///     println!("stock reserved for {}", order.id);
///     Ok(())
/// }
///
/// # async fn run() -> posthaste_core::Result<()> {
/// let consumer = Consumer::new(Inbox::new(MemoryStore::new(), "stock")?, reserve).max_attempts(5);
/// let server = RabbitServer::new("amqp://localhost")?;
/// RabbitConsumer::new(server, "stock", DeadLetter::Queue("stock.dead".to_owned()), consumer)?
///     .prefetch(100)
///     .run(shutdown_signal())
///     .await;
/// # Ok(()) }
/// ```
pub struct RabbitConsumer<S, H> {
    options: Arc<Options>,
    consumer: Arc<Consumer<S, H>>,
}

/// Deliveries under way. Tasks, because nothing may cancel them: not even dropping the consumer's future.
type Running = FuturesUnordered<JoinHandle<()>>;

type IdOf = dyn Fn(&Unnamed<'_>) -> Option<String> + Send + Sync;

#[derive(Clone)]
struct Options {
    server: RabbitServer,
    queue: String,
    dead_letter: DeadLetter,
    prefetch: u16,
    concurrency: usize,
    grace: Duration,
    hold: Duration,
    id_of: Option<Arc<IdOf>>,
}

impl<S, H> Clone for RabbitConsumer<S, H> {
    fn clone(&self) -> Self {
        Self { options: Arc::clone(&self.options), consumer: Arc::clone(&self.consumer) }
    }
}

impl<S, H> fmt::Debug for RabbitConsumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { server, queue, dead_letter, prefetch, concurrency, grace, hold, .. } = &*self.options;
        f.debug_struct("RabbitConsumer")
            .field("server", server)
            .field("queue", queue)
            .field("dead_letter", dead_letter)
            .field("prefetch", prefetch)
            .field("concurrency", concurrency)
            .field("grace", grace)
            .field("hold", hold)
            .finish_non_exhaustive()
    }
}

impl<S, H> RabbitConsumer<S, H>
where
    S: InboxStore + Transactions,
    H: Consume<S>,
{
    /// This handler, on this queue. The queue must exist, or be in the server's [topology](RabbitServer::declare).
    pub fn new(
        server: RabbitServer,
        queue: impl Into<String>,
        dead_letter: DeadLetter,
        consumer: Consumer<S, H>,
    ) -> Result<Self> {
        let queue = queue.into();
        server.check()?;
        let mut queues = vec![queue.as_str()];
        if let DeadLetter::Queue(name) = &dead_letter {
            queues.push(name);
        }
        for name in queues {
            name_fits("a queue's name", name)?;
            if name.is_empty() {
                return Err(refused("a queue has no name", "name it"));
            }
        }
        if dead_letter == DeadLetter::Queue(queue.clone()) {
            return Err(refused("dead letters go back to where they came from", "name another queue"));
        }
        let options = Options {
            server,
            queue,
            dead_letter,
            prefetch: 50,
            concurrency: 4,
            grace: Duration::from_secs(30),
            hold: HOLD,
            id_of: None,
        };
        Ok(Self { options: Arc::new(options), consumer: Arc::new(consumer) })
    }

    fn change(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(Arc::make_mut(&mut self.options));
        self
    }

    /// How many messages it holds at a time, including messages that wait for their next attempt; 0 counts as 1.
    /// Default: 50.
    #[must_use]
    pub fn prefetch(self, messages: u16) -> Self {
        self.change(|options| options.prefetch = messages.max(1))
    }

    /// How many handlers run at a time, over all connections of this consumer; 0 counts as 1. Default: 4.
    #[must_use]
    pub fn concurrency(self, handlers: usize) -> Self {
        self.change(|options| options.concurrency = handlers.max(1))
    }

    /// How long handlers may take to finish when the shutdown has begun. Default: 30 s. Slower ones are not cancelled,
    /// but no longer waited for; their messages come again, and the inbox knows them.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.change(|options| options.grace = grace)
    }

    /// How long a message is held that waits for its next attempt. After that it is given back, taken again, and waits on.
    /// 1 ms to a year. Default: 20 minutes.
    ///
    /// Set it to less than the server's `consumer_timeout`, which is 30 minutes unless configured otherwise: a server whose
    /// message is held for longer closes the channel, and delivers everything that was held again.
    #[must_use]
    pub fn hold(self, longest: Duration) -> Self {
        self.change(|options| options.hold = longest.clamp(Duration::from_millis(1), YEAR))
    }

    /// What gives an id to messages that have no `message_id`: a text that is the same for every delivery of one, and for no
    /// other message. Default: nothing; they are dead letters.
    #[must_use]
    pub fn id_of(self, id_of: impl Fn(&Unnamed<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        self.change(|options| options.id_of = Some(Arc::new(id_of)))
    }

    /// Consumes until the shutdown: begun, it takes no more messages, lets handlers finish, and gives the others back.
    /// A server that is not there, and a queue that is not there, is tried again for as long as it takes. Prunes the inbox, too.
    ///
    /// An error means that it did not begin: the inbox's tables are missing, say.
    pub async fn run(&self, shutdown: impl Into<Shutdown>) -> Result<()> {
        let shutdown = shutdown.into();
        if self.ready(&shutdown).await? {
            // Apart, so that no statement of it is cut off if this future is dropped.
            let (own, until) = (Arc::clone(&self.consumer), shutdown.clone());
            let housekeeping = tokio::spawn(async move { own.housekeep(until).await });
            self.consume(&shutdown).await;
            let _ = housekeeping.await;
        }
        Ok(())
    }

    /// Waits for the database; false if the shutdown has begun before. Apart, for the same reason as housekeeping.
    async fn ready(&self, shutdown: &Shutdown) -> Result<bool> {
        let (own, until) = (Arc::clone(&self.consumer), shutdown.clone());
        let asked = tokio::spawn(async move { own.ready(&until).await }).await;
        asked.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "the check of the inbox's tables broke off")
                .with_remedy("is the database there?")
                .with_source(error)
        })?
    }

    async fn consume(&self, shutdown: &Shutdown) {
        let Options { server, queue, concurrency, .. } = &*self.options;
        let mut pause = SHORTEST_PAUSE;
        // For all connections: a handler goes on when its connection is lost.
        let permits = Arc::new(Semaphore::new(*concurrency));
        let waiting = Arc::new(Waiting::default());
        let mut running = Running::new();
        while !shutdown.has_begun() {
            let opening = Line::open(&self.options);
            let opened = tokio::select! {
                biased;
                () = shutdown.begun() => break,
                opened = opening => opened,
            };
            let trouble = match opened {
                Ok(line) => {
                    info!(%server, queue, "consuming");
                    pause = SHORTEST_PAUSE;
                    let work = Work {
                        options: Arc::clone(&self.options),
                        consumer: Arc::clone(&self.consumer),
                        permits: Arc::clone(&permits),
                        waiting: Arc::clone(&waiting),
                        dead_letters: line.dead_letters(),
                    };
                    self.work(line, work, &mut running, shutdown).await
                }
                Err(trouble) => trouble,
            };
            if shutdown.has_begun() {
                break;
            }
            warn!(%server, queue, error = %trouble, again_after = ?pause, "not consuming");
            tokio::select! {
                biased;
                () = shutdown.begun() => break,
                () = sleep(pause) => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.finish(&mut running, shutdown).await;
        debug!(queue, "no longer consuming");
    }

    /// Waits for handlers, those of lost connections included, but no longer than the grace period.
    async fn finish(&self, running: &mut Running, shutdown: &Shutdown) {
        let finishing = async { while running.next().await.is_some() {} };
        tokio::select! {
            biased;
            () = finishing => {}
            () = shutdown.ended() => {}
            () = sleep(self.options.grace) => {
                warn!(queue = self.options.queue, "grace period is over, handlers still run");
            }
        }
        // The others go on by themselves.
        running.clear();
    }

    /// Works on what comes, until the line is lost or the shutdown has begun. Says why it ended.
    async fn work(
        &self,
        mut line: Line,
        work: Work<S, H>,
        running: &mut Running,
        shutdown: &Shutdown,
    ) -> Trouble {
        // Dropped, or set, it tells waiting deliveries to give up.
        let (over, is_over) = watch::channel(false);
        let work = Arc::new(work);
        let ended = loop {
            tokio::select! {
                biased;
                () = shutdown.begun() => break None,
                Some(_) = running.next() => {}
                delivery = quietly(line.deliveries.next()) => match delivery {
                    Some(Ok(delivery)) => {
                        running.push(tokio::spawn(Arc::clone(&work).deliver(delivery, is_over.clone())));
                    }
                    Some(Err(error)) => break Some(Trouble::from(error)),
                    None => break Some(Trouble::Lost("the queue, or the connection, is gone".to_owned())),
                },
            }
        };
        if ended.is_none() {
            // Before anything is given back, or it would come to us again.
            line.cancel().await;
        }
        over.send_replace(true);
        if let Some(trouble) = ended {
            return trouble;
        }
        line.give_back_the_rest().await;
        self.finish(running, shutdown).await;
        // Messages that were not acked by now are delivered again.
        drop(work);
        line.close().await;
        Trouble::Lost("shut down".to_owned())
    }
}
