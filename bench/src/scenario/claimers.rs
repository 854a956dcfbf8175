//! Claimers: many small claims at a time, each followed by its settlement, as many small workers make them.
//!
//! The limit is a plain table that is claimed with `for update skip locked`: an update and a delete for each batch, without leases
//! that run out, keys, retries or fencing. PostgreSQL only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste::{ClaimRequest, Outcome, Settlement, Store, StoreOptions, WorkerId};
use sqlx::PgPool;
use tokio::task::JoinSet;

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Postgres, Product, Room, in_room};
use crate::workload;

const SCENARIO: &str = "claimers";
const BATCH: u32 = 10;
/// How many claim at a time.
const CLAIMERS: [u32; 4] = [1, 4, 16, 64];

const PLAIN_CLAIM: &str = include_str!("../../sql/postgres/plain_claim.sql");
const PLAIN_ACK: &str = "delete from plain where id = any($1)";

pub(crate) fn cases(product: &Arc<Postgres>, scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for claimers in CLAIMERS {
        let messages = scale.ordered;
        let own = {
            let product = Arc::clone(product);
            move || in_room(Arc::clone(&product), move |room| Box::pin(posthaste(room, claimers, messages)))
        };
        let plain = {
            let product = Arc::clone(product);
            move || in_room(Arc::clone(&product), move |room| Box::pin(plain(room, claimers, messages)))
        };
        let variation = format!("{claimers} at a time, batches of {BATCH}");
        cases.push(
            Case::new(SCENARIO, Postgres::NAME, "posthaste", Unit::Messages, own)
                .variation(variation.clone()),
        );
        cases.push(
            Case::new(SCENARIO, Postgres::NAME, "limit: a plain table, skip locked", Unit::Messages, plain)
                .variation(variation)
                .role(Role::Limit),
        );
    }
    cases
}

/// Claimers take messages until all of them together have had enough.
async fn all<F>(claimers: u32, messages: u64, one: impl Fn(u32, Arc<AtomicU64>) -> F) -> Result
where
    F: Future<Output = Result> + Send + 'static,
{
    let left = Arc::new(AtomicU64::new(messages));
    let mut tasks = JoinSet::new();
    for claimer in 0..claimers {
        tasks.spawn(one(claimer, Arc::clone(&left)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Whether there is anything left after so many were settled.
fn subtract(left: &AtomicU64, settled: usize) -> bool {
    let settled = settled as u64;
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| Some(left.saturating_sub(settled)))
        .is_ok_and(|before| before > settled)
}

async fn posthaste(room: &Room<Postgres>, claimers: u32, messages: u64) -> Result<Sample> {
    let options = StoreOptions::new()
        .max_connections(claimers)
        .acquire_timeout(Duration::from_secs(30))
        .keep_done(false);
    let store = room.store_with(&options).await?;
    // The remaining messages keep the last claims from coming back empty.
    workload::preload(&store, messages + u64::from(claimers * BATCH), |_| None).await?;
    room.analyze().await?;
    let meter = Meter::start(room).await?;
    all(claimers, messages, |claimer, left| {
        let store = store.clone();
        async move {
            let request = ClaimRequest::new(WorkerId::new(format!("claimer-{claimer}"))?).limit(BATCH);
            loop {
                let claimed = store.claim(&request).await?;
                let acks: Vec<_> =
                    claimed.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)).collect();
                if !acks.is_empty() {
                    store.settle(&acks).await?;
                }
                if !subtract(&left, acks.len()) {
                    return Ok(());
                }
            }
        }
    })
    .await?;
    let stopped = meter.stop(room).await?;
    Postgres::close(&store).await;
    stopped.sample(room, messages).await
}

async fn plain(room: &Room<Postgres>, claimers: u32, messages: u64) -> Result<Sample> {
    let pool = room.pool(claimers).await?;
    let payload = workload::Note::json(0)?;
    let fill = "insert into plain (payload) select $1 from generate_series(1, $2::bigint)";
    let count = i64::try_from(messages + u64::from(claimers * BATCH))?;
    sqlx::query(fill).bind(payload).bind(count).execute(&pool).await?;
    room.analyze().await?;
    let meter = Meter::start(room).await?;
    all(claimers, messages, |_, left| plain_claimer(pool.clone(), left)).await?;
    let stopped = meter.stop(room).await?;
    pool.close().await;
    stopped.sample(room, messages).await
}

async fn plain_claimer(pool: PgPool, left: Arc<AtomicU64>) -> Result {
    loop {
        let claimed: Vec<(i64, String)> =
            sqlx::query_as(PLAIN_CLAIM).bind(i64::from(BATCH)).fetch_all(&pool).await?;
        let ids: Vec<i64> = claimed.iter().map(|(id, _)| *id).collect();
        if !ids.is_empty() {
            sqlx::query(PLAIN_ACK).bind(&ids).execute(&pool).await?;
        }
        if !subtract(&left, ids.len()) {
            return Ok(());
        }
    }
}
