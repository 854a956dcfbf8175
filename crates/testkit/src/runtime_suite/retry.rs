//! What becomes of a message whose handler fails: when it comes again, what that costs, and when it is given up.
//!
//! Long delays are not waited for: the fixture lets the time pass.

use std::io;
use std::time::Duration;

use posthaste_core::{
    Delays, Failure, FailureClass, FixedDelay, HandlerError, HandlerResult, Message, Policy, RetryPolicy,
    Settings, State, StoreAdmin as _, Topics,
};

use super::Scene;
use super::support::{
    Blocker, Gate, HOUR, Journal, MINUTE, becomes, done, draft, eventually, ms, outbox, record, run, settings,
};
use crate::Fixture;

/// HOT-005, OBX-056, OBX-064, 18.4: a failing handler costs an attempt each time; the message is ready with a later due
/// time, and dead after the last attempt.
pub async fn attempts_grow_until_it_is_dead<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .retry(FixedDelay(HOUR))
        .max_attempts(3)
        .on_topic("t", journal.handler("t", async |_| Err(HandlerError::from("refused"))))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    for attempt in 1..=2 {
        let failed = async || record(outbox.store(), id).await.message.attempts == attempt;
        eventually("the attempt has failed", failed).await;
        let record = record(outbox.store(), id).await;
        let wait = record.message.due_at.duration_since(scene.fixture.now().await).unwrap();
        assert_eq!(record.state, State::Ready);
        assert!(wait > HOUR - MINUTE && wait <= HOUR + MINUTE, "{wait:?}");
        assert_eq!(record.last_error.as_deref(), Some("[BUSINESS] refused"));
        assert_eq!(record.error_class, Some(FailureClass::Business));
        scene.fixture.advance(HOUR).await;
    }
    becomes(outbox.store(), id, State::Dead).await;
    running.stop().await;
    let record = record(outbox.store(), id).await;
    assert_eq!((record.message.attempts, journal.count()), (3, 3));
    assert!(journal.calls().iter().map(|call| call.message.attempts).eq(0..3));
}

/// OBX-061, OBX-062, OBX-065, HOT-012: by default there are ten attempts, and the pauses double from 2 s, with a jitter.
pub async fn the_default_policy<F: Fixture>(scene: &Scene<F>) {
    let mut settings = settings();
    (settings.retry_base, settings.retry_max) =
        (Settings::default().retry_base, Settings::default().retry_max);
    let outbox = posthaste_core::Outbox::builder(scene.store())
        .settings(settings)
        .on_topic("t", async |_: Message| HandlerResult::Err(HandlerError::from("refused")))
        .build()
        .await
        .unwrap();
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    let mut attempts = 0;
    while attempts < 10 {
        let before = scene.fixture.now().await;
        outbox.drain().await.unwrap();
        let after = scene.fixture.now().await;
        let record = record(outbox.store(), id).await;
        assert!(record.message.attempts > attempts, "{record:?}");
        // One more, or several on a machine so slow that the next one was due before the drain ended.
        attempts = record.message.attempts;
        assert_eq!(record.state, if attempts < 10 { State::Ready } else { State::Dead });
        // It failed at some time between the two.
        let wait = |since| record.message.due_at.duration_since(since).unwrap_or_default();
        let base = Duration::from_secs(2u64.pow(attempts).min(60));
        assert!(attempts == 10 || wait(before) + ms(1_000) >= base.mul_f64(0.5), "{attempts}: {record:?}");
        assert!(attempts == 10 || wait(after) <= base.mul_f64(1.5) + ms(1_000), "{attempts}: {record:?}");
        scene.fixture.advance(MINUTE * 2).await;
    }
}

/// HOT-012, OBX-063: policies are pluggable by topic, and a handler can name its own delay.
pub async fn delays_of_ones_own<F: Fixture>(scene: &Scene<F>) {
    let refuse = async |_: Message| HandlerResult::Err(HandlerError::from("refused"));
    let own = async |_: Message| HandlerResult::Err(HandlerError::retry_after(5 * HOUR, "busy"));
    let outbox = outbox(scene.store(), settings())
        .retry(FixedDelay(HOUR))
        .policy(Topics::of(["mail.*"]).unwrap(), Policy::new().retry(Delays(vec![2 * HOUR])))
        .policy(Topics::of(["mail.once", "once"]).unwrap(), Policy::new().max_attempts(1))
        .on_topic("plain", refuse)
        .on_topic("mail.sent", refuse)
        .on_topic("mail.once", refuse)
        .on_topic("once", refuse)
        .on_topic("own", own)
        .build()
        .await
        .unwrap();
    let tally = async |topic: &str| {
        let id = outbox.enqueue(draft(topic)).await.unwrap().id();
        outbox.drain().await.unwrap();
        let record = record(outbox.store(), id).await;
        let wait = record.message.due_at.duration_since(scene.fixture.now().await).unwrap_or_default();
        assert_eq!(record.message.attempts, 1, "{topic}");
        (record.state, (wait + MINUTE).as_secs() / 3_600)
    };
    assert_eq!(tally("plain").await, (State::Ready, 1));
    assert_eq!(tally("mail.sent").await, (State::Ready, 2));
    assert_eq!(tally("mail.once").await, (State::Ready, 2), "of several policies the first decides");
    assert_eq!(tally("once").await.0, State::Dead);
    assert_eq!(tally("own").await, (State::Ready, 5));
}

/// HOT-005, OBX-036: putting a message off costs nothing, and giving it up takes one attempt.
pub async fn deferred_and_dead<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .max_attempts(2)
        .on_topic("later", journal.handler("later", async |_| Err(HandlerError::defer(HOUR))))
        .on_topic("never", journal.handler("never", async |_| Err(HandlerError::dead("pointless"))))
        .on_topic("large", async |_: Message| {
            HandlerResult::Err(HandlerError::failed(Failure::new(FailureClass::TooLarge, "4 GiB")))
        })
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let later = outbox.enqueue(draft("later")).await.unwrap().id();
    let never = outbox.enqueue(draft("never")).await.unwrap().id();
    let large = outbox.enqueue(draft("large")).await.unwrap().id();
    becomes(outbox.store(), never, State::Dead).await;
    becomes(outbox.store(), large, State::Dead).await;
    for round in 1..=4 {
        let again = async || journal.handlers_of(later).len() == round;
        eventually("it was called again", again).await;
        becomes(outbox.store(), later, State::Ready).await;
        scene.fixture.advance(HOUR).await;
    }
    running.stop().await;
    let later = record(outbox.store(), later).await;
    assert_eq!((later.message.attempts, later.last_error), (0, None));
    let never = record(outbox.store(), never).await;
    assert_eq!(never.last_error.as_deref(), Some("[BUSINESS] pointless"));
    assert_eq!(never.error_class, Some(FailureClass::Permanent));
    assert_eq!(record(outbox.store(), large).await.error_class, Some(FailureClass::TooLarge));
    assert_eq!(journal.handlers_of(never.message.id), ["never"]);
}

/// INB-006, protocol rule 13: an outage costs no attempt and a refusal costs one; both are recorded so.
pub async fn outages_cost_no_attempt<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let io = journal.handler("io", async |_| {
        let refused = io::Error::new(io::ErrorKind::ConnectionRefused, "nobody is there");
        Err(HandlerError::from(refused))
    });
    let file = async |_: Message| -> Result<(), io::Error> {
        Err(io::Error::new(io::ErrorKind::NotFound, "no file"))
    };
    let own = async |_: Message| -> Result<(), posthaste_core::Error> {
        Err(posthaste_core::Error::new(posthaste_core::ErrorKind::Unavailable, "no database"))
    };
    let outbox = outbox(scene.store(), settings())
        .max_attempts(2)
        .on_topic("io", io)
        .on_topic("file", file)
        .on_topic("own", own)
        .on_topic("said", async |_: Message| HandlerResult::Err(HandlerError::infrastructure("down")))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let io = outbox.enqueue(draft("io")).await.unwrap().id();
    let file = outbox.enqueue(draft("file")).await.unwrap().id();
    let own = outbox.enqueue(draft("own")).await.unwrap().id();
    let said = outbox.enqueue(draft("said")).await.unwrap().id();
    becomes(outbox.store(), file, State::Dead).await;
    eventually("it was tried much more often", async || journal.handlers_of(io).len() >= 5).await;
    running.stop().await;
    for (id, text) in [(io, "[INFRA] nobody is there"), (own, "[INFRA] "), (said, "[INFRA] down")] {
        let record = record(outbox.store(), id).await;
        assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
        assert!(record.last_error.as_ref().unwrap().starts_with(text), "{record:?}");
        assert_eq!(record.error_class, Some(FailureClass::Infrastructure));
    }
    let file = record(outbox.store(), file).await;
    assert_eq!((file.message.attempts, &*file.last_error.unwrap()), (2, "[BUSINESS] no file"));
}

/// INB-006: an outage ends for a message after its limit, and a success or an ordinary failure ends it before.
pub async fn outages_have_a_limit<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let down = journal.handler("down", async |_| Err(HandlerError::infrastructure("down")));
    let mixed = journal.handler("mixed", async |message| {
        if message.attempts == 0 && message.failing_since.is_some() {
            return Err(HandlerError::from("refused"));
        }
        Err(HandlerError::infrastructure("down"))
    });
    let outbox = outbox(scene.store(), settings())
        .retry(FixedDelay(HOUR))
        .outage_limit(Some(2 * HOUR + MINUTE))
        .on_topic("down", down)
        .on_topic("mixed", mixed)
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let down = outbox.enqueue(draft("down")).await.unwrap().id();
    let mixed = outbox.enqueue(draft("mixed")).await.unwrap().id();
    for round in 1..=4 {
        let both = async || [down, mixed].iter().all(|id| journal.handlers_of(*id).len() >= round);
        eventually("both were called", both).await;
        becomes(outbox.store(), mixed, State::Ready).await;
        let expected = if round < 4 { State::Ready } else { State::Dead };
        becomes(outbox.store(), down, expected).await;
        scene.fixture.advance(HOUR).await;
    }
    running.stop().await;
    let down = record(outbox.store(), down).await;
    assert_eq!((down.message.attempts, &*down.last_error.unwrap()), (0, "[INFRA] down"));
    assert_eq!(record(outbox.store(), mixed).await.message.attempts, 1);
    assert_eq!(scene.logs.events("a message is dead").len(), 1);
    assert_eq!(scene.meters.counter("posthaste_dead_total", &[("class", "infrastructure")]), 1);
}

/// Protocol rule 16, F-11: a panic is a failed attempt with its text, in the handler or in making it; the process lives.
pub async fn a_panic_is_a_failed_attempt<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let early = |_: Message| -> std::future::Ready<HandlerResult> { panic!("early {}", 1) };
    let late = async |_: Message| -> HandlerResult {
        tokio::task::yield_now().await;
        panic!("late")
    };
    let odd = async |_: Message| -> HandlerResult { std::panic::panic_any(42) };
    let outbox = outbox(scene.store(), settings())
        .max_attempts(2)
        .on_topic("early", early)
        .on_topic("late", late)
        .on_topic("odd", odd)
        .on_topic("good", journal.noting("good"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let mut ids = Vec::new();
    for topic in ["early", "late", "odd"] {
        ids.push(outbox.enqueue(draft(topic)).await.unwrap().id());
    }
    for (id, text) in ids.iter().zip(["early 1", "late", "no text"]) {
        becomes(outbox.store(), *id, State::Dead).await;
        let record = record(outbox.store(), *id).await;
        let expected = format!("[BUSINESS] the handler panicked: {text}");
        assert_eq!((record.message.attempts, record.last_error), (2, Some(expected)));
    }
    let good = outbox.enqueue(draft("good")).await.unwrap().id();
    becomes(outbox.store(), good, State::Done).await;
    running.stop().await;
}

/// HOT-018: stored texts have at most 4,000 bytes, whole characters and no NUL.
pub async fn long_errors_are_cut<F: Fixture>(scene: &Scene<F>) {
    let outbox = outbox(scene.store(), settings())
        .on_topic("t", async |_: Message| {
            HandlerResult::Err(HandlerError::dead(format!("a\0b{}", "é€".repeat(2_000))))
        })
        .build()
        .await
        .unwrap();
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    assert_eq!(outbox.drain().await.unwrap().dead, 1);
    let error = record(outbox.store(), id).await.last_error.unwrap();
    assert!(error.starts_with("[BUSINESS] abé€") && !error.contains('\0'));
    assert!((3_990..=4_000).contains(&error.len()), "{}", error.len());
}

/// F-10: a handler that times out is asked to stop, then dropped; its attempt has failed.
pub async fn too_slow_is_failed<F: Fixture>(scene: &Scene<F>) {
    let (journal, gate) = (Journal::new(), Gate::closed());
    let noting = journal.clone();
    let polite = move |message: Message, cancellation: posthaste_core::Cancellation| {
        let stay = noting.enter("polite", &message);
        async move {
            let _stay = stay;
            cancellation.cancelled().await;
            HandlerResult::Err(HandlerError::from("told to stop"))
        }
    };
    let outbox = outbox(scene.store(), settings())
        .max_attempts(1)
        .handler_timeout(ms(50))
        .policy(Topics::of(["patient"]).unwrap(), Policy::new().timeout(HOUR))
        .on_topic("polite", polite)
        .on_topic("deaf", journal.gated("deaf", &gate))
        .on_topic(
            "patient",
            journal.handler("patient", async |_| {
                tokio::time::sleep(ms(200)).await;
                Ok(())
            }),
        )
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let polite = outbox.enqueue(draft("polite")).await.unwrap().id();
    let deaf = outbox.enqueue(draft("deaf")).await.unwrap().id();
    let patient = outbox.enqueue(draft("patient")).await.unwrap().id();
    for id in [polite, deaf] {
        becomes(outbox.store(), id, State::Dead).await;
        let error = record(outbox.store(), id).await.last_error.unwrap();
        assert_eq!(error, "[BUSINESS] the handler took longer than 50ms");
    }
    becomes(outbox.store(), patient, State::Done).await;
    assert_eq!(journal.running(), 0, "the deaf one was dropped");
    running.stop().await;
}

/// F-10, F-11: a handler that blocks its thread cannot be stopped; its message is dead, and the others go on.
pub async fn a_blocked_thread<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let blocker = Blocker::new();
    let block = blocker.block();
    let blocking = move |_: Message| {
        let block = block.clone();
        async move {
            block();
            HandlerResult::Ok(())
        }
    };
    let mut settings = settings();
    // Time enough for it to begin, and to block: a handler that is cancelled before does not block.
    (settings.workers, settings.handler_timeout, settings.cancel_grace) = (2, ms(1_500), ms(50));
    let outbox = outbox(scene.store(), settings)
        .on_topic("blocking", blocking)
        .on_topic("t", journal.noting("t"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let id = outbox.enqueue(draft("blocking")).await.unwrap().id();
    becomes(outbox.store(), id, State::Dead).await;
    let record = record(outbox.store(), id).await;
    assert!(record.last_error.unwrap().contains("blocked its thread"));
    assert_eq!(record.message.attempts, 0, "every further attempt would cost a thread");
    for _ in 0..5 {
        outbox.enqueue(draft("t")).await.unwrap();
    }
    done(outbox.store(), 5).await;
    assert_eq!(journal.most(), 1, "the blocked one still takes one of two places");
    drop(blocker);
    running.stop().await;
    assert_eq!(outbox.store().stats().await.unwrap().dead.value, 1);
}

/// The longest delay there is ends neither the loop nor the message: it is cut to what every database can add to its clock.
pub async fn endless_delays_are_cut<F: Fixture>(scene: &Scene<F>) {
    const ENDLESS: Duration = Duration::MAX;
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .retry(FixedDelay(ENDLESS))
        .on_topic("defer", async |_: Message| HandlerResult::Err(HandlerError::defer(ENDLESS)))
        .on_topic("after", async |_: Message| HandlerResult::Err(HandlerError::retry_after(ENDLESS, "no")))
        .on_topic("policy", async |_: Message| HandlerResult::Err(HandlerError::from("no")))
        .on_topic("outage", async |_: Message| HandlerResult::Err(HandlerError::infrastructure("down")))
        .on_topic("well", journal.noting("well"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    for topic in ["defer", "after", "policy", "outage"] {
        let id = outbox.enqueue(draft(topic)).await.unwrap().id();
        let years = 99 * 365 * 24 * HOUR;
        let put_off =
            async || record(outbox.store(), id).await.message.due_at > scene.fixture.now().await + years;
        eventually("it is put off for a hundred years", put_off).await;
        assert_eq!(record(outbox.store(), id).await.state, State::Ready, "{topic}");
    }
    let id = outbox.enqueue(draft("well")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
}

/// A retry policy that panics costs nothing but its own opinion: the default one decides, and the others go on.
pub async fn a_panicking_policy_is_replaced<F: Fixture>(scene: &Scene<F>) {
    #[derive(Debug)]
    struct Panics;
    impl RetryPolicy for Panics {
        fn delay(&self, _: u32, _: f64) -> Duration {
            panic!("a policy that panics")
        }
    }
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .retry(Panics)
        .on_topic("refused", async |_: Message| HandlerResult::Err(HandlerError::from("no")))
        .on_topic("outage", async |_: Message| HandlerResult::Err(HandlerError::infrastructure("down")))
        .on_topic("well", journal.noting("well"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    for topic in ["refused", "outage"] {
        let id = outbox.enqueue(draft(topic)).await.unwrap().id();
        eventually("it failed", async || record(outbox.store(), id).await.last_error.is_some()).await;
        assert_ne!(record(outbox.store(), id).await.state, State::Dead, "{topic}");
    }
    let id = outbox.enqueue(draft("well")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    running.stop().await;
}
