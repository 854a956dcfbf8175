//! What messages cost, counted in calls to the store: batches keep it far below one call a message.
//!
//! Numbers are asserted, never times. Where a slow machine needs more calls, because some come at intervals, the time that the
//! case took raises the number that it may take.

use std::time::Duration;

use posthaste_core::{JoinWait, NewJoin, Store as _, Transactions};
use tokio::time::Instant;

use super::Scene;
use super::support::{HOUR, Journal, done, draft, drafts, eventually, hot_only, ms, outbox, run, settings};
use crate::{Counting, Fixture};

/// Calls that a message does not pay for by being published.
fn others<S: Transactions>(store: &Counting<S>) -> u64 {
    let calls = store.all();
    let publishing = ["insert", "enqueue", "begin", "commit"];
    calls.iter().filter(|(operation, _)| !publishing.contains(operation)).map(|(_, count)| count).sum()
}

/// How many calls come by themselves in this time: settlements are 50 ms apart, and everything else is much rarer.
fn in_passing(took: Duration) -> u64 {
    u64::try_from(took.as_millis()).unwrap() / 50
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
    let begin = Instant::now();
    let before = others(&store);
    tx.commit().await.unwrap();
    done(store.inner(), 1_000).await;
    let took = begin.elapsed();
    running.stop().await;
    assert_eq!((journal.count(), store.calls("insert")), (1_000, 1_000));
    assert!(others(&store) - before <= 20 + in_passing(took), "{:?} in {took:?}", store.all());
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
    let most = 20u64.max(2 + in_passing(took));
    assert!(others(&store) <= most, "{:?} in {took:?}", store.all());
}

/// HOT-013, HOT-014, performance 4: a thousand messages that wait in the table take at most 40 calls.
pub async fn a_thousand_cold_messages<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    store.inner().enqueue(&drafts("t", 1_000)).await.unwrap();
    let outbox =
        outbox(store.clone(), Default::default()).on_topic("t", journal.noting("t")).build().await.unwrap();
    store.reset();
    let begin = Instant::now();
    let running = run(&outbox);
    eventually("all were handled", async || journal.count() == 1_000).await;
    let took = begin.elapsed();
    running.stop().await;
    assert!(others(&store) <= few(took), "{:?} in {took:?}", store.all());
    done(store.inner(), 1_000).await;
}

/// The calls that a thousand messages in the table may take. While claims are slow they stay small, and each of them may be
/// followed by a settlement.
fn few(took: Duration) -> u64 {
    40 + 2 * in_passing(took)
}

/// HOT-013, HOT-014, performance 4: a single message costs a few polls. Messages that are published together, as fast as
/// possible and in the user's own transactions, share them.
pub async fn slow_thousand_while_publishing<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut settings = settings();
    // Pauses between polls that find nothing double from the 32nd part of the floor, without an end: their number hardly
    // depends on how long a commit takes.
    (settings.poll_floor, settings.poll_ceiling, settings.lease) = (ms(100), HOUR, HOUR);
    let outbox = outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    let fixture = &scene.fixture;
    let publish = async |message| {
        let mut tx = fixture.begin().await;
        outbox.publish(fixture.connection(&mut tx), message).await.unwrap();
        fixture.commit(tx).await;
    };
    for (n, message) in (1..=10).zip(drafts("t", 10)) {
        let (begin, before) = (Instant::now(), store.calls("claim"));
        publish(message).await;
        done(store.inner(), n).await;
        tokio::time::sleep(ms(200)).await;
        // The publisher wakes the outbox, and so may the store: four polls each without a pause. Then the pauses double, from
        // 3 ms until the message is there, and from 100 ms afterwards.
        let (looks, took) = (store.calls("claim") - before, begin.elapsed());
        let doubled = u64::from((took.as_millis() / 3).max(1).ilog2());
        assert!(looks <= 2 * 4 + 2 * doubled + 2, "one message brought {looks} looks in {took:?}");
    }

    // A thousand wake-ups while a poll is under way are as good as one.
    store.hold("claim");
    publish(draft("t").build().unwrap()).await;
    eventually("a look is under way", async || store.calls("claim") > store.answered_claims()).await;
    store.reset();
    for message in drafts("t", 999) {
        publish(message).await;
    }
    assert!(store.calls("claim") <= 1, "another look is under way already: {:?}", store.all());
    let (begin, before) = (Instant::now(), others(&store));
    store.let_go("claim");
    done(store.inner(), 1_010).await;
    let took = begin.elapsed();
    running.stop().await;
    assert!(others(&store) - before <= few(took), "{:?} in {took:?}", store.all());
}

/// HOT-014: an outbox that has nothing to do asks at most twice a second.
pub async fn slow_idle_is_quiet<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let builder = posthaste_core::Outbox::builder(store.clone()).on_topic("t", journal.noting("t"));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    eventually("it has settled down", async || store.calls("claim") >= 16).await;
    let begin = Instant::now();
    store.reset();
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
    let most = 20u64.max(12 + in_passing(took));
    assert!(others(&store) <= most, "{:?} in {took:?}", store.all());
}
