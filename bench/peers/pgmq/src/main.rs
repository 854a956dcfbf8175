//! pgmq beside posthaste: its own SQL functions, called with its own crate.
//!
//! It must never read or write pgmq's tables itself, except to preload them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use peer_harness::{About, Arrivals, Drained, Peer, Progress, Result};
use pgmq::{Message, PGMQueueExt};
use serde_json::Value;
use sqlx::Connection as _;
use sqlx::postgres::{PgConnection, PgListener, PgPool, PgPoolOptions};

const QUEUE: &str = "bench";
/// Longer than any drain: nothing may become visible twice.
const VISIBILITY_SECONDS: i32 = 300;
const POLL: Duration = Duration::from_millis(10);

/// A setting of a drain to try.
fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

async fn pool(url: &str, connections: u32) -> Result<PgPool> {
    Ok(PgPoolOptions::new().max_connections(connections).min_connections(connections).connect(url).await?)
}

struct Pgmq;

struct Client {
    connection: PgConnection,
    queue: PGMQueueExt,
}

impl Peer for Pgmq {
    type Client = Client;

    fn about(&self) -> About {
        About {
            name: "pgmq",
            version: "0.34.0-alpha.7",
            configuration: "SQL functions as embedded in the crate; plain queue; sqlx 0.9",
        }
    }

    async fn setup(&self, url: &str) -> Result<()> {
        let queue = PGMQueueExt::new_with_pool(pool(url, 1).await?).await;
        queue.install_sql_from_embedded().await?;
        queue.create(QUEUE).await?;
        Ok(())
    }

    async fn client(&self, url: &str) -> Result<Client> {
        // The queue object wants a pool; every message goes through the connection beside it.
        let unused = PgPoolOptions::new().connect_lazy(url)?;
        let queue = PGMQueueExt::new_with_pool(unused).await;
        Ok(Client { connection: PgConnection::connect(url).await?, queue })
    }

    async fn publish(&self, client: &mut Client, note: &str, payload: Value) -> Result<()> {
        let mut tx = client.connection.begin().await?;
        sqlx::query("insert into business (note) values ($1)").bind(note).execute(&mut *tx).await?;
        client.queue.send_with_cxn(QUEUE, &payload, &mut *tx).await?;
        Ok(tx.commit().await?)
    }

    async fn preload(&self, url: &str, count: u64, filler: &str) -> Result<()> {
        let mut connection = PgConnection::connect(url).await?;
        sqlx::query(include_str!("preload.sql"))
            .bind(QUEUE)
            .bind(filler)
            .bind(i64::try_from(count)?)
            .execute(&mut connection)
            .await?;
        sqlx::query("vacuum analyze").execute(&mut connection).await?;
        Ok(())
    }

    async fn drain(&self, url: &str, progress: Progress) -> Result<Drained> {
        let (batch, workers) = (setting("PEER_BATCH", 1000), setting("PEER_WORKERS", 4));
        let queue = PGMQueueExt::new_with_pool(pool(url, workers).await?).await;
        let start = Instant::now();
        let tasks: Vec<_> =
            (0..workers).map(|_| tokio::spawn(work(queue.clone(), batch, progress.clone()))).collect();
        for task in tasks {
            task.await??;
        }
        Ok(Drained {
            elapsed: start.elapsed(),
            configuration: format!("{workers} workers; read {batch}, then delete them in one call"),
        })
    }

    async fn attend(&self, url: &str, arrivals: Arrivals) -> Result<()> {
        let pool = pool(url, 2).await?;
        let queue = PGMQueueExt::new_with_pool(pool.clone()).await;
        let mut listener = None;
        if setting("PEER_LISTEN", 1) == 1 {
            queue.enable_notify_insert(QUEUE, Duration::ZERO).await?;
            let mut fresh = PgListener::connect_with(&pool).await?;
            fresh.listen(&format!("pgmq.q_{QUEUE}.INSERT")).await?;
            listener = Some(fresh);
        }
        loop {
            let messages: Vec<Message> = queue.read_batch(QUEUE, VISIBILITY_SECONDS, 100).await?;
            for message in &messages {
                arrivals.started(&message.message);
            }
            if !messages.is_empty() {
                let ids: Vec<i64> = messages.iter().map(|message| message.msg_id).collect();
                queue.delete_batch(QUEUE, &ids).await?;
            } else if let Some(listener) = &mut listener {
                let _ = tokio::time::timeout(POLL, listener.recv()).await;
            } else {
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// One worker of a drain: until all messages are deleted, by whomever.
async fn work(queue: PGMQueueExt, batch: u32, progress: Progress) -> Result<()> {
    while progress.handled() < progress.expected() {
        let messages: Vec<Message> =
            queue.read_batch(QUEUE, VISIBILITY_SECONDS, i32::try_from(batch)?).await?;
        if messages.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        let ids: Vec<i64> = messages.iter().map(|message| message.msg_id).collect();
        let deleted = queue.delete_batch(QUEUE, &ids).await?;
        progress.add(u64::try_from(deleted.len())?);
    }
    Ok(())
}

fn main() -> ExitCode {
    peer_harness::main(Pgmq)
}
