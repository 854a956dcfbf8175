//! What waits in memory for a handler: two queues, hot before cold, without starving cold.
//!
//! Their bounds are kept by those who fill them: slots for the hot one, the size of claims for the cold one.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::hot::Slot;
use crate::id::Lease;
use crate::message::Message;

/// After so many hot messages in a row a cold one has its turn.
const HOT_IN_A_ROW: u32 = 8;

/// A message that this worker owns and has not started.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) message: Arc<Message>,
    /// Since when it waits.
    pub(crate) since: Instant,
    /// Its place in the hot queue, if it came that way.
    pub(crate) slot: Option<Slot>,
}

impl Waiting {
    pub(crate) fn lease(&self) -> Lease {
        self.message.lease()
    }

    /// Whether it must run alone.
    pub(crate) fn runs_alone(&self) -> bool {
        runs_alone(&self.message)
    }

    pub(crate) fn path(&self) -> &'static str {
        if self.slot.is_some() { "hot" } else { "cold" }
    }
}

/// Whether a message must run alone. Who lost one lease was perhaps only waiting in a process that died; who lost two may
/// well be the one that kills.
pub(crate) fn runs_alone(message: &Message) -> bool {
    message.lease_losses > 1
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    hot: VecDeque<Waiting>,
    cold: VecDeque<Waiting>,
    cold_bytes: usize,
    /// How many of the cold ones must run alone: asked in every turn of the loop, so it is not counted then.
    loners: usize,
    in_a_row: u32,
}

impl Queue {
    pub(crate) fn push(&mut self, waiting: Waiting) {
        if waiting.slot.is_some() {
            self.hot.push_back(waiting);
        } else {
            self.cold_bytes += waiting.message.payload.len();
            self.loners += usize::from(waiting.runs_alone());
            self.cold.push_back(waiting);
        }
    }

    fn cold_is_next(&self) -> bool {
        !self.cold.is_empty() && (self.hot.is_empty() || self.in_a_row >= HOT_IN_A_ROW)
    }

    /// The one that is next.
    pub(crate) fn peek(&self) -> Option<&Waiting> {
        if self.cold_is_next() { self.cold.front() } else { self.hot.front() }
    }

    /// Takes the one that is next.
    pub(crate) fn pop(&mut self) -> Option<Waiting> {
        if self.cold_is_next() {
            self.in_a_row = 0;
            let waiting = self.cold.pop_front()?;
            self.left(&waiting);
            Some(waiting)
        } else {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.hot.pop_front()
        }
    }

    /// Takes this one out, wherever it stands.
    pub(crate) fn remove(&mut self, lease: Lease) -> Option<Waiting> {
        let position = |queue: &VecDeque<Waiting>| queue.iter().position(|waiting| waiting.lease() == lease);
        if let Some(index) = position(&self.hot) {
            return self.hot.remove(index);
        }
        let waiting = self.cold.remove(position(&self.cold)?)?;
        self.left(&waiting);
        Some(waiting)
    }

    /// A cold one is no longer among them.
    fn left(&mut self, waiting: &Waiting) {
        self.cold_bytes -= waiting.message.payload.len();
        self.loners -= usize::from(waiting.runs_alone());
    }

    /// Takes everything.
    pub(crate) fn drain(&mut self) -> Vec<Waiting> {
        (self.cold_bytes, self.loners) = (0, 0);
        self.hot.drain(..).chain(self.cold.drain(..)).collect()
    }

    /// Whether one is among them that must run alone. Only claims bring one in, and only one that found nothing else.
    pub(crate) fn has_loner(&self) -> bool {
        self.loners > 0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hot.is_empty() && self.cold.is_empty()
    }

    pub(crate) fn hot_len(&self) -> usize {
        self.hot.len()
    }

    pub(crate) fn cold_len(&self) -> usize {
        self.cold.len()
    }

    pub(crate) fn cold_bytes(&self) -> usize {
        self.cold_bytes
    }
}
