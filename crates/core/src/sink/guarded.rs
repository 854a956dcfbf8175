//! A sink with what belongs around it: batches that gather by themselves, a deadline, and a circuit breaker.
//!
//! All clones share them. Nothing here knows a broker, and nothing waits for a database.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tracing::{debug, info, warn};

use super::breaker::{Breaker, BreakerState};
use super::flight::{Flights, Parcel};
use super::{Sink, SinkError, Verdict};
use crate::dispatch::call::caught;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Answer, HandlerError, HandlerResult};
use crate::message::Message;
use crate::metrics;
use crate::settings::show_duration;
use crate::text;

/// How long a batch may take where nothing else is said.
const DEADLINE: Duration = Duration::from_secs(10);

/// How messages are handed to a sink.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::{Guarded, LogSink, SinkOptions};
///
/// let options = SinkOptions::new().batch(500).deadline(Duration::from_secs(5));
/// let sink = Guarded::with(LogSink, options);
/// # let _ = sink;
/// ```
#[must_use = "they do nothing until they are given to a sink"]
#[derive(Clone, Debug)]
pub struct SinkOptions {
    pub(super) name: Option<String>,
    pub(super) batch: u32,
    pub(super) in_flight: u32,
    pub(super) deadline: Option<Duration>,
    pub(super) shortest_pause: Duration,
    pub(super) longest_pause: Duration,
}

impl Default for SinkOptions {
    fn default() -> Self {
        Self {
            name: None,
            batch: 200,
            in_flight: 2,
            deadline: None,
            shortest_pause: Duration::from_millis(200),
            longest_pause: Duration::from_secs(5),
        }
    }
}

impl SinkOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the sink's name in logs, in metrics, and stored with messages that it took: 1 to 190 bytes. Default: the
    /// sink's own.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The most messages of one batch: 1 to 10,000. Default: 200. A batch has the messages that were waiting when the one
    /// before it left, so it is seldom larger than the outbox's `workers`.
    pub fn batch(mut self, messages: u32) -> Self {
        self.batch = messages;
        self
    }

    /// How many batches may be under way at a time: 1 to 100. Default: 2. A cut connection duplicates at most these
    /// batches.
    pub fn in_flight(mut self, batches: u32) -> Self {
        self.in_flight = batches;
        self
    }

    /// How long the sink may take to answer for a batch: shorter than the outbox's lease. Default: 10 s, or half the lease if
    /// that is less.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Between which pauses a sink that is down is probed: from the shortest, doubled each time, to the longest. Default:
    /// 200 ms to 5 s.
    pub fn pauses(mut self, shortest: Duration, longest: Duration) -> Self {
        (self.shortest_pause, self.longest_pause) = (shortest, longest);
        self
    }

    fn check(&self, lease: Duration) -> Result<()> {
        let refuse = |what: String, remedy: String| {
            Err(Error::new(ErrorKind::Configuration, what).with_remedy(remedy))
        };
        if !(1..=10_000).contains(&self.batch) {
            return refuse(format!("a sink's batch is {}", self.batch), "give it 1 to 10000".to_owned());
        }
        if !(1..=100).contains(&self.in_flight) {
            return refuse(
                format!("a sink's in_flight is {}", self.in_flight),
                "give it 1 to 100".to_owned(),
            );
        }
        if let Some(deadline) = self.deadline.filter(|deadline| deadline.is_zero() || *deadline >= lease) {
            // Or another worker could send a message again while it is still under way.
            return refuse(
                format!("a sink's deadline is {}", show_duration(deadline)),
                format!("give it more than 0 and less than the lease, {}", show_duration(lease)),
            );
        }
        if self.shortest_pause.is_zero() || self.shortest_pause > self.longest_pause {
            return refuse(
                format!("a sink's shortest pause is {}", show_duration(self.shortest_pause)),
                format!("give it more than 0 and at most the longest, {}", show_duration(self.longest_pause)),
            );
        }
        Ok(())
    }
}

/// A sink with its batches, its deadline and its circuit breaker. Clones share them: give clones of one to several topics,
/// or to several outboxes, that send to the same receiver.
#[derive(Clone)]
pub struct Guarded {
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) sink: Arc<dyn Sink>,
    pub(super) name: String,
    pub(super) options: SinkOptions,
    pub(super) breaker: Breaker,
    pub(super) flights: Mutex<Flights>,
    /// Why it is down, for messages that are refused meanwhile.
    reason: Mutex<Option<SinkError>>,
    /// When the sink last answered for a batch.
    answered: Mutex<Option<Instant>>,
    /// The task that probes the sink while it is down.
    prober: Mutex<Option<JoinHandle<()>>>,
    /// Called when messages may be sent again. One that returns false is gone, and removed.
    watchers: Mutex<Vec<Watcher>>,
}

type Watcher = Box<dyn Fn(Recovery) -> bool + Send + Sync>;

/// How far a sink that was down has recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// It can be reached: one message tries.
    Reached,
    /// It takes messages.
    Complete,
}

impl<S: Sink> From<S> for Guarded {
    fn from(sink: S) -> Self {
        Self::new(sink)
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded")
            .field("sink", &self.shared.sink)
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

impl Guarded {
    /// This sink with the defaults.
    pub fn new(sink: impl Sink) -> Self {
        Self::with(sink, SinkOptions::default())
    }

    /// This sink with these options.
    pub fn with(sink: impl Sink, options: SinkOptions) -> Self {
        let name = options.name.clone().unwrap_or_else(|| sink.name());
        let breaker = Breaker::new(options.shortest_pause, options.longest_pause);
        Self {
            shared: Arc::new(Shared {
                sink: Arc::new(sink),
                name,
                breaker,
                options,
                flights: Mutex::default(),
                reason: Mutex::default(),
                answered: Mutex::default(),
                prober: Mutex::default(),
                watchers: Mutex::default(),
            }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Whether the sink is down, and messages for it are left alone.
    pub fn is_down(&self) -> bool {
        let is_down = self.shared.breaker.is_open();
        if is_down {
            self.shared.keep_probing();
        }
        is_down
    }

    /// Why the sink is down, if it is.
    pub fn trouble(&self) -> Option<SinkError> {
        if self.is_down() { lock(&self.shared.reason).clone() } else { None }
    }

    /// Asks the sink whether it would take messages, ignoring the breaker's state, and without changing it.
    pub async fn probe(&self) -> Verdict {
        self.shared.probe().await
    }

    /// Probes the sink if it has been silent for this long, and counts it as down if the probe finds it so.
    pub(crate) async fn look_after(&self, silence: Duration) {
        let is_silent = lock(&self.shared.answered).is_none_or(|last| last.elapsed() >= silence);
        if !is_silent || self.is_down() {
            return;
        }
        if let Err(error) = self.shared.probe().await
            && error.is_down()
        {
            self.shared.went_down(&error);
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// Refuses what makes no sense for an outbox with this lease.
    pub(crate) fn check(&self, lease: Duration) -> Result<()> {
        const MOST: usize = 190;
        text::required("the name of a sink", self.shared.name.clone(), MOST)?;
        if self.shared.name.contains(['\n', '\t']) {
            return Err(Error::invalid("the name of a sink has a line break or a tab", "remove it"));
        }
        self.shared.options.check(lease).map_err(|error| error.with_context("sink", &self.shared.name))
    }

    /// How long a batch may take, for an outbox with this lease.
    pub(crate) fn patience(&self, lease: Duration) -> Duration {
        self.shared.options.deadline.unwrap_or_else(|| DEADLINE.min(lease / 2))
    }

    /// Calls back when messages may be sent again after the sink was down, until the answer is false.
    pub(crate) fn watch(&self, tell: impl Fn(Recovery) -> bool + Send + Sync + 'static) {
        lock(&self.shared.watchers).push(Box::new(tell));
    }

    /// Whether it can be reached again, and no message has tried it yet.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.shared.breaker.state() == BreakerState::HalfOpen
    }

    /// Hands a message over with the next batch, and waits for its verdict.
    pub(crate) async fn deliver(&self, message: Arc<Message>, patience: Duration) -> HandlerResult {
        if self.is_down() {
            return self.shared.refusal();
        }
        let (answer, answered) = oneshot::channel();
        self.shared.submit(Parcel { message, patience, answer });
        let gone = || Err(HandlerError::infrastructure("the sink's batch was dropped"));
        answered.await.unwrap_or_else(|_| gone())
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// What becomes of a message with this verdict.
    pub(super) fn answer(&self, verdict: Verdict) -> HandlerResult {
        let Err(error) = verdict else { return Ok(()) };
        if !error.is_down() {
            return Err(HandlerError::failed(error.failure().clone()));
        }
        // Until then it is not claimed for this sink alone, and after that there is no reason to wait.
        let pause = self.breaker.remaining(Instant::now());
        Err(HandlerError(Answer::Down { failure: error.failure().clone(), pause }))
    }

    /// For a message that is not even sent, because the sink is down.
    pub(super) fn refusal(&self) -> HandlerResult {
        let reason = lock(&self.reason).clone();
        self.answer(Err(reason.unwrap_or_else(|| SinkError::down("the sink is down"))))
    }

    /// Learns from the verdicts of a batch.
    pub(super) fn learn(self: &Arc<Self>, verdicts: &[Verdict]) {
        *lock(&self.answered) = Some(Instant::now());
        let down = verdicts.iter().find_map(|verdict| verdict.as_ref().err().filter(|error| error.is_down()));
        match down {
            None => self.is_up(),
            Some(error) => self.went_down(error),
        }
    }

    async fn probe(&self) -> Verdict {
        let patience = self.options.deadline.unwrap_or(DEADLINE);
        match timeout(patience, caught(async { self.sink.probe().await })).await {
            Ok(Ok(probed)) => probed,
            Ok(Err(_)) => Err(SinkError::down("the sink panicked when it was probed")),
            Err(_) => {
                let patience = show_duration(patience);
                Err(SinkError::down(format!("the sink did not answer a probe in {patience}")))
            }
        }
    }

    fn is_up(&self) {
        if self.breaker.close() {
            info!(sink = %self.name, "the sink takes messages again");
            self.tell(Recovery::Complete);
        }
    }

    fn went_down(self: &Arc<Self>, error: &SinkError) {
        *lock(&self.reason) = Some(error.clone());
        if self.breaker.open(Instant::now(), fastrand::f64()) {
            warn!(sink = %self.name, error = error.failure().text(), "the sink is down: messages for it are left alone");
            metrics::breaker(&self.name, true);
            self.keep_probing();
        }
    }

    /// Starts a task that probes the sink, unless one does. The last one may have ended with the runtime that it ran on.
    fn keep_probing(self: &Arc<Self>) {
        let mut prober = lock(&self.prober);
        if prober.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *prober = Some(runtime.spawn(revive(Arc::downgrade(self))));
        }
    }

    fn tell(&self, recovery: Recovery) {
        metrics::breaker(&self.name, false);
        lock(&self.watchers).retain(|watcher| watcher(recovery));
    }
}

/// Probes a sink that is down, until it is there or was dropped.
async fn revive(shared: Weak<Shared>) {
    loop {
        let Some(until) = shared.upgrade().map(|shared| shared.breaker.state()) else { return };
        let BreakerState::Open { until } = until else { return };
        tokio::time::sleep_until(until).await;
        let Some(shared) = shared.upgrade() else { return };
        match shared.probe().await {
            Ok(()) => {
                info!(sink = %shared.name, "the sink can be reached again: one message tries");
                shared.breaker.half_open();
                shared.tell(Recovery::Reached);
                return;
            }
            Err(error) => {
                let pause = shared.breaker.still_down(Instant::now(), fastrand::f64());
                // The log has said so once, when it went down.
                debug!(sink = %shared.name, error = error.failure().text(), ?pause, "the sink is still down");
                *lock(&shared.reason) = Some(error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::Batch;

    /// A sink that takes no message, but answers probes.
    #[derive(Debug)]
    struct Recovers;

    #[async_trait::async_trait]
    impl Sink for Recovers {
        async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
            batch.all(&Err(SinkError::down("away")))
        }

        async fn probe(&self) -> Verdict {
            Ok(())
        }

        fn name(&self) -> String {
            "recovers".to_owned()
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    /// R13: a sink that went down in a runtime that is gone is probed by the next one.
    #[test]
    fn a_prober_does_not_die_with_its_runtime() {
        let sink = Guarded::new(Recovers);
        let first = runtime();
        first.block_on(async { sink.shared.went_down(&SinkError::down("away")) });
        drop(first);
        assert!(sink.is_down(), "without a runtime it is not probed");
        runtime().block_on(async {
            assert!(sink.is_down());
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!sink.is_down());
        });
    }
}
