//! Several handlers of one message: their order, and which of them a retry runs.
//!
//! A handler that is done must not be called again, whichever process runs the retry.

use posthaste_core::{HandlerError, ReceiverState, State};

use super::Scene;
use super::support::{Counter, Gate, Journal, becomes, draft, eventually, outbox, record, run, settings};
use crate::Fixture;

/// HOT-011: handlers are called in the order of registration, those for patterns after those for the topic.
pub async fn in_their_order<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .on_topic_named("*", "everything", journal.noting("everything"))
        .on_topic_named("order.*", "orders", journal.noting("orders"))
        .on_topic_named("order.placed", "b", journal.noting("b"))
        .on_topic_named("order.placed", "a", journal.noting("a"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let placed = outbox.enqueue(draft("order.placed")).await.unwrap().id();
    let other = outbox.enqueue(draft("other")).await.unwrap().id();
    becomes(outbox.store(), placed, State::Done).await;
    becomes(outbox.store(), other, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(placed), ["b", "a", "everything", "orders"]);
    assert_eq!(journal.handlers_of(other), ["everything"]);
    assert_eq!(journal.most_of_one(), 1, "one after the other");
}

/// HOT-011: a retry runs only the handlers that are not done yet, however many retries it takes.
pub async fn a_retry_runs_the_others<F: Fixture>(scene: &Scene<F>) {
    let (journal, failures) = (Journal::new(), Counter::default());
    let second = journal.handler("second", move |_| {
        let failures = failures.clone();
        async move { if failures.next() < 3 { Err(HandlerError::from("not yet")) } else { Ok(()) } }
    });
    let outbox = outbox(scene.store(), settings())
        .on_topic_named("t", "first", journal.noting("first"))
        .on_topic_named("t", "second", second)
        .on_topic_named("*", "third", journal.noting("third"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id), ["first", "second", "third", "second", "second"]);
    assert_eq!(record(outbox.store(), id).await.message.attempts, 2);
}

/// HOT-011: in another process, too: the message stores which handlers are done.
pub async fn a_retry_in_another_process<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let failing = journal.handler("second here", async |_| Err(HandlerError::from("not here")));
    let here = outbox(scene.store(), settings())
        .retry(posthaste_core::FixedDelay(super::support::HOUR))
        .on_topic_named("t", "first", journal.noting("first here"))
        .on_topic_named("t", "second", failing)
        .build()
        .await
        .unwrap();
    let running = run(&here);
    let id = here.enqueue(draft("t")).await.unwrap().id();
    let failed = async || record(here.store(), id).await.message.attempts == 1;
    eventually("the attempt has failed", failed).await;
    running.stop().await;
    let known = record(here.store(), id).await.message.receivers();
    let done = known.iter().filter(|receiver| receiver.state == ReceiverState::Done);
    assert_eq!(done.map(|receiver| receiver.name.as_str()).collect::<Vec<_>>(), ["first"]);

    let there = outbox(scene.store(), settings())
        .on_topic_named("t", "first", journal.noting("first there"))
        .on_topic_named("t", "second", journal.noting("second there"))
        .on_topic_named("t", "new", journal.noting("new there"))
        .build()
        .await
        .unwrap();
    let running = run(&there);
    scene.fixture.advance(super::support::HOUR).await;
    becomes(there.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id), ["first here", "second here", "second there", "new there"]);
}

/// HOT-011, HOT-019: finished handlers are stored when a shutdown interrupts the others, and no attempt is charged.
pub async fn interrupted_half_way<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let mut quick = settings();
    quick.shutdown_grace = super::shutdown::GRACE;
    let here = outbox(scene.store(), quick)
        .on_topic_named("t", "first", journal.noting("first"))
        .on_topic_named("t", "second", journal.gated("second", &gate))
        .build()
        .await
        .unwrap();
    let running = run(&here);
    let id = here.enqueue(draft("t")).await.unwrap().id();
    eventually("the second handler runs", async || journal.count() == 2).await;
    running.stop().await;
    let record = record(here.store(), id).await;
    assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
    assert_eq!(record.message.handled, ["first"]);
}
