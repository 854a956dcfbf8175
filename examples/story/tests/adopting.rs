//! The guide `docs/adopting.md`, step by step, against the real broker: from publishing directly to an outbox, without a pause,
//! and with old and new instances side by side. Consumers act once all the time.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lapin::options::{BasicPublishOptions, ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use posthaste::rabbitmq::{
    DeadLetter, ExchangeType, RabbitConsumer, RabbitOptions, RabbitServer, RabbitSink, Topology,
};
use posthaste::{
    Change, Consume, Consumer, Filter, HandlerResult, Inbox, MessageId, NewMessage, Outbox, Received,
    Shutdown, SqliteStore, State, StoreAdmin as _,
};
use sqlx::SqliteConnection;
use tokio::time::{Instant, sleep};

/// Counts what it acts upon; it counts after the transaction's own work, so what it counted may be rolled back only by a crash.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<BTreeMap<MessageId, usize>>>);

impl Counted {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

impl Consume<SqliteStore> for Counted {
    async fn consume(&self, _tx: &mut SqliteConnection, message: &Received) -> HandlerResult {
        *self.0.lock().unwrap().entry(message.id).or_default() += 1;
        Ok(())
    }
}

/// A service at one of its stages.
struct Service {
    outbox: Outbox<SqliteStore>,
    channel: Channel,
    exchange: String,
    direct: bool,
    into_outbox: bool,
}

impl Service {
    /// Saves an order, and tells the world by whatever way it knows.
    async fn order(&self) -> MessageId {
        let id = MessageId::new();
        if self.into_outbox {
            let mut tx = self.outbox.begin().await.unwrap();
            tx.publish(NewMessage::json("order.placed", &"order").id(id)).await.unwrap();
            tx.commit().await.unwrap();
        }
        if self.direct {
            let properties = BasicProperties::default()
                .with_message_id(ShortString::from(id.to_string()))
                .with_app_id(ShortString::from("orders"))
                .with_type(ShortString::from("order.placed"));
            let exchange = ShortString::from(self.exchange.as_str());
            let options = BasicPublishOptions::default();
            let publish = self.channel.basic_publish(
                exchange,
                "order.placed".into(),
                options,
                b"\"order\"",
                properties,
            );
            publish.await.unwrap().await.unwrap();
        }
        id
    }
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !condition().await {
        assert!(begin.elapsed() < Duration::from_secs(120), "it did not become true that {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// RMQ-013: three steps, each beside the one before it; every order is acted upon once, from the first to the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_steps_without_a_pause() {
    const EACH: usize = 20;
    let Ok(broker) = std::env::var("POSTHASTE_TEST_RABBITMQ") else {
        eprintln!("skipped: POSTHASTE_TEST_RABBITMQ is not set");
        return;
    };
    let name = format!("adopting-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let topology = Topology::new()
        .exchange(&name, ExchangeType::Topic)
        .queue(&name)
        .bind(&name, &name, "order.*")
        .queue(format!("{name}.dead"));

    // Before anything else: a consumer with an inbox.
    let inventory = SqliteStore::open(folder.path().join("inventory.db")).await.unwrap();
    inventory.migrate().await.unwrap();
    let counted = Counted::default();
    let consumer = Consumer::new(Inbox::new(inventory, "inventory").unwrap(), counted.clone());
    let server = RabbitServer::new(&broker).unwrap().declare(topology.clone());
    let dead = DeadLetter::Queue(format!("{name}.dead"));
    let consumer = RabbitConsumer::new(server, &name, dead, consumer).unwrap();
    let stop = Shutdown::new();
    let consuming = tokio::spawn({
        let stop = stop.clone();
        async move { consumer.run(stop).await.unwrap() }
    });

    let store = SqliteStore::open(folder.path().join("orders.db")).await.unwrap();
    store.migrate().await.unwrap();
    let sink =
        RabbitSink::new(RabbitOptions::new(&broker, &name).unwrap().source("orders").declare(topology));
    let outbox = Outbox::builder(store.clone()).sink("order.*", sink.unwrap()).build().await.unwrap();
    let connection = Connection::connect(&broker, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(lapin::options::ConfirmSelectOptions::default()).await.unwrap();
    let at = |into_outbox, direct| Service {
        outbox: outbox.clone(),
        channel: channel.clone(),
        exchange: name.clone(),
        direct,
        into_outbox,
    };
    let (before, both, after) = (at(false, true), at(true, true), at(true, false));
    // It consumes once all is declared: messages published before its queue is bound would be lost.
    eventually("the consumer is there", async || {
        let looking = connection.create_channel().await.unwrap();
        let there = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = looking.queue_declare(name.as_str().into(), there, FieldTable::default()).await;
        queue.is_ok_and(|queue| queue.consumer_count() == 1)
    })
    .await;
    let mut orders = Vec::new();

    // 1: written, not delivered. What gathers has been published directly, so it goes before the next step.
    for _ in 0..EACH {
        orders.extend([before.order().await, both.order().await]);
    }
    eventually("all are acted upon", async || {
        orders.iter().all(|id| counted.0.lock().unwrap().contains_key(id))
    })
    .await;
    assert_eq!(store.stats().await.unwrap().ready.value, EACH as u64);
    let everything = Change::new(Filter::default(), "adopting", "published directly").unwrap();
    assert_eq!(store.bury(&everything).await.unwrap().len(), EACH);

    // 2: delivered both ways.
    let shutdown = Shutdown::new();
    let running = tokio::spawn(outbox.run(shutdown.clone()));
    for _ in 0..EACH {
        orders.push(both.order().await);
    }
    eventually("the outbox has delivered them, too", async || {
        store.stats().await.unwrap().done.value == EACH as u64
    })
    .await;

    // 3: no longer directly; instances of the step before are still there.
    for _ in 0..EACH {
        orders.extend([both.order().await, after.order().await]);
    }
    eventually("all are acted upon", async || counted.len() == orders.len()).await;
    eventually("all are done", async || store.stats().await.unwrap().done.value == 3 * EACH as u64).await;

    shutdown.begin();
    running.await.unwrap().unwrap();
    stop.begin();
    consuming.await.unwrap();
    assert!(counted.0.lock().unwrap().values().all(|times| *times == 1), "each once");
    let dead = Filter { state: Some(State::Dead), ..Filter::default() };
    assert_eq!(store.list(&dead, None, 200).await.unwrap().records.len(), EACH, "those that were buried");
    for queue in [name.clone(), format!("{name}.dead")] {
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }
    channel.exchange_delete(name.into(), ExchangeDeleteOptions::default()).await.unwrap();
}
