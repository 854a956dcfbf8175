//! graphile_worker (Rust) beside posthaste: its own utilities enqueue in the user's transaction, its own worker drains.
//!
//! It must never complete jobs itself; it only asks the table whether the worker has.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, RawJobSpec, TaskHandler, Worker, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use peer_harness::{About, Arrivals, Drained, Peer, Progress, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};

const SCHEMA: &str = "graphile_worker";

/// A setting of a drain to try.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[derive(Deserialize, Serialize)]
#[serde(transparent)]
struct Bench(Value);

impl TaskHandler for Bench {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        if let Some(progress) = context.get_ext::<Progress>() {
            progress.add(1);
        }
        if let Some(arrivals) = context.get_ext::<Arrivals>() {
            arrivals.started(&self.0);
        }
        Ok::<(), String>(())
    }
}

async fn pool(url: &str, connections: u32) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(connections).connect(url).await?)
}

fn options(pool: PgPool) -> WorkerOptions {
    WorkerOptions::default()
        .schema(SCHEMA)
        .pg_pool(pool)
        .define_job::<Bench>()
        .listen_os_shutdown_signals(false)
}

struct Graphile;

struct Client {
    connection: PgConnection,
    utils: WorkerUtils,
}

impl Peer for Graphile {
    type Client = Client;

    fn about(&self) -> About {
        About {
            name: "graphile_worker",
            version: "0.14.1",
            configuration: "sqlx 0.9; LISTEN/NOTIFY; local queue and batched completion for the drain",
        }
    }

    async fn setup(&self, url: &str) -> Result<()> {
        WorkerUtils::new(pool(url, 2).await?, SCHEMA).migrate().await?;
        Ok(())
    }

    async fn client(&self, url: &str) -> Result<Client> {
        // The utilities want a pool; every job goes through the connection beside it.
        let unused = PgPoolOptions::new().connect_lazy(url)?;
        Ok(Client { connection: PgConnection::connect(url).await?, utils: WorkerUtils::new(unused, SCHEMA) })
    }

    async fn publish(&self, client: &mut Client, note: &str, payload: Value) -> Result<()> {
        let mut tx = client.connection.begin().await?;
        sqlx::query("insert into business (note) values ($1)").bind(note).execute(&mut *tx).await?;
        client.utils.clone().with_executor(&mut tx).add_job(Bench(payload), JobSpec::default()).await?;
        Ok(tx.commit().await?)
    }

    async fn preload(&self, url: &str, count: u64, filler: &str) -> Result<()> {
        let pool = pool(url, 2).await?;
        let utils = WorkerUtils::new(pool.clone(), SCHEMA);
        for first in (1..=count).step_by(5000) {
            let jobs: Vec<_> = (first..=count.min(first + 4999))
                .map(|id| RawJobSpec {
                    identifier: Bench::IDENTIFIER.to_owned(),
                    payload: json!({ "id": id, "text": filler }),
                    spec: JobSpec::default(),
                })
                .collect();
            utils.add_raw_jobs(&jobs).await?;
        }
        sqlx::query("vacuum analyze").execute(&pool).await?;
        Ok(())
    }

    async fn drain(&self, url: &str, progress: Progress) -> Result<Drained> {
        let (size, queues, concurrency) =
            (setting("PEER_BATCH", 1000), setting("PEER_WORKERS", 2), setting("PEER_CONCURRENCY", 64));
        let delay = setting("PEER_DELAY", 5);
        let local = LocalQueueConfig::default()
            .with_size(usize::try_from(size)?)
            .with_queue_count(usize::try_from(queues)?);
        let worker = options(pool(url, 10).await?)
            .concurrency(usize::try_from(concurrency)?)
            .local_queue(local)
            .complete_job_batch_delay(Duration::from_millis(delay.into()))
            .add_extension(progress.clone())
            .init()
            .await?;
        let mut watcher = PgConnection::connect(url).await?;
        let start = Instant::now();
        let running = tokio::spawn(run(worker));
        progress.all_handled().await?;
        // Completed jobs are deleted, in batches behind the handlers.
        while sqlx::query_scalar(include_str!("left.sql")).fetch_one(&mut watcher).await? {
            if running.is_finished() {
                return Err("the worker stopped before its jobs were settled".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(Drained {
            elapsed: start.elapsed(),
            configuration: format!(
                "concurrency {concurrency}; {queues} local queue(s) of {size}; completions gathered for {delay} ms"
            ),
        })
    }

    async fn attend(&self, url: &str, arrivals: Arrivals) -> Result<()> {
        run(options(pool(url, 10).await?).concurrency(4).add_extension(arrivals).init().await?).await
    }
}

async fn run(worker: Worker) -> Result<()> {
    worker.run().await?;
    Ok(())
}

fn main() -> ExitCode {
    peer_harness::main(Graphile)
}
