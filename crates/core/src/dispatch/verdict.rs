//! What becomes of a message after its handlers: from their answer to an outcome. Pure: the random number is passed in.

use std::sync::Arc;
use std::time::Duration;

use crate::handler::{Answer, HandlerError, HandlerResult};
use crate::message::Message;
use crate::outbox::Plan;
use crate::outcome::{Failure, FailureClass, Outcome};
use crate::redact::redact;
use crate::retry::{ExponentialBackoff, RetryPolicy, delay_of};
use crate::settings::{Settings, show_duration};

/// How a delivery ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The handlers answered.
    Answered(HandlerResult),
    /// They were dropped because they timed out.
    TimedOut {
        after: Duration,
        /// Whether they stand for something that others need, too: a sink, a database. Then it is an outage.
        is_outage: bool,
    },
    /// They were dropped, or stopped, because the outbox shuts down.
    ShutDown,
}

/// Rules by topic.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) retry: Arc<dyn RetryPolicy>,
    pub(crate) max_attempts: u32,
    pub(crate) timeout: Duration,
}

/// The outcome for a message, or for one of its receivers, whose delivery ended so after this many failed attempts.
pub(crate) fn outcome(
    message: &Message,
    attempts: u32,
    ended: Ended,
    rules: &Rules,
    settings: &Settings,
    random: f64,
) -> Outcome {
    let answer = match ended {
        Ended::Answered(Ok(())) => return Outcome::Ack,
        Ended::ShutDown => return Outcome::Release,
        Ended::Answered(Err(HandlerError(answer))) => answer,
        Ended::TimedOut { after, is_outage } => {
            let text = format!("the handler took longer than {}", show_duration(after));
            let class = if is_outage { FailureClass::Infrastructure } else { FailureClass::Business };
            Answer::Retry { failure: Failure::new(class, text), after: None }
        }
    };
    let (failure, after) = match answer {
        Answer::Defer(delay) => return Outcome::Defer { delay },
        Answer::Dead(failure) => return Outcome::Fail { failure: redacted(&failure, message) },
        Answer::Retry { failure, after } => (failure, after),
        Answer::Down { failure, pause } => (failure, Some(pause)),
    };
    let (policy_delay, max_age) = match failure.class() {
        FailureClass::Infrastructure => {
            // What waits for a join may wait for days, and meet more than one outage in that time: being deferred between
            // them does not break the row of failures, so the limit would end the second one at once.
            let limit = settings.outage_limit.filter(|_| message.topic.as_str() != settings.join_wait_topic);
            (outage_delay(message, rules, random), limit)
        }
        FailureClass::Unroutable => {
            (settings.unroutable_delay.mul_f64(0.5 + random), settings.unroutable_limit)
        }
        _ => (delay_of(&*rules.retry, attempts.saturating_add(1), random), None),
    };
    Outcome::Abandon {
        delay: after.unwrap_or(policy_delay),
        failure: redacted(&failure, message),
        max_attempts: rules.max_attempts,
        max_age,
    }
}

/// The outcome for a handler that blocks its thread: every further attempt would cost a thread.
pub(super) fn stuck(after: Duration) -> Outcome {
    let text = format!("the handler blocked its thread for longer than {}", show_duration(after));
    Outcome::Fail { failure: Failure::permanent(text) }
}

/// The outcome for a delivery that ended without one: a defect of posthaste, or of a runtime that is shutting down. Its
/// retry policy is not asked.
pub(super) fn unexplained(message: &Message, plan: &Plan) -> Outcome {
    let attempt = message.attempts.saturating_add(1);
    Outcome::Abandon {
        delay: ExponentialBackoff::default().delay(attempt, 0.5),
        failure: Failure::business("the delivery ended before its handlers"),
        max_attempts: plan.rules_of(message.topic.as_str()).max_attempts,
        max_age: None,
    }
}

/// No attempts are counted during an outage, so the delay follows from how long it has lasted: as if every delay of the
/// policy since then had been an attempt.
fn outage_delay(message: &Message, rules: &Rules, random: f64) -> Duration {
    const MOST: u32 = 64;
    let since = message.failing_since.unwrap_or(message.due_at);
    let lasted = message.due_at.duration_since(since).unwrap_or_default();
    let mut attempt = 1;
    let mut elapsed = delay_of(&*rules.retry, attempt, 0.5);
    while elapsed <= lasted && attempt < MOST {
        attempt += 1;
        elapsed += delay_of(&*rules.retry, attempt, 0.5);
    }
    delay_of(&*rules.retry, attempt, random)
}

fn redacted(failure: &Failure, message: &Message) -> Failure {
    failure.map_text(|text| redact(text, message))
}
