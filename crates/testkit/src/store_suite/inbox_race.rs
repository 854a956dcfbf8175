//! The same message in several transactions at once: one of them is first, however many roll back, crash or lose a conflict.
//!
//! These cases never assert which call wins. No task waits for another's call while it has a transaction open, but
//! where the case is about that wait; and then it gives up waiting, never the call.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{Inbox, InboxStore, MessageId, Once, Received, Result};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::inbox::{CONSUMER, act, assert_acted, inbox, once, once_in, received};
use super::support::*;
use crate::{Effects, Fixture};

/// How often a user runs a transaction again that lost a conflict.
const TRIES: usize = 100;

/// How a transaction ends that was first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Commits,
    RollsBack,
    /// Its process is gone before it could commit.
    Crashes,
    /// Its process is gone before it could tell the broker.
    CrashesAfterCommit,
}

/// One delivery: whether it was acked.
async fn deliver<F: Fixture>(fixture: &F, inbox: &Inbox<F::Store>, message: &Received, fate: Fate) -> bool {
    let mut tx = fixture.begin().await;
    let acted: Result<Once> = async {
        let once = inbox.once(fixture.connection(&mut tx), message).await?;
        if once.is_first() {
            act(fixture.store(), fixture.connection(&mut tx), CONSUMER, message).await?;
        }
        Ok(once)
    }
    .await;
    match acted {
        Ok(Once::Repeated) => fixture.commit(tx).await,
        Ok(Once::First) if fate == Fate::RollsBack => fixture.rollback(tx).await,
        Ok(Once::First) if fate == Fate::Crashes => drop(tx),
        Ok(Once::First) => fixture.commit(tx).await,
        Ok(Once::Altered) => panic!("nobody changed {}", message.id),
        Err(error) => {
            assert!(error.is_transient(), "{error:?}");
            fixture.rollback(tx).await;
            return false;
        }
    }
    matches!((acted, fate), (Ok(Once::Repeated), _) | (Ok(Once::First), Fate::Commits))
}

/// Delivers a message until it is acked.
async fn deliver_until_acked<F: Fixture>(fixture: &F, inbox: &Inbox<F::Store>, message: &Received) {
    for _ in 0..TRIES {
        if deliver(fixture, inbox, message, Fate::Commits).await {
            return;
        }
    }
    panic!("{TRIES} times in vain");
}

/// Two transactions remember the same message; the first ends in this way while the second waits, or was refused.
async fn meet<F: Fixture>(fixture: &Arc<F>, commits: bool) {
    for _ in 0..3 {
        let (inbox, message) = (inbox(&**fixture), received());
        let mut tx = fixture.begin().await;
        assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
        act(fixture.store(), fixture.connection(&mut tx), CONSUMER, &message).await.unwrap();
        let (asks, asked) = oneshot::channel();
        let mut second = tokio::spawn({
            let (fixture, inbox, message) = (fixture.clone(), inbox.clone(), message.clone());
            async move {
                asks.send(()).unwrap();
                deliver(&*fixture, &inbox, &message, Fate::Commits).await
            }
        });
        asked.await.unwrap();
        let answered = tokio::time::timeout(Duration::from_millis(200), &mut second).await;
        assert!(!matches!(answered, Ok(Ok(true))), "it did not wait");
        if commits {
            fixture.commit(tx).await;
        } else {
            fixture.rollback(tx).await;
        }
        let acked = match answered {
            Ok(acked) => acked.unwrap(),
            Err(_) => second.await.unwrap(),
        };
        if !acked {
            deliver_until_acked(&**fixture, &inbox, &message).await;
        }
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated);
        assert_eq!(Effects::of(fixture.store()).await.of_message(CONSUMER, message.id), 1);
    }
}

/// INB-001: the second transaction gets a repetition once the first, still open, has committed.
pub async fn the_second_waits_for_a_commit<F: Fixture>(fixture: &Arc<F>) {
    meet(fixture, true).await;
}

/// INB-002: the second transaction is first once the other, still open, has rolled back.
pub async fn the_second_waits_for_a_rollback<F: Fixture>(fixture: &Arc<F>) {
    meet(fixture, false).await;
}

/// INB-001: of eight at once, some of which roll back, one has an effect.
pub async fn one_of_many_is_first<F: Fixture>(fixture: &Arc<F>) {
    let inbox = inbox(&**fixture);
    let mut messages = Vec::new();
    for round in 0..10 {
        let message = received();
        let mut tasks = JoinSet::new();
        for n in 0..8 {
            let (fixture, inbox, message) = (fixture.clone(), inbox.clone(), message.clone());
            tasks.spawn(async move {
                let fate = if n < round % 4 { Fate::RollsBack } else { Fate::Commits };
                deliver(&*fixture, &inbox, &message, fate).await;
                deliver_until_acked(&*fixture, &inbox, &message).await;
            });
        }
        tasks.join_all().await;
        messages.push(message);
    }
    assert_acted(fixture.store(), &messages.iter().collect::<Vec<_>>()).await;
}

/// INB-001, OBX-099: transactions that remember the same messages in opposite order may deadlock; that is a conflict, and
/// never two effects.
pub async fn in_opposite_order<F: Fixture>(fixture: &Arc<F>) {
    let inbox = inbox(&**fixture);
    let messages: Vec<_> = (0..6).map(|_| received()).collect();
    let mut tasks = JoinSet::new();
    for reversed in [false, true] {
        let (fixture, inbox, mut messages) = (fixture.clone(), inbox.clone(), messages.clone());
        if reversed {
            messages.reverse();
        }
        tasks.spawn(async move {
            for _ in 0..TRIES {
                let mut tx = fixture.begin().await;
                let all: Result<()> = async {
                    for message in &messages {
                        if inbox.once(fixture.connection(&mut tx), message).await?.is_first() {
                            act(fixture.store(), fixture.connection(&mut tx), CONSUMER, message).await?;
                        }
                    }
                    Ok(())
                }
                .await;
                match all {
                    Ok(()) => return fixture.commit(tx).await,
                    Err(error) => {
                        assert!(error.is_transient(), "{error:?}");
                        fixture.rollback(tx).await;
                    }
                }
            }
            panic!("{TRIES} times in vain");
        });
    }
    tasks.join_all().await;
    assert_acted(fixture.store(), &messages.iter().collect::<Vec<_>>()).await;
}

/// INB-004: while other transactions add rows, old rows are forgotten and the rest is kept.
pub async fn slow_forget_against_remember<F: Fixture>(fixture: &Arc<F>) {
    const EACH: usize = 200;
    let (store, inbox) = (fixture.store(), inbox(&**fixture));
    let old: Vec<_> = (0..EACH).map(|_| received()).collect();
    let mut tx = fixture.begin().await;
    for message in &old {
        once_in(&**fixture, &mut tx, &inbox, message).await;
    }
    fixture.commit(tx).await;
    fixture.advance(HOUR).await;
    let pruner = tokio::spawn({
        let store = store.clone();
        async move {
            let mut forgotten = 0;
            while forgotten < EACH as u64 {
                forgotten += store.forget(CONSUMER, MINUTE, 7).await.unwrap();
                tokio::task::yield_now().await;
            }
            forgotten
        }
    });
    let young: Vec<_> = (0..EACH).map(|_| received()).collect();
    for message in &young {
        deliver_until_acked(&**fixture, &inbox, message).await;
    }
    assert_eq!(pruner.await.unwrap(), EACH as u64);
    assert_acted(store, &young.iter().collect::<Vec<_>>()).await;
    for message in &young {
        assert_eq!(once(&**fixture, &inbox, message).await, Once::Repeated);
    }
}

/// F-21, I9: two thousand messages, each delivered five times and more, sixteen deliveries at once. Some transactions are rolled
/// back, some processes are gone between the effect and the commit, and some between the commit and the broker's ack.
pub async fn slow_duplicate_storm<F: Fixture>(fixture: &Arc<F>) {
    const MESSAGES: usize = 2_000;
    const DELIVERIES: usize = 5;
    let inbox = inbox(&**fixture);
    let messages: Arc<Vec<Received>> = Arc::new((0..MESSAGES).map(|_| received()).collect());
    // The deliveries of a message are near each other, so that they meet.
    let mut queue: Vec<usize> = (0..MESSAGES * DELIVERIES).map(|n| n / DELIVERIES).collect();
    let mut random = fastrand::Rng::with_seed(21);
    queue.chunks_mut(40).for_each(|near| random.shuffle(near));
    let queue = Arc::new(Mutex::new(queue));
    let mut tasks = JoinSet::new();
    for task in 0..16 {
        let (fixture, inbox) = (fixture.clone(), inbox.clone());
        let (messages, queue) = (messages.clone(), queue.clone());
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(task);
            let mut fates = HashSet::new();
            loop {
                let Some(n) = queue.lock().unwrap().pop() else { return fates.len() };
                let fate = match random.u32(0..100) {
                    0..10 => Fate::RollsBack,
                    10..15 => Fate::Crashes,
                    15..20 => Fate::CrashesAfterCommit,
                    _ => Fate::Commits,
                };
                fates.insert(fate as u8);
                if !deliver(&*fixture, &inbox, &messages[n], fate).await {
                    queue.lock().unwrap().push(n);
                }
            }
        });
    }
    assert!(tasks.join_all().await.into_iter().any(|fates| fates == 4), "everything happened");
    let ids: Vec<MessageId> = messages.iter().map(|message| message.id).collect();
    assert_eq!(Effects::of(fixture.store()).await.exactly_once(&[CONSUMER], &ids), Ok(()));
    for message in messages.iter().step_by(100) {
        assert!(fixture.store().remembered(CONSUMER, &message.source, message.id).await.unwrap().is_some());
    }
}
