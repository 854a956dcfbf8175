//! The API for users: publish in your own transaction, run handlers, and the verbs of the work queue for programs
//! with their own loop.
//!
//! Nothing here writes SQL or knows a database; it checks, adds what the outbox is configured for, and calls the store.

mod announce;
mod builder;
mod health;
mod home;
mod joins;
mod nudge;
mod plan;
mod pulse;
mod recovery;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{Instrument as _, debug, error, info};

pub(crate) use self::builder::Finished;
pub use self::builder::{OutboxBuilder, Policy};
pub(crate) use self::health::{Health, Trouble};
pub(crate) use self::home::Home;
use self::nudge::Nudges;
pub(crate) use self::plan::Plan;
pub(crate) use self::pulse::Pulse;
pub(crate) use self::recovery::Recoveries;
pub use self::transaction::OutboxTransaction;
use crate::alert::Latency;
use crate::commons::{Priority, Share};
use crate::dispatch::call::unpanicked;
use crate::dispatch::hot::{Door, Opening};
use crate::dispatch::verdict::{self, Ended};
use crate::dispatch::wake::Wakeup;
use crate::dispatch::{Dispatcher, Tally, Until};
use crate::encryption;
use crate::error::{Error, ErrorKind, Result};
use crate::event::IntoMessage;
use crate::handler::{Answer, HandlerError};
use crate::housekeeping;
use crate::id::{Lease, WorkerId};
use crate::message::{Enqueued, Message, NewMessage};
use crate::metrics::{self, count_with};
use crate::outcome::{Failure, Outcome, Settled, Settlement};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::sink;
use crate::store::{
    Birth, ClaimRequest, Expired, Reaped, Retention, SettledBatch, Store, StoreAdmin, TransactionalStore,
    Transactions,
};
use crate::trace::TraceContext;

/// An outbox over a store. Cloning it is cheap, and all clones are the same outbox.
///
/// ```
/// use posthaste_core::{Delivery, Event, HandlerResult, MemoryStore, Outbox, Shutdown};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct OrderPlaced { order_id: i64 }
///
/// impl Event for OrderPlaced {
///     const TOPIC: &'static str = "order.placed";
/// }
///
/// async fn send_receipt(order: Delivery<OrderPlaced>) -> HandlerResult {
///     println!("receipt for order {}", order.order_id);
///     Ok(())                                                   // an error would mean: again later
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let store = MemoryStore::new();
/// let outbox = Outbox::builder(store.clone()).on(send_receipt).build().await?;
/// let shutdown = Shutdown::new();
/// let running = tokio::spawn(outbox.run(shutdown.clone()));
///
/// let mut tx = store.begin();                                  // your own transaction, with your own rows in it
/// outbox.publish(&mut tx, &OrderPlaced { order_id: 42 }).await?;
/// tx.commit();                                                 // both, or neither
///
/// shutdown.begin();
/// running.await.expect("it does not panic")?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Outbox<S> {
    pub(crate) inner: Arc<Inner<S>>,
}

impl<S> Clone for Outbox<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

/// What all clones of an outbox share, with its dispatcher, too.
#[derive(Debug)]
pub(crate) struct Inner<S> {
    pub(crate) store: S,
    /// The store's name, in every log line and in every metric.
    pub(crate) name: Arc<str>,
    pub(crate) worker: WorkerId,
    pub(crate) plan: Arc<Plan>,
    /// Its share of the process's resources.
    pub(crate) share: Share,
    pub(crate) door: Door,
    /// Wakes the dispatcher.
    pub(crate) wakeup: Wakeup,
    /// Whether it is to end as soon as nothing is left that is due.
    pub(crate) draining: AtomicBool,
    pub(crate) latency: Latency,
    pub(crate) health: Health,
    nudges: Nudges,
    /// The sinks that can be sent to again, for housekeeping to make due what waits for them.
    pub(crate) recoveries: Recoveries,
}

impl<S> Inner<S> {
    pub(crate) fn new(store: S, name: Arc<str>, worker: WorkerId, plan: Arc<Plan>, share: Share) -> Self {
        let door = share.door(&plan.settings);
        Self {
            store,
            name,
            worker,
            plan,
            share,
            door,
            wakeup: Wakeup::default(),
            health: Health::default(),
            draining: AtomicBool::new(false),
            latency: Latency::default(),
            nudges: Nudges::default(),
            recoveries: Recoveries::default(),
        }
    }

    /// A call to the store, on one of the connections that the tenants of a process share.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.share.call(Priority::Normal, unpanicked(call)).await.map_err(|error| self.named(error))
    }

    /// A call that settles or renews held messages: it goes before all others.
    pub(crate) async fn call_first<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.share.call(Priority::High, unpanicked(call)).await.map_err(|error| self.named(error))
    }

    /// An error that says which of many stores it came from.
    pub(crate) fn named(&self, error: Error) -> Error {
        if self.share.has_others() { error.with_context("store", &*self.name) } else { error }
    }

    /// A call to the store has failed. With many stores, one that is down is logged once, not at every attempt.
    pub(crate) fn failed(&self, operation: &'static str, failed: &Error) {
        count_with(metrics::ERRORS, &self.name, "operation", operation, 1);
        if self.health.failed(failed) || !self.share.has_others() {
            error!(operation, store = %self.name, error = ?failed, "a call to the store failed");
        } else {
            debug!(operation, store = %self.name, error = ?failed, "a call to the store failed again");
        }
    }

    /// A claim has succeeded.
    pub(crate) fn is_up(&self) {
        if let Some(down) = self.health.recovered()
            && self.share.has_others()
        {
            info!(store = %self.name, ?down, "the store is back");
        }
    }

    /// One that beats for this outbox; that of many outboxes beats for all of them.
    fn pulse(&self) -> Option<Pulse> {
        if self.share.has_others() { None } else { Pulse::start(self.plan.settings.lease) }
    }
}

impl<S: Store> Outbox<S> {
    /// Configures an outbox over this store.
    pub fn builder(store: S) -> OutboxBuilder<S> {
        OutboxBuilder::new(store)
    }

    /// The outbox behind a home, if its store is of this type.
    pub(crate) fn of_home(home: &Arc<dyn Home>) -> Result<Self> {
        match Arc::clone(home).as_any().downcast() {
            Ok(inner) => Ok(Self { inner }),
            Err(_) => Err(Error::new(ErrorKind::InvalidInput, "the store is of another type")
                .with_context("store", &**home.name())
                .with_context("type", home.type_name())
                .with_context("asked_for", std::any::type_name::<S>())
                .with_remedy("ask for an outbox over the type of store that it is")),
        }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.inner.store
    }

    /// The settings.
    pub fn settings(&self) -> &Settings {
        &self.inner.plan.settings
    }

    /// Under which name this outbox holds leases.
    pub fn worker(&self) -> &WorkerId {
        &self.inner.worker
    }

    /// Stores a message in a transaction of its own, if you have no data to save with it.
    pub async fn enqueue(&self, message: impl IntoMessage) -> Result<Enqueued> {
        let message = self.prepare(message)?;
        one(self.enqueue_prepared(&self.inner.store, &[message]).await?)
    }

    /// Stores messages in one transaction of their own: all of them, or none.
    pub async fn enqueue_all<M: IntoMessage>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued>> {
        self.enqueue_all_through(&self.inner.store, messages).await
    }

    /// The same through another store of the same queue, one with connections of its own for example. Handlers of this outbox are told
    /// of the messages as of its own.
    pub async fn enqueue_all_through<M: IntoMessage>(
        &self,
        store: &S,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued>> {
        let messages = self.prepare_all(messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.enqueue_prepared(store, &messages).await
    }

    async fn enqueue_prepared(&self, store: &S, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        let enqueued = store.enqueue(messages).await.map_err(|error| self.inner.named(error))?;
        self.published(messages);
        self.announce(messages);
        Ok(enqueued)
    }

    /// Takes messages that can start now. See [`Store::claim`].
    ///
    /// Encrypted ones are decrypted. What cannot be is settled, as it would be in a running outbox, and not returned.
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        let claimed = self.inner.store.claim(request).await;
        let mut messages = claimed.map_err(|error| self.inner.named(error))?;
        let mut closed = Vec::new();
        messages.retain_mut(|message| match self.decrypt(message) {
            Ok(()) => true,
            Err(failure) => {
                let ended = Ended::Answered(Err(HandlerError::failed(failure)));
                let rules = self.inner.plan.rules_of(message.topic.as_str());
                let (settings, attempts) = (&self.inner.plan.settings, message.attempts);
                let outcome = verdict::outcome(message, attempts, ended, rules, settings, fastrand::f64());
                closed.push(Settlement::new(message.lease(), outcome));
                false
            }
        });
        if !closed.is_empty() {
            self.settle(&closed).await?;
        }
        Ok(messages)
    }

    /// Decrypts a message that came from the store itself, if it is encrypted, for callers with the right to read it.
    pub fn decrypt(&self, message: &mut Message) -> Result<(), Failure> {
        encryption::open(self.inner.plan.cipher.as_deref(), message)
    }

    /// Delivered: they are done, for ever.
    pub async fn ack(&self, leases: &[Lease]) -> Result<Vec<Settled>> {
        self.settle_all(leases, &Outcome::Ack).await
    }

    /// Failed: retried after the delay of the topic's retry policy, or dead if that was the last attempt. The message's own
    /// values in the failure's text are redacted.
    ///
    /// For a delay of your own, or many messages at a time, see [`settle`](Self::settle).
    pub async fn abandon(&self, message: &Message, failure: Failure) -> Result<Settled> {
        let (rules, settings) = (self.inner.plan.rules_of(message.topic.as_str()), &self.inner.plan.settings);
        let ended = Ended::Answered(Err(HandlerError(Answer::Retry { failure, after: None })));
        let outcome = verdict::outcome(message, message.attempts, ended, rules, settings, fastrand::f64());
        let settled = self.settle_all(&[message.lease()], &outcome).await?;
        settled.first().copied().ok_or_else(no_answer)
    }

    /// Not yet: again after the delay, without any charge.
    pub async fn defer(&self, leases: &[Lease], delay: Duration) -> Result<Vec<Settled>> {
        self.settle_all(leases, &Outcome::Defer { delay }).await
    }

    /// Not by me: again at once, without any charge.
    pub async fn release(&self, leases: &[Lease]) -> Result<Vec<Settled>> {
        self.settle_all(leases, &Outcome::Release).await
    }

    /// Never: they are dead.
    pub async fn fail(&self, leases: &[Lease], failure: Failure) -> Result<Vec<Settled>> {
        self.settle_all(leases, &Outcome::Fail { failure }).await
    }

    /// Outcomes of any kind, in one round trip. See [`Store::settle`].
    pub async fn settle(&self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
        let settled = self.inner.store.settle(settlements).await;
        let SettledBatch { settled, joins } = settled.map_err(|error| self.inner.named(error))?;
        self.inner.joins_ended(&joins);
        Ok(settled)
    }

    /// Lets leases last this long from now. See [`Store::renew`].
    pub async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        self.inner.store.renew(leases, lease).await
    }

    /// Takes messages back whose lease has run out. See [`Store::reap`].
    pub async fn reap(&self, limit: u32) -> Result<Reaped> {
        let reaped = self.inner.store.reap(limit).await?;
        self.inner.joins_ended(&reaped.joins);
        Ok(reaped)
    }

    /// Gives up messages that no worker claimed before their expiry, and joins whose deadline has passed. See
    /// [`Store::expire`].
    pub async fn expire(&self, limit: u32) -> Result<Expired> {
        let expired = self.inner.store.expire(limit).await?;
        self.inner.joins_ended(&expired.joins);
        Ok(expired)
    }

    /// Sets aside what waits behind a dead message with the policy `park`. See [`Store::park`].
    pub async fn park(&self, limit: u32) -> Result<u64> {
        self.inner.store.park(limit).await
    }

    /// Removes, or archives, messages whose retention is over. See [`Store::prune`].
    pub async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        self.inner.store.prune(retention, limit).await
    }

    async fn settle_all(&self, leases: &[Lease], outcome: &Outcome) -> Result<Vec<Settled>> {
        let settlements: Vec<_> =
            leases.iter().map(|lease| Settlement::new(*lease, outcome.clone())).collect();
        self.settle(&settlements).await
    }

    fn prepare(&self, message: impl IntoMessage) -> Result<NewMessage> {
        let mut message = self.prepare_plain(message)?;
        self.inner.plan.seal(&mut message)?;
        Ok(message)
    }

    /// The same, not encrypted yet.
    fn prepare_plain(&self, message: impl IntoMessage) -> Result<NewMessage> {
        let mut message = message.into_message().map_err(|error| error.during("publish"))?;
        let most = self.inner.plan.settings.max_payload_bytes as usize;
        message.check_payload(most).map_err(|error| error.during("publish"))?;
        encryption::check_headers(message.headers()).map_err(|error| error.during("publish"))?;
        if let Some((_, policy)) =
            self.inner.plan.order.iter().find(|(topics, _)| topics.contains(message.topic()))
        {
            message.set_order(*policy);
        }
        trace(&mut message);
        Ok(message)
    }

    fn prepare_all<M: IntoMessage>(&self, messages: impl IntoIterator<Item = M>) -> Result<Vec<NewMessage>> {
        messages.into_iter().map(|message| self.prepare(message)).collect()
    }

    /// Says that messages were written, once per batch, with nothing of their content.
    fn published(&self, messages: &[NewMessage]) {
        let Some(first) = messages.first() else { return };
        info!(
            store = %self.inner.name, count = messages.len(), message_id = %first.id(), topic = first.topic(),
            "enqueued"
        );
        for message in messages {
            count_with(metrics::ENQUEUED, &self.inner.name, "topic", message.topic(), 1);
        }
    }
}

impl<S: StoreAdmin> Outbox<S> {
    /// Delivers messages to the handlers of this outbox, until the shutdown: claims and hot messages, retries, renewals,
    /// and housekeeping by its schedules.
    ///
    /// It returns an error only if it cannot begin, or if outcomes could not be stored at the end of a graceful
    /// shutdown; those messages come again when their leases have run out. If its future is dropped, a graceful
    /// shutdown begins in the background.
    ///
    /// See [`shutdown_signal`](crate::shutdown_signal) and [`Shutdown`]; any future that resolves to `()` will do, too.
    pub fn run<E: Into<Shutdown>>(&self, shutdown: E) -> impl Future<Output = Result<()>> + Send + use<S, E> {
        let inner = Arc::clone(&self.inner);
        let shutdown = shutdown.into();
        async move {
            if inner.plan.registry.is_empty() {
                return Err(Error::new(ErrorKind::Configuration, "the outbox has no handlers")
                    .during("run")
                    .with_remedy("give it some by on() or on_topic(), or do not run it"));
            }
            let Some(hot) = inner.door.open() else {
                return Err(Error::new(ErrorKind::Configuration, "this outbox runs already").during("run"));
            };
            let opening = hot.opening;
            let span = tracing::debug_span!("outbox", store = %inner.name, worker = %inner.worker);
            if !inner.share.has_others() {
                info!(store = %inner.name, worker = %inner.worker, workers = inner.plan.settings.workers, "running");
            }
            let dispatcher = Dispatcher::new(Arc::clone(&inner), Until::ShutDown);
            let dispatch = tokio::spawn(dispatcher.run(hot, shutdown.clone()).instrument(span.clone()));
            let housekeeping = tokio::spawn(
                housekeeping::run(Arc::clone(&inner), shutdown.clone()).instrument(span.clone()),
            );
            let recovery = tokio::spawn(recovery::run(Arc::clone(&inner), shutdown.clone()).instrument(span));
            if !inner.share.has_others() {
                sink::attend(inner.plan.registry.sinks(), &shutdown);
            }
            let _guard = Guard { shutdown: shutdown.clone(), inner: Arc::clone(&inner), opening };
            let _pulse = inner.pulse();
            let begun = tokio::spawn({
                let shutdown = shutdown.clone();
                async move {
                    shutdown.begun().await;
                    Instant::now()
                }
            });
            let ended = dispatch.await;
            shutdown.begin_once();
            let begun = begun.await.unwrap_or_else(|_| Instant::now());
            // It ends with the batch under way, unless the database is silent: then that call goes on by itself.
            tokio::select! {
                biased;
                () = shutdown.ended() => {}
                () = async { drop((housekeeping.await, recovery.await)) } => {}
                () = sleep_until(begun + inner.plan.settings.shutdown_grace) => {}
            }
            match ended {
                Ok(tally) => tally.map(drop),
                Err(error) => Err(Error::new(ErrorKind::Database, "the dispatcher panicked")
                    .during("run")
                    .with_remedy("this is a defect of posthaste's: please report it")
                    .with_source(error)),
            }
        }
    }

    /// Delivers everything that is due, including messages that its handlers publish, and returns when nothing is left:
    /// for tests, and for programs that run now and then. It leaves retries that are due later.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
    /// use posthaste_core::{HandlerError, MemoryStore, Message, NewMessage, Outbox};
    ///
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .on_topic("number", async |message: Message| match &message.payload[..] {
    ///         b"13" => Err(HandlerError::dead("unlucky")),
    ///         _ => Ok(()),
    ///     })
    ///     .build().await?;
    /// outbox.enqueue_all(["12", "13", "14"].map(|n| NewMessage::bytes("number", n))).await?;
    /// let tally = outbox.drain().await?;
    /// assert_eq!((tally.delivered, tally.dead), (2, 1));
    /// # Ok(()) }
    /// ```
    pub async fn drain(&self) -> Result<Tally> {
        let inner = &self.inner;
        if inner.plan.registry.is_empty() {
            return Ok(Tally::default());
        }
        let Some(hot) = inner.door.open() else {
            return Err(Error::new(ErrorKind::Configuration, "this outbox runs already").during("drain"));
        };
        let shutdown = Shutdown::new();
        let _guard = Guard { shutdown: shutdown.clone(), inner: Arc::clone(inner), opening: hot.opening };
        let _pulse = inner.pulse();
        let dispatcher = Dispatcher::new(Arc::clone(inner), Until::Idle);
        match tokio::spawn(dispatcher.run(hot, shutdown)).await {
            Ok(tally) => tally,
            Err(error) => Err(Error::new(ErrorKind::Database, "the dispatcher panicked")
                .during("drain")
                .with_source(error)),
        }
    }
}

/// Closes the hot path, and begins a shutdown, however a run ends.
struct Guard<S> {
    shutdown: Shutdown,
    inner: Arc<Inner<S>>,
    opening: Opening,
}

impl<S> Drop for Guard<S> {
    fn drop(&mut self) {
        self.shutdown.begin_once();
        self.inner.door.close(self.opening);
    }
}

impl<S: TransactionalStore> Outbox<S> {
    /// Publishes a message in your own transaction: it exists if, and only if, that transaction commits.
    ///
    /// A message whose id or dedup key is stored already is not stored again, and your transaction goes on. The cold path
    /// finds the message soon after your commit; for the hot path see [`begin`](Self::begin) and [`enlist`](Self::enlist).
    pub async fn publish(
        &self,
        connection: &mut S::Connection,
        message: impl IntoMessage,
    ) -> Result<Enqueued> {
        let message = self.prepare(message)?;
        one(self.publish_prepared(connection, &[message]).await?)
    }

    /// Publishes messages in your own transaction, in one round trip.
    pub async fn publish_all<M: IntoMessage>(
        &self,
        connection: &mut S::Connection,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued>> {
        let messages = self.prepare_all(messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.publish_prepared(connection, &messages).await
    }

    async fn publish_prepared(
        &self,
        connection: &mut S::Connection,
        messages: &[NewMessage],
    ) -> Result<Vec<Enqueued>> {
        let enqueued = self.inner.store.insert(connection, messages, Birth::Ready).await;
        let enqueued = enqueued.map_err(|error| self.inner.named(error))?;
        self.published(messages);
        // The commit is yours, and comes some time from now: polling starts soon, and is repeated.
        self.announce(messages);
        Ok(enqueued)
    }
}

impl<S: Transactions> Outbox<S> {
    /// Opens a transaction whose messages take the hot path: delivered from memory right after
    /// [`commit`](OutboxTransaction::commit), if this outbox runs, has a handler for their topic, and has room.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
    /// use posthaste_core::{MemoryStore, Message, NewMessage, Outbox};
    ///
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .on_topic("greeting", async |_: Message| posthaste_core::handled())
    ///     .build().await?;
    /// let mut tx = outbox.begin().await?;               // dereferences to your database's connection
    /// tx.publish(NewMessage::bytes("greeting", "hello")).await?;
    /// tx.commit().await?;
    /// # Ok(()) }
    /// ```
    pub async fn begin(&self) -> Result<OutboxTransaction<S>> {
        let transaction = self.inner.store.begin().await.map_err(|error| self.inner.named(error))?;
        Ok(OutboxTransaction::new(self.clone(), transaction, false))
    }

    /// The same with a transaction that you have opened yourself, say from a pool of your own.
    pub fn enlist(&self, transaction: S::Transaction) -> OutboxTransaction<S> {
        OutboxTransaction::new(self.clone(), transaction, true)
    }
}

/// Adds the publisher's trace, if there is one.
fn trace(message: &mut NewMessage) {
    if let Some(context) = TraceContext::current() {
        message.trace(&context);
    }
}

fn one(enqueued: Vec<Enqueued>) -> Result<Enqueued> {
    enqueued.into_iter().next().ok_or_else(no_answer)
}

fn no_answer() -> Error {
    Error::new(ErrorKind::Database, "the store gave no answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Cancellation;
    use crate::order::OrderPolicy;
    use crate::retry::ExponentialBackoff;
    use crate::store::memory::MemoryStore;
    use crate::topic::Topics;

    #[tokio::test(flavor = "current_thread")]
    async fn impossible_settings_do_not_construct() {
        let error = Outbox::builder(MemoryStore::new()).max_payload_bytes(0).build().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid configuration: max_payload_bytes is 0; give it 1 to 1073741824"
        );
        assert!(Outbox::builder(MemoryStore::new()).max_attempts(0).build().await.is_err());
    }

    /// HOT-007: a payload above the limit is refused before the store is asked.
    #[tokio::test(flavor = "current_thread")]
    async fn the_limit_of_payloads_is_the_outbox_s() {
        let outbox = Outbox::builder(MemoryStore::new()).build().await.unwrap();
        let bytes = |n: usize| NewMessage::bytes("t", vec![0u8; n]);
        assert!(outbox.enqueue(bytes(1_048_576)).await.is_ok());
        let error = outbox.enqueue(bytes(1_048_577)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let large = Outbox::builder(MemoryStore::new()).max_payload_bytes(16 << 20).build().await.unwrap();
        assert!(large.enqueue(bytes(16 << 20)).await.is_ok());
    }

    #[tokio::test(flavor = "current_thread")]
    async fn the_first_matching_order_policy_decides_unless_the_message_does() {
        let outbox = Outbox::builder(MemoryStore::new())
            .order(Topics::of(["audit.*"]).unwrap(), OrderPolicy::Skip)
            .order(Topics::all(), OrderPolicy::Park);
        let outbox = outbox.build().await.unwrap();
        let policy = |message| outbox.prepare(message).unwrap().order().unwrap();
        assert_eq!(policy(NewMessage::bytes("audit.x", "")), OrderPolicy::Skip);
        assert_eq!(policy(NewMessage::bytes("order", "")), OrderPolicy::Park);
        assert_eq!(policy(NewMessage::bytes("order", "").order(OrderPolicy::Block)), OrderPolicy::Block);
    }

    /// OBX-037, OBX-063, OBX-064: abandoning waits as the policy says, and ends at the last attempt.
    #[tokio::test(flavor = "current_thread")]
    async fn abandoning_follows_the_policy() {
        let clock = Arc::new(crate::clock::ManualClock::at(std::time::SystemTime::UNIX_EPOCH));
        let store = MemoryStore::with_clock(clock.clone());
        let seconds = |n| std::time::Duration::from_secs(n);
        let policy = ExponentialBackoff::new(seconds(10), seconds(15)).without_jitter();
        let outbox = Outbox::builder(store).retry(policy).max_attempts(3).build().await.unwrap();
        outbox.enqueue(NewMessage::bytes("t", "")).await.unwrap();
        let request = ClaimRequest::new(crate::id::WorkerId::new("w").unwrap());
        for delay in [10, 15] {
            let message = outbox.claim(&request).await.unwrap().remove(0);
            assert_eq!(outbox.abandon(&message, Failure::business("no")).await.unwrap(), Settled::Applied);
            clock.advance(seconds(delay - 1));
            assert!(outbox.claim(&request).await.unwrap().is_empty());
            clock.advance(seconds(1));
        }
        let message = outbox.claim(&request).await.unwrap().remove(0);
        assert_eq!(outbox.abandon(&message, Failure::business("no")).await.unwrap(), Settled::Applied);
        assert_eq!(crate::store::StoreAdmin::stats(outbox.store()).await.unwrap().dead.value, 1);
    }

    /// R1: a handler that blocks the only thread there is delays the others, and charges them nothing.
    #[tokio::test(flavor = "current_thread")]
    async fn a_handler_that_blocks_the_only_thread() {
        let settings = Settings { handler_timeout: Duration::from_secs(2), ..Settings::default() };
        let blocked = Arc::new(tokio::sync::Semaphore::new(0));
        let unblocked = Arc::clone(&blocked);
        let outbox = Outbox::builder(MemoryStore::new())
            .settings(settings)
            .on_topic("waits", move |_: Message, cancellation: Cancellation| {
                let blocked = Arc::clone(&blocked);
                async move {
                    drop(blocked.acquire().await);
                    // Time for the dispatcher to check deadlines.
                    for _ in 0..1_000 {
                        tokio::task::yield_now().await;
                    }
                    if cancellation.is_cancelled() { Err(HandlerError::from("cancelled")) } else { Ok(()) }
                }
            })
            .on_topic("blocks", move |_: Message| {
                let unblocked = Arc::clone(&unblocked);
                async move {
                    std::thread::sleep(Duration::from_secs(3));
                    unblocked.add_permits(1);
                    Ok::<(), HandlerError>(())
                }
            })
            .build()
            .await
            .unwrap();
        let messages = ["waits", "waits", "blocks"].map(|topic| NewMessage::bytes(topic, ""));
        outbox.enqueue_all(messages).await.unwrap();
        let tally = outbox.drain().await.unwrap();
        assert_eq!((tally.delivered, tally.failed), (3, 0));
    }

    /// INB-010: events gathered by an aggregate are published together in its transaction.
    #[tokio::test(flavor = "current_thread")]
    async fn all_or_none_of_a_batch() {
        let store = MemoryStore::new();
        let outbox = Outbox::builder(store.clone()).build().await.unwrap();
        let mut tx = store.begin();
        let batch = [NewMessage::bytes("a", ""), NewMessage::bytes("", ""), NewMessage::bytes("b", "")];
        assert!(outbox.publish_all(&mut tx, batch).await.is_err());
        tx.commit();
        assert!(outbox.publish_all(&mut store.begin(), Vec::<NewMessage>::new()).await.unwrap().is_empty());
        let worker = crate::id::WorkerId::new("w").unwrap();
        assert!(outbox.claim(&ClaimRequest::new(worker)).await.unwrap().is_empty());
    }
}
