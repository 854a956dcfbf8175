//! Growth: the cost of a fixed number of deliveries with more and more waiting messages behind them, and done ones
//! beside them.
//!
//! By the bare loop of claims and settlements, so that nothing but the database can get slower. Done messages are kept.
//!
//! A machine that has just written gigabytes is slower for a while, for every program. So after the metered part the same runs in
//! turns with a small backlog, in another database: the ratio of these times counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::args::Scale;
use crate::measure::{Case, Result, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload;

const SCENARIO: &str = "growth";
/// As many as a busy worker claims at a time.
const BATCH: u32 = 200;
/// How often the two take turns, at most.
const TURNS: u64 = 20;

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    let small = scale.backlogs[0];
    for backlog in scale.backlogs {
        // Without rows that the server copies itself, a million takes too long to make.
        for done in [0, if P::COPIES { scale.done } else { scale.done / 10 }] {
            let subject = format!("backlog {}, done {}", short(*backlog), short(done));
            let product = Arc::clone(product);
            let run = move || {
                let beside = Arc::clone(&product);
                in_room(Arc::clone(&product), move |room| {
                    Box::pin(measure(room, beside, [*backlog, small], done, scale.growth))
                })
            };
            cases.push(Case::new(SCENARIO, P::NAME, &subject, Unit::Messages, run));
        }
    }
    cases
}

async fn measure<P: Product>(
    room: &Room<P>,
    product: Arc<P>,
    [backlog, small]: [u64; 2],
    done: u64,
    deliveries: u64,
) -> Result<Sample> {
    let store = room.store(true).await?;
    if done > 0 {
        fill(room, &store, done, true).await?;
    }
    // Delivered messages come on top, so that the backlog stays to the end: metered, to warm up, and in turns.
    fill(room, &store, backlog + 3 * deliveries, false).await?;
    room.analyze().await?;
    let meter = Meter::start(room).await?;
    workload::bare_loop(&store, BATCH, deliveries).await?;
    let stopped = meter.stop(room).await?;
    P::close(&store).await;
    let mut sample = stopped.sample(room, deliveries).await?;
    sample.configuration = Some(format!("one task, batch {BATCH}"));
    let store = room.store(true).await?;
    let ratio = in_room(product, move |beside| Box::pin(in_turns(store, beside, small, deliveries))).await?;
    sample.count("times_the_small", ratio);
    Ok(sample)
}

/// How long so many deliveries take, beside as many of a small backlog that has been through as much.
async fn in_turns<P: Product>(store: P::Store, beside: &Room<P>, small: u64, deliveries: u64) -> Result<f64> {
    let small_store = beside.store(true).await?;
    fill(beside, &small_store, small + 3 * deliveries, false).await?;
    beside.analyze().await?;
    // Both connections are new, and the other database has had as many deliveries before.
    workload::bare_loop(&small_store, BATCH, 2 * deliveries).await?;
    workload::bare_loop(&store, BATCH, deliveries).await?;
    let (mut this, mut that) = (Duration::ZERO, Duration::ZERO);
    let turns = TURNS.min(deliveries / u64::from(BATCH));
    for _ in 0..turns {
        for (store, time) in [(&store, &mut this), (&small_store, &mut that)] {
            let begin = Instant::now();
            workload::bare_loop(store, BATCH, deliveries / turns).await?;
            *time += begin.elapsed();
        }
    }
    P::close(&store).await;
    P::close(&small_store).await;
    Ok(this.as_secs_f64() / that.as_secs_f64())
}

/// So many messages more, ready or done.
async fn fill<P: Product>(room: &Room<P>, store: &P::Store, messages: u64, done: bool) -> Result {
    let by_hand = if P::COPIES { 1 } else { messages };
    workload::preload(store, by_hand, |_| None).await?;
    if done {
        workload::bare_loop(store, 1_000, by_hand).await?;
    }
    if by_hand < messages { room.copy(messages - by_hand, done).await } else { Ok(()) }
}

fn short(number: u64) -> String {
    match number {
        0 => "0".to_owned(),
        n if n.is_multiple_of(1_000_000) => format!("{}M", n / 1_000_000),
        n if n.is_multiple_of(1_000) => format!("{}k", n / 1_000),
        n => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn round_numbers_are_short() {
        assert_eq!([0, 12, 1_500, 20_000, 5_000_000].map(short), ["0", "12", "1500", "20k", "5M"]);
    }
}
