//! The sink's verdict on each message matches the server's action.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use futures_util::stream::{self, StreamExt as _};
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use posthaste_core::{Batch, FailureClass, Headers, Message, Sink, Verdict};
use posthaste_rabbitmq::{Destination, ExchangeType, RabbitOptions, RabbitServer, RabbitSink, Topology};
use posthaste_testkit::SinkFixture as _;
pub(crate) use posthaste_testkit::claimed as message;
use tokio::time::Instant;

use crate::fixture::{LONG, texts, until, url, with_server};

pub(crate) fn messages(topic: &str, count: usize) -> Vec<Arc<Message>> {
    (0..count).map(|n| Arc::new(message(topic, format!("{n}")))).collect()
}

pub(crate) async fn send(sink: &RabbitSink, batch: &[Arc<Message>]) -> Vec<Verdict> {
    sink.send(&Batch::new(batch, Instant::now() + LONG)).await
}

pub(crate) fn class(verdict: &Verdict) -> Option<FailureClass> {
    verdict.as_ref().err().map(posthaste_core::SinkError::class)
}

fn text(verdict: &Verdict) -> &str {
    verdict.as_ref().err().map_or("", |error| error.failure().text())
}

/// RMQ-002, RMQ-003, F-22: of 20,000 messages in windows of several sizes, 1 % have no queue. Not one verdict is wrong, and
/// the queue has exactly the messages that the sink reports.
#[test]
fn slow_one_in_a_hundred_has_no_queue() {
    with_server(async |fixture| {
        for window in [1, 10, 50, 500] {
            let topic = format!("there.{window}");
            fixture.take(&topic).await;
            let sink = RabbitSink::new(fixture.options().window(window)).unwrap();
            let count = 20_000;
            // Not at the same place of each window.
            let lost = |n: usize| n.wrapping_mul(2_654_435_761) % 100 == 7;
            let all: Vec<_> = (0..count)
                .map(|n| Arc::new(message(if lost(n) { "nowhere" } else { &topic }, format!("{n}"))))
                .collect();
            let (mut kept, mut unroutable, started) = (BTreeSet::new(), 0, Instant::now());
            // Eight batches at a time, each on a channel of its own.
            let sending = all.chunks(500).map(|batch| send(&sink, batch));
            let verdicts: Vec<_> = stream::iter(sending).buffered(8).collect().await;
            for (n, verdict) in verdicts.concat().iter().enumerate() {
                match class(verdict) {
                    None => {
                        assert!(!lost(n), "window {window}: {n} was returned and counts as taken");
                        kept.insert(all[n].id);
                    }
                    Some(FailureClass::Unroutable) => {
                        assert!(lost(n), "window {window}: {n} was taken and counts as unroutable");
                        unroutable += 1;
                    }
                    Some(_) => panic!("window {window}: {}", text(verdict)),
                }
            }
            println!("window {window}: {count} in {:?}, {unroutable} unroutable", started.elapsed());
            assert_eq!(unroutable, (0..count).filter(|n| lost(*n)).count());
            let found = fixture.ids(&fixture.queue_of(&topic), kept.len()).await;
            assert_eq!(found, kept);
        }
    });
}

/// RMQ-003, M-16: why the sink does not take lapin's word for which message was returned. When many are under way, a return is
/// handed to whichever confirm is completed next. The sink is right all the same, with as many.
#[test]
fn slow_lapin_hands_returns_to_the_wrong_confirms() {
    const COUNT: usize = 5_000;
    const MOST_ROUNDS: usize = 8;
    let topic = |n: usize| if n % 10 == 3 { "nowhere" } else { "there" };
    with_server(async |fixture| {
        fixture.take("there").await;
        let connection = Connection::connect(&url().unwrap(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let window = u32::try_from(COUNT).unwrap();
        let sink = RabbitSink::new(fixture.options().window(window)).unwrap();
        let (mut rounds, mut wrong) = (0, 0);
        // By lapin and by the sink in turns, until lapin has been wrong. On a busy machine it may be right by luck, for long:
        // that is no failure of the sink, so the number of rounds is limited, and every round checks the sink.
        for round in 1..=MOST_ROUNDS {
            let publishing = (0..COUNT).map(|n| {
                let properties = BasicProperties::default().with_message_id(n.to_string().into());
                let exchange = fixture.exchange.as_str().into();
                let properties = properties.with_delivery_mode(2);
                channel.basic_publish(exchange, topic(n).into(), options, b"x", properties)
            });
            let confirms = futures_util::future::join_all(publishing).await;
            let (mut returned, before) = (BTreeSet::new(), wrong);
            for (n, confirm) in confirms.into_iter().enumerate() {
                let message = confirm.unwrap().await.unwrap().take_message();
                let id = message.map(|message| message.properties.message_id().clone().unwrap().to_string());
                wrong += usize::from(id.as_ref().is_some_and(|id| *id != n.to_string()));
                returned.extend(id);
            }
            // How many, it knows; and once all confirms are there, which.
            let expected = (0..COUNT).filter(|n| topic(*n) == "nowhere");
            assert_eq!(returned, expected.map(|n| n.to_string()).collect());
            rounds += usize::from(wrong > before);

            let batch: Vec<_> = (0..COUNT).map(|n| Arc::new(message(topic(n), "x"))).collect();
            for (n, verdict) in send(&sink, &batch).await.iter().enumerate() {
                let expected = (topic(n) == "nowhere").then_some(FailureClass::Unroutable);
                assert_eq!(class(verdict), expected, "{n}: {}", text(verdict));
            }
            if round >= 3 && rounds > 0 {
                break;
            }
        }
        println!(
            "{wrong} returns were handed to the wrong confirm in {rounds} rounds of {COUNT}, 500 of them returned"
        );
    });
}

/// RMQ-006: everything that a message has arrives where a receiver looks for it.
#[test]
fn a_message_arrives_with_all_its_properties() {
    with_server(async |fixture| {
        fixture.take("order.placed").await;
        let sink = RabbitSink::new(fixture.options().source("shop")).unwrap();
        let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let sent = Message {
            key: Some("customer-7".to_owned()),
            correlation_id: Some("request-1".to_owned()),
            aggregate_type: Some("order".to_owned()),
            aggregate_id: Some("42".to_owned()),
            tenant_id: Some("north".to_owned()),
            headers: Headers::from([("traceparent".to_owned(), trace.to_owned())]),
            ..message("order.placed", "{}")
        };
        let sent = [Arc::new(sent)];
        assert_eq!(send(&sink, &sent).await, [Ok(())]);
        let (properties, payload) = fixture.drain(&fixture.queue_of("order.placed")).await.pop().unwrap();
        assert_eq!(payload, b"{}");
        assert_eq!(*properties.delivery_mode(), Some(2));
        let id = sent[0].id.to_string();
        let seconds = sent[0].occurred_at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let texts_of = [
            (properties.message_id(), id.as_str()),
            (properties.correlation_id(), "request-1"),
            (properties.content_type(), "application/json"),
            (properties.kind(), "order.placed"),
            (properties.app_id(), "shop"),
        ];
        for (found, expected) in texts_of {
            assert_eq!(found.as_ref().map(ToString::to_string).as_deref(), Some(expected));
        }
        assert_eq!(*properties.timestamp(), Some(seconds));
        assert_eq!(*properties.expiration(), None);
        let expected = [
            ("posthaste-aggregate-id", "42"),
            ("posthaste-aggregate-type", "order"),
            ("posthaste-key", "customer-7"),
            ("posthaste-tenant", "north"),
            ("traceparent", trace),
        ];
        assert_eq!(texts(&properties), expected.map(|(name, value)| (name.into(), value.into())).into());
    });
}

/// RMQ-006: the exchange and the routing key follow from the topic by configuration. One exchange that does not exist harms
/// no message to another.
#[test]
fn a_missing_exchange_harms_no_other() {
    with_server(async |fixture| {
        fixture.take("there").await;
        let own = fixture.exchange.clone();
        let options = fixture.options().window(3).route(move |topic| match topic {
            "missing" => Destination::new("posthaste-test-no-such-exchange", topic),
            topic => Destination::new(own.clone(), topic),
        });
        let sink = RabbitSink::new(options).unwrap();
        let topics =
            ["there", "missing", "there", "nowhere", "missing", "there", "there", "missing", "missing"];
        let batch: Vec<_> = topics.map(|topic| Arc::new(message(topic, "x"))).into();
        for _ in 0..3 {
            for (verdict, topic) in send(&sink, &batch).await.iter().zip(topics) {
                let expected = (topic != "there").then_some(FailureClass::Unroutable);
                assert_eq!(class(verdict), expected, "{topic}: {}", text(verdict));
                assert_eq!(text(verdict).contains("no-such-exchange"), topic == "missing");
            }
        }
        let found = fixture.arrived("there").await;
        assert_eq!(found.len(), 3 * 4, "no message was sent twice");
    });
}

/// Straight into queues, by way of the exchange that every server has.
#[test]
fn the_default_exchange_routes_to_queues() {
    with_server(async |fixture| {
        let queue = fixture.queue_of("direct");
        fixture.queue(&queue).await;
        let prefix = fixture.exchange.clone();
        let options = fixture.options().route(move |topic| Destination::queue(format!("{prefix}.{topic}")));
        let sink = RabbitSink::new(options).unwrap();
        let batch = [Arc::new(message("direct", "x")), Arc::new(message("other", "x"))];
        let verdicts = send(&sink, &batch).await;
        assert_eq!(verdicts.iter().map(class).collect::<Vec<_>>(), [None, Some(FailureClass::Unroutable)]);
        assert_eq!(fixture.drain(&queue).await.len(), 1);
    });
}

/// Nothing is declared by itself; the configured topology is, and durable.
#[test]
fn a_topology_is_declared_on_demand() {
    with_server(async |fixture| {
        let (exchange, queue) = (format!("{}-own", fixture.exchange), fixture.queue_of("own"));
        let batch = [Arc::new(message("order.placed", "x"))];
        let options = fixture.options().route({
            let exchange = exchange.clone();
            move |topic| Destination::new(exchange.clone(), topic)
        });
        let sink = RabbitSink::new(options.clone()).unwrap();
        assert_eq!(class(&send(&sink, &batch).await[0]), Some(FailureClass::Unroutable));
        let topology = Topology::new()
            .exchange(exchange.as_str(), ExchangeType::Topic)
            .queue(queue.as_str())
            .bind(queue.as_str(), exchange.as_str(), "order.*");
        let sink = RabbitSink::new(options.declare(topology)).unwrap();
        assert_eq!(send(&sink, &batch).await, [Ok(())]);
        fixture.queue(&queue).await; // the same: durable
        assert_eq!(fixture.drain(&queue).await.len(), 1);
        fixture
            .channel
            .exchange_delete(exchange.into(), lapin::options::ExchangeDeleteOptions::default())
            .await
            .unwrap();
    });
}

/// A queue that refuses is busy, and says nothing of others.
#[test]
fn a_full_queue_is_busy() {
    with_server(async |fixture| {
        fixture.take("roomy").await;
        let queue = fixture.queue_of("full");
        let mut arguments = lapin::types::FieldTable::default();
        arguments.insert("x-max-length".into(), lapin::types::AMQPValue::LongInt(1));
        arguments.insert("x-overflow".into(), lapin::types::AMQPValue::LongString("reject-publish".into()));
        let options = lapin::options::QueueDeclareOptions { exclusive: true, ..Default::default() };
        fixture.channel.queue_declare(queue.as_str().into(), options, arguments).await.unwrap();
        fixture.bind(&queue, "full").await;
        let sink = RabbitSink::new(fixture.options()).unwrap();
        assert_eq!(send(&sink, &messages("full", 1)).await, [Ok(())]);
        let batch = [messages("full", 1), messages("roomy", 1)].concat();
        let verdicts = until("the queue is full", async || {
            let verdicts = send(&sink, &batch).await;
            verdicts[0].is_err().then_some(verdicts)
        })
        .await;
        let busy = verdicts[0].as_ref().unwrap_err();
        assert!(busy.class() == FailureClass::Infrastructure && !busy.is_down(), "{}", text(&verdicts[0]));
        assert_eq!(verdicts[1], Ok(()));
    });
}

/// A message that is too large, or cannot be expressed in AMQP, is not sent; the others are.
#[test]
fn what_cannot_be_sent_is_dead() {
    with_server(async |fixture| {
        fixture.take("there").await;
        let sink = RabbitSink::new(fixture.options().max_message_bytes(1_000)).unwrap();
        let headers = Headers::from([("n".repeat(256), "value".to_owned())]);
        let batch = [
            message("there", vec![b'x'; 1_000]),
            message("there", vec![b'x'; 1_001]),
            Message { headers, ..message("there", "x") },
            message("there", "x"),
        ];
        let batch = batch.map(Arc::new);
        let verdicts: Vec<_> = send(&sink, &batch).await.iter().map(class).collect();
        assert_eq!(verdicts, [None, Some(FailureClass::TooLarge), Some(FailureClass::Permanent), None]);
    });
}

/// A header that means something to RabbitMQ, and is not what it should be: that message is dead, its text quotes nothing,
/// and the others arrive.
#[test]
fn a_header_that_the_server_refuses_harms_no_other() {
    with_server(async |fixture| {
        fixture.take("there").await;
        let sink = RabbitSink::new(fixture.options()).unwrap();
        let headers = Headers::from([("CC".to_owned(), "canary".to_owned())]);
        let batch =
            [message("there", "1"), Message { headers, ..message("there", "2") }, message("there", "3")];
        let verdicts = send(&sink, &batch.map(Arc::new)).await;
        assert_eq!(
            verdicts.iter().map(class).collect::<Vec<_>>(),
            [None, Some(FailureClass::Permanent), None]
        );
        assert!(!text(&verdicts[1]).contains("canary"), "{}", text(&verdicts[1]));
        let arrived: BTreeSet<_> =
            fixture.arrived("there").await.into_iter().map(|message| message.payload).collect();
        assert_eq!(arrived, [b"1".to_vec(), b"3".to_vec()].into());
    });
}

/// R17: a message that makes the server end the connection fails alone; the others of its batch arrive.
#[test]
fn a_message_that_ends_connections_fails_alone() {
    with_server(async |fixture| {
        fixture.take("there").await;
        let sink = RabbitSink::new(fixture.options()).unwrap();
        // Headers travel in one frame, and the server takes none as large.
        let headers = || Headers::from([("large".to_owned(), "x".repeat(300_000))]);
        let mut batch = messages("there", 20);
        for n in [7, 13] {
            batch.insert(n, Arc::new(Message { headers: headers(), ..message("there", "culprit") }));
        }
        let verdicts = send(&sink, &batch).await;
        assert!(verdicts[7].as_ref().unwrap_err().is_down(), "nobody knows yet which it was");
        for _ in 0..2 {
            for (n, verdict) in send(&sink, &batch).await.iter().enumerate() {
                assert_eq!(verdict.is_ok(), n != 7 && n != 13, "{n}: {}", text(verdict));
                assert!(
                    !verdict.as_ref().is_err_and(posthaste_core::SinkError::is_down),
                    "{}",
                    text(verdict)
                );
            }
        }
        let is_culprit = |arrived: &posthaste_testkit::Arrived| arrived.payload == b"culprit";
        let arrived = fixture.arrived("there").await;
        assert!(!arrived.iter().any(is_culprit));
        assert!(batch.iter().all(|message| {
            &message.payload[..] == b"culprit" || arrived.iter().any(|arrived| arrived.id == message.id)
        }));
    });
}

/// F-06: a server that takes connections and says nothing leaves no threads behind.
#[cfg(target_os = "linux")]
#[test]
fn a_silent_server_costs_no_threads() {
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default());
        names.filter(|name| name.starts_with("lapin")).count()
    };
    with_server(async |_| {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let accepting = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok(stream) = silent.accept().await {
                held.push(stream);
            }
        });
        let server =
            RabbitServer::at("127.0.0.1", port).connect_timeout(std::time::Duration::from_millis(30));
        let sink = RabbitSink::new(RabbitOptions::to(server, "")).unwrap();
        let before = threads();
        for _ in 0..50 {
            assert!(sink.probe().await.unwrap_err().is_down());
        }
        // Other tests may have begun meanwhile; fifty have not.
        until("the threads have ended", async || (threads() < before + 20).then_some(())).await;
        accepting.abort();
    });
}
