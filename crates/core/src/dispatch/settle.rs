//! Outcomes on their way to the store: gathered while a settlement is under way, sent together, and repeated until the
//! store has answered.
//!
//! An error of the store's is never taken for a handler's failure, and no outcome is dropped for it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use tracing::{info, warn};

use super::renew::Stage;
use super::{Dispatcher, Reply, Until};
use crate::clock::{Clock as _, SystemClock};
use crate::error::Error;
use crate::message::Message;
use crate::metrics::{self, Times, count, count_failure, count_with};
use crate::outcome::{Outcome, Settled, Settlement};
use crate::store::Store;

/// The longest pause between two tries to settle.
const MOST_SETTLE_PAUSE: Duration = Duration::from_secs(5);

/// An outcome that waits to be settled.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    pub(super) settlement: Settlement,
    pub(super) message: Arc<Message>,
}

impl<S: Store> Dispatcher<S> {
    pub(super) fn release(&mut self, message: Arc<Message>) {
        self.gather(message, Outcome::Release, None);
    }

    pub(super) fn gather(&mut self, message: Arc<Message>, outcome: Outcome, handled: Option<Vec<String>>) {
        let lease = message.lease();
        let Some(held) = self.held.get_mut(&lease) else { return };
        held.stage = Stage::Gathered;
        self.awaited |= message.key.is_some();
        self.gathered.push(Gathered { settlement: Settlement { lease, outcome, handled }, message });
    }

    pub(super) fn settle(&mut self, now: Instant) {
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
        (self.settled_at, self.awaited) = (Some(now), false);
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
            let outcome = inner.call(inner.store.settle(&settlements)).await;
            Reply::Settled { batch, outcome }
        });
    }

    /// When to settle what is gathered, unless that is at once: soon after the last settlement more will have come
    /// together. But what waits behind a message of its key, a drain and a shutdown are not kept waiting.
    pub(super) fn next_settlement(&self) -> Option<Instant> {
        let many = self.gathered.len() >= self.settle_batch;
        let awaited = self.is_stopping()
            || (self.until == Until::Idle && self.running.is_empty() && self.queue.is_empty())
            || self.awaited;
        if many || awaited || self.gathered.is_empty() || self.settling {
            return None;
        }
        self.settled_at.map(|last| last + self.inner.plan.settings.settle_interval)
    }

    pub(super) fn settled(&mut self, batch: &[Gathered], answers: &[Settled]) {
        let (now, wall) = (Instant::now(), SystemClock.now());
        self.settling_works();
        self.settle_batch = (self.settle_batch * 2).min(self.inner.plan.settings.settle_batch as usize);
        self.activity += 1;
        let mut delivered: BTreeMap<&str, u64> = BTreeMap::new();
        let mut times = Times::new(metrics::LATENCY_SECONDS, &self.inner.name, "topic");
        for (gathered, answer) in batch.iter().zip(answers) {
            let Gathered { settlement, message } = gathered;
            self.held.remove(&settlement.lease);
            if self.pauses.was_released(settlement.lease) {
                self.look_at_once(now);
            }
            let topic = message.topic.as_str();
            // An ack that was sent before may have taken place, and its row be gone.
            let acked = settlement.outcome == Outcome::Ack && *answer != Settled::Lost;
            if *answer != Settled::Applied && !acked {
                warn!(message_id = %message.id, topic, store = %self.inner.name, "a lease was lost before its message was settled");
                count(metrics::LOST, &self.inner.name, 1);
                continue;
            }
            match &settlement.outcome {
                Outcome::Ack => {
                    self.tally.delivered += 1;
                    let took = latency(message, wall);
                    times.add(topic, took);
                    self.inner.latency.add(took);
                    *delivered.entry(topic).or_default() += 1;
                }
                outcome if dies(message, outcome) => {
                    self.tally.dead += 1;
                    if let Some(failure) = outcome.failure() {
                        count_failure(metrics::DEAD, &self.inner.name, topic, failure.class());
                    }
                }
                outcome @ Outcome::Abandon { .. } => {
                    self.tally.failed += 1;
                    self.poll.hint(now + outcome.delay());
                }
                outcome @ Outcome::Defer { .. } => {
                    self.tally.deferred += 1;
                    self.poll.hint(now + outcome.delay());
                }
                Outcome::Release | Outcome::Fail { .. } => {}
            }
            // What waited behind it may have its turn now. And a join may have ended after the message that waits for it had
            // looked: then it is due at once, not after its delay.
            let deferred = matches!(settlement.outcome, Outcome::Defer { .. });
            if message.key.is_some() || (deferred && topic == self.inner.plan.settings.join_wait_topic) {
                self.look_at_once(now);
            }
        }
        for (topic, by) in delivered {
            count_with(metrics::DELIVERED, &self.inner.name, "topic", topic, by);
        }
    }

    pub(super) fn settling_works(&mut self) {
        if self.settle_pause.take().is_some() {
            info!(store = %self.inner.name, "settling again");
            self.inner.door.pause(false);
        }
        self.settle_at = None;
    }

    pub(super) fn settling_failed(&mut self, batch: Vec<Gathered>, error: &Error) {
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
}

/// How long a message took from when it was due, or from its beginning if this was not its first attempt. For people: it
/// compares the database's clock with this machine's.
fn latency(message: &Message, now: SystemTime) -> Duration {
    let first = message.attempts == 0 && message.failing_since.is_none();
    let since = if first { message.due_at } else { message.created_at };
    now.duration_since(since).unwrap_or_default()
}

/// Whether this outcome is the end of a message. For the limit of an outage this is an estimate: the database decides, by
/// its own clock.
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
