//! Joins: many of ten steps each; how many end per second, with their continuations handled?
//!
//! They are started before the clock; `started_per_second` tells how quickly.

use std::sync::Arc;
use std::time::Instant;

use posthaste::{Delivery, Event, HandlerResult, JoinWait, NewJoin, Outbox, Shared};
use serde::{Deserialize, Serialize};

use crate::args::Scale;
use crate::measure::{Case, Result, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::{self, Count, Note};

const SCENARIO: &str = "joins";
const STEPS: u64 = 10;
/// How many are started in one transaction.
const AT_ONCE: u64 = 20;

#[derive(Serialize, Deserialize)]
struct Joined {
    number: u64,
}

impl Event for Joined {
    const TOPIC: &'static str = "joined";
}

async fn step(_note: Delivery<Note>) -> HandlerResult {
    Ok(())
}

async fn joined(_joined: Delivery<Joined>, Shared(count): Shared<Arc<Count>>) -> HandlerResult {
    count.add();
    Ok(())
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let product = Arc::clone(product);
    let run = move || in_room(Arc::clone(&product), move |room| Box::pin(measure(room, scale.joins)));
    vec![Case::new(SCENARIO, P::NAME, "posthaste", Unit::Joins, run).variation("of 10 steps")]
}

async fn measure<P: Product>(room: &Room<P>, joins: u64) -> Result<Sample> {
    let store = room.store(true).await?;
    let counter = Count::until(joins);
    let outbox =
        Outbox::builder(store.clone()).on(step).on(joined).share(Arc::clone(&counter)).build().await?;
    let pool = room.pool(1).await?;
    let begin = Instant::now();
    let mut next = 0;
    while next < joins {
        let mut tx = pool.begin_with(P::BEGIN).await?;
        for number in next..joins.min(next + AT_ONCE) {
            let steps: Vec<Note> = (0..STEPS).map(|step| Note::new(number * STEPS + step)).collect();
            let join = NewJoin::of(&steps).wait(JoinWait::on_complete(&Joined { number }));
            outbox.start_join(&mut tx, join).await?;
        }
        tx.commit().await?;
        next += AT_ONCE;
    }
    let started = joins as f64 / begin.elapsed().as_secs_f64();
    pool.close().await;
    room.analyze().await?;
    let meter = Meter::start(room).await?;
    workload::deliver(&outbox, &counter).await?;
    let stopped = meter.stop(room).await?;
    workload::nothing_left(&store).await?;
    P::close(&store).await;
    let mut sample = stopped.sample(room, joins).await?;
    sample.count("started_per_second", started);
    sample.configuration = Some(format!("{started:.0} joins/s were started; costs are per join"));
    Ok(sample)
}
