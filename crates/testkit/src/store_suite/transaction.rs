//! Publishing in the user's own transaction: it decides, and nothing that happens here may doom it.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Birth, Enqueued, NewMessage, Retention, Store, TransactionalStore, Transactions};

use super::support::*;
use crate::Fixture;

/// Inserts in a transaction.
pub(crate) async fn insert<F: Fixture>(
    fixture: &F,
    tx: &mut F::Transaction,
    messages: &[NewMessage],
) -> Vec<Enqueued> {
    fixture.store().insert(fixture.connection(tx), messages, Birth::Ready).await.unwrap()
}

/// OBX-003, HOT-001: messages published in a transaction are stored when it is committed, all at once.
pub async fn commit_decides<F: Fixture>(fixture: &Arc<F>) {
    let (first, second) = (plains(2), plain());
    let mut tx = fixture.begin().await;
    let enqueued = insert(&**fixture, &mut tx, &first).await;
    assert_eq!(enqueued[1], Enqueued::New { id: first[1].id(), lease: None });
    insert(&**fixture, &mut tx, std::slice::from_ref(&second)).await;
    assert!(insert(&**fixture, &mut tx, &[]).await.is_empty());
    assert!(records(fixture.store()).await.is_empty(), "nothing is visible before the commit");
    fixture.commit(tx).await;
    assert_eq!(claim_ids(fixture.store(), 10).await, [first[0].id(), first[1].id(), second.id()]);
}

/// OBX-003, HOT-002: a message that is rolled back was never there.
pub async fn rollback_leaves_nothing<F: Fixture>(fixture: &Arc<F>) {
    let mut tx = fixture.begin().await;
    let message = draft("topic").dedup_key("once").build().unwrap();
    insert(&**fixture, &mut tx, &[message.clone(), plain()]).await;
    fixture.rollback(tx).await;
    assert!(records(fixture.store()).await.is_empty());
    assert!(claim(fixture.store(), 10).await.is_empty());
    // The same message again is no duplicate of what never was.
    enqueue_one(fixture.store(), message).await;
}

/// HOT-002: a savepoint rolled back inside a committed transaction removes the messages published since, and only
/// those.
pub async fn a_savepoint_takes_back_what_came_after_it<F: Fixture>(fixture: &Arc<F>) {
    let with_dedup = || draft("topic").dedup_key("once").build().unwrap();
    let (before, lost, after) = (plain(), [with_dedup(), plain()], [with_dedup(), plain()]);
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, std::slice::from_ref(&before)).await;
    fixture.savepoint(fixture.connection(&mut tx)).await;
    insert(&**fixture, &mut tx, &lost).await;
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    let enqueued = insert(&**fixture, &mut tx, &after).await;
    assert!(!enqueued[0].is_duplicate(), "its twin was rolled back");
    fixture.commit(tx).await;
    assert_eq!(claim_ids(fixture.store(), 10).await, [before.id(), after[0].id(), after[1].id()]);
}

/// OBX-098: no claim takes an uncommitted message, whether it waits or skips it.
pub async fn claims_do_not_see_what_is_uncommitted<F: Fixture>(fixture: &Arc<F>) {
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, &[plain(), keyed("k")]).await;
    let store = fixture.store().clone();
    let mut claims = tokio::spawn(async move { claim(&store, 10).await });
    // A store with one writer answers only after the transaction's end. Only the wait is given up, never the claim.
    let answered = tokio::time::timeout(Duration::from_millis(300), &mut claims).await;
    fixture.rollback(tx).await;
    let claimed = match answered {
        Ok(claimed) => claimed.unwrap(),
        Err(_) => claims.await.unwrap(),
    };
    assert!(claimed.is_empty(), "{claimed:?}");
}

/// Rule 5: a duplicate does not doom the transaction it was found in; its other messages are committed.
pub async fn duplicates_do_not_doom_a_transaction<F: Fixture>(fixture: &Arc<F>) {
    let with_dedup = || draft("topic").dedup_key("once").build().unwrap();
    let stored = with_dedup();
    enqueue_one(fixture.store(), stored.clone()).await;
    let (a, b, c) = (plain(), plain(), plain());
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, std::slice::from_ref(&a)).await;
    let by_dedup = insert(&**fixture, &mut tx, &[with_dedup(), b.clone()]).await;
    let by_id = insert(&**fixture, &mut tx, &[stored.clone(), c.clone(), a.clone()]).await;
    for alone in [with_dedup(), stored.clone()] {
        let answer = insert(&**fixture, &mut tx, &[alone]).await;
        assert_eq!(answer, [Enqueued::Duplicate { id: stored.id() }], "by itself");
    }
    fixture.commit(tx).await;
    assert_eq!(by_dedup[0], Enqueued::Duplicate { id: stored.id() });
    assert_eq!(by_dedup[1], Enqueued::New { id: b.id(), lease: None });
    assert_eq!(by_id[0], Enqueued::Duplicate { id: stored.id() });
    assert_eq!(by_id[1], Enqueued::New { id: c.id(), lease: None });
    assert_eq!(by_id[2], Enqueued::Duplicate { id: a.id() }, "of this transaction's own");
    let ids = claim_ids(fixture.store(), 10).await;
    assert_eq!(ids, [stored.id(), a.id(), b.id(), c.id()]);
}

/// Rule 7: publishing the same messages again after a commit of unknown outcome stores each of them once.
pub async fn a_repeated_transaction_is_harmless<F: Fixture>(fixture: &Arc<F>) {
    let batch = [plain(), keyed("k"), draft("topic").dedup_key("once").build().unwrap()];
    for round in 0..3 {
        let mut tx = fixture.begin().await;
        let enqueued = insert(&**fixture, &mut tx, &batch).await;
        fixture.commit(tx).await;
        for (answer, message) in enqueued.iter().zip(&batch) {
            assert_eq!((answer.id(), answer.is_duplicate()), (message.id(), round > 0));
        }
    }
    assert_eq!(records(fixture.store()).await.len(), 3);
}

/// OBX-003, RMQ-011: a transaction of a thousand messages, with duplicates in between, is stored in its order.
pub async fn a_large_transaction<F: Fixture>(fixture: &Arc<F>) {
    let (old, new) = (plains(100), plains(900));
    enqueue(fixture.store(), &old).await;
    let mixed: Vec<_> =
        new.chunks(9).zip(&old).flat_map(|(nine, one)| [nine, std::slice::from_ref(one)].concat()).collect();
    let mut tx = fixture.begin().await;
    let enqueued = insert(&**fixture, &mut tx, &mixed).await;
    fixture.commit(tx).await;
    assert_eq!(enqueued.iter().filter(|answer| answer.is_duplicate()).count(), 100);
    assert!(enqueued.iter().zip(&mixed).all(|(answer, message)| answer.id() == message.id()));
    let expected: Vec<_> = old.iter().chain(&new).map(NewMessage::id).collect();
    assert_eq!(claim_ids(fixture.store(), 10_000).await, expected);
    assert_eq!(fixture.store().prune(&Retention::done(HOUR), 1_000).await.unwrap(), 0);
}

/// Rule 5: transactions that the store opens are a user's like any other: nothing is there before the commit, all of it
/// after, and nothing after a rollback.
pub async fn opened_by_the_store<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let messages = plains(2);
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &messages[..1], Birth::Ready).await.unwrap();
    store.insert(&mut tx, &messages[1..], Birth::Ready).await.unwrap();
    assert!(records(store).await.is_empty(), "nothing is visible before the commit");
    store.commit(tx).await.unwrap();
    assert_eq!(claim_ids(store, 10).await, [messages[0].id(), messages[1].id()]);
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &plains(2), Birth::Ready).await.unwrap();
    store.rollback(tx).await.unwrap();
    assert!(claim(store, 10).await.is_empty());
    let tx = store.begin().await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(records(store).await.len(), 2);
}

/// Rule 5: a transaction that is dropped is rolled back, and its connection serves the next.
pub async fn dropped_is_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    // More often than a pool has connections.
    for _ in 0..20 {
        let mut tx = store.begin().await.unwrap();
        store.insert(&mut tx, &plains(1), Birth::Ready).await.unwrap();
        drop(tx);
    }
    let message = plain();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, std::slice::from_ref(&message), Birth::Ready).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(claim_ids(store, 10).await, [message.id()]);
}
