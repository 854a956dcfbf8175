//! Faults of processes and of connections under load: none at all, kill -9, SIGSTOP past the lease, SIGTERM, and every
//! connection cut.
//!
//! Faults come by a schedule; everything else waits for a condition.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use crate::base::Base;
use crate::case::{Case, GRACE, allowed, eventually, on, settings_with, short_lease};
use crate::children::Worker;
use crate::worker::Orders;

/// The lease of workers that sleep for longer than that: long enough for the others to renew theirs on a slow
/// machine.
const SLEEPERS_LEASE: Duration = Duration::from_secs(6);

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

/// Ends a worker by SIGTERM (I15): before its grace is over, with success, and without a lease left behind.
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
    // A worker that publishes nothing handles the messages that the last of them gave back.
    let _last = case.worker("c1");
    case.drained().await;
    let figures = case.check("without faults", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
}

/// F-10 with renewal: handlers that take longer than the lease are not disturbed.
async fn slow_handlers<D: Base>(case: &Case<D>) {
    let ledger = case.publish(&["work"; 20]).await;
    let change = |orders: &mut Orders| {
        orders.work_ms = 8_000;
        orders.settings = settings_with(&json!({ "lease": "5s", "reap": "250ms" }));
    };
    let _workers = [case.worker_with("a0", change), case.worker_with("b0", change)];
    case.drained().await;
    let figures = case.check("slow handlers", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
}

/// F-01: workers are killed one after the other and replaced. Duplicates are at most the messages under way in killed
/// workers; nothing is lost, charged or out of order.
async fn kill_nine<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let mut workers = [case.hot_worker("a0"), case.hot_worker("b0")];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    // A message dies with its fifth lease, and on a slow machine one message may be held at every kill.
    for kill in 1..=4 {
        let victim = &mut workers[kill % 2];
        // Under load: its queues are full.
        case.are_working(&[victim]).await;
        sleep(Duration::from_millis(1_000)).await;
        victim.kill();
        case.died(&victim.name).await;
        allowed.faults.insert(victim.name.clone(), 1);
        let name = format!("{}{kill}", &victim.name[..1]);
        // The last ones publish nothing more, so that there is an end.
        *victim = if kill < 3 { case.hot_worker(&name) } else { case.worker(&name) };
    }
    let ledger = producers.stop().await;
    let recovery = case.drained().await;
    case.check(&format!("kill -9, drained after {recovery:?}"), &ledger, &allowed).await;
}

/// F-02: a worker sleeps for longer than its lease and wakes up again. What others have taken over meanwhile it neither delivers
/// nor settles; duplicates are at most the messages under way when it fell asleep. F-03: at last all of them do. R17: it sleeps
/// for longer than a handler may take, and no attempt is charged for that.
async fn pause<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let change = |orders: &mut Orders| {
        let lease = format!("{}s", SLEEPERS_LEASE.as_secs());
        orders.settings = settings_with(&json!({ "lease": lease, "handler_timeout": lease }));
    };
    let mut workers = [case.worker_with("a0", change), case.worker_with("b0", change)];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    for sleepers in [0..1, 1..2, 0..2] {
        sleep(Duration::from_millis(500)).await;
        for sleeper in &mut workers[sleepers.clone()] {
            sleeper.signal("STOP");
            *allowed.faults.entry(sleeper.name.clone()).or_default() += 1;
        }
        sleep(SLEEPERS_LEASE + Duration::from_millis(1_500)).await;
        for sleeper in &mut workers[sleepers] {
            sleeper.signal("CONT");
        }
    }
    let ledger = producers.stop().await;
    let recovery = case.drained().await;
    case.check(&format!("SIGSTOP, drained after {recovery:?}"), &ledger, &allowed).await;
    for worker in workers {
        end(case, worker).await;
    }
}

/// I15: workers are stopped and replaced under load. Not one duplicate, lost lease or charge.
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
    case.drained().await;
    let figures = case.check("SIGTERM", &ledger, &allowed()).await;
    assert_eq!(figures.duplicates, 0);
    for worker in workers {
        end(case, worker).await;
    }
}

/// F-05: every connection of the workers is cut, again and again. No attempt is charged.
async fn cut<D: Base>(case: &Case<D>) {
    let producers = case.producers();
    let workers = [case.worker_with("a0", short_lease), case.worker_with("b0", short_lease)];
    case.are_working(&[&workers[0], &workers[1]]).await;
    let mut allowed = allowed();
    allowed.lease_losses = true;
    let mut sessions = 0;
    for _ in 0..6 {
        sleep(Duration::from_millis(700)).await;
        sessions += case.cut().await;
        for worker in &workers {
            *allowed.faults.entry(worker.name.clone()).or_default() += 1;
            let before = case.journal.begun(&worker.name).await.unwrap_or(0);
            let more = async || case.journal.begun(&worker.name).await.is_ok_and(|begun| begun > before);
            eventually("a worker delivers again", more).await;
        }
    }
    let ledger = producers.stop().await;
    let recovery = case.drained().await;
    // Each delivers only with a session of its store and one of the journal.
    assert!(sessions >= 6 * 2 * 2, "only {sessions} sessions were cut");
    case.check(&format!("{sessions} sessions cut, drained after {recovery:?}"), &ledger, &allowed).await;
    for worker in workers {
        end(case, worker).await;
    }
}
