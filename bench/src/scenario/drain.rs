//! Drain: so many messages are there already; how long until all are delivered and settled?
//!
//! Leases, retries and fencing are on. The clock starts with the runtime, and stops when the last settlement is in the database.

use std::sync::{Arc, OnceLock};

use posthaste::Settings;

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::{self, Count, Tuning};

pub(crate) const SCENARIO: &str = "drain";

/// The settings to try; the fastest is reported as posthaste.
const TUNINGS: [Tuning; 4] = [
    Tuning { workers: 4, batch: 1_000, settle_batch: 1_000 },
    Tuning { workers: 64, batch: 1_000, settle_batch: 1_000 },
    Tuning { workers: 256, batch: 2_000, settle_batch: 2_000 },
    Tuning { workers: 256, batch: 5_000, settle_batch: 5_000 },
];
/// The batch of the bare loop.
const BARE_BATCH: u32 = 1_000;

/// The tuning that was quickest on this store, found once per process.
#[derive(Clone, Default)]
pub(crate) struct Best(Arc<OnceLock<Tuning>>);

impl Best {
    pub(crate) async fn find<P: Product>(&self, product: &Arc<P>, scale: Scale) -> Result<Tuning> {
        if let Some(tuning) = self.0.get() {
            return Ok(*tuning);
        }
        let messages = scale.drain.min(100_000) / 4;
        let mut best = (TUNINGS[0], 0.0);
        // The first turn warms everything up, and does not count.
        for tuning in [&TUNINGS[..1], &TUNINGS[..]].concat() {
            let run = in_room(Arc::clone(product), move |room| {
                Box::pin(runtime(room, messages, tuning.settings(), false, |_| None, false))
            });
            let rate = run.await?.value;
            if rate > best.1 {
                best = (tuning, rate);
            }
        }
        Ok(*self.0.get_or_init(|| best.0))
    }
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale, best: &Best) -> Vec<Case> {
    let messages = scale.drain;
    let tuned = |keep| {
        let (product, best) = (Arc::clone(product), best.clone());
        move || {
            let (product, best) = (Arc::clone(&product), best.clone());
            async move {
                let tuning = best.find(&product, scale).await?;
                let mut sample = in_room(product, move |room| {
                    Box::pin(runtime(room, messages, tuning.settings(), keep, |_| None, false))
                })
                .await?;
                sample.configuration = Some(tuning.text());
                Ok(sample)
            }
        }
    };
    let default = {
        let product = Arc::clone(product);
        move || {
            in_room(Arc::clone(&product), move |room| {
                Box::pin(runtime(room, messages, Settings::default(), true, |_| None, false))
            })
        }
    };
    let bare = {
        let product = Arc::clone(product);
        move || in_room(Arc::clone(&product), move |room| Box::pin(bare_loop(room, messages)))
    };
    let case = |subject, run| Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run);
    let mut cases = vec![case("posthaste", tuned(false)), case("posthaste, done kept", tuned(true))];
    cases.push(Case::new(SCENARIO, P::NAME, "posthaste, default settings", Unit::Messages, default));
    cases.push(Case::new(SCENARIO, P::NAME, "bare loop of claim and settle", Unit::Messages, bare));
    let last = cases.len() - 1;
    cases[last].role = if P::DESTROY.is_some() { Role::Reference } else { Role::Limit };
    if let Some(destroy) = P::DESTROY {
        let product = Arc::clone(product);
        let run = move || {
            in_room(Arc::clone(&product), move |room| Box::pin(destructive_read(room, messages, destroy)))
        };
        let subject = "limit: destructive read";
        cases.push(Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run).role(Role::Limit));
    }
    cases
}

/// Drains by a running outbox; with another session's transaction open meanwhile, or not.
pub(crate) async fn runtime<P: Product>(
    room: &Room<P>,
    messages: u64,
    settings: Settings,
    keep_done: bool,
    key: impl Fn(u64) -> Option<String> + Send,
    hold: bool,
) -> Result<Sample> {
    let store = room.store(keep_done).await?;
    workload::preload(&store, messages, key).await?;
    room.analyze().await?;
    let held = room.hold(hold).await?;
    let counter = Count::until(messages);
    let outbox = workload::counting(store.clone(), settings, &counter).build().await?;
    let meter = Meter::start(room).await?;
    workload::deliver(&outbox, &counter).await?;
    let stopped = meter.stop(room).await?;
    workload::nothing_left(&store).await?;
    held.close().await;
    P::close(&store).await;
    stopped.sample(room, messages).await
}

async fn bare_loop<P: Product>(room: &Room<P>, messages: u64) -> Result<Sample> {
    let store = room.store(false).await?;
    workload::preload(&store, messages, |_| None).await?;
    room.analyze().await?;
    let meter = Meter::start(room).await?;
    workload::bare_loop(&store, BARE_BATCH, messages).await?;
    let stopped = meter.stop(room).await?;
    workload::nothing_left(&store).await?;
    P::close(&store).await;
    let mut sample = stopped.sample(room, messages).await?;
    sample.configuration = Some(format!("one task, batch {BARE_BATCH}, deletes what is done"));
    Ok(sample)
}

async fn destructive_read<P: Product>(
    room: &Room<P>,
    messages: u64,
    destroy: &'static str,
) -> Result<Sample> {
    let pool = room.pool(1).await?;
    let mut tx = pool.begin_with(P::BEGIN).await?;
    P::fill_bare(&mut tx, messages, &workload::Note::json(0)?).await?;
    tx.commit().await?;
    room.analyze().await?;
    let mut connection = pool.acquire().await?;
    let meter = Meter::start(room).await?;
    let mut read = 0;
    while read < messages {
        match P::fetch(&mut connection, destroy).await? {
            0 => return Err(format!("{read} of {messages} were read, and then none").into()),
            some => read += some,
        }
    }
    let stopped = meter.stop(room).await?;
    drop(connection);
    pool.close().await;
    stopped.sample(room, messages).await
}
