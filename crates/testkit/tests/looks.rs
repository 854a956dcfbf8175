//! When the cold path polls after a notification from another process, in simulated time, so that a millisecond is
//! exact.
//!
//! The suites test, on real stores, that it polls at all.

#![allow(clippy::unwrap_used, reason = "test code: this is how it reports")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::{MemoryStore, Message, NewMessage, Outbox, Settings, Shutdown, Store, handled};
use posthaste_testkit::Counting;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::Instant;

const FLOOR: Duration = Duration::from_millis(80);
const CEILING: Duration = Duration::from_secs(60);

fn message() -> NewMessage {
    NewMessage::bytes("t", "x").build().unwrap()
}

/// A running outbox, and the messages that it hands to its handler, with the time.
async fn running(store: &Counting<MemoryStore>) -> (UnboundedReceiver<Instant>, Shutdown) {
    let mut settings = Settings::default();
    (settings.poll_floor, settings.poll_ceiling) = (FLOOR, CEILING);
    let (sender, receiver) = unbounded_channel();
    let handler = move |_: Message| {
        let sender = sender.clone();
        async move {
            sender.send(Instant::now()).unwrap();
            handled()
        }
    };
    let outbox =
        Outbox::builder(store.clone()).settings(settings).on_topic("t", handler).build().await.unwrap();
    let shutdown = Shutdown::new();
    tokio::spawn(outbox.run(shutdown.clone()));
    (receiver, shutdown)
}

/// Until so many polls have begun.
async fn looks(store: &Counting<MemoryStore>, count: u64) {
    while store.calls("claim") < count {
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
}

/// A notification may come while a poll is under way that is too early for it: another poll follows, although that one found
/// something and would be the last for a while.
#[tokio::test(start_paused = true)]
async fn a_word_during_a_look_is_not_lost() {
    let store = Counting::new(MemoryStore::new());
    store.inner().enqueue(&[message()]).await.unwrap();
    store.hold("claim");
    let (mut delivered, shutdown) = running(&store).await;
    looks(&store, 1).await;
    store.inner().enqueue(&[message()]).await.unwrap();
    store.wake();
    tokio::time::sleep(Duration::from_millis(1)).await;
    store.let_go("claim");
    let begin = Instant::now();
    delivered.recv().await.unwrap();
    let second = delivered.recv().await.unwrap() - begin;
    assert!(second < FLOOR / 4, "it came after {second:?}");
    shutdown.begin();
}

/// A notification may come before its commit: a message committed a little later is found about as much later.
#[tokio::test(start_paused = true)]
async fn a_word_before_its_commit_is_enough() {
    for after in [0, 500, 1_000, 3_000, 10_000, 40_000].map(Duration::from_micros) {
        let store = Counting::new(MemoryStore::new());
        let (mut delivered, shutdown) = running(&store).await;
        looks(&store, 8).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        store.wake();
        tokio::time::sleep(after).await;
        store.inner().enqueue(&[message()]).await.unwrap();
        let committed = Instant::now();
        let late = delivered.recv().await.unwrap() - committed;
        // The first pause is a thirty-second of the floor, and each is twice the one before, give or take a quarter. At worst the
        // commit just misses a poll after short pauses, and a long one follows. Timers round up to milliseconds.
        let most = after * 5 / 3 + FLOOR / 32 * 5 / 4 + Duration::from_millis(2);
        assert!(late <= most, "{late:?} after the commit, which was {after:?} after the word");
        shutdown.begin();
    }
}

/// Behind fast handlers a second claim is under way while the first has not been answered, and no third; and nothing is lost or
/// comes twice by it.
#[tokio::test(start_paused = true)]
async fn a_claim_behind_a_claim() {
    const MESSAGES: u64 = 2_000;
    let store = Counting::new(MemoryStore::new());
    store.inner().enqueue(&(0..MESSAGES).map(|_| message()).collect::<Vec<_>>()).await.unwrap();
    let (delivered, before) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let handler = {
        let (store, delivered, before) = (store.clone(), Arc::clone(&delivered), Arc::clone(&before));
        move |_: Message| {
            // By now claims are as large as they get.
            if delivered.fetch_add(1, Ordering::Relaxed) == MESSAGES / 2 {
                before.store(store.calls("claim"), Ordering::Relaxed);
                store.hold("claim");
            }
            async { handled() }
        }
    };
    let mut settings = Settings::default();
    (settings.workers, settings.batch, settings.cold_capacity) = (4, 100, 1_000);
    let outbox =
        Outbox::builder(store.clone()).settings(settings).on_topic("t", handler).build().await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(outbox.run(shutdown.clone()));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.calls("claim") - before.load(Ordering::Relaxed), 2);
    assert!(delivered.load(Ordering::Relaxed) < MESSAGES);
    store.let_go("claim");
    tokio::time::sleep(Duration::from_secs(1)).await;
    shutdown.begin();
    running.await.unwrap().unwrap();
    assert_eq!(delivered.load(Ordering::Relaxed), MESSAGES);
}
