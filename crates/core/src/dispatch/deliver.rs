//! One message through its receivers: calls them, and decides when they have answered.
//!
//! Handlers are called one after the other, in their order; sinks get the message at the same time. None of them waits for
//! another one's success. All code of users runs here, in the delivery's own task and with panics caught: ciphers, handlers
//! and retry policies. So does all work that grows with the size of a message. Nothing here talks to the store.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{Instrument as _, debug, error, info, info_span};

use super::call::caught;
use super::held::Why;
use super::progress::{Call, Progress};
use super::settler::dies;
use super::together::{self, Delay, Fate, Judgement};
use super::verdict::{self, Ended};
use crate::handler::{Answer, Arrival, HandlerError};
use crate::message::Message;
use crate::metrics::{self, count_failure};
use crate::outbox::Home;
use crate::outcome::{Outcome, Settlement};
use crate::receiver::{Receiver, ReceiverState};
use crate::registry::Registered;
use crate::trace::TraceContext;

/// A message on its way to its receivers.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) message: Arc<Message>,
    pub(super) progress: Arc<Progress>,
    pub(super) home: Arc<dyn Home>,
    pub(super) timeout: Duration,
}

/// Why receivers have not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    TimedOut,
    /// The shutdown, or a lease that may be lost.
    Released,
    /// One of them blocks the thread.
    Stuck,
}

/// A receiver to call.
struct Pending<'a> {
    receiver: &'a Arc<Registered>,
    /// The attempts that it has used up.
    attempts: u32,
}

type Calling<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Delivery {
    /// Calls the receivers, and decides by their answers.
    pub(super) async fn run(self) -> Settlement {
        let message = match self.open().await {
            Ok(message) => message,
            Err(error) => return self.cannot_open(error),
        };
        let (receivers, started) = (self.receivers(), Instant::now());
        self.call_receivers(&message, &receivers).await;
        let cut = match self.progress.why_cancelled() {
            Some(Why::TimedOut) => Cut::TimedOut,
            Some(Why::ShutDown | Why::Lost) | None => Cut::Released,
        };
        self.decide(&message, &receivers, cut, started.elapsed())
    }

    /// Decides about a delivery that was dropped because it timed out.
    pub(super) fn timed_out(self) -> Settlement {
        self.decide(&self.message, &self.receivers(), Cut::TimedOut, self.timeout)
    }

    /// Decides about a delivery that was dropped although it has not timed out. Calls no code of users.
    pub(super) fn released(self) -> Settlement {
        self.decide(&self.message, &self.receivers(), Cut::Released, Duration::ZERO)
    }

    /// Decides about a delivery that blocks its thread. Calls no code of users.
    pub(super) fn stuck(self) -> Settlement {
        self.decide(&self.message, &self.receivers(), Cut::Stuck, self.timeout)
    }

    /// Decides about a delivery that ended without a decision. Calls no code of users.
    pub(super) fn unexplained(self) -> Settlement {
        let outcome = verdict::unexplained(&self.message, self.home.plan());
        let called = self.progress.called();
        let name = called.last().map_or("", |call| call.receiver.name.as_str());
        self.log_failure(&self.message, name, self.message.attempts, &outcome, false);
        self.decided(&self.message, outcome, None)
    }

    /// All receivers of the message, in their order.
    fn receivers(&self) -> Vec<Arc<Registered>> {
        self.home.plan().registry.of(self.message.topic.as_str())
    }

    /// Decrypts the message for its receivers.
    async fn open(&self) -> Result<Arc<Message>, HandlerError> {
        let opened = caught(async { self.home.plan().open(&self.message) }).await;
        match opened {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(failure)) => Err(HandlerError::failed(failure)),
            Err(_) => Err("the cipher panicked".into()),
        }
    }

    fn cannot_open(&self, error: HandlerError) -> Settlement {
        let attempts = self.message.attempts;
        let outcome = self.judge(&self.message, "", attempts, Ended::Answered(Err(error))).outcome;
        self.decided(&self.message, outcome, None)
    }

    /// Calls all receivers that are due.
    async fn call_receivers(&self, message: &Arc<Message>, receivers: &[Arc<Registered>]) {
        let context = TraceContext::of(message).child();
        let span = info_span!(
            "deliver",
            message_id = %message.id,
            topic = %message.topic,
            attempt = message.attempts.saturating_add(1),
            trace_id = %context.trace_hex(),
            span_id = %context.span_hex(),
            store = %self.home.name(),
        );
        let calls = async {
            if let Some(only) = sole(message, receivers) {
                return self.call(message, only, message.attempts).await;
            }
            let pending = pending(message, receivers);
            let (sinks, handlers): (Vec<_>, Vec<_>) =
                pending.iter().partition(|pending| pending.receiver.is_sink());
            let one_by_one = async {
                for Pending { receiver, attempts } in handlers {
                    self.call(message, receiver, *attempts).await;
                }
            };
            let at_once = sinks.into_iter().map(|Pending { receiver, attempts }| {
                Box::pin(self.call(message, receiver, *attempts)) as Calling<'_>
            });
            let calls: Vec<Calling<'_>> =
                std::iter::once(Box::pin(one_by_one) as Calling<'_>).chain(at_once).collect();
            all(calls).await;
        };
        context.scope(calls.instrument(span)).await;
    }

    /// Calls one receiver, which has used up so many attempts, unless the delivery is to stop.
    async fn call(&self, message: &Arc<Message>, receiver: &Arc<Registered>, attempts: u32) {
        if self.progress.is_cancelled() {
            return;
        }
        let arrival = self.arrival(message, attempts);
        // A target of its own: services with thousands of messages a second can leave it out, and keep the span.
        info!(target: "posthaste_core::delivery", handler = %receiver.name, "handler called");
        self.progress.calls(receiver);
        // Inside the future, so that a panic in making the handler's own is caught, too.
        let answer = caught(async { receiver.call(&arrival).await })
            .await
            .unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic)));
        // The answer of a receiver that was cancelled does not count: the reason for the cancellation decides.
        if answer.is_ok() || !self.progress.is_cancelled() {
            let judgement = self.judge(message, &receiver.name, attempts, Ended::Answered(answer));
            self.progress.answered(receiver, judgement);
        }
    }

    /// A receiver's argument: the message with the receiver's own attempts.
    fn arrival(&self, message: &Arc<Message>, attempts: u32) -> Arrival {
        let message = if message.attempts == attempts {
            Arc::clone(message)
        } else {
            Arc::new(Message { attempts, ..Message::clone(message) })
        };
        Arrival {
            message,
            states: Arc::clone(&self.home.plan().states),
            progress: Arc::clone(&self.progress),
            home: Arc::clone(&self.home),
        }
    }

    /// Decides what becomes of a message for one receiver. This asks its retry policy, which is the user's.
    fn judge(&self, message: &Message, name: &str, attempts: u32, ended: Ended) -> Judgement {
        let is_down = matches!(&ended, Ended::Answered(Err(HandlerError(Answer::Down { .. }))));
        let plan = self.home.plan();
        let rules = plan.rules_of(message.topic.as_str());
        let outcome = verdict::outcome(message, attempts, ended, rules, &plan.settings, fastrand::f64());
        self.log_failure(message, name, attempts, &outcome, is_down);
        Judgement { outcome, attempts, is_down }
    }

    /// Decides what becomes of the message, by what its receivers have answered, and by why others have not.
    fn decide(
        &self,
        message: &Message,
        receivers: &[Arc<Registered>],
        cut: Cut,
        elapsed: Duration,
    ) -> Settlement {
        if let Some(only) = sole(message, receivers) {
            return self.decided(message, self.decide_alone(message, only, cut), None);
        }
        let (known, called) = (message.receivers(), self.progress.called());
        let mut is_released = false;
        let mut fates = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            let call = called.iter().find(|call| Arc::ptr_eq(&call.receiver, receiver));
            let is_answered = call.is_some_and(|call| call.judgement.is_some());
            let fate = match together::standing(message, &known, &receiver.name) {
                ReceiverState::Done => Fate::Done,
                ReceiverState::GaveUp { attempts, failure } => {
                    Fate::GaveUp { attempts, failure, is_new: false }
                }
                ReceiverState::Waiting { attempts, delay } if !delay.is_zero() => {
                    Fate::Again { attempts, delay: Delay::For(delay.saturating_sub(elapsed)), failure: None }
                }
                ReceiverState::Waiting { attempts, .. } => {
                    is_released |= cut == Cut::Released && !is_answered;
                    self.fate(message, receiver, attempts, call, cut)
                }
            };
            fates.push((receiver.name.clone(), fate));
        }
        self.decide_together(message, &known, &fates, is_released)
    }

    fn decide_alone(&self, message: &Message, only: &Registered, cut: Cut) -> Outcome {
        let ended = match (self.progress.judgement(), cut) {
            (Some(judgement), _) => return judgement.outcome,
            (None, Cut::Released) => Ended::ShutDown,
            (None, Cut::TimedOut) => self.ended_late(only),
            (None, Cut::Stuck) => {
                let outcome = verdict::stuck(self.timeout);
                self.log_failure(message, &only.name, message.attempts, &outcome, false);
                return outcome;
            }
        };
        self.judge(message, &only.name, message.attempts, ended).outcome
    }

    /// The fate of one of several receivers that was due.
    fn fate(
        &self,
        message: &Message,
        receiver: &Registered,
        attempts: u32,
        call: Option<&Call>,
        cut: Cut,
    ) -> Fate {
        // A receiver that has not begun is not to blame. It begins at once in the next delivery, without the one that is.
        let at_once = Fate::Again { attempts, delay: Delay::For(Duration::ZERO), failure: None };
        let Some(call) = call else { return at_once };
        match (&call.judgement, cut) {
            (Some(judgement), _) => Fate::judged(judgement.clone()),
            (None, Cut::Released) => at_once,
            (None, Cut::TimedOut) => {
                Fate::judged(self.judge(message, &receiver.name, attempts, self.ended_late(receiver)))
            }
            // Sinks do their work elsewhere; they cannot be the one that blocks this task.
            (None, Cut::Stuck) if receiver.is_sink() => at_once,
            (None, Cut::Stuck) => {
                let outcome = verdict::stuck(self.timeout);
                self.log_failure(message, &receiver.name, attempts, &outcome, false);
                Fate::judged(Judgement { outcome, attempts, is_down: false })
            }
        }
    }

    fn ended_late(&self, receiver: &Registered) -> Ended {
        Ended::TimedOut { after: self.timeout, is_outage: receiver.is_outage_if_late() }
    }

    fn decide_together(
        &self,
        message: &Message,
        known: &[Receiver],
        fates: &[(String, Fate)],
        is_released: bool,
    ) -> Settlement {
        let (mut outcome, lines) = together::combine(known, fates, fastrand::f64());
        if is_released {
            outcome = Outcome::Release;
        }
        self.decided(message, outcome, Some(lines).filter(|lines| *lines != message.handled))
    }

    fn decided(&self, message: &Message, outcome: Outcome, handled: Option<Vec<String>>) -> Settlement {
        self.log_death(message, &outcome);
        Settlement { lease: message.lease(), outcome, handled }
    }

    /// Logs and counts the failure of one receiver, if it is one. A sink that is down has said so itself, once.
    fn log_failure(&self, message: &Message, handler: &str, attempts: u32, outcome: &Outcome, is_down: bool) {
        let Some(failure) = outcome.failure() else { return };
        let (topic, class, text) = (message.topic.as_str(), failure.class(), failure.text());
        let (attempt, again_after) = (attempts.saturating_add(1), outcome.delay());
        count_failure(metrics::FAILED, self.home.name(), topic, class);
        if is_down {
            debug!(message_id = %message.id, topic, handler, store = %self.home.name(), "message waits for its sink");
            return;
        }
        error!(
            message_id = %message.id, topic, handler, attempt, class = %class, error = text, ?again_after,
            store = %self.home.name(), "a handler failed"
        );
    }

    /// Logs the death of a message, if this outcome is one.
    fn log_death(&self, message: &Message, outcome: &Outcome) {
        let Some(failure) = outcome.failure().filter(|_| dies(message, outcome)) else { return };
        let attempt = message.attempts.saturating_add(1);
        error!(
            message_id = %message.id, topic = %message.topic, attempt, class = %failure.class(), error = failure.text(),
            store = %self.home.name(), "a message is dead"
        );
    }
}

/// The one receiver of a message, if it never had another one: then the message itself says where that one stands.
fn sole<'a>(message: &Message, receivers: &'a [Arc<Registered>]) -> Option<&'a Arc<Registered>> {
    match receivers {
        [only] if message.handled.is_empty() => Some(only),
        _ => None,
    }
}

/// The receivers that get the message in this delivery.
fn pending<'a>(message: &Message, receivers: &'a [Arc<Registered>]) -> Vec<Pending<'a>> {
    let known = message.receivers();
    let due =
        receivers.iter().filter_map(|receiver| match together::standing(message, &known, &receiver.name) {
            ReceiverState::Waiting { attempts, delay: Duration::ZERO } => {
                Some(Pending { receiver, attempts })
            }
            _ => None,
        });
    due.collect()
}

/// Runs all of these to their end, at the same time.
async fn all(mut calls: Vec<Calling<'_>>) {
    poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
