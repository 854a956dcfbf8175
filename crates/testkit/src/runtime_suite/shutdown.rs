//! How an outbox stops: handlers finish, their outcomes are settled, the rest is given back, and it ends in time.
//!
//! Afterwards nothing may be leased, and no message may have been charged for the stop.

use posthaste_core::{
    Cancellation, HandlerError, HandlerResult, Message, Schedule, Shutdown, State, StoreAdmin,
};
use tokio::time::Instant;

use super::Scene;
use super::support::{
    Blocker, Gate, HOUR, Journal, becomes, draft, drafts, eventually, ms, outbox, record, records, run,
    settings, state,
};
use crate::{Counting, Fixture};

/// How long a stop may take beyond its grace, on a machine that is slow and busy with other things. The handlers of these cases
/// never end by themselves, and the grace is either much shorter or, as in [`settings`], much longer.
const SLACK: std::time::Duration = ms(60_000);

/// A grace that handlers outlast; half of it is enough to give their messages back on a slow machine.
pub(super) const GRACE: std::time::Duration = ms(4_000);

/// Asserts that nothing is leased, and that no remaining message was charged.
async fn assert_all_given_back<S: StoreAdmin>(store: &S) {
    for record in records(store).await {
        assert_ne!(record.state, State::Leased, "{record:?}");
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0), "{record:?}");
    }
}

/// HOT-019, I15: handlers finish and their messages are settled; what waits in memory is given back, uncharged.
pub async fn handlers_finish<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).workers(2).on_topic("t", journal.gated("t", &gate));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 10)).await.unwrap();
    tx.commit().await.unwrap();
    outbox.enqueue_all(drafts("t", 10)).await.unwrap();
    eventually("two are being handled", async || journal.running() == 2).await;
    assert!(store.stats().await.unwrap().leased.value >= 10);
    running.shutdown.begin();
    let given_back = async || store.inner().stats().await.unwrap().leased.value == 2;
    eventually("what waited was given back", given_back).await;
    let claims = store.calls("claim");
    // Publishing while it stops does not wait, and nothing new begins.
    let late = outbox.enqueue(draft("t")).await.unwrap().id();
    let mut tx = outbox.begin().await.unwrap();
    let later = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    gate.open();
    running.ended().await.unwrap();
    assert_eq!((journal.count(), store.calls("claim")), (2, claims));
    assert_eq!(store.stats().await.unwrap().done.value, 2);
    for id in [late, later] {
        assert_eq!(state(&store, id).await, Some(State::Ready));
    }
    assert_all_given_back(&store).await;
    assert_eq!(scene.meters.counter("posthaste_failed_total", &[]), 0);
}

/// HOT-019, F-10: a handler that does not finish within the grace is asked to stop, then dropped; its message is
/// given back.
pub async fn the_deaf_do_not_hold_it_up<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let noting = journal.clone();
    let polite = move |message: Message, cancellation: Cancellation| {
        let stay = noting.enter("polite", &message);
        async move {
            let _stay = stay;
            cancellation.cancelled().await;
            HandlerResult::Err(HandlerError::from("told to stop"))
        }
    };
    let mut quick = settings();
    quick.shutdown_grace = GRACE;
    let outbox = outbox(scene.store(), quick)
        .on_topic("deaf", journal.gated("deaf", &gate))
        .on_topic("polite", polite)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    outbox.enqueue_all([draft("deaf"), draft("polite")]).await.unwrap();
    eventually("both are being handled", async || journal.running() == 2).await;
    let begin = Instant::now();
    running.stop().await;
    let took = begin.elapsed();
    assert!(took >= GRACE / 2 && took <= GRACE + SLACK, "{took:?}");
    assert_eq!(journal.running(), 0);
    assert_all_given_back(outbox.store()).await;
}

/// HOT-019, F-11: nor does one that blocks its thread.
pub async fn a_blocked_thread_does_not_hold_it_up<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let blocker = Blocker::new();
    let block = blocker.block();
    let handler = journal.handler("t", move |_| {
        let block = block.clone();
        async move {
            block();
            Ok(())
        }
    });
    let mut quick = settings();
    quick.shutdown_grace = GRACE;
    let outbox = outbox(scene.store(), quick).on_topic("t", handler).build().await.unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    let begin = Instant::now();
    running.stop().await;
    assert!(begin.elapsed() <= GRACE + SLACK, "{:?}", begin.elapsed());
    drop(blocker);
    let record = record(outbox.store(), id).await;
    assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
}

/// HOT-019, O3: said twice, it ends at once; leases stay until they run out.
pub async fn twice_is_at_once<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let outbox =
        outbox(scene.store(), settings()).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    running.shutdown.begin();
    running.shutdown.begin();
    let begin = Instant::now();
    running.ended().await.unwrap();
    assert!(begin.elapsed() < SLACK, "{:?}", begin.elapsed());
    eventually("the handler is dropped", async || journal.running() == 0).await;
    assert_eq!(state(outbox.store(), id).await, Some(State::Leased));
}

/// HOT-019: dropping the future of a run begins a graceful shutdown in the background.
pub async fn a_dropped_run_finishes<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let builder = outbox(scene.store(), settings()).workers(1).on_topic("t", journal.gated("t", &gate));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    running.task.abort();
    eventually("the run is dropped", async || running.task.is_finished()).await;
    assert!(running.shutdown.has_begun());
    gate.open();
    becomes(outbox.store(), id, State::Done).await;
    let over = async || outbox.drain().await.is_ok();
    eventually("the outbox can run again", over).await;
    assert_all_given_back(outbox.store()).await;
}

/// HOT-019: any future can end a run.
pub async fn any_future_ends_it<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let end = gate.clone();
    let task = tokio::spawn(outbox.run(async move { end.pass().await }));
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    gate.open();
    task.await.unwrap().unwrap();
}

/// HOT-019: with a shutdown that has begun already nothing is delivered.
pub async fn begun_before_the_run<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    outbox.enqueue_all(drafts("t", 3)).await.unwrap();
    let shutdown = Shutdown::new();
    shutdown.begin();
    outbox.run(shutdown).await.unwrap();
    assert_eq!(journal.count(), 0);
    assert_all_given_back(outbox.store()).await;
}

/// HOT-019, protocol rule 7: if outcomes cannot be stored, the run returns an error, in time; the leases run out.
pub async fn settling_fails_to_the_end<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut quick = settings();
    quick.shutdown_grace = ms(200);
    let outbox = outbox(store.clone(), quick).on_topic("t", journal.noting("t")).build().await.unwrap();
    store.fail("settle", u64::MAX);
    let running = run(&outbox);
    outbox.enqueue(draft("t")).await.unwrap();
    eventually("it was tried to settle", async || store.calls("settle") >= 2).await;
    let begin = Instant::now();
    running.shutdown.begin();
    let error = running.ended().await.unwrap_err();
    assert!(begin.elapsed() <= ms(200) + SLACK, "{:?}", begin.elapsed());
    assert!(error.is_transient() && error.to_string().contains("1 messages could not be settled"), "{error}");
    assert_eq!(store.inner().stats().await.unwrap().leased.value, 1);
}

/// R7: a job with much to do keeps neither other jobs waiting nor a shutdown: both come between two of its batches.
pub async fn an_endless_job_does_not_hold_it_up<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut settings = settings();
    (settings.prune, settings.reap) = (Schedule::every(ms(10)), Schedule::every(ms(20)));
    let outbox = outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    store.prune_endlessly(true);
    let running = run(&outbox);
    eventually("it prunes", async || store.calls("prune") >= 3).await;
    let reaped = store.calls("reap");
    eventually("it reaps meanwhile", async || store.calls("reap") >= reaped + 3).await;
    running.stop().await;
}

/// R7: nor does a call of a job that the store never answers, for longer than the grace; and not at all if it is to end at
/// once.
pub async fn a_silent_job_does_not_hold_it_up<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    for at_once in [false, true] {
        let mut settings = settings();
        settings.prune = Schedule::every(ms(10));
        settings.shutdown_grace = if at_once { HOUR } else { ms(300) };
        let outbox =
            outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
        store.hold("prune");
        let before = store.calls("prune");
        let running = run(&outbox);
        eventually("it prunes", async || store.calls("prune") > before).await;
        if at_once {
            running.shutdown.begin();
            eventually("it begins to end", async || scene.logs.events("stopped").len() == 2).await;
            running.shutdown.now();
        }
        running.shutdown.begin();
        running.ended().await.unwrap();
        store.let_go("prune");
    }
}
