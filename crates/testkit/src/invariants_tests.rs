//! Each check passes what is in order and reports a planted violation: a check that cannot fail checks nothing.

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
        self.history.claimed(worker, id, lease);
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
    run.history.claimed(&run.a, id, lease(1, 1));
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
    run.history.claimed(&run.a, id, lease(1, 1));
    run.history.claimed(&run.b, id, lease(1, 1));
    assert_says(&run.history.single_ownership(), "a and b claimed");
}

#[test]
fn a_stale_settlement_that_was_accepted_is_reported() {
    let run = run();
    let id = run.enqueue(None);
    run.history.claimed(&run.a, id, lease(1, 1));
    run.history.claimed(&run.b, id, lease(1, 2));
    run.history.settling(lease(1, 1));
    run.history.settled(lease(1, 1), Settled::Lost);
    assert!(run.history.single_ownership().is_ok(), "a lost lease is how it should be");
    run.history.settled(lease(1, 1), Settled::Applied);
    assert_says(&run.history.single_ownership(), "settled by a with epoch 1 while b had it with epoch 2");
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
    run.history.claimed(&run.a, first, lease(1, 1));
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
