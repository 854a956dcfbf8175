//! Nothing is lost: relays that are killed, that share the work, and that are stopped while they have some.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use posthaste::{MessageId, State};

use crate::support::{Base, Scene, eventually, server, unique};

/// How often each message arrived.
pub type Arrived = Arc<Mutex<HashMap<MessageId, usize>>>;

fn note(arrived: &Arrived, id: &str) {
    *arrived.lock().unwrap().entry(id.parse().unwrap()).or_default() += 1;
}

/// A queue of RabbitMQ that a test listens to.
pub struct Queue {
    pub name: String,
    pub arrived: Arrived,
    connection: Connection,
}

impl Queue {
    pub async fn new(url: &str) -> Self {
        let name = unique("relay");
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let durable = lapin::options::QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.as_str().into(), durable, FieldTable::default()).await.unwrap();
        let no_ack = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consumed =
            channel.basic_consume(name.as_str().into(), "test".into(), no_ack, FieldTable::default());
        let mut consumer = consumed.await.unwrap();
        let arrived = Arrived::default();
        let noted = Arc::clone(&arrived);
        tokio::spawn(async move {
            let _channel = channel;
            while let Some(Ok(delivery)) = consumer.next().await {
                note(&noted, delivery.properties.message_id().as_ref().unwrap().as_str());
            }
        });
        Self { name, arrived, connection }
    }

    pub async fn remove(self) {
        let channel = self.connection.create_channel().await.unwrap();
        channel.queue_delete(self.name.into(), QueueDeleteOptions::default()).await.unwrap();
    }
}

/// A stream of NATS that a test reads.
struct Stream {
    name: String,
    arrived: Arrived,
    context: async_nats::jetstream::Context,
}

impl Stream {
    async fn new(url: &str) -> Self {
        let name = unique("relay");
        let client = async_nats::connect(url).await.unwrap();
        let context = async_nats::jetstream::new(client.clone());
        let config = async_nats::jetstream::stream::Config {
            name: name.clone(),
            subjects: vec![format!("{name}.>")],
            ..Default::default()
        };
        context.create_stream(config).await.unwrap();
        let mut messages = client.subscribe(format!("{name}.>")).await.unwrap();
        let arrived = Arrived::default();
        let noted = Arc::clone(&arrived);
        tokio::spawn(async move {
            while let Some(message) = messages.next().await {
                note(&noted, message.headers.unwrap().get("Nats-Msg-Id").unwrap().as_str());
            }
        });
        Self { name, arrived, context }
    }

    async fn remove(self) {
        self.context.delete_stream(self.name).await.unwrap();
    }
}

/// Every id arrives, at the latest soon after the broker has confirmed it; how many came again.
async fn all_arrived(ids: &[MessageId], arrived: &Arrived) -> usize {
    let missing = || {
        let arrived = arrived.lock().unwrap();
        ids.iter().filter(|id| !arrived.contains_key(id)).count()
    };
    eventually(&format!("all {} messages arrive", ids.len()), async || missing() == 0).await;
    arrived.lock().unwrap().values().map(|times| times - 1).sum()
}

const EACH: usize = 500;

/// Short leases, so that another relay soon gets a killed one's messages, but not so short that a slow machine loses them; small
/// batches, so that there is a middle to be killed in.
const QUICK: &str = "[settings]\nlease = \"10s\"\nreap = \"200ms\"\nworkers = 5\npoll_ceiling = \"100ms\"\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_nothing_is_lost_when_a_relay_is_killed_twice() {
    let urls =
        ["POSTHASTE_TEST_POSTGRES", "POSTHASTE_TEST_MYSQL", "POSTHASTE_TEST_RABBITMQ", "POSTHASTE_TEST_NATS"];
    let urls: Vec<String> = urls.into_iter().filter_map(server).collect();
    let [postgres, mysql, rabbit, nats] = urls.as_slice() else { return };
    let (one, other) = (Base::postgres(postgres).await, Base::mysql(mysql).await);
    let (queue, stream) = (Queue::new(rabbit).await, Stream::new(nats).await);
    let scene = Scene::new(&format!(
        "[databases.one]\n{}[databases.other]\n{}\
         [sinks.rabbit]\nurl = \"{rabbit}\"\n[sinks.nats]\nurl = \"{nats}\"\nstream = \"{stream}\"\nprefix = \"{stream}\"\n\
         [[routes]]\ntopics = [\"{queue}\"]\nsink = \"rabbit\"\n[[routes]]\ntopics = [\"to.nats\"]\nsink = \"nats\"\n{QUICK}",
        one.section,
        other.section,
        queue = queue.name,
        stream = stream.name,
    ));
    let mut to_rabbit = Vec::new();
    let mut to_nats = Vec::new();
    for base in [&one, &other] {
        to_rabbit.extend(base.fill(&queue.name, EACH).await);
        to_nats.extend(base.fill("to.nats", EACH).await);
    }
    let some = |count: usize| {
        let (rabbit, nats) = (Arc::clone(&queue.arrived), Arc::clone(&stream.arrived));
        eventually_some(rabbit, nats, count)
    };
    // Only messages that were leased when a relay was killed can come again: the rest was settled, or never sent.
    let all_done = |base: &Base| {
        let store = Arc::clone(&base.store);
        async move { store.stats().await.unwrap().done.value }
    };
    let (mut may_come_again, mut each) = (0, 2 * EACH);
    for killed_at in [200, 600] {
        let relay = scene.start().await;
        some(killed_at).await;
        relay.kill().await;
        if all_done(&one).await + all_done(&other).await == 2 * each as u64 {
            // This test was kept waiting, and the relay was done before it was killed: there is more to do, for the next one.
            for base in [&one, &other] {
                to_rabbit.extend(base.fill(&queue.name, 2 * EACH).await);
            }
            each += 2 * EACH;
        }
        for base in [&one, &other] {
            let topics = base.store.stats().await.unwrap().topics;
            let leased = topics.iter().find(|of| of.topic == queue.name && of.state == State::Leased);
            may_come_again += leased.map_or(0, |of| usize::try_from(of.count.value).unwrap());
        }
    }
    let relay = scene.start().await;
    one.is_done(each).await;
    other.is_done(each).await;
    relay.stop().await;
    let again = all_arrived(&to_rabbit, &queue.arrived).await;
    assert!(again <= may_come_again, "{again} messages came again, and {may_come_again} were leased");
    // The stream itself drops repeated messages, and a subscriber sees them; none is missing.
    all_arrived(&to_nats, &stream.arrived).await;
    queue.remove().await;
    stream.remove().await;
}

async fn eventually_some(one: Arrived, other: Arrived, count: usize) {
    eventually("some messages arrive", async || {
        one.lock().unwrap().len() + other.lock().unwrap().len() >= count
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_relays_share_the_work_and_deliver_nothing_twice() {
    let (Some(postgres), Some(rabbit)) =
        (server("POSTHASTE_TEST_POSTGRES"), server("POSTHASTE_TEST_RABBITMQ"))
    else {
        return;
    };
    let base = Base::postgres(&postgres).await;
    let queue = Queue::new(&rabbit).await;
    let scene = Scene::new(&format!(
        "[databases.one]\n{}[sinks.rabbit]\nurl = \"{rabbit}\"\n[[routes]]\ntopics = [\"{}\"]\nsink = \"rabbit\"\n\
         [settings]\nworkers = 2\nbatch = 5\ncold_capacity = 5\npoll_ceiling = \"50ms\"\n",
        base.section, queue.name
    ));
    let (first, second) = (scene.start().await, scene.start().await);
    let delivered = async |relay: &crate::support::Relay| {
        let metrics = relay.get("/metrics").await.body;
        let line = metrics.lines().find(|line| line.starts_with("posthaste_delivered_total"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let mut ids = Vec::new();
    // More and more, until both have had some.
    eventually("both deliver some", async || {
        ids.extend(base.fill(&queue.name, 100).await);
        delivered(&first).await > 0.0 && delivered(&second).await > 0.0
    })
    .await;
    base.is_done(ids.len()).await;
    eventually("each was delivered by one of them", async || {
        let sum = delivered(&first).await + delivered(&second).await;
        (sum - ids.len() as f64).abs() < 0.5
    })
    .await;
    first.stop().await;
    second.stop().await;
    assert_eq!(all_arrived(&ids, &queue.arrived).await, 0, "none came again");
    queue.remove().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_is_told_to_end_gives_everything_back() {
    let (Some(postgres), Some(rabbit)) =
        (server("POSTHASTE_TEST_POSTGRES"), server("POSTHASTE_TEST_RABBITMQ"))
    else {
        return;
    };
    let base = Base::postgres(&postgres).await;
    let queue = Queue::new(&rabbit).await;
    let scene = Scene::new(&format!(
        "[databases.one]\n{}[sinks.rabbit]\nurl = \"{rabbit}\"\n[[routes]]\ntopics = [\"{}\"]\nsink = \"rabbit\"\n\
         [settings]\nworkers = 2\npoll_ceiling = \"50ms\"\n",
        base.section, queue.name
    ));
    let mut ids = Vec::new();
    let stats = loop {
        let before = ids.len();
        ids.extend(base.fill(&queue.name, 3_000).await);
        let mut relay = scene.start().await;
        eventually("some arrive", async || queue.arrived.lock().unwrap().len() >= before + 50).await;
        relay.signal("TERM");
        let ended = relay.ended().await;
        assert_eq!(ended.code(), Some(0), "{}", relay.log());
        let stats = base.store.stats().await.unwrap();
        assert_eq!(stats.leased.value, 0, "no lease is left");
        if stats.done.value < ids.len() as u64 {
            break stats;
        }
        // This test stalled, and the signal came after the last delivery: try again with more messages.
        assert!(ids.len() < 15_000, "a relay that gets SIGTERM delivers everything first");
    };
    let mut states = BTreeMap::new();
    for topic in &stats.topics {
        states.insert(topic.state.to_string(), topic.count.value);
    }
    assert!(states.contains_key(&State::Ready.to_string()), "{states:?}");
    let relay = scene.start().await;
    base.is_done(ids.len()).await;
    relay.stop().await;
    assert_eq!(all_arrived(&ids, &queue.arrived).await, 0, "none came again");
    queue.remove().await;
}

#[tokio::test]
async fn a_second_signal_ends_at_once() {
    // A sink that takes its time: a server that accepts and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let base = Base::sqlite(&folder.path().join("shop.db")).await;
    let scene = Scene::new(&format!(
        "[databases.one]\n{}[sinks.silent]\nurl = \"amqp://{address}\"\nconnect_timeout = \"20s\"\ndeadline = \"20s\"\n\
         [[routes]]\ntopics = [\"*\"]\nsink = \"silent\"\n",
        base.section
    ));
    base.fill("t", 1).await;
    let mut relay = scene.start().await;
    let (_stream, _) =
        tokio::time::timeout(crate::support::PATIENCE, silent.accept()).await.unwrap().unwrap();
    eventually("the message is under way", async || base.leased().await == 1).await;
    relay.signal("TERM");
    eventually("it begins to end", async || relay.has("the relay ends")).await;
    relay.signal("TERM");
    assert_eq!(relay.ended().await.code(), Some(1));
}

/// A database that cannot be migrated now concerns no other, and is migrated when it is there.
#[tokio::test]
async fn slow_migrate_goes_on_without_a_database_that_is_gone() {
    let scene = Scene::new("");
    let (here, gone) = (scene.folder.path().join("here.db"), scene.folder.path().join("later/gone.db"));
    scene.write(&format!(
        "[databases.gone]\nurl = \"sqlite:{}?mode=rwc\"\n[databases.here]\nurl = \"sqlite:{}?mode=rwc\"\n\
         [sinks.nowhere]\nurl = \"null:\"\n[[routes]]\ntopics = [\"*\"]\nsink = \"nowhere\"\n",
        gone.display(),
        here.display()
    ));
    let relay = scene.start_with(&["--migrate"]).await;
    eventually("the failed migration is logged", async || relay.has("a database could not be migrated"))
        .await;
    let base = Base::sqlite(&here).await;
    base.fill("a", 5).await;
    base.is_done(5).await;
    std::fs::create_dir(gone.parent().unwrap()).unwrap();
    eventually("it is migrated later", async || relay.has("a database has been migrated")).await;
    let base = Base::sqlite(&gone).await;
    base.fill("a", 5).await;
    base.is_done(5).await;
    relay.stop().await;
}
