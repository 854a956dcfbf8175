//! A whole outbox in front of a server that stops, dies, or cannot be reached: nothing is lost, no attempt is charged, and
//! messages that were sent twice are stored once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use async_nats::jetstream;
use posthaste_core::{
    Guarded, MemoryStore, MessageId, NewMessage, Outbox, Shutdown, Sink as _, SinkOptions, State,
    StoreAdmin as _,
};
use posthaste_nats::{NatsOptions, NatsSink};
use posthaste_testkit::{Mode, Proxy};

use crate::server::Server;
use crate::support::{
    LONG, classes, count, cut_for_good, eventually, ids, look, messages, send, send_within, sink, stream,
};

const TOPIC: &str = "a";

/// A store, a running outbox, and the ids of its messages.
struct Scene {
    store: MemoryStore,
    outbox: Outbox<MemoryStore>,
    shutdown: Shutdown,
    running: tokio::task::JoinHandle<posthaste_core::Result<()>>,
    sink: Guarded,
    ids: BTreeSet<MessageId>,
}

impl Scene {
    async fn start(url: &str) -> Self {
        let options = NatsOptions::new(url).unwrap().connect_timeout(Duration::from_secs(3)).unwrap();
        let sink = NatsSink::new(options).subject_prefix("T").unwrap();
        let pauses = (Duration::from_millis(50), Duration::from_millis(500));
        let options = SinkOptions::new().deadline(Duration::from_secs(5)).pauses(pauses.0, pauses.1);
        let (store, sink) = (MemoryStore::new(), Guarded::with(sink, options));
        let builder = Outbox::builder(store.clone()).workers(100).sink(TOPIC, sink.clone());
        let outbox =
            builder.poll(Duration::from_millis(10), Duration::from_millis(50)).build().await.unwrap();
        let shutdown = Shutdown::new();
        let running = tokio::spawn(outbox.run(shutdown.clone()));
        Self { store, outbox, shutdown, running, sink, ids: BTreeSet::new() }
    }

    async fn enqueue(&mut self, count: usize) {
        let drafts = (0..count).map(|n| NewMessage::json(TOPIC, &n));
        for enqueued in self.outbox.enqueue_all(drafts).await.unwrap() {
            self.ids.insert(enqueued.id());
        }
    }

    async fn done(&self) -> usize {
        let stats = self.store.stats().await.unwrap();
        usize::try_from(stats.done.value).unwrap()
    }

    /// Waits until all are done, and checks that the stream has each of them once.
    async fn settle(self, js: &jetstream::Context) -> Duration {
        let started = Instant::now();
        eventually("everything is delivered", async || self.done().await == self.ids.len()).await;
        let took = started.elapsed();
        self.shutdown.begin();
        self.running.await.unwrap().unwrap();
        let stored = ids(js, "T").await;
        assert_eq!(stored.len(), self.ids.len(), "nothing is there twice");
        assert_eq!(stored.into_iter().collect::<BTreeSet<_>>(), self.ids, "nothing is lost");
        for id in self.ids {
            let record = self.store.show(id).await.unwrap().unwrap().0;
            assert_eq!((record.message.attempts, record.state), (0, State::Done));
        }
        took
    }
}

async fn private() -> Option<Server> {
    let server = Server::start(None).await?;
    look(&server.url()).await.create_stream(stream("T")).await.unwrap();
    Some(server)
}

/// F-07: the server is stopped, and later killed, while messages flow, and comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_restarts() {
    let Some(mut server) = private().await else { return };
    let mut scene = Scene::start(&server.url()).await;
    for kill in [false, true] {
        scene.enqueue(500).await;
        let before = scene.done().await;
        eventually("some are delivered", async || scene.done().await > before).await;
        if kill {
            server.kill().await;
        } else {
            server.stop().await;
        }
        scene.enqueue(500).await;
        eventually("the outage is noticed", async || scene.sink.is_down()).await;
        server.up().await;
    }
    let took = scene.settle(&look(&server.url()).await).await;
    eprintln!("delivered {took:?} after the server was back");
}

/// F-06: a network that cuts, refuses, delays and swallows, and loses acknowledgements.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_networks() {
    let Some(server) = private().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let mut scene = Scene::start(&format!("nats://{}", proxy.addr())).await;
    scene.enqueue(100).await;
    eventually("the connection stands", async || scene.done().await == 100).await;

    proxy.set(Mode::CutAfterRequest(b"HPUB T.a".to_vec()));
    scene.enqueue(200).await;
    eventually("an answer was lost", async || proxy.answers_lost() == 1).await;

    proxy.cut();
    scene.enqueue(200).await;
    proxy.cut();

    proxy.set(Mode::Delay(Duration::from_millis(100)));
    scene.enqueue(200).await;
    eventually("they arrive late", async || scene.done().await == 700).await;

    proxy.set(Mode::Blackhole);
    scene.enqueue(200).await;
    eventually("the silence is noticed", async || scene.sink.is_down()).await;
    proxy.set(Mode::Refuse);
    proxy.cut();
    scene.enqueue(200).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    proxy.set(Mode::Forward);
    let took = scene.settle(&look(&server.url()).await).await;
    eprintln!("delivered {took:?} after the network was back");
}

/// F-22: an acknowledgement after the deadline is ignored: it is not taken for the next batch, and nothing of the batch
/// before is sent later.
#[tokio::test]
async fn slow_a_late_acknowledgement_is_nobodys() {
    let Some(server) = private().await else { return };
    let js = look(&server.url()).await;
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let sink = sink(&format!("nats://{}", proxy.addr()), "T");
    assert_eq!(classes(&send(&sink, &messages("a", 1)).await), ["ok"]);

    // Nothing of this batch reaches the server before its deadline, nor after it.
    proxy.set(Mode::Blackhole);
    let swallowed = messages("a", 3);
    let started = Instant::now();
    let verdicts = send_within(&sink, &swallowed, Duration::from_millis(500)).await;
    assert_eq!(classes(&verdicts), ["down"; 3]);
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());

    // The answers to this one come half a second late.
    cut_for_good(&proxy);
    assert!(sink.probe().await.is_ok());
    proxy.set(Mode::Delay(Duration::from_millis(700)));
    let late = messages("a", 3);
    assert_eq!(classes(&send_within(&sink, &late, Duration::from_millis(900)).await), ["down"; 3]);
    proxy.set(Mode::Forward);

    let mut next = messages("a", 2);
    next.insert(1, messages("b.unroutable", 1).remove(0));
    js.update_stream(jetstream::stream::Config { subjects: vec!["T.a".to_owned()], ..stream("T") })
        .await
        .unwrap();
    let verdicts = send(&sink, &next).await;
    assert_eq!(classes(&verdicts), ["ok", "unroutable", "ok"]);
    assert_eq!(classes(&send(&sink, &late).await), ["ok"; 3]);
    let stored = ids(&js, "T").await;
    assert!(swallowed.iter().all(|message| !stored.contains(&message.id)), "given up, and never sent");
    assert_eq!(count(&js, "T").await, 6);
}

/// A connection that is lost in the middle of a batch is noticed at once, long before the deadline.
#[tokio::test]
async fn a_lost_connection_is_noticed_at_once() {
    let Some(server) = private().await else { return };
    let proxy = Proxy::start(server.addr()).await.unwrap();
    let sink = sink(&format!("nats://{}", proxy.addr()), "T");
    assert_eq!(classes(&send(&sink, &messages("a", 1)).await), ["ok"]);
    proxy.set(Mode::Blackhole);
    let batch = messages("a", 2);
    let started = Instant::now();
    let cutting = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        proxy.cut();
    };
    let (verdicts, ()) = tokio::join!(send(&sink, &batch), cutting);
    assert_eq!(classes(&verdicts), ["down", "down"]);
    assert!(started.elapsed() < LONG / 2, "{:?}", started.elapsed());
}
