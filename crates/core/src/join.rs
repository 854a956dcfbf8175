//! Fan-in: a join counts the ends of the messages that are its steps, and when the last one has come, a continuation is
//! sent.
//!
//! A join is counted by the database in the very transaction that ends a step; nothing here counts anything. The words of
//! the protocol: join, step, continuation.

mod builder;
pub(crate) mod wait;

use std::fmt;
use std::time::{Duration, SystemTime};

pub(crate) use self::builder::Parts;
pub use self::builder::{JoinBuilder, NewJoin, StartedJoin};
pub use self::wait::JoinWait;
use crate::error::{Error, ErrorKind, Result};
pub use crate::id::JoinId;
use crate::id::MessageId;

/// The most bytes of a join's metadata.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;
/// The default topic of messages that wait for a join.
pub const DEFAULT_WAIT_TOPIC: &str = "join.wait";

/// The status of a join. Every status but pending is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum JoinStatus {
    /// Steps are missing.
    Pending = 0,
    /// All steps were done.
    Completed = 1,
    /// All steps have ended, and at least one of them failed.
    Failed = 2,
    /// It was cancelled.
    Cancelled = 3,
    /// Its deadline passed before all steps had ended.
    Expired = 4,
}

impl JoinStatus {
    /// Every status.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Completed, Self::Failed, Self::Cancelled, Self::Expired];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown join status in the database").with_context("code", code)
        })
    }

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Expired => "expired",
        }
    }
}

impl fmt::Display for JoinStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(i16)]
pub enum StepStatus {
    /// It has not ended.
    Pending = 0,
    /// It was done, and counted.
    Completed = 1,
    /// It failed for good, and was counted.
    Failed = 2,
    /// It was done after the join had been cancelled or had expired: recorded, but not counted.
    LateCompleted = 3,
    /// It failed for good after the join had been cancelled or had expired: recorded, but not counted.
    LateFailed = 4,
}

impl StepStatus {
    /// Every status.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Completed, Self::Failed, Self::LateCompleted, Self::LateFailed];

    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The status stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code).ok_or_else(|| {
            Error::new(ErrorKind::Codec, "unknown step status in the database").with_context("code", code)
        })
    }
}

impl fmt::Display for StepStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::LateCompleted => "late completed",
            Self::LateFailed => "late failed",
        })
    }
}

/// How a step ended, when that is reported by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepEnd {
    /// It is done.
    Completed,
    /// It failed for good.
    Failed,
}

impl StepEnd {
    /// The status of a step that is counted so.
    pub const fn status(self) -> StepStatus {
        match self {
            Self::Completed => StepStatus::Completed,
            Self::Failed => StepStatus::Failed,
        }
    }
}

/// Everything that is stored about a join.
#[derive(Clone, PartialEq, Eq, serde::Serialize)]
pub struct Join {
    /// Its identity.
    pub id: JoinId,
    /// Its grouping key.
    pub grouping_key: Option<String>,
    /// Where it is in its life.
    pub status: JoinStatus,
    /// How many steps have to end.
    pub expected_steps: u32,
    /// How many messages are attached to it.
    pub attached_steps: u32,
    /// How many of them were done.
    pub completed_steps: u32,
    /// How many of them failed for good.
    pub failed_steps: u32,
    /// What its owner wanted to remember about it.
    pub metadata: Option<String>,
    /// When it was started, by the database's clock.
    pub created_at: SystemTime,
    /// When its counters or its status last changed.
    pub updated_at: SystemTime,
    /// When it ceased to be pending.
    pub ended_at: Option<SystemTime>,
    /// After when it is given up.
    pub expires_at: Option<SystemTime>,
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the grouping key and the metadata: they are the user's.
        f.debug_struct("Join")
            .field("id", &self.id)
            .field("status", &self.status)
            .field("expected_steps", &self.expected_steps)
            .field("attached_steps", &self.attached_steps)
            .field("completed_steps", &self.completed_steps)
            .field("failed_steps", &self.failed_steps)
            .finish_non_exhaustive()
    }
}

/// A message that is a step of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Step {
    /// The message.
    pub message: MessageId,
    /// Its state.
    pub status: StepStatus,
    /// When it was attached.
    pub created_at: SystemTime,
    /// When its status last changed.
    pub updated_at: SystemTime,
}

/// A join that has ended, with its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedJoin {
    /// Its identity.
    pub id: JoinId,
    /// How it ended.
    pub status: JoinStatus,
    /// How many steps had to end.
    pub expected_steps: u32,
    /// How many of them were done.
    pub completed_steps: u32,
    /// How many of them failed for good.
    pub failed_steps: u32,
}

/// The result of a waiting message's check of its join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is no such join.
    Unknown,
    /// Steps are missing.
    Pending {
        /// How long until its deadline, if it has one.
        expires_in: Option<Duration>,
    },
    /// It has ended.
    Over(EndedJoin),
    /// This check has ended it: its deadline had passed.
    Expired(EndedJoin),
}

/// What attaching did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attached {
    /// How many messages became steps by it; the others were steps already.
    pub new: u32,
    /// The join, if it ended by it: its last steps had been done or dead before.
    pub ended: Option<EndedJoin>,
}

/// The effect of a report of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported {
    /// Whether the join's counters moved: not for a step that was counted before, nor for a join that is over.
    pub counted: bool,
    /// The join, if it ended by it.
    pub ended: Option<EndedJoin>,
}

/// The error for a join that does not exist.
pub fn unknown_join(id: JoinId) -> Error {
    Error::new(ErrorKind::NotFound, "there is no such join")
        .with_context("join_id", id)
        .with_remedy("start it first, in this transaction or in one that has committed, in the same database")
}

/// The error for a message that cannot become a step because it is not stored.
pub fn unknown_step(join: JoinId, message: MessageId) -> Error {
    Error::new(ErrorKind::NotFound, "the message is not stored, so nobody would ever count it")
        .with_context("join_id", join)
        .with_context("message_id", message)
        .with_remedy("publish it first, and attach it in the same transaction")
}

/// The error for a message that is not a step of the join.
pub fn not_a_step(join: JoinId, message: MessageId) -> Error {
    Error::new(ErrorKind::NotFound, "the message is not a step of the join")
        .with_context("join_id", join)
        .with_context("message_id", message)
        .with_remedy("attach it first")
}

/// The error for more steps than a join expects.
pub fn too_many_steps(join: JoinId, expected: u32, attached: u32) -> Error {
    Error::new(
        ErrorKind::Refused,
        format!("these are more steps than the join expects: {attached} instead of {expected}"),
    )
    .with_context("join_id", join)
    .with_remedy("start it with as many as it will have")
}

/// The error for a new step of a join that is over.
pub fn join_is_over(join: JoinId, status: JoinStatus) -> Error {
    Error::new(ErrorKind::Refused, format!("the join is over: {status}"))
        .with_context("join_id", join)
        .with_remedy("start another")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_stable_and_reversible() {
        assert_eq!(JoinStatus::ALL.map(JoinStatus::code), [0, 1, 2, 3, 4]);
        assert_eq!(StepStatus::ALL.map(StepStatus::code), [0, 1, 2, 3, 4]);
        assert_eq!(JoinStatus::from_code(4).unwrap(), JoinStatus::Expired);
        assert!(JoinStatus::from_code(5).is_err() && StepStatus::from_code(-1).is_err());
    }
}
