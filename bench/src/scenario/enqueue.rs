//! Enqueue: a business row and a message in one transaction, by several clients at once, for some seconds.
//!
//! All subjects use the same driver, as many connections and the same statements around the message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste::{Settings, Shutdown};
use sqlx::Pool;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::{self, Count, Note};

const SCENARIO: &str = "enqueue";

/// The work beside the business row.
#[derive(Clone, Copy)]
enum Way {
    Nothing,
    Bare,
    Publish,
    Hot,
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let case = |subject, role, way| {
        let product = Arc::clone(product);
        let run = move || in_room(Arc::clone(&product), move |room| Box::pin(measure(room, scale, way)));
        Case::new(SCENARIO, P::NAME, subject, Unit::Transactions, run).role(role)
    };
    vec![
        case("floor: business row alone", Role::Floor, Way::Nothing),
        case("limit: a bare second insert", Role::Limit, Way::Bare),
        case("posthaste, publish", Role::Posthaste, Way::Publish),
        case("posthaste, begin (hot path)", Role::Posthaste, Way::Hot),
    ]
}

async fn measure<P: Product>(room: &Room<P>, scale: Scale, way: Way) -> Result<Sample> {
    match way {
        Way::Nothing | Way::Bare => {
            let pool = room.pool(scale.clients).await?;
            warm(&pool, scale.clients).await?;
            let meter = Meter::start(room).await?;
            let shared = pool.clone();
            let clients = clients(scale, move |n| {
                let pool = shared.clone();
                async move {
                    let mut tx = pool.begin_with(P::BEGIN).await?;
                    P::run(&mut tx, P::NOTE, "a business row").await?;
                    if matches!(way, Way::Bare) {
                        P::run(&mut tx, P::BARE, &Note::json(n)?).await?;
                    }
                    Ok(tx.commit().await?)
                }
            });
            let transactions = clients.await?;
            let stopped = meter.stop(room).await?;
            pool.close().await;
            stopped.sample(room, transactions).await
        }
        Way::Publish => {
            let pool = room.pool(scale.clients).await?;
            warm(&pool, scale.clients).await?;
            let store = room.store(true).await?;
            // No outbox runs: this measures what publishing costs, not delivery on the same machine.
            let outbox =
                workload::counting(store.clone(), Settings::default(), &Count::until(0)).build().await?;
            let meter = Meter::start(room).await?;
            let shared = (pool.clone(), outbox);
            let clients = clients(scale, move |n| {
                let (pool, outbox) = shared.clone();
                async move {
                    let mut tx = pool.begin_with(P::BEGIN).await?;
                    P::run(&mut tx, P::NOTE, "a business row").await?;
                    outbox.publish(&mut tx, &Note::new(n)).await?;
                    Ok(tx.commit().await?)
                }
            });
            let transactions = clients.await?;
            let stopped = meter.stop(room).await?;
            pool.close().await;
            P::close(&store).await;
            stopped.sample(room, transactions).await
        }
        Way::Hot => {
            let store = room.store(false).await?;
            let counter = Count::until(0);
            let outbox = workload::counting(store.clone(), Settings::default(), &counter).build().await?;
            let stop = Shutdown::new();
            let running = tokio::spawn(outbox.run(stop.clone()));
            sleep(Duration::from_millis(300)).await;
            let meter = Meter::start(room).await?;
            let clients = clients(scale, move |n| {
                let outbox = outbox.clone();
                async move {
                    let mut tx = outbox.begin().await?;
                    P::run(&mut tx, P::NOTE, "a business row").await?;
                    tx.publish(&Note::new(n)).await?;
                    Ok(tx.commit().await?)
                }
            });
            let transactions = clients.await?;
            let stopped = meter.stop(room).await?;
            // It delivers meanwhile, in the same process: that is the hot path.
            let delivered = counter.get();
            stop.begin();
            running.await??;
            P::close(&store).await;
            let mut sample = stopped.sample(room, transactions).await?;
            sample.count("delivered_meanwhile", delivered as f64 / transactions.max(1) as f64);
            sample.configuration = Some("it runs, and deletes what is done".to_owned());
            Ok(sample)
        }
    }
}

/// Opens all connections before the clock runs.
async fn warm<D: sqlx::Database>(pool: &Pool<D>, connections: u32) -> Result {
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(pool.acquire().await?);
    }
    Ok(())
}

/// Lets every client do one transaction after the other until the time is over; answers how many there were.
async fn clients<W, F>(scale: Scale, work: W) -> Result<u64>
where
    W: Fn(u64) -> F + Clone + Send + 'static,
    F: Future<Output = Result> + Send + 'static,
{
    let end = Instant::now() + Duration::from_secs(scale.seconds);
    let (transactions, failed) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut clients = JoinSet::new();
    for _ in 0..scale.clients {
        let (work, transactions, failed) = (work.clone(), Arc::clone(&transactions), Arc::clone(&failed));
        clients.spawn(async move {
            while Instant::now() < end && !failed.load(Ordering::Relaxed) {
                let n = transactions.load(Ordering::Relaxed);
                work(n).await.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                transactions.fetch_add(1, Ordering::Relaxed);
            }
            Result::<()>::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(transactions.load(Ordering::Relaxed))
}
