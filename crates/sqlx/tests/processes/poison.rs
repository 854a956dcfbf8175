//! Poison (F-10, F-11, I10): one message among innocents that panics, never returns, does not listen, blocks its thread, or
//! takes the whole process down. The guilty one ends dead for the right reason; the innocents are delivered.
//!
//! A supervisor starts the worker again when it has died, as any supervisor would.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::base::Base;
use crate::case::{Case, GRACE, PATIENCE, allowed, eventually, on, settings_with};
use crate::check::{Allowed, End, Row};
use crate::children::Worker;

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

/// How long the guilty may take: long enough for them to write into the journal before. On a busy machine the innocents may take
/// longer, though they do next to nothing, and so they may.
const TIMEOUT_MS: u64 = 3_000;

fn start<D: Base>(case: &Case<D>, name: &str, work_ms: u64) -> Worker {
    case.worker_with(name, |orders| {
        orders.silent = true;
        orders.work_ms = work_ms;
        orders.guilty_ms = Some(TIMEOUT_MS);
        orders.settings = settings_with(&json!({
            "reap": "250ms", "handler_timeout": "1h", "cancel_grace": "100ms", "max_attempts": 3,
        }));
    })
}

/// Messages that leave the process alive: they cost attempts, or a thread, and nothing else.
async fn tame<D: Base>(case: &Case<D>) {
    let end = |dead, attempts, error| End { dead: Some(dead), attempts, lease_losses: Some(0), error };
    let mut allowed = allowed();
    allowed.ends.extend([
        ("panic", end(1, 3, "[BUSINESS] the handler panicked: poison")),
        ("pending", end(1, 3, "[BUSINESS] the handler took longer than 3s")),
        ("deaf", end(1, 3, "[BUSINESS] the handler took longer than 3s")),
        ("loop", end(4, 0, "[BUSINESS] the handler blocked its thread for longer than 3s")),
    ]);
    let ledger = case.publish(&topics(&["panic", "pending", "deaf", "loop"], 10)).await;
    let mut worker = start(case, "a0", 80);
    case.drained().await;
    assert!(worker.ended().is_none(), "the worker lives");
    case.check("poison", &ledger, &allowed).await;
    // A handler that blocks its thread does not hold the end of the process up.
    worker.signal("TERM");
    let (status, _) = worker.wait(GRACE).await;
    assert!(status.success(), "{status}");
}

/// One that blocks its thread while nothing else goes on. No thread of the runtime then watches timers and sockets
/// (tokio's issue 4730), unless another thread is woken.
async fn stall<D: Base>(case: &Case<D>) {
    let mut allowed = allowed();
    let error = "[BUSINESS] the handler blocked its thread for longer than 3s";
    allowed.ends.insert("loop", End { dead: Some(4), attempts: 0, lease_losses: Some(0), error });
    let mut ledger = case.publish(&["work"]).await;
    let mut worker = start(case, "a0", 80);
    for topics in [vec![], vec!["loop"], vec!["loop"], vec!["work"; 20]] {
        let more = case.publish(&topics).await;
        case.drained().await;
        ledger.committed.extend(more.committed);
    }
    case.check("stall", &ledger, &allowed).await;
    assert!(worker.ended().is_none(), "the worker lives");
}

/// I15 with handlers that do not end: the process still ends, within its grace, and gives their messages back
/// uncharged.
async fn grace<D: Base>(case: &Case<D>) {
    let topics = ["deaf", "pending", "loop"];
    case.publish(&topics).await;
    let mut worker = case.worker_with("a0", |orders| {
        orders.settings = settings_with(&json!({ "handler_timeout": "1h", "shutdown_grace": "4s" }));
    });
    let all_begun = async || case.journal.begun("a0").await.is_ok_and(|begun| begun == topics.len() as u64);
    eventually("all of them have begun", all_begun).await;
    let told = Instant::now();
    worker.signal("TERM");
    let (status, _) = worker.wait(PATIENCE).await;
    assert!(
        status.success() && told.elapsed() >= Duration::from_secs(2),
        "{status} after {:?}",
        told.elapsed()
    );
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

/// With a backlog of fast ones the worker claims far ahead, and many lose their lease with the guilty one.
async fn abort_in_a_crowd<D: Base>(case: &Case<D>) {
    deadly(case, "abort", 1_000, 5).await;
}

/// One that kills the process: dead as a crash suspect after exactly five lost leases, and so five deaths.
async fn deadly<D: Base>(case: &Case<D>, topic: &'static str, innocents: usize, work_ms: u64) {
    let mut allowed = Allowed { lease_losses: true, ..allowed() };
    allowed
        .ends
        .insert(topic, End { dead: Some(7), attempts: 0, lease_losses: Some(5), error: "crash suspect" });
    let ledger = case.publish(&topics(&[topic], innocents)).await;
    let deadline = Instant::now() + PATIENCE;
    let mut deaths = 0;
    let start = |name: &str| start(case, name, work_ms);
    let mut worker = start("a0");
    while case.journal.backlog().await.unwrap() > 0 {
        assert!(Instant::now() < deadline, "not over after {deaths} deaths");
        if let Some(status) = worker.ended() {
            assert!(!status.success() && status.code().is_none(), "it died of something else: {status}");
            deaths += 1;
            allowed.faults.insert(worker.name.clone(), 1);
            case.died(&worker.name).await;
            worker = start(&format!("a{deaths}"));
        }
        case.run_out().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(deaths, 5);
    case.check(topic, &ledger, &allowed).await;
    // A message that lost two leases with the guilty one runs alone from then on, and loses no other.
    let suspects = case.journal.picture().await.suspects();
    assert!(suspects.keys().all(|losses| [1, 2, 5].contains(losses)) && suspects[&5] == 1, "{suspects:?}");
}
