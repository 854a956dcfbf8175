//! Draining: everything that is due, and what comes of it, and then the end.
//!
//! Messages that are due later must stay.

use posthaste_core::{HandlerError, HandlerResult, Message, Outbox, Shared, State, StoreAdmin as _};
use std::sync::{Arc, OnceLock};

use super::Scene;
use super::support::{HOUR, Journal, draft, drafts, ms, outbox, record, settings, state};
use crate::{Counting, Fixture};

/// The outbox, for handlers that publish.
type Own<S> = Arc<OnceLock<Outbox<S>>>;

/// HOT-003, OBX-054: everything that is due is handled, with what handlers publish meanwhile by either door, and counted.
pub async fn everything_due_and_what_comes_of_it<F: Fixture>(scene: &Scene<F>) {
    let (journal, own) = (Journal::new(), Own::<F::Store>::default());
    let noting = journal.clone();
    let parent = move |message: Message, Shared(own): Shared<Own<F::Store>>| {
        drop(noting.enter("parent", &message));
        async move {
            // Long enough for the others to be through: a drain that did not wait for this one would be over.
            tokio::time::sleep(ms(50)).await;
            let outbox = own.get().unwrap();
            outbox.enqueue(draft("child")).await?;
            let mut tx = outbox.begin().await?;
            tx.publish(draft("child")).await?;
            tx.commit().await?;
            HandlerResult::Ok(())
        }
    };
    let outbox = outbox(scene.store(), settings())
        .share(own.clone())
        .on_topic("parent", parent)
        .on_topic("child", journal.noting("child"))
        .on_topic("dead", async |_: Message| HandlerResult::Err(HandlerError::dead("no")))
        .on_topic("later", async |_: Message| HandlerResult::Err(HandlerError::defer(HOUR)))
        .on_topic("failing", async |_: Message| HandlerResult::Err(HandlerError::retry_after(HOUR, "no")))
        .build()
        .await
        .unwrap();
    own.set(outbox.clone()).unwrap();
    outbox.enqueue_all(drafts("parent", 20)).await.unwrap();
    outbox.enqueue_all([draft("dead"), draft("later"), draft("failing"), draft("unknown")]).await.unwrap();
    let scheduled = outbox.enqueue(draft("child").delay(HOUR)).await.unwrap().id();
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.delivered, tally.dead, tally.deferred, tally.failed), (60, 1, 1, 1));
    assert_eq!(journal.count(), 60);
    assert_eq!(state(outbox.store(), scheduled).await, Some(State::Ready));
    let stats = outbox.store().stats().await.unwrap();
    assert_eq!((stats.leased.value, stats.done.value, stats.ready.value), (0, 60, 1));
    assert_eq!(outbox.drain().await.unwrap(), posthaste_core::Tally::default(), "nothing is left");
    scene.fixture.advance(HOUR).await;
    let tally = outbox.drain().await.unwrap();
    assert_eq!((tally.delivered, tally.dead, tally.deferred, tally.failed), (1, 0, 1, 1));
}

/// I6: keys are drained to their end, in order.
pub async fn keys_to_their_end<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let batch =
        (0..30).map(|n: u32| draft("t").key(format!("k{}", n % 3)).build().unwrap()).collect::<Vec<_>>();
    outbox.enqueue_all(&batch).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 30);
    for key in 0..3 {
        let expected: Vec<_> = batch.iter().skip(key).step_by(3).map(|message| message.id()).collect();
        let mut got = journal.ids();
        got.retain(|id| expected.contains(id));
        assert_eq!(got, expected);
    }
}

/// Protocol rule 4: suspects are drained, too, one by one.
pub async fn suspects_to_their_end<F: Fixture>(scene: &Scene<F>) {
    use posthaste_core::Store as _;
    let (journal, store) = (Journal::new(), scene.store());
    let ids: Vec<_> = drafts("t", 4);
    store.enqueue(&ids).await.unwrap();
    super::support::claim_elsewhere(&store, 4, super::support::ms(100)).await;
    scene.fixture.advance(HOUR).await;
    store.reap(10).await.unwrap();
    store.enqueue(&drafts("t", 10)).await.unwrap();
    let outbox = outbox(store, settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 14);
    assert_eq!(journal.suspects_met(), 0);
    assert_eq!(record(outbox.store(), ids[0].id()).await.message.lease_losses, 1);
}

/// HOT-017: a drain that cannot poll returns an error.
pub async fn a_drain_that_cannot_look<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    outbox.enqueue(draft("t")).await.unwrap();
    store.fail("claim", 1);
    let error = outbox.drain().await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(outbox.drain().await.unwrap().delivered, 1);
    store.fail("settle", 1);
    outbox.enqueue(draft("t")).await.unwrap();
    assert_eq!(outbox.drain().await.unwrap().delivered, 1, "settling is repeated");
}
