//! A consumer with its inbox: the handler's result, the reply to the broker, and the database afterwards.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{
    Consume, Consumer, Disposal, FailureClass, HandlerError, HandlerResult, Inbox, InboxStore, Received,
    Transactions, Tries, handled,
};
use tokio::task::JoinSet;

use super::inbox::{CONSUMER, act, altered, assert_acted, inbox, received, remembered};
use super::support::*;
use crate::Fixture;

/// A handler's result after a change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    Done,
    Business,
    Infrastructure,
    Later,
    Never,
    Panic,
}

/// A handler with an effect, that answers by a script, and is done when that is over.
#[derive(Clone)]
pub(crate) struct Actor<S> {
    store: S,
    script: Arc<Mutex<VecDeque<Answer>>>,
    runs: Arc<AtomicU64>,
}

impl<S> Actor<S> {
    pub(crate) fn new(store: S, script: &[Answer]) -> Self {
        Self { store, script: Arc::new(Mutex::new(script.iter().copied().collect())), runs: Arc::default() }
    }

    /// How often it was called.
    pub(crate) fn runs(&self) -> u64 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl<S: InboxStore> Actor<S> {
    async fn consume(&self, connection: &mut S::Connection, message: &Received) -> HandlerResult {
        self.runs.fetch_add(1, Ordering::SeqCst);
        act(&self.store, connection, CONSUMER, message).await?;
        let answer = self.script.lock().unwrap().pop_front().unwrap_or(Answer::Done);
        match answer {
            Answer::Done => handled(),
            Answer::Business => Err("out of stock".into()),
            Answer::Infrastructure => Err(HandlerError::infrastructure("the warehouse is away")),
            Answer::Later => Err(HandlerError::defer(HOUR)),
            Answer::Never => Err(HandlerError::dead("no such article")),
            Answer::Panic => panic!("out of its mind"),
        }
    }
}

type Acting<'a> = Pin<Box<dyn Future<Output = HandlerResult> + Send + 'a>>;

/// Tells the compiler that a function takes references of any lifetime.
fn handler<C, H>(handler: H) -> H
where
    H: for<'a> Fn(&'a mut C, &'a Received) -> Acting<'a> + Send + Sync + 'static,
{
    handler
}

/// A consumer whose handler answers by this script, over this store.
pub(crate) fn consumer<S>(store: &S, script: &[Answer]) -> (Consumer<S, impl Consume<S>>, Actor<S>)
where
    S: InboxStore + Transactions + Clone,
{
    let actor = Actor::new(store.clone(), script);
    let inner = Arc::new(actor.clone());
    let handler = handler(move |connection: &mut S::Connection, message: &Received| {
        let actor = Arc::clone(&inner);
        Box::pin(async move { actor.consume(connection, message).await })
    });
    (Consumer::new(Inbox::new(store.clone(), CONSUMER).unwrap(), handler), actor)
}

/// So many attempts before.
fn charged(charged: u32) -> Tries {
    Tries { charged, free: 0 }
}

/// Asserts that nothing is there of a message.
pub(crate) async fn assert_nothing<F: Fixture>(fixture: &F, message: &Received) {
    assert!(remembered(fixture.store(), message).await.is_none());
    assert_acted(fixture.store(), &[]).await;
}

/// INB-001: the handler acts once; the broker is told each time that the message need not come again.
pub async fn acts_once<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), received());
    let (consumer, actor) = consumer(store, &[]);
    for _ in 0..3 {
        assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
    }
    assert_eq!(actor.runs(), 1);
    assert_acted(store, &[&message]).await;
    assert!(remembered(store, &message).await.is_some());
    let other = received();
    assert_eq!(consumer.receive(&other, charged(3)).await, Disposal::Ack);
    assert_acted(store, &[&message, &other]).await;
}

/// INB-002: a failed handler leaves neither a row nor its changes, and the redelivery runs it again.
pub async fn a_failed_handler_leaves_no_row<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), received());
    let (consumer, actor) = consumer(store, &[Answer::Business, Answer::Business]);
    let consumer = consumer.retry(posthaste_core::ExponentialBackoff::new(MINUTE, HOUR));
    let mut tries = Tries::default();
    for _ in 0..2 {
        let disposal = consumer.receive(&message, tries).await;
        let Disposal::Again { after, charged: true } = disposal else { panic!("{disposal:?}") };
        assert!(after > Duration::ZERO && after <= 2 * HOUR, "{after:?}");
        assert_nothing(&**fixture, &message).await;
        tries.count(&disposal);
    }
    assert_eq!(tries, charged(2));
    assert_eq!(consumer.receive(&message, tries).await, Disposal::Ack);
    assert_eq!(actor.runs(), 3);
    assert_acted(store, &[&message]).await;
}

/// INB-002: a handler that panics has failed, and does not stop the consumer.
pub async fn a_panic_is_a_failure<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), received());
    let (consumer, _) = consumer(store, &[Answer::Panic, Answer::Panic]);
    let disposal = consumer.receive(&message, charged(0)).await;
    assert!(matches!(disposal, Disposal::Again { charged: true, .. }), "{disposal:?}");
    let disposal = consumer.receive(&message, charged(9)).await;
    let Disposal::Dead(failure) = &disposal else { panic!("{disposal:?}") };
    assert!(failure.text().contains("panicked: out of its mind"), "{}", failure.text());
    assert_nothing(&**fixture, &message).await;
    assert_eq!(consumer.receive(&message, charged(2)).await, Disposal::Ack);
    assert_acted(store, &[&message]).await;
}

/// INB-003, INB-006: the last of its attempts makes a message a dead letter, which is not remembered: it may come again by an
/// operator's decision.
pub async fn attempts_come_to_an_end<F: Fixture>(fixture: &Arc<F>) {
    let message = received();
    let (consumer, _) = consumer(fixture.store(), &[Answer::Business; 4]);
    let consumer = consumer.max_attempts(3);
    let again = |disposal: &Disposal| matches!(disposal, Disposal::Again { charged: true, .. });
    assert!(again(&consumer.receive(&message, charged(0)).await));
    assert!(again(&consumer.receive(&message, charged(1)).await));
    let disposal = consumer.receive(&message, charged(2)).await;
    let Disposal::Dead(failure) = &disposal else { panic!("{disposal:?}") };
    assert_eq!((failure.class(), failure.text()), (FailureClass::Business, "[BUSINESS] out of stock"));
    // None counts as one.
    let disposal = consumer.clone().max_attempts(0).receive(&message, charged(0)).await;
    assert!(matches!(disposal, Disposal::Dead(_)), "{disposal:?}");
    assert_nothing(&**fixture, &message).await;
    assert_eq!(consumer.receive(&message, charged(0)).await, Disposal::Ack);
}

/// INB-006, M-22: an outage costs no attempt, not even the last.
pub async fn outages_cost_no_attempt<F: Fixture>(fixture: &Arc<F>) {
    let message = received();
    let (consumer, _) = consumer(fixture.store(), &[Answer::Infrastructure; 3]);
    let mut tries = charged(9);
    for free in 1..=3 {
        let disposal = consumer.receive(&message, tries).await;
        assert!(matches!(disposal, Disposal::Again { charged: false, .. }), "{disposal:?}");
        tries.count(&disposal);
        assert_eq!(tries, Tries { charged: 9, free });
    }
    assert_nothing(&**fixture, &message).await;
    assert_eq!(consumer.receive(&message, tries).await, Disposal::Ack);
}

/// A handler that is not ready for a message says when it will be, at no cost.
pub async fn deferrals_cost_no_attempt<F: Fixture>(fixture: &Arc<F>) {
    let message = received();
    let (consumer, _) = consumer(fixture.store(), &[Answer::Later]);
    let disposal = consumer.receive(&message, charged(9)).await;
    assert_eq!(disposal, Disposal::Again { after: HOUR, charged: false });
    assert_nothing(&**fixture, &message).await;
}

/// INB-003: what will never succeed is a dead letter at once, and nothing of it remains.
pub async fn dead_at_once<F: Fixture>(fixture: &Arc<F>) {
    let message = received();
    let (consumer, _) = consumer(fixture.store(), &[Answer::Never]);
    let disposal = consumer.receive(&message, charged(0)).await;
    let Disposal::Dead(failure) = &disposal else { panic!("{disposal:?}") };
    assert_eq!((failure.class(), failure.text()), (FailureClass::Permanent, "[BUSINESS] no such article"));
    assert_nothing(&**fixture, &message).await;
}

/// INB-001: one id for two messages is not swallowed: the second is a dead letter, and its handler does not run.
pub async fn an_altered_message_is_dead<F: Fixture>(fixture: &Arc<F>) {
    let (store, message) = (fixture.store(), received());
    let (consumer, actor) = consumer(store, &[]);
    assert_eq!(consumer.receive(&message, charged(0)).await, Disposal::Ack);
    let disposal = consumer.receive(&altered(&message), charged(0)).await;
    let Disposal::Dead(failure) = &disposal else { panic!("{disposal:?}") };
    assert!(failure.text().contains("used before with another payload"), "{}", failure.text());
    assert_eq!(actor.runs(), 1);
    assert_acted(store, &[&message]).await;
}

/// F-21, I9: three hundred messages, each five times, sixteen at once, through handlers that fail, panic and defer.
pub async fn slow_storm_through_a_consumer<F: Fixture>(fixture: &Arc<F>) {
    const MESSAGES: usize = 300;
    let messages: Arc<Vec<Received>> = Arc::new((0..MESSAGES).map(|_| received()).collect());
    let answers = [Answer::Business, Answer::Infrastructure, Answer::Later, Answer::Panic, Answer::Done];
    let mut random = fastrand::Rng::with_seed(21);
    let script: Vec<_> = (0..2 * MESSAGES).map(|_| answers[random.usize(0..answers.len())]).collect();
    let (consumer, actor) = consumer(fixture.store(), &script);
    let mut queue: Vec<usize> = (0..5 * MESSAGES).map(|n| n / 5).collect();
    queue.chunks_mut(40).for_each(|near| random.shuffle(near));
    let queue = Arc::new(Mutex::new(queue));
    let mut tasks = JoinSet::new();
    for _ in 0..16 {
        let (consumer, messages, queue) = (consumer.clone(), messages.clone(), queue.clone());
        tasks.spawn(async move {
            loop {
                let Some(n) = queue.lock().unwrap().pop() else { return };
                match consumer.receive(&messages[n], Tries::default()).await {
                    Disposal::Ack => {}
                    Disposal::Again { .. } => queue.lock().unwrap().push(n),
                    dead @ Disposal::Dead(_) => panic!("{dead:?}"),
                }
            }
        });
    }
    tasks.join_all().await;
    assert!(actor.runs() >= MESSAGES as u64);
    assert_acted(fixture.store(), &messages.iter().collect::<Vec<_>>()).await;
    assert_eq!(inbox(&**fixture).forget().await.unwrap(), 0);
}
