//! Renewal: a worker that still holds a message goes on holding it.

use std::sync::Arc;

use posthaste_core::{Lease, Outcome, Settled, State, Store, WorkItemId};

use super::support::*;
use crate::Fixture;

/// Rule 3: a renewed lease lasts as long as was asked for, from now, and nothing else changes.
pub async fn renewal_lasts_from_now<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    fixture.advance(LEASE / 2).await;
    let before = record(store, message.id).await;
    assert_eq!(store.renew(&[message.lease()], 2 * LEASE).await.unwrap(), [Settled::Applied]);
    let mut after = record(store, message.id).await;
    assert_near(after.leased_until.unwrap(), fixture.now().await + 2 * LEASE);
    after.leased_until = before.leased_until;
    assert_eq!(after, before);
    // Longer than the first lease, shorter than the second.
    fixture.advance(LEASE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 0);
    apply(store, message.lease(), Outcome::Ack).await;
}

/// Rule 3: a lease can also be made shorter.
pub async fn renewal_can_shorten<F: Fixture>(fixture: &Arc<F>) {
    let message = leased(fixture.store()).await;
    assert_eq!(fixture.store().renew(&[message.lease()], MINUTE).await.unwrap(), [Settled::Applied]);
    fixture.advance(3 * MINUTE).await;
    assert_eq!(fixture.store().reap(10).await.unwrap().ready, 1);
}

/// OBX-049: a lease that ran out is renewed if no other worker took the message over, and then it is not reaped.
pub async fn a_lease_that_ran_out_is_renewed<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let message = leased(store).await;
    fixture.advance(10 * LEASE).await;
    assert_eq!(store.renew(&[message.lease()], LEASE).await.unwrap(), [Settled::Applied]);
    assert_eq!(store.reap(10).await.unwrap().ready, 0);
    let record = record(store, message.id).await;
    assert_eq!(
        (record.state, record.message.epoch, record.message.lease_losses),
        (State::Leased, message.epoch, 0)
    );
}

/// Rule 2: each lease of a batch has its own answer, in order; a lease that is named twice is renewed once.
pub async fn renewals_of_all_sorts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(4)).await;
    let held = claim(store, 4).await;
    apply(store, held[1].lease(), Outcome::Ack).await;
    apply(store, held[2].lease(), Outcome::Release).await;
    let stale = Lease { epoch: 0, ..held[3].lease() };
    let gone = Lease { item: WorkItemId::new(i64::MAX), epoch: 1 };
    let leases =
        [held[3].lease(), gone, stale, held[2].lease(), held[0].lease(), held[1].lease(), held[0].lease()];
    use Settled::{Applied, Gone, Lost};
    let expected = [Applied, Gone, Lost, Lost, Applied, Lost, Lost];
    assert_eq!(store.renew(&leases, 3 * LEASE).await.unwrap(), expected);
    fixture.advance(2 * LEASE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 0);
    let renewed = records(store).await.iter().filter(|record| record.state == State::Leased).count();
    assert_eq!(renewed, 2);
}

/// Rule 3: all leases of a busy worker at once.
pub async fn a_thousand_renewals<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(1_000)).await;
    let leases: Vec<_> = claim(store, 1_000).await.iter().map(|message| message.lease()).collect();
    let settled = store.renew(&leases, 3 * LEASE).await.unwrap();
    assert!(settled.len() == 1_000 && settled.iter().all(|answer| *answer == Settled::Applied));
    fixture.advance(2 * LEASE).await;
    assert_eq!(store.reap(10_000).await.unwrap().ready, 0);
}
