//! A place of its own on the server for each test: an exchange and queues with names that no other test uses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::Mutex;
use std::time::Duration;

use futures_util::stream::StreamExt as _;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions,
    QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use posthaste_core::{Headers, MessageId};
use posthaste_rabbitmq::{KEY_HEADER, RabbitOptions, RabbitServer, RabbitSink};
use posthaste_testkit::{Arrived, SinkFixture, async_trait};
use tokio::time::{Instant, sleep, timeout};

/// How long a test waits for an expected event.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// The server's URL, if there is a server.
pub(crate) fn url() -> Option<String> {
    std::env::var("POSTHASTE_TEST_RABBITMQ").ok().filter(|url| !url.is_empty())
}

/// Runs a test at a place of its own, if there is a server.
pub(crate) fn with_server(test: impl AsyncFnOnce(&RabbitFixture)) {
    if !RabbitFixture::available() {
        eprintln!("skipped: POSTHASTE_TEST_RABBITMQ is not set");
        return;
    }
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build().unwrap().block_on(async {
        let fixture = RabbitFixture::create().await;
        test(&fixture).await;
        fixture.destroy().await;
    });
}

/// Waits until something is so.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// An exchange of its own, and the test's own connection for checks.
pub(crate) struct RabbitFixture {
    pub(crate) exchange: String,
    pub(crate) channel: Channel,
    connection: Connection,
    url: String,
    arrived: Mutex<BTreeMap<String, Vec<Arrived>>>,
    queues: Mutex<Vec<String>>,
}

impl RabbitFixture {
    /// A fixture on this server, which may be a private one.
    pub(crate) async fn on(url: &str) -> Self {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let exchange = format!("posthaste-test-{}", MessageId::new());
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let kind = ExchangeKind::Topic;
        channel
            .exchange_declare(exchange.as_str().into(), kind, options, FieldTable::default())
            .await
            .unwrap();
        Self {
            exchange,
            channel,
            connection,
            url: url.to_owned(),
            arrived: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    /// The server, by way of this address.
    pub(crate) fn server_at(&self, address: SocketAddr) -> RabbitServer {
        let (scheme, rest) = self.url.split_once("://").unwrap();
        let (login, host) =
            rest.rsplit_once('@').map_or(("guest:guest", rest), |(login, host)| (login, host));
        let path = host.split_once('/').map_or(String::new(), |(_, path)| format!("/{path}"));
        RabbitServer::new(&format!("{scheme}://{login}@{address}{path}")).unwrap()
    }

    pub(crate) fn options(&self) -> RabbitOptions {
        RabbitOptions::to(self.server_at(self.server()), self.exchange.clone())
    }

    pub(crate) fn queue_of(&self, topic: &str) -> String {
        format!("{}.{topic}", self.exchange)
    }

    /// A durable queue of this name, which is removed with the fixture.
    pub(crate) async fn queue(&self, name: &str) {
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        self.channel.queue_declare(name.into(), options, FieldTable::default()).await.unwrap();
        self.queues.lock().unwrap().push(name.to_owned());
    }

    pub(crate) async fn bind(&self, queue: &str, pattern: &str) {
        let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
        let exchange = self.exchange.as_str().into();
        self.channel.queue_bind(queue.into(), exchange, pattern.into(), options, arguments).await.unwrap();
    }

    /// Takes everything from a queue.
    pub(crate) async fn drain(&self, queue: &str) -> Vec<(BasicProperties, Vec<u8>)> {
        let mut found = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = self.channel.basic_get(queue.into(), options).await.unwrap() {
            found.push((message.delivery.properties, message.delivery.data));
        }
        found
    }

    /// The ids of so many messages of a queue, quickly; no other may be in it.
    pub(crate) async fn ids(&self, queue: &str, count: usize) -> BTreeSet<MessageId> {
        let channel = self.connection.create_channel().await.unwrap();
        let options = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consuming = channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let id = async |delivery: lapin::Result<lapin::message::Delivery>| {
            let id = delivery.unwrap().properties.message_id().clone().unwrap();
            id.to_string().parse::<MessageId>().unwrap()
        };
        let found = consuming.await.unwrap().take(count).then(id).collect();
        let found: BTreeSet<MessageId> = timeout(LONG, found).await.expect("all of them are there");
        assert_eq!((found.len(), self.depth(queue).await), (count, 0));
        channel.close(200, "OK".into()).await.unwrap();
        found
    }

    /// How many messages wait in a queue.
    pub(crate) async fn depth(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
        queue.message_count()
    }
}

pub(crate) fn texts(properties: &BasicProperties) -> Headers {
    let table = properties.headers().clone().unwrap_or_default();
    let text = |value: &AMQPValue| match value {
        AMQPValue::LongString(text) => text.to_string(),
        other => panic!("a header is no text: {other:?}"),
    };
    table.inner().iter().map(|(name, value)| (name.to_string(), text(value))).collect()
}

#[async_trait]
impl SinkFixture for RabbitFixture {
    type Sink = RabbitSink;

    // The sink's configured limit: RabbitMQ's own is 128 MiB.
    const TOO_LARGE: Option<usize> = Some(2 << 20);

    fn available() -> bool {
        url().is_some()
    }

    async fn create() -> Self {
        Self::on(&url().unwrap()).await
    }

    fn server(&self) -> SocketAddr {
        let host = self.url.split_once("://").unwrap().1;
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host = host.split('/').next().unwrap();
        let host = if host.contains(':') { host.to_owned() } else { format!("{host}:5672") };
        host.to_socket_addrs().unwrap().next().unwrap()
    }

    fn sink(&self, by_way_of: SocketAddr) -> RabbitSink {
        let options = RabbitOptions::to(self.server_at(by_way_of), self.exchange.clone());
        RabbitSink::new(options.max_message_bytes((2 << 20) - 1)).unwrap()
    }

    async fn take(&self, topic: &str) {
        let queue = self.queue_of(topic);
        self.queue(&queue).await;
        self.bind(&queue, topic).await;
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        let new = self.drain(&self.queue_of(topic)).await;
        let mut arrived = self.arrived.lock().unwrap();
        let all = arrived.entry(topic.to_owned()).or_default();
        all.extend(new.into_iter().map(|(properties, payload)| {
            let mut headers = texts(&properties);
            let key = headers.remove(KEY_HEADER);
            headers.retain(|name, _| !name.starts_with("posthaste-"));
            let text = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
            Arrived {
                id: text(properties.message_id()).unwrap().parse().unwrap(),
                topic: text(properties.kind()).unwrap(),
                payload,
                content_type: text(properties.content_type()).unwrap(),
                headers,
                correlation_id: text(properties.correlation_id()),
                key,
                persistent: *properties.delivery_mode() == Some(2),
            }
        }));
        all.clone()
    }

    async fn destroy(self) {
        let queues = self.queues.lock().unwrap().clone();
        for queue in queues {
            self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
        }
        let exchange = self.exchange.as_str().into();
        self.channel.exchange_delete(exchange, ExchangeDeleteOptions::default()).await.unwrap();
        self.connection.close(200, "OK".into()).await.unwrap();
    }
}
