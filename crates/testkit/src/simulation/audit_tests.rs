//! Every check of the audit objects to a violation that is planted for it, and to nothing else.

use posthaste_core::{ClaimRequest, MemoryStore, NewMessage, Store as _, StoreAdmin as _, WorkerId};

use super::super::plan::{Fault, Step};
use super::*;

const LATER: Duration = Duration::from_secs(1_000);

/// An audit of two messages of one key, in processes with one worker each, and the messages as they were claimed.
struct Case {
    audit: Audit,
    store: MemoryStore,
    messages: Vec<Message>,
}

fn facts() -> Facts {
    Facts { workers: 1, lease: 1_000, timeout: 5_000, cancel_grace: 100, capacity: 1, ..Facts::default() }
}

impl Case {
    async fn new() -> Self {
        let mut plan = Plan::new(0, &Fault::ALL);
        let step = Step { takes: 0, act: Act::Succeed };
        for script in &mut plan.scripts[..2] {
            (script.topic, script.key, script.expires, script.steps) =
                ("one", Some(1), None, vec![vec![step]]);
        }
        plan.scripts.truncate(2);
        let mut audit = Audit::new(&plan);
        for _ in 0..2 {
            audit.born(facts());
        }
        let store = MemoryStore::new();
        for n in 0..2 {
            let message = NewMessage::bytes("one", n.to_string()).id(id_of(n)).build().unwrap();
            store.enqueue(&[message]).await.unwrap();
        }
        let messages = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
        Self { audit, store, messages }
    }

    fn commit(&mut self, n: usize) {
        self.audit.committed(n, self.messages[n].item.get(), None);
    }

    fn claim(&mut self, life: Life, n: usize) {
        self.audit.claimed(life, &self.messages[n], 0, SystemTime::now() + LATER);
    }

    fn begin(&mut self, life: Life, n: usize) {
        self.audit.begun(life, &self.messages[n], "one.a", 10, SystemTime::now());
    }

    fn end(&mut self, life: Life, n: usize, ended: Ended) {
        self.audit.ended(life, &self.messages[n], "one.a", ended, 20);
    }

    /// Settles in the store and tells the audit.
    async fn settle(&mut self, life: Life, n: usize, outcome: Outcome) {
        let settlement = Settlement::new(self.messages[n].lease(), outcome);
        self.audit.settling(life, &settlement, 0);
        let answers = self.store.settle(std::slice::from_ref(&settlement)).await.unwrap().settled;
        let record = self.record(n).await;
        self.audit.settled(&settlement, answers[0], Some(&record));
    }

    async fn record(&self, n: usize) -> Record {
        self.store.show(id_of(n)).await.unwrap().unwrap().0
    }

    async fn delivered(&mut self, n: usize) {
        self.commit(n);
        self.claim(0, n);
        self.begin(0, n);
        self.end(0, n, Ended::Ok);
        self.settle(0, n, Outcome::Ack).await;
    }

    fn says(&self, what: &str) {
        let said = self.audit.objection().unwrap_or("nothing");
        assert!(said.starts_with(what), "expected {what}, and it says: {said}");
    }
}

fn abandon() -> Outcome {
    let failure = posthaste_core::Failure::business("no");
    Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 9, max_age: None }
}

#[tokio::test(flavor = "current_thread")]
async fn what_is_right_is_not_objected_to() {
    let mut case = Case::new().await;
    case.delivered(0).await;
    case.delivered(1).await;
    let records = [case.record(0).await, case.record(1).await];
    case.audit.finish(&records);
    assert_eq!((case.audit.objection(), case.audit.unfinished(&records)), (None, None));
}

#[tokio::test(flavor = "current_thread")]
async fn what_was_never_committed_is_a_phantom() {
    let mut case = Case::new().await;
    case.begin(0, 0);
    case.says("I2");
    let mut case = Case::new().await;
    case.claim(0, 0);
    case.says("I2");
}

#[tokio::test(flavor = "current_thread")]
async fn a_message_has_one_owner() {
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.claim(1, 0);
    case.says("I4");
    // A holder whose message was claimed by another starts it, or settles it.
    let mut case = Case::new().await;
    case.commit(0);
    case.begin(0, 0);
    case.says("I4");
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.begin(0, 0);
    case.end(0, 0, Ended::Ok);
    let mut stale = Settlement::new(case.messages[0].lease(), Outcome::Ack);
    stale.lease.epoch += 1;
    case.audit.settled(&stale, Settled::Applied, None);
    case.says("I4");
    // One that has learnt of its loss goes on nevertheless.
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.audit.told(0, case.messages[0].lease(), 5);
    case.begin(0, 0);
    case.says("I4");
}

#[tokio::test(flavor = "current_thread")]
async fn a_process_has_a_message_once_and_no_more_than_it_has_workers() {
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.begin(0, 0);
    case.begin(0, 0);
    case.says("HOT-010");
    let mut case = Case::new().await;
    for n in 0..2 {
        case.audit.scripts[n].key = None;
        case.commit(n);
        case.claim(0, n);
        case.begin(0, n);
    }
    case.says("HOT-013");
    let mut case = Case::new().await;
    case.audit.received(0, &case.messages);
    case.says("HOT-013");
}

#[tokio::test(flavor = "current_thread")]
async fn duplicates_need_a_reason() {
    let mut case = Case::new().await;
    case.delivered(0).await;
    case.messages[0].epoch += 1;
    let row = case.audit.rows.get_mut(&0).unwrap();
    (row.state, row.epoch) = (Some(State::Leased), 2);
    case.begin(0, 0);
    case.says("I5");
    // A lease that is lost, and nothing went wrong.
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    let mut record = case.record(0).await;
    (record.state, record.message.lease_losses) = (State::Ready, 1);
    case.audit.swept(Sweep::Reap, &[record], 100);
    case.says("I5");
}

#[tokio::test(flavor = "current_thread")]
async fn keys_are_kept_in_order() {
    let mut case = Case::new().await;
    case.commit(0);
    case.commit(1);
    case.claim(0, 1);
    case.says("I6");
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    // The store may not have allowed this; the process starts them in the wrong order.
    case.commit(1);
    case.audit.rows.get_mut(&0).unwrap().state = Some(State::Done);
    case.claim(1, 1);
    case.begin(1, 1);
    case.says("I6");
}

#[tokio::test(flavor = "current_thread")]
async fn outcomes_are_what_handlers_said() {
    for (ended, outcome) in [
        (Some(Ended::Ok), abandon()),
        (Some(Ended::Failed(Act::Business)), Outcome::Ack),
        (Some(Ended::Failed(Act::Infrastructure)), abandon()),
        (Some(Ended::Failed(Act::Defer(5))), abandon()),
        (Some(Ended::Dropped), Outcome::Release),
        (Some(Ended::Dropped), abandon()),
        (None, Outcome::Ack),
    ] {
        let mut case = Case::new().await;
        case.commit(0);
        case.claim(0, 0);
        case.begin(0, 0);
        if let Some(ended) = ended {
            case.end(0, 0, ended);
        }
        case.settle(0, 0, outcome).await;
        case.says("I10");
    }
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.settle(0, 0, abandon()).await;
    case.says("I10");
}

#[tokio::test(flavor = "current_thread")]
async fn attempts_are_charged_for_failures_alone() {
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    let settlement = Settlement::new(case.messages[0].lease(), Outcome::Release);
    case.store.settle(&[Settlement::new(settlement.lease, abandon())]).await.unwrap();
    let record = case.record(0).await;
    case.audit.settled(&settlement, Settled::Applied, Some(&record));
    case.says("I10");
}

#[tokio::test(flavor = "current_thread")]
async fn nothing_is_lost() {
    // Acked, and never delivered.
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    let settlement = Settlement::new(case.messages[0].lease(), Outcome::Ack);
    case.audit.settled(&settlement, Settled::Applied, None);
    case.says("I1");
    // Not there any more.
    let mut case = Case::new().await;
    case.commit(0);
    case.audit.finish(&[]);
    case.says("I12");
    // Never ends.
    let mut case = Case::new().await;
    case.commit(0);
    let record = case.record(0).await;
    assert_eq!(case.audit.unfinished(&[record]), Some(0));
}

#[tokio::test(flavor = "current_thread")]
async fn a_graceful_shutdown_leaves_nothing() {
    let mut case = Case::new().await;
    case.commit(0);
    case.claim(0, 0);
    case.audit.stopped(0);
    case.says("I15");
}
