//! Tests of connections at a time: counters that are exact after whatever happens, and nobody who waits in vain.

use super::*;
use crate::commons::selection::Fair;
use crate::error::{Error, ErrorKind};
use crate::settings::Settings;

/// Connections, and what calls are under way on them, counted anew.
struct Walk {
    random: fastrand::Rng,
    connections: Connections,
    calls: Vec<(Place, Kind)>,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let connections = Connections::new(random.usize(1..5));
        Self { random, connections, calls: Vec::new() }
    }

    fn place(&mut self) -> Place {
        Place(self.random.u64(..6))
    }

    /// One of the calls of this kind, which ends.
    fn ending(&mut self, kind: Kind) -> Option<Place> {
        let of_kind: Vec<usize> = (0..self.calls.len()).filter(|n| self.calls[*n].1 == kind).collect();
        let chosen = *of_kind.get(self.random.usize(..of_kind.len().max(1)))?;
        Some(self.calls.swap_remove(chosen).0)
    }

    fn step(&mut self) {
        let (place, is_up) = (self.place(), self.random.u8(..3) > 0);
        match self.random.u8(..16) {
            0..6 => self.begin(place),
            6..10 => {
                if let Some(place) = self.ending(Kind::Connection) {
                    self.connections.give_back(place, is_up);
                }
            }
            10..12 => {
                if let Some(place) = self.ending(Kind::Connection) {
                    let may = self.connections.attempts < self.connections.most;
                    assert_eq!(self.connections.late(place), may, "as many attempts as connections");
                    self.calls.push((place, if may { Kind::Attempt } else { Kind::Connection }));
                }
            }
            12..14 => {
                if let Some(place) = self.ending(Kind::Attempt) {
                    let is_full = self.connections.open == self.connections.most;
                    let rests = self.connections.attempt_ended(place, is_up);
                    assert_eq!(rests, is_up && is_full, "what is one too many is closed");
                }
            }
            14 => {
                let idle: Vec<Place> = self.connections.idle.values().copied().collect();
                let mut unused = self.connections.unused(Instant::now(), Duration::ZERO);
                unused.sort();
                let mut expected = idle;
                expected.sort();
                assert_eq!(unused, expected);
            }
            _ => {
                if self.calls.iter().all(|(other, _)| *other != place) {
                    self.connections.leave(place);
                }
            }
        }
    }

    fn begin(&mut self, place: Place) {
        let Connections { open, most, .. } = self.connections;
        let longest = self.connections.idle.first_key_value().map(|(_, place)| *place);
        let has_one = self.connections.lines.get(&place).is_some_and(|line| line.in_use < line.open);
        match self.connections.take_turn(place, None) {
            Some(Grant { rests }) => {
                let must_one = !has_one && open == most;
                assert_eq!(
                    rests,
                    longest.filter(|_| must_one),
                    "whoever was not called for longest, if one must"
                );
                self.calls.push((place, Kind::Connection));
            }
            None => assert!(!has_one && open == most && longest.is_none(), "there was one to be had"),
        }
    }

    fn check(&self) {
        let Connections { most, open, attempts, lines, idle, .. } = &self.connections;
        let of_kind = |kind: Kind| self.calls.iter().filter(move |(_, other)| *other == kind);
        assert_eq!(*open, lines.values().map(|line| line.open).sum::<usize>());
        assert!(open <= most && attempts <= most);
        assert_eq!(*attempts, of_kind(Kind::Attempt).count());
        for (place, line) in lines {
            assert_eq!(line.in_use, of_kind(Kind::Connection).filter(|(other, _)| other == place).count());
            assert!(line.in_use <= line.open);
            assert_eq!(line.idle.is_some(), line.open > 0 && line.in_use == 0, "{place:?} {line:?}");
            assert!(line.idle.is_none_or(|tick| idle.get(&tick) == Some(place)));
        }
        assert_eq!(idle.len(), lines.values().filter(|line| line.idle.is_some()).count());
    }
}

/// Every counter is exact after any sequence of calls, whatever became of them, and a connection that nobody uses can always
/// be had.
#[tokio::test(start_paused = true)]
async fn counters_are_exact_after_anything() {
    for seed in 0..300 {
        let mut walk = Walk::new(seed);
        for _ in 0..200 {
            walk.step();
            walk.check();
        }
    }
}

fn commons(connections: u32) -> Arc<Commons> {
    let settings = Settings { tenants_connections: connections, ..Settings::default() };
    Commons::new(&settings, Box::new(Fair::default()))
}

/// Begins to wait for a connection.
async fn waiting(commons: &Arc<Commons>, place: u64) -> tokio::task::JoinHandle<Permit> {
    let (of, before) = (Arc::clone(commons), lock(&commons.connections).waiting.len());
    let waiting = tokio::spawn(async move { Permit::acquire(&of, Place(place)).await });
    tokio::task::yield_now().await;
    assert_eq!(lock(&commons.connections).waiting.len(), before + 1, "it waits");
    waiting
}

/// What it waited for.
async fn served(waiting: tokio::task::JoinHandle<Permit>) -> Permit {
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("it is served").unwrap()
}

/// Whoever gives up while he waits is not in the way of the next.
#[tokio::test(start_paused = true)]
async fn who_gives_up_lets_the_next_one_in() {
    let commons = commons(1);
    let first = Permit::acquire(&commons, Place(1)).await;
    let (second, third) = (waiting(&commons, 2).await, waiting(&commons, 3).await);
    // He was called already when he gives up.
    first.done(true).await;
    second.abort();
    let third = served(third).await;
    assert_eq!((commons.connections(), third.place), ((1, 0), Place(3)));
    assert!(lock(&commons.connections).waiting.is_empty());
}

/// Nobody who comes overtakes those who wait, unless his connection is open.
#[tokio::test(start_paused = true)]
async fn nobody_overtakes() {
    let commons = commons(2);
    let (one, two) = (Permit::acquire(&commons, Place(1)).await, Permit::acquire(&commons, Place(2)).await);
    let (third, fourth) = (waiting(&commons, 3).await, waiting(&commons, 4).await);
    one.done(true).await;
    // One is free now, and the third has not come for it yet.
    assert!(lock(&commons.connections).take_turn(Place(5), None).is_none());
    let third = served(third).await;
    two.done(true).await;
    let fourth = served(fourth).await;
    let counts = |place| lock(&commons.connections).lines[&Place(place)].open;
    assert_eq!([1, 2, 3, 4].map(counts), [0, 0, 1, 1], "those that were called least lately closed theirs");
    drop((third, fourth));
}

/// A call that is dropped gives its connection back, closed; an attempt is no attempt any more.
#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_back() {
    let commons = commons(1);
    drop(Permit::acquire(&commons, Place(1)).await);
    assert_eq!(commons.connections(), (0, 0));
    let mut late = Permit::acquire(&commons, Place(1)).await;
    late.late();
    assert_eq!(commons.connections(), (0, 1), "it is an attempt, and others need not wait for it");
    let other = Permit::acquire(&commons, Place(2)).await;
    drop(late);
    assert_eq!(commons.connections(), (1, 0));
    other.done(true).await;
    assert_eq!(commons.connections(), (1, 0), "it stays open");
    Permit::acquire(&commons, Place(2)).await.done(false).await;
    assert_eq!(commons.connections(), (0, 0), "what was lost is not open");
}

/// After an error of which the connection may be the cause it is not open any more; after any other it is.
#[tokio::test(start_paused = true)]
async fn which_errors_cost_a_connection() {
    for (kind, open) in [
        (ErrorKind::Unavailable, 0),
        (ErrorKind::Permission, 0),
        (ErrorKind::CommitUnknown, 0),
        (ErrorKind::Database, 1),
        (ErrorKind::NotFound, 1),
    ] {
        let commons = commons(1);
        let share = commons.share();
        share.call(async { Ok(()) }).await.unwrap();
        assert_eq!(commons.connections(), (1, 0));
        share.call(async { Err::<(), _>(Error::new(kind, "")) }).await.unwrap_err();
        assert_eq!(commons.connections(), (open, 0), "{kind:?}");
    }
}

/// However many come, and whatever becomes of their calls, everybody is served who does not give up.
#[tokio::test(start_paused = true)]
async fn everybody_is_served() {
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let commons = commons(random.u32(1..5));
        let most = lock(&commons.connections).most;
        let calls: Vec<_> = (0..300)
            .map(|_| {
                let (commons, mut random) = (Arc::clone(&commons), random.fork());
                tokio::spawn(async move {
                    let pause = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(..400));
                    tokio::time::sleep(pause(&mut random)).await;
                    let acquiring = Permit::acquire(&commons, Place(random.u64(..10)));
                    let patience = if random.u8(..4) == 0 { pause(&mut random) } else { Duration::MAX };
                    let Ok(mut permit) = tokio::time::timeout(patience, acquiring).await else { return };
                    tokio::time::sleep(pause(&mut random)).await;
                    if random.u8(..4) == 0 {
                        permit.late();
                        tokio::time::sleep(pause(&mut random)).await;
                    }
                    match random.u8(..4) {
                        0 => drop(permit),
                        end => permit.done(end > 1).await,
                    }
                })
            })
            .collect();
        for call in calls {
            tokio::time::timeout(Duration::from_secs(600), call).await.expect("it is served").unwrap();
        }
        let mut connections = lock(&commons.connections);
        assert!(connections.open <= most && connections.attempts == 0 && connections.waiting.is_empty());
        connections.unused(Instant::now(), Duration::ZERO);
        assert_eq!(connections.counts(), (0, 0), "whatever is open can be closed");
    }
}
