//! posthaste's concepts: messages, outcomes, the seams for databases, and the outbox itself.
//!
//! No database and no broker is in this crate's dependency tree. Most programs use the `posthaste` crate, which brings
//! this one and the stores together.

mod alert;
mod clock;
mod commons;
mod dispatch;
mod encryption;
mod error;
mod event;
mod handler;
mod housekeeping;
mod id;
mod inbox;
mod join;
mod message;
mod metrics;
mod order;
mod outbox;
mod outcome;
mod poll;
mod receiver;
mod redact;
mod registry;
mod retry;
mod schedule;
mod settings;
mod shutdown;
mod sink;
pub mod store;
mod tenants;
mod text;
mod topic;
mod trace;
mod why;
pub mod words;

pub use bytes::Bytes;
pub use clock::{Clock, ManualClock, SystemClock};
pub use commons::selection::{DrainFirst, Fair, Place, RoundRobin, Selection};
pub use dispatch::Tally;
pub use encryption::{CannotOpen, Cipher, ENCRYPTION_HEADER, Sealed};
#[cfg(feature = "encryption")]
pub use encryption::{Key, Keyring};
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, IntoMessage};
pub use handler::{
    Answering, Arrival, Cancellation, Delivery, Extract, Handler, HandlerError, HandlerResult, Need, OfEvent,
    Origin, Shared, handled,
};
pub use id::{Lease, MessageId, WorkItemId, WorkerId};
pub use inbox::{Consume, ConsumeFn, Consumer, Disposal, Inbox, MAX_CONSUMER_BYTES, Received, Tries};
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
pub use receiver::{Receiver, ReceiverState};
pub use retry::{DEFAULT_MAX_ATTEMPTS, Delays, ExponentialBackoff, FixedDelay, RetryPolicy};
pub use schedule::Schedule;
pub use settings::{SettingInfo, Settings};
pub use shutdown::{Shutdown, shutdown_signal};
pub use sink::{Batch, Guarded, LogSink, NullSink, Sink, SinkError, SinkOptions, Verdict};
pub use store::admin::{
    Change, Count, Cursor, Filter, Finding, HistoryEntry, Holder, JoinFilter, JoinListing, Listing, LockWait,
    Pause, Record, Severity, Stats, StepListing, StoreAdmin, TopicCount,
};
pub use store::inbox::{InboxEntry, InboxRecord, InboxStore, Once};
pub use store::join::JoinStore;
pub use store::memory::{MemoryStore, MemoryTransaction};
pub use store::{
    Birth, ClaimRequest, Expired, Reaped, Retention, SettledBatch, Store, TransactionalStore, Transactions,
    Turn,
};
pub use tenants::{
    Changes, Discovery, Inboxes, Source, Tenant, TenantInfo, TenantKey, TenantSet, TenantState, Tenants,
    TenantsBuilder, TenantsStats,
};
pub use topic::{Topic, Topics};
pub use trace::{TRACEPARENT, TRACESTATE, TraceContext};
pub use uuid::Uuid;
pub use why::{Blocker, Reason, RouteState, Routes, Why, why, why_at};
