//! The log and the metrics of an outbox.
//!
//! Levels and fields are what operators have built alerts on: a case names each of them.

use posthaste_core::{
    Change, Consumer, Filter, Guarded, HandlerError, HandlerResult, Inbox, METRICS, MemoryStore,
    MemoryTransaction, Message, MessageId, NewJoin, Received, Schedule, Shutdown, SinkOptions, State, Store,
    StoreAdmin as _, Tenants, Tries,
};
use tracing::Level;

use super::Scene;
use super::support::{
    Gate, HOUR, Journal, MINUTE, becomes, claim_elsewhere, done, draft, drafts, eventually, ms, outbox, run,
    settings, start_join,
};
use crate::{Counting, Fixture, ScriptedSink};

/// OBX-102, OBX-103, OBX-104, OBX-107: enqueueing and handlers are logged at INFO, claims at DEBUG, each with the store.
pub async fn the_life_of_a_message_in_the_log<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), scene.store());
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let messages = drafts("t", 3);
    outbox.enqueue_all(&messages).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 3);
    let first = messages[0].id().to_string();

    let enqueued = scene.logs.events("enqueued");
    assert_eq!(enqueued.len(), 1, "one event per batch");
    assert_eq!((enqueued[0].level, enqueued[0].field("count")), (Level::INFO, "3"));
    assert_eq!((enqueued[0].field("topic"), enqueued[0].field("message_id")), ("t", &*first));

    let claimed = scene.logs.events("claimed");
    assert!(claimed.iter().all(|event| event.level == Level::DEBUG));
    let counts = claimed.iter().map(|event| event.field("claimed").parse::<u64>().unwrap());
    assert_eq!(counts.sum::<u64>(), 3);

    let called = scene.logs.events("handler called");
    assert_eq!(called.len(), 3);
    assert!(called.iter().all(|event| event.level == Level::INFO && !event.field("handler").is_empty()));
    let spans: Vec<_> = scene.logs.all().into_iter().filter(|logged| logged.message == "deliver").collect();
    let mut ids: Vec<_> = spans.iter().map(|span| span.field("message_id").to_owned()).collect();
    ids.sort_unstable();
    let mut expected: Vec<_> = messages.iter().map(|message| message.id().to_string()).collect();
    expected.sort_unstable();
    assert_eq!(ids, expected);
    assert!(spans.iter().all(|span| span.field("topic") == "t" && span.field("attempt") == "1"));
    for event in enqueued.iter().chain(&claimed).chain(&spans) {
        assert_eq!(event.field("store"), store.name(), "{event:?}");
    }
    assert!(scene.logs.at(Level::ERROR).is_empty() && scene.logs.at(Level::WARN).is_empty());
}

/// OBX-105, HOT-017: a failure is logged at ERROR with its details, and so is a death.
pub async fn failures_in_the_log<F: Fixture>(scene: &Scene<F>) {
    let store = scene.store();
    let outbox = outbox(store.clone(), settings())
        .max_attempts(2)
        .on_topic("t", async |_: Message| HandlerResult::Err(HandlerError::from("it went wrong")))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(&store, id, State::Dead).await;
    running.stop().await;
    let failed = scene.logs.events("a handler failed");
    assert_eq!(failed.len(), 2);
    for (event, attempt) in failed.iter().zip(["1", "2"]) {
        assert_eq!((event.level, event.field("attempt"), event.field("topic")), (Level::ERROR, attempt, "t"));
        assert_eq!((event.field("message_id"), event.field("class")), (&*id.to_string(), "business"));
        assert!(event.field("error").contains("it went wrong") && event.field("store") == store.name());
    }
    let dead = scene.logs.events("a message is dead");
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].level, dead[0].field("message_id")), (Level::ERROR, &*id.to_string()));
}

/// HOT-016, RMQ-010: every metric of the list is there after a run in which everything happened, with its labels and its
/// number; and there are no others.
pub async fn every_metric_counts<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    // A lease that ran out.
    store.inner().enqueue(&drafts("suspect", 1)).await.unwrap();
    assert_eq!(claim_elsewhere(store.inner(), 1, ms(100)).await.len(), 1);
    scene.fixture.advance(HOUR).await;
    let mut busy = settings();
    (busy.workers, busy.hot_capacity, busy.lease) = (1, 1, ms(3_000));
    (busy.reap, busy.stats) = (Schedule::every(ms(50)), Schedule::every(ms(50)));
    busy.max_attempts = 2;
    let outbox = outbox(store.clone(), busy)
        .on_topic("good", journal.noting("good"))
        .on_topic("suspect", journal.noting("suspect"))
        .on_topic("gated", journal.gated("gated", &gate))
        .on_topic("bad", async |_: Message| HandlerResult::Err(HandlerError::from("no")))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    outbox.enqueue_all([draft("good"), draft("bad"), draft("unknown"), draft("unknown")]).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.publish(draft("good")).await.unwrap();
    tx.commit().await.unwrap();
    done(&store, 3).await;
    eventually("the bad one is dead", async || store.stats().await.unwrap().dead.value == 1).await;

    // A handler that is held up, one hot message that waits behind it, and one for which there is no room.
    let gated = outbox.enqueue(draft("gated")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    for _ in 0..2 {
        let mut tx = outbox.begin().await.unwrap();
        tx.publish(draft("good")).await.unwrap();
        tx.commit().await.unwrap();
    }
    let meters = scene.meters;
    let last = |name: &str, labels: &[(&str, &str)]| meters.gauge(name, labels).last().copied();
    eventually("a handler runs", async || last("posthaste_running", &[]) == Some(1.0)).await;
    let hot = async || last("posthaste_queue_depth", &[("queue", "hot")]) == Some(1.0);
    eventually("a hot message waits", hot).await;
    // Its lease is lost, and that once: a renewal may come between the two, and a job may reap it first.
    let lost = async || meters.counter("posthaste_lost_leases_total", &[]) >= 1;
    let mut reaped = 0;
    eventually("its lease runs out", async || {
        scene.fixture.advance(HOUR).await;
        reaped += outbox.reap(1).await.unwrap().ready;
        reaped > 0 || lost().await
    })
    .await;
    eventually("it learns that its lease is lost", lost).await;
    gate.open();
    becomes(&store, gated, State::Done).await;
    done(&store, 6).await;
    // A join that ends.
    let join = start_join(scene, &outbox, NewJoin::expecting(1)).await.id;
    let mut tx = scene.fixture.begin().await;
    assert!(outbox.cancel_join(scene.fixture.connection(&mut tx), join).await.unwrap());
    scene.fixture.commit(tx).await;
    store.fail("claim", 1);
    let error = async || meters.counter("posthaste_errors_total", &[("operation", "claim")]) == 1;
    eventually("the error is counted", error).await;
    let oldest = async || last("posthaste_oldest_ready_seconds", &[]).is_some_and(|age| age >= 3_600.0);
    eventually("the unknown ones are old", oldest).await;
    running.stop().await;
    through_a_sink(scene).await;
    through_a_consumer().await;
    through_tenants(scene).await;

    let counter = |name: &str, labels: &[(&str, &str)]| meters.counter(name, labels);
    assert_eq!(counter("posthaste_enqueued_total", &[]), 9);
    assert_eq!(counter("posthaste_enqueued_total", &[("topic", "unknown")]), 2);
    assert_eq!(counter("posthaste_hot_enqueued_total", &[]), 2);
    assert_eq!(counter("posthaste_hot_downgraded_total", &[]), 1);
    assert!(counter("posthaste_claimed_total", &[]) >= 6);
    assert_eq!(counter("posthaste_delivered_total", &[("topic", "good")]), 4);
    assert_eq!(counter("posthaste_delivered_total", &[]), 7);
    assert_eq!(counter("posthaste_failed_total", &[("topic", "bad"), ("class", "business")]), 2);
    assert_eq!(counter("posthaste_dead_total", &[("topic", "bad"), ("class", "business")]), 1);
    assert!(counter("posthaste_reaped_total", &[("state", "ready")]) >= 1);
    assert_eq!(counter("posthaste_joins_ended_total", &[("status", "cancelled")]), 1);
    assert!(meters.histogram("posthaste_handler_seconds", &[("topic", "good")]).len() >= 3);
    assert!(!meters.histogram("posthaste_memory_wait_seconds", &[("path", "hot")]).is_empty());
    assert!(!meters.histogram("posthaste_memory_wait_seconds", &[("path", "cold")]).is_empty());
    assert!(meters.histogram("posthaste_latency_seconds", &[]).len() >= 7);
    assert!(!meters.histogram("posthaste_sink_batch_messages", &[("sink", "broker")]).is_empty());
    let breaker = meters.gauge("posthaste_breaker_open", &[("sink", "broker")]);
    assert!(breaker.contains(&1.0) && breaker.last() == Some(&0.0), "{breaker:?}");
    assert_eq!(counter("posthaste_consumed_total", &[("topic", "order")]), 1);
    assert_eq!(counter("posthaste_repeated_total", &[("topic", "order")]), 1);
    assert_eq!(counter("posthaste_consume_failed_total", &[("topic", "bad"), ("class", "business")]), 1);
    assert_eq!(last("posthaste_unhandled", &[("topic", "unknown")]), Some(2.0));
    assert_eq!(last("posthaste_messages", &[("state", "dead")]), Some(1.0));

    let mut seen: Vec<(String, &str)> = Vec::new();
    for (kind, name, labels) in meters.names() {
        let info = METRICS.iter().find(|info| info.name == name && info.kind == kind);
        let info = info.unwrap_or_else(|| panic!("{kind} {name} is not in the list"));
        let mut expected: Vec<_> = info.labels.split(", ").filter(|label| !label.is_empty()).collect();
        expected.sort_unstable();
        let labels: Vec<_> = labels.iter().map(|(label, _)| label.as_str()).collect();
        assert_eq!(labels, expected, "{name}");
        seen.push((name, kind));
    }
    for info in METRICS {
        assert!(seen.contains(&(info.name.to_owned(), info.kind)), "{} was never measured", info.name);
    }
}

/// A message for a sink that is down at first.
async fn through_a_sink<F: Fixture>(scene: &Scene<F>) {
    let sink = ScriptedSink::new("broker");
    sink.go_down("nobody answers");
    let guarded = Guarded::with(sink.clone(), SinkOptions::new().pauses(ms(5), ms(10)));
    let outbox = outbox(scene.store(), settings()).sink("sent", guarded.clone()).build().await.unwrap();
    let id = outbox.enqueue(draft("sent")).await.unwrap().id();
    let running = run(&outbox);
    eventually("the sink is down", async || guarded.is_down()).await;
    sink.come_up();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
}

/// One tenant, counted.
async fn through_tenants<F: Fixture>(scene: &Scene<F>) {
    let (journal, meters) = (Journal::new(), scene.meters);
    let builder = Tenants::builder().store("acme", scene.store()).on_topic("none", journal.noting("none"));
    let tenants = builder.build().await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(tenants.run(shutdown.clone()));
    let counted = async || meters.gauge("posthaste_tenants", &[("state", "running")]).last() == Some(&1.0);
    eventually("the tenants are counted", counted).await;
    shutdown.begin();
    running.await.unwrap().unwrap();
}

/// Messages of a broker: one twice, and one that cannot be digested.
async fn through_a_consumer() {
    async fn handle(_: &mut MemoryTransaction, message: &Received) -> HandlerResult {
        if message.topic == "bad" { Err(HandlerError::from("no")) } else { Ok(()) }
    }
    let consumer = Consumer::new(Inbox::new(MemoryStore::new(), "consumer").unwrap(), handle);
    let order = Received::new("source", MessageId::new(), "order", "");
    let bad = Received::new("source", MessageId::new(), "bad", "");
    for message in [&order, &order, &bad] {
        consumer.receive(message, Tries::default()).await;
    }
}

/// HOT-016: gauges do not keep outdated values.
pub async fn gauges_go_down<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).workers(1).on_topic("t", journal.gated("t", &gate));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 3)).await.unwrap();
    tx.commit().await.unwrap();
    let last = |name: &str, labels: &[(&str, &str)]| scene.meters.gauge(name, labels).last().copied();
    eventually("a handler runs", async || last("posthaste_running", &[]) == Some(1.0)).await;
    let waiting = async || last("posthaste_queue_depth", &[("queue", "hot")]) == Some(2.0);
    eventually("two are waiting", waiting).await;
    gate.open();
    done(&store, 3).await;
    let down = async || {
        last("posthaste_running", &[]) == Some(0.0)
            && last("posthaste_queue_depth", &[("queue", "hot")]) == Some(0.0)
    };
    eventually("the gauges are down", down).await;
    running.stop().await;
}

/// RMQ-010: a figure above its threshold is logged once, and once again when it is below it.
pub async fn figures_have_thresholds<F: Fixture>(scene: &Scene<F>) {
    let mut watchful = settings();
    watchful.stats = Schedule::every(ms(20));
    // More than the slow messages below can be, however long a claim takes.
    (watchful.alert_ready, watchful.alert_dead) = (500, 0);
    (watchful.alert_oldest, watchful.alert_latency) = (MINUTE, ms(1));
    let slow = async |_: Message| {
        tokio::time::sleep(ms(20)).await;
        HandlerResult::Ok(())
    };
    let outbox = outbox(scene.store(), watchful)
        .on_topic("slow", slow)
        .on_topic("bad", async |_: Message| HandlerResult::Err(HandlerError::dead("no")))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let raised = |name: &str| {
        let events = scene.logs.events("a figure is above its threshold");
        events.iter().filter(|event| event.field("alert") == name).count()
    };
    eventually("slow messages are told", async || {
        outbox.enqueue(draft("slow")).await.unwrap();
        raised("latency") >= 1
    })
    .await;
    outbox.enqueue(draft("bad")).await.unwrap();
    outbox.enqueue_all((0..501).map(|_| draft("unknown"))).await.unwrap();
    scene.fixture.advance(HOUR).await;
    for name in ["ready", "dead", "oldest"] {
        eventually("it is told", async || raised(name) == 1).await;
    }
    let gauge = || scene.meters.gauge("posthaste_alert", &[("alert", "ready")]);
    let above = || gauge().iter().filter(|value| **value == 1.0).count();
    eventually("it is measured again, and again", async || above() >= 3).await;
    let everything = Change::new(Filter::default(), "test", "enough").unwrap();
    outbox.store().bury(&everything).await.unwrap();
    let below = |name: &str| {
        let events = scene.logs.events("a figure is below its threshold again");
        events.iter().any(|event| event.field("alert") == name)
    };
    for name in ["ready", "oldest", "latency"] {
        eventually("it learns that it is over", async || below(name)).await;
    }
    outbox.enqueue_all((0..2).map(|_| draft("unknown"))).await.unwrap();
    let measured = gauge().len();
    eventually("they are measured", async || gauge().len() >= measured + 2).await;
    running.stop().await;
    assert_eq!(raised("ready"), 1, "not at every measurement, nor for what is not above it");
    assert!(gauge().contains(&1.0) && gauge().last() == Some(&0.0));
}
