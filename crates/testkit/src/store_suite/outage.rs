//! Failures that cost no attempt: since when they have gone on without a break, and when that is too long.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Failure, FailureClass, Message, OrderPolicy, Outcome, State, Store, StoreAdmin, Topics,
};

use super::support::*;
use crate::Fixture;

/// An outage, with how long it may last.
fn outage(max_age: Option<Duration>) -> Outcome {
    outage_of(FailureClass::Infrastructure, max_age)
}

fn outage_of(class: FailureClass, max_age: Option<Duration>) -> Outcome {
    let failure = Failure::new(class, "down");
    Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 1, max_age }
}

/// Claims the one message that there is, and settles it so.
async fn next<S: StoreAdmin>(store: &S, outcome: Outcome) -> Message {
    let held = claim_one(store).await;
    apply(store, held.lease(), outcome).await;
    record(store, held.id).await.message
}

/// INB-006: the first failure without charge says since when, the next ones leave that, and a claim tells it.
pub async fn an_outage_has_a_beginning<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue_one(store, plain()).await;
    assert_eq!(claim_one(store).await.failing_since, None);
    let held = records(store).await.remove(0).message;
    apply(store, held.lease(), Outcome::Release).await;
    for class in [FailureClass::Infrastructure, FailureClass::Unroutable] {
        for _ in 0..2 {
            next(store, outage_of(class, None)).await;
            fixture.advance(HOUR).await;
        }
    }
    let claimed = claim_one(store).await;
    assert_near(claimed.failing_since.unwrap(), fixture.now().await - 4 * HOUR);
    assert_eq!(claimed.attempts, 0);
}

/// INB-006: an outcome that is no failure neither ends an outage nor begins one.
pub async fn a_pause_is_no_break<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    next(store, Outcome::Defer { delay: Duration::ZERO }).await;
    assert_eq!(next(store, Outcome::Release).await.failing_since, None);
    next(store, outage(None)).await;
    fixture.advance(HOUR).await;
    next(store, Outcome::Defer { delay: Duration::ZERO }).await;
    next(store, Outcome::Release).await;
    claim_one(store).await;
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);
    let since = record(store, id).await.message.failing_since.unwrap();
    assert_near(since, fixture.now().await - HOUR - LEASE - MINUTE);
}

/// INB-006: a failure that costs an attempt ends the outage: the next one begins a new outage.
pub async fn a_charged_failure_breaks_it<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue_one(store, plain()).await;
    next(store, outage(None)).await;
    fixture.advance(10 * HOUR).await;
    let broken = next(store, abandon(Duration::ZERO)).await;
    assert_eq!((broken.failing_since, broken.attempts), (None, 1));
    fixture.advance(HOUR).await;
    let anew = next(store, outage(Some(5 * HOUR))).await;
    assert_near(anew.failing_since.unwrap(), fixture.now().await);
    assert_eq!(claim_one(store).await.id, anew.id, "what was before the break does not count");
}

/// INB-006: an outage that has lasted for too long makes the message dead, uncharged and with its reason.
pub async fn an_outage_may_last_so_long<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    next(store, outage(Some(3 * HOUR))).await;
    fixture.advance(2 * HOUR).await;
    next(store, outage(Some(3 * HOUR))).await;
    assert_eq!(state(store, id).await, Some(State::Ready));
    fixture.advance(2 * HOUR).await;
    let before = record(store, id).await.message;
    let held = claim_one(store).await;
    apply(store, held.lease(), outage(Some(3 * HOUR))).await;
    let dead = record(store, id).await;
    assert_eq!((dead.state, dead.error_class), (State::Dead, Some(FailureClass::Infrastructure)));
    assert_eq!(dead.last_error.as_deref(), Some("[INFRA] down"));
    assert_eq!((dead.message.attempts, dead.message.due_at), (0, before.due_at));
    assert_near(dead.done_at.unwrap(), fixture.now().await);
    assert_near(dead.message.failing_since.unwrap(), fixture.now().await - 4 * HOUR);
    assert_eq!((dead.worker, dead.leased_until), (None, None));
    fixture.advance(HOUR).await;
    assert!(claim(store, 10).await.is_empty());
}

/// INB-006: the age that is given with the failure decides: none is for ever, nought is at once, and a charged failure
/// does not ask for it.
pub async fn the_age_given_decides<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    next(store, outage(None)).await;
    fixture.advance(10_000 * HOUR).await;
    next(store, outage(None)).await;
    next(store, outage(Some(Duration::MAX))).await;
    let failure = Failure::business("no");
    let charged =
        Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 9, max_age: Some(Duration::ZERO) };
    next(store, charged).await;
    assert_eq!(state(store, id).await, Some(State::Ready));
    next(store, outage(Some(Duration::ZERO))).await;
    assert_eq!(state(store, id).await, Some(State::Dead));
}

/// INB-006: a requeued message starts without an outage.
pub async fn a_requeue_breaks_it<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    next(store, outage(None)).await;
    fixture.advance(5 * HOUR).await;
    next(store, outage(Some(HOUR))).await;
    assert_eq!(store.requeue(&change()).await.unwrap(), [id]);
    assert_eq!(record(store, id).await.message.failing_since, None);
    next(store, outage(Some(HOUR))).await;
    assert_eq!(state(store, id).await, Some(State::Ready));
}

/// F1: what waits for the end of an outage can be made due before its time: so many, of these topics, those first that have
/// failed for longest. Nothing else changes, and nothing else is touched.
pub async fn the_end_of_an_outage_makes_it_due<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let later = |class| Outcome::Abandon {
        delay: HOUR,
        failure: Failure::new(class, "down"),
        max_attempts: 9,
        max_age: None,
    };
    let mut waiting = Vec::new();
    for topic in ["a.x", "a.y", "b", "a.z"] {
        let held = leased_from(store, draft(topic).build().unwrap()).await;
        apply(store, held.lease(), later(FailureClass::Infrastructure)).await;
        fixture.advance(MINUTE).await;
        waiting.push(held.id);
    }
    for class in [FailureClass::Business, FailureClass::Unroutable] {
        let held = leased_from(store, draft("a.other").build().unwrap()).await;
        apply(store, held.lease(), later(class)).await;
    }
    enqueue_one(store, draft("a.scheduled").delay(HOUR).build().unwrap()).await;
    let before = record(store, waiting[0]).await.message;
    assert!(claim_ids(store, 9).await.is_empty());
    let topics = Topics::of(["a.*"]).unwrap();
    assert_eq!(store.hasten(&Topics::none(), 9).await.unwrap(), 0);
    assert_eq!(store.hasten(&topics, 2).await.unwrap(), 2);
    let due = claim(store, 9).await;
    assert_eq!(due.iter().map(|message| message.id).collect::<Vec<_>>(), waiting[..2]);
    assert_eq!((due[0].failing_since, due[0].attempts), (before.failing_since, 0));
    assert_near(due[0].due_at, fixture.now().await);
    assert_eq!(store.hasten(&topics, 9).await.unwrap(), 1);
    assert_eq!(store.hasten(&topics, 9).await.unwrap(), 0, "what is due is not made due again");
    assert_eq!(claim_ids(store, 9).await, waiting[3..]);
    assert_eq!(store.hasten(&Topics::of(["b"]).unwrap(), 9).await.unwrap(), 1);
    assert_eq!(claim_ids(store, 9).await, waiting[2..3]);
    assert!(store.hasten(&Topics::all(), 0).await.is_err());
    for message in due {
        apply(store, message.lease(), later(FailureClass::Infrastructure)).await;
    }
    assert_eq!(store.hasten(&Topics::all(), 9).await.unwrap(), 2, "all topics");
}

/// F1: a message that was made due keeps its place in its key, and one that is parked stays where it is.
pub async fn made_due_it_keeps_its_place<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let outage = Outcome::Abandon {
        delay: HOUR,
        failure: Failure::infrastructure("down"),
        max_attempts: 9,
        max_age: None,
    };
    let first = leased_from(store, keyed("k")).await;
    let second = enqueue_one(store, keyed("k")).await;
    apply(store, first.lease(), outage.clone()).await;
    assert_eq!(store.hasten(&Topics::all(), 9).await.unwrap(), 1);
    let again = claim_one(store).await;
    assert_eq!(again.id, first.id);
    apply(store, again.lease(), Outcome::Ack).await;
    let held = claim_one(store).await;
    assert_eq!(held.id, second);
    apply(store, held.lease(), Outcome::Ack).await;

    dead_from(store, draft("t").key("p").order(OrderPolicy::Park).build().unwrap()).await;
    enqueue_one(store, keyed("p")).await;
    assert_eq!(store.park(9).await.unwrap(), 1);
    assert_eq!(store.hasten(&Topics::all(), 9).await.unwrap(), 0);
}
