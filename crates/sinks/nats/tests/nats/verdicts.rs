//! Every answer of the server, and the sink's verdict.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use futures_util::StreamExt as _;
use posthaste_core::{FailureClass, Sink as _};
use posthaste_nats::{NatsOptions, NatsSink};

use crate::server::Server;
use crate::support::{
    LONG, classes, count, ids, look, message, messages, send, send_within, shared, sink, stream, unique,
};

/// RMQ-001, F-22: acknowledged messages are in the stream, in their order; sent again, they are taken and not stored again.
#[tokio::test]
async fn taken_and_known_again() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    let sink = sink(&url, &name);
    sink.declare(stream(&name)).await.unwrap();
    sink.declare(stream(&name)).await.unwrap();
    let batch = messages("order.placed", 50);
    for _ in 0..2 {
        assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
        assert_eq!(ids(&js, &name).await, batch.iter().map(|message| message.id).collect::<Vec<_>>());
    }
    let other = Config { max_messages: 5, ..stream(&name) };
    assert!(sink.declare(other).await.unwrap_err().remedy().is_some(), "what is there is not changed");
    js.delete_stream(&name).await.unwrap();
}

/// RMQ-003, F-22: without a stream, in another stream than expected, and with a reply from another client: unroutable,
/// and never reported as taken.
#[tokio::test]
async fn unroutable() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    let sink = sink(&url, &name);
    let mut mixed = messages("a", 3);
    mixed.insert(1, Arc::new(message("nobody.wants", "{}")));
    let all_unroutable = send(&sink, &mixed).await;
    assert!(
        all_unroutable
            .iter()
            .all(|verdict| verdict.as_ref().is_err_and(|e| e.class() == FailureClass::Unroutable))
    );
    assert!(
        all_unroutable[1].as_ref().unwrap_err().failure().text().contains(&format!("{name}.nobody.wants"))
    );

    js.create_stream(Config { subjects: vec![format!("{name}.a")], ..stream(&name) }).await.unwrap();
    assert_eq!(classes(&send(&sink, &mixed).await), ["ok", "unroutable", "ok", "ok"]);

    let strict = NatsSink::new(NatsOptions::new(&url).unwrap())
        .subject_prefix(&name)
        .unwrap()
        .stream("ANOTHER")
        .unwrap();
    let verdicts = send(&strict, &mixed[..1]).await;
    assert_eq!(classes(&verdicts), ["unroutable"]);
    assert!(verdicts[0].as_ref().unwrap_err().failure().text().contains("another stream"));

    let client = async_nats::connect(&url).await.unwrap();
    let mut meddler = client.subscribe(format!("{name}.nobody.wants")).await.unwrap();
    // The server knows the subscription once it has answered a later request.
    client.request("$JS.API.INFO", "".into()).await.unwrap();
    let answering = async {
        let asked = meddler.next().await.unwrap();
        client.publish(asked.reply.unwrap(), "thanks".into()).await.unwrap();
    };
    let (verdicts, ()) = tokio::join!(send(&sink, &mixed[1..2]), answering);
    assert_eq!(classes(&verdicts), ["unroutable"]);
    js.delete_stream(&name).await.unwrap();
}

/// F-22: too large for the server, and too large for the stream, is dead, and its neighbours are taken.
#[tokio::test]
async fn too_large() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    js.create_stream(Config { max_message_size: 10_000, ..stream(&name) }).await.unwrap();
    let sink = sink(&url, &name);
    let batch = [10, 20_000, 2 << 20, 10].map(|bytes| Arc::new(message("a", vec![b'x'; bytes])));
    let verdicts = send(&sink, &batch).await;
    assert_eq!(classes(&verdicts), ["ok", "too large", "too large", "ok"]);
    assert_eq!(count(&js, &name).await, 2);
    js.delete_stream(&name).await.unwrap();
}

/// A full stream that discards new messages: they wait, and the breaker stays closed.
#[tokio::test]
async fn full() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    let limits = [Config { max_messages: 2, ..stream(&name) }, Config { max_bytes: 600, ..stream(&name) }];
    for limit in limits {
        js.create_stream(Config { discard: DiscardPolicy::New, ..limit }).await.unwrap();
        let verdicts = send(&sink(&url, &name), &messages("a", 10)).await;
        assert!(verdicts[0].is_ok());
        let error = verdicts[9].as_ref().unwrap_err();
        assert!(
            !error.is_down() && error.class() == FailureClass::Infrastructure,
            "{}",
            error.failure().text()
        );
        assert!(error.failure().text().contains("full"), "{}", error.failure().text());
        js.delete_stream(&name).await.unwrap();
    }
}

/// No server, and a server without JetStream: down at once, without waiting for the deadline; the probe says the
/// same.
#[tokio::test]
async fn down() {
    let nobody = sink("nats://127.0.0.1:1", "x");
    let started = Instant::now();
    assert_eq!(classes(&send(&nobody, &messages("a", 2)).await), ["down", "down"]);
    assert!(nobody.probe().await.unwrap_err().is_down());
    assert!(started.elapsed() < LONG / 2, "the deadline was not waited for");

    let Some(bare) = Server::start(Some("max_payload: 1000\n")).await else { return };
    let sink = sink(&bare.url(), "x");
    let verdicts = send(&sink, &messages("a", 1)).await;
    assert_eq!(classes(&verdicts), ["down"]);
    assert!(verdicts[0].as_ref().unwrap_err().failure().text().contains("JetStream"));
    assert!(sink.probe().await.unwrap_err().is_down());
}

/// Logins: wrong ones are down with a reason that repeats nothing, right ones work; a forbidden subject is unroutable at once.
#[tokio::test]
async fn logins() {
    let config = r#"
        jetstream { store_dir: "FOLDER/js" }
        accounts {
            A {
                jetstream: enabled
                users: [
                    { user: admin, password: "canary pass%" }
                    { user: limited, password: l, permissions: { publish: ["t.allowed", "$JS.API.STREAM.NAMES"], subscribe: ">" } }
                ]
            }
            B { users: [ { user: poor, password: p } ] }
        }
    "#;
    let Some(server) = Server::start(Some(config)).await else { return };
    let place = server.addr();
    for options in [
        NatsOptions::new(server.url()).unwrap(),
        NatsOptions::new(format!("nats://admin:canary-wrong@{place}")).unwrap(),
        NatsOptions::new(server.url()).unwrap().token("canary-token"),
    ] {
        let verdicts = send(&NatsSink::new(options), &messages("t.allowed", 1)).await;
        let text = verdicts[0].as_ref().unwrap_err().failure().text().to_owned();
        assert!(verdicts[0].as_ref().unwrap_err().is_down() && text.contains("login"), "{text}");
        assert!(!text.contains("canary"), "{text}");
    }
    let admin = NatsSink::new(NatsOptions::new(format!("nats://admin:canary%20pass%25@{place}")).unwrap());
    admin.declare(Config { subjects: vec!["t.>".to_owned()], ..stream("T") }).await.unwrap();
    assert!(admin.probe().await.is_ok());

    let limited = NatsSink::new(NatsOptions::new(server.url()).unwrap().user("limited", "l"));
    let mut batch = messages("t.allowed", 2);
    batch.insert(1, Arc::new(message("t.forbidden", "{}")));
    let started = Instant::now();
    let verdicts = send(&limited, &batch).await;
    assert_eq!(classes(&verdicts), ["ok", "unroutable", "ok"]);
    assert!(verdicts[1].as_ref().unwrap_err().failure().text().contains("t.forbidden"));
    assert!(started.elapsed() < LONG / 2, "the deadline was not waited for");
    assert!(limited.probe().await.is_ok(), "a user who may not ask is told so by a server that is there");

    let poor = NatsSink::new(NatsOptions::new(server.url()).unwrap().user("poor", "p"));
    let verdicts = send_within(&poor, &messages("t.allowed", 1), Duration::from_secs(5)).await;
    assert_eq!(classes(&verdicts), ["down"], "{}", verdicts[0].as_ref().unwrap_err().failure().text());
}

/// HOT-022: topics that are no subjects arrive all the same, each under its own.
#[tokio::test]
async fn strange_topics() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    js.create_stream(stream(&name)).await.unwrap();
    let sink = sink(&url, &name);
    let topics = ["order placed", "*", ">", "a..b", ".", "$JS.API.STREAM.PURGE", "100%", "a\r\nb", "täglich"];
    let batch: Vec<_> = topics.iter().map(|topic| Arc::new(message(topic, "{}"))).collect();
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
    let stored = js.get_stream(&name).await.unwrap();
    for (sequence, topic) in (1..).zip(topics) {
        let message = stored.get_raw_message(sequence).await.unwrap();
        assert_eq!(message.subject.as_str(), sink.subject(topic));
    }
    js.delete_stream(&name).await.unwrap();
}
