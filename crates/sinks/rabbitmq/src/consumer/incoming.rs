//! From RabbitMQ's delivery to the handler's message.
//!
//! Nothing is made up: a message without an id is none that an inbox could know.

use bytes::Bytes;
use lapin::message::Delivery;
use posthaste_core::{Failure, Headers, MessageId, Received};

use super::Options;
use crate::properties::{content_type, occurred_at, text_headers};

/// A message without a `message_id`, for consumers that identify it by something else.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Unnamed<'a> {
    /// By which key it was routed.
    pub routing_key: &'a str,
    /// Its headers that are texts.
    pub headers: &'a Headers,
    /// Its correlation id.
    pub correlation_id: Option<&'a str>,
    /// The content.
    pub payload: &'a [u8],
}

/// Shows nothing of the content.
impl std::fmt::Debug for Unnamed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unnamed").field("payload_bytes", &self.payload.len()).finish_non_exhaustive()
    }
}

/// The handler's message, or why there is none. Takes the content out of the delivery.
pub(super) fn received(delivery: &mut Delivery, options: &Options) -> Result<Received, (Failure, Bytes)> {
    let payload = Bytes::from(std::mem::take(&mut delivery.data));
    let properties = &delivery.properties;
    let headers = text_headers(properties);
    let routing_key = delivery.routing_key.as_str();
    let correlation_id = properties.correlation_id().as_ref().map(ToString::to_string);
    let named = properties.message_id().as_ref().map(ToString::to_string).filter(|id| !id.is_empty());
    let id = named.or_else(|| {
        let correlation_id = correlation_id.as_deref();
        let unnamed = Unnamed { routing_key, headers: &headers, correlation_id, payload: &payload };
        options.id_of.as_ref().and_then(|id_of| id_of(&unnamed))
    });
    let Some(id) = id else {
        let failure = Failure::permanent(
            "it has no message_id, so that no inbox could know it; set one when publishing",
        );
        return Err((failure, payload));
    };
    let source = properties.app_id().as_ref().map(ToString::to_string).filter(|source| !source.is_empty());
    let topic = properties.kind().as_ref().map(|kind| kind.as_str());
    let mut topics = [topic.unwrap_or_default(), routing_key, &options.queue].into_iter();
    let topic = topics.find(|topic| !topic.is_empty()).unwrap_or_default();
    let source = source.unwrap_or_else(|| "rabbitmq".to_owned());
    let mut received = Received::new(source, MessageId::of_text(&id), topic, payload);
    received.content_type = content_type(properties);
    received.occurred_at = occurred_at(properties);
    received.redelivered = delivery.redelivered;
    received.correlation_id = correlation_id;
    received.headers = headers;
    Ok(received)
}
