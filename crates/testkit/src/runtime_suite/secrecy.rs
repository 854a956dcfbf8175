//! Payloads, headers, keys and ids of users: they must not appear in a log, a metric, a `Debug` output or an error text.
//!
//! Canaries are planted wherever a user can put something, and everything that comes out is searched for them.

use posthaste_core::{
    Delivery, Event, Failure, HandlerError, HandlerResult, JoinWait, Message, MessageBuilder, NewJoin,
    NewMessage, Schedule, Shared, State, Store as _, StoreAdmin as _,
};
use serde::{Deserialize, Serialize};

use super::Scene;
use super::support::{
    Counter, Gate, HOUR, Journal, becomes, claim_elsewhere, eventually, ms, outbox, records, run, settings,
};
use crate::{Counting, Fixture, Logs};

/// One for each place.
const CANARIES: [&str; 9] = [
    "canary-payload-1",
    "canary-header-2",
    "canary-key-3",
    "canary-correlation-4",
    "canary-dedup-5",
    "canary-tenant-6",
    "canary-aggregate-7",
    "canary-number-8",
    "4111222233334444",
];

#[derive(Serialize, Deserialize)]
struct Typed {
    text: String,
    card: u64,
}

impl Event for Typed {
    const TOPIC: &'static str = "typed";
}

fn loaded(topic: &str, n: usize) -> MessageBuilder {
    let payload =
        serde_json::json!({ "text": "canary-payload-1", "card": 4_111_222_233_334_444_u64, "n": n });
    NewMessage::json(topic, &payload)
        .header("authorization", "canary-header-2")
        .correlation_id("canary-correlation-4")
        .dedup_key(format!("canary-dedup-5 {topic} {n}"))
        .tenant_id("canary-tenant-6")
        .aggregate("Order", "canary-aggregate-7")
}

/// The error of a careless handler.
fn echo(message: &Message) -> String {
    format!("cannot handle {:?} of {:?}, {:?}: {}", message.key, message.tenant_id, message.correlation_id, {
        let payload = String::from_utf8_lossy(&message.payload);
        format!("{payload} with {:?} and {:?}", message.headers, message.aggregate_id)
    })
}

/// OBX-125, I13: through success, failure, panic, death, decoding errors, downgrades, lost leases and errors of the store,
/// nothing of a message's content reaches a log, a metric, a `Debug` output or a stored error.
pub async fn nothing_leaks<F: Fixture>(scene: &Scene<F>) {
    // Threads that belong to no runtime report here: drivers have such threads.
    let elsewhere = Logs::default();
    let _ = tracing::subscriber::set_global_default(elsewhere.clone());
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let debugged = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
    let (seen, typed_seen) = (debugged.clone(), debugged.clone());
    let failing = move |message: Message, Shared(kinds): Shared<Counter>| {
        let seen = seen.clone();
        async move {
            let text = echo(&message);
            let error = match kinds.next() % 5 {
                0 => HandlerError::dead(&text),
                1 => HandlerError::infrastructure(&text),
                2 => HandlerError::retry_after(ms(1), &text),
                3 => HandlerError::failed(Failure::business(&text)),
                _ => HandlerError::from(text),
            };
            seen.lock().unwrap().push_str(&format!("{error:?} {message:?}"));
            HandlerResult::Err(error)
        }
    };
    let panicking = async |message: Message| -> HandlerResult { panic!("{}", echo(&message)) };
    let typed = move |delivery: Delivery<Typed>| {
        typed_seen.lock().unwrap().push_str(&format!("{delivery:?} {:?}", delivery.message()));
        async { HandlerResult::Ok(()) }
    };
    let mut busy = settings();
    (busy.hot_capacity, busy.workers, busy.max_attempts, busy.lease) = (1, 2, 3, ms(3_000));
    (busy.reap, busy.stats, busy.expire) =
        (Schedule::every(ms(50)), Schedule::every(ms(50)), Schedule::every(ms(50)));
    busy.outage_limit = Some(ms(200));
    let outbox = outbox(store.clone(), busy)
        .share(Counter::default())
        .on_topic("good", journal.noting("good"))
        .on_topic("gated", journal.gated("gated", &gate))
        .on_topic("failing", failing)
        .on_topic("panicking", panicking)
        .on(typed)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    for operation in ["claim", "settle", "renew", "reap", "stats"] {
        store.fail(operation, 1);
    }
    let mut said = String::new();
    for n in 0..6 {
        // More in one transaction than the hot queue has room for.
        let mut tx = outbox.begin().await.unwrap();
        for topic in ["good", "failing", "panicking", "typed", "nobody"] {
            let message = loaded(topic, n).build().unwrap();
            said.push_str(&format!("{message:?} {:?}", loaded(topic, n)));
            let enqueued = tx.publish(&message).await.unwrap();
            said.push_str(&format!("{enqueued:?} {tx:?}"));
        }
        tx.commit().await.unwrap();
        outbox.enqueue(loaded("good", n)).await.unwrap();
    }
    let wrong = NewMessage::json("typed", &serde_json::json!({ "text": 7, "card": "canary-payload-1" }));
    let wrong = outbox.enqueue(wrong.header("h", "canary-header-2")).await.unwrap().id();
    let broken = NewMessage::bytes("typed", "{\"text\": \"canary-payload-1\" canary-number-8");
    let broken = outbox.enqueue(broken).await.unwrap().id();
    outbox.enqueue(loaded("good", 99).key("canary-key-3")).await.unwrap();
    outbox.enqueue(loaded("failing", 99).key("canary-key-3")).await.unwrap();
    outbox.enqueue(loaded("nobody", 99).expires_after(ms(1))).await.unwrap();
    for id in [wrong, broken] {
        becomes(&store, id, State::Dead).await;
    }
    // A lease that is lost.
    let gated = outbox.enqueue(loaded("gated", 1)).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    let lost = async || scene.meters.counter("posthaste_lost_leases_total", &[]) >= 1;
    let mut reaped = 0;
    eventually("its lease runs out", async || {
        // A renewal may come between the two.
        scene.fixture.advance(HOUR).await;
        reaped += outbox.reap(10).await.unwrap().ready;
        reaped > 0 || lost().await
    })
    .await;
    eventually("its lease is lost", lost).await;
    gate.open();
    becomes(&store, gated, State::Done).await;
    let settled = async || {
        let stats = store.inner().stats().await.unwrap();
        stats.leased.value == 0 && stats.ready.value + stats.scheduled.value == 6
    };
    eventually("everything but what nobody handles is over", settled).await;
    running.stop().await;
    said.push_str(&format!("{outbox:?} {:?}", outbox.store()));

    // Refusals, which carry facts.
    for refused in [
        outbox.enqueue(loaded("good", 1).key("canary-key-3".repeat(100))).await.unwrap_err(),
        outbox.enqueue(loaded("good", 1).tenant_id("canary-tenant-6\0")).await.unwrap_err(),
        outbox.enqueue(loaded("good", 1).header("", "canary-header-2")).await.unwrap_err(),
        outbox.enqueue(NewMessage::bytes("good", "canary-payload-1".repeat(100_000))).await.unwrap_err(),
        outbox.enqueue(loaded("good", 1).header("h", "canary-header-2".repeat(10_000))).await.unwrap_err(),
    ] {
        said.push_str(&format!("{refused} {refused:?}"));
    }
    said.push_str(&debugged.lock().unwrap());
    let stored = records(store.inner()).await;
    said.push_str(&format!("{stored:?}"));
    let spoiled = loaded("good", 1_000).build().unwrap();
    store.inner().enqueue(std::slice::from_ref(&spoiled)).await.unwrap();
    if scene.fixture.spoil(spoiled.id()).await {
        said.push_str(&format!("{:?}", claim_elsewhere(store.inner(), 10, HOUR).await));
    }
    let errors: Vec<_> = stored.iter().filter_map(|record| record.last_error.clone()).collect();
    assert!(errors.len() >= 14, "{}", errors.len());
    assert!(errors.iter().any(|error| error.contains("[redacted]")), "{errors:?}");

    let logged = scene.logs.all();
    assert!(logged.len() > 100 && scene.meters.counter("posthaste_hot_downgraded_total", &[]) > 0);
    for canary in CANARIES {
        for logged in logged.iter().chain(&elsewhere.all()) {
            let hit =
                logged.message.contains(canary) || logged.fields.values().any(|value| value.contains(canary));
            assert!(!hit, "{canary} was logged: {logged:?}");
        }
        for name in scene.meters.names() {
            assert!(!format!("{name:?}").contains(canary), "{canary} is in a metric: {name:?}");
        }
        assert!(!said.contains(canary), "{canary} is shown: {said}");
        for error in &errors {
            assert!(!error.contains(canary), "{canary} is stored: {error}");
        }
    }
}

/// OBX-125, I13, JOIN-070: nor does anything of a join: its grouping key, its metadata, its continuations; whether it
/// completes, fails, expires, is cancelled or unknown, and whatever is refused.
pub async fn nothing_of_a_join_leaks<F: Fixture>(scene: &Scene<F>) {
    let (journal, store, fixture) = (Journal::new(), Counting::new(scene.store()), &scene.fixture);
    let failing = async |message: Message| HandlerResult::Err(HandlerError::dead(echo(&message)));
    let mut busy = settings();
    (busy.join_check, busy.expire, busy.prune) = (ms(100), Schedule::every(ms(50)), Schedule::every(ms(50)));
    let outbox = outbox(store.clone(), busy)
        .on_topic("good", journal.noting("good"))
        .on_topic("failing", failing)
        .build()
        .await
        .unwrap();
    let mut said = String::new();
    let mut join = |steps: &[&str], n: usize| {
        let wait = JoinWait::on_complete(loaded("good", 10 * n + 8)).on_fail(loaded("failing", 10 * n + 9));
        said.push_str(&format!("{wait:?}"));
        let steps = steps.iter().enumerate().map(|(at, topic)| loaded(topic, 10 * n + at));
        let join = NewJoin::of(steps.collect::<Vec<_>>())
            .grouping_key("canary-grouping-9")
            .metadata("canary-metadata-10")
            .wait(wait);
        said.push_str(&format!("{join:?}"));
        join
    };
    let joins = [
        join(&["good", "good"], 1),
        join(&["good", "failing"], 2),
        join(&["nobody"], 3).expires_after(ms(200)),
        join(&["nobody"], 4),
    ];
    let refused = [join(&["good"], 5).grouping_key("canary-grouping-9".repeat(20)), {
        join(&["good"], 6).metadata("canary-metadata-10\0")
    }];
    let running = run(&outbox);
    for operation in ["look", "continue_join", "prune_joins"] {
        store.fail(operation, 1);
    }
    let mut started = Vec::new();
    for join in joins {
        let mut tx = outbox.begin().await.unwrap();
        started.push(tx.start_join(join).await.unwrap());
        tx.commit().await.unwrap();
    }
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    outbox.cancel_join(connection, started[3].id).await.unwrap();
    for join in refused {
        let error = outbox.start_join(connection, join).await.unwrap_err();
        said.push_str(&format!("{error} {error:?}"));
    }
    let error = outbox.attach(connection, started[3].id, started[0].steps[0].id()).await.unwrap_err();
    said.push_str(&format!("{error} {error:?}"));
    fixture.commit(tx).await;
    let unknown = serde_json::json!({
        "join_id": posthaste_core::JoinId::new(),
        "on_complete": { "topic": "good", "payload": "canary-payload-1", "key": "canary-key-3" },
    });
    let broken = r#"{"join_id": "canary-payload-1", "on_complete": canary-number-8}"#;
    let unknown = outbox.enqueue(NewMessage::json("join.wait", &unknown)).await.unwrap().id();
    let broken = outbox.enqueue(NewMessage::bytes("join.wait", broken)).await.unwrap().id();
    for id in started.iter().map(|started| started.waits[0]) {
        becomes(&store, id, State::Done).await;
    }
    for id in [unknown, broken] {
        becomes(&store, id, State::Dead).await;
    }
    eventually("everything was tried", async || store.calls("prune_joins") >= 2).await;
    running.stop().await;
    for started in &started {
        let stored = store.inner().join(started.id).await.unwrap().unwrap();
        let steps = store.inner().steps(started.id, None, 10).await.unwrap();
        said.push_str(&format!("{started:?} {stored:?} {steps:?} {outbox:?}"));
    }
    let told =
        |text| scene.logs.events(text).iter().map(|e| e.field("status").to_owned()).collect::<Vec<_>>();
    assert!(told("join ended").len() >= 2);
    assert_eq!(told("join ends with its transaction"), ["cancelled"]);
    said.push_str(&format!("{:?}", records(store.inner()).await));
    let logged = scene.logs.all();
    for canary in CANARIES.iter().chain(&["canary-grouping-9", "canary-metadata-10"]) {
        for logged in &logged {
            assert!(!format!("{logged:?}").contains(canary), "{canary} was logged: {logged:?}");
        }
        for name in scene.meters.names() {
            assert!(!format!("{name:?}").contains(canary), "{canary} is in a metric: {name:?}");
        }
        assert!(!said.contains(canary), "{canary} is shown: {said}");
    }
}
