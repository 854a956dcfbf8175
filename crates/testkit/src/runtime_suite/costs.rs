//! What messages cost, counted in calls to the store: batches keep it far below one call a message.
//!
//! Numbers are asserted, never times.

use posthaste_core::{JoinWait, NewJoin, Store as _, Transactions};
use tokio::time::Instant;

use super::Scene;
use super::support::{Journal, done, draft, drafts, eventually, hot_only, ms, outbox, run};
use crate::{Counting, Fixture};

/// Calls that a message does not pay for by being published.
fn others<S: Transactions>(store: &Counting<S>) -> u64 {
    let calls = store.all();
    let publishing = ["insert", "enqueue", "begin", "commit"];
    calls.iter().filter(|(operation, _)| !publishing.contains(operation)).map(|(_, count)| count).sum()
}

/// HOT-003, performance 4: a thousand hot messages of one transaction take a thousand inserts and at most 20 other calls.
pub async fn slow_thousand_hot_messages<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    store.reset();
    let mut tx = outbox.begin().await.unwrap();
    for message in drafts("t", 1_000) {
        tx.publish(message).await.unwrap();
    }
    tx.commit().await.unwrap();
    done(store.inner(), 1_000).await;
    running.stop().await;
    assert_eq!((journal.count(), store.calls("insert")), (1_000, 1_000));
    assert!(others(&store) <= 20, "{:?}", store.all());
}

/// HOT-003, performance 4: so do a thousand transactions, if they come as fast as they can from several tasks.
pub async fn slow_thousand_hot_transactions<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    store.reset();
    let begin = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let outbox = outbox.clone();
        tasks.spawn(async move {
            for message in drafts("t", 250) {
                let mut tx = outbox.begin().await.unwrap();
                tx.publish(message).await.unwrap();
                tx.commit().await.unwrap();
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    done(store.inner(), 1_000).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!((journal.count(), store.calls("insert")), (1_000, 1_000));
    // However long publishing takes, settling does not follow every commit: there is one every 50 ms.
    let most = 20u64.max(2 + u64::try_from(took.as_millis()).unwrap() / 50);
    assert!(others(&store) <= most, "{:?} in {took:?}", store.all());
}

/// HOT-013, HOT-014, performance 4: a thousand messages that wait in the table take at most 40 calls.
pub async fn a_thousand_cold_messages<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    store.inner().enqueue(&drafts("t", 1_000)).await.unwrap();
    let outbox =
        outbox(store.clone(), Default::default()).on_topic("t", journal.noting("t")).build().await.unwrap();
    store.reset();
    let running = run(&outbox);
    eventually("all were handled", async || journal.count() == 1_000).await;
    running.stop().await;
    assert!(others(&store) <= 40, "{:?}", store.all());
    done(store.inner(), 1_000).await;
}

/// HOT-013, HOT-014, performance 4: while they are being published flat out, in transactions of the user's own, a message that
/// comes by itself brings at most four looks, and those that come together share them.
pub async fn slow_thousand_while_publishing<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox =
        outbox(store.clone(), Default::default()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    store.reset();
    let begin = Instant::now();
    let fixture = &scene.fixture;
    for message in drafts("t", 1_000) {
        let mut tx = fixture.begin().await;
        outbox.publish(fixture.connection(&mut tx), message).await.unwrap();
        fixture.commit(tx).await;
    }
    done(store.inner(), 1_000).await;
    let took = begin.elapsed();
    running.stop().await;
    // One look and three more that may find nothing yet, if the disk is so slow that each commit comes by itself; and what the
    // floor of 10 ms allows. Each is followed by at most one settlement.
    let most = 40 + 5 * 1_000 + 2 * u64::try_from(took.as_millis()).unwrap() / 10;
    assert!(others(&store) <= most, "{:?} in {took:?}", store.all());
}

/// HOT-014: an outbox that has nothing to do asks at most twice a second.
pub async fn slow_idle_is_quiet<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let builder = posthaste_core::Outbox::builder(store.clone()).on_topic("t", journal.noting("t"));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    eventually("it has settled down", async || store.calls("claim") >= 16).await;
    store.reset();
    let begin = Instant::now();
    tokio::time::sleep(ms(15_000)).await;
    let (calls, took) = (others(&store), begin.elapsed());
    running.stop().await;
    // Rounded up, and one that was due when counting began.
    assert!(calls <= took.as_millis().div_ceil(500) as u64 + 1, "{:?} in {took:?}", store.all());
}

/// JOIN-030, HOT-003, performance 4: a fan-in of a hundred hot steps takes about as many calls as one of three: its own,
/// those of two claims, and a settlement now and then.
pub async fn a_fan_in_of_a_hundred<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox =
        outbox(store.clone(), hot_only()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    store.reset();
    let join = NewJoin::of(drafts("t", 100)).wait(JoinWait::on_complete(draft("next")));
    let begin = Instant::now();
    let mut tx = outbox.begin().await.unwrap();
    tx.start_join(join).await.unwrap();
    tx.commit().await.unwrap();
    done(store.inner(), 102).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!(journal.count(), 101);
    for (operation, calls) in [
        ("insert", 2),
        ("start_join", 1),
        ("attach", 1),
        ("wait_for_join", 1),
        ("survivors", 0),
        ("look", 1),
        ("continue_join", 1),
    ] {
        assert_eq!(store.calls(operation), calls, "{operation}: {:?}", store.all());
    }
    let most = 20u64.max(12 + u64::try_from(took.as_millis()).unwrap() / 50);
    assert!(others(&store) <= most, "{:?} in {took:?}", store.all());
}
