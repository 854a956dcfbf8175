//! Outcomes of deliveries. Pure: no clock, no I/O.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::id::Lease;
use crate::message::MAX_DELAY;
use crate::text;

/// The most bytes of a stored error text.
pub const MAX_ERROR_BYTES: usize = 4_000;
/// How many leases may run out on a message before it is taken for the one that kills its workers.
pub const MAX_LEASE_LOSSES: u32 = 5;

/// Where a message is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum State {
    /// Waiting to be claimed, now or when it is due.
    Ready = 0,
    /// Owned by a worker for a limited time.
    Leased = 1,
    /// Delivered. Final.
    Done = 2,
    /// Given up, with a reason; an operator can requeue it.
    Dead = 3,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Ready, Self::Leased, Self::Done, Self::Dead];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The state stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|state| state.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown state in the database").with_context("code", code)
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Done => "done",
            Self::Dead => "dead",
        })
    }
}

/// Why a delivery failed, or why a message is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum FailureClass {
    /// The handler refused. Costs an attempt.
    Business = 1,
    /// Something that others need too is down. Costs no attempt.
    Infrastructure = 2,
    /// No queue or route takes it: a matter of configuration. Costs no attempt.
    Unroutable = 3,
    /// It will never succeed.
    Permanent = 4,
    /// It is larger than the receiver accepts.
    TooLarge = 5,
    /// It was not claimed before its expiry.
    Expired = 6,
    /// Too many workers died, or fell silent, while they had it.
    CrashSuspect = 7,
    /// An operator gave it up.
    Buried = 8,
}

impl FailureClass {
    /// Every class.
    pub const ALL: [Self; 8] = [
        Self::Business,
        Self::Infrastructure,
        Self::Unroutable,
        Self::Permanent,
        Self::TooLarge,
        Self::Expired,
        Self::CrashSuspect,
        Self::Buried,
    ];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The class stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|class| class.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown failure class in the database").with_context("code", code)
        })
    }

    /// Whether abandoning with this class is charged as an attempt.
    pub const fn costs_attempt(self) -> bool {
        !matches!(self, Self::Infrastructure | Self::Unroutable)
    }

    /// Whether a dead message of this class holds its key back, if its policy says so.
    pub const fn holds_key(self) -> bool {
        !matches!(self, Self::Expired | Self::Buried)
    }

    const fn tag(self) -> &'static str {
        match self {
            Self::Infrastructure | Self::Unroutable => "[INFRA] ",
            Self::Business | Self::Permanent | Self::TooLarge => "[BUSINESS] ",
            Self::Expired | Self::CrashSuspect | Self::Buried => "",
        }
    }
}

impl fmt::Display for FailureClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Business => "business",
            Self::Infrastructure => "infrastructure",
            Self::Unroutable => "unroutable",
            Self::Permanent => "permanent",
            Self::TooLarge => "too large",
            Self::Expired => "expired",
            Self::CrashSuspect => "crash suspect",
            Self::Buried => "buried",
        })
    }
}

/// A failure with its class and a text for people. The text is stored with the message. A running outbox logs it, too,
/// after redacting the message's own values; `Debug` never shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    class: FailureClass,
    text: String,
}

impl Failure {
    /// A failure of this class. The text is cut to [`MAX_ERROR_BYTES`] and freed of NUL, so that recording it cannot
    /// fail.
    pub fn new(class: FailureClass, text: impl fmt::Display) -> Self {
        Self { class, text: text::cut(&format!("{}{text}", class.tag()), MAX_ERROR_BYTES) }
    }

    /// A failure as it was stored, with its tag.
    pub(crate) fn stored(class: FailureClass, text: &str) -> Self {
        Self { class, text: text::cut(text, MAX_ERROR_BYTES) }
    }

    /// The handler refused.
    pub fn business(text: impl fmt::Display) -> Self {
        Self::new(FailureClass::Business, text)
    }

    /// Something that others need too is down.
    pub fn infrastructure(text: impl fmt::Display) -> Self {
        Self::new(FailureClass::Infrastructure, text)
    }

    /// It will never succeed.
    pub fn permanent(text: impl fmt::Display) -> Self {
        Self::new(FailureClass::Permanent, text)
    }

    /// The same with its text, but not its tag, changed.
    pub(crate) fn map_text(&self, change: impl Fn(&str) -> String) -> Self {
        let text = self.text.strip_prefix(self.class.tag()).unwrap_or(&self.text);
        Self::new(self.class, change(text))
    }

    /// Its class.
    pub fn class(&self) -> FailureClass {
        self.class
    }

    /// Its text, as it is stored: `[INFRA]` or `[BUSINESS]` in front.
    pub fn text(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure").field("class", &self.class).finish_non_exhaustive()
    }
}

/// A worker's decision about a message that it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Delivered: done, for ever.
    Ack,
    /// Failed: again after the delay, or dead if that was the last attempt.
    Abandon {
        /// How long to wait; see [`RetryPolicy`](crate::RetryPolicy).
        delay: Duration,
        /// What went wrong. Its class decides whether an attempt is charged.
        failure: Failure,
        /// The attempt that is the last one, for classes that cost attempts.
        max_attempts: u32,
        /// For how long it may fail without a break, for classes that cost none; none is for ever.
        max_age: Option<Duration>,
    },
    /// Not yet: again after the delay, without any charge.
    Defer {
        /// How long to wait.
        delay: Duration,
    },
    /// Not by me: again at once, without any charge.
    Release,
    /// Never: dead.
    Fail {
        /// Why.
        failure: Failure,
    },
}

impl Outcome {
    /// The number by which statements know it.
    pub const fn code(&self) -> i16 {
        match self {
            Self::Ack => 0,
            Self::Abandon { .. } => 1,
            Self::Defer { .. } => 2,
            Self::Release => 3,
            Self::Fail { .. } => 4,
        }
    }

    /// How long until it may be claimed again: at most 100 years, which every database can add to its clock. A
    /// worker's decision cannot fail because of a number.
    pub fn delay(&self) -> Duration {
        match self {
            Self::Abandon { delay, .. } | Self::Defer { delay } => (*delay).min(MAX_DELAY),
            _ => Duration::ZERO,
        }
    }

    /// The attempt that is the last one; the largest number where there is none.
    pub fn max_attempts(&self) -> u32 {
        match self {
            Self::Abandon { max_attempts, .. } => *max_attempts,
            _ => u32::MAX,
        }
    }

    /// For how long it may fail without a break and without charge.
    pub fn max_age(&self) -> Option<Duration> {
        match self {
            Self::Abandon { max_age, .. } => max_age.map(|age| age.min(MAX_DELAY)),
            _ => None,
        }
    }

    /// The recorded failure.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Abandon { failure, .. } | Self::Fail { failure } => Some(failure),
            _ => None,
        }
    }
}

/// An outcome for a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The message, and the claim of it.
    pub lease: Lease,
    /// What became of it.
    pub outcome: Outcome,
    /// How far each receiver has come by now, if that has changed: lines as in [`Message::handled`](crate::Message).
    pub handled: Option<Vec<String>>,
}

impl Settlement {
    /// This outcome for this lease.
    pub fn new(lease: Lease, outcome: Outcome) -> Self {
        Self { lease, outcome, handled: None }
    }

    /// The stored form of [`handled`](Self::handled): one receiver a line.
    pub fn encoded_handled(&self) -> Option<String> {
        self.handled.as_ref().map(|names| names.join("\n"))
    }
}

/// Whether a settlement, or a renewal, took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// It did. An ack repeated with the same epoch did, too.
    Applied,
    /// It did not: the lease was lost; another worker has the message, or none has.
    Lost,
    /// It did not: there is no such row any more. After an ack that may mean that the ack took place before, and the
    /// store does not keep done messages.
    Gone,
    /// It did not: another session of the database has locked the message, or a join that it is a step of. Nothing was
    /// changed, the lease is still held, and the same settlement can be tried again.
    Locked,
}

impl Settled {
    /// The meaning of the number that statements answer with.
    pub fn from_code(code: i16) -> Result<Self> {
        match code {
            0 => Ok(Self::Applied),
            1 => Ok(Self::Lost),
            2 => Ok(Self::Gone),
            3 => Ok(Self::Locked),
            _ => Err(Error::new(ErrorKind::Codec, "unknown settlement result").with_context("code", code)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_reversible() {
        assert_eq!(State::ALL.map(State::code), [0, 1, 2, 3]);
        assert_eq!(FailureClass::ALL.map(FailureClass::code), [1, 2, 3, 4, 5, 6, 7, 8]);
        for class in FailureClass::ALL {
            assert_eq!(FailureClass::from_code(class.code()).unwrap(), class);
        }
        assert!(
            State::from_code(9).is_err()
                && FailureClass::from_code(0).is_err()
                && Settled::from_code(4).is_err()
        );
    }

    /// HOT-018, INB-006: texts are cut at a character's boundary, without NUL, and say which kind they are of.
    #[test]
    fn failure_texts_are_fit_to_store() {
        let failure = Failure::infrastructure(format!("a\0b{}", "é".repeat(5_000)));
        assert!(failure.text().starts_with("[INFRA] abé"));
        assert!(failure.text().len() <= MAX_ERROR_BYTES && failure.text().len() > MAX_ERROR_BYTES - 4);
        assert!(Failure::business("no").text().starts_with("[BUSINESS] no"));
    }

    /// OBX-125: an error text may echo a payload, so `Debug` leaves it out.
    #[test]
    fn failure_texts_are_not_shown() {
        assert!(!format!("{:?}", Outcome::Fail { failure: Failure::business("canary") }).contains("canary"));
    }
}
