//! Many databases at a time, over a simulated network in simulated time: routing, turns, failures, discovery.
//!
//! What only real databases can show stands with the stores.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code: this is how it reports")]

mod budgets;
mod discovery;
mod routing;
mod scale;
mod support;
mod turns;
