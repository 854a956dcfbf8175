//! Every metric, once: its name, kind, labels and meaning. They go through the `metrics` facade to the recorder that the
//! program has installed; without one they cost next to nothing.
//!
//! Labels have few values: a store's name, a topic's, a kind of outcome. Never an id, a key or anything of a payload.

use std::sync::Arc;
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
    /// Its meaning.
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
    ENQUEUED "posthaste_enqueued_total" "counter" "store, topic"
        "messages published; a transaction that is rolled back afterwards counts, too";
    HOT_ENQUEUED "posthaste_hot_enqueued_total" "counter" "store"
        "messages handed to a handler's queue from memory, right after their commit";
    HOT_DOWNGRADED "posthaste_hot_downgraded_total" "counter" "store"
        "messages left to the cold path because the hot queue was full, or because outcomes could not be settled";
    CLAIMED "posthaste_claimed_total" "counter" "store"
        "messages claimed by the cold path";
    DELIVERED "posthaste_delivered_total" "counter" "store, topic"
        "messages that all their handlers are done with, and that are settled";
    FAILED "posthaste_failed_total" "counter" "store, topic, class"
        "attempts that failed";
    DEAD "posthaste_dead_total" "counter" "store, topic, class"
        "messages given up: by a handler's answer, at the last attempt, or at the limit of an outage";
    REAPED "posthaste_reaped_total" "counter" "store, state"
        "messages taken back because their lease had run out, by what became of them: ready or dead";
    LOST "posthaste_lost_leases_total" "counter" "store"
        "leases that were lost before their message was settled";
    ERRORS "posthaste_errors_total" "counter" "store, operation"
        "calls to the database that failed; they are repeated";
    HANDLER_SECONDS "posthaste_handler_seconds" "histogram" "store, topic"
        "how long the handlers of a message took, together";
    LATENCY_SECONDS "posthaste_latency_seconds" "histogram" "store, topic"
        "how long a message took from when it was due until it was done, or from its beginning if it was not done at the first attempt; by two clocks, the database's and the machine's";
    WAIT_SECONDS "posthaste_memory_wait_seconds" "histogram" "store, path"
        "how long a message waited in memory before its handlers were called, by path: hot or cold";
    QUEUE_DEPTH "posthaste_queue_depth" "gauge" "store, queue"
        "messages waiting in memory, by queue: hot or cold";
    RUNNING "posthaste_running" "gauge" "store"
        "handlers at work";
    MESSAGES "posthaste_messages" "gauge" "store, state"
        "messages in the database by state, counted up to 10,000 each: ready, scheduled, parked, leased, dead";
    OLDEST_SECONDS "posthaste_oldest_ready_seconds" "gauge" "store"
        "how long the oldest message that is ready and due has been due";
    JOINS_ENDED "posthaste_joins_ended_total" "counter" "store, status"
        "joins that came to their end in a call of this process: completed, failed, cancelled or expired; a transaction that is rolled back afterwards counts, too";
    SINK_SECONDS "posthaste_sink_seconds" "histogram" "sink"
        "how long a sink took to answer for a batch";
    SINK_BATCH "posthaste_sink_batch_messages" "histogram" "sink"
        "how many messages a batch for a sink had";
    BREAKER_OPEN "posthaste_breaker_open" "gauge" "sink"
        "whether a sink is down, and messages for it are left alone: 1 or 0";
    CONSUMED "posthaste_consumed_total" "counter" "store, topic"
        "messages from brokers that a consumer acted upon";
    REPEATED "posthaste_repeated_total" "counter" "store, topic"
        "messages from brokers that a consumer had acted upon before";
    CONSUME_FAILED "posthaste_consume_failed_total" "counter" "store, topic, class"
        "messages from brokers that a consumer's handler failed on";
    ALERT "posthaste_alert" "gauge" "store, alert"
        "whether a figure is above its threshold in the settings, 1 or 0: ready, dead, latency, oldest";
    TENANTS "posthaste_tenants" "gauge" "state"
        "tenants by state: running, failing, draining, twin";
    CONNECTIONS "posthaste_tenants_connections" "gauge" "kind"
        "connections of the work in the background over all tenants, by kind: open, or attempted for longer than usual";
    UNHANDLED "posthaste_unhandled" "gauge" "store, topic"
        "ready messages of a topic that has no handler in this process";
}

/// The label that says which store it is about.
fn of(store: &Arc<str>) -> metrics::SharedString {
    Arc::clone(store).into()
}

pub(crate) fn count(name: &'static str, store: &Arc<str>, by: u64) {
    if by > 0 {
        metrics::counter!(name, "store" => of(store)).increment(by);
    }
}

pub(crate) fn count_with(name: &'static str, store: &Arc<str>, label: &'static str, value: &str, by: u64) {
    if by > 0 {
        metrics::counter!(name, "store" => of(store), label => value.to_owned()).increment(by);
    }
}

pub(crate) fn count_failure(
    name: &'static str,
    store: &Arc<str>,
    topic: &str,
    class: crate::outcome::FailureClass,
) {
    let (topic, class) = (topic.to_owned(), class.to_string());
    metrics::counter!(name, "store" => of(store), "topic" => topic, "class" => class).increment(1);
}

/// Times of many messages, one after the other: a histogram is looked up once for all messages that share it. Valid for one turn
/// of a loop, because the recorder may change.
pub(crate) struct Times {
    name: &'static str,
    store: Arc<str>,
    label: &'static str,
    last: Option<(String, metrics::Histogram)>,
}

impl Times {
    pub(crate) fn new(name: &'static str, store: &Arc<str>, label: &'static str) -> Self {
        Self { name, store: Arc::clone(store), label, last: None }
    }

    pub(crate) fn add(&mut self, value: &str, took: Duration) {
        let Self { name, store, label, last } = self;
        let last = match last {
            Some(last) if last.0 == value => last,
            _ => {
                let histogram = metrics::histogram!(*name, "store" => of(store), *label => value.to_owned());
                last.insert((value.to_owned(), histogram))
            }
        };
        last.1.record(took.as_secs_f64());
    }
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn gauge(name: &'static str, store: &Arc<str>, value: u64) {
    metrics::gauge!(name, "store" => of(store)).set(value as f64);
}

#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn gauge_with(
    name: &'static str,
    store: &Arc<str>,
    label: &'static str,
    value: &str,
    amount: u64,
) {
    metrics::gauge!(name, "store" => of(store), label => value.to_owned()).set(amount as f64);
}

/// Records a sink's result for a batch of so many messages.
#[allow(clippy::cast_precision_loss, reason = "a histogram's values are floats")]
pub(crate) fn sent(sink: &str, messages: usize, took: Duration) {
    metrics::histogram!(SINK_SECONDS, "sink" => sink.to_owned()).record(took.as_secs_f64());
    metrics::histogram!(SINK_BATCH, "sink" => sink.to_owned()).record(messages as f64);
}

/// Whether a sink is down.
pub(crate) fn breaker(sink: &str, is_open: bool) {
    metrics::gauge!(BREAKER_OPEN, "sink" => sink.to_owned()).set(f64::from(u8::from(is_open)));
}

/// Figures about all tenants together.
#[allow(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub(crate) fn tenants(name: &'static str, label: &'static str, value: &'static str, amount: usize) {
    metrics::gauge!(name, label => value).set(amount as f64);
}
