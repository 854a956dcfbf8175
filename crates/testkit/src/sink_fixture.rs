//! Everything the suite needs of a sink: how to create a place of its own on the real server, and what has arrived there.
//!
//! A fixture prepares and inspects; it must never do the sink's own work.

use std::net::SocketAddr;
use std::time::SystemTime;

use async_trait::async_trait;
use posthaste_core::{Headers, Message, MessageId, OrderPolicy, Sink, Topic, WorkItemId};

/// A message as the receiver has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The message's id.
    pub id: MessageId,
    /// The topic it was published under.
    pub topic: String,
    /// The content.
    pub payload: Vec<u8>,
    /// The content type.
    pub content_type: String,
    /// The headers of its publisher, without headers that the sink adds.
    pub headers: Headers,
    /// Links it to a request or to other messages.
    pub correlation_id: Option<String>,
    /// Its ordering key.
    pub key: Option<String>,
    /// Whether the receiver keeps it through a restart.
    pub persistent: bool,
}

/// One fresh place on a real server for one test. It panics on any error.
#[async_trait]
pub trait SinkFixture: Sized + Send + Sync + 'static {
    /// The sink.
    type Sink: Sink;

    /// A payload of so many bytes is more than the receiver takes; none if there is no such size that a test could send.
    const TOO_LARGE: Option<usize>;

    /// Whether there is a server to test with. If not, every case prints that and passes.
    fn available() -> bool;

    /// A place of its own: a virtual host, or names that no other test uses.
    async fn create() -> Self;

    /// The server's address, for a proxy in front of it.
    fn server(&self) -> SocketAddr;

    /// A sink that sends to this place, by way of this address: the server's own, or that of a proxy in front of it.
    fn sink(&self, by_way_of: SocketAddr) -> Self::Sink;

    /// Makes messages of a topic routable, and keeps what arrives from now on. Until then no queue or stream takes
    /// them.
    async fn take(&self, topic: &str);

    /// Everything that has arrived of a topic since [`take`](Self::take), in the order of arrival. Cases ask again until they have seen
    /// what they wait for.
    async fn arrived(&self, topic: &str) -> Vec<Arrived>;

    /// Removes what `create` made. Called only after success, so that you can inspect a failure.
    async fn destroy(self);
}

/// A JSON message of a topic, as a worker that has claimed it would hand it to a sink.
pub fn claimed(topic: &str, payload: impl Into<Vec<u8>>) -> Message {
    let now = SystemTime::now();
    Message {
        item: WorkItemId::new(1),
        epoch: 1,
        id: MessageId::new(),
        topic: Topic::new(topic).unwrap(),
        key: None,
        order: OrderPolicy::default(),
        payload: payload.into().into(),
        content_type: "application/json".to_owned(),
        headers: Headers::new(),
        correlation_id: None,
        aggregate_type: None,
        aggregate_id: None,
        tenant_id: None,
        priority: 0,
        attempts: 0,
        lease_losses: 0,
        failing_since: None,
        handled: Vec::new(),
        occurred_at: now,
        created_at: now,
        due_at: now,
        expires_at: None,
    }
}
