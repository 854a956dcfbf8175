//! Claims: which messages, how many, in which order, and the changes that a claim makes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{ClaimRequest, Lease, MessageId, Outcome, State, Store, StoreAdmin, Topics};

use super::support::*;
use crate::Fixture;

/// OBX-017, OBX-019, OBX-020, OBX-021, OBX-022: a claim leases the returned messages to its worker, for the requested
/// time.
pub async fn a_claim_leases<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    let before = record(store, id).await;
    let request = ClaimRequest::new(worker("ada")).lease(2 * HOUR);
    let claimed = store.claim(&request).await.unwrap();
    let record = record(store, id).await;
    assert_eq!(claimed, std::slice::from_ref(&record.message), "a claim returns what is stored");
    assert_eq!((record.state, &record.worker), (State::Leased, &Some(worker("ada"))));
    assert_near(record.leased_until.unwrap(), fixture.now().await + 2 * HOUR);
    assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
    assert_eq!(record.message.due_at, before.message.due_at);
    assert_eq!((record.done_at, record.last_error), (None, None));
    assert!(claim(store, 10).await.is_empty(), "it is somebody's already");
}

/// OBX-020: each claim of a message has an epoch of its own, and none is zero.
pub async fn every_claim_has_its_epoch<F: Fixture>(fixture: &Arc<F>) {
    let id = enqueue_one(fixture.store(), plain()).await;
    let mut epochs = HashSet::from([0]);
    for _ in 1..=5 {
        let message = claim_one(fixture.store()).await;
        assert_eq!(message.id, id);
        assert!(epochs.insert(message.epoch), "{} again", message.epoch);
        assert_eq!(message.lease(), Lease { item: message.item, epoch: message.epoch });
        apply(fixture.store(), message.lease(), Outcome::Release).await;
    }
}

/// OBX-023: nothing to claim is no error.
pub async fn an_empty_queue_has_nothing<F: Fixture>(fixture: &Arc<F>) {
    fixture.store().check().await.unwrap();
    assert!(claim(fixture.store(), 10).await.is_empty());
}

/// OBX-024, OBX-025, OBX-032, OBX-048: done and dead messages are not claimed.
pub async fn what_is_over_is_not_claimed<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let done = leased(store).await;
    apply(store, done.lease(), Outcome::Ack).await;
    dead_from(store, plain()).await;
    fixture.advance(48 * HOUR).await;
    store.reap(10).await.unwrap();
    assert!(claim(store, 10).await.is_empty());
}

/// OBX-026: never more than was asked for, and no fewer than there are.
pub async fn the_limit_holds<F: Fixture>(fixture: &Arc<F>) {
    let ids = enqueue(fixture.store(), &plains(10)).await;
    assert_eq!(claim_ids(fixture.store(), 1).await, ids[..1]);
    assert_eq!(claim_ids(fixture.store(), 3).await, ids[1..4]);
    assert_eq!(claim_ids(fixture.store(), 6).await, ids[4..]);
    assert!(claim(fixture.store(), 1).await.is_empty());
    assert_eq!(numbers(&fixture.store().stats().await.unwrap())[3], 10);
}

/// Rule 11: first by priority, then by due time, then by enqueueing.
pub async fn the_order_of_a_claim<F: Fixture>(fixture: &Arc<F>) {
    let message = |priority, hours: u64| {
        let delay = Duration::from_secs(3_600 * hours);
        draft("topic").priority(priority).delay(delay).build().unwrap()
    };
    let batch = [
        message(0, 2),
        message(0, 1),
        message(1, 0),
        message(-1, 3),
        message(i16::MAX, 0),
        message(0, 1),
        message(i16::MIN, 4),
        message(-1, 2),
    ];
    let ids = enqueue(fixture.store(), &batch).await;
    fixture.advance(5 * HOUR).await;
    let expected: Vec<MessageId> = [6, 7, 3, 1, 5, 0, 2, 4].map(|index: usize| ids[index]).to_vec();
    let mut claimed = claim_ids(fixture.store(), 3).await;
    claimed.extend(claim_ids(fixture.store(), 10).await);
    assert_eq!(claimed, expected);
}

/// Rule 11: messages that have waited longer go first, also between batches, retries and deferred ones.
pub async fn whoever_waited_longer_goes_first<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let tried = leased(store).await;
    apply(store, tried.lease(), abandon(HOUR)).await;
    let second = enqueue_one(store, draft("topic").delay(2 * HOUR).build().unwrap()).await;
    let third = enqueue_one(store, draft("topic").delay(3 * HOUR).build().unwrap()).await;
    fixture.advance(4 * HOUR).await;
    let last = enqueue_one(store, plain()).await;
    assert_eq!(claim_ids(store, 10).await, [tried.id, second, third, last]);
}

/// Rule 14, OBX-010: only topics that were asked for: in full, by their beginning, all, or none.
pub async fn topics_choose<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let names = ["order.placed", "order.paid", "order", "orders", "payment.received", "payment", "x"];
    let batch: Vec<_> = names.iter().map(|topic| draft(topic).build().unwrap()).collect();
    enqueue(store, &batch).await;
    for (patterns, expected) in [
        (vec![], vec![]),
        (vec!["nobody"], vec![]),
        (vec!["orde"], vec![]),
        (vec!["order"], vec!["order"]),
        (vec!["order.*"], vec!["order.placed", "order.paid"]),
        (vec!["order*"], vec!["order.placed", "order.paid", "order", "orders"]),
        (vec!["payment", "order.*", "x"], vec!["order.placed", "order.paid", "payment", "x"]),
        (vec!["p*", "o*"], names[..6].to_vec()),
        (vec!["x", "*"], names.to_vec()),
    ] {
        let request = request(100).topics(Topics::of(&patterns).unwrap());
        let claimed = store.claim(&request).await.unwrap();
        let topics: Vec<_> = claimed.iter().map(|message| message.topic.as_str()).collect();
        assert_eq!(topics, expected, "{patterns:?}");
        for message in &claimed {
            apply(store, message.lease(), Outcome::Release).await;
        }
    }
    let rest = records(store).await;
    assert!(rest.iter().all(|record| record.state == State::Ready && record.message.attempts == 0));
}

/// OBX-010: topics that differ in case, in a trailing space or in composition are different topics.
pub async fn topics_are_compared_byte_by_byte<F: Fixture>(fixture: &Arc<F>) {
    let names = ["Order", "order", "order ", " order", "ordér", "orde\u{301}r", "ORDER", "ordeR"];
    for name in names {
        enqueue_one(fixture.store(), draft(name).build().unwrap()).await;
    }
    for name in names {
        let claimed = fixture.store().claim(&request(10).topics(Topics::of([name]).unwrap())).await.unwrap();
        let topics: Vec<_> = claimed.iter().map(|message| message.topic.as_str()).collect();
        assert_eq!(topics, [name]);
    }
    for name in ["Tail.a", "tail.a", "tail .a", "taíl.a"] {
        enqueue_one(fixture.store(), draft(name).build().unwrap()).await;
    }
    let claimed = fixture.store().claim(&request(10).topics(Topics::of(["tail.*"]).unwrap())).await.unwrap();
    assert_eq!(claimed.iter().map(|message| message.topic.as_str()).collect::<Vec<_>>(), ["tail.a"]);
}

/// Only messages of the claimed topics count towards the limit.
pub async fn other_topics_do_not_use_up_the_limit<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(50)).await;
    let wanted = enqueue_one(store, draft("wanted").build().unwrap()).await;
    let claimed = store.claim(&request(1).topics(Topics::of(["wanted"]).unwrap())).await.unwrap();
    assert_eq!(claimed.iter().map(|message| message.id).collect::<Vec<_>>(), [wanted]);
    // Nor do messages that wait for their key, or for their time.
    enqueue(store, &(0..20).map(|_| keyed("k")).collect::<Vec<_>>()).await;
    enqueue_one(store, draft("topic").delay(HOUR).priority(-1).build().unwrap()).await;
    let last = enqueue_one(store, plain()).await;
    let claimed = claim_ids(store, 52).await;
    assert_eq!((claimed.len(), claimed.last()), (52, Some(&last)));
}

/// HOT-015: a row that cannot be decoded becomes dead, and the others are returned.
pub async fn an_undecodable_row_stops_nothing<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let with_header = || draft("topic").header("a", "b").build().unwrap();
    let ids = enqueue(store, &[with_header(), with_header(), with_header()]).await;
    if !fixture.spoil(ids[1]).await {
        return;
    }
    assert_eq!(claim_ids(store, 10).await, [ids[0], ids[2]]);
    assert_eq!(numbers(&store.stats().await.unwrap()), [0, 0, 0, 2, 0, 1]);
    assert!(claim(store, 10).await.is_empty());
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 2);
}
