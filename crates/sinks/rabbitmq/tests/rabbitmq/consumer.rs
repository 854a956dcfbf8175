//! The consumer: acked after the commit, again after a failure, a dead letter in the end, and each effect once.

mod case;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use posthaste_core::{
    Consumer, HandlerError, HandlerResult, Inbox, MemoryStore, MemoryTransaction, MessageId, Outbox,
    Received, Schedule,
};
use posthaste_rabbitmq::{DeadLetter, RabbitConsumer, RabbitSink, Topology};
use posthaste_testkit::{Counting, Mode, Proxy, SinkFixture as _};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use self::case::{Acting, Case, run};
use crate::fixture::{RabbitFixture, texts, until, with_server};
use crate::verdicts::{message, messages, send};

/// INB-003: a consumer handles a sink's message, with all fields for the handler, and acks it at the end.
#[test]
fn messages_are_acted_upon() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
        let consumer = case
            .consumer(case.server(), {
                let seen = Arc::clone(&seen);
                move |message: &Received| {
                    seen.lock().unwrap().push(message.clone());
                    async { Ok(()) }
                }
            })
            .await;
        let running = run(&consumer);
        let sink = RabbitSink::new(fixture.options().source("shop")).unwrap();
        let mut sent = message("in", "{\"n\":7}");
        sent.correlation_id = Some("request-1".to_owned());
        sent.key = Some("customer-7".to_owned());
        sent.headers.insert("note".to_owned(), "hello".to_owned());
        assert_eq!(send(&sink, &[Arc::new(sent.clone())]).await, [Ok(())]);
        case.publish(99).await;
        until("a hundred effects", async || (case.effects().await == 100).then_some(())).await;
        running.stop().await;
        case.is_empty().await;
        let seen = seen.lock().unwrap();
        let got = seen.iter().find(|message| message.id == sent.id).unwrap();
        assert_eq!((got.source.as_str(), got.topic.as_str()), ("shop", "in"));
        assert_eq!((&got.payload[..], got.content_type.as_str()), (&b"{\"n\":7}"[..], "application/json"));
        assert_eq!(got.correlation_id.as_deref(), Some("request-1"));
        assert_eq!(
            (got.headers["note"].as_str(), got.headers["posthaste-key"].as_str()),
            ("hello", "customer-7")
        );
        assert!(got.occurred_at.is_some() && !got.redelivered);
    });
}

/// INB-001, INB-003: the connection is lost after the commit and before the ack: the message comes again, and its effect
/// does not.
#[test]
fn a_lost_ack_costs_no_second_effect() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let proxy = Arc::new(Proxy::start(fixture.server()).await.unwrap());
        let calls = Arc::new(AtomicU32::new(0));
        let consumer = case
            .consumer(fixture.server_at(proxy.addr()), {
                let (proxy, calls) = (Arc::clone(&proxy), Arc::clone(&calls));
                move |_: &Received| {
                    // From now on the server hears nothing: not the ack, either.
                    if calls.fetch_add(1, Ordering::SeqCst) == 0 {
                        proxy.set(Mode::Blackhole);
                    }
                    async { Ok(()) }
                }
            })
            .await;
        let running = run(&consumer.prefetch(1));
        case.publish(1).await;
        until("the commit", async || (case.effects().await == 1).then_some(())).await;
        // Cut while it holds everything up, so that the ack dies in it.
        proxy.cut();
        proxy.set(Mode::Forward);
        // One at a time, in order: when the second is done, the first has come again and is acked.
        case.publish(1).await;
        until("the second", async || (case.effects().await == 2).then_some(())).await;
        running.stop().await;
        case.is_empty().await;
        assert_eq!((case.effects().await, calls.load(Ordering::SeqCst)), (2, 2), "each acted upon once");
    });
}

/// INB-002, INB-003: a failed handler leaves nothing behind, and the message comes again until it succeeds.
#[test]
fn a_failed_message_comes_again() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let calls = Arc::new(AtomicU32::new(0));
        let consumer = case
            .consumer(case.server(), {
                let calls = Arc::clone(&calls);
                move |_: &Received| {
                    let call = calls.fetch_add(1, Ordering::SeqCst);
                    async move {
                        match call {
                            0 => Err("no stock".into()),
                            1..=4 => Err(HandlerError::infrastructure("the shelf is away")),
                            5 => panic!("what is this?"),
                            _ => Ok(()),
                        }
                    }
                }
            })
            .await;
        let running = run(&consumer);
        case.publish(1).await;
        until("the effect", async || (case.effects().await == 1).then_some(())).await;
        running.stop().await;
        case.is_empty().await;
        // Two of three attempts were charged: the failure and the panic.
        assert_eq!(calls.load(Ordering::SeqCst), 7);
        assert_eq!(fixture.depth(&case.dead).await, 0);
    });
}

/// INB-003: after its last attempt, or at once if it will never succeed, a message is a dead letter that says why, and the
/// others go on.
#[test]
fn what_never_succeeds_is_a_dead_letter() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let calls = Arc::new(AtomicU32::new(0));
        let consumer = case
            .consumer(case.server(), {
                let calls = Arc::clone(&calls);
                move |message: &Received| {
                    let content = String::from_utf8_lossy(&message.payload).into_owned();
                    calls.fetch_add(u32::from(content == "0"), Ordering::SeqCst);
                    async move {
                        match content.as_str() {
                            "0" => Err("no stock".into()),
                            "1" => Err(HandlerError::dead("poison")),
                            _ => Ok(()),
                        }
                    }
                }
            })
            .await;
        let running = run(&consumer);
        let ids = case.publish(5).await;
        until("two dead letters", async || {
            (fixture.depth(&case.dead).await == 2 && case.effects().await == 3).then_some(())
        })
        .await;
        running.stop().await;
        case.is_empty().await;
        assert_eq!(calls.load(Ordering::SeqCst), 3, "it had three attempts");
        for (properties, payload) in fixture.drain(&case.dead).await {
            let n = usize::from(payload == b"1");
            let headers = texts(&properties);
            let (class, why) = [("business", "no stock"), ("permanent", "poison")][n];
            assert_eq!(properties.message_id().clone().unwrap().to_string(), ids[n].to_string());
            assert_eq!(
                (headers["posthaste-error-class"].as_str(), *properties.delivery_mode()),
                (class, Some(2))
            );
            assert!(headers["posthaste-error"].contains(why) && headers["posthaste-queue"] == case.queue);
        }
    });
}

/// INB-003: a message without an id is a dead letter that says so, unless the consumer finds an id for it.
#[test]
fn a_message_without_an_id_is_not_guessed_at() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let publish = async |note: &str| {
            let mut headers = lapin::types::FieldTable::default();
            headers.insert("note".into(), lapin::types::AMQPValue::LongString(note.into()));
            let properties = BasicProperties::default().with_headers(headers);
            let (exchange, options) = (fixture.exchange.as_str().into(), BasicPublishOptions::default());
            fixture.channel.basic_publish(exchange, "in".into(), options, b"x", properties).await.unwrap();
        };
        let consumer = case.consumer(case.server(), |_: &Received| async { Ok(()) }).await;
        let consumer =
            consumer.id_of(|message| message.headers.get("note").filter(|note| !note.is_empty()).cloned());
        let running = run(&consumer);
        for note in ["one", "", "one", "two"] {
            publish(note).await;
        }
        until("all four", async || {
            (case.effects().await == 2 && fixture.depth(&case.dead).await >= 1).then_some(())
        })
        .await;
        running.stop().await;
        // Messages that were not acked by then, the second of the same id or the dead letter, come again, without an
        // effect.
        until("the queue is empty", async || {
            if fixture.depth(&case.queue).await == 0 {
                return Some(());
            }
            let running = run(&consumer);
            until("it is taken", async || case.is_taken().await.then_some(())).await;
            running.stop().await;
            None
        })
        .await;
        assert_eq!(case.effects().await, 2);
        let (properties, _) = fixture.drain(&case.dead).await.pop().unwrap();
        assert!(texts(&properties)["posthaste-error"].contains("no message_id"));
    });
}

/// INB-003: a dead letter that its queue does not take stays where it was, and goes when it does.
#[test]
fn a_dead_letter_is_not_lost_either() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let consumer =
            case.consumer(case.server(), |_: &Received| async { Err(HandlerError::dead("poison")) }).await;
        let running = run(&consumer);
        until("it consumes", async || case.is_taken().await.then_some(())).await;
        let delete = lapin::options::QueueDeleteOptions::default();
        fixture.channel.queue_delete(case.dead.as_str().into(), delete).await.unwrap();
        case.publish(1).await;
        // Given back when it stops, because no queue took it.
        until("it is held", async || case.is_taken().await.then_some(())).await;
        running.stop().await;
        until("it is back", async || (fixture.depth(&case.queue).await == 1).then_some(())).await;
        fixture.queue(&case.dead).await;
        let running = run(&consumer);
        until("it is dead", async || (fixture.depth(&case.dead).await == 1).then_some(())).await;
        running.stop().await;
        case.is_empty().await;
    });
}

/// INB-003: with the server's own dead letters, a message is rejected.
#[test]
fn the_server_may_have_its_own_dead_letters() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let queue = fixture.queue_of("own");
        let mut arguments = lapin::types::FieldTable::default();
        for (name, value) in
            [("x-dead-letter-exchange", ""), ("x-dead-letter-routing-key", case.dead.as_str())]
        {
            arguments.insert(name.into(), lapin::types::AMQPValue::LongString(value.into()));
        }
        let exclusive = lapin::options::QueueDeclareOptions { auto_delete: true, ..Default::default() };
        fixture.channel.queue_declare(queue.as_str().into(), exclusive, arguments).await.unwrap();
        fixture.bind(&queue, "in").await;
        let inbox = Inbox::new(case.store.clone(), "test").unwrap();
        let outbox = Outbox::builder(case.store.clone()).build().await.unwrap();
        let first = |_: &Received| async { Err(HandlerError::dead("poison")) };
        let consumer = Consumer::new(inbox, Acting { outbox, first });
        let consumer = RabbitConsumer::new(case.server(), queue, DeadLetter::BrokerPolicy, consumer).unwrap();
        let running = run(&consumer);
        case.publish(1).await;
        until("it is dead", async || (fixture.depth(&case.dead).await == 1).then_some(())).await;
        running.stop().await;
    });
}

/// INB-003: a queue that is not there yet is waited for; a connection that is cut is replaced; each effect once.
#[test]
fn slow_a_consumer_comes_back_by_itself() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let delete = lapin::options::QueueDeleteOptions::default();
        fixture.channel.queue_delete(case.queue.as_str().into(), delete).await.unwrap();
        let proxy = Proxy::start(fixture.server()).await.unwrap();
        proxy.set(Mode::Refuse);
        let consumer = case.consumer(fixture.server_at(proxy.addr()), |_: &Received| async { Ok(()) }).await;
        let running = run(&consumer);
        tokio::time::sleep(Duration::from_millis(300)).await;
        proxy.set(Mode::Forward);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!running.task.is_finished());
        fixture.take("in").await;
        let mut expected = 0;
        for _ in 0..5 {
            case.publish(100).await;
            expected += 100;
            tokio::time::sleep(Duration::from_millis(fastrand_ms())).await;
            proxy.cut();
        }
        until("all of them", async || (case.effects().await >= expected).then_some(())).await;
        running.stop().await;
        // A message that was handled, but not acked, is recognised when it comes again.
        until("all acked", async || {
            let running = run(&consumer);
            tokio::time::sleep(Duration::from_millis(100)).await;
            running.stop().await;
            (fixture.depth(&case.queue).await == 0).then_some(())
        })
        .await;
        assert_eq!(case.effects().await, expected);
    });
}

/// R17: as many handlers as `concurrency` says run at a time, those of a lost connection included; and a shutdown waits for
/// these, too.
#[test]
fn a_new_connection_has_no_more_handlers() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let proxy = Proxy::start(fixture.server()).await.unwrap();
        let (now, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let finish = watch::Sender::new(false);
        let first = {
            let (now, most, finish) = (Arc::clone(&now), Arc::clone(&most), finish.clone());
            move |_: &Received| {
                let (now, mut finish) = (Arc::clone(&now), finish.subscribe());
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                async move {
                    finish.wait_for(|finish| *finish).await.unwrap();
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }
            }
        };
        let consumer = case.consumer(fixture.server_at(proxy.addr()), first).await;
        let running = run(&consumer.concurrency(2));
        case.publish(6).await;
        until("two run", async || (now.load(Ordering::SeqCst) == 2).then_some(())).await;
        proxy.cut();
        // Without an id it becomes a dead letter, for which no handler has to run: behind all that came again.
        let (exchange, options) = (fixture.exchange.as_str().into(), BasicPublishOptions::default());
        let properties = BasicProperties::default();
        fixture.channel.basic_publish(exchange, "in".into(), options, b"x", properties).await.unwrap();
        until("the new connection works", async || (fixture.depth(&case.dead).await >= 1).then_some(()))
            .await;
        assert_eq!(most.load(Ordering::SeqCst), 2);
        // Refused, so that the shutdown finds no connection, and handlers of lost ones only.
        proxy.set(Mode::Refuse);
        proxy.cut();
        // One more, if the ack of the dead letter was lost.
        until("the messages are back", async || (fixture.depth(&case.queue).await >= 6).then_some(())).await;
        running.shutdown.begin();
        let not_yet = tokio::time::timeout(
            Duration::from_millis(200),
            until("no handler", async || running.task.is_finished().then_some(())),
        );
        assert!(not_yet.await.is_err(), "handlers still run");
        finish.send_replace(true);
        running.task.await.unwrap();
        assert_eq!((now.load(Ordering::SeqCst), most.load(Ordering::SeqCst)), (0, 2));
        assert_eq!(case.effects().await, 2);
        fixture.drain(&case.queue).await;
    });
}

/// R17: dropping the consumer's future cancels no statement: pruning, once begun, completes.
#[test]
fn a_dropped_consumer_cuts_off_no_statement() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let store = Counting::new(case.store.clone());
        store.hold("turn");
        let inbox = Inbox::new(store.clone(), "test").unwrap();
        let consumer = Consumer::new(inbox.prune(Schedule::every(Duration::from_millis(10))), nothing);
        let dead = DeadLetter::Queue(case.dead.clone());
        let consumer = RabbitConsumer::new(case.server(), case.queue.as_str(), dead, consumer).unwrap();
        let running = run(&consumer);
        until("the statement runs", async || (store.calls("turn") == 1).then_some(())).await;
        running.task.abort();
        assert!(running.task.await.unwrap_err().is_cancelled());
        store.let_go("turn");
        until("it was not cut off", async || (store.calls("forget") > 0).then_some(())).await;
        running.shutdown.begin();
    });
}

/// R17: a message that waits for its next attempt is given back before the server loses its patience, and goes on where it
/// was: it waits for the rest of its time, and its attempts are counted on.
#[test]
fn a_message_that_waits_is_given_back_and_goes_on() {
    const DELAY: Duration = Duration::from_millis(500);
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
        let first = {
            let calls = Arc::clone(&calls);
            move |message: &Received| {
                calls.lock().unwrap().push((Instant::now(), message.redelivered));
                async { Err(HandlerError::retry_after(DELAY, "no stock")) }
            }
        };
        let consumer = case.consumer(case.server(), first).await;
        let running = run(&consumer.hold(Duration::from_millis(50)));
        case.publish(1).await;
        until("it is dead", async || (fixture.depth(&case.dead).await == 1).then_some(())).await;
        running.stop().await;
        let calls = calls.lock().unwrap();
        assert_eq!(calls.len(), 3, "it had three attempts");
        assert!(calls.windows(2).all(|pair| pair[1].0 - pair[0].0 >= DELAY), "{calls:?}");
        assert!(calls[2].1, "it was given back meanwhile");
    });
}

/// R17: a message that is deferred for longer than the server lets it be held comes again when it is due, and not before.
pub(crate) async fn a_long_defer_outlives_the_patience_of_the_server(fixture: &RabbitFixture) {
    const DELAY: Duration = Duration::from_secs(12);
    let case = Case::new(fixture).await;
    let calls = Arc::new(std::sync::Mutex::new(Vec::new()));
    let first = {
        let calls = Arc::clone(&calls);
        move |_: &Received| {
            let mut calls = calls.lock().unwrap();
            calls.push(Instant::now());
            let is_first = calls.len() == 1;
            async move { if is_first { Err(HandlerError::defer(DELAY)) } else { Ok(()) } }
        }
    };
    let consumer = case.consumer(case.server(), first).await;
    let running = run(&consumer.hold(Duration::from_secs(1)));
    case.publish(1).await;
    until("the effect", async || (case.effects().await == 1).then_some(())).await;
    running.stop().await;
    let calls = calls.lock().unwrap();
    assert!(calls.len() == 2 && calls[1] - calls[0] >= DELAY, "{calls:?}");
}

fn fastrand_ms() -> u64 {
    u64::from(MessageId::new().as_bytes()[15]) % 50
}

/// INB-003: a shutdown lets a handler finish and its message be acked, and gives back waiting messages.
#[test]
fn a_shutdown_finishes_what_runs() {
    with_server(async |fixture| {
        let case = Case::new(fixture).await;
        let (started, finish) = (Arc::new(Notify::new()), watch::Sender::new(false));
        let consumer = case
            .consumer(case.server(), {
                let (started, finish) = (Arc::clone(&started), finish.clone());
                move |message: &Received| {
                    let runs = &message.payload[..] == b"0";
                    let (started, mut finish) = (Arc::clone(&started), finish.subscribe());
                    async move {
                        if !runs {
                            return Err(HandlerError::retry_after(Duration::from_secs(600), "later"));
                        }
                        started.notify_one();
                        finish.wait_for(|finish| *finish).await.unwrap();
                        Ok(())
                    }
                }
            })
            .await;
        let consumer = consumer.concurrency(2).prefetch(5);
        let running = run(&consumer);
        case.publish(10).await;
        started.notified().await;
        running.shutdown.begin();
        // Waiting messages come back while the running one still runs.
        until("nine are back", async || (fixture.depth(&case.queue).await == 9).then_some(())).await;
        assert!(!running.task.is_finished());
        finish.send_replace(true);
        running.task.await.unwrap();
        assert_eq!((fixture.depth(&case.queue).await, case.effects().await), (9, 1));
        fixture.drain(&case.queue).await;
    });
}

/// INB-003: the consumer finds the declared topology, and invalid consumers are refused.
#[test]
fn queues_can_be_declared() {
    with_server(async |fixture| {
        let (queue, dead) = (fixture.queue_of("fresh"), fixture.queue_of("fresh.dead"));
        let topology = Topology::new().quorum_queue(queue.as_str()).queue(dead.as_str()).bind(
            queue.as_str(),
            fixture.exchange.as_str(),
            "in",
        );
        let server = fixture.server_at(fixture.server());
        let case = Case { fixture, store: MemoryStore::new(), queue: queue.clone(), dead: dead.clone() };
        let consumer = case.consumer(server.clone().declare(topology), |_: &Received| async { Ok(()) }).await;
        let running = run(&consumer);
        until("the queue is bound", async || {
            let sink = RabbitSink::new(fixture.options()).unwrap();
            send(&sink, &messages("in", 1)).await[0].is_ok().then_some(())
        })
        .await;
        until("the effect", async || (case.effects().await == 1).then_some(())).await;
        running.stop().await;
        for name in [queue, dead] {
            let delete = lapin::options::QueueDeleteOptions::default();
            fixture.channel.queue_delete(name.into(), delete).await.unwrap();
        }
        let long = "q".repeat(256);
        for (queue, dead) in [("", "dead"), ("queue", ""), ("queue", "queue"), (long.as_str(), "dead")] {
            let inbox = Inbox::new(MemoryStore::new(), "test").unwrap();
            let consumer = Consumer::new(inbox, nothing);
            let dead = DeadLetter::Queue(dead.to_owned());
            assert!(RabbitConsumer::new(server.clone(), queue, dead, consumer).is_err());
        }
    });
}

async fn nothing(_: &mut MemoryTransaction, _: &Received) -> HandlerResult {
    Ok(())
}

/// INB-003: a quorum queue counts deliveries, and they count as attempts: a message that ends its consumers every time is a
/// dead letter in the end.
#[test]
fn deliveries_of_a_quorum_queue_are_attempts() {
    with_server(async |fixture| {
        let mut case = Case::new(fixture).await;
        case.queue = fixture.queue_of("quorum");
        let topology = Topology::new().quorum_queue(case.queue.as_str());
        let calls = Arc::new(AtomicU32::new(0));
        let first = {
            let calls = Arc::clone(&calls);
            move |_: &Received| {
                calls.fetch_add(1, Ordering::SeqCst);
                async { Err("no stock".into()) }
            }
        };
        let consumer = case.consumer(case.server().declare(topology.clone()), first).await;
        let exchange = fixture.exchange.clone();
        let sink = fixture.options().declare(topology.bind(case.queue.as_str(), exchange, "counted"));
        assert_eq!(send(&RabbitSink::new(sink).unwrap(), &messages("counted", 1)).await, [Ok(())]);
        for _ in 0..2 {
            let get = || fixture.channel.basic_get(case.queue.as_str().into(), Default::default());
            let delivery = until("it is there", async || get().await.unwrap()).await;
            let again = lapin::options::BasicNackOptions { requeue: true, ..Default::default() };
            delivery.acker.nack(again).await.unwrap();
        }
        let running = run(&consumer);
        until("it is dead", async || (fixture.depth(&case.dead).await == 1).then_some(())).await;
        running.stop().await;
        assert_eq!(calls.load(Ordering::SeqCst), 1, "two of its three attempts were used up before");
        let delete = lapin::options::QueueDeleteOptions::default();
        fixture.channel.queue_delete(case.queue.as_str().into(), delete).await.unwrap();
    });
}
