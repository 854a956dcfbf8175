//! The front door: publish in your own transaction, and the verbs of the work queue for those who bring their own
//! loop.
//!
//! Nothing here writes SQL or knows a database; it checks, adds what the outbox is configured for, and calls the store.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::event::IntoMessage;
use crate::id::Lease;
use crate::message::{DEFAULT_MAX_PAYLOAD_BYTES, Enqueued, Message, NewMessage};
use crate::order::OrderPolicy;
use crate::outcome::{Failure, Outcome, Settled, Settlement};
use crate::retry::{DEFAULT_MAX_ATTEMPTS, ExponentialBackoff, RetryPolicy};
use crate::store::{Birth, ClaimRequest, Reaped, Retention, Store, TransactionalStore};
use crate::topic::Topics;

/// An outbox over a store.
///
/// ```
/// use posthaste_core::{ClaimRequest, Event, MemoryStore, Outbox, WorkerId};
/// use serde::Serialize;
///
/// #[derive(Serialize)]
/// struct OrderPlaced { order_id: i64 }
///
/// impl Event for OrderPlaced {
///     const TOPIC: &'static str = "order.placed";
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let store = MemoryStore::new();
/// let outbox = Outbox::builder(store.clone()).build().await?;
///
/// let mut tx = store.begin();                                  // your own transaction, with your own rows in it
/// outbox.publish(&mut tx, &OrderPlaced { order_id: 42 }).await?;
/// tx.commit();                                                 // both, or neither
///
/// for message in outbox.claim(&ClaimRequest::new(WorkerId::new("me")?)).await? {
///     println!("{} {}", message.topic, message.id);
///     outbox.ack(&[message.lease()]).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Outbox<S> {
    store: S,
    max_payload_bytes: usize,
    max_attempts: u32,
    retry: Arc<dyn RetryPolicy>,
    order: Vec<(Topics, OrderPolicy)>,
}

/// Configures an [`Outbox`].
#[must_use = "a builder does nothing until it is built"]
#[derive(Debug)]
pub struct OutboxBuilder<S> {
    outbox: Outbox<S>,
    error: Option<Error>,
}

impl<S: Store> OutboxBuilder<S> {
    /// The most bytes of a payload: 1 byte to 1 GiB. Default: 1 MiB.
    pub fn max_payload_bytes(mut self, bytes: usize) -> Self {
        if !(1..=1 << 30).contains(&bytes) {
            self.refuse(format!("max_payload_bytes is {bytes}"), "give it 1 to 1073741824");
        }
        self.outbox.max_payload_bytes = bytes;
        self
    }

    /// How many attempts a message has before [`Outbox::abandon`] makes it dead: at least 1. Default: 10.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        if attempts == 0 {
            self.refuse("max_attempts is 0".into(), "give it at least 1");
        }
        self.outbox.max_attempts = attempts;
        self
    }

    /// How long [`Outbox::abandon`] waits before the next attempt. Default: [`ExponentialBackoff`], 2 s to 60 s.
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.outbox.retry = Arc::new(policy);
        self
    }

    /// What becomes of a key when one of its messages of these topics dies; of several that match, the first one given
    /// decides. Default: [`OrderPolicy::Block`].
    pub fn order(mut self, topics: Topics, policy: OrderPolicy) -> Self {
        self.outbox.order.push((topics, policy));
        self
    }

    /// The outbox, once the store has been checked: reachable, and with tables that this code knows.
    pub async fn build(self) -> Result<Outbox<S>> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.outbox.store.check().await?;
        Ok(self.outbox)
    }

    fn refuse(&mut self, message: String, remedy: &str) {
        let error = || Error::new(ErrorKind::Configuration, message).with_remedy(remedy);
        self.error.get_or_insert_with(error);
    }
}

impl<S: Store> Outbox<S> {
    /// Configures an outbox over this store.
    pub fn builder(store: S) -> OutboxBuilder<S> {
        let outbox = Self {
            store,
            max_payload_bytes: DEFAULT_MAX_PAYLOAD_BYTES,
            max_attempts: DEFAULT_MAX_ATTEMPTS,
            retry: Arc::new(ExponentialBackoff::default()),
            order: Vec::new(),
        };
        OutboxBuilder { outbox, error: None }
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Stores a message in a transaction of its own, for those who have no data of their own to save with it.
    pub async fn enqueue(&self, message: impl IntoMessage) -> Result<Enqueued> {
        let message = self.prepare(message)?;
        one(self.store.enqueue(&[message]).await?)
    }

    /// Stores messages in one transaction of their own: all of them, or none.
    pub async fn enqueue_all<M: IntoMessage>(
        &self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued>> {
        let messages = self.prepare_all(messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        self.store.enqueue(&messages).await
    }

    /// Takes messages that can start now. See [`Store::claim`].
    pub async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        self.store.claim(request).await
    }

    /// Delivered: they are done, for ever.
    pub async fn ack(&self, leases: &[Lease]) -> Result<Vec<Settled>> {
        self.settle_all(leases, &Outcome::Ack).await
    }

    /// Failed: again after the delay that the outbox's retry policy says, or dead if that was the last attempt.
    ///
    /// For a delay of your own, or many messages at a time, see [`settle`](Self::settle).
    pub async fn abandon(&self, message: &Message, failure: Failure) -> Result<Settled> {
        let attempt = message.attempts.saturating_add(1);
        let delay = self.retry.delay(attempt, fastrand::f64());
        let outcome = Outcome::Abandon { delay, failure, max_attempts: self.max_attempts };
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
        self.store.settle(settlements).await
    }

    /// Lets leases last this long from now. See [`Store::renew`].
    pub async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        self.store.renew(leases, lease).await
    }

    /// Takes messages back whose lease has run out. See [`Store::reap`].
    pub async fn reap(&self, limit: u32) -> Result<Reaped> {
        self.store.reap(limit).await
    }

    /// Gives up messages that nobody claimed before their expiry. See [`Store::expire`].
    pub async fn expire(&self, limit: u32) -> Result<u64> {
        self.store.expire(limit).await
    }

    /// Sets aside what waits behind a dead message with the policy `park`. See [`Store::park`].
    pub async fn park(&self, limit: u32) -> Result<u64> {
        self.store.park(limit).await
    }

    /// Removes, or archives, messages whose retention is over. See [`Store::prune`].
    pub async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        self.store.prune(retention, limit).await
    }

    async fn settle_all(&self, leases: &[Lease], outcome: &Outcome) -> Result<Vec<Settled>> {
        let settlements: Vec<_> =
            leases.iter().map(|lease| Settlement { lease: *lease, outcome: outcome.clone() }).collect();
        self.store.settle(&settlements).await
    }

    fn prepare(&self, message: impl IntoMessage) -> Result<NewMessage> {
        let mut message = message.into_message().map_err(|error| error.during("publish"))?;
        message.check_payload(self.max_payload_bytes).map_err(|error| error.during("publish"))?;
        if let Some((_, policy)) = self.order.iter().find(|(topics, _)| topics.contains(message.topic())) {
            message.set_order(*policy);
        }
        Ok(message)
    }

    fn prepare_all<M: IntoMessage>(&self, messages: impl IntoIterator<Item = M>) -> Result<Vec<NewMessage>> {
        messages.into_iter().map(|message| self.prepare(message)).collect()
    }
}

impl<S: TransactionalStore> Outbox<S> {
    /// Publishes a message in your own transaction: it exists if, and only if, that transaction commits.
    ///
    /// A message whose id or dedup key is stored already is not stored again, and your transaction goes on.
    pub async fn publish(
        &self,
        connection: &mut S::Connection,
        message: impl IntoMessage,
    ) -> Result<Enqueued> {
        let message = self.prepare(message)?;
        one(self.store.insert(connection, &[message], Birth::Ready).await?)
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
        self.store.insert(connection, &messages, Birth::Ready).await
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
    use crate::store::memory::MemoryStore;

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
