//! How joins end besides by acks: deadlines, cancelling, crash suspects, expired messages, operators; and
//! housekeeping of joins.
//!
//! Time is the store's: a case puts it forward, and never waits for it.

use std::time::Duration;

use posthaste_core::{
    Change, Filter, HandlerError, HandlerResult, JoinBuilder, JoinId, JoinStatus, JoinWait, MAX_LEASE_LOSSES,
    Message, MessageId, NewJoin, Outbox, Schedule, StartedJoin, State, StepStatus, Store as _, StoreAdmin,
};

use super::Scene;
use super::support::{
    Gate, HOUR, Journal, MINUTE, acked, becomes, claim_elsewhere, done, draft, drafts, eventually, ms,
    outbox, record, run, settings, start_join, state,
};
use crate::{Counting, Fixture};

/// A join of these steps, and word of its end.
fn told(join: JoinBuilder) -> JoinBuilder {
    join.wait(JoinWait::on_complete(draft("done")).on_fail(draft("failed")))
}

async fn status<S: StoreAdmin>(store: &S, id: JoinId) -> JoinStatus {
    store.join(id).await.unwrap().unwrap().status
}

/// An outbox that handles continuations, and no steps.
async fn listening<F: Fixture>(scene: &Scene<F>, journal: &std::sync::Arc<Journal>) -> Outbox<F::Store> {
    let builder = outbox(scene.store(), settings()).on_topic("done", journal.noting("done"));
    builder.on_topic("failed", journal.noting("failed")).build().await.unwrap()
}

fn handlers(journal: &Journal) -> Vec<&'static str> {
    journal.calls().iter().map(|call| call.handler).collect()
}

/// JOIN-054, OBX-094: a join whose deadline has passed sends the failure, even where failed steps do not matter; without one
/// nothing is sent. Steps that end later change nothing.
pub async fn a_deadline_passes<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = listening(scene, &journal).await;
    let store = outbox.store();
    let strict = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 1))).expires_after(HOUR)).await;
    let tolerant =
        JoinWait::on_complete(draft("done")).on_fail(draft("failed")).fail_if_any_step_failed(false);
    let tolerant = NewJoin::of(drafts("t", 1)).expires_after(HOUR).wait(tolerant);
    let tolerant = start_join(scene, &outbox, tolerant).await;
    let silent = NewJoin::of(drafts("t", 1)).expires_at(scene.fixture.now().await + HOUR);
    let silent = start_join(scene, &outbox, silent.wait(JoinWait::on_complete(draft("done")))).await;
    let steps = claim_elsewhere(store, 3, 2 * HOUR).await;
    scene.fixture.advance(HOUR - MINUTE).await;
    assert_eq!(outbox.drain().await.unwrap().deferred, 3, "the deadline has not passed");
    scene.fixture.advance(2 * MINUTE).await;
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.delivered, tally.deferred), (3 + 2, 0));
    assert_eq!(handlers(&journal), ["failed", "failed"]);
    for started in [&strict, &tolerant, &silent] {
        assert_eq!(status(store, started.id).await, JoinStatus::Expired);
        assert_eq!(state(store, started.waits[0]).await, Some(State::Done));
    }
    store.settle(&steps.iter().map(acked).collect::<Vec<_>>()).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 0);
    let late = store.steps(strict.id, None, 10).await.unwrap().steps;
    assert_eq!(late[0].status, StepStatus::LateCompleted);
    assert_eq!(status(store, strict.id).await, JoinStatus::Expired);
}

/// JOIN-042: a deadline does not change a join that has ended before.
pub async fn in_time_for_the_deadline<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = listening(scene, &journal).await;
    let started = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 1))).expires_after(HOUR)).await;
    let steps = claim_elsewhere(outbox.store(), 1, HOUR).await;
    outbox.ack(&[steps[0].lease()]).await.unwrap();
    scene.fixture.advance(2 * HOUR).await;
    assert!(outbox.expire(10).await.unwrap().joins.is_empty());
    assert_eq!(outbox.drain().await.unwrap().delivered, 2);
    assert_eq!(handlers(&journal), ["done"]);
    assert_eq!(status(outbox.store(), started.id).await, JoinStatus::Completed);
}

/// A cancelled join sends nothing, and what waited for it is done, at once.
pub async fn cancelled_sends_nothing<F: Fixture>(scene: &Scene<F>) {
    let (journal, fixture) = (Journal::new(), &scene.fixture);
    let outbox = listening(scene, &journal).await;
    let started = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 1)))).await;
    let running = run(&outbox);
    for (commits, expected) in [(false, JoinStatus::Pending), (true, JoinStatus::Cancelled)] {
        let mut tx = fixture.begin().await;
        assert!(outbox.cancel_join(fixture.connection(&mut tx), started.id).await.unwrap());
        if commits {
            assert!(!outbox.cancel_join(fixture.connection(&mut tx), started.id).await.unwrap());
            fixture.commit(tx).await;
        } else {
            fixture.rollback(tx).await;
        }
        assert_eq!(status(outbox.store(), started.id).await, expected);
    }
    becomes(outbox.store(), started.waits[0], State::Done).await;
    running.stop().await;
    assert_eq!(journal.count(), 0);
    assert_eq!(
        state(outbox.store(), started.steps[0].id()).await,
        Some(State::Ready),
        "steps are not its own"
    );
}

/// JOIN-031: a step that has lost too many leases has failed, and its join goes on, without any handler's word.
pub async fn a_crash_suspect_ends_it<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut reaping = settings();
    (reaping.reap, reaping.join_check) = (Schedule::every(ms(50)), 24 * HOUR);
    let outbox = outbox(scene.store(), reaping).on_topic("failed", journal.noting("failed")).build().await;
    let outbox = outbox.unwrap();
    let started = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 1)))).await;
    for _ in 1..MAX_LEASE_LOSSES {
        assert_eq!(claim_elsewhere(outbox.store(), 1, ms(100)).await.len(), 1);
        scene.fixture.advance(MINUTE / 2).await;
        assert_eq!(outbox.reap(10).await.unwrap().ready, 1);
    }
    assert_eq!(claim_elsewhere(outbox.store(), 1, ms(100)).await.len(), 1);
    scene.fixture.advance(MINUTE).await;
    let running = run(&outbox);
    becomes(outbox.store(), started.waits[0], State::Done).await;
    eventually("the failure was told", async || journal.count() == 1).await;
    running.stop().await;
    assert_eq!(status(outbox.store(), started.id).await, JoinStatus::Failed);
    assert_eq!(scene.meters.counter("posthaste_joins_ended_total", &[("status", "failed")]), 1);
}

/// JOIN-031: a step that no worker claimed before its expiry has failed.
pub async fn an_expired_step_ends_it<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut expiring = settings();
    expiring.expire = Schedule::every(ms(50));
    let outbox = outbox(scene.store(), expiring).on_topic("failed", journal.noting("failed")).build().await;
    let outbox = outbox.unwrap();
    let started = start_join(scene, &outbox, told(NewJoin::of([draft("t").expires_after(MINUTE)]))).await;
    scene.fixture.advance(HOUR).await;
    let running = run(&outbox);
    becomes(outbox.store(), started.waits[0], State::Done).await;
    eventually("the failure was told", async || journal.count() == 1).await;
    running.stop().await;
    assert_eq!(status(outbox.store(), started.id).await, JoinStatus::Failed);
}

fn of(id: MessageId) -> Change {
    Change::new(Filter { ids: vec![id], ..Filter::default() }, "ada", "to see what happens").unwrap()
}

/// JOIN-031: a step that an operator buries has failed.
pub async fn a_buried_step_ends_it<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = listening(scene, &journal).await;
    let started = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 2)))).await;
    let running = run(&outbox);
    for step in &started.steps {
        assert_eq!(outbox.store().bury(&of(step.id())).await.unwrap(), [step.id()]);
    }
    becomes(outbox.store(), started.waits[0], State::Done).await;
    eventually("the failure was told", async || journal.count() == 1).await;
    running.stop().await;
    let join = outbox.store().join(started.id).await.unwrap().unwrap();
    assert_eq!((join.status, join.failed_steps), (JoinStatus::Failed, 2));
    assert_eq!(handlers(&journal), ["failed"]);
}

/// JOIN-023, JOIN-042: a dead step that is requeued while the others are under way repairs the join; afterwards it is late.
pub async fn requeued_in_time<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let cured = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let cure = cured.clone();
    let sick = move |_: Message| {
        let well = cure.load(std::sync::atomic::Ordering::Acquire);
        async move { if well { HandlerResult::Ok(()) } else { Err(HandlerError::dead("sick")) } }
    };
    let outbox = outbox(scene.store(), settings())
        .on_topic("sick", sick)
        .on_topic("slow", journal.gated("slow", &gate))
        .on_topic("done", journal.noting("done"))
        .on_topic("failed", journal.noting("failed"))
        .build()
        .await
        .unwrap();
    let store = outbox.store();
    let running = run(&outbox);
    let repaired = start_join(scene, &outbox, told(NewJoin::of(["sick", "slow"].map(draft)))).await;
    let sick = repaired.steps[0].id();
    becomes(store, sick, State::Dead).await;
    assert_eq!(store.join(repaired.id).await.unwrap().unwrap().failed_steps, 1);
    cured.store(true, std::sync::atomic::Ordering::Release);
    assert_eq!(store.requeue(&of(sick)).await.unwrap(), [sick]);
    becomes(store, sick, State::Done).await;
    gate.open();
    becomes(store, repaired.waits[0], State::Done).await;
    eventually("the end was told", async || journal.count() == 2).await;

    cured.store(false, std::sync::atomic::Ordering::Release);
    let too_late = start_join(scene, &outbox, told(NewJoin::of(["sick"].map(draft)))).await;
    becomes(store, too_late.waits[0], State::Done).await;
    cured.store(true, std::sync::atomic::Ordering::Release);
    let sick = too_late.steps[0].id();
    assert_eq!(store.requeue(&of(sick)).await.unwrap(), [sick]);
    becomes(store, sick, State::Done).await;
    eventually("the failure was told", async || journal.count() == 3).await;
    running.stop().await;
    assert_eq!(handlers(&journal), ["slow", "done", "failed"]);
    assert_eq!(status(store, repaired.id).await, JoinStatus::Completed);
    assert_eq!(status(store, too_late.id).await, JoinStatus::Failed);
}

/// The prune job removes joins that have been over for long enough, and no others; steps of a pending one are kept.
pub async fn old_joins_are_pruned<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut pruning = settings();
    (pruning.prune, pruning.keep_done_for, pruning.keep_joins_for) =
        (Schedule::every(ms(50)), MINUTE, 24 * HOUR);
    let outbox = outbox(scene.store(), pruning).on_topic("*", journal.noting("all")).build().await.unwrap();
    let over = start_join(scene, &outbox, told(NewJoin::of(drafts("t", 1)))).await;
    let pending = start_join(scene, &outbox, told(NewJoin::expecting(2).steps(drafts("t", 1)))).await;
    outbox.drain().await.unwrap();
    scene.fixture.advance(2 * HOUR).await;
    let running = run(&outbox);
    let store = outbox.store();
    let step = |started: &StartedJoin| started.steps[0].id();
    eventually("done messages are pruned", async || state(store, step(&over)).await.is_none()).await;
    assert_eq!(status(store, over.id).await, JoinStatus::Completed);
    assert_eq!(state(store, step(&pending)).await, Some(State::Done));
    scene.fixture.advance(24 * HOUR).await;
    eventually("the join is pruned", async || store.join(over.id).await.unwrap().is_none()).await;
    let told =
        async || !scene.logs.events("housekeeping").iter().all(|event| event.field("joins").is_empty());
    eventually("it is told", told).await;
    running.stop().await;
    assert!(store.steps(over.id, None, 10).await.unwrap().steps.is_empty());
    assert_eq!(status(store, pending.id).await, JoinStatus::Pending);
    assert_eq!(state(store, step(&pending)).await, Some(State::Done));
    assert_eq!(record(store, pending.waits[0]).await.state, State::Ready);
}

/// The expire job ends joins whose deadline has passed, although nothing waits for them.
pub async fn joins_expire_by_themselves<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut expiring = settings();
    expiring.expire = Schedule::every(ms(50));
    let outbox = outbox(store.clone(), expiring).on_topic("t", journal.noting("t")).build().await.unwrap();
    let join = |after: Duration| NewJoin::expecting(1).expires_after(after);
    let short = start_join(scene, &outbox, join(HOUR)).await.id;
    let long = start_join(scene, &outbox, join(24 * HOUR)).await.id;
    scene.fixture.advance(2 * HOUR).await;
    let running = run(&outbox);
    eventually("it has expired", async || status(store.inner(), short).await == JoinStatus::Expired).await;
    let counted = async || scene.meters.counter("posthaste_joins_ended_total", &[("status", "expired")]) == 1;
    eventually("it is counted", counted).await;
    running.stop().await;
    assert_eq!(status(store.inner(), long).await, JoinStatus::Pending);
    let ended = scene.logs.events("join ended");
    assert_eq!((ended.len(), ended[0].field("join_id")), (1, &*short.to_string()));
    assert_eq!(store.calls("look"), 0);
    done(store.inner(), 0).await;
}
