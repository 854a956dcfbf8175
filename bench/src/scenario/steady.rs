//! Steady: messages come at a fixed rate while a backlog is worked off.
//!
//! What counts is that the rate is delivered, and how long the new ones take meanwhile; the backlog is older and goes first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste::{Delivery, HandlerResult, Outbox, Shared, Shutdown};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::latency::Times;
use crate::args::Scale;
use crate::measure::{Case, Result, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::{self, Count, Note};

const SCENARIO: &str = "steady";
/// How many publish.
const PUBLISHERS: u64 = 4;
/// Numbers below belong to the backlog.
const FIRST: u64 = 1 << 40;

#[derive(Clone)]
struct Desk {
    times: Arc<Times>,
    count: Arc<Count>,
}

async fn handle(note: Delivery<Note>, Shared(desk): Shared<Desk>) -> HandlerResult {
    desk.count.add();
    if note.number >= FIRST {
        desk.times.handled(note.number);
    }
    Ok(())
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let case = |(subject, hot)| {
        let product = Arc::clone(product);
        let run =
            move || in_room(Arc::clone(&product), move |room| Box::pin(measure(room, scale, hot, false)));
        let case = Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run);
        case.variation(format!("{} offered msg/s, backlog {}", P::OFFERED, scale.backlog))
    };
    [("posthaste, publish", false), ("posthaste, begin (hot path)", true)].map(case).into()
}

/// With another session's transaction open meanwhile, or not.
pub(crate) async fn measure<P: Product>(
    room: &Room<P>,
    scale: Scale,
    hot: bool,
    hold: bool,
) -> Result<Sample> {
    let store = room.store(false).await?;
    workload::preload(&store, scale.backlog, |_| None).await?;
    room.analyze().await?;
    let held = room.hold(hold).await?;
    let desk = Desk { times: Arc::default(), count: Count::until(0) };
    let outbox = Outbox::builder(store.clone()).on(handle).share(desk.clone()).build().await?;
    let pool = room.pool(u32::try_from(PUBLISHERS)?).await?;

    let meter = Meter::start(room).await?;
    let stop = Shutdown::new();
    let running = tokio::spawn(outbox.run(stop.clone()));
    let begin = Instant::now();
    let each = Duration::from_secs(scale.seconds);
    let mut publishers = JoinSet::new();
    for publisher in 0..PUBLISHERS {
        let (outbox, pool, times) = (outbox.clone(), pool.clone(), Arc::clone(&desk.times));
        publishers.spawn(async move {
            let mut ticks = interval(Duration::from_micros(1_000_000 * PUBLISHERS / P::OFFERED));
            // A late publisher catches up: the load is offered, not negotiated.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            let mut number = FIRST + publisher;
            while begin.elapsed() < each {
                ticks.tick().await;
                let sent = if hot {
                    let mut tx = outbox.begin().await?;
                    P::run(&mut tx, P::NOTE, "a business row").await?;
                    tx.publish(&Note::new(number)).await?;
                    let sent = Instant::now();
                    tx.commit().await?;
                    sent
                } else {
                    let mut tx = pool.begin_with(P::BEGIN).await?;
                    P::run(&mut tx, P::NOTE, "a business row").await?;
                    outbox.publish(&mut tx, &Note::new(number)).await?;
                    let sent = Instant::now();
                    tx.commit().await?;
                    sent
                };
                times.committed(number, sent);
                number += PUBLISHERS;
            }
            Result::<u64>::Ok((number - FIRST) / PUBLISHERS)
        });
    }
    let mut offered = 0;
    while let Some(publisher) = publishers.join_next().await {
        offered += publisher??;
    }
    let (delivered, seconds) = (desk.count.get(), begin.elapsed().as_secs_f64());
    let latencies = desk.times.latencies().await;
    let stopped = meter.stop(room).await?;
    stop.begin();
    running.await??;
    pool.close().await;
    held.close().await;
    P::close(&store).await;
    let (after, before) = latencies?;
    let mut sample = Sample::rate(delivered, seconds);
    sample.tail("", &after)?;
    sample.tail("sent_", &before)?;
    sample.count("offered_per_second", offered as f64 / seconds);
    stopped.costs(room, scale.backlog + offered, &mut sample).await?;
    sample.configuration = Some(format!("{:.0} msg/s were published", offered as f64 / seconds));
    Ok(sample)
}
