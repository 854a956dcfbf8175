//! Counting by hand: a report is worth as much as the end of the message, and whichever comes first counts.

use std::sync::Arc;

use posthaste_core::{
    ErrorKind, JoinStatus, JoinStore, MessageId, Outcome, Reported, Settlement, StepEnd, StepStatus, Store,
};

use super::support::*;
use super::transaction::insert;
use crate::Fixture;

const COUNTED: Reported = Reported { counted: true, ended: None };
const IGNORED: Reported = Reported { counted: false, ended: None };

/// JOIN-020, JOIN-021, JOIN-034, OBX-085, OBX-087: reports count as acks and failures do, and leave the message alone.
pub async fn a_report_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (reported, steps) = leased_fan(&**fixture, 3).await;
    let (settled, twins) = leased_fan(&**fixture, 3).await;
    assert_eq!(report(&**fixture, reported, steps[0].id, StepEnd::Completed).await, COUNTED);
    assert_eq!(report(&**fixture, reported, steps[1].id, StepEnd::Failed).await, COUNTED);
    apply(store, twins[0].lease(), Outcome::Ack).await;
    apply(store, twins[1].lease(), fail()).await;
    assert_eq!(tally(store, reported).await, (JoinStatus::Pending, [3, 1, 1]));
    assert_eq!(tally(store, reported).await, tally(store, settled).await);
    let [steps_of, twins_of] = [&steps, &twins].map(|all| all.iter().map(|one| one.id).collect::<Vec<_>>());
    assert_eq!(
        statuses(store, reported, &steps_of).await,
        [StepStatus::Completed, StepStatus::Failed, StepStatus::Pending]
    );
    assert_eq!(statuses(store, reported, &steps_of).await, statuses(store, settled, &twins_of).await);
    let now = fixture.now().await;
    assert_near(join(store, reported).await.updated_at, now);
    for message in &steps {
        assert_eq!(state(store, message.id).await, Some(posthaste_core::State::Leased));
    }
    // The third one is reported as the last of its join, and settled as the last of the other.
    let by_hand = report(&**fixture, reported, steps[2].id, StepEnd::Completed).await.ended;
    let by_itself = end(store, twins[2].lease(), Outcome::Ack).await;
    assert_eq!(by_hand, Some(ended(reported, JoinStatus::Failed, [3, 2, 1])));
    assert_eq!(by_itself, [ended(settled, JoinStatus::Failed, [3, 2, 1])]);
    assert_near(join(store, reported).await.ended_at.unwrap(), now);
    assert_exact(store).await;
}

/// JOIN-022, OBX-086, OBX-088: a report that is repeated, in one transaction or in another, counts no more, and cannot turn
/// one end into the other.
pub async fn a_report_can_be_repeated<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, steps) = fan(&**fixture, 3).await;
    for (message, first, second) in
        [(steps[0], StepEnd::Completed, StepEnd::Failed), (steps[1], StepEnd::Failed, StepEnd::Completed)]
    {
        let mut tx = fixture.begin().await;
        for (how, answer) in [(first, COUNTED), (first, IGNORED), (second, IGNORED)] {
            let reported = store.report(fixture.connection(&mut tx), id, message, how).await.unwrap();
            assert_eq!(reported, answer);
        }
        fixture.commit(tx).await;
        assert_eq!(report(&**fixture, id, message, first).await, IGNORED);
        assert_eq!(report(&**fixture, id, message, second).await, IGNORED);
    }
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 1, 1]));
    assert_eq!(statuses(store, id, &steps[..2]).await, [StepStatus::Completed, StepStatus::Failed]);
    // The steps that were reported come to their ends: nothing is counted twice.
    let held = claim(store, 3).await;
    apply(store, held[2].lease(), Outcome::Ack).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Failed, [3, 2, 1]));
    exact_with_ends(fixture, &held[..2].iter().map(|one| one.lease()).collect::<Vec<_>>()).await;
}

/// Acks the remaining messages, so that all have ended, and checks the joins.
async fn exact_with_ends<F: Fixture>(fixture: &Arc<F>, leases: &[posthaste_core::Lease]) {
    let batch: Vec<_> = leases.iter().map(|lease| Settlement::new(*lease, Outcome::Ack)).collect();
    assert_eq!(fixture.store().settle(&batch).await.unwrap().joins, []);
    assert_exact(fixture.store()).await;
}

/// JOIN-023, M-13: of a report and the end of the message the first one counts; the other does not.
pub async fn of_report_and_end_the_first_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    use StepEnd::{Completed, Failed};
    for (how, outcome) in
        [(Completed, Outcome::Ack), (Completed, fail()), (Failed, Outcome::Ack), (Failed, fail())]
    {
        let (id, held) = leased_fan(&**fixture, 3).await;
        let ids: Vec<_> = held.iter().map(|message| message.id).collect();
        assert_eq!(report(&**fixture, id, ids[0], how).await, COUNTED);
        let reported = tally(store, id).await;
        assert_eq!(end(store, held[0].lease(), outcome.clone()).await, []);
        assert_eq!(tally(store, id).await, reported);
        assert_eq!(end(store, held[1].lease(), outcome.clone()).await, []);
        let settled = tally(store, id).await;
        assert_eq!(settled.1[1] + settled.1[2], 2);
        assert_eq!(report(&**fixture, id, ids[1], how).await, IGNORED);
        assert_eq!(tally(store, id).await, settled);
        apply(store, held[2].lease(), Outcome::Ack).await;
        let expected =
            if how == Failed || outcome != Outcome::Ack { JoinStatus::Failed } else { JoinStatus::Completed };
        assert_eq!(tally(store, id).await.0, expected);
    }
    assert_exact(store).await;
}

/// JOIN-080, M-13: a report counts in the join that it names, and in no other; the message's end still counts there, and
/// not again where it was reported.
pub async fn a_report_is_for_one_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (one, held) = leased_fan(&**fixture, 1).await;
    let other = start(&**fixture, expecting(1)).await;
    attach(&**fixture, other, &[held[0].id]).await;
    let over = report(&**fixture, one, held[0].id, StepEnd::Failed).await.ended;
    assert_eq!(over, Some(ended(one, JoinStatus::Failed, [1, 0, 1])));
    assert_eq!(tally(store, other).await, (JoinStatus::Pending, [1, 0, 0]));
    let more = start(&**fixture, expecting(2)).await;
    attach(&**fixture, more, &[held[0].id]).await;
    assert_eq!(report(&**fixture, more, held[0].id, StepEnd::Failed).await, COUNTED);
    assert_eq!(
        end(store, held[0].lease(), Outcome::Ack).await,
        [ended(other, JoinStatus::Completed, [1, 1, 0])]
    );
    assert_eq!(tally(store, more).await, (JoinStatus::Pending, [1, 0, 1]));
    assert_exact(store).await;
}

/// JOIN-024: the step, the counter and the status change with the user's transaction, or not at all.
pub async fn a_report_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, ids) = fan(&**fixture, 2).await;
    let before = (join(store, id).await, steps(store, id).await);
    let mut tx = fixture.begin().await;
    for message in &ids {
        store.report(fixture.connection(&mut tx), id, *message, StepEnd::Completed).await.unwrap();
    }
    fixture.rollback(tx).await;
    assert_eq!((join(store, id).await, steps(store, id).await), before);
    let mut tx = fixture.begin().await;
    let connection = fixture.connection(&mut tx);
    assert_eq!(store.report(connection, id, ids[0], StepEnd::Completed).await.unwrap(), COUNTED);
    fixture.savepoint(connection).await;
    let last = store.report(connection, id, ids[1], StepEnd::Failed).await.unwrap();
    assert_eq!(last.ended, Some(ended(id, JoinStatus::Failed, [2, 1, 1])));
    fixture.rollback_to_savepoint(connection).await;
    fixture.commit(tx).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 1, 0]));
    assert_eq!(statuses(store, id, &ids).await, [StepStatus::Completed, StepStatus::Pending]);
    let held = claim(store, 2).await;
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await.len(), 1);
    exact_with_ends(fixture, &[held[0].lease()]).await;
}

/// Rule 5: only steps can be reported; the refusal names join and message, and the transaction goes on.
pub async fn only_steps_are_reported<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, _) = fan(&**fixture, 1).await;
    let (stranger, after) = (enqueue_one(store, plain()).await, plain());
    let before = join(store, id).await;
    let mut tx = fixture.begin().await;
    for message in [stranger, MessageId::new()] {
        let refused = store.report(fixture.connection(&mut tx), id, message, StepEnd::Failed).await;
        let error = refused.as_ref().unwrap_err();
        assert!(error.context().any(|fact| fact == ("message_id", &*message.to_string())), "{error}");
        assert_names(refused, ErrorKind::NotFound, id);
    }
    insert(&**fixture, &mut tx, std::slice::from_ref(&after)).await;
    fixture.commit(tx).await;
    assert!(state(store, after.id()).await.is_some());
    assert_eq!(join(store, id).await, before);
    assert_exact(store).await;
}

/// JOIN-042 as amended: reported after the join was cancelled, a step is recorded as late, once, and nothing is counted.
pub async fn a_late_report_is_recorded<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, ids) = fan(&**fixture, 2).await;
    cancel(&**fixture, id).await.unwrap();
    let over = join(store, id).await;
    for (message, how) in [(ids[0], StepEnd::Completed), (ids[1], StepEnd::Failed)] {
        assert_eq!(report(&**fixture, id, message, how).await, IGNORED);
    }
    assert_eq!(report(&**fixture, id, ids[0], StepEnd::Failed).await, IGNORED);
    assert_eq!(statuses(store, id, &ids).await, [StepStatus::LateCompleted, StepStatus::LateFailed]);
    assert_eq!(join(store, id).await, over);
    assert_exact(store).await;
}
