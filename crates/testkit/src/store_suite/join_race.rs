//! Joins that many change at once: nothing is lost, nothing counts twice, and every join ends once.
//!
//! These cases never assert which call wins, only that exactly one does and that all accounts agree. No task waits for
//! another's call while it has a transaction open: some databases have one writer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::{
    Attached, Birth, EndedJoin, Error, ErrorKind, JoinFilter, JoinId, JoinStatus, JoinStore, Lease, Look,
    Message, MessageId, NewJoin, NewMessage, Outcome, Reported, Result, Retention, Settlement, StepEnd,
    StepStatus, Store, StoreAdmin, TransactionalStore,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::support::*;
use crate::Fixture;

const TASKS: usize = 8;
/// How often a user runs a transaction again that lost a conflict.
const TRIES: usize = 20;

/// When the ack begins, relative to its rival.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// While the other's transaction has done its work, and is not committed.
    InTheMiddle,
    /// At the same moment.
    Free,
}

/// JOIN-062: whether a user would run the transaction again.
fn lost(error: &Error, tries: usize) -> bool {
    assert!(tries < TRIES, "{tries} times: {error}");
    error.is_transient()
}

/// What one transaction does to a join.
#[derive(Clone, Debug)]
enum Verb {
    Start(NewJoin),
    Attach(JoinId, Vec<MessageId>),
    Report(JoinId, MessageId, StepEnd),
    Cancel(JoinId),
    /// Registers this message, and stores it: due at once if the join has ended, and else in a day.
    Wait(JoinId, MessageId),
}

/// Its result.
#[derive(Debug)]
enum Answer {
    Started,
    Attached(Attached),
    Reported(Reported),
    Cancelled(Option<EndedJoin>),
    Waits,
}

async fn perform<F: Fixture>(fixture: &F, tx: &mut F::Transaction, verb: &Verb) -> Result<Answer> {
    let (store, connection) = (fixture.store(), fixture.connection(tx));
    Ok(match verb {
        Verb::Start(new) => {
            store.start_join(connection, new).await?;
            Answer::Started
        }
        Verb::Attach(join, messages) => Answer::Attached(store.attach(connection, *join, messages).await?),
        Verb::Report(join, message, how) => {
            Answer::Reported(store.report(connection, *join, *message, *how).await?)
        }
        Verb::Cancel(join) => Answer::Cancelled(store.cancel_join(connection, *join).await?),
        Verb::Wait(join, wait) => {
            let look = store.wait_for_join(connection, *join, *wait).await?;
            let delay = if matches!(look, Look::Over(_)) { Duration::ZERO } else { DAY };
            let message = draft("wait").id(*wait).delay(delay).build().unwrap();
            store.insert(connection, &[message], Birth::Ready).await?;
            Answer::Waits
        }
    })
}

/// Runs a transaction as a user would: again, if it lost a conflict.
async fn transact<F: Fixture>(fixture: &F, verb: &Verb) -> Result<Answer> {
    for tries in 1.. {
        let mut tx = fixture.begin().await;
        match perform(fixture, &mut tx, verb).await {
            Err(error) if lost(&error, tries) => fixture.rollback(tx).await,
            answer => {
                fixture.commit(tx).await;
                return answer;
            }
        }
    }
    unreachable!("it gives up before that")
}

/// Lets a user's transaction and a settlement race.
async fn race<F: Fixture>(
    fixture: &Arc<F>,
    order: Order,
    verb: Verb,
    lease: Lease,
    outcome: Outcome,
) -> (Result<Answer>, Vec<EndedJoin>) {
    let barrier = Arc::new(Barrier::new(2));
    let user = tokio::spawn({
        let (fixture, barrier) = (fixture.clone(), barrier.clone());
        async move {
            match order {
                Order::InTheMiddle => {
                    let mut tx = fixture.begin().await;
                    let answer = perform(&*fixture, &mut tx, &verb).await;
                    barrier.wait().await;
                    // The other one has begun, or is about to: let it come as far as it can.
                    for _ in 0..3 {
                        tokio::task::yield_now().await;
                    }
                    fixture.commit(tx).await;
                    answer
                }
                Order::Free => {
                    barrier.wait().await;
                    transact(&*fixture, &verb).await
                }
            }
        }
    });
    let store = fixture.store().clone();
    let worker = tokio::spawn(async move {
        barrier.wait().await;
        end(&store, lease, outcome).await
    });
    (user.await.unwrap(), worker.await.unwrap())
}

/// So many messages, enqueued and claimed.
async fn held<F: Fixture>(fixture: &F, count: usize) -> Vec<Message> {
    enqueue(fixture.store(), &plains(count)).await;
    let held = claim(fixture.store(), 10_000).await;
    assert_eq!(held.len(), count);
    held
}

/// A join of one step for each of these messages, all started and attached in one transaction.
async fn join_each<F: Fixture>(fixture: &F, messages: &[Message], deadline: Duration) -> Vec<JoinId> {
    let store = fixture.store();
    let mut tx = fixture.begin().await;
    let mut joins = Vec::new();
    for message in messages {
        let new = NewJoin::expecting(1).expires_after(deadline).build().unwrap();
        store.start_join(fixture.connection(&mut tx), &new).await.unwrap();
        store.attach(fixture.connection(&mut tx), new.id(), &[message.id]).await.unwrap();
        joins.push(new.id());
    }
    fixture.commit(tx).await;
    joins
}

/// JOIN-013 as amended, JOIN-060, JOIN-061, I7, M-11, M-12: an attach against the end of the same message, a thousand times,
/// in every order: no step is ever lost, and none counts twice.
pub async fn slow_attach_against_ack<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for (rounds, order) in [(334, Some(Order::InTheMiddle)), (333, Some(Order::Free)), (333, None)] {
        let messages = held(&**fixture, rounds).await;
        let id = start(&**fixture, expecting(u32::try_from(rounds).unwrap())).await;
        let mut told = Vec::new();
        for (n, message) in messages.iter().enumerate() {
            let (verb, lease) = (Verb::Attach(id, vec![message.id]), message.lease());
            let outcome = if n % 3 == 0 { fail() } else { Outcome::Ack };
            let attached = match order {
                Some(order) => {
                    let (attached, joins) = race(fixture, order, verb, lease, outcome).await;
                    told.extend(joins);
                    attached
                }
                None => {
                    told.extend(end(store, lease, outcome).await);
                    transact(&**fixture, &verb).await
                }
            };
            let Ok(Answer::Attached(Attached { new: 1, ended })) = attached else {
                panic!("{order:?}, round {n}: {attached:?}")
            };
            told.extend(ended);
        }
        assert_exact(store).await;
        let (all, failed) = (u32::try_from(rounds).unwrap(), u32::try_from(rounds.div_ceil(3)).unwrap());
        assert_eq!(tally(store, id).await, (JoinStatus::Failed, [all, all - failed, failed]), "{order:?}");
        assert!(told.len() <= 1, "{order:?}: {told:?}");
        assert!(order.is_some() || told.len() == 1, "one after the other, the last one is told");
    }
}

/// JOIN-060, JOIN-061, JOIN-062, OBX-099, I7, F-19: eight tasks claim and settle messages of which each is a step of four
/// out of twenty joins, five thousand steps and more in all: every counter is exact, every join ends once, and no call fails.
pub async fn slow_ackers_of_shared_joins<F: Fixture>(fixture: &Arc<F>) {
    const JOINS: usize = 20;
    const MESSAGES: usize = 1_260;
    const EACH: u32 = 252;
    let store = fixture.store();
    let ids = enqueue(store, &plains(MESSAGES)).await;
    let mut joins = Vec::new();
    for join in 0..JOINS {
        let members = ids.iter().enumerate();
        let members = members.filter(|(n, _)| [0, 3, 7, 12].iter().any(|more| (n + more) % JOINS == join));
        let mut members: Vec<_> = members.map(|(_, id)| *id).collect();
        fastrand::shuffle(&mut members);
        let id = start(&**fixture, expecting(EACH)).await;
        assert_eq!(attach(&**fixture, id, &members).await.new, EACH);
        joins.push(id);
    }
    let failing: HashSet<_> = ids.iter().step_by(50).copied().collect();
    let left = Arc::new(AtomicUsize::new(MESSAGES));
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, left, failing) = (store.clone(), left.clone(), failing.clone());
        tasks.spawn(async move {
            let mut told = Vec::new();
            while left.load(Ordering::SeqCst) > 0 {
                let mut claimed = claim(&store, 10).await;
                fastrand::shuffle(&mut claimed);
                let outcome = |id| if failing.contains(&id) { fail() } else { Outcome::Ack };
                let batch: Vec<_> =
                    claimed.iter().map(|one| Settlement::new(one.lease(), outcome(one.id))).collect();
                told.extend(store.settle(&batch).await.unwrap().joins);
                left.fetch_sub(claimed.len(), Ordering::SeqCst);
                if claimed.is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            told
        });
    }
    let mut told: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    told.sort_by_key(|join| join.id);
    assert_exact(store).await;
    let mut expected = Vec::new();
    for id in joins {
        let join = join(store, id).await;
        assert_eq!((join.attached_steps, join.completed_steps + join.failed_steps), (EACH, EACH));
        expected.push(ended(id, join.status, [EACH, join.completed_steps, join.failed_steps]));
    }
    assert_eq!(told, expected, "each is told once, with the numbers of its end");
    let failed: u32 = expected.iter().map(|join| join.failed_steps).sum();
    assert_eq!(usize::try_from(failed).unwrap(), 4 * failing.len());
}

/// F-20, I7: a join of ten thousand steps, attached and done in batches.
pub async fn slow_a_join_of_ten_thousand_steps<F: Fixture>(fixture: &Arc<F>) {
    const STEPS: usize = 10_000;
    let store = fixture.store();
    let id = start(&**fixture, expecting(u32::try_from(STEPS).unwrap())).await;
    let wait = wait_for(&**fixture, id).await;
    let mut ids = Vec::new();
    for batch in plains(STEPS).chunks(1_000) {
        ids.extend(enqueue(store, batch).await);
    }
    let (first, second) = ids.split_at(STEPS / 2);
    assert_eq!(attach(&**fixture, id, first).await.new, 5_000);
    for batch in second.chunks(1_000) {
        assert_eq!(attach(&**fixture, id, batch).await.new, 1_000);
    }
    for round in 1..=10 {
        let claimed = claim(store, 1_000).await;
        assert_eq!(claimed.len(), 1_000);
        let batch: Vec<_> = claimed.iter().map(|one| Settlement::new(one.lease(), Outcome::Ack)).collect();
        let joins = store.settle(&batch).await.unwrap().joins;
        let last = [ended(id, JoinStatus::Completed, [10_000, 10_000, 0])];
        assert_eq!(joins, last[..usize::from(round == 10)]);
    }
    assert_eq!(claim_one(store).await.id, wait);
    assert_exact(store).await;
}

/// JOIN-060: of two concurrent cancellations, one reports that it ended the join.
pub async fn two_cancellations<F: Fixture>(fixture: &Arc<F>) {
    for round in 0..20 {
        let id = start(&**fixture, expecting(1)).await;
        let both = [fixture.clone(), fixture.clone()].map(|fixture| {
            tokio::spawn(async move { transact(&*fixture, &Verb::Cancel(id)).await.unwrap() })
        });
        let mut won = 0;
        for one in both {
            won += usize::from(matches!(one.await.unwrap(), Answer::Cancelled(Some(_))));
        }
        assert_eq!(won, 1, "round {round}");
        assert_eq!(tally(fixture.store(), id).await, (JoinStatus::Cancelled, [0, 0, 0]));
    }
    assert_exact(fixture.store()).await;
}

/// JOIN-022, JOIN-023, JOIN-061, M-13: a report against the ack of the same message: one of them counts.
pub async fn slow_report_against_ack<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: u32 = 100;
    let store = fixture.store();
    for order in [Order::InTheMiddle, Order::Free] {
        let messages = held(&**fixture, ROUNDS as usize).await;
        let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
        let id = start(&**fixture, expecting(ROUNDS)).await;
        attach(&**fixture, id, &ids).await;
        let mut unheard = Vec::new();
        for message in &messages {
            let verb = Verb::Report(id, message.id, StepEnd::Failed);
            let (answer, _) = race(fixture, order, verb, message.lease(), Outcome::Ack).await;
            let Ok(Answer::Reported(reported)) = answer else { panic!("{answer:?}") };
            if !reported.counted {
                unheard.push(message.id);
            }
        }
        let late = statuses(store, id, &unheard).await;
        assert!(late.iter().all(|status| *status == StepStatus::Completed), "{order:?}: the ack was first");
        let join = join(store, id).await;
        assert_eq!(join.completed_steps + join.failed_steps, ROUNDS, "{order:?}");
        assert_exact(store).await;
    }
}

/// JOIN-042, JOIN-061: a deadline that is swept, or checked, against the last ack: the join ends once, one way or the
/// other, and one of them reports it.
pub async fn slow_deadline_against_the_last_ack<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: usize = 100;
    let store = fixture.store();
    let messages = held(&**fixture, ROUNDS).await;
    let joins = join_each(&**fixture, &messages, HOUR / 2).await;
    let mut waits = Vec::new();
    for id in &joins {
        waits.push(wait_for(&**fixture, *id).await);
    }
    fixture.advance(HOUR / 2 + MINUTE).await;
    let sweeper = tokio::spawn({
        let store = store.clone();
        async move {
            let mut told = Vec::new();
            for _ in 0..ROUNDS {
                told.extend(store.expire(1).await.unwrap().joins);
            }
            told
        }
    });
    let looker = tokio::spawn({
        let (store, joins) = (store.clone(), joins.clone());
        async move {
            for id in joins.into_iter().rev().take(ROUNDS / 4) {
                assert!(matches!(store.look(id).await.unwrap(), Look::Over(_) | Look::Expired(_)));
            }
        }
    });
    let mut told = Vec::new();
    // From the end, and the sweeper from the beginning: they meet.
    for message in messages.iter().rev() {
        told.extend(end(store, message.lease(), Outcome::Ack).await);
    }
    told.extend(sweeper.await.unwrap());
    looker.await.unwrap();
    assert_exact(store).await;
    let ids: HashSet<_> = told.iter().map(|join| join.id).collect();
    assert_eq!(ids.len(), told.len(), "a join ended twice");
    for over in &told {
        assert_eq!(join(store, over.id).await.status, over.status);
    }
    for id in joins {
        let status = join(store, id).await.status;
        assert!(matches!(status, JoinStatus::Completed | JoinStatus::Expired), "{status}");
    }
    let mut due = claim_ids(store, 1_000).await;
    due.sort_unstable();
    assert_eq!(due, waits, "every end makes its wait due");
}

/// JOIN-042, JOIN-061: a cancellation against the last ack: the join ends once, and its step agrees with it.
pub async fn slow_cancellation_against_the_last_ack<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: usize = 60;
    let store = fixture.store();
    for order in [Order::InTheMiddle, Order::Free] {
        let messages = held(&**fixture, ROUNDS).await;
        let joins = join_each(&**fixture, &messages, DAY).await;
        for (message, id) in messages.iter().zip(&joins) {
            let (answer, told) = race(fixture, order, Verb::Cancel(*id), message.lease(), Outcome::Ack).await;
            assert!(matches!(answer, Ok(Answer::Cancelled(_))), "{answer:?}");
            let status = join(store, *id).await.status;
            let expected = if told.is_empty() { JoinStatus::Cancelled } else { JoinStatus::Completed };
            assert_eq!(status, expected, "{order:?}");
        }
    }
    assert_exact(store).await;
}

/// JOIN-053 as amended, I8: a wait that is registered while the join ends is due in the end: no end is missed.
pub async fn slow_wait_against_the_last_ack<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: usize = 100;
    let store = fixture.store();
    for order in [Order::InTheMiddle, Order::Free] {
        let messages = held(&**fixture, ROUNDS).await;
        let joins = join_each(&**fixture, &messages, DAY).await;
        let waits: Vec<_> = joins.iter().map(|_| MessageId::new()).collect();
        for ((message, id), wait) in messages.iter().zip(&joins).zip(&waits) {
            let verb = Verb::Wait(*id, *wait);
            let (answer, told) = race(fixture, order, verb, message.lease(), Outcome::Ack).await;
            assert!(matches!(answer, Ok(Answer::Waits)), "{answer:?}");
            assert_eq!(told, [ended(*id, JoinStatus::Completed, [1, 1, 0])]);
        }
        let mut due = claim_ids(store, 1_000).await;
        due.sort_unstable();
        assert_eq!(due, waits, "{order:?}");
    }
    assert_exact(store).await;
}

/// JOIN-053 as amended, JOIN-062, I8: a wait that is deferred while the join ends, by the last ack or by a cancellation, is
/// due in the end: no end is missed, and no settlement fails.
pub async fn slow_deferral_against_the_end<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: usize = 100;
    let store = fixture.store();
    let messages = held(&**fixture, ROUNDS).await;
    let joins = join_each(&**fixture, &messages, 10 * DAY).await;
    let mut waits = Vec::new();
    for id in &joins {
        waits.push(wait_for(&**fixture, *id).await);
    }
    fixture.advance(DAY + MINUTE).await;
    let mut looking = claim(store, 1_000).await;
    looking.sort_by_key(|message| message.id);
    assert_eq!(looking.iter().map(|message| message.id).collect::<Vec<_>>(), waits);
    for (n, (message, id)) in messages.iter().zip(&joins).enumerate() {
        let defer = Outcome::Defer { delay: DAY };
        if n % 2 == 0 {
            let answer = race(fixture, Order::Free, Verb::Cancel(*id), looking[n].lease(), defer).await.0;
            assert!(matches!(answer, Ok(Answer::Cancelled(Some(_)))), "{answer:?}");
        } else {
            let (ender, lease) = (store.clone(), message.lease());
            let last = tokio::spawn(async move { end(&ender, lease, Outcome::Ack).await });
            assert_eq!(end(store, looking[n].lease(), defer).await, []);
            assert_eq!(last.await.unwrap().len(), 1);
        }
    }
    let mut due = claim_ids(store, 1_000).await;
    due.sort_unstable();
    assert_eq!(due, waits);
    assert_exact(store).await;
}

/// JOIN-023, JOIN-060: eight transactions at once attach more than the join expects: what fits is attached, each batch as a
/// whole, and the others are refused.
pub async fn many_attach_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for round in 0..5 {
        let id = start(&**fixture, expecting(12)).await;
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let verb = Verb::Attach(id, enqueue(store, &plains(5)).await);
            let fixture = fixture.clone();
            tasks.spawn(async move { transact(&*fixture, &verb).await });
        }
        let (mut fit, mut refused) = (0, 0);
        for answer in tasks.join_all().await {
            match answer {
                Ok(Answer::Attached(attached)) => {
                    assert_eq!(attached, Attached { new: 5, ended: None });
                    fit += 1;
                }
                Err(error) if error.kind() == ErrorKind::Refused => refused += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((fit, refused), (2, TASKS - 2), "round {round}");
        assert_eq!(tally(store, id).await, (JoinStatus::Pending, [10, 0, 0]));
    }
    assert_exact(store).await;
}

/// JOIN-011, JOIN-060: eight transactions at once start the same join and attach the same messages: each is there once.
pub async fn many_start_and_attach_the_same<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for _ in 0..5 {
        let (new, ids) = (expecting(6), enqueue(store, &plains(6)).await);
        let mut tasks = JoinSet::new();
        for n in 0..TASKS {
            let (fixture, new, mut ids) = (fixture.clone(), new.clone(), ids.clone());
            ids.rotate_left(n % 6);
            tasks.spawn(async move {
                transact(&*fixture, &Verb::Start(new.clone())).await.unwrap();
                match transact(&*fixture, &Verb::Attach(new.id(), ids)).await.unwrap() {
                    Answer::Attached(attached) => attached.new,
                    other => panic!("{other:?}"),
                }
            });
        }
        assert_eq!(tasks.join_all().await.iter().sum::<u32>(), 6, "each became a step once");
        assert_eq!(tally(store, new.id()).await, (JoinStatus::Pending, [6, 0, 0]));
    }
    assert_exact(store).await;
}

/// I8, M-14: of eight workers that handle the same wait, one sends the continuation.
pub async fn many_continue_at_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for round in 0..10 {
        let id = start(&**fixture, expecting(1)).await;
        let wait = wait_for(&**fixture, id).await;
        cancel(&**fixture, id).await.unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (store, continuation): (_, NewMessage) = (store.clone(), draft("next").build().unwrap());
            tasks.spawn(async move { store.continue_join(id, wait, Some(&continuation)).await.unwrap() });
        }
        let first = tasks.join_all().await.into_iter().filter(|first| *first).count();
        assert_eq!(first, 1, "round {round}");
        let due: Vec<_> = claim(store, 10).await.iter().map(|message| message.topic.to_string()).collect();
        assert_eq!(due, ["wait", "next"], "round {round}");
    }
    assert_exact(store).await;
}

/// Pruning looks for steps before it locks the rows that it deletes. A message that becomes a step in between is
/// kept.
pub async fn slow_prune_of_many_against_attach<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: u32 = 24;
    const BATCH: u32 = 500;
    let store = fixture.store();
    let id = start(&**fixture, expecting(ROUNDS + 1)).await;
    for round in 0..ROUNDS {
        // Of a batch the last one is locked last.
        let last = *dead(store, BATCH as usize).await.last().unwrap();
        fixture.advance(2 * HOUR).await;
        let pruner = tokio::spawn({
            let store = store.clone();
            async move { store.prune(&Retention::done(HOUR).dead(HOUR), BATCH).await.unwrap() }
        });
        if let Err(error) = transact(&**fixture, &Verb::Attach(id, vec![last])).await {
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        }
        pruner.await.unwrap();
        while store.prune(&Retention::done(HOUR).dead(HOUR), BATCH).await.unwrap() > 0 {}
        let is_stored = records(store).await.iter().any(|record| record.message.id == last);
        let is_step = steps(store, id).await.iter().any(|step| step.message == last);
        assert_eq!(is_step, is_stored, "round {round}: what is a step is stored, and all else was pruned");
    }
    assert_exact(store).await;
}

/// M-24: pruning against attaching: a message that became a step of a pending join is still there, and attaching a
/// pruned one was refused.
pub async fn slow_prune_against_attach<F: Fixture>(fixture: &Arc<F>) {
    const ROUNDS: usize = 50;
    let store = fixture.store();
    let ids = dead(store, ROUNDS).await;
    let id = start(&**fixture, expecting(u32::try_from(ROUNDS + 1).unwrap())).await;
    fixture.advance(2 * HOUR).await;
    let pruner = tokio::spawn({
        let store = store.clone();
        async move {
            for _ in 0..ROUNDS {
                store.prune(&Retention::done(HOUR).dead(HOUR), 1).await.unwrap();
            }
        }
    });
    // The last ones first, the pruner from the beginning: they meet.
    for message in ids.iter().rev() {
        match transact(&**fixture, &Verb::Attach(id, vec![*message])).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{error}"),
        }
    }
    pruner.await.unwrap();
    while store.prune(&Retention::done(HOUR).dead(HOUR), 100).await.unwrap() > 0 {}
    let stored: Vec<_> = records(store).await.iter().map(|record| record.message.id).collect();
    let mut steps: Vec<_> = steps(store, id).await.iter().map(|step| step.message).collect();
    steps.sort_unstable();
    assert_eq!(steps, stored, "what is a step is stored, and all else was pruned");
    let by_message = |message: &MessageId| JoinFilter { message: Some(*message), ..JoinFilter::default() };
    for message in &stored {
        assert_eq!(store.joins(&by_message(message), None, 10).await.unwrap().joins.len(), 1);
    }
    assert_exact(store).await;
}
