//! Every verb, in every state where it has no business, with every epoch: the answer tells, and nothing changes.
//!
//! OBX-030, OBX-031, OBX-038, OBX-039, OBX-044, OBX-045, HOT-020 and rule 2. One case per state.

use std::sync::Arc;

use posthaste_core::{Lease, Message, Outcome, Settled, State, Store, StoreAdmin, WorkItemId};

use super::support::*;
use crate::Fixture;

/// Tries every verb with these epochs and demands this answer and an untouched table. An ack may have its own answer.
async fn assert_all_refused<S: StoreAdmin>(store: &S, item: WorkItemId, answers: &[(i32, Settled, Settled)]) {
    let before = records(store).await;
    for (epoch, answer, ack) in answers {
        for (name, verb) in verbs() {
            let expected = if name == "ack" { ack } else { answer };
            let settled = attempt(store, Lease { item, epoch: *epoch }, verb).await;
            assert_eq!(settled, *expected, "{name} with epoch {epoch}");
            assert_eq!(records(store).await, before, "{name} with epoch {epoch} changed something");
        }
    }
}

fn lost(epochs: impl IntoIterator<Item = i32>) -> Vec<(i32, Settled, Settled)> {
    epochs.into_iter().map(|epoch| (epoch, Settled::Lost, Settled::Lost)).collect()
}

/// Epochs under which a message is not held that was claimed under these: neighbours, none, and the earlier ones.
fn strange(epochs: &[i32]) -> Vec<i32> {
    let (last, earlier) = epochs.split_last().unwrap();
    let mut strange = vec![-1, 0, last.wrapping_sub(1), last.wrapping_add(1)];
    strange.extend(earlier);
    strange.retain(|epoch| epoch != last);
    strange
}

/// A message that was claimed twice, and both epochs; with a neighbour on each side that must stay as it is.
async fn claimed_twice<S: StoreAdmin>(store: &S) -> (Message, [i32; 2]) {
    enqueue(store, &plains(3)).await;
    let first = claim(store, 3).await;
    apply(store, first[1].lease(), Outcome::Release).await;
    let again = claim_one(store).await;
    assert_eq!(again.id, first[1].id);
    assert_ne!(again.epoch, first[1].epoch);
    let epochs = [first[1].epoch, again.epoch];
    (again, epochs)
}

/// OBX-030, OBX-038, OBX-044: ready again, so it has no holder, not even the last one.
pub async fn ready_is_nobodys<F: Fixture>(fixture: &Arc<F>) {
    let (message, epochs) = claimed_twice(fixture.store()).await;
    apply(fixture.store(), message.lease(), abandon(HOUR)).await;
    assert_eq!(state(fixture.store(), message.id).await, Some(State::Ready));
    assert_all_refused(fixture.store(), message.item, &lost(strange(&epochs))).await;
    assert_all_refused(fixture.store(), message.item, &lost([message.epoch])).await;
}

/// OBX-030: never claimed, so there is no epoch to hold it by.
pub async fn unclaimed_is_nobodys<F: Fixture>(fixture: &Arc<F>) {
    let id = enqueue_one(fixture.store(), plain()).await;
    let item = record(fixture.store(), id).await.message.item;
    assert_all_refused(fixture.store(), item, &lost([-1, 0, 1, 2])).await;
}

/// OBX-030, OBX-038, OBX-044: held by another worker, or by the same one through a later claim.
pub async fn leased_by_a_newer_epoch<F: Fixture>(fixture: &Arc<F>) {
    let (message, epochs) = claimed_twice(fixture.store()).await;
    assert_all_refused(fixture.store(), message.item, &lost(strange(&epochs))).await;
    assert_eq!(attempt(fixture.store(), message.lease(), None).await, Settled::Applied);
}

/// OBX-030: a stale ack deletes nothing, where acks delete.
pub async fn deleted_by_its_holder_only<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store_that_deletes();
    let (message, epochs) = claimed_twice(&store).await;
    assert_all_refused(&store, message.item, &lost(strange(&epochs))).await;
    apply(&store, message.lease(), Outcome::Ack).await;
    assert_eq!(state(&store, message.id).await, None);
    assert_eq!(records(&store).await.len(), 2, "its neighbours stay");
}

/// OBX-101: leased again after a reap, also if the first holder's lease would still be running by its own account.
pub async fn taken_over_after_a_reap<F: Fixture>(fixture: &Arc<F>) {
    let message = leased(fixture.store()).await;
    fixture.advance(LEASE + MINUTE).await;
    fixture.store().reap(10).await.unwrap();
    assert_all_refused(fixture.store(), message.item, &lost([-1, 0, message.epoch])).await;
    let again = claim_one(fixture.store()).await;
    assert_all_refused(fixture.store(), message.item, &lost(strange(&[message.epoch, again.epoch]))).await;
    apply(fixture.store(), again.lease(), Outcome::Ack).await;
}

/// HOT-020: done is final; only its own ack, repeated, is applied again.
pub async fn done_is_final<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (message, epochs) = claimed_twice(store).await;
    apply(store, message.lease(), Outcome::Ack).await;
    let mut answers = lost(strange(&epochs));
    answers.push((message.epoch, Settled::Lost, Settled::Applied));
    assert_all_refused(store, message.item, &answers).await;
    // Nor does any other call change it.
    fixture.advance(10 * LEASE).await;
    let before = record(store, message.id).await;
    store.reap(10).await.unwrap();
    store.expire(10).await.unwrap();
    store.park(10).await.unwrap();
    assert!(store.requeue(&change_of(only(&[message.id]))).await.unwrap().is_empty());
    assert!(store.bury(&change_of(only(&[message.id]))).await.unwrap().is_empty());
    assert!(!claim_ids(store, 10).await.contains(&message.id));
    assert_eq!(record(store, message.id).await, before);
}

/// OBX-044, OBX-048: a dead message has no holder, whichever way it died.
pub async fn dead_is_nobodys<F: Fixture>(fixture: &Arc<F>) {
    let (message, epochs) = claimed_twice(fixture.store()).await;
    apply(fixture.store(), message.lease(), fail()).await;
    assert_all_refused(fixture.store(), message.item, &lost(strange(&epochs))).await;
    assert_all_refused(fixture.store(), message.item, &lost([message.epoch])).await;
    let id = enqueue_one(fixture.store(), plain()).await;
    fixture.store().bury(&change_of(only(&[id]))).await.unwrap();
    let buried = record(fixture.store(), id).await;
    assert_all_refused(fixture.store(), buried.message.item, &lost([0, 1])).await;
}

/// OBX-044: a requeued message has no holder until it is claimed again, and then it has a new epoch.
pub async fn requeued_is_nobodys<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (message, epochs) = claimed_twice(store).await;
    apply(store, message.lease(), fail()).await;
    store.requeue(&change()).await.unwrap();
    assert_all_refused(store, message.item, &lost(strange(&epochs))).await;
    assert_all_refused(store, message.item, &lost([message.epoch])).await;
    assert_ne!(claim_one(store).await.epoch, message.epoch);
}

/// OBX-031, OBX-039, OBX-045: a message that is not there any more, or never was, is gone.
pub async fn gone_is_gone<F: Fixture>(fixture: &Arc<F>) {
    let (message, [first, last]) = claimed_twice(fixture.store()).await;
    apply(&fixture.store_that_deletes(), message.lease(), Outcome::Ack).await;
    let gone = [0, 1, first, last].map(|epoch| (epoch, Settled::Gone, Settled::Gone));
    assert_all_refused(fixture.store(), message.item, &gone).await;
    assert_all_refused(&fixture.store_that_deletes(), message.item, &gone).await;
    for item in [0, -1, i64::MAX, i64::MIN] {
        assert_all_refused(fixture.store(), WorkItemId::new(item), &gone[1..2]).await;
    }
}
