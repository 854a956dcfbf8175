//! Checks streams of a NATS server.

use posthaste::nats::{NatsOptions, NatsSink};
use posthaste::{Result, Sink as _};

use super::Examined;

/// Examines these streams. The URL is checked first; what a stream answers concerns no other.
pub(crate) async fn examine(url: &str, streams: &[String]) -> Result<Examined> {
    let sink = NatsSink::new(NatsOptions::new(url)?);
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(sink.examine_stream(stream).await);
    }
    Ok(Examined { place: sink.name(), answers })
}
