//! The hot path: messages that go from their commit to their handler without a claim.
//!
//! A message that was not committed must never arrive, however it was rolled back.

use posthaste_core::{Outbox, Shutdown, State, Store as _, StoreAdmin as _, Transactions};

use super::Scene;
use super::support::{
    Gate, HOUR, Journal, MINUTE, becomes, claim_elsewhere, draft, drafts, eventually, hot_only, ms, outbox,
    record, records, run, settings, state,
};
use crate::{Counting, Fixture};

/// Waits until the cold path has polled once.
async fn has_looked<S: Transactions>(store: &Counting<S>) {
    eventually("the cold path has looked", async || store.answered_claims() == 1).await;
}

/// HOT-002, 18.1: a transaction that is rolled back, or dropped, leaves no row and delivers nothing.
pub async fn rolled_back_is_never_delivered<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox runs", async || is_hot(&outbox).await).await;

    let mut tx = outbox.begin().await.unwrap();
    tx.publish(draft("t")).await.unwrap();
    tx.rollback().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 3)).await.unwrap();
    drop(tx);
    let mut tx = outbox.begin().await.unwrap();
    let last = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();

    becomes(outbox.store(), last, State::Done).await;
    running.stop().await;
    assert_eq!(journal.ids(), [last]);
    assert_eq!(records(outbox.store()).await.len(), 1);
}

/// Whether a message that is published now would take the hot path.
async fn is_hot<S: Transactions>(outbox: &Outbox<S>) -> bool {
    let mut tx = outbox.begin().await.unwrap();
    let enqueued = tx.publish(draft("t")).await.unwrap();
    tx.rollback().await.unwrap();
    matches!(enqueued, posthaste_core::Enqueued::New { lease: Some(_), .. })
}

/// HOT-002: a savepoint that the user rolls back by a statement removes the messages published since, and only those.
pub async fn a_savepoint_rolled_back<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;

    let fixture = &scene.fixture;
    let mut lost = Vec::new();
    let mut kept = Vec::new();
    for publish_afterwards in [true, false] {
        let mut tx = outbox.begin().await.unwrap();
        kept.push(tx.publish(draft("t")).await.unwrap().id());
        fixture.savepoint(&mut tx).await;
        lost.push(tx.publish(draft("t")).await.unwrap().id());
        lost.extend(tx.publish_all(drafts("t", 2)).await.unwrap().iter().map(|one| one.id()));
        fixture.rollback_to_savepoint(&mut tx).await;
        if publish_afterwards {
            kept.push(tx.publish(draft("t")).await.unwrap().id());
        }
        tx.commit().await.unwrap();
    }
    for id in &kept {
        becomes(outbox.store(), *id, State::Done).await;
    }
    running.stop().await;
    let mut delivered = journal.ids();
    delivered.sort_unstable();
    kept.sort_unstable();
    assert_eq!(delivered, kept);
    for id in lost {
        assert_eq!(state(outbox.store(), id).await, None);
    }
}

/// HOT-003, 18.2: after the commit the handler runs from memory, without any poll, and the message is done.
pub async fn delivered_from_memory<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;

    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    assert_eq!(journal.count(), 0, "nothing happens before the commit");
    tx.commit().await.unwrap();
    becomes(&store, id, State::Done).await;

    assert_eq!(store.calls("claim"), 1, "nobody looked for it");
    assert_eq!(record(&store, id).await.done_by.as_ref(), Some(outbox.worker()));
    assert_eq!(scene.meters.counter("posthaste_hot_enqueued_total", &[]), 1);
    running.stop().await;
    assert_eq!(journal.ids(), [id]);
}

/// HOT-003: so does one in a transaction that the user opened.
pub async fn enlisted_transactions_are_hot<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;
    let mut tx = outbox.enlist(store.inner().begin().await.unwrap());
    let id = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    becomes(&store, id, State::Done).await;
    assert_eq!(store.calls("claim"), 1);
    running.stop().await;
}

/// HOT-004, HOT-017, 18.3: with a full queue publishing succeeds, the row is ready, a warning and a metric tell, and the
/// cold path delivers it.
pub async fn a_full_queue_downgrades<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), hot_only()).workers(1).hot_capacity(1);
    let full = builder.on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&full);
    has_looked(&store).await;
    let publish = async || {
        let mut tx = full.begin().await.unwrap();
        let enqueued = tx.publish(draft("t")).await.unwrap();
        tx.commit().await.unwrap();
        enqueued.id()
    };
    let first = publish().await;
    eventually("the first is being handled", async || journal.running() == 1).await;
    let second = publish().await;
    let third = publish().await;
    assert_eq!(state(&store, second).await, Some(State::Leased));
    assert_eq!(state(&store, third).await, Some(State::Ready));
    assert_eq!(scene.meters.counter("posthaste_hot_downgraded_total", &[]), 1);
    let warnings = scene.logs.events("the hot queue is full: a message is left to the cold path");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].level, tracing::Level::WARN);
    assert_eq!((warnings[0].field("message_id"), warnings[0].field("topic")), (&*third.to_string(), "t"));

    // "Start poller": another process finds it.
    let cold = outbox(scene.store(), settings()).on_topic("t", journal.noting("cold")).build().await.unwrap();
    let cold_running = run(&cold);
    becomes(&store, third, State::Done).await;
    assert_eq!(journal.handlers_of(third), ["cold"]);
    gate.open();
    becomes(&store, first, State::Done).await;
    becomes(&store, second, State::Done).await;
    running.stop().await;
    cold_running.stop().await;
    assert_eq!(journal.count(), 3);
}

/// HOT-004, HOT-013, R17: the queue is full of bytes, too, be they payload or headers.
pub async fn a_queue_full_of_bytes<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut settings = hot_only();
    (settings.workers, settings.hot_bytes) = (1, 1_000);
    let outbox =
        outbox(store.clone(), settings).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;
    let publish = async |bytes: usize| {
        let mut tx = outbox.begin().await.unwrap();
        let message = posthaste_core::NewMessage::bytes("t", "").header("h", "x".repeat(bytes - 1));
        let enqueued = tx.publish(message).await.unwrap();
        tx.commit().await.unwrap();
        enqueued.id()
    };
    publish(1).await;
    eventually("the first is being handled", async || journal.running() == 1).await;
    let fits = publish(900).await;
    let too_much = publish(200).await;
    let fits_too = publish(100).await;
    let too_large = publish(1_001).await;
    for (id, expected) in [
        (fits, State::Leased),
        (too_much, State::Ready),
        (fits_too, State::Leased),
        (too_large, State::Ready),
    ] {
        assert_eq!(state(&store, id).await, Some(expected));
    }
    assert_eq!(scene.meters.counter("posthaste_hot_downgraded_total", &[]), 2);
    gate.open();
    becomes(&store, fits_too, State::Done).await;
    running.stop().await;
}

/// HOT-004, HOT-017: without a hot path there is nothing to warn about.
pub async fn the_hot_path_switched_off<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let builder = outbox(scene.store(), settings()).hot_capacity(0).on_topic("t", journal.noting("t"));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(scene.meters.counter("posthaste_hot_downgraded_total", &[]), 0);
    assert_eq!(scene.logs.at(tracing::Level::WARN).len(), 0);
}

/// HOT-003: while no outbox runs, messages are stored ready, and an outbox that runs later delivers them.
pub async fn nobody_runs_yet<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    assert_eq!(state(outbox.store(), id).await, Some(State::Ready));
    let running = run(&outbox);
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.ids(), [id]);
}

/// HOT-003, HOT-019: a commit after the outbox has stopped gives its messages back at once, uncharged.
pub async fn committed_too_late<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    // No poll is under way while the transaction is open: a database with one writer would keep it waiting.
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    running.stop().await;
    tx.commit().await.unwrap();
    let record = record(outbox.store(), id).await;
    assert_eq!((record.state, record.message.attempts, record.message.lease_losses), (State::Ready, 0, 0));
    assert_eq!(journal.count(), 0);
    let claimed = claim_elsewhere(outbox.store(), 10, MINUTE).await;
    assert_eq!(claimed.len(), 1);
}

/// HOT-003, OBX-054: messages that a claim must decide about, or without a handler here, are stored ready.
pub async fn only_what_can_start_is_hot<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;
    let mut tx = outbox.begin().await.unwrap();
    let batch = [
        draft("t").key("k"),
        draft("t").delay(HOUR),
        draft("t").expires_after(HOUR),
        draft("nobody"),
        draft("t"),
    ];
    let enqueued = tx.publish_all(batch).await.unwrap();
    tx.commit().await.unwrap();
    let hot = enqueued[4].id();
    becomes(&store, hot, State::Done).await;
    for one in &enqueued[..4] {
        assert_eq!(state(&store, one.id()).await, Some(State::Ready));
    }
    assert_eq!(journal.ids(), [hot]);
    running.stop().await;
}

/// HOT-003, HOT-010: a message that is stored already is neither stored nor delivered again.
pub async fn duplicates_are_delivered_once<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    has_looked(&store).await;
    let message = draft("t").dedup_key("once").build().unwrap();
    for _ in 0..2 {
        let mut tx = outbox.begin().await.unwrap();
        tx.publish(&message).await.unwrap();
        tx.publish(draft("t").dedup_key("once")).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut tx = outbox.begin().await.unwrap();
    let last = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    becomes(&store, last, State::Done).await;
    becomes(&store, message.id(), State::Done).await;
    running.stop().await;
    assert_eq!(journal.count(), 2);
    assert!(journal.has(message.id()) && journal.has(last));
}

/// HOT-003, I15: messages in memory when the process dies are delivered again when their lease has run out.
pub async fn a_crash_leaves_the_lease<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let builder = outbox(scene.store(), settings()).workers(1).on_topic("t", journal.gated("t", &gate));
    let crashing = builder.build().await.unwrap();
    let running = run(&crashing);
    eventually("the outbox runs", async || is_hot(&crashing).await).await;
    let mut tx = crashing.begin().await.unwrap();
    let ids: Vec<_> = tx.publish_all(drafts("t", 3)).await.unwrap().iter().map(|one| one.id()).collect();
    tx.commit().await.unwrap();
    eventually("one is being handled", async || journal.running() == 1).await;
    running.shutdown.now();
    running.ended().await.unwrap();
    eventually("its handler is gone", async || journal.running() == 0).await;
    for id in &ids {
        assert_eq!(state(&scene.store(), *id).await, Some(State::Leased));
    }

    let mut settings = settings();
    settings.reap = posthaste_core::Schedule::every(ms(50));
    let next = outbox(scene.store(), settings).on_topic("t", journal.noting("next")).build().await.unwrap();
    let running = run(&next);
    scene.fixture.advance(HOUR).await;
    for id in &ids {
        becomes(next.store(), *id, State::Done).await;
        assert_eq!(journal.handlers_of(*id).iter().filter(|name| **name == "next").count(), 1);
        let record = record(next.store(), *id).await;
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 1));
    }
    running.stop().await;
    let _ = next.store().stats().await.unwrap();
}

/// HOT-001: an outbox that has ended can run again, and an outbox runs once at a time.
pub async fn one_run_at_a_time<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox runs", async || is_hot(&outbox).await).await;
    let refused = outbox.run(Shutdown::new()).await.unwrap_err();
    assert!(refused.to_string().contains("runs already"), "{refused}");
    assert!(outbox.drain().await.is_err());
    running.stop().await;
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    outbox.store().check().await.unwrap();
}

/// R13: a commit whose future is dropped leaves nothing leased behind: the message was rolled back, or is delivered soon.
pub async fn a_dropped_commit_strands_nothing<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut settings = settings();
    settings.lease = HOUR;
    let outbox = outbox(scene.store(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    for _ in 0..5 {
        let mut tx = outbox.begin().await.unwrap();
        let id = tx.publish(draft("t")).await.unwrap().id();
        let mut commit = Box::pin(tx.commit());
        std::future::poll_fn(|context| {
            let _ = commit.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        drop(commit);
        // Longer than a commit takes that was sent and not waited for.
        tokio::time::sleep(ms(50)).await;
        let is_over = async || matches!(state(outbox.store(), id).await, None | Some(State::Done));
        eventually("it is delivered, or was never there", is_over).await;
    }
    running.stop().await;
}
