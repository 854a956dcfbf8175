//! How often a message has failed, from the server's count and this process's memory.
//!
//! The server counts deliveries; not all of them are attempts. The memory is bounded: a message that drops out of it is
//! charged for all of its deliveries.

use std::collections::{HashMap, VecDeque};

use posthaste_core::{Disposal, Tries};

/// The most messages that are remembered.
const MOST: usize = 10_000;

/// Knowledge about a message beyond its number of deliveries.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Deliveries that were not charged.
    uncharged: u32,
    /// Those of them since the last that was.
    free: u32,
}

/// By their numbers in the stream.
#[derive(Default)]
pub(super) struct Memory {
    known: HashMap<u64, Known>,
    /// In the order in which they came.
    order: VecDeque<u64>,
}

impl Memory {
    /// How often the message failed before its delivery of this number, counted from 1.
    pub(super) fn tries(&self, sequence: u64, delivered: i64) -> Tries {
        let known = self.known.get(&sequence).copied().unwrap_or_default();
        let before = u32::try_from(delivered.max(1) - 1).unwrap_or(u32::MAX);
        Tries { charged: before.saturating_sub(known.uncharged), free: known.free }
    }

    /// Remembers what became of a delivery.
    pub(super) fn note(&mut self, sequence: u64, disposal: &Disposal) {
        let Disposal::Again { charged, .. } = disposal else {
            self.known.remove(&sequence);
            return;
        };
        if *charged {
            if let Some(known) = self.known.get_mut(&sequence) {
                known.free = 0;
            }
            return;
        }
        let known = self.known.entry(sequence).or_insert_with(|| {
            self.order.push_back(sequence);
            Known::default()
        });
        known.uncharged = known.uncharged.saturating_add(1);
        known.free = known.free.saturating_add(1);
        self.shrink();
    }

    fn shrink(&mut self) {
        while self.known.len() > MOST {
            let Some(oldest) = self.order.pop_front() else { return };
            self.known.remove(&oldest);
        }
        // Messages that are done are still in the queue.
        if self.order.len() > 2 * MOST {
            self.order.retain(|sequence| self.known.contains_key(sequence));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn again(charged: bool) -> Disposal {
        Disposal::Again { after: Duration::ZERO, charged }
    }

    #[test]
    fn what_was_free_is_not_charged() {
        let mut memory = Memory::default();
        assert_eq!(memory.tries(7, 1), Tries { charged: 0, free: 0 });
        memory.note(7, &again(true));
        memory.note(7, &again(false));
        memory.note(7, &again(false));
        assert_eq!(memory.tries(7, 4), Tries { charged: 1, free: 2 });
        memory.note(7, &again(true));
        assert_eq!(memory.tries(7, 5), Tries { charged: 2, free: 0 });
        memory.note(7, &Disposal::Ack);
        assert_eq!(memory.tries(7, 5), Tries { charged: 4, free: 0 });
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let mut memory = Memory::default();
        for sequence in 0..100_000 {
            memory.note(sequence, &again(false));
            if sequence % 3 == 0 {
                memory.note(sequence, &Disposal::Ack);
            }
        }
        assert!(memory.known.len() <= MOST && memory.order.len() <= 2 * MOST + 1);
        assert_eq!(memory.tries(99_998, 2).charged, 0, "the newest are still known");
    }
}
