//! Sends outcomes to the store. Outcomes that gather while one settlement is under way leave with the next, and every
//! batch is repeated until the store has answered.
//!
//! An error of the store is never taken for a handler's failure. An outcome is given up in one case only: the store
//! refuses it by itself while it takes others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::{info, warn};

use super::Tally;
use super::held::{Decided, Held, Holding, Stage};
use crate::clock::{Clock as _, SystemClock};
use crate::error::Error;
use crate::id::Lease;
use crate::message::Message;
use crate::metrics::{self, Times, count, count_failure, count_with};
use crate::outbox::Home;
use crate::outcome::{Outcome, Settled, Settlement};

/// The pause after the first settlement that failed; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause between two tries to settle.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause between two tries to settle a message that another session has locked.
const LONGEST_LOCK_PAUSE: Duration = Duration::from_secs(1);
/// How often an outcome may be refused by itself before it is given up.
const MOST_REFUSALS: u32 = 8;
/// A store that refuses so many different outcomes in a row refuses everything: it is down, and none of them is to blame.
const REFUSES_ALL: u32 = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct Settler {
    home: Arc<dyn Home>,
    /// The leases to settle, in this order.
    line: VecDeque<Lease>,
    /// Leases of messages that other sessions of the database have locked, and when to try them again.
    locked: Vec<(Instant, Lease)>,
    /// Whether another message waits for one of them to be settled.
    is_awaited: bool,
    is_settling: bool,
    settled_at: Option<Instant>,
    /// The pause after the last failure; none while settling works.
    pause: Option<Duration>,
    retry_at: Option<Instant>,
    /// How many to settle at a time. Halved when the store refuses a batch, to find the outcome that it refuses.
    batch: usize,
    /// How many different outcomes the store has refused since it took one.
    refused: u32,
}

/// The effects of a settlement.
#[derive(Debug, Default)]
pub(super) struct Aftermath {
    pub(super) tally: Tally,
    /// When messages are due again.
    pub(super) due: Vec<Instant>,
    /// Whether something can be claimed now.
    pub(super) look_at_once: bool,
}

impl Settler {
    pub(super) fn new(home: Arc<dyn Home>) -> Self {
        let batch = home.plan().settings.settle_batch as usize;
        Self {
            home,
            line: VecDeque::new(),
            locked: Vec::new(),
            is_awaited: false,
            is_settling: false,
            settled_at: None,
            pause: None,
            retry_at: None,
            batch,
            refused: 0,
        }
    }

    /// Takes in the outcome of a message, unless its lease was lost meanwhile.
    pub(super) fn decide(&mut self, held: &mut Held, lease: Lease, outcome: Outcome) {
        self.decide_all(held, Settlement::new(lease, outcome), false);
    }

    /// The same, with the receivers that are done, or with a claim to follow.
    pub(super) fn decide_all(&mut self, held: &mut Held, settlement: Settlement, then_look: bool) {
        let lease = settlement.lease;
        let is_held = held.change(lease, |holding| {
            self.is_awaited |= holding.message.key.is_some();
            holding.stage = Stage::Decided(Decided {
                settlement,
                is_settling: false,
                refusals: 0,
                locks_met: 0,
                then_look,
            });
        });
        if is_held {
            self.line.push_back(lease);
        }
    }

    /// Whether outcomes could not be stored, so that nothing more is delivered until they can.
    pub(super) fn is_paused(&self) -> bool {
        self.pause.is_some()
    }

    pub(super) fn is_settling(&self) -> bool {
        self.is_settling
    }

    /// Tries again at once: the store may have found another way to its database.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.retry_at = self.retry_at.map(|at| at.min(now));
    }

    /// The next batch, if it is time for one. Nothing waits for more to gather if there is a hurry.
    pub(super) fn next_batch(
        &mut self,
        held: &mut Held,
        now: Instant,
        hurry: bool,
    ) -> Option<Vec<Settlement>> {
        if held.counts().decided == 0 {
            self.line.clear();
            self.locked.clear();
            if !self.is_settling && self.is_paused() {
                // Every outcome that could not be settled has lost its lease.
                self.works_again();
            }
            return None;
        }
        if self.is_settling || self.next_wakeup(held, hurry).is_some_and(|at| now < at) {
            return None;
        }
        self.line.extend(self.locked.extract_if(.., |(at, _)| *at <= now).map(|(_, lease)| lease));
        let mut settlements = Vec::with_capacity(self.batch.min(held.counts().decided));
        while settlements.len() < self.batch
            && let Some(lease) = self.line.pop_front()
        {
            let mut is_put_back = false;
            held.change(lease, |holding| {
                let Stage::Decided(decided) = &mut holding.stage else { return };
                // An outcome that was refused goes alone, so that it takes no others with it.
                is_put_back = decided.refusals > 0 && !settlements.is_empty();
                if !is_put_back {
                    decided.is_settling = true;
                    settlements.push(decided.settlement.clone());
                }
            });
            if is_put_back {
                self.line.push_front(lease);
                break;
            }
            if settlements.len() == 1 && was_refused(held, lease) {
                break;
            }
        }
        if settlements.is_empty() {
            return None;
        }
        (self.settled_at, self.is_awaited, self.is_settling) = (Some(now), false, true);
        Some(settlements)
    }

    /// When the next batch leaves; none means at once, or never while nothing is to be settled. More outcomes gather soon
    /// after a settlement, but a message of the same key, a drain and a shutdown do not wait for them.
    pub(super) fn next_wakeup(&self, held: &Held, hurry: bool) -> Option<Instant> {
        let decided = held.counts().decided;
        let locked = self.locked.iter().filter(|(_, lease)| held.get(*lease).is_some());
        // A time that has passed would wake the loop again and again while a settlement is under way.
        if self.is_settling || decided == 0 {
            return None;
        }
        let (waiting, unlocked) =
            locked.fold((0, None), |(count, first), (at, _)| (count + 1, earlier(first, *at)));
        let ready = decided - waiting;
        let gathered = ready >= self.batch || hurry || self.is_awaited;
        let interval = self.home.plan().settings.settle_interval;
        let next = self.settled_at.map(|last| last + interval).filter(|_| !gathered);
        let next = match unlocked {
            Some(at) if ready == 0 => Some(at),
            Some(at) => next.map(|next| next.min(at)),
            None => next,
        };
        self.retry_at.max(next)
    }

    /// The store has answered, with one answer for each of these leases.
    pub(super) fn settled(&mut self, held: &mut Held, leases: &[Lease], answers: &[Settled]) -> Aftermath {
        (self.is_settling, self.refused) = (false, 0);
        self.works_again();
        self.batch = (self.batch * 2).min(self.home.plan().settings.settle_batch as usize);
        let is_locked = |(_, answer): &(&Lease, &Settled)| **answer == Settled::Locked;
        leases.iter().zip(answers).filter(is_locked).for_each(|(lease, _)| self.set_aside(held, *lease));
        let mut books = Books::new(&*self.home);
        for (lease, answer) in leases.iter().zip(answers).filter(|pair| !is_locked(pair)) {
            if let Some(Holding { message, stage: Stage::Decided(decided), .. }) = held.remove(*lease) {
                books.enter(&message, &decided, *answer);
            }
        }
        books.close()
    }

    /// Another session has locked this message: its outcome waits, and the others go on.
    fn set_aside(&mut self, held: &mut Held, lease: Lease) {
        let mut locks_met = None;
        held.change(lease, |holding| {
            let Stage::Decided(decided) = &mut holding.stage else { return };
            decided.is_settling = false;
            decided.locks_met += 1;
            locks_met = Some(decided.locks_met);
            if decided.locks_met == 1 {
                let message = &holding.message;
                warn!(
                    message_id = %message.id, topic = message.topic.as_str(), store = %self.home.name(),
                    "message is locked by another session, its settlement waits"
                );
            }
        });
        if let Some(locks_met) = locks_met {
            let pause = (FIRST_PAUSE * 2u32.pow(locks_met.min(8))).min(LONGEST_LOCK_PAUSE);
            self.locked.push((Instant::now() + pause, lease));
        }
    }

    /// These outcomes could not be stored. Returns the lease to forget, if one of them is to blame.
    pub(super) fn failed(&mut self, held: &mut Held, leases: Vec<Lease>, error: &Error) -> Option<Lease> {
        self.is_settling = false;
        let now = Instant::now();
        for lease in &leases {
            held.change(*lease, |holding| {
                if let Stage::Decided(decided) = &mut holding.stage {
                    decided.is_settling = false;
                }
            });
        }
        if error.is_transient() {
            leases.into_iter().rev().for_each(|lease| self.line.push_front(lease));
            self.pause_longer(now);
            return None;
        }
        if let [only] = leases[..] {
            return self.refused_alone(held, only, now);
        }
        // One of them may be to blame. Find it, and let the others through.
        leases.iter().rev().for_each(|lease| self.line.push_front(*lease));
        self.batch = (leases.len() / 2).max(1);
        self.pause.get_or_insert(FIRST_PAUSE);
        self.retry_at = Some(now + FIRST_PAUSE);
        self.home.door().pause(true);
        None
    }

    /// The store has refused this outcome by itself. Returns it if it is to be given up.
    fn refused_alone(&mut self, held: &mut Held, lease: Lease, now: Instant) -> Option<Lease> {
        let mut refusals = 0;
        held.change(lease, |holding| {
            let Stage::Decided(decided) = &mut holding.stage else { return };
            self.refused += u32::from(decided.refusals == 0);
            decided.refusals += u32::from(self.refused < REFUSES_ALL);
            refusals = decided.refusals;
        });
        // Behind the others: the store may take those.
        self.line.push_back(lease);
        if self.refused >= REFUSES_ALL {
            self.pause_longer(now);
        } else {
            self.retry_at = Some(now + FIRST_PAUSE * refusals);
        }
        (refusals >= MOST_REFUSALS).then_some(lease)
    }

    /// A call to the store ended in a panic of posthaste's own: the result of the settlement is unknown.
    pub(super) fn lost_track(&mut self, held: &mut Held) {
        self.is_settling = false;
        let settling =
            |holding: &Holding| matches!(holding.stage, Stage::Decided(Decided { is_settling: true, .. }));
        held.leases(settling).into_iter().for_each(|lease| drop(held.remove(lease)));
    }

    fn pause_longer(&mut self, now: Instant) {
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE));
        self.pause = Some(pause);
        self.retry_at = Some(now + pause.mul_f64(0.75 + 0.5 * fastrand::f64()));
        self.home.door().pause(true);
    }

    fn works_again(&mut self) {
        if self.pause.take().is_some() {
            info!(store = %self.home.name(), "settling works again");
            self.home.door().pause(false);
        }
        self.retry_at = None;
    }
}

fn earlier(first: Option<Instant>, at: Instant) -> Option<Instant> {
    Some(first.map_or(at, |first| first.min(at)))
}

fn was_refused(held: &Held, lease: Lease) -> bool {
    held.get(lease)
        .is_some_and(|holding| matches!(&holding.stage, Stage::Decided(decided) if decided.refusals > 0))
}

/// Counts settled messages.
struct Books<'a> {
    home: &'a dyn Home,
    now: Instant,
    wall: SystemTime,
    times: Times,
    delivered: BTreeMap<String, u64>,
    aftermath: Aftermath,
}

impl<'a> Books<'a> {
    fn new(home: &'a dyn Home) -> Self {
        Self {
            home,
            now: Instant::now(),
            wall: SystemClock.now(),
            times: Times::new(metrics::LATENCY_SECONDS, home.name(), "topic"),
            delivered: BTreeMap::new(),
            aftermath: Aftermath::default(),
        }
    }

    fn enter(&mut self, message: &Message, decided: &Decided, answer: Settled) {
        self.aftermath.look_at_once |= decided.then_look;
        let (topic, outcome) = (message.topic.as_str(), &decided.settlement.outcome);
        // An ack that was sent before may have been applied, and its row deleted.
        let is_acked = *outcome == Outcome::Ack && answer != Settled::Lost;
        if answer != Settled::Applied && !is_acked {
            warn!(message_id = %message.id, topic, store = %self.home.name(), "lease lost before settlement");
            count(metrics::LOST, self.home.name(), 1);
            return;
        }
        let tally = &mut self.aftermath.tally;
        match outcome {
            Outcome::Ack => {
                tally.delivered += 1;
                let took = latency(message, self.wall);
                self.times.add(topic, took);
                self.home.latency().add(took);
                match self.delivered.get_mut(topic) {
                    Some(count) => *count += 1,
                    None => drop(self.delivered.insert(topic.to_owned(), 1)),
                }
            }
            outcome if dies(message, outcome) => {
                tally.dead += 1;
                if let Some(failure) = outcome.failure() {
                    count_failure(metrics::DEAD, self.home.name(), topic, failure.class());
                }
            }
            Outcome::Abandon { .. } => {
                tally.failed += 1;
                self.aftermath.due.push(self.now + outcome.delay());
            }
            Outcome::Defer { .. } => {
                tally.deferred += 1;
                self.aftermath.due.push(self.now + outcome.delay());
            }
            Outcome::Release | Outcome::Fail { .. } => {}
        }
        // The next message of its key can start. And a join may have ended after the waiting message had checked it: then
        // that message is due at once, not after its delay.
        let awaits_join = topic == self.home.plan().settings.join_wait_topic;
        let is_deferred = matches!(outcome, Outcome::Defer { .. });
        self.aftermath.look_at_once |= message.key.is_some() || (is_deferred && awaits_join);
    }

    fn close(self) -> Aftermath {
        for (topic, by) in self.delivered {
            count_with(metrics::DELIVERED, self.home.name(), "topic", &topic, by);
        }
        self.aftermath
    }
}

/// How long a message took since it was due, or since it was created if this was not its first attempt. For people only: it
/// compares the database's clock with this machine's.
fn latency(message: &Message, now: SystemTime) -> Duration {
    let is_first = message.attempts == 0 && message.failing_since.is_none();
    let since = if is_first { message.due_at } else { message.created_at };
    now.duration_since(since).unwrap_or_default()
}

/// Whether this outcome ends a message. For the limit of an outage this is an estimate: the database decides, by its own
/// clock.
pub(super) fn dies(message: &Message, outcome: &Outcome) -> bool {
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
