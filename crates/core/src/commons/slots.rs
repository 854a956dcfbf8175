//! Handlers at a time, over all outboxes of a process, and the suspects that run alone in it.
//!
//! An outbox that gets no slot is queued, once, and the first one is woken when a slot is free: outboxes take turns,
//! however many messages one of them has. A suspect, which may kill the process, waits until no other outbox holds
//! anything.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::Instant;

use super::line::Line;
use super::selection::Place;

/// The kind of delivery that an outbox wants to start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) now: Instant,
    pub(crate) lease: Duration,
    /// Whether it must run alone.
    pub(crate) is_suspect: bool,
}

#[derive(Debug)]
pub(super) struct Slots {
    most: usize,
    /// How many run, of each outbox that has some.
    running: HashMap<Place, usize>,
    total: usize,
    /// The waiting outboxes.
    line: Line,
    /// Outboxes that hold messages.
    holding: HashSet<Place>,
    /// The outbox of a suspect, and until when it keeps the others waiting: first until they hold nothing, then while it runs.
    suspect: Option<Suspect>,
    /// The outboxes that were told to make way for it.
    gave_way: HashSet<Place>,
}

#[derive(Clone, Copy, Debug)]
struct Suspect {
    place: Place,
    until: Instant,
    runs: bool,
}

impl Slots {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            running: HashMap::new(),
            total: 0,
            line: Line::default(),
            holding: HashSet::new(),
            suspect: None,
            gave_way: HashSet::new(),
        }
    }

    /// Whether one may start now, and which outboxes to wake.
    pub(super) fn ask(&mut self, place: Place, wish: Wish) -> (bool, Vec<Place>) {
        let mut woken = self.expire(wish.now);
        if let Some(suspect) = self.suspect {
            // Its own outbox keeps order among its own messages; but a second suspect is one too many.
            if suspect.place != place || (suspect.runs && wish.is_suspect) {
                self.line.push(place);
                return (false, woken);
            }
        }
        if wish.is_suspect {
            let others = self.holding.iter().any(|holder| *holder != place);
            let suspect =
                *self.suspect.get_or_insert(Suspect { place, until: wish.now + wish.lease, runs: false });
            if others && wish.now < suspect.until {
                // They give back messages that they have not started.
                woken.extend(self.holding.iter().copied().filter(|holder| *holder != place));
                self.line.push(place);
                return (false, woken);
            }
        }
        let first = self.line.first();
        if self.total >= self.most || first.is_some_and(|first| first != place && self.suspect.is_none()) {
            self.line.push(place);
            if self.total < self.most {
                woken.extend(first);
            }
            return (false, woken);
        }
        self.line.remove(place);
        *self.running.entry(place).or_default() += 1;
        self.total += 1;
        if wish.is_suspect {
            self.suspect = Some(Suspect { place, until: wish.now + wish.lease, runs: true });
        } else {
            woken.extend(self.next_up());
        }
        (true, woken)
    }

    pub(super) fn ended(&mut self, place: Place) -> Vec<Place> {
        let Some(running) = self.running.get_mut(&place) else { return Vec::new() };
        *running -= 1;
        self.total -= 1;
        if *running == 0 {
            self.running.remove(&place);
            if self.suspect.is_some_and(|suspect| suspect.place == place && suspect.runs) {
                return self.suspect_is_over();
            }
        }
        self.next_up()
    }

    pub(super) fn withdraw(&mut self, place: Place) -> Vec<Place> {
        let was_first = self.line.first() == Some(place);
        self.line.remove(place);
        if self.suspect.is_some_and(|suspect| suspect.place == place && !suspect.runs) {
            return self.suspect_is_over();
        }
        if was_first { self.next_up() } else { Vec::new() }
    }

    pub(super) fn holds(&mut self, place: Place, holds: bool) -> Vec<Place> {
        let changed = if holds { self.holding.insert(place) } else { self.holding.remove(&place) };
        match self.suspect {
            Some(suspect) if changed && !holds && !suspect.runs => vec![suspect.place],
            _ => Vec::new(),
        }
    }

    pub(super) fn must_give_way(&mut self, place: Place, now: Instant) -> (bool, Vec<Place>) {
        let mut woken = self.expire(now);
        let other = self.suspect.filter(|suspect| suspect.place != place);
        if let Some(suspect) = other {
            self.gave_way.insert(place);
            // It has waited long enough for outboxes that hold something.
            woken.extend((!suspect.runs && suspect.until <= now).then_some(suspect.place));
        }
        (other.is_some(), woken)
    }

    pub(super) fn gives_way_until(&self, place: Place) -> Option<Instant> {
        self.suspect.filter(|suspect| suspect.place != place).map(|suspect| suspect.until)
    }

    pub(super) fn leave(&mut self, place: Place) -> Vec<Place> {
        self.holding.remove(&place);
        self.total -= self.running.remove(&place).unwrap_or_default();
        let mut woken = self.withdraw(place);
        if self.suspect.is_some_and(|suspect| suspect.place == place) {
            woken.extend(self.suspect_is_over());
        }
        woken.extend(self.next_up());
        woken
    }

    /// A suspect keeps the others waiting for its time, and no longer.
    fn expire(&mut self, now: Instant) -> Vec<Place> {
        match self.suspect {
            Some(suspect) if suspect.runs && suspect.until <= now => self.suspect_is_over(),
            _ => Vec::new(),
        }
    }

    /// Every outbox may have waited, to start or to claim.
    fn suspect_is_over(&mut self) -> Vec<Place> {
        self.suspect = None;
        let mut woken: Vec<Place> = self.gave_way.drain().collect();
        woken.extend(self.line.iter());
        woken
    }

    /// The outbox that could start now: the one with the suspect that others make way for, or the first in the queue.
    fn next_up(&self) -> Vec<Place> {
        let suspect = self.suspect.filter(|suspect| !suspect.runs).map(|suspect| suspect.place);
        let next = suspect.or_else(|| self.line.first());
        next.filter(|_| self.total < self.most).into_iter().collect()
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
