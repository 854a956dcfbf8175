//! The crate against a real RabbitMQ: the suite of sinks, what only RabbitMQ does, faults, and the consumer.
//!
//! The server is that of `POSTHASTE_TEST_RABBITMQ`; without it every test says that it was skipped, and passes.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "figures, and that a test was skipped")]

mod consumer;
mod examine;
mod fixture;
mod node;
mod private;
mod secrecy;
mod tls;
mod verdicts;

mod suite {
    use super::fixture::RabbitFixture;

    posthaste_testkit::sink_suite!(RabbitFixture);
}
