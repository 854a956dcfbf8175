//! Pauses while an outbox runs: what comes from memory obeys them, too.
//!
//! A dispatcher learns of a pause within seconds; a case waits for the effect, never for the time.

use posthaste_core::{MessageId, Outbox, State, Store as _, StoreAdmin as _, Transactions};
use tokio::time::Instant;

use super::Scene;
use super::support::{
    BEFORE_THE_NEXT_LOOK, DEADLINE, Gate, Journal, becomes, draft, drafts, eventually, hot_only, outbox,
    record, run, settings, state,
};
use crate::{Counting, Fixture};

async fn publish<S: Transactions>(outbox: &Outbox<S>, topic: &str) -> MessageId {
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft(topic)).await.unwrap().id();
    tx.commit().await.unwrap();
    id
}

/// Messages that are paused before an outbox begins to run are not delivered, from memory or otherwise, and stay ready;
/// what is not paused is.
pub async fn the_hot_path_obeys<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    store.pause("order.*", "ada", "test").await.unwrap();
    let outbox =
        outbox(store.clone(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox runs", async || store.answered_claims() >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let held = tx.publish(draft("order.placed")).await.unwrap();
    let free = tx.publish(draft("payment")).await.unwrap();
    assert!(matches!(held, posthaste_core::Enqueued::New { lease: Some(_), .. }), "it is born leased");
    tx.commit().await.unwrap();
    becomes(&store, free.id(), State::Done).await;
    becomes(&store, held.id(), State::Ready).await;
    let looks = store.answered_claims();
    eventually("the cold path has looked again", async || store.answered_claims() >= looks + 2).await;
    assert_eq!(journal.ids(), [free.id()]);
    // Given back once: a message that is paused does not go round in circles.
    let record = record(&store, held.id()).await;
    assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
    running.stop().await;
}

/// A dispatcher that runs learns of a pause, and of its end: then the waiting messages are delivered, without waiting
/// for a poll.
pub async fn slow_learned_while_it_runs<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox =
        outbox(store.clone(), hot_only()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let running = run(&outbox);
    let first = publish(&outbox, "t").await;
    becomes(&store, first, State::Done).await;
    store.pause("t", "ada", "test").await.unwrap();
    let learned = async || scene.logs.events("paused topics have changed").len() == 1;
    eventually("it has learned of the pause", learned).await;
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(publish(&outbox, "t").await);
    }
    for id in &held {
        becomes(&store, *id, State::Ready).await;
    }
    assert_eq!(journal.count(), 1);
    let resumed = Instant::now();
    assert!(store.resume("t").await.unwrap());
    for id in held {
        becomes(&store, id, State::Done).await;
    }
    let took = resumed.elapsed();
    assert!(took < BEFORE_THE_NEXT_LOOK, "{took:?}");
    assert_eq!(journal.count(), 6);
    running.stop().await;
}

/// What waits in memory when a topic is paused, hot or cold, is given back; the handler that runs ends as ever; and nothing is
/// lost.
pub async fn slow_what_waits_is_given_back<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut settings = settings();
    (settings.workers, settings.batch) = (1, 10);
    let outbox =
        outbox(store.clone(), settings).on_topic("*", journal.gated("all", &gate)).build().await.unwrap();
    let running = run(&outbox);
    let first = publish(&outbox, "t").await;
    eventually("the first is being handled", async || journal.running() == 1).await;
    let hot = publish(&outbox, "t").await;
    let free = publish(&outbox, "u").await;
    assert_eq!(state(&store, hot).await, Some(State::Leased));
    let cold: Vec<_> = drafts("t", 3);
    store.enqueue(&cold).await.unwrap();
    store.pause("t", "ada", "test").await.unwrap();
    becomes(&store, hot, State::Ready).await;
    for message in &cold {
        becomes(&store, message.id(), State::Ready).await;
    }
    assert_eq!(state(&store, first).await, Some(State::Leased), "it runs on");
    gate.open();
    becomes(&store, first, State::Done).await;
    becomes(&store, free, State::Done).await;
    assert_eq!(journal.ids(), [first, free]);
    assert!(store.resume("t").await.unwrap());
    becomes(&store, hot, State::Done).await;
    for message in &cold {
        becomes(&store, message.id(), State::Done).await;
    }
    assert_eq!(journal.count(), 6, "each once");
    running.stop().await;
}

/// While the pauses cannot be read, nothing starts from memory: the claim decides.
pub async fn without_an_answer_a_claim_decides<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    store.fail("paused", u64::MAX);
    store.pause("held", "ada", "test").await.unwrap();
    let outbox =
        outbox(store.clone(), hot_only()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let held = tx.publish(draft("held")).await.unwrap().id();
    let free = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    let born = record(&store, free).await.message.epoch;
    becomes(&store, free, State::Done).await;
    becomes(&store, held, State::Ready).await;
    assert_ne!(record(&store, free).await.message.epoch, born, "it was released and claimed");
    assert_eq!(journal.ids(), [free]);
    running.stop().await;
}

/// A fresh message that comes before the first answer waits for it, and needs no claim then.
pub async fn the_first_answer_is_waited_for<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    store.hold("paused");
    let outbox =
        outbox(store.clone(), hot_only()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() == 1).await;
    let id = publish(&outbox, "t").await;
    let enqueued = async || scene.meters.counter("posthaste_hot_enqueued_total", &[]) == 1;
    eventually("it has arrived", enqueued).await;
    let born = record(&store, id).await;
    assert_eq!((journal.count(), born.state), (0, State::Leased));
    store.let_go("paused");
    becomes(&store, id, State::Done).await;
    assert_eq!((store.calls("claim"), record(&store, id).await.message.epoch), (1, born.message.epoch));
    running.stop().await;
}

/// A drain leaves paused messages, and ends.
pub async fn a_drain_leaves_it<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), scene.store());
    let outbox =
        outbox(store.clone(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    store.pause("held", "ada", "test").await.unwrap();
    store.enqueue(&[drafts("held", 2), drafts("t", 2)].concat()).await.unwrap();
    let tally = tokio::time::timeout(DEADLINE, outbox.drain()).await.expect("it ends").unwrap();
    assert_eq!((tally.delivered, journal.count()), (2, 2));
    assert_eq!(store.stats().await.unwrap().ready.value, 2);
}
