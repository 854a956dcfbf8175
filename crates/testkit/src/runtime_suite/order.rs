//! Messages with a key: one at a time, in the order of enqueueing, with retries and with several processes.
//!
//! A key must never hold up another one.

use std::collections::BTreeMap;

use posthaste_core::{HandlerError, Message, MessageId, OrderPolicy, Schedule, State, Topics};

use super::Scene;
use super::support::{Journal, becomes, done, draft, eventually, ms, outbox, run, settings, state};
use crate::Fixture;

/// I6: with two processes and failures each key's messages succeed in their order.
pub async fn keys_stay_in_order<F: Fixture>(scene: &Scene<F>) {
    let (journal, succeeded) = (Journal::new(), Journal::new());
    let handler = || {
        let succeeded = succeeded.clone();
        journal.handler("t", move |message: Message| {
            let succeeded = succeeded.clone();
            async move {
                if message.attempts == 0 && message.payload.starts_with(b"fails") {
                    return Err(HandlerError::from("once more"));
                }
                drop(succeeded.enter("t", &message));
                Ok(())
            }
        })
    };
    let one = outbox(scene.store(), settings()).on_topic("t", handler()).build().await.unwrap();
    let two = outbox(scene.store(), settings()).on_topic("t", handler()).build().await.unwrap();
    let (first, second) = (run(&one), run(&two));
    let mut enqueued: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for n in 0..8 {
        for key in ["a", "b", "c", "d"] {
            let payload = if n % 3 == 1 { "fails" } else { "works" };
            let message = posthaste_core::NewMessage::bytes("t", payload).key(key);
            let mut tx = one.begin().await.unwrap();
            let id = tx.publish(message).await.unwrap().id();
            tx.commit().await.unwrap();
            enqueued.entry(key.to_owned()).or_default().push(id);
        }
    }
    done(one.store(), 32).await;
    first.stop().await;
    second.stop().await;
    let mut delivered: BTreeMap<String, Vec<MessageId>> = BTreeMap::new();
    for call in succeeded.calls() {
        delivered.entry(call.message.key.clone().unwrap()).or_default().push(call.message.id);
    }
    assert_eq!(delivered, enqueued);
    assert_eq!(journal.count(), 32 + 12);
}

/// I6: what becomes of a key when one of its messages dies is decided by its topic's policy.
pub async fn a_dead_one_and_its_key<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let handler =
        journal.handler(
            "t",
            async |message: Message| {
                if message.payload == "dies" { Err(HandlerError::dead("no")) } else { Ok(()) }
            },
        );
    let mut settings = settings();
    settings.park = Schedule::every(ms(50));
    let outbox = outbox(scene.store(), settings)
        .order(Topics::of(["skip"]).unwrap(), OrderPolicy::Skip)
        .order(Topics::of(["park"]).unwrap(), OrderPolicy::Park)
        .on_topic("*", handler)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let mut behind = Vec::new();
    for topic in ["block", "skip", "park"] {
        let dies = posthaste_core::NewMessage::bytes(topic, "dies").key(topic);
        let dead = outbox.enqueue(dies).await.unwrap().id();
        behind.push(outbox.enqueue(draft(topic).key(topic)).await.unwrap().id());
        becomes(outbox.store(), dead, State::Dead).await;
    }
    becomes(outbox.store(), behind[1], State::Done).await;
    let parked = async || super::support::record(outbox.store(), behind[2]).await.parked;
    eventually("what waits behind it is parked", parked).await;
    let other = outbox.enqueue(draft("block").key("another")).await.unwrap().id();
    becomes(outbox.store(), other, State::Done).await;
    assert_eq!(state(outbox.store(), behind[0]).await, Some(State::Ready));
    running.stop().await;
    assert!(!journal.has(behind[0]) && !journal.has(behind[2]));
}

/// I6: the next message of a key does not wait for the next regular poll.
pub async fn the_next_of_a_key_follows_at_once<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut settings = settings();
    settings.poll_ceiling = super::support::HOUR;
    let outbox = outbox(scene.store(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    outbox.enqueue_all((0..20).map(|_| draft("t").key("k"))).await.unwrap();
    done(outbox.store(), 20).await;
    running.stop().await;
}
