//! A queue of waiting outboxes, in the order of arrival; each once.

use std::collections::{BTreeMap, HashMap};

use super::selection::Place;

#[derive(Debug, Default)]
pub(super) struct Line {
    waiting: BTreeMap<u64, Place>,
    tickets: HashMap<Place, u64>,
    next: u64,
}

impl Line {
    /// Adds it at the end, unless it is in the queue.
    pub(super) fn push(&mut self, place: Place) {
        if !self.has(place) {
            self.tickets.insert(place, self.next);
            self.waiting.insert(self.next, place);
            self.next += 1;
        }
    }

    pub(super) fn first(&self) -> Option<Place> {
        self.waiting.first_key_value().map(|(_, place)| *place)
    }

    /// Takes the first one out.
    pub(super) fn pop(&mut self) -> Option<Place> {
        let (_, place) = self.waiting.pop_first()?;
        self.tickets.remove(&place);
        Some(place)
    }

    pub(super) fn has(&self, place: Place) -> bool {
        self.tickets.contains_key(&place)
    }

    pub(super) fn remove(&mut self, place: Place) {
        if let Some(ticket) = self.tickets.remove(&place) {
            self.waiting.remove(&ticket);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Place> {
        self.waiting.values().copied()
    }
}
