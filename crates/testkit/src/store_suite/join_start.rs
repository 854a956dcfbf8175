//! Starting joins, in the user's own transaction.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Birth, ErrorKind, JoinId, JoinStatus, JoinStore, MAX_METADATA_BYTES, NewJoin, Outcome, StoreAdmin,
    TransactionalStore,
};

use super::support::*;
use crate::Fixture;

/// JOIN-001, JOIN-005, JOIN-006, OBX-080, OBX-082: pending, with nothing attached and nothing counted, under the id that it
/// was given.
pub async fn a_join_begins_with_nothing<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let new = NewJoin::expecting(3).grouping_key("customer-12").metadata(r#"{"run": 7}"#).expires_after(HOUR);
    let id = start(&**fixture, new.build().unwrap()).await;
    let join = join(store, id).await;
    let now = fixture.now().await;
    assert_eq!((join.id, join.status, join.expected_steps), (id, JoinStatus::Pending, 3));
    assert_eq!((join.attached_steps, join.completed_steps, join.failed_steps), (0, 0, 0));
    assert_eq!(join.grouping_key.as_deref(), Some("customer-12"));
    assert_eq!(join.metadata.as_deref(), Some(r#"{"run": 7}"#));
    assert_near(join.created_at, now);
    assert_near(join.updated_at, join.created_at);
    assert_eq!(join.ended_at, None);
    assert_near(join.expires_at.unwrap(), now + HOUR);
    assert!(steps(store, id).await.is_empty());
    assert!(records(store).await.is_empty(), "a join is no message");
    assert_exact(store).await;
}

/// JOIN-003, OBX-080: a field that is left out, or empty, means none.
pub async fn what_is_left_out_of_a_join_is_none<F: Fixture>(fixture: &Arc<F>) {
    let empty = NewJoin::expecting(1).grouping_key("").metadata("");
    for new in [NewJoin::expecting(1), empty] {
        let id = start(&**fixture, new.build().unwrap()).await;
        let join = join(fixture.store(), id).await;
        assert_eq!((join.grouping_key, join.metadata, join.expires_at), (None, None, None));
    }
    assert_exact(fixture.store()).await;
}

/// OBX-081: joins that are alike in everything have ids of their own, and do not touch each other.
pub async fn every_join_has_an_id_of_its_own<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let alike = || NewJoin::expecting(1).grouping_key("same").metadata("same").build().unwrap();
    let ids = [start(&**fixture, alike()).await, start(&**fixture, alike()).await];
    assert_ne!(ids[0], ids[1]);
    let message = leased(store).await;
    attach(&**fixture, ids[0], &[message.id]).await;
    apply(store, message.lease(), Outcome::Ack).await;
    assert_eq!(tally(store, ids[0]).await, (JoinStatus::Completed, [1, 1, 0]));
    assert_eq!(tally(store, ids[1]).await, (JoinStatus::Pending, [0, 0, 0]));
    assert_exact(store).await;
}

/// JOIN-002, JOIN-004: what no join can be is refused before any SQL.
pub async fn impossible_joins_are_refused<F: Fixture>(fixture: &Arc<F>) {
    let one = || NewJoin::expecting(1);
    for new in [
        NewJoin::expecting(0),
        NewJoin::expecting(u32::MAX),
        one().grouping_key("k".repeat(256)),
        one().grouping_key("a\0b"),
        one().metadata("m".repeat(MAX_METADATA_BYTES + 1)),
        one().expires_after(Duration::MAX),
    ] {
        assert_eq!(new.build().unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_exact(fixture.store()).await;
}

/// JOIN-004, rule 15: the longest texts, the hostile ones, and the largest numbers are kept as they are.
pub async fn joins_of_full_size<F: Fixture>(fixture: &Arc<F>) {
    let hostile = "'; drop table outbox; -- \u{1F980} \\ % _ \" ` é ";
    let whole = |text: &str, bytes: usize| {
        let mut whole = text.repeat(bytes / text.len());
        whole.push_str(&"x".repeat(bytes - whole.len()));
        whole
    };
    for (key, metadata) in [
        (whole(hostile, 255), whole(hostile, MAX_METADATA_BYTES)),
        ("é".repeat(127), "\n".to_owned()),
        (" ".to_owned(), "  ".to_owned()),
    ] {
        let steps = i32::MAX.unsigned_abs();
        let new = NewJoin::expecting(steps).grouping_key(&key).metadata(&metadata).build().unwrap();
        let join = join(fixture.store(), start(&**fixture, new).await).await;
        assert_eq!((join.grouping_key, join.metadata), (Some(key), Some(metadata)));
        assert_eq!(join.expected_steps, steps);
    }
    assert_exact(fixture.store()).await;
}

/// Rule 7: started again, in the same transaction or in another, a join keeps its state, whatever that is.
pub async fn a_join_started_twice_is_one<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let first = NewJoin::expecting(1).grouping_key("first").build().unwrap();
    let id = first.id();
    let again =
        || NewJoin::expecting(9).id(*id.as_uuid()).metadata("again").expires_after(HOUR).build().unwrap();
    let mut tx = fixture.begin().await;
    for new in [first, again()] {
        store.start_join(fixture.connection(&mut tx), &new).await.unwrap();
    }
    fixture.commit(tx).await;
    let pending = join(store, id).await;
    assert_eq!((pending.expected_steps, pending.metadata.clone(), pending.expires_at), (1, None, None));
    start(&**fixture, again()).await;
    assert_eq!(join(store, id).await, pending);
    let message = leased(store).await;
    attach(&**fixture, id, &[message.id]).await;
    apply(store, message.lease(), Outcome::Ack).await;
    let over = join(store, id).await;
    start(&**fixture, again()).await;
    assert_eq!(join(store, id).await, over);
    assert_eq!(steps(store, id).await.len(), 1);
    assert_exact(store).await;
}

/// JOIN-032, protocol: the join, its steps and what waits for it are stored in one transaction: nothing of it is visible
/// before the commit, and all of it is after.
pub async fn all_of_a_join_is_visible_at_once<F: Fixture>(fixture: &Arc<F>) {
    let (store, new, messages) = (fixture.store(), expecting(2), plains(2));
    let ids = [messages[0].id(), messages[1].id()];
    let mut tx = fixture.begin().await;
    store.start_join(fixture.connection(&mut tx), &new).await.unwrap();
    store.insert(fixture.connection(&mut tx), &messages, Birth::Ready).await.unwrap();
    assert_eq!(store.attach(fixture.connection(&mut tx), new.id(), &ids).await.unwrap().new, 2);
    assert_eq!(store.join(new.id()).await.unwrap(), None);
    assert!(store.steps(new.id(), None, 10).await.unwrap().steps.is_empty());
    fixture.commit(tx).await;
    assert_eq!(tally(store, new.id()).await, (JoinStatus::Pending, [2, 0, 0]));
    for message in claim(store, 10).await {
        apply(store, message.lease(), Outcome::Ack).await;
    }
    assert_eq!(tally(store, new.id()).await, (JoinStatus::Completed, [2, 2, 0]));
    assert_exact(store).await;
}

/// HOT-002: a join that was rolled back, with its transaction or to a savepoint, was never there.
pub async fn a_join_rolled_back_was_never_there<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let [gone, lost, kept] = [expecting(1), expecting(1), expecting(1)];
    let mut tx = fixture.begin().await;
    store.start_join(fixture.connection(&mut tx), &gone).await.unwrap();
    fixture.rollback(tx).await;
    let mut tx = fixture.begin().await;
    store.start_join(fixture.connection(&mut tx), &kept).await.unwrap();
    fixture.savepoint(fixture.connection(&mut tx)).await;
    store.start_join(fixture.connection(&mut tx), &lost).await.unwrap();
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    let refused = store.attach(fixture.connection(&mut tx), lost.id(), &[]).await;
    assert_names(refused, ErrorKind::NotFound, lost.id());
    fixture.commit(tx).await;
    let stored = |id: JoinId| async move { store.join(id).await.unwrap().is_some() };
    assert!(!stored(gone.id()).await && !stored(lost.id()).await && stored(kept.id()).await);
    // The same join again is no duplicate of what never was.
    start(&**fixture, gone).await;
    assert_exact(store).await;
}
