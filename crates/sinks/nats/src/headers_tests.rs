//! Tests of what travels in headers.

use std::time::Duration;

use posthaste_core::{OrderPolicy, Topic, WorkItemId};

use super::*;

fn message(headers: &[(&str, &str)]) -> Message {
    let now = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
    Message {
        item: WorkItemId::new(1),
        epoch: 1,
        id: MessageId::new(),
        topic: Topic::new("order placed").unwrap(),
        key: Some("k\r\nNats-Rollup: all".to_owned()),
        order: OrderPolicy::default(),
        payload: Bytes::from_static(b"{}"),
        content_type: "application/json".to_owned(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        correlation_id: Some(" c ".to_owned()),
        aggregate_type: None,
        aggregate_id: None,
        tenant_id: Some("t".to_owned()),
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

fn arrived(headers: HeaderMap) -> async_nats::Message {
    async_nats::Message {
        subject: "order%20placed".into(),
        reply: Some("$JS.ACK.ORDERS.inventory.2.7.9.1700000000000000000.0".into()),
        payload: Bytes::from_static(b"{}"),
        headers: Some(headers),
        status: None,
        description: None,
        length: 0,
    }
}

fn read(message: &async_nats::Message) -> Received {
    received(message, "ORDERS", 7, 2)
}

/// HOT-022: the received message equals the sent one, with any texts.
#[test]
fn everything_comes_back() {
    let headers = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("baggage", "a=50%25"),
        ("Nats-Rollup", "all"),
        ("nats-expected-last-sequence", "1"),
        ("posthaste-topic", "another"),
        ("content-type", "mine"),
        ("wört: er", "a\r\nb"),
        ("blank", " x "),
        ("empty", ""),
        ("=", "="),
    ];
    let sent = message(&headers);
    let map = of_message(&sent, Some("shop"), Some("ORDERS"));
    for (name, values) in map.iter() {
        let name: &str = name.as_ref();
        assert!(values.iter().all(|value| !value.as_str().contains(['\r', '\n'])));
        assert!(
            !name.starts_with("Nats-") || ["Nats-Msg-Id", "Nats-Expected-Stream"].contains(&name),
            "{name}"
        );
    }
    let received = read(&arrived(map));
    assert_eq!(received.id, sent.id);
    assert_eq!((received.source.as_str(), received.topic.as_str()), ("shop", "order placed"));
    assert_eq!(received.headers, sent.headers);
    assert_eq!(received.correlation_id, sent.correlation_id);
    assert_eq!(received.occurred_at, Some(sent.occurred_at));
    assert_eq!(received.content_type, "application/json");
    assert!(received.redelivered);
}

/// INB-003: a foreign message has an id all the same, and the same one every time.
#[test]
fn foreign_messages_are_known_by_their_place() {
    let bare = async_nats::Message { headers: None, ..arrived(HeaderMap::new()) };
    let received = read(&bare);
    assert_eq!(received.id, MessageId::of_text("ORDERS:7"));
    assert_eq!((received.source.as_str(), received.topic.as_str()), ("nats", "order%20placed"));
    assert_eq!(received.headers, Headers::new());
}

#[test]
fn a_dead_letter_keeps_the_identity_and_gives_no_orders() {
    let sent = message(&[("note", "n")]);
    let map = of_message(&sent, None, Some("ORDERS"));
    let dead = of_dead_letter(&arrived(map), "dead a", &[("Posthaste-Dead-Reason", "a\r\nb".to_owned())]);
    assert_eq!(dead.get("Nats-Msg-Id").map(HeaderValue::as_str), Some("dead a"));
    assert!(dead.get("Nats-Expected-Stream").is_none());
    let again = read(&arrived(dead));
    assert_eq!(again.id, sent.id);
    assert_eq!(again.headers, sent.headers);
}
