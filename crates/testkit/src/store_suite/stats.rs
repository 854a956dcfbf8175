//! What operators count.

use std::sync::Arc;

use posthaste_core::{Count, Failure, FailureClass, OrderPolicy, Outcome, State, StoreAdmin, TopicCount};

use super::support::*;
use crate::Fixture;

/// RMQ-010: an empty queue has nothing to count.
pub async fn nothing_to_count<F: Fixture>(fixture: &Arc<F>) {
    let stats = fixture.store().stats().await.unwrap();
    assert_eq!(numbers(&stats), [0; 6]);
    assert_eq!((stats.topics, stats.oldest_ready), (vec![], None));
}

/// RMQ-010: small numbers are exact, by state and by topic; done ones are not told apart by topic.
pub async fn small_numbers_are_exact<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let of = |topic: &str| draft(topic).build().unwrap();
    dead_from(store, draft("b").key("k").order(OrderPolicy::Park).build().unwrap()).await;
    enqueue(store, &[draft("b").key("k").build().unwrap()]).await;
    posthaste_core::Store::park(store, 10).await.unwrap();
    for _ in 0..2 {
        let held = leased_from(store, of("a")).await;
        apply(store, held.lease(), Outcome::Ack).await;
    }
    for _ in 0..3 {
        leased_from(store, of("B")).await;
    }
    let held = leased_from(store, of("a")).await;
    apply(store, held.lease(), abandon(HOUR)).await;
    enqueue(store, &[draft("a").delay(HOUR).build().unwrap(), of("a"), of("a "), of("a")]).await;
    let stats = store.stats().await.unwrap();
    assert_eq!(numbers(&stats), [3, 2, 1, 3, 2, 1]);
    let count = |topic: &str, state, value| TopicCount {
        topic: topic.to_owned(),
        state,
        count: Count { value, exact: true },
    };
    let expected = [
        count("B", State::Leased, 3),
        count("a", State::Ready, 4),
        count("a ", State::Ready, 1),
        count("b", State::Ready, 1),
        count("b", State::Dead, 1),
    ];
    assert_eq!(stats.topics, expected);
}

/// F1: what waits for the end of an outage, or for a route, is counted, with how long that has been so.
pub async fn what_fails_without_charge_is_counted<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let failing = async || {
        let stats = store.stats().await.unwrap();
        (stats.scheduled.value, stats.failing.value, stats.oldest_failing)
    };
    let later = |class| Outcome::Abandon {
        delay: 2 * HOUR,
        failure: Failure::new(class, "down"),
        max_attempts: 9,
        max_age: None,
    };
    let held = leased(store).await;
    apply(store, held.lease(), later(FailureClass::Business)).await;
    assert_eq!(failing().await, (1, 0, None));
    for class in [FailureClass::Infrastructure, FailureClass::Unroutable] {
        let held = leased(store).await;
        apply(store, held.lease(), later(class)).await;
        fixture.advance(HOUR / 2).await;
    }
    let (scheduled, count, oldest) = failing().await;
    assert_eq!((scheduled, count), (3, 2));
    assert!(oldest.is_some_and(|age| age >= HOUR && age < HOUR + TOLERANCE), "{oldest:?}");
    fixture.advance(3 * HOUR).await;
    assert_eq!(failing().await, (0, 0, None), "what is due is ready, and counted as such");
}

/// HOT-016, RMQ-010: the age of the oldest covers ready and due messages, from when they were due.
pub async fn the_oldest_is_ready_and_due<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let held = leased(store).await;
    enqueue_one(store, draft("topic").delay(2 * HOUR).build().unwrap()).await;
    dead_from(store, plain()).await;
    assert_eq!(store.stats().await.unwrap().oldest_ready, None);
    fixture.advance(3 * HOUR).await;
    let oldest = store.stats().await.unwrap().oldest_ready.unwrap();
    assert!(oldest >= HOUR && oldest < HOUR + TOLERANCE, "{oldest:?}");
    apply(store, held.lease(), Outcome::Release).await;
    let oldest = store.stats().await.unwrap().oldest_ready.unwrap();
    assert!(oldest >= 3 * HOUR && oldest < 3 * HOUR + TOLERANCE, "{oldest:?}");
}
