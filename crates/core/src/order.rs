//! What happens to the messages behind a dead one of the same key.

use std::fmt;

use crate::error::{Error, ErrorKind, Result};

/// What becomes of a key when one of its messages dies. It is stored with the message, so that every way of dying
/// follows it; expired and buried messages never hold their key back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(i16)]
pub enum OrderPolicy {
    /// Later messages of the key wait until the dead one is requeued, buried or pruned.
    #[default]
    Block = 0,
    /// As `Block`, and the waiting messages are set aside, where they cost the queue nothing and do not count as
    /// waiting to be delivered; requeueing the dead one replays them all in order.
    Park = 1,
    /// Later messages of the key go on without it.
    Skip = 2,
}

impl OrderPolicy {
    /// The number it is stored as.
    pub const fn code(self) -> i16 {
        self as i16
    }

    /// The policy stored as this number.
    pub fn from_code(code: i16) -> Result<Self> {
        [Self::Block, Self::Park, Self::Skip].into_iter().find(|policy| policy.code() == code).ok_or_else(
            || {
                Error::new(ErrorKind::Codec, "unknown order policy in the database")
                    .with_context("code", code)
            },
        )
    }
}

impl fmt::Display for OrderPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Block => "block",
            Self::Park => "park",
            Self::Skip => "skip",
        })
    }
}
