//! From a configuration to what runs: stores, sinks, and the tenants that deliver from the ones to the others.

use posthaste::nats::{NatsOptions, NatsSink};
use posthaste::rabbitmq::{RabbitOptions, RabbitServer, RabbitSink};
use posthaste::{
    Error, ErrorKind, Finding, Guarded, LogSink, MySqlDatabase, NullSink, PgDatabase, Result, SinkOptions,
    Source as _, SqliteDatabase, StoreOptions, Tenants,
};
use std::sync::Arc;

use super::config::{Config, Database, SinkConfig, SinkKind};
use crate::target::{AnyStore, Kind};

/// Up to how many databases each has connections to spare, and is listened to.
const FEW: usize = 8;

/// How a database is used, one of so many.
fn options(database: &Database, of: usize) -> StoreOptions {
    let few = of <= FEW;
    let mut options = match database.max_connections {
        Some(connections) => StoreOptions::new().max_connections(connections),
        None if few => StoreOptions::new().max_connections(4),
        None => StoreOptions::tenant(),
    };
    options = options
        .keep_done(database.keep_done)
        .acquire_timeout(database.acquire_timeout)
        .listen(database.listen.unwrap_or(few));
    if let Some(schema) = &database.schema {
        options = options.schema(schema);
    }
    if let Some(prefix) = &database.prefix {
        options = options.prefix(prefix);
    }
    options
}

/// The store of a database, with its type forgotten. Nothing is connected yet.
pub(crate) fn store(database: &Database, of: usize) -> Result<Arc<dyn AnyStore>> {
    let (url, options) = (database.url.reveal(), options(database, of));
    Ok(match database.kind {
        Kind::Sqlite => Arc::new(SqliteDatabase::new(url)?.options(options).open()?),
        Kind::Postgres => Arc::new(PgDatabase::new(url)?.options(options).open()?),
        Kind::MySql => Arc::new(MySqlDatabase::new(url)?.options(options).open()?),
    })
}

/// Whether a database is described as it can be. Opening one takes a runtime, and connects to nothing.
pub(crate) fn try_database(database: &Database) -> Result<()> {
    store(database, 1).map(drop)
}

/// A sink with what belongs around it. Nothing is connected yet.
pub(crate) fn guarded(sink: &SinkConfig) -> Result<Guarded> {
    let mut options = SinkOptions::new()
        .name(&sink.name)
        .batch(sink.batch)
        .in_flight(sink.in_flight)
        .pauses(sink.shortest_pause, sink.longest_pause);
    if let Some(deadline) = sink.deadline {
        options = options.deadline(deadline);
    }
    Ok(match sink.kind {
        SinkKind::Rabbit => Guarded::with(rabbit(sink)?, options),
        SinkKind::Nats => Guarded::with(nats(sink)?, options),
        SinkKind::Log => Guarded::with(LogSink, options),
        SinkKind::Null => Guarded::with(NullSink, options),
    })
}

/// Looks at the place where a sink's messages go, at the broker itself; none for sinks without one.
pub(crate) async fn examine(sink: &SinkConfig) -> Result<Option<Finding>> {
    let text = |key: &str| sink.texts.get(key).map(String::as_str);
    match (sink.kind, text("stream")) {
        (SinkKind::Rabbit, _) => {
            rabbit_server(sink)?.examine_exchange(text("exchange").unwrap_or_default()).await.map(Some)
        }
        (SinkKind::Nats, Some(stream)) => nats(sink)?.examine_stream(stream).await.map(Some),
        _ => Ok(None),
    }
}

fn rabbit_server(sink: &SinkConfig) -> Result<RabbitServer> {
    let text = |key: &str| sink.texts.get(key);
    let mut server = RabbitServer::new(sink.url.reveal())?.connect_timeout(sink.connect_timeout);
    if let Some(file) = text("ca_file") {
        server = server.ca(pem(file)?)?;
    }
    if let Some((chain, key)) = certificate(sink)? {
        server = server.client_certificate(pem(chain)?, pem(key)?)?;
    }
    Ok(server)
}

fn rabbit(sink: &SinkConfig) -> Result<RabbitSink> {
    let text = |key: &str| sink.texts.get(key);
    let exchange = text("exchange").map_or("", String::as_str);
    let mut options = RabbitOptions::to(rabbit_server(sink)?, exchange);
    if let Some(window) = sink.window {
        options = options.window(window);
    }
    if let Some(bytes) = sink.max_message_bytes {
        options = options.max_message_bytes(bytes);
    }
    if let Some(source) = text("source") {
        options = options.source(source);
    }
    RabbitSink::new(options)
}

fn nats(sink: &SinkConfig) -> Result<NatsSink> {
    let text = |key: &str| sink.texts.get(key);
    let mut options = NatsOptions::new(sink.url.reveal())?.connect_timeout(sink.connect_timeout)?;
    if let Some(file) = text("ca_file") {
        options = options.ca_file(file);
    }
    if let Some((chain, key)) = certificate(sink)? {
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

/// The files of a certificate and of its key: both, or none.
fn certificate(sink: &SinkConfig) -> Result<Option<(&str, &str)>> {
    match (sink.texts.get("cert_file"), sink.texts.get("cert_key_file")) {
        (Some(chain), Some(key)) => Ok(Some((chain, key))),
        (None, None) => Ok(None),
        _ => Err(Error::new(ErrorKind::Configuration, "a certificate and its key belong together")
            .with_remedy("give both cert_file and cert_key_file")),
    }
}

fn pem(file: &str) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| {
        Error::new(ErrorKind::Configuration, format!("a file of certificates cannot be read: {error}"))
            .with_context("file", file)
    })
}

/// The tenants and their sinks, ready to run.
pub(crate) async fn tenants(config: &Config) -> Result<(Tenants, Vec<Guarded>)> {
    let mut builder = Tenants::builder().worker(&config.name).settings(config.settings.clone());
    let of = config.databases.len();
    for database in &config.databases {
        let (name, url, options) = (database.name.as_str(), database.url.reveal(), options(database, of));
        builder = match database.kind {
            Kind::Sqlite => builder.tenant(name, SqliteDatabase::new(url)?.options(options)),
            Kind::Postgres => builder.tenant(name, PgDatabase::new(url)?.options(options)),
            Kind::MySql => builder.tenant(name, MySqlDatabase::new(url)?.options(options)),
        };
    }
    let mut sinks = Vec::new();
    for sink in &config.sinks {
        let guarded = guarded(sink)?;
        let routes = config.routes.iter().filter(|route| route.sink == sink.name);
        for topic in routes.flat_map(|route| &route.topics) {
            builder = builder.sink(topic, guarded.clone());
        }
        sinks.push(guarded);
    }
    if let Some(keyring) = &config.keyring {
        builder = builder.encryption(keyring.clone());
    }
    Ok((builder.build().await?, sinks))
}
