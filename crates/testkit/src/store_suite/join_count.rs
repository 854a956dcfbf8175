//! Counting: what ends a message counts in its joins, in the same transaction, and nothing else does.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Failure, JoinId, JoinStatus, Lease, MAX_LEASE_LOSSES, Message, NewJoin, Outcome, Settled, Settlement,
    State, StepEnd, StepStatus, Store, StoreAdmin, WorkItemId,
};

use super::support::*;
use crate::Fixture;

/// JOIN-030, JOIN-032, OBX-033, OBX-034, OBX-089: an ack counts the step as completed, without any other call.
pub async fn an_ack_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 3).await;
    fixture.advance(MINUTE).await;
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await, []);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 1, 0]));
    let ids: Vec<_> = held.iter().map(|message| message.id).collect();
    use StepStatus::{Completed, Pending};
    assert_eq!(statuses(store, id, &ids).await, [Pending, Completed, Pending]);
    for step in steps(store, id).await {
        let changed = if step.message == ids[1] { MINUTE } else { Duration::ZERO };
        assert_near(step.updated_at, step.created_at + changed);
    }
    assert_exact(store).await;
}

/// JOIN-031, JOIN-032, OBX-046, OBX-047: a failure for good counts the step as failed.
pub async fn a_failure_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    assert_eq!(end(store, held[0].lease(), fail()).await, []);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 1]));
    assert_eq!(statuses(store, id, &[held[0].id]).await, [StepStatus::Failed]);
    assert_exact(store).await;
}

/// JOIN-031: so does an abandonment at the limit, of attempts or of age.
pub async fn the_last_abandonment_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    assert_eq!(end(store, held[0].lease(), last_straw()).await, []);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 0, 1]));
    let failure = Failure::infrastructure("down");
    let outage =
        Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 9, max_age: Some(Duration::ZERO) };
    assert_eq!(end(store, held[1].lease(), outage).await, [ended(id, JoinStatus::Failed, [2, 0, 2])]);
    assert_exact(store).await;
}

/// JOIN-031: so does the expiry of a message that no worker claimed.
pub async fn an_expired_step_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let expiring = || draft("topic").expires_after(HOUR).build().unwrap();
    let ids = enqueue(store, &[expiring(), expiring(), plain()]).await;
    let (whole, half) = (start(&**fixture, expecting(2)).await, start(&**fixture, expecting(3)).await);
    attach(&**fixture, whole, &ids[..2]).await;
    attach(&**fixture, half, &ids).await;
    fixture.advance(HOUR + MINUTE).await;
    let first = store.expire(1).await.unwrap();
    assert_eq!((first.messages, first.joins), (1, vec![]));
    let second = store.expire(1).await.unwrap();
    assert_eq!(second.joins, [ended(whole, JoinStatus::Failed, [2, 0, 2])]);
    assert_eq!(tally(store, half).await, (JoinStatus::Pending, [3, 0, 2]));
    let third = store.expire(1).await.unwrap();
    assert_eq!((third.messages, third.joins), (0, vec![]));
    assert_exact(store).await;
}

/// JOIN-031, OBX-049..053 as amended: so does the fifth loss of a lease, and none before it.
pub async fn the_fifth_loss_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, _) = fan(&**fixture, 1).await;
    for losses in 1..=MAX_LEASE_LOSSES {
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [1, 0, 0]));
        claim_one(store).await;
        fixture.advance(LEASE + MINUTE).await;
        let reaped = store.reap(10).await.unwrap();
        let last = losses == MAX_LEASE_LOSSES;
        assert_eq!(reaped.joins, if last { vec![ended(id, JoinStatus::Failed, [1, 0, 1])] } else { vec![] });
    }
    assert_eq!(tally(store, id).await, (JoinStatus::Failed, [1, 0, 1]));
    assert_exact(store).await;
}

/// JOIN-031: so does a burial, once, and not one that is only tried out.
pub async fn a_burial_counts<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let ids = enqueue(store, &[keyed("k"), plain(), plain()]).await;
    let id = start(&**fixture, expecting(3)).await;
    attach(&**fixture, id, &ids).await;
    assert_eq!(store.bury(&change_of(only(&ids[1..2])).dry_run()).await.unwrap(), ids[1..2]);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 0, 0]));
    let head = claim(store, 1).await;
    apply(store, head[0].lease(), fail()).await;
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 0, 1]));
    // The dead one holds its key back, so it is buried once more; it has been counted, though.
    assert_eq!(store.bury(&change_of(only(&ids[..2]))).await.unwrap(), ids[..2]);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 0, 2]));
    assert_eq!(store.bury(&change()).await.unwrap(), ids[2..]);
    assert_eq!(tally(store, id).await, (JoinStatus::Failed, [3, 0, 3]));
    assert_exact(store).await;
}

/// OBX-031, OBX-039, OBX-045: outcomes that do not end a message do not count: retries, deferrals, renewals, reaping,
/// and calls of a stale holder.
pub async fn what_is_no_end_does_not_count<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, ids) = fan(&**fixture, 1).await;
    let before = join(store, id).await;
    let stale = claim_one(store).await.lease();
    apply(store, stale, Outcome::Release).await;
    let uncharged = Outcome::Abandon {
        delay: Duration::ZERO,
        failure: Failure::infrastructure("down"),
        max_attempts: 1,
        max_age: None,
    };
    let defer = Outcome::Defer { delay: Duration::ZERO };
    for outcome in [Some(Outcome::Release), Some(defer), Some(abandon(Duration::ZERO)), Some(uncharged), None]
    {
        let held = claim_one(store).await;
        assert_eq!(settle(store, stale, Outcome::Ack).await, Settled::Lost);
        assert_eq!(settle(store, stale, fail()).await, Settled::Lost);
        assert_eq!(attempt(store, held.lease(), outcome).await, Settled::Applied);
    }
    let gone = Lease { item: WorkItemId::new(i64::MAX), epoch: 1 };
    assert_eq!(settle(store, gone, Outcome::Ack).await, Settled::Gone);
    assert_eq!(join(store, id).await, before);
    assert_eq!(statuses(store, id, &ids).await, [StepStatus::Pending]);
    // The last one was renewed, to twice the lease.
    fixture.advance(2 * LEASE + MINUTE).await;
    let reaped = store.reap(10).await.unwrap();
    assert_eq!((reaped.ready, reaped.joins), (1, vec![]));
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [1, 0, 0]));
    assert_exact(store).await;
}

/// OBX-033, rule 7: an ack that is repeated is applied, and counts no more.
pub async fn a_repeated_ack_counts_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 2).await;
    for _ in 0..3 {
        assert_eq!(end(store, held[0].lease(), Outcome::Ack).await, []);
        assert_eq!(settle(store, held[0].lease(), fail()).await, Settled::Lost);
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [2, 1, 0]));
    }
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await.len(), 1);
    assert_eq!(end(store, held[1].lease(), Outcome::Ack).await, [], "a join ends once");
    assert_exact(store).await;
}

/// RMQ-011, OBX-033: where done messages are deleted, acks count all the same, and failures too.
pub async fn what_is_deleted_counts<F: Fixture>(fixture: &Arc<F>) {
    let (store, deletes) = (fixture.store(), fixture.store_that_deletes());
    let (id, held) = leased_fan(&**fixture, 3).await;
    assert_eq!(end(&deletes, held[0].lease(), Outcome::Ack).await, []);
    assert_eq!(state(store, held[0].id).await, None);
    assert_eq!(tally(store, id).await, (JoinStatus::Pending, [3, 1, 0]));
    assert_eq!(statuses(store, id, &[held[0].id]).await, [StepStatus::Completed]);
    assert_eq!(settle(&deletes, held[0].lease(), Outcome::Ack).await, Settled::Gone);
    assert_eq!(attach(&**fixture, id, &[held[0].id]).await.new, 0, "it is a step, though it is gone");
    let rest = [Settlement::new(held[2].lease(), Outcome::Ack), Settlement::new(held[1].lease(), fail())];
    let batch = deletes.settle(&rest).await.unwrap();
    assert_eq!(batch.joins, [ended(id, JoinStatus::Failed, [3, 2, 1])]);
    assert_eq!(records(store).await.len(), 1);
    assert_exact(store).await;
}

/// JOIN-040, JOIN-041: the last expected step, not the last attached one, ends the join: failed if any step failed,
/// completed if none did; and the settlement tells.
pub async fn the_last_step_ends_the_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for (outcomes, status, counts) in [
        ([Outcome::Ack, Outcome::Ack, Outcome::Ack], JoinStatus::Completed, [3, 3, 0]),
        ([fail(), Outcome::Ack, Outcome::Ack], JoinStatus::Failed, [3, 2, 1]),
        ([Outcome::Ack, Outcome::Ack, last_straw()], JoinStatus::Failed, [3, 2, 1]),
        ([fail(), fail(), fail()], JoinStatus::Failed, [3, 0, 3]),
    ] {
        let id = start(&**fixture, expecting(3)).await;
        enqueue(store, &plains(3)).await;
        let held = claim(store, 3).await;
        attach(&**fixture, id, &[held[0].id, held[1].id]).await;
        let [first, second, third] = outcomes;
        assert_eq!(end(store, held[0].lease(), first).await, []);
        assert_eq!(end(store, held[1].lease(), second).await, []);
        let pending = join(store, id).await;
        assert_eq!(
            (pending.status, pending.ended_at),
            (JoinStatus::Pending, None),
            "one is not attached yet"
        );
        attach(&**fixture, id, &[held[2].id]).await;
        fixture.advance(MINUTE).await;
        assert_eq!(end(store, held[2].lease(), third).await, [ended(id, status, counts)]);
        let over = join(store, id).await;
        assert_eq!((over.status, over.completed_steps, over.failed_steps), (status, counts[1], counts[2]));
        assert_near(over.ended_at.unwrap(), fixture.now().await);
        assert_near(over.updated_at, fixture.now().await);
    }
    assert_exact(store).await;
}

/// JOIN-042: nothing changes a join that has ended: no ack, report, requeue, burial, cancellation or deadline.
pub async fn a_join_that_is_over_stays_as_it_is<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for outcome in [Outcome::Ack, fail()] {
        let new = NewJoin::expecting(2).expires_after(HOUR).build().unwrap();
        let id = start(&**fixture, new).await;
        enqueue(store, &plains(2)).await;
        let held = claim(store, 2).await;
        let ids = [held[0].id, held[1].id];
        attach(&**fixture, id, &ids).await;
        for message in &held {
            apply(store, message.lease(), outcome.clone()).await;
        }
        fixture.advance(2 * HOUR).await;
        let over = (join(store, id).await, steps(store, id).await);
        assert_ne!(over.0.status, JoinStatus::Pending);
        settle(store, held[0].lease(), Outcome::Ack).await;
        for how in [StepEnd::Completed, StepEnd::Failed] {
            let reported = report(&**fixture, id, ids[0], how).await;
            assert!(!reported.counted && reported.ended.is_none());
        }
        assert_eq!(cancel(&**fixture, id).await, None);
        assert_eq!(store.expire(10).await.unwrap().joins, []);
        store.look(id).await.unwrap();
        store.requeue(&change_of(only(&ids))).await.unwrap();
        for message in claim(store, 10).await {
            assert_eq!(end(store, message.lease(), Outcome::Ack).await, []);
        }
        assert_eq!((join(store, id).await, steps(store, id).await), over);
    }
    assert_exact(store).await;
}

/// JOIN-080, JOIN-081, OBX-096: a message counts in every join that it is a step of, and each may end by it.
pub async fn a_message_of_many_joins<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mut joins = Vec::new();
    for expected in [1, 2, 1, 3] {
        joins.push(start(&**fixture, expecting(expected)).await);
    }
    enqueue(store, &plains(2)).await;
    let held = claim(store, 2).await;
    for id in &joins {
        attach(&**fixture, *id, &[held[0].id]).await;
    }
    attach(&**fixture, joins[1], &[held[1].id]).await;
    let over = |id: JoinId| ended(id, JoinStatus::Completed, [1, 1, 0]);
    let mut told = end(store, held[0].lease(), Outcome::Ack).await;
    told.sort_by_key(|join| join.id);
    assert_eq!(told, [over(joins[0]), over(joins[2])]);
    assert_eq!(tally(store, joins[1]).await, (JoinStatus::Pending, [2, 1, 0]));
    assert_eq!(tally(store, joins[3]).await, (JoinStatus::Pending, [1, 1, 0]));
    assert_eq!(end(store, held[1].lease(), fail()).await, [ended(joins[1], JoinStatus::Failed, [2, 1, 1])]);
    assert_exact(store).await;
}

/// JOIN-030, JOIN-031, JOIN-081, rule 9: in one batch with messages of many joins, of none, with leases that repeat and
/// leases that are lost, each join gets exactly its own, and is reported once.
pub async fn a_batch_of_many_joins<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    const JOINS: usize = 7;
    const MESSAGES: usize = 140;
    let mut joins = Vec::new();
    for _ in 0..JOINS {
        joins.push(start(&**fixture, expecting(40)).await);
    }
    enqueue(store, &plains(MESSAGES)).await;
    let held = claim(store, 1_000).await;
    // Each message is in its own join and in the next; those of every seventh in none.
    let in_join =
        |n: usize, join: usize| !n.is_multiple_of(JOINS) && (n % JOINS == join || (n + 1) % JOINS == join);
    for (index, id) in joins.iter().enumerate() {
        let members: Vec<_> = held
            .iter()
            .enumerate()
            .filter(|(n, _)| in_join(*n, index))
            .map(|(_, message)| message.id)
            .collect();
        attach(&**fixture, *id, &members).await;
    }
    let outcome = |n: usize| match n % 5 {
        0 => abandon(HOUR),
        1 => fail(),
        _ => Outcome::Ack,
    };
    let settlement = |n: usize| Settlement::new(held[n].lease(), outcome(n));
    let mut batch: Vec<_> = (0..MESSAGES).map(settlement).collect();
    // Later ones for the same leases, and for stale ones, count nothing.
    batch.extend(held.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)));
    batch.extend(held.iter().map(|message: &Message| {
        Settlement::new(Lease { epoch: message.epoch.wrapping_sub(1), ..message.lease() }, fail())
    }));
    let answers = store.settle(&batch).await.unwrap();
    assert_eq!(answers.settled.iter().filter(|answer| **answer == Settled::Applied).count(), MESSAGES);
    assert_eq!(answers.joins, [], "all joins have retries, or too few steps");
    for (index, id) in joins.iter().enumerate() {
        let counted = |class: &[usize]| {
            let hits = (0..MESSAGES).filter(|n| in_join(*n, index) && class.contains(&(n % 5))).count();
            u32::try_from(hits).unwrap()
        };
        let expected = [counted(&[0, 1, 2, 3, 4]), counted(&[2, 3, 4]), counted(&[1])];
        assert_eq!(tally(store, *id).await, (JoinStatus::Pending, expected), "{index}");
    }
    assert_exact(store).await;
}

/// JOIN-040, rule 9: one batch can end many joins, each of which is reported once, with its final counts.
pub async fn a_batch_that_ends_many_joins<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(12)).await;
    let held = claim(store, 12).await;
    let mut expected = Vec::new();
    for (n, messages) in held.chunks(3).enumerate() {
        let id = start(&**fixture, expecting(3)).await;
        attach(&**fixture, id, &messages.iter().map(|message| message.id).collect::<Vec<_>>()).await;
        let failed = u32::try_from(n).unwrap();
        let status = if n == 0 { JoinStatus::Completed } else { JoinStatus::Failed };
        expected.push(ended(id, status, [3, 3 - failed, failed]));
    }
    // The first join has no failure, the second one, and so on.
    let outcome = |n: usize| if n % 3 < n / 3 { fail() } else { Outcome::Ack };
    let batch: Vec<_> = (0..12).rev().map(|n| Settlement::new(held[n].lease(), outcome(n))).collect();
    let mut joins = store.settle(&batch).await.unwrap().joins;
    joins.sort_by_key(|join| join.id);
    assert_eq!(joins, expected);
    assert_exact(store).await;
}

/// JOIN-043: the time of the last change is that of the counters and of the status, by the database's clock.
pub async fn the_time_of_the_last_change<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, held) = leased_fan(&**fixture, 3).await;
    let outcomes: [Outcome; 3] = [Outcome::Ack, fail(), Outcome::Ack];
    for (message, outcome) in held.iter().zip(outcomes) {
        fixture.advance(10 * MINUTE).await;
        let before = join(store, id).await;
        apply(store, message.lease(), outcome).await;
        let after = join(store, id).await;
        assert_eq!(after.created_at, before.created_at);
        assert!(after.updated_at >= before.updated_at + 9 * MINUTE);
        assert_near(after.updated_at, fixture.now().await);
    }
    let cancelled = start(&**fixture, expecting(1)).await;
    fixture.advance(10 * MINUTE).await;
    cancel(&**fixture, cancelled).await.unwrap();
    let cancelled = join(store, cancelled).await;
    assert_near(cancelled.updated_at, fixture.now().await);
    assert_exact(store).await;
}

/// OBX-089: a message that is in no join ends without one, while other joins exist.
pub async fn messages_of_no_join<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (id, _) = leased_fan(&**fixture, 1).await;
    let before = join(store, id).await;
    let message = leased(store).await;
    assert_eq!(end(store, message.lease(), Outcome::Ack).await, []);
    assert_eq!(store.settle(&[]).await.unwrap().joins, []);
    assert_eq!(state(store, message.id).await, Some(State::Done));
    assert_eq!(join(store, id).await, before);
    assert_exact(store).await;
}

/// JOIN-080: a message that waits for one join can be a step of another: fan-ins nest.
pub async fn a_wait_can_be_a_step<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (inner, held) = leased_fan(&**fixture, 1).await;
    let wait = wait_for(&**fixture, inner).await;
    let outer = start(&**fixture, expecting(1)).await;
    attach(&**fixture, outer, &[wait]).await;
    let outermost = wait_for(&**fixture, outer).await;
    assert_eq!(end(store, held[0].lease(), Outcome::Ack).await.len(), 1);
    let due = claim_one(store).await;
    assert_eq!(due.id, wait);
    assert_eq!(tally(store, outer).await, (JoinStatus::Pending, [1, 0, 0]));
    assert!(store.continue_join(inner, wait, None).await.unwrap());
    assert_eq!(end(store, due.lease(), Outcome::Ack).await, [ended(outer, JoinStatus::Completed, [1, 1, 0])]);
    assert_eq!(claim_one(store).await.id, outermost);
    assert_exact(store).await;
}
