//! The cold path from publishing to the handler: in a transaction of the user's own, in none, later, and on time.
//!
//! No case may depend on how long a poll takes.

use std::time::{Duration, SystemTime};

use posthaste_core::{Outbox, Settings, State};
use tokio::time::Instant;

use super::Scene;
use super::support::{
    HOUR, Journal, becomes, done, draft, drafts, eventually, ms, outbox, record, records, run, settings,
};
use crate::{Counting, Fixture};

/// Settings with which the second regular poll comes no sooner than 30 s after the first; with a reason, 5 s after
/// it.
fn seldom() -> Settings {
    let mut settings = settings();
    (settings.poll_floor, settings.poll_ceiling) = (ms(40_000), ms(40_000));
    settings
}

/// Long for a slow machine, and less than the pause before a regular poll.
const SOON: Duration = ms(25_000);

/// HOT-002, OBX-003: a message published in the user's own transaction is delivered soon after the commit, although the
/// outbox is not told of it; one that is rolled back never is.
pub async fn in_a_transaction_of_ones_own<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut settings = settings();
    // Pauses between polls grow; publishing makes polls frequent again.
    (settings.poll_floor, settings.poll_ceiling) = (ms(10), HOUR);
    let outbox = outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox is idle", async || store.calls("claim") >= 5).await;

    let fixture = &scene.fixture;
    let mut tx = fixture.begin().await;
    let never = outbox.publish(fixture.connection(&mut tx), draft("t")).await.unwrap().id();
    fixture.rollback(tx).await;
    let mut tx = fixture.begin().await;
    let id = outbox.publish(fixture.connection(&mut tx), draft("t")).await.unwrap().id();
    // A transaction goes on for a while after publishing; polling must not give up before its commit.
    tokio::time::sleep(ms(100)).await;
    assert_eq!(journal.count(), 0);
    fixture.commit(tx).await;
    becomes(&store, id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.ids(), [id]);
    assert!(!journal.has(never));
}

/// OBX-001, HOT-001: without a transaction of the user's, too; one by one and in batches.
pub async fn without_a_transaction<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let mut settings = settings();
    (settings.poll_floor, settings.poll_ceiling) = (ms(10), HOUR);
    let outbox = outbox(store.clone(), settings).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the outbox is idle", async || store.calls("claim") >= 5).await;
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(&store, id, State::Done).await;
    outbox.enqueue_all(drafts("t", 50)).await.unwrap();
    done(&store, 51).await;
    running.stop().await;
    assert_eq!(journal.count(), 51);
}

/// HOT-014: published messages are polled for soon, however seldom the table is polled otherwise.
pub async fn publishing_brings_a_look_forward<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), seldom()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    let begin = Instant::now();
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(&store, id, State::Done).await;
    running.stop().await;
    let wait = journal.calls()[0].at - begin;
    assert!(wait < SOON, "{wait:?}");
}

/// OBX-013, OBX-018: a scheduled message is not early, and is delivered when its time has come.
pub async fn scheduled_messages_come_on_time<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    let begin = Instant::now();
    let later = outbox.enqueue(draft("t").delay(ms(700))).await.unwrap().id();
    let much_later = outbox.enqueue(draft("t").delay(HOUR)).await.unwrap().id();
    let at = SystemTime::now() + ms(800);
    let absolute = outbox.enqueue(draft("t").due_at(at)).await.unwrap().id();
    let now = outbox.enqueue(draft("t")).await.unwrap().id();
    for id in [now, later, absolute] {
        becomes(outbox.store(), id, State::Done).await;
    }
    let calls = journal.calls();
    let call = |id| calls.iter().find(|call| call.message.id == id).unwrap();
    assert!(call(later).at - begin >= ms(700) - ms(20), "early by {:?}", ms(700) - (call(later).at - begin));
    for id in [later, absolute] {
        let record = record(outbox.store(), id).await;
        assert!(record.done_at.unwrap() >= record.message.due_at);
    }
    assert!(!journal.has(much_later));
    scene.fixture.advance(HOUR).await;
    becomes(outbox.store(), much_later, State::Done).await;
    running.stop().await;
}

/// HOT-014: a deferred message is polled for when it is due, however seldom the table is polled otherwise.
pub async fn known_due_times_are_kept<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let handler = journal.handler("t", async |message| {
        if message.attempts == 0 {
            return Err(posthaste_core::HandlerError::retry_after(ms(1_500), "later"));
        }
        Ok(())
    });
    let outbox = outbox(store.clone(), seldom()).on_topic("t", handler).build().await.unwrap();
    let running = run(&outbox);
    eventually("the cold path has looked", async || store.answered_claims() >= 1).await;
    let mut tx = outbox.begin().await.unwrap();
    let id = tx.publish(draft("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    becomes(&store, id, State::Done).await;
    running.stop().await;
    let calls = journal.calls();
    let pause = calls[1].at - calls[0].at;
    assert!((ms(1_480)..SOON).contains(&pause), "{pause:?}");
}

/// OBX-001: an outbox without handlers publishes, too, and does not run.
pub async fn publishing_needs_no_handlers<F: Fixture>(scene: &Scene<F>) {
    let outbox = Outbox::builder(scene.store()).build().await.unwrap();
    outbox.enqueue(draft("t")).await.unwrap();
    let mut tx = outbox.begin().await.unwrap();
    tx.publish(draft("t")).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(records(outbox.store()).await.len(), 2);
    let refused = run(&outbox).ended().await.unwrap_err();
    assert!(refused.to_string().contains("no handlers"), "{refused}");
    assert_eq!(outbox.drain().await.unwrap(), posthaste_core::Tally::default());
}
