//! The relay from outside: separate processes, real databases, real brokers, and an HTTP socket that any client may write
//! to.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "test code: a panic is how it reports")]
#![allow(unreachable_pub, reason = "modules of one test share what they have")]
#![cfg(unix)]

mod access;
mod config;
mod crowd;
mod delivery;
mod fuzzed;
mod hostile;
mod logs;
mod reload;
mod secrecy;
mod silence;
mod starve;
mod support;
mod why;
