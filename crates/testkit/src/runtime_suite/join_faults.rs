//! What stands between the end of a join and its continuation: no interval of polling, no crash, no lost word.
//!
//! Times are only asserted where the next regular poll is a minute away. A machine that is busy with other things may take as
//! long for once, so a case has three tries.

use std::time::Duration;

use posthaste_core::{
    Enqueued, JoinStatus, JoinStore, JoinWait, NewJoin, Outbox, Schedule, State, Store as _, StoreAdmin,
};
use tokio::time::Instant;

use super::Scene;
use super::support::{
    Gate, HOUR, Journal, MINUTE, acked, becomes, claim_elsewhere, done, draft, drafts, eventually, ms,
    outbox, run, settings, start_join, state,
};
use crate::{Counting, Fixture};

/// Long for a busy machine, and less than the pause after a wake-up that came too early: an eighth of the interval, less a
/// quarter by chance, which are 5.6 s.
const SOON: Duration = Duration::from_secs(5);

/// Asserts that something ends soon in one of three tries: a real delay would occur each time.
async fn soon(attempt: impl AsyncFn(usize) -> Duration) {
    let mut took = Vec::new();
    for n in 0..3 {
        took.push(attempt(n).await);
        if took[n] < SOON {
            return;
        }
    }
    panic!("{took:?}");
}

/// An outbox that polls once a minute, if nothing wakes it before, checks joins once a month, and handles everything but
/// steps.
async fn seldom<S: JoinStore>(store: S, journal: &std::sync::Arc<Journal>) -> Outbox<S> {
    let builder = outbox(store, settings()).poll(MINUTE, MINUTE).join_check(30 * 24 * HOUR);
    builder.on_topic("next", journal.noting("next")).build().await.unwrap()
}

fn joined(steps: usize) -> posthaste_core::JoinBuilder {
    NewJoin::of(drafts("t", steps)).wait(JoinWait::on_complete(draft("next")))
}

/// JOIN-055, HOT-003: the last ack leads to the wait's claim, and that to the continuation's, at once: three polls in
/// all, none of them a regular one.
pub async fn the_end_of_a_join_is_heard<F: Fixture>(scene: &Scene<F>) {
    soon(async |n| end_of_a_join(scene, 5 * (n + 1)).await).await;
}

async fn end_of_a_join<F: Fixture>(scene: &Scene<F>, all_done: usize) -> Duration {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).poll(MINUTE, MINUTE).join_check(30 * 24 * HOUR);
    let builder = builder.on_topic("t", journal.gated("t", &gate)).on_topic("next", journal.noting("next"));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() == 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let started = tx.start_join(joined(3)).await.unwrap();
    tx.commit().await.unwrap();
    eventually("the steps are being handled", async || journal.running() == 3).await;
    let begin = Instant::now();
    gate.open();
    done(store.inner(), all_done).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!(journal.calls().last().unwrap().handler, "next");
    assert_eq!((store.calls("look"), store.calls("continue_join")), (1, 1));
    assert!(store.calls("claim") <= 4, "{:?}", store.all());
    assert_eq!(state(store.inner(), started.waits[0]).await, Some(State::Done));
    took
}

/// JOIN-053, JOIN-060: a wait that checked just before the join ended, elsewhere and without a notification, is not put off
/// for a month: it is claimed again as soon as it is deferred.
pub async fn a_wait_that_had_just_looked<F: Fixture>(scene: &Scene<F>) {
    soon(async |n| looked_too_early(scene, 3 * (n + 1)).await).await;
}

async fn looked_too_early<F: Fixture>(scene: &Scene<F>, all_done: usize) -> Duration {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = seldom(store.clone(), &journal).await;
    start_join(scene, &outbox, joined(1)).await;
    let step = claim_elsewhere(store.inner(), 1, HOUR).await;
    // The wait is due when the outbox begins.
    scene.fixture.advance(31 * 24 * HOUR).await;
    store.hold("look");
    let running = run(&outbox);
    eventually("it has looked", async || store.calls("look") == 1).await;
    store.inner().settle(&[acked(&step[0])]).await.unwrap();
    let begin = Instant::now();
    store.let_go("look");
    done(store.inner(), all_done).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!((journal.count(), store.calls("look")), (1, 2));
    took
}

/// JOIN-055, JOIN-060: nor is the end of a join missed that is notified while a claim is under way that started too
/// early to see it.
pub async fn a_claim_that_came_too_early<F: Fixture>(scene: &Scene<F>) {
    soon(async |n| claimed_too_early(scene, 3 * (n + 1)).await).await;
}

async fn claimed_too_early<F: Fixture>(scene: &Scene<F>, all_done: usize) -> Duration {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = seldom(store.clone(), &journal).await;
    start_join(scene, &outbox, joined(1)).await;
    let step = claim_elsewhere(store.inner(), 1, HOUR).await;
    store.hold("claim");
    let running = run(&outbox);
    eventually("it has looked", async || store.calls("claim") == 1).await;
    let begin = Instant::now();
    outbox.ack(&[step[0].lease()]).await.unwrap();
    // Long enough for the word to be heard before the claim is answered: heard afterwards, it would show nothing.
    tokio::time::sleep(ms(50)).await;
    store.let_go("claim");
    done(store.inner(), all_done).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!(journal.count(), 1);
    took
}

/// A wait that was handled, and could not be settled before its process died; then it is handled again by another.
async fn crash_before_the_ack<F: Fixture>(scene: &Scene<F>, inner: F::Store) -> (Counting<F::Store>, usize) {
    let (journal, store) = (Journal::new(), Counting::new(inner));
    let mut reaping = settings();
    reaping.reap = Schedule::every(ms(50));
    // The one that dies handles waits, but not their continuations.
    let dying = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let other =
        outbox(store.clone(), reaping).on_topic("next", journal.noting("next")).build().await.unwrap();
    let started = start_join(scene, &dying, joined(1)).await;
    let step = claim_elsewhere(store.inner(), 1, HOUR).await;
    store.inner().settle(&[acked(&step[0])]).await.unwrap();
    store.fail("settle", u64::MAX);
    let running = run(&dying);
    eventually("it was tried to settle", async || store.calls("settle") >= 1).await;
    running.shutdown.now();
    running.ended().await.unwrap();
    assert_eq!(store.calls("continue_join"), 1);
    assert_eq!(state(store.inner(), started.waits[0]).await, Some(State::Leased));
    store.fail("settle", 0);
    // The continuation has ended, and is perhaps gone, before the wait comes again.
    for next in claim_elsewhere(store.inner(), 1, HOUR).await {
        assert_eq!(next.topic.as_str(), "next");
        drop(journal.enter("elsewhere", &next));
        store.inner().settle(&[acked(&next)]).await.unwrap();
    }
    scene.fixture.advance(MINUTE).await;
    let running = run(&other);
    eventually("it was handled again", async || store.calls("continue_join") == 2).await;
    let over = async || {
        let stats = store.inner().stats().await.unwrap();
        stats.ready.value + stats.scheduled.value + stats.leased.value == 0
    };
    eventually("nothing is left", over).await;
    running.stop().await;
    assert_eq!(store.inner().join(started.id).await.unwrap().unwrap().status, JoinStatus::Completed);
    (store, journal.count())
}

/// JOIN-056: a crash after the continuation was stored, and before the wait was acked, makes no second continuation.
pub async fn a_crash_before_the_ack<F: Fixture>(scene: &Scene<F>) {
    let (store, continuations) = crash_before_the_ack(scene, scene.store()).await;
    assert_eq!(continuations, 1);
    done(store.inner(), 3).await;
    let again: Vec<_> = scene
        .logs
        .events("the wait for a join is over")
        .iter()
        .map(|event| event.field("repeated").to_owned())
        .collect();
    assert_eq!(again, ["false", "true"]);
}

/// JOIN-056, RMQ-011: nor does it where done messages are deleted, and the first continuation's row with them.
pub async fn a_crash_where_nothing_is_kept<F: Fixture>(scene: &Scene<F>) {
    let (store, continuations) = crash_before_the_ack(scene, scene.fixture.store_that_deletes()).await;
    assert_eq!(continuations, 1);
    assert_eq!(store.inner().stats().await.unwrap().done.value, 0);
}

/// JOIN-032, JOIN-056: settlements that fail are repeated, and neither steps nor waits count twice for it.
pub async fn settling_fails_for_a_while<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox =
        outbox(store.clone(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    store.fail("settle", 2);
    let started = start_join(scene, &outbox, joined(4)).await;
    let running = run(&outbox);
    eventually("the steps were handled", async || journal.count() >= 4).await;
    eventually("settling has failed", async || store.calls("settle") >= 2).await;
    eventually("the join is over", async || store.calls("look") >= 1).await;
    store.fail("settle", 2);
    done(store.inner(), 6).await;
    running.stop().await;
    let join = store.inner().join(started.id).await.unwrap().unwrap();
    assert_eq!((join.status, join.completed_steps), (JoinStatus::Completed, 4));
    assert_eq!((journal.count(), store.calls("continue_join")), (5, 1));
}

/// JOIN-060, JOIN-061, JOIN-080, JOIN-081, OBX-096: many joins at a time over the same steps, handled by two processes: each continues once.
pub async fn many_joins_over_the_same_steps<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let build = async || outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await;
    let (one, two) = (build().await.unwrap(), build().await.unwrap());
    let steps = drafts("t", 10);
    let mut joins = Vec::new();
    for _ in 0..10 {
        // From the second on they are duplicates, and the stored ones are attached.
        let join = NewJoin::of(&steps).wait(JoinWait::on_complete(draft("next")));
        joins.push(start_join(scene, &one, join).await);
    }
    assert!(joins[9].steps.iter().all(|step| matches!(step, Enqueued::Duplicate { .. })));
    let (first, second) = (run(&one), run(&two));
    done(one.store(), 10 + 10 + 10).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(journal.count(), 10 + 10);
    for started in joins {
        let join = one.store().join(started.id).await.unwrap().unwrap();
        assert_eq!((join.status, join.completed_steps), (JoinStatus::Completed, 10));
        becomes(one.store(), started.waits[0], State::Done).await;
    }
    assert_eq!(scene.meters.counter("posthaste_joins_ended_total", &[("status", "completed")]), 10);
}
