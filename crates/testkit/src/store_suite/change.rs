//! Changes that an operator decides: requeueing and burying, with who and why on record.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Change, Failure, FailureClass, Filter, HistoryEntry, Outcome, State, Store, StoreAdmin, Topics,
};

use super::support::*;
use crate::Fixture;

/// Asserts who did what and why, and the state of the message before.
#[track_caller]
fn assert_entry(entry: &HistoryEntry, action: &str, by: &str, why: &str, before: (u32, u32, Option<&str>)) {
    assert_eq!((entry.action.as_str(), entry.by.as_str(), entry.why.as_str()), (action, by, why));
    assert_eq!((entry.attempts, entry.lease_losses, entry.last_error.as_deref()), before);
}

/// Transition dead to ready: due now, with no attempts, no lease losses and no error, and with who and why on record.
pub async fn requeue_is_a_new_chance<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    claim_one(store).await;
    fixture.advance(LEASE + MINUTE).await;
    store.reap(10).await.unwrap();
    let held = claim_one(store).await;
    let failure = Failure::business("no");
    apply(
        store,
        held.lease(),
        Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 1, max_age: None },
    )
    .await;
    fixture.advance(HOUR).await;
    let before = record(store, id).await;
    assert_eq!((before.message.attempts, before.message.lease_losses), (1, 1));
    assert_eq!(store.requeue(&change()).await.unwrap(), [id]);
    let (after, history) = store.show(id).await.unwrap().unwrap();
    assert_eq!((after.state, after.parked, after.done_at), (State::Ready, false, None));
    assert_eq!((after.message.attempts, after.message.lease_losses), (0, 0));
    assert_eq!(after.message.epoch, before.message.epoch);
    assert_near(after.message.due_at, fixture.now().await);
    assert_eq!(after.message.created_at, before.message.created_at);
    assert_eq!((after.last_error, after.error_class), (None, None), "R14: the history has what went wrong");
    assert_eq!(history.len(), 1);
    assert_entry(&history[0], "requeue", "ada", "the broker is back", (1, 1, Some("[BUSINESS] no")));
    assert_near(history[0].at, fixture.now().await);
    assert_ne!(claim_one(store).await.epoch, after.message.epoch);
}

/// Only dead ones are requeued, whatever state the filter names; a second call finds none.
pub async fn only_the_dead_are_requeued<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let done = leased(store).await;
    apply(store, done.lease(), Outcome::Ack).await;
    let dead = dead_from(store, plain()).await;
    leased(store).await;
    enqueue_one(store, plain()).await;
    for state in [State::Ready, State::Leased, State::Done] {
        let filter = Filter { state: Some(state), ..Filter::default() };
        let before = records(store).await;
        assert!(store.requeue(&change_of(filter)).await.unwrap().is_empty(), "{state}");
        assert_eq!(records(store).await, before);
    }
    assert_eq!(store.requeue(&change()).await.unwrap(), [dead]);
    let before = records(store).await;
    assert!(store.requeue(&change()).await.unwrap().is_empty());
    assert_eq!(records(store).await, before);
    assert_eq!(history(store, dead).await.len(), 1);
}

/// An expiry that is past is removed by requeueing, else the message would die at once; one to come stays.
pub async fn requeue_removes_a_past_expiry<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let past = draft("topic").expires_after(HOUR).build().unwrap();
    let id = enqueue_one(store, past).await;
    fixture.advance(2 * HOUR).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    let to_come = dead_from(store, draft("topic").expires_after(HOUR).build().unwrap()).await;
    assert_eq!(store.requeue(&change()).await.unwrap(), [id, to_come]);
    assert_eq!(record(store, id).await.message.expires_at, None);
    assert!(record(store, to_come).await.message.expires_at.is_some());
    assert_eq!(store.expire(10).await.unwrap().messages, 0);
    assert_eq!(claim_ids(store, 10).await, [id, to_come]);
}

/// A dry run answers the same ids and changes nothing; a limit takes those enqueued first; a filter is kept to.
pub async fn requeue_by_filter_limit_and_dry_run<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = dead(store, 5).await;
    ids.push(dead_from(store, draft("other").build().unwrap()).await);
    let before = records(store).await;
    assert_eq!(store.requeue(&change().dry_run()).await.unwrap(), ids);
    assert_eq!(store.requeue(&change().limit(2).dry_run()).await.unwrap(), ids[..2]);
    assert_eq!(records(store).await, before);
    assert!(history(store, ids[0]).await.is_empty());
    let other = Filter { topics: Topics::of(["other"]).unwrap(), ..Filter::default() };
    assert_eq!(store.requeue(&change_of(other)).await.unwrap(), ids[5..]);
    assert_eq!(store.requeue(&change_of(only(&[ids[3], ids[1]]))).await.unwrap(), [ids[1], ids[3]]);
    assert_eq!(store.requeue(&change().limit(2)).await.unwrap(), [ids[0], ids[2]]);
    assert_eq!(state(store, ids[4]).await, Some(State::Dead));
    assert!(history(store, ids[4]).await.is_empty());
    assert_eq!(store.requeue(&change()).await.unwrap(), ids[4..5]);
    assert_eq!(claim(store, 10).await.len(), 6);
}

/// Requeued messages go in the order of enqueueing, all due from now.
pub async fn requeued_in_order<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = dead(store, 20).await;
    let earlier = enqueue_one(store, plain()).await;
    fixture.advance(MINUTE).await;
    assert_eq!(store.requeue(&change()).await.unwrap(), ids);
    let mut expected = vec![earlier];
    expected.extend(&ids);
    assert_eq!(claim_ids(store, 100).await, expected);
}

/// Burying gives up ready messages: dead with who and why, never claimed, and requeueable.
pub async fn bury_gives_up<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[plain(), draft("topic").delay(HOUR).build().unwrap()]).await;
    let bury = Change::new(Filter::default(), "grace", "sent twice").unwrap();
    assert_eq!(store.bury(&bury).await.unwrap(), ids);
    for id in &ids {
        let (record, history) = store.show(*id).await.unwrap().unwrap();
        assert_eq!((record.state, record.error_class), (State::Dead, Some(FailureClass::Buried)));
        assert_eq!(record.last_error.as_deref(), Some("buried by grace: sent twice"));
        assert_near(record.done_at.unwrap(), fixture.now().await);
        assert_eq!((record.message.attempts, record.message.epoch), (0, 0));
        assert_eq!(history.len(), 1);
        assert_entry(&history[0], "bury", "grace", "sent twice", (0, 0, None));
    }
    fixture.advance(2 * HOUR).await;
    assert!(claim(store, 10).await.is_empty());
    assert!(store.bury(&bury).await.unwrap().is_empty(), "once");
    assert_eq!(store.requeue(&change()).await.unwrap(), ids);
    let entries = history(store, ids[0]).await;
    assert_eq!(entries.len(), 2);
    assert_entry(&entries[0], "bury", "grace", "sent twice", (0, 0, None));
    let text = Some("buried by grace: sent twice");
    assert_entry(&entries[1], "requeue", "ada", "the broker is back", (0, 0, text));
    assert_eq!(claim_ids(store, 10).await, ids);
}

/// Burying does not touch messages that are leased, done, or dead without blocking a key; it takes dead ones that
/// block one.
pub async fn bury_takes_only_what_waits<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let done = leased(store).await;
    apply(store, done.lease(), Outcome::Ack).await;
    dead_from(store, plain()).await;
    let skip = posthaste_core::OrderPolicy::Skip;
    dead_from(store, draft("topic").key("s").order(skip).build().unwrap()).await;
    let expired = draft("topic").key("e").expires_after(HOUR).build().unwrap();
    enqueue_one(store, expired).await;
    fixture.advance(2 * HOUR).await;
    store.expire(10).await.unwrap();
    let held = leased_from(store, keyed("l")).await;
    let before = records(store).await;
    assert!(store.bury(&change()).await.unwrap().is_empty());
    assert_eq!(records(store).await, before);
    let blocking = dead_from(store, keyed("b")).await;
    assert_eq!(store.bury(&change()).await.unwrap(), [blocking]);
    let buried = record(store, blocking).await;
    assert_eq!((buried.state, buried.error_class), (State::Dead, Some(FailureClass::Buried)));
    let entries = history(store, blocking).await;
    assert_entry(&entries[0], "bury", "ada", "the broker is back", (0, 0, Some("[BUSINESS] broken")));
    assert!(store.bury(&change()).await.unwrap().is_empty(), "it holds nothing any more");
    apply(store, held.lease(), Outcome::Ack).await;
}

/// A dry run of burying changes nothing; limit and filter are kept to.
pub async fn bury_by_filter_limit_and_dry_run<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = enqueue(store, &plains(4)).await;
    ids.push(enqueue_one(store, draft("other").build().unwrap()).await);
    let before = records(store).await;
    assert_eq!(store.bury(&change().dry_run()).await.unwrap(), ids);
    assert_eq!(store.bury(&change().limit(3).dry_run()).await.unwrap(), ids[..3]);
    assert_eq!(records(store).await, before);
    assert!(history(store, ids[0]).await.is_empty());
    let other = Filter { topics: Topics::of(["other"]).unwrap(), ..Filter::default() };
    assert_eq!(store.bury(&change_of(other)).await.unwrap(), ids[4..]);
    assert_eq!(store.bury(&change().limit(1)).await.unwrap(), ids[..1]);
    assert_eq!(store.bury(&change_of(only(&[ids[2], ids[0]]))).await.unwrap(), ids[2..3]);
    assert_eq!(claim_ids(store, 10).await, [ids[1], ids[3]]);
}
