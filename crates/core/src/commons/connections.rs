//! Connections at a time, over all stores: a call takes one that its store has open, or opens one, and for that the store that
//! nobody has called for longest closes its own.
//!
//! What is counted is what calls of ours can have opened: the most that were under way at a time since the store last
//! rested. An attempt that nobody answers is not counted as a connection for long: it is none.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::selection::Place;
use super::{Commons, lock};

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: usize,
    attempts: usize,
    lines: HashMap<Place, Line>,
    /// Stores with open connections that nobody uses, by when they were last used.
    idle: BTreeMap<u64, Place>,
    tick: u64,
    /// Who waits, in the order of coming.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One store's connections.
#[derive(Debug, Default)]
struct Line {
    open: usize,
    in_use: usize,
    /// Whether it has answered since it last rested or failed.
    is_known: bool,
    /// Its place among the idle ones.
    idle: Option<u64>,
    used: Option<Instant>,
}

/// Leave to begin, after this store has rested, if one must.
#[derive(Debug)]
struct Grant {
    rests: Option<Place>,
}

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        let (lines, idle, waiting) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { most, open: 0, attempts: 0, lines, idle, tick: 0, waiting }
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.open, self.attempts)
    }

    fn try_take(&mut self, place: Place) -> Option<Grant> {
        let line = self.lines.entry(place).or_default();
        let mut grant = Grant { rests: None };
        if line.in_use == line.open {
            if self.open >= self.most {
                let (_, victim) = self.idle.pop_first()?;
                // The one whose turn it is was not idle: all it has is in use.
                if let Some(line) = self.lines.get_mut(&victim) {
                    self.open -= line.open;
                    (line.open, line.idle, line.is_known) = (0, None, false);
                }
                grant.rests = Some(victim);
            }
            self.open += 1;
        }
        let line = self.lines.entry(place).or_default();
        line.open = line.open.max(line.in_use + 1);
        line.in_use += 1;
        if let Some(tick) = line.idle.take() {
            self.idle.remove(&tick);
        }
        Some(grant)
    }

    /// A call has ended. Its connection stays open, unless it was lost.
    fn give_back(&mut self, place: Place, is_up: bool) {
        let Some(line) = self.lines.get_mut(&place) else { return };
        line.in_use -= 1;
        line.is_known = is_up;
        line.used = Some(Instant::now());
        if !is_up {
            self.open -= line.open - line.in_use;
            line.open = line.in_use;
        }
        self.idles(place);
        self.serve();
    }

    /// If nobody uses what it has open any more, others may have it, after those that have waited longer for a use.
    fn idles(&mut self, place: Place) {
        let Some(line) = self.lines.get_mut(&place) else { return };
        if line.in_use == 0 && line.open > 0 && line.idle.is_none() {
            self.tick += 1;
            line.idle = Some(self.tick);
            self.idle.insert(self.tick, place);
        }
    }

    /// It is an attempt, not a connection; false if there are too many of those already.
    fn late(&mut self, place: Place) -> bool {
        if self.attempts >= self.most {
            return false;
        }
        let Some(line) = self.lines.get_mut(&place) else { return false };
        self.attempts += 1;
        self.open -= 1;
        line.open -= 1;
        line.in_use -= 1;
        // Another call may have left one open.
        self.idles(place);
        self.serve();
        true
    }

    /// An attempt has ended; answers whether the store must rest, because what it opened is one too many.
    fn attempt_ended(&mut self, place: Place, is_up: bool) -> bool {
        self.attempts -= 1;
        let Some(line) = self.lines.get_mut(&place).filter(|_| is_up) else { return false };
        line.is_known = true;
        line.used = Some(Instant::now());
        if self.open >= self.most {
            return true;
        }
        self.open += 1;
        line.open += 1;
        self.idles(place);
        self.serve();
        false
    }

    /// Lets whoever waited longest try again.
    fn serve(&self) {
        if let Some((_, waiting)) = self.waiting.first_key_value() {
            waiting.notify_one();
        }
    }

    /// Takes a connection, if it is this one's turn.
    fn take_turn(&mut self, place: Place, ticket: Option<u64>) -> Option<Grant> {
        // Nobody overtakes those who wait, unless his connection is open already.
        let has_one = self.lines.get(&place).is_some_and(|line| line.in_use < line.open);
        let is_next = self.waiting.first_key_value().map(|(first, _)| *first) == ticket;
        let grant = if has_one || is_next { self.try_take(place) } else { None };
        if let Some(ticket) = ticket.filter(|_| grant.is_some()) {
            self.waiting.remove(&ticket);
            self.serve();
        }
        grant
    }

    /// Forgets the connections of stores that were not called for this long, and answers which: they are to rest.
    pub(super) fn unused(&mut self, now: Instant, unused_for: Duration) -> Vec<Place> {
        let mut unused = Vec::new();
        let is_unused = |line: &Line| line.used.is_none_or(|used| now.duration_since(used) >= unused_for);
        for (place, line) in &mut self.lines {
            if let Some(tick) = line.idle.filter(|_| is_unused(line)) {
                self.idle.remove(&tick);
                self.open -= line.open;
                (line.open, line.idle, line.is_known) = (0, None, false);
                unused.push(*place);
            }
        }
        self.serve();
        unused
    }

    pub(super) fn leave(&mut self, place: Place) {
        if let Some(line) = self.lines.remove(&place) {
            self.open -= line.open;
            line.idle.and_then(|tick| self.idle.remove(&tick));
        }
        self.serve();
    }
}

/// A place in the line of those who wait for a connection; it is left when this is dropped.
struct Ticket<'a> {
    commons: &'a Commons,
    number: u64,
    called: Arc<Notify>,
}

impl<'a> Ticket<'a> {
    fn draw(commons: &'a Commons) -> Self {
        let mut connections = lock(&commons.connections);
        connections.tick += 1;
        let (number, called) = (connections.tick, Arc::new(Notify::new()));
        connections.waiting.insert(number, Arc::clone(&called));
        Self { commons, number, called }
    }

    async fn turn(self, place: Place) -> Grant {
        loop {
            let taken = lock(&self.commons.connections).take_turn(place, Some(self.number));
            if let Some(grant) = taken {
                return grant;
            }
            self.called.notified().await;
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut connections = lock(&self.commons.connections);
        if connections.waiting.remove(&self.number).is_some() {
            connections.serve();
        }
    }
}

/// Leave to make one call; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    commons: Arc<Commons>,
    place: Place,
    is_known: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Connection,
    Attempt,
    Over,
}

impl Permit {
    pub(super) async fn acquire(commons: &Arc<Commons>, place: Place) -> Self {
        let taken = lock(&commons.connections).take_turn(place, None);
        let grant = match taken {
            Some(grant) => grant,
            None => Ticket::draw(commons).turn(place).await,
        };
        let is_known = lock(&commons.connections).lines.get(&place).is_some_and(|line| line.is_known);
        let permit = Self { commons: Arc::clone(commons), place, is_known, kind: Kind::Connection };
        if let Some(home) = grant.rests.and_then(|place| commons.home(place)) {
            home.rest().await;
        }
        permit
    }

    /// Whether the store has answered before.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    /// The call takes so long that others must not wait for it.
    pub(super) fn late(&mut self) {
        if lock(&self.commons.connections).late(self.place) {
            self.kind = Kind::Attempt;
            let woken = lock(&self.commons.looks).late(self.place);
            self.commons.wake_all(woken);
        }
    }

    /// The call has ended, and the store is up, or not.
    pub(super) async fn done(mut self, is_up: bool) {
        if self.give_back(is_up)
            && let Some(home) = self.commons.home(self.place)
        {
            home.rest().await;
        }
    }

    fn give_back(&mut self, is_up: bool) -> bool {
        let mut connections = lock(&self.commons.connections);
        match std::mem::replace(&mut self.kind, Kind::Over) {
            Kind::Connection => {
                connections.give_back(self.place, is_up);
                false
            }
            Kind::Attempt => connections.attempt_ended(self.place, is_up),
            Kind::Over => false,
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.give_back(false);
    }
}

#[cfg(test)]
#[path = "connections_tests.rs"]
mod tests;
