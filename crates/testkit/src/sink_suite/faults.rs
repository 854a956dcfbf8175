//! What happens when the network, or the server behind it, does not do its part.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Batch, FailureClass, Sink};
use tokio::time::{Instant, timeout};

use super::support::{LONG, arrived, message, messages, send};
use crate::{Mode, Proxy, SinkFixture};

/// A port of loopback without a listener.
async fn nowhere() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// RMQ-004, protocol rule 13: a server that cannot be reached is down, for every message and for the probe.
pub async fn nobody_is_there<F: SinkFixture>(fixture: &Arc<F>) {
    let sink = fixture.sink(nowhere().await);
    let asked = Instant::now();
    for verdict in send(&sink, &messages("order.placed", 3)).await {
        let error = verdict.unwrap_err();
        assert_eq!((error.class(), error.is_down()), (FailureClass::Infrastructure, true));
    }
    assert!(sink.probe().await.unwrap_err().is_down());
    assert!(asked.elapsed() < LONG / 2, "it does not wait for its deadline");
}

/// OBX-125: its name says where messages go, and no more than that.
pub async fn a_name_without_secrets<F: SinkFixture>(fixture: &Arc<F>) {
    let sink = fixture.sink(fixture.server());
    let name = sink.name();
    assert!(name.contains(&fixture.server().port().to_string()), "{name}");
    for text in [name, format!("{sink:?}")] {
        assert!(!text.contains("guest:") && !text.contains(":guest") && !text.contains("secret"), "{text}");
    }
}

/// RMQ-004: a connection that was cut is replaced by the next call that needs it.
pub async fn a_lost_connection_is_replaced<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sink = fixture.sink(proxy.addr());
    let (before, after) = (messages("order.placed", 10), messages("order.placed", 10));
    assert!(send(&sink, &before).await.iter().all(Result::is_ok));
    for _ in 0..3 {
        proxy.cut();
        // The first call may be the one that notices.
        let deadline = Instant::now() + LONG;
        while !send(&sink, &after).await.iter().all(Result::is_ok) {
            assert!(Instant::now() < deadline, "it does not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    arrived(fixture, "order.placed", &before).await;
    arrived(fixture, "order.placed", &after).await;
}

/// RMQ-001, F-06: a sink that got no confirmation does not report success; sent again, it is the same message.
pub async fn a_lost_answer_is_no_success<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sink = fixture.sink(proxy.addr());
    assert!(send(&sink, &messages("order.placed", 1)).await[0].is_ok());
    let batch = [Arc::new(message("order.placed", "the request that is looked for"))];
    proxy.set(Mode::CutAfterRequest(b"the request that is looked for".to_vec()));
    let verdict = send(&sink, &batch).await.remove(0);
    let error = verdict.expect_err(
        "the proxy cut the connection when it had seen the payload, and dropped the answer: nobody can have said `taken` \
         (or the proxy did not see it, because the sink encodes payloads)",
    );
    assert_eq!((error.class(), error.is_down()), (FailureClass::Infrastructure, true));
    assert_eq!(proxy.answers_lost(), 1);
    let deadline = Instant::now() + LONG;
    while send(&sink, &batch).await[0].is_err() {
        assert!(Instant::now() < deadline, "it does not come back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let arrived = arrived(fixture, "order.placed", &batch).await;
    assert!(arrived.iter().filter(|arrived| arrived.id == batch[0].id).count() <= 2);
}

/// RMQ-007, F-06: a server that says nothing does not hold a batch for longer than its deadline.
pub async fn a_silent_server_has_a_deadline<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sink = fixture.sink(proxy.addr());
    assert!(send(&sink, &messages("order.placed", 1)).await[0].is_ok());
    proxy.set(Mode::Blackhole);
    let asked = Instant::now();
    let batch = messages("order.placed", 3);
    let verdicts = sink.send(&Batch::new(&batch, asked + Duration::from_millis(500))).await;
    assert_eq!(verdicts.len(), 3);
    assert!(verdicts.iter().all(|verdict| verdict.as_ref().is_err_and(posthaste_core::SinkError::is_down)));
    let took = asked.elapsed();
    assert!(took >= Duration::from_millis(400) && took < LONG / 12, "it took {took:?}");
    proxy.set(Mode::Forward);
}

/// RMQ-003, F-22: answers that come after a batch's deadline are not taken for those of the next one.
pub async fn late_answers_are_nobody_s<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("known").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sink = fixture.sink(proxy.addr());
    assert!(send(&sink, &messages("known", 1)).await[0].is_ok());
    for _ in 0..3 {
        proxy.set(Mode::Delay(Duration::from_millis(300)));
        let late: Vec<_> =
            (0..20).map(|n| Arc::new(message(if n % 3 == 0 { "unknown" } else { "known" }, "{}"))).collect();
        let verdicts = sink.send(&Batch::new(&late, Instant::now() + Duration::from_millis(100))).await;
        assert!(verdicts.iter().all(Result::is_err), "nobody can have answered by then");
        proxy.set(Mode::Forward);
        let deadline = Instant::now() + LONG;
        loop {
            let batch: Vec<_> = (0..20)
                .map(|n| Arc::new(message(if n % 2 == 0 { "known" } else { "unknown" }, "{}")))
                .collect();
            let verdicts = send(&sink, &batch).await;
            let down =
                |verdict: &posthaste_core::Verdict| verdict.as_ref().is_err_and(|error| error.is_down());
            if !verdicts.iter().any(down) {
                for (message, verdict) in batch.iter().zip(&verdicts) {
                    assert_eq!(verdict.is_ok(), message.topic == "known");
                }
                break;
            }
            assert!(Instant::now() < deadline, "it does not come back");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// RMQ-003: a batch whose future is dropped half-way leaves nothing behind that the next one could stumble over.
pub async fn a_batch_given_up_harms_no_other<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("known").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sink = fixture.sink(proxy.addr());
    assert!(send(&sink, &messages("known", 1)).await[0].is_ok());
    for wait in [0, 1, 5, 20] {
        proxy.set(Mode::Delay(Duration::from_millis(30)));
        let dropped: Vec<_> = (0..50).map(|_| Arc::new(message("unknown", "{}"))).collect();
        let _ = timeout(Duration::from_millis(wait), send(&sink, &dropped)).await;
        proxy.set(Mode::Forward);
        let batch = messages("known", 50);
        let verdicts = send(&sink, &batch).await;
        assert!(verdicts.iter().all(Result::is_ok), "after {wait} ms: {verdicts:?}");
        arrived(fixture, "known", &batch).await;
    }
}
