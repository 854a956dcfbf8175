//! How many handlers run at a time, how much is taken out of the table, and which queue goes first.
//!
//! Cases count what is bounded; a short run is no proof of a small number.

use posthaste_core::{HandlerError, NewMessage, State, Store as _, StoreAdmin as _};

use super::Scene;
use super::support::{
    DEADLINE, Gate, Journal, becomes, done, draft, drafts, eventually, hot_only, ms, outbox, run, settings,
    state,
};
use crate::{Counting, Fixture};

/// HOT-013, OBX-060: different messages are handled at the same time, but at most as many as there are workers.
pub async fn as_many_as_there_are_workers<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let builder = outbox(scene.store(), settings()).workers(3).on_topic("t", journal.gated("t", &gate));
    let outbox = builder.build().await.unwrap();
    let running = run(&outbox);
    outbox.enqueue_all(drafts("t", 30)).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 30)).await.unwrap();
    tx.commit().await.unwrap();
    eventually("three are being handled", async || journal.running() == 3).await;
    for _ in 0..60 {
        gate.let_through(1);
        tokio::task::yield_now().await;
    }
    done(outbox.store(), 60).await;
    running.stop().await;
    assert_eq!((journal.most(), journal.count()), (3, 60));
}

/// OBX-059, OBX-101, HOT-010: with two processes, both paths and retries, no message is with two handlers at a time, and none is
/// delivered twice.
pub async fn never_two_at_a_time<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let flaky = || {
        journal.handler("t", async |message: posthaste_core::Message| {
            tokio::task::yield_now().await;
            if message.payload.len() == 1 && message.attempts == 0 {
                return Err(HandlerError::from("once more"));
            }
            Ok(())
        })
    };
    let one = outbox(scene.store(), settings())
        .workers(4)
        .hot_capacity(10)
        .on_topic("t", flaky())
        .build()
        .await
        .unwrap();
    let two = outbox(scene.store(), settings()).workers(4).on_topic("t", flaky()).build().await.unwrap();
    let (first, second) = (run(&one), run(&two));
    let message = |n: usize| NewMessage::bytes("t", if n.is_multiple_of(5) { "x" } else { "xx" });
    for n in 0..15 {
        for outbox in [&one, &two] {
            let mut tx = outbox.begin().await.unwrap();
            tx.publish_all((0..5).map(message)).await.unwrap();
            tx.commit().await.unwrap();
            outbox.enqueue(message(n)).await.unwrap();
        }
    }
    done(one.store(), 180).await;
    first.stop().await;
    second.stop().await;
    assert_eq!(journal.most_of_one(), 1);
    assert_eq!(journal.count(), 180 + 30 + 6, "each once, and those that failed once more");
}

/// HOT-013: of a backlog no more is taken out of the table than there is room for in memory.
pub async fn a_backlog_stays_in_the_table<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).workers(2).cold_capacity(10);
    let outbox = builder.on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    store.inner().enqueue(&drafts("t", 200)).await.unwrap();
    let running = run(&outbox);
    // Fast handlers at first, so that prefetch reaches its maximum.
    gate.let_through(60);
    eventually("two more are being handled", async || journal.count() == 62).await;
    done(store.inner(), 60).await;
    let most = async || store.inner().stats().await.unwrap().leased.value;
    for _ in 0..20 {
        let leased = most().await;
        assert!(leased <= 10 + 2, "{leased} are leased");
        store.inner().enqueue(&drafts("t", 1)).await.unwrap();
    }
    gate.open();
    done(store.inner(), 220).await;
    running.stop().await;
}

/// HOT-013, R17: nor more bytes, be they payload or headers, give or take a claim whose messages are larger than those before.
pub async fn a_backlog_of_bytes<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut settings = settings();
    (settings.workers, settings.cold_bytes) = (2, 40_000);
    let outbox =
        outbox(store.clone(), settings).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let large = |_| NewMessage::bytes("t", "x").header("h", "x".repeat(4_000)).build().unwrap();
    store.inner().enqueue(&(0..150).map(large).collect::<Vec<_>>()).await.unwrap();
    let running = run(&outbox);
    gate.let_through(100);
    eventually("two more are being handled", async || journal.count() == 102).await;
    done(store.inner(), 100).await;
    let leased = store.inner().stats().await.unwrap().leased.value;
    // Ten fit; twice as many allow for the estimate.
    assert!(leased <= 2 + 20, "{leased} are leased");
    gate.open();
    done(store.inner(), 150).await;
    running.stop().await;
}

/// HOT-013, OBX-016: with slow handlers only messages that can start are claimed, and none while all handlers are
/// busy.
pub async fn slow_handlers_slow_claiming<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).workers(2).on_topic("t", journal.gated("t", &gate));
    let outbox = builder.build().await.unwrap();
    store.inner().enqueue(&drafts("t", 20)).await.unwrap();
    let running = run(&outbox);
    eventually("two are being handled", async || journal.running() == 2).await;
    let mut claims = 0;
    eventually("it has stopped claiming", async || {
        tokio::time::sleep(ms(100)).await;
        std::mem::replace(&mut claims, store.calls("claim")) == store.calls("claim")
    })
    .await;
    // Publishing wakes the cold path, which has no reason to poll.
    for _ in 0..10 {
        outbox.enqueue(draft("t")).await.unwrap();
        tokio::time::sleep(ms(10)).await;
    }
    // On a slow machine one or two may have been on their way.
    let more = store.calls("claim") - claims;
    assert!(more <= 2, "{more} claims although all handlers are busy");
    let leased = store.inner().stats().await.unwrap().leased.value;
    assert!(leased <= 4, "{leased} are leased: more than those under way and one more each");
    gate.open();
    done(store.inner(), 30).await;
    running.stop().await;
}

/// HOT-014, OBX-017, INB-005: a claim takes at most a batch.
pub async fn a_claim_is_a_batch<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), settings()).workers(8).batch(7).on_topic("t", journal.noting("t"));
    let outbox = builder.build().await.unwrap();
    store.inner().enqueue(&drafts("t", 300)).await.unwrap();
    let running = run(&outbox);
    done(store.inner(), 300).await;
    running.stop().await;
    assert!(store.largest_claim() <= 7, "{}", store.largest_claim());
}

/// HOT-014: the cold path polls no more often than the floor while it finds nothing, and with growing pauses.
pub async fn looking_adapts<F: Fixture>(scene: &Scene<F>) {
    let store = Counting::new(scene.store());
    let mut settings = settings();
    (settings.poll_floor, settings.poll_ceiling) = (ms(10), ms(80));
    let journal = Journal::new();
    let outbox = outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let begin = std::time::Instant::now();
    let running = run(&outbox);
    eventually("it looked sixteen times", async || store.calls("claim") >= 16).await;
    // 10 + 20 + 40 + 12 × 80, less a quarter at the most, because the pauses vary; and less if a store's own signal has woken
    // it once in between: then half of them follow that closely. Without adapting it would be 150.
    assert!(begin.elapsed() >= ms(250), "{:?}", begin.elapsed());
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(store.inner(), id, State::Done).await;
    running.stop().await;
}

/// HOT-009: hot messages go before cold ones.
pub async fn hot_before_cold<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut settings = settings();
    settings.workers = 1;
    let outbox = outbox(store.clone(), settings)
        .on_topic("hot", journal.gated("hot", &gate))
        .on_topic("cold", journal.gated("cold", &gate))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    outbox.enqueue(draft("cold")).await.unwrap();
    eventually("the first is being handled", async || journal.running() == 1).await;
    store.inner().enqueue(&drafts("cold", 3)).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("hot", 6)).await.unwrap();
    tx.commit().await.unwrap();
    let hot = async || scene.meters.counter("posthaste_hot_enqueued_total", &[]) == 6;
    eventually("the hot ones are in memory", hot).await;
    let cold = async || store.inner().stats().await.unwrap().leased.value > 7;
    eventually("and a cold one, too", cold).await;
    gate.open();
    done(store.inner(), 10).await;
    running.stop().await;
    let order: Vec<_> = journal.calls().iter().skip(1).map(|call| call.handler).collect();
    assert_eq!(order, ["hot", "hot", "hot", "hot", "hot", "hot", "cold", "cold", "cold"]);
}

/// HOT-009: cold messages have their turn although hot ones never stop coming.
pub async fn cold_is_not_starved<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let hot = journal.handler("hot", async |_| {
        tokio::time::sleep(ms(2)).await;
        Ok(())
    });
    let builder = outbox(store.clone(), settings()).workers(1).hot_capacity(100).on_topic("hot", hot);
    let outbox = builder.on_topic("cold", journal.noting("cold")).build().await.unwrap();
    let running = run(&outbox);
    let cold = drafts("cold", 5);
    let begin = std::time::Instant::now();
    let mut published = 0;
    let mut seen_cold = false;
    loop {
        // Always more of them in memory than can be handled before the next round.
        while published < journal.count() + 60 {
            let mut tx = outbox.begin().await.unwrap();
            tx.publish_all(drafts("hot", 30)).await.unwrap();
            tx.commit().await.unwrap();
            published += 30;
        }
        if !seen_cold {
            store.inner().enqueue(&cold).await.unwrap();
            seen_cold = true;
        }
        let mut left = 0;
        for message in &cold {
            left += usize::from(state(store.inner(), message.id()).await != Some(State::Done));
        }
        if left == 0 {
            break;
        }
        assert!(begin.elapsed() < DEADLINE, "{left} cold messages are still waiting");
    }
    done(store.inner(), published + 5).await;
    running.stop().await;
    let calls = journal.calls();
    let last_cold = calls.iter().rposition(|call| call.handler == "cold").unwrap();
    assert!(calls[last_cold + 1..].iter().any(|call| call.handler == "hot"), "hot ones were still coming");
    // A cold one waits for a claim, not only for its turn; but it does not wait for all hot ones.
    assert_eq!(calls.iter().filter(|call| call.handler == "cold").count(), 5);
}

/// HOT-013, I14: a hot queue that cannot be emptied fills up to its capacity and not further.
pub async fn the_hot_queue_is_bounded<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let builder = outbox(store.clone(), hot_only()).workers(1).hot_capacity(10);
    let outbox = builder.on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() == 1).await;
    for _ in 0..3 {
        let mut tx = outbox.begin().await.unwrap();
        tx.publish_all(drafts("t", 20)).await.unwrap();
        tx.commit().await.unwrap();
        eventually("one is being handled", async || journal.running() == 1).await;
    }
    assert_eq!(store.stats().await.unwrap().leased.value, 11, "one is being handled, ten are waiting");
    assert_eq!(scene.meters.counter("posthaste_hot_downgraded_total", &[]), 49);
    gate.open();
    done(&store, 11).await;
    running.stop().await;
}
