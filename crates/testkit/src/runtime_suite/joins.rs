//! Fan-in, from the start of a join to its continuation: the three examples of the specification, and what steps may be.
//!
//! Handlers know nothing of joins, unless they start one.

use std::sync::{Arc, OnceLock};

use posthaste_core::{
    Enqueued, HandlerError, HandlerResult, JoinId, JoinStatus, JoinWait, Message, MessageBuilder, NewJoin,
    NewMessage, Outbox, Shared, State, StepStatus, Store as _, StoreAdmin as _,
};

use super::Scene;
use super::support::{
    HOUR, Journal, becomes, claim_elsewhere, done, draft, drafts, eventually, outbox, record, records, run,
    settings, start_join, state,
};
use crate::{Counting, Fixture};

/// The outbox, for handlers that start joins.
type Own<S> = Arc<OnceLock<Outbox<S>>>;

/// The specification's first example: three extracts, and what follows them.
fn extraction() -> posthaste_core::JoinBuilder {
    let extract = |what| NewMessage::json(format!("extract.{what}"), &serde_json::json!({ "what": what }));
    NewJoin::of(["customers", "orders", "products"].map(extract))
        .grouping_key("CUST-123")
        .metadata(r#"{"type": "etl", "phase": "extract", "customerId": "CUST-123"}"#)
        .wait(
            JoinWait::on_complete(for_customer("etl.transform")).on_fail(for_customer("etl.extract.failed")),
        )
}

fn for_customer(topic: &str) -> MessageBuilder {
    NewMessage::json(topic, &serde_json::json!({ "CustomerId": "CUST-123" }))
}

/// JOIN-030, JOIN-041, JOIN-055, JOIN-056, OBX-093: when the last of three extracts is done, and not before, the
/// transformation is sent, once.
pub async fn three_extracts_and_then_the_transformation<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), super::support::Gate::closed());
    let outbox = outbox(scene.store(), settings())
        .on_topic("extract.*", journal.gated("extract", &gate))
        .on_topic("etl.*", journal.noting("etl"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let store = outbox.store();
    let started = start_join(scene, &outbox, extraction()).await;
    gate.let_through(2);
    let two = async || store.join(started.id).await.unwrap().unwrap().completed_steps == 2;
    eventually("two extracts are counted", two).await;
    eventually("the third is being handled", async || journal.running() == 1).await;
    let join = store.join(started.id).await.unwrap().unwrap();
    assert_eq!((join.status, join.failed_steps, join.attached_steps), (JoinStatus::Pending, 0, 3));
    assert_eq!(journal.count(), 3);

    gate.open();
    done(store, 5).await;
    running.stop().await;
    let join = store.join(started.id).await.unwrap().unwrap();
    assert_eq!((join.status, join.completed_steps, join.failed_steps), (JoinStatus::Completed, 3, 0));
    assert_eq!(join.grouping_key.as_deref(), Some("CUST-123"));
    let last = journal.calls().pop().unwrap();
    assert_eq!((journal.count(), last.message.topic.as_str()), (4, "etl.transform"));
    let payload: serde_json::Value = last.message.json().unwrap();
    assert_eq!(payload, serde_json::json!({ "CustomerId": "CUST-123" }));
    assert_eq!(state(store, started.waits[0]).await, Some(State::Done));
}

/// JOIN-031, JOIN-041, JOIN-054, OBX-094: with one extract that fails for good, the failure is sent, and nothing else, once
/// all have ended.
pub async fn a_failed_extract_is_told<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .max_attempts(2)
        .on_topic("extract.orders", async |_: Message| HandlerResult::Err(HandlerError::from("no orders")))
        .on_topic("extract.*", journal.noting("extract"))
        .on_topic("etl.*", journal.noting("etl"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let started = start_join(scene, &outbox, extraction()).await;
    done(outbox.store(), 4).await;
    running.stop().await;
    let join = outbox.store().join(started.id).await.unwrap().unwrap();
    assert_eq!((join.status, join.completed_steps, join.failed_steps), (JoinStatus::Failed, 2, 1));
    let sent: Vec<_> = journal.calls().into_iter().filter(|call| call.handler == "etl").collect();
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].message.topic.as_str(), "etl.extract.failed");
    assert_eq!(state(outbox.store(), started.waits[0]).await, Some(State::Done));
}

/// JOIN-055, OBX-092: a report is assembled although a section failed, and its handler can tell which ones are there.
pub async fn some_sections_may_fail<F: Fixture>(scene: &Scene<F>) {
    let (journal, found) = (Journal::new(), Arc::new(std::sync::Mutex::new(Vec::new())));
    let (noting, finding) = (journal.clone(), found.clone());
    let assemble = move |message: Message, Shared(store): Shared<F::Store>| {
        drop(noting.enter("assemble", &message));
        let found = finding.clone();
        async move {
            let id: String = message.json()?;
            let steps = store.steps(id.parse()?, None, 200).await?.steps;
            let completed = steps.iter().filter(|step| step.status == StepStatus::Completed);
            found.lock().unwrap().extend(completed.map(|step| step.message));
            HandlerResult::Ok(())
        }
    };
    let outbox = outbox(scene.store(), settings())
        .share(scene.store())
        .on_topic("report.generate.section3", async |_: Message| HandlerResult::Err(HandlerError::dead("no")))
        .on_topic("report.generate.*", journal.noting("section"))
        .on_topic("report.assemble", assemble)
        .build()
        .await
        .unwrap();
    let id = JoinId::new();
    let sections = (1..=5).map(|n| draft(&format!("report.generate.section{n}")));
    let assembled = JoinWait::on_complete(NewMessage::json("report.assemble", &id.to_string()));
    let join = NewJoin::of(sections).id(id).grouping_key("report-RPT-456");
    let started = start_join(scene, &outbox, join.wait(assembled.fail_if_any_step_failed(false))).await;
    let running = run(&outbox);
    done(outbox.store(), 6).await;
    running.stop().await;
    let join = outbox.store().join(id).await.unwrap().unwrap();
    assert_eq!((join.status, join.completed_steps, join.failed_steps), (JoinStatus::Failed, 4, 1));
    let mut there: Vec<_> = started.steps.iter().map(Enqueued::id).collect();
    there.remove(2);
    there.sort_unstable();
    assert_eq!(*found.lock().unwrap(), there);
}

/// JOIN-001, JOIN-055, HOT-003: the continuation of one join starts the next, in a transaction of its handler's.
pub async fn one_stage_after_another<F: Fixture>(scene: &Scene<F>) {
    let (journal, own) = (Journal::new(), Own::<F::Store>::default());
    let noting = journal.clone();
    let validate = move |message: Message, Shared(own): Shared<Own<F::Store>>| {
        drop(noting.enter("start-validation", &message));
        async move {
            let stage = NewJoin::of(["validate.schema", "validate.business-rules"].map(draft))
                .grouping_key("workflow")
                .wait(JoinWait::on_complete(draft("workflow.publish")));
            let mut tx = own.get().unwrap().begin().await?;
            tx.start_join(stage).await?;
            tx.commit().await?;
            HandlerResult::Ok(())
        }
    };
    let outbox = outbox(scene.store(), settings())
        .share(own.clone())
        .on_topic("ingest.*", journal.noting("ingest"))
        .on_topic("workflow.start-validation", validate)
        .on_topic("validate.*", journal.noting("validate"))
        .on_topic("workflow.publish", journal.noting("publish"))
        .build()
        .await
        .unwrap();
    own.set(outbox.clone()).unwrap();
    let running = run(&outbox);
    let first = NewJoin::of(["ingest.source1", "ingest.source2", "ingest.source3"].map(draft))
        .grouping_key("workflow")
        .wait(JoinWait::on_complete(draft("workflow.start-validation")));
    start_join(scene, &outbox, first).await;
    done(outbox.store(), 3 + 1 + 1 + 2 + 1 + 1).await;
    running.stop().await;
    let handlers: Vec<_> = journal.calls().iter().map(|call| call.handler).collect();
    let expected =
        ["ingest", "ingest", "ingest", "start-validation", "validate", "validate", "publish"].to_vec();
    assert_eq!(handlers, expected);
    let filter =
        posthaste_core::JoinFilter { grouping_key: Some("workflow".to_owned()), ..Default::default() };
    let joins = outbox.store().joins(&filter, None, 10).await.unwrap().joins;
    let statuses: Vec<_> = joins.iter().map(|join| join.status).collect();
    assert_eq!(statuses, [JoinStatus::Completed; 2]);
}

/// JOIN-001, OBX-003: a join is invisible before the commit, and a start that is rolled back leaves nothing.
pub async fn all_or_nothing_of_a_start<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let store = outbox.store();
    let mut tx = fixture.begin().await;
    let lost = outbox.start_join(fixture.connection(&mut tx), extraction()).await.unwrap();
    assert!(store.join(lost.id).await.unwrap().is_none() && records(store).await.is_empty());
    fixture.rollback(tx).await;
    let mut tx = outbox.begin().await.unwrap();
    let lost_too = tx.start_join(extraction()).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    fixture.savepoint(&mut tx).await;
    let lost_half_way = tx.start_join(extraction()).await.unwrap();
    fixture.rollback_to_savepoint(&mut tx).await;
    let kept = tx.publish(draft("kept")).await.unwrap().id();
    tx.commit().await.unwrap();
    for started in [&lost, &lost_too, &lost_half_way] {
        assert!(store.join(started.id).await.unwrap().is_none());
        assert!(store.steps(started.id, None, 10).await.unwrap().steps.is_empty());
    }
    let left: Vec<_> = records(store).await.iter().map(|record| record.message.id).collect();
    assert_eq!(left, [kept], "no steps and no wait");
    assert_eq!(outbox.drain().await.unwrap().delivered, 1);
    assert_eq!(journal.ids(), [kept]);

    let started = start_join(scene, &outbox, extraction()).await;
    assert_eq!(store.join(started.id).await.unwrap().unwrap().attached_steps, 3);
    assert_eq!(records(store).await.len(), 5);
}

/// JOIN-002, JOIN-004, rule 15: an invalid join, step or continuation is refused before any SQL.
pub async fn refused_before_any_sql<F: Fixture>(scene: &Scene<F>) {
    let (store, fixture) = (Counting::new(scene.store()), &scene.fixture);
    let outbox = outbox(store.clone(), settings()).max_payload_bytes(100).build().await.unwrap();
    store.reset();
    let one = || NewJoin::of([draft("t")]);
    let large = || NewMessage::bytes("t", vec![b'x'; 101]);
    let mut tx = fixture.begin().await;
    for join in [
        NewJoin::expecting(0),
        NewJoin::expecting(1).steps([draft("t"), draft("t")]),
        one().grouping_key("k".repeat(256)),
        one().step(draft("")),
        one().step(large()),
        one().wait(JoinWait::on_complete(draft(""))),
        one().wait(JoinWait::on_complete(large())),
        one().wait(JoinWait::on_complete(draft("next")).on_fail(draft(""))),
    ] {
        outbox.start_join(fixture.connection(&mut tx), join).await.unwrap_err();
    }
    fixture.commit(tx).await;
    assert!(store.all().is_empty(), "{:?}", store.all());
    assert!(records(store.inner()).await.is_empty());
}

/// HOT-002, HOT-003: through an outbox transaction the steps are delivered from memory, without a question which of them
/// survived, and the continuation follows; a savepoint rolled back takes a join along.
pub async fn steps_from_memory<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), super::support::hot_only())
        .on_topic("*", journal.noting("all"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() == 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let started = tx.start_join(extraction()).await.unwrap();
    assert!(started.steps.iter().all(|step| matches!(step, Enqueued::New { lease: Some(_), .. })));
    assert_eq!(journal.count(), 0, "nothing happens before the commit");
    tx.commit().await.unwrap();
    done(store.inner(), 5).await;
    assert_eq!((store.calls("survivors"), store.calls("insert")), (0, 2), "{:?}", store.all());
    assert_eq!(scene.meters.counter("posthaste_hot_enqueued_total", &[]), 3);
    assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "etl.transform");

    let fixture = &scene.fixture;
    let mut tx = outbox.begin().await.unwrap();
    fixture.savepoint(&mut tx).await;
    let lost = tx.start_join(extraction()).await.unwrap();
    fixture.rollback_to_savepoint(&mut tx).await;
    let kept = tx.start_join(extraction()).await.unwrap();
    tx.commit().await.unwrap();
    done(store.inner(), 10).await;
    running.stop().await;
    assert_eq!((store.calls("survivors"), journal.count()), (1, 8));
    assert!(store.join(lost.id).await.unwrap().is_none());
    assert_eq!(store.join(kept.id).await.unwrap().unwrap().status, JoinStatus::Completed);
}

/// JOIN-010, JOIN-013: a step whose dedup key is stored already is the stored message, also when that is over; and steps that
/// are one message count once.
pub async fn a_duplicate_is_the_step<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let over = outbox.enqueue(draft("t").dedup_key("over")).await.unwrap().id();
    assert_eq!(outbox.drain().await.unwrap().delivered, 1);
    let waiting = outbox.enqueue(draft("t").dedup_key("waiting")).await.unwrap().id();
    let twice = draft("t").build().unwrap();
    let join = NewJoin::of([
        draft("t").dedup_key("over").build().unwrap(),
        draft("t").dedup_key("waiting").build().unwrap(),
        draft("t").dedup_key("new").build().unwrap(),
        draft("t").dedup_key("new").build().unwrap(),
        twice.clone(),
        twice.clone(),
    ]);
    let started = start_join(scene, &outbox, join.wait(JoinWait::on_complete(draft("next")))).await;
    let ids: Vec<_> = started.steps.iter().map(Enqueued::id).collect();
    assert_eq!((ids[0], ids[1], ids[4], ids[5]), (over, waiting, twice.id(), twice.id()));
    assert_eq!(ids[2], ids[3]);
    let join = outbox.store().join(started.id).await.unwrap().unwrap();
    assert_eq!((join.expected_steps, join.attached_steps, join.completed_steps), (4, 4, 1));
    assert_eq!(outbox.drain().await.unwrap().delivered, 3 + 1 + 1);
    assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "next");

    // All of them over before the join begins: the continuation follows at once.
    let again = NewJoin::of([draft("t").dedup_key("over")]).wait(JoinWait::on_complete(draft("at once")));
    let again = start_join(scene, &outbox, again).await;
    assert_eq!(outbox.store().join(again.id).await.unwrap().unwrap().status, JoinStatus::Completed);
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "at once");
}

/// JOIN-006, OBX-081: a join that is there, pending or over, is not started again: nothing is published, nothing is refused,
/// and what happens after it in the transaction is kept. So a handler that is called twice may start it twice.
pub async fn the_same_join_again<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let id = JoinId::new();
    let join = || NewJoin::of(drafts("t", 2)).id(id).wait(JoinWait::on_complete(draft("next")));
    for new in [true, false] {
        assert_eq!(start_join(scene, &outbox, join()).await.new, new);
    }
    assert_eq!(outbox.drain().await.unwrap().delivered, 2 + 1 + 1);
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    let started = outbox.start_join(connection, join()).await.unwrap();
    assert!(!started.new && started.steps.is_empty() && started.waits.is_empty());
    outbox.publish(connection, draft("after")).await.unwrap();
    fixture.commit(tx).await;
    let mut tx = outbox.begin().await.unwrap();
    assert!(!tx.start_join(join()).await.unwrap().new);
    tx.publish(draft("after")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    assert_eq!(outbox.store().join(id).await.unwrap().unwrap().completed_steps, 2);
}

/// JOIN-010, JOIN-011, JOIN-020, JOIN-021, JOIN-022, JOIN-034: steps may be attached, and reported by hand, in other transactions
/// than the start's; the first report counts.
pub async fn attached_and_reported_by_hand<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let wait = JoinWait::on_complete(draft("next")).on_fail(draft("failed"));
    let join = start_join(scene, &outbox, NewJoin::expecting(2).wait(wait)).await.id;
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    let steps: Vec<_> = outbox.publish_all(connection, drafts("t", 2)).await.unwrap();
    for step in &steps {
        assert_eq!(outbox.attach(connection, join, step.id()).await.unwrap().new, 1);
        assert_eq!(outbox.attach(connection, join, step.id()).await.unwrap().new, 0);
    }
    let refused = outbox.attach(connection, join, posthaste_core::MessageId::new()).await.unwrap_err();
    assert_eq!(refused.kind(), posthaste_core::ErrorKind::NotFound, "{refused}");
    fixture.commit(tx).await;
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    assert!(outbox.report_step_failed(connection, join, steps[0].id()).await.unwrap());
    assert!(!outbox.report_step_completed(connection, join, steps[0].id()).await.unwrap());
    fixture.commit(tx).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 2 + 1 + 1);
    assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "failed");
    let ended = outbox.store().join(join).await.unwrap().unwrap();
    assert_eq!((ended.completed_steps, ended.failed_steps), (1, 1));
}

/// JOIN-055, OBX-054: a drain runs a whole fan-in, with its continuation.
pub async fn a_drain_runs_it_all<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    start_join(scene, &outbox, extraction()).await;
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.delivered, tally.deferred, tally.dead), (5, 0, 0));
    assert_eq!(journal.calls().last().unwrap().message.topic.as_str(), "etl.transform");

    // One whose step is elsewhere stays for later.
    let waiting = start_join(scene, &outbox, extraction()).await;
    let elsewhere = claim_elsewhere(outbox.store(), 1, HOUR).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    assert_eq!(record(outbox.store(), waiting.waits[0]).await.state, State::Ready);
    outbox.store().settle(&[super::support::acked(&elsewhere[0])]).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    becomes(outbox.store(), waiting.waits[0], State::Done).await;
}
