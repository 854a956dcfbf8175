//! Every check of joins objects to a violation that is planted for it, and to nothing else.

use std::time::SystemTime;

use super::super::audit::{id_of, join_of};
use super::super::plan::Fault;
use super::*;

/// An audit of one join with two steps, both committed, and a strict wait with both continuations.
fn audit() -> Audit {
    let mut plan = Plan::new(0, &Fault::ALL);
    plan.joins = vec![Joining {
        at: 0,
        node: 0,
        steps: vec![0, 1],
        later: Vec::new(),
        cancelled_at: None,
        expires: None,
        wait: Some((true, true)),
        hot: false,
    }];
    let mut audit = Audit::new(&plan);
    audit.committed(0, 1, None);
    audit.committed(1, 2, None);
    audit
}

fn join(status: JoinStatus, completed_steps: u32, failed_steps: u32) -> Join {
    let now = SystemTime::UNIX_EPOCH;
    Join {
        id: join_of(0),
        grouping_key: None,
        status,
        expected_steps: 2,
        attached_steps: 2,
        completed_steps,
        failed_steps,
        metadata: None,
        created_at: now,
        updated_at: now,
        ended_at: (status != JoinStatus::Pending).then_some(now),
        expires_at: None,
    }
}

fn steps(statuses: [StepStatus; 2]) -> Vec<Step> {
    let now = SystemTime::UNIX_EPOCH;
    let step = |(n, status)| Step { message: id_of(n), status, created_at: now, updated_at: now };
    statuses.into_iter().enumerate().map(step).collect()
}

fn message(n: usize, topic: &str) -> NewMessage {
    NewMessage::bytes(topic, "").id(id_of(n)).build().unwrap()
}

fn says(audit: &Audit, what: &str) {
    let said = audit.objection().unwrap_or("nothing");
    assert!(said.starts_with(what), "expected {what}, and it says: {said}");
}

const PENDING: [StepStatus; 2] = [StepStatus::Pending; 2];

#[test]
fn what_is_right_is_not_objected_to() {
    let mut audit = audit();
    audit.look_at_joins(&[(join(JoinStatus::Pending, 0, 0), steps(PENDING))]);
    audit.look_at_joins(&[(join(JoinStatus::Cancelled, 0, 0), steps(PENDING))]);
    audit.waits(join_of(0), id_of(1_000));
    audit.continues(Some(&join(JoinStatus::Cancelled, 0, 0)), id_of(1_000), None, true);
    audit.continues(Some(&join(JoinStatus::Cancelled, 0, 0)), id_of(1_000), None, false);
    audit.finish_joins(&[(join(JoinStatus::Cancelled, 0, 0), steps(PENDING))], true);
    assert_eq!(audit.objection(), None);
}

#[test]
fn counters_are_exact() {
    use StepStatus::{Completed, Pending};
    for (join, statuses) in [
        // Counted twice, or not at all.
        (join(JoinStatus::Pending, 1, 0), PENDING),
        (join(JoinStatus::Completed, 2, 0), [Completed, Pending]),
        (join(JoinStatus::Pending, 0, 0), [Completed, Pending]),
        // Over too early, and too late.
        (join(JoinStatus::Completed, 0, 0), PENDING),
        (join(JoinStatus::Pending, 2, 0), [Completed, Completed]),
        (join(JoinStatus::Failed, 2, 0), [Completed, Completed]),
        // Counted, and the message is ready.
        (join(JoinStatus::Pending, 1, 0), [Completed, Pending]),
    ] {
        let mut audit = audit();
        audit.look_at_joins(&[(join, steps(statuses))]);
        says(&audit, "I7");
    }
}

#[test]
fn an_end_is_an_end() {
    let mut changed = audit();
    changed.look_at_joins(&[(join(JoinStatus::Cancelled, 0, 0), steps(PENDING))]);
    changed.look_at_joins(&[(join(JoinStatus::Expired, 0, 0), steps(PENDING))]);
    says(&changed, "I7: join 0: it changed");
    let mut gone = audit();
    gone.look_at_joins(&[(join(JoinStatus::Cancelled, 0, 0), steps(PENDING))]);
    gone.look_at_joins(&[]);
    says(&gone, "I7");
    let mut twice = audit();
    let Join { id, status, expected_steps, completed_steps, failed_steps, .. } =
        join(JoinStatus::Completed, 2, 0);
    let ended = EndedJoin { id, status, expected_steps, completed_steps, failed_steps };
    twice.joins_ended(&[ended]);
    twice.joins_ended(&[ended]);
    says(&twice, "I7");
}

#[test]
fn there_is_one_continuation_and_the_right_one() {
    let wait = id_of(1_000);
    let completed = join(JoinStatus::Completed, 2, 0);
    for (join, topic) in [
        (join(JoinStatus::Pending, 0, 0), Some("next")),
        (join(JoinStatus::Cancelled, 0, 0), Some("failed")),
        (join(JoinStatus::Failed, 1, 1), Some("next")),
        (completed.clone(), None),
    ] {
        let mut audit = audit();
        let continuation = topic.map(|topic| message(2_000, topic));
        audit.continues(Some(&join), wait, continuation.as_ref(), true);
        says(&audit, "I8");
    }
    let mut two = audit();
    two.continues(Some(&completed), wait, Some(&message(2_000, "next")), true);
    two.continues(Some(&completed), wait, Some(&message(2_001, "next")), false);
    says(&two, "I8");
    let mut first_again = audit();
    first_again.continues(Some(&completed), wait, Some(&message(2_000, "next")), true);
    first_again.continues(Some(&completed), wait, Some(&message(2_000, "next")), true);
    says(&first_again, "I8");
}

#[test]
fn what_waits_goes_on_and_is_delivered() {
    let over = [(join(JoinStatus::Cancelled, 0, 0), steps(PENDING))];
    let mut stays = audit();
    stays.waits(join_of(0), id_of(1_000));
    stays.look_at_joins(&over);
    stays.finish_joins(&over, true);
    says(&stays, "I8: join 0 is over, and nothing");
    let expired = [(join(JoinStatus::Expired, 0, 0), steps(PENDING))];
    let mut undelivered = audit();
    undelivered.waits(join_of(0), id_of(1_000));
    undelivered.look_at_joins(&expired);
    undelivered.continues(Some(&expired[0].0), id_of(1_000), Some(&message(2_000, "failed")), true);
    undelivered.finish_joins(&expired, true);
    says(&undelivered, "I8: the continuation of join 0 was not delivered");
}
