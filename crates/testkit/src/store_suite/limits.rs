//! Requests that make no sense: refused as invalid input, before anything is changed.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    ErrorKind, Filter, Lease, MessageId, Outcome, Result, Retention, Settlement, WorkItemId,
};
use posthaste_core::{Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// Asserts that a call was refused for its input.
#[track_caller]
fn assert_refused<T: std::fmt::Debug>(what: &str, result: Result<T>) {
    assert_eq!(result.expect_err(what).kind(), ErrorKind::InvalidInput, "{what}");
}

/// Work that every verb would find something to do with.
async fn work<F: Fixture>(fixture: &F) -> Lease {
    let store = fixture.store();
    dead_from(store, draft("topic").key("k").order(posthaste_core::OrderPolicy::Park).build().unwrap()).await;
    enqueue(store, &[keyed("k"), draft("topic").expires_after(MINUTE).build().unwrap()]).await;
    let message = enqueue_one(store, draft("topic").priority(-1).build().unwrap()).await;
    let held = store.claim(&request(1)).await.unwrap();
    assert_eq!(held[0].id, message);
    fixture.advance(LEASE + HOUR).await;
    held[0].lease()
}

/// OBX-026, OBX-097, rule 15: limits out of range change nothing, not even partly.
pub async fn impossible_requests_change_nothing<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let lease = work(&**fixture).await;
    let before = records(store).await;
    let day = Duration::from_secs(24 * 3_600);
    for limit in [0, 10_001] {
        assert_refused("claim", store.claim(&request(limit)).await);
        assert_refused("reap", store.reap(limit).await);
        assert_refused("expire", store.expire(limit).await);
        assert_refused("park", store.park(limit).await);
        assert_refused("requeue", store.requeue(&change().limit(limit)).await);
        assert_refused("bury", store.bury(&change().limit(limit)).await);
    }
    for length in [Duration::ZERO, Duration::from_micros(999), day + Duration::from_millis(1)] {
        assert_refused("claim", store.claim(&request(1).lease(length)).await);
        assert_refused("renew", store.renew(&[lease], length).await);
        assert_refused("renew nothing", store.renew(&[], length).await);
    }
    for limit in [0, 1_001, 10_000] {
        assert_refused("prune", store.prune(&Retention::done(MINUTE).dead(MINUTE), limit).await);
    }
    for limit in [0, 201] {
        assert_refused("list", store.list(&Filter::default(), None, limit).await);
    }
    for text in [String::new(), "a\0b".to_owned(), "x".repeat(256)] {
        let of = || Some(text.clone());
        assert_refused("key", store.list(&Filter { key: of(), ..Filter::default() }, None, 1).await);
        assert_refused("tenant", store.list(&Filter { tenant_id: of(), ..Filter::default() }, None, 1).await);
        let filter = Filter { correlation_id: of(), ..Filter::default() };
        assert_refused("correlation", store.list(&filter, None, 1).await);
    }
    let ids: Vec<_> = (0..10_001).map(|_| MessageId::new()).collect();
    assert_refused("ids", store.list(&only(&ids), None, 1).await);
    assert_eq!(records(store).await, before);
}

/// Rule 15: batches that are too large are refused as a whole.
pub async fn batches_that_are_too_large<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let lease = work(&**fixture).await;
    let before = records(store).await;
    let mut leases = vec![lease];
    leases.extend((0..10_000).map(|n| Lease { item: WorkItemId::new(1_000_000 + n), epoch: 1 }));
    let settlements: Vec<_> = leases.iter().map(|lease| Settlement::new(*lease, Outcome::Ack)).collect();
    assert_refused("settle", store.settle(&settlements).await);
    assert_refused("renew", store.renew(&leases, LEASE).await);
    assert_eq!(records(store).await, before);
}

/// The largest requests that are allowed are carried out.
pub async fn the_largest_requests<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let lease = work(&**fixture).await;
    let mut leases = vec![lease];
    leases.extend((0..9_999).map(|n| Lease { item: WorkItemId::new(1_000_000 + n), epoch: 1 }));
    let day = Duration::from_secs(24 * 3_600);
    let renewed = store.renew(&leases, day).await.unwrap();
    let gone = |answers: &[posthaste_core::Settled]| {
        answers.iter().filter(|answer| **answer == posthaste_core::Settled::Gone).count()
    };
    assert_eq!(
        (renewed.len(), renewed[0], gone(&renewed)),
        (10_000, posthaste_core::Settled::Applied, 9_999)
    );
    let settlements: Vec<_> = leases.iter().map(|lease| Settlement::new(*lease, Outcome::Ack)).collect();
    let settled = store.settle(&settlements).await.unwrap().settled;
    assert_eq!(
        (settled.len(), settled[0], gone(&settled)),
        (10_000, posthaste_core::Settled::Applied, 9_999)
    );
    assert_eq!(store.reap(10_000).await.unwrap().ready, 0);
    assert_eq!(store.park(10_000).await.unwrap(), 1);
    assert_eq!(store.expire(10_000).await.unwrap().messages, 1);
    let mut ids: Vec<_> = (0..9_999).map(|_| MessageId::new()).collect();
    let all = records(store).await;
    ids.push(all[0].message.id);
    assert_eq!(listed(store, &only(&ids)).await, [all[0].message.id]);
    assert_eq!(store.requeue(&change_of(only(&ids)).limit(10_000)).await.unwrap(), [all[0].message.id]);
    store.claim(&request(10_000).lease(day)).await.unwrap();
    store.claim(&request(1).lease(Duration::from_millis(1))).await.unwrap();
    fixture.advance(HOUR).await;
    assert_eq!(store.prune(&Retention::done(MINUTE), 1_000).await.unwrap(), 1);
}

/// Rule 10: a worker's outcome cannot fail because of a number: an endless delay is a very long one, and an endless
/// retention keeps everything.
pub async fn endless_spans_are_very_long_ones<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for outcome in [Outcome::Defer { delay: Duration::MAX }, abandon(Duration::MAX)] {
        let message = leased(store).await;
        apply(store, message.lease(), outcome).await;
        let due = record(store, message.id).await.message.due_at;
        let years = due.duration_since(fixture.now().await).unwrap().as_secs() / (365 * 24 * 3_600);
        assert!((99..=100).contains(&years), "{years} years");
    }
    dead(store, 1).await;
    assert_eq!(numbers(&store.stats().await.unwrap()), [0, 2, 0, 0, 0, 1], "scheduled, and dead");
    fixture.advance(HOUR).await;
    let endless = Retention::done(Duration::MAX).dead(Duration::MAX);
    assert_eq!(store.prune(&endless, 10).await.unwrap(), 0);
}
