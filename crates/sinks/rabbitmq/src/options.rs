//! The options of the sink: where messages go, and how many of them at a time.

use std::fmt;
use std::sync::Arc;

use lapin::types::ShortString;
use posthaste_core::Result;

use crate::properties::short;
use crate::server::{RabbitServer, name_fits, refused};
use crate::topology::Topology;

/// The largest message that RabbitMQ takes unless it is configured otherwise.
const MAX_MESSAGE_BYTES: usize = 128 << 20;

/// Where a message goes: an exchange, and the routing key by which that finds queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The exchange; the empty one routes to the queue that the routing key names.
    pub exchange: String,
    /// The routing key.
    pub routing_key: String,
}

impl Destination {
    /// This exchange, by this routing key.
    pub fn new(exchange: impl Into<String>, routing_key: impl Into<String>) -> Self {
        Self { exchange: exchange.into(), routing_key: routing_key.into() }
    }

    /// This queue, by way of the exchange that every server has.
    pub fn queue(name: impl Into<String>) -> Self {
        Self::new("", name)
    }
}

type Route = dyn Fn(&str) -> Destination + Send + Sync;

/// Where messages go, and how. [`RabbitSink::new`](crate::RabbitSink::new) checks it.
///
/// ```
/// use posthaste_rabbitmq::{Destination, RabbitOptions};
///
/// // To the exchange `shop`, with the topic as the routing key.
/// let options = RabbitOptions::new("amqp://shop:secret@rabbit.example", "shop")?;
///
/// // One exchange per part of the system: `order.placed` goes to `order`, with `placed` as the routing key.
/// let options = options.route(|topic| match topic.split_once('.') {
///     Some((part, what)) => Destination::new(part, what),
///     None => Destination::new("shop", topic),
/// });
///
/// // No exchange of one's own: to the queue that has the topic's name.
/// let options = options.route(|topic| Destination::queue(topic));
/// # let _ = options;
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[must_use = "they do nothing until they are given to a sink"]
#[derive(Clone)]
pub struct RabbitOptions {
    pub(crate) server: RabbitServer,
    pub(crate) exchange: String,
    route: Option<Arc<Route>>,
    pub(crate) window: u32,
    pub(crate) source: String,
    pub(crate) max_message_bytes: usize,
}

impl RabbitOptions {
    /// To this exchange of the server of this [URL](RabbitServer::new), with the topic as the routing key.
    pub fn new(url: &str, exchange: impl Into<String>) -> Result<Self> {
        Ok(Self::to(RabbitServer::new(url)?, exchange))
    }

    /// To this exchange of this server, with the topic as the routing key. The empty exchange is the one that routes to the
    /// queue of the routing key's name.
    pub fn to(server: RabbitServer, exchange: impl Into<String>) -> Self {
        Self {
            server,
            exchange: exchange.into(),
            route: None,
            window: 200,
            source: "posthaste".to_owned(),
            max_message_bytes: MAX_MESSAGE_BYTES,
        }
    }

    /// Where messages of a topic go. Default: to the exchange of these options, by the topic.
    ///
    /// It is called once per message, and should not be slow.
    pub fn route(mut self, route: impl Fn(&str) -> Destination + Send + Sync + 'static) -> Self {
        self.route = Some(Arc::new(route));
        self
    }

    /// How many messages are sent before the first confirm is waited for: 1 to 10,000. Default: 200. A cut connection
    /// duplicates at most so many messages of a batch.
    pub fn window(mut self, messages: u32) -> Self {
        self.window = messages;
        self
    }

    /// The publisher, as receivers see it in `app_id`: 1 to 255 bytes. Their inboxes know a message by its source and its id.
    /// Default: `posthaste`.
    pub fn source(mut self, source: impl Into<String>) -> Self {
        self.source = source.into();
        self
    }

    /// The largest payload that the server takes: its `max_message_size`. A larger one is not sent, and its message is dead.
    /// Default: 128 MiB, as in RabbitMQ 3; RabbitMQ 4 takes 16 MiB by default.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// The topology to declare on each new connection. Default: nothing; the sink never declares anything by itself.
    pub fn declare(mut self, topology: Topology) -> Self {
        self.server = self.server.declare(topology);
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.server.check()?;
        name_fits("the exchange", &self.exchange)?;
        name_fits("the source", &self.source)?;
        if self.source.is_empty() {
            return Err(refused("the source is empty", "give it 1 to 255 bytes"));
        }
        if !(1..=10_000).contains(&self.window) {
            return Err(refused(format!("the window is {}", self.window), "give it 1 to 10000"));
        }
        if self.max_message_bytes == 0 {
            return Err(refused("max_message_bytes is 0", "give it the server's max_message_size"));
        }
        Ok(())
    }

    /// Exchange and routing key of a topic, if they fit.
    pub(crate) fn destination(&self, topic: &str) -> Option<(ShortString, ShortString)> {
        let Some(route) = &self.route else { return Some((short(&self.exchange)?, short(topic)?)) };
        let Destination { exchange, routing_key } = route(topic);
        Some((short(&exchange)?, short(&routing_key)?))
    }
}

impl fmt::Debug for RabbitOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitOptions")
            .field("server", &self.server)
            .field("exchange", &self.exchange)
            .field("window", &self.window)
            .field("source", &self.source)
            .field("max_message_bytes", &self.max_message_bytes)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> RabbitOptions {
        RabbitOptions::new("amqp://u:hush@h", "shop").unwrap()
    }

    #[test]
    fn impossible_values_are_refused() {
        assert!(options().check().is_ok());
        let wrong = [
            options().window(0),
            options().window(10_001),
            options().source(""),
            options().source("s".repeat(256)),
            options().max_message_bytes(0),
            options().declare(Topology::new().queue("")),
            RabbitOptions::new("amqp://h", "e".repeat(256)).unwrap(),
        ];
        for options in wrong {
            assert!(options.check().unwrap_err().remedy().is_some());
        }
        assert!(!format!("{:?}", options()).contains("hush"));
    }

    #[test]
    fn a_topic_finds_its_way() {
        let text = |(exchange, key): (ShortString, ShortString)| format!("{exchange}|{key}");
        assert_eq!(options().destination("a.b").map(text).as_deref(), Some("shop|a.b"));
        let to_queues = options().route(|topic| Destination::queue(topic));
        assert_eq!(to_queues.destination("a.b").map(text).as_deref(), Some("|a.b"));
        let too_long = options().route(|topic: &str| Destination::queue(topic.repeat(300)));
        assert!(too_long.destination("a").is_none());
    }
}
