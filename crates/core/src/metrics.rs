//! Every metric, once: its name, kind, labels and meaning. They go through the `metrics` facade to whatever recorder the
//! program has installed; without one they cost next to nothing.
//!
//! Labels have few values: a topic's name, a kind of outcome. Never an id, a key or anything of a payload.

use std::time::Duration;

/// A metric, as the documentation shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricInfo {
    /// Its name.
    pub name: &'static str,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels.
    pub labels: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

macro_rules! metrics {
    ($($constant:ident $name:literal $kind:literal $labels:literal $meaning:literal;)*) => {
        $(pub(crate) const $constant: &str = $name;)*

        /// Every metric, for documentation and dashboards.
        pub const METRICS: &[MetricInfo] =
            &[$(MetricInfo { name: $name, kind: $kind, labels: $labels, meaning: $meaning },)*];
    };
}

metrics! {
    ENQUEUED "posthaste_enqueued_total" "counter" "topic"
        "messages published; a transaction that is rolled back afterwards counts, too";
    HOT_ENQUEUED "posthaste_hot_enqueued_total" "counter" ""
        "messages handed to a handler's queue from memory, right after their commit";
    HOT_DOWNGRADED "posthaste_hot_downgraded_total" "counter" ""
        "messages left to the cold path because the hot queue was full, or because outcomes could not be settled";
    CLAIMED "posthaste_claimed_total" "counter" ""
        "messages claimed by the cold path";
    DELIVERED "posthaste_delivered_total" "counter" "topic"
        "messages that all their handlers are done with, and that are settled";
    FAILED "posthaste_failed_total" "counter" "topic, class"
        "attempts that failed";
    DEAD "posthaste_dead_total" "counter" "topic, class"
        "messages given up: by a handler's answer, at the last attempt, or at the limit of an outage";
    REAPED "posthaste_reaped_total" "counter" "state"
        "messages taken back because their lease had run out, by what became of them: ready or dead";
    LOST "posthaste_lost_leases_total" "counter" ""
        "leases that were lost before their message was settled";
    ERRORS "posthaste_errors_total" "counter" "operation"
        "calls to the database that failed; they are repeated";
    HANDLER_SECONDS "posthaste_handler_seconds" "histogram" "topic"
        "how long the handlers of a message took, together";
    WAIT_SECONDS "posthaste_memory_wait_seconds" "histogram" "path"
        "how long a message waited in memory before its handlers were called, by path: hot or cold";
    QUEUE_DEPTH "posthaste_queue_depth" "gauge" "queue"
        "messages waiting in memory, by queue: hot or cold";
    RUNNING "posthaste_running" "gauge" ""
        "handlers at work";
    MESSAGES "posthaste_messages" "gauge" "state"
        "messages in the database by state, counted up to 10,000 each: ready, scheduled, parked, leased, dead";
    OLDEST_SECONDS "posthaste_oldest_ready_seconds" "gauge" ""
        "how long the oldest message that is ready and due has been due";
    JOINS_ENDED "posthaste_joins_ended_total" "counter" "status"
        "joins that came to their end in a call of this process: completed, failed, cancelled or expired; a transaction that is rolled back afterwards counts, too";
    UNHANDLED "posthaste_unhandled" "gauge" "topic"
        "ready messages of a topic that has no handler in this process";
}

pub(crate) fn count(name: &'static str, by: u64) {
    if by > 0 {
        metrics::counter!(name).increment(by);
    }
}

pub(crate) fn count_with(name: &'static str, label: &'static str, value: &str, by: u64) {
    if by > 0 {
        metrics::counter!(name, label => value.to_owned()).increment(by);
    }
}

pub(crate) fn count_failure(name: &'static str, topic: &str, class: crate::outcome::FailureClass) {
    metrics::counter!(name, "topic" => topic.to_owned(), "class" => class.to_string()).increment(1);
}

pub(crate) fn time(name: &'static str, label: &'static str, value: &str, took: Duration) {
    metrics::histogram!(name, label => value.to_owned()).record(took.as_secs_f64());
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn gauge(name: &'static str, value: u64) {
    metrics::gauge!(name).set(value as f64);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn gauge_with(name: &'static str, label: &'static str, of: &str, value: u64) {
    metrics::gauge!(name, label => of.to_owned()).set(value as f64);
}
