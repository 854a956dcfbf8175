//! Memory (F-13, I14): a backlog of a million messages is the database's to keep. A worker whose handlers have stopped to
//! return holds what its queues hold, and no more.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::base::Base;
use crate::case::{Case, eventually, on, settings_with};

/// A process's memory beyond its queues: buffers of the driver, the allocator's slack.
const HEAD_ROOM_KIB: u64 = 60 << 10;
const COLD_CAPACITY: u64 = 1_000;
const WORKERS: u64 = 8;

on! {
    postgres: slow_million = super::million;
    sqlite: slow_million = super::million;
}

async fn million<D: Base>(case: &Case<D>) {
    case.publish(&["work"]).await;
    let mut worker = case.worker_with("a0", |orders| {
        orders.settings = settings_with(&json!({
            "workers": WORKERS, "cold_capacity": COLD_CAPACITY, "handler_timeout": "1h",
        }));
    });
    case.drained().await;
    let before = worker.resident_kib();
    let begun = Instant::now();
    let mut connection = case.users.acquire().await.unwrap();
    D::run(&mut connection, D::fill("block", 1_000_000)).await.unwrap();
    drop(connection);
    let filled = begun.elapsed();
    // The handlers answer two thousand times, and then no more.
    let begun_to_block = async || {
        let done = format!("{} where state = 2", D::TABLE);
        case.journal.number("count(*)", &done).await.is_ok_and(|done| done > 2_000)
    };
    eventually("the handlers block", begun_to_block).await;
    let (mut most_kib, mut most_leased) = (0, 0);
    // Some claims' worth of time, in which it could take more than it should.
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until {
        most_kib = most_kib.max(worker.resident_kib());
        most_leased = most_leased.max(case.journal.leased("a0").await.unwrap());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!(
        "{} a million in {filled:?}: {} MiB before, {} MiB with it, {most_leased} leased",
        D::NAME,
        before >> 10,
        most_kib >> 10
    );
    assert!(worker.ended().is_none());
    assert!(most_kib <= before + HEAD_ROOM_KIB, "{most_kib} KiB, and {before} KiB before");
    assert!((WORKERS..=COLD_CAPACITY + WORKERS).contains(&most_leased), "{most_leased} are leased");
}
