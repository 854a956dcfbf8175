//! Messages that go to sinks: which one, in which batches, what becomes of them by the sink's verdict, and what happens while
//! it is down.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Batch, Failure, FailureClass, FixedDelay, Guarded, Message, NullSink, Outbox, Settings, Sink, SinkError,
    SinkOptions, State, Store, TraceContext, Verdict,
};
use tracing::Level;

use super::Scene;
use super::support::{
    HOUR, Journal, MINUTE, becomes, draft, eventually, ms, outbox, record, records, run, settings,
};
use crate::{Counting, Fixture, ScriptedSink};

/// Options with which a sink that is down is probed all the time.
fn quick() -> SinkOptions {
    SinkOptions::new().pauses(ms(5), ms(20))
}

/// Settings with many workers, so that batches can gather.
fn wide(workers: u32) -> Settings {
    let mut settings = settings();
    settings.workers = workers;
    settings
}

/// Rule 14, OBX-054: topics go to their sinks; handlers come first; one sink gets a message once, two get it both.
pub async fn routes<F: Fixture>(scene: &Scene<F>) {
    let (orders, audit) = (ScriptedSink::new("orders"), ScriptedSink::new("audit"));
    let guarded = Guarded::new(orders.clone());
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .sink("order.*", guarded.clone())
        .sink("order.placed", guarded.clone())
        .sink("invoice", guarded)
        .sink("*", audit.clone())
        .on_topic("order.placed", journal.noting("handler"))
        .build()
        .await
        .unwrap();
    let topics = ["order.placed", "order.paid", "invoice", "other"];
    for topic in topics {
        outbox.enqueue(draft(topic)).await.unwrap();
    }
    assert_eq!(outbox.drain().await.unwrap().delivered, 4);
    let sorted = |sink: &ScriptedSink| {
        let mut topics: Vec<String> = sink.taken().iter().map(|message| message.topic.to_string()).collect();
        topics.sort();
        topics
    };
    assert_eq!(sorted(&orders), ["invoice", "order.paid", "order.placed"]);
    assert_eq!(sorted(&audit), ["invoice", "order.paid", "order.placed", "other"]);
    assert_eq!(journal.count(), 1);
}

/// RMQ-006: a receiver can continue the trace: the publisher's, or else one that is the same for every attempt.
pub async fn a_trace_goes_along<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    sink.answer(|message| if message.attempts == 0 { Err(Failure::business("no").into()) } else { Ok(()) });
    let outbox = outbox(scene.store(), settings()).sink("*", sink.clone()).build().await.unwrap();
    let published = TraceContext::new();
    let own = published.clone().scope(outbox.enqueue(draft("own"))).await.unwrap().id();
    let none = outbox.enqueue(draft("none")).await.unwrap().id();
    let running = run(&outbox);
    becomes(outbox.store(), own, State::Done).await;
    becomes(outbox.store(), none, State::Done).await;
    running.stop().await;
    let traces = |id| {
        let sent = sink.batches().concat();
        let of_it = sent.iter().filter(|message| message.id == id);
        of_it
            .map(|message| TraceContext::from_headers(&message.headers).unwrap().trace_id())
            .collect::<Vec<_>>()
    };
    assert_eq!(traces(own), [published.trace_id(), published.trace_id()]);
    assert_eq!((traces(none).len(), &traces(none)[0]), (2, &traces(none)[1]));
}

/// HOT-011, rule 16: a retry sends only to the sinks that have not taken the message.
pub async fn a_retry_sends_to_the_others<F: Fixture>(scene: &Scene<F>) {
    let (first, second) = (ScriptedSink::new("first"), ScriptedSink::new("second"));
    second.answer(|message| if message.attempts < 2 { Err(Failure::business("no").into()) } else { Ok(()) });
    let outbox = outbox(scene.store(), settings()).sink("t", first.clone()).sink("t", second.clone());
    let outbox = outbox.build().await.unwrap();
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    let running = run(&outbox);
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!((first.taken().len(), second.taken().len()), (1, 1));
    assert_eq!(record(outbox.store(), id).await.message.attempts, 2);
}

/// Protocol rule 13: the verdict decides the message's outcome.
pub async fn verdicts_decide<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    sink.answer(|message| match message.topic.as_str() {
        "busy" => Err(SinkError::busy("the queue is full")),
        "unroutable" => Err(SinkError::unroutable("nobody takes it")),
        "large" => Err(SinkError::too_large("it has 17 MiB")),
        "refused" => Err(SinkError::refused("never")),
        "business" => Err(Failure::business("not like this").into()),
        _ => Ok(()),
    });
    let mut settings = settings();
    settings.unroutable_delay = HOUR;
    let guarded = Guarded::with(sink, quick());
    let outbox =
        outbox(scene.store(), settings).max_attempts(2).sink("*", guarded.clone()).build().await.unwrap();
    let mut ids = Vec::new();
    for topic in ["fine", "busy", "unroutable", "large", "refused", "business"] {
        ids.push(outbox.enqueue(draft(topic)).await.unwrap().id());
    }
    let running = run(&outbox);
    for (id, state) in [(0, State::Done), (3, State::Dead), (4, State::Dead), (5, State::Dead)] {
        becomes(outbox.store(), ids[id], state).await;
    }
    eventually("what nobody takes was tried", async || {
        record(outbox.store(), ids[2]).await.last_error.is_some()
    })
    .await;
    running.stop().await;
    let mut seen = Vec::new();
    for id in &ids {
        let record = record(outbox.store(), *id).await;
        seen.push((record.state, record.message.attempts, record.error_class, record.last_error));
    }
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        seen,
        [
            (State::Done, 0, None, None),
            (State::Ready, 0, Some(FailureClass::Infrastructure), text("[INFRA] the queue is full")),
            (State::Ready, 0, Some(FailureClass::Unroutable), text("[INFRA] nobody takes it")),
            (State::Dead, 0, Some(FailureClass::TooLarge), text("[BUSINESS] it has 17 MiB")),
            (State::Dead, 0, Some(FailureClass::Permanent), text("[BUSINESS] never")),
            (State::Dead, 2, Some(FailureClass::Business), text("[BUSINESS] not like this")),
        ]
    );
    let waits = record(outbox.store(), ids[2]).await;
    assert!(waits.message.due_at > scene.fixture.now().await + HOUR / 4, "an unroutable message has time");
    let down = scene.logs.events("the sink is down: messages for it are left alone");
    assert!(!guarded.is_down() && down.is_empty(), "none of this says that the sink is down");
}

/// HOT-014, INB-005: messages gather in batches, of at most the size and the number that are allowed.
pub async fn batches_gather<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    let guarded = Guarded::with(sink.clone(), quick().batch(20).in_flight(3));
    let outbox = outbox(scene.store(), wide(200)).sink("*", guarded).build().await.unwrap();
    outbox.enqueue_all((0..400).map(|_| draft("t"))).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 400);
    let batches = sink.batches();
    assert!(batches.iter().all(|batch| batch.len() <= 20));
    assert!(batches.len() < 200, "{} batches for 400 messages", batches.len());
    assert!(sink.most_in_flight() <= 3);
    assert_eq!(sink.taken().len(), 400);
}

/// Protocol, Order: messages of one key are never in two batches at a time, nor two in one.
pub async fn keys_go_one_by_one<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    let outbox = outbox(scene.store(), wide(50)).sink("*", sink.clone()).build().await.unwrap();
    for n in 0..60 {
        outbox.enqueue(draft("t").key(format!("key {}", n % 3)).priority(0)).await.unwrap();
    }
    assert_eq!(outbox.drain().await.unwrap().delivered, 60);
    for batch in sink.batches() {
        let mut keys: Vec<_> = batch.iter().map(|message| message.key.clone()).collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), batch.len());
    }
    for key in 0..3 {
        let of_key = |message: &&Arc<Message>| message.key.as_deref() == Some(&format!("key {key}"));
        let taken = sink.taken();
        let items: Vec<_> = taken.iter().filter(of_key).map(|message| message.item).collect();
        assert!(items.is_sorted() && items.len() == 20);
    }
}

/// Rule 13, I10: while a sink is down, nothing is claimed for it and nothing is charged; others go on. When it is back, so is
/// everything.
pub async fn a_sink_that_is_down_is_left_alone<F: Fixture>(scene: &Scene<F>) {
    let store = Counting::new(scene.store());
    let sink = ScriptedSink::new("broker");
    sink.go_down("nobody answers");
    let guarded = Guarded::with(sink.clone(), quick());
    let other = ScriptedSink::new("other");
    let outbox = outbox(store.clone(), wide(10)).sink("order.*", guarded.clone()).sink("note", other.clone());
    // Messages that met the outage wait for the breaker, not for the retry policy.
    let outbox = outbox.retry(FixedDelay(HOUR)).build().await.unwrap();
    let ids = outbox.enqueue_all((0..300).map(|_| draft("order.placed"))).await.unwrap();
    let running = run(&outbox);
    eventually("the breaker opens", async || guarded.is_down()).await;
    eventually("it is probed again and again", async || sink.probes() > 5).await;
    let sent = sink.batches().len();
    for _ in 0..20 {
        let note = outbox.enqueue(draft("note")).await.unwrap().id();
        becomes(outbox.store(), note, State::Done).await;
    }
    eventually("it is probed more often", async || sink.probes() > 15).await;
    assert_eq!(sink.batches().len(), sent, "no batch is sent to it, however long it takes");
    sink.come_up();
    for id in &ids {
        becomes(outbox.store(), id.id(), State::Done).await;
    }
    assert!(!guarded.is_down());
    running.stop().await;
    for record in records(outbox.store()).await {
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
    }
    let mut taken = sink.taken_ids();
    taken.sort();
    taken.dedup();
    assert_eq!(taken.len(), 300, "each of them, and once");
    let failed: usize = records(outbox.store()).await.iter().filter(|one| one.last_error.is_some()).count();
    assert!(failed < 100, "{failed} of 300 were walked into it");
    for (level, text) in [
        (Level::WARN, "the sink is down: messages for it are left alone"),
        (Level::DEBUG, "the sink is still down"),
        (Level::INFO, "the sink can be reached again: one message tries"),
        (Level::INFO, "the sink takes messages again"),
    ] {
        let events = scene.logs.events(text);
        assert!(!events.is_empty() && events.iter().all(|event| event.level == level), "{text}");
        assert!(events.iter().all(|event| event.field("sink") == "broker"));
    }
    let gauge = scene.meters.gauge("posthaste_breaker_open", &[("sink", "broker")]);
    assert!(gauge.contains(&1.0) && gauge.last() == Some(&0.0), "{gauge:?}");
}

/// Rule 13: after a probe one message tries; if it is not taken, the others are not sent.
pub async fn one_message_tries<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    // A probe says yes, and messages are lost nevertheless.
    sink.answer(|_| Err(SinkError::down("no route")));
    let guarded = Guarded::with(sink.clone(), quick());
    let outbox = outbox(scene.store(), wide(50)).sink("*", guarded.clone()).build().await.unwrap();
    outbox.enqueue_all((0..200).map(|_| draft("t"))).await.unwrap();
    let running = run(&outbox);
    eventually("it tries several times", async || sink.batches().len() >= 8).await;
    let batches = sink.batches();
    // The first ones were under way together.
    for batch in &batches[2..] {
        assert_eq!(batch.len(), 1, "{:?}", batches.iter().map(Vec::len).collect::<Vec<_>>());
    }
    sink.answer(|_| Ok(()));
    eventually("all are taken", async || sink.taken().len() >= 200).await;
    running.stop().await;
    assert!(records(outbox.store()).await.iter().all(|record| record.message.attempts == 0));
}

/// Rule 13: while one message tries a sink that was down, the others wait for what becomes of it.
pub async fn the_others_wait_for_it<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    sink.go_down("nobody answers");
    let guarded = Guarded::with(sink.clone(), quick().in_flight(5));
    let outbox = outbox(scene.store(), wide(20)).sink("order", guarded.clone());
    let outbox = outbox.sink("note", ScriptedSink::new("other")).build().await.unwrap();
    let running = run(&outbox);
    eventually("a probe opens the breaker", async || guarded.is_down()).await;
    outbox.enqueue_all((0..10).map(|_| draft("order"))).await.unwrap();
    sink.hold(true);
    sink.come_up();
    eventually("one tries, and the others are here", async || {
        let records = records(outbox.store()).await;
        !sink.batches().is_empty() && records.iter().all(|record| record.state == State::Leased)
    })
    .await;
    // Later messages are done by now, so these have asked to be sent.
    let note = outbox.enqueue(draft("note")).await.unwrap().id();
    becomes(outbox.store(), note, State::Done).await;
    assert_eq!(sink.batches().iter().map(Vec::len).collect::<Vec<_>>(), [1]);
    sink.hold(false);
    eventually("all are taken", async || sink.taken().len() == 10).await;
    running.stop().await;
}

/// HOT-003: messages published while their sink is down are stored ready: no worker holds them.
pub async fn nothing_is_born_leased_for_it<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    sink.go_down("nobody answers");
    let guarded = Guarded::with(sink.clone(), SinkOptions::new().pauses(MINUTE, MINUTE));
    let outbox = outbox(scene.store(), settings()).sink("*", guarded.clone()).build().await.unwrap();
    let running = run(&outbox);
    eventually("a probe opens the breaker", async || guarded.is_down()).await;
    // A claim that began before that may take one, and give it back.
    eventually("one is born ready", async || {
        let mut tx = outbox.begin().await.unwrap();
        let id = tx.publish(draft("t")).await.unwrap().id();
        tx.commit().await.unwrap();
        let record = record(outbox.store(), id).await;
        (record.state, record.message.epoch) == (State::Ready, 0)
    })
    .await;
    running.stop().await;
    assert!(sink.batches().is_empty());
}

/// RMQ-007, M-15: a sink that says nothing has a deadline that is shorter than the lease; nothing is charged or taken for done.
pub async fn a_silent_sink_has_a_deadline<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    sink.hold(true);
    let guarded = Guarded::with(sink.clone(), quick().deadline(ms(200)));
    let mut settings = wide(10);
    settings.lease = Duration::from_secs(2);
    let outbox = outbox(scene.store(), settings).sink("*", guarded.clone()).build().await.unwrap();
    let ids = outbox.enqueue_all((0..20).map(|_| draft("t"))).await.unwrap();
    let running = run(&outbox);
    eventually("the breaker opens", async || guarded.is_down()).await;
    sink.hold(false);
    for id in &ids {
        becomes(outbox.store(), id.id(), State::Done).await;
    }
    running.stop().await;
    for record in records(outbox.store()).await {
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
        if let Some(error) = record.last_error {
            assert_eq!(error, "[INFRA] the sink did not answer in 200ms");
        }
    }
}

/// Returns no verdict.
#[derive(Debug)]
struct Forgetful;

#[async_trait]
impl Sink for Forgetful {
    async fn send(&self, _: &Batch<'_>) -> Vec<Verdict> {
        Vec::new()
    }

    fn name(&self) -> String {
        "forgetful".to_owned()
    }
}

/// RMQ-001, M-15: a message without a verdict is not taken for delivered, and not charged.
pub async fn a_forgotten_verdict_is_no_success<F: Fixture>(scene: &Scene<F>) {
    let outbox = outbox(scene.store(), settings()).retry(FixedDelay(HOUR)).sink("*", Forgetful);
    let outbox = outbox.build().await.unwrap();
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    let running = run(&outbox);
    eventually("it was tried", async || {
        let record = record(outbox.store(), id).await;
        record.last_error.is_some() || record.state == State::Done
    })
    .await;
    running.stop().await;
    let record = record(outbox.store(), id).await;
    assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
    assert_eq!(record.last_error.as_deref(), Some("[INFRA] the sink gave no verdict"));
}

/// OBX-041: a sink's panic costs what a handler's would, and stops no other message.
pub async fn a_sink_that_panics<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    sink.answer(|message| {
        assert!(message.topic != "bomb", "a defect");
        Ok(())
    });
    let guarded = Guarded::with(sink, quick().batch(1));
    let outbox =
        outbox(scene.store(), settings()).max_attempts(2).sink("*", guarded.clone()).build().await.unwrap();
    let bomb = outbox.enqueue(draft("bomb")).await.unwrap().id();
    let fine = outbox.enqueue(draft("fine")).await.unwrap().id();
    let running = run(&outbox);
    becomes(outbox.store(), fine, State::Done).await;
    becomes(outbox.store(), bomb, State::Dead).await;
    running.stop().await;
    let record = record(outbox.store(), bomb).await;
    assert_eq!((record.message.attempts, &*record.last_error.unwrap()), (2, "[BUSINESS] the sink panicked"));
    assert!(!guarded.is_down());
}

/// A message whose delivery was given up while it waited for its batch is not sent any more: another process may have it.
pub async fn what_was_lost_is_not_sent<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("sink");
    sink.hold(true);
    let guarded = Guarded::with(sink.clone(), quick().batch(1).in_flight(1).deadline(HOUR / 2));
    let mut settings = wide(10);
    (settings.lease, settings.handler_timeout) = (HOUR, HOUR);
    let unhurried = settings.clone();
    settings.shutdown_grace = super::shutdown::GRACE;
    let first = outbox(scene.store(), settings).sink("*", guarded.clone()).build().await.unwrap();
    first.enqueue_all((0..5).map(|_| draft("t"))).await.unwrap();
    let running = run(&first);
    eventually("one is under way", async || sink.batches().len() == 1).await;
    eventually("the others wait for it", async || {
        records(first.store()).await.iter().all(|record| record.state == State::Leased)
    })
    .await;
    running.stop().await;
    sink.hold(false);
    let second = outbox(scene.store(), unhurried).sink("after", guarded).build().await.unwrap();
    let id = second.enqueue(draft("after")).await.unwrap().id();
    let running = run(&second);
    becomes(second.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(sink.batches().len(), 2, "the one that was under way, and the one after it");
}

/// I15: a graceful stop in the middle of an outage leaves nothing leased and charges nothing.
pub async fn a_stop_while_it_is_down<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    let guarded = Guarded::with(sink.clone(), quick());
    let outbox = outbox(scene.store(), wide(10)).sink("*", guarded.clone()).build().await.unwrap();
    outbox.enqueue_all((0..100).map(|_| draft("t"))).await.unwrap();
    sink.go_down("nobody answers");
    let running = run(&outbox);
    eventually("the breaker opens", async || guarded.is_down()).await;
    running.stop().await;
    for record in records(outbox.store()).await {
        assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
    }
}

/// OBX-055: what makes no sense does not construct, and says what would.
pub async fn impossible_sinks_do_not_construct<F: Fixture>(scene: &Scene<F>) {
    async fn refusal<S: Store>(store: S, options: SinkOptions) -> String {
        let sink = Guarded::with(NullSink, options);
        Outbox::builder(store).sink("*", sink).build().await.unwrap_err().to_string()
    }
    for (options, says) in [
        (SinkOptions::new().batch(0), "a sink's batch is 0; give it 1 to 10000"),
        (SinkOptions::new().in_flight(0), "a sink's in_flight is 0; give it 1 to 100"),
        (
            SinkOptions::new().deadline(Duration::from_secs(30)),
            "a sink's deadline is 30s; give it more than 0 and less than the lease, 30s",
        ),
        (SinkOptions::new().pauses(MINUTE, ms(1)), "a sink's shortest pause is 1m"),
        (SinkOptions::new().name(""), "the name of a sink is empty"),
    ] {
        let refusal = refusal(scene.store(), options).await;
        assert!(says.split("; ").all(|part| refusal.contains(part)), "{refusal}");
    }
    let twice = Outbox::builder(scene.store()).sink("a", NullSink).sink("b", NullSink).build().await;
    assert!(twice.unwrap_err().to_string().contains("two sinks have one name"));
    let pattern = Outbox::builder(scene.store()).sink("a*b", NullSink).build().await;
    assert!(pattern.unwrap_err().to_string().contains("* before its end"));
}
