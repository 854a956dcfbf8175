//! The runtime as users run it: worker processes on real databases, killed, paused, restarted and poisoned, and the
//! tables afterwards compared with the promises (I1 to I6, I10 to I12, I15).
//!
//! Every case has a schema, database or file of its own and processes of its own. Nothing here may signal, restart or
//! disconnect anything that it did not start itself.

#![allow(clippy::unwrap_used, clippy::print_stderr, unreachable_pub, reason = "tests")]

mod base;
mod case;
mod check;
mod children;
mod faults;
#[allow(dead_code, reason = "the other tests use the rest of it")]
#[path = "../stores/fixture.rs"]
mod fixture;
mod forgotten;
mod inbox;
mod journal;
mod memory;
mod poison;
mod producer;
mod restart;
mod server;
mod worker;
