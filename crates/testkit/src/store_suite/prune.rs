//! Removing, or archiving, done and dead messages that are old enough.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{MessageId, Outcome, Retention, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// One message in each state: ready, leased, done, dead.
async fn one_in_each_state<S: StoreAdmin>(store: &S) -> Vec<MessageId> {
    let ids = enqueue(store, &plains(4)).await;
    let held = claim(store, 4).await;
    apply(store, held[0].lease(), Outcome::Release).await;
    apply(store, held[2].lease(), Outcome::Ack).await;
    apply(store, held[3].lease(), fail()).await;
    ids
}

/// RMQ-011: done ones go when their retention is over, dead ones only if told to, ready and leased ones never.
pub async fn retention_decides<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = one_in_each_state(store).await;
    let everything = Retention::done(Duration::ZERO).dead(Duration::ZERO);
    fixture.advance(10 * HOUR).await;
    let before = records(store).await;
    assert_eq!(store.prune(&Retention::done(11 * HOUR).dead(11 * HOUR), 100).await.unwrap(), 0, "too young");
    assert_eq!(records(store).await, before);
    assert_eq!(store.prune(&Retention::done(9 * HOUR), 100).await.unwrap(), 1, "dead ones are kept for ever");
    assert_eq!((state(store, ids[2]).await, state(store, ids[3]).await), (None, Some(State::Dead)));
    assert_eq!(store.prune(&Retention::done(9 * HOUR).dead(11 * HOUR), 100).await.unwrap(), 0);
    assert_eq!(store.prune(&Retention::done(11 * HOUR).dead(9 * HOUR), 100).await.unwrap(), 1);
    fixture.advance(1_000 * HOUR).await;
    assert_eq!(store.prune(&everything, 100).await.unwrap(), 0);
    assert_eq!(records(store).await.len(), 2);
    assert_eq!(state(store, ids[0]).await, Some(State::Ready));
    assert_eq!(state(store, ids[1]).await, Some(State::Leased));
    assert!(fixture.archived().await.is_empty());
}

/// RMQ-011: the age counts from the end of a message, not from its enqueueing.
pub async fn age_counts_from_the_end<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(2)).await;
    fixture.advance(100 * HOUR).await;
    let held = claim(store, 2).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), fail()).await;
    fixture.advance(HOUR).await;
    assert_eq!(store.prune(&Retention::done(2 * HOUR).dead(2 * HOUR), 100).await.unwrap(), 0);
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.prune(&Retention::done(2 * HOUR).dead(2 * HOUR), 100).await.unwrap(), 2);
}

/// RMQ-011: archived messages leave the queue, are in the archive once, and are not found any more.
pub async fn archived_messages_leave_the_queue<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = one_in_each_state(store).await;
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.prune(&Retention::done(HOUR).archive(), 100).await.unwrap(), 1);
    assert_eq!(fixture.archived().await, ids[2..3]);
    assert_eq!(store.prune(&Retention::done(HOUR).dead(HOUR).archive(), 100).await.unwrap(), 1);
    assert_eq!(fixture.archived().await, ids[2..]);
    assert!(store.show(ids[2]).await.unwrap().is_none());
    assert_eq!(store.prune(&Retention::done(HOUR).dead(HOUR).archive(), 100).await.unwrap(), 0);
    assert_eq!(fixture.archived().await.len(), 2);
}

/// RMQ-011: the same message, published again after it was archived, is new, and can be archived again.
pub async fn an_archived_message_can_return<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = draft("topic").dedup_key("once").build().unwrap();
    for _ in 0..2 {
        let held = leased_from(store, message.clone()).await;
        apply(store, held.lease(), Outcome::Ack).await;
        fixture.advance(2 * HOUR).await;
        assert_eq!(store.prune(&Retention::done(HOUR).archive(), 100).await.unwrap(), 1);
        assert!(fixture.archived().await.contains(&message.id()));
    }
}

/// Transition done or dead to gone: in batches of at most the given size.
pub async fn prune_in_portions<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    dead(store, 1_500).await;
    fixture.advance(2 * HOUR).await;
    let retention = Retention::done(HOUR).dead(HOUR);
    assert_eq!(store.prune(&retention, 1).await.unwrap(), 1);
    assert_eq!(store.prune(&retention, 1_000).await.unwrap(), 1_000);
    assert_eq!(numbers(&store.stats().await.unwrap()), [0, 0, 0, 0, 0, 499]);
    assert_eq!(store.prune(&retention, 1_000).await.unwrap(), 499);
    assert_eq!(store.prune(&retention, 1_000).await.unwrap(), 0);
}

/// A message that an operator changed can be pruned, history and all, and so can one that went the whole way.
pub async fn history_goes_with_its_message<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = keyed("k");
    let id = dead_from(store, message.clone()).await;
    store.requeue(&change()).await.unwrap();
    let held = claim_one(store).await;
    apply(store, held.lease(), Outcome::Ack).await;
    assert_eq!(history(store, id).await.len(), 1);
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.prune(&Retention::done(HOUR), 10).await.unwrap(), 1);
    assert!(store.show(id).await.unwrap().is_none());
    // The same id again is another row, with no past.
    enqueue_one(store, message).await;
    assert!(history(store, id).await.is_empty());
}
