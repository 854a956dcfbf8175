//! Callers that wait for a permit: in the order of arrival, and by priority before that where it counts.
//!
//! Nothing here decides whether a caller may go on; it only says whose turn it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;

use super::selection::Place;

/// How urgent a call to a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Settles or renews messages that this process holds. Waiting may cost their leases.
    High,
    /// Everything else.
    Normal,
}

/// A caller's place in a line.
pub(super) type Ticket = (Priority, u64);

/// A caller, and how to tell it that it may be its turn.
#[derive(Clone, Debug)]
pub(super) struct Waiter {
    pub(super) place: Place,
    pub(super) called: Arc<Notify>,
}

#[derive(Debug)]
pub(super) struct Waiters {
    has_priorities: bool,
    waiting: BTreeMap<Ticket, Waiter>,
}

impl Waiters {
    pub(super) fn by_priority() -> Self {
        Self { has_priorities: true, waiting: BTreeMap::new() }
    }

    pub(super) fn by_arrival() -> Self {
        Self { has_priorities: false, waiting: BTreeMap::new() }
    }

    fn priority(&self, priority: Priority) -> Priority {
        if self.has_priorities { priority } else { Priority::Normal }
    }

    fn key(&self, (priority, number): Ticket) -> Ticket {
        (self.priority(priority), number)
    }

    pub(super) fn insert(&mut self, ticket: Ticket, waiter: Waiter) {
        self.waiting.insert(self.key(ticket), waiter);
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Waiter> {
        self.waiting.remove(&self.key(ticket))
    }

    /// Whether this caller is next. One that does not wait yet is next if only less urgent ones do.
    pub(super) fn is_next(&self, priority: Priority, ticket: Option<Ticket>) -> bool {
        match (self.waiting.first_key_value(), ticket) {
            (None, _) => true,
            (Some((first, _)), Some(ticket)) => *first == self.key(ticket),
            (Some(((first, _), _)), None) => self.priority(priority) < *first,
        }
    }

    /// Whether a more urgent caller waits than this one.
    pub(super) fn has_before(&self, priority: Priority) -> bool {
        self.waiting.first_key_value().is_some_and(|((first, _), _)| *first < self.priority(priority))
    }

    /// Lets the first caller try again.
    pub(super) fn call_first(&self) {
        if let Some((_, waiter)) = self.waiting.first_key_value() {
            waiter.called.notify_one();
        }
    }

    /// Lets all callers of a store try again.
    pub(super) fn call_all_of(&self, place: Place) {
        self.waiting
            .values()
            .filter(|waiter| waiter.place == place)
            .for_each(|waiter| waiter.called.notify_one());
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}
