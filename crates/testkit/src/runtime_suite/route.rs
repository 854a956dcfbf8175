//! Which handler a message goes to, and the handler's arguments.
//!
//! Messages of a topic without a handler here must not be charged.

use std::time::{Duration, SystemTime};

use posthaste_core::{
    Cancellation, Delivery, Event, HandlerResult, Message, NewMessage, Schedule, Shared, State,
    StoreAdmin as _,
};
use serde::{Deserialize, Serialize};

use super::Scene;
use super::support::{
    Gate, Journal, becomes, done, draft, eventually, hot_only, ms, outbox, record, run, settings, state,
};
use crate::{Counting, Fixture};

/// OBX-054: each message goes to the handlers of its topic, and to no others.
pub async fn each_to_its_handler<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .on_topic("order.placed", journal.noting("placed"))
        .on_topic("order.paid", journal.noting("paid"))
        .on_topic("audit.*", journal.noting("audit"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    for topic in
        ["order.placed", "order.paid", "audit.x", "audit.y.z", "Order.placed", "audit", "order.placed "]
    {
        outbox.enqueue(draft(topic)).await.unwrap();
    }
    done(outbox.store(), 4).await;
    running.stop().await;
    let mut calls: Vec<_> =
        journal.calls().iter().map(|call| (call.message.topic.to_string(), call.handler)).collect();
    calls.sort();
    let expected =
        [("audit.x", "audit"), ("audit.y.z", "audit"), ("order.paid", "paid"), ("order.placed", "placed")];
    assert_eq!(calls, expected.map(|(topic, handler)| (topic.to_owned(), handler)));
}

/// OBX-055, protocol rule 14: messages without a handler here stay ready and uncharged. A gauge and one warning report
/// their number, and a process with a handler gets them.
pub async fn unknown_topics_are_nobodys<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut settings_here = settings();
    settings_here.stats = Schedule::every(ms(30));
    let here =
        outbox(store.clone(), settings_here).on_topic("known", journal.noting("here")).build().await.unwrap();
    let running = run(&here);
    let mut tx = here.begin().await.unwrap();
    let unknown = tx.publish(draft("unknown")).await.unwrap().id();
    tx.commit().await.unwrap();
    let also_unknown = here.enqueue(draft("unknown")).await.unwrap().id();
    let known = here.enqueue(draft("known")).await.unwrap().id();
    becomes(&store, known, State::Done).await;
    let gauge =
        async || scene.meters.gauge("posthaste_unhandled", &[("topic", "unknown")]).last() == Some(&2.0);
    eventually("the gauge says 2", gauge).await;
    let rounds = store.calls("stats");
    eventually("there were more rounds", async || store.calls("stats") >= rounds + 3).await;
    for id in [unknown, also_unknown] {
        let record = record(&store, id).await;
        let numbers = (record.message.attempts, record.message.epoch, record.message.lease_losses);
        assert_eq!((record.state, numbers, record.last_error), (State::Ready, (0, 0, 0), None));
    }
    let warnings = scene.logs.at(tracing::Level::WARN);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert_eq!(warnings[0].field("topic"), "unknown");

    // F-14: the version of the program that handles them.
    let new =
        outbox(scene.store(), settings()).on_topic("unknown", journal.noting("new")).build().await.unwrap();
    let new_running = run(&new);
    becomes(&store, unknown, State::Done).await;
    becomes(&store, also_unknown, State::Done).await;
    // A gauge that kept its last value would alert for ever.
    let gauge =
        async || scene.meters.gauge("posthaste_unhandled", &[("topic", "unknown")]).last() == Some(&0.0);
    eventually("the gauge says 0", gauge).await;
    new_running.stop().await;
    running.stop().await;
    assert_eq!(journal.count(), 3);
}

/// OBX-057, HOT-007, HOT-008: on both paths a handler gets the whole message, and its cancellation.
pub async fn handlers_get_the_whole_message<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let noting = journal.clone();
    let handler = move |message: Message, cancellation: Cancellation| {
        let journal = noting.clone();
        async move {
            let _stay = journal.enter("t", &message);
            assert!(!cancellation.is_cancelled());
            HandlerResult::Ok(())
        }
    };
    let outbox = outbox(store.clone(), settings()).on_topic("t", handler).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    let occurred = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let full = || {
        NewMessage::json("t", &serde_json::json!({ "n": [1, 2, 3] }))
            .header("h", "v")
            .correlation_id("request-1")
            .aggregate("Order", 42)
            .tenant_id("tenant-7")
            .occurred_at(occurred)
            .priority(-3)
            .build()
            .unwrap()
    };
    let (hot, cold, plain) = (full(), full(), draft("t").build().unwrap());
    let mut tx = outbox.begin().await.unwrap();
    tx.publish(&hot).await.unwrap();
    tx.commit().await.unwrap();
    outbox.enqueue_all([&cold, &plain]).await.unwrap();
    done(&store, 3).await;
    running.stop().await;
    assert_eq!(scene.meters.counter("posthaste_hot_enqueued_total", &[]), 1);
    for published in [&hot, &cold, &plain] {
        let calls = journal.calls();
        let got = &calls.iter().find(|call| call.message.id == published.id()).unwrap().message;
        let stored = record(&store, published.id()).await.message;
        assert_eq!(got.payload, published.payload().to_vec());
        assert_eq!(got.topic, published.topic());
        assert_eq!((&got.headers, &*got.content_type), (published.headers(), published.content_type()));
        assert_eq!(got.correlation_id.as_deref(), published.correlation_id());
        assert_eq!(got.aggregate_type.as_deref(), published.aggregate_type());
        assert_eq!(got.aggregate_id.as_deref(), published.aggregate_id());
        assert_eq!(got.tenant_id.as_deref(), published.tenant_id());
        assert_eq!((got.priority, got.epoch, got.attempts), (published.priority(), stored.epoch, 0));
        assert_eq!((got.item, got.order), (stored.item, stored.order));
        let off = got.occurred_at.duration_since(stored.occurred_at).unwrap_or_else(|error| error.duration());
        assert!(off < Duration::from_secs(5), "{off:?}");
        assert!(published.occurred_at().is_none() || got.occurred_at == occurred);
    }
}

/// A program's own types for topics and aggregates.
#[derive(Clone, Copy)]
enum Topic {
    Placed,
    Paid,
}

impl AsRef<str> for Topic {
    fn as_ref(&self) -> &str {
        match self {
            Self::Placed => "enum.placed",
            Self::Paid => "enum.paid",
        }
    }
}

enum Aggregate {
    Order,
}

impl AsRef<str> for Aggregate {
    fn as_ref(&self) -> &str {
        match self {
            Self::Order => "ORDER",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Shipped {
    order: u32,
}

impl Event for Shipped {
    const TOPIC: &'static str = "const.shipped";
}

/// HOT-006, 18.5, 18.6: topics and aggregate types from constants, from enums and from strings made at run time reach the
/// handlers that are registered for them.
pub async fn names_of_every_kind<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let noting = journal.clone();
    let shipped = move |shipped: Delivery<Shipped>| {
        let journal = noting.clone();
        async move {
            assert_eq!((shipped.order, shipped.attempt()), (7, 1));
            drop(journal.enter("const", shipped.message()));
            HandlerResult::Ok(())
        }
    };
    let name = format!("string.{}", 40 + 2);
    let outbox = outbox(scene.store(), settings())
        .on(shipped)
        .on_topic(Topic::Placed, journal.noting("enum"))
        .on_topic(&name, journal.noting("string"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let by_const = outbox.enqueue(&Shipped { order: 7 }).await.unwrap().id();
    let by_enum = NewMessage::json(Topic::Placed, &1).aggregate(Aggregate::Order, 42);
    let by_enum = outbox.enqueue(by_enum).await.unwrap().id();
    let by_string = NewMessage::bytes(name.clone(), "x").aggregate(name, "a-1");
    let by_string = outbox.enqueue(by_string).await.unwrap().id();
    let elsewhere = outbox.enqueue(NewMessage::bytes(Topic::Paid, "x")).await.unwrap().id();
    done(outbox.store(), 3).await;
    running.stop().await;
    for (id, handler, aggregate) in [
        (by_const, "const", None),
        (by_enum, "enum", Some("ORDER")),
        (by_string, "string", Some("string.42")),
    ] {
        assert_eq!(journal.handlers_of(id), [handler]);
        assert_eq!(record(outbox.store(), id).await.message.aggregate_type.as_deref(), aggregate);
    }
    assert_eq!(state(outbox.store(), elsewhere).await, Some(State::Ready));
}

/// HOT-006: handlers share the outbox's values, and one that needs a missing value does not build.
pub async fn handlers_share_values<F: Fixture>(scene: &Scene<F>) {
    let gate = Gate::closed();
    let handler = async |_: Message, Shared(gate): Shared<Gate>, Shared(number): Shared<u8>| {
        assert_eq!(number, 7);
        gate.let_through(1);
        HandlerResult::Ok(())
    };
    let missing =
        outbox(scene.store(), hot_only()).share(7u8).on_topic("t", handler).build().await.unwrap_err();
    assert!(missing.to_string().contains("share()"), "{missing}");
    let builder = outbox(scene.store(), settings()).share(7u8).share(gate.clone());
    let outbox = builder.on_topic("t", handler).build().await.unwrap();
    let running = run(&outbox);
    outbox.enqueue(draft("t")).await.unwrap();
    done(outbox.store(), 1).await;
    gate.pass().await;
    running.stop().await;
}

/// INB-009, F-12: a payload that is not the expected event is dead, with the place where decoding failed and nothing
/// of the content.
pub async fn undecodable_events_are_dead<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let noting = journal.clone();
    let handler = move |shipped: Delivery<Shipped>| {
        drop(noting.enter("t", shipped.message()));
        async { HandlerResult::Ok(()) }
    };
    let outbox = outbox(scene.store(), settings()).on(handler).build().await.unwrap();
    let nested = "[".repeat(10_000);
    let bad = ["{\n\"order\": \"canary\"}", "", "\u{0}", &nested, "{\"order\":1", "\u{feff}{\"order\":1}"];
    let mut ids = Vec::new();
    for payload in bad {
        let message = NewMessage::bytes(Shipped::TOPIC, payload.to_owned());
        ids.push(outbox.enqueue(message).await.unwrap().id());
    }
    let invalid = NewMessage::bytes(Shipped::TOPIC, b"{\"order\":\"\xff\"}".to_vec());
    ids.push(outbox.enqueue(invalid).await.unwrap().id());
    let running = run(&outbox);
    let good = outbox.enqueue(&Shipped { order: 1 }).await.unwrap().id();
    becomes(outbox.store(), good, State::Done).await;
    for id in &ids {
        becomes(outbox.store(), *id, State::Dead).await;
    }
    running.stop().await;
    let error = record(outbox.store(), ids[0]).await.last_error.unwrap();
    assert!(error.contains("line=2") && error.contains("column=") && !error.contains("canary"), "{error}");
    assert_eq!(journal.ids(), [good]);
    assert_eq!(outbox.store().stats().await.unwrap().dead.value, 7);
}
