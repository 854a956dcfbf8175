//! Enqueue: from the command line, a file, a pipe, and line by line.

use std::time::Duration;

use posthaste::OrderPolicy;
use serde_json::json;

use crate::support::{Place, on_both};

on_both!(
    a_message_is_stored_with_all_it_was_given,
    the_same_id_or_dedup_key_is_a_duplicate,
    payloads_come_from_files_and_pipes,
    what_is_not_json_needs_a_content_type,
    lines_become_messages,
    a_wrong_line_is_named,
    wrong_usage_stores_nothing,
);

async fn a_message_is_stored_with_all_it_was_given(place: &Place) {
    let id = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";
    let args = [
        "enqueue",
        "order.placed",
        "{\"order\": 7}",
        "--key",
        "customer-12",
        "--header",
        "source=shop",
        "--header",
        "a=b=c",
        "--id",
        id,
        "--delay",
        "1h",
        "--expires",
        "2h",
        "--priority",
        "-5",
        "--correlation",
        "request-9",
        "--tenant",
        "eu",
        "--order",
        "park",
        "--dedup",
        "order-7",
    ];
    let ran = place.run(&args).exits(0);
    assert_eq!(ran.out.trim(), id);
    let (record, _) = place.store.show(id.parse().unwrap()).await.unwrap().unwrap();
    let message = record.message;
    assert_eq!(
        (&message.payload[..], message.content_type.as_str()),
        (&b"{\"order\": 7}"[..], "application/json")
    );
    assert_eq!(
        (message.key.as_deref(), message.order, message.priority),
        (Some("customer-12"), OrderPolicy::Park, -5)
    );
    assert_eq!((message.headers["source"].as_str(), message.headers["a"].as_str()), ("shop", "b=c"));
    assert_eq!(
        (message.correlation_id.as_deref(), message.tenant_id.as_deref()),
        (Some("request-9"), Some("eu"))
    );
    assert!(message.due_at > message.created_at + Duration::from_secs(3_500));
    assert!(message.expires_at.unwrap() > message.due_at);
}

async fn the_same_id_or_dedup_key_is_a_duplicate(place: &Place) {
    let first = place.json(&["enqueue", "t", "1", "--dedup", "order-7"]);
    assert_eq!(first["duplicate"], false);
    let second = place.json(&["enqueue", "t", "2", "--dedup", "order-7"]);
    assert_eq!(second, json!({ "id": first["id"], "duplicate": true }));
    place.run(&["enqueue", "t", "3", "--dedup", "order-7"]).exits(0).warns("nothing was stored");
    assert_eq!(place.store.stats().await.unwrap().ready.value, 1);
}

async fn payloads_come_from_files_and_pipes(place: &Place) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("payload.bin");
    std::fs::write(&file, [0xff, 0x00, 0x01]).unwrap();
    let file = file.to_str().unwrap();
    let ran = place.run(&["enqueue", "t", "--file", file, "--content-type", "application/pdf"]).exits(0);
    let (record, _) = place.store.show(ran.out.trim().parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(
        (&record.message.payload[..], record.message.content_type.as_str()),
        (&[0xff, 0, 1][..], "application/pdf")
    );
    place.run(&["show", ran.out.trim(), "--payload"]).exits(0).says("base64: /wAB");
    let ran = place.run_with(&["enqueue", "t", "-"], "[1, 2]").exits(0);
    let (record, _) = place.store.show(ran.out.trim().parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(&record.message.payload[..], b"[1, 2]");
    place.run(&["enqueue", "t", "--file", "no-such-file"]).exits(2).warns("cannot be read");
}

async fn what_is_not_json_needs_a_content_type(place: &Place) {
    place.run(&["enqueue", "t", "hello canary"]).exits(2).warns("--content-type").never("canary");
    place.run(&["enqueue", "t", "hello", "--content-type", "text/plain"]).exits(0);
    let much = format!("\"{}\"", "x".repeat(1024 * 1024));
    place.run_with(&["enqueue", "t", "-"], &much).exits(2).warns("1,048,576 bytes");
}

async fn lines_become_messages(place: &Place) {
    let lines: String = (0..1_203).map(|n| format!("{{\"n\": {n}}}\r\n")).collect();
    let ran = place.run_with(&["enqueue", "t", "--lines", "--json"], &format!("{lines}\n\n7")).exits(0);
    assert_eq!(ran.json(), json!({ "enqueued": 1_204, "duplicates": 0 }));
    let page = place.store.list(&posthaste::Filter::default(), None, 2).await.unwrap();
    assert_eq!(&page.records[1].message.payload[..], b"{\"n\": 1}");
    assert_eq!(place.store.stats().await.unwrap().ready.value, 1_204);
    place.run_with(&["enqueue", "t", "--lines"], "").exits(0).says("0 messages stored");
}

async fn a_wrong_line_is_named(place: &Place) {
    let lines: String =
        (0..600).map(|n| if n == 550 { "canary\n".to_owned() } else { format!("{n}\n") }).collect();
    let ran = place.run_with(&["enqueue", "t", "--lines"], &lines).exits(2);
    ran.warns("line=551").warns("stored before=500").never("canary");
    assert_eq!(place.store.stats().await.unwrap().ready.value, 500);
}

async fn wrong_usage_stores_nothing(place: &Place) {
    place.run(&["enqueue", "t"]).exits(2).warns("<PAYLOAD>");
    place.run(&["enqueue", "", "1"]).exits(2).warns("topic is empty");
    place.run(&["enqueue", "t", "1", "--header", "canary"]).exits(2).warns("NAME=VALUE").never("canary");
    place.run(&["enqueue", "t", "1", "--delay", "soon"]).exits(2).warns("30s, 5m, 2h or 7d");
    place.run(&["enqueue", "t", "--lines", "--id", "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11"]).exits(2);
    place.run(&["enqueue", "t", "1", "--key", &"k".repeat(256)]).exits(2).warns("key has 256 bytes");
    assert_eq!(place.store.stats().await.unwrap().ready.value, 0);
}
