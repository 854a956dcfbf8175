//! Faults of processes and of connections under load: none at all, kill -9, SIGSTOP past the lease, SIGTERM, and every
//! connection cut.
//!
//! Faults come by a schedule; everything else waits for a condition.

use std::time::Duration;

use serde_json::json;
use tokio::time::{Instant, sleep, sleep_until};

use crate::base::Base;
use crate::case::{Case, allowed, on, settings_with};
use crate::children::Worker;
use crate::worker::Orders;

/// How long a backlog may take to be gone: three leases, the longest back-off, and some slack for slow machines.
pub const SETTLE: Duration = Duration::from_secs(10);
/// The grace of a shutdown, and two seconds.
const GRACE: Duration = Duration::from_secs(7);

on! {
    postgres: slow_fault_free = super::fault_free, slow_handlers = super::slow_handlers,
        slow_kill_nine = super::kill_nine,
        slow_graceful_restart = super::graceful_restart, slow_pause = super::pause, slow_cut = super::cut;
    mysql: slow_fault_free = super::fault_free, slow_handlers = super::slow_handlers,
        slow_kill_nine = super::kill_nine,
        slow_graceful_restart = super::graceful_restart, slow_pause = super::pause, slow_cut = super::cut;
    sqlite: slow_fault_free = super::fault_free, slow_handlers = super::slow_handlers,
        slow_kill_nine = super::kill_nine,
        slow_graceful_restart = super::graceful_restart, slow_pause = super::pause;
}

/// Ends a worker by SIGTERM (I15): within its grace and two seconds, with success, and without a lease left behind.
async fn end<D: Base>(case: &Case<D>, mut worker: Worker) {
    worker.signal("TERM");
    let (status, took) = worker.wait(GRACE).await;
    assert!(status.success(), "{}: {status} after {took:?}", worker.name);
    assert_eq!(case.journal.leased(&worker.name).await.unwrap(), 0, "{} left leases behind", worker.name);
}

/// I5 without faults: everything is delivered once, in the order of its key, on the hot and on the cold path.
async fn fault_free<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let workers = [case.hot_worker("a1"), case.hot_worker("b1")];
    case.are_working(&[&workers[0], &workers[1]]).await;
    sleep(Duration::from_secs(4)).await;
    let ledger = producers.stop().await;
    for worker in workers {
        end(case, worker).await;
    }
    // What the last of them gave back is for somebody who publishes nothing more.
    let _last = case.worker("c1");
    case.drained(SETTLE).await;
    let figures = case.check("without faults", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
}

/// F-10 with renewal: handlers that take three times as long as the lease are not disturbed.
async fn slow_handlers<D: Base>(case: &Case<D>) {
    let ledger = case.publish(&["work"; 40]).await;
    let change = |orders: &mut Orders| {
        orders.work_ms = 1_500;
        orders.settings = settings_with(&json!({ "lease": "500ms", "reap": "250ms" }));
    };
    let _workers = [case.worker_with("a0", change), case.worker_with("b0", change)];
    case.drained(SETTLE).await;
    let figures = case.check("slow handlers", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
}

/// F-01: a worker is killed every two seconds and replaced. Duplicates are at most what was under way in those that were
/// killed; nothing is lost, charged or out of order.
async fn kill_nine<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let mut workers = [case.hot_worker("a0"), case.hot_worker("b0")];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    let begun = Instant::now();
    for kill in 1..=7 {
        sleep_until(begun + Duration::from_secs(2) * (kill - 1) + Duration::from_millis(500)).await;
        let victim = &mut workers[(kill % 2) as usize];
        victim.kill();
        allowed.faults.insert(victim.name.clone(), 1);
        let name = format!("{}{kill}", &victim.name[..1]);
        // The last ones publish nothing more, so that there is an end.
        *victim = if kill < 6 { case.hot_worker(&name) } else { case.worker(&name) };
    }
    let ledger = producers.stop().await;
    let recovery = case.drained(SETTLE).await;
    case.check(&format!("kill -9, drained after {recovery:?}"), &ledger, &allowed).await;
}

/// F-02: a worker sleeps for longer than its lease and wakes up again. What others have taken over meanwhile it neither
/// delivers nor settles; duplicates are at most what was under way when it fell asleep. F-03: at last all of them do.
async fn pause<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let mut workers = [case.worker("a0"), case.worker("b0")];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    let begun = Instant::now();
    for (pause, sleepers) in (0_u32..).zip([0..1, 1..2, 0..2]) {
        sleep_until(begun + Duration::from_secs(4) * pause + Duration::from_millis(500)).await;
        for sleeper in &mut workers[sleepers.clone()] {
            sleeper.signal("STOP");
            *allowed.faults.entry(sleeper.name.clone()).or_default() += 1;
        }
        sleep_until(begun + Duration::from_secs(4) * pause + Duration::from_millis(3_500)).await;
        for sleeper in &mut workers[sleepers] {
            sleeper.signal("CONT");
        }
    }
    let ledger = producers.stop().await;
    let recovery = case.drained(SETTLE).await;
    case.check(&format!("SIGSTOP, drained after {recovery:?}"), &ledger, &allowed).await;
    for worker in workers {
        end(case, worker).await;
    }
}

/// I15: workers are told to stop and replaced under load. Not one duplicate, lost lease or charge.
async fn graceful_restart<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let mut workers = vec![case.hot_worker("a0"), case.hot_worker("b0")];
    for restart in 1..=5 {
        case.are_working(&[&workers[0], &workers[1]]).await;
        // Under load: their queues are full again.
        sleep(Duration::from_millis(700)).await;
        let old = workers.remove(0);
        let name = format!("{}{restart}", &old.name[..1]);
        end(case, old).await;
        workers.push(if restart < 4 { case.hot_worker(&name) } else { case.worker(&name) });
    }
    let ledger = producers.stop().await;
    case.drained(SETTLE).await;
    let figures = case.check("SIGTERM", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
    for worker in workers {
        end(case, worker).await;
    }
}

/// F-05: every connection of the workers is cut each second. No attempt is charged.
async fn cut<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let workers = [case.worker("a0"), case.worker("b0")];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    let mut sessions = 0;
    let begun = Instant::now();
    for cut in 1..=6 {
        sleep_until(begun + Duration::from_secs(1) * cut).await;
        sessions += case.cut().await;
        for worker in &workers {
            *allowed.faults.entry(worker.name.clone()).or_default() += 1;
        }
    }
    let ledger = producers.stop().await;
    let recovery = case.drained(SETTLE).await;
    assert!(sessions > 12, "only {sessions} sessions were cut");
    case.check(&format!("{sessions} sessions cut, drained after {recovery:?}"), &ledger, &allowed).await;
    for worker in workers {
        end(case, worker).await;
    }
}
