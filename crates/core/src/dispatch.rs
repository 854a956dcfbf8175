//! The dispatcher: one loop that runs an outbox. It claims messages that can start, hands them to their handlers,
//! settles outcomes, keeps leases, and stops without losing anything.
//!
//! [`Held`] owns every message of this worker. The parts around it each own one concern and nothing else: they take events,
//! and return actions and the time of their next wake-up. This file routes between them and sleeps until the earliest
//! wake-up. Handlers and calls to the store are tasks of their own: the loop never waits for one of them, never cancels a
//! call to the store, and never runs users' code.

mod by_lease;
pub(crate) mod call;
mod claimer;
mod deliver;
mod ends;
mod executor;
mod held;
pub(crate) mod hot;
mod leases;
mod pauses;
mod prefetch;
pub(crate) mod progress;
mod queue;
mod runners;
mod settler;
mod together;
pub(crate) mod verdict;
pub(crate) mod wake;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info, warn};

use self::claimer::{Claim, Claimer, Situation, came_alone};
use self::ends::End;
use self::executor::{Executor, Gate};
use self::held::{Awaits, Held, Holding, Path, Stage, Waiting, Why, runs_alone};
use self::hot::{Fresh, Opened};
use self::leases::Leases;
use self::pauses::{Admission, Pauses};
use self::settler::Settler;
use self::wake::{Reason, Reasons};
use crate::commons::Load;
use crate::error::{Error, ErrorKind, Result};
use crate::id::{Lease, WorkItemId};
use crate::message::Message;
use crate::metrics::{self, count, gauge, gauge_with};
use crate::outbox::{Home, Inner};
use crate::outcome::{Outcome, Settled, Settlement};
use crate::shutdown::Shutdown;
use crate::store::{ClaimRequest, SettledBatch, Store};
use crate::topic::Topics;

/// How much of a shutdown's grace is kept for its end, at most: for handlers to stop that are cut off, and for the last settlements.
/// Of a short grace it is half.
const MOST_RESERVED: Duration = Duration::from_secs(3);
/// How many turns in a row may be about handlers that have ended already, before everything else is checked again.
const QUICK_TURNS: u32 = 32;
/// A loop that wakes up this much too late has stood still.
const STOOD_STILL: Duration = Duration::from_millis(200);
/// How often queues are measured and leases checked.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A message that comes back while its last delivery is still under way here waits this long.
const OVERLAP_DELAY: Duration = Duration::from_secs(1);

/// The result of a run.
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

impl Tally {
    fn add(&mut self, other: Self) {
        let Self { delivered, failed, deferred, dead } = other;
        self.delivered += delivered;
        self.failed += failed;
        self.deferred += deferred;
        self.dead += dead;
    }
}

/// Whether the dispatcher goes on for ever or until there is nothing left that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    ShutDown,
    Idle,
}

/// The times of a graceful shutdown.
#[derive(Clone, Copy, Debug)]
struct Closing {
    /// When it ends, even if handlers still run.
    ends: Instant,
    /// How long before that handlers are cut off.
    reserved: Duration,
}

impl Closing {
    fn new(now: Instant, grace: Duration) -> Self {
        Self { ends: now + grace, reserved: MOST_RESERVED.min(grace / 2) }
    }

    fn cut_off_at(self) -> Instant {
        self.ends - self.reserved
    }
}

/// The result of a call to the store.
#[derive(Debug)]
enum Reply {
    Claimed { claim: Claim, asked: Instant, outcome: Result<Vec<Message>> },
    Settled { leases: Vec<Lease>, outcome: Result<SettledBatch> },
    Renewed { leases: Vec<Lease>, asked: Instant, outcome: Result<Vec<Settled>> },
    Paused { asked: Instant, outcome: Result<Topics> },
}

pub(crate) struct Dispatcher<S> {
    inner: Arc<Inner<S>>,
    until: Until,
    tally: Tally,
    /// Why a drain ends before everything is done.
    failure: Option<Error>,
    held: Held,
    claimer: Claimer,
    executor: Executor,
    settler: Settler,
    leases: Leases,
    pauses: Pauses,
    calls: JoinSet<Reply>,
    /// The times of a shutdown that has begun.
    closing: Option<Closing>,
    next_check: Instant,
    /// The other tenants' view of the messages that this one holds.
    told_held: (bool, Load),
}

impl<S> std::fmt::Debug for Dispatcher<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").field("tally", &self.tally).finish_non_exhaustive()
    }
}

/// Calls to the store run to their end, also without the dispatcher. Handlers end with it.
impl<S> Drop for Dispatcher<S> {
    fn drop(&mut self) {
        self.held.all_running().for_each(|(_, _, running)| running.progress.abort());
        self.calls.detach_all();
        self.inner.share.ends();
    }
}

impl<S: Store> Dispatcher<S> {
    pub(crate) fn new(inner: Arc<Inner<S>>, until: Until) -> Self {
        let now = Instant::now();
        let home = || Arc::clone(&inner) as Arc<dyn Home>;
        Self {
            until,
            tally: Tally::default(),
            failure: None,
            held: Held::default(),
            claimer: Claimer::new(home(), now),
            executor: Executor::new(home()),
            settler: Settler::new(home()),
            leases: Leases::new(home(), now),
            pauses: Pauses::new(home()),
            calls: JoinSet::new(),
            closing: None,
            next_check: now,
            told_held: (false, Load::default()),
            inner,
        }
    }

    /// Runs until the shutdown, or until nothing is left to do.
    pub(crate) async fn run(mut self, hot: Opened, shutdown: Shutdown) -> Result<Tally> {
        let Opened { receiver: mut hot, opening } = hot;
        let inner = Arc::clone(&self.inner);
        let wakeup = || {
            let inner = Arc::clone(&inner);
            Box::pin(async move { inner.store.wakeup().await })
        };
        let ends = Arc::clone(self.executor.ends());
        let mut woken = wakeup();
        let mut hot_open = true;
        let mut quick_turns = 0;
        loop {
            // Messages that a handler published before it ended have arrived by now; without them, nothing might seem
            // to be left.
            while let Ok(fresh) = hot.try_recv() {
                self.arrived(fresh);
            }
            let now = Instant::now();
            let situation = self.turn(now);
            if self.is_over(now, hot_open) {
                if self.is_stopping() {
                    break;
                }
                // Nothing is left; once nothing can come in any more, either, it is over.
                inner.door.close(opening);
                self.stop(now);
                continue;
            }
            // `select!` polls every branch; skip it while handlers finish faster than that.
            if quick_turns < QUICK_TURNS && self.some_ended() {
                quick_turns += 1;
                continue;
            }
            quick_turns = 0;
            self.tell_held();
            let timer = self.next_timer(now, &situation);
            tokio::select! {
                biased;
                () = shutdown.ended() => {
                    warn!(store = %inner.name, leases = self.held.len(), "stopped at once");
                    return Ok(self.tally);
                }
                () = shutdown.begun(), if self.closing.is_none() => {
                    inner.door.close(opening);
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
                reasons = inner.wakeup.reasons() => self.woken(reasons),
                () = &mut woken => {
                    woken = wakeup();
                    self.look_soon();
                }
                () = sleep_until(timer.unwrap_or(now)), if timer.is_some() => {}
            }
            let overslept = timer.map(|timer| timer.max(now).elapsed()).unwrap_or_default();
            if overslept >= STOOD_STILL {
                self.executor.stood_still(&mut self.held, overslept);
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

    /// One turn: everything that can be done now, in the order that frees the most. Says how much may be claimed.
    fn turn(&mut self, now: Instant) -> Situation {
        self.on_time(now);
        let gives_way = self.inner.share.must_give_way(now);
        if gives_way {
            self.give_back_waiting();
        }
        if !self.is_stopping() && self.pauses.asks(now, self.held.counts().queued() > 0) {
            self.ask_pauses();
        }
        self.start(now);
        let in_hurry = self.is_in_hurry();
        if let Some(settlements) = self.settler.next_batch(&mut self.held, now, in_hurry) {
            self.settle(settlements);
        }
        if let Some(leases) = self.leases.next_batch(&self.held, now) {
            self.renew(leases);
        }
        let situation = self.situation(now, gives_way);
        if let Some(claim) = self.claimer.next_claim(&self.held, &situation, now) {
            self.claim(claim);
        }
        situation
    }

    fn on_time(&mut self, now: Instant) {
        let given_up = self.executor.on_deadline(&mut self.held, now);
        self.over(given_up);
        if let Some(closing) = self.closing.filter(|closing| closing.cut_off_at() <= now) {
            self.executor.cut_off(&mut self.held, closing.cut_off_at(), closing.reserved / 6);
        }
        if self.next_check <= now {
            self.next_check = now + CHECK_EVERY.min(self.inner.plan.settings.lease / 4);
            self.gauges();
            self.stop_expired(now);
        }
    }

    fn start(&mut self, now: Instant) {
        // A crash repeats messages that were delivered and not settled, so their number is limited.
        let most_decided = self.inner.plan.settings.settle_batch as usize;
        let gate = Gate {
            is_closed: self.settler.is_paused() || self.held.counts().decided >= most_decided,
            is_settling: self.settler.is_settling(),
        };
        let started = self.executor.start(&mut self.held, gate, now);
        started.waited.into_iter().for_each(|waited| self.claimer.waited(waited));
        if started.needs_renewal {
            self.leases.hurry(now);
        }
    }

    /// Whether outcomes are settled without waiting for more of them.
    fn is_in_hurry(&self) -> bool {
        let counts = self.held.counts();
        let is_idle = counts.running == 0 && counts.queued() == 0;
        self.is_stopping() || (self.until() == Until::Idle && is_idle)
    }

    fn situation(&self, now: Instant, gives_way: bool) -> Situation {
        let is_closed = self.is_stopping()
            || self.settler.is_paused()
            || self.inner.plan.registry.is_empty()
            || gives_way
            || self.executor.has_suspect(&self.held, now);
        let until_idle = self.until() == Until::Idle;
        Situation { is_closed, free: self.executor.free(&self.held), until_idle }
    }

    /// When to wake up at the latest.
    fn next_timer(&self, now: Instant, situation: &Situation) -> Option<Instant> {
        let (held, counts) = (&self.held, self.held.counts());
        // After that time the other tenants need not wait for a suspect, and are woken when it is over.
        let way = self.inner.share.gives_way_until().filter(|until| *until > now);
        let grace = self
            .closing
            .map(|closing| if closing.cut_off_at() > now { closing.cut_off_at() } else { closing.ends });
        let check = (counts.running > 0).then_some(self.next_check);
        let pauses = self.pauses.next_wakeup(now, counts.queued() > 0).filter(|_| !self.is_stopping());
        [
            way,
            grace,
            check,
            pauses,
            self.claimer.next_wakeup(held, situation),
            self.executor.next_wakeup(now),
            self.settler.next_wakeup(held, self.is_in_hurry()),
            self.leases.next_wakeup(held),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn ask_pauses(&mut self) {
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let asked = Instant::now();
            let outcome = inner.call(inner.store.paused()).await;
            Reply::Paused { asked, outcome }
        });
    }

    fn settle(&mut self, settlements: Vec<Settlement>) {
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let outcome = inner.call_first(inner.store.settle(&settlements)).await;
            let leases = settlements.into_iter().map(|settlement| settlement.lease).collect();
            Reply::Settled { leases, outcome }
        });
    }

    fn renew(&mut self, leases: Vec<Lease>) {
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let asked = Instant::now();
            let outcome = inner.call_first(inner.store.renew(&leases, inner.plan.settings.lease)).await;
            Reply::Renewed { leases, asked, outcome }
        });
    }

    fn claim(&mut self, claim: Claim) {
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let request = ClaimRequest::new(inner.worker.clone())
                .limit(claim.limit)
                .lease(inner.plan.settings.lease)
                .topics(inner.plan.registry.topics().into_owned());
            let asked = Instant::now();
            let outcome = inner.call(inner.store.claim(&request)).await;
            Reply::Claimed { claim, asked, outcome }
        });
    }

    fn replied(&mut self, reply: Result<Reply, JoinError>) {
        match reply {
            Ok(Reply::Claimed { claim, asked, outcome }) => self.claimed(claim, asked, outcome),
            Ok(Reply::Settled { leases, outcome }) => self.settled(leases, outcome),
            Ok(Reply::Renewed { leases, asked, outcome }) => self.renewed(&leases, asked, outcome),
            Ok(Reply::Paused { asked, outcome }) => self.learned(asked, outcome),
            // A store's panics are caught, so this is posthaste's own. The messages are delivered again.
            Err(_) => {
                self.claimer.lost_track();
                self.settler.lost_track(&mut self.held);
                self.leases.failed();
                self.pauses.lost_track();
                error!(store = %self.inner.name, "a call to the store panicked");
            }
        }
    }

    fn claimed(&mut self, claim: Claim, asked: Instant, outcome: Result<Vec<Message>>) {
        let messages = match outcome {
            Ok(messages) => messages,
            Err(error) => {
                self.claimer.failed(claim);
                self.inner.failed("claim", &error);
                if self.until() == Until::Idle {
                    self.failure = Some(error);
                }
                return;
            }
        };
        self.inner.is_up();
        let now = Instant::now();
        let is_dry = self.executor.free(&self.held) > 0 && self.held.counts().queued() == 0;
        self.claimer.claimed(claim, &messages, is_dry);
        let until = asked + self.inner.plan.settings.lease;
        let old = self.older(&messages, until);
        old.iter().for_each(|old| self.lose(*old, now));
        // A claim that was asked for before a suspect came in by another one does not join it, either.
        let joins_suspect = self.executor.has_suspect(&self.held, now) && !came_alone(&messages);
        let gives_back = self.is_stopping() || joins_suspect;
        for message in messages {
            let lease = message.lease();
            let overlaps = !gives_back && self.overlaps(&message);
            let waiting = Waiting { awaits: Awaits::Handler, since: now, slot: None };
            self.held.insert(Holding { message: Arc::new(message), until, stage: Stage::Waiting(waiting) });
            if gives_back {
                self.release(lease);
            } else if overlaps {
                self.settler.decide(&mut self.held, lease, Outcome::Defer { delay: OVERLAP_DELAY });
            } else {
                self.executor.enqueue(lease, Path::Cold);
            }
        }
    }

    /// Whether a message may not start yet: an older delivery of it has not stopped, or both it and a message that runs must
    /// run alone.
    fn overlaps(&self, message: &Message) -> bool {
        let is_running = |holding: &Holding| {
            holding.message.item == message.item && matches!(holding.stage, Stage::Running(_))
        };
        (self.held.has(message.item) && self.held.any(is_running))
            || (runs_alone(message) && self.executor.runs_one_alone(&self.held))
    }

    /// Leases of the same messages that were lost without this worker's noticing. Of two leases of one message the one that was
    /// asked for later is the one that counts, and it lasts longer: a store's tokens need not grow.
    fn older(&self, messages: &[Message], until: Instant) -> Vec<Lease> {
        let held = messages.iter().filter(|message| self.held.has(message.item));
        let again: HashMap<WorkItemId, i32> = held.map(|message| (message.item, message.epoch)).collect();
        if again.is_empty() {
            return Vec::new();
        }
        let is_older = |holding: &Holding| {
            again.get(&holding.message.item).is_some_and(|epoch| *epoch != holding.message.epoch)
                && holding.until <= until
        };
        self.held.leases(is_older)
    }

    fn settled(&mut self, leases: Vec<Lease>, outcome: Result<SettledBatch>) {
        match outcome {
            Ok(answers) => {
                let aftermath = self.settler.settled(&mut self.held, &leases, &answers.settled);
                self.tally.add(aftermath.tally);
                self.claimer.note_activity();
                aftermath.due.into_iter().for_each(|due| self.claimer.hint(due));
                if aftermath.look_at_once {
                    self.claimer.look_at_once(Instant::now());
                }
                self.inner.joins_ended(&answers.joins);
            }
            Err(error) => {
                self.inner.failed("settle", &error);
                if let Some(refused) = self.settler.failed(&mut self.held, leases, &error) {
                    self.set_aside(refused, error);
                }
            }
        }
    }

    /// The store refuses this outcome, and takes others: its lease is left to run out, and the message comes again.
    fn set_aside(&mut self, lease: Lease, error: Error) {
        let Some(Holding { message, .. }) = self.held.remove(lease) else { return };
        error!(
            message_id = %message.id, topic = %message.topic, store = %self.inner.name, error = ?error,
            "store refused an outcome: the message is delivered again when its lease ends"
        );
        if self.until() == Until::Idle {
            self.failure = Some(error);
        }
    }

    fn renewed(&mut self, leases: &[Lease], asked: Instant, outcome: Result<Vec<Settled>>) {
        match outcome {
            Ok(answers) => {
                let now = Instant::now();
                let renewed = self.leases.renewed(&mut self.held, leases, asked, &answers);
                renewed.lost.into_iter().for_each(|lease| self.lose(lease, now));
                renewed.queued.into_iter().for_each(|(lease, path)| self.executor.enqueue(lease, path));
            }
            Err(error) => {
                self.inner.failed("renew", &error);
                self.leases.failed();
            }
        }
    }

    /// The store has listed the pauses, or has failed to.
    fn learned(&mut self, asked: Instant, outcome: Result<Topics>) {
        let now = Instant::now();
        let learned = self.pauses.learned(asked, outcome);
        for lease in learned.unsure {
            self.admit(lease, now);
        }
        let mut given_back = 0_usize;
        if learned.is_any_paused {
            // A claim that was under way may have brought some since the last time.
            let is_paused = |holding: &Holding| {
                matches!(holding.stage, Stage::Waiting(_))
                    && self.pauses.admission(holding.message.topic.as_str(), now) == Admission::Paused
            };
            let paused = self.held.leases(is_paused);
            given_back = paused.len();
            paused.into_iter().for_each(|lease| self.release(lease));
        }
        if learned.has_changed {
            info!(store = %self.inner.name, given_back, "paused topics have changed");
            // Topics that were paused until now can be claimed.
            self.claimer.note_activity();
            self.claimer.look_at_once(now);
        }
    }

    /// A fresh message has waited for an answer about pauses.
    fn admit(&mut self, lease: Lease, now: Instant) {
        let Some((holding, waiting)) = self.held.waiting(lease) else { return };
        let path = waiting.path();
        match self.pauses.admission(holding.message.topic.as_str(), now) {
            Admission::Paused => self.release(lease),
            Admission::Unknown => {
                let settlement = Settlement::new(lease, Outcome::Release);
                self.settler.decide_all(&mut self.held, settlement, true);
            }
            Admission::Start => {
                self.held.change(lease, |holding| {
                    if let Stage::Waiting(waiting) = &mut holding.stage {
                        waiting.awaits = Awaits::Handler;
                    }
                });
                self.executor.enqueue(lease, path);
            }
        }
    }

    /// Tells the other tenants what this one holds, if that has changed.
    fn tell_held(&mut self) {
        let counts = self.held.counts();
        let is_any = self.claimer.is_claiming() || !self.held.is_empty();
        // Slots bound the room of hot messages.
        let messages = self.held.len().saturating_sub(counts.hot + counts.awaiting_pause_check);
        let held = (is_any, Load { messages, bytes: counts.cold_bytes });
        if self.told_held != held {
            self.told_held = held;
            self.inner.share.holds(is_any, held.1);
        }
    }

    fn woken(&mut self, reasons: Reasons) {
        if reasons.has(Reason::Now) {
            let now = Instant::now();
            // The store may have another way to its database by now: what could not be settled may be.
            self.settler.hurry(now);
            self.claimer.look_at_once(now);
            self.claimer.note_activity();
        } else if reasons.has(Reason::Soon) {
            self.look_soon();
        }
    }

    fn look_soon(&mut self) {
        self.claimer.look_soon(Instant::now());
        self.claimer.note_activity();
    }

    /// A message came by the hot path.
    fn arrived(&mut self, fresh: Fresh) {
        let Fresh { message, slot, leased } = fresh;
        let (now, lease) = (Instant::now(), message.lease());
        count(metrics::HOT_ENQUEUED, &self.inner.name, 1);
        self.claimer.note_activity();
        self.pauses.heard();
        let admission = self.pauses.admission(message.topic.as_str(), now);
        let is_unknown = admission == Admission::Unknown;
        let awaits = if is_unknown { Awaits::PauseCheck } else { Awaits::Handler };
        let until = leased + self.inner.plan.settings.lease;
        let stage = Stage::Waiting(Waiting { awaits, since: now, slot: Some(slot) });
        self.held.insert(Holding { message, until, stage });
        match admission {
            _ if self.is_stopping() => self.release(lease),
            Admission::Start => self.executor.enqueue(lease, Path::Hot),
            Admission::Paused => self.release(lease),
            Admission::Unknown => self.pauses.await_answer(lease),
        }
    }

    /// Lets other workers have a message, or this one later, at no cost.
    fn release(&mut self, lease: Lease) {
        self.settler.decide(&mut self.held, lease, Outcome::Release);
    }

    /// Takes in the deliveries that have ended; whether there were any.
    fn some_ended(&mut self) -> bool {
        let Some(over) = self.executor.ended(&mut self.held) else { return false };
        over.iter().for_each(|_| self.claimer.delivery_ended());
        self.over(over);
        true
    }

    fn over(&mut self, over: Vec<End>) {
        for End { lease, settlement } in over {
            match settlement {
                Some(settlement) => self.settler.decide_all(&mut self.held, settlement, false),
                None => drop(self.held.remove(lease)),
            }
        }
    }

    /// A lease was lost: its message is not this worker's any more.
    fn lose(&mut self, lease: Lease, now: Instant) {
        let Some(holding) = self.held.get(lease) else { return };
        match &holding.stage {
            Stage::Decided(decided) if decided.is_settling => return,
            Stage::Running(running) if running.is_lost => return,
            Stage::Running(_) => {
                let until = now + self.inner.plan.settings.cancel_grace;
                self.executor.lose(&mut self.held, lease, until);
            }
            Stage::Waiting(_) | Stage::Decided(_) => drop(self.held.remove(lease)),
        }
        count(metrics::LOST, &self.inner.name, 1);
        warn!(item = %lease.item, store = %self.inner.name, "lease lost");
    }

    /// By the monotonic clock these leases are over, and it is unknown whether they were renewed: stop, to be safe.
    fn stop_expired(&mut self, now: Instant) {
        let is_expired =
            |holding: &Holding| holding.until <= now && matches!(holding.stage, Stage::Running(_));
        let until = now + self.inner.plan.settings.cancel_grace;
        for lease in self.held.leases(is_expired) {
            self.executor.cancel(&mut self.held, lease, Why::Lost, until);
        }
    }

    fn stop(&mut self, now: Instant) {
        let running = self.held.counts().running;
        if self.inner.share.has_others() {
            debug!(store = %self.inner.name, running, "shutting down");
        } else {
            info!(store = %self.inner.name, running, "shutting down");
        }
        self.closing = Some(Closing::new(now, self.inner.plan.settings.shutdown_grace));
        self.give_back_waiting();
    }

    /// Releases messages that have not been started, for other workers.
    fn give_back_waiting(&mut self) {
        self.pauses.forget();
        if self.held.counts().waiting() > 0 {
            let waiting = self.held.leases(|holding| matches!(holding.stage, Stage::Waiting(_)));
            waiting.into_iter().for_each(|lease| self.release(lease));
        }
    }

    fn is_over(&self, now: Instant, hot_open: bool) -> bool {
        let counts = self.held.counts();
        let is_quiet = counts.running == 0
            && counts.decided == 0
            && counts.waiting() == 0
            && !self.settler.is_settling()
            && !self.claimer.is_claiming();
        match self.closing {
            Some(closing) => (is_quiet && !hot_open) || now >= closing.ends,
            None => {
                let is_idle = self.until() == Until::Idle && self.claimer.found_nothing() && is_quiet;
                self.failure.is_some() || is_idle
            }
        }
    }

    fn until(&self) -> Until {
        if self.inner.draining.load(Ordering::Acquire) { Until::Idle } else { self.until }
    }

    fn is_stopping(&self) -> bool {
        self.closing.is_some()
    }

    fn gauges(&self) {
        let counts = self.held.counts();
        gauge_with(metrics::QUEUE_DEPTH, &self.inner.name, "queue", "hot", counts.hot as u64);
        gauge_with(metrics::QUEUE_DEPTH, &self.inner.name, "queue", "cold", counts.cold as u64);
        gauge(metrics::RUNNING, &self.inner.name, counts.running as u64);
    }
}
