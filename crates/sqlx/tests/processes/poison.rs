//! Poison (F-10, F-11, I10): one message among innocents that panics, never returns, does not listen, blocks its thread, or
//! takes the whole process down. The guilty one ends dead for the right reason; the innocents are delivered.
//!
//! A supervisor starts the worker again when it has died, as any supervisor would.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::base::Base;
use crate::case::{CONCURRENCY, Case, allowed, eventually, on, settings_with};
use crate::check::{Allowed, End, Row};
use crate::children::Worker;

const SETTLE_BATCH: u64 = 10;

on! {
    postgres: slow_tame = super::tame, slow_stall = super::stall, slow_grace = super::grace,
        slow_abort = super::abort, slow_abort_in_a_crowd = super::abort_in_a_crowd, slow_overflow = super::overflow;
    mysql: slow_tame = super::tame, slow_stall = super::stall, slow_grace = super::grace,
        slow_abort = super::abort, slow_abort_in_a_crowd = super::abort_in_a_crowd;
    sqlite: slow_tame = super::tame, slow_stall = super::stall, slow_grace = super::grace,
        slow_abort = super::abort, slow_abort_in_a_crowd = super::abort_in_a_crowd, slow_overflow = super::overflow;
}

/// So many innocents on both sides, and the guilty ones in their midst.
fn topics(guilty: &[&'static str], innocents: usize) -> Vec<&'static str> {
    let innocents = vec!["work"; innocents];
    [&innocents[..], guilty, &innocents[..]].concat()
}

/// Handlers may take so long.
const TIMEOUT: &str = "300ms";
/// Where no handler is to be late: on a busy machine, even one that does next to nothing may take a while.
const NO_TIMEOUT: &str = "1h";

fn start<D: Base>(case: &Case<D>, name: &str, work_ms: u64, timeout: &str) -> Worker {
    case.worker_with(name, |orders| {
        orders.silent = true;
        orders.work_ms = work_ms;
        orders.settings = settings_with(&json!({
            "lease": "500ms", "reap": "250ms", "handler_timeout": timeout, "cancel_grace": "100ms", "max_attempts": 3,
            "settle_batch": SETTLE_BATCH,
        }));
    })
}

/// Those that leave the process alive: they cost attempts, or a thread, and nothing else.
async fn tame<D: Base>(case: &Case<D>) {
    let end = |dead, attempts, error| End { dead: Some(dead), attempts, lease_losses: Some(0), error };
    let mut allowed = allowed();
    allowed.ends.extend([
        ("panic", end(1, 3, "[BUSINESS] the handler panicked: poison")),
        ("pending", end(1, 3, "[BUSINESS] the handler took longer than 300ms")),
        ("deaf", end(1, 3, "[BUSINESS] the handler took longer than 300ms")),
        ("loop", end(4, 0, "[BUSINESS] the handler blocked its thread for longer than 300ms")),
    ]);
    let ledger = case.publish(&topics(&["panic", "pending", "deaf", "loop"], 10)).await;
    let mut worker = start(case, "a0", 80, TIMEOUT);
    case.drained(Duration::from_secs(15)).await;
    assert!(worker.ended().is_none(), "the worker lives");
    case.check("poison", &ledger, &allowed).await;
    // A handler that blocks its thread does not hold the end of the process up.
    worker.signal("TERM");
    let (status, _) = worker.wait(Duration::from_secs(7)).await;
    assert!(status.success(), "{status}");
}

/// One that blocks its thread while nothing else goes on. The runtime then has nobody who looks after timers and sockets
/// (tokio's issue 4730), unless somebody wakes another thread.
async fn stall<D: Base>(case: &Case<D>) {
    let mut allowed = allowed();
    let error = "[BUSINESS] the handler blocked its thread for longer than 300ms";
    allowed.ends.insert("loop", End { dead: Some(4), attempts: 0, lease_losses: Some(0), error });
    let mut ledger = case.publish(&["work"]).await;
    let mut worker = start(case, "a0", 80, TIMEOUT);
    for topics in [vec![], vec!["loop"], vec!["loop"], vec!["work"; 20]] {
        let more = case.publish(&topics).await;
        case.drained(Duration::from_secs(5)).await;
        ledger.committed.extend(more.committed);
    }
    case.check("stall", &ledger, &allowed).await;
    assert!(worker.ended().is_none(), "the worker lives");
}

/// I15 with handlers that do not end: the process ends all the same, within its grace and two seconds, and gives their
/// messages back uncharged.
async fn grace<D: Base>(case: &Case<D>) {
    let topics = ["deaf", "pending", "loop"];
    case.publish(&topics).await;
    let mut worker = case.worker_with("a0", |orders| {
        orders.settings = settings_with(&json!({ "handler_timeout": "1h", "shutdown_grace": "1s" }));
    });
    let all_begun = async || case.journal.begun("a0").await.is_ok_and(|begun| begun == topics.len() as u64);
    eventually("all of them have begun", Duration::from_secs(5), all_begun).await;
    worker.signal("TERM");
    let (status, took) = worker.wait(Duration::from_secs(3)).await;
    assert!(status.success() && took >= Duration::from_secs(1), "{status} after {took:?}");
    let picture = case.journal.picture().await;
    let given_back = |row: &Row| (row.state, row.attempts, row.lease_losses) == (0, 0, 0);
    assert!(picture.rows.iter().all(given_back), "{:?}", picture.rows);
}

async fn abort<D: Base>(case: &Case<D>) {
    deadly(case, "abort", 10, 80).await;
}

async fn overflow<D: Base>(case: &Case<D>) {
    deadly(case, "overflow", 10, 80).await;
}

/// With a backlog of quick ones the worker claims far ahead, and many lose their lease with the guilty one.
async fn abort_in_a_crowd<D: Base>(case: &Case<D>) {
    deadly(case, "abort", 1_000, 5).await;
}

/// One that kills the process: dead as a crash suspect after exactly five lost leases, and so five deaths.
async fn deadly<D: Base>(case: &Case<D>, topic: &'static str, innocents: usize, work_ms: u64) {
    // What is gathered before handlers have to wait is four batches, and one is under way.
    let mut allowed = Allowed { lease_losses: true, unsettled: 5 * SETTLE_BATCH + CONCURRENCY, ..allowed() };
    allowed
        .ends
        .insert(topic, End { dead: Some(7), attempts: 0, lease_losses: Some(5), error: "crash suspect" });
    let ledger = case.publish(&topics(&[topic], innocents)).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut deaths = 0;
    let start = |name: &str| start(case, name, work_ms, NO_TIMEOUT);
    let mut worker = start("a0");
    while case.journal.backlog().await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "not over after {deaths} deaths");
        if let Some(status) = worker.ended() {
            assert!(!status.success() && status.code().is_none(), "it died of something else: {status}");
            deaths += 1;
            allowed.faults.insert(worker.name.clone(), 1);
            worker = start(&format!("a{deaths}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(deaths, 5);
    case.check(topic, &ledger, &allowed).await;
    // Whoever lost two leases with the guilty one runs alone from then on, and loses no other.
    let suspects = case.journal.picture().await.suspects();
    assert!(suspects.keys().all(|losses| [1, 2, 5].contains(losses)) && suspects[&5] == 1, "{suspects:?}");
}
