//! The effects of the verbs on a message that the caller holds.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Failure, FailureClass, Lease, Message, Outcome, Record, Settled, Settlement, State, Store as _,
};

use super::support::*;
use crate::Fixture;

/// Asserts that no worker holds a message.
#[track_caller]
fn assert_nobodys(record: &Record, state: State) {
    assert_eq!((record.state, record.leased_until, &record.worker), (state, None, &None));
}

/// Asserts that neither the published fields of a message nor its place have changed.
#[track_caller]
fn assert_same_content(record: &Record, claimed: &Message) {
    let mut expected = claimed.clone();
    expected.attempts = record.message.attempts;
    expected.due_at = record.message.due_at;
    assert_eq!(record.message, expected);
}

/// OBX-027, OBX-028, OBX-029, OBX-032: an acked message is done, when and by whom is known, and it is not claimed again.
pub async fn ack_is_done<F: Fixture>(fixture: &Arc<F>) {
    let message = leased(fixture.store()).await;
    apply(fixture.store(), message.lease(), Outcome::Ack).await;
    let record = record(fixture.store(), message.id).await;
    assert_nobodys(&record, State::Done);
    assert_eq!(record.message, message, "nothing else changes");
    assert_near(record.done_at.unwrap(), fixture.now().await);
    assert_eq!(record.done_by, Some(worker("worker-1")));
    assert_eq!((record.error_class, record.last_error), (None, None));
    assert!(claim(fixture.store(), 10).await.is_empty());
}

/// RMQ-011: a store that does not keep done messages deletes them on ack, and only those.
pub async fn ack_deletes_where_done_is_not_kept<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store_that_deletes();
    let ids = enqueue(&store, &plains(3)).await;
    let claimed = claim(&store, 3).await;
    apply(&store, claimed[0].lease(), Outcome::Ack).await;
    apply(&store, claimed[1].lease(), Outcome::Release).await;
    apply(&store, claimed[2].lease(), fail()).await;
    assert_eq!(state(fixture.store(), ids[0]).await, None);
    assert_eq!(state(fixture.store(), ids[1]).await, Some(State::Ready));
    assert_eq!(state(fixture.store(), ids[2]).await, Some(State::Dead));
    assert_eq!(settle(&store, claimed[0].lease(), Outcome::Ack).await, Settled::Gone);
}

/// Rule 7: an ack repeated with the same epoch took place, and changes nothing.
pub async fn an_ack_can_be_repeated<F: Fixture>(fixture: &Arc<F>) {
    let message = leased(fixture.store()).await;
    apply(fixture.store(), message.lease(), Outcome::Ack).await;
    let before = records(fixture.store()).await;
    fixture.advance(HOUR).await;
    let shifted = records(fixture.store()).await;
    apply(fixture.store(), message.lease(), Outcome::Ack).await;
    apply(fixture.store(), message.lease(), Outcome::Ack).await;
    assert_eq!(records(fixture.store()).await, shifted);
    assert_eq!(before.len(), 1);
}

/// One result for each settlement, in their order, in whatever order the store applies them.
pub async fn answers_come_as_they_were_asked_for<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store_that_deletes();
    enqueue(&store, &plains(6)).await;
    let held: Vec<Lease> = claim(&store, 6).await.iter().map(Message::lease).collect();
    apply(&store, held[2], Outcome::Ack).await;
    let stale = Lease { epoch: held[5].epoch.wrapping_add(1), ..held[5] };
    for (asked, answers) in [
        // All of one epoch, one of them gone, one asked for twice.
        (vec![held[4], held[2], held[0], held[4]], "AGAL"),
        // One of another epoch among them.
        (vec![held[3], stale, held[2], held[1]], "ALGA"),
        (vec![held[5], held[0]], "AG"),
    ] {
        let asked: Vec<_> = asked.into_iter().map(|lease| Settlement::new(lease, Outcome::Ack)).collect();
        let settled = store.settle(&asked).await.unwrap().settled;
        let letters = settled.iter().map(|answer| match answer {
            Settled::Applied => 'A',
            Settled::Lost => 'L',
            Settled::Gone => 'G',
            Settled::Locked => 'K',
        });
        assert_eq!(letters.collect::<String>(), answers, "{asked:?}");
    }
    assert_eq!(records(&store).await, []);
}

/// OBX-035, OBX-036, OBX-037, OBX-040, OBX-041, HOT-005: an abandoned message has no holder and one attempt less, and
/// comes back after the delay.
pub async fn abandon_comes_back_later<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    apply(store, message.lease(), abandon(HOUR)).await;
    let record = record(store, message.id).await;
    assert_nobodys(&record, State::Ready);
    assert_same_content(&record, &message);
    assert_eq!((record.message.attempts, record.message.epoch), (1, message.epoch));
    assert_near(record.message.due_at, fixture.now().await + HOUR);
    assert_eq!(record.error_class, Some(FailureClass::Business));
    assert_eq!(record.last_error.as_deref(), Some("[BUSINESS] refused"));
    assert_eq!(record.done_at, None);
    assert!(claim(store, 10).await.is_empty());
    fixture.advance(HOUR - 2 * MINUTE).await;
    assert!(claim(store, 10).await.is_empty());
    fixture.advance(4 * MINUTE).await;
    let again = claim_one(store).await;
    assert_eq!((again.id, again.attempts), (message.id, 1));
    assert_ne!(again.epoch, message.epoch);
}

/// HOT-005: attempts grow, each failure replaces the one before, and the last attempt makes it dead.
pub async fn abandon_at_the_limit_is_dead<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    for attempt in 1..=4 {
        let message = claim_one(store).await;
        assert_eq!(message.attempts, attempt - 1);
        let failure = Failure::business(format!("attempt {attempt}"));
        let outcome = Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 4, max_age: None };
        apply(store, message.lease(), outcome).await;
        let record = record(store, id).await;
        assert_eq!(record.message.attempts, attempt);
        assert_eq!(record.last_error, Some(format!("[BUSINESS] attempt {attempt}")));
        assert_nobodys(&record, if attempt < 4 { State::Ready } else { State::Dead });
        assert_eq!(record.done_at.is_some(), attempt == 4);
    }
    assert_near(record(store, id).await.done_at.unwrap(), fixture.now().await);
    fixture.advance(24 * HOUR).await;
    assert!(claim(store, 10).await.is_empty());
}

/// Rule 13, INB-006: outages and missing routes cost no attempt, not even the last one; every other class does.
pub async fn outages_cost_no_attempt<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for class in [FailureClass::Infrastructure, FailureClass::Unroutable] {
        let id = enqueue_one(store, plain()).await;
        for _ in 0..3 {
            let message = claim_one(store).await;
            let failure = Failure::new(class, "down");
            let outcome = Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 1, max_age: None };
            apply(store, message.lease(), outcome).await;
        }
        let record = record(store, id).await;
        assert_nobodys(&record, State::Ready);
        assert_eq!((record.message.attempts, record.error_class), (0, Some(class)));
        assert_eq!(record.last_error.as_deref(), Some("[INFRA] down"));
        let message = claim_one(store).await;
        apply(store, message.lease(), Outcome::Ack).await;
    }
    // Not even one that has more attempts behind it than it may have by now.
    let held = leased(store).await;
    apply(store, held.lease(), abandon(Duration::ZERO)).await;
    let held = claim_one(store).await;
    let failure = Failure::infrastructure("down");
    apply(store, held.lease(), Outcome::Abandon { delay: HOUR, failure, max_attempts: 1, max_age: None })
        .await;
    let spared = record(store, held.id).await;
    assert_eq!((spared.state, spared.message.attempts), (State::Ready, 1));
    for class in [FailureClass::Business, FailureClass::Permanent, FailureClass::TooLarge] {
        let message = leased(store).await;
        let failure = Failure::new(class, "refused");
        apply(
            store,
            message.lease(),
            Outcome::Abandon { delay: HOUR, failure, max_attempts: 2, max_age: None },
        )
        .await;
        assert_eq!(record(store, message.id).await.message.attempts, 1, "{class}");
    }
}

/// OBX-036 as amended: a deferred message comes back later, uncharged, with no failure.
pub async fn defer_is_uncharged<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    apply(store, message.lease(), Outcome::Defer { delay: HOUR }).await;
    let deferred = record(store, message.id).await;
    assert_nobodys(&deferred, State::Ready);
    assert_same_content(&deferred, &message);
    assert_eq!((deferred.message.attempts, deferred.message.lease_losses), (0, 0));
    assert_eq!((deferred.error_class, deferred.last_error), (None, None));
    assert_near(deferred.message.due_at, fixture.now().await + HOUR);
    assert!(claim(store, 10).await.is_empty());
    fixture.advance(HOUR + MINUTE).await;
    assert_eq!(claim_one(store).await.id, message.id);
}

/// HOT-019: a released message can be claimed at once, uncharged, and has kept its place in line.
pub async fn release_keeps_its_place<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &plains(2)).await;
    fixture.advance(HOUR).await;
    let later = enqueue_one(store, plain()).await;
    let claimed = claim(store, 2).await;
    fixture.advance(MINUTE).await;
    let before = record(store, ids[0]).await;
    apply(store, claimed[0].lease(), Outcome::Release).await;
    apply(store, claimed[1].lease(), Outcome::Release).await;
    let released = record(store, ids[0]).await;
    assert_nobodys(&released, State::Ready);
    assert_eq!(released.message, before.message, "nothing but the lease changes");
    assert_eq!((released.error_class, released.last_error), (None, None));
    assert_eq!(claim_ids(store, 10).await, [ids[0], ids[1], later]);
}

/// OBX-042, OBX-043, OBX-048: a failed message is dead, with its reason, and is not claimed again.
pub async fn fail_is_dead<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for class in [FailureClass::Permanent, FailureClass::TooLarge, FailureClass::Infrastructure] {
        let message = leased(store).await;
        let failure = Failure::new(class, "never");
        let text = failure.text().to_owned();
        apply(store, message.lease(), Outcome::Fail { failure }).await;
        let record = record(store, message.id).await;
        assert_nobodys(&record, State::Dead);
        assert_eq!(record.message, message, "no attempt is charged");
        assert_eq!((record.error_class, record.last_error), (Some(class), Some(text)));
        assert_near(record.done_at.unwrap(), fixture.now().await);
        assert_eq!(record.done_by, None);
    }
    fixture.advance(24 * HOUR).await;
    assert!(claim(store, 10).await.is_empty());
}

/// A failure stays on record until there is another: release, defer and ack leave it.
pub async fn the_last_failure_is_kept<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    apply(store, message.lease(), abandon(Duration::ZERO)).await;
    let outcomes = [Outcome::Release, Outcome::Defer { delay: Duration::ZERO }, Outcome::Ack];
    for outcome in outcomes {
        let held = claim_one(store).await;
        assert_eq!(held.attempts, 1);
        apply(store, held.lease(), outcome).await;
        let record = record(store, message.id).await;
        assert_eq!(record.error_class, Some(FailureClass::Business));
        assert_eq!(record.last_error.as_deref(), Some("[BUSINESS] refused"));
    }
}

/// OBX-030: every verb is accepted after the lease has run out, as long as no other worker took the message over.
pub async fn late_but_still_the_holder<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for (name, verb) in verbs() {
        let message = leased(store).await;
        fixture.advance(LEASE + HOUR).await;
        assert_eq!(attempt(store, message.lease(), verb).await, Settled::Applied, "{name}");
        assert_eq!(record(store, message.id).await.message.lease_losses, 0);
        fixture.clear().await;
    }
}
