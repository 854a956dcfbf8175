//! The stored and transported unit: as a publisher hands it over ([`NewMessage`]), and as a worker gets it
//! ([`Message`]).
//!
//! Limits are checked here, in bytes and before any SQL. Payloads, headers and keys never appear in `Debug`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::id::{Lease, MessageId, WorkItemId};
use crate::order::OrderPolicy;
use crate::text;
use crate::topic::Topic;

/// The most bytes of a key, a correlation id, an aggregate's type or id, or a tenant's id.
pub const MAX_NAME_BYTES: usize = 255;
/// The most bytes of all headers together, in their stored form.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;
/// The default limit of a payload, in bytes.
pub const DEFAULT_MAX_PAYLOAD_BYTES: usize = 1024 * 1024;
/// The most bytes of a content type.
pub const MAX_CONTENT_TYPE_BYTES: usize = 127;
/// The content type of [`NewMessage::json`] and of events.
pub const JSON: &str = "application/json";
/// The content type of [`NewMessage::bytes`].
pub const OCTET_STREAM: &str = "application/octet-stream";

/// The longest delay, and the most distant time, that every database can add up and store.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const MAX_TIME: Duration = Duration::from_secs(253_370_764_800); // the year 9999

/// Text pairs that travel with a message.
pub type Headers = BTreeMap<String, String>;

/// A point in time, absolute or counted by the database from its own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum When {
    /// As soon as possible.
    #[default]
    Now,
    /// This long after the database's now.
    After(Duration),
    /// At this time; a past one means now.
    At(SystemTime),
}

impl When {
    pub(crate) fn check(self, field: &str) -> Result<Self> {
        let fits = match self {
            Self::Now => true,
            Self::After(delay) => delay <= MAX_DELAY,
            Self::At(time) => time.duration_since(SystemTime::UNIX_EPOCH).is_ok_and(|since| since < MAX_TIME),
        };
        if fits {
            Ok(self)
        } else {
            Err(Error::invalid(
                format!("{field} is out of range"),
                "give a time from 1970 to 9998, or a delay of at most 100 years",
            ))
        }
    }
}

/// A message that has not been published yet: immutable, checked, and with its id already made.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::NewMessage;
///
/// let message = NewMessage::json("invoice.send", &serde_json::json!({ "invoice": 7 }))
///     .key("customer-12")
///     .delay(Duration::from_secs(60))
///     .dedup_key("invoice-7")
///     .header("source", "billing")
///     .build()?;
/// assert_eq!(message.topic(), "invoice.send");
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct NewMessage {
    pub(crate) id: MessageId,
    pub(crate) topic: Topic,
    pub(crate) key: Option<String>,
    pub(crate) order: Option<OrderPolicy>,
    pub(crate) dedup: Option<[u8; 32]>,
    pub(crate) payload: Bytes,
    pub(crate) content_type: String,
    pub(crate) headers: Headers,
    pub(crate) correlation_id: Option<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) occurred_at: Option<SystemTime>,
    pub(crate) due: When,
    pub(crate) expires: Option<When>,
    pub(crate) priority: i16,
}

impl NewMessage {
    /// A message with the topic and key of this event, and the event itself as JSON.
    pub fn event<E: Event>(event: &E) -> MessageBuilder {
        let mut builder = Self::json(E::TOPIC, event);
        builder.message.key = event.key();
        builder
    }

    /// A message with this value as JSON. The topic may be a text, or an enum of yours with `AsRef<str>`.
    pub fn json(topic: impl AsRef<str>, value: &(impl Serialize + ?Sized)) -> MessageBuilder {
        let mut builder = MessageBuilder::new(topic.as_ref().to_owned(), JSON);
        match serde_json::to_vec(value) {
            Ok(payload) => builder.message.payload = payload.into(),
            Err(source) => {
                builder.error = Some(
                    Error::new(ErrorKind::Codec, "the payload cannot be written as JSON").with_source(source),
                );
            }
        }
        builder
    }

    /// A message with these bytes, of content type `application/octet-stream` by default.
    pub fn bytes(topic: impl AsRef<str>, payload: impl Into<Bytes>) -> MessageBuilder {
        let mut builder = MessageBuilder::new(topic.as_ref().to_owned(), OCTET_STREAM);
        builder.message.payload = payload.into();
        builder
    }

    /// The logical identity, made before any SQL.
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// What selects handlers and routes.
    pub fn topic(&self) -> &str {
        self.topic.as_str()
    }

    /// The ordering key.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// The message's own order policy, if it has one.
    pub fn order(&self) -> Option<OrderPolicy> {
        self.order
    }

    /// The hash of the dedup key.
    pub fn dedup(&self) -> Option<&[u8; 32]> {
        self.dedup.as_ref()
    }

    /// The content, as it will be stored and delivered.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// How many bytes its payload and its headers have together. Limits on memory and on statements count these.
    pub fn size(&self) -> usize {
        size(&self.payload, &self.headers)
    }

    /// The content type.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// Text pairs that travel with it.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// The headers in their stored form: a JSON object, or nothing if there are none.
    pub fn encoded_headers(&self) -> Option<String> {
        encode_headers(&self.headers)
    }

    /// Links it to a request or to other messages.
    pub fn correlation_id(&self) -> Option<&str> {
        self.correlation_id.as_deref()
    }

    /// The type of the aggregate that it came from.
    pub fn aggregate_type(&self) -> Option<&str> {
        self.aggregate_type.as_deref()
    }

    /// The id of the aggregate that it came from.
    pub fn aggregate_id(&self) -> Option<&str> {
        self.aggregate_id.as_deref()
    }

    /// The tenant that it belongs to.
    pub fn tenant_id(&self) -> Option<&str> {
        self.tenant_id.as_deref()
    }

    /// When it happened by the publisher's own account, if that is not the time of enqueueing.
    pub fn occurred_at(&self) -> Option<SystemTime> {
        self.occurred_at
    }

    /// When it may be claimed.
    pub fn due(&self) -> When {
        self.due
    }

    /// When it expires.
    pub fn expires(&self) -> Option<When> {
        self.expires
    }

    /// Which go first: smaller numbers do.
    pub fn priority(&self) -> i16 {
        self.priority
    }

    pub(crate) fn set_order(&mut self, order: OrderPolicy) {
        self.order.get_or_insert(order);
    }

    pub(crate) fn shared_payload(&self) -> Bytes {
        self.payload.clone()
    }

    pub(crate) fn check_payload(&self, max: usize) -> Result<()> {
        if self.payload.len() <= max {
            return Ok(());
        }
        Err(Error::invalid(
            format!("payload has {} bytes, the limit is {max}", self.payload.len()),
            "store the content elsewhere and publish a reference, or raise max_payload_bytes of the outbox",
        )
        .with_context("topic", &self.topic)
        .with_context("message_id", self.id))
    }
}

impl fmt::Debug for NewMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewMessage")
            .field("id", &self.id)
            .field("topic", &self.topic.as_str())
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// Collects the fields of a message; [`build`](Self::build) checks them.
///
/// Publishing takes a builder as it is, so `build` is needed only to keep or inspect the message.
#[must_use = "a builder does nothing until it is published or built"]
#[derive(Debug)]
pub struct MessageBuilder {
    message: NewMessage,
    topic: String,
    error: Option<Error>,
}

impl MessageBuilder {
    fn new(topic: String, content_type: &str) -> Self {
        let message = NewMessage {
            id: MessageId::new(),
            topic: Topic::new("unchecked").expect("a fixed name is within its limits"),
            key: None,
            order: None,
            dedup: None,
            payload: Bytes::new(),
            content_type: content_type.to_owned(),
            headers: Headers::new(),
            correlation_id: None,
            aggregate_type: None,
            aggregate_id: None,
            tenant_id: None,
            occurred_at: None,
            due: When::Now,
            expires: None,
            priority: 0,
        };
        Self { message, topic, error: None }
    }

    /// The logical identity. Default: a new UUID of version 7.
    pub fn id(mut self, id: impl Into<MessageId>) -> Self {
        self.message.id = id.into();
        self
    }

    /// The ordering key: messages of one key are delivered one at a time, in the order of enqueueing, across topics. At most
    /// 255 bytes; empty means none. Default: none, or the event's.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.message.key = Some(key.into());
        self
    }

    /// What becomes of the key when this message dies. Default: the outbox's policy for the topic.
    pub fn order(mut self, policy: OrderPolicy) -> Self {
        self.message.order = Some(policy);
        self
    }

    /// A second message with the same dedup key is not stored as long as the first one is; publishing it returns the
    /// first one's id. While the transaction that publishes the first is open, the second waits for it. Any length; only its hash is kept. Empty means none.
    pub fn dedup_key(mut self, key: impl AsRef<[u8]>) -> Self {
        let key = key.as_ref();
        self.message.dedup = (!key.is_empty()).then(|| Sha256::digest(key).into());
        self
    }

    /// Sets the content type. Default: `application/json` for JSON, `application/octet-stream` for bytes.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.message.content_type = content_type.into();
        self
    }

    /// Adds a header; all of them together have at most 64 KiB.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.message.headers.insert(name.into(), value.into());
        self
    }

    /// Adds headers.
    pub fn headers(mut self, headers: impl IntoIterator<Item = (String, String)>) -> Self {
        self.message.headers.extend(headers);
        self
    }

    /// Links it to a request or to other messages. At most 255 bytes; empty means none.
    pub fn correlation_id(mut self, id: impl Into<String>) -> Self {
        self.message.correlation_id = Some(id.into());
        self
    }

    /// The aggregate that it came from: type and id, at most 255 bytes each.
    pub fn aggregate(mut self, kind: impl AsRef<str>, id: impl fmt::Display) -> Self {
        self.message.aggregate_type = Some(kind.as_ref().to_owned());
        self.message.aggregate_id = Some(id.to_string());
        self
    }

    /// The tenant that it belongs to; carried along, and visible to handlers and sinks. At most 255 bytes.
    pub fn tenant_id(mut self, id: impl Into<String>) -> Self {
        self.message.tenant_id = Some(id.into());
        self
    }

    /// When it happened, if that is not now.
    pub fn occurred_at(mut self, time: SystemTime) -> Self {
        self.message.occurred_at = Some(time);
        self
    }

    /// Not before this time; a past one means now.
    pub fn due_at(mut self, time: SystemTime) -> Self {
        // Before 1970 is merely long past, and not every database can store it.
        self.message.due = When::At(time.max(SystemTime::UNIX_EPOCH));
        self
    }

    /// Not before this long after the database's now.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.message.due = When::After(delay);
        self
    }

    /// Not after this time: if no worker has claimed it by then, it becomes dead with the reason `expired`.
    pub fn expires_at(mut self, time: SystemTime) -> Self {
        self.message.expires = Some(When::At(time.max(SystemTime::UNIX_EPOCH)));
        self
    }

    /// Not later than this long after the database's now.
    pub fn expires_after(mut self, delay: Duration) -> Self {
        self.message.expires = Some(When::After(delay));
        self
    }

    /// Which go first: smaller numbers do. Default: 0.
    pub fn priority(mut self, priority: i16) -> Self {
        self.message.priority = priority;
        self
    }

    /// The message with these changes, if everything in it is within its limits.
    pub(crate) fn fill(mut self, change: impl FnOnce(&mut NewMessage)) -> Result<NewMessage> {
        change(&mut self.message);
        self.build()
    }

    /// The message, if everything in it is within its limits.
    pub fn build(self) -> Result<NewMessage> {
        if let Some(error) = self.error {
            return Err(error.with_context("topic", text::cut(&self.topic, Topic::MAX_BYTES)));
        }
        let mut message = self.message;
        message.topic = Topic::new(self.topic)?;
        message.finish().map_err(|error| error.with_context("topic", &message.topic))?;
        Ok(message)
    }
}

impl NewMessage {
    /// Lets it go on in this trace, unless it has one of its own, or has no room for it.
    pub(crate) fn trace(&mut self, context: &crate::trace::TraceContext) {
        const ROOM: usize = 1024;
        let bytes = self.encoded_headers().map_or(0, |headers| headers.len());
        if bytes + ROOM <= MAX_HEADER_BYTES {
            context.put(&mut self.headers);
        }
    }

    /// The message as a worker has it that holds this lease, from memory. Its times are this machine's: only the database
    /// knows its own.
    pub(crate) fn leased(&self, lease: Lease, now: SystemTime) -> Message {
        Message {
            item: lease.item,
            epoch: lease.epoch,
            id: self.id,
            topic: self.topic.clone(),
            key: self.key.clone(),
            order: self.order.unwrap_or_default(),
            payload: self.payload.clone(),
            content_type: self.content_type.clone(),
            headers: self.headers.clone(),
            correlation_id: self.correlation_id.clone(),
            aggregate_type: self.aggregate_type.clone(),
            aggregate_id: self.aggregate_id.clone(),
            tenant_id: self.tenant_id.clone(),
            priority: self.priority,
            attempts: 0,
            lease_losses: 0,
            failing_since: None,
            handled: Vec::new(),
            occurred_at: self.occurred_at.unwrap_or(now),
            created_at: now,
            due_at: now,
            expires_at: None,
        }
    }

    fn finish(&mut self) -> Result<()> {
        if self.id.is_nil() {
            return Err(Error::invalid("message id is the nil UUID", "leave it out or give one of your own"));
        }
        self.key = text::optional("key", self.key.take(), MAX_NAME_BYTES)?;
        self.correlation_id = text::optional("correlation id", self.correlation_id.take(), MAX_NAME_BYTES)?;
        self.aggregate_type = text::optional("aggregate type", self.aggregate_type.take(), MAX_NAME_BYTES)?;
        self.aggregate_id = text::optional("aggregate id", self.aggregate_id.take(), MAX_NAME_BYTES)?;
        self.tenant_id = text::optional("tenant id", self.tenant_id.take(), MAX_NAME_BYTES)?;
        let content_type = std::mem::take(&mut self.content_type);
        self.content_type = text::required("content type", content_type, MAX_CONTENT_TYPE_BYTES)?;
        self.due = self.due.check("due time")?;
        self.expires = self.expires.map(|when| when.check("expiry")).transpose()?;
        if let Some(time) = self.occurred_at {
            When::At(time).check("time of occurrence")?;
        }
        if self.headers.keys().any(String::is_empty) {
            return Err(Error::invalid("a header has no name", "name it"));
        }
        let bytes = self.encoded_headers().map_or(0, |headers| headers.len());
        if bytes > MAX_HEADER_BYTES {
            return Err(Error::invalid(
                format!("headers have {bytes} bytes, the limit is {MAX_HEADER_BYTES}"),
                "put large values into the payload",
            ));
        }
        Ok(())
    }
}

fn size(payload: &[u8], headers: &Headers) -> usize {
    payload.len() + headers.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
}

/// The stored form of headers: a JSON object, or nothing if there are none.
pub fn encode_headers(headers: &Headers) -> Option<String> {
    // A map of texts always has a JSON form, so an error cannot occur; and if it did, losing headers silently would
    // be worse than an obviously wrong value.
    (!headers.is_empty()).then(|| serde_json::to_string(headers).unwrap_or_else(|error| error.to_string()))
}

/// The headers of this stored form.
pub fn decode_headers(stored: Option<&str>) -> Result<Headers> {
    match stored {
        None | Some("") => Ok(Headers::new()),
        Some(json) => serde_json::from_str(json).map_err(|_| {
            // The source quotes the text, and headers never reach a log.
            Error::new(ErrorKind::Codec, "the stored headers are not a JSON object of texts")
        }),
    }
}

/// The lines about receivers of this stored form.
pub fn decode_handled(stored: Option<&str>) -> Vec<String> {
    stored.unwrap_or_default().lines().map(str::to_owned).collect()
}

/// A message as a worker gets it: as published, with its state so far.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// The row in the work queue.
    pub item: WorkItemId,
    /// Which claim of the row this is.
    pub epoch: i32,
    /// The logical identity: the same for every retry, replay and broker header.
    pub id: MessageId,
    /// What selects handlers and routes.
    pub topic: Topic,
    /// The ordering key.
    pub key: Option<String>,
    /// What becomes of the key when this message dies.
    pub order: OrderPolicy,
    /// The content, byte for byte as it was published.
    pub payload: Bytes,
    /// The content type.
    pub content_type: String,
    /// Text pairs that travel with it.
    pub headers: Headers,
    /// Links it to a request or to other messages.
    pub correlation_id: Option<String>,
    /// The type of the aggregate that it came from.
    pub aggregate_type: Option<String>,
    /// The id of the aggregate that it came from.
    pub aggregate_id: Option<String>,
    /// The tenant that it belongs to.
    pub tenant_id: Option<String>,
    /// Which go first: smaller numbers do.
    pub priority: i16,
    /// How many attempts have failed.
    pub attempts: u32,
    /// How many leases ran out on it; more than none makes it a suspect.
    pub lease_losses: u32,
    /// Since when it has failed without a break for reasons that cost no attempt.
    pub failing_since: Option<SystemTime>,
    /// How far each receiver has come, as it is stored: one line each. [`receivers`](Self::receivers) reads them.
    pub handled: Vec<String>,
    /// When it happened: by the publisher's account, else when it was enqueued.
    pub occurred_at: SystemTime,
    /// When it was enqueued, by the database's clock.
    pub created_at: SystemTime,
    /// When it could first be claimed this time.
    pub due_at: SystemTime,
    /// When it expires.
    pub expires_at: Option<SystemTime>,
}

impl Message {
    /// The ownership that settling it takes.
    pub fn lease(&self) -> Lease {
        Lease { item: self.item, epoch: self.epoch }
    }

    /// How many bytes its payload and its headers have together. Limits on memory count these.
    pub fn size(&self) -> usize {
        size(&self.payload, &self.headers)
    }

    /// The payload as a value of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.payload).map_err(|source| {
            // Where it failed, but not the text: the decoder's own message quotes the payload.
            Error::new(ErrorKind::Codec, "the payload is not the expected JSON")
                .with_context("message_id", self.id)
                .with_context("topic", &self.topic)
                .with_context("line", source.line())
                .with_context("column", source.column())
        })
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("item", &self.item)
            .field("epoch", &self.epoch)
            .field("id", &self.id)
            .field("topic", &self.topic.as_str())
            .field("attempts", &self.attempts)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What became of one message of an enqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It was stored; with a lease, if it was stored leased.
    New {
        /// Its id.
        id: MessageId,
        /// The lease that settling it takes, if it was stored leased.
        lease: Option<Lease>,
    },
    /// A message with the same id or dedup key is stored already; this one was not.
    Duplicate {
        /// The id of the message that is stored.
        id: MessageId,
    },
}

impl Enqueued {
    /// The id of the message that is stored.
    pub fn id(&self) -> MessageId {
        match self {
            Self::New { id, .. } | Self::Duplicate { id } => *id,
        }
    }

    /// Whether the message was stored already.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate { .. })
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
