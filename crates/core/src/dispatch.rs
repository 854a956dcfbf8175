//! The dispatcher: one loop that owns all state of a running outbox. It claims what can start, hands messages to their
//! handlers, gathers outcomes and settles them, keeps leases, and stops without losing anything.
//!
//! Handlers and calls to the store are tasks of their own; the loop never waits for one of them, and never cancels a call
//! to the store. An error of a call never ends the loop.

pub(crate) mod call;
mod deliver;
pub(crate) mod hot;
mod prefetch;
mod queue;
pub(crate) mod verdict;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use self::call::unpanicked;
use self::deliver::{Progress, deliver};
use self::hot::Fresh;
use self::prefetch::Prefetch;
use self::queue::{Queue, Waiting};
use self::verdict::{Ended, outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Arrival, HandlerResult};
use crate::id::Lease;
use crate::message::Message;
use crate::metrics::{self, count, count_failure, count_with, gauge, gauge_with};
use crate::outbox::Inner;
use crate::outcome::{Outcome, Settled, Settlement};
use crate::poll::Poll;
use crate::shutdown::Shutdown;
use crate::store::{ClaimRequest, Store};

/// How long a handler that was dropped may take to be gone before its thread is taken for blocked, and how long the last
/// settlements of a shutdown may take.
const LAST_GRACE: Duration = Duration::from_secs(1);
/// A message that comes back while its last delivery is still under way here waits this long.
const OVERLAP_DELAY: Duration = Duration::from_secs(1);
/// How often queues are measured and leases looked at.
const LOOK_ROUND: Duration = Duration::from_secs(1);
/// Settlements that nobody waits for follow each other no more closely than this, so that they are large.
const SETTLE_INTERVAL: Duration = Duration::from_millis(20);
/// The longest pause between two tries to settle.
const MOST_SETTLE_PAUSE: Duration = Duration::from_secs(5);

/// What a run has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tally {
    /// Messages that are done.
    pub delivered: u64,
    /// Attempts that failed and are to be repeated.
    pub failed: u64,
    /// Messages that were put off without any charge.
    pub deferred: u64,
    /// Messages that are dead.
    pub dead: u64,
}

/// Whether the dispatcher goes on for ever or until there is nothing left that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    ShutDown,
    Idle,
}

/// Where a message that this worker owns is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Running,
    /// Running still, but the store has said that the lease is lost.
    Lost,
    Gathered,
    Settling,
}

#[derive(Debug)]
struct Held {
    /// Until when the lease lasts at least, by this machine's monotonic clock.
    until: Instant,
    stage: Stage,
}

/// Why a handler was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    TimedOut,
    Lost,
    ShutDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Working,
    Cancelled(Why),
    Dropped(Why),
}

/// A message in the hands of its handlers.
#[derive(Debug)]
struct Running {
    message: Arc<Message>,
    task: Id,
    abort: AbortHandle,
    cancel: CancellationToken,
    progress: Progress,
    phase: Phase,
    /// When its phase ends, if the handlers do not end before.
    deadline: Instant,
    timeout: Duration,
    started: Instant,
}

/// An outcome that waits to be settled.
#[derive(Clone, Debug)]
struct Gathered {
    settlement: Settlement,
    message: Arc<Message>,
}

/// What a call to the store came back with.
#[derive(Debug)]
enum Reply {
    Claimed { limit: u32, asked: Instant, activity: u64, outcome: Result<Vec<Message>> },
    Settled { batch: Vec<Gathered>, outcome: Result<Vec<Settled>> },
    Renewed { leases: Vec<Lease>, asked: Instant, outcome: Result<Vec<Settled>> },
}

pub(crate) struct Dispatcher<S> {
    inner: Arc<Inner<S>>,
    until: Until,
    tally: Tally,
    /// Grows with everything that may have made something claimable.
    activity: u64,
    /// The activity as of which a claim found nothing.
    nothing_since: Option<u64>,
    failure: Option<Error>,

    poll: Poll,
    prefetch: Prefetch,
    last_full_claim: Option<Instant>,
    claiming: bool,
    average_bytes: f64,

    queue: Queue,
    /// Waiting, but their lease must be renewed before they may start.
    stale: Vec<Waiting>,
    held: BTreeMap<Lease, Held>,

    deliveries: JoinSet<HandlerResult>,
    leases: HashMap<Id, Lease>,
    running: BTreeMap<Lease, Running>,
    /// Handlers that cannot be dropped because they block their thread.
    stuck: HashSet<Id>,
    next_deadline: Option<Instant>,
    /// Since when the others are waited for because a suspect is next, and until when the suspect runs alone.
    clearing_since: Option<Instant>,
    alone_until: Option<Instant>,

    gathered: Vec<Gathered>,
    settling: bool,
    settled_at: Option<Instant>,
    settle_pause: Option<Duration>,
    settle_at: Option<Instant>,
    settle_batch: usize,

    renewing: bool,
    renew_at: Instant,

    calls: JoinSet<Reply>,
    /// When the grace of a shutdown ends.
    grace_ends: Option<Instant>,
    next_look_round: Instant,
}

impl<S> std::fmt::Debug for Dispatcher<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("tally", &self.tally).finish_non_exhaustive()
    }
}

/// Calls to the store are run to their end, whatever becomes of the dispatcher.
impl<S> Drop for Dispatcher<S> {
    fn drop(&mut self) {
        self.calls.detach_all();
    }
}

impl<S: Store> Dispatcher<S> {
    pub(crate) fn new(inner: Arc<Inner<S>>, until: Until) -> Self {
        let now = Instant::now();
        let settings = &inner.settings;
        Self {
            until,
            tally: Tally::default(),
            activity: 0,
            nothing_since: None,
            failure: None,
            poll: Poll::new(settings.poll_floor, settings.poll_ceiling, now),
            prefetch: Prefetch::new(settings.workers as usize, settings.batch as usize),
            last_full_claim: None,
            claiming: false,
            average_bytes: 1024.0,
            queue: Queue::default(),
            stale: Vec::new(),
            held: BTreeMap::new(),
            deliveries: JoinSet::new(),
            leases: HashMap::new(),
            running: BTreeMap::new(),
            stuck: HashSet::new(),
            next_deadline: None,
            clearing_since: None,
            alone_until: None,
            gathered: Vec::new(),
            settling: false,
            settled_at: None,
            settle_pause: None,
            settle_at: None,
            settle_batch: settings.settle_batch as usize,
            renewing: false,
            renew_at: now + settings.lease / 3,
            calls: JoinSet::new(),
            grace_ends: None,
            next_look_round: now,
            inner,
        }
    }

    /// Runs until it is told to stop, or until nothing is left to do.
    pub(crate) async fn run(
        mut self,
        mut hot: UnboundedReceiver<Fresh>,
        shutdown: Shutdown,
    ) -> Result<Tally> {
        let inner = Arc::clone(&self.inner);
        let wakeup = || {
            let inner = Arc::clone(&inner);
            Box::pin(async move { inner.store.wakeup().await })
        };
        let mut woken = wakeup();
        let mut hot_open = true;
        loop {
            // What a handler published before it ended is here by now: without it, nothing may seem to be left.
            while let Ok(fresh) = hot.try_recv() {
                self.arrived(fresh);
            }
            let now = Instant::now();
            self.on_time(now);
            self.start(now);
            self.settle(now);
            self.renew(now);
            self.claim(now);
            if self.is_over(now, hot_open) {
                if self.is_stopping() {
                    break;
                }
                // Nothing is left; once nothing can come in any more, either, it is over.
                inner.door.close();
                self.stop(now);
                continue;
            }
            let timer = self.next_timer(now);
            tokio::select! {
                biased;
                () = shutdown.ended() => {
                    warn!(store = %inner.name, leases = self.held.len(), "stopped at once");
                    return Ok(self.tally);
                }
                () = shutdown.begun(), if self.grace_ends.is_none() => {
                    inner.door.close();
                    self.stop(Instant::now());
                }
                Some(ended) = self.deliveries.join_next_with_id() => {
                    self.ended(ended);
                    while let Some(ended) = self.deliveries.try_join_next_with_id() {
                        self.ended(ended);
                    }
                }
                Some(reply) = self.calls.join_next() => self.replied(reply),
                fresh = hot.recv(), if hot_open => match fresh {
                    None => hot_open = false,
                    Some(fresh) => {
                        self.arrived(fresh);
                        while let Ok(fresh) = hot.try_recv() {
                            self.arrived(fresh);
                        }
                    }
                },
                () = inner.wake.notified() => self.woken(),
                () = &mut woken => {
                    woken = wakeup();
                    self.woken();
                }
                () = sleep_until(timer.unwrap_or(now)), if timer.is_some() => {}
            }
        }
        let left = self.held.len();
        match self.failure.take() {
            Some(error) => Err(error),
            None if left > 0 => Err(Error::new(
                ErrorKind::Unavailable,
                format!("{left} messages could not be settled before the end; they come again when their leases run out"),
            )
            .during("shutdown")),
            None => Ok(self.tally),
        }
    }

    fn woken(&mut self) {
        self.poll.woken(Instant::now());
        self.activity += 1;
    }

    // Time

    fn on_time(&mut self, now: Instant) {
        if self.next_deadline.is_some_and(|deadline| deadline <= now) {
            self.deadlines(now);
        }
        if self.grace_ends.is_some_and(|end| end <= now) {
            let working = self.running.iter().filter(|(_, running)| running.phase == Phase::Working);
            for lease in working.map(|(lease, _)| *lease).collect::<Vec<_>>() {
                self.cancel(lease, Why::ShutDown, now, LAST_GRACE / 2);
            }
            // Those that were told to stop before have no more time than these, or the end would come before theirs.
            for running in self.running.values_mut().filter(|running| matches!(running.phase, Phase::Cancelled(_))) {
                running.deadline = running.deadline.min(now + LAST_GRACE / 2);
                self.next_deadline = self.next_deadline.map(|next| next.min(running.deadline));
            }
        }
        if self.next_look_round <= now {
            self.next_look_round = now + LOOK_ROUND.min(self.inner.settings.lease / 4);
            self.gauges();
            self.expired(now);
        }
    }

    /// By the monotonic clock these leases are over, and nobody could tell whether they were renewed: stop, to be safe.
    fn expired(&mut self, now: Instant) {
        let expired =
            self.running.keys().filter(|lease| self.held.get(lease).is_some_and(|held| held.until <= now));
        for lease in expired.copied().collect::<Vec<_>>() {
            self.cancel(lease, Why::Lost, now, self.inner.settings.cancel_grace);
        }
    }

    fn deadlines(&mut self, now: Instant) {
        let over: Vec<Lease> = self
            .running
            .iter()
            .filter(|(_, running)| running.deadline <= now)
            .map(|(lease, _)| *lease)
            .collect();
        for lease in over {
            let Some(running) = self.running.get_mut(&lease) else { continue };
            match running.phase {
                Phase::Working => {
                    warn!(
                        message_id = %running.message.id, topic = %running.message.topic, store = %self.inner.name,
                        "a handler's time is over"
                    );
                    self.cancel(lease, Why::TimedOut, now, self.inner.settings.cancel_grace);
                }
                Phase::Cancelled(why) => {
                    running.abort.abort();
                    running.phase = Phase::Dropped(why);
                    running.deadline = now + LAST_GRACE / 2;
                }
                Phase::Dropped(why) => self.give_up(lease, why),
            }
        }
        self.next_deadline = self.running.values().map(|running| running.deadline).min();
    }

    /// Tells a handler to stop, and gives it some time to do so.
    fn cancel(&mut self, lease: Lease, why: Why, now: Instant, grace: Duration) {
        let Some(running) = self.running.get_mut(&lease) else { return };
        if running.phase == Phase::Working {
            running.cancel.cancel();
            running.phase = Phase::Cancelled(why);
            running.deadline = now + grace;
            self.next_deadline =
                Some(self.next_deadline.map_or(running.deadline, |next| next.min(running.deadline)));
        }
    }

    /// A handler was dropped and is still there: it blocks its thread, and nothing can end it.
    fn give_up(&mut self, lease: Lease, why: Why) {
        let Some(running) = self.running.remove(&lease) else { return };
        error!(
            message_id = %running.message.id, topic = %running.message.topic, store = %self.inner.name,
            "a handler blocks its thread and cannot be stopped"
        );
        self.leases.remove(&running.task);
        self.stuck.insert(running.task);
        match why {
            Why::Lost => drop(self.held.remove(&lease)),
            Why::TimedOut => self.judge(running.message, Ended::Stuck(running.timeout), None),
            Why::ShutDown => self.judge(running.message, Ended::ShutDown, Some(&running.progress)),
        }
    }

    fn next_timer(&self, now: Instant) -> Option<Instant> {
        let poll = self.wanted(now).map(|_| self.poll.next());
        let renew = (!self.held.is_empty() && !self.renewing).then_some(self.renew_at);
        let clearing = self.clearing_since.map(|since| since + self.inner.settings.lease).filter(|until| *until > now);
        let alone = self.alone_until.filter(|until| *until > now);
        let grace = self.grace_ends.map(|end| if end > now { end } else { end + 2 * LAST_GRACE });
        let look_round = (!self.running.is_empty()).then_some(self.next_look_round);
        // Not while a settlement is under way: a time that has passed would wake the loop again and again.
        let settle = self.settle_at.max(self.next_settlement()).filter(|_| !self.settling && !self.gathered.is_empty());
        [poll, renew, clearing, alone, grace, look_round, self.next_deadline, settle]
            .into_iter()
            .flatten()
            .min()
    }

    // The end

    fn stop(&mut self, now: Instant) {
        info!(store = %self.inner.name, running = self.running.len(), "shutting down");
        self.grace_ends = Some(now + self.inner.settings.shutdown_grace);
        let waiting: Vec<Waiting> = self.queue.drain().into_iter().chain(self.stale.drain(..)).collect();
        for waiting in waiting {
            self.release(waiting.message);
        }
    }

    fn is_over(&self, now: Instant, hot_open: bool) -> bool {
        let quiet = self.running.is_empty()
            && self.gathered.is_empty()
            && self.queue.is_empty()
            && self.stale.is_empty()
            && !self.settling
            && !self.claiming;
        match self.grace_ends {
            Some(end) => (quiet && !hot_open) || now >= end + 2 * LAST_GRACE,
            None => {
                let nothing = self.nothing_since == Some(self.activity);
                self.failure.is_some() || (self.until == Until::Idle && nothing && quiet)
            }
        }
    }

    fn is_stopping(&self) -> bool {
        self.grace_ends.is_some()
    }

    // Messages come in

    fn hold(&mut self, lease: Lease, until: Instant) {
        self.held.insert(lease, Held { until, stage: Stage::Waiting });
    }

    fn arrived(&mut self, fresh: Fresh) {
        let Fresh { message, slot, leased } = fresh;
        count(metrics::HOT_ENQUEUED, 1);
        self.activity += 1;
        self.hold(message.lease(), leased + self.inner.settings.lease);
        if self.is_stopping() {
            self.release(message);
        } else {
            self.queue.push(Waiting { message, since: Instant::now(), slot: Some(slot) });
        }
    }

    /// How many messages to claim, if any at all.
    fn wanted(&self, now: Instant) -> Option<u32> {
        let registry = &self.inner.registry;
        if self.claiming || self.is_stopping() || self.settle_at.is_some() || registry.is_empty() {
            return None;
        }
        // While a suspect runs, or is to run, alone, nothing else could start.
        let alone = self.alone_until.is_some_and(|until| now < until) && !self.running.is_empty();
        if alone || self.clearing_since.is_some() {
            return None;
        }
        let settings = &self.inner.settings;
        let busy = self.running.len() + self.stuck.len();
        let mut free = (settings.workers as usize).saturating_sub(busy);
        if free == 0 && self.queue.hot_len() > 0 {
            // A cold message has its turn among hot ones, too.
            free = 1;
        }
        // What waits for its lease to be renewed waits in memory, too.
        let waiting = self.queue.cold_len() + self.stale.len();
        let room = (settings.cold_capacity as usize).saturating_sub(waiting);
        let bytes = (settings.cold_bytes as usize).saturating_sub(self.queue.cold_bytes());
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an estimate"
        )]
        let fitting = ((bytes as f64 / self.average_bytes) as usize).max(usize::from(bytes > 0));
        let want = self.prefetch.want(waiting, free).min(room).min(fitting);
        u32::try_from(want).ok().filter(|want| *want > 0)
    }

    fn claim(&mut self, now: Instant) {
        let Some(limit) = self.wanted(now) else { return };
        let due = match self.until {
            Until::ShutDown => self.poll.next() <= now,
            Until::Idle => self.nothing_since != Some(self.activity),
        };
        if !due {
            return;
        }
        self.poll.looked(now);
        self.claiming = true;
        let (inner, activity) = (Arc::clone(&self.inner), self.activity);
        self.calls.spawn(async move {
            let request = ClaimRequest::new(inner.worker.clone())
                .limit(limit)
                .lease(inner.settings.lease)
                .topics(inner.registry.topics().clone());
            let asked = Instant::now();
            let outcome = unpanicked(inner.store.claim(&request)).await;
            Reply::Claimed { limit, asked, activity, outcome }
        });
    }

    fn claimed(&mut self, limit: u32, asked: Instant, activity: u64, messages: Vec<Message>) {
        let now = Instant::now();
        let found = messages.len();
        if found > 0 {
            debug!(store = %self.inner.name, claimed = found, "claimed");
            count(metrics::CLAIMED, found as u64);
            self.activity += 1;
        }
        let free = self.running.len() + self.stuck.len() < self.inner.settings.workers as usize;
        // A suspect comes alone: that says nothing about what else there is.
        let alone = found == 1 && messages.iter().any(|message| message.lease_losses > 0);
        if found == limit as usize || alone {
            self.poll.found_all(now);
            if !alone {
                let since_last = self.last_full_claim.replace(now).map(|last| now - last);
                self.prefetch.full(free && self.queue.is_empty(), since_last);
            }
        } else if found > 0 {
            self.poll.found_some(now);
        } else {
            self.poll.found_none(now, fastrand::f64());
            self.nothing_since = Some(activity);
        }
        for message in messages {
            #[allow(clippy::cast_precision_loss, reason = "an estimate")]
            let bytes = (message.payload.len() as f64).max(1.0);
            self.average_bytes = 0.8 * self.average_bytes + 0.2 * bytes;
            let lease = message.lease();
            // Leases of the same message that were lost without this worker's noticing.
            let first = Lease { item: lease.item, epoch: i32::MIN };
            let old: Vec<Lease> = self.held.range(first..lease).map(|(old, _)| *old).collect();
            old.iter().for_each(|old| self.lose(*old, now));
            self.hold(lease, asked + self.inner.settings.lease);
            let message = Arc::new(message);
            if self.is_stopping() {
                self.release(message);
            } else if old.iter().any(|old| self.running.contains_key(old)) {
                // Its handler has not stopped yet, and no two may have it at a time.
                self.gather(message, Outcome::Defer { delay: OVERLAP_DELAY }, None);
            } else {
                self.queue.push(Waiting { message, since: now, slot: None });
            }
        }
    }

    // Handlers

    fn start(&mut self, now: Instant) {
        let settings = &self.inner.settings;
        let (workers, lease) = (settings.workers as usize, settings.lease);
        let most_gathered = 4 * settings.settle_batch as usize;
        if !self.queue.peek().is_some_and(Waiting::is_suspect) {
            // The suspect that the others were waited for has lost its lease meanwhile.
            self.clearing_since = None;
        }
        while let Some(next) = self.queue.peek() {
            let busy = self.running.len() + self.stuck.len() >= workers;
            if busy || self.gathered.len() >= most_gathered {
                return;
            }
            if self.alone_until.is_some_and(|until| now < until) && !self.running.is_empty() {
                return;
            }
            self.alone_until = None;
            let suspect = next.is_suspect();
            if suspect && !self.running.is_empty() {
                // If it kills the process, it must not take others with it; but nor may a slow one keep it waiting.
                let since = *self.clearing_since.get_or_insert(now);
                if now < since + lease {
                    return;
                }
            }
            self.clearing_since = None;
            let Some(waiting) = self.queue.pop() else { return };
            let until = self.held.get(&waiting.lease()).map(|held| held.until);
            if until.is_none_or(|until| until <= now + lease / 10) {
                self.renew_at = now;
                self.stale.push(waiting);
                continue;
            }
            if suspect {
                self.alone_until = Some(now + lease);
            }
            self.launch(waiting, now);
        }
    }

    fn launch(&mut self, waiting: Waiting, now: Instant) {
        let waited = now.duration_since(waiting.since);
        metrics::time(metrics::LAG_SECONDS, "path", waiting.path(), waited);
        if waiting.slot.is_none() {
            self.prefetch.waited(waited);
        }
        let message = waiting.message;
        let lease = message.lease();
        let cancel = CancellationToken::new();
        let progress = Progress::new(&message.handled);
        let arrival = Arrival {
            message: Arc::clone(&message),
            states: Arc::clone(&self.inner.states),
            cancel: cancel.clone(),
        };
        let handlers = self.inner.registry.of(message.topic.as_str());
        let name = Arc::clone(&self.inner.name);
        let abort = self.deliveries.spawn(deliver(handlers, arrival, progress.clone(), name));
        let task = abort.id();
        let timeout = self.inner.rules_of(message.topic.as_str()).timeout;
        let deadline = now + timeout;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        self.leases.insert(task, lease);
        if let Some(held) = self.held.get_mut(&lease) {
            held.stage = Stage::Running;
        }
        let phase = Phase::Working;
        let running =
            Running { message, task, abort, cancel, progress, phase, deadline, timeout, started: now };
        self.running.insert(lease, running);
    }

    fn ended(&mut self, ended: Result<(Id, HandlerResult), JoinError>) {
        let (task, answer) = match ended {
            Ok((task, answer)) => (task, Ok(answer)),
            Err(error) => (error.id(), Err(error)),
        };
        if self.stuck.remove(&task) {
            return;
        }
        let Some(lease) = self.leases.remove(&task) else { return };
        let Some(running) = self.running.remove(&lease) else { return };
        self.prefetch.ended();
        let took = running.started.elapsed();
        metrics::time(metrics::HANDLER_SECONDS, "topic", running.message.topic.as_str(), took);
        let ended = match (answer, running.phase) {
            // Done is done, however late: the store knows whether the lease still holds.
            (Ok(Ok(())), _) => Ended::Answered(Ok(())),
            (Ok(answer), Phase::Working) => Ended::Answered(answer),
            (Err(error), Phase::Working) => Ended::Answered(Err(error.into())),
            (_, Phase::Cancelled(Why::TimedOut) | Phase::Dropped(Why::TimedOut)) => {
                Ended::TimedOut(running.timeout)
            }
            (_, Phase::Cancelled(Why::ShutDown) | Phase::Dropped(Why::ShutDown)) => Ended::ShutDown,
            (_, Phase::Cancelled(Why::Lost) | Phase::Dropped(Why::Lost)) => {
                if self.held.get(&lease).is_none_or(|held| held.stage == Stage::Lost) {
                    self.held.remove(&lease);
                    return;
                }
                // It was only feared to be lost. If it was renewed after all, others may have the message at once, without
                // waiting for the lease to run out and without being told that it lost one.
                Ended::ShutDown
            }
        };
        self.judge(running.message, ended, Some(&running.progress));
    }

    /// Decides what becomes of a message, and says so.
    fn judge(&mut self, message: Arc<Message>, ended: Ended, progress: Option<&Progress>) {
        let topic = message.topic.as_str();
        let rules = self.inner.rules_of(topic);
        let outcome = outcome(&message, ended, rules, &self.inner.settings, fastrand::f64());
        if let Some(failure) = outcome.failure() {
            let attempt = message.attempts.saturating_add(1);
            error!(
                message_id = %message.id, topic, attempt, class = %failure.class(), error = failure.text(),
                store = %self.inner.name, "a handler failed"
            );
            count_failure(metrics::FAILED, topic, failure.class());
            if dies(&message, &outcome) {
                error!(
                    message_id = %message.id, topic, attempt, class = %failure.class(), store = %self.inner.name,
                    "a message is dead"
                );
            }
        }
        let handled = progress.map(Progress::names).filter(|names| *names != message.handled);
        self.gather(message, outcome, handled);
    }

    // Settling

    fn release(&mut self, message: Arc<Message>) {
        self.gather(message, Outcome::Release, None);
    }

    fn gather(&mut self, message: Arc<Message>, outcome: Outcome, handled: Option<Vec<String>>) {
        let lease = message.lease();
        let Some(held) = self.held.get_mut(&lease) else { return };
        held.stage = Stage::Gathered;
        self.gathered.push(Gathered { settlement: Settlement { lease, outcome, handled }, message });
    }

    fn settle(&mut self, now: Instant) {
        if self.gathered.is_empty() && !self.settling && self.settle_pause.is_some() {
            // What could not be settled was lost meanwhile: there is nothing left to wait for.
            self.settling_works();
        }
        if self.settling || self.gathered.is_empty() || self.settle_at.is_some_and(|at| now < at) {
            return;
        }
        if self.next_settlement().is_some_and(|at| now < at) {
            return;
        }
        self.settled_at = Some(now);
        let rest = self.gathered.split_off(self.gathered.len().min(self.settle_batch));
        let batch = std::mem::replace(&mut self.gathered, rest);
        for gathered in &batch {
            if let Some(held) = self.held.get_mut(&gathered.settlement.lease) {
                held.stage = Stage::Settling;
            }
        }
        self.settling = true;
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let settlements: Vec<Settlement> = batch.iter().map(|one| one.settlement.clone()).collect();
            let outcome = unpanicked(inner.store.settle(&settlements)).await;
            Reply::Settled { batch, outcome }
        });
    }

    /// When to settle what is gathered, unless that is at once: soon after the last settlement more will have come
    /// together. But what waits behind a message of its key, a drain and a shutdown are not kept waiting.
    fn next_settlement(&self) -> Option<Instant> {
        let many = self.gathered.len() >= self.settle_batch;
        let awaited = self.is_stopping()
            || (self.until == Until::Idle && self.running.is_empty() && self.queue.is_empty())
            || self.gathered.iter().any(|gathered| gathered.message.key.is_some());
        if many || awaited || self.gathered.is_empty() || self.settling {
            return None;
        }
        self.settled_at.map(|last| last + SETTLE_INTERVAL)
    }

    fn settled(&mut self, batch: &[Gathered], answers: &[Settled]) {
        let now = Instant::now();
        self.settling_works();
        self.settle_batch = (self.settle_batch * 2).min(self.inner.settings.settle_batch as usize);
        self.activity += 1;
        let mut delivered: BTreeMap<&str, u64> = BTreeMap::new();
        for (gathered, answer) in batch.iter().zip(answers) {
            let Gathered { settlement, message } = gathered;
            self.held.remove(&settlement.lease);
            let topic = message.topic.as_str();
            // An ack that was sent before may have taken place, and its row be gone.
            let acked = settlement.outcome == Outcome::Ack && *answer != Settled::Lost;
            if *answer != Settled::Applied && !acked {
                warn!(message_id = %message.id, topic, store = %self.inner.name, "a lease was lost before its message was settled");
                count(metrics::LOST, 1);
                continue;
            }
            match &settlement.outcome {
                Outcome::Ack => {
                    self.tally.delivered += 1;
                    *delivered.entry(topic).or_default() += 1;
                }
                outcome if dies(message, outcome) => {
                    self.tally.dead += 1;
                    if let Some(failure) = outcome.failure() {
                        count_failure(metrics::DEAD, topic, failure.class());
                    }
                }
                Outcome::Abandon { delay, .. } => {
                    self.tally.failed += 1;
                    self.poll.hint(now + *delay);
                }
                Outcome::Defer { delay } => {
                    self.tally.deferred += 1;
                    self.poll.hint(now + *delay);
                }
                Outcome::Release | Outcome::Fail { .. } => {}
            }
            // What waited behind it may have its turn now.
            if message.key.is_some() {
                self.poll.found_all(now);
            }
        }
        for (topic, by) in delivered {
            count_with(metrics::DELIVERED, "topic", topic, by);
        }
    }

    fn settling_works(&mut self) {
        if self.settle_pause.take().is_some() {
            info!(store = %self.inner.name, "settling again");
            self.inner.door.pause(false);
        }
        self.settle_at = None;
    }

    fn settling_failed(&mut self, batch: Vec<Gathered>, error: &Error) {
        self.told("settle", error);
        for gathered in &batch {
            if let Some(held) = self.held.get_mut(&gathered.settlement.lease) {
                held.stage = Stage::Gathered;
            }
        }
        self.gathered.splice(0..0, batch);
        if !error.is_transient() {
            // Perhaps one of them is to blame: find it, and let the others through.
            self.settle_batch = (self.settle_batch / 2).max(1);
        }
        let pause =
            self.settle_pause.map_or(Duration::from_millis(20), |pause| (pause * 2).min(MOST_SETTLE_PAUSE));
        self.settle_pause = Some(pause);
        self.settle_at = Some(Instant::now() + pause.mul_f64(0.75 + 0.5 * fastrand::f64()));
        self.inner.door.pause(true);
    }

    // Leases

    fn renew(&mut self, now: Instant) {
        if self.renewing || now < self.renew_at {
            return;
        }
        let lease = self.inner.settings.lease;
        self.renew_at = now + lease / 3;
        let due = self.held.iter().filter(|(_, held)| {
            !matches!(held.stage, Stage::Settling | Stage::Lost) && held.until <= now + lease.mul_f64(0.7)
        });
        let leases: Vec<Lease> =
            due.map(|(lease, _)| *lease).take(crate::store::MAX_BATCH as usize).collect();
        if leases.is_empty() {
            return;
        }
        self.renewing = true;
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let asked = Instant::now();
            let outcome = unpanicked(inner.store.renew(&leases, inner.settings.lease)).await;
            Reply::Renewed { leases, asked, outcome }
        });
    }

    fn renewed(&mut self, leases: &[Lease], asked: Instant, answers: &[Settled]) {
        let now = Instant::now();
        let until = asked + self.inner.settings.lease;
        for (lease, answer) in leases.iter().zip(answers) {
            // One that is being settled meanwhile has another answer coming.
            let Some(held) = self.held.get_mut(lease).filter(|held| held.stage != Stage::Settling) else {
                continue;
            };
            if *answer == Settled::Applied {
                held.until = until;
            } else {
                self.lose(*lease, now);
            }
        }
        for waiting in std::mem::take(&mut self.stale) {
            let fresh = self.held.get(&waiting.lease()).is_some_and(|held| held.until == until);
            if fresh { self.queue.push(waiting) } else { self.stale.push(waiting) }
        }
        // What became stale after the question was asked is asked for again.
        if !self.stale.is_empty() {
            self.renew_at = now;
        }
    }

    /// A lease was lost: its message is not ours any more.
    fn lose(&mut self, lease: Lease, now: Instant) {
        let Some(held) = self.held.get_mut(&lease) else { return };
        if matches!(held.stage, Stage::Settling | Stage::Lost) {
            return;
        }
        count(metrics::LOST, 1);
        warn!(item = %lease.item, store = %self.inner.name, "a lease was lost");
        match held.stage {
            Stage::Running => {
                held.stage = Stage::Lost;
                self.cancel(lease, Why::Lost, now, self.inner.settings.cancel_grace);
            }
            Stage::Waiting => {
                self.held.remove(&lease);
                self.queue.remove(lease);
                self.stale.retain(|waiting| waiting.lease() != lease);
            }
            Stage::Gathered => {
                self.held.remove(&lease);
                self.gathered.retain(|gathered| gathered.settlement.lease != lease);
            }
            Stage::Settling | Stage::Lost => {}
        }
    }

    // Replies

    fn replied(&mut self, reply: Result<Reply, JoinError>) {
        let Ok(reply) = reply else {
            // A store's panics are caught: this is one of our own. What was to be settled comes again.
            self.held.retain(|_, held| held.stage != Stage::Settling);
            (self.claiming, self.settling, self.renewing) = (false, false, false);
            self.poll.failed(Instant::now(), fastrand::f64());
            error!(store = %self.inner.name, "a call to the store panicked");
            return;
        };
        match reply {
            Reply::Claimed { limit, asked, activity, outcome } => {
                self.claiming = false;
                match outcome {
                    Ok(messages) => self.claimed(limit, asked, activity, messages),
                    Err(error) => {
                        self.told("claim", &error);
                        self.poll.failed(Instant::now(), fastrand::f64());
                        if self.until == Until::Idle {
                            self.failure = Some(error);
                        }
                    }
                }
            }
            Reply::Settled { batch, outcome } => {
                self.settling = false;
                match outcome {
                    Ok(answers) => self.settled(&batch, &answers),
                    Err(error) => self.settling_failed(batch, &error),
                }
            }
            Reply::Renewed { leases, asked, outcome } => {
                self.renewing = false;
                match outcome {
                    Ok(answers) => self.renewed(&leases, asked, &answers),
                    Err(error) => {
                        self.told("renew", &error);
                        let pause = (self.inner.settings.lease / 10).min(Duration::from_secs(1));
                        self.renew_at = Instant::now() + pause;
                    }
                }
            }
        }
    }

    fn told(&self, operation: &'static str, failed: &Error) {
        error!(operation, store = %self.inner.name, error = ?failed, "a call to the store failed");
        count_with(metrics::ERRORS, "operation", operation, 1);
    }

    fn gauges(&self) {
        gauge_with(metrics::QUEUE_DEPTH, "queue", "hot", self.queue.hot_len() as u64);
        gauge_with(metrics::QUEUE_DEPTH, "queue", "cold", self.queue.cold_len() as u64);
        gauge(metrics::RUNNING, self.running.len() as u64);
    }
}

/// Whether this outcome is the end of a message. For the limit of an outage this is an estimate: the database decides, by
/// its own clock.
fn dies(message: &Message, outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Fail { .. } => true,
        Outcome::Abandon { failure, max_attempts, .. } if failure.class().costs_attempt() => {
            message.attempts.saturating_add(1) >= *max_attempts
        }
        Outcome::Abandon { max_age: Some(age), .. } => message
            .failing_since
            .is_some_and(|since| message.due_at.duration_since(since).is_ok_and(|failing| failing >= *age)),
        _ => false,
    }
}
