//! Topology that is declared on the server only if you ask for it: exchanges, queues, bindings. All of it durable.
//!
//! Declaring again is harmless; declaring something else under the same name is refused by the server. Nothing is ever
//! deleted here.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};
use posthaste_core::Result;

use crate::quiet::quietly;
use crate::server::{name_fits, refused};

/// How an exchange finds the queues of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExchangeType {
    /// Those bound with exactly its routing key.
    Direct,
    /// Those bound with a pattern that matches: `*` is one word, `#` any number of them.
    Topic,
    /// All of them.
    Fanout,
    /// Those whose binding's arguments match its headers.
    Headers,
}

impl From<ExchangeType> for ExchangeKind {
    fn from(kind: ExchangeType) -> Self {
        match kind {
            ExchangeType::Direct => Self::Direct,
            ExchangeType::Topic => Self::Topic,
            ExchangeType::Fanout => Self::Fanout,
            ExchangeType::Headers => Self::Headers,
        }
    }
}

/// Exchanges, queues and bindings to declare, in this order. Everything is durable.
///
/// ```
/// use posthaste_rabbitmq::{ExchangeType, Topology};
///
/// let topology = Topology::new()
///     .exchange("orders", ExchangeType::Topic)
///     .queue("stock")
///     .bind("stock", "orders", "order.*")
///     .queue("stock.dead");
/// # let _ = topology;
/// ```
#[must_use = "it is declared by those who connect with it"]
#[derive(Clone, Debug, Default)]
pub struct Topology {
    exchanges: Vec<(String, ExchangeType)>,
    queues: Vec<(String, bool)>,
    /// Queue, exchange, pattern.
    bindings: Vec<[String; 3]>,
}

impl Topology {
    /// Nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// And an exchange.
    pub fn exchange(mut self, name: impl Into<String>, kind: ExchangeType) -> Self {
        self.exchanges.push((name.into(), kind));
        self
    }

    /// And a classic queue.
    pub fn queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push((name.into(), false));
        self
    }

    /// And a quorum queue: replicated in a cluster, and counting deliveries.
    pub fn quorum_queue(mut self, name: impl Into<String>) -> Self {
        self.queues.push((name.into(), true));
        self
    }

    /// And a binding: this queue gets what the exchange routes by this pattern.
    pub fn bind(
        mut self,
        queue: impl Into<String>,
        exchange: impl Into<String>,
        pattern: impl Into<String>,
    ) -> Self {
        self.bindings.push([queue.into(), exchange.into(), pattern.into()]);
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exchanges.is_empty() && self.queues.is_empty() && self.bindings.is_empty()
    }

    pub(crate) fn check(&self) -> Result<()> {
        let declared =
            self.exchanges.iter().map(|(name, _)| name).chain(self.queues.iter().map(|(name, _)| name));
        for name in declared {
            if name.is_empty() {
                return Err(refused("an exchange or queue to declare has no name", "name it"));
            }
            name_fits("an exchange or queue to declare", name)?;
        }
        self.bindings.iter().flatten().try_for_each(|name| name_fits("a binding", name))
    }

    /// Declares it all. The names have been checked.
    pub(crate) async fn declare(&self, channel: &Channel) -> lapin::Result<()> {
        let name = |name: &String| ShortString::from(name.as_str());
        for (exchange, kind) in &self.exchanges {
            let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
            quietly(channel.exchange_declare(name(exchange), (*kind).into(), options, FieldTable::default()))
                .await?;
        }
        for (queue, quorum) in &self.queues {
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            let mut arguments = FieldTable::default();
            if *quorum {
                arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
            }
            quietly(channel.queue_declare(name(queue), options, arguments)).await?;
        }
        for [queue, exchange, pattern] in &self.bindings {
            let (options, arguments) = (QueueBindOptions::default(), FieldTable::default());
            quietly(channel.queue_bind(name(queue), name(exchange), name(pattern), options, arguments))
                .await?;
        }
        Ok(())
    }
}
