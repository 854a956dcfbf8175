//! Tests of handler slots: exact counts, no outbox that waits in vain, and suspects that are alone.

use super::*;

const LEASE: Duration = Duration::from_secs(30);

/// An outbox, as far as slots are concerned: stored, waiting and running messages.
#[derive(Clone, Debug, Default)]
struct Outbox {
    stored: usize,
    /// A suspect that is stored, too; it is claimed alone.
    suspect: bool,
    waiting: usize,
    waiting_suspect: bool,
    running: usize,
    running_suspect: bool,
    is_in_line: bool,
}

impl Outbox {
    fn holds(&self) -> bool {
        self.waiting > 0 || self.waiting_suspect || self.running > 0 || self.running_suspect
    }
}

struct Process {
    slots: Slots,
    outboxes: Vec<Outbox>,
    now: Instant,
    woken: Vec<Place>,
}

impl Process {
    fn new(most: usize, outboxes: usize) -> Self {
        let outboxes = vec![Outbox::default(); outboxes];
        Self { slots: Slots::new(most), outboxes, now: Instant::now(), woken: Vec::new() }
    }

    fn at(&mut self, place: Place) -> &mut Outbox {
        &mut self.outboxes[usize::try_from(place.0).unwrap()]
    }

    /// Each outbox does what a dispatcher does when it is woken, until none is.
    fn settle(&mut self) {
        let mut turns = 0;
        while let Some(place) = self.woken.pop() {
            turns += 1;
            assert!(turns < 10_000, "they wake each other for ever");
            self.turn(place);
            self.check();
        }
    }

    fn turn(&mut self, place: Place) {
        let (must, woken) = self.slots.must_give_way(place, self.now);
        self.woken.extend(woken);
        if must {
            let outbox = self.at(place);
            outbox.stored += std::mem::take(&mut outbox.waiting);
            outbox.suspect |= std::mem::take(&mut outbox.waiting_suspect);
        }
        self.start(place);
        let outbox = self.at(place);
        if !must && !outbox.waiting_suspect && !outbox.running_suspect && outbox.waiting == 0 {
            if std::mem::take(&mut outbox.suspect) {
                outbox.waiting_suspect = true;
            } else {
                outbox.waiting = outbox.stored.min(3);
                outbox.stored -= outbox.waiting;
            }
            if outbox.waiting > 0 || outbox.waiting_suspect {
                self.woken.push(place);
            }
        }
        let holds = self.at(place).holds();
        let woken = self.slots.holds(place, holds);
        self.woken.extend(woken);
    }

    fn start(&mut self, place: Place) {
        let was_in_line = std::mem::take(&mut self.at(place).is_in_line);
        loop {
            let (now, outbox) = (self.now, self.at(place).clone());
            // Among its own, an outbox keeps a suspect alone by itself.
            let is_suspect = outbox.waiting_suspect && outbox.running == 0 && !outbox.running_suspect;
            if !is_suspect && (outbox.waiting == 0 || outbox.running_suspect || outbox.waiting_suspect) {
                break;
            }
            let (may, woken) = self.slots.ask(place, Wish { now, lease: LEASE, is_suspect });
            self.woken.extend(woken);
            let outbox = self.at(place);
            if !may {
                outbox.is_in_line = true;
                break;
            }
            if is_suspect {
                (outbox.waiting_suspect, outbox.running_suspect) = (false, true);
            } else {
                outbox.waiting -= 1;
                outbox.running += 1;
            }
        }
        if was_in_line && !self.at(place).is_in_line {
            let woken = self.slots.withdraw(place);
            self.woken.extend(woken);
        }
    }

    fn end_one(&mut self, place: Place) {
        let outbox = self.at(place);
        match (std::mem::take(&mut outbox.running_suspect), outbox.running) {
            (true, _) => {}
            (false, 0) => return,
            (false, _) => outbox.running -= 1,
        }
        let woken = self.slots.ended(place);
        self.woken.extend(woken);
        self.woken.push(place);
    }

    fn leave(&mut self, place: Place) {
        *self.at(place) = Outbox::default();
        let woken = self.slots.leave(place);
        self.woken.extend(woken);
    }

    fn check(&self) {
        let Slots { most, running, total, line, .. } = &self.slots;
        assert_eq!(*total, running.values().sum::<usize>());
        assert!(total <= most && running.values().all(|count| *count > 0));
        let here = |outbox: &Outbox| outbox.running + usize::from(outbox.running_suspect);
        assert_eq!(*total, self.outboxes.iter().map(here).sum::<usize>());
        assert!(line.iter().all(|place| line.has(place)));
        if let Some(suspect) = self.outboxes.iter().position(|outbox| outbox.running_suspect) {
            assert_eq!(*total, 1, "a suspect is not alone: {:?}", self.outboxes);
            let is_another = |(n, outbox): (usize, &Outbox)| n != suspect && outbox.holds();
            assert!(!self.outboxes.iter().enumerate().any(is_another), "{:?}", self.outboxes);
        }
    }

    fn is_done(&self) -> bool {
        self.outboxes.iter().all(|outbox| !outbox.holds() && outbox.stored == 0 && !outbox.suspect)
    }
}

/// Handlers are counted exactly, suspects run alone, and everything is handled without waiting for time to pass.
#[test]
fn everything_is_handled_and_suspects_alone() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let outboxes = random.usize(1..6);
        let mut process = Process::new(random.usize(1..5), outboxes);
        for _ in 0..150 {
            let place = Place(random.u64(..outboxes as u64));
            match random.u8(..20) {
                0..6 => process.at(place).stored += random.usize(1..5),
                6 => process.at(place).suspect = true,
                7 => process.leave(place),
                _ => process.end_one(place),
            }
            process.woken.push(place);
            process.settle();
            let is_waiting = process.outboxes.iter().any(|outbox| outbox.is_in_line);
            let may_start = process.slots.suspect.is_none() && process.slots.total < process.slots.most;
            assert!(!(is_waiting && may_start), "nobody waits while there is a slot: {:?}", process.outboxes);
        }
        for _ in 0..2_000 {
            process.end_one(Place(random.u64(..outboxes as u64)));
            process.settle();
        }
        assert!(process.is_done(), "seed {seed}: {:?} {:?}", process.outboxes, process.slots);
        assert!(process.slots.line.first().is_none() && process.slots.total == 0);
    }
}

fn wish(now: Instant, is_suspect: bool) -> Wish {
    Wish { now, lease: LEASE, is_suspect }
}

/// A suspect keeps the others waiting for a lease, and no longer; nor is it kept waiting itself for longer by them.
#[test]
fn a_suspect_has_its_time() {
    let (mut slots, now, later) = (Slots::new(4), Instant::now(), Instant::now() + 2 * LEASE);
    let (suspect, other) = (Place(1), Place(2));
    slots.holds(other, true);
    assert_eq!(slots.ask(suspect, wish(now, true)), (false, vec![other]), "who holds something is told");
    assert_eq!(slots.must_give_way(other, now), (true, vec![]));
    assert_eq!(slots.gives_way_until(other), Some(now + LEASE));
    assert_eq!(slots.gives_way_until(suspect), None);
    assert_eq!(slots.must_give_way(other, now + LEASE), (true, vec![suspect]), "it need not wait any longer");
    let (may, _) = slots.ask(suspect, wish(now + LEASE, true));
    assert!(may, "although the other still holds something");
    assert_eq!(slots.ask(other, wish(now + LEASE, false)), (false, vec![]));
    assert!(!slots.ask(suspect, wish(now + LEASE, true)).0, "no second suspect beside it");
    let (must, woken) = slots.must_give_way(other, later);
    assert!(!must && woken.contains(&other), "{woken:?}");
    assert!(slots.ask(other, wish(later, false)).0);
    assert_eq!(slots.total, 2);
}

/// Outboxes take turns, however much one of them has.
#[test]
fn the_first_in_line_is_next() {
    let (mut slots, now) = (Slots::new(1), Instant::now());
    let ask = |slots: &mut Slots, place| slots.ask(Place(place), wish(now, false));
    assert_eq!(ask(&mut slots, 1), (true, vec![]));
    for place in [2, 3, 1] {
        assert_eq!(ask(&mut slots, place), (false, vec![]));
    }
    assert_eq!(slots.ended(Place(1)), [Place(2)]);
    assert_eq!(ask(&mut slots, 1), (false, vec![Place(2)]), "not before the others");
    assert_eq!(slots.withdraw(Place(2)), [Place(3)], "whoever does not want it any more");
    assert_eq!(slots.withdraw(Place(1)), [], "was not next");
    assert_eq!(ask(&mut slots, 3), (true, vec![]));
    assert_eq!(ask(&mut slots, 2), (false, vec![]));
    assert_eq!(slots.leave(Place(3)), [Place(2)], "and who is gone runs nothing");
    assert_eq!(ask(&mut slots, 2), (true, vec![]));
}
