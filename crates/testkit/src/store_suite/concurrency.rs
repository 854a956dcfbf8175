//! Many workers at once: nothing twice, nothing lost, nothing out of order.
//!
//! These cases never assert which call wins, only that exactly one does and that all accounts agree.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{
    Failure, NewMessage, Outcome, Retention, Settled, Settlement, State, Store, StoreAdmin, WorkerId,
};
use tokio::task::JoinSet;

use super::support::*;
use super::transaction::insert;
use crate::{Census, Fate, Fixture, History};

const WORKERS: usize = 8;

/// How long a case may take before it is said to be stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// Claims and acks until so many are done, and records everything.
async fn work<S: StoreAdmin>(
    store: S,
    history: Arc<History>,
    me: WorkerId,
    left: Arc<AtomicUsize>,
    limit: u32,
) {
    let started = Instant::now();
    while left.load(Ordering::SeqCst) > 0 {
        assert!(started.elapsed() < PATIENCE, "{} messages are not to be had", left.load(Ordering::SeqCst));
        let request = posthaste_core::ClaimRequest::new(me.clone()).limit(limit).lease(LEASE);
        let asked = Instant::now();
        let claimed = store.claim(&request).await.unwrap();
        assert!(claimed.len() <= limit as usize);
        if claimed.is_empty() {
            tokio::task::yield_now().await;
            continue;
        }
        for message in &claimed {
            history.claimed(asked, &me, message.id, message.lease());
            history.delivered(&me, message.id);
        }
        let settlements: Vec<_> =
            claimed.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)).collect();
        for message in &claimed {
            history.settling(message.lease());
        }
        let settled = store.settle(&settlements).await.unwrap().settled;
        for (message, answer) in claimed.iter().zip(settled) {
            history.settled(message.lease(), answer);
        }
        // Not below zero: a message that is claimed twice must fail the checks, not keep the workers waiting.
        let less = |left: usize| Some(left.saturating_sub(claimed.len()));
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).unwrap();
    }
}

/// Enqueues, lets eight workers deliver everything, and returns what happened.
async fn deliver<F: Fixture>(fixture: &Arc<F>, messages: &[NewMessage], limit: u32) -> Arc<History> {
    let history = Arc::new(History::default());
    for batch in messages.chunks(1_000) {
        enqueue(fixture.store(), batch).await;
        for message in batch {
            history.enqueued(message.id(), message.key(), Fate::Committed);
        }
    }
    let left = Arc::new(AtomicUsize::new(messages.len()));
    let mut workers = JoinSet::new();
    for n in 0..WORKERS {
        let me = worker(&format!("worker-{n}"));
        workers.spawn(work(fixture.store().clone(), history.clone(), me, left.clone(), limit));
    }
    while let Some(result) = workers.join_next().await {
        result.unwrap();
    }
    history
}

/// OBX-017, OBX-098, OBX-100, OBX-101, I1, I2, I4, I5: eight workers claim each message exactly once.
pub async fn slow_each_is_claimed_once<F: Fixture>(fixture: &Arc<F>) {
    let history = deliver(fixture, &plains(F::MANY), 100).await;
    history.no_loss(&HashSet::new()).unwrap();
    history.no_phantom().unwrap();
    history.single_ownership().unwrap();
    history.delivered_once().unwrap();
    assert!(claim(fixture.store(), 10).await.is_empty());
    assert_eq!(fixture.store().stats().await.unwrap().leased.value, 0);
}

/// OBX-100, I6: eight workers deliver each key's messages in the order of enqueueing, never two at a time.
pub async fn slow_keys_stay_in_order<F: Fixture>(fixture: &Arc<F>) {
    let messages: Vec<_> = (0..2_000).map(|n| keyed(&format!("key-{}", n * 7 % 50))).collect();
    let history = deliver(fixture, &messages, 20).await;
    history.no_loss(&HashSet::new()).unwrap();
    history.single_ownership().unwrap();
    history.delivered_once().unwrap();
    history.key_order().unwrap();
}

/// Rule 5, rule 7: the same dedup key from eight transactions at once is stored once, and every publisher learns
/// which.
pub async fn slow_one_of_many_duplicates<F: Fixture>(fixture: &Arc<F>) {
    for round in 0..10 {
        let mut publishers = JoinSet::new();
        for _ in 0..WORKERS {
            let fixture = fixture.clone();
            publishers.spawn(async move {
                let mine = draft("topic").dedup_key(format!("round-{round}")).build().unwrap();
                let own = plain();
                let mut tx = fixture.begin().await;
                let answer = insert(&*fixture, &mut tx, &[mine]).await[0];
                let other = insert(&*fixture, &mut tx, &[own]).await[0];
                fixture.commit(tx).await;
                assert!(!other.is_duplicate(), "the transaction goes on");
                answer
            });
        }
        let answers = publishers.join_all().await;
        let ids: HashSet<_> = answers.iter().map(|answer| answer.id()).collect();
        assert_eq!(ids.len(), 1, "all answers name the same message: {answers:?}");
        assert_eq!(answers.iter().filter(|answer| !answer.is_duplicate()).count(), 1, "{answers:?}");
        assert_eq!(records(fixture.store()).await.len(), (round + 1) * (WORKERS + 1));
    }
}

/// Rule 5: the very same message from eight publishers at once is new to one of them, and a duplicate to all others.
pub async fn slow_one_of_many_with_one_id<F: Fixture>(fixture: &Arc<F>) {
    for round in 0..40 {
        let keyed = draft("topic").dedup_key(format!("round-{round}")).build().unwrap();
        for message in [keyed, plain()] {
            let mut publishers = JoinSet::new();
            for _ in 0..WORKERS {
                let (store, message) = (fixture.store().clone(), message.clone());
                publishers.spawn(async move { store.enqueue(&[message]).await.unwrap()[0] });
            }
            let answers = publishers.join_all().await;
            assert!(answers.iter().all(|answer| answer.id() == message.id()), "{answers:?}");
            assert_eq!(answers.iter().filter(|answer| !answer.is_duplicate()).count(), 1, "{answers:?}");
        }
    }
    assert_eq!(records(fixture.store()).await.len(), 80);
}

/// F-23: two requeues of the same dead messages at once: each is requeued by one of them.
pub async fn slow_two_requeues<F: Fixture>(fixture: &Arc<F>) {
    let ids: HashSet<_> = dead(fixture.store(), 200).await.into_iter().collect();
    let both = [fixture.store().clone(), fixture.store().clone()]
        .map(|store| tokio::spawn(async move { store.requeue(&change()).await.unwrap() }));
    let [a, b] = both;
    let (a, b) = (a.await.unwrap(), b.await.unwrap());
    assert_eq!(a.len() + b.len(), 200, "none twice");
    assert_eq!(a.iter().chain(&b).copied().collect::<HashSet<_>>(), ids, "none left out");
    for id in ids {
        assert_eq!(history(fixture.store(), id).await.len(), 1);
        assert_eq!(state(fixture.store(), id).await, Some(State::Ready));
    }
}

/// OBX-097, OBX-099, F-19: eight tasks settle the same leases in different orders: each lease is settled once, no call
/// fails, and the record is the winner's.
pub async fn slow_settle_storm<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue(store, &plains(1_000)).await;
    let held = claim(store, 1_000).await;
    let mut settlers = JoinSet::new();
    for n in 0..WORKERS {
        let (store, mut held) = (store.clone(), held.clone());
        settlers.spawn(async move {
            fastrand::shuffle(&mut held);
            held.truncate(800);
            let mut won = Vec::new();
            for batch in held.chunks(100) {
                let failure = Failure::business(format!("task {n}"));
                let outcome = Outcome::Abandon { delay: HOUR, failure, max_attempts: 9, max_age: None };
                let settlements: Vec<_> =
                    batch.iter().map(|message| Settlement::new(message.lease(), outcome.clone())).collect();
                let settled = store.settle(&settlements).await.unwrap().settled;
                let applied = batch.iter().zip(settled).filter(|(_, answer)| *answer == Settled::Applied);
                won.extend(applied.map(|(message, _)| (message.id, n)));
            }
            won
        });
    }
    let won: Vec<_> = settlers.join_all().await.into_iter().flatten().collect();
    let winners: HashMap<_, _> = won.iter().copied().collect();
    assert_eq!(won.len(), winners.len(), "a lease was settled twice");
    for record in records(store).await {
        match winners.get(&record.message.id) {
            Some(n) => {
                assert_eq!((record.state, record.message.attempts), (State::Ready, 1));
                assert_eq!(record.last_error, Some(format!("[BUSINESS] task {n}")));
            }
            None => assert_eq!((record.state, record.message.attempts), (State::Leased, 0)),
        }
    }
}

/// I4, I12: enqueueing, claiming, settling, reaping, expiring, parking and pruning all at once: every message is
/// accounted for, and no stale lease was accepted.
pub async fn slow_conservation<F: Fixture>(fixture: &Arc<F>) {
    let (history, pruned) = (Arc::new(History::default()), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for n in 0..3 {
        let (fixture, history) = (fixture.clone(), history.clone());
        tasks.spawn(async move {
            for round in 0..40 {
                produce(&*fixture, &history, n * 1_000 + round).await;
            }
        });
    }
    for n in 0..3 {
        let (store, history) = (fixture.store().clone(), history.clone());
        tasks.spawn(async move {
            let me = worker(&format!("worker-{n}"));
            for round in 0..60 {
                consume(&store, &history, &me, round).await;
            }
        });
    }
    for _ in 0..2 {
        let (store, pruned) = (fixture.store().clone(), pruned.clone());
        tasks.spawn(async move {
            for _ in 0..40 {
                store.reap(50).await.unwrap();
                store.expire(50).await.unwrap();
                store.park(50).await.unwrap();
                let over = Retention::done(Duration::ZERO).dead(Duration::ZERO);
                let removed = store.prune(&over, 5).await.unwrap();
                pruned.fetch_add(usize::try_from(removed).unwrap(), Ordering::SeqCst);
            }
        });
    }
    while let Some(result) = tasks.join_next().await {
        result.unwrap();
    }
    let census = Census::of(&fixture.store().stats().await.unwrap(), pruned.load(Ordering::SeqCst) as u64);
    history.conservation(&census).unwrap();
    history.no_phantom().unwrap();
    history.single_ownership().unwrap();
}

/// One transaction of ten messages, every fourth of which is rolled back.
async fn produce<F: Fixture>(fixture: &F, history: &History, round: usize) {
    let message = |n: usize| {
        let message = draft("topic").priority(i16::try_from(n % 3).unwrap());
        let message = if n.is_multiple_of(2) { message.key(format!("key-{}", n % 5)) } else { message };
        let message =
            if n.is_multiple_of(5) { message.expires_after(Duration::from_millis(5)) } else { message };
        message.build().unwrap()
    };
    let batch: Vec<_> = (round..round + 10).map(message).collect();
    let mut tx = fixture.begin().await;
    insert(fixture, &mut tx, &batch).await;
    let commits = round % 4 != 3;
    // Recorded first: a worker may have it before this task goes on.
    let fate = if commits { Fate::Committed } else { Fate::RolledBack };
    for message in &batch {
        history.enqueued(message.id(), message.key(), fate);
    }
    if commits {
        fixture.commit(tx).await;
    } else {
        fixture.rollback(tx).await;
    }
}

/// One claim and its settlement; every third lease is so short that it is lost, or nearly so.
async fn consume<S: StoreAdmin>(store: &S, history: &History, me: &WorkerId, round: usize) {
    let lease = if round.is_multiple_of(3) { Duration::from_millis(1) } else { LEASE };
    let request = posthaste_core::ClaimRequest::new(me.clone()).limit(10).lease(lease);
    let asked = Instant::now();
    let claimed = store.claim(&request).await.unwrap();
    let outcome = |n: usize| match n % 4 {
        0 => fail(),
        1 => Outcome::Release,
        2 => abandon(Duration::ZERO),
        _ => Outcome::Ack,
    };
    let settlements: Vec<_> = claimed
        .iter()
        .enumerate()
        .map(|(n, message)| Settlement::new(message.lease(), outcome(n + round)))
        .collect();
    for message in &claimed {
        history.claimed(asked, me, message.id, message.lease());
        history.settling(message.lease());
    }
    let settled = store.settle(&settlements).await.unwrap().settled;
    for (message, answer) in claimed.iter().zip(settled) {
        history.settled(message.lease(), answer);
    }
}
