//! Hands messages to their handlers: which start next, which run alone, which are asked to stop, and which have ended.
//!
//! A handler that must stop is asked first, and dropped only if it does not stop. A handler that blocks its thread cannot be
//! stopped at all; its message is settled without it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::deliver::Delivery;
use super::ends::{End, Ending, Ends};
use super::held::{Awaits, Counts, Held, Holding, Path, Phase, Running, Stage, Why, runs_alone};
use super::progress::Progress;
use super::queue::Queue;
use super::runners::{Runners, Start};
use crate::commons::Wish;
use crate::id::Lease;
use crate::message::Message;
use crate::metrics::{self, Times};
use crate::outbox::Home;
use crate::outcome::Outcome;

/// See [`Executor::drop_grace`]; a shutdown has less time.
const DROP_GRACE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct Executor {
    home: Arc<dyn Home>,
    queue: Queue,
    runners: Runners,
    /// Deliveries that the runners get at the end of this turn.
    starts: Vec<Start>,
    ends: Arc<Ends>,
    /// Handlers that block their thread, and cannot be dropped.
    stuck: HashSet<Lease>,
    /// How long a dropped handler may take to be gone, before its thread counts as blocked.
    drop_grace: Duration,
    next_deadline: Option<Instant>,
    /// Since when everything else is waited for, because a suspect is next.
    clearing_since: Option<Instant>,
    /// Until when a suspect runs alone.
    alone_until: Option<Instant>,
    /// Whether this outbox waits for its turn among the tenants of the process.
    awaits_turn: bool,
}

/// The rest of the dispatcher's state that matters for starting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    /// Whether nothing may start.
    pub(super) is_closed: bool,
    /// Whether outcomes are on their way to the store.
    pub(super) is_settling: bool,
}

/// The result of starting messages.
#[derive(Debug, Default)]
pub(super) struct Started {
    /// How long claimed messages have waited in memory.
    pub(super) waited: Vec<Duration>,
    /// Whether a message waits for its lease to be renewed.
    pub(super) needs_renewal: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Readiness {
    Now,
    Later,
    NeedsRenewal,
}

impl Executor {
    pub(super) fn new(home: Arc<dyn Home>) -> Self {
        Self {
            home,
            queue: Queue::default(),
            runners: Runners::default(),
            starts: Vec::new(),
            ends: Arc::default(),
            stuck: HashSet::new(),
            drop_grace: DROP_GRACE,
            next_deadline: None,
            clearing_since: None,
            alone_until: None,
            awaits_turn: false,
        }
    }

    /// Where deliveries leave their ends.
    pub(super) fn ends(&self) -> &Arc<Ends> {
        &self.ends
    }

    /// Handlers that have nothing to do.
    pub(super) fn free(&self, held: &Held) -> usize {
        let workers = self.home.plan().settings.workers as usize;
        workers.saturating_sub(held.counts().running + self.stuck.len())
    }

    /// This message can start.
    pub(super) fn enqueue(&mut self, lease: Lease, path: Path) {
        self.queue.push(lease, path);
    }

    /// Whether a suspect runs alone, or waits to. Nothing else can start then; and nothing may join a suspect that waits: if
    /// that kills the process, the others would be blamed as well.
    pub(super) fn has_suspect(&self, held: &Held, now: Instant) -> bool {
        self.runs_suspect(held, now) || self.clearing_since.is_some() || held.counts().suspects > 0
    }

    /// Whether a message runs that must run alone, even if its time alone is over.
    pub(super) fn runs_one_alone(&self, held: &Held) -> bool {
        let is_one =
            |holding: &Holding| matches!(holding.stage, Stage::Running(_)) && runs_alone(&holding.message);
        held.counts().running > 0 && held.any(is_one)
    }

    fn runs_suspect(&self, held: &Held, now: Instant) -> bool {
        self.alone_until.is_some_and(|until| now < until) && held.counts().running > 0
    }

    /// Starts everything that can start.
    pub(super) fn start(&mut self, held: &mut Held, gate: Gate, now: Instant) -> Started {
        if !self.queue.peek(held).is_some_and(|(_, next)| runs_alone(&next.message)) {
            // The suspect that the others were waited for has lost its lease meanwhile.
            self.clearing_since = None;
        }
        let had_asked = std::mem::take(&mut self.awaits_turn);
        let mut started = Started::default();
        let mut times = Times::new(metrics::WAIT_SECONDS, self.home.name(), "path");
        while !gate.is_closed && self.free(held) > 0 && !self.runs_suspect(held, now) {
            let Some((lease, next)) = self.queue.peek(held) else { break };
            self.alone_until = None;
            match self.readiness(next, held.counts(), gate, now) {
                Readiness::Now => self.launch(held, lease, now, &mut times, &mut started),
                Readiness::Later => break,
                Readiness::NeedsRenewal => {
                    self.clearing_since = None;
                    self.queue.pop(held);
                    await_renewal(held, lease);
                    started.needs_renewal = true;
                }
            }
        }
        let workers = self.home.plan().settings.workers as usize;
        self.runners.start(&mut self.starts, &self.ends, workers, now);
        if had_asked && !self.awaits_turn {
            self.home.share().wants_none();
        }
        started
    }

    /// Whether the message that is next may start.
    fn readiness(&mut self, next: &Holding, held: &Counts, gate: Gate, now: Instant) -> Readiness {
        let length = self.home.plan().settings.lease;
        let is_suspect = runs_alone(&next.message);
        let has_others = held.running > 0 || gate.is_settling || held.decided > 0;
        if is_suspect && has_others {
            // If it kills the process, it must not take others with it, nor outcomes that are about to be settled. But a slow
            // handler may not keep it waiting for ever.
            let since = *self.clearing_since.get_or_insert(now);
            if now < since + length {
                return Readiness::Later;
            }
        }
        if next.until <= now + length / 10 {
            return Readiness::NeedsRenewal;
        }
        if !self.home.share().may_start(Wish { now, lease: length, is_suspect }) {
            self.awaits_turn = true;
            return Readiness::Later;
        }
        Readiness::Now
    }

    fn launch(
        &mut self,
        held: &mut Held,
        lease: Lease,
        now: Instant,
        times: &mut Times,
        started: &mut Started,
    ) {
        self.queue.pop(held);
        self.clearing_since = None;
        let Some((Holding { message, .. }, waiting)) = held.waiting(lease) else { return };
        let waited = now.duration_since(waiting.since);
        let path = waiting.path();
        times.add(path.name(), waited);
        if path == Path::Cold {
            started.waited.push(waited);
        }
        if runs_alone(message) {
            let Message { id, topic, lease_losses, .. } = &**message;
            info!(message_id = %id, %topic, lease_losses, store = %self.home.name(), "suspect runs alone");
            self.alone_until = Some(now + self.home.plan().settings.lease);
        }
        let timeout = self.home.plan().rules_of(message.topic.as_str()).timeout;
        let progress = Progress::new();
        let delivery = Delivery {
            message: Arc::clone(message),
            progress: Arc::clone(&progress),
            home: Arc::clone(&self.home),
            timeout,
        };
        self.starts.push(Start { delivery, ending: Ending::new(&self.ends, lease) });
        let deadline = now + timeout;
        let running =
            Running { progress, phase: Phase::Working, deadline, timeout, started: now, is_lost: false };
        held.change(lease, |holding| holding.stage = Stage::Running(running));
        self.watch(deadline);
    }

    /// Takes in the deliveries that have ended; none if there were none. Not every end is the end of a message.
    pub(super) fn ended(&mut self, held: &mut Held) -> Option<Vec<End>> {
        let ends = self.ends.take();
        if ends.is_empty() {
            return None;
        }
        let home = Arc::clone(&self.home);
        let mut times = Times::new(metrics::HANDLER_SECONDS, home.name(), "topic");
        Some(ends.into_iter().filter_map(|end| self.over(held, end, &mut times)).collect())
    }

    fn over(&mut self, held: &mut Held, end: End, times: &mut Times) -> Option<End> {
        let End { lease, settlement } = end;
        if !self.stuck.is_empty() && self.stuck.remove(&lease) {
            self.home.share().ended();
            return None;
        }
        let (message, running) = held.running(lease)?;
        times.add(message.topic.as_str(), running.started.elapsed());
        let settlement = match (settlement, running.phase) {
            // Done is done, however late: the store knows whether the lease still holds.
            (Some(settlement), _) if settlement.outcome == Outcome::Ack => Some(settlement),
            _ if running.is_lost => None,
            (Some(settlement), _) => Some(settlement),
            (None, Phase::Cancelled(Why::TimedOut) | Phase::Dropped(Why::TimedOut)) => {
                self.judge(held, lease);
                return None;
            }
            // A lease that was only feared to be lost: other workers may have the message at once.
            (None, Phase::Cancelled(_) | Phase::Dropped(_)) => {
                Some(delivery(&self.home, message, running).released())
            }
            (None, Phase::Working | Phase::Judged) => {
                Some(delivery(&self.home, message, running).unexplained())
            }
        };
        self.home.share().ended();
        Some(End { lease, settlement })
    }

    /// Asks the retry policy what becomes of a delivery that timed out and was dropped. The policy is the user's, so it runs
    /// in a task of its own.
    fn judge(&mut self, held: &mut Held, lease: Lease) {
        let Some((message, running)) = held.running(lease) else { return };
        running.phase = Phase::Judged;
        running.deadline = Instant::now() + running.timeout;
        let delivery = delivery(&self.home, message, running);
        let (ending, deadline) = (Ending::new(&self.ends, lease), running.deadline);
        let progress = Arc::clone(&running.progress);
        tokio::spawn(async move { ending.decided(progress.polled(|| delivery.timed_out())) });
        self.watch(deadline);
    }

    /// Asks a delivery to stop, and gives it some time to do so.
    pub(super) fn cancel(&mut self, held: &mut Held, lease: Lease, why: Why, until: Instant) {
        let Some((_, running)) = held.running(lease) else { return };
        if running.phase == Phase::Working {
            running.progress.cancel(why);
            (running.phase, running.deadline) = (Phase::Cancelled(why), until);
            self.watch(until);
        }
    }

    /// The store has said that the lease of a delivery is lost.
    pub(super) fn lose(&mut self, held: &mut Held, lease: Lease, until: Instant) {
        if let Some((_, running)) = held.running(lease) {
            running.is_lost = true;
        }
        self.cancel(held, lease, Why::Lost, until);
    }

    /// Checks the deliveries whose phase is over. Returns the ones to give up.
    pub(super) fn on_deadline(&mut self, held: &mut Held, now: Instant) -> Vec<End> {
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return Vec::new();
        }
        let grace = self.home.plan().settings.cancel_grace;
        let mut stuck = Vec::new();
        let mut next = None;
        for (lease, message, running) in held.all_running() {
            if running.deadline <= now {
                match running.phase {
                    // It waits for a thread, and is not to blame.
                    Phase::Working if !running.progress.has_begun() => {
                        running.deadline = now + running.timeout;
                    }
                    Phase::Dropped(_) | Phase::Judged if !running.progress.is_polled() => {
                        running.deadline = now + self.drop_grace;
                    }
                    Phase::Working => {
                        warn!(
                            message_id = %message.id, topic = %message.topic, store = %self.home.name(),
                            "handler timed out"
                        );
                        running.progress.cancel(Why::TimedOut);
                        (running.phase, running.deadline) = (Phase::Cancelled(Why::TimedOut), now + grace);
                    }
                    Phase::Cancelled(why) => {
                        running.progress.abort();
                        (running.phase, running.deadline) = (Phase::Dropped(why), now + self.drop_grace);
                    }
                    Phase::Dropped(_) | Phase::Judged => {
                        stuck.push(lease);
                        continue;
                    }
                }
            }
            next = Some(next.map_or(running.deadline, |next: Instant| next.min(running.deadline)));
        }
        self.next_deadline = next;
        stuck.into_iter().filter_map(|lease| self.give_up(held, lease)).collect()
    }

    /// A delivery was dropped and is still there: it blocks its thread, and nothing can end it.
    fn give_up(&mut self, held: &mut Held, lease: Lease) -> Option<End> {
        let (message, running) = held.running(lease)?;
        error!(
            message_id = %message.id, topic = %message.topic, store = %self.home.name(),
            "handler blocks its thread and cannot be stopped"
        );
        self.stuck.insert(lease);
        let settlement = match running.phase {
            _ if running.is_lost => None,
            Phase::Cancelled(Why::ShutDown | Why::Lost) | Phase::Dropped(Why::ShutDown | Why::Lost) => {
                Some(delivery(&self.home, message, running).released())
            }
            _ => Some(delivery(&self.home, message, running).stuck()),
        };
        Some(End { lease, settlement })
    }

    /// Nothing in this process ran for this long: a handler has blocked the only thread, or the process was stopped. The
    /// handlers get that time back.
    pub(super) fn stood_still(&mut self, held: &mut Held, lasted: Duration) {
        held.all_running().for_each(|(_, _, running)| running.deadline += lasted);
        self.next_deadline = self.next_deadline.map(|next| next + lasted);
    }

    /// A shutdown has waited for handlers until now: running ones have this long to stop, and as long again to end after they are
    /// dropped.
    pub(super) fn cut_off(&mut self, held: &mut Held, now: Instant, grace: Duration) {
        let until = now + grace;
        self.drop_grace = grace.min(DROP_GRACE);
        let (mut working, mut is_any) = (0_usize, false);
        for (_, _, running) in held.all_running() {
            if running.phase == Phase::Working {
                working += 1;
                running.progress.cancel(Why::ShutDown);
                running.phase = Phase::Cancelled(Why::ShutDown);
            } else if !matches!(running.phase, Phase::Cancelled(_)) || running.deadline <= until {
                continue;
            }
            (running.deadline, is_any) = (until, true);
        }
        if working > 0 {
            warn!(store = %self.home.name(), handlers = working, "shutdown cut off handlers");
        }
        if is_any {
            self.watch(until);
        }
    }

    fn watch(&mut self, deadline: Instant) {
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
    }

    /// When something is to be done, besides what ends by itself.
    pub(super) fn next_wakeup(&self, now: Instant) -> Option<Instant> {
        let length = self.home.plan().settings.lease;
        let clearing = self.clearing_since.map(|since| since + length).filter(|until| *until > now);
        let alone = self.alone_until.filter(|until| *until > now);
        [clearing, alone, self.next_deadline, self.runners.next_look()].into_iter().flatten().min()
    }
}

/// The delivery that is, or was, under way.
fn delivery(home: &Arc<dyn Home>, message: &Arc<Message>, running: &Running) -> Delivery {
    Delivery {
        message: Arc::clone(message),
        progress: Arc::clone(&running.progress),
        home: Arc::clone(home),
        timeout: running.timeout,
    }
}

fn await_renewal(held: &mut Held, lease: Lease) {
    held.change(lease, |holding| {
        if let Stage::Waiting(waiting) = &mut holding.stage {
            waiting.awaits = Awaits::Renewal;
        }
    });
}
