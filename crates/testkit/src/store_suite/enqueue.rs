//! Storing messages outside of a user's transaction: stored fields, due times and duplicates.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Enqueued, ErrorKind, MessageId, NewMessage, OrderPolicy, Outcome, Retention, State, Store, StoreAdmin,
    Uuid,
};

use super::support::*;
use crate::Fixture;

/// OBX-001, OBX-002, OBX-015, OBX-016, OBX-097, HOT-008: a message is stored, as it was given, in a transaction of its
/// own, ready and uncharged, with the database's time.
pub async fn a_message_is_stored_as_given<F: Fixture>(fixture: &Arc<F>) {
    let now = fixture.now().await;
    let message = NewMessage::bytes("order.placed", "{\"order\":7}")
        .key("customer-12")
        .order(OrderPolicy::Park)
        .dedup_key("order-7")
        .content_type("application/json")
        .header("source", "shop")
        .header("trace", "1-2")
        .correlation_id("request-3")
        .aggregate("order", 7)
        .tenant_id("acme")
        .occurred_at(now - HOUR)
        .delay(HOUR)
        .expires_after(2 * HOUR)
        .priority(-3)
        .build()
        .unwrap();
    let id = enqueue_one(fixture.store(), message.clone()).await;
    let (record, history) = fixture.store_that_deletes().show(id).await.unwrap().unwrap();
    let stored = &record.message;
    assert_eq!((stored.id, stored.epoch, stored.attempts, stored.lease_losses), (message.id(), 0, 0, 0));
    assert_eq!(stored.topic.as_str(), "order.placed");
    assert_eq!((stored.key.as_deref(), stored.order), (Some("customer-12"), OrderPolicy::Park));
    assert_eq!(&stored.payload[..], message.payload());
    assert_eq!((stored.content_type.as_str(), stored.priority), ("application/json", -3));
    assert_eq!(&stored.headers, message.headers());
    assert_eq!(stored.correlation_id.as_deref(), Some("request-3"));
    assert_eq!(stored.aggregate_type.as_deref(), Some("order"));
    assert_eq!(stored.aggregate_id.as_deref(), Some("7"));
    assert_eq!(stored.tenant_id.as_deref(), Some("acme"));
    assert_near(stored.occurred_at, now - HOUR);
    assert_near(stored.created_at, now);
    assert_near(stored.due_at, now + HOUR);
    assert_near(stored.expires_at.unwrap(), now + 2 * HOUR);
    assert_eq!((record.state, record.parked), (State::Ready, false));
    assert_eq!((record.leased_until, &record.worker), (None, &None));
    assert_eq!((record.done_at, &record.done_by), (None, &None));
    assert_eq!((record.error_class, &record.last_error), (None, &None));
    assert!(history.is_empty());
}

/// OBX-008, OBX-016: a field that is left out is none, and an empty text is the same as none.
pub async fn what_is_left_out_is_none<F: Fixture>(fixture: &Arc<F>) {
    let bare = plain();
    let empty = draft("topic").key("").correlation_id("").aggregate("", "").tenant_id("").dedup_key("");
    for message in [bare, empty.build().unwrap()] {
        let id = enqueue_one(fixture.store(), message).await;
        let stored = record(fixture.store(), id).await.message;
        assert_eq!((stored.key, stored.correlation_id, stored.tenant_id), (None, None, None));
        assert_eq!((stored.aggregate_type, stored.aggregate_id), (None, None));
        assert!(stored.headers.is_empty() && stored.expires_at.is_none());
        assert_eq!((stored.order, stored.priority), (OrderPolicy::Block, 0));
        assert_near(stored.occurred_at, fixture.now().await);
        assert_near(stored.due_at, fixture.now().await);
    }
}

/// OBX-004, OBX-007, OBX-009: what no store could keep does not become a message in the first place.
pub async fn impossible_messages_are_refused<F: Fixture>(fixture: &Arc<F>) {
    for impossible in [
        draft(""),
        draft(&"t".repeat(256)),
        draft("t\0"),
        draft("topic").correlation_id("c".repeat(256)),
        draft("topic").key("k".repeat(256)),
    ] {
        assert_eq!(impossible.build().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert!(records(fixture.store()).await.is_empty());
}

/// OBX-014: every message has a number of its own, and the numbers follow the order of enqueueing.
pub async fn numbers_follow_the_order_of_enqueueing<F: Fixture>(fixture: &Arc<F>) {
    let mut ids = enqueue(fixture.store(), &plains(5)).await;
    for _ in 0..3 {
        ids.push(enqueue_one(fixture.store(), plain()).await);
    }
    // Ids of the caller's own need not be in any order.
    let uuids = [9_u128, 3, 7].map(|n| Uuid::from_u128(n << 64 | 0x8000_0000_0000_0001));
    let own: Vec<_> = uuids.iter().map(|uuid| draft("topic").id(*uuid).build().unwrap()).collect();
    ids.extend(enqueue(fixture.store(), &own).await);
    let records = records(fixture.store()).await;
    assert_eq!(records.iter().map(|record| record.message.id).collect::<Vec<_>>(), ids);
    assert!(records.windows(2).all(|pair| pair[0].message.item < pair[1].message.item));
    assert_eq!(claim_ids(fixture.store(), 100).await, ids);
}

/// OBX-001: enqueueing nothing is no error and stores nothing.
pub async fn nothing_can_be_enqueued<F: Fixture>(fixture: &Arc<F>) {
    assert_eq!(fixture.store().enqueue(&[]).await.unwrap(), []);
    assert!(records(fixture.store()).await.is_empty());
}

/// OBX-001, OBX-097: a batch of any size is stored as one, in its order.
pub async fn batches_of_any_size<F: Fixture>(fixture: &Arc<F>) {
    for size in [1, 2, 999, 1_000] {
        let ids = enqueue(fixture.store(), &plains(size)).await;
        assert_eq!(claim_ids(fixture.store(), 10_000).await, ids);
    }
}

/// OBX-001: five thousand messages, with every field in use, exceed no limit on parameters.
pub async fn a_batch_of_five_thousand<F: Fixture>(fixture: &Arc<F>) {
    let full = |n: usize| {
        draft("topic")
            .key(format!("key-{n}"))
            .dedup_key(format!("dedup-{n}"))
            .header("n", n.to_string())
            .correlation_id(format!("correlation-{n}"))
            .aggregate("order", n)
            .tenant_id(format!("tenant-{}", n % 7))
            .expires_after(HOUR)
            .build()
            .unwrap()
    };
    let batch: Vec<_> = (0..5_000).map(full).collect();
    let ids = enqueue(fixture.store(), &batch).await;
    assert_eq!(claim_ids(fixture.store(), 10_000).await, ids);
    let last = record(fixture.store(), ids[4_999]).await.message;
    assert_eq!(last.headers["n"], "4999");
    let again = fixture.store().enqueue(&batch).await.unwrap();
    assert!(again.iter().zip(&ids).all(|(twin, id)| *twin == Enqueued::Duplicate { id: *id }));
}

/// OBX-012, OBX-018: a message with a due time is not claimed before it, and is after it.
pub async fn scheduled_messages_wait<F: Fixture>(fixture: &Arc<F>) {
    let now = fixture.now().await;
    let by_delay = enqueue_one(fixture.store(), draft("topic").delay(HOUR).build().unwrap()).await;
    let by_time = enqueue_one(fixture.store(), draft("topic").due_at(now + 2 * HOUR).build().unwrap()).await;
    let at_once = enqueue_one(fixture.store(), draft("topic").delay(Duration::ZERO).build().unwrap()).await;
    assert_near(record(fixture.store(), by_delay).await.message.due_at, now + HOUR);
    assert_near(record(fixture.store(), by_time).await.message.due_at, now + 2 * HOUR);
    assert_eq!(claim_ids(fixture.store(), 10).await, [at_once]);
    fixture.advance(HOUR - 2 * MINUTE).await;
    assert!(claim(fixture.store(), 10).await.is_empty());
    fixture.advance(4 * MINUTE).await;
    assert_eq!(claim_ids(fixture.store(), 10).await, [by_delay]);
    fixture.advance(HOUR).await;
    assert_eq!(claim_ids(fixture.store(), 10).await, [by_time]);
}

/// OBX-013: a due time in the past means now, and does not push a message ahead of messages that waited longer.
pub async fn a_past_due_time_means_now<F: Fixture>(fixture: &Arc<F>) {
    let first = enqueue_one(fixture.store(), plain()).await;
    let now = fixture.now().await;
    let past = draft("topic").due_at(now - 9 * HOUR).build().unwrap();
    let ancient = draft("topic").due_at(std::time::SystemTime::UNIX_EPOCH).build().unwrap();
    let late = enqueue(fixture.store(), &[past, ancient]).await;
    for id in &late {
        assert_near(record(fixture.store(), *id).await.message.due_at, now);
    }
    assert_eq!(claim_ids(fixture.store(), 10).await, [first, late[0], late[1]]);
}

/// OBX-001: the same dedup key, or the same id, is stored once; the answer names the one that is stored, and the rest of
/// the batch is stored all the same.
pub async fn duplicates_are_stored_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let with_dedup = || draft("topic").dedup_key("invoice-7").build().unwrap();
    let first = with_dedup();
    let other = plain();
    enqueue(store, &[first.clone(), other.clone()]).await;
    let before = records(store).await;
    let (second, same_id) = (with_dedup(), draft("elsewhere").id(other.id()).build().unwrap());
    let new = plain();
    let batch = [second, new.clone(), same_id, first.clone()];
    let enqueued = store.enqueue(&batch).await.unwrap();
    let duplicate = |id: MessageId| Enqueued::Duplicate { id };
    assert_eq!(
        enqueued,
        [
            duplicate(first.id()),
            Enqueued::New { id: new.id(), lease: None },
            duplicate(other.id()),
            duplicate(first.id()),
        ]
    );
    let after = records(store).await;
    assert_eq!(after[..2], before[..], "the stored ones are untouched");
    assert_eq!((after.len(), after[2].message.id), (3, new.id()));
}

/// OBX-001: duplicates within one batch are found, too, and the first one is stored.
pub async fn duplicates_within_a_batch<F: Fixture>(fixture: &Arc<F>) {
    let with_dedup = |key: &str| draft("topic").dedup_key(key).build().unwrap();
    let (a, b, plain) = (with_dedup("a"), with_dedup("b"), plain());
    let batch = [a.clone(), with_dedup("a"), b.clone(), plain.clone(), plain.clone(), with_dedup("a")];
    let enqueued = fixture.store().enqueue(&batch).await.unwrap();
    assert_eq!(
        enqueued.iter().map(|answer| (answer.id(), answer.is_duplicate())).collect::<Vec<_>>(),
        [
            (a.id(), false),
            (a.id(), true),
            (b.id(), false),
            (plain.id(), false),
            (plain.id(), true),
            (a.id(), true)
        ]
    );
    let ids: Vec<_> = records(fixture.store()).await.iter().map(|record| record.message.id).collect();
    assert_eq!(ids, [a.id(), b.id(), plain.id()]);
}

/// OBX-001: dedup keys are compared byte by byte; messages without one are never each other's duplicates.
pub async fn dedup_keys_that_differ_are_different<F: Fixture>(fixture: &Arc<F>) {
    let keys = ["key", "Key", "key ", " key", "ke\u{301}y", "k\u{e9}y", "key\0", "\0"];
    let batch: Vec<_> = keys.iter().map(|key| draft("topic").dedup_key(key).build().unwrap()).collect();
    enqueue(fixture.store(), &batch).await;
    enqueue(fixture.store(), &plains(3)).await;
    assert_eq!(records(fixture.store()).await.len(), keys.len() + 3);
}

/// OBX-001: a dedup key holds as long as its message is stored, whatever state that is in, and no longer.
pub async fn a_dedup_key_lives_as_long_as_its_message<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let with_dedup = || draft("topic").dedup_key("once").build().unwrap();
    let first = leased_from(store, with_dedup()).await;
    let is_twin = |answer: &[Enqueued]| answer == [Enqueued::Duplicate { id: first.id }];
    assert!(is_twin(&store.enqueue(&[with_dedup()]).await.unwrap()), "leased");
    apply(store, first.lease(), Outcome::Ack).await;
    assert!(is_twin(&store.enqueue(&[with_dedup()]).await.unwrap()), "done");
    fixture.advance(HOUR).await;
    assert_eq!(store.prune(&Retention::done(MINUTE), 10).await.unwrap(), 1);
    let second = leased_from(store, with_dedup()).await;
    apply(&fixture.store_that_deletes(), second.lease(), Outcome::Ack).await;
    let third = dead_from(store, with_dedup()).await;
    let again = store.enqueue(&[with_dedup()]).await.unwrap();
    assert_eq!(again, [Enqueued::Duplicate { id: third }], "dead");
}
