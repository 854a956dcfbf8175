//! The fixture for the suite of sinks: a stream of its own for each topic, below subjects that no other test uses.

use std::net::SocketAddr;
use std::sync::Mutex;

use async_nats::jetstream;
use posthaste_core::{Headers, MessageId};
use posthaste_nats::NatsSink;
use posthaste_testkit::{Arrived, SinkFixture, async_trait};

use crate::server::{shared, shared_url};
use crate::support::{look, sink, stream, unique};

pub(crate) struct NatsFixture {
    name: String,
    js: jetstream::Context,
    /// Topics, and the streams that have them.
    taken: Mutex<Vec<(String, String)>>,
}

#[async_trait]
impl SinkFixture for NatsFixture {
    type Sink = NatsSink;

    /// The server's own limit is 1 MiB.
    const TOO_LARGE: Option<usize> = Some(1 << 20);

    fn available() -> bool {
        shared().is_some()
    }

    async fn create() -> Self {
        Self { name: unique(), js: look(&shared_url().unwrap()).await, taken: Mutex::default() }
    }

    fn server(&self) -> SocketAddr {
        shared().unwrap()
    }

    fn sink(&self, by_way_of: SocketAddr) -> NatsSink {
        sink(&format!("nats://{by_way_of}"), &self.name)
    }

    async fn take(&self, topic: &str) {
        let name = format!("{}_{}", self.name, self.taken.lock().unwrap().len());
        let subject = self.sink(self.server()).subject(topic);
        let config = jetstream::stream::Config { subjects: vec![subject], ..stream(&name) };
        self.js.create_stream(config).await.unwrap();
        self.taken.lock().unwrap().push((topic.to_owned(), name));
    }

    async fn arrived(&self, topic: &str) -> Vec<Arrived> {
        let name = self.taken.lock().unwrap().iter().find(|(taken, _)| taken == topic).unwrap().1.clone();
        let stream = self.js.get_stream(name).await.unwrap();
        let info = stream.cached_info();
        let persistent = info.config.storage == jetstream::stream::StorageType::File;
        let mut arrived = Vec::new();
        for sequence in 1..=info.state.last_sequence {
            let message = stream.get_raw_message(sequence).await.unwrap();
            let text = |name: &str| message.headers.get(name).map(|value| value.as_str().to_owned());
            let mut headers = Headers::new();
            for (name, values) in message.headers.iter() {
                let name: &str = name.as_ref();
                let value = values[0].as_str();
                if name == "Posthaste-Headers" {
                    headers.extend(value.split('&').map(|pair| {
                        let (name, value) = pair.split_once('=').unwrap();
                        (decoded(name), decoded(value))
                    }));
                } else if !name.starts_with("Nats-")
                    && !name.starts_with("Posthaste-")
                    && name != "Content-Type"
                {
                    headers.insert(name.to_owned(), value.to_owned());
                }
            }
            arrived.push(Arrived {
                id: MessageId::of_text(&text("Nats-Msg-Id").unwrap()),
                topic: decoded(&text("Posthaste-Topic").unwrap()),
                payload: message.payload.to_vec(),
                content_type: decoded(&text("Content-Type").unwrap()),
                headers,
                correlation_id: text("Posthaste-Correlation-Id").map(|text| decoded(&text)),
                key: text("Posthaste-Key").map(|text| decoded(&text)),
                persistent,
            });
        }
        arrived
    }

    async fn destroy(self) {
        for (_, name) in self.taken.into_inner().unwrap() {
            self.js.delete_stream(name).await.unwrap();
        }
    }
}

/// Undoes percent encoding, independently of the sink.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend(parts.next().unwrap().bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).unwrap()
}
