//! Several programs on one SQLite file: none starves, and a long transaction of a user delays them without harm.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{
    Birth, ClaimRequest, NewMessage, Outcome, Settled, Settlement, Store, StoreAdmin as _,
    TransactionalStore as _, WorkerId,
};
use posthaste_sqlx::{Sqlite, SqliteStore};
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;
use tokio::time::timeout;

use crate::fixture::{Backend, SqliteFixture};

/// How often the other relay claims and acks.
const CALLS: usize = 20;

fn messages(count: usize) -> Vec<NewMessage> {
    (0..count).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect()
}

async fn claim_and_ack(store: &SqliteStore, limit: u32) -> usize {
    let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(limit);
    let claimed = store.claim(&request).await.unwrap();
    let acks: Vec<_> = claimed.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)).collect();
    let settled = store.settle(&acks).await.unwrap().settled;
    assert!(settled.iter().all(|settled| *settled == Settled::Applied), "{settled:?}");
    claimed.len()
}

/// One relay writes without a pause, each time as soon as it can. SQLite's lock has no queue, so the other one may get little of the
/// work; but each of its calls is answered, long before a lease would end, and none fails.
#[test]
fn a_busy_relay_does_not_starve_another() {
    run(async |fixture: &Arc<SqliteFixture>| {
        fixture.store.enqueue(&messages(10 * CALLS)).await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let busy = {
            let (store, stop) = (fixture.store.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut delivered = 0;
                while !stop.load(Ordering::Relaxed) {
                    store.enqueue(&messages(10)).await.unwrap();
                    delivered += claim_and_ack(&store, 10).await;
                }
                delivered
            })
        };
        // With connections of its own, as another process has.
        let other = SqliteStore::connect_with(&fixture.url, &fixture.options).await.unwrap();
        let (mut delivered, mut longest) = (0, Duration::ZERO);
        for _ in 0..CALLS {
            let begin = Instant::now();
            delivered += claim_and_ack(&other, 10).await;
            longest = longest.max(begin.elapsed());
        }
        stop.store(true, Ordering::Relaxed);
        eprintln!("{delivered} of {} messages, {longest:?} for a call", delivered + busy.await.unwrap());
        assert_eq!(delivered, 10 * CALLS);
        assert!(longest < Duration::from_secs(20), "{longest:?}");
        other.close().await;
    });
}

/// All calls of a store wait for it, none fails, and what was published in it is delivered.
#[test]
fn a_long_transaction_delays_the_store() {
    run(async |fixture: &Arc<SqliteFixture>| {
        fixture.store.enqueue(&messages(10)).await.unwrap();
        let mut tx = fixture.begin().await;
        Sqlite::run(&mut tx, "delete from posthaste_outbox_job".to_owned()).await.unwrap();
        let store = fixture.store.clone();
        let mut waiting = tokio::spawn(async move { claim_and_ack(&store, 10).await });
        assert!(timeout(Duration::from_millis(500), &mut waiting).await.is_err(), "it waits");
        let late = messages(1);
        fixture.store.insert(&mut *tx, &late, Birth::Ready).await.unwrap();
        fixture.commit(tx).await;
        let delivered = waiting.await.unwrap();
        assert_eq!(delivered + claim_and_ack(&fixture.store, 10).await, 11);
        assert_eq!(fixture.store.stats().await.unwrap().ready.value, 0);
    });
}
