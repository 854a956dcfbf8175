//! Tests that need a private server: restarts, a server out of memory, TLS. They share one node, one after the other.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lapin::options::BasicGetOptions;
use lapin::{Connection, ConnectionProperties};
use posthaste_core::{
    Batch, FailureClass, Guarded, MemoryStore, MessageId, NewMessage, Outbox, Settings, Shutdown, Sink as _,
    SinkOptions, State, Topics,
};
use posthaste_rabbitmq::{ExchangeType, RabbitOptions, RabbitServer, RabbitSink, Topology};
use posthaste_testkit::{SinkFixture as _, stored};
use tokio::time::Instant;

use crate::consumer::a_long_defer_outlives_the_patience_of_the_server;
use crate::fixture::{LONG, RabbitFixture, until, url};
use crate::node::Node;
use crate::tls::Certificates;
use crate::verdicts::{class, message, messages, send};

const WINDOW: usize = 50;

/// An outbox in memory that sends to a node.
struct Sender {
    outbox: Outbox<MemoryStore>,
    guarded: Guarded,
    sink: RabbitSink,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<posthaste_core::Result<()>>,
}

impl Sender {
    async fn start(node: &Node) -> Self {
        let topology = Topology::new()
            .exchange("shop", ExchangeType::Topic)
            .queue("stock")
            .bind("stock", "shop", "order.*");
        let options = RabbitOptions::new(&node.url(), "shop").unwrap().declare(topology);
        let sink = RabbitSink::new(options).unwrap();
        let mut settings = Settings::default();
        settings.workers = u32::try_from(WINDOW).unwrap();
        // It never runs out.
        settings.lease = Duration::from_secs(600);
        (settings.poll_floor, settings.poll_ceiling) = (Duration::from_millis(2), Duration::from_millis(20));
        let options = SinkOptions::new()
            .deadline(Duration::from_secs(20))
            .pauses(Duration::from_millis(50), Duration::from_millis(500));
        let guarded = Guarded::with(sink.clone(), options);
        let outbox = Outbox::builder(MemoryStore::new()).settings(settings).sink("*", guarded.clone());
        let outbox = outbox.build().await.unwrap();
        let shutdown = Shutdown::new();
        let task = tokio::spawn(outbox.run(shutdown.clone()));
        Self { outbox, guarded, sink, shutdown, task }
    }

    async fn publish(&self, count: usize) -> Vec<MessageId> {
        let new = (0..count).map(|_| NewMessage::bytes("order.placed", "x"));
        let enqueued = self.outbox.enqueue_all(new).await.unwrap();
        enqueued.iter().map(posthaste_core::Enqueued::id).collect()
    }

    async fn done(&self) -> usize {
        let records = stored(self.outbox.store(), &Topics::all()).await;
        for record in &records {
            assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0), "{record:?}");
            assert_ne!(record.state, State::Dead, "{record:?}");
        }
        records.iter().filter(|record| record.state == State::Done).count()
    }

    async fn until_done(&self, count: usize) {
        until("all done", async || (self.done().await == count).then_some(())).await;
    }

    async fn until_down(&self) {
        until("the breaker is open", async || self.guarded.is_down().then_some(())).await;
    }

    async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
    }
}

/// How many times each message has arrived.
async fn arrivals(node: &Node) -> BTreeMap<MessageId, usize> {
    let connection = Connection::connect(&node.url(), ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut times = BTreeMap::new();
    while let Some(message) =
        channel.basic_get("stock".into(), BasicGetOptions { no_ack: true }).await.unwrap()
    {
        let id = message.delivery.properties.message_id().clone().unwrap();
        *times.entry(id.to_string().parse().unwrap()).or_default() += 1;
    }
    connection.close(200, "OK".into()).await.unwrap();
    times
}

/// RMQ-004, RMQ-007, OBX-126: the node is stopped, killed, starved of memory, and spoken to by TLS.
#[test]
fn slow_a_node_of_its_own() {
    if url().is_none() || !Node::available() {
        eprintln!("skipped: POSTHASTE_TEST_RABBITMQ is not set, or there is no server to start");
        return;
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let certificates = Certificates::make();
        let mut node = Node::start(&certificates.configuration()).await;
        verified_connections(&node, &certificates).await;
        a_stuck_queue_harms_no_other(&node).await;
        long_defers(&node).await;
        a_blocked_connection_opens_the_breaker(&node).await;
        restarts_lose_nothing(&mut node).await;
    });
}

/// OBX-126: a server whose certificate is in order is spoken to, with and without a certificate of our own; one whose
/// authority is not known is not.
async fn verified_connections(node: &Node, certificates: &Certificates) {
    let url = format!("amqps://guest:guest@localhost:{}", node.tls_port);
    let trusted = || RabbitServer::new(&url).unwrap().ca(certificates.read("ca.pem")).unwrap();
    let (chain, key) = (certificates.read("client.pem"), certificates.read("client.key"));
    for server in [trusted(), trusted().client_certificate(chain, key).unwrap()] {
        let sink = RabbitSink::new(RabbitOptions::to(server, "")).unwrap();
        assert_eq!(sink.probe().await, Ok(()));
    }
    let by_the_system = RabbitSink::new(RabbitOptions::new(&url, "").unwrap()).unwrap();
    assert!(by_the_system.probe().await.unwrap_err().is_down());
}

/// F2 for RabbitMQ: a queue that confirms nothing makes its own messages busy; others are taken, and the sink is not down.
async fn a_stuck_queue_harms_no_other(node: &Node) {
    let fixture = RabbitFixture::on(&node.url()).await;
    for topic in ["stuck", "well"] {
        fixture.take(topic).await;
    }
    let queue = fixture.queue_of("stuck");
    let process = |call: &str| {
        format!(
            "{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>)), \
             sys:{call}(amqqueue:get_pid(Q))."
        )
    };
    node.ctl(&["eval", &process("suspend")]).await;
    let sink = RabbitSink::new(fixture.options()).unwrap();
    let topics = ["well", "stuck", "well", "nowhere", "stuck", "well", "nowhere", "well"];
    let expected = |topic: &str| match topic {
        "well" => None,
        "stuck" => Some(FailureClass::Infrastructure),
        _ => Some(FailureClass::Unroutable),
    };
    // Long enough for a slow machine to confirm the others; and then far more than a queue may hold up that was stuck before.
    for (round, time) in [Duration::from_secs(20), LONG].into_iter().enumerate() {
        let batch = topics.map(|topic| Arc::new(message(topic, "x")));
        let asked = Instant::now();
        let verdicts = sink.send(&Batch::new(&batch, asked + time)).await;
        for (verdict, topic) in verdicts.iter().zip(topics) {
            assert_eq!(class(verdict), expected(topic), "round {round}, {topic}: {verdict:?}");
            assert!(!verdict.as_ref().is_err_and(posthaste_core::SinkError::is_down));
        }
        assert!(asked.elapsed() < LONG / 2, "round {round}: {:?}", asked.elapsed());
    }
    node.ctl(&["eval", &process("resume")]).await;
    until("the queue is well again", async || {
        let verdicts = send(&sink, &messages("stuck", 3)).await;
        verdicts.iter().all(Result::is_ok).then_some(())
    })
    .await;
    fixture.destroy().await;
}

/// R17: see there.
async fn long_defers(node: &Node) {
    let set = |name: &str, value: u32| format!("application:set_env(rabbit, {name}, {value}).");
    node.ctl(&["eval", &set("channel_tick_interval", 1_000)]).await;
    node.ctl(&["eval", &set("consumer_timeout", 3_000)]).await;
    let fixture = RabbitFixture::on(&node.url()).await;
    a_long_defer_outlives_the_patience_of_the_server(&fixture).await;
    fixture.destroy().await;
    node.ctl(&["eval", &set("channel_tick_interval", 60_000)]).await;
    node.ctl(&["eval", &set("consumer_timeout", 1_800_000)]).await;
}

/// RMQ-007: a server that is out of memory blocks the connection: the breaker opens, nothing is charged, nothing is sent
/// meanwhile, and delivery resumes when there is memory again.
async fn a_blocked_connection_opens_the_breaker(node: &Node) {
    let sender = Sender::start(node).await;
    sender.publish(100).await;
    sender.until_done(100).await;
    node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    until("the server takes nothing", async || {
        sender.publish(1).await;
        sender.guarded.is_down().then_some(())
    })
    .await;
    let published = stored(sender.outbox.store(), &Topics::all()).await.len();
    let done = sender.done().await;
    let asked = Instant::now();
    let refused = send(&sender.sink, &messages("order.placed", 3)).await;
    // Less than its patience with the server, which are five seconds, and much less than the deadline of the batch.
    assert!(asked.elapsed() < Duration::from_secs(4), "it does not wait for what will not come");
    for verdict in refused {
        let error = verdict.unwrap_err();
        assert!(error.is_down() && error.failure().text().contains("blocked by the broker"));
    }
    assert!(sender.sink.probe().await.unwrap_err().failure().text().contains("memory"));
    assert!(sender.guarded.is_down() && sender.done().await == done && done < published);
    node.ctl(&["set_vm_memory_high_watermark", "0.4"]).await;
    sender.until_done(published).await;
    assert!(!sender.guarded.is_down());
    sender.stop().await;
    assert!(arrivals(node).await.len() >= published);
}

/// RMQ-004, F-07: stopped or killed under load and started again: nothing is lost, kept messages are still there, nothing
/// is charged, and delivery resumes by itself.
async fn restarts_lose_nothing(node: &mut Node) {
    let sender = Sender::start(node).await;
    let mut ids = sender.publish(200).await;
    sender.until_done(200).await;
    for kill in [false, true] {
        ids.extend(sender.publish(2_000).await);
        until("some are done", async || (sender.done().await > ids.len() - 1_900).then_some(())).await;
        if kill {
            node.kill().await;
        } else {
            node.stop().await;
        }
        ids.extend(sender.publish(100).await);
        sender.until_down().await;
        assert!(sender.done().await < ids.len());
        node.boot().await;
        let begin = Instant::now();
        sender.until_done(ids.len()).await;
        println!("killed: {kill}; all done {:?} after the node was back", begin.elapsed());
    }
    sender.stop().await;
    let times = arrivals(node).await;
    assert!(ids.iter().all(|id| times.contains_key(id)), "{} of {} are there", times.len(), ids.len());
    let duplicates: usize = times.values().map(|times| times - 1).sum();
    println!("{duplicates} of {} came twice", ids.len());
    assert!(duplicates <= 2 * 2 * WINDOW, "{duplicates} came twice");
}
