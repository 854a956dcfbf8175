//! Many real databases at a time: files, schemas and databases of their own, which come, go, fail and have several names.
//!
//! Tests without a database run over a simulated network, in the testkit. Connections are counted where they cannot hide:
//! at the server, and among the open files of this process. Every case drops its objects.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub, reason = "tests")]

mod changes;
mod connections;
mod files;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../stores/fixture.rs"]
mod fixture;
mod mixed;
mod support;
mod tables;
mod twins;
