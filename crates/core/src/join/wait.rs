//! The message that waits for a join: it checks the join and sends the continuation when the join has ended.
//!
//! Waiting costs no attempt, however long it takes: the message is deferred, and the transaction that ends the join makes
//! it due. The continuation's id is derived from the join and the waiting message, so that there is one, however often it is
//! sent.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tracing::{debug, info, warn};

use super::{EndedJoin, JoinId, JoinStatus, Look};
use crate::error::{Error, ErrorKind, Result};
use crate::event::IntoMessage;
use crate::handler::{HandlerError, HandlerResult};
use crate::id::MessageId;
use crate::message::{Headers, Message, NewMessage, When};
use crate::order::OrderPolicy;
use crate::outbox::Inner;
use crate::store::Store;

/// The shortest time after which a message checks a join again whose deadline has passed while others hold it.
const SOONEST: Duration = Duration::from_millis(20);

/// Which continuation is sent when a join has ended.
///
/// | the join | what is sent |
/// |---|---|
/// | completed | `on_complete` |
/// | failed: a step failed for good | `on_fail`, or `on_complete` if failed steps do not matter |
/// | expired: its deadline passed | `on_fail` |
/// | cancelled | nothing |
///
/// ```
/// use posthaste_core::{JoinWait, NewMessage};
///
/// let strict = JoinWait::on_complete(NewMessage::bytes("etl.transform", ""))
///     .on_fail(NewMessage::bytes("etl.extract.failed", ""));
/// let tolerant = JoinWait::on_complete(NewMessage::bytes("report.assemble", "")).fail_if_any_step_failed(false);
/// # let _ = (strict, tolerant);
/// ```
#[must_use = "it does nothing until it is given to a join"]
#[derive(Debug)]
pub struct JoinWait {
    pub(crate) on_complete: Result<NewMessage>,
    pub(crate) on_fail: Option<Result<NewMessage>>,
    pub(crate) fail_if_any_step_failed: bool,
}

impl JoinWait {
    /// Sends this message when the join has completed. Its id is not kept: a continuation has one that is derived from the
    /// join.
    pub fn on_complete(message: impl IntoMessage) -> Self {
        Self { on_complete: message.into_message(), on_fail: None, fail_if_any_step_failed: true }
    }

    /// Sends this message when the join has failed or expired. Default: nothing is sent then.
    pub fn on_fail(mut self, message: impl IntoMessage) -> Self {
        self.on_fail = Some(message.into_message());
        self
    }

    /// What to send for a join that has ended with at least one failed step: `on_fail` (true), or `on_complete` (false).
    /// Default: true. The join ends when all its steps have, either way.
    pub fn fail_if_any_step_failed(mut self, fail: bool) -> Self {
        self.fail_if_any_step_failed = fail;
        self
    }
}

/// The payload of a message that waits for a join. It has no `Debug`: it is made of the user's.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wait {
    pub(crate) join_id: JoinId,
    #[serde(default = "yes")]
    pub(crate) fail_if_any_step_failed: bool,
    pub(crate) on_complete: Continuation,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) on_fail: Option<Continuation>,
}

fn yes() -> bool {
    true
}

/// A message to be sent, without its id.
#[derive(Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Continuation {
    topic: String,
    /// The content, if it is a text; else it is in `payload_hex`.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_type: Option<String>,
    #[serde(skip_serializing_if = "Headers::is_empty")]
    headers: Headers,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup_hex: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aggregate_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    occurred_at_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<Moment>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
}

/// A time: so many microseconds after 1970, or after the continuation is sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Moment {
    AtUs(u64),
    AfterUs(u64),
}

impl Moment {
    fn of(when: When) -> Option<Self> {
        match when {
            When::Now => None,
            When::After(delay) => Some(Self::AfterUs(micros(delay))),
            When::At(time) => {
                Some(Self::AtUs(micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())))
            }
        }
    }

    fn when(self) -> When {
        match self {
            Self::AtUs(us) => When::At(SystemTime::UNIX_EPOCH + Duration::from_micros(us)),
            Self::AfterUs(us) => When::After(Duration::from_micros(us)),
        }
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Continuation {
    pub(crate) fn of(message: &NewMessage) -> Self {
        let text = std::str::from_utf8(message.payload()).ok();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self {
            topic: message.topic().to_owned(),
            payload: owned(text),
            payload_hex: text.is_none().then(|| hex(message.payload())),
            content_type: Some(message.content_type().to_owned()),
            headers: message.headers().clone(),
            key: owned(message.key()),
            order: message.order().map(OrderPolicy::code),
            dedup_hex: message.dedup().map(|hash| hex(hash)),
            correlation_id: owned(message.correlation_id()),
            aggregate_type: owned(message.aggregate_type()),
            aggregate_id: owned(message.aggregate_id()),
            tenant_id: owned(message.tenant_id()),
            occurred_at_us: message
                .occurred_at()
                .map(|time| micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())),
            due: Moment::of(message.due()),
            expires: message.expires().map(|when| Moment::of(when).unwrap_or(Moment::AfterUs(0))),
            priority: (message.priority() != 0).then(|| message.priority()),
        }
    }

    /// The message, under this id.
    fn message(&self, id: MessageId) -> Result<NewMessage> {
        let payload = match (&self.payload, &self.payload_hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(hex)) => unhex(hex)?,
            (None, None) => Vec::new(),
        };
        let mut builder = NewMessage::bytes(&self.topic, payload)
            .id(id)
            .content_type(self.content_type.as_deref().unwrap_or(crate::message::JSON))
            .headers(self.headers.clone())
            .priority(self.priority.unwrap_or_default());
        if let Some(order) = self.order {
            builder = builder.order(OrderPolicy::from_code(order)?);
        }
        let dedup = self.dedup_hex.as_deref().map(unhex).transpose()?;
        builder.fill(|message| {
            message.key.clone_from(&self.key);
            message.correlation_id.clone_from(&self.correlation_id);
            message.aggregate_type.clone_from(&self.aggregate_type);
            message.aggregate_id.clone_from(&self.aggregate_id);
            message.tenant_id.clone_from(&self.tenant_id);
            message.dedup = dedup.and_then(|hash| hash.try_into().ok());
            message.occurred_at =
                self.occurred_at_us.map(|us| SystemTime::UNIX_EPOCH + Duration::from_micros(us));
            message.due = self.due.map_or(When::Now, Moment::when);
            message.expires = self.expires.map(Moment::when);
        })
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let wrong = || Error::new(ErrorKind::Codec, "a value of the continuation is not hexadecimal");
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong());
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The id of the continuation that this waiting message sends: the same, however often it is sent.
pub(crate) fn continuation_id(join: JoinId, wait: MessageId) -> MessageId {
    MessageId::derived(b"posthaste continuation", &[join.as_bytes(), wait.as_bytes()])
}

impl Wait {
    /// The id of the message that waits so: the same wait for the same join, asked for twice, is one message.
    pub(crate) fn message_id(&self) -> Result<MessageId> {
        let text = serde_json::to_vec(self).map_err(|source| {
            Error::new(ErrorKind::Codec, "the wait cannot be written as JSON").with_source(source)
        })?;
        Ok(MessageId::derived(b"posthaste wait", &[self.join_id.as_bytes(), &text]))
    }

    /// Which continuation is sent for a join that ended so.
    fn choose(&self, join: &EndedJoin) -> Option<&Continuation> {
        match join.status {
            JoinStatus::Cancelled | JoinStatus::Pending => None,
            JoinStatus::Expired => self.on_fail.as_ref(),
            JoinStatus::Completed | JoinStatus::Failed => {
                if self.fail_if_any_step_failed && join.failed_steps > 0 {
                    self.on_fail.as_ref()
                } else {
                    Some(&self.on_complete)
                }
            }
        }
    }
}

/// Handles a message that waits for a join.
pub(crate) async fn handle<S: Store>(inner: Arc<Inner<S>>, message: Arc<Message>) -> HandlerResult {
    let wait: Wait = message.json().map_err(HandlerError::dead)?;
    let id = wait.join_id;
    let check = inner.plan.settings.join_check;
    // A failure of the database is not the message's fault: waiting costs no attempt.
    let join = match inner.call(inner.store.look(id)).await.map_err(HandlerError::infrastructure)? {
        Look::Unknown => {
            // The id is part of the payload, so the stored error does not repeat it.
            warn!(store = %inner.name, join_id = %id, message_id = %message.id, "there is no such join: nothing to wait for");
            return Err(HandlerError::dead(super::unknown_join(id)));
        }
        Look::Pending { expires_in } => {
            debug!(store = %inner.name, join_id = %id, message_id = %message.id, "the join is pending: waiting");
            let left = expires_in.map_or(check, |left| left.clamp(SOONEST, check));
            return Err(HandlerError::defer(left));
        }
        Look::Over(join) => join,
        Look::Expired(join) => {
            inner.joins_ended(&[join]);
            join
        }
    };
    let chosen = wait.choose(&join);
    let continuation = chosen.map(|chosen| chosen.message(continuation_id(id, message.id))).transpose();
    let mut continuation = continuation.map_err(HandlerError::dead)?;
    if let Some(continuation) = &mut continuation {
        inner.plan.seal(continuation)?;
    }
    let first = inner.call(inner.store.continue_join(id, message.id, continuation.as_ref())).await;
    let first = first.map_err(HandlerError::infrastructure)?;
    info!(
        store = %inner.name, join_id = %id, message_id = %message.id, status = %join.status,
        continuation = continuation.as_ref().map(NewMessage::topic),
        continuation_id = continuation.as_ref().map(|next| tracing::field::display(next.id())), repeated = !first,
        "the wait for a join is over"
    );
    if let Some(continuation) = continuation.filter(|_| first) {
        inner.announce_committed(&continuation);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(status: JoinStatus, failed_steps: u32) -> EndedJoin {
        EndedJoin {
            id: JoinId::new(),
            status,
            expected_steps: 3,
            completed_steps: 3 - failed_steps,
            failed_steps,
        }
    }

    fn wait(strict: bool, on_fail: bool) -> Wait {
        let to = |topic: &str| Continuation { topic: topic.to_owned(), ..Continuation::default() };
        Wait {
            join_id: JoinId::new(),
            fail_if_any_step_failed: strict,
            on_complete: to("done"),
            on_fail: on_fail.then(|| to("failed")),
        }
    }

    /// JOIN-054, JOIN-055, JOIN-057, OBX-092, OBX-093, OBX-094: by the join's state alone.
    #[test]
    fn the_state_of_the_join_chooses_the_continuation() {
        let chosen = |wait: &Wait, join| wait.choose(&join).map(|chosen| chosen.topic.clone());
        let (done, failed) = (Some("done".to_owned()), Some("failed".to_owned()));
        let (strict, tolerant, silent) = (wait(true, true), wait(false, true), wait(true, false));
        assert_eq!(chosen(&strict, ended(JoinStatus::Completed, 0)), done);
        assert_eq!(chosen(&strict, ended(JoinStatus::Failed, 1)), failed);
        assert_eq!(chosen(&tolerant, ended(JoinStatus::Failed, 3)), done);
        assert_eq!(chosen(&silent, ended(JoinStatus::Failed, 1)), None);
        assert_eq!(chosen(&tolerant, ended(JoinStatus::Expired, 0)), failed);
        assert_eq!(chosen(&silent, ended(JoinStatus::Expired, 0)), None);
        assert_eq!(chosen(&tolerant, ended(JoinStatus::Cancelled, 0)), None);
    }

    /// JOIN-051: every option survives in the payload.
    #[test]
    fn continuations_survive_their_journey() {
        let hour = Duration::from_secs(3600);
        let whole = NewMessage::bytes("t", vec![0xff, 0x00, 0x7f])
            .key("k")
            .order(OrderPolicy::Park)
            .dedup_key("d")
            .header("h", "v")
            .correlation_id("c")
            .aggregate("order", 7)
            .tenant_id("tenant")
            .occurred_at(SystemTime::UNIX_EPOCH + hour)
            .delay(hour)
            .expires_at(SystemTime::UNIX_EPOCH + 9 * hour)
            .priority(-3)
            .build()
            .unwrap();
        let plain = NewMessage::json("t", &"täxt\u{0}").build().unwrap();
        for message in [whole, plain] {
            let json = serde_json::to_string(&Continuation::of(&message)).unwrap();
            let back: Continuation = serde_json::from_str(&json).unwrap();
            assert_eq!(back.message(message.id()).unwrap(), message);
        }
    }

    /// What another language writes by hand is enough.
    #[test]
    fn a_short_payload_is_enough() {
        let id = JoinId::new();
        let json = format!(r#"{{"join_id":"{id}","on_complete":{{"topic":"next","payload":"{{}}"}}}}"#);
        let wait: Wait = serde_json::from_str(&json).unwrap();
        assert!(wait.fail_if_any_step_failed && wait.on_fail.is_none());
        let message = wait.on_complete.message(MessageId::new()).unwrap();
        assert_eq!((message.topic(), message.payload()), ("next", &b"{}"[..]));
        assert!(serde_json::from_str::<Wait>("{}").is_err());
        assert!(unhex("0g").is_err() && unhex("abc").is_err() && unhex("é").is_err());
    }

    #[test]
    fn the_same_wait_is_one_message() {
        let one = wait(true, true);
        let other = Wait { join_id: one.join_id, ..wait(true, true) };
        assert_eq!(one.message_id().unwrap(), other.message_id().unwrap());
        for different in [
            wait(true, true),
            Wait { join_id: one.join_id, ..wait(false, true) },
            Wait { on_fail: None, ..other },
        ] {
            assert_ne!(one.message_id().unwrap(), different.message_id().unwrap());
        }
    }

    #[test]
    fn continuation_ids_are_derived() {
        let (join, wait) = (JoinId::new(), MessageId::new());
        assert_eq!(continuation_id(join, wait), continuation_id(join, wait));
        assert_ne!(continuation_id(join, wait), continuation_id(join, MessageId::new()));
        assert_ne!(continuation_id(join, wait), continuation_id(JoinId::new(), wait));
        assert_eq!(continuation_id(join, wait).as_uuid().get_version_num(), 8);
    }
}
