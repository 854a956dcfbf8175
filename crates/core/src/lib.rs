//! posthaste's concepts: messages, outcomes, the seams for databases, and the outbox itself.
//!
//! No database and no broker is in this crate's dependency tree. Most programs use the `posthaste` crate, which brings
//! this one and the stores together.

mod clock;
mod dispatch;
mod error;
mod event;
mod handler;
mod housekeeping;
mod id;
mod join;
mod message;
mod metrics;
mod order;
mod outbox;
mod outcome;
mod poll;
mod redact;
mod registry;
mod retry;
mod schedule;
mod settings;
mod shutdown;
pub mod store;
mod text;
mod topic;
mod trace;

pub use bytes::Bytes;
pub use clock::{Clock, ManualClock, SystemClock};
pub use dispatch::Tally;
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, IntoMessage};
pub use handler::{
    Answering, Arrival, Cancellation, Delivery, Extract, Handler, HandlerError, HandlerResult, Need, OfEvent,
    Shared, handled,
};
pub use id::{Lease, MessageId, WorkItemId, WorkerId};
pub use join::{
    Attached, DEFAULT_WAIT_TOPIC, EndedJoin, Join, JoinBuilder, JoinId, JoinStatus, JoinWait, Look,
    MAX_METADATA_BYTES, NewJoin, Reported, StartedJoin, Step, StepEnd, StepStatus, join_is_over, not_a_step,
    too_many_steps, unknown_join, unknown_step,
};
pub use message::{
    DEFAULT_MAX_PAYLOAD_BYTES, Enqueued, Headers, JSON, MAX_CONTENT_TYPE_BYTES, MAX_HEADER_BYTES,
    MAX_NAME_BYTES, Message, MessageBuilder, NewMessage, OCTET_STREAM, When, decode_handled, decode_headers,
    encode_headers,
};
pub use metrics::{METRICS, MetricInfo};
pub use order::OrderPolicy;
pub use outbox::{Outbox, OutboxBuilder, OutboxTransaction, Policy};
pub use outcome::{
    Failure, FailureClass, MAX_ERROR_BYTES, MAX_LEASE_LOSSES, Outcome, Settled, Settlement, State,
};
pub use retry::{DEFAULT_MAX_ATTEMPTS, Delays, ExponentialBackoff, FixedDelay, RetryPolicy};
pub use schedule::Schedule;
pub use settings::{SettingInfo, Settings};
pub use shutdown::{Shutdown, shutdown_signal};
pub use store::admin::{
    Change, Count, Cursor, Filter, HistoryEntry, JoinFilter, JoinListing, Listing, Record, Stats,
    StepListing, StoreAdmin, TopicCount,
};
pub use store::join::JoinStore;
pub use store::memory::{MemoryStore, MemoryTransaction};
pub use store::{
    Birth, ClaimRequest, Expired, Reaped, Retention, SettledBatch, Store, TransactionalStore, Transactions,
    Turn,
};
pub use topic::{Topic, Topics};
pub use trace::{TRACEPARENT, TRACESTATE, TraceContext};
pub use uuid::Uuid;
