//! Messages that wait for joins: their checks, their continuations, and that waiting costs nothing.
//!
//! A wait's decision follows from the join alone. No case may depend on how often it checks.

use posthaste_core::{
    ErrorKind, FailureClass, JoinId, JoinStatus, JoinWait, NewJoin, NewMessage, Schedule, State, Store as _,
    StoreAdmin as _,
};

use super::Scene;
use super::support::{
    HOUR, Journal, MINUTE, acked, becomes, claim_elsewhere, done, draft, drafts, eventually, ms, outbox,
    record, records, run, settings, start_join,
};
use crate::{Counting, Fixture};

/// JOIN-050: the topic of waits is `join.wait`, or what the settings say; handlers of patterns do not get them, and no
/// other handler may handle it.
pub async fn the_topic_of_waits<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    for topic in ["join.wait", "fan.in"] {
        let mut own = settings();
        topic.clone_into(&mut own.join_wait_topic);
        let taken = outbox(scene.store(), own.clone()).on_topic(topic, journal.noting("mine")).build().await;
        let taken = taken.unwrap_err();
        assert_eq!(taken.kind(), ErrorKind::Configuration);
        assert!(taken.to_string().contains(&format!("topic={topic}")), "{taken}");
        let builder = outbox(scene.store(), own).on_topic("*", journal.noting("all"));
        let builder =
            builder.on_topic("join.*", journal.noting("joins")).on_topic("fan.*", journal.noting("fan"));
        let outbox = builder.build().await.unwrap();
        let join = NewJoin::of(drafts("t", 1)).wait(JoinWait::on_complete(draft("next")));
        let started = start_join(scene, &outbox, join).await;
        assert_eq!(record(outbox.store(), started.waits[0]).await.topic().as_str(), topic);
        assert_eq!(outbox.drain().await.unwrap().delivered, 3);
        assert!(journal.handlers_of(started.waits[0]).is_empty());
        assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "next");
    }
    assert_eq!(journal.count(), 4);
    for pattern in ["", "*", "fan.*"] {
        let mut own = settings();
        pattern.clone_into(&mut own.join_wait_topic);
        let refused =
            outbox(scene.store(), own).on_topic("t", journal.noting("t")).build().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Configuration, "{refused}");
    }
}

/// JOIN-051: a message that is no wait is dead at once; a wait that another language wrote by hand is understood.
pub async fn payloads_of_waits<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let started = start_join(scene, &outbox, NewJoin::of(drafts("t", 1))).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 1);
    for garbage in ["", "{}", "\u{0}", r#"{"join_id":"7","on_complete":{"topic":"next"}}"#] {
        let id = outbox.enqueue(NewMessage::bytes("join.wait", garbage.to_owned())).await.unwrap().id();
        assert_eq!(outbox.drain().await.unwrap().dead, 1);
        let dead = record(outbox.store(), id).await;
        assert_eq!((dead.state, dead.error_class), (State::Dead, Some(FailureClass::Permanent)));
        assert!(dead.last_error.as_ref().unwrap().contains("not the expected JSON"), "{:?}", dead.last_error);
    }
    // A continuation that could not be stored is known to be none.
    let wait = |continuation: serde_json::Value| {
        NewMessage::json(
            "join.wait",
            &serde_json::json!({ "join_id": started.id, "on_complete": continuation }),
        )
    };
    let none = outbox.enqueue(wait(serde_json::json!({ "payload": "{}" }))).await.unwrap().id();
    assert_eq!(outbox.drain().await.unwrap().dead, 1);
    assert!(record(outbox.store(), none).await.last_error.unwrap().contains("topic"));

    outbox.enqueue(wait(serde_json::json!({ "topic": "next", "payload": "{\"n\":1}" }))).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    let next = journal.calls().pop().unwrap().message;
    assert_eq!((next.topic.as_str(), &next.payload[..]), ("next", &b"{\"n\":1}"[..]));
    assert_eq!(journal.count(), 2);
}

/// JOIN-052: a wait for a join that does not exist is dead at once, and says why; asking for one is refused.
pub async fn an_unknown_join<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let nobody = JoinId::new();
    let payload = serde_json::json!({ "join_id": nobody, "on_complete": { "topic": "next" } });
    let id = outbox.enqueue(NewMessage::json("join.wait", &payload)).await.unwrap().id();
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.dead, tally.failed, tally.deferred), (1, 0, 0));
    let dead = record(outbox.store(), id).await;
    assert_eq!((dead.state, dead.error_class), (State::Dead, Some(FailureClass::Permanent)));
    assert!(dead.last_error.as_ref().unwrap().contains("there is no such join"), "{:?}", dead.last_error);
    let told = scene.logs.events("there is no such join: nothing to wait for");
    assert_eq!((told.len(), told[0].level), (1, tracing::Level::WARN));
    assert_eq!(told[0].field("join_id"), nobody.to_string());

    let mut tx = fixture.begin().await;
    let wait = JoinWait::on_complete(draft("next"));
    let refused = outbox.enqueue_join_wait(fixture.connection(&mut tx), nobody, wait).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotFound);
    assert!(refused.to_string().contains(&nobody.to_string()), "{refused}");
    fixture.rollback(tx).await;
    assert_eq!(journal.count(), 0);
}

/// JOIN-053, JOIN-040, OBX-090, OBX-091, OBX-036: a wait is deferred for as long as the join takes, two hours and many
/// checks here, and no attempt is charged.
pub async fn waiting_costs_nothing<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut patient = settings();
    (patient.join_check, patient.settle_interval, patient.max_attempts) = (10 * MINUTE, ms(0), 1);
    let outbox =
        outbox(store.clone(), patient).on_topic("next", journal.noting("next")).build().await.unwrap();
    let join = NewJoin::of(drafts("t", 2)).wait(JoinWait::on_complete(draft("next")));
    let started = start_join(scene, &outbox, join).await;
    let steps = claim_elsewhere(store.inner(), 2, 3 * HOUR).await;
    store.inner().settle(&[acked(&steps[0])]).await.unwrap();
    let running = run(&outbox);
    for looks in 1..=12 {
        scene.fixture.advance(10 * MINUTE).await;
        eventually("it has looked", async || store.calls("look") >= looks).await;
        eventually("it waits again", async || {
            record(store.inner(), started.waits[0]).await.state == State::Ready
        })
        .await;
    }
    let wait = record(store.inner(), started.waits[0]).await;
    assert_eq!((wait.message.attempts, wait.message.lease_losses), (0, 0));
    assert!(wait.message.due_at > scene.fixture.now().await && wait.last_error.is_none());
    assert_eq!(journal.count(), 0);

    store.inner().settle(&[acked(&steps[1])]).await.unwrap();
    done(store.inner(), 4).await;
    running.stop().await;
    assert_eq!((journal.count(), store.calls("continue_join")), (1, 1));
    assert_eq!(record(store.inner(), started.waits[0]).await.message.attempts, 0);
}

/// JOIN-053, rule 13: outages cost a wait nothing, either, and two of them that lie a week apart are not taken for one of a
/// week.
pub async fn outages_do_not_end_a_wait<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut patient = settings();
    (patient.join_check, patient.max_attempts) = (24 * HOUR, 1);
    let outbox =
        outbox(store.clone(), patient).on_topic("next", journal.noting("next")).build().await.unwrap();
    let join = NewJoin::of(drafts("t", 1)).wait(JoinWait::on_complete(draft("next")));
    let started = start_join(scene, &outbox, join).await;
    let step = claim_elsewhere(store.inner(), 1, 24 * HOUR).await;
    let running = run(&outbox);
    for looks in [3, 6] {
        store.fail("look", 2);
        scene.fixture.advance(7 * 24 * HOUR).await;
        eventually("it has looked", async || store.calls("look") >= looks).await;
        becomes(store.inner(), started.waits[0], State::Ready).await;
    }
    store.fail("continue_join", 2);
    store.inner().settle(&[acked(&step[0])]).await.unwrap();
    done(store.inner(), 3).await;
    running.stop().await;
    let wait = record(store.inner(), started.waits[0]).await;
    assert_eq!((wait.state, wait.message.attempts), (State::Done, 0));
    assert_eq!((journal.count(), store.calls("continue_join")), (1, 3));
}

/// JOIN-054, JOIN-055, JOIN-057, OBX-092, OBX-093, OBX-094: the join's end and the wait's policy choose the
/// continuation, if any; the wait is done in any case.
pub async fn the_join_decides<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let wait = |strict: bool, on_fail: bool| {
        let wait = JoinWait::on_complete(draft("done")).fail_if_any_step_failed(strict);
        if on_fail { wait.on_fail(draft("failed")) } else { wait }
    };
    for (failed, strict, on_fail, sent) in [
        (false, true, true, Some("done")),
        (false, false, false, Some("done")),
        (true, true, true, Some("failed")),
        (true, true, false, None),
        (true, false, true, Some("done")),
        (true, false, false, Some("done")),
    ] {
        let join = NewJoin::expecting(1).wait(wait(strict, on_fail));
        let started = start_join(scene, &outbox, join).await;
        let mut tx = fixture.begin().await;
        let connection = fixture.connection(&mut tx);
        let step = outbox.publish(connection, draft("t").delay(HOUR)).await.unwrap().id();
        outbox.attach(connection, started.id, step).await.unwrap();
        let counted = if failed {
            outbox.report_step_failed(connection, started.id, step).await.unwrap()
        } else {
            outbox.report_step_completed(connection, started.id, step).await.unwrap()
        };
        assert!(counted);
        fixture.commit(tx).await;
        let before = journal.count();
        let tally = outbox.drain().await.unwrap();
        assert_eq!(tally.delivered, 1 + u64::from(sent.is_some()));
        assert_eq!(record(outbox.store(), started.waits[0]).await.state, State::Done);
        let calls = journal.calls();
        let topics: Vec<_> = calls[before..].iter().map(|call| call.message.topic.as_str()).collect();
        assert_eq!(topics, Vec::from_iter(sent), "failed {failed}, strict {strict}, on_fail {on_fail}");
        let status = outbox.store().join(started.id).await.unwrap().unwrap().status;
        assert_eq!(status, if failed { JoinStatus::Failed } else { JoinStatus::Completed });
    }
}

/// JOIN-055: several waits for one join each send their own continuation, also one that comes after its end; the same one
/// twice is one.
pub async fn several_waits_for_one_join<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let wait = |to: &str| JoinWait::on_complete(draft("next").correlation_id(to));
    let join = NewJoin::of(drafts("t", 1)).wait(wait("a")).wait(wait("b")).wait(wait("a"));
    let started = start_join(scene, &outbox, join).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 1 + 2 + 2);
    for to in ["c", "a"] {
        let mut tx = fixture.begin().await;
        outbox.enqueue_join_wait(fixture.connection(&mut tx), started.id, wait(to)).await.unwrap();
        fixture.commit(tx).await;
    }
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    let mut next: Vec<_> =
        journal.calls().iter().filter(|c| c.message.topic.as_str() == "next").map(|c| c.message.id).collect();
    assert_eq!((started.waits.len(), next.len()), (3, 3));
    assert_eq!(started.waits[0], started.waits[2]);
    next.sort_unstable();
    next.dedup();
    assert_eq!(next.len(), 3, "each has an id of its own");
}

/// JOIN-051, HOT-007: a continuation is the whole message that was asked for.
pub async fn a_continuation_is_whole<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let next = NewMessage::bytes("next", vec![0xff, 0x00, 0x7f])
        .content_type("application/x-parquet")
        .key("customer-12")
        .header("tenant", "north")
        .correlation_id("correlation")
        .aggregate("Customer", 12)
        .tenant_id("north")
        .priority(-3)
        .delay(HOUR)
        .build()
        .unwrap();
    let join = NewJoin::of(drafts("t", 1)).wait(JoinWait::on_complete(&next));
    start_join(scene, &outbox, join).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 2, "it is due in an hour");
    let stored = records(outbox.store()).await.pop().unwrap().message;
    let left = stored.due_at.duration_since(scene.fixture.now().await).unwrap();
    assert!(left > HOUR - MINUTE && left <= HOUR + MINUTE, "an hour after the end of the join: {left:?}");
    scene.fixture.advance(HOUR + MINUTE).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 1);
    let got = journal.calls().pop().unwrap().message;
    assert_ne!(got.id, next.id());
    assert_eq!((&got.payload[..], got.content_type.as_str()), (next.payload(), next.content_type()));
    assert_eq!((got.key.as_deref(), &got.headers), (next.key(), next.headers()));
    assert_eq!(
        (got.correlation_id.as_deref(), got.tenant_id.as_deref()),
        (Some("correlation"), Some("north"))
    );
    assert_eq!((got.aggregate_type.as_deref(), got.aggregate_id.as_deref()), (Some("Customer"), Some("12")));
    assert_eq!(got.priority, -3);
}

/// JOIN-070, JOIN-071, JOIN-072, JOIN-073: starts, steps, ends and decisions are in the log, with ids and counts.
pub async fn joins_in_the_log<F: Fixture>(scene: &Scene<F>) {
    use tracing::Level;
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let mut quick = settings();
    // Longer than a drain takes on a slow machine, and shorter than the minute that passes between them.
    (quick.join_check, quick.stats) = (MINUTE / 2, Schedule::off());
    let outbox = outbox(scene.store(), quick).on_topic("*", journal.noting("all")).build().await.unwrap();
    let wait = JoinWait::on_complete(draft("next"));
    let join = NewJoin::expecting(2).grouping_key("customer-12").steps(drafts("t", 1)).wait(wait);
    let started = start_join(scene, &outbox, join).await;
    fixture.advance(MINUTE).await;
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.delivered, tally.deferred), (1, 1));
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    let late = outbox.publish(connection, draft("t")).await.unwrap().id();
    outbox.attach(connection, started.id, late).await.unwrap();
    fixture.commit(tx).await;
    fixture.advance(MINUTE).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 3);

    let (id, name) = (started.id.to_string(), outbox.store().name());
    let told = |text: &str, level: Level, count: usize| {
        let events = scene.logs.events(text);
        assert_eq!(events.len(), count, "{text}: {events:?}");
        for event in &events {
            assert_eq!((event.level, event.field("join_id")), (level, &*id), "{event:?}");
            assert_eq!(event.field("store"), name);
        }
        events
    };
    assert_eq!(told("join started", Level::INFO, 1)[0].field("expected"), "2");
    let attached = told("attached", Level::DEBUG, 2);
    assert_eq!(attached[0].field("message_id"), started.steps[0].id().to_string());
    assert_eq!(attached[1].field("message_id"), late.to_string());
    let waiting = scene.logs.events("the join is pending: waiting");
    let wait = started.waits[0].to_string();
    assert!(!waiting.is_empty());
    assert!(waiting.iter().all(|event| event.level == Level::DEBUG && event.field("message_id") == wait));
    let ended = told("join ended", Level::INFO, 1);
    let fields = ["status", "expected", "completed", "failed"].map(|name| ended[0].field(name));
    assert_eq!(fields, ["completed", "2", "2", "0"]);
    let over = told("the wait for a join is over", Level::INFO, 1);
    let fields = ["message_id", "status", "continuation", "repeated"].map(|name| over[0].field(name));
    assert_eq!(fields, [&*wait, "completed", "next", "false"]);
    assert_eq!(scene.meters.counter("posthaste_joins_ended_total", &[("status", "completed")]), 1);
    assert!(scene.logs.at(Level::ERROR).is_empty() && scene.logs.at(Level::WARN).is_empty());
}
