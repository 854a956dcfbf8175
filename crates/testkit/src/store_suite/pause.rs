//! Pauses: topics that workers do not claim until they are resumed.

use std::sync::Arc;

use posthaste_core::{ErrorKind, Outcome, State, Store, StoreAdmin, Topics};

use super::support::*;
use crate::Fixture;

/// The topics of the claimed messages, which are given back.
async fn claimable<S: StoreAdmin>(store: &S) -> Vec<String> {
    let claimed = claim(store, 100).await;
    for message in &claimed {
        apply(store, message.lease(), Outcome::Release).await;
    }
    let mut topics: Vec<_> = claimed.iter().map(|message| message.topic.to_string()).collect();
    topics.sort_unstable();
    topics
}

async fn pause<S: StoreAdmin>(store: &S, topics: &str) {
    assert!(store.pause(topics, "ada", "the shop moves").await.unwrap(), "{topics}");
}

async fn resume<S: StoreAdmin>(store: &S, topics: &str) {
    assert!(store.resume(topics).await.unwrap(), "{topics}");
}

async fn enqueue_topics<S: StoreAdmin>(store: &S, topics: &[&str]) {
    let batch: Vec<_> = topics.iter().map(|topic| draft(topic).build().unwrap()).collect();
    enqueue(store, &batch).await;
}

/// Paused messages are not claimed: one topic, a prefix, or all. Resumed ones are.
pub async fn paused_is_not_claimed<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue_topics(store, &["order", "order.paid", "order.placed", "payment"]).await;
    for (topics, rest) in [
        ("order", vec!["order.paid", "order.placed", "payment"]),
        ("order.paid", vec!["order", "order.placed", "payment"]),
        ("order.*", vec!["order", "payment"]),
        ("order*", vec!["payment"]),
        ("*", vec![]),
        ("nobody", vec!["order", "order.paid", "order.placed", "payment"]),
        ("order.p", vec!["order", "order.paid", "order.placed", "payment"]),
    ] {
        pause(store, topics).await;
        assert_eq!(claimable(store).await, rest, "{topics}");
        resume(store, topics).await;
        assert_eq!(claimable(store).await, ["order", "order.paid", "order.placed", "payment"], "{topics}");
    }
}

/// Several pauses hold at a time, and each is resumed by itself.
pub async fn pauses_overlap<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue_topics(store, &["order.paid", "order.placed", "payment"]).await;
    pause(store, "order.*").await;
    pause(store, "order.paid").await;
    pause(store, "payment").await;
    assert!(claimable(store).await.is_empty());
    resume(store, "order.*").await;
    assert_eq!(claimable(store).await, ["order.placed"]);
    resume(store, "payment").await;
    assert_eq!(claimable(store).await, ["order.placed", "payment"]);
    resume(store, "order.paid").await;
    assert_eq!(claimable(store).await, ["order.paid", "order.placed", "payment"]);
}

/// A second pause changes nothing, and the first caller stays recorded. A topic that is not paused cannot be resumed.
pub async fn twice_is_once<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let before = fixture.now().await;
    assert!(!store.resume("order.*").await.unwrap());
    pause(store, "order.*").await;
    assert!(!store.pause("order.*", "bob", "another reason").await.unwrap());
    pause(store, "a").await;
    for other in ["order.", "order", "order.**", "Order.*", "order.* ", "", "x\0y", &"x".repeat(300)] {
        assert!(!store.resume(other).await.unwrap(), "{other:?}");
    }
    let pauses = store.pauses().await.unwrap();
    assert_eq!(pauses.iter().map(|pause| pause.topics.as_str()).collect::<Vec<_>>(), ["a", "order.*"]);
    assert_eq!((pauses[1].by.as_str(), pauses[1].why.as_str()), ("ada", "the shop moves"));
    assert_near(pauses[1].since, before);
    resume(store, "order.*").await;
    assert!(!store.resume("order.*").await.unwrap());
    assert_eq!(store.pauses().await.unwrap().len(), 1);
}

/// Workers get the list of topics that operators have paused.
pub async fn workers_are_told<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    assert!(store.paused().await.unwrap().is_none());
    pause(store, "order.*").await;
    pause(store, "payment").await;
    assert_eq!(store.paused().await.unwrap(), Topics::of(["order.*", "payment"]).unwrap());
    pause(store, "*").await;
    assert!(store.paused().await.unwrap().is_all());
    for topics in ["*", "order.*", "payment"] {
        resume(store, topics).await;
    }
    assert!(store.paused().await.unwrap().is_none());
}

/// Names are compared byte by byte, and no character but the last star has a meaning.
pub async fn names_are_bytes<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let topics = ["Ab", "a%", "a_", "ab", "ab ", "a\\", "a'", "ab.c", "aß", "aß.c", "a[b]", "a?"];
    enqueue_topics(store, &topics).await;
    let mut sorted = topics.to_vec();
    sorted.sort_unstable();
    let others = |paused: &[&str]| -> Vec<&str> {
        sorted.iter().copied().filter(|topic| !paused.contains(topic)).collect()
    };
    for topic in topics {
        pause(store, topic).await;
        assert_eq!(claimable(store).await, others(&[topic]), "{topic}");
        resume(store, topic).await;
    }
    for (beginning, paused) in [
        ("a%*", vec!["a%"]),
        ("a_*", vec!["a_"]),
        ("ab*", vec!["ab", "ab ", "ab.c"]),
        ("A*", vec!["Ab"]),
        ("aß*", vec!["aß", "aß.c"]),
        ("a\\*", vec!["a\\"]),
        ("a'*", vec!["a'"]),
        ("a[*", vec!["a[b]"]),
    ] {
        pause(store, beginning).await;
        assert_eq!(claimable(store).await, others(&paused), "{beginning}");
        resume(store, beginning).await;
    }
    let longest = "t".repeat(255);
    pause(store, &longest).await;
    assert_eq!(store.pauses().await.unwrap()[0].topics, longest);
}

/// What could match no topic, and a pause without a name or a reason, are refused, and nothing is paused.
pub async fn impossible_pauses_are_refused<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let (name, reason, topic) = ("x".repeat(101), "x".repeat(1_001), "x".repeat(256));
    for (topics, by, why) in [
        ("", "ada", "why"),
        ("a*b", "ada", "why"),
        ("**", "ada", "why"),
        ("a\0", "ada", "why"),
        (&topic, "ada", "why"),
        ("a", "", "why"),
        ("a", &name, "why"),
        ("a", "ada", ""),
        ("a", "ada", &reason),
        ("a", "ada", "a\0"),
    ] {
        let error = store.pause(topics, by, why).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert!(store.pauses().await.unwrap().is_empty());
    assert!(store.pause("a", &"é".repeat(50), &"é".repeat(500)).await.unwrap());
}

/// Suspects of a paused topic are not claimed, either, and do not keep others from being claimed.
pub async fn suspects_are_paused<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    enqueue_topics(store, &["order", "payment"]).await;
    assert_eq!(claim(store, 10).await.len(), 2);
    fixture.advance(LEASE + MINUTE).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 2);
    // Overdue, so that they go before clean messages.
    fixture.advance(LEASE + MINUTE).await;
    enqueue_topics(store, &["clean"]).await;
    pause(store, "order").await;
    assert_eq!(claim_one(store).await.topic, "payment");
    assert_eq!(claim_one(store).await.topic, "clean");
    assert!(claim(store, 10).await.is_empty());
    resume(store, "order").await;
    assert_eq!(claim_one(store).await.topic, "order");
}

/// A paused message is still the first of its key: later ones wait, too, of any topic.
pub async fn keys_wait_behind_it<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let batch = [
        draft("order").key("k").build().unwrap(),
        draft("payment").key("k").build().unwrap(),
        draft("payment").key("l").build().unwrap(),
    ];
    let ids = enqueue(store, &batch).await;
    pause(store, "order").await;
    assert_eq!(claim_ids(store, 10).await, [ids[2]]);
    assert!(claim_ids(store, 10).await.is_empty());
    resume(store, "order").await;
    assert_eq!(claim_ids(store, 10).await, [ids[0]]);
}

/// Paused messages use up no limit, whatever their priority.
pub async fn the_others_fill_the_limit<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let urgent = || draft("paused").priority(-5).build().unwrap();
    enqueue(store, &(0..300).map(|_| urgent()).collect::<Vec<_>>()).await;
    let ids = enqueue(store, &plains(3)).await;
    pause(store, "paused").await;
    assert_eq!(claim_ids(store, 2).await, ids[..2]);
    assert_eq!(claim_ids(store, 2).await, ids[2..]);
    resume(store, "paused").await;
    assert_eq!(claim(store, 500).await.len(), 300);
}

/// A pause is about claims alone: messages are published, settled, renewed, reaped, expired and buried as ever.
pub async fn everything_else_goes_on<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let mine = leased(store).await;
    pause(store, "*").await;
    assert_eq!(store.renew(&[mine.lease()], LEASE).await.unwrap(), [posthaste_core::Settled::Applied]);
    apply(store, mine.lease(), Outcome::Ack).await;
    let mortal = enqueue_one(store, draft("topic").expires_after(MINUTE).build().unwrap()).await;
    let born = enqueue_one(store, plain()).await;
    fixture.advance(HOUR).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    assert_eq!(store.bury(&change_of(only(&[born]))).await.unwrap(), [born]);
    for (id, expected) in [(mine.id, State::Done), (mortal, State::Dead), (born, State::Dead)] {
        assert_eq!(state(store, id).await, Some(expected));
    }
    assert_eq!(store.requeue(&change_of(only(&[born]))).await.unwrap(), [born]);
    assert!(claim(store, 10).await.is_empty());
    resume(store, "*").await;
    assert_eq!(claim_ids(store, 10).await, [born]);
}
