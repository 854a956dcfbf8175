//! Taking back what its worker lost, and finding the message that kills its workers.

use std::sync::Arc;

use posthaste_core::{FailureClass, MAX_LEASE_LOSSES, MessageId, Outcome, Reaped, State, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// Makes these suspects: claimed, and lost.
async fn suspects<F: Fixture>(fixture: &F, count: usize) -> Vec<MessageId> {
    let ids = enqueue(fixture.store(), &plains(count)).await;
    assert_eq!(claim(fixture.store(), 10).await.len(), count);
    fixture.advance(LEASE + MINUTE).await;
    let reaped = fixture.store().reap(10).await.unwrap();
    assert_eq!(reaped, Reaped { ready: count as u64, dead: 0, joins: Vec::new() });
    ids
}

/// OBX-049, OBX-050, OBX-051, OBX-053: a lease that ran out is taken back; that is counted, but no attempt is charged.
pub async fn reap_takes_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    fixture.advance(LEASE + MINUTE).await;
    assert!(claim(store, 10).await.is_empty(), "only reaping takes it back");
    assert_eq!(store.reap(10).await.unwrap(), Reaped { ready: 1, dead: 0, joins: Vec::new() });
    let record = record(store, message.id).await;
    assert_eq!((record.state, record.leased_until, record.worker), (State::Ready, None, None));
    assert_eq!(
        (record.message.attempts, record.message.lease_losses, record.message.epoch),
        (0, 1, message.epoch)
    );
    assert_near(record.message.due_at, fixture.now().await);
    assert_eq!((record.error_class, record.last_error, record.done_at), (None, None, None));
    assert_eq!(store.reap(10).await.unwrap(), Reaped::default(), "once");
    let again = claim_one(store).await;
    assert_eq!((again.id, again.lease_losses), (message.id, 1));
    assert_ne!(again.epoch, message.epoch);
}

/// OBX-049, OBX-052: only leases that ran out; nothing that is ready, done or dead.
pub async fn reap_takes_nothing_else<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let held = {
        enqueue(store, &plains(5)).await;
        claim(store, 5).await
    };
    apply(store, held[0].lease(), Outcome::Ack).await;
    apply(store, held[1].lease(), fail()).await;
    apply(store, held[2].lease(), Outcome::Release).await;
    apply(store, held[3].lease(), Outcome::Defer { delay: HOUR }).await;
    fixture.advance(LEASE - 2 * MINUTE).await;
    let before = records(store).await;
    assert_eq!(store.reap(10).await.unwrap(), Reaped::default());
    assert_eq!(records(store).await, before);
    fixture.advance(4 * MINUTE).await;
    let before = records(store).await;
    assert_eq!(store.reap(10).await.unwrap(), Reaped { ready: 1, dead: 0, joins: Vec::new() });
    assert_eq!(records(store).await[..4], before[..4]);
}

/// At most so many, the ones that ran out first before the others.
pub async fn reap_in_portions<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut ids = Vec::new();
    for hours in [3, 1, 2] {
        ids.push(enqueue_one(store, plain()).await);
        store.claim(&request(1).lease(hours * HOUR)).await.unwrap();
    }
    fixture.advance(5 * HOUR).await;
    for expected in [1, 2, 0] {
        assert_eq!(store.reap(1).await.unwrap(), Reaped { ready: 1, dead: 0, joins: Vec::new() });
        assert_eq!(record(store, ids[expected]).await.message.lease_losses, 1);
    }
    assert_eq!(store.reap(1).await.unwrap(), Reaped::default());
}

/// OBX-049..053 as amended, I10: dead at exactly the fifth loss, as a crash suspect.
pub async fn the_fifth_loss_is_the_last<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, keyed("k")).await;
    for losses in 1..=MAX_LEASE_LOSSES {
        assert_eq!(claim_one(store).await.id, id);
        fixture.advance(LEASE + MINUTE).await;
        let last = losses == MAX_LEASE_LOSSES;
        let expected = Reaped { ready: u64::from(!last), dead: u64::from(last), joins: Vec::new() };
        assert_eq!(store.reap(10).await.unwrap(), expected);
        let record = record(store, id).await;
        assert_eq!((record.message.lease_losses, record.message.attempts), (losses, 0));
        assert_eq!(record.state, if last { State::Dead } else { State::Ready });
    }
    let record = record(store, id).await;
    assert_eq!(record.error_class, Some(FailureClass::CrashSuspect));
    assert_eq!(record.last_error.as_deref(), Some("crash suspect"));
    assert_near(record.done_at.unwrap(), fixture.now().await);
    assert_eq!((record.leased_until, &record.worker), (None, &None));
    assert!(record.holds_key());
    let behind = enqueue_one(store, keyed("k")).await;
    assert!(claim(store, 10).await.is_empty(), "{behind} waits");
}

/// Rule 4: suspects are claimed one at a time, and after the clean ones.
pub async fn suspects_are_claimed_alone<F: Fixture>(fixture: &Arc<F>) {
    let suspects = suspects(&**fixture, 3).await;
    let clean = enqueue(fixture.store(), &plains(2)).await;
    assert_eq!(claim_ids(fixture.store(), 10).await, clean);
    for suspect in suspects {
        assert_eq!(claim_ids(fixture.store(), 10).await, [suspect]);
    }
    assert!(claim(fixture.store(), 10).await.is_empty());
}

/// Rule 4: not even a better priority makes a suspect go first, nor mixes it with clean ones.
pub async fn suspects_do_not_overtake<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let suspect = enqueue_one(store, draft("topic").priority(-5).build().unwrap()).await;
    claim_one(store).await;
    fixture.advance(LEASE + MINUTE).await;
    store.reap(10).await.unwrap();
    let clean = enqueue(store, &plains(3)).await;
    assert_eq!(claim_ids(store, 2).await, clean[..2]);
    assert_eq!(claim_ids(store, 2).await, clean[2..]);
    assert_eq!(claim_ids(store, 2).await, [suspect]);
}

/// Rule 4: a suspect that has been due for longer than the lease goes first, still alone, so that it does not starve.
pub async fn an_overdue_suspect_goes_first<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let suspects = suspects(&**fixture, 2).await;
    fixture.advance(LEASE + MINUTE).await;
    let clean = enqueue(store, &plains(2)).await;
    let patient = store.claim(&request(10).lease(3 * LEASE)).await.unwrap();
    assert_eq!(
        patient.iter().map(|message| message.id).collect::<Vec<_>>(),
        clean,
        "not overdue for this lease"
    );
    for message in patient {
        apply(store, message.lease(), Outcome::Release).await;
    }
    assert_eq!(claim_ids(store, 10).await, suspects[..1]);
    assert_eq!(claim_ids(store, 10).await, suspects[1..]);
    assert_eq!(claim_ids(store, 10).await, clean);
}

/// Rule 4: a suspect stays one through every verb, until it is done or requeued.
pub async fn once_a_suspect<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let suspect = suspects(&**fixture, 1).await[0];
    for outcome in [Outcome::Release, Outcome::Defer { delay: MINUTE }, abandon(MINUTE)] {
        let held = claim_one(store).await;
        assert_eq!(held.lease_losses, 1);
        apply(store, held.lease(), outcome).await;
        fixture.advance(2 * MINUTE).await;
    }
    let clean = enqueue_one(store, plain()).await;
    assert_eq!(claim_ids(store, 10).await, [clean]);
    let held = claim_one(store).await;
    apply(store, held.lease(), fail()).await;
    store.requeue(&change()).await.unwrap();
    let clean = enqueue_one(store, plain()).await;
    assert_eq!(claim_ids(store, 10).await, [suspect, clean], "a new chance is a clean one");
}

/// Rule 4: a worker neither claims nor waits for messages of topics that it does not handle.
pub async fn suspects_of_other_topics<F: Fixture>(fixture: &Arc<F>) {
    suspects(&**fixture, 1).await;
    fixture.advance(2 * LEASE).await;
    let wanted = enqueue_one(fixture.store(), draft("wanted").build().unwrap()).await;
    let topics = posthaste_core::Topics::of(["wanted"]).unwrap();
    let claimed = fixture.store().claim(&request(10).topics(topics)).await.unwrap();
    assert_eq!(claimed.iter().map(|message| message.id).collect::<Vec<_>>(), [wanted]);
}

/// OBX-049: a thousand leases of a worker that died, at once.
pub async fn reap_a_thousand<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(1_000)).await;
    claim(store, 1_000).await;
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(300).await.unwrap(), Reaped { ready: 300, dead: 0, joins: Vec::new() });
    assert_eq!(store.reap(10_000).await.unwrap(), Reaped { ready: 700, dead: 0, joins: Vec::new() });
    assert_eq!(numbers(&store.stats().await.unwrap()), [1_000, 0, 0, 0, 0, 0]);
}

/// Rule 4 and order: a suspect waits for its turn in its key as any other message does, behind a dead one, too.
pub async fn a_suspect_waits_for_its_turn<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[keyed("k"), keyed("k")]).await;
    store.bury(&change_of(only(&ids[..1]))).await.unwrap();
    assert_eq!(claim_one(store).await.id, ids[1]);
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);
    // The first comes back, and dies in a way that holds its key.
    store.requeue(&change_of(only(&ids[..1]))).await.unwrap();
    let first = claim_one(store).await;
    assert_eq!(first.id, ids[0]);
    apply(store, first.lease(), fail()).await;
    fixture.advance(LEASE + MINUTE).await;
    assert!(claim(store, 10).await.is_empty(), "neither at its time nor overdue");
    store.bury(&change_of(only(&ids[..1]))).await.unwrap();
    assert_eq!(claim_one(store).await.id, ids[1]);
}
