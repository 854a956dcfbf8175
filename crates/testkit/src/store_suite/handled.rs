//! The handlers that are done with a message: remembered by the store, so that a retry runs only the others.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Failure, Lease, Outcome, Settled, Settlement, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// Settles one lease, with the handlers that are done by then.
async fn settle_handled<S: StoreAdmin>(store: &S, lease: Lease, outcome: Outcome, names: &[&str]) -> Settled {
    let handled = Some(names.iter().map(|name| (*name).to_owned()).collect());
    let settled =
        store.settle(&[Settlement { handled, ..Settlement::new(lease, outcome) }]).await.unwrap().settled;
    assert_eq!(settled.len(), 1);
    settled[0]
}

/// An outage that passes.
fn outage() -> Outcome {
    let failure = Failure::infrastructure("down");
    Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 9, max_age: None }
}

/// HOT-011: which handlers are done is stored with whatever outcome, and comes back with a claim and in a list.
pub async fn handlers_that_are_done_are_remembered<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = leased(store).await.id;
    let outcomes =
        [abandon(Duration::ZERO), outage(), Outcome::Defer { delay: Duration::ZERO }, Outcome::Release];
    let mut names = Vec::new();
    for (n, outcome) in outcomes.into_iter().enumerate() {
        let held = record(store, id).await.message;
        assert_eq!(held.handled, names);
        names.push(format!("händler {n} \u{1F600}'\"\\,[]"));
        let given: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(settle_handled(store, held.lease(), outcome, &given).await, Settled::Applied);
        assert_eq!(record(store, id).await.message.handled, names);
        assert_eq!(claim_one(store).await.handled, names);
    }
    let held = record(store, id).await.message;
    assert_eq!(settle_handled(store, held.lease(), fail(), &["only"]).await, Settled::Applied);
    let dead = records(store).await.remove(0);
    assert_eq!((dead.state, dead.message.handled), (State::Dead, vec!["only".to_owned()]));
}

/// HOT-011: receivers that are not mentioned stay as they were, through every verb that gives a message back, and
/// through a requeue.
pub async fn what_is_not_mentioned_stays<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    assert!(message.handled.is_empty(), "nobody was done with a new one");
    let outcome = abandon(Duration::ZERO);
    assert_eq!(settle_handled(store, message.lease(), outcome, &["a", "b"]).await, Settled::Applied);
    let kept = ["a".to_owned(), "b".to_owned()];
    let outcomes = [
        abandon(Duration::ZERO),
        outage(),
        Outcome::Defer { delay: Duration::ZERO },
        Outcome::Release,
        fail(),
    ];
    for outcome in outcomes {
        let held = claim_one(store).await;
        assert_eq!(held.handled, kept);
        apply(store, held.lease(), outcome).await;
        assert_eq!(record(store, message.id).await.message.handled, kept);
    }
    assert_eq!(store.requeue(&change()).await.unwrap(), [message.id]);
    let held = claim_one(store).await;
    assert_eq!(held.handled, kept);
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);
    let held = claim_one(store).await;
    assert_eq!(held.handled, kept);
    apply(store, held.lease(), Outcome::Ack).await;
    assert_eq!(record(store, message.id).await.message.handled, kept);
}

/// HOT-011: an empty list takes all names back: it was given, unlike none at all.
pub async fn an_empty_list_is_a_list<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    assert_eq!(settle_handled(store, message.lease(), Outcome::Release, &["a"]).await, Settled::Applied);
    let held = claim_one(store).await;
    assert_eq!(settle_handled(store, held.lease(), Outcome::Release, &[]).await, Settled::Applied);
    assert!(claim_one(store).await.handled.is_empty());
}

/// HOT-011: a worker that lost the lease changes no names, nor does a repeated ack; in a batch each settlement has
/// its own.
pub async fn only_the_holder_says_who_is_done<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let old = leased(store).await;
    apply(store, old.lease(), Outcome::Release).await;
    let new = claim_one(store).await;
    assert_eq!(settle_handled(store, old.lease(), Outcome::Release, &["stale"]).await, Settled::Lost);
    assert!(record(store, old.id).await.message.handled.is_empty());
    assert_eq!(settle_handled(store, new.lease(), Outcome::Ack, &["a"]).await, Settled::Applied);
    assert_eq!(settle_handled(store, new.lease(), Outcome::Ack, &["again"]).await, Settled::Applied);
    assert_eq!(record(store, old.id).await.message.handled, ["a"]);

    let ids = enqueue(store, &plains(3)).await;
    let held = claim(store, 3).await;
    let given = [Some(vec!["x".to_owned()]), None, Some(vec!["y".to_owned(), "z".to_owned()])];
    let settlements: Vec<_> = held
        .iter()
        .zip(&given)
        .map(|(message, handled)| Settlement {
            handled: handled.clone(),
            ..Settlement::new(message.lease(), Outcome::Release)
        })
        .collect();
    assert_eq!(store.settle(&settlements).await.unwrap().settled, [Settled::Applied; 3]);
    for (id, handled) in ids.iter().zip(given) {
        assert_eq!(record(store, *id).await.message.handled, handled.unwrap_or_default());
    }
}
