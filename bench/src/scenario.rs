//! One file per scenario; each gives the cases that are measured in it.
//!
//! A case opens a fresh database, prepares it without the clock, measures, closes every connection, and reads the meters.

pub(crate) mod batch_enqueue;
pub(crate) mod claimers;
pub(crate) mod drain;
pub(crate) mod enqueue;
pub(crate) mod growth;
pub(crate) mod joins;
pub(crate) mod latency;
pub(crate) mod long_transaction;
pub(crate) mod obstacles;
pub(crate) mod ordered;
pub(crate) mod sinks;
pub(crate) mod steady;
