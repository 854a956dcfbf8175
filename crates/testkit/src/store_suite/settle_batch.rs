//! Many settlements in one call: each has its own result, independent of the others.

use std::sync::Arc;

use posthaste_core::{Lease, Message, Outcome, Settled, Settlement, State, Store, WorkItemId};

use super::support::*;
use crate::Fixture;

/// OBX-031, OBX-039, OBX-045, OBX-097: each settlement of a batch has its own result, in order, independent of the
/// others.
pub async fn a_batch_of_all_sorts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &plains(7)).await;
    let held = claim(store, 7).await;
    apply(store, held[6].lease(), Outcome::Release).await;
    let stale = Lease { epoch: 0, ..held[5].lease() };
    let gone = Lease { item: WorkItemId::new(i64::MAX), epoch: 1 };
    let batch = [
        (held[4].lease(), fail(), Settled::Applied),
        (gone, Outcome::Ack, Settled::Gone),
        (held[0].lease(), Outcome::Ack, Settled::Applied),
        (stale, fail(), Settled::Lost),
        (held[2].lease(), Outcome::Defer { delay: HOUR }, Settled::Applied),
        (held[6].lease(), Outcome::Ack, Settled::Lost),
        (held[1].lease(), abandon(HOUR), Settled::Applied),
        (held[3].lease(), Outcome::Release, Settled::Applied),
    ];
    let settlements: Vec<_> =
        batch.iter().map(|(lease, outcome, _)| Settlement::new(*lease, outcome.clone())).collect();
    let expected: Vec<_> = batch.iter().map(|(.., expected)| *expected).collect();
    assert_eq!(store.settle(&settlements).await.unwrap().settled, expected);
    let mut found = Vec::new();
    for id in &ids {
        let record = record(store, *id).await;
        found.push((record.state, record.message.attempts, record.last_error));
    }
    let (refused, broken) = (Some("[BUSINESS] refused".to_owned()), Some("[BUSINESS] broken".to_owned()));
    assert_eq!(
        found,
        [
            (State::Done, 0, None),
            (State::Ready, 1, refused),
            (State::Ready, 0, None),
            (State::Ready, 0, None),
            (State::Dead, 0, broken),
            (State::Leased, 0, None),
            (State::Ready, 0, None),
        ]
    );
    assert_eq!(claim_ids(store, 10).await, [ids[3], ids[6]]);
}

/// Of several settlements for one lease the first decides and the others are lost, also for acks.
pub async fn the_first_of_a_lease_decides<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let held = {
        enqueue(store, &plains(3)).await;
        claim(store, 3).await
    };
    let [a, b, c] = [held[0].lease(), held[1].lease(), held[2].lease()];
    let batch = [
        (a, abandon(HOUR)),
        (b, Outcome::Ack),
        (a, Outcome::Ack),
        (c, Outcome::Release),
        (b, Outcome::Ack),
        (c, fail()),
        (a, fail()),
    ];
    let settlements = batch.map(|(lease, outcome)| Settlement::new(lease, outcome));
    use Settled::{Applied, Lost};
    let expected = [Applied, Applied, Lost, Applied, Lost, Lost, Lost];
    assert_eq!(store.settle(&settlements).await.unwrap().settled, expected);
    let abandoned = record(store, held[0].id).await;
    assert_eq!((abandoned.state, abandoned.message.attempts), (State::Ready, 1));
    assert_eq!(state(store, held[1].id).await, Some(State::Done));
    assert_eq!(state(store, held[2].id).await, Some(State::Ready));
}

/// OBX-030: of a stale and a current epoch of one row, in one batch and in either order, only the current one counts.
pub async fn stale_and_current_in_one_batch<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for (stale_first, stale) in [(true, fail()), (false, fail()), (true, Outcome::Ack), (false, Outcome::Ack)]
    {
        let old = leased(store).await;
        apply(store, old.lease(), Outcome::Release).await;
        let new = claim_one(store).await;
        let stale = Settlement::new(old.lease(), stale);
        let current = Settlement::new(new.lease(), Outcome::Ack);
        let (batch, expected) = if stale_first {
            ([stale, current], [Settled::Lost, Settled::Applied])
        } else {
            ([current, stale], [Settled::Applied, Settled::Lost])
        };
        assert_eq!(store.settle(&batch).await.unwrap().settled, expected);
        let record = record(store, new.id).await;
        assert_eq!((record.state, record.last_error), (State::Done, None));
    }
}

/// OBX-027: a thousand at once, each with an answer of its own.
pub async fn a_thousand_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(1_000)).await;
    let held = claim(store, 1_000).await;
    let settlement = |(n, message): (usize, &Message)| {
        let mut lease = message.lease();
        // Every third comes from a worker that lost the lease.
        lease.epoch = lease.epoch.wrapping_sub(i32::from(n % 3 == 0));
        Settlement::new(lease, if n % 2 == 0 { Outcome::Ack } else { abandon(HOUR) })
    };
    let settlements: Vec<_> = held.iter().enumerate().rev().map(settlement).collect();
    let settled = store.settle(&settlements).await.unwrap().settled;
    assert_eq!(settled.len(), 1_000);
    for (n, answer) in (0..1_000).rev().zip(settled) {
        assert_eq!(answer, if n % 3 == 0 { Settled::Lost } else { Settled::Applied }, "{n}");
    }
    let states: Vec<_> = records(store).await.iter().map(|record| record.state).collect();
    for (n, state) in states.into_iter().enumerate() {
        let expected = match (n % 3, n % 2) {
            (0, _) => State::Leased,
            (_, 0) => State::Done,
            _ => State::Ready,
        };
        assert_eq!(state, expected, "{n}");
    }
}

/// OBX-031: settling nothing, and renewing nothing, is no error.
pub async fn nothing_can_be_settled<F: Fixture>(fixture: &Arc<F>) {
    assert_eq!(fixture.store().settle(&[]).await.unwrap().settled, []);
    assert_eq!(fixture.store().renew(&[], LEASE).await.unwrap(), []);
}
