//! RabbitMQ: a sink that reports the broker's result for each message, and a consumer that acts once.
//!
//! - [`RabbitSink`] is where an outbox sends messages: persistent, confirmed, and known to be in a queue before they count as
//!   delivered.
//! - [`RabbitConsumer`] takes them from a queue, and acts upon each once, in a transaction with its inbox.
//!
//! Nothing is declared on the server unless a [`Topology`] says so. Connections by `amqps://` are verified, always.
//!
//! ```no_run
//! use posthaste_core::{
//!     Consumer, HandlerResult, Inbox, MemoryStore, MemoryTransaction, NewMessage, Outbox, Received, Shutdown,
//! };
//! use posthaste_rabbitmq::{
//!     DeadLetter, ExchangeType, RabbitConsumer, RabbitOptions, RabbitServer, RabbitSink, Topology,
//! };
//!
//! async fn reserve(_tx: &mut MemoryTransaction, order: &Received) -> HandlerResult {
//!     println!("stock reserved for {}", order.id); // your own changes, in the transaction of the inbox
//!     Ok(())
//! }
//!
//! # #[tokio::main] async fn main() -> posthaste_core::Result<()> {
//! let server = RabbitServer::new("amqp://guest:guest@localhost:5672")?;
//! let shutdown = Shutdown::new();
//!
//! // The shop publishes `order.placed` in its own transaction; its outbox hands it to the exchange `shop`.
//! let topology = Topology::new().exchange("shop", ExchangeType::Topic);
//! let sink = RabbitSink::new(RabbitOptions::to(server.clone(), "shop").source("shop").declare(topology))?;
//! let outbox = Outbox::builder(MemoryStore::new()).sink("order.*", sink).build().await?; // use a database here
//! tokio::spawn(outbox.run(shutdown.clone()));
//! outbox.enqueue(NewMessage::json("order.placed", &serde_json::json!({ "order": 7 }))).await?;
//!
//! // The stock takes it from a queue of its own. Until that queue is there, the message waits in the outbox.
//! let topology = Topology::new().queue("stock").bind("stock", "shop", "order.placed").queue("stock.dead");
//! let inbox = Inbox::new(MemoryStore::new(), "stock")?; // and here
//! let dead = DeadLetter::Queue("stock.dead".to_owned());
//! RabbitConsumer::new(server.declare(topology), "stock", dead, Consumer::new(inbox, reserve))?
//!     .run(shutdown)
//!     .await
//! # }
//! ```
//!
//! # On the wire
//!
//! | of the message | in AMQP |
//! |---|---|
//! | id | `message_id` |
//! | topic | `type`, and the routing key unless [`route`](RabbitOptions::route) says otherwise |
//! | source | `app_id` |
//! | correlation id, content type, when it occurred | `correlation_id`, `content_type`, `timestamp` (seconds) |
//! | headers, W3C trace context among them | headers, as texts |
//! | key, aggregate, tenant | headers [`posthaste-key`](KEY_HEADER), [`posthaste-aggregate-type`](AGGREGATE_TYPE_HEADER), [`posthaste-aggregate-id`](AGGREGATE_ID_HEADER), [`posthaste-tenant`](TENANT_HEADER) |
//!
//! # What becomes of a message
//!
//! | the server | the message |
//! |---|---|
//! | confirms it, and does not return it | is delivered |
//! | returns it: no queue takes it; or has no such exchange; or forbids it | is unroutable: it comes again, at no cost |
//! | refuses it: a queue is full | comes again, at no cost |
//! | does not confirm it before the deadline, but lives: a queue is stuck | comes again, at no cost; others are taken |
//! | ends the connection when it gets this message alone | comes again, at no cost; others are taken |
//! | takes nothing as large | is dead |
//! | is gone, blocked or silent until the deadline | comes again, at no cost, once the server is back; the breaker is open meanwhile |
//!
//! A connection that is lost in the middle of a window may have taken any of its messages: they come again, under the same
//! ids. They travel over a connection of their own then, in ever smaller groups, until a message that ends connections is
//! alone.
//!
//! # The log of lapin
//!
//! lapin, which speaks AMQP for this crate, writes returned messages to its log with their payloads, and every frame at TRACE.
//! This crate runs it without a subscriber of `tracing`, so that none of that is ever written; what there is to know is in this
//! crate's own log. A program that has no subscriber, but hands `tracing`'s events to the crate `log` by its feature `log`, gets
//! none of them any more from the first connection on, as if it had set one; it needs a subscriber, say
//! `tracing-subscriber`'s. With the feature `log-always` of `tracing`, switch the targets `lapin` and `amq_protocol` off.

mod consumer;
mod examine;
mod link;
mod options;
mod properties;
mod quiet;
mod remembered;
mod sending;
mod server;
mod sink;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod window;

pub use self::consumer::{DeadLetter, RabbitConsumer, Unnamed};
pub use self::options::{Destination, RabbitOptions};
pub use self::properties::{
    AGGREGATE_ID_HEADER, AGGREGATE_TYPE_HEADER, ERROR_CLASS_HEADER, ERROR_HEADER, KEY_HEADER, QUEUE_HEADER,
    TENANT_HEADER,
};
pub use self::server::RabbitServer;
pub use self::sink::RabbitSink;
pub use self::topology::{ExchangeType, Topology};
