//! A message in AMQP's words, there and back.
//!
//! Nothing here is logged, and no text of an error quotes a value.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use posthaste_core::{Headers, Message, OCTET_STREAM};

/// The header with a message's ordering key.
pub const KEY_HEADER: &str = "posthaste-key";
/// The header with the type of the aggregate that a message came from.
pub const AGGREGATE_TYPE_HEADER: &str = "posthaste-aggregate-type";
/// The header with the id of the aggregate that a message came from.
pub const AGGREGATE_ID_HEADER: &str = "posthaste-aggregate-id";
/// The header with the tenant that a message belongs to.
pub const TENANT_HEADER: &str = "posthaste-tenant";
/// The header that says why a message is a dead letter.
pub const ERROR_HEADER: &str = "posthaste-error";
/// The header with the class of the failure that made a message a dead letter.
pub const ERROR_CLASS_HEADER: &str = "posthaste-error-class";
/// The header with the queue that a dead letter was taken from.
pub const QUEUE_HEADER: &str = "posthaste-queue";

/// Written to disk by queues that are durable.
const PERSISTENT: u8 = 2;

/// The properties of a message; none if a name in it is longer than AMQP allows.
pub(crate) fn properties(message: &Message, source: &str) -> Option<BasicProperties> {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(short(name)?, AMQPValue::LongString(value.as_str().into()));
    }
    let own = [
        (KEY_HEADER, &message.key),
        (AGGREGATE_TYPE_HEADER, &message.aggregate_type),
        (AGGREGATE_ID_HEADER, &message.aggregate_id),
        (TENANT_HEADER, &message.tenant_id),
    ];
    for (name, value) in own {
        if let Some(value) = value {
            headers.insert(name.into(), AMQPValue::LongString(value.as_str().into()));
        }
    }
    let occurred = message.occurred_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message.id.to_string().into())
        .with_content_type(short(&message.content_type)?)
        .with_timestamp(occurred.as_secs())
        .with_type(short(message.topic.as_str())?)
        .with_app_id(short(source)?)
        .with_headers(headers);
    if let Some(id) = &message.correlation_id {
        properties = properties.with_correlation_id(short(id)?);
    }
    Some(properties)
}

pub(crate) fn short(text: &str) -> Option<ShortString> {
    ShortString::try_new(text).ok()
}

/// The headers that are texts.
pub(crate) fn text_headers(properties: &BasicProperties) -> Headers {
    let Some(table) = properties.headers() else { return Headers::new() };
    let texts = table.inner().iter().filter_map(|(name, value)| {
        let text = match value {
            AMQPValue::LongString(text) => std::str::from_utf8(text.as_bytes()).ok()?.to_owned(),
            AMQPValue::ShortString(text) => text.to_string(),
            _ => return None,
        };
        Some((name.to_string(), text))
    });
    texts.collect()
}

/// How often a quorum queue has delivered a message before; 0 on queues that do not count.
pub(crate) fn delivery_count(properties: &BasicProperties) -> u32 {
    let count = properties.headers().as_ref().and_then(|table| table.inner().get("x-delivery-count"));
    let count = match count {
        Some(AMQPValue::LongLongInt(count)) => u32::try_from(*count).ok(),
        Some(AMQPValue::LongInt(count)) => u32::try_from(*count).ok(),
        Some(AMQPValue::LongUInt(count)) => Some(*count),
        Some(AMQPValue::ShortUInt(count)) => Some(u32::from(*count)),
        Some(AMQPValue::ShortShortUInt(count)) => Some(u32::from(*count)),
        _ => None,
    };
    count.unwrap_or_default()
}

pub(crate) fn content_type(properties: &BasicProperties) -> String {
    properties.content_type().as_ref().map_or_else(|| OCTET_STREAM.to_owned(), ToString::to_string)
}

pub(crate) fn occurred_at(properties: &BasicProperties) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_secs((*properties.timestamp())?))
}
