//! The sink and the consumer on real servers: the shared one for ordinary operation, private ones for faults that must not
//! happen to a shared one.
//!
//! Without a server (`POSTHASTE_TEST_NATS`) the tests say so and pass. No test touches a stream that another one made.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]
#![allow(clippy::print_stderr, reason = "a test that passes without having run must say so")]

mod consumer;
mod examine;
mod faults;
mod fixture;
mod secrecy;
mod server;
mod silence;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod verdicts;
mod volume;

mod suite {
    use super::fixture::NatsFixture;
    posthaste_testkit::sink_suite!(NatsFixture);
}
