//! Turns to claim: at most so many at a time, in the order of the selection.
//!
//! A turn is used or given back: an outbox that no longer wants its turn must say so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::selection::{Place, Selection};
use crate::settings::Settings;

/// Messages in memory, and the bytes of their payloads that are waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) messages: usize,
    pub(crate) bytes: usize,
}

impl Load {
    /// The most there may be.
    pub(super) fn most(settings: &Settings) -> Self {
        Self { messages: settings.cold_capacity as usize, bytes: settings.cold_bytes as usize }
    }
}

#[derive(Debug)]
pub(super) struct Looks {
    most: usize,
    /// The most that may be held in memory, and the current load.
    most_held: Load,
    held: Load,
    holds: HashMap<Place, Load>,
    selection: Box<dyn Selection>,
    keys: HashMap<Place, Arc<str>>,
    /// Outboxes that have asked and have no turn yet.
    asking: HashSet<Place>,
    /// Outboxes that have a turn and have not taken it.
    granted: HashSet<Place>,
    /// Outboxes with a claim under way.
    looking: HashSet<Place>,
    /// Outboxes whose claim takes so long that it does not count.
    late: HashSet<Place>,
}

impl Looks {
    pub(super) fn new(most: usize, most_held: Load, selection: Box<dyn Selection>) -> Self {
        Self {
            most,
            most_held,
            held: Load::default(),
            holds: HashMap::new(),
            selection,
            keys: HashMap::new(),
            asking: HashSet::new(),
            granted: HashSet::new(),
            looking: HashSet::new(),
            late: HashSet::new(),
        }
    }

    pub(super) fn most(&self) -> usize {
        self.most
    }

    pub(super) fn waiting(&self) -> usize {
        self.asking.len()
    }

    pub(super) fn join(&mut self, place: Place, key: &Arc<str>) {
        self.keys.insert(place, Arc::clone(key));
    }

    /// Whether it may claim now, and which others may.
    pub(super) fn ask(&mut self, place: Place) -> (bool, Vec<Place>) {
        let is_new = !self.granted.contains(&place) && self.asking.insert(place);
        if let Some(key) = self.keys.get(&place).filter(|_| is_new) {
            self.selection.due(place, key);
        }
        let mut woken = self.grant();
        let mine = self.granted.remove(&place);
        if mine {
            self.looking.insert(place);
            woken.retain(|other| *other != place);
        }
        (mine, woken)
    }

    pub(super) fn looked(&mut self, place: Place, found: Option<(u32, u32)>) -> Vec<Place> {
        self.looking.remove(&place);
        self.late.remove(&place);
        self.selection.looked(place, found);
        self.grant()
    }

    /// Its store does not answer: the others must not wait for the end of its claim, nor for its next one.
    pub(super) fn late(&mut self, place: Place) -> Vec<Place> {
        if self.looking.remove(&place) {
            self.late.insert(place);
        }
        self.selection.looked(place, None);
        self.grant()
    }

    /// It cannot settle claimed messages, and claims no more until it can: for the selection, it fails.
    pub(super) fn cannot_settle(&mut self, place: Place) -> Vec<Place> {
        self.selection.looked(place, None);
        self.grant()
    }

    pub(super) fn withdraw(&mut self, place: Place) -> Vec<Place> {
        if self.asking.remove(&place) {
            self.selection.gone(place);
        }
        if self.granted.remove(&place) {
            self.selection.looked(place, None);
        }
        self.grant()
    }

    /// Records the messages that it holds.
    pub(super) fn holds(&mut self, place: Place, load: Load) -> Vec<Place> {
        self.count(place, load);
        self.grant()
    }

    fn count(&mut self, place: Place, load: Load) {
        let is_none = load == Load::default();
        let before = if is_none { self.holds.remove(&place) } else { self.holds.insert(place, load) };
        let before = before.unwrap_or_default();
        self.held.messages = self.held.messages + load.messages - before.messages;
        self.held.bytes = self.held.bytes + load.bytes - before.bytes;
    }

    /// What more may be held. Claims under way are not known yet, so it may be exceeded by them.
    pub(super) fn room(&self) -> Load {
        Load {
            messages: self.most_held.messages.saturating_sub(self.held.messages),
            bytes: self.most_held.bytes.saturating_sub(self.held.bytes),
        }
    }

    pub(super) fn leave(&mut self, place: Place) -> Vec<Place> {
        self.count(place, Load::default());
        self.keys.remove(&place);
        self.asking.remove(&place);
        self.granted.remove(&place);
        self.looking.remove(&place);
        self.late.remove(&place);
        self.selection.gone(place);
        self.grant()
    }

    fn grant(&mut self) -> Vec<Place> {
        let mut granted = Vec::new();
        let room = self.room();
        if room.messages == 0 || room.bytes == 0 {
            return granted;
        }
        while self.granted.len() + self.looking.len() < self.most {
            let Some(place) = self.selection.next() else { break };
            // A user's selection may return anything.
            if self.asking.remove(&place) {
                self.granted.insert(place);
                granted.push(place);
            }
        }
        granted
    }
}

#[cfg(test)]
#[path = "looks_tests.rs"]
mod tests;
