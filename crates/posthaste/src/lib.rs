//! A transactional outbox: messages are written in your own database transaction, and delivered at least once after it
//! has committed.
//!
//! This is the crate to depend on. It has no code of its own: it brings together `posthaste-core`, where every concept
//! lives, and a store per feature. No feature is on by default.
//!
//! | feature | store | publishing takes |
//! |---|---|---|
//! | `sqlite` | `SqliteStore` | `sqlx::SqliteConnection`, or a transaction on one |
//! | `postgres` | `PgStore` | `sqlx::PgConnection`, or a transaction on one |
//! | `mysql` | `MySqlStore` (MySQL and MariaDB) | `sqlx::MySqlConnection`, or a transaction on one |
//!
//! [`MemoryStore`] is always there, for tests and as the reference of a store's behaviour.
//!
//! | feature | what it brings |
//! |---|---|
//! | `rabbitmq` | `rabbitmq::RabbitSink` and `rabbitmq::RabbitConsumer` |
//! | `nats` | `nats::NatsSink` and `nats::NatsConsumer`, for JetStream |
//! | `encryption` | `Keyring`: payloads and headers that the database cannot read |
//! | `derive` | `#[derive(Event)]` |
//! | `cron`, `toml` | schedules by cron expressions; settings from TOML files |
//!
//! # Example
//!
#![cfg_attr(feature = "sqlite", doc = "```")]
#![cfg_attr(not(feature = "sqlite"), doc = "```ignore")]
//! use posthaste::{Delivery, Event, HandlerResult, Outbox, Shared, SqliteStore};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct OrderPlaced { order_id: i64 }
//!
//! impl Event for OrderPlaced {
//!     const TOPIC: &'static str = "order.placed";
//! }
//!
//! #[derive(Clone)]
//! struct Mailer;
//!
//! async fn send_receipt(order: Delivery<OrderPlaced>, Shared(_mailer): Shared<Mailer>) -> HandlerResult {
//!     println!("receipt for order {}", order.order_id);
//!     Ok(())                                                      // an error would mean: again later
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("shop.db");
//! let store = SqliteStore::open(&file).await?;
//! store.migrate().await?;                                         // creates or updates the outbox's own tables
//! let outbox = Outbox::builder(store).on(send_receipt).share(Mailer).build().await?;
//!
//! # let pool = sqlx::SqlitePool::connect_with(sqlx::sqlite::SqliteConnectOptions::new().filename(&file)).await?;
//! # sqlx::query("create table orders (id integer primary key)").execute(&pool).await?;
//! let mut tx = pool.begin().await?;                               // a transaction of your own sqlx pool
//! sqlx::query("insert into orders (id) values (?)").bind(42).execute(&mut *tx).await?;
//! outbox.publish(&mut tx, &OrderPlaced { order_id: 42 }).await?;
//! tx.commit().await?;                                             // the order and its message, or neither
//!
//! let mut tx = outbox.begin().await?;                             // or: delivered from memory after the commit
//! sqlx::query("insert into orders (id) values (?)").bind(43).execute(&mut *tx).await?;
//! tx.publish(&OrderPlaced { order_id: 43 }).await?;
//! tx.commit().await?;
//!
//! let tally = outbox.drain().await?;                              // in a service: outbox.run(shutdown_signal())
//! assert_eq!(tally.delivered, 2);
//! # Ok(()) }
//! ```
//!
//! # Where to go on
//!
//! - [`Outbox`]: publish, run handlers, and the verbs of a worker for those who bring their own loop.
//! - [`OutboxBuilder`], [`Handler`], [`HandlerError`], [`Extract`]: handlers, and what they take and answer.
//! - [`Settings`], [`Policy`], [`Schedule`], [`Shutdown`]: how it runs, and how it stops.
//! - [`Event`] and [`NewMessage`]: what is published; keys for order, dedup keys, delays, expiry, priority.
//! - [`Sink`], [`Guarded`]: where messages go, and the batches, the deadline and the circuit breaker around it.
//! - [`Inbox`], [`Consumer`], [`Consume`]: what makes a consumer act once.
//! - [`Tenants`]: many databases at a time.
//! - [`StoreAdmin`]: what operators need; statistics, lists, requeue and bury.
//! - [`Store`]: the contract that every database keeps.
//! - `examples/shop.rs`: all of it at work, on SQLite.

pub use posthaste_core::*;
#[cfg(feature = "derive")]
pub use posthaste_derive::Event;
#[cfg(feature = "nats")]
pub use posthaste_nats as nats;
#[cfg(feature = "rabbitmq")]
pub use posthaste_rabbitmq as rabbitmq;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use posthaste_sqlx::{Database, Dialect, SqlStore, StoreOptions};
#[cfg(feature = "mysql")]
pub use posthaste_sqlx::{MySqlDatabase, MySqlStore};
#[cfg(feature = "postgres")]
pub use posthaste_sqlx::{PgDatabase, PgStore, Role};
#[cfg(feature = "sqlite")]
pub use posthaste_sqlx::{SqliteDatabase, SqliteStore};

/// The code of the README, compiled and run by `cargo test --doc`. The file is not in the published package, and need
/// not be: only tests read it.
#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The code of the guide to tenants, compiled by `cargo test --doc`.
#[cfg(all(doctest, feature = "postgres"))]
#[doc = include_str!("../../../docs/tenants.md")]
struct TenantsGuide;

/// The code of the first guide, compiled by `cargo test --doc`.
#[cfg(all(doctest, feature = "sqlite", feature = "derive"))]
#[doc = include_str!("../../../docs/start-rust.md")]
struct StartGuide;
