//! Each check passes a valid history and reports a planted violation: a check that cannot fail checks nothing.

use super::*;

struct Run {
    history: History,
    a: WorkerId,
    b: WorkerId,
}

fn run() -> Run {
    let name = |name: &str| WorkerId::new(name).unwrap();
    Run { history: History::default(), a: name("a"), b: name("b") }
}

fn lease(item: i64, epoch: i32) -> Lease {
    Lease { item: WorkItemId::new(item), epoch }
}

impl Run {
    fn enqueue(&self, key: Option<&str>) -> MessageId {
        let id = MessageId::new();
        self.history.enqueued(id, key, Fate::Committed);
        id
    }

    fn deliver(&self, worker: &WorkerId, id: MessageId, lease: Lease) {
        self.history.claimed(Instant::now(), worker, id, lease);
        self.history.delivered(worker, id);
        self.history.settling(lease);
        self.history.settled(lease, Settled::Applied);
    }

    fn all(&self) -> Vec<Verdict> {
        vec![
            self.history.no_loss(&HashSet::new()),
            self.history.no_phantom(),
            self.history.delivered_once(),
            self.history.single_ownership(),
            self.history.key_order(),
        ]
    }
}

#[track_caller]
fn assert_says(verdict: &Verdict, says: &str) {
    let message = verdict.as_ref().unwrap_err();
    assert!(message.contains(says), "{message}");
}

#[test]
fn a_run_in_order_passes() {
    let run = run();
    let (first, second) = (run.enqueue(Some("k")), run.enqueue(Some("k")));
    run.deliver(&run.a, first, lease(1, 1));
    run.deliver(&run.b, second, lease(2, 1));
    assert!(run.all().iter().all(Result::is_ok), "{:?}", run.all());
    assert!(run.history.conservation(&Census { done: 1, pruned: 1, ..Census::default() }).is_ok());
}

#[test]
fn a_loss_is_reported() {
    let run = run();
    let id = run.enqueue(None);
    assert_says(&run.history.no_loss(&HashSet::new()), "1 messages were lost");
    assert!(run.history.no_loss(&HashSet::from([id])).is_ok(), "dead is not lost");
}

#[test]
fn a_rolled_back_message_is_not_lost() {
    let run = run();
    run.history.enqueued(MessageId::new(), None, Fate::RolledBack);
    assert!(run.all().iter().all(Result::is_ok));
}

#[test]
fn a_phantom_is_reported() {
    let run = run();
    let id = MessageId::new();
    run.history.enqueued(id, None, Fate::RolledBack);
    run.history.claimed(Instant::now(), &run.a, id, lease(1, 1));
    assert_says(&run.history.no_phantom(), "a has");
}

#[test]
fn a_second_delivery_is_reported() {
    let run = run();
    let id = run.enqueue(None);
    run.deliver(&run.a, id, lease(1, 1));
    run.deliver(&run.b, id, lease(1, 2));
    assert_says(&run.history.delivered_once(), "was delivered twice");
}

#[test]
fn an_epoch_given_twice_is_reported() {
    let run = run();
    let id = run.enqueue(None);
    run.history.claimed(Instant::now(), &run.a, id, lease(1, 1));
    run.history.claimed(Instant::now(), &run.b, id, lease(1, 1));
    assert_says(&run.history.single_ownership(), "a and b claimed");
}

#[test]
fn a_stale_settlement_that_was_accepted_is_reported() {
    let run = run();
    let id = run.enqueue(None);
    run.history.claimed(Instant::now(), &run.a, id, lease(1, 1));
    run.history.claimed(Instant::now(), &run.b, id, lease(1, 2));
    run.history.settling(lease(1, 1));
    run.history.settled(lease(1, 1), Settled::Lost);
    assert!(run.history.single_ownership().is_ok(), "a lost lease is how it should be");
    run.history.settled(lease(1, 1), Settled::Applied);
    assert_says(&run.history.single_ownership(), "settled by a with epoch 1 while b had it with epoch 2");
}

/// A claim that was sent first may be answered last: epochs have no order.
#[test]
fn claims_under_way_together_have_no_order() {
    let asked = Instant::now();
    for (is_apart, says) in [(true, None), (false, Some("was settled by"))] {
        let run = run();
        let id = run.enqueue(None);
        let settle = |lease| {
            run.history.settling(lease);
            run.history.settled(lease, Settled::Applied);
        };
        run.history.claimed(asked + std::time::Duration::from_nanos(1), &run.b, id, lease(1, 4));
        if is_apart {
            settle(lease(1, 4));
        }
        run.history.claimed(asked, &run.a, id, lease(1, 5));
        if !is_apart {
            settle(lease(1, 4));
        }
        settle(lease(1, 5));
        match says {
            None => assert_eq!(run.history.single_ownership(), Ok(())),
            Some(says) => assert_says(&run.history.single_ownership(), says),
        }
    }
}

#[test]
fn one_row_for_two_messages_is_reported() {
    let run = run();
    run.deliver(&run.a, run.enqueue(None), lease(1, 1));
    run.deliver(&run.a, run.enqueue(None), lease(1, 2));
    assert_says(&run.history.single_ownership(), "#1 is");
}

#[test]
fn an_inversion_within_a_key_is_reported() {
    let run = run();
    let (first, second) = (run.enqueue(Some("k")), run.enqueue(Some("k")));
    run.deliver(&run.a, second, lease(2, 1));
    run.deliver(&run.a, first, lease(1, 1));
    assert_says(&run.history.key_order(), "which was enqueued later");
}

#[test]
fn two_of_a_key_at_a_time_are_reported() {
    let run = run();
    let (first, second) = (run.enqueue(Some("k")), run.enqueue(Some("k")));
    run.history.claimed(Instant::now(), &run.a, first, lease(1, 1));
    run.deliver(&run.b, second, lease(2, 1));
    assert_says(&run.history.key_order(), "a had");
}

#[test]
fn one_too_few_and_one_too_many_are_reported() {
    let run = run();
    run.enqueue(None);
    assert_says(&run.history.conservation(&Census::default()), "1 messages were committed, and there are 0");
    assert_says(&run.history.conservation(&Census { ready: 1, dead: 1, ..Census::default() }), "there are 2");
}

/// A join in order: of three expected steps one is completed, and one is pending.
fn half_done() -> JoinCensus {
    let now = std::time::SystemTime::now();
    let step = |status| Step { message: MessageId::new(), status, created_at: now, updated_at: now };
    let steps = vec![step(StepStatus::Completed), step(StepStatus::Pending)];
    let join = Join {
        id: posthaste_core::JoinId::new(),
        grouping_key: None,
        status: JoinStatus::Pending,
        expected_steps: 3,
        attached_steps: 2,
        completed_steps: 1,
        failed_steps: 0,
        metadata: None,
        created_at: now,
        updated_at: now,
        ended_at: None,
        expires_at: None,
    };
    let states = HashMap::from([(steps[0].message, State::Done), (steps[1].message, State::Leased)]);
    JoinCensus { joins: vec![(join, steps)], states }
}

/// The result of the check after this change.
fn with(change: impl FnOnce(&mut Join, &mut Vec<Step>, &mut HashMap<MessageId, State>)) -> Verdict {
    let mut census = half_done();
    let (join, steps) = &mut census.joins[0];
    change(join, steps, &mut census.states);
    census.exact()
}

#[test]
fn joins_in_order_pass() {
    assert_eq!(half_done().exact(), Ok(()));
    let ended_at = Some(std::time::SystemTime::now());
    let over = |status| with(|join, _, _| (join.status, join.ended_at) = (status, ended_at));
    assert_eq!((over(JoinStatus::Cancelled), over(JoinStatus::Expired)), (Ok(()), Ok(())));
    let complete = |status: StepStatus| {
        with(|join, steps, _| {
            steps[1].status = status;
            (join.expected_steps, join.ended_at) = (2, ended_at);
            match status {
                StepStatus::Failed => (join.status, join.failed_steps) = (JoinStatus::Failed, 1),
                _ => (join.status, join.completed_steps) = (JoinStatus::Completed, 2),
            }
        })
    };
    assert_eq!((complete(StepStatus::Completed), complete(StepStatus::Failed)), (Ok(()), Ok(())));
    assert_says(&over(JoinStatus::Completed), "do not make it completed");
    assert_says(&over(JoinStatus::Failed), "do not make it failed");
}

#[test]
fn miscounted_joins_are_reported() {
    assert_says(&with(|join, _, _| join.completed_steps = 2), "are not the counters");
    assert_says(&with(|join, _, _| join.failed_steps = 1), "are not the counters");
    assert_says(&with(|join, _, _| join.attached_steps = 3), "there are 2 steps");
    assert_says(&with(|join, _, _| join.expected_steps = 1), "there are 2 steps");
}

#[test]
fn a_wrong_status_of_a_join_is_reported() {
    let now = std::time::SystemTime::now();
    let done = |join: &mut Join, steps: &mut Vec<Step>| {
        steps[1].status = StepStatus::Completed;
        (join.expected_steps, join.completed_steps) = (2, 2);
    };
    assert_says(&with(|join, steps, _| done(join, steps)), "do not make it pending");
    let cancelled = with(|join, steps, _| {
        done(join, steps);
        (join.status, join.ended_at) = (JoinStatus::Cancelled, Some(now));
    });
    assert_says(&cancelled, "do not make it cancelled");
    assert_says(&with(|join, _, _| join.ended_at = Some(now)), "do not make it pending");
    assert_says(&with(|join, _, _| join.status = JoinStatus::Expired), "do not make it expired");
    let late = with(|_, steps, _| steps[1].status = StepStatus::LateFailed);
    assert_says(&late, "do not make it pending");
}

#[test]
fn a_step_that_nobody_will_count_is_reported() {
    for (state, says) in [(State::Done, "is done"), (State::Dead, "is dead")] {
        assert_says(&with(|_, steps, states| states.extend([(steps[1].message, state)])), says);
    }
    assert_says(&with(|_, _, states| states.clear()), "is gone");
}

/// I9 itself.
#[test]
fn effects_that_are_missing_doubled_or_foreign_are_reported() {
    let messages = [MessageId::new(), MessageId::new()];
    let mut effects = Effects::default();
    for consumer in ["mail", "stock"] {
        messages.iter().for_each(|message| effects.add(consumer, message));
    }
    assert_eq!(effects.exactly_once(&["mail", "stock"], &messages), Ok(()));
    let missing = effects.exactly_once(&["mail", "stock"], &[messages[0], messages[1], MessageId::new()]);
    assert_says(&missing, "mail acted 0 times upon");
    assert_says(&effects.exactly_once(&["mail"], &messages), "2 effects are of messages that nobody sent");
    effects.add("stock", messages[1]);
    assert_says(&effects.exactly_once(&["mail", "stock"], &messages), "stock acted 2 times upon");
}
