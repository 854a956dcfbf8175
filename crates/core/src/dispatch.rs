//! The dispatcher: one loop that owns all state of a running outbox. It claims what can start, hands messages to their
//! handlers, gathers outcomes and settles them, keeps leases, and stops without losing anything.
//!
//! Handlers and calls to the store are tasks of their own; the loop never waits for one of them, and never cancels a call
//! to the store. An error of a call never ends the loop.

mod by_lease;
pub(crate) mod call;
mod claim;
mod deliver;
mod ends;
mod handle;
pub(crate) mod hot;
mod pause;
mod prefetch;
pub(crate) mod progress;
mod queue;
mod renew;
mod runners;
mod settle;
pub(crate) mod verdict;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use self::by_lease::ByLease;
use self::ends::Ends;
use self::handle::{Phase, Running, Why};
use self::hot::Fresh;
use self::pause::Pauses;
use self::prefetch::Prefetch;
use self::queue::{Queue, Waiting};
use self::renew::{Held, Stage};
use self::runners::{Runners, Start};
use self::settle::Gathered;
use crate::commons::Load;
use crate::error::{Error, ErrorKind, Result};
use crate::id::Lease;
use crate::message::Message;
use crate::metrics::{self, gauge, gauge_with};
use crate::outbox::Inner;
use crate::outcome::Settled;
use crate::poll::Poll;
use crate::shutdown::Shutdown;
use crate::store::{SettledBatch, Store};
use crate::topic::Topics;

/// How long a handler that was dropped may take to be gone before its thread is taken for blocked, and how long the last
/// settlements of a shutdown may take.
const LAST_GRACE: Duration = Duration::from_secs(1);
/// How many turns in a row may be about handlers that have ended already, before everything else is looked at again.
const QUICK_TURNS: u32 = 32;
/// How often queues are measured and leases looked at.
const LOOK_ROUND: Duration = Duration::from_secs(1);
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

/// What a call to the store came back with.
#[derive(Debug)]
enum Reply {
    Claimed { limit: u32, asked: Instant, activity: u64, outcome: Result<Vec<Message>> },
    Settled { batch: Vec<Gathered>, outcome: Result<SettledBatch> },
    Renewed { leases: Vec<Lease>, asked: Instant, outcome: Result<Vec<Settled>> },
    Paused { asked: Instant, outcome: Result<Topics> },
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
    /// How many claims are under way, and how many messages they may bring.
    claims: u32,
    expected: usize,
    /// Whether the last one came back full, so that there is more.
    was_full: bool,
    /// Whether it waits for its turn to look, or for its turn to start a handler, among other outboxes.
    asked_to_look: bool,
    is_in_line: bool,
    /// What it has told the others that it holds.
    told_held: (bool, Load),
    /// Whether something became claimable that the claim under way may have missed: certainly, or perhaps.
    look_again: bool,
    look_soon: bool,
    average_bytes: f64,

    queue: Queue,
    /// Waiting, but their lease must be renewed before they may start.
    stale: Vec<Waiting>,
    held: ByLease<Held>,
    pauses: Pauses,

    running: ByLease<Running>,
    /// Those that are about to begin, and who begins them.
    starts: Vec<Start>,
    runners: Runners,
    ends: Arc<Ends>,
    /// Handlers that cannot be dropped because they block their thread.
    stuck: HashSet<Lease>,
    next_deadline: Option<Instant>,
    /// Since when the others are waited for because a suspect is next, and until when the suspect runs alone.
    clearing_since: Option<Instant>,
    alone_until: Option<Instant>,

    gathered: Vec<Gathered>,
    /// Whether somebody waits for one of them.
    awaited: bool,
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

/// Calls to the store are run to their end, whatever becomes of the dispatcher; handlers end with it.
impl<S> Drop for Dispatcher<S> {
    fn drop(&mut self) {
        self.running.values().for_each(|running| running.progress.abort());
        self.calls.detach_all();
        self.inner.share.ends();
    }
}

impl<S: Store> Dispatcher<S> {
    pub(crate) fn new(inner: Arc<Inner<S>>, until: Until) -> Self {
        let now = Instant::now();
        let settings = &inner.plan.settings;
        Self {
            until,
            tally: Tally::default(),
            activity: 0,
            nothing_since: None,
            failure: None,
            poll: Poll::of(settings, inner.share.has_others(), now),
            prefetch: Prefetch::new(settings.workers as usize, settings.batch as usize),
            last_full_claim: None,
            claims: 0,
            expected: 0,
            was_full: false,
            asked_to_look: false,
            is_in_line: false,
            told_held: (false, Load::default()),
            look_again: false,
            look_soon: false,
            average_bytes: 1024.0,
            queue: Queue::default(),
            stale: Vec::new(),
            held: ByLease::default(),
            pauses: Pauses::default(),
            running: ByLease::default(),
            starts: Vec::new(),
            runners: Runners::default(),
            ends: Arc::default(),
            stuck: HashSet::new(),
            next_deadline: None,
            clearing_since: None,
            alone_until: None,
            gathered: Vec::new(),
            awaited: false,
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
        let ends = Arc::clone(&self.ends);
        let mut woken = wakeup();
        let mut hot_open = true;
        let mut quick_turns = 0;
        loop {
            // What a handler published before it ended is here by now: without it, nothing may seem to be left.
            while let Ok(fresh) = hot.try_recv() {
                self.arrived(fresh);
            }
            let now = Instant::now();
            self.on_time(now);
            if inner.share.must_give_way(now) {
                self.give_back_waiting();
            }
            self.ask(now);
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
            // Whoever waits for one thing of many pays for all of them: not while handlers end faster than that.
            if quick_turns < QUICK_TURNS && self.some_ended() {
                quick_turns += 1;
                continue;
            }
            quick_turns = 0;
            self.tell_held();
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
                () = ends.some() => drop(self.some_ended()),
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
                () = inner.turn.notified() => {}
                () = &mut woken => {
                    woken = wakeup();
                    self.woken();
                }
                () = sleep_until(timer.unwrap_or(now)), if timer.is_some() => {}
            }
        }
        let left = self.held.len();
        if inner.share.has_others() {
            debug!(store = %inner.name, delivered = self.tally.delivered, leases = left, "stopped");
        } else {
            info!(store = %inner.name, delivered = self.tally.delivered, leases = left, "stopped");
        }
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

    /// Tells the others what it holds, if that has changed.
    fn tell_held(&mut self) {
        let any = self.claims > 0 || !self.held.is_empty();
        // The room of hot messages is bounded by their slots.
        let messages = self.held.len().saturating_sub(self.queue.hot_len() + self.pauses.waiting());
        let held = (any, Load { messages, bytes: self.queue.cold_bytes() });
        if self.told_held != held {
            self.told_held = held;
            self.inner.share.holds(any, held.1);
        }
    }

    fn woken(&mut self) {
        let now = Instant::now();
        if self.inner.at_once.swap(false, Ordering::AcqRel) {
            // Whoever says so may have given the store another way to its database: what could not be settled may be now.
            self.settle_at = self.settle_at.map(|at| at.min(now));
            self.look_at_once(now);
        } else {
            self.poll.woken(now);
            self.look_soon = self.claims > 0;
        }
        self.activity += 1;
    }

    /// Something is there to be claimed, certainly or as good as.
    fn look_at_once(&mut self, now: Instant) {
        self.poll.found_all(now);
        self.look_again = self.claims > 0;
    }

    fn on_time(&mut self, now: Instant) {
        if self.next_deadline.is_some_and(|deadline| deadline <= now) {
            self.deadlines(now);
        }
        if self.grace_ends.is_some_and(|end| end <= now) {
            let working = self.running.iter().filter(|(_, running)| running.phase == Phase::Working);
            let working: Vec<Lease> = working.map(|(lease, _)| *lease).collect();
            if !working.is_empty() {
                warn!(store = %self.inner.name, handlers = working.len(), "handlers are cut off by the shutdown");
            }
            for lease in working {
                self.cancel(lease, Why::ShutDown, now, LAST_GRACE / 2);
            }
            // Those that were told to stop before have no more time than these, or the end would come before theirs.
            for running in
                self.running.values_mut().filter(|running| matches!(running.phase, Phase::Cancelled(_)))
            {
                running.deadline = running.deadline.min(now + LAST_GRACE / 2);
                self.next_deadline = self.next_deadline.map(|next| next.min(running.deadline));
            }
        }
        if self.next_look_round <= now {
            self.next_look_round = now + LOOK_ROUND.min(self.inner.plan.settings.lease / 4);
            self.gauges();
            self.expired(now);
        }
    }

    fn next_timer(&self, now: Instant) -> Option<Instant> {
        // Whoever waits for a turn is woken for it.
        // Nor does anybody look again who is only waiting for the end.
        let is_looking = !self.asked_to_look
            && (self.until() == Until::ShutDown || self.nothing_since != Some(self.activity));
        let poll = self.wanted(now).filter(|_| is_looking).map(|_| self.poll.next());
        // Whoever has given way for that long has said so, and is woken when the suspect is over.
        let way = self.inner.share.gives_way_until().filter(|until| *until > now);
        let renew = (!self.held.is_empty() && !self.renewing).then_some(self.renew_at);
        let clearing = self
            .clearing_since
            .map(|since| since + self.inner.plan.settings.lease)
            .filter(|until| *until > now);
        let alone = self.alone_until.filter(|until| *until > now);
        let grace = self.grace_ends.map(|end| if end > now { end } else { end + 2 * LAST_GRACE });
        let look_round = (!self.running.is_empty()).then_some(self.next_look_round);
        // Not while a settlement is under way: a time that has passed would wake the loop again and again.
        let settle = self
            .settle_at
            .max(self.next_settlement())
            .filter(|_| !self.settling && !self.gathered.is_empty());
        [
            poll,
            way,
            renew,
            clearing,
            alone,
            grace,
            look_round,
            self.next_deadline,
            self.runners.next_look(),
            settle,
            self.next_question(now),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn stop(&mut self, now: Instant) {
        if self.inner.share.has_others() {
            debug!(store = %self.inner.name, running = self.running.len(), "shutting down");
        } else {
            info!(store = %self.inner.name, running = self.running.len(), "shutting down");
        }
        self.grace_ends = Some(now + self.inner.plan.settings.shutdown_grace);
        self.give_back_waiting();
    }

    /// Lets others have what has not been started.
    fn give_back_waiting(&mut self) {
        let mut waiting: Vec<Waiting> = self.queue.drain();
        waiting.append(&mut self.stale);
        waiting.extend(self.pauses.drain());
        for waiting in waiting {
            self.release(waiting.message);
        }
    }

    fn is_over(&self, now: Instant, hot_open: bool) -> bool {
        let quiet = self.running.is_empty()
            && self.gathered.is_empty()
            && self.queue.is_empty()
            && self.stale.is_empty()
            && self.pauses.waiting() == 0
            && !self.settling
            && self.claims == 0;
        match self.grace_ends {
            Some(end) => (quiet && !hot_open) || now >= end + 2 * LAST_GRACE,
            None => {
                let nothing = self.nothing_since == Some(self.activity);
                self.failure.is_some() || (self.until() == Until::Idle && nothing && quiet)
            }
        }
    }

    fn until(&self) -> Until {
        if self.inner.draining.load(Ordering::Acquire) { Until::Idle } else { self.until }
    }

    fn is_stopping(&self) -> bool {
        self.grace_ends.is_some()
    }

    fn replied(&mut self, reply: Result<Reply, JoinError>) {
        let Ok(reply) = reply else {
            // A store's panics are caught: this is one of our own. What was to be settled comes again.
            self.held.retain(|_, held| held.stage != Stage::Settling);
            (self.claims, self.expected) = (0, 0);
            (self.settling, self.renewing) = (false, false);
            self.pauses.unasked();
            self.inner.share.looked(None);
            self.poll.failed(Instant::now(), fastrand::f64());
            error!(store = %self.inner.name, "a call to the store panicked");
            return;
        };
        match reply {
            Reply::Claimed { limit, asked, activity, outcome } => {
                self.claims = self.claims.saturating_sub(1);
                self.expected = self.expected.saturating_sub(limit as usize);
                match outcome {
                    Ok(messages) => {
                        self.inner.is_up();
                        self.claimed(limit, asked, activity, messages);
                    }
                    Err(error) => {
                        self.inner.share.looked(None);
                        self.told("claim", &error);
                        self.poll.failed(Instant::now(), fastrand::f64());
                        if self.until() == Until::Idle {
                            self.failure = Some(error);
                        }
                    }
                }
            }
            Reply::Settled { batch, outcome } => {
                self.settling = false;
                match outcome {
                    Ok(answers) => {
                        self.settled(&batch, &answers.settled);
                        self.inner.joins_ended(&answers.joins);
                    }
                    Err(error) => self.settling_failed(batch, &error),
                }
            }
            Reply::Paused { asked, outcome } => self.learned(asked, outcome),
            Reply::Renewed { leases, asked, outcome } => {
                self.renewing = false;
                match outcome {
                    Ok(answers) => self.renewed(&leases, asked, &answers),
                    Err(error) => {
                        self.told("renew", &error);
                        let pause = (self.inner.plan.settings.lease / 10).min(Duration::from_secs(1));
                        self.renew_at = Instant::now() + pause;
                    }
                }
            }
        }
    }

    fn told(&self, operation: &'static str, failed: &Error) {
        self.inner.failed(operation, failed);
    }

    fn gauges(&self) {
        gauge_with(metrics::QUEUE_DEPTH, &self.inner.name, "queue", "hot", self.queue.hot_len() as u64);
        gauge_with(metrics::QUEUE_DEPTH, &self.inner.name, "queue", "cold", self.queue.cold_len() as u64);
        gauge(metrics::RUNNING, &self.inner.name, self.running.len() as u64);
    }
}
