//! What one message may cost the others: nothing. Handlers that block their thread, outcomes that the store refuses.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use posthaste_core::{HandlerResult, Message, Outbox, Policy, RetryPolicy, State, Store as _, Topics};

use super::Scene;
use super::support::{
    Blocker, HOUR, Journal, becomes, done, draft, drafts, eventually, hot_only, ms, outbox, record, run,
    settings,
};
use crate::{Counting, Fixture};

/// R1: messages that start next to a handler which blocks its thread are delivered while it does, and never taken for
/// stuck themselves.
pub async fn neighbours_of_a_blocked_thread<F: Fixture>(scene: &Scene<F>) {
    let (journal, blocker) = (Journal::new(), Blocker::new());
    let block = blocker.block();
    let mut settings = settings();
    (settings.workers, settings.handler_timeout, settings.cancel_grace) = (32, ms(3_000), ms(50));
    // On a slow machine a neighbour may take longer than that, without being stuck.
    let patient = Policy::new().timeout(HOUR);
    let outbox = outbox(scene.store(), settings)
        .policy(Topics::of(["waits"]).unwrap(), patient)
        .on_topic(
            "blocks",
            journal.handler("blocks", move |_| {
                block();
                async { Ok(()) }
            }),
        )
        .on_topic(
            "waits",
            journal.handler("waits", async |_| {
                tokio::time::sleep(ms(1)).await;
                Ok(())
            }),
        )
        .build()
        .await
        .unwrap();
    let mut messages = drafts("waits", 8);
    let blocking = draft("blocks").build().unwrap();
    let id = blocking.id();
    messages.push(blocking);
    messages.extend(drafts("waits", 8));
    outbox.enqueue_all(messages).await.unwrap();
    let running = run(&outbox);
    done(outbox.store(), 16).await;
    becomes(outbox.store(), id, State::Dead).await;
    assert_eq!(journal.count(), 17, "each is called once");
    drop(blocker);
    running.stop().await;
}

/// R1: a handler that publishes and then blocks its thread has woken the dispatcher, and does not keep it.
pub async fn publishing_and_blocking<F: Fixture>(scene: &Scene<F>) {
    let (journal, blocker) = (Journal::new(), Blocker::new());
    let own: Arc<OnceLock<Outbox<F::Store>>> = Arc::default();
    let (block, publisher) = (blocker.block(), Arc::clone(&own));
    let publishes = move |_: Message| {
        let (block, publisher) = (block.clone(), Arc::clone(&publisher));
        async move {
            publisher.get().unwrap().enqueue(draft("follows")).await?;
            block();
            HandlerResult::Ok(())
        }
    };
    let mut settings = settings();
    settings.handler_timeout = HOUR;
    let outbox = outbox(scene.store(), settings)
        .on_topic("publishes", publishes)
        .on_topic("follows", journal.noting("follows"))
        .build()
        .await
        .unwrap();
    own.set(outbox.clone()).unwrap();
    let running = run(&outbox);
    outbox.enqueue(draft("publishes")).await.unwrap();
    eventually("what it published is delivered", async || journal.count() == 1).await;
    drop(blocker);
    done(outbox.store(), 2).await;
    running.stop().await;
}

/// R1: a message is delivered from memory although the task that committed it goes on computing.
pub async fn committing_and_computing<F: Fixture>(scene: &Scene<F>) {
    let (journal, blocker) = (Journal::new(), Blocker::new());
    let outbox = outbox(scene.store(), hot_only()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    eventually("it runs", async || !scene.logs.events("running").is_empty()).await;
    let (block, publisher) = (blocker.block(), outbox.clone());
    let publishing = tokio::spawn(async move {
        let mut tx = publisher.begin().await.unwrap();
        tx.publish(draft("t")).await.unwrap();
        tx.commit().await.unwrap();
        block();
    });
    eventually("it is delivered", async || journal.count() == 1).await;
    drop(blocker);
    publishing.await.unwrap();
    running.stop().await;
}

/// R5: a retry policy is the user's code, too: one that blocks its thread costs its own message only.
pub async fn a_policy_that_blocks<F: Fixture>(scene: &Scene<F>) {
    struct Blocks(Box<dyn Fn() + Send + Sync>);
    impl fmt::Debug for Blocks {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Blocks")
        }
    }
    impl RetryPolicy for Blocks {
        fn delay(&self, _: u32, _: f64) -> Duration {
            (self.0)();
            HOUR
        }
    }
    let (journal, blocker) = (Journal::new(), Blocker::new());
    let mut settings = settings();
    settings.handler_timeout = HOUR;
    let outbox = outbox(scene.store(), settings)
        .retry(Blocks(Box::new(blocker.block())))
        .on_topic("fails", journal.handler("fails", async |_| Err("no".into())))
        .on_topic("t", journal.noting("t"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("fails")).await.unwrap().id();
    eventually("it fails", async || journal.count() == 1).await;
    outbox.enqueue_all(drafts("t", 5)).await.unwrap();
    done(outbox.store(), 5).await;
    assert_eq!(record(outbox.store(), id).await.state, State::Leased);
    drop(blocker);
    becomes(outbox.store(), id, State::Ready).await;
    assert_eq!(record(outbox.store(), id).await.message.attempts, 1);
    running.stop().await;
}

/// R4: an outcome that the store refuses by itself is set aside, and holds up no other. Its message comes again when its
/// lease has run out.
pub async fn a_refused_outcome_is_set_aside<F: Fixture>(scene: &Scene<F>) {
    let (journal, store) = (Journal::new(), Counting::new(scene.store()));
    let outbox = outbox(store.clone(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let refused = outbox.enqueue(draft("t")).await.unwrap().id();
    store.refuse(Some(record(&store, refused).await.message.item));
    outbox.enqueue_all(drafts("t", 20)).await.unwrap();
    let running = run(&outbox);
    done(&store, 20).await;
    let event = "store refused an outcome: the message is delivered again when its lease ends";
    eventually("it is set aside", async || !scene.logs.events(event).is_empty()).await;
    assert_eq!(scene.logs.events(event)[0].field("message_id"), refused.to_string());
    // Others come and go.
    outbox.enqueue_all(drafts("t", 5)).await.unwrap();
    done(&store, 25).await;
    assert_eq!(record(&store, refused).await.state, State::Leased);
    store.refuse(None);
    scene.fixture.advance(HOUR).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);
    becomes(&store, refused, State::Done).await;
    running.stop().await;
    assert_eq!(journal.count(), 27, "it is delivered twice");
}
