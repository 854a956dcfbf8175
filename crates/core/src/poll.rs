//! When the cold path polls: often while there is work, seldom while there is none. Pure: the time is passed in.
//!
//! Polling is the guarantee; wake-ups and known due times only bring a poll forward. A wake-up may come before its commit, so
//! polls that find nothing after one are repeated at once a few times, and then with growing pauses: a message committed some
//! time after its wake-up is found within about as much time again. Polls that find many are the floor apart, so that they find
//! more; polls that find few may follow each other sooner.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use crate::settings::Settings;

/// The longest floor that still counts as wanting low latency.
const BRISK: Duration = Duration::from_millis(100);
/// How many messages a poll has to find for the next one to keep its distance.
const MANY: u32 = 8;
/// How many polls that find nothing may follow a wake-up and each other without a pause: the shortest pause that a timer can
/// keep is a millisecond, and most commits take less.
const EAGER: u32 = 3;
/// How many known due times are remembered; the others are found by polling.
const MOST_HINTS: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Poll {
    floor: Duration,
    ceiling: Duration,
    interval: Duration,
    /// How soon after the last poll the next one may come.
    spacing: Duration,
    /// How many more polls need no pause.
    eager: u32,
    last: Option<Instant>,
    next: Instant,
    hints: BTreeSet<Instant>,
    /// After how long without finding anything the ceiling is higher, and how high.
    idle: Option<(Duration, Duration)>,
    failing_ceiling: Duration,
    found: Instant,
}

impl Poll {
    /// As the settings say: for one store, or for one of many.
    pub(crate) fn of(settings: &Settings, is_one_of_many: bool, now: Instant) -> Self {
        let mut poll = Self::new(settings.poll_floor, settings.poll_ceiling, now);
        if is_one_of_many {
            poll.idle = Some((settings.tenants_idle, settings.tenants_idle_poll.max(settings.poll_ceiling)));
            poll.failing_ceiling = settings.tenants_retry.max(settings.poll_ceiling);
        }
        poll
    }

    fn new(floor: Duration, ceiling: Duration, now: Instant) -> Self {
        Self {
            floor,
            ceiling,
            idle: None,
            failing_ceiling: ceiling,
            found: now,
            interval: floor,
            spacing: floor,
            eager: 0,
            last: None,
            next: now,
            hints: BTreeSet::new(),
        }
    }

    /// When to poll next.
    pub(crate) fn next(&self) -> Instant {
        let hinted = self.hints.first().map(|hint| self.no_sooner(*hint));
        hinted.map_or(self.next, |hint| hint.min(self.next))
    }

    /// A poll begins.
    pub(crate) fn looked(&mut self, now: Instant) {
        self.last = Some(now);
        self.hints = self.hints.split_off(&now);
        self.hints.remove(&now);
    }

    /// There may be something.
    pub(crate) fn woken(&mut self, now: Instant) {
        self.interval = self.quick();
        self.eager = if self.is_brisk() { EAGER } else { 0 };
        self.next = self.next.min(self.no_sooner(now));
    }

    /// The first pause after a wake-up that came too early.
    fn quick(&self) -> Duration {
        if self.is_brisk() { self.floor / 32 } else { self.floor / 8 }
    }

    /// Whether polls may follow each other closely for once: a user with a long floor wants few of them.
    fn is_brisk(&self) -> bool {
        self.floor <= BRISK
    }

    /// Something will be due then.
    pub(crate) fn hint(&mut self, due: Instant) {
        if self.hints.len() < MOST_HINTS {
            self.hints.insert(due);
        } else if self.hints.last().is_some_and(|last| due < *last) {
            self.hints.pop_last();
            self.hints.insert(due);
        }
    }

    /// It found all that it asked for: there may be more.
    pub(crate) fn found_all(&mut self, now: Instant) {
        (self.found, self.eager) = (now, 0);
        self.interval = self.floor;
        self.next = now;
    }

    /// It found so many, less than it asked for.
    pub(crate) fn found_some(&mut self, now: Instant, found: u32) {
        (self.found, self.eager) = (now, 0);
        self.interval = self.floor;
        self.spacing = if self.is_brisk() { self.floor * found.min(MANY) / MANY } else { self.floor };
        self.next = now + self.floor;
    }

    /// It found nothing. The random number in `0.0..1.0` keeps many processes from polling at the same time.
    pub(crate) fn found_none(&mut self, now: Instant, random: f64) {
        if let Some(left) = self.eager.checked_sub(1) {
            (self.eager, self.next) = (left, now);
            return;
        }
        let idle = self.idle.filter(|(after, _)| now.duration_since(self.found) >= *after);
        self.wait(now, random, idle.map_or(self.ceiling, |(_, ceiling)| ceiling));
    }

    fn wait(&mut self, now: Instant, random: f64, ceiling: Duration) {
        self.spacing = self.quick();
        self.next = now + self.interval.mul_f64(0.75 + 0.5 * random).min(ceiling);
        self.interval = (self.interval * 2).min(ceiling);
    }

    /// It failed.
    pub(crate) fn failed(&mut self, now: Instant, random: f64) {
        self.eager = 0;
        self.interval = self.interval.max(Duration::from_millis(100)).min(self.failing_ceiling);
        self.wait(now, random, self.failing_ceiling);
        self.spacing = self.next - now;
    }

    fn no_sooner(&self, time: Instant) -> Instant {
        self.last.map_or(time, |last| time.max(last + self.spacing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// HOT-014, OBX-122: the interval grows from the floor to the ceiling while nothing is found, and shrinks at once.
    #[test]
    fn the_interval_adapts_between_floor_and_ceiling() {
        let mut now = Instant::now();
        let mut poll = Poll::new(ms(10), ms(100), now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            now = poll.next();
            poll.looked(now);
            poll.found_none(now, 0.5);
            pauses.push((poll.next() - now).as_millis());
        }
        assert_eq!(pauses, [10, 20, 40, 80, 100, 100]);
        poll.woken(now);
        assert_eq!(poll.next(), now + ms(10) / 32, "not at once after the last look");
        poll.woken(now + ms(40));
        assert_eq!(poll.next(), now + ms(10) / 32, "a later wake-up does not put it off");
        for _ in 0..EAGER {
            poll.looked(now + ms(50));
            poll.found_none(now + ms(50), 0.5);
            assert_eq!(poll.next(), now + ms(50), "at once: the commit may be about to come");
        }
        poll.looked(now + ms(50));
        poll.found_none(now + ms(50), 0.5);
        assert_eq!(poll.next(), now + ms(50) + ms(10) / 32, "and soon again");
        poll.looked(now + ms(50));
        poll.found_some(now + ms(50), 1);
        poll.woken(now + ms(51));
        assert_eq!(poll.next(), now + ms(50) + ms(10) / 8, "few come: soon");
        poll.looked(now + ms(50));
        poll.found_some(now + ms(50), 100);
        poll.woken(now + ms(51));
        assert_eq!(poll.next(), now + ms(60), "not before more can have come");
        poll.found_all(now + ms(60));
        assert_eq!(poll.next(), now + ms(60));

        let mut slow = Poll::new(ms(8_000), ms(60_000), now);
        slow.looked(now);
        slow.found_some(now, 1);
        slow.woken(now);
        assert_eq!(slow.next(), now + ms(8_000), "a long floor holds for few as for many");
        slow.looked(now);
        slow.found_none(now, 0.5);
        slow.woken(now);
        assert_eq!(slow.next(), now + ms(1_000));
    }

    /// One of many stores is polled as often as a single one, until it has been empty for a while, or fails.
    #[test]
    fn one_of_many_is_looked_at_less_often() {
        let settings = Settings {
            poll_ceiling: ms(100),
            tenants_idle: ms(10_000),
            tenants_idle_poll: ms(2_000),
            tenants_retry: ms(5_000),
            ..Settings::default()
        };
        for (is_one_of_many, ceilings) in [(false, [100, 100, 100, 100]), (true, [100, 2_000, 5_000, 100])] {
            let mut now = Instant::now();
            let mut poll = Poll::of(&settings, is_one_of_many, now);
            let mut pauses = Vec::new();
            let mut after =
                |poll: &mut Poll, now: &mut Instant, until: Duration, look: &dyn Fn(&mut Poll, Instant)| {
                    let end = *now + until;
                    let mut pause = Duration::ZERO;
                    while *now < end {
                        poll.looked(*now);
                        look(poll, *now);
                        pause = poll.next() - *now;
                        *now = poll.next();
                    }
                    pauses.push(pause.as_millis());
                };
            let none = |poll: &mut Poll, now| poll.found_none(now, 0.5);
            after(&mut poll, &mut now, ms(9_000), &none);
            after(&mut poll, &mut now, ms(30_000), &none);
            after(&mut poll, &mut now, ms(60_000), &|poll, now| poll.failed(now, 0.5));
            poll.found_some(now, 100);
            after(&mut poll, &mut now, ms(9_000), &none);
            assert_eq!(pauses, ceilings);
        }
    }

    #[test]
    fn known_due_times_bring_a_look_forward() {
        let now = Instant::now();
        let mut poll = Poll::new(ms(10), ms(1_000), now);
        poll.looked(now);
        (0..8).for_each(|_| poll.found_none(now, 0.5));
        poll.hint(now + ms(300));
        poll.hint(now + ms(400));
        assert_eq!(poll.next(), now + ms(300));
        poll.looked(now + ms(300));
        poll.found_none(now + ms(300), 0.5);
        assert_eq!(poll.next(), now + ms(400));
        (0..2_000).for_each(|n| poll.hint(now + ms(5_000 + n)));
        poll.hint(now + ms(350));
        assert_eq!((poll.hints.len(), poll.next()), (MOST_HINTS, now + ms(350)));
    }

    #[test]
    fn a_failure_is_not_repeated_at_once() {
        let now = Instant::now();
        let mut poll = Poll::new(ms(1), ms(1_000), now);
        poll.looked(now);
        poll.failed(now, 0.5);
        poll.woken(now);
        assert_eq!(poll.next(), now + ms(100), "whoever wakes it");
        poll.failed(now, 0.5);
        assert_eq!(poll.next(), now + ms(100));
        poll.failed(now, 0.5);
        assert_eq!(poll.next(), now + ms(200));
    }
}
