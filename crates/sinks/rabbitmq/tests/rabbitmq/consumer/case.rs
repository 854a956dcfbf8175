//! A queue with its consumer, whose effects can be counted.

use std::time::Duration;

use posthaste_core::{
    Consume, Consumer, ExponentialBackoff, HandlerResult, Inbox, MemoryStore, MemoryTransaction, MessageId,
    NewMessage, Outbox, Received, Shutdown, Topics,
};
use posthaste_rabbitmq::{DeadLetter, RabbitConsumer, RabbitServer, RabbitSink};
use posthaste_testkit::{SinkFixture as _, stored};
use tokio::task::JoinHandle;

use crate::fixture::{RabbitFixture, until};
use crate::verdicts::{messages, send};

/// A handler whose effect is a message in an outbox, in the same transaction; what else it does is the test's business.
pub(super) struct Acting<F> {
    pub(super) outbox: Outbox<MemoryStore>,
    pub(super) first: F,
}

impl<F, Done> Consume<MemoryStore> for Acting<F>
where
    F: Fn(&Received) -> Done + Send + Sync + 'static,
    Done: Future<Output = HandlerResult> + Send,
{
    async fn consume(&self, tx: &mut MemoryTransaction, message: &Received) -> HandlerResult {
        let first = (self.first)(message);
        self.outbox.publish(tx, NewMessage::bytes("effect", message.payload.clone())).await?;
        first.await
    }
}

/// A queue with its consumer, and the fate of the messages.
pub(super) struct Case<'a> {
    pub(super) fixture: &'a RabbitFixture,
    pub(super) store: MemoryStore,
    pub(super) queue: String,
    pub(super) dead: String,
}

pub(super) struct Running {
    pub(super) shutdown: Shutdown,
    pub(super) task: JoinHandle<()>,
}

impl Running {
    pub(super) async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap();
    }
}

impl<'a> Case<'a> {
    pub(super) async fn new(fixture: &'a RabbitFixture) -> Self {
        fixture.take("in").await;
        let dead = fixture.queue_of("dead");
        fixture.queue(&dead).await;
        Self { fixture, store: MemoryStore::new(), queue: fixture.queue_of("in"), dead }
    }

    pub(super) async fn consumer<F, Done>(
        &self,
        server: RabbitServer,
        first: F,
    ) -> RabbitConsumer<MemoryStore, Acting<F>>
    where
        F: Fn(&Received) -> Done + Send + Sync + 'static,
        Done: Future<Output = HandlerResult> + Send,
    {
        let outbox = Outbox::builder(self.store.clone()).build().await.unwrap();
        let inbox = Inbox::new(self.store.clone(), "test").unwrap();
        let soon = ExponentialBackoff::new(Duration::from_millis(20), Duration::from_millis(50));
        let consumer = Consumer::new(inbox, Acting { outbox, first }).retry(soon).max_attempts(3);
        let dead = DeadLetter::Queue(self.dead.clone());
        RabbitConsumer::new(server, self.queue.as_str(), dead, consumer).unwrap()
    }

    pub(super) fn server(&self) -> RabbitServer {
        self.fixture.server_at(self.fixture.server())
    }

    pub(super) async fn publish(&self, count: usize) -> Vec<MessageId> {
        let sink = RabbitSink::new(self.fixture.options()).unwrap();
        let batch = messages("in", count);
        assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
        batch.iter().map(|message| message.id).collect()
    }

    pub(super) async fn effects(&self) -> usize {
        stored(&self.store, &Topics::of(["effect"]).unwrap()).await.len()
    }

    /// Nothing waits in the queue, and nothing is held by a consumer: asked when there is none any more.
    pub(super) async fn is_empty(&self) {
        until("the queue is empty", async || (self.fixture.depth(&self.queue).await == 0).then_some(()))
            .await;
    }
}

pub(super) fn run<S, H>(consumer: &RabbitConsumer<S, H>) -> Running
where
    S: posthaste_core::InboxStore + posthaste_core::Transactions,
    H: Consume<S>,
{
    let (shutdown, consumer) = (Shutdown::new(), consumer.clone());
    let begun = shutdown.clone();
    Running { shutdown, task: tokio::spawn(async move { consumer.run(begun).await.unwrap() }) }
}

impl Case<'_> {
    /// Whether a consumer has everything that was in the queue.
    pub(super) async fn is_taken(&self) -> bool {
        let options = lapin::options::QueueDeclareOptions { passive: true, ..Default::default() };
        let channel = &self.fixture.channel;
        let queue =
            channel.queue_declare(self.queue.as_str().into(), options, Default::default()).await.unwrap();
        queue.message_count() == 0 && queue.consumer_count() == 1
    }
}
