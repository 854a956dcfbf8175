//! A message as a consumer gets it from a broker.

use std::fmt;
use std::time::SystemTime;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::message::{Headers, MAX_NAME_BYTES, OCTET_STREAM};
use crate::text;
use crate::topic::Topic;

/// A message as a consumer gets it. [`new`](Self::new) fills what every message has; the broker's consumer sets the rest.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Received {
    /// The sender: ids are unique within a source.
    pub source: String,
    /// The same for every delivery of it.
    pub id: MessageId,
    /// Its topic.
    pub topic: String,
    /// The content.
    pub payload: Bytes,
    /// The content type.
    pub content_type: String,
    /// Text pairs that came with it.
    pub headers: Headers,
    /// Links it to a request or to other messages.
    pub correlation_id: Option<String>,
    /// When it happened, by its publisher's account.
    pub occurred_at: Option<SystemTime>,
    /// Whether the broker says that it delivered it before.
    pub redelivered: bool,
}

impl Received {
    /// A message from this source with this id, topic and content.
    pub fn new(
        source: impl Into<String>,
        id: MessageId,
        topic: impl Into<String>,
        payload: impl Into<Bytes>,
    ) -> Self {
        Self {
            source: source.into(),
            id,
            topic: topic.into(),
            payload: payload.into(),
            content_type: OCTET_STREAM.to_owned(),
            headers: Headers::new(),
            correlation_id: None,
            occurred_at: None,
            redelivered: false,
        }
    }

    /// The payload as a value of this type.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(&self.payload).map_err(|source| {
            // Where it failed, but not the text: the decoder's own message quotes the payload.
            Error::new(ErrorKind::Codec, "the payload is not the expected JSON")
                .with_context("message_id", self.id)
                .with_context("topic", text::cut(&self.topic, Topic::MAX_BYTES))
                .with_context("line", source.line())
                .with_context("column", source.column())
        })
    }

    /// Refuses a message that an inbox cannot store.
    pub(crate) fn check(&self) -> Result<()> {
        text::required("the source of a message", self.source.clone(), MAX_NAME_BYTES)?;
        text::required("topic", self.topic.clone(), Topic::MAX_BYTES)?;
        Ok(())
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("payload_bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}
