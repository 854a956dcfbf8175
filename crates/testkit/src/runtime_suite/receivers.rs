//! Several receivers of one message: each goes its own way, and none waits for another one's success.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{
    Batch, Change, Filter, FixedDelay, Guarded, HandlerError, MessageId, Policy, ReceiverState, Schedule,
    Sink, SinkOptions, State, StoreAdmin, Topics, Verdict,
};
use tracing::Level;

use super::Scene;
use super::support::{
    Blocker, Counter, DEADLINE, HOUR, Journal, MINUTE, becomes, done, draft, eventually, ms, outbox, record,
    records, run, settings,
};
use crate::{Counting, Fixture, ScriptedSink};

/// Options with which a sink that is down is probed all the time.
fn quick() -> SinkOptions {
    SinkOptions::new().pauses(ms(5), ms(20))
}

/// How often a sink took each message, at most; and how many there were.
fn taken(sink: &ScriptedSink) -> (usize, usize) {
    let mut ids = sink.taken_ids();
    let all = ids.len();
    ids.sort();
    ids.dedup();
    (ids.len(), all)
}

/// Sends so many messages to two sinks, of which the first is down for as long as it takes.
async fn one_of_two<F: Fixture>(scene: &Scene<F>, count: usize) {
    let (down, up) = (ScriptedSink::new("a"), ScriptedSink::new("b"));
    down.go_down("nobody answers");
    let guarded = Guarded::with(down.clone(), quick());
    let outbox = outbox(scene.store(), settings())
        .sink("t", guarded.clone())
        .sink("t", up.clone())
        .retry(FixedDelay(HOUR))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let drafts: Vec<_> = (0..count).map(|_| draft("t")).collect();
    outbox.enqueue_all(drafts).await.unwrap();
    eventually("the healthy sink has all of them", async || up.taken().len() >= count).await;
    eventually("the rest waits", async || {
        outbox.store().stats().await.unwrap().failing.value == u64::try_from(count.min(10_000)).unwrap()
    })
    .await;
    let probes = down.probes();
    eventually("it is probed again and again", async || down.probes() > probes + 20).await;
    let claimed = usize::try_from(scene.meters.counter("posthaste_claimed_total", &[])).unwrap();
    assert!(claimed <= count + 50, "{claimed} claims for {count} messages");
    assert!(guarded.is_down());
    let errors = scene.logs.at(Level::ERROR);
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(scene.logs.at(Level::WARN).len(), 1, "one line for an outage");

    down.come_up();
    done(outbox.store(), count).await;
    running.stop().await;
    assert_eq!((taken(&down), taken(&up)), ((count, count), (count, count)), "each of them, and once");
    for record in records(outbox.store()).await {
        assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0));
    }
}

/// F1, R6: of two sinks the one that is there gets every message at once; the other one when it is back. Nothing is charged,
/// nothing is claimed again and again, and the log tells of the outage once.
pub async fn a_healthy_sink_does_not_wait<F: Fixture>(scene: &Scene<F>) {
    one_of_two(scene, 300).await;
}

/// F1, R6: the same for as many as were once claimed 35,000 times.
pub async fn slow_five_thousand_to_one_of_two<F: Fixture>(scene: &Scene<F>) {
    one_of_two(scene, 5_000).await;
}

/// F1: a sink that can be reached, and takes nothing, is tried with one message at a time.
pub async fn a_sink_that_comes_and_goes<F: Fixture>(scene: &Scene<F>) {
    let (flapping, up) = (ScriptedSink::new("a"), ScriptedSink::new("b"));
    flapping.answer(|_| Err(posthaste_core::SinkError::down("it hangs up")));
    let outbox = outbox(scene.store(), settings())
        .sink("t", Guarded::with(flapping.clone(), quick()))
        .sink("t", up.clone())
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    outbox.enqueue_all((0..200).map(|_| draft("t"))).await.unwrap();
    eventually("the healthy sink has all of them", async || up.taken().len() >= 200).await;
    let batches = flapping.batches().len();
    eventually("it is tried again and again", async || flapping.batches().len() >= batches + 5).await;
    let tried: Vec<_> = flapping.batches()[batches..].iter().map(Vec::len).collect();
    assert!(tried.iter().all(|size| *size == 1), "{tried:?}");
    flapping.answer(|_| Ok(()));
    done(outbox.store(), 200).await;
    running.stop().await;
    assert_eq!((taken(&flapping), taken(&up)), ((200, 200), (200, 200)));
}

/// F1: messages that a process left waiting for a sink are sent by the next process as soon as it starts.
pub async fn an_outage_outlives_its_process<F: Fixture>(scene: &Scene<F>) {
    let (down, up) = (ScriptedSink::new("a"), ScriptedSink::new("b"));
    down.go_down("nobody answers");
    let before = outbox(scene.store(), settings()).sink("t", down.clone()).sink("t", up.clone());
    let before = before.build().await.unwrap();
    let running = run(&before);
    before.enqueue_all((0..20).map(|_| draft("t"))).await.unwrap();
    eventually("the rest waits", async || before.store().stats().await.unwrap().failing.value == 20).await;
    running.stop().await;

    let back = ScriptedSink::new("a");
    let after = outbox(scene.store(), settings()).sink("t", back.clone()).sink("t", up.clone());
    let after = after.build().await.unwrap();
    let running = run(&after);
    done(after.store(), 20).await;
    running.stop().await;
    assert_eq!((taken(&back), taken(&up)), ((20, 20), (20, 20)));
}

/// F1 for handlers: one that fails, one that gives up and a sink that is down keep no other receiver from the message. It is
/// dead because one gave up, once the others are finished.
pub async fn handlers_do_not_wait_for_each_other<F: Fixture>(scene: &Scene<F>) {
    let (journal, failures, sink) = (Journal::new(), Counter::default(), ScriptedSink::new("sink"));
    sink.go_down("nobody answers");
    let failing = journal.handler("fails", move |_| {
        let failures = failures.clone();
        async move { if failures.next() < 3 { Err(HandlerError::from("not yet")) } else { Ok(()) } }
    });
    let outbox = outbox(scene.store(), settings())
        .on_topic_named("t", "fails", failing)
        .on_topic_named(
            "t",
            "gives up",
            journal.handler("gives up", async |_| Err(HandlerError::dead("never"))),
        )
        .on_topic_named("*", "takes", journal.noting("takes"))
        .sink("t", Guarded::with(sink.clone(), quick()))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("the handlers are finished", async || journal.handlers_of(id).len() == 5).await;
    eventually("the sink is waited for", async || outbox.store().stats().await.unwrap().failing.value == 1)
        .await;
    let states = |receivers: Vec<posthaste_core::Receiver>| {
        let mut states: Vec<_> = receivers
            .into_iter()
            .map(|receiver| match receiver.state {
                ReceiverState::Done => format!("{}: done", receiver.name),
                ReceiverState::GaveUp { failure, .. } => format!("{}: {}", receiver.name, failure.text()),
                state => format!("{}: {state:?}", receiver.name),
            })
            .collect();
        states.sort();
        states
    };
    let waiting = record(outbox.store(), id).await;
    assert_eq!(waiting.state, State::Ready);
    let expected = ["fails: done", "gives up: [BUSINESS] gives up: never", "takes: done"];
    assert_eq!(states(waiting.message.receivers()), expected);
    sink.come_up();
    becomes(outbox.store(), id, State::Dead).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id), ["fails", "gives up", "takes", "fails", "fails"]);
    assert_eq!(taken(&sink), (1, 1));
    let dead = record(outbox.store(), id).await;
    assert_eq!(dead.last_error.as_deref(), Some("[BUSINESS] gives up: never"));
}

/// F1 for handlers: each has all its attempts, and sees its own number.
pub async fn each_has_its_own_attempts<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let first = journal.handler("first", async |message| match message.attempts {
        0 | 1 => Err(HandlerError::from("not yet")),
        _ => Ok(()),
    });
    let calls = Counter::default();
    let second = journal.handler("second", move |message| {
        let call = calls.next();
        async move {
            // It is waiting while the first one uses up its attempts.
            match (call, message.attempts) {
                (1, 0) => Err(HandlerError::defer(ms(200))),
                (2, 0) | (3, 1) => Err(HandlerError::from("not yet")),
                (4, 2) => Ok(()),
                wrong => Err(HandlerError::dead(format!("{wrong:?}"))),
            }
        }
    });
    let outbox = outbox(scene.store(), settings())
        .max_attempts(3)
        .on_topic_named("t", "first", first)
        .on_topic_named("t", "second", second)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is over", async || record(outbox.store(), id).await.state as i16 > 1).await;
    running.stop().await;
    let record = record(outbox.store(), id).await;
    assert_eq!(record.state, State::Done, "{:?}", record.last_error);
    let count = |name| journal.handlers_of(id).iter().filter(|handler| **handler == name).count();
    assert_eq!((count("first"), count("second")), (3, 4));
}

/// F1 for handlers: one that wants to be called later is not called because another one is retried.
pub async fn each_keeps_its_own_time<F: Fixture>(scene: &Scene<F>) {
    let (journal, deferrals, failures) = (Journal::new(), Counter::default(), Counter::default());
    let later = journal.handler("later", move |_| {
        let first = deferrals.next() == 1;
        async move { if first { Err(HandlerError::defer(HOUR)) } else { Ok(()) } }
    });
    let failing = journal.handler("fails", move |_| {
        let failures = failures.clone();
        async move { if failures.next() < 4 { Err(HandlerError::from("not yet")) } else { Ok(()) } }
    });
    let outbox = outbox(scene.store(), settings())
        .on_topic_named("t", "later", later)
        .on_topic_named("t", "fails", failing)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    let waits = async || {
        let record = record(outbox.store(), id).await;
        record.state == State::Ready && record.message.handled.iter().any(|line| line == "fails")
    };
    eventually("the other one is done", waits).await;
    assert_eq!(journal.handlers_of(id), ["later", "fails", "fails", "fails", "fails"]);
    let due = record(outbox.store(), id).await.message.due_at;
    let now = scene.fixture.now().await;
    assert!(due > now + HOUR / 2 && due <= now + HOUR, "it waits for the rest of its hour");
    scene.fixture.advance(HOUR).await;
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id).len(), 6);
}

/// R14 for receivers: a requeue gives receivers that gave up a new chance, and the others do not get the message
/// twice.
pub async fn a_requeue_is_for_those_that_gave_up<F: Fixture>(scene: &Scene<F>) {
    let (journal, calls) = (Journal::new(), Counter::default());
    let gives_up = journal.handler("gives up", move |_| {
        let call = calls.next();
        async move { if call == 1 { Err(HandlerError::dead("never")) } else { Ok(()) } }
    });
    let outbox = outbox(scene.store(), settings())
        .on_topic_named("t", "gives up", gives_up)
        .on_topic_named("t", "takes", journal.noting("takes"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(outbox.store(), id, State::Dead).await;
    let filter = Filter { ids: vec![id], ..Filter::default() };
    let change = Change::new(filter, "operator", "mended").unwrap();
    outbox.store().requeue(&change).await.unwrap();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
    assert_eq!(journal.handlers_of(id), ["gives up", "takes", "gives up"]);
}

/// Shared by the two cases below: a first handler that never ends, and a second one behind it.
async fn behind_one_that_does_not_end<F: Fixture>(
    scene: &Scene<F>,
    first: impl Fn(posthaste_core::Message) -> posthaste_core::Answering + Send + Sync + 'static,
    journal: &Arc<Journal>,
) -> MessageId {
    let mut settings = settings();
    (settings.workers, settings.handler_timeout, settings.cancel_grace) = (8, ms(800), ms(50));
    let sink = ScriptedSink::new("sink");
    let guarded = Guarded::with(sink.clone(), quick().deadline(ms(700)));
    let outbox = outbox(scene.store(), settings)
        .max_attempts(2)
        .on_topic_named("t", "first", first)
        .on_topic_named("t", "second", journal.noting("second"))
        .sink("t", guarded)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(outbox.store(), id, State::Dead).await;
    running.shutdown.begin();
    drop(tokio::time::timeout(2 * DEADLINE, running.task).await.expect("it ends"));
    assert!(sink.taken_ids().contains(&id), "the sink has it");
    let dead = record(outbox.store(), id).await;
    assert!(dead.last_error.is_some_and(|error| error.contains("first: the handler")));
    id
}

/// A handler that hangs until it times out blocks no other: the others get the message, once each.
pub async fn one_that_hangs<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let hangs = journal.handler("first", async |_| std::future::pending().await);
    let id = behind_one_that_does_not_end(scene, hangs, &journal).await;
    assert_eq!(journal.handlers_of(id).iter().filter(|name| **name == "second").count(), 1);
}

/// R1 for receivers: one that blocks its thread gives up, and the others still get the message.
pub async fn one_that_blocks_its_thread<F: Fixture>(scene: &Scene<F>) {
    let (journal, blocker) = (Journal::new(), Blocker::new());
    let block = blocker.block();
    let blocks = journal.handler("first", move |_| {
        block();
        async { Ok(()) }
    });
    let id = behind_one_that_does_not_end(scene, blocks, &journal).await;
    assert_eq!(journal.handlers_of(id), ["first", "second"]);
    drop(blocker);
}

/// A sink that takes everything, but slowly.
#[derive(Debug)]
struct Slow(Duration);

#[async_trait]
impl Sink for Slow {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        tokio::time::sleep(self.0).await;
        batch.all(&Ok(()))
    }

    fn name(&self) -> String {
        "slow".to_owned()
    }
}

/// R8: a message that waits for its batch until its delivery times out has met a sink that is too slow, and pays no attempt.
pub async fn slow_a_late_sink_is_an_outage<F: Fixture>(scene: &Scene<F>) {
    let mut settings = settings();
    (settings.handler_timeout, settings.cancel_grace) = (ms(2_100), ms(20));
    // One message at a time: the second one waits for longer than the time-out, which is longer than the deadline.
    let options = quick().deadline(ms(2_000)).in_flight(1).batch(1);
    let sink = Guarded::with(Slow(ms(1_300)), options);
    let outbox = outbox(scene.store(), settings).max_attempts(1).sink("t", sink).build().await.unwrap();
    outbox.enqueue_all((0..2).map(|_| draft("t"))).await.unwrap();
    let running = run(&outbox);
    eventually("all are over", async || {
        records(outbox.store()).await.iter().all(|record| matches!(record.state, State::Done | State::Dead))
    })
    .await;
    running.stop().await;
    for record in records(outbox.store()).await {
        assert_eq!((record.state, record.message.attempts), (State::Done, 0), "{:?}", record.last_error);
    }
}

/// R8: a time-out that would always end a delivery before its sink's deadline is refused.
pub async fn a_timeout_before_the_deadline_is_refused<F: Fixture>(scene: &Scene<F>) {
    let deadline = Duration::from_secs(5);
    let sink = || Guarded::with(ScriptedSink::new("sink"), SinkOptions::new().deadline(deadline));
    let build = async |policy: &str, timeout: Duration| {
        let policies = Topics::of([policy]).unwrap();
        let builder = outbox(scene.store(), settings()).policy(policies, Policy::new().timeout(timeout));
        builder.sink("order.*", sink()).build().await.map(drop)
    };
    for policy in ["order.placed", "order.*", "o*", "*"] {
        let error = build(policy, deadline).await.unwrap_err().to_string();
        assert!(
            error.contains("the deadline of its sink is 5s") && error.contains("handler_timeout"),
            "{error}"
        );
    }
    build("order.placed", deadline + ms(1)).await.unwrap();
    build("invoice.*", ms(10)).await.unwrap();
    // The default counts only for topics without a policy.
    let short = async |policy: &str| {
        let mut settings = settings();
        settings.handler_timeout = ms(10);
        let builder = outbox(scene.store(), settings);
        let builder = builder.policy(Topics::of([policy]).unwrap(), Policy::new().timeout(MINUTE));
        builder.sink("order.*", sink()).build().await.map(drop)
    };
    short("order.*").await.unwrap();
    short("order.placed").await.unwrap_err();
}

/// F1: messages that wait for the end of an outage raise the alerts, although they are due later.
pub async fn an_outage_alerts<F: Fixture>(scene: &Scene<F>) {
    let store = Counting::new(scene.store());
    let (down, up) = (ScriptedSink::new("a"), ScriptedSink::new("b"));
    down.go_down("nobody answers");
    let mut settings = settings();
    settings.stats = Schedule::every(ms(20));
    (settings.alert_ready, settings.alert_oldest) = (10, MINUTE);
    let outbox =
        outbox(store, settings).sink("t", Guarded::with(down.clone(), quick())).sink("t", up.clone());
    let outbox = outbox.build().await.unwrap();
    let running = run(&outbox);
    outbox.enqueue_all((0..11).map(|_| draft("t"))).await.unwrap();
    let alert = |name: &str, value: f64| {
        let values = scene.meters.gauge("posthaste_alert", &[("alert", name)]);
        values.last().copied() == Some(value)
    };
    eventually("all of them wait", async || outbox.store().stats().await.unwrap().failing.value == 11).await;
    eventually("the number alerts", async || alert("ready", 1.0)).await;
    scene.fixture.advance(2 * MINUTE).await;
    eventually("the age alerts", async || alert("oldest", 1.0)).await;
    down.come_up();
    done(outbox.store(), 11).await;
    eventually("all is well", async || alert("ready", 0.0) && alert("oldest", 0.0)).await;
    running.stop().await;
}

/// F3: a sink that cannot be reached is found when a process starts, before any message needs it.
pub async fn an_idle_sink_is_probed<F: Fixture>(scene: &Scene<F>) {
    let (down, up) = (ScriptedSink::new("a"), ScriptedSink::new("b"));
    down.go_down("wrong password");
    let guarded = Guarded::with(down.clone(), quick());
    let outbox = outbox(scene.store(), settings()).sink("a", guarded.clone()).sink("b", up.clone());
    let outbox = outbox.build().await.unwrap();
    let running = run(&outbox);
    eventually("it is known to be down", async || guarded.is_down()).await;
    let breaker = |sink: &str, value: f64| {
        scene.meters.gauge("posthaste_breaker_open", &[("sink", sink)]).last().copied() == Some(value)
    };
    eventually("the metrics say so", async || breaker("a", 1.0) && breaker("b", 0.0)).await;
    down.come_up();
    eventually("it is there again", async || !guarded.is_down()).await;
    running.stop().await;
    assert!(down.batches().is_empty() && up.batches().is_empty());
}
