//! A message as NATS carries it, and back: which header holds what.
//!
//! Headers of a publisher must never be taken for one of ours or of the server's: `Nats-Rollup` would empty a stream. So
//! everything that is not plainly harmless travels escaped, in a header of its own.

use std::str::FromStr as _;
use std::time::SystemTime;

use async_nats::header::{HeaderMap, HeaderName, HeaderValue, NATS_EXPECTED_STREAM, NATS_MESSAGE_ID};
use chrono::{DateTime, SecondsFormat, Utc};
use posthaste_core::{Bytes, Headers, Message, MessageId, Received};

use crate::escape;

pub(crate) const TOPIC: &str = "Posthaste-Topic";
pub(crate) const KEY: &str = "Posthaste-Key";
pub(crate) const SOURCE: &str = "Posthaste-Source";
pub(crate) const CORRELATION: &str = "Posthaste-Correlation-Id";
pub(crate) const OCCURRED_AT: &str = "Posthaste-Occurred-At";
pub(crate) const TENANT: &str = "Posthaste-Tenant-Id";
pub(crate) const AGGREGATE_TYPE: &str = "Posthaste-Aggregate-Type";
pub(crate) const AGGREGATE_ID: &str = "Posthaste-Aggregate-Id";
/// The id of a message that travels under another one: a dead letter.
pub(crate) const MESSAGE_ID: &str = "Posthaste-Message-Id";
/// `name=value&name=value`, escaped: headers that cannot travel under their own names.
pub(crate) const ESCAPED: &str = "Posthaste-Headers";
pub(crate) const CONTENT_TYPE: &str = "Content-Type";
const MESSAGE_ID_OF_NATS: &str = "Nats-Msg-Id";

/// The headers of a message.
pub(crate) fn of_message(message: &Message, source: Option<&str>, stream: Option<&str>) -> HeaderMap {
    let mut map = HeaderMap::new();
    map.insert(NATS_MESSAGE_ID, HeaderValue::from(message.id.to_string()));
    let mut put = |name: &'static str, text: &str| {
        map.insert(HeaderName::from_static(name), fit(&escape::value(text)));
    };
    put(TOPIC, message.topic.as_str());
    put(CONTENT_TYPE, &message.content_type);
    put(
        OCCURRED_AT,
        &DateTime::<Utc>::from(message.occurred_at).to_rfc3339_opts(SecondsFormat::Micros, true),
    );
    let optional = [
        (KEY, message.key.as_deref()),
        (CORRELATION, message.correlation_id.as_deref()),
        (TENANT, message.tenant_id.as_deref()),
        (AGGREGATE_TYPE, message.aggregate_type.as_deref()),
        (AGGREGATE_ID, message.aggregate_id.as_deref()),
        (SOURCE, source),
    ];
    for (name, text) in optional {
        if let Some(text) = text {
            put(name, text);
        }
    }
    if let Some(stream) = stream {
        map.insert(NATS_EXPECTED_STREAM, fit(stream));
    }
    add_all(&mut map, &message.headers);
    map
}

/// Adds the headers of a publisher: as they are, or, if that could do harm, all together in one of ours. Not every program
/// reads a header that stands there twice.
fn add_all(map: &mut HeaderMap, headers: &Headers) {
    let mut escaped = String::new();
    for (name, value) in headers {
        match HeaderName::from_str(name) {
            Ok(plain) if is_plain(name) && escape::is_plain(value) => map.insert(plain, fit(value)),
            _ => {
                if !escaped.is_empty() {
                    escaped.push('&');
                }
                push_word(&mut escaped, name);
                escaped.push('=');
                push_word(&mut escaped, value);
            }
        }
    }
    if !escaped.is_empty() {
        map.insert(HeaderName::from_static(ESCAPED), fit(&escaped));
    }
}

fn push_word(out: &mut String, text: &str) {
    for character in text.chars() {
        if matches!(character, '=' | '&' | '%') || character.is_whitespace() || character.is_control() {
            escape::push(out, character);
        } else {
            out.push(character);
        }
    }
}

/// Whether a header of this name may travel as it is.
fn is_plain(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins = |ours: &str| name.get(..ours.len()).is_some_and(|start| start.eq_ignore_ascii_case(ours));
    !name.is_empty()
        && name.chars().all(letters)
        && !begins("Nats-")
        && !begins("Posthaste-")
        && !name.eq_ignore_ascii_case(CONTENT_TYPE)
        && !name.eq_ignore_ascii_case("Status")
}

/// Escaped text has no line break. Should that ever be untrue, the value is left out rather than taken for a header.
fn fit(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_default()
}

/// The first value of a header, as it came.
fn raw<'a>(headers: Option<&'a HeaderMap>, name: &'static str) -> Option<&'a str> {
    headers?.get(HeaderName::from_static(name)).map(HeaderValue::as_str)
}

/// A message as it came from a stream, with its number there, and how often it was delivered, this time included.
pub(crate) fn received(
    message: &async_nats::Message,
    stream: &str,
    sequence: u64,
    delivered: i64,
) -> Received {
    let headers = message.headers.as_ref();
    let text = |name| raw(headers, name).map(escape::decode_or_keep);
    let filled = |name| text(name).filter(|text| !text.is_empty());
    let place = || format!("{stream}:{sequence}");
    let id =
        raw(headers, MESSAGE_ID).or_else(|| raw(headers, MESSAGE_ID_OF_NATS)).filter(|id| !id.is_empty());
    let id = id.map_or_else(|| MessageId::of_text(&place()), MessageId::of_text);
    let source = filled(SOURCE).unwrap_or_else(|| "nats".to_owned());
    let topic = filled(TOPIC).unwrap_or_else(|| message.subject.to_string());
    let mut received = Received::new(source, id, topic, message.payload.clone());
    if let Some(content_type) = filled(CONTENT_TYPE) {
        received.content_type = content_type;
    }
    received.correlation_id = text(CORRELATION);
    received.occurred_at = raw(headers, OCCURRED_AT).and_then(time);
    received.redelivered = delivered > 1;
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let name: &str = name.as_ref();
        if name == ESCAPED {
            let pairs = values.iter().flat_map(|value| value.as_str().split('&'));
            let pairs = pairs.filter_map(|pair| pair.split_once('='));
            let pairs =
                pairs.filter_map(|(name, value)| Some((escape::decode(name)?, escape::decode(value)?)));
            received.headers.extend(pairs);
        } else if is_plain(name) {
            let value = values.iter().map(HeaderValue::as_str).collect::<Vec<_>>().join(", ");
            received.headers.insert(name.to_owned(), value);
        }
    }
    received
}

fn time(text: &str) -> Option<SystemTime> {
    Some(DateTime::parse_from_rfc3339(text).ok()?.into())
}

/// The headers of a dead letter: the message's own, without those that the server would act on, and the reason.
pub(crate) fn of_dead_letter(
    message: &async_nats::Message,
    id: &str,
    why: &[(&'static str, String)],
) -> HeaderMap {
    let mut map = HeaderMap::new();
    let headers = message.headers.as_ref();
    for (name, values) in headers.into_iter().flat_map(HeaderMap::iter) {
        let text: &str = name.as_ref();
        if text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("Nats-")) {
            continue;
        }
        values.iter().for_each(|value| map.append(name.clone(), value.clone()));
    }
    // The identity goes along under another name: the stream of dead letters may be the same, and would drop it.
    let original = raw(headers, MESSAGE_ID).or_else(|| raw(headers, MESSAGE_ID_OF_NATS));
    if let Some(original) = original {
        map.insert(HeaderName::from_static(MESSAGE_ID), fit(original));
    }
    map.insert(NATS_MESSAGE_ID, fit(&escape::value(id)));
    for (name, text) in why {
        map.insert(HeaderName::from_static(name), fit(&escape::value(text)));
    }
    map
}

/// How many bytes a message has with its headers, about.
pub(crate) fn size(headers: &HeaderMap, payload: &Bytes) -> usize {
    let lines = headers.iter().flat_map(|(name, values)| {
        let name: &str = name.as_ref();
        values.iter().map(move |value| name.len() + value.as_str().len() + 4)
    });
    lines.sum::<usize>() + 12 + payload.len()
}

#[cfg(test)]
#[path = "headers_tests.rs"]
mod tests;
