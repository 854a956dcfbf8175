//! Messages that are given up after their expiry.

use std::sync::Arc;

use posthaste_core::{FailureClass, Outcome, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// The transition ready to dead by expiry: not claimed any more, and dead with its reason once it is swept.
pub async fn expired_is_not_claimed<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let now = fixture.now().await;
    let after = draft("topic").expires_after(HOUR).build().unwrap();
    let at = draft("topic").expires_at(now + HOUR).build().unwrap();
    let ids = enqueue(store, &[after, at, plain()]).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 0);
    fixture.advance(HOUR + MINUTE).await;
    assert_eq!(claim_ids(store, 10).await, ids[2..]);
    assert_eq!(state(store, ids[0]).await, Some(State::Ready), "a claim does not change it");
    assert_eq!(store.expire(10).await.unwrap().messages, 2);
    assert_eq!(store.expire(10).await.unwrap().messages, 0, "once");
    for id in &ids[..2] {
        let record = record(store, *id).await;
        assert_eq!((record.state, record.message.attempts, record.message.epoch), (State::Dead, 0, 0));
        assert_eq!(record.error_class, Some(FailureClass::Expired));
        assert_eq!(record.last_error.as_deref(), Some("expired"));
        assert_near(record.done_at.unwrap(), fixture.now().await);
        assert!(record.message.expires_at.is_some());
    }
}

/// Before its time an expiry means nothing.
pub async fn not_expired_is_claimed<F: Fixture>(fixture: &Arc<F>) {
    let id = enqueue_one(fixture.store(), draft("topic").expires_after(HOUR).build().unwrap()).await;
    fixture.advance(HOUR - 2 * MINUTE).await;
    assert_eq!(fixture.store().expire(10).await.unwrap().messages, 0);
    assert_eq!(claim_one(fixture.store()).await.id, id);
}

/// Enqueued too late: expired from the first.
pub async fn expired_from_the_first<F: Fixture>(fixture: &Arc<F>) {
    let past = fixture.now().await - HOUR;
    enqueue_one(fixture.store(), draft("topic").expires_at(past).build().unwrap()).await;
    assert!(claim(fixture.store(), 10).await.is_empty());
    assert_eq!(fixture.store().expire(10).await.unwrap().messages, 1);
}

/// Only unclaimed messages expire: a leased message is its worker's, and done and dead ones stay as they are.
pub async fn only_ready_ones_expire<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = || draft("topic").expires_after(HOUR).build().unwrap();
    enqueue(store, &[expiring(), expiring(), expiring()]).await;
    let held = store.claim(&request(3).lease(10 * HOUR)).await.unwrap();
    apply(store, held[1].lease(), Outcome::Ack).await;
    apply(store, held[2].lease(), fail()).await;
    fixture.advance(HOUR + MINUTE).await;
    let before = records(store).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 0);
    assert_eq!(records(store).await, before);
    apply(store, held[0].lease(), Outcome::Release).await;
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
}

/// An expired message holds its key only until it is swept; the same for one that is buried.
pub async fn expired_and_buried_hold_no_key<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = draft("topic").key("k").expires_after(HOUR).build().unwrap();
    let ids = enqueue(store, &[expiring, keyed("k"), keyed("k")]).await;
    fixture.advance(HOUR + MINUTE).await;
    assert!(claim(store, 10).await.is_empty(), "no message of a key is passed over before it is over");
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    assert!(!record(store, ids[0]).await.holds_key());
    let bury = change_of(only(&ids[1..2]));
    assert_eq!(store.bury(&bury).await.unwrap(), ids[1..2]);
    assert!(!record(store, ids[1]).await.holds_key());
    assert_eq!(claim_ids(store, 10).await, ids[2..]);
}

/// A batch of expired ones, in portions.
pub async fn expire_in_portions<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = || draft("topic").expires_after(HOUR).build().unwrap();
    enqueue(store, &(0..25).map(|_| expiring()).collect::<Vec<_>>()).await;
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 10);
    assert_eq!(numbers(&store.stats().await.unwrap()), [15, 0, 0, 0, 0, 10]);
    assert_eq!(store.expire(10_000).await.unwrap().messages, 15);
}
