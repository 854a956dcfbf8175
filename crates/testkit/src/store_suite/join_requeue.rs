//! A second chance for a step: its failure is taken back where that is still open.

use std::sync::Arc;

use posthaste_core::{JoinStatus, NewJoin, Outcome, StepEnd, StepStatus, Store, StoreAdmin};

use super::support::*;
use crate::Fixture;

/// JOIN-043: requeueing takes a failure back from a pending join; done in the end, the step counts as completed, and so
/// does the join.
pub async fn a_failure_is_taken_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    apply(store, held[0].lease(), fail()).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 1]));
    fixture.advance(10 * MINUTE).await;
    assert_eq!(store.requeue(&change()).await.unwrap(), [held[0].id]);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 0]));
    assert_eq!(statuses(store, id, &[held[0].id]).await, [StepStatus::Pending]);
    assert_near(join(store, id).await.updated_at, fixture.now().await);
    let again = claim_one(store).await;
    assert_eq!(end(store, again.lease(), Outcome::Ack).await, []);
    assert_eq!(
        end(store, held[1].lease(), Outcome::Ack).await,
        [ended(id, JoinStatus::Completed, [2, 2, 0])]
    );
    assert_exact(store).await;
}

/// JOIN-021: a step that fails again is counted again, once for each time that it was taken back.
pub async fn a_step_that_fails_again<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, _) = fan(&**fixture, 1).await;
    let whole = start(&**fixture, expecting(2)).await;
    let step = claim_one(store).await;
    attach(&**fixture, whole, &[step.id]).await;
    apply(store, step.lease(), Outcome::Release).await;
    // The first failure ends the join of one step; the other follows every change.
    for n in 0..3 {
        let held = claim_one(store).await;
        assert_eq!(end(store, held.lease(), fail()).await.len(), usize::from(n == 0));
        assert_eq!(tally(store, whole).await, (JoinStatus::Pending, [1, 0, 1]));
        assert_eq!(store.requeue(&change()).await.unwrap(), [step.id]);
        assert_eq!(tally(store, whole).await, (JoinStatus::Pending, [1, 0, 0]));
        assert_eq!(tally(store, id).await, (JoinStatus::Failed, [1, 0, 1]));
    }
    assert_exact(store).await;
}

/// Only messages that are really requeued are taken back: not by a dry run, not ones that do not match, not ones that
/// did not fail.
pub async fn nothing_else_is_taken_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 4).await;
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    apply(store, held[0].lease(), fail()).await;
    apply(store, held[1].lease(), fail()).await;
    apply(store, held[2].lease(), Outcome::Ack).await;
    let before = (join(store, id).await, steps(store, id).await);
    assert_eq!(store.requeue(&change().dry_run()).await.unwrap(), ids[..2]);
    assert!(store.requeue(&change_of(only(&ids[2..]))).await.unwrap().is_empty());
    assert_eq!((join(store, id).await, steps(store, id).await), before);
    assert_eq!(store.requeue(&change().limit(1)).await.unwrap(), ids[..1]);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [4, 1, 1]));
    use StepStatus::{Completed, Failed, Pending};
    assert_eq!(statuses(store, id, &ids).await, [Pending, Failed, Completed, Pending]);
    assert_exact(store).await;
}

/// JOIN-042: the counts of a join that has ended stay, whatever becomes of the message.
pub async fn what_is_over_stays_counted<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    apply(store, held[0].lease(), Outcome::Ack).await;
    assert_eq!(end(store, held[1].lease(), fail()).await, [ended(id, JoinStatus::Failed, [2, 1, 1])]);
    let over = (join(store, id).await, steps(store, id).await);
    assert_eq!(store.requeue(&change()).await.unwrap(), [held[1].id]);
    assert_eq!((join(store, id).await, steps(store, id).await), over);
    let again = claim_one(store).await;
    assert_eq!(end(store, again.lease(), Outcome::Ack).await, []);
    assert_eq!((join(store, id).await, steps(store, id).await), over);
    assert_exact(store).await;
}

/// JOIN-042: that also holds for counts before a cancellation. A late failure was not counted, and is pending again until
/// the step ends once more.
pub async fn late_failures_are_taken_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for expires in [false, true] {
        let new = if expires { NewJoin::expecting(3).expires_after(MINUTE) } else { NewJoin::expecting(3) };
        let id = start(&**fixture, new.build().unwrap()).await;
        enqueue(store, &plains(2)).await;
        let held = claim(store, 2).await;
        let ids = [held[0].id, held[1].id];
        attach(&**fixture, id, &ids).await;
        apply(store, held[0].lease(), fail()).await;
        fixture.advance(2 * MINUTE).await;
        if expires {
            assert_eq!(store.expire(10).await.unwrap().joins.len(), 1);
        } else {
            cancel(&**fixture, id).await.unwrap();
        }
        let over = join(store, id).await;
        apply(store, held[1].lease(), fail()).await;
        use StepStatus::{Failed, LateCompleted, LateFailed, Pending};
        assert_eq!(statuses(store, id, &ids).await, [Failed, LateFailed]);
        assert_eq!(store.requeue(&change()).await.unwrap(), ids);
        assert_eq!(statuses(store, id, &ids).await, [Failed, Pending]);
        for message in claim(store, 10).await {
            assert_eq!(end(store, message.lease(), Outcome::Ack).await, []);
        }
        assert_eq!(statuses(store, id, &ids).await, [Failed, LateCompleted]);
        assert_eq!(join(store, id).await, over);
    }
    assert_exact(store).await;
}

/// JOIN-022: a step that was reported as completed stays so, though its message died and was requeued.
pub async fn a_report_is_not_taken_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    assert!(report(&**fixture, id, held[0].id, StepEnd::Completed).await.counted);
    apply(store, held[0].lease(), fail()).await;
    let before = (join(store, id).await, steps(store, id).await);
    assert_eq!(store.requeue(&change()).await.unwrap(), [held[0].id]);
    assert_eq!((join(store, id).await, steps(store, id).await), before);
    let again = claim_one(store).await;
    apply(store, again.lease(), Outcome::Ack).await;
    assert_eq!((join(store, id).await, steps(store, id).await), before);
    assert_exact(store).await;
}

/// A step that was dead when it was attached is taken back like any other.
pub async fn a_late_attach_is_taken_back<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let messages = dead(store, 30).await;
    let joins = [start(&**fixture, expecting(31)).await, start(&**fixture, expecting(40)).await];
    for id in joins {
        attach(&**fixture, id, &messages).await;
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [30, 0, 30]));
    }
    assert_eq!(store.requeue(&change().limit(20)).await.unwrap(), messages[..20]);
    for id in joins {
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [30, 0, 10]));
    }
    assert_eq!(store.bury(&change()).await.unwrap(), messages[..20]);
    for id in joins {
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [30, 0, 30]));
    }
    assert_exact(store).await;
}
