//! The jobs that keep a queue clean: reap, expire, park, prune; and the one that measures it.
//!
//! However many processes there are, a job has one turn per schedule: the database says whose. An error never ends a job,
//! and a call to the store is never cancelled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use crate::alert::{Alert, figures};
use crate::clock::{Clock as _, SystemClock};
use crate::dispatch::call::unpanicked;
use crate::dispatch::wake::Reason;
use crate::error::Result;
use crate::metrics::{self, count_with, gauge, gauge_with};
use crate::outbox::Inner;
use crate::outcome::State;
use crate::schedule::{Next, Schedule};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::store::admin::Stats;
use crate::store::{MAX_PRUNE_BATCH, Retention, StoreAdmin, Turn};

/// How many messages one statement of housekeeping changes.
const BATCH: u32 = 1_000;
/// How often the log repeats that a topic has no handler here.
const REMIND_AFTER: Duration = Duration::from_secs(3600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Reap,
    Expire,
    Park,
    Prune,
    /// The second half of [`Job::Prune`].
    PruneJoins,
    Stats,
}

impl Job {
    const ALL: [Self; 5] = [Self::Reap, Self::Expire, Self::Park, Self::Prune, Self::Stats];

    const fn name(self) -> &'static str {
        match self {
            Self::Reap => "reap",
            Self::Expire => "expire",
            Self::Park => "park",
            Self::Prune | Self::PruneJoins => "prune",
            Self::Stats => "stats",
        }
    }
}

/// When a job is due here, and which turn it then asks for.
#[derive(Clone, Copy, Debug)]
struct Due {
    job: Job,
    at: Instant,
    turn: Turn,
    /// The job's changes so far, if it has its turn and has not ended.
    under_way: Option<u64>,
}

/// Runs the jobs until the shutdown begins: one batch at a time, so that a job with much to do keeps neither the others nor
/// a shutdown waiting.
pub(crate) async fn run<S: StoreAdmin>(inner: Arc<Inner<S>>, shutdown: Shutdown) {
    let mut due: Vec<Due> =
        Job::ALL.into_iter().filter_map(|job| first(job, schedule(&inner, job))).collect();
    let mut memory = Memory::default();
    loop {
        let Some(next) = due.iter_mut().min_by_key(|due| due.at) else {
            shutdown.begun().await;
            return;
        };
        tokio::select! {
            biased;
            () = shutdown.begun() => return,
            () = sleep_until(next.at) => {}
        }
        let job = next.job;
        // Of many stores, one that is down costs nothing but the attempts to claim.
        let is_down = inner.share.has_others() && inner.health.trouble().is_some();
        let outcome = if is_down { Ok(None) } else { unpanicked(work(&inner, *next, &mut memory)).await };
        match outcome {
            Ok(Some(more)) => {
                // Jobs that became due meanwhile go first.
                *next = Due { at: Instant::now(), ..more };
                continue;
            }
            Ok(None) => {}
            Err(failed) => {
                error!(job = job.name(), store = %inner.name, error = ?failed, "a job of housekeeping failed");
                count_with(metrics::ERRORS, &inner.name, "operation", job.name(), 1);
            }
        }
        let job = if job == Job::PruneJoins { Job::Prune } else { job };
        match following(job, schedule(&inner, job)) {
            Some(following) => *next = following,
            None => due.retain(|due| due.job.name() != job.name()),
        }
    }
}

fn schedule<S>(inner: &Inner<S>, job: Job) -> &Schedule {
    let settings = &inner.plan.settings;
    match job {
        Job::Reap => &settings.reap,
        Job::Expire => &settings.expire,
        Job::Park => &settings.park,
        Job::Prune | Job::PruneJoins => &settings.prune,
        Job::Stats => &settings.stats,
    }
}

/// Processes that start together ask at different times.
fn first(job: Job, schedule: &Schedule) -> Option<Due> {
    let due = following(job, schedule)?;
    let spread = |every: Duration| Due { at: Instant::now() + every.mul_f64(fastrand::f64()), ..due };
    Some(match due.turn {
        Turn::Every(every) => spread(every),
        Turn::At(_) => due,
    })
}

fn following(job: Job, schedule: &Schedule) -> Option<Due> {
    let (wait, turn) = next_turn(schedule)?;
    Some(Due { job, at: Instant::now() + wait, turn, under_way: None })
}

/// How long until a schedule's next turn, and which turn to ask for then; none if it is off.
pub(crate) fn next_turn(schedule: &Schedule) -> Option<(Duration, Turn)> {
    let now = SystemClock.now();
    match schedule.next(now) {
        Next::Never => None,
        // A little less than the interval, or a process that asks at the same pace would always come too early.
        // And never without any pause at all.
        Next::After(every) => Some((every.max(Duration::from_millis(1)), Turn::Every(every.mul_f64(0.9)))),
        Next::At(time) => Some((until(time, now), Turn::At(time))),
    }
}

/// This machine's clock only proposes; a second more, in case the database's is behind.
fn until(time: SystemTime, now: SystemTime) -> Duration {
    time.duration_since(now).unwrap_or_default() + Duration::from_secs(1)
}

/// Runs one batch of a job. Returns the rest of the job, if there may be one.
async fn work<S: StoreAdmin>(inner: &Arc<Inner<S>>, due: Due, memory: &mut Memory) -> Result<Option<Due>> {
    let Due { job, turn, under_way, .. } = due;
    if job == Job::Stats {
        return measure(inner, memory).await.map(|()| None);
    }
    if under_way.is_none() && !inner.call(inner.store.turn(job.name(), turn)).await? {
        return Ok(None);
    }
    let settings = &inner.plan.settings;
    let (limit, batch) = match job {
        Job::Reap => (BATCH, reap(inner).await?),
        Job::Expire => (BATCH, expire(inner).await?),
        Job::Park => (BATCH, inner.call(inner.store.park(BATCH)).await?),
        Job::PruneJoins => {
            let pruned = inner.store.prune_joins(settings.keep_joins_for, MAX_PRUNE_BATCH);
            (MAX_PRUNE_BATCH, inner.call(pruned).await?)
        }
        Job::Prune | Job::Stats => {
            let retention = retention(settings);
            (MAX_PRUNE_BATCH, inner.call(inner.store.prune(&retention, MAX_PRUNE_BATCH)).await?)
        }
    };
    let changed = under_way.unwrap_or_default() + batch;
    if batch >= u64::from(limit) {
        return Ok(Some(Due { under_way: Some(changed), ..due }));
    }
    tell(inner, job, changed);
    Ok((job == Job::Prune).then_some(Due { job: Job::PruneJoins, under_way: Some(0), ..due }))
}

/// Returns how many messages, or joins if those are more, a batch has given up: there may be more of both.
async fn expire<S: StoreAdmin>(inner: &Arc<Inner<S>>) -> Result<u64> {
    let expired = inner.call(inner.store.expire(BATCH)).await?;
    inner.joins_ended(&expired.joins);
    Ok(expired.messages.max(expired.joins.len() as u64))
}

fn retention(settings: &Settings) -> Retention {
    let mut retention = Retention::done(settings.keep_done_for);
    if let Some(keep) = settings.keep_dead_for {
        retention = retention.dead(keep);
    }
    if settings.archive { retention.archive() } else { retention }
}

fn tell<S>(inner: &Inner<S>, job: Job, changed: u64) {
    match job {
        _ if changed == 0 => debug!(job = job.name(), store = %inner.name, "housekeeping: nothing to do"),
        // Each batch has been logged.
        Job::Reap => {}
        Job::PruneJoins => info!(job = job.name(), store = %inner.name, joins = changed, "housekeeping"),
        _ => info!(job = job.name(), store = %inner.name, messages = changed, "housekeeping"),
    }
}

/// Returns how many messages a batch has taken back.
async fn reap<S: StoreAdmin>(inner: &Arc<Inner<S>>) -> Result<u64> {
    let reaped = inner.call(inner.store.reap(BATCH)).await?;
    let total = reaped.ready + reaped.dead;
    inner.joins_ended(&reaped.joins);
    count_with(metrics::REAPED, &inner.name, "state", "ready", reaped.ready);
    count_with(metrics::REAPED, &inner.name, "state", "dead", reaped.dead);
    if total > 0 {
        info!(store = %inner.name, ready = reaped.ready, dead = reaped.dead, "reaped");
        inner.wakeup.wake(Reason::Soon);
    }
    if reaped.dead > 0 {
        error!(store = %inner.name, dead = reaped.dead, "messages are dead: crash suspects");
    }
    Ok(total)
}

/// State kept from one measurement to the next.
#[derive(Debug, Default)]
struct Memory {
    /// The topics that wait for a handler, and when the log last said so.
    reminded: HashMap<String, Instant>,
    /// The figures that were above their thresholds.
    raised: HashSet<&'static str>,
}

/// Says which figures have risen above their thresholds, and which have fallen.
fn alert<S>(inner: &Inner<S>, stats: &Stats, raised: &mut HashSet<&'static str>) {
    for Alert { name, value, threshold } in figures(&inner.plan.settings, stats, inner.latency.take()) {
        let is_raised = value > threshold;
        gauge_with(metrics::ALERT, &inner.name, "alert", name, u64::from(is_raised));
        if is_raised && raised.insert(name) {
            warn!(store = %inner.name, alert = name, value, threshold, "a figure is above its threshold");
        } else if !is_raised && raised.remove(name) {
            info!(store = %inner.name, alert = name, value, threshold, "a figure is below its threshold again");
        }
    }
}

/// Measures the queue, and says which topics wait for a handler that is not here.
async fn measure<S: StoreAdmin>(inner: &Inner<S>, memory: &mut Memory) -> Result<()> {
    let stats = inner.call(inner.store.stats()).await?;
    for (state, count) in [
        ("ready", stats.ready),
        ("scheduled", stats.scheduled),
        ("parked", stats.parked),
        ("leased", stats.leased),
        ("dead", stats.dead),
    ] {
        gauge_with(metrics::MESSAGES, &inner.name, "state", state, count.value);
    }
    gauge(metrics::OLDEST_SECONDS, &inner.name, stats.oldest_ready.unwrap_or_default().as_secs());
    alert(inner, &stats, &mut memory.raised);
    let (now, reminded) = (Instant::now(), &mut memory.reminded);
    let unhandled = stats
        .topics
        .iter()
        .filter(|count| count.state == State::Ready && !inner.plan.registry.handles(&count.topic));
    let mut waiting = HashSet::new();
    for topic in unhandled {
        gauge_with(metrics::UNHANDLED, &inner.name, "topic", &topic.topic, topic.count.value);
        waiting.insert(topic.topic.as_str());
        if reminded.get(&topic.topic).is_none_or(|last| *last + REMIND_AFTER <= now) {
            warn!(
                store = %inner.name, topic = %topic.topic, ready = topic.count.value,
                "messages wait for a handler that this process does not have"
            );
            reminded.insert(topic.topic.clone(), now);
        }
    }
    // A process with a handler has taken these: a gauge keeps its last value, and would alert for ever.
    for topic in reminded.keys().filter(|topic| !waiting.contains(topic.as_str())) {
        gauge_with(metrics::UNHANDLED, &inner.name, "topic", topic, 0);
    }
    Ok(())
}
