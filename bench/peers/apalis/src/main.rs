//! apalis with apalis-postgres beside posthaste: `push_tasks` in the user's transaction, its own workers drain.
//!
//! It must never mark tasks as done itself; it only asks the table whether the workers have.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use apalis::prelude::{
    BackendExt as _, BoxDynError, Data, TaskBuilder, WorkerBuilder, WorkerBuilderExt as _,
};
use apalis_postgres::{Config, PostgresStorage, queries};
use peer_harness::{About, Arrivals, Drained, Error, Peer, Progress, Result};
use serde_json::Value;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};

const QUEUE: &str = "bench";

/// A setting of a drain to try.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn pool(url: &str, connections: u32) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(connections).connect(url).await?)
}

async fn count(_payload: Value, progress: Data<Progress>) -> std::result::Result<(), BoxDynError> {
    progress.add(1);
    Ok(())
}

async fn clock(payload: Value, arrivals: Data<Arrivals>) -> std::result::Result<(), BoxDynError> {
    arrivals.started(&payload);
    Ok(())
}

struct Apalis;

impl Peer for Apalis {
    type Client = PgConnection;

    fn about(&self) -> About {
        About {
            name: "apalis-postgres",
            version: "apalis 1.0.0, apalis-postgres 1.0.0",
            configuration: "lock_tasks off; LISTEN/NOTIFY for the latency; sqlx 0.9",
        }
    }

    async fn setup(&self, url: &str) -> Result<()> {
        Ok(PostgresStorage::setup(&pool(url, 2).await?).await?)
    }

    async fn client(&self, url: &str) -> Result<PgConnection> {
        Ok(PgConnection::connect(url).await?)
    }

    async fn publish(&self, client: &mut PgConnection, note: &str, payload: Value) -> Result<()> {
        let mut tx = client.begin().await?;
        sqlx::query("insert into business (note) values ($1)").bind(note).execute(&mut *tx).await?;
        let task = TaskBuilder::new(serde_json::to_vec(&payload)?).build();
        queries::push_tasks(&mut *tx, QUEUE, vec![task]).await?;
        Ok(tx.commit().await?)
    }

    async fn preload(&self, url: &str, count: u64, filler: &str) -> Result<()> {
        let mut connection = PgConnection::connect(url).await?;
        for first in (1..=count).step_by(5000) {
            let tasks = (first..=count.min(first + 4999))
                .map(|id| {
                    Ok(TaskBuilder::new(serde_json::to_vec(
                        &serde_json::json!({ "id": id, "text": filler }),
                    )?)
                    .build())
                })
                .collect::<Result<_>>()?;
            queries::push_tasks(&mut connection, QUEUE, tasks).await?;
        }
        sqlx::query("vacuum analyze").execute(&mut connection).await?;
        Ok(())
    }

    async fn drain(&self, url: &str, progress: Progress) -> Result<Drained> {
        let (batch, workers, concurrency) =
            (setting("PEER_BATCH", 5000), setting("PEER_WORKERS", 2), setting("PEER_CONCURRENCY", 5000));
        let pool = pool(url, workers + 4).await?;
        let config = Config::default().queue(QUEUE).batch_size(usize::try_from(batch)?).lock_tasks(false);
        let mut watcher = PgConnection::connect(url).await?;
        let start = Instant::now();
        for number in 0..workers {
            let storage: PostgresStorage<Value> = PostgresStorage::new(&pool).with_config(config.clone());
            let worker = WorkerBuilder::new(format!("drain-{number}"))
                .backend(storage.poll_with_interval(Duration::from_millis(5)))
                .concurrency(usize::try_from(concurrency)?)
                .data(progress.clone())
                .build(count);
            tokio::spawn(worker.run());
        }
        progress.all_handled().await?;
        while sqlx::query_scalar(include_str!("left.sql")).bind(QUEUE).fetch_one(&mut watcher).await? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Drained {
            elapsed: start.elapsed(),
            configuration: format!(
                "{workers} worker(s); batch {batch}; concurrency {concurrency}; lock_tasks off"
            ),
        })
    }

    async fn attend(&self, url: &str, arrivals: Arrivals) -> Result<()> {
        let config = Config::default().queue(QUEUE).batch_size(10).lock_tasks(false);
        let storage: PostgresStorage<Value> = PostgresStorage::new(&pool(url, 6).await?).with_config(config);
        let worker = WorkerBuilder::new("latency")
            .backend(storage.with_pubsub().poll_with_interval(Duration::from_millis(10)))
            .data(arrivals)
            .build(clock);
        worker.run().await.map_err(|error| Error::from(error.to_string()))
    }
}

fn main() -> ExitCode {
    peer_harness::main(Apalis)
}
