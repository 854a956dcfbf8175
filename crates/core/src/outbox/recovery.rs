//! Recovery of a sink that was down: messages that waited for it are made due.
//!
//! A message with several receivers waits for the one that is down for minutes at a time, so that it is not claimed again and
//! again; the sink's recovery ends the wait. First one message is made due, which tries the sink; then all, in batches, for as
//! long as the sink stays up. A process that starts does the same once: the one before it may have ended during an outage.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tracing::{error, info};

use super::Inner;
use crate::dispatch::call::unpanicked;
use crate::dispatch::wake::Reason;
use crate::error::Result;
use crate::metrics::{self, count_with};
use crate::shutdown::Shutdown;
use crate::sink::{Guarded, Recovery};
use crate::store::Store;

/// How many messages one statement makes due.
const BATCH: u32 = 1_000;
/// When to let another message try a sink that none has tried yet; and when to try again after an error.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// When to check a second time for messages that wait for a sink that is up again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The sinks that can be sent to again, until what waits for them was made due.
#[derive(Debug, Default)]
pub(crate) struct Recoveries {
    /// By the sink's name.
    sinks: Mutex<BTreeMap<String, Recovery>>,
    bell: Notify,
}

impl Recoveries {
    fn sinks(&self) -> MutexGuard<'_, BTreeMap<String, Recovery>> {
        self.sinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A sink can be sent to again.
    pub(crate) fn note(&self, sink: &str, recovery: Recovery) {
        self.sinks().insert(sink.to_owned(), recovery);
        self.bell.notify_one();
    }

    /// The next sink whose messages are to be made due.
    fn take(&self) -> Option<(String, Recovery)> {
        self.sinks().pop_first()
    }

    /// Resolves when there may be one.
    async fn some(&self) {
        self.bell.notified().await;
    }
}

/// Something to do for a sink.
#[derive(Debug)]
struct Visit {
    at: Instant,
    sink: String,
    recovery: Recovery,
    /// How often to check again.
    more_looks: u32,
}

/// Runs until the shutdown begins. Returns at once if no message can wait for a sink.
pub(super) async fn run<S: Store>(inner: Arc<Inner<S>>, shutdown: Shutdown) {
    let first = |sink: &str| Visit {
        at: Instant::now(),
        sink: sink.to_owned(),
        recovery: Recovery::Complete,
        more_looks: 0,
    };
    let mut visits: Vec<Visit> = inner.plan.registry.shared_sinks().map(|sink| first(sink.name())).collect();
    if visits.is_empty() {
        return;
    }
    loop {
        while let Some((sink, recovery)) = inner.recoveries.take() {
            // The newest word about a sink counts.
            visits.retain(|visit| visit.sink != sink);
            visits.push(Visit { at: Instant::now(), sink, recovery, more_looks: recovery.looks() });
        }
        let next = visits.iter().map(|visit| visit.at).min();
        tokio::select! {
            biased;
            () = shutdown.begun() => return,
            () = inner.recoveries.some() => continue,
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
        }
        let (now, mut due) = (Instant::now(), Vec::new());
        visits.retain_mut(|visit| {
            visit.at > now || {
                due.push(visit.take());
                false
            }
        });
        for visit in due {
            visits.extend(pay(&inner, visit, &shutdown).await);
        }
    }
}

impl Visit {
    fn take(&mut self) -> Self {
        Self { sink: std::mem::take(&mut self.sink), ..*self }
    }
}

/// Runs the pending step for a sink. Returns the next step, if any.
async fn pay<S: Store>(inner: &Arc<Inner<S>>, visit: Visit, shutdown: &Shutdown) -> Option<Visit> {
    let later = |after: Duration| Instant::now() + after;
    let hastened = match unpanicked(hasten(inner, &visit, shutdown)).await {
        Ok(hastened) => hastened,
        Err(failed) => {
            error!(sink = %visit.sink, store = %inner.name, error = ?failed, "messages that wait for a sink could not be made due, retrying");
            count_with(metrics::ERRORS, &inner.name, "operation", "hasten", 1);
            return Some(Visit { at: later(RETRY_AFTER), ..visit });
        }
    };
    if hastened > 0 {
        info!(sink = %visit.sink, store = %inner.name, messages = hastened, "messages that waited for a sink are due");
        inner.wakeup.wake(Reason::Now);
    }
    let on_trial = inner.plan.registry.sink(&visit.sink).is_some_and(Guarded::is_on_trial);
    let (after, is_over) = match visit.recovery {
        Recovery::Reached => (RETRY_AFTER, !on_trial),
        Recovery::Complete => (LOOK_AGAIN_AFTER, false),
    };
    let more_looks = visit.more_looks.checked_sub(1).filter(|_| !is_over)?;
    Some(Visit { at: later(after), more_looks, ..visit })
}

impl Recovery {
    /// How often to check again: deliveries that met the sink while it was down may be settled a little later, and the
    /// message that was to try the sink may have gone to another process.
    const fn looks(self) -> u32 {
        match self {
            Self::Reached => 10,
            Self::Complete => 1,
        }
    }
}

/// Makes one message due, or all that wait. Returns how many.
async fn hasten<S: Store>(inner: &Arc<Inner<S>>, visit: &Visit, shutdown: &Shutdown) -> Result<u64> {
    let Some(sink) = inner.plan.registry.sink(&visit.sink) else { return Ok(0) };
    let topics = inner.plan.registry.topics_of(&visit.sink);
    if visit.recovery == Recovery::Reached {
        return if sink.is_on_trial() { inner.call(inner.store.hasten(&topics, 1)).await } else { Ok(0) };
    }
    let mut total = 0;
    while !sink.is_down() && !shutdown.has_begun() {
        let batch = inner.call(inner.store.hasten(&topics, BATCH)).await?;
        total += batch;
        if batch < u64::from(BATCH) {
            break;
        }
    }
    Ok(total)
}
