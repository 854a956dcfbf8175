//! Exit codes, for scripts.

use std::process::ExitCode;

use posthaste::{Error, ErrorKind};

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Unavailable = 4,
    Danger = 5,
}

impl Exit {
    /// The code of a command that ended with this error.
    pub(crate) fn of(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::Configuration => Self::Usage,
            ErrorKind::NotFound => Self::NotFound,
            kind if kind.is_transient() => Self::Unavailable,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
