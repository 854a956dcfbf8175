//! The order in which waiting messages start: hot before cold, without starving cold.
//!
//! The messages themselves are [`Held`]'s. Slots bound the hot lane, the size of claims bounds the cold one.

use std::collections::VecDeque;

use super::held::{Awaits, Held, Holding, Path};
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
    pub(super) fn push(&mut self, lease: Lease, path: Path) {
        let lane = match path {
            Path::Hot => &mut self.hot,
            Path::Cold => &mut self.cold,
        };
        lane.push_back(lease);
    }

    /// The next message to start.
    pub(super) fn peek<'a>(&mut self, held: &'a Held) -> Option<(Lease, &'a Holding)> {
        let lane = if self.is_cold_next(held) { &mut self.cold } else { &mut self.hot };
        loop {
            let lease = *lane.front()?;
            match held.waiting(lease) {
                Some((holding, waiting)) if waiting.awaits == Awaits::Handler => {
                    return Some((lease, holding));
                }
                // Leases that were lost or given back are still in here.
                _ => drop(lane.pop_front()),
            }
        }
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
