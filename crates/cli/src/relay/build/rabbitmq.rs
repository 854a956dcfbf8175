//! A sink for RabbitMQ, from its section of the configuration.

use posthaste::rabbitmq::{RabbitOptions, RabbitServer, RabbitSink};
use posthaste::{Error, ErrorKind, Finding, Guarded, Result, SinkOptions};

use super::{SinkConfig, certificate};

/// Builds the sink with its guard. Connects to nothing.
pub(super) fn guarded(config: &SinkConfig, options: SinkOptions) -> Result<Guarded> {
    Ok(Guarded::with(sink(config)?, options))
}

/// Examines the exchange that it publishes to.
pub(super) async fn examine(config: &SinkConfig) -> Result<Option<Finding>> {
    let exchange = config.texts.get("exchange").map_or("", String::as_str);
    server(config)?.examine_exchange(exchange).await.map(Some)
}

fn server(config: &SinkConfig) -> Result<RabbitServer> {
    let text = |key: &str| config.texts.get(key);
    let mut server = RabbitServer::new(config.url.reveal())?.connect_timeout(config.connect_timeout);
    if let Some(file) = text("ca_file") {
        server = server.ca(pem(file)?)?;
    }
    if let Some((chain, key)) = certificate(config)? {
        server = server.client_certificate(pem(chain)?, pem(key)?)?;
    }
    Ok(server)
}

fn sink(config: &SinkConfig) -> Result<RabbitSink> {
    let text = |key: &str| config.texts.get(key);
    let exchange = text("exchange").map_or("", String::as_str);
    let mut options = RabbitOptions::to(server(config)?, exchange);
    if let Some(window) = config.window {
        options = options.window(window);
    }
    if let Some(bytes) = config.max_message_bytes {
        options = options.max_message_bytes(bytes);
    }
    if let Some(source) = text("source") {
        options = options.source(source);
    }
    RabbitSink::new(options)
}

fn pem(file: &str) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Error::new(ErrorKind::Configuration, format!("a file of certificates cannot be read: {error}"))
            .with_context("file", file)
    })
}
