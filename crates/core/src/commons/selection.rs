//! Which of the due stores is polled next: the fair default, and two simpler selections.
//!
//! A selection only orders claims that stores want anyway. It must never invent one, nor forget one.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;
use std::ops::Bound;
use std::sync::Arc;

use super::line::Line;

/// A tenant's place in the order in which tenants came. It keeps it for as long as it is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub(crate) u64);

/// Decides which tenant's store is polled next. See [`Fair`], [`RoundRobin`] and [`DrainFirst`].
///
/// It is notified of events, and asked whenever a connection is free. A [due](Self::due) store stays so until
/// [`next`](Self::next) returns it, or it is [gone](Self::gone).
pub trait Selection: Debug + Send + 'static {
    /// A tenant's store is due to be polled.
    fn due(&mut self, place: Place, tenant: &Arc<str>);

    /// Returns the store to poll next, which is then not due any more; `None` if none is to be polled for now. It is asked
    /// again after the next event.
    fn next(&mut self) -> Option<Place>;

    /// A claim has ended, with so many messages of at most so many; `None` for both if it failed. A tenant that does not
    /// answer in time, or cannot settle its messages, counts as failed as well; if its claim ends later, this is called again.
    fn looked(&mut self, place: Place, found: Option<(u32, u32)>);

    /// A tenant is not due any more, or not there any more.
    fn gone(&mut self, place: Place);
}

/// The tenant that has waited longest is next, for one quantum at most. A busy tenant has as many turns as any other that
/// has work, and a new one waits for no more than one turn of each.
///
/// Tenants whose last claim found something, and tenants whose last claim did not, take turns: however many idle tenants
/// there are, they do not delay busy ones, nor the other way round.
#[derive(Debug, Default)]
pub struct Fair {
    busy: Line,
    idle: Line,
    /// Where something was found last.
    found: HashSet<Place>,
    /// Whether an idle one is next, if there are both.
    idle_is_next: bool,
}

impl Selection for Fair {
    fn due(&mut self, place: Place, _: &Arc<str>) {
        if !self.busy.has(place) && !self.idle.has(place) {
            let line = if self.found.contains(&place) { &mut self.busy } else { &mut self.idle };
            line.push(place);
        }
    }

    fn next(&mut self) -> Option<Place> {
        let idle_is_next = self.idle_is_next;
        self.idle_is_next = !idle_is_next;
        let (first, second) =
            if idle_is_next { (&mut self.idle, &mut self.busy) } else { (&mut self.busy, &mut self.idle) };
        first.pop().or_else(|| second.pop())
    }

    fn looked(&mut self, place: Place, found: Option<(u32, u32)>) {
        if found.is_some_and(|(found, _)| found > 0) {
            self.found.insert(place);
        } else {
            self.found.remove(&place);
        }
    }

    fn gone(&mut self, place: Place) {
        self.busy.remove(place);
        self.idle.remove(place);
        self.found.remove(&place);
    }
}

/// One batch of each tenant, in the order in which they came, and again from the beginning.
#[derive(Debug, Default)]
pub struct RoundRobin {
    due: BTreeSet<Place>,
    last: Option<Place>,
}

impl RoundRobin {
    fn after(&self, last: Option<Place>) -> Option<Place> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.due.range((from, Bound::Unbounded)).next().or_else(|| self.due.first()).copied()
    }
}

impl Selection for RoundRobin {
    fn due(&mut self, place: Place, _: &Arc<str>) {
        self.due.insert(place);
    }

    fn next(&mut self) -> Option<Place> {
        let place = self.after(self.last)?;
        self.due.remove(&place);
        self.last = Some(place);
        Some(place)
    }

    fn looked(&mut self, _: Place, _: Option<(u32, u32)>) {}

    fn gone(&mut self, place: Place) {
        self.due.remove(&place);
    }
}

/// The same tenant until nothing is found there, then the next one. Others wait for all of a backlog, however long it is, and
/// for as long as its handlers take: it is for few tenants, and jobs that are done in one go.
#[derive(Debug, Default)]
pub struct DrainFirst {
    order: RoundRobin,
    /// The one that is being drained.
    current: Option<Place>,
}

impl Selection for DrainFirst {
    fn due(&mut self, place: Place, tenant: &Arc<str>) {
        self.order.due(place, tenant);
    }

    fn next(&mut self) -> Option<Place> {
        match self.current {
            Some(current) => self.order.due.remove(&current).then_some(current),
            None => {
                self.current = self.order.next();
                self.current
            }
        }
    }

    fn looked(&mut self, place: Place, found: Option<(u32, u32)>) {
        let is_empty = found.is_none_or(|(found, _)| found == 0);
        if is_empty && self.current == Some(place) {
            self.current = None;
        }
    }

    fn gone(&mut self, place: Place) {
        self.order.gone(place);
        if self.current == Some(place) {
            self.current = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_due(selection: &mut impl Selection, places: &[u64]) {
        places.iter().for_each(|place| selection.due(Place(*place), &"t".into()));
    }

    fn order(selection: &mut impl Selection) -> Vec<u64> {
        std::iter::from_fn(|| selection.next()).map(|place| place.0).collect()
    }

    /// OBX-068: all in their order, one batch of each, and again from the beginning.
    #[test]
    fn round_robin_cycles_in_order() {
        let mut selection = RoundRobin::default();
        all_due(&mut selection, &[3, 1, 2]);
        assert_eq!(selection.next(), Some(Place(1)));
        selection.looked(Place(1), Some((100, 100)));
        all_due(&mut selection, &[1]);
        assert_eq!(order(&mut selection), [2, 3, 1], "a busy one waits for its turn");
        all_due(&mut selection, &[1, 2, 3]);
        selection.gone(Place(2));
        assert_eq!(order(&mut selection), [3, 1]);
    }

    /// OBX-069: the same store until it returns nothing, then the next one.
    #[test]
    fn drain_first_stays_until_nothing_is_found() {
        let mut selection = DrainFirst::default();
        all_due(&mut selection, &[1, 2, 3]);
        assert_eq!(selection.next(), Some(Place(1)));
        assert_eq!(selection.next(), None, "not before it is known whether it is empty");
        selection.looked(Place(1), Some((5, 5)));
        assert_eq!(selection.next(), None, "not before it is due again");
        all_due(&mut selection, &[1]);
        assert_eq!(selection.next(), Some(Place(1)));
        selection.looked(Place(1), Some((0, 5)));
        assert_eq!(selection.next(), Some(Place(2)));
        selection.looked(Place(2), None);
        assert_eq!(selection.next(), Some(Place(3)), "one that fails does not hold up the others");
        selection.gone(Place(3));
        all_due(&mut selection, &[1]);
        assert_eq!(selection.next(), Some(Place(1)), "nor does one that is gone");
    }

    #[test]
    fn fair_is_whoever_waited_longest() {
        let mut selection = Fair::default();
        all_due(&mut selection, &[3, 1, 2]);
        assert_eq!(selection.next(), Some(Place(3)));
        all_due(&mut selection, &[3, 1]);
        selection.gone(Place(2));
        assert_eq!(order(&mut selection), [1, 3]);
    }

    #[test]
    fn fair_to_those_with_work_among_many_without() {
        let mut selection = Fair::default();
        selection.looked(Place(8), Some((1, 100)));
        selection.looked(Place(9), Some((100, 100)));
        all_due(&mut selection, &[1, 2, 3, 8, 9]);
        assert_eq!(order(&mut selection), [8, 1, 9, 2, 3]);
        selection.looked(Place(8), Some((0, 100)));
        selection.looked(Place(9), None);
        all_due(&mut selection, &[1, 2, 8, 9]);
        assert_eq!(order(&mut selection), [1, 2, 8, 9]);
    }
}
