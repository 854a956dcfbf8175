//! Pruning keeps the messages that a pending join needs, and removes joins that have ended.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{ErrorKind, JoinStatus, MessageId, Outcome, Retention, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// Transition done or dead to gone, M-24: a step of a pending join stays, however old it is, whether messages are deleted or
/// archived; when the join has ended it goes like any other.
pub async fn steps_of_pending_joins_are_kept<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(3)).await;
    let held = claim(store, 3).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), fail()).await;
    apply(store, held[2].lease(), Outcome::Ack).await;
    let id = start(&**fixture, expecting(3)).await;
    // Of an ended join, and of a pending one: the pending one decides.
    let over = start(&**fixture, expecting(1)).await;
    attach(&**fixture, over, &[held[0].id]).await;
    attach(&**fixture, id, &[held[0].id, held[1].id]).await;
    fixture.advance(100 * HOUR).await;
    let everything = Retention::done(HOUR).dead(HOUR);
    assert_eq!(store.prune(&everything, 100).await.unwrap(), 1, "only the one that is no step");
    assert_eq!(state(store, held[2].id).await, None);
    assert_eq!(store.prune(&everything.archive(), 100).await.unwrap(), 0);
    assert_eq!(records(store).await.len(), 2);
    assert!(fixture.archived().await.is_empty());
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 1, 1]));
    cancel(&**fixture, id).await.unwrap();
    assert_eq!(store.prune(&everything.archive(), 100).await.unwrap(), 2);
    assert_eq!(fixture.archived().await.len(), 2);
    assert_eq!(steps(store, id).await.len(), 2, "the join remembers them");
    assert_exact(store).await;
}

/// M-24: steps that are kept do not use up the limit of a call, nor block messages behind them.
pub async fn kept_steps_hold_nothing_up<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = dead(store, 12).await;
    let id = start(&**fixture, expecting(11)).await;
    attach(&**fixture, id, &ids[..10]).await;
    fixture.advance(2 * HOUR).await;
    let retention = Retention::done(HOUR).dead(HOUR);
    assert_eq!(store.prune(&retention, 1).await.unwrap(), 1);
    assert_eq!(store.prune(&retention, 5).await.unwrap(), 1);
    assert_eq!(store.prune(&retention, 5).await.unwrap(), 0);
    let left: Vec<_> = records(store).await.iter().map(|record| record.message.id).collect();
    assert_eq!(left, ids[..10]);
    assert_exact(store).await;
}

/// Joins go when they have been over for long enough, with their steps; pending ones never do.
pub async fn joins_go_when_their_time_is_over<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let pending = start(&**fixture, expecting(2)).await;
    let message = leased(store).await;
    attach(&**fixture, pending, &[message.id]).await;
    let (old, held) = leased_fan(&**fixture, 2).await;
    fixture.advance(100 * HOUR).await;
    let batch = held.iter().map(|one| posthaste_core::Settlement::new(one.lease(), Outcome::Ack));
    assert_eq!(store.settle(&batch.collect::<Vec<_>>()).await.unwrap().joins.len(), 1);
    fixture.advance(10 * HOUR).await;
    let cancelled = start(&**fixture, expecting(1)).await;
    cancel(&**fixture, cancelled).await.unwrap();
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.prune_joins(13 * HOUR, 100).await.unwrap(), 0, "its age counts from its end");
    assert_eq!(store.prune_joins(Duration::MAX, 100).await.unwrap(), 0);
    assert_eq!(store.prune_joins(11 * HOUR, 100).await.unwrap(), 1);
    assert_eq!(store.join(old).await.unwrap(), None);
    assert!(store.steps(old, None, 10).await.unwrap().steps.is_empty());
    assert!(store.join(cancelled).await.unwrap().is_some());
    assert_eq!(store.prune_joins(HOUR, 100).await.unwrap(), 1);
    assert_eq!(store.prune_joins(Duration::ZERO, 100).await.unwrap(), 0);
    assert_eq!(tally(store, pending).await, (JoinStatus::Pending, [1, 0, 0]));
    assert_eq!(records(store).await.len(), 3, "messages have a retention of their own");
    assert_exact(store).await;
}

/// At most so many joins go in one call, and all of them in the end.
pub async fn joins_go_in_portions<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for _ in 0..7 {
        let id = start(&**fixture, expecting(1)).await;
        cancel(&**fixture, id).await.unwrap();
    }
    fixture.advance(HOUR).await;
    for expected in [3, 3, 1, 0] {
        assert_eq!(store.prune_joins(MINUTE, 3).await.unwrap(), expected);
    }
    for limit in [0, 1_001] {
        let refused = store.prune_joins(MINUTE, limit).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    assert_exact(store).await;
}

/// Gets a wait that is due into this state.
async fn wait_in<F: Fixture>(fixture: &F, wait: MessageId, wanted: Option<State>) {
    let store = fixture.store();
    let held = claim_one(store).await;
    assert_eq!(held.id, wait);
    match wanted {
        Some(State::Ready) => apply(store, held.lease(), abandon(10 * DAY)).await,
        Some(State::Leased) => {
            assert_eq!(attempt(store, held.lease(), None).await, posthaste_core::Settled::Applied);
        }
        Some(State::Done) => apply(store, held.lease(), Outcome::Ack).await,
        Some(State::Dead) => apply(store, held.lease(), fail()).await,
        None => apply(&fixture.store_that_deletes(), held.lease(), Outcome::Ack).await,
    }
    assert_eq!(state(store, wait).await, wanted);
}

/// I8: a join that a message still waits for stays, also when that message has sent its continuation: until it is acked it
/// may check again. Once it has ended, or is gone, the join goes.
pub async fn a_wait_keeps_its_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for (wanted, keeps) in [
        (Some(State::Ready), true),
        (Some(State::Leased), true),
        (Some(State::Done), false),
        (Some(State::Dead), false),
        (None, false),
    ] {
        let id = start(&**fixture, expecting(1)).await;
        let wait = wait_for(&**fixture, id).await;
        cancel(&**fixture, id).await.unwrap();
        wait_in(&**fixture, wait, wanted).await;
        fixture.advance(MINUTE).await;
        assert_eq!(store.prune_joins(Duration::ZERO, 10).await.unwrap(), u64::from(!keeps), "{wanted:?}");
        if keeps {
            assert!(store.continue_join(id, wait, None).await.unwrap());
            assert_eq!(store.prune_joins(Duration::ZERO, 10).await.unwrap(), 0, "{wanted:?}");
            assert!(!store.continue_join(id, wait, Some(&plain())).await.unwrap());
            continue;
        }
        assert_eq!(store.join(id).await.unwrap(), None);
        assert!(!store.continue_join(id, wait, Some(&plain())).await.unwrap());
    }
    assert_exact(store).await;
}

/// Joins that are kept for their waits do not hold up those behind them.
pub async fn kept_joins_hold_nothing_up<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = Vec::new();
    for n in 0..6 {
        let id = start(&**fixture, expecting(1)).await;
        if n < 4 {
            wait_for(&**fixture, id).await;
        }
        cancel(&**fixture, id).await.unwrap();
        fixture.advance(MINUTE).await;
        ids.push(id);
    }
    for expected in [1, 1, 0] {
        assert_eq!(store.prune_joins(Duration::ZERO, 1).await.unwrap(), expected);
    }
    let page = store.joins(&posthaste_core::JoinFilter::default(), None, 10).await.unwrap();
    assert_eq!(page.joins.iter().map(|join| join.id).collect::<Vec<_>>(), ids[..4]);
    assert_exact(store).await;
}

/// Rule 10: messages whose join is gone end all the same, and the same join can be started again.
pub async fn messages_outlive_their_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let new = expecting(3);
    let id = start(&**fixture, new.clone()).await;
    enqueue(store, &plains(3)).await;
    let held = claim(store, 3).await;
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    attach(&**fixture, id, &ids).await;
    cancel(&**fixture, id).await.unwrap();
    fixture.advance(MINUTE).await;
    assert_eq!(store.prune_joins(Duration::ZERO, 10).await.unwrap(), 1);
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await, []);
    assert_eq!(end(store, held[1].lease(), fail()).await, []);
    assert_eq!(store.requeue(&change()).await.unwrap(), ids[1..2]);
    start(&**fixture, new).await;
    assert!(steps(store, id).await.is_empty(), "with no steps of its former life");
    attach(&**fixture, id, &ids).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 1, 0]));
    assert_exact(store).await;
}
