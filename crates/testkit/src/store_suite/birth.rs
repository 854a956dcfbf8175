//! Messages that are stored leased to the worker that will deliver them from memory.

use std::sync::Arc;

use posthaste_core::{
    Birth, Enqueued, Lease, NewMessage, Outcome, Settled, State, Store, TransactionalStore,
};

use super::support::*;
use crate::Fixture;

async fn born<F: Fixture>(fixture: &F, messages: &[NewMessage]) -> Vec<Option<Lease>> {
    let me = worker("hot");
    let mut tx = fixture.begin().await;
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let enqueued = fixture.store().insert(fixture.connection(&mut tx), messages, birth).await.unwrap();
    fixture.commit(tx).await;
    assert_eq!(enqueued.len(), messages.len());
    let lease = |(answer, message): (&Enqueued, &NewMessage)| match answer {
        Enqueued::New { id, lease } if *id == message.id() => *lease,
        other => panic!("{other:?}"),
    };
    enqueued.iter().zip(messages).map(lease).collect()
}

/// HOT-003 (its store's part), OBX-101: stored leased, with an epoch, to this worker and no other.
pub async fn born_leased<F: Fixture>(fixture: &Arc<F>) {
    let (store, messages) = (fixture.store(), plains(3));
    let leases = born(&**fixture, &messages).await;
    assert!(claim(store, 10).await.is_empty());
    for (lease, message) in leases.iter().zip(&messages) {
        let record = record(store, message.id()).await;
        assert_eq!((record.state, &record.worker), (State::Leased, &Some(worker("hot"))));
        assert_eq!(Some(record.message.lease()), *lease);
        assert_ne!(record.message.epoch, 0);
        assert_near(record.leased_until.unwrap(), fixture.now().await + LEASE);
        assert_near(record.message.due_at, record.message.created_at);
    }
    apply(store, leases[0].unwrap(), Outcome::Ack).await;
    let done = record(store, messages[0].id()).await;
    assert_eq!((done.state, done.done_by), (State::Done, Some(worker("hot"))));
}

/// HOT-003: a message that needs a claim to know its turn is stored ready all the same.
pub async fn only_a_claim_knows_their_turn<F: Fixture>(fixture: &Arc<F>) {
    let now = fixture.now().await;
    let waiting = [
        keyed("k"),
        draft("topic").delay(HOUR).build().unwrap(),
        draft("topic").due_at(now + HOUR).build().unwrap(),
        draft("topic").expires_after(HOUR).build().unwrap(),
        draft("topic").expires_at(now + HOUR).build().unwrap(),
    ];
    let mut batch = waiting.to_vec();
    batch.push(plain());
    let leases = born(&**fixture, &batch).await;
    assert_eq!(
        leases.iter().map(Option::is_some).collect::<Vec<_>>(),
        [false, false, false, false, false, true]
    );
    for message in &waiting {
        let record = record(fixture.store(), message.id()).await;
        assert_eq!((record.state, record.worker, record.message.epoch), (State::Ready, None, 0));
        assert_eq!(record.leased_until, None);
    }
    assert_eq!(claim_ids(fixture.store(), 10).await, [waiting[0].id(), waiting[3].id(), waiting[4].id()]);
}

/// HOT-002, OBX-051: a dead worker does not hold messages of the hot path for ever, and its old lease is then worth
/// nothing.
pub async fn a_lost_birth_is_reaped<F: Fixture>(fixture: &Arc<F>) {
    let (store, messages) = (fixture.store(), plains(1));
    let old = born(&**fixture, &messages).await[0].unwrap();
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);
    let again = claim_one(store).await;
    assert_eq!((again.id, again.lease_losses), (messages[0].id(), 1));
    assert_ne!(again.epoch, old.epoch);
    assert_eq!(settle(store, old, Outcome::Ack).await, Settled::Lost);
    apply(store, again.lease(), Outcome::Ack).await;
}

/// HOT-002: a rolled-back birth was never there, and its lease is gone.
pub async fn a_birth_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let me = worker("hot");
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let mut tx = fixture.begin().await;
    let enqueued = fixture.store().insert(fixture.connection(&mut tx), &plains(1), birth).await.unwrap();
    fixture.rollback(tx).await;
    let Enqueued::New { lease: Some(lease), .. } = enqueued[0] else { panic!("{enqueued:?}") };
    assert_eq!(settle(fixture.store(), lease, Outcome::Ack).await, Settled::Gone);
    assert!(records(fixture.store()).await.is_empty());
}

/// Rule 7: publishing a duplicate leases it to no worker.
pub async fn a_duplicate_is_not_born<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), plain());
    enqueue_one(store, message.clone()).await;
    let me = worker("hot");
    let mut tx = fixture.begin().await;
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let batch = [message.clone(), plain()];
    let enqueued = store.insert(fixture.connection(&mut tx), &batch, birth).await.unwrap();
    fixture.commit(tx).await;
    assert_eq!(enqueued[0], Enqueued::Duplicate { id: message.id() });
    assert!(matches!(enqueued[1], Enqueued::New { lease: Some(_), .. }));
    assert_eq!(claim_ids(store, 10).await, [message.id()]);
}

/// The leases of messages stored leased in this transaction.
async fn born_in<F: Fixture>(fixture: &F, tx: &mut F::Transaction, messages: &[NewMessage]) -> Vec<Lease> {
    let me = worker("hot");
    let birth = Birth::Leased { worker: &me, lease: LEASE };
    let enqueued = fixture.store().insert(fixture.connection(tx), messages, birth).await.unwrap();
    let lease = |answer: &Enqueued| match answer {
        Enqueued::New { lease: Some(lease), .. } => *lease,
        other => panic!("{other:?}"),
    };
    enqueued.iter().map(lease).collect()
}

/// HOT-002: a transaction sees the messages that it stored, in the order of the request.
pub async fn survivors_of_a_transaction<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut tx = fixture.begin().await;
    let mut leases = born_in(&**fixture, &mut tx, &plains(3)).await;
    leases.extend(born_in(&**fixture, &mut tx, &plains(200)).await);
    leases.reverse();
    assert_eq!(store.survivors(fixture.connection(&mut tx), &leases).await.unwrap(), vec![true; 203]);
    assert!(store.survivors(fixture.connection(&mut tx), &[]).await.unwrap().is_empty());
    fixture.commit(tx).await;
}

/// HOT-002: messages of a rolled-back savepoint are not there; messages before and after it are.
pub async fn survivors_of_a_savepoint<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut tx = fixture.begin().await;
    let before = born_in(&**fixture, &mut tx, &plains(2)).await;
    fixture.savepoint(fixture.connection(&mut tx)).await;
    let lost = born_in(&**fixture, &mut tx, &plains(2)).await;
    let all = [lost[1], before[0], lost[0], before[1]];
    assert_eq!(store.survivors(fixture.connection(&mut tx), &all).await.unwrap(), [true; 4]);
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    assert_eq!(store.survivors(fixture.connection(&mut tx), &all).await.unwrap(), [false, true, false, true]);
    let after = plains(1);
    let late = born_in(&**fixture, &mut tx, &after).await;
    let all = [before[0], late[0], before[1]];
    assert_eq!(store.survivors(fixture.connection(&mut tx), &all).await.unwrap(), [true; 3]);
    fixture.commit(tx).await;
    assert_eq!(records(store).await.len(), 3);
}

/// HOT-002: a lease is a row and its epoch: another epoch's is not there.
pub async fn survivors_by_their_lease<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut tx = fixture.begin().await;
    let leases = born_in(&**fixture, &mut tx, &plains(2)).await;
    let other = Lease { epoch: leases[0].epoch + 1, ..leases[0] };
    let asked = [other, leases[1], leases[0]];
    assert_eq!(store.survivors(fixture.connection(&mut tx), &asked).await.unwrap(), [false, true, true]);
    fixture.rollback(tx).await;
}
