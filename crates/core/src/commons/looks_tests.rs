//! Tests of turns to claim: as many as allowed, no fewer, and none lost.

use super::*;
use crate::commons::selection::{DrainFirst, Fair, RoundRobin};

const PLACES: u64 = 6;

fn load(messages: usize, bytes: usize) -> Load {
    Load { messages, bytes }
}

fn looks(most: usize, most_held: Load, selection: Box<dyn Selection>) -> Looks {
    let mut looks = Looks::new(most, most_held, selection);
    (0..PLACES).for_each(|place| looks.join(Place(place), &"t".into()));
    looks
}

fn is_full(looks: &Looks) -> bool {
    looks.held.messages >= looks.most_held.messages || looks.held.bytes >= looks.most_held.bytes
}

/// Invariants at any time. A selection that keeps others waiting need not give turns.
fn check(looks: &Looks, gives_all: bool) {
    let sum = |part: fn(&Load) -> usize| looks.holds.values().map(part).sum::<usize>();
    assert_eq!(looks.held, load(sum(|load| load.messages), sum(|load| load.bytes)));
    assert!(looks.holds.values().all(|held| *held != Load::default()));
    assert!(looks.granted.len() + looks.looking.len() <= looks.most);
    for (one, other) in [(&looks.asking, &looks.granted), (&looks.granted, &looks.looking)] {
        assert!(one.is_disjoint(other));
    }
    assert!(looks.looking.is_disjoint(&looks.late));
    let has_room = looks.granted.len() + looks.looking.len() < looks.most && !is_full(looks);
    assert!(
        !(gives_all && has_room) || looks.asking.is_empty(),
        "nobody waits while there is room: {looks:?}"
    );
    let Load { messages, bytes } = looks.most_held;
    let room = load(messages.saturating_sub(looks.held.messages), bytes.saturating_sub(looks.held.bytes));
    assert_eq!(looks.room(), room);
}

/// Turns are exact after any sequence, and each outbox with a turn has been told.
#[test]
fn turns_are_exact_after_anything() {
    for seed in 0..600 {
        let mut random = fastrand::Rng::with_seed(seed);
        let selection: Box<dyn Selection> = match seed % 3 {
            0 => Box::new(Fair::default()),
            1 => Box::new(RoundRobin::default()),
            _ => Box::new(DrainFirst::default()),
        };
        let (most, most_held) = (random.usize(1..4), load(random.usize(1..30), random.usize(1..30)));
        let mut looks = looks(most, most_held, selection);
        for _ in 0..200 {
            let place = Place(random.u64(..PLACES));
            let is_looking = looks.looking.contains(&place) || looks.late.contains(&place);
            let (before, was_full) = (looks.granted.clone(), is_full(&looks));
            let told = match random.u8(..10) {
                // An outbox that is claiming does not ask.
                0..4 if !is_looking => {
                    let (may, told) = looks.ask(place);
                    assert_eq!(may, looks.looking.contains(&place));
                    assert!(!may || before.contains(&place) || !was_full, "no new turn while memory is full");
                    told
                }
                0..6 if is_looking => {
                    let limit = random.u32(1..5);
                    looks.looked(place, random.bool().then(|| (random.u32(..=limit), limit)))
                }
                6 => looks.late(place),
                7 => looks.withdraw(place),
                8 => looks.holds(place, load(random.usize(..20), random.usize(..20))),
                9 if random.u8(..5) == 0 => {
                    let told = looks.leave(place);
                    looks.join(place, &"t".into());
                    told
                }
                _ => continue,
            };
            for new in looks.granted.difference(&before) {
                assert!(told.contains(new), "{new:?} has a turn and was not told");
            }
            check(&looks, seed % 3 != 2);
        }
        // In any state, each outbox that asks gets a turn once the others have ended theirs.
        (0..PLACES).for_each(|place| drop(looks.holds(Place(place), Load::default())));
        let mut left: Vec<Place> = (0..PLACES).map(Place).collect();
        for _ in 0..10 * PLACES {
            left.retain(|place| {
                let is_looking = looks.looking.contains(place) || looks.late.contains(place);
                let may = is_looking || looks.ask(*place).0;
                if may {
                    looks.looked(*place, None);
                }
                !may
            });
        }
        assert!(left.is_empty(), "{left:?} of {looks:?}");
    }
}

/// A turn that is not wanted any more is the next one's.
#[test]
fn a_turn_given_back_is_the_next_ones() {
    let mut looks = looks(1, load(10, 10), Box::new(Fair::default()));
    assert_eq!(looks.ask(Place(1)), (true, vec![]));
    assert_eq!(looks.ask(Place(2)), (false, vec![]));
    assert_eq!(looks.ask(Place(3)), (false, vec![]));
    assert_eq!(looks.looked(Place(1), None), [Place(2)]);
    assert_eq!(looks.withdraw(Place(2)), [Place(3)], "it had a turn");
    assert_eq!(looks.ask(Place(4)), (false, vec![]));
    assert_eq!(looks.withdraw(Place(4)), [], "it had none");
    assert_eq!(looks.ask(Place(3)), (true, vec![]));
    assert_eq!(looks.ask(Place(5)), (false, vec![]));
    assert_eq!(looks.late(Place(3)), [Place(5)], "nobody waits for one that takes long");
    assert_eq!(looks.leave(Place(5)), []);
    assert_eq!(looks.holds(Place(1), load(10, 0)), []);
    assert_eq!(looks.ask(Place(2)), (false, vec![]), "memory is full");
    assert_eq!(looks.holds(Place(1), load(9, 9)), [Place(2)]);
}
