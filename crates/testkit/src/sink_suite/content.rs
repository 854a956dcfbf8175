//! Arrived messages equal the sent ones.

use std::sync::Arc;

use posthaste_core::{Headers, TRACEPARENT};

use super::support::{CANARY, arrived, message, messages, send};
use crate::SinkFixture;

/// RMQ-001: messages that a sink reports as taken have arrived, each once.
pub async fn everything_arrives<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let sink = fixture.sink(fixture.server());
    let batch = messages("order.placed", 500);
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
    let arrived = arrived(fixture, "order.placed", &batch).await;
    assert_eq!(arrived.len(), batch.len());
}

/// RMQ-006: id, topic, content, content type, correlation id, key, headers and trace travel along, and it is kept.
pub async fn as_it_was_published<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let sink = fixture.sink(fixture.server());
    let mut sent = message("order.placed", format!("{{\"of\":\"{CANARY}\"}}"));
    sent.key = Some("customer 7".to_owned());
    sent.correlation_id = Some("request-42".to_owned());
    sent.content_type = "application/vnd.shop+json; v=2".to_owned();
    sent.headers.insert("X-Shop".to_owned(), "Zürich".to_owned());
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    sent.headers.insert(TRACEPARENT.to_owned(), trace.to_owned());
    let batch = [Arc::new(sent)];
    assert_eq!(send(&sink, &batch).await, [Ok(())]);
    let sent = &batch[0];
    let arrived = arrived(fixture, "order.placed", &batch).await.remove(0);
    assert_eq!((arrived.id, arrived.topic.as_str()), (sent.id, "order.placed"));
    assert_eq!(arrived.payload, sent.payload);
    assert_eq!(arrived.content_type, sent.content_type);
    assert_eq!((&arrived.key, &arrived.correlation_id), (&sent.key, &sent.correlation_id));
    assert_eq!(arrived.headers, sent.headers);
    assert!(arrived.persistent);
}

/// Bytes are not interpreted: no bytes, all byte values, and bytes that are no text.
pub async fn any_bytes<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("bytes").await;
    let sink = fixture.sink(fixture.server());
    let payloads = [Vec::new(), (0..=255).collect(), vec![0; 100_000], b"\xff\xfe\0".to_vec()];
    let batch = payloads.clone().map(|payload| Arc::new(message("bytes", payload)));
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
    let arrived = arrived(fixture, "bytes", &batch).await;
    for (sent, payload) in batch.iter().zip(payloads) {
        let arrived = arrived.iter().find(|arrived| arrived.id == sent.id).unwrap();
        assert_eq!(arrived.payload, payload);
    }
}

/// Headers may be empty, long, and full of special characters; none of them becomes another header.
pub async fn odd_headers<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("headers").await;
    let sink = fixture.sink(fixture.server());
    let mut sent = message("headers", "{}");
    sent.headers = Headers::new();
    for (name, value) in [
        ("empty", String::new()),
        ("long", "x".repeat(20_000)),
        ("lines", "one\r\nInjected: two\n\tthree".to_owned()),
        ("letters", "日本 ✉ \u{7f}".to_owned()),
        ("spaces", "  both ends  ".to_owned()),
    ] {
        sent.headers.insert(name.to_owned(), value);
    }
    let batch = [Arc::new(sent)];
    assert_eq!(send(&sink, &batch).await, [Ok(())]);
    let arrived = arrived(fixture, "headers", &batch).await.remove(0);
    assert_eq!(arrived.headers, batch[0].headers);
}

/// Protocol, Order: messages that are sent one after the other arrive so.
pub async fn in_the_order_of_the_batch<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("numbers").await;
    let sink = fixture.sink(fixture.server());
    let batch = messages("numbers", 300);
    for part in batch.chunks(100) {
        assert!(send(&sink, part).await.iter().all(Result::is_ok));
    }
    let arrived = arrived(fixture, "numbers", &batch).await;
    let ids: Vec<_> = arrived.iter().map(|arrived| arrived.id).collect();
    let sent: Vec<_> = batch.iter().map(|message| message.id).collect();
    assert_eq!(ids, sent);
}

/// Protocol rule 7: sent again, it is the same message: a receiver that gets it twice can tell.
pub async fn a_repeated_message_has_the_same_id<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("again").await;
    let sink = fixture.sink(fixture.server());
    let batch = messages("again", 1);
    for _ in 0..2 {
        assert_eq!(send(&sink, &batch).await, [Ok(())]);
    }
    let arrived = arrived(fixture, "again", &batch).await;
    assert!(arrived.iter().all(|arrived| arrived.id == batch[0].id));
}
