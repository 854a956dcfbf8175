//! Messages in the hands of their handlers: who may start, who is told to stop, and what is made of their end.
//!
//! A handler is told first, and dropped only if it does not listen. One that blocks its thread cannot be stopped at all; its
//! message is settled without it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};

use super::ends::{End, Ending};
use super::progress::Progress;
use super::queue::Waiting;
use super::renew::Stage;
use super::runners::Start;
use super::settle::dies;
use super::verdict::{Ended, outcome};
use super::{Dispatcher, LAST_GRACE};
use crate::commons::Wish;
use crate::handler::{Arrival, HandlerError};
use crate::id::Lease;
use crate::message::Message;
use crate::metrics::{self, Times, count_failure};
use crate::outbox::Home;
use crate::store::Store;

/// Why a handler was told to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    TimedOut,
    Lost,
    ShutDown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Working,
    Cancelled(Why),
    Dropped(Why),
}

/// A message in the hands of its handlers.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) message: Arc<Message>,
    pub(super) progress: Arc<Progress>,
    pub(super) phase: Phase,
    /// When its phase ends, if the handlers do not end before.
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    pub(super) started: Instant,
}

impl<S: Store> Dispatcher<S> {
    pub(super) fn start(&mut self, now: Instant) {
        let settings = &self.inner.plan.settings;
        let (workers, lease) = (settings.workers as usize, settings.lease);
        let most_gathered = settings.settle_batch as usize;
        if !self.queue.peek().is_some_and(Waiting::runs_alone) {
            // The suspect that the others were waited for has lost its lease meanwhile.
            self.clearing_since = None;
        }
        let was_in_line = std::mem::take(&mut self.is_in_line);
        self.start_all(now, workers, lease, most_gathered);
        self.runners.start(&mut self.starts, &self.ends, workers, now);
        if was_in_line && !self.is_in_line {
            self.inner.share.wants_none();
        }
    }

    fn start_all(&mut self, now: Instant, workers: usize, lease: Duration, most_gathered: usize) {
        let mut times = Times::new(metrics::WAIT_SECONDS, &self.inner.name, "path");
        while let Some(next) = self.queue.peek() {
            let busy = self.running.len() + self.stuck.len() >= workers;
            // What has been delivered and is not settled would be delivered again after a crash: there is a limit to it.
            if busy || self.gathered.len() >= most_gathered || self.settle_pause.is_some() {
                return;
            }
            if self.alone_until.is_some_and(|until| now < until) && !self.running.is_empty() {
                return;
            }
            self.alone_until = None;
            let suspect = next.runs_alone();
            let others = !self.running.is_empty() || self.settling || !self.gathered.is_empty();
            if suspect && others {
                // If it kills the process, it must not take others with it, not even those that are about to be settled;
                // but nor may a slow one keep it waiting.
                let since = *self.clearing_since.get_or_insert(now);
                if now < since + lease {
                    return;
                }
            }
            let until = self.held.get(&next.lease()).map(|held| held.until);
            if until.is_none_or(|until| until <= now + lease / 10) {
                self.clearing_since = None;
                self.renew_at = now;
                self.stale.extend(self.queue.pop());
                continue;
            }
            if !self.inner.share.may_start(Wish { now, lease, is_suspect: suspect }) {
                self.is_in_line = true;
                return;
            }
            self.clearing_since = None;
            let Some(waiting) = self.queue.pop() else { return };
            if suspect {
                let Message { id, topic, lease_losses, .. } = &*waiting.message;
                info!(message_id = %id, %topic, lease_losses, store = %self.inner.name, "a suspect runs alone");
                self.alone_until = Some(now + lease);
            }
            self.launch(waiting, now, &mut times);
        }
    }

    pub(super) fn launch(&mut self, waiting: Waiting, now: Instant, times: &mut Times) {
        let waited = now.duration_since(waiting.since);
        times.add(waiting.path(), waited);
        if waiting.slot.is_none() {
            self.prefetch.waited(waited);
        }
        let message = match self.inner.open(&waiting.message) {
            Ok(message) => message,
            Err(failure) => {
                let ended = Ended::Answered(Err(HandlerError::failed(failure)));
                let progress = Progress::new(&waiting.message.handled);
                self.inner.share.ended();
                self.judge(waiting.message, ended, &progress);
                return;
            }
        };
        let lease = message.lease();
        let progress = Progress::new(&message.handled);
        let arrival = Arrival {
            message: Arc::clone(&message),
            states: Arc::clone(&self.inner.plan.states),
            progress: Arc::clone(&progress),
            home: Arc::clone(&self.inner) as Arc<dyn Home>,
        };
        let handlers = self.inner.plan.registry.of(message.topic.as_str());
        let store = Arc::clone(&self.inner.name);
        let ending = Ending::new(&self.ends, lease);
        self.starts.push(Start { handlers, arrival, store, ending });
        let timeout = self.inner.rules_of(message.topic.as_str()).timeout;
        let deadline = now + timeout;
        self.next_deadline = Some(self.next_deadline.map_or(deadline, |next| next.min(deadline)));
        if let Some(held) = self.held.get_mut(&lease) {
            held.stage = Stage::Running;
        }
        let phase = Phase::Working;
        let running = Running { message, progress, phase, deadline, timeout, started: now };
        self.running.insert(lease, running);
    }

    /// Takes in the deliveries that have ended; whether there were any.
    pub(super) fn some_ended(&mut self) -> bool {
        let ends = self.ends.take();
        if ends.is_empty() {
            return false;
        }
        let mut times = Times::new(metrics::HANDLER_SECONDS, &self.inner.name, "topic");
        ends.into_iter().for_each(|end| self.ended(end, &mut times));
        true
    }

    fn ended(&mut self, end: End, times: &mut Times) {
        let End { lease, answer } = end;
        self.inner.share.ended();
        if self.stuck.remove(&lease) {
            return;
        }
        let Some(running) = self.running.remove(&lease) else { return };
        self.prefetch.ended();
        let took = running.started.elapsed();
        times.add(running.message.topic.as_str(), took);
        let ended = match (answer, running.phase) {
            // Done is done, however late: the store knows whether the lease still holds.
            (Some(Ok(())), _) => Ended::Answered(Ok(())),
            (Some(answer), Phase::Working) => Ended::Answered(answer),
            (None, Phase::Working) => Ended::Answered(Err("the delivery ended before its handlers".into())),
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
        self.judge(running.message, ended, &running.progress);
    }

    /// Decides what becomes of a message, and says so.
    pub(super) fn judge(&mut self, message: Arc<Message>, ended: Ended, progress: &Progress) {
        let topic = message.topic.as_str();
        let rules = self.inner.rules_of(topic);
        let outcome = outcome(&message, ended, rules, &self.inner.plan.settings, fastrand::f64());
        if let Some(failure) = outcome.failure() {
            let attempt = message.attempts.saturating_add(1);
            let handler = progress.last().unwrap_or_default();
            let again_after = outcome.delay();
            error!(
                message_id = %message.id, topic, handler, attempt, class = %failure.class(), error = failure.text(),
                ?again_after, store = %self.inner.name, "a handler failed"
            );
            count_failure(metrics::FAILED, &self.inner.name, topic, failure.class());
            if dies(&message, &outcome) {
                error!(
                    message_id = %message.id, topic, handler, attempt, class = %failure.class(),
                    error = failure.text(), store = %self.inner.name, "a message is dead"
                );
            }
        }
        let handled = Some(progress.names()).filter(|names| *names != message.handled);
        self.gather(message, outcome, handled);
    }

    /// Tells a handler to stop, and gives it some time to do so.
    pub(super) fn cancel(&mut self, lease: Lease, why: Why, now: Instant, grace: Duration) {
        let Some(running) = self.running.get_mut(&lease) else { return };
        if running.phase == Phase::Working {
            running.progress.cancel();
            running.phase = Phase::Cancelled(why);
            running.deadline = now + grace;
            self.next_deadline =
                Some(self.next_deadline.map_or(running.deadline, |next| next.min(running.deadline)));
        }
    }

    pub(super) fn deadlines(&mut self, now: Instant) {
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
                    self.cancel(lease, Why::TimedOut, now, self.inner.plan.settings.cancel_grace);
                }
                Phase::Cancelled(why) => {
                    running.progress.abort();
                    running.phase = Phase::Dropped(why);
                    running.deadline = now + LAST_GRACE / 2;
                }
                Phase::Dropped(why) => self.give_up(lease, why),
            }
        }
        self.next_deadline = self.running.values().map(|running| running.deadline).min();
    }

    /// A handler was dropped and is still there: it blocks its thread, and nothing can end it.
    pub(super) fn give_up(&mut self, lease: Lease, why: Why) {
        let Some(running) = self.running.remove(&lease) else { return };
        error!(
            message_id = %running.message.id, topic = %running.message.topic, store = %self.inner.name,
            "a handler blocks its thread and cannot be stopped"
        );
        self.stuck.insert(lease);
        match why {
            Why::Lost => drop(self.held.remove(&lease)),
            Why::TimedOut => self.judge(running.message, Ended::Stuck(running.timeout), &running.progress),
            Why::ShutDown => self.judge(running.message, Ended::ShutDown, &running.progress),
        }
    }

    /// By the monotonic clock these leases are over, and nobody could tell whether they were renewed: stop, to be safe.
    pub(super) fn expired(&mut self, now: Instant) {
        let expired =
            self.running.keys().filter(|lease| self.held.get(lease).is_some_and(|held| held.until <= now));
        for lease in expired.copied().collect::<Vec<_>>() {
            self.cancel(lease, Why::Lost, now, self.inner.plan.settings.cancel_grace);
        }
    }
}
