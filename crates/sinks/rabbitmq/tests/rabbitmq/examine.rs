//! The check of a queue, on the real server.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use posthaste_core::{ErrorKind, Severity};
use posthaste_rabbitmq::RabbitServer;
use posthaste_testkit::SinkFixture as _;

use crate::fixture::{RabbitFixture, url, with_server};

async fn severity(fixture: &RabbitFixture, queue: &str) -> Severity {
    let server = fixture.server_at(fixture.server());
    let finding = server.examine_queue(queue).await.unwrap();
    assert!(finding.found.contains(queue), "{finding:?}");
    assert_eq!(finding.remedy.is_none(), finding.severity == Severity::Fine, "{finding:?}");
    finding.severity
}

async fn declare(fixture: &RabbitFixture, queue: &str, options: QueueDeclareOptions, kind: &str) {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    fixture.channel.queue_declare(queue.into(), options, arguments).await.unwrap();
}

async fn delete(fixture: &RabbitFixture, queue: &str) {
    fixture.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
}

#[test]
fn an_exchange_is_there_or_not_and_stays_as_it_is() {
    with_server(async |fixture| {
        let server = fixture.server_at(fixture.server());
        for (exchange, severity) in [
            ("", Severity::Fine),
            ("amq.topic", Severity::Fine),
            ("amq.fanout", Severity::Fine),
            ("no-such-exchange", Severity::Warning),
        ] {
            // Twice: a check creates no queue.
            for _ in 0..2 {
                let finding = server.examine_exchange(exchange).await.unwrap();
                assert_eq!(finding.severity, severity, "{finding:?}");
            }
        }
    });
}

#[test]
fn a_durable_queue_is_fine_however_else_it_was_declared() {
    with_server(async |fixture| {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        for kind in ["classic", "quorum"] {
            let queue = fixture.queue_of(kind);
            declare(fixture, &queue, durable, kind).await;
            assert_eq!(severity(fixture, &queue).await, Severity::Fine);
            delete(fixture, &queue).await;
        }
        let queue = fixture.queue_of("plain");
        fixture.queue(&queue).await;
        assert_eq!(severity(fixture, &queue).await, Severity::Fine);
    });
}

#[test]
fn a_queue_that_forgets_is_a_danger() {
    with_server(async |fixture| {
        let queue = fixture.queue_of("transient");
        // On a channel of its own: a server that refuses such queues closes it.
        let connection = Connection::connect(&url().unwrap(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = QueueDeclareOptions::default();
        if channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.is_err() {
            eprintln!("skipped: this server has no queues that are not durable");
            return;
        }
        assert_eq!(severity(fixture, &queue).await, Severity::Danger);
        delete(fixture, &queue).await;
    });
}

#[test]
fn an_exclusive_queue_is_a_danger() {
    with_server(async |fixture| {
        let queue = fixture.queue_of("exclusive");
        let options = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        fixture.channel.queue_declare(queue.as_str().into(), options, FieldTable::default()).await.unwrap();
        assert_eq!(severity(fixture, &queue).await, Severity::Danger);
        delete(fixture, &queue).await;
    });
}

#[test]
fn a_queue_that_is_not_there_is_not_made_by_looking() {
    with_server(async |fixture| {
        let queue = fixture.queue_of("nowhere");
        assert_eq!(severity(fixture, &queue).await, Severity::Warning);
        assert_eq!(severity(fixture, &queue).await, Severity::Warning);
    });
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error() {
    let server = RabbitServer::new("amqp://guest:hush@127.0.0.1:9").unwrap();
    let error = server.examine_queue("q").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.remedy().is_some() && !format!("{error:?}").contains("hush"), "{error:?}");
    assert!(server.examine_queue("").await.is_err());
}
