//! What every subject publishes and handles: one event of 256 bytes, and counters that know when all have come.
//!
//! The handler only counts, so that everything around it is measured.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste::{
    ClaimRequest, Delivery, Event, HandlerResult, NewMessage, Outbox, OutboxBuilder, Outcome, Settings,
    Settlement, Shared, Shutdown, Store, StoreAdmin, WorkerId,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::measure::Result;

/// The bytes of a payload.
pub(crate) const PAYLOAD_BYTES: usize = 256;
/// How long nothing may happen before a run is given up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many messages one statement of a preload has.
const PRELOAD_BATCH: u64 = 2_000;

/// The published event.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) number: u64,
    text: String,
}

impl Event for Note {
    const TOPIC: &'static str = "bench";
}

impl Note {
    /// One whose JSON has exactly as many bytes as every other's.
    pub(crate) fn new(number: u64) -> Self {
        let bare = r#"{"number":,"text":""}"#.len() + number.to_string().len();
        Self { number, text: "x".repeat(PAYLOAD_BYTES.saturating_sub(bare)) }
    }

    /// The same as text, for candidates that store it as barely as possible.
    pub(crate) fn json(number: u64) -> Result<String> {
        Ok(serde_json::to_string(&Self::new(number))?)
    }
}

/// Counts handled messages, and tells when that is enough.
#[derive(Debug, Default)]
pub(crate) struct Count {
    handled: AtomicU64,
    enough: AtomicU64,
    reached: Notify,
}

impl Count {
    pub(crate) fn until(enough: u64) -> Arc<Self> {
        Arc::new(Self { enough: AtomicU64::new(enough), ..Self::default() })
    }

    pub(crate) fn add(&self) {
        let handled = self.handled.fetch_add(1, Ordering::Relaxed) + 1;
        if handled == self.enough.load(Ordering::Relaxed) {
            self.reached.notify_one();
        }
    }

    pub(crate) fn get(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Returns when enough were handled; an error if for long none was.
    pub(crate) async fn reached(&self) -> Result {
        let mut before = self.get();
        loop {
            if timeout(PATIENCE, self.reached.notified()).await.is_ok() {
                return Ok(());
            }
            let (now, enough) = (self.get(), self.enough.load(Ordering::Relaxed));
            if now >= enough {
                return Ok(());
            }
            if now == before {
                return Err(format!("{now} of {enough} were handled, and then none for {PATIENCE:?}").into());
            }
            before = now;
        }
    }
}

async fn count(_note: Delivery<Note>, Shared(count): Shared<Arc<Count>>) -> HandlerResult {
    count.add();
    Ok(())
}

/// How a running outbox is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuning {
    pub(crate) workers: u32,
    pub(crate) batch: u32,
    pub(crate) settle_batch: u32,
}

impl Tuning {
    pub(crate) fn settings(self) -> Settings {
        let mut settings = Settings::default();
        settings.workers = self.workers;
        settings.batch = self.batch;
        settings.settle_batch = self.settle_batch;
        settings.cold_capacity = self.batch.saturating_mul(4).max(1_000);
        settings
    }

    pub(crate) fn text(self) -> String {
        let Self { workers, batch, settle_batch } = self;
        format!("workers {workers}, batch {batch}, settle_batch {settle_batch}")
    }
}

/// An outbox that counts.
pub(crate) fn counting<S: Store>(store: S, settings: Settings, counter: &Arc<Count>) -> OutboxBuilder<S> {
    Outbox::builder(store).settings(settings).on(count).share(Arc::clone(counter))
}

/// Stores messages quickly; a key for each, if there is one.
pub(crate) async fn preload<S: Store>(
    store: &S,
    messages: u64,
    key: impl Fn(u64) -> Option<String> + Send,
) -> Result {
    let mut next = 0;
    while next < messages {
        let last = messages.min(next + PRELOAD_BATCH);
        let build = |n| {
            let message = NewMessage::event(&Note::new(n));
            key(n).into_iter().fold(message, posthaste::MessageBuilder::key).build()
        };
        let batch = (next..last).map(build).collect::<Result<Vec<_>, _>>()?;
        store.enqueue(&batch).await?;
        next = last;
    }
    Ok(())
}

/// Stores messages of one topic and key.
pub(crate) async fn preload_of<S: Store>(store: &S, topic: &str, key: Option<&str>, messages: u64) -> Result {
    let build = |n| {
        let message = NewMessage::json(topic, &Note::new(n));
        key.into_iter().fold(message, posthaste::MessageBuilder::key).build()
    };
    for start in (0..messages).step_by(usize::try_from(PRELOAD_BATCH)?) {
        let batch = (start..messages.min(start + PRELOAD_BATCH)).map(build);
        store.enqueue(&batch.collect::<Result<Vec<_>, _>>()?).await?;
    }
    Ok(())
}

/// Runs an outbox from its start until so many are handled and settled.
pub(crate) async fn deliver<S: StoreAdmin>(outbox: &Outbox<S>, counter: &Count) -> Result<Duration> {
    let begin = Instant::now();
    let stop = Shutdown::new();
    let running = tokio::spawn(outbox.run(stop.clone()));
    let reached = counter.reached().await;
    // A graceful shutdown settles handled messages before it returns.
    stop.begin();
    running.await??;
    reached?;
    Ok(begin.elapsed())
}

/// The same claims and settlements in a bare loop: one task, one batch after the other.
pub(crate) async fn bare_loop<S: Store>(store: &S, batch: u32, messages: u64) -> Result {
    bare_loop_of(store, &ClaimRequest::new(WorkerId::new("bare-loop")?).limit(batch), messages).await
}

/// The same with a request of its own.
pub(crate) async fn bare_loop_of<S: Store>(store: &S, request: &ClaimRequest, messages: u64) -> Result {
    let mut done = 0;
    while done < messages {
        let claimed = store.claim(request).await?;
        if claimed.is_empty() {
            return Err(format!("{done} of {messages} were claimed, and then none").into());
        }
        let acks: Vec<_> =
            claimed.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)).collect();
        store.settle(&acks).await?;
        done += acks.len() as u64;
    }
    Ok(())
}

/// Refuses a run that left anything over, or gave anything up.
pub(crate) async fn nothing_left<S: StoreAdmin>(store: &S) -> Result {
    let stats = store.stats().await?;
    let (pending, dead) = (stats.pending().value, stats.dead.value);
    if pending + dead == 0 {
        return Ok(());
    }
    Err(format!("{pending} messages were not settled at the end, and {dead} are dead").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_has_the_same_size() {
        for number in [0, 7, 99_999, u64::from(u32::MAX)] {
            assert_eq!(Note::json(number).unwrap().len(), PAYLOAD_BYTES);
        }
    }
}
