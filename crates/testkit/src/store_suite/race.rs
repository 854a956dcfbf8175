//! A late holder against the reaper: exactly one of them wins, and the result says which.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Message, Outcome, Reaped, Record, Settled, State, Store};

use super::support::*;
use crate::Fixture;

/// How often both are let loose.
const ROUNDS: usize = 200;

/// Lets a verb and the reaper race for a lease that has run out, and hands the outcome to a check, round by round.
async fn race<F: Fixture>(fixture: &Arc<F>, verb: Option<Outcome>, won: impl Fn(&Record)) {
    let store = fixture.store();
    for round in 0..ROUNDS {
        let message = leased(store).await;
        fixture.advance(LEASE + MINUTE).await;
        let (holder, reaper) = (store.clone(), store.clone());
        let (lease, verb) = (message.lease(), verb.clone());
        let late = tokio::spawn(async move { attempt(&holder, lease, verb).await });
        let reap = tokio::spawn(async move { reaper.reap(10).await.unwrap() });
        // The one that is awaited first is no more likely to win: both are under way.
        let (answer, reaped) = (late.await.unwrap(), reap.await.unwrap());
        let record = record(store, message.id).await;
        match answer {
            Settled::Applied => {
                assert_eq!(reaped, Reaped::default(), "round {round}: both won");
                assert_eq!(record.message.lease_losses, 0, "round {round}");
                won(&record);
            }
            Settled::Lost => {
                assert_eq!(
                    reaped,
                    Reaped { ready: 1, dead: 0, joins: Vec::new() },
                    "round {round}: neither won"
                );
                assert_eq!((record.state, record.message.attempts), (State::Ready, 0), "round {round}");
                assert_eq!((record.message.lease_losses, record.last_error.as_ref()), (1, None));
            }
            Settled::Gone | Settled::Locked => panic!("round {round}: {answer:?}"),
        }
        finish(&**fixture, &record, &message).await;
    }
}

/// Gets the message out of the way, whichever worker has it.
async fn finish<F: Fixture>(fixture: &F, record: &Record, message: &Message) {
    let store = fixture.store_that_deletes();
    match record.state {
        State::Ready => {
            fixture.advance(MINUTE).await;
            let again = claim_one(&store).await;
            assert_eq!(again.id, message.id);
            assert_ne!(again.epoch, message.epoch);
            apply(&store, again.lease(), Outcome::Ack).await;
        }
        State::Leased => apply(&store, message.lease(), Outcome::Ack).await,
        State::Done | State::Dead => {}
    }
}

/// OBX-052, OBX-097: an ack against the reaper.
pub async fn slow_ack_against_reap<F: Fixture>(fixture: &Arc<F>) {
    race(fixture, Some(Outcome::Ack), |record| assert_eq!(record.state, State::Done)).await;
}

/// OBX-049, OBX-097: a renewal against the reaper.
pub async fn slow_renew_against_reap<F: Fixture>(fixture: &Arc<F>) {
    race(fixture, None, |record| {
        assert_eq!(record.state, State::Leased);
        assert!(record.leased_until.is_some());
    })
    .await;
}

/// OBX-036, OBX-097: an abandonment against the reaper.
pub async fn slow_abandon_against_reap<F: Fixture>(fixture: &Arc<F>) {
    race(fixture, Some(abandon(Duration::ZERO)), |record| {
        assert_eq!((record.state, record.message.attempts), (State::Ready, 1));
    })
    .await;
}
