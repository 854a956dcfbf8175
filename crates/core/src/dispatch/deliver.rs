//! One message through its handlers: in their order, only those that are not done yet; and what is decided then.
//!
//! All code of users runs here, in the delivery's own task and with panics caught: ciphers, handlers and retry policies. So
//! does all work that grows with the size of a message. Nothing here talks to the store.

use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument as _, error, info, info_span};

use super::call::caught;
use super::held::Why;
use super::progress::Progress;
use super::settler::dies;
use super::verdict::{self, Ended};
use crate::handler::{Arrival, HandlerError, HandlerResult};
use crate::message::Message;
use crate::metrics::{self, count_failure};
use crate::outbox::Home;
use crate::outcome::Outcome;
use crate::trace::TraceContext;

/// A message on its way to its handlers.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) message: Arc<Message>,
    pub(super) progress: Arc<Progress>,
    pub(super) home: Arc<dyn Home>,
    pub(super) timeout: Duration,
}

/// What becomes of a message.
#[derive(Debug)]
pub(super) struct Decision {
    pub(super) outcome: Outcome,
    /// The handlers that are done, if that has changed.
    pub(super) handled: Option<Vec<String>>,
}

impl Decision {
    /// This outcome for a message whose delivery came this far.
    pub(super) fn new(outcome: Outcome, message: &Message, progress: &Progress) -> Self {
        Self { outcome, handled: Some(progress.names()).filter(|names| *names != message.handled) }
    }
}

impl Delivery {
    /// Calls the handlers, and decides by their answers.
    pub(super) async fn run(self) -> Decision {
        let (message, answer) = match self.open().await {
            Ok(message) => (Arc::clone(&message), self.call_handlers(message).await),
            Err(error) => (Arc::clone(&self.message), Err(error)),
        };
        let ended = match (answer, self.progress.why_cancelled()) {
            (Ok(()), _) => Ended::Answered(Ok(())),
            (answer, None) => Ended::Answered(answer),
            (_, Some(Why::TimedOut)) => Ended::TimedOut(self.timeout),
            (_, Some(Why::ShutDown | Why::Lost)) => Ended::ShutDown,
        };
        self.decide(&message, ended)
    }

    /// Decides about a delivery that was dropped because it took too long.
    pub(super) fn timed_out(self) -> Decision {
        self.decide(&self.message, Ended::TimedOut(self.timeout))
    }

    /// Decrypts the message for its handlers.
    async fn open(&self) -> Result<Arc<Message>, HandlerError> {
        let opened = caught(async { self.home.plan().open(&self.message) }).await;
        match opened {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(failure)) => Err(HandlerError::failed(failure)),
            Err(_) => Err("the cipher panicked".into()),
        }
    }

    /// Calls the handlers, one after the other, until one is not done.
    async fn call_handlers(&self, message: Arc<Message>) -> HandlerResult {
        let context = TraceContext::of(&message).child();
        let span = info_span!(
            "deliver",
            message_id = %message.id,
            topic = %message.topic,
            attempt = message.attempts.saturating_add(1),
            trace_id = %context.trace_hex(),
            span_id = %context.span_hex(),
            store = %self.home.name(),
        );
        let plan = self.home.plan();
        let handlers = plan.registry.of(message.topic.as_str());
        let has_many = handlers.len() > 1;
        let progress = &self.progress;
        let arrival = Arrival {
            message,
            states: Arc::clone(&plan.states),
            progress: Arc::clone(progress),
            home: Arc::clone(&self.home),
        };
        let calls = async {
            for handler in handlers {
                if progress.is_done(&handler) {
                    continue;
                }
                if progress.is_cancelled() {
                    // Nothing more begins. The reason decides what follows.
                    return Err(HandlerError::defer(Duration::ZERO));
                }
                // A target of its own: services with thousands of messages a second can leave it out, and keep the span.
                info!(target: "posthaste_core::delivery", handler = %handler.name, "handler called");
                progress.calls(&handler);
                // Inside the future, so that a panic in making the handler's own is caught, too.
                caught(async { handler.call(&arrival).await })
                    .await
                    .unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic)))?;
                // With one handler, the ack says it all.
                if has_many {
                    progress.done(&handler);
                }
            }
            Ok(())
        };
        context.scope(calls.instrument(span)).await
    }

    /// Decides what becomes of the message.
    fn decide(&self, message: &Message, ended: Ended) -> Decision {
        let plan = self.home.plan();
        let rules = plan.rules_of(message.topic.as_str());
        let outcome = verdict::outcome(message, ended, rules, &plan.settings, fastrand::f64());
        log_failure(&*self.home, message, &self.progress, &outcome);
        Decision::new(outcome, message, &self.progress)
    }
}

/// Logs and counts the failure of a delivery, if it is one.
pub(super) fn log_failure(home: &dyn Home, message: &Message, progress: &Progress, outcome: &Outcome) {
    let Some(failure) = outcome.failure() else { return };
    let (topic, class, text) = (message.topic.as_str(), failure.class(), failure.text());
    let attempt = message.attempts.saturating_add(1);
    let handler = progress.last().unwrap_or_default();
    let again_after = outcome.delay();
    error!(
        message_id = %message.id, topic, handler, attempt, class = %class, error = text, ?again_after,
        store = %home.name(), "a handler failed"
    );
    count_failure(metrics::FAILED, home.name(), topic, class);
    if dies(message, outcome) {
        error!(
            message_id = %message.id, topic, handler, attempt, class = %class, error = text, store = %home.name(),
            "a message is dead"
        );
    }
}
