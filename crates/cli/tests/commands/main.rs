//! Every command, run as its users run it: a process, its answers and its exit code, against SQLite and PostgreSQL.
//!
//! The output is compared with the files in `tests/golden`; `POSTHASTE_UPDATE_DUMPS=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare has failed")]
#![allow(clippy::print_stderr, reason = "a test that passes without having run must say so")]

mod support;

mod change;
mod doctor;
mod enqueue;
mod grants;
mod help;
mod hostile;
mod joins;
mod look;
mod mysql;
mod pause;
mod pipes;
mod prune;
mod refusals;
mod relay_client;
mod secrets;
mod top;
mod why;
