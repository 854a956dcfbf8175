//! Checks queues of a RabbitMQ server.

use posthaste::Result;
use posthaste::rabbitmq::RabbitServer;

use super::Examined;

/// Examines these queues. The URL is checked first; what a queue answers concerns no other.
pub(crate) async fn examine(url: &str, queues: &[String]) -> Result<Examined> {
    let server = RabbitServer::new(url)?;
    let mut answers = Vec::new();
    for queue in queues {
        answers.push(server.examine_queue(queue).await);
    }
    Ok(Examined { place: format!("rabbitmq {server}"), answers })
}
