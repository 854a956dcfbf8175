//! Ends that come from outside: cancellation and deadlines, and what becomes of the steps that come too late.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    JoinId, JoinStatus, JoinStore, Look, MessageId, NewJoin, Outcome, StepStatus, Store, StoreAdmin,
};

use super::support::*;
use super::transaction::insert;
use crate::Fixture;

/// Starts a join of so many steps with a deadline.
async fn with_deadline<F: Fixture>(fixture: &F, steps: u32, deadline: Duration) -> JoinId {
    start(fixture, NewJoin::expecting(steps).expires_after(deadline).build().unwrap()).await
}

/// The remaining time that a check returns.
#[track_caller]
fn assert_left(look: &Look, expected: Duration) {
    let Look::Pending { expires_in: Some(left) } = look else { panic!("{look:?}") };
    assert!(left.abs_diff(expected) <= TOLERANCE, "{left:?} instead of {expected:?}");
}

/// Protocol: cancelling is a terminal state with its own call; the first call reports it, with the counts.
pub async fn cancel_ends_a_pending_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 3).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    fixture.advance(MINUTE).await;
    assert_eq!(cancel(&**fixture, id).await, Some(ended(id, JoinStatus::Cancelled, [3, 1, 0])));
    let over = join(store, id).await;
    assert_eq!((over.status, over.completed_steps, over.failed_steps), (JoinStatus::Cancelled, 1, 0));
    assert_near(over.ended_at.unwrap(), fixture.now().await);
    assert_eq!(cancel(&**fixture, id).await, None);
    assert_eq!(join(store, id).await, over);
    assert_eq!(state(store, held[1].id).await, Some(posthaste_core::State::Leased), "its messages go on");
    assert_exact(store).await;
}

/// JOIN-023 and JOIN-042 as amended: steps that end after a cancellation are recorded as late, not counted.
pub async fn steps_of_a_cancelled_join_are_late<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 4).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    cancel(&**fixture, id).await.unwrap();
    let over = join(store, id).await;
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await, []);
    assert_eq!(end(&fixture.store_that_deletes(), held[2].lease(), Outcome::Ack).await, []);
    assert_eq!(end(store, held[3].lease(), fail()).await, []);
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    use StepStatus::{Completed, LateCompleted, LateFailed};
    assert_eq!(statuses(store, id, &ids).await, [Completed, LateCompleted, LateCompleted, LateFailed]);
    assert_eq!(join(store, id).await, over);
    assert_exact(store).await;
}

/// HOT-002: a cancellation that was rolled back, with its transaction or to a savepoint, has ended nothing.
pub async fn a_cancellation_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, id).await;
    let before = join(store, id).await;
    let mut tx = fixture.begin().await;
    assert!(store.cancel_join(fixture.connection(&mut tx), id).await.unwrap().is_some());
    assert_eq!(store.cancel_join(fixture.connection(&mut tx), id).await.unwrap(), None);
    fixture.rollback(tx).await;
    assert_eq!(join(store, id).await, before);
    let mut tx = fixture.begin().await;
    let kept = draft("topic").delay(DAY).build().unwrap();
    insert(&**fixture, &mut tx, std::slice::from_ref(&kept)).await;
    fixture.savepoint(fixture.connection(&mut tx)).await;
    assert!(store.cancel_join(fixture.connection(&mut tx), id).await.unwrap().is_some());
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    fixture.commit(tx).await;
    assert_eq!(join(store, id).await, before);
    assert!(state(store, kept.id()).await.is_some());
    assert!(claim(store, 10).await.is_empty(), "{wait} still waits");
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await.len(), 1);
    assert_exact(store).await;
}

/// A join can be started, filled and cancelled in one transaction.
pub async fn a_whole_life_in_one_transaction<F: Fixture>(fixture: &Arc<F>) {
    let (store, new, message) = (fixture.store(), expecting(1), plain());
    let mut tx = fixture.begin().await;
    insert(&**fixture, &mut tx, std::slice::from_ref(&message)).await;
    let connection = fixture.connection(&mut tx);
    store.start_join(connection, &new).await.unwrap();
    store.attach(connection, new.id(), &[message.id()]).await.unwrap();
    let cancelled = store.cancel_join(connection, new.id()).await.unwrap();
    assert_eq!(cancelled, Some(ended(new.id(), JoinStatus::Cancelled, [1, 0, 0])));
    fixture.commit(tx).await;
    assert_eq!(tally(store, new.id()).await, (JoinStatus::Cancelled, [1, 0, 0]));
    assert_exact(store).await;
}

/// A deadline that has passed ends a pending join at the next sweep, with the counts by then.
pub async fn a_deadline_ends_a_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = with_deadline(&**fixture, 2, HOUR).await;
    let held = leased(store).await;
    attach(&**fixture, id, &[held.id]).await;
    apply(store, held.lease(), Outcome::Ack).await;
    fixture.advance(HOUR - MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().joins, []);
    fixture.advance(2 * MINUTE).await;
    let expired = store.expire(10).await.unwrap();
    assert_eq!((expired.messages, expired.joins), (0, vec![ended(id, JoinStatus::Expired, [2, 1, 0])]));
    let over = join(store, id).await;
    assert_eq!((over.status, over.completed_steps), (JoinStatus::Expired, 1));
    assert_near(over.ended_at.unwrap(), fixture.now().await);
    assert_near(over.updated_at, fixture.now().await);
    assert_eq!(store.expire(10).await.unwrap().joins, [], "once");
    assert_exact(store).await;
}

/// Only pending joins with a deadline expire, at most so many at a time, the earliest deadlines first.
pub async fn deadlines_in_portions<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = Vec::new();
    for hours in [3, 1, 2, 9] {
        ids.push(with_deadline(&**fixture, 1, hours * HOUR).await);
    }
    let endless = start(&**fixture, expecting(1)).await;
    let cancelled = with_deadline(&**fixture, 1, HOUR).await;
    cancel(&**fixture, cancelled).await.unwrap();
    fixture.advance(4 * HOUR).await;
    for expected in [1, 2, 0] {
        let joins = store.expire(1).await.unwrap().joins;
        assert_eq!(joins, [ended(ids[expected], JoinStatus::Expired, [1, 0, 0])]);
    }
    assert_eq!(store.expire(10).await.unwrap().joins, []);
    assert_eq!(tally(store, ids[3]).await.0, JoinStatus::Pending);
    assert_eq!(tally(store, endless).await.0, JoinStatus::Pending);
    assert_eq!(tally(store, cancelled).await.0, JoinStatus::Cancelled);
    assert_exact(store).await;
}

/// Many deadlines at once are swept in one call.
pub async fn many_deadlines_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut tx = fixture.begin().await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        let new = NewJoin::expecting(1).expires_after(HOUR).build().unwrap();
        store.start_join(fixture.connection(&mut tx), &new).await.unwrap();
        ids.push(new.id());
    }
    fixture.commit(tx).await;
    fixture.advance(2 * HOUR).await;
    let mut expired: Vec<_> = store.expire(30).await.unwrap().joins.iter().map(|join| join.id).collect();
    assert_eq!(expired.len(), 30);
    expired.extend(store.expire(10_000).await.unwrap().joins.iter().map(|join| join.id));
    expired.sort_unstable();
    assert_eq!(expired, ids);
    assert_exact(store).await;
}

/// A check of a join whose deadline has passed expires it, and only that one.
pub async fn looking_ends_an_overdue_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let [id, other] = [with_deadline(&**fixture, 2, HOUR).await, with_deadline(&**fixture, 1, HOUR).await];
    fixture.advance(HOUR + MINUTE).await;
    let over = ended(id, JoinStatus::Expired, [2, 0, 0]);
    assert_eq!(store.look(id).await.unwrap(), Look::Expired(over));
    let stored = join(store, id).await;
    assert_eq!(stored.status, JoinStatus::Expired);
    assert_near(stored.ended_at.unwrap(), fixture.now().await);
    assert_eq!(store.look(id).await.unwrap(), Look::Over(over));
    assert_eq!(join(store, id).await, stored);
    assert_eq!(tally(store, other).await.0, JoinStatus::Pending);
    assert_eq!(store.expire(10).await.unwrap().joins, [ended(other, JoinStatus::Expired, [1, 0, 0])]);
    assert_exact(store).await;
}

/// OBX-090, JOIN-057: a check returns the join's state: its remaining time while it is pending, and the counts of its
/// end.
pub async fn a_look_tells_what_the_join_is<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    assert_eq!(store.look(JoinId::new()).await.unwrap(), Look::Unknown);
    let endless = start(&**fixture, expecting(1)).await;
    assert_eq!(store.look(endless).await.unwrap(), Look::Pending { expires_in: None });
    let limited = with_deadline(&**fixture, 1, 3 * HOUR).await;
    assert_left(&store.look(limited).await.unwrap(), 3 * HOUR);
    fixture.advance(HOUR).await;
    assert_left(&store.look(limited).await.unwrap(), 2 * HOUR);
    let at = fixture.now().await + 5 * HOUR;
    let dated = start(&**fixture, NewJoin::expecting(1).expires_at(at).build().unwrap()).await;
    assert_left(&store.look(dated).await.unwrap(), 5 * HOUR);
    for (outcomes, status, numbers) in [
        ([Outcome::Ack, Outcome::Ack], JoinStatus::Completed, [2, 2, 0]),
        ([fail(), Outcome::Ack], JoinStatus::Failed, [2, 1, 1]),
    ] {
        let (id, held) = leased_fan(&**fixture, 2).await;
        for (message, outcome) in held.iter().zip(outcomes) {
            assert_eq!(store.look(id).await.unwrap(), Look::Pending { expires_in: None });
            apply(store, message.lease(), outcome).await;
        }
        assert_eq!(store.look(id).await.unwrap(), Look::Over(ended(id, status, numbers)));
    }
    cancel(&**fixture, endless).await.unwrap();
    let over = ended(endless, JoinStatus::Cancelled, [1, 0, 0]);
    assert_eq!(store.look(endless).await.unwrap(), Look::Over(over));
    assert_exact(store).await;
}

/// A deadline in the past, by the database's clock, is a deadline: the join can be started and expires with the first
/// check.
pub async fn a_deadline_in_the_past<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let past = fixture.now().await - HOUR;
    for when in [past, std::time::SystemTime::UNIX_EPOCH] {
        let id = start(&**fixture, NewJoin::expecting(1).expires_at(when).build().unwrap()).await;
        assert_eq!(tally(store, id).await.0, JoinStatus::Pending);
        let mut tx = fixture.begin().await;
        let look = store.wait_for_join(fixture.connection(&mut tx), id, MessageId::new()).await.unwrap();
        fixture.commit(tx).await;
        assert_eq!(look, Look::Pending { expires_in: Some(Duration::ZERO) });
        assert_eq!(store.look(id).await.unwrap(), Look::Expired(ended(id, JoinStatus::Expired, [1, 0, 0])));
    }
    let at_once =
        start(&**fixture, NewJoin::expecting(1).expires_after(Duration::ZERO).build().unwrap()).await;
    fixture.advance(MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().joins, [ended(at_once, JoinStatus::Expired, [1, 0, 0])]);
    assert_exact(store).await;
}

/// JOIN-042 as amended: steps that end after the deadline are recorded as late, not counted.
pub async fn steps_of_an_expired_join_are_late<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = with_deadline(&**fixture, 3, HOUR / 2).await;
    let ids = enqueue(store, &plains(3)).await;
    attach(&**fixture, id, &ids).await;
    let held = claim(store, 3).await;
    apply(store, held[0].lease(), fail()).await;
    fixture.advance(HOUR / 2 + MINUTE).await;
    assert_eq!(store.expire(10).await.unwrap().joins, [ended(id, JoinStatus::Expired, [3, 0, 1])]);
    let over = join(store, id).await;
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await, []);
    assert_eq!(end(store, held[2].lease(), last_straw()).await, []);
    use StepStatus::{Failed, LateCompleted, LateFailed};
    assert_eq!(statuses(store, id, &ids).await, [Failed, LateCompleted, LateFailed]);
    assert_eq!(join(store, id).await, over);
    assert_exact(store).await;
}

/// The deadline of a join is checked before its messages expire: the join has expired, and they are late.
pub async fn deadlines_come_before_expired_messages<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = with_deadline(&**fixture, 1, HOUR).await;
    let message = enqueue_one(store, draft("topic").expires_after(HOUR).build().unwrap()).await;
    attach(&**fixture, id, &[message]).await;
    fixture.advance(2 * HOUR).await;
    let expired = store.expire(10).await.unwrap();
    assert_eq!((expired.messages, expired.joins), (1, vec![ended(id, JoinStatus::Expired, [1, 0, 0])]));
    assert_eq!(statuses(store, id, &[message]).await, [StepStatus::LateFailed]);
    assert_exact(store).await;
}

/// Until it is checked, a join whose deadline has passed is pending: steps count, and may end it.
pub async fn nobody_looked_in_time<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = with_deadline(&**fixture, 2, HOUR / 4).await;
    enqueue(store, &plains(2)).await;
    let held = claim(store, 2).await;
    fixture.advance(HOUR / 2).await;
    assert_eq!(attach(&**fixture, id, &[held[0].id, held[1].id]).await.new, 2);
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await, []);
    assert_eq!(
        end(store, held[1].lease(), Outcome::Ack).await,
        [ended(id, JoinStatus::Completed, [2, 2, 0])]
    );
    assert_eq!(store.expire(10).await.unwrap().joins, []);
    let over = store.join(id).await.unwrap().unwrap();
    assert_eq!(over.status, JoinStatus::Completed);
    assert_exact(store).await;
}
