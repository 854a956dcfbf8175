//! The jobs of a running outbox: their effects, one turn for all processes, and switching them off.
//!
//! Turns are counted, not timed.

use posthaste_core::{OrderPolicy, Outcome, Schedule, Settlement, State, Store, StoreAdmin as _};
use tokio::time::Instant;

use super::Scene;
use super::support::{
    HOUR, Journal, MINUTE, becomes, claim_elsewhere, draft, eventually, ms, outbox, record, run, settings,
    state,
};
use crate::{Counting, Fixture};

/// INB-007: with two processes each job has one turn per interval, and the others are turned away.
pub async fn one_turn_for_all<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut busy = settings();
    let interval = ms(200);
    for job in [&mut busy.reap, &mut busy.expire, &mut busy.park, &mut busy.prune] {
        *job = Schedule::every(interval);
    }
    let one = outbox(store.clone(), busy.clone()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let two = outbox(store.clone(), busy).on_topic("t", journal.noting("t")).build().await.unwrap();
    let begin = Instant::now();
    let (first, second) = (run(&one), run(&two));
    let jobs = ["reap", "expire", "park", "prune"];
    eventually("each job had its turns", async || jobs.iter().all(|job| store.calls(job) >= 5)).await;
    first.stop().await;
    second.stop().await;
    // An interval is a little shorter than it says, so that a process of the same pace is not always too early.
    let most = (begin.elapsed().as_secs_f64() / interval.mul_f64(0.9).as_secs_f64()).ceil() + 1.0;
    let mut turns = 0;
    for job in jobs {
        let calls = store.calls(job);
        turns += calls;
        #[allow(clippy::cast_precision_loss, reason = "a handful")]
        let calls = calls as f64;
        assert!(calls <= most, "{job} had {calls} turns of {most}");
    }
    assert!(store.calls("turn") > turns, "nobody was turned away: {:?}", store.all());
}

/// Something for each job to do: a lease that ran out, an expired message, one behind a dead one, one that is done.
struct Chores {
    lost: posthaste_core::MessageId,
    expired: posthaste_core::MessageId,
    behind: posthaste_core::MessageId,
    done: posthaste_core::MessageId,
}

async fn chores<F: Fixture>(scene: &Scene<F>) -> Chores {
    let store = scene.store();
    let message = |key: &str| draft("elsewhere").key(key).order(OrderPolicy::Park).build().unwrap();
    let (lost, dead, over) = (message("lost"), message("dead"), message("done"));
    store.enqueue(&[lost.clone(), dead.clone(), over.clone()]).await.unwrap();
    for claimed in claim_elsewhere(&store, 3, MINUTE).await {
        let outcome = match claimed.id {
            id if id == dead.id() => Outcome::Fail { failure: posthaste_core::Failure::permanent("no") },
            id if id == over.id() => Outcome::Ack,
            _ => continue,
        };
        store.settle(&[Settlement::new(claimed.lease(), outcome)]).await.unwrap();
    }
    let behind = message("dead");
    let expired = draft("elsewhere").expires_after(MINUTE).build().unwrap();
    store.enqueue(&[behind.clone(), expired.clone()]).await.unwrap();
    scene.fixture.advance(HOUR).await;
    Chores { lost: lost.id(), expired: expired.id(), behind: behind.id(), done: over.id() }
}

/// OBX-053, OBX-106, INB-007, RMQ-011: each job does its work, and logs it.
pub async fn jobs_do_their_work<F: Fixture>(scene: &Scene<F>) {
    let chores = chores(scene).await;
    let journal = Journal::new();
    let mut busy = settings();
    for job in [&mut busy.reap, &mut busy.expire, &mut busy.park, &mut busy.prune] {
        *job = Schedule::every(ms(50));
    }
    (busy.keep_done_for, busy.archive) = (MINUTE, true);
    let outbox = outbox(scene.store(), busy).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    let store = outbox.store();
    becomes(store, chores.lost, State::Ready).await;
    becomes(store, chores.expired, State::Dead).await;
    eventually("it is parked", async || record(store, chores.behind).await.parked).await;
    eventually("it is archived", async || state(store, chores.done).await.is_none()).await;
    let reaped = async || scene.meters.counter("posthaste_reaped_total", &[("state", "ready")]) == 1;
    eventually("the reap is counted", reaped).await;
    running.stop().await;
    assert_eq!(scene.fixture.archived().await, [chores.done]);
    let told = scene.logs.events("reaped");
    assert_eq!((told.len(), told[0].level, told[0].field("ready")), (1, tracing::Level::INFO, "1"));
    assert_eq!(told[0].field("store"), store.name());
}

/// INB-007: a job that is switched off does nothing.
pub async fn jobs_switched_off<F: Fixture>(scene: &Scene<F>) {
    let chores = chores(scene).await;
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("it has looked many times", async || store.calls("claim") >= 10).await;
    running.stop().await;
    for job in ["turn", "reap", "expire", "park", "prune", "stats"] {
        assert_eq!(store.calls(job), 0, "{job}");
    }
    assert_eq!(state(&store, chores.lost).await, Some(State::Leased));
    assert_eq!(state(&store, chores.expired).await, Some(State::Ready));
    assert!(!record(&store, chores.behind).await.parked);
    assert_eq!(state(&store, chores.done).await, Some(State::Done));
}

/// INB-007: each job by itself can be switched on.
pub async fn one_job_alone<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut only = settings();
    only.expire = Schedule::every(ms(50));
    let outbox = outbox(store.clone(), only).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("it had three turns", async || store.calls("expire") >= 3).await;
    running.stop().await;
    for job in ["reap", "park", "prune", "stats"] {
        assert_eq!(store.calls(job), 0, "{job}");
    }
}

/// HOT-017: a job that fails is logged, and still has its next turn.
pub async fn a_failed_job_goes_on<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut busy = settings();
    (busy.reap, busy.stats) = (Schedule::every(ms(50)), Schedule::every(ms(50)));
    for operation in ["turn", "reap", "stats"] {
        store.fail(operation, 2);
    }
    let outbox = outbox(store.clone(), busy).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    let went_on = async || store.calls("reap") >= 4 && store.calls("stats") >= 4;
    eventually("the jobs went on", went_on).await;
    running.stop().await;
    let errors = scene.logs.events("a job of housekeeping failed");
    assert_eq!(errors.len(), 6);
    assert!(errors.iter().all(|error| error.level == tracing::Level::ERROR));
    assert_eq!(scene.meters.counter("posthaste_errors_total", &[("operation", "reap")]), 4);
    assert_eq!(scene.meters.counter("posthaste_errors_total", &[("operation", "stats")]), 2);
    assert_eq!(store.stats().await.unwrap().ready.value, 0);
}

/// A job at the longest interval there is keeps none of the others from their turns.
pub async fn the_longest_interval<F: Fixture>(scene: &Scene<F>) {
    let mut patient = settings();
    (patient.prune, patient.park) =
        (Schedule::every(std::time::Duration::MAX), Schedule::every(std::time::Duration::MAX));
    patient.reap = Schedule::every(ms(20));
    let journal = Journal::new();
    let outbox = outbox(scene.store(), patient).on_topic("t", journal.noting("t")).build().await.unwrap();
    let lost = draft("elsewhere").build().unwrap();
    scene.store().enqueue(std::slice::from_ref(&lost)).await.unwrap();
    claim_elsewhere(&scene.store(), 1, MINUTE).await;
    scene.fixture.advance(HOUR).await;
    let running = run(&outbox);
    becomes(outbox.store(), lost.id(), State::Ready).await;
    running.stop().await;
}
