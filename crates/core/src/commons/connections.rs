//! Connections at a time, over all stores. A call uses a connection that its store has open, or opens one; for that, the store
//! that was called longest ago closes its own.
//!
//! The budget counts connections that posthaste's calls can have opened: the most calls under way at a time since the store
//! last rested. A call is never cancelled, so a store that does not answer keeps its connection. Two budgets keep the other
//! stores from paying for that:
//!
//! - A call that outlasts the [patience](Connections::patience) leaves the budget: it is *late*, and its store *silent*.
//! - Calls to a silent store have a small budget of their own, until the store answers again.
//!
//! So there are at most twice as many calls as connections: `most` in time, [`spare`] late ones and [`spare`] retries. Only when
//! so many stores fall silent at once that their calls would fill the budget, and other stores answer, more calls may leave it:
//! up to [`LATE_PER_CONNECTION`] for each connection. If their calls have filled it, no other store can show that it answers; then
//! one call leaves it every [`RELIEF_EVERY`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::selection::Place;
use super::waiters::{Priority, Ticket, Waiter, Waiters};
use super::{Commons, lock};

/// How many times the usual time a call may take before it is late.
const PATIENCE_FACTOR: u32 = 4;
const LEAST_PATIENCE: Duration = Duration::from_millis(20);
const MOST_PATIENCE: Duration = Duration::from_secs(1);
/// What calls take, as long as none has ended.
const FIRST_TYPICAL: Duration = Duration::from_millis(50);
/// How many late calls there may be for each connection when a server with thousands of tenants goes away. It bounds sockets.
const LATE_PER_CONNECTION: usize = 32;
/// How often a call leaves a budget that only silent stores use. Rarely: if no store answers, these calls pile up.
const RELIEF_EVERY: Duration = MOST_PATIENCE;

/// How many calls may wait for stores that do not answer, beside the calls in time.
fn spare(most: usize) -> usize {
    (most / 2).max(1)
}

#[derive(Debug)]
pub(super) struct Connections {
    most: usize,
    open: usize,
    late: usize,
    retries: usize,
    /// Calls that outlasted the patience, and found no room outside of the budget.
    stuck: usize,
    lines: HashMap<Place, Line>,
    /// Stores whose open connections are all unused, by when they were last used.
    idle: BTreeMap<u64, Place>,
    tick: u64,
    /// Callers that wait for a connection, and callers of silent stores that wait for a retry.
    waiting: Waiters,
    waiting_to_retry: Waiters,
    /// How long calls that are answered take, on average.
    typical: Duration,
    /// When a store last answered.
    answered: Option<Instant>,
    /// When a call last left the budget because only silent stores used it.
    relieved: Option<Instant>,
}

/// One store's connections.
#[derive(Debug, Default)]
struct Line {
    open: usize,
    in_use: usize,
    /// Whether its last call was late, and has not been answered.
    is_silent: bool,
    /// Its place among the idle ones.
    idle: Option<u64>,
    used: Option<Instant>,
}

/// Permission to begin, after this store has rested, if one must.
#[derive(Debug)]
struct Grant {
    kind: Kind,
    rests: Option<Place>,
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
struct Ending {
    /// Whether the store answered, be it with an error.
    is_up: bool,
    took: Duration,
}

impl Connections {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: 0,
            late: 0,
            retries: 0,
            stuck: 0,
            lines: HashMap::new(),
            idle: BTreeMap::new(),
            tick: 0,
            waiting: Waiters::by_priority(),
            // Tenants that cannot settle must not keep those from being tried that may answer by now.
            waiting_to_retry: Waiters::by_arrival(),
            typical: FIRST_TYPICAL,
            answered: None,
            relieved: None,
        }
    }

    /// How many connections are open, and how many calls wait outside of that budget for stores that do not answer.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.open, self.late + self.retries)
    }

    /// How long a call may take before it is late. On a slow network, or a busy machine, everything may take longer.
    fn patience(&self) -> Duration {
        (self.typical * PATIENCE_FACTOR).clamp(LEAST_PATIENCE, MOST_PATIENCE)
    }

    pub(super) fn is_silent(&self, place: Place) -> bool {
        self.lines.get(&place).is_some_and(|line| line.is_silent)
    }

    fn try_take(&mut self, place: Place) -> Option<Grant> {
        let line = self.lines.entry(place).or_default();
        let mut grant = Grant { kind: Kind::Connection, rests: None };
        if line.in_use == line.open {
            if self.open >= self.most {
                let (_, victim) = self.idle.pop_first()?;
                // The caller's store was not idle: all its connections are in use.
                if let Some(line) = self.lines.get_mut(&victim) {
                    self.open -= line.open;
                    (line.open, line.idle) = (0, None);
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

    fn try_retry(&mut self) -> Option<Grant> {
        (self.retries < spare(self.most)).then(|| {
            self.retries += 1;
            Grant { kind: Kind::Retry, rests: None }
        })
    }

    /// Takes a permit, if it is this caller's turn.
    fn take_turn(&mut self, place: Place, priority: Priority, ticket: Option<Ticket>) -> Option<Grant> {
        let is_silent = self.is_silent(place);
        if let Some(ticket) = ticket {
            self.change_line(ticket, is_silent);
        }
        let grant = if is_silent {
            self.waiting_to_retry.is_next(priority, ticket).then(|| self.try_retry()).flatten()
        } else {
            // A caller overtakes waiting ones if its connection is open already, unless they are more urgent: a store with one
            // call after the other would keep its connection from them.
            let has_one = self.lines.get(&place).is_some_and(|line| line.in_use < line.open);
            let overtakes = has_one && !self.waiting.has_before(priority);
            let is_next = overtakes || self.waiting.is_next(priority, ticket);
            is_next.then(|| self.try_take(place)).flatten()
        };
        if let Some(ticket) = ticket.filter(|_| grant.is_some()) {
            self.stop_waiting(ticket);
        }
        grant
    }

    /// Moves a caller to the other line, if its store has fallen silent or answered meanwhile.
    fn change_line(&mut self, ticket: Ticket, is_silent: bool) {
        let (from, to) = if is_silent {
            (&mut self.waiting, &mut self.waiting_to_retry)
        } else {
            (&mut self.waiting_to_retry, &mut self.waiting)
        };
        if let Some(waiter) = from.remove(ticket) {
            to.insert(ticket, waiter);
            self.serve();
        }
    }

    fn start_waiting(&mut self, place: Place, priority: Priority) -> (Ticket, Arc<Notify>) {
        self.tick += 1;
        let (ticket, called) = ((priority, self.tick), Arc::new(Notify::new()));
        let line = if self.is_silent(place) { &mut self.waiting_to_retry } else { &mut self.waiting };
        line.insert(ticket, Waiter { place, called: Arc::clone(&called) });
        (ticket, called)
    }

    fn stop_waiting(&mut self, ticket: Ticket) {
        if self.waiting.remove(ticket).or_else(|| self.waiting_to_retry.remove(ticket)).is_some() {
            self.serve();
        }
    }

    /// A call within the budget has ended. Its connection stays open, unless it was lost.
    fn give_back(&mut self, place: Place, kind: Kind, ending: Ending) {
        self.stuck -= usize::from(kind == Kind::Stuck);
        self.learn(place, ending);
        let Some(line) = self.lines.get_mut(&place) else { return };
        line.in_use -= 1;
        if !ending.is_up {
            self.open -= line.open - line.in_use;
            line.open = line.in_use;
        }
        self.idles(place);
        self.serve();
    }

    /// Records what a call's end shows about its store, and about all.
    fn learn(&mut self, place: Place, ending: Ending) {
        let (now, patience) = (Instant::now(), self.patience());
        if ending.is_up {
            self.answered = Some(now);
            // One long call must not make all others wait for as long.
            self.typical = (self.typical * 7 + ending.took.min(patience)) / 8;
        }
        let Some(line) = self.lines.get_mut(&place) else { return };
        line.used = Some(now);
        let was_silent = line.is_silent;
        line.is_silent = !ending.is_up && ending.took >= patience;
        if was_silent && !line.is_silent {
            self.waiting_to_retry.call_all_of(place);
        }
    }

    /// Lets other stores have the connections of this one, if none of them is in use.
    fn idles(&mut self, place: Place) {
        let Some(line) = self.lines.get_mut(&place) else { return };
        if line.in_use == 0 && line.open > 0 && line.idle.is_none() {
            self.tick += 1;
            line.idle = Some(self.tick);
            self.idle.insert(self.tick, place);
        }
    }

    /// How many calls may be late now, for a call that began then.
    fn most_late(&self, began: Instant) -> usize {
        let is_mass_outage = 4 * self.stuck >= self.most;
        // If no store answers, the next call would not be answered either: more calls at a time help none of them.
        let others_answer = self.answered.is_some_and(|answered| answered > began);
        if is_mass_outage && others_answer { LATE_PER_CONNECTION * self.most } else { spare(self.most) }
    }

    /// Whether only silent stores use the budget, and have done so for some time: then one call leaves it, so that another store
    /// is tried.
    fn needs_relief(&self, now: Instant) -> bool {
        self.stuck >= self.most
            && self.late < LATE_PER_CONNECTION * self.most
            && self.relieved.is_none_or(|relieved| now.duration_since(relieved) >= RELIEF_EVERY)
    }

    /// A call that began then is late, and leaves the budget if it can; then it is not stuck any more.
    fn leave_budget(&mut self, place: Place, began: Instant) -> bool {
        let now = Instant::now();
        let has_room = self.late < self.most_late(began);
        let is_relief = !has_room && self.needs_relief(now);
        let Some(line) = self.lines.get_mut(&place) else { return false };
        line.is_silent = true;
        if is_relief {
            self.relieved = Some(now);
        } else if !has_room {
            return false;
        }
        self.late += 1;
        self.stuck -= 1;
        self.open -= 1;
        line.open -= 1;
        line.in_use -= 1;
        // Another call may have left one open.
        self.idles(place);
        self.serve();
        true
    }

    /// A late call or a retry has ended; answers whether the store must rest, because its connection is one too many.
    fn end_outside(&mut self, place: Place, kind: Kind, ending: Ending) -> bool {
        match kind {
            Kind::Late => self.late -= 1,
            Kind::Retry => self.retries -= 1,
            Kind::Connection | Kind::Stuck | Kind::Over => {}
        }
        self.learn(place, ending);
        let is_full = self.open >= self.most;
        if let Some(line) = self.lines.get_mut(&place).filter(|_| ending.is_up && !is_full) {
            self.open += 1;
            line.open += 1;
            self.idles(place);
        }
        self.serve();
        ending.is_up && is_full
    }

    /// Lets the first caller of each line try again.
    fn serve(&self) {
        self.waiting.call_first();
        if self.retries < spare(self.most) {
            self.waiting_to_retry.call_first();
        }
    }

    /// Forgets the connections of stores that were not called for this long, and answers which: they are to rest.
    pub(super) fn unused(&mut self, now: Instant, unused_for: Duration) -> Vec<Place> {
        let mut unused = Vec::new();
        let is_unused = |line: &Line| line.used.is_none_or(|used| now.duration_since(used) >= unused_for);
        for (place, line) in &mut self.lines {
            if let Some(tick) = line.idle.filter(|_| is_unused(line)) {
                self.idle.remove(&tick);
                self.open -= line.open;
                (line.open, line.idle) = (0, None);
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
        self.waiting_to_retry.call_all_of(place);
        self.serve();
    }
}

/// A caller that waits for a permit; it stops waiting when this is dropped.
struct Waiting<'a> {
    commons: &'a Commons,
    place: Place,
    ticket: Ticket,
    called: Arc<Notify>,
}

impl<'a> Waiting<'a> {
    fn start(commons: &'a Commons, place: Place, priority: Priority) -> Self {
        let (ticket, called) = lock(&commons.connections).start_waiting(place, priority);
        Self { commons, place, ticket, called }
    }

    async fn turn(self) -> Grant {
        loop {
            let taken = {
                let mut connections = lock(&self.commons.connections);
                connections.take_turn(self.place, self.ticket.0, Some(self.ticket))
            };
            if let Some(grant) = taken {
                return grant;
            }
            self.commons.step_aside_if_silent(self.place);
            self.called.notified().await;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        lock(&self.commons.connections).stop_waiting(self.ticket);
    }
}

/// Permission for one call; given back when it is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    commons: Arc<Commons>,
    place: Place,
    kind: Kind,
    began: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A call within the budget of connections.
    Connection,
    /// One that should have left it, and could not yet.
    Stuck,
    /// A call that left it.
    Late,
    /// A call to a silent store.
    Retry,
    Over,
}

impl Permit {
    pub(super) async fn acquire(commons: &Arc<Commons>, place: Place, priority: Priority) -> Self {
        let taken = lock(&commons.connections).take_turn(place, priority, None);
        let grant = match taken {
            Some(grant) => grant,
            None => Waiting::start(commons, place, priority).turn().await,
        };
        let mut permit =
            Self { commons: Arc::clone(commons), place, kind: grant.kind, began: Instant::now() };
        commons.step_aside_if_silent(place);
        if let Some(home) = grant.rests.and_then(|place| commons.home(place)) {
            home.rest().await;
            permit.began = Instant::now();
        }
        permit
    }

    pub(super) fn patience(&self) -> Duration {
        lock(&self.commons.connections).patience()
    }

    /// The call has outlasted the patience. Answers whether other stores need not wait for it any more.
    pub(super) fn outlasted(&mut self) -> bool {
        let mut connections = lock(&self.commons.connections);
        match self.kind {
            Kind::Late | Kind::Retry | Kind::Over => return true,
            Kind::Stuck => {}
            Kind::Connection => {
                connections.stuck += 1;
                self.kind = Kind::Stuck;
            }
        }
        let has_left = connections.leave_budget(self.place, self.began);
        drop(connections);
        if has_left {
            self.kind = Kind::Late;
        }
        self.commons.step_aside_if_silent(self.place);
        has_left
    }

    /// The call has ended; `is_up` says whether the store answered.
    pub(super) async fn done(mut self, is_up: bool) {
        if self.give_back(is_up)
            && let Some(home) = self.commons.home(self.place)
        {
            home.rest().await;
        }
    }

    /// Answers whether the store must rest.
    fn give_back(&mut self, is_up: bool) -> bool {
        let ending = Ending { is_up, took: self.began.elapsed() };
        let mut connections = lock(&self.commons.connections);
        match std::mem::replace(&mut self.kind, Kind::Over) {
            kind @ (Kind::Connection | Kind::Stuck) => {
                connections.give_back(self.place, kind, ending);
                false
            }
            kind @ (Kind::Late | Kind::Retry) => connections.end_outside(self.place, kind, ending),
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
