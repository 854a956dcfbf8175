//! Errors of the store while an outbox runs: they are logged and counted, and never end it.
//!
//! They cost no attempt, and deliver nothing twice.

use posthaste_core::{Schedule, State, Store as _, StoreAdmin as _};

use super::Scene;
use super::support::{
    Gate, Journal, MINUTE, becomes, done, draft, drafts, eventually, ms, outbox, record, run, settings,
};
use crate::{Counting, Fixture};

/// HOT-017, F-04: claims, settlements and renewals that fail are logged at ERROR, counted and repeated; each message is
/// handled once.
pub async fn a_loop_goes_on<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut short = settings();
    // Renewed after two seconds, and then every 600 ms until it succeeds.
    short.lease = ms(6_000);
    let outbox = outbox(store.clone(), short).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    for operation in ["claim", "settle", "renew"] {
        store.fail(operation, 2);
    }
    let running = run(&outbox);
    outbox.enqueue_all(drafts("t", 4)).await.unwrap();
    eventually("the leases are renewed at last", async || store.calls("renew") >= 3).await;
    gate.open();
    done(&store, 4).await;
    running.stop().await;
    assert_eq!(journal.count(), 4);
    for operation in ["claim", "settle", "renew"] {
        assert_eq!(
            scene.meters.counter("posthaste_errors_total", &[("operation", operation)]),
            2,
            "{operation}"
        );
        let errors = scene.logs.events("a call to the store failed");
        let of = errors.iter().filter(|error| error.field("operation") == operation);
        assert_eq!(of.clone().count(), 2);
        assert!(
            of.clone()
                .all(|error| error.level == tracing::Level::ERROR && error.field("store") == store.name())
        );
    }
    for record in super::support::records(store.inner()).await {
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
    }
}

/// HOT-013, HOT-017: while outcomes cannot be settled nothing new is taken in, by either path.
pub async fn nothing_new_while_settling_fails<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    store.fail("settle", u64::MAX);
    let first = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it was tried to settle", async || store.calls("settle") >= 3).await;
    let claims = store.calls("claim");
    let mut tx = outbox.begin().await.unwrap();
    let hot = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    let cold = outbox.enqueue(draft("t")).await.unwrap().id();
    let tries = store.calls("settle");
    eventually("it was tried again", async || store.calls("settle") >= tries + 2).await;
    assert_eq!((journal.count(), store.calls("claim")), (1, claims));
    assert_eq!(record(&store, hot).await.state, State::Ready);
    store.fail("settle", 0);
    for id in [first, hot, cold] {
        becomes(&store, id, State::Done).await;
    }
    running.stop().await;
    assert_eq!(journal.count(), 3);
}

/// HOT-015: a row that cannot be decoded is dead with a reason, and the others are delivered.
pub async fn a_spoiled_row_stops_nothing<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), scene.store());
    let messages = drafts("t", 5);
    store.enqueue(&messages).await.unwrap();
    let spoiled = scene.fixture.spoil(messages[2].id()).await;
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    done(&store, if spoiled { 4 } else { 5 }).await;
    running.stop().await;
    if spoiled {
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.dead.value, stats.leased.value, stats.ready.value), (1, 0, 0));
        assert!(!journal.has(messages[2].id()));
    }
}

/// HOT-015, HOT-017: its death is logged at ERROR.
pub async fn a_spoiled_row_is_logged<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), scene.store());
    let messages = drafts("t", 2);
    store.enqueue(&messages).await.unwrap();
    let spoiled = scene.fixture.spoil(messages[0].id()).await;
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    outbox.drain().await.unwrap();
    let errors = scene.logs.at(tracing::Level::ERROR);
    assert_eq!(errors.len(), usize::from(spoiled), "{errors:?}");
    let id = messages[0].id().to_string();
    assert!(
        errors.iter().all(|error| error.field("message_id") == id && error.field("store") == store.name())
    );
}

/// F-02, I11: a message whose worker died is delivered by another process, after the lease has run out.
pub async fn another_process_takes_over<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut reaping = settings();
    (reaping.lease, reaping.reap) = (MINUTE, Schedule::every(ms(50)));
    let dying = outbox(scene.store(), reaping.clone())
        .on_topic("t", journal.gated("dying", &gate))
        .build()
        .await
        .unwrap();
    let other = outbox(store.clone(), reaping).on_topic("t", journal.noting("other")).build().await.unwrap();
    let running = run(&dying);
    let id = dying.enqueue(draft("t")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    running.shutdown.now();
    running.ended().await.unwrap();
    let running = run(&other);
    let has_tried = async || store.calls("reap") >= 2 && store.answered_claims() >= 3;
    eventually("the other one has reaped and looked", has_tried).await;
    assert_eq!(journal.handlers_of(id), ["dying"], "it is leased");
    scene.fixture.advance(2 * MINUTE).await;
    becomes(other.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id), ["dying", "other"]);
    let message = record(other.store(), id).await.message;
    assert_eq!((message.attempts, message.lease_losses), (0, 1));
}
