//! Making messages steps of a join, whatever state they are in.

use std::sync::Arc;

use posthaste_core::{
    Attached, Birth, Enqueued, ErrorKind, JoinId, JoinStatus, JoinStore, MessageId, NewJoin, Outcome,
    StepEnd, StepStatus, Store, TransactionalStore,
};

use super::support::*;
use super::transaction::insert;
use crate::Fixture;

/// So many messages became steps, and the join is not over by it.
fn new(new: u32) -> Attached {
    Attached { new, ended: None }
}

/// JOIN-010, JOIN-013, OBX-083: a message that is ready or leased becomes a pending step, and no counter moves.
pub async fn attach_makes_a_step<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let held = leased(store).await;
    let ready = enqueue_one(store, plain()).await;
    let id = start(&**fixture, expecting(3)).await;
    let before = join(store, id).await;
    assert_eq!(attach(&**fixture, id, &[ready, held.id]).await, new(2));
    let after = join(store, id).await;
    assert_eq!((after.status, after.attached_steps), (JoinStatus::Pending, 2));
    assert_eq!((after.completed_steps, after.failed_steps), (0, 0));
    assert_eq!((after.created_at, after.ended_at), (before.created_at, None));
    let steps = steps(store, id).await;
    assert_eq!(steps.iter().map(|step| step.message).collect::<Vec<_>>(), [held.id, ready]);
    for step in steps {
        assert_eq!(step.status, StepStatus::Pending);
        assert_near(step.created_at, fixture.now().await);
        assert_near(step.updated_at, step.created_at);
    }
    assert_exact(store).await;
}

/// JOIN-011, OBX-084: a message that is a step already stays what it is, in a batch, a transaction, and ever after.
pub async fn attaching_again_changes_nothing<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &plains(2)).await;
    let id = start(&**fixture, expecting(2)).await;
    let mut tx = fixture.begin().await;
    for (messages, attached) in
        [(vec![ids[0], ids[0]], 1), (vec![ids[0]], 0), (vec![ids[1], ids[0], ids[1]], 1)]
    {
        let answer = store.attach(fixture.connection(&mut tx), id, &messages).await.unwrap();
        assert_eq!(answer, new(attached));
    }
    fixture.commit(tx).await;
    assert_eq!(steps(store, id).await.len(), 2);
    fixture.advance(HOUR).await;
    let moved = (join(store, id).await, steps(store, id).await);
    assert_eq!(attach(&**fixture, id, &ids).await, new(0));
    assert_eq!((join(store, id).await, steps(store, id).await), moved);
    let held = claim(store, 2).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    let moved = (join(store, id).await, steps(store, id).await);
    assert_eq!(attach(&**fixture, id, &ids).await, new(0), "a step that was counted is not counted again");
    assert_eq!((join(store, id).await, steps(store, id).await), moved);
    assert_exact(store).await;
}

/// Attaching nothing is no error, unless there is nothing to attach to.
pub async fn nothing_can_be_attached<F: Fixture>(fixture: &Arc<F>) {
    let id = start(&**fixture, expecting(1)).await;
    assert_eq!(attach(&**fixture, id, &[]).await, new(0));
    cancel(&**fixture, id).await.unwrap();
    assert_eq!(attach(&**fixture, id, &[]).await, new(0));
    let unknown = JoinId::new();
    assert_names(try_attach(&**fixture, unknown, &[]).await, ErrorKind::NotFound, unknown);
    assert_exact(fixture.store()).await;
}

/// JOIN-012, rule 5: a join that is not there refuses everything, is named, and does not doom the transaction.
pub async fn an_unknown_join_refuses<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (before, after, unknown) = (plain(), plain(), JoinId::new());
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, std::slice::from_ref(&before)).await;
    let connection = fixture.connection(&mut tx);
    assert_names(store.attach(connection, unknown, &[before.id()]).await, ErrorKind::NotFound, unknown);
    let reported = store.report(connection, unknown, before.id(), StepEnd::Completed).await;
    assert_names(reported, ErrorKind::NotFound, unknown);
    assert_names(store.cancel_join(connection, unknown).await, ErrorKind::NotFound, unknown);
    let waits = store.wait_for_join(connection, unknown, MessageId::new()).await;
    assert_names(waits, ErrorKind::NotFound, unknown);
    insert(&**fixture, &mut tx, std::slice::from_ref(&after)).await;
    fixture.commit(tx).await;
    assert_eq!(claim_ids(store, 10).await, [before.id(), after.id()]);
    assert_exact(store).await;
}

/// Rule 5: a message that is not stored, never was, or was deleted when it was done, cannot become a step: the whole batch
/// is refused, and the transaction goes on.
pub async fn a_message_that_is_not_stored_is_refused<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let deleted = leased(store).await;
    apply(&fixture.store_that_deletes(), deleted.lease(), Outcome::Ack).await;
    let (known, after) = (enqueue_one(store, plain()).await, plain());
    let id = start(&**fixture, expecting(5)).await;
    let mut tx = fixture.begin().await;
    for unknown in [MessageId::new(), deleted.id] {
        let refused = store.attach(fixture.connection(&mut tx), id, &[known, unknown]).await;
        let error = refused.as_ref().unwrap_err();
        assert!(error.context().any(|fact| fact == ("message_id", &*unknown.to_string())), "{error}");
        assert_names(refused, ErrorKind::NotFound, id);
    }
    insert(&**fixture, &mut tx, std::slice::from_ref(&after)).await;
    assert_eq!(store.attach(fixture.connection(&mut tx), id, &[after.id()]).await.unwrap(), new(1));
    fixture.commit(tx).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [1, 0, 0]));
    assert_eq!(statuses(store, id, &[after.id()]).await, [StepStatus::Pending]);
    assert_exact(store).await;
}

/// JOIN-023: more steps than the join expects are refused, as a whole batch, whatever they are; the transaction goes on.
pub async fn steps_beyond_the_expected_are_refused<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let done = leased(store).await;
    apply(store, done.lease(), Outcome::Ack).await;
    let ids = enqueue(store, &plains(4)).await;
    let id = start(&**fixture, expecting(3)).await;
    assert_eq!(attach(&**fixture, id, &ids[..2]).await, new(2));
    let after = plain();
    let mut tx = fixture.begin().await;
    for batch in [&[ids[2], ids[3]][..], &[ids[0], ids[1], ids[2], done.id]] {
        assert_names(store.attach(fixture.connection(&mut tx), id, batch).await, ErrorKind::Refused, id);
    }
    insert(&**fixture, &mut tx, std::slice::from_ref(&after)).await;
    fixture.commit(tx).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 0]));
    assert_eq!(attach(&**fixture, id, &ids[..3]).await, new(1), "those that are steps already take no room");
    assert_names(try_attach(&**fixture, id, &ids[3..]).await, ErrorKind::Refused, id);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 0, 0]));
    assert_eq!(state(store, after.id()).await, Some(posthaste_core::State::Ready));
    assert_exact(store).await;
}

/// JOIN-042: a join that has ended, in whichever way, takes no new steps, but its own may be attached again.
pub async fn a_join_that_is_over_takes_no_new_steps<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = NewJoin::expecting(2).expires_after(HOUR);
    let mut joins = Vec::new();
    for (new, outcome) in [
        (NewJoin::expecting(1), Some(Outcome::Ack)),
        (NewJoin::expecting(1), Some(fail())),
        (NewJoin::expecting(2), None),
        (expiring, None),
    ] {
        let step = leased(store).await;
        let id = start(&**fixture, new.build().unwrap()).await;
        attach(&**fixture, id, &[step.id]).await;
        if let Some(outcome) = outcome {
            apply(store, step.lease(), outcome).await;
        }
        joins.push((id, step.id));
    }
    cancel(&**fixture, joins[2].0).await.unwrap();
    fixture.advance(HOUR + MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().joins.len(), 1);
    let over = [JoinStatus::Completed, JoinStatus::Failed, JoinStatus::Cancelled, JoinStatus::Expired];
    for ((id, step), status) in joins.into_iter().zip(over) {
        let before = join(store, id).await;
        assert_eq!(before.status, status);
        let published = plain();
        let mut tx = fixture.begin().await;
        insert(&**fixture, &mut tx, std::slice::from_ref(&published)).await;
        let connection = fixture.connection(&mut tx);
        assert_names(store.attach(connection, id, &[published.id()]).await, ErrorKind::Refused, id);
        assert_names(store.attach(connection, id, &[step, published.id()]).await, ErrorKind::Refused, id);
        assert_eq!(store.attach(connection, id, &[step, step]).await.unwrap(), new(0));
        fixture.commit(tx).await;
        assert!(state(store, published.id()).await.is_some(), "the transaction goes on");
        assert_eq!(join(store, id).await, before);
        assert_eq!(steps(store, id).await.len(), 1);
    }
    assert_exact(store).await;
}

/// Of several reasons to refuse, the first is reported: no such join, no such message, ended, too many.
pub async fn the_first_objection_is_told<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, steps) = fan(&**fixture, 1).await;
    let (unknown, more, missing) = (JoinId::new(), enqueue_one(store, plain()).await, MessageId::new());
    assert_names(try_attach(&**fixture, unknown, &[missing]).await, ErrorKind::NotFound, unknown);
    let told = |error: posthaste_core::Error| error.to_string();
    let error = told(try_attach(&**fixture, id, &[more, missing]).await.unwrap_err());
    assert!(error.contains(&missing.to_string()), "{error}");
    let error = told(try_attach(&**fixture, id, &[steps[0], more]).await.unwrap_err());
    assert!(error.contains("more steps than the join expects: 2 instead of 1"), "{error}");
    cancel(&**fixture, id).await.unwrap();
    let error = told(try_attach(&**fixture, id, &[more, missing]).await.unwrap_err());
    assert!(error.contains(&missing.to_string()), "{error}");
    let error = told(try_attach(&**fixture, id, &[more]).await.unwrap_err());
    assert!(error.contains("the join is over: cancelled"), "{error}");
    assert_exact(store).await;
}

/// JOIN-013 as amended, M-12: a message that is done or dead when it is attached counts at once; others do not.
pub async fn a_late_attach_counts_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &plains(4)).await;
    let held = claim(store, 3).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), fail()).await;
    let id = start(&**fixture, expecting(5)).await;
    fixture.advance(MINUTE).await;
    assert_eq!(attach(&**fixture, id, &ids).await, new(4));
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [4, 1, 1]));
    use StepStatus::{Completed, Failed, Pending};
    assert_eq!(statuses(store, id, &ids).await, [Completed, Failed, Pending, Pending]);
    assert_near(join(store, id).await.updated_at, fixture.now().await);
    assert_exact(store).await;
}

/// JOIN-040, JOIN-041: a late attach of the last steps ends the join, and reports it.
pub async fn a_late_attach_can_end_the_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(3)).await;
    let held = claim(store, 3).await;
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), Outcome::Ack).await;
    apply(store, held[2].lease(), fail()).await;
    let good = start(&**fixture, expecting(2)).await;
    let expected = ended(good, JoinStatus::Completed, [2, 2, 0]);
    assert_eq!(attach(&**fixture, good, &ids[..2]).await, Attached { new: 2, ended: Some(expected) });
    let bad = start(&**fixture, expecting(3)).await;
    assert_eq!(attach(&**fixture, bad, &ids[1..]).await, new(2));
    let expected = ended(bad, JoinStatus::Failed, [3, 2, 1]);
    assert_eq!(attach(&**fixture, bad, &ids).await, Attached { new: 1, ended: Some(expected) });
    assert_near(join(store, bad).await.ended_at.unwrap(), fixture.now().await);
    assert_eq!(attach(&**fixture, bad, &ids).await, new(0), "once");
    assert_exact(store).await;
}

/// OBX-083: a message can be attached in the transaction that publishes it, twice published or not.
pub async fn attach_in_the_transaction_that_publishes<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (twice, once) = (plain(), plain());
    enqueue_one(store, twice.clone()).await;
    let id = start(&**fixture, expecting(2)).await;
    let mut tx = fixture.begin().await;
    let published = insert(&**fixture, &mut tx, &[twice, once]).await;
    let ids: Vec<_> = published.iter().map(Enqueued::id).collect();
    assert_eq!(store.attach(fixture.connection(&mut tx), id, &ids).await.unwrap(), new(2));
    fixture.commit(tx).await;
    for message in claim(store, 10).await {
        apply(store, message.lease(), Outcome::Ack).await;
    }
    assert_eq!(tally(store, id).await, (JoinStatus::Completed, [2, 2, 0]));
    assert_exact(store).await;
}

/// HOT-003, OBX-083: a message that is stored leased can be attached in the transaction that stores it, and its ack
/// counts.
pub async fn attach_what_is_born_leased<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (me, messages, new_join) = (worker("hot"), plains(2), expecting(2));
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    store.start_join(connection, &new_join).await.unwrap();
    let born = store.insert(connection, &messages, birth).await.unwrap();
    let ids: Vec<_> = born.iter().map(Enqueued::id).collect();
    assert_eq!(store.attach(connection, new_join.id(), &ids).await.unwrap(), new(2));
    fixture.commit(tx).await;
    assert!(claim(store, 10).await.is_empty());
    for born in born {
        let Enqueued::New { lease: Some(lease), .. } = born else { panic!("{born:?}") };
        apply(store, lease, Outcome::Ack).await;
    }
    assert_eq!(tally(store, new_join.id()).await, (JoinStatus::Completed, [2, 2, 0]));
    assert_exact(store).await;
}

/// HOT-002: a message attached in a transaction, or after a savepoint, that was rolled back is no step, and does not
/// count.
pub async fn an_attach_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(4)).await;
    let held = claim(store, 4).await;
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    apply(store, held[0].lease(), Outcome::Ack).await;
    let id = start(&**fixture, expecting(2)).await;
    let before = join(store, id).await;
    let mut tx = fixture.begin().await;
    assert_eq!(store.attach(fixture.connection(&mut tx), id, &ids[..2]).await.unwrap(), new(2));
    fixture.rollback(tx).await;
    assert_eq!((join(store, id).await, steps(store, id).await), (before, vec![]));
    let mut tx = fixture.begin().await;
    assert_eq!(store.attach(fixture.connection(&mut tx), id, &ids[2..3]).await.unwrap(), new(1));
    fixture.savepoint(fixture.connection(&mut tx)).await;
    assert_eq!(store.attach(fixture.connection(&mut tx), id, &ids[..1]).await.unwrap(), new(1));
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    assert_eq!(
        store.attach(fixture.connection(&mut tx), id, &ids[3..]).await.unwrap(),
        new(1),
        "there is room"
    );
    fixture.commit(tx).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 0]));
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await, []);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 0]));
    assert_exact(store).await;
}

/// HOT-002: steps that were published, attached and rolled back together leave nothing behind, and the join can still get
/// as many as it expects.
pub async fn a_savepoint_takes_back_publishing_and_attaching<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (me, lost, kept, new_join) = (worker("hot"), plains(2), plain(), expecting(2));
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    store.start_join(connection, &new_join).await.unwrap();
    fixture.savepoint(connection).await;
    store.insert(connection, &lost, birth).await.unwrap();
    let ids: Vec<_> = lost.iter().map(|message| message.id()).collect();
    assert_eq!(store.attach(connection, new_join.id(), &ids).await.unwrap(), new(2));
    fixture.rollback_to_savepoint(connection).await;
    assert_names(store.attach(connection, new_join.id(), &ids).await, ErrorKind::NotFound, new_join.id());
    store.insert(connection, std::slice::from_ref(&kept), Birth::Ready).await.unwrap();
    assert_eq!(store.attach(connection, new_join.id(), &[kept.id()]).await.unwrap(), new(1));
    fixture.commit(tx).await;
    assert_eq!(tally(store, new_join.id()).await, (JoinStatus::Pending, [1, 0, 0]));
    assert_eq!(claim_one(store).await.id, kept.id());
    assert_exact(store).await;
}
