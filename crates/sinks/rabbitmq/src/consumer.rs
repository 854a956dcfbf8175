//! The consumer: takes messages from a queue and acts upon each once, in a transaction with the inbox row.
//!
//! The server is answered after the commit, never before. A connection that is lost is replaced, until the shutdown. What a
//! handler has begun is never cancelled.

mod delivery;
mod incoming;
mod line;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use posthaste_core::store::Transactions;
use posthaste_core::{Consume, Consumer, InboxStore, Result, Shutdown};
use tokio::sync::{Semaphore, watch};
use tokio::time::sleep;
use tracing::{debug, info, warn};

use self::delivery::Work;
pub use self::incoming::Unnamed;
use self::line::Line;
use crate::link::Trouble;
use crate::quiet::quietly;
use crate::server::{RabbitServer, name_fits, refused};

const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

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
///   [dead letter](DeadLetter). Attempts are counted in this process; a quorum queue's own count is added to them.
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

type IdOf = dyn Fn(&Unnamed<'_>) -> Option<String> + Send + Sync;

#[derive(Clone)]
struct Options {
    server: RabbitServer,
    queue: String,
    dead_letter: DeadLetter,
    prefetch: u16,
    concurrency: usize,
    grace: Duration,
    id_of: Option<Arc<IdOf>>,
}

impl<S, H> Clone for RabbitConsumer<S, H> {
    fn clone(&self) -> Self {
        Self { options: Arc::clone(&self.options), consumer: Arc::clone(&self.consumer) }
    }
}

impl<S, H> fmt::Debug for RabbitConsumer<S, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { server, queue, dead_letter, prefetch, concurrency, grace, .. } = &*self.options;
        f.debug_struct("RabbitConsumer")
            .field("server", server)
            .field("queue", queue)
            .field("dead_letter", dead_letter)
            .field("prefetch", prefetch)
            .field("concurrency", concurrency)
            .field("grace", grace)
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
            id_of: None,
        };
        Ok(Self { options: Arc::new(options), consumer: Arc::new(consumer) })
    }

    fn change(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(Arc::make_mut(&mut self.options));
        self
    }

    /// How many messages it holds at a time, those that wait for their next attempt included; 0 counts as 1. Default: 50.
    #[must_use]
    pub fn prefetch(self, messages: u16) -> Self {
        self.change(|options| options.prefetch = messages.max(1))
    }

    /// How many handlers run at a time; 0 counts as 1. Default: 4.
    #[must_use]
    pub fn concurrency(self, handlers: usize) -> Self {
        self.change(|options| options.concurrency = handlers.max(1))
    }

    /// How long handlers may take to finish when the shutdown has begun. Default: 30 s. Those that take longer are not
    /// cancelled, but no longer waited for; their messages come again, and the inbox knows them.
    #[must_use]
    pub fn grace(self, grace: Duration) -> Self {
        self.change(|options| options.grace = grace)
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
        if self.consumer.ready(&shutdown).await? {
            tokio::join!(self.consumer.housekeep(shutdown.clone()), self.consume(&shutdown));
        }
        Ok(())
    }

    async fn consume(&self, shutdown: &Shutdown) {
        let Options { server, queue, .. } = &*self.options;
        let mut pause = SHORTEST_PAUSE;
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
                    self.work(line, shutdown).await
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
        debug!(queue, "no longer consuming");
    }

    /// Works on what comes, until the line is lost or the shutdown has begun. Says why it ended.
    async fn work(&self, mut line: Line, shutdown: &Shutdown) -> Trouble {
        // Dropped, or set, it tells those that wait to give up.
        let (over, is_over) = watch::channel(false);
        let work = Arc::new(Work {
            options: Arc::clone(&self.options),
            consumer: Arc::clone(&self.consumer),
            permits: Semaphore::new(self.options.concurrency),
            dead_letters: line.dead_letters(),
            is_over,
        });
        // Tasks, because nothing may cancel them: not even whoever drops this future.
        let mut running = FuturesUnordered::new();
        let ended = loop {
            tokio::select! {
                biased;
                () = shutdown.begun() => break None,
                Some(_) = running.next() => {}
                delivery = quietly(line.deliveries.next()) => match delivery {
                    Some(Ok(delivery)) => running.push(tokio::spawn(Arc::clone(&work).deliver(delivery))),
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
        let Some(trouble) = ended else {
            line.give_back_the_rest().await;
            let finishing = async { while running.next().await.is_some() {} };
            tokio::select! {
                () = finishing => {}
                () = shutdown.ended() => {}
                () = sleep(self.options.grace) => {
                    warn!(queue = self.options.queue, unfinished = running.len(), "the grace is over");
                }
            }
            // Whatever was not acked by now is delivered again.
            drop(work);
            line.close().await;
            return Trouble::Lost("shut down".to_owned());
        };
        trouble
    }
}
