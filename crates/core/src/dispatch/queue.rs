//! The order in which waiting messages start: hot before cold, without starving cold.
//!
//! The messages themselves are [`Held`]'s. Slots bound the hot lane, the size of claims bounds the cold one.

use std::collections::VecDeque;

use super::held::{Awaits, Held};
use crate::id::Lease;

/// After so many hot messages in a row a cold one has its turn.
const HOT_IN_A_ROW: u32 = 8;

#[derive(Debug, Default)]
pub(super) struct Queue {
    hot: VecDeque<Lease>,
    cold: VecDeque<Lease>,
    in_a_row: u32,
}

impl Queue {
    pub(super) fn push(&mut self, lease: Lease, is_hot: bool) {
        let lane = if is_hot { &mut self.hot } else { &mut self.cold };
        lane.push_back(lease);
    }

    /// The next message to start.
    pub(super) fn peek(&mut self, held: &Held) -> Option<Lease> {
        let lane = if self.is_cold_next(held) { &mut self.cold } else { &mut self.hot };
        let is_queued = |lease: &Lease| {
            held.waiting(*lease).is_some_and(|(_, waiting)| waiting.awaits == Awaits::Handler)
        };
        // Leases that were lost or given back are still in here.
        while lane.front().is_some_and(|lease| !is_queued(lease)) {
            lane.pop_front();
        }
        lane.front().copied()
    }

    /// Takes out the message that `peek` returned, before its stage changes.
    pub(super) fn pop(&mut self, held: &Held) {
        if self.is_cold_next(held) {
            self.in_a_row = 0;
            self.cold.pop_front();
        } else {
            self.in_a_row = self.in_a_row.saturating_add(1);
            self.hot.pop_front();
        }
    }

    fn is_cold_next(&self, held: &Held) -> bool {
        let counts = held.counts();
        counts.cold > 0 && (counts.hot == 0 || self.in_a_row >= HOT_IN_A_ROW)
    }
}
