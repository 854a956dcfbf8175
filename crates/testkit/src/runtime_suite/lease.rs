//! Leases under way: kept for as long as a handler takes, and let go when they are lost.
//!
//! The fixture lets leases run out; a case waits only where renewal itself is what it shows.

use std::time::Duration;

use posthaste_core::{
    Cancellation, HandlerResult, Message, MessageId, Outbox, Outcome, Schedule, Settled, Settlement, State,
    Store, StoreAdmin as _,
};

use super::Scene;
use super::support::{
    Gate, HOUR, Journal, MINUTE, Running, becomes, claim_elsewhere, done, draft, drafts, eventually,
    hot_only, ms, outbox, record, run, settings, stranger,
};
use crate::{Counting, Fixture};

/// Short enough to run out in a case, and long enough for a slow machine to renew it in two thirds of that time.
const SHORT: Duration = ms(5_000);

/// F-10, protocol rule 3: a handler that takes more than twice its lease is called once, although others reap and claim.
pub async fn slow_renewal_keeps_a_lease<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let mut short = settings();
    (short.lease, short.reap) = (SHORT, Schedule::every(ms(100)));
    let long = || {
        journal.handler("t", async |_| {
            tokio::time::sleep(2 * SHORT + ms(1_000)).await;
            Ok(())
        })
    };
    let one = outbox(scene.store(), short.clone()).on_topic("t", long()).build().await.unwrap();
    let two = outbox(scene.store(), short).on_topic("t", long()).build().await.unwrap();
    let (first, second) = (run(&one), run(&two));
    let cold = one.enqueue(draft("t")).await.unwrap().id();
    let mut tx = two.begin().await.unwrap();
    let hot = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    for id in [cold, hot] {
        becomes(one.store(), id, State::Done).await;
        let message = record(one.store(), id).await.message;
        assert_eq!((message.lease_losses, message.attempts), (0, 0));
    }
    first.stop().await;
    second.stop().await;
    assert_eq!(journal.count(), 2);
}

/// Protocol rule 3: messages that wait in memory for a handler keep their leases, too.
pub async fn slow_waiting_messages_are_renewed<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut short = settings();
    (short.lease, short.reap, short.workers) = (SHORT, Schedule::every(ms(100)), 1);
    let outbox = outbox(store.clone(), short).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.calls("claim") >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 20)).await.unwrap();
    tx.commit().await.unwrap();
    eventually("the leases were renewed many times", async || store.calls("renew") >= 6).await;
    gate.open();
    done(&store, 20).await;
    running.stop().await;
    assert_eq!(journal.count(), 20);
    assert_eq!(scene.meters.counter("posthaste_lost_leases_total", &[]), 0);
}

/// Takes a message away from its holder: its lease runs out, it is reaped, and another worker claims it.
async fn take_away<F: Fixture>(scene: &Scene<F>) -> Message {
    let store = scene.store();
    let mut reaped = 0;
    eventually("the lease is lost", async || {
        // A renewal may come between the two.
        scene.fixture.advance(HOUR).await;
        reaped += store.reap(10).await.unwrap().ready;
        reaped > 0
    })
    .await;
    claim_elsewhere(&store, 1, HOUR).await.remove(0)
}

/// An outbox that renews its leases every second, but does not poll again: it must not claim the message that is
/// taken away from it. That message is under way.
async fn busy_with_one<F: Fixture, Args: 'static>(
    scene: &Scene<F>,
    handler: impl posthaste_core::Handler<Args>,
    cancel_grace: Duration,
) -> (Outbox<Counting<F::Store>>, Running, MessageId) {
    let store = Counting::new(scene.store());
    let mut settings = hot_only();
    (settings.lease, settings.cancel_grace) = (ms(3_000), cancel_grace);
    let outbox = outbox(store.clone(), settings).on_topic("t", handler).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.answered_claims() == 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    (outbox, running, id)
}

/// OBX-059, protocol rules 2 and 3: a handler whose lease was lost is told to stop; its later result changes nothing,
/// and the loss is counted.
pub async fn a_lost_lease_cancels<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let noting = journal.clone();
    let handler = move |message: Message, cancellation: Cancellation| {
        let stay = noting.enter("t", &message);
        async move {
            let _stay = stay;
            cancellation.cancelled().await;
            HandlerResult::Ok(())
        }
    };
    let (outbox, running, id) = busy_with_one(scene, handler, HOUR).await;
    eventually("it is being handled", async || journal.running() == 1).await;
    let taken = take_away(scene).await;
    assert_eq!(taken.id, id);
    eventually("the handler was told", async || journal.running() == 0).await;
    let told = async || scene.meters.counter("posthaste_lost_leases_total", &[]) >= 1;
    eventually("the loss is counted", told).await;
    running.stop().await;
    let record = record(outbox.store(), id).await;
    assert_eq!((record.state, record.worker), (State::Leased, Some(stranger())));
    assert_eq!((record.message.epoch, record.message.attempts), (taken.epoch, 0));
    let warnings = scene.logs.at(tracing::Level::WARN);
    assert!(
        !warnings.is_empty() && warnings.iter().all(|warning| warning.message.contains("lost")),
        "{warnings:?}"
    );
    let acked = outbox.settle(&[Settlement::new(taken.lease(), Outcome::Ack)]).await.unwrap();
    assert_eq!(acked, [Settled::Applied]);
}

/// F-10, protocol rule 2: a handler that does not listen is dropped when its lease is lost.
pub async fn the_deaf_are_dropped<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let (outbox, running, id) = busy_with_one(scene, journal.gated("t", &gate), ms(100)).await;
    eventually("it is being handled", async || journal.running() == 1).await;
    let taken = take_away(scene).await;
    eventually("the handler was dropped", async || journal.running() == 0).await;
    running.stop().await;
    let record = record(outbox.store(), id).await;
    assert_eq!((record.state, record.message.epoch), (State::Leased, taken.epoch));
}

/// HOT-010, OBX-059: a message that comes back while its last delivery here is still under way is not handled twice at a
/// time.
pub async fn not_while_it_is_under_way<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    // The lease would last longer than the case: only the claim can tell that it is lost.
    let mut long = settings();
    (long.lease, long.cancel_grace) = (MINUTE, ms(300));
    let outbox = outbox(scene.store(), long).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is being handled", async || journal.running() == 1).await;
    eventually("the lease is lost", async || {
        scene.fixture.advance(HOUR).await;
        outbox.reap(10).await.unwrap().ready > 0
    })
    .await;
    // The same process claims it again at once, long before a renewal.
    eventually("it is handled again", async || journal.count() == 2).await;
    gate.open();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!((journal.most_of_one(), journal.count()), (1, 2));
    assert_eq!(record(outbox.store(), id).await.message.attempts, 0);
}

/// Protocol rule 3: what waited in memory until its lease may be over does not start before the lease is renewed.
pub async fn nothing_starts_on_an_old_lease<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate, store) = (Journal::new(), Gate::closed(), Counting::new(scene.store()));
    let mut short = hot_only();
    (short.lease, short.workers) = (ms(1_000), 1);
    let outbox = outbox(store.clone(), short).on_topic("t", journal.gated("t", &gate)).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox has looked", async || store.answered_claims() == 1).await;
    let mut tx = outbox.begin().await.unwrap();
    tx.publish_all(drafts("t", 3)).await.unwrap();
    tx.commit().await.unwrap();
    eventually("one is being handled", async || journal.running() == 1).await;
    store.fail("renew", u64::MAX);
    eventually("its handler was dropped, to be safe", async || journal.running() == 0).await;
    let asked = store.calls("renew");
    eventually("it was tried to renew", async || {
        assert_eq!(journal.count(), 1, "the others wait for an answer");
        store.calls("renew") >= asked + 3
    })
    .await;
    store.fail("renew", 0);
    gate.open();
    done(store.inner(), 2).await;
    running.stop().await;
    assert_eq!(journal.count(), 3);
    assert_eq!(scene.meters.counter("posthaste_lost_leases_total", &[]), 0);
}

/// A worker claims everything that is ready and falls silent, twice.
async fn lose_twice<F: Fixture>(scene: &Scene<F>, store: &F::Store) {
    let many = store.stats().await.unwrap().ready.value;
    for round in 0..2 {
        // Suspects come one at a time.
        let claims = if round == 0 { 1 } else { many };
        for _ in 0..claims {
            assert!(!claim_elsewhere(store, 10, MINUTE).await.is_empty());
        }
        scene.fixture.advance(HOUR).await;
        assert_eq!(store.reap(10).await.unwrap().ready, many);
    }
}

/// Protocol rule 4, M-09: a message that lost two leases never overlaps with another handler of the process.
pub async fn suspects_run_alone<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), scene.store());
    let suspects = drafts("t", 3);
    store.enqueue(&suspects).await.unwrap();
    lose_twice(scene, &store).await;
    let handler = journal.handler("t", async |_| {
        tokio::time::sleep(ms(3)).await;
        Ok(())
    });
    let outbox = outbox(store.clone(), settings()).workers(4).on_topic("t", handler).build().await.unwrap();
    store.enqueue(&drafts("t", 60)).await.unwrap();
    let running = run(&outbox);
    let mut published = 63;
    while journal.calls().iter().filter(|call| call.message.lease_losses > 1).count() < 3 {
        let mut tx = outbox.begin().await.unwrap();
        tx.publish_all(drafts("t", 5)).await.unwrap();
        tx.commit().await.unwrap();
        outbox.enqueue_all(drafts("t", 5)).await.unwrap();
        published += 10;
        // So the suspects, which wait for the clean ones, have their turn while there is other work.
        scene.fixture.advance(Duration::from_secs(10)).await;
        assert!(published < 5_000, "the suspects were never claimed");
    }
    done(&store, published).await;
    running.stop().await;
    assert_eq!(journal.suspects_met(), 0);
    assert!(journal.most() > 1, "the others ran together");
    assert_eq!(store.stats().await.unwrap().dead.value, 0);
}
