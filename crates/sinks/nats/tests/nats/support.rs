//! Shared by the tests: messages, streams of their own, and waiting for a condition.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use async_nats::jetstream::stream::{Config, StorageType};
use posthaste_core::{Batch, Message, MessageId, Sink, Verdict};
use posthaste_nats::{NatsOptions, NatsSink};
pub(crate) use posthaste_testkit::claimed as message;
use posthaste_testkit::{Mode, Proxy};
use tokio::time::Instant;

/// How long a test waits for an expected event, on a slow and busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) fn messages(topic: &str, count: usize) -> Vec<Arc<Message>> {
    (0..count).map(|n| Arc::new(message(topic, format!("{{\"n\":{n}}}")))).collect()
}

/// Sends with this much time.
pub(crate) async fn send_within(sink: &NatsSink, batch: &[Arc<Message>], time: Duration) -> Vec<Verdict> {
    let verdicts = sink.send(&Batch::new(batch, Instant::now() + time)).await;
    assert_eq!(verdicts.len(), batch.len());
    verdicts
}

pub(crate) async fn send(sink: &NatsSink, batch: &[Arc<Message>]) -> Vec<Verdict> {
    send_within(sink, batch, LONG).await
}

/// A unique name.
pub(crate) fn unique() -> String {
    format!("t{}", MessageId::new().to_string().replace('-', ""))
}

/// JetStream, for checks of the tests.
pub(crate) async fn look(url: &str) -> jetstream::Context {
    jetstream::new(async_nats::connect(url).await.unwrap())
}

/// A stream in files that has everything below the subject `name`.
pub(crate) fn stream(name: &str) -> Config {
    Config {
        name: name.to_owned(),
        subjects: vec![format!("{name}.>")],
        storage: StorageType::File,
        ..Config::default()
    }
}

/// A sink whose subjects all begin with this name.
pub(crate) fn sink(url: &str, name: &str) -> NatsSink {
    NatsSink::new(NatsOptions::new(url).unwrap()).subject_prefix(name).unwrap()
}

/// How many messages a stream has.
pub(crate) async fn count(js: &jetstream::Context, name: &str) -> u64 {
    js.get_stream(name).await.unwrap().cached_info().state.messages
}

/// The ids in a stream, in its order.
pub(crate) async fn ids(js: &jetstream::Context, name: &str) -> Vec<MessageId> {
    let stream = js.get_stream(name).await.unwrap();
    let state = &stream.cached_info().state;
    let mut ids = Vec::new();
    if state.messages == 0 {
        return ids;
    }
    for sequence in state.first_sequence..=state.last_sequence {
        let message = stream.get_raw_message(sequence).await.unwrap();
        ids.push(MessageId::of_text(message.headers.get("Nats-Msg-Id").unwrap().as_str()));
    }
    ids
}

/// Waits until it is true.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !is_true().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Cuts a proxy's held-up connections, and lets everything pass afterwards.
pub(crate) fn cut_for_good(proxy: &Proxy) {
    proxy.cut();
    proxy.set(Mode::Forward);
}

/// The shared server's URL; says so if there is none.
pub(crate) fn shared() -> Option<String> {
    let url = crate::server::shared_url();
    if url.is_none() {
        eprintln!("skipped: POSTHASTE_TEST_NATS is not set");
    }
    url
}

pub(crate) fn classes(verdicts: &[Verdict]) -> Vec<String> {
    let class = |verdict: &Verdict| match verdict {
        Ok(()) => "ok".to_owned(),
        Err(error) if error.is_down() => "down".to_owned(),
        Err(error) => error.class().to_string(),
    };
    verdicts.iter().map(class).collect()
}
