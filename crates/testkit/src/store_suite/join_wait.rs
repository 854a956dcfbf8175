//! Messages that wait for a join: its end makes them due, whatever it was, and each sends its continuation once.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    JoinId, JoinStatus, JoinStore, Look, MAX_LEASE_LOSSES, MessageId, NewJoin, NewMessage, Outcome,
    Settlement, State, StepEnd, Store, StoreAdmin,
};

use super::support::*;
use super::transaction::insert;
use crate::Fixture;

/// Asserts that this message, and nothing else, is due, and gets it out of the way.
async fn assert_due<F: Fixture>(fixture: &F, wait: MessageId) {
    let due = claim_one(fixture.store()).await;
    assert_eq!((due.id, due.attempts), (wait, 0));
    apply(fixture.store(), due.lease(), Outcome::Ack).await;
}

/// JOIN-053 as amended, protocol: the settlement that ends a join, by an ack or by a failure, makes what waits for it due,
/// and no other settlement does.
pub async fn a_settlement_makes_waits_due<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let other = start(&**fixture, expecting(1)).await;
    let patient = wait_for(&**fixture, other).await;
    for outcome in [Outcome::Ack, fail(), last_straw()] {
        let (id, held) = leased_fan(&**fixture, 2).await;
        let wait = wait_for(&**fixture, id).await;
        apply(store, held[0].lease(), Outcome::Ack).await;
        assert!(claim(store, 10).await.is_empty(), "a step is missing");
        assert_eq!(end(store, held[1].lease(), outcome).await.len(), 1);
        assert_near(record(store, wait).await.message.due_at, fixture.now().await);
        assert_due(&**fixture, wait).await;
    }
    assert_near(record(store, patient).await.message.due_at, fixture.now().await + DAY);
    assert_exact(store).await;
}

/// Where done messages are deleted, the last ack still makes waits due.
pub async fn an_ack_that_deletes_makes_waits_due<F: Fixture>(fixture: &Arc<F>) {
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    assert_eq!(end(&fixture.store_that_deletes(), held[0].lease(), Outcome::Ack).await.len(), 1);
    assert_due(&**fixture, wait).await;
    assert_exact(fixture.store()).await;
}

/// Protocol: so does every end that comes with a user's transaction: a report, a late attach, a cancellation.
pub async fn a_transaction_makes_waits_due<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (reported, steps) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, reported).await;
    assert!(report(&**fixture, reported, steps[0].id, StepEnd::Failed).await.ended.is_some());
    assert_due(&**fixture, wait).await;
    apply(store, steps[0].lease(), Outcome::Ack).await;
    let attached = start(&**fixture, expecting(1)).await;
    let wait = wait_for(&**fixture, attached).await;
    assert!(attach(&**fixture, attached, &[steps[0].id]).await.ended.is_some());
    assert_due(&**fixture, wait).await;
    let cancelled = start(&**fixture, expecting(1)).await;
    let wait = wait_for(&**fixture, cancelled).await;
    assert!(cancel(&**fixture, cancelled).await.is_some());
    assert_due(&**fixture, wait).await;
    assert_exact(store).await;
}

/// Protocol: so does every end that comes with housekeeping: a deadline that is swept or checked, an expiry, a burial, and
/// the fifth loss of a lease.
pub async fn housekeeping_makes_waits_due<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let limited = || NewJoin::expecting(1).expires_after(HOUR).build().unwrap();
    let swept = start(&**fixture, limited()).await;
    let wait = wait_for(&**fixture, swept).await;
    fixture.advance(HOUR + MINUTE).await;
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(store.expire(10).await.unwrap().joins.len(), 1);
    assert_due(&**fixture, wait).await;
    let looked = start(&**fixture, limited()).await;
    let wait = wait_for(&**fixture, looked).await;
    fixture.advance(HOUR + MINUTE).await;
    assert!(matches!(store.look(looked).await.unwrap(), Look::Expired(_)));
    assert_due(&**fixture, wait).await;
    let expired = start(&**fixture, expecting(1)).await;
    let message = enqueue_one(store, draft("topic").expires_after(MINUTE).build().unwrap()).await;
    attach(&**fixture, expired, &[message]).await;
    let wait = wait_for(&**fixture, expired).await;
    fixture.advance(2 * MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().joins.len(), 1);
    assert_due(&**fixture, wait).await;
    let (buried, steps) = fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, buried).await;
    assert_eq!(store.bury(&change_of(only(&steps))).await.unwrap(), steps);
    assert_due(&**fixture, wait).await;
    let (lost, _) = fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, lost).await;
    for _ in 1..=MAX_LEASE_LOSSES {
        claim_one(store).await;
        fixture.advance(LEASE + MINUTE).await;
        store.reap(10).await.unwrap();
    }
    assert_eq!(tally(store, lost).await.0, JoinStatus::Failed);
    assert_due(&**fixture, wait).await;
    assert_exact(store).await;
}

/// A join may have many waits: its end makes all of them due, and those of no other join.
pub async fn many_waits_for_one_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let other = start(&**fixture, expecting(1)).await;
    let mut waits = Vec::new();
    for _ in 0..5 {
        waits.push(wait_for(&**fixture, id).await);
        wait_for(&**fixture, other).await;
    }
    apply(store, held[0].lease(), Outcome::Ack).await;
    assert_eq!(claim_ids(store, 10).await, waits);
    assert_exact(store).await;
}

/// Protocol: a wait that is being handled while the join ends, and is deferred by a handler that does not know it yet, is
/// due at once: no end is missed.
pub async fn a_wait_that_is_leased_meanwhile<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    fixture.advance(DAY + MINUTE).await;
    let looking = claim_one(store).await;
    assert_eq!(looking.id, wait);
    assert_eq!(store.look(id).await.unwrap(), Look::Pending { expires_in: None });
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await.len(), 1);
    assert_eq!(state(store, wait).await, Some(State::Leased), "the end does not take it away");
    apply(store, looking.lease(), Outcome::Defer { delay: HOUR }).await;
    assert_near(record(store, wait).await.message.due_at, fixture.now().await);
    assert_due(&**fixture, wait).await;
    assert_exact(store).await;
}

/// The same in one batch, in either order: the deferral and the last ack.
pub async fn a_deferral_beside_the_last_ack<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for wait_first in [true, false] {
        let (id, held) = fan(&**fixture, 1).await;
        let wait = wait_for(&**fixture, id).await;
        fixture.advance(DAY + MINUTE).await;
        let both = claim(store, 2).await;
        let lease = |id| both.iter().find(|message| message.id == id).unwrap().lease();
        let mut batch = [
            Settlement::new(lease(wait), Outcome::Defer { delay: HOUR }),
            Settlement::new(lease(held[0]), Outcome::Ack),
        ];
        if !wait_first {
            batch.reverse();
        }
        assert_eq!(store.settle(&batch).await.unwrap().joins.len(), 1);
        assert_due(&**fixture, wait).await;
    }
    assert_exact(store).await;
}

/// OBX-036 and OBX-091 as amended: while the join is pending a deferral is a deferral, and costs nothing; the same holds
/// for messages that wait for nothing, and for a retry of a wait for an ended join.
pub async fn other_deferrals_stay_as_they_are<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    fixture.advance(DAY + MINUTE).await;
    let pending = claim_one(store).await;
    apply(store, pending.lease(), Outcome::Defer { delay: HOUR }).await;
    assert_near(record(store, wait).await.message.due_at, fixture.now().await + HOUR);
    let stranger = leased(store).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, stranger.lease(), Outcome::Defer { delay: HOUR }).await;
    assert_near(record(store, stranger.id).await.message.due_at, fixture.now().await + HOUR);
    let over = claim_one(store).await;
    assert_eq!((over.id, over.attempts), (wait, 0));
    apply(store, over.lease(), abandon(HOUR)).await;
    assert_near(record(store, wait).await.message.due_at, fixture.now().await + HOUR);
    assert_exact(store).await;
}

/// A wait that has gone on is not touched: neither by the end of the join, nor when it is deferred after that.
pub async fn a_wait_that_has_gone_on_is_not_touched<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let (gone_on, waits) = (wait_for(&**fixture, id).await, wait_for(&**fixture, id).await);
    assert!(store.continue_join(id, gone_on, None).await.unwrap());
    apply(store, held[0].lease(), Outcome::Ack).await;
    assert_due(&**fixture, waits).await;
    assert_near(record(store, gone_on).await.message.due_at, fixture.now().await + DAY);
    fixture.advance(DAY + MINUTE).await;
    let again = claim_one(store).await;
    assert_eq!(again.id, gone_on);
    apply(store, again.lease(), Outcome::Defer { delay: HOUR }).await;
    assert_near(record(store, gone_on).await.message.due_at, fixture.now().await + HOUR);
    assert_exact(store).await;
}

/// A wait that is due before the end stays where it is in the queue, and one that is dead stays as it is.
pub async fn waits_that_need_no_waking<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let early = wait_for(&**fixture, id).await;
    fixture.advance(2 * DAY).await;
    let dead = wait_for(&**fixture, id).await;
    assert_eq!(store.bury(&change_of(only(&[dead]))).await.unwrap(), [dead]);
    let before = [record(store, early).await, record(store, dead).await];
    apply(store, held[0].lease(), Outcome::Ack).await;
    assert_eq!([record(store, early).await, record(store, dead).await], before);
    assert_due(&**fixture, early).await;
    assert_exact(store).await;
}

/// Registering a wait returns the join's state, so that a wait for an ended join need not wait.
pub async fn registering_tells_what_the_join_is<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let new = NewJoin::expecting(1).expires_after(2 * HOUR).build().unwrap();
    let (id, wait, message) = (new.id(), draft("wait").delay(DAY).build().unwrap(), leased(store).await);
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    store.start_join(connection, &new).await.unwrap();
    let look = store.wait_for_join(connection, id, wait.id()).await.unwrap();
    let Look::Pending { expires_in: Some(left) } = look else { panic!("{look:?}") };
    assert!(left.abs_diff(2 * HOUR) <= TOLERANCE, "{left:?}");
    insert(&**fixture, &mut tx, std::slice::from_ref(&wait)).await;
    store.attach(fixture.connection(&mut tx), id, &[message.id]).await.unwrap();
    fixture.commit(tx).await;
    apply(store, message.lease(), fail()).await;
    let late = draft("wait").build().unwrap();
    let mut tx = fixture.begin().await;
    let look = store.wait_for_join(fixture.connection(&mut tx), id, late.id()).await.unwrap();
    assert_eq!(look, Look::Over(ended(id, JoinStatus::Failed, [1, 0, 1])));
    insert(&**fixture, &mut tx, std::slice::from_ref(&late)).await;
    fixture.commit(tx).await;
    let mut due = claim_ids(store, 10).await;
    due.sort_unstable();
    assert_eq!(due, [wait.id(), late.id()]);
    assert!(store.continue_join(id, late.id(), None).await.unwrap());
    assert_exact(store).await;
}

/// A wait and the end of its join in one transaction, in this order: the wait is due with the commit.
pub async fn a_wait_and_an_end_in_one_transaction<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, steps) = leased_fan(&**fixture, 1).await;
    let wait = draft("wait").delay(DAY).build().unwrap();
    let mut tx = fixture.begin().await;
    store.wait_for_join(fixture.connection(&mut tx), id, wait.id()).await.unwrap();
    insert(&**fixture, &mut tx, std::slice::from_ref(&wait)).await;
    let reported = store.report(fixture.connection(&mut tx), id, steps[0].id, StepEnd::Completed).await;
    assert!(reported.unwrap().ended.is_some());
    fixture.commit(tx).await;
    assert_due(&**fixture, wait.id()).await;
    assert_exact(store).await;
}

/// HOT-002: a wait that was rolled back, with its transaction or to a savepoint, was never there.
pub async fn a_wait_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let later = || draft("wait").delay(DAY).build().unwrap();
    let (gone, stays) = (later(), later());
    let mut tx = fixture.begin().await;
    store.wait_for_join(fixture.connection(&mut tx), id, gone.id()).await.unwrap();
    insert(&**fixture, &mut tx, std::slice::from_ref(&gone)).await;
    fixture.rollback(tx).await;
    // Stored by a user after the registration was rolled back: a message like any other.
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, std::slice::from_ref(&stays)).await;
    fixture.savepoint(fixture.connection(&mut tx)).await;
    store.wait_for_join(fixture.connection(&mut tx), id, stays.id()).await.unwrap();
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    fixture.commit(tx).await;
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await.len(), 1);
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(state(store, gone.id()).await, None);
    assert_near(record(store, stays.id()).await.message.due_at, fixture.now().await + DAY);
    assert_exact(store).await;
}

/// A continuation of no special kind.
fn continuation() -> NewMessage {
    draft("continuation").build().unwrap()
}

/// I8, M-14: a wait sends its continuation once, and says whether it did.
pub async fn continued_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    let waiting = claim_one(store).await;
    let first = continuation();
    assert!(store.continue_join(id, wait, Some(&first)).await.unwrap());
    assert!(!store.continue_join(id, wait, Some(&first)).await.unwrap());
    assert!(!store.continue_join(id, wait, Some(&continuation())).await.unwrap(), "nor under another id");
    assert!(!store.continue_join(id, wait, None).await.unwrap());
    apply(store, waiting.lease(), Outcome::Ack).await;
    assert!(!store.continue_join(id, wait, Some(&continuation())).await.unwrap());
    let sent = claim_one(store).await;
    assert_eq!((sent.id, sent.topic.as_str()), (first.id(), "continuation"));
    assert_eq!(records(store).await.len(), 3);
    assert_exact(store).await;
}

/// I8: that it was sent is remembered with the join, though the continuation was delivered and deleted, and the wait with
/// it.
pub async fn continued_once_though_its_row_is_gone<F: Fixture>(fixture: &Arc<F>) {
    let (store, deletes) = (fixture.store(), fixture.store_that_deletes());
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    apply(&deletes, held[0].lease(), Outcome::Ack).await;
    let waiting = claim_one(store).await;
    let sent = continuation();
    assert!(deletes.continue_join(id, wait, Some(&sent)).await.unwrap());
    let delivered = claim_one(store).await;
    apply(&deletes, delivered.lease(), Outcome::Ack).await;
    assert!(!deletes.continue_join(id, wait, Some(&sent)).await.unwrap());
    apply(&deletes, waiting.lease(), Outcome::Ack).await;
    assert!(!deletes.continue_join(id, wait, Some(&sent)).await.unwrap());
    assert!(records(store).await.is_empty());
    assert_exact(store).await;
}

/// I8: each of several waits sends a continuation of its own, or none; a join that is not there sends nothing.
pub async fn each_wait_continues_by_itself<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = start(&**fixture, expecting(1)).await;
    let mut waits = Vec::new();
    for _ in 0..3 {
        waits.push(wait_for(&**fixture, id).await);
    }
    cancel(&**fixture, id).await.unwrap();
    assert_eq!(claim_ids(store, 10).await, waits);
    let sent = [continuation(), continuation()];
    assert!(store.continue_join(id, waits[0], Some(&sent[0])).await.unwrap());
    assert!(store.continue_join(id, waits[1], None).await.unwrap());
    assert!(!store.continue_join(id, waits[1], Some(&sent[1])).await.unwrap(), "none was its decision");
    assert!(store.continue_join(id, waits[2], Some(&sent[1])).await.unwrap());
    let unknown = JoinId::new();
    assert!(!store.continue_join(unknown, waits[0], Some(&continuation())).await.unwrap());
    assert!(!store.continue_join(unknown, waits[0], None).await.unwrap());
    assert_eq!(claim_ids(store, 10).await, [sent[0].id(), sent[1].id()]);
    assert_eq!(store.join(unknown).await.unwrap(), None);
    assert_exact(store).await;
}

/// Rule 7: a continuation that is stored already, or whose dedup key is, is not stored again, and the wait has gone on.
pub async fn a_continuation_that_is_a_duplicate<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = start(&**fixture, expecting(1)).await;
    let (one, two) = (wait_for(&**fixture, id).await, wait_for(&**fixture, id).await);
    cancel(&**fixture, id).await.unwrap();
    assert_eq!(claim(store, 10).await.len(), 2);
    let with_dedup = || draft("continuation").dedup_key("once").delay(Duration::ZERO).build().unwrap();
    let stored = with_dedup();
    enqueue_one(store, stored.clone()).await;
    assert!(store.continue_join(id, one, Some(&stored)).await.unwrap());
    assert!(store.continue_join(id, two, Some(&with_dedup())).await.unwrap());
    assert!(!store.continue_join(id, two, Some(&with_dedup())).await.unwrap());
    assert_eq!(claim_ids(store, 10).await, [stored.id()]);
    assert_exact(store).await;
}
