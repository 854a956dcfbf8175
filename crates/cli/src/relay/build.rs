//! From a configuration to what runs: stores, sinks, and the tenants that deliver from the ones to the others.

#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;

use std::sync::Arc;

use posthaste::{
    Error, ErrorKind, Finding, Guarded, LogSink, NullSink, Result, SinkOptions, Source as _, StoreOptions,
    Tenants,
};

use super::config::{Config, Database, SinkConfig, SinkKind};
use crate::target::{AnyStore, with_kind};

/// Up to how many databases each has connections to spare, and is listened to.
const FEW: usize = 8;

/// The options of a database, which depend on the number of databases.
pub(super) fn options(database: &Database, of: usize) -> StoreOptions {
    let few = of <= FEW;
    let mut options = match database.max_connections {
        Some(connections) => StoreOptions::new().max_connections(connections),
        None if few => StoreOptions::new().max_connections(4),
        None => StoreOptions::tenant(),
    };
    options = options
        .keep_done(database.keep_done)
        .acquire_timeout(database.acquire_timeout)
        .answer_timeout(database.answer_timeout)
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
    with_kind!(database.kind, Description => Ok(Arc::new(Description::new(url)?.options(options).open()?)))
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
        SinkKind::Rabbit => rabbitmq::guarded(sink, options)?,
        SinkKind::Nats => nats::guarded(sink, options)?,
        SinkKind::Log => Guarded::with(LogSink, options),
        SinkKind::Null => Guarded::with(NullSink, options),
    })
}

/// Checks a sink's destination at the broker itself; `None` for sinks without one.
pub(crate) async fn examine(sink: &SinkConfig) -> Result<Option<Finding>> {
    match sink.kind {
        SinkKind::Rabbit => rabbitmq::examine(sink).await,
        SinkKind::Nats => nats::examine(sink).await,
        SinkKind::Log | SinkKind::Null => Ok(None),
    }
}

/// Stands in for a broker that this build lacks.
#[cfg(not(all(feature = "nats", feature = "rabbitmq")))]
macro_rules! stand_in {
    ($module:ident, $broker:literal) => {
        mod $module {
            use super::{Finding, Guarded, Result, SinkConfig, SinkOptions};

            pub(super) fn guarded(_: &SinkConfig, _: SinkOptions) -> Result<Guarded> {
                Err(crate::missing::missing($broker, stringify!($module)))
            }

            pub(super) async fn examine(_: &SinkConfig) -> Result<Option<Finding>> {
                Err(crate::missing::missing($broker, stringify!($module)))
            }
        }
    };
}
#[cfg(not(feature = "nats"))]
stand_in!(nats, "NATS");
#[cfg(not(feature = "rabbitmq"))]
stand_in!(rabbitmq, "RabbitMQ");

/// The files of a certificate and of its key: both, or none.
fn certificate(sink: &SinkConfig) -> Result<Option<(&str, &str)>> {
    match (sink.texts.get("cert_file"), sink.texts.get("cert_key_file")) {
        (Some(chain), Some(key)) => Ok(Some((chain, key))),
        (None, None) => Ok(None),
        _ => Err(Error::new(ErrorKind::Configuration, "a certificate and its key belong together")
            .with_remedy("give both cert_file and cert_key_file")),
    }
}

/// The tenants and their sinks, ready to run.
pub(crate) async fn tenants(config: &Config) -> Result<(Tenants, Vec<Guarded>)> {
    let mut builder = Tenants::builder().worker(&config.name).settings(config.settings.clone());
    let of = config.databases.len();
    for database in &config.databases {
        let (name, url, options) = (database.name.as_str(), database.url.reveal(), options(database, of));
        builder = with_kind!(database.kind, Description => builder
            .tenant(name, Description::new(url)?.options(options)));
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
