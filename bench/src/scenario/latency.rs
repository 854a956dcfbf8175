//! Latency: from the publisher's commit to the start of the handler.
//!
//! The clock starts when COMMIT has returned to the publisher; `sent_…` counts from before it was sent. On the hot path the
//! publisher's outbox runs itself; on the cold path another one does, and only the database can tell it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use posthaste::{Delivery, HandlerResult, Outbox, Settings, Shared, Shutdown};
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::args::Scale;
use crate::measure::{Case, Result, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::Note;

const SCENARIO: &str = "latency";
/// How long the last messages may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// When messages were committed and handled, by their number.
#[derive(Debug, Default)]
pub(crate) struct Times {
    sent: Mutex<HashMap<u64, (Instant, Instant)>>,
    handled: Mutex<HashMap<u64, Instant>>,
}

impl Times {
    pub(crate) fn committed(&self, number: u64, sent: Instant) {
        lock(&self.sent).insert(number, (sent, Instant::now()));
    }

    pub(crate) fn handled(&self, number: u64) {
        lock(&self.handled).entry(number).or_insert_with(Instant::now);
    }

    /// Waits until all that was committed was handled; then from COMMIT's return, and from before it was sent, in milliseconds.
    pub(crate) async fn latencies(&self) -> Result<(Vec<f64>, Vec<f64>)> {
        let begin = Instant::now();
        while lock(&self.handled).len() < lock(&self.sent).len() {
            if begin.elapsed() > PATIENCE {
                let (handled, sent) = (lock(&self.handled).len(), lock(&self.sent).len());
                return Err(format!("{handled} of {sent} were handled, {PATIENCE:?} after the last").into());
            }
            sleep(Duration::from_millis(5)).await;
        }
        let (sent, handled) = (lock(&self.sent), lock(&self.handled));
        let since = |from: Instant, number| {
            // A handler may begin before COMMIT has returned to the publisher's task: that is no time at all.
            handled
                .get(number)
                .map_or(0.0, |at: &Instant| at.saturating_duration_since(from).as_secs_f64() * 1e3)
        };
        let after = sent.iter().map(|(number, (_, committed))| since(*committed, number)).collect();
        let before = sent.iter().map(|(number, (sent, _))| since(*sent, number)).collect();
        Ok((after, before))
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) async fn note_time(note: Delivery<Note>, Shared(times): Shared<Arc<Times>>) -> HandlerResult {
    times.handled(note.number);
    Ok(())
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for (variation, pause) in [("idle, 5 msg/s", 200), ("100 msg/s", 10)] {
        for (subject, hot) in [("posthaste, begin (hot path)", true), ("posthaste, publish elsewhere", false)]
        {
            let product = Arc::clone(product);
            let run = move || {
                in_room(Arc::clone(&product), move |room| {
                    Box::pin(measure(room, scale, Duration::from_millis(pause), hot))
                })
            };
            let case = Case::new(SCENARIO, P::NAME, subject, Unit::Milliseconds, run);
            cases.push(case.variation(variation));
        }
    }
    cases
}

async fn measure<P: Product>(room: &Room<P>, scale: Scale, pause: Duration, hot: bool) -> Result<Sample> {
    let store = room.store(true).await?;
    let times = Arc::new(Times::default());
    let outbox = Outbox::builder(store.clone()).on(note_time).share(Arc::clone(&times)).build().await?;
    let stop = Shutdown::new();
    let running = tokio::spawn(outbox.run(stop.clone()));
    // Another outbox, over connections of its own: nothing in this process wakes the one that runs.
    let elsewhere_store = room.store(true).await?;
    let elsewhere = Outbox::builder(elsewhere_store.clone()).settings(Settings::default()).build().await?;
    let pool = room.pool(1).await?;
    // Until it listens, and has found nothing a few times.
    sleep(Duration::from_secs(1)).await;

    let meter = Meter::start(room).await?;
    let mut ticks = interval(pause);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let messages = (Duration::from_secs(scale.seconds.max(2)).as_millis() / pause.as_millis()) as u64;
    for number in 0..messages {
        ticks.tick().await;
        if hot {
            let mut tx = outbox.begin().await?;
            P::run(&mut tx, P::NOTE, "a business row").await?;
            tx.publish(&Note::new(number)).await?;
            let sent = Instant::now();
            tx.commit().await?;
            times.committed(number, sent);
        } else {
            let mut tx = pool.begin_with(P::BEGIN).await?;
            P::run(&mut tx, P::NOTE, "a business row").await?;
            elsewhere.publish(&mut tx, &Note::new(number)).await?;
            let sent = Instant::now();
            tx.commit().await?;
            times.committed(number, sent);
        }
    }
    let latencies = times.latencies().await;
    let stopped = meter.stop(room).await?;
    stop.begin();
    running.await??;
    pool.close().await;
    P::close(&store).await;
    P::close(&elsewhere_store).await;
    let (after, before) = latencies?;
    let mut sample = Sample::latency(&after)?;
    sample.tail("sent_", &before)?;
    sample.count("seconds", stopped.seconds());
    stopped.costs(room, messages, &mut sample).await?;
    Ok(sample)
}
