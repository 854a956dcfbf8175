//! Pruning the inbox: by age, of one consumer, a few rows at a time, on a schedule.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::{ErrorKind, Inbox, InboxStore, Once, Received, Schedule, Shutdown, Store};

use super::inbox::{CONSUMER, inbox, once, once_in, received, remembered};
use super::support::*;
use crate::{Counting, Fixture};

/// So many messages, remembered in one transaction.
async fn many<F: Fixture>(fixture: &F, inbox: &Inbox<F::Store>, count: usize) -> Vec<Received> {
    let messages: Vec<_> = (0..count).map(|_| received()).collect();
    let mut tx = fixture.begin().await;
    for message in &messages {
        assert_eq!(once_in(fixture, &mut tx, inbox, message).await, Once::First);
    }
    fixture.commit(tx).await;
    messages
}

/// INB-004: rows older than their retention are forgotten, and their messages are new again; no other rows are.
pub async fn by_age<F: Fixture>(fixture: &Arc<F>) {
    let (store, inbox) = (fixture.store(), inbox(&**fixture).keep_for(HOUR).unwrap());
    let old = many(&**fixture, &inbox, 3).await;
    assert_eq!(inbox.forget().await.unwrap(), 0);
    fixture.advance(HOUR / 2 + MINUTE).await;
    let young = many(&**fixture, &inbox, 2).await;
    assert_eq!(inbox.forget().await.unwrap(), 0);
    fixture.advance(HOUR / 2).await;
    assert_eq!(inbox.forget().await.unwrap(), 3);
    assert_eq!(inbox.forget().await.unwrap(), 0);
    for message in &old {
        assert!(remembered(store, message).await.is_none());
        assert_eq!(once(&**fixture, &inbox, message).await, Once::First);
    }
    for message in &young {
        assert_eq!(once(&**fixture, &inbox, message).await, Once::Repeated);
    }
}

/// INB-004: a consumer forgets its own rows, and no other's.
pub async fn of_one_consumer<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), received());
    let names = [CONSUMER, "STOCK", "stock ", "stocks"];
    for name in names {
        once(&**fixture, &Inbox::new(store.clone(), name).unwrap(), &message).await;
    }
    fixture.advance(HOUR).await;
    assert_eq!(store.forget("unknown", MINUTE, 1_000).await.unwrap(), 0);
    for (forgotten, consumer) in names.iter().enumerate() {
        assert_eq!(store.forget(consumer, MINUTE, 1_000).await.unwrap(), 1, "{consumer:?}");
        for (index, name) in names.iter().enumerate() {
            let there = store.remembered(name, &message.source, message.id).await.unwrap().is_some();
            assert_eq!(there, index > forgotten, "{name:?} after {consumer:?}");
        }
    }
}

/// INB-004: at most as many as were asked for at a time.
pub async fn up_to_a_limit<F: Fixture>(fixture: &Arc<F>) {
    let (store, inbox) = (fixture.store(), inbox(&**fixture));
    let messages = many(&**fixture, &inbox, 10).await;
    fixture.advance(HOUR).await;
    for (limit, expected) in [(4, 4), (1, 1), (4, 4), (4, 1), (4, 0)] {
        assert_eq!(store.forget(CONSUMER, MINUTE, limit).await.unwrap(), expected);
    }
    for message in &messages {
        assert!(remembered(store, message).await.is_none());
    }
}

/// INB-004: a limit of none, or of more than a database should bear at once, is refused.
pub async fn impossible_limits_are_refused<F: Fixture>(fixture: &Arc<F>) {
    let (store, inbox, message) = (fixture.store(), inbox(&**fixture), received());
    once(&**fixture, &inbox, &message).await;
    fixture.advance(HOUR).await;
    for limit in [0, 1_001, u32::MAX] {
        let error = store.forget(CONSUMER, MINUTE, limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    // Any time at all can be asked for.
    assert_eq!(store.forget(CONSUMER, Duration::MAX, 1_000).await.unwrap(), 0);
    assert!(remembered(store, &message).await.is_some());
    assert_eq!(store.forget(CONSUMER, Duration::ZERO, 1_000).await.unwrap(), 1);
}

/// INB-004: a retention of nothing is refused.
pub async fn retention_is_positive<F: Fixture>(fixture: &Arc<F>) {
    for keep in [Duration::ZERO, Duration::from_nanos(1), Duration::from_millis(999)] {
        let error = inbox(&**fixture).keep_for(keep).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
        assert!(error.to_string().contains("deliver a message again"), "{error}");
    }
    assert!(inbox(&**fixture).keep_for(Duration::from_secs(1)).is_ok());
    assert!(inbox(&**fixture).keep_for(Duration::MAX).is_ok());
}

/// INB-004: more than one batch is forgotten in one go.
pub async fn in_batches<F: Fixture>(fixture: &Arc<F>) {
    let inbox = inbox(&**fixture).keep_for(HOUR).unwrap();
    many(&**fixture, &inbox, 1_005).await;
    fixture.advance(2 * HOUR).await;
    assert_eq!(inbox.forget().await.unwrap(), 1_005);
}

/// INB-004, INB-007: it is pruned on its schedule, until it is told to stop.
pub async fn slow_by_schedule<F: Fixture>(fixture: &Arc<F>) {
    let every = Schedule::every(Duration::from_millis(50));
    let inbox = inbox(&**fixture).keep_for(HOUR).unwrap().prune(every);
    let message = received();
    once(&**fixture, &inbox, &message).await;
    let (shutdown, running) = (Shutdown::new(), inbox.clone());
    let stop = shutdown.clone();
    let running = tokio::spawn(async move { running.run(stop).await });
    fixture.advance(2 * HOUR).await;
    let deadline = Instant::now() + 4 * TOLERANCE;
    while remembered(fixture.store(), &message).await.is_some() {
        assert!(Instant::now() < deadline, "it was never forgotten");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.begin();
    running.await.unwrap();
}

/// INB-007: of four processes one prunes at a time, and each of two consumers has turns of its own.
pub async fn slow_one_process_at_a_time<F: Fixture>(fixture: &Arc<F>) {
    const EVERY: Duration = Duration::from_millis(200);
    let shutdown = Shutdown::new();
    let begun = Instant::now();
    let mut processes = Vec::new();
    for name in ["one", "one", "one", "one", "two"] {
        let store = Counting::new(fixture.store().clone());
        let inbox = Inbox::new(store.clone(), name).unwrap().prune(Schedule::every(EVERY));
        let stop = shutdown.clone();
        processes.push((name, store, tokio::spawn(async move { inbox.run(stop).await })));
    }
    let asked = |calls: &str| -> u64 { processes[..4].iter().map(|(_, store, _)| store.calls(calls)).sum() };
    let deadline = Instant::now() + 4 * TOLERANCE;
    while asked("turn") < 24 || processes[4].1.calls("forget") < 2 {
        assert!(Instant::now() < deadline, "nobody asks");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    shutdown.begin();
    let (forgotten, turns) =
        (asked("forget"), begun.elapsed().as_micros() / EVERY.mul_f64(0.9).as_micros() + 1);
    assert!(forgotten >= 1 && u128::from(forgotten) <= turns, "{forgotten} times in {turns} turns");
    for (_, _, process) in processes {
        process.await.unwrap();
    }
    // Another process has just had its turn.
    assert!(!fixture.store().turn("inbox one", posthaste_core::Turn::Every(HOUR)).await.unwrap());
}
