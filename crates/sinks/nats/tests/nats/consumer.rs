//! The consumer on a real server: acknowledgements, redelivery and dead letters.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::HeaderMap;
use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, consumer::AckPolicy};
use posthaste_core::{
    Consume, Consumer, ErrorKind, FixedDelay, HandlerError, HandlerResult, Inbox, InboxStore as _,
    MemoryStore, MemoryTransaction, MessageId, Received, Shutdown,
};
use posthaste_nats::{DeadLetter, NatsConsumer, NatsOptions, PullConfig};
use posthaste_testkit::{Mode, Proxy};
use tokio::sync::Semaphore;

use crate::server::Server;
use crate::support::{LONG, cut_for_good, eventually, look, messages, send, shared, sink, stream, unique};

/// A handler's script for one delivery; deliveries beyond the script succeed.
type Turn = Box<dyn Fn() -> HandlerResult + Send>;

/// A handler that records its messages, and follows its script.
#[derive(Clone)]
struct Noting {
    noted: Arc<Mutex<Vec<(Received, Instant)>>>,
    script: Arc<Mutex<VecDeque<Turn>>>,
    /// It takes one before it returns.
    gate: Arc<Semaphore>,
}

impl Noting {
    fn new() -> Self {
        let gate = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Self { noted: Arc::default(), script: Arc::default(), gate }
    }

    /// One that finishes nothing before it is let.
    fn held() -> Self {
        Self { gate: Arc::new(Semaphore::new(0)), ..Self::new() }
    }

    fn then(self, turn: impl Fn() -> HandlerResult + Send + 'static) -> Self {
        self.script.lock().unwrap().push_back(Box::new(turn));
        self
    }

    fn count(&self) -> usize {
        self.noted.lock().unwrap().len()
    }

    fn times(&self) -> Vec<Instant> {
        self.noted.lock().unwrap().iter().map(|(_, at)| *at).collect()
    }
}

impl Consume<MemoryStore> for Noting {
    async fn consume(&self, _: &mut MemoryTransaction, message: &Received) -> HandlerResult {
        self.noted.lock().unwrap().push((message.clone(), Instant::now()));
        self.gate.acquire().await.unwrap().forget();
        let turn = self.script.lock().unwrap().pop_front();
        turn.map_or(Ok(()), |turn| turn())
    }
}

/// A stream with a durable consumer, and a store for its inbox.
struct Scene {
    /// After how long without an acknowledgement the server delivers a message again.
    ack_wait: Duration,
    url: String,
    name: String,
    js: jetstream::Context,
    store: MemoryStore,
}

impl Scene {
    async fn on(url: String) -> Self {
        let (js, name) = (look(&url).await, unique());
        js.create_stream(stream(&name)).await.unwrap();
        // Longer than any test, unless it says otherwise: a slow machine changes nothing.
        Self { ack_wait: 10 * LONG, url, name, js, store: MemoryStore::new() }
    }

    fn ack_wait(mut self, ack_wait: Duration) -> Self {
        self.ack_wait = ack_wait;
        self
    }

    async fn new() -> Option<Self> {
        Some(Self::on(shared()?).await)
    }

    async fn consumer(&self, handler: &Noting, dead: DeadLetter) -> NatsConsumer<MemoryStore, Noting> {
        self.consumer_by(&self.url, handler, dead).await
    }

    async fn consumer_by(
        &self,
        url: &str,
        handler: &Noting,
        dead: DeadLetter,
    ) -> NatsConsumer<MemoryStore, Noting> {
        let inbox = Inbox::new(self.store.clone(), "inventory").unwrap();
        let consumer = Consumer::new(inbox, handler.clone()).max_attempts(3).retry(FixedDelay(ms(300)));
        let options = NatsOptions::new(url).unwrap();
        let consumer = NatsConsumer::new(options, consumer, &self.name, "inventory", dead).unwrap();
        let filter_subject = format!("{}.order.>", self.name);
        let config = PullConfig { filter_subject, ack_wait: self.ack_wait, ..PullConfig::default() };
        consumer.declare(config).await.unwrap();
        consumer
    }

    async fn publish(&self, count: usize) -> Vec<MessageId> {
        let batch = messages("order.placed", count);
        assert!(send(&sink(&self.url, &self.name), &batch).await.iter().all(Result::is_ok));
        batch.iter().map(|message| message.id).collect()
    }

    /// The numbers of unacknowledged and undelivered messages on the server.
    async fn open(&self) -> (usize, u64) {
        let stream = self.js.get_stream(&self.name).await.unwrap();
        let consumer: PullConsumer = stream.get_consumer("inventory").await.unwrap();
        let info = consumer.cached_info();
        (info.num_ack_pending, info.num_pending)
    }

    async fn all_answered(&self) {
        eventually("the server waits for nothing", async || self.open().await == (0, 0)).await;
    }

    async fn end(self) {
        self.js.delete_stream(&self.name).await.unwrap();
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

struct Running {
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<posthaste_core::Result<()>>,
}

impl Running {
    fn start(consumer: NatsConsumer<MemoryStore, Noting>) -> Self {
        let shutdown = Shutdown::new();
        let until = shutdown.clone();
        Self { shutdown, task: tokio::spawn(async move { consumer.run(until).await }) }
    }

    async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
    }
}

/// INB-001, INB-003: a consumer receives a sink's message unchanged, handles it once, and acknowledges it after the
/// commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acted_upon_and_acknowledged_after_the_commit() {
    let Some(scene) = Scene::new().await else { return };
    let handler = Noting::held();
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    let ids = scene.publish(20).await;
    eventually("four are begun", async || handler.count() == 4).await;
    assert_eq!(scene.open().await.0, 4, "no more are taken than can start, and none is acknowledged");
    handler.gate.add_permits(20);
    eventually("all are begun", async || handler.count() == 20).await;
    scene.all_answered().await;
    running.stop().await;
    let noted = handler.noted.lock().unwrap().clone();
    for (received, _) in noted {
        assert!(ids.contains(&received.id) && received.topic == "order.placed" && received.source == "nats");
        assert!(received.occurred_at.is_some() && !received.redelivered);
        let entry = scene.store.remembered("inventory", "nats", received.id).await.unwrap();
        assert!(entry.is_some(), "the inbox has it");
    }
    scene.end().await;
}

/// INB-002, INB-003: a failure comes again after its delay, and leaves nothing behind; the third is the last, and becomes a
/// dead letter that says why, with its identity; failures without charge are not counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_failures_come_again_and_then_die() {
    let Some(scene) = Scene::new().await else { return };
    let fail = || Err(HandlerError::from("no stock of it".to_owned()));
    let handler = Noting::new()
        .then(fail)
        .then(|| Err(HandlerError::infrastructure("the shelf is away")))
        .then(|| Err(HandlerError::defer(ms(200))))
        .then(fail)
        .then(fail);
    let dead = DeadLetter::Subject(format!("{}.dead", scene.name));
    let running = Running::start(scene.consumer(&handler, dead).await);
    let id = scene.publish(1).await[0];
    eventually("it has died", async || handler.count() == 5).await;
    scene.all_answered().await;
    running.stop().await;
    let times = handler.times();
    for (pair, least) in times.windows(2).zip([300, 300, 200, 300]) {
        assert!(pair[1] - pair[0] >= ms(least - 20), "{:?} is before its time", pair[1] - pair[0]);
    }
    assert!(
        scene.store.remembered("inventory", "nats", id).await.unwrap().is_none(),
        "a failure leaves no row"
    );

    let stream = scene.js.get_stream(&scene.name).await.unwrap();
    let letter = stream.get_last_raw_message_by_subject(&format!("{}.dead", scene.name)).await.unwrap();
    let header = |name: &str| letter.headers.get(name).unwrap().as_str().to_owned();
    assert_eq!(header("Posthaste-Message-Id"), id.to_string());
    assert_eq!(
        (header("Posthaste-Dead-Reason"), header("Posthaste-Dead-Class")),
        ("[BUSINESS] no stock of it".into(), "business".into())
    );
    assert_eq!(header("Posthaste-Dead-Subject"), format!("{}.order.placed", scene.name));
    assert_eq!(
        (header("Posthaste-Dead-Stream"), header("Posthaste-Dead-Sequence")),
        (scene.name.clone(), "1".into())
    );
    assert_eq!(
        (header("Posthaste-Dead-Deliveries"), header("Posthaste-Topic")),
        ("5".into(), "order.placed".into())
    );
    scene.end().await;
}

/// INB-003: a permanent failure is terminated at once if so configured, and a dead letter without a stream is not
/// lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_at_once() {
    let Some(scene) = Scene::new().await else { return };
    let handler = Noting::new().then(|| Err(HandlerError::dead("never")));
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    scene.publish(1).await;
    scene.all_answered().await;
    running.stop().await;
    assert_eq!(handler.count(), 1);

    let handler = Noting::new().then(|| Err(HandlerError::dead("never")));
    let nobody = DeadLetter::Subject(format!("nobody-{}", scene.name));
    let running = Running::start(scene.consumer(&handler, nobody).await);
    scene.publish(1).await;
    eventually("it was tried", async || handler.count() == 1).await;
    running.stop().await;
    assert_eq!(scene.open().await.0, 1, "the server still has it");
    scene.end().await;
}

/// INB-001, R8: the connection is lost between the commit and the acknowledgement. The message comes again, and has no effect
/// again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_lost_between_commit_and_acknowledgement() {
    let Some(scene) = Scene::new().await else { return };
    let scene = scene.ack_wait(ms(1_000));
    let proxy = Arc::new(Proxy::start(crate::server::shared().unwrap()).await.unwrap());
    let cutter = Arc::clone(&proxy);
    let handler = Noting::new().then(move || {
        cutter.set(Mode::Blackhole);
        Ok(())
    });
    let url = format!("nats://{}", proxy.addr());
    let running = Running::start(scene.consumer_by(&url, &handler, DeadLetter::Terminate).await);
    let id = scene.publish(1).await[0];
    eventually("it was committed", async || {
        scene.store.remembered("inventory", "nats", id).await.unwrap().is_some()
    })
    .await;
    assert_eq!(scene.open().await.0, 1, "and not acknowledged");
    cut_for_good(&proxy);
    scene.all_answered().await;
    running.stop().await;
    assert_eq!(handler.count(), 1, "it had its effect once");
    scene.end().await;
}

/// A handler that takes longer than `ack_wait` is not disturbed: the server hears of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_long_handler_keeps_its_message() {
    let Some(scene) = Scene::new().await else { return };
    // Long enough for a slow machine to answer in time.
    let scene = scene.ack_wait(ms(5_000));
    let handler = Noting::held();
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    scene.publish(1).await;
    eventually("it is begun", async || handler.count() == 1).await;
    tokio::time::sleep(2 * scene.ack_wait).await;
    // The handler would not tell: the inbox holds a second delivery up until the first is over.
    let stream = scene.js.get_stream(&scene.name).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer("inventory").await.unwrap();
    let delivered = consumer.cached_info().delivered.consumer_sequence;
    assert_eq!((handler.count(), delivered), (1, 1), "it was not delivered again");
    handler.gate.add_permits(1);
    scene.all_answered().await;
    running.stop().await;
    assert_eq!(handler.count(), 1);
    scene.end().await;
}

/// Shutdown: running handlers finish and their messages are acknowledged; no other message stays held. If it ends at once,
/// running messages are given back at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown() {
    let Some(scene) = Scene::new().await else { return };
    let handler = Noting::held();
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    scene.publish(10).await;
    eventually("four are begun", async || handler.count() == 4).await;
    running.shutdown.begin();
    handler.gate.add_permits(4);
    running.stop_only().await;
    assert_eq!(handler.count(), 4);
    assert_eq!(scene.open().await, (0, 6));

    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    eventually("four more are begun", async || handler.count() == 8).await;
    running.shutdown.now();
    let started = Instant::now();
    running.stop_only().await;
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
    handler.gate.add_permits(100);
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    scene.all_answered().await;
    running.stop().await;
    scene.end().await;
}

impl Running {
    async fn stop_only(self) {
        self.task.await.unwrap().unwrap();
    }
}

/// F-07: the server is killed and comes back: the consumer comes back by itself, and everything is acted upon once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_server_comes_back() {
    let Some(mut server) = Server::start(None).await else { return };
    let scene = Scene::on(server.url()).await.ack_wait(ms(5_000));
    let handler = Noting::new();
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    scene.publish(50).await;
    eventually("all are done", async || handler.count() == 50).await;
    scene.all_answered().await;
    server.kill().await;
    tokio::time::sleep(ms(300)).await;
    server.up().await;
    let started = Instant::now();
    scene.publish(50).await;
    eventually("all others are done", async || handler.count() >= 100).await;
    eprintln!("the consumer was back after {:?}", started.elapsed());
    scene.all_answered().await;
    running.stop().await;
    assert_eq!(handler.count(), 100);
}

/// INB-001: a foreign message without an id is known by its place, and acted upon once; a durable consumer that is not there,
/// or cannot be worked with, is an error that says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_messages_and_wrong_consumers() {
    let Some(scene) = Scene::new().await else { return };
    let handler = Noting::new();
    let running = Running::start(scene.consumer(&handler, DeadLetter::Terminate).await);
    let subject = format!("{}.order.strange", scene.name);
    scene
        .js
        .publish_with_headers(subject.clone(), HeaderMap::new(), "x".into())
        .await
        .unwrap()
        .await
        .unwrap();
    eventually("it is done", async || handler.count() == 1).await;
    running.stop().await;
    let received = handler.noted.lock().unwrap()[0].0.clone();
    assert_eq!(received.id, MessageId::of_text(&format!("{}:1", scene.name)));
    assert_eq!((received.topic.as_str(), received.source.as_str()), (subject.as_str(), "nats"));

    let stream = scene.js.get_stream(&scene.name).await.unwrap();
    let make = |durable: &str, ack_policy, max_deliver| PullConfig {
        durable_name: Some(durable.to_owned()),
        ack_policy,
        max_deliver,
        ..PullConfig::default()
    };
    stream.create_consumer(make("careless", AckPolicy::None, -1)).await.unwrap();
    stream.create_consumer(make("impatient", AckPolicy::Explicit, 5)).await.unwrap();
    for (durable, kind) in [
        ("missing", ErrorKind::NotFound),
        ("careless", ErrorKind::Configuration),
        ("impatient", ErrorKind::Configuration),
    ] {
        let inbox = Inbox::new(scene.store.clone(), "inventory").unwrap();
        let options = NatsOptions::new(&scene.url).unwrap();
        let consumer = Consumer::new(inbox, handler.clone());
        let consumer =
            NatsConsumer::new(options, consumer, &scene.name, durable, DeadLetter::Terminate).unwrap();
        let error = consumer.run(Shutdown::new()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{durable}: {error:?}");
        assert!(error.remedy().is_some());
    }
    scene.end().await;
}
