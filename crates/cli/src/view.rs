//! What programs get to see, from the commands' `--json` and from the HTTP API alike: one shape for each thing.
//!
//! Payloads and headers are shown only on request, and only to callers with the right to see them.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use posthaste::{Count, HistoryEntry, Join, Pause, Receiver, ReceiverState, Record, Stats, Step};
use serde::Serialize;

/// A time as text: RFC 3339, in UTC, to the microsecond.
pub(crate) fn time(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        Ok(time) => format!("{time:.6}"),
        // Beyond the year 9999: an infinity of some database's.
        Err(_) => "9999-12-31T23:59:59.999999Z".to_owned(),
    }
}

/// A number of messages; `exact` is false for "at least so many".
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct CountView {
    pub(crate) value: u64,
    pub(crate) exact: bool,
}

impl From<Count> for CountView {
    fn from(count: Count) -> Self {
        Self { value: count.value, exact: count.exact }
    }
}

/// How a queue is.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct StatsView {
    /// Due, and waiting for a worker.
    pub(crate) ready: CountView,
    /// Due later: scheduled, or waiting for the next attempt.
    pub(crate) scheduled: CountView,
    /// Of the scheduled ones: those that wait for something that is down, or for a route.
    pub(crate) failing: CountView,
    /// Set aside behind a dead message of their key.
    pub(crate) parked: CountView,
    /// Owned by workers.
    pub(crate) leased: CountView,
    /// Delivered, and still kept.
    pub(crate) done: CountView,
    /// Given up.
    pub(crate) dead: CountView,
    /// How long the oldest one that is ready and due has been due.
    pub(crate) oldest_ready_seconds: Option<f64>,
    /// For how long the first of those that are failing has failed without a break.
    pub(crate) oldest_failing_seconds: Option<f64>,
    /// The same by topic, for every state but done.
    pub(crate) topics: Vec<TopicView>,
    /// Whether every topic is among them. False if a state has more messages than are counted: then others may be missing.
    pub(crate) topics_complete: bool,
}

/// Whether the figures by topic have every topic: those of a state with too many messages are of the first of them.
pub(crate) fn topics_are_complete(stats: &Stats) -> bool {
    [stats.ready, stats.scheduled, stats.parked, stats.leased, stats.dead].iter().all(|count| count.exact)
}

/// How many messages of one topic are in one state.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct TopicView {
    pub(crate) topic: String,
    pub(crate) state: String,
    pub(crate) count: CountView,
}

impl From<&Stats> for StatsView {
    fn from(stats: &Stats) -> Self {
        let topics = stats.topics.iter().map(|topic| TopicView {
            topic: topic.topic.clone(),
            state: topic.state.to_string(),
            count: topic.count.into(),
        });
        Self {
            ready: stats.ready.into(),
            scheduled: stats.scheduled.into(),
            failing: stats.failing.into(),
            parked: stats.parked.into(),
            leased: stats.leased.into(),
            done: stats.done.into(),
            dead: stats.dead.into(),
            oldest_ready_seconds: stats.oldest_ready.as_ref().map(Duration::as_secs_f64),
            oldest_failing_seconds: stats.oldest_failing.as_ref().map(Duration::as_secs_f64),
            topics: topics.collect(),
            topics_complete: topics_are_complete(stats),
        }
    }
}

/// How far one handler or sink has come with a message.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct ReceiverView {
    /// The handler's name, or `sink` and the sink's name.
    pub(crate) name: String,
    /// `done`, `waiting` or `gave up`.
    pub(crate) state: &'static str,
    /// The attempts that it has used up.
    pub(crate) attempts: Option<u32>,
    /// Why it gave up.
    pub(crate) error: Option<String>,
}

impl From<Receiver> for ReceiverView {
    fn from(receiver: Receiver) -> Self {
        let (state, attempts, error) = match receiver.state {
            ReceiverState::Waiting { attempts, .. } => ("waiting", Some(attempts), None),
            ReceiverState::GaveUp { attempts, failure } => {
                ("gave up", Some(attempts), Some(failure.text().to_owned()))
            }
            _ => ("done", None, None),
        };
        Self { name: receiver.name, state, attempts, error }
    }
}

/// A message, with everything that is stored about it.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct MessageView {
    pub(crate) id: String,
    pub(crate) topic: String,
    /// `ready`, `leased`, `done` or `dead`.
    pub(crate) state: String,
    /// Whether it is ready, but set aside behind a dead message of its key.
    pub(crate) parked: bool,
    pub(crate) key: Option<String>,
    /// What becomes of its key when it dies: `block`, `park` or `skip`.
    pub(crate) order: String,
    pub(crate) priority: i16,
    pub(crate) attempts: u32,
    pub(crate) lease_losses: u32,
    pub(crate) created_at: String,
    pub(crate) occurred_at: String,
    /// None for one that is parked.
    pub(crate) due_at: Option<String>,
    pub(crate) expires_at: Option<String>,
    pub(crate) failing_since: Option<String>,
    pub(crate) leased_until: Option<String>,
    pub(crate) worker: Option<String>,
    pub(crate) done_at: Option<String>,
    pub(crate) done_by: Option<String>,
    /// The class of its last failure.
    pub(crate) error_class: Option<String>,
    /// The text of its last failure.
    pub(crate) last_error: Option<String>,
    /// How far its handlers and sinks have come, if it has several. One that is not listed has not had it.
    pub(crate) receivers: Vec<ReceiverView>,
    pub(crate) correlation_id: Option<String>,
    pub(crate) aggregate_type: Option<String>,
    pub(crate) aggregate_id: Option<String>,
    pub(crate) tenant_id: Option<String>,
    pub(crate) content_type: String,
    pub(crate) payload_bytes: usize,
    /// Only where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<ContentView>,
}

/// What a message carries.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct ContentView {
    pub(crate) headers: std::collections::BTreeMap<String, String>,
    /// The payload as text, if it is UTF-8.
    pub(crate) text: Option<String>,
    /// The payload in base64, if it is not.
    pub(crate) base64: Option<String>,
}

impl MessageView {
    /// This message, without what it carries.
    pub(crate) fn new(record: &Record) -> Self {
        let message = &record.message;
        Self {
            id: message.id.to_string(),
            topic: message.topic.to_string(),
            state: record.state.to_string(),
            parked: record.parked,
            key: message.key.clone(),
            order: message.order.to_string(),
            priority: message.priority,
            attempts: message.attempts,
            lease_losses: message.lease_losses,
            created_at: time(message.created_at),
            occurred_at: time(message.occurred_at),
            due_at: (!record.parked).then(|| time(message.due_at)),
            expires_at: message.expires_at.map(time),
            failing_since: message.failing_since.map(time),
            leased_until: record.leased_until.map(time),
            worker: record.worker.as_ref().map(ToString::to_string),
            done_at: record.done_at.map(time),
            done_by: record.done_by.as_ref().map(ToString::to_string),
            error_class: record.error_class.map(|class| class.to_string()),
            last_error: record.last_error.clone(),
            receivers: message.receivers().into_iter().map(ReceiverView::from).collect(),
            correlation_id: message.correlation_id.clone(),
            aggregate_type: message.aggregate_type.clone(),
            aggregate_id: message.aggregate_id.clone(),
            tenant_id: message.tenant_id.clone(),
            content_type: message.content_type.clone(),
            payload_bytes: message.payload.len(),
            content: None,
        }
    }

    /// And what it carries.
    pub(crate) fn with_content(record: &Record) -> Self {
        let text = std::str::from_utf8(&record.message.payload).ok().map(str::to_owned);
        let base64 = text.is_none().then(|| STANDARD.encode(&record.message.payload));
        let headers =
            record.message.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
        Self { content: Some(ContentView { headers, text, base64 }), ..Self::new(record) }
    }
}

/// What an operator did to a message, and what it was like before.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct HistoryView {
    pub(crate) at: String,
    pub(crate) action: String,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) attempts: u32,
    pub(crate) lease_losses: u32,
    pub(crate) last_error: Option<String>,
}

impl From<&HistoryEntry> for HistoryView {
    fn from(entry: &HistoryEntry) -> Self {
        Self {
            at: time(entry.at),
            action: entry.action.clone(),
            by: entry.by.clone(),
            why: entry.why.clone(),
            attempts: entry.attempts,
            lease_losses: entry.lease_losses,
            last_error: entry.last_error.clone(),
        }
    }
}

/// Topics that workers do not claim until they are resumed.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct PauseView {
    pub(crate) topics: String,
    pub(crate) by: String,
    pub(crate) why: String,
    pub(crate) since: String,
}

impl From<&Pause> for PauseView {
    fn from(pause: &Pause) -> Self {
        Self {
            topics: pause.topics.clone(),
            by: pause.by.clone(),
            why: pause.why.clone(),
            since: time(pause.since),
        }
    }
}

/// A join, and its progress.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct JoinView {
    pub(crate) id: String,
    pub(crate) grouping_key: Option<String>,
    pub(crate) status: String,
    pub(crate) expected_steps: u32,
    pub(crate) attached_steps: u32,
    pub(crate) completed_steps: u32,
    pub(crate) failed_steps: u32,
    pub(crate) created_at: String,
    pub(crate) ended_at: Option<String>,
    pub(crate) expires_at: Option<String>,
}

impl From<&Join> for JoinView {
    fn from(join: &Join) -> Self {
        Self {
            id: join.id.to_string(),
            grouping_key: join.grouping_key.clone(),
            status: join.status.to_string(),
            expected_steps: join.expected_steps,
            attached_steps: join.attached_steps,
            completed_steps: join.completed_steps,
            failed_steps: join.failed_steps,
            created_at: time(join.created_at),
            ended_at: join.ended_at.map(time),
            expires_at: join.expires_at.map(time),
        }
    }
}

/// A step of a join.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "relay", derive(utoipa::ToSchema))]
pub(crate) struct StepView {
    pub(crate) message: String,
    pub(crate) status: String,
    pub(crate) updated_at: String,
}

impl From<&Step> for StepView {
    fn from(step: &Step) -> Self {
        Self {
            message: step.message.to_string(),
            status: step.status.to_string(),
            updated_at: time(step.updated_at),
        }
    }
}
