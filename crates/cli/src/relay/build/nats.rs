//! A sink for NATS JetStream, from its section of the configuration.

use posthaste::nats::{NatsOptions, NatsSink};
use posthaste::{Finding, Guarded, Result, SinkOptions};

use super::{SinkConfig, certificate};

/// Builds the sink with its guard. Connects to nothing.
pub(super) fn guarded(config: &SinkConfig, options: SinkOptions) -> Result<Guarded> {
    Ok(Guarded::with(sink(config)?, options))
}

/// Examines the stream that must take the messages, if one is named.
pub(super) async fn examine(config: &SinkConfig) -> Result<Option<Finding>> {
    match config.texts.get("stream") {
        Some(stream) => sink(config)?.examine_stream(stream).await.map(Some),
        None => Ok(None),
    }
}

fn sink(config: &SinkConfig) -> Result<NatsSink> {
    let text = |key: &str| config.texts.get(key);
    let mut options = NatsOptions::new(config.url.reveal())?.connect_timeout(config.connect_timeout)?;
    if let Some(file) = text("ca_file") {
        options = options.ca_file(file);
    }
    if let Some((chain, key)) = certificate(config)? {
        options = options.client_certificate(chain, key);
    }
    if let Some(file) = text("credentials_file") {
        options = options.credentials_file(file);
    }
    let mut nats = NatsSink::new(options);
    if let Some(stream) = text("stream") {
        nats = nats.stream(stream)?;
    }
    if let Some(prefix) = text("prefix") {
        nats = nats.subject_prefix(prefix)?;
    }
    if let Some(source) = text("source") {
        nats = nats.source(source)?;
    }
    Ok(nats)
}
