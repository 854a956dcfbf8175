//! The one suite that decides whether a store is right, and the tools that tests of faults share.
//!
//! To test a store of your own, write a [`Fixture`] for it, and one line:
//!
//! ```
//! use std::time::Duration;
//! use posthaste_core::{MemoryStore, MemoryTransaction, MessageId};
//! use posthaste_testkit::{Fixture, MemoryFixture, MemoryFixtureTransaction, async_trait};
//!
//! /// A real one would hold a pool, and the name of the schema that it made for this one test.
//! struct MyFixture(MemoryFixture);
//!
//! #[async_trait]
//! impl Fixture for MyFixture {
//!     type Store = MemoryStore;
//!     type Transaction = MemoryFixtureTransaction;
//!
//!     async fn create() -> Self { Self(MemoryFixture::create().await) }
//!     fn store(&self) -> &MemoryStore { self.0.store() }
//!     fn store_that_deletes(&self) -> MemoryStore { self.0.store_that_deletes() }
//!     async fn now(&self) -> std::time::SystemTime { self.0.now().await }
//!     async fn advance(&self, by: Duration) { self.0.advance(by).await; }
//!     async fn begin(&self) -> Self::Transaction { self.0.begin().await }
//!     fn connection<'a>(&self, tx: &'a mut Self::Transaction) -> &'a mut MemoryTransaction { self.0.connection(tx) }
//!     async fn savepoint(&self, tx: &mut MemoryTransaction) { self.0.savepoint(tx).await; }
//!     async fn rollback_to_savepoint(&self, tx: &mut MemoryTransaction) { self.0.rollback_to_savepoint(tx).await; }
//!     async fn commit(&self, tx: Self::Transaction) { self.0.commit(tx).await; }
//!     async fn rollback(&self, tx: Self::Transaction) { self.0.rollback(tx).await; }
//!     async fn spoil(&self, id: MessageId) -> bool { self.0.spoil(id).await }
//!     async fn archived(&self) -> Vec<MessageId> { self.0.archived().await }
//!     async fn destroy(self) { self.0.destroy().await; }
//! }
//!
//! mod my_store {
//!     use super::MyFixture;
//!     posthaste_testkit::store_suite!(MyFixture);
//! }
//! # fn main() {}
//! ```
//!
//! Every case becomes a test of its own, and every store runs every case: there is no way to leave one out. Cases whose
//! names begin with `slow_` take seconds rather than milliseconds. `POSTHASTE_MODEL_CASES` and `POSTHASTE_MODEL_SEED`
//! make the [model](run_model) look longer, or elsewhere.
//!
//! This crate is for tests only and must never be a dependency of one that ships; nor may it depend on a database.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

mod assertions;
mod counting;
mod fixture;
mod invariants;
mod memory_fixture;
mod model;
mod network;
mod observe;
mod proxy;
pub mod runtime_suite;
mod scripted_sink;
pub mod simulation;
mod sink_fixture;
pub mod sink_suite;
pub mod store_suite;

pub use assertions::{assert_all_done, assert_nothing_published, assert_published, published, stored};
pub use async_trait::async_trait;
pub use counting::Counting;
pub use fixture::{Fixture, clear_through_the_api};
pub use invariants::{Census, Effects, Fate, History, JoinCensus};
pub use memory_fixture::{MemoryFixture, MemoryFixtureTransaction};
pub use model::run_model;
pub use network::{Network, Reach, Remote, RemoteSource, Shape};
pub use observe::{Logged, Logs, Meters};
pub use proxy::{Mode, Proxy};
pub use scripted_sink::ScriptedSink;
pub use sink_fixture::{Arrived, SinkFixture, claimed};
