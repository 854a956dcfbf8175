//! Messages that the server never answers, and messages that it answers by ending the connection: the others are taken.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::stream::Config;
use async_nats::{Client, ConnectOptions, Subscriber, jetstream};
use futures_util::StreamExt as _;
use posthaste_core::{
    FailureClass, Guarded, MemoryStore, NewMessage, Outbox, Shutdown, StoreAdmin as _, Verdict,
};
use posthaste_nats::{NatsOptions, NatsSink};

use crate::server::Server;
use crate::support::{
    LONG, classes, count, eventually, look, message, messages, send, send_within, shared, sink, stream,
    unique,
};

fn text(verdict: &Verdict) -> &str {
    verdict.as_ref().unwrap_err().failure().text()
}

/// Listens to a subject without ever answering. The server knows of it when this returns.
async fn listen(url: &str, subject: String) -> (Client, Subscriber) {
    listen_as(async_nats::connect(url).await.unwrap(), subject).await
}

async fn listen_as(client: Client, subject: String) -> (Client, Subscriber) {
    let subscriber = client.subscribe(subject).await.unwrap();
    client.request("$JS.API.INFO", "".into()).await.unwrap();
    (client, subscriber)
}

/// F2: a subject with a core subscriber and no stream is unroutable, long before the deadline; its neighbours are taken.
#[tokio::test]
async fn a_subscriber_is_no_stream() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    js.create_stream(Config { subjects: vec![format!("{name}.a")], ..stream(&name) }).await.unwrap();
    let _listening = listen(&url, format!("{name}.heard")).await;
    let sink = sink(&url, &name);
    let mut batch = messages("a", 3);
    batch.insert(1, Arc::new(message("heard", "{}")));
    batch.insert(3, Arc::new(message("heard", "{}")));
    for _ in 0..3 {
        let started = Instant::now();
        let verdicts = send(&sink, &batch).await;
        assert_eq!(classes(&verdicts), ["ok", "unroutable", "ok", "unroutable", "ok"]);
        assert!(text(&verdicts[1]).contains(&format!("{name}.heard")), "{}", text(&verdicts[1]));
        assert!(started.elapsed() < LONG / 2, "the deadline was not waited for");
    }
    // Once a stream has the subject, the same message is taken.
    js.update_stream(stream(&name)).await.unwrap();
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
    js.delete_stream(&name).await.unwrap();
}

/// F2: behind an outbox, such a subject does not open the breaker, and every other message is delivered.
#[tokio::test]
async fn a_subscriber_opens_no_breaker() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    js.create_stream(Config { subjects: vec![format!("{name}.a")], ..stream(&name) }).await.unwrap();
    let _listening = listen(&url, format!("{name}.heard")).await;
    let (store, guarded) = (MemoryStore::new(), Guarded::new(sink(&url, &name)));
    let outbox = Outbox::builder(store.clone()).workers(50).sink("*", guarded.clone()).build().await.unwrap();
    let topic = |n: usize| if n % 10 == 3 { "heard" } else { "a" };
    outbox.enqueue_all((0..200).map(|n| NewMessage::json(topic(n), &n))).await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(outbox.run(shutdown.clone()));
    let mut was_down = false;
    eventually("the others are delivered", async || {
        was_down |= guarded.is_down();
        store.stats().await.unwrap().done.value == 180
    })
    .await;
    assert!(!was_down, "the server is there");
    shutdown.begin();
    running.await.unwrap().unwrap();
    assert_eq!(count(&js, &name).await, 180);
    js.delete_stream(&name).await.unwrap();
}

/// A stream with `no_ack` takes messages without an acknowledgement: they are unroutable, and the error names the
/// remedy.
#[tokio::test]
async fn a_stream_that_acknowledges_nothing() {
    let Some(url) = shared() else { return };
    let (js, name) = (look(&url).await, unique());
    js.create_stream(Config { no_ack: true, ..stream(&name) }).await.unwrap();
    let verdicts = send(&sink(&url, &name), &messages("a", 2)).await;
    assert_eq!(classes(&verdicts), ["unroutable"; 2]);
    assert!(text(&verdicts[0]).contains("no_ack"), "{}", text(&verdicts[0]));
    js.delete_stream(&name).await.unwrap();
}

/// F2: a user without permission to ask which stream takes a subject gets a verdict at the deadline; the next time,
/// sooner.
#[tokio::test]
async fn slow_a_user_who_may_not_ask() {
    let config = r#"
        jetstream { store_dir: "FOLDER/js" }
        accounts { A {
            jetstream: enabled
            users: [
                { user: admin, password: a }
                { user: limited, password: l, permissions: { publish: ["t.>"], subscribe: "_INBOX.>" } }
            ]
        } }
    "#;
    let Some(server) = Server::start(Some(config)).await else { return };
    let login = ConnectOptions::with_user_and_password("admin".to_owned(), "a".to_owned());
    let admin = login.connect(server.url()).await.unwrap();
    let js = jetstream::new(admin.clone());
    js.create_stream(Config { subjects: vec!["t.a".to_owned()], ..stream("T") }).await.unwrap();
    let _listening = listen_as(admin, "t.heard".to_owned()).await;
    let limited = NatsSink::new(NatsOptions::new(server.url()).unwrap().user("limited", "l"));
    let mut batch = messages("t.a", 2);
    batch.insert(1, Arc::new(message("t.heard", "{}")));
    let verdicts = send_within(&limited, &batch, Duration::from_secs(20)).await;
    assert_eq!(classes(&verdicts), ["ok", "unroutable", "ok"]);
    let started = Instant::now();
    assert_eq!(classes(&send(&limited, &batch).await), ["ok", "unroutable", "ok"]);
    assert!(started.elapsed() < LONG / 2, "the deadline was not waited for again");
    assert_eq!(count(&js, "T").await, 2);
}

/// F4: a topic that looks like a client's inbox, or like a subject of the server, reaches neither.
#[tokio::test]
async fn topics_reach_no_inbox() {
    let Some(url) = shared() else { return };
    let sink = NatsSink::new(NatsOptions::new(&url).unwrap());
    let topic = format!("_INBOX.{}", unique());
    let (client, mut inbox) = listen(&url, topic.clone()).await;
    let batch = [Arc::new(message(&topic, "{}")), Arc::new(message("$SYS.REQ.SERVER.PING", "{}"))];
    let verdicts = send_within(&sink, &batch, Duration::from_secs(20)).await;
    client.publish(topic, "the last".into()).await.unwrap();
    let heard = tokio::time::timeout(LONG, inbox.next()).await.unwrap().unwrap();
    assert_eq!(&heard.payload[..], b"the last", "the message came to the inbox");
    assert_eq!(classes(&verdicts), ["unroutable"; 2]);
    assert!(text(&verdicts[0]).contains("%5FINBOX."), "{}", text(&verdicts[0]));
}

/// R17: a message that makes the server end the connection fails alone; the others of its batch are taken.
#[tokio::test]
async fn a_message_that_ends_connections_fails_alone() {
    let config = "max_control_line: 600\njetstream { store_dir: \"FOLDER/js\" }\n";
    let Some(server) = Server::start(Some(config)).await else { return };
    let js = look(&server.url()).await;
    js.create_stream(stream("T")).await.unwrap();
    let sink = sink(&server.url(), "T");
    let mut batch = messages("a", 20);
    // Each star becomes three letters of the subject: longer than the server reads.
    batch.insert(7, Arc::new(message(&"*".repeat(250), "{}")));
    batch.insert(13, Arc::new(message(&"*".repeat(251), "{}")));
    let is_culprit = |n: usize| n == 7 || n == 13;
    let verdicts = send(&sink, &batch).await;
    assert!(is_down(&verdicts[7]) && is_down(&verdicts[13]), "nobody knows yet which it was");
    for _ in 0..2 {
        for (n, verdict) in send(&sink, &batch).await.iter().enumerate() {
            assert_eq!(verdict.is_ok(), !is_culprit(n), "{n}: {verdict:?}");
            if let Err(error) = verdict {
                assert!(
                    !error.is_down() && error.class() == FailureClass::Infrastructure,
                    "{}",
                    text(verdict)
                );
            }
        }
    }
    assert_eq!(count(&js, "T").await, 20);
    // They do not harm the connection of the others.
    batch.retain(|message| message.topic == "a");
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
}

fn is_down(verdict: &Verdict) -> bool {
    verdict.as_ref().is_err_and(posthaste_core::SinkError::is_down)
}
