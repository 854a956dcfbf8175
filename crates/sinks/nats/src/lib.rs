//! NATS JetStream: a sink that reports the server's result for each message, and a consumer that acts once.
//!
//! ```no_run
//! use posthaste_core::{Consumer, HandlerResult, Inbox, MemoryStore, MemoryTransaction, NewMessage, Outbox, Received};
//! use posthaste_core::shutdown_signal;
//! use posthaste_nats::{DeadLetter, NatsConsumer, NatsOptions, NatsSink, PullConfig, StreamConfig};
//!
//! async fn reserve(_tx: &mut MemoryTransaction, order: &Received) -> HandlerResult {
//!     println!("stock reserved for {}", order.id);
//!     Ok(())
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
//! let options = NatsOptions::new("nats://shop:secret@127.0.0.1:4222")?;
//!
//! // The shop: what it publishes in its transactions goes to the stream ORDERS.
//! let sink = NatsSink::new(options.clone()).stream("ORDERS")?.source("shop")?;
//! sink.declare(StreamConfig {                              // or create it yourself: nothing is created unasked
//!     name: "ORDERS".to_owned(),
//!     subjects: vec!["order.>".to_owned(), "dead.order".to_owned()],
//!     ..StreamConfig::default()
//! }).await?;
//! let outbox = Outbox::builder(MemoryStore::new()).sink("order.*", sink).build().await?;
//! let shutdown = shutdown_signal();
//! tokio::spawn(outbox.run(shutdown.clone()));
//! outbox.enqueue(NewMessage::json("order.placed", &42)).await?;
//!
//! // The stock, elsewhere: each order is acted upon once, however often it is delivered.
//! let inbox = Inbox::new(MemoryStore::new(), "inventory")?;
//! let dead = DeadLetter::Subject("dead.order".to_owned());
//! let consumer = NatsConsumer::new(options, Consumer::new(inbox, reserve), "ORDERS", "inventory", dead)?;
//! consumer.declare(PullConfig { filter_subject: "order.>".to_owned(), ..PullConfig::default() }).await?;
//! consumer.run(shutdown).await
//! # }
//! ```
//!
//! # Subjects
//!
//! The subject of a message is its topic, after the sink's prefix if it has one. What a subject cannot have is written as
//! `%XX`: blanks and control characters, `*`, `>` and `%`, dots with nothing beside them, and a `$` or `_` at the beginning
//! (`$SYS`, `$JS`, `_INBOX`). So no topic is refused, no two have the same subject, and none is a wildcard, an order to the
//! server, or the inbox of a client. The topic itself is in a header.
//!
//! # Headers
//!
//! | header | what it is |
//! |---|---|
//! | `Nats-Msg-Id` | the message's id; the server stores an id once within the stream's duplicate window |
//! | `Nats-Expected-Stream` | the stream, if the sink insists on one |
//! | `Content-Type` | what the payload is |
//! | `Posthaste-Topic`, `-Key`, `-Correlation-Id`, `-Tenant-Id`, `-Aggregate-Type`, `-Aggregate-Id`, `-Source` | as the publisher gave them |
//! | `Posthaste-Occurred-At` | when it happened, as in `2026-11-16T08:14:41.123456Z` |
//! | `Posthaste-Headers` | `name=value&name=value`: headers of the publisher that cannot travel under their own names. Those are one with other letters than `A-Z a-z 0-9 - _ .`, one that begins with `Nats-` or `Posthaste-`, `Content-Type`, or one whose value has control characters or blanks at its ends |
//! | everything else | the publisher's headers, as they are |
//!
//! In the values of `Content-Type` and of all that begin with `Posthaste-`, control characters, blanks at the ends and `%`
//! are written as `%XX`; in `Posthaste-Headers` every blank is, and `=` and `&` within a name or a value. No text can begin a header of its own.
//!
//! # What a verdict means
//!
//! | the server | the message |
//! |---|---|
//! | acknowledges it, also as a duplicate | is taken |
//! | has no stream for the subject, or another one than expected, or one with `no_ack`; or forbids the subject | is unroutable: again after a long while |
//! | is full, and its stream keeps what it has; or the stream has no leader, or does not acknowledge before the deadline | waits; others are sent |
//! | ends the connection when it gets this message alone | waits; others are sent |
//! | takes nothing as large, by its own limit or by the stream's | is dead |
//! | has no JetStream, no resources, or does not answer; or the connection is lost | waits with all others until the server is back |
//!
//! A message that was not acknowledged in time may have been stored; it is sent again under the same id. A connection that was
//! lost, or did not answer, is given up with everything that was queued in it, so nothing is sent later unnoticed. Streams
//! with `no_ack` cannot be used: they never say that they have taken something.
//!
//! A subject that only core subscribers listen to is never acknowledged, either. When no acknowledgement arrives for 250 ms, the
//! sink asks the server which streams take the subjects that are still open, so that such a message is unroutable long before
//! the deadline. A user without permission to publish to `$JS.API.STREAM.NAMES` cannot ask, and waits for the deadline; from the
//! second time on for 2 s.
//!
//! Messages that were under way when a connection was lost are sent again over a connection of their own, in ever smaller
//! groups, until a message that ends connections is alone.
//!
//! # Logs
//!
//! The driver, `async-nats`, writes whole messages to its log at TRACE. It runs on threads of its own, one for each
//! connection, on which its log is off.

mod consumer;
mod escape;
mod examine;
mod flight;
mod headers;
mod link;
mod options;
mod remembered;
mod sink;
mod subject;
mod verdict;

pub use async_nats::jetstream::consumer::pull::Config as PullConfig;
pub use async_nats::jetstream::stream::Config as StreamConfig;
pub use consumer::{DeadLetter, NatsConsumer};
pub use options::NatsOptions;
pub use sink::NatsSink;
