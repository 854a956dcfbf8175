//! Nothing of a message, and no password, reaches a log: not by posthaste, and not by lapin, which would write it.

use std::fmt::Debug;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Connection, ConnectionProperties};
use posthaste_core::{
    Consumer, FailureClass, HandlerError, HandlerResult, Inbox, MemoryStore, MemoryTransaction, Received,
    Shutdown, Sink as _,
};
use posthaste_rabbitmq::{DeadLetter, RabbitConsumer, RabbitOptions, RabbitServer, RabbitSink};
use posthaste_testkit::{Proxy, SinkFixture as _};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::fixture::{until, url, with_server};
use crate::verdicts::{class, message, send};

/// In a payload, a header, a key or a password of a message that goes through the crate.
const OURS: &str = "canary-of-the-crate";
/// In a payload that a test publishes by lapin itself.
const THEIRS: &str = "canary-of-lapin";

static SEEN_OURS: AtomicUsize = AtomicUsize::new(0);
static SEEN_THEIRS: AtomicUsize = AtomicUsize::new(0);

/// Looks for the canaries in all log lines of all threads, at every level.
struct Watcher;

#[derive(Default)]
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        let _ = write!(self.0, "{value:?} ");
    }
}

impl Text {
    fn look(&self) {
        // lapin shows a payload as a list of numbers.
        let numbers = |text: &str| format!("{:?}", text.as_bytes()).trim_matches(['[', ']']).to_owned();
        let has = |canary| self.0.contains(canary) || self.0.contains(&numbers(canary));
        SEEN_OURS.fetch_add(usize::from(has(OURS)), Ordering::SeqCst);
        // Log lines about a returned message, with everything else at TRACE.
        SEEN_THEIRS.fetch_add(usize::from(has(THEIRS) && self.0.starts_with("WARN")), Ordering::SeqCst);
    }
}

impl Subscriber for Watcher {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text::default();
        span.record(&mut text);
        text.look();
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut text = Text::default();
        values.record(&mut text);
        text.look();
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        text.look();
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// OBX-125, OBX-126, protocol rule 17: returned, refused or lost, a message is not shown, nor is the login; while lapin by itself
/// shows it.
#[test]
fn neither_a_message_nor_a_login_is_logged() {
    with_server(async |fixture| {
        tracing::subscriber::set_global_default(Watcher).unwrap();
        fixture.take("there").await;
        let proxy = Proxy::start(fixture.server()).await.unwrap();
        let sink =
            RabbitSink::new(RabbitOptions::to(fixture.server_at(proxy.addr()), &*fixture.exchange)).unwrap();
        let secret = |topic: &str| {
            let mut secret = message(topic, OURS);
            secret.headers.insert(format!("name-{OURS}"), OURS.to_owned());
            (secret.key, secret.correlation_id) = (Some(OURS.to_owned()), Some(OURS.to_owned()));
            Arc::new(secret)
        };
        for _ in 0..3 {
            let batch: Vec<_> = ["there", "nowhere", "there"].map(secret).into();
            let verdicts = send(&sink, &batch).await;
            let classes: Vec<_> = verdicts.iter().map(class).collect();
            if classes.iter().all(|class| *class != Some(FailureClass::Infrastructure)) {
                assert_eq!(classes, [None, Some(FailureClass::Unroutable), None]);
            }
            proxy.cut();
        }
        // The messages that arrived, by a consumer, to its dead letters.
        let dead = fixture.queue_of("dead");
        fixture.queue(&dead).await;
        let inbox = Inbox::new(MemoryStore::new(), "test").unwrap();
        let server = fixture.server_at(fixture.server());
        let (queue, letters) = (fixture.queue_of("there"), DeadLetter::Queue(dead.clone()));
        let consumer = RabbitConsumer::new(server, queue, letters, Consumer::new(inbox, refuse)).unwrap();
        let shutdown = Shutdown::new();
        let consuming = tokio::spawn({
            let shutdown = shutdown.clone();
            async move { consumer.run(shutdown).await.unwrap() }
        });
        until("dead letters", async || (fixture.depth(&dead).await >= 2).then_some(())).await;
        shutdown.begin();
        consuming.await.unwrap();
        // A login that is refused, and an exchange that is not there.
        let wrong = RabbitServer::at("127.0.0.1", fixture.server().port()).login("nobody", OURS);
        let error = RabbitSink::new(RabbitOptions::to(wrong, "")).unwrap().probe().await.unwrap_err();
        assert!(error.is_down() && !error.failure().text().contains(OURS), "{}", error.failure().text());
        println!("a wrong login: {}", error.failure().text());
        let missing =
            RabbitOptions::to(fixture.server_at(fixture.server()), "posthaste-test-no-such-exchange");
        let verdicts = send(&RabbitSink::new(missing).unwrap(), &[secret("there")]).await;
        assert_eq!(class(&verdicts[0]), Some(FailureClass::Unroutable));
        assert_eq!(SEEN_OURS.load(Ordering::SeqCst), 0, "something of a message was logged");

        // The watcher sees lapin's log where it is not silenced: a program's own use of lapin still logs.
        let connection = Connection::connect(&url().unwrap(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, payload) = (fixture.exchange.as_str().into(), THEIRS.as_bytes());
        let publishing =
            channel.basic_publish(exchange, "nowhere".into(), options, payload, BasicProperties::default());
        assert!(publishing.await.unwrap().await.unwrap().take_message().is_some());
        assert!(SEEN_THEIRS.load(Ordering::SeqCst) > 0, "the watcher sees nothing");
    });
}

async fn refuse(_: &mut MemoryTransaction, _: &Received) -> HandlerResult {
    Err(HandlerError::dead("poison"))
}
