//! Whether an outbox's store answers, as of the last claim.
//!
//! It only stores the state. The callers of the store decide what follows from it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;

/// A store's failure, and since when.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) since: Instant,
    pub(crate) error: String,
}

#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Option<Trouble>>);

impl Health {
    /// A call failed; true if the store was up until now.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let mut trouble = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = trouble.as_ref().map_or_else(Instant::now, |trouble| trouble.since);
        let is_new = trouble.is_none();
        *trouble = Some(Trouble { since, error: error.to_string() });
        is_new
    }

    /// A claim succeeded; answers for how long none had, if one failed before.
    pub(crate) fn recovered(&self) -> Option<Duration> {
        let trouble = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        trouble.map(|trouble| trouble.since.elapsed())
    }

    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
