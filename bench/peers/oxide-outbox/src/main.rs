//! oxide-outbox (outbox-core, outbox-postgres) beside posthaste: its service writes, its manager drains.
//!
//! It must never change the status of an event itself; it only asks the table for it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_core::prelude::{
    Event, NoIdempotency, OutboxConfig, OutboxError, OutboxManagerBuilder, OutboxService, Transport,
};
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use peer_harness::{About, Arrivals, Drained, Peer, Progress, Result};
use serde_json::Value;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use tokio::sync::watch;

/// A setting of a drain to try.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn config(batch: u32) -> Arc<OutboxConfig<Value>> {
    let mut config = OutboxConfig::default();
    config.batch_size = batch;
    Arc::new(config)
}

async fn pool(url: &str) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(5).connect(url).await?)
}

/// The broker that takes everything at once.
enum Sink {
    Count(Progress),
    Clock(Arrivals),
}

#[async_trait]
impl Transport<Value> for Sink {
    async fn publish(&self, event: Event<Value>) -> std::result::Result<(), OutboxError> {
        match self {
            Self::Count(progress) => {
                progress.add(1);
            }
            Self::Clock(arrivals) => arrivals.started(event.payload.as_value()),
        }
        Ok(())
    }
}

/// A manager of its own, with its own connections and its own listener.
async fn manage(url: String, batch: u32, sink: Arc<Sink>) -> Result<()> {
    let config = config(batch);
    let (_keep, shutdown) = watch::channel(false);
    let manager = OutboxManagerBuilder::new()
        .storage(Arc::new(PostgresOutbox::new(pool(&url).await?, Arc::clone(&config))))
        .publisher(sink)
        .config(config)
        .shutdown_rx(shutdown)
        .build()?;
    manager.run().await?;
    Ok(())
}

struct Oxide;

struct Client {
    connection: PgConnection,
    service: OutboxService<PostgresWriter, NoIdempotency, Value>,
}

impl Peer for Oxide {
    type Client = Client;

    fn about(&self) -> About {
        About {
            name: "oxide-outbox",
            version: "outbox-core 0.6.0, outbox-postgres 0.3.0",
            configuration: "its migrations with their NOTIFY trigger; no idempotency tokens; sqlx 0.8",
        }
    }

    async fn setup(&self, url: &str) -> Result<()> {
        let migration = include_str!(concat!(env!("OUTBOX_MIGRATIONS"), "20260213152819_init.sql"));
        sqlx::raw_sql(migration).execute(&pool(url).await?).await?;
        Ok(())
    }

    async fn client(&self, url: &str) -> Result<Client> {
        let service = OutboxService::new(Arc::new(PostgresWriter), config(1));
        Ok(Client { connection: PgConnection::connect(url).await?, service })
    }

    async fn publish(&self, client: &mut Client, note: &str, payload: Value) -> Result<()> {
        let mut tx = client.connection.begin().await?;
        sqlx::query("insert into business (note) values ($1)").bind(note).execute(&mut *tx).await?;
        client.service.add_event("bench", payload, None, &mut tx).await?;
        Ok(tx.commit().await?)
    }

    async fn preload(&self, url: &str, count: u64, filler: &str) -> Result<()> {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query(include_str!("preload.sql"))
            .bind("bench")
            .bind(filler)
            .bind(i64::try_from(count)?)
            .execute(&mut connection)
            .await?;
        sqlx::query("vacuum analyze").execute(&mut connection).await?;
        Ok(())
    }

    async fn drain(&self, url: &str, progress: Progress) -> Result<Drained> {
        let (batch, managers) = (setting("PEER_BATCH", 1000), setting("PEER_WORKERS", 1));
        let mut watcher = PgConnection::connect(url).await?;
        let sink = Arc::new(Sink::Count(progress.clone()));
        let start = Instant::now();
        for _ in 0..managers {
            tokio::spawn(manage(url.to_owned(), batch, Arc::clone(&sink)));
        }
        progress.all_handled().await?;
        while sqlx::query_scalar(include_str!("left.sql")).fetch_one(&mut watcher).await? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Drained {
            elapsed: start.elapsed(),
            configuration: format!("{managers} manager(s); batch {batch}"),
        })
    }

    async fn attend(&self, url: &str, arrivals: Arrivals) -> Result<()> {
        manage(url.to_owned(), 100, Arc::new(Sink::Clock(arrivals))).await
    }
}

fn main() -> ExitCode {
    peer_harness::main(Oxide)
}
