//! Per-key order: one at a time, in the order of enqueueing, whatever the fate of earlier ones.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Failure, NewMessage, OrderPolicy, Outcome, Retention, State, Store, StoreAdmin, Topics,
};

use super::support::*;
use crate::Fixture;

fn with_policy(policy: OrderPolicy) -> NewMessage {
    draft("topic").key("k").order(policy).build().unwrap()
}

/// Promise 5: of a key, only the first that is not over is claimed, and the next only after its ack.
pub async fn one_of_a_key_at_a_time<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[keyed("a"), keyed("a"), keyed("b"), keyed("a"), plain(), plain()]).await;
    let held = claim(store, 10).await;
    let claimed: Vec<_> = held.iter().map(|message| message.id).collect();
    assert_eq!(claimed, [ids[0], ids[2], ids[4], ids[5]]);
    assert!(claim(store, 10).await.is_empty(), "a leased one holds its key");
    apply(store, held[0].lease(), Outcome::Ack).await;
    let next = claim_one(store).await;
    assert_eq!(next.id, ids[1]);
    apply(&fixture.store_that_deletes(), next.lease(), Outcome::Ack).await;
    assert_eq!(claim_one(store).await.id, ids[3]);
}

/// Promise 5: a failed attempt, a deferral, a release and a lost lease all hold the key until it is their turn again.
pub async fn a_key_waits_for_its_first<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[keyed("a"), keyed("a")]).await;
    for outcome in [abandon(HOUR), Outcome::Defer { delay: HOUR }] {
        let held = claim_one(store).await;
        assert_eq!(held.id, ids[0]);
        apply(store, held.lease(), outcome).await;
        assert!(claim(store, 10).await.is_empty(), "the second waits for the first");
        fixture.advance(HOUR + MINUTE).await;
    }
    let held = claim_one(store).await;
    assert_eq!(held.id, ids[0]);
    apply(store, held.lease(), Outcome::Release).await;
    assert_eq!(claim_one(store).await.id, ids[0]);
    fixture.advance(LEASE + MINUTE).await;
    assert!(claim(store, 10).await.is_empty(), "a lease that ran out still holds the key");
    store.reap(10).await.unwrap();
    assert_eq!(claim_one(store).await.id, ids[0], "a suspect holds its key, too");
}

/// Promise 5: a scheduled message holds its key, and neither priority nor due time overtakes within a key.
pub async fn nothing_overtakes_within_a_key<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let first = draft("topic").key("k").delay(HOUR).priority(9).build().unwrap();
    let second = draft("topic").key("k").priority(-9).build().unwrap();
    let ids = enqueue(store, &[first, second]).await;
    assert!(claim(store, 10).await.is_empty());
    fixture.advance(HOUR + MINUTE).await;
    for id in ids {
        let held = claim_one(store).await;
        assert_eq!(held.id, id);
        apply(store, held.lease(), Outcome::Ack).await;
    }
}

/// Rule 14: a key is one key over all topics, so a message without a handler here holds back later messages that have
/// one.
pub async fn a_key_spans_topics<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let first = enqueue_one(store, draft("unknown").key("k").build().unwrap()).await;
    let second = enqueue_one(store, draft("known").key("k").build().unwrap()).await;
    let known = request(10).topics(Topics::of(["known"]).unwrap());
    assert!(store.claim(&known).await.unwrap().is_empty());
    let held = claim_one(store).await;
    assert_eq!(held.id, first);
    apply(store, held.lease(), Outcome::Ack).await;
    assert_eq!(store.claim(&known).await.unwrap()[0].id, second);
}

/// OBX-010 for keys: keys that differ in case, in a space or in composition are different.
pub async fn keys_are_compared_byte_by_byte<F: Fixture>(fixture: &Arc<F>) {
    let keys = ["key", "Key", "KEY", "key ", " key", "kéy", "ke\u{301}y", "keý", "ke", "ß", "ss"];
    let batch: Vec<_> = keys.iter().map(|key| keyed(key)).collect();
    let ids = enqueue(fixture.store(), &batch).await;
    assert_eq!(claim_ids(fixture.store(), 100).await, ids, "each is the first of its own key");
    for (key, id) in keys.iter().zip(&ids) {
        let filter = posthaste_core::Filter { key: Some((*key).to_owned()), ..Default::default() };
        assert_eq!(listed(fixture.store(), &filter).await, [*id], "{key:?}");
    }
}

/// `block`: a dead message holds its key until it is requeued, and then it is first.
pub async fn block_holds_until_requeued<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let head = dead_from(store, with_policy(OrderPolicy::Block)).await;
    let next = enqueue_one(store, keyed("k")).await;
    let other = enqueue_one(store, keyed("other")).await;
    assert_eq!(claim_ids(store, 10).await, [other]);
    assert_eq!(store.park(10).await.unwrap(), 0, "blocking is not parking");
    fixture.advance(HOUR).await;
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(store.requeue(&change_of(only(&[head]))).await.unwrap(), [head]);
    let held = claim_one(store).await;
    assert_eq!(held.id, head);
    apply(store, held.lease(), Outcome::Ack).await;
    assert_eq!(claim_one(store).await.id, next);
}

/// `block`: burying the dead message lets its key go on, and so does pruning it.
pub async fn block_ends_with_burial_or_pruning<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for bury in [true, false] {
        let head = dead_from(store, with_policy(OrderPolicy::Block)).await;
        let next = enqueue_one(store, keyed("k")).await;
        assert!(claim(store, 10).await.is_empty());
        if bury {
            assert_eq!(store.bury(&change_of(only(&[head]))).await.unwrap(), [head]);
            assert_eq!(state(store, head).await, Some(State::Dead));
        } else {
            fixture.advance(2 * HOUR).await;
            assert_eq!(store.prune(&Retention::done(HOUR).dead(HOUR), 1_000).await.unwrap(), 2);
        }
        let held = claim_one(store).await;
        assert_eq!(held.id, next);
        apply(&fixture.store_that_deletes(), held.lease(), Outcome::Ack).await;
    }
}

/// `block`: every way of dying holds the key, but for expiry and burial.
pub async fn every_death_blocks<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let held = leased_from(store, keyed("abandoned")).await;
    let failure = Failure::business("no");
    apply(
        store,
        held.lease(),
        Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 1, max_age: None },
    )
    .await;
    dead_from(store, keyed("failed")).await;
    for key in ["abandoned", "failed"] {
        enqueue_one(store, keyed(key)).await;
    }
    assert!(claim(store, 10).await.is_empty());
}

/// `skip`: later messages of the key go on without the dead one, and it can be requeued all the same.
pub async fn skip_goes_on<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let head = dead_from(store, with_policy(OrderPolicy::Skip)).await;
    let next = leased_from(store, keyed("k")).await;
    assert_eq!(store.park(10).await.unwrap(), 0);
    assert_eq!(store.requeue(&change()).await.unwrap(), [head]);
    let last = enqueue_one(store, keyed("k")).await;
    // The requeued one is the first of its key by its number. The next one was already delivered, which cannot be
    // undone, but the last one waits for both.
    assert_eq!(claim_ids(store, 10).await, [head]);
    apply(store, next.lease(), Outcome::Ack).await;
    assert!(claim(store, 10).await.is_empty(), "{last} waits");
}

/// A policy belongs to the message that dies, not to those behind it.
pub async fn the_dead_ones_policy_decides<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    dead_from(store, with_policy(OrderPolicy::Block)).await;
    enqueue_one(store, with_policy(OrderPolicy::Skip)).await;
    assert!(claim(store, 10).await.is_empty());
    let skipped = draft("topic").key("other").order(OrderPolicy::Skip).build().unwrap();
    dead_from(store, skipped).await;
    let blocking = enqueue_one(store, keyed("other")).await;
    assert_eq!(claim_ids(store, 10).await, [blocking]);
}

/// A dead message holds back only its own key, and only messages enqueued after it.
pub async fn a_death_holds_back_only_what_is_behind_it<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[with_policy(OrderPolicy::Skip), with_policy(OrderPolicy::Block)]).await;
    let first = claim_one(store).await;
    apply(store, first.lease(), fail()).await;
    let second = claim_one(store).await;
    assert_eq!(second.id, ids[1]);
    apply(store, second.lease(), fail()).await;
    store.requeue(&change_of(only(&ids[..1]))).await.unwrap();
    assert_eq!(claim_ids(store, 10).await, ids[..1], "it is ahead of the one that blocks");
}

/// Promise 5: a message that dies, comes back or is removed while it waits for its turn has it when its turn comes, and so have those
/// behind it.
pub async fn what_waits_may_die_and_come_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = draft("topic").key("k").expires_after(HOUR).build().unwrap();
    let ids = enqueue(store, &[keyed("k"), keyed("k"), expiring, keyed("k")]).await;
    let first = claim_one(store).await;
    assert_eq!(store.bury(&change_of(only(&ids[1..2]))).await.unwrap(), ids[1..2]);
    assert_eq!(store.requeue(&change_of(only(&ids[1..2]))).await.unwrap(), ids[1..2]);
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    apply(store, first.lease(), Outcome::Ack).await;
    for id in [ids[1], ids[3]] {
        let held = claim_one(store).await;
        assert_eq!(held.id, id);
        assert!(claim(store, 10).await.is_empty(), "one at a time");
        apply(store, held.lease(), Outcome::Ack).await;
    }
    assert_eq!(store.requeue(&change_of(only(&ids[2..3]))).await.unwrap(), ids[2..3]);
    assert_eq!(claim_ids(store, 10).await, ids[2..3]);
}

/// Promise 5: a requeued message is in front of those that were free without it, and when it dies again, it holds them back.
pub async fn a_requeued_one_is_in_front_again<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[with_policy(OrderPolicy::Block), keyed("k")]).await;
    assert_eq!(store.bury(&change_of(only(&ids[..1]))).await.unwrap(), ids[..1]);
    assert_eq!(store.requeue(&change_of(only(&ids[..1]))).await.unwrap(), ids[..1]);
    let held = claim_one(store).await;
    assert_eq!(held.id, ids[0]);
    assert!(claim(store, 10).await.is_empty(), "the other one waits while it is leased");
    apply(store, held.lease(), fail()).await;
    assert!(claim(store, 10).await.is_empty(), "and behind a dead one");
    assert_eq!(store.bury(&change_of(only(&ids[..1]))).await.unwrap(), ids[..1]);
    assert_eq!(claim_ids(store, 10).await, ids[1..]);
}
