//! Tests of the connection budget: counters are exact after any sequence of calls, and no caller waits in vain.

use super::*;
use crate::commons::selection::Fair;
use crate::error::{Error, ErrorKind};
use crate::settings::Settings;

/// Connections, and the calls under way on them, counted from the start.
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
        let place = self.place();
        let ending =
            Ending { is_up: self.random.u8(..3) > 0, took: Duration::from_millis(self.random.u64(..400)) };
        match self.random.u8(..18) {
            0..6 => self.begin(place),
            6..10 => {
                let kind = if self.random.bool() { Kind::Connection } else { Kind::Stuck };
                if let Some(place) = self.ending(kind) {
                    self.connections.give_back(place, kind, ending);
                }
            }
            10..12 => self.outlast(),
            12..16 => {
                let kind = if self.random.bool() { Kind::Late } else { Kind::Retry };
                if let Some(place) = self.ending(kind) {
                    let is_full = self.connections.open == self.connections.most;
                    let rests = self.connections.end_outside(place, kind, ending);
                    assert_eq!(rests, ending.is_up && is_full, "what is one too many is closed");
                }
            }
            16 => {
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

    /// A call outlasts the patience, at a time when other stores have answered since it began, or have not.
    fn outlast(&mut self) {
        let kind = if self.random.bool() { Kind::Connection } else { Kind::Stuck };
        let Some(place) = self.ending(kind) else { return };
        self.connections.stuck += usize::from(kind == Kind::Connection);
        let now = Instant::now();
        self.connections.answered = Some(now);
        let began = if self.random.bool() { now } else { now - Duration::from_millis(1) };
        let Connections { late, stuck, most, .. } = self.connections;
        let is_mass_outage = began < now && 4 * stuck >= most;
        let has_room = late < if is_mass_outage { LATE_PER_CONNECTION * most } else { spare(most) };
        let may = has_room || self.connections.needs_relief(Instant::now());
        assert_eq!(self.connections.leave_budget(place, began), may, "late calls have a bound");
        assert!(self.connections.is_silent(place));
        self.calls.push((place, if may { Kind::Late } else { Kind::Stuck }));
    }

    fn begin(&mut self, place: Place) {
        let Connections { open, most, retries, .. } = self.connections;
        let longest = self.connections.idle.first_key_value().map(|(_, place)| *place);
        let has_one = self.connections.lines.get(&place).is_some_and(|line| line.in_use < line.open);
        let is_silent = self.connections.is_silent(place);
        match self.connections.take_turn(place, Priority::Normal, None) {
            Some(Grant { kind, rests }) => {
                let must_one = !is_silent && !has_one && open == most;
                assert_eq!(
                    rests,
                    longest.filter(|_| must_one),
                    "the store that was called longest ago, if one must"
                );
                assert_eq!(kind, if is_silent { Kind::Retry } else { Kind::Connection });
                self.calls.push((place, kind));
            }
            None if is_silent => assert_eq!(retries, spare(most), "there was a retry to be had"),
            None => assert!(!has_one && open == most && longest.is_none(), "there was one to be had"),
        }
    }

    fn check(&self) {
        let Connections { most, open, late, retries, stuck, lines, idle, .. } = &self.connections;
        let of_kind = |kind: Kind| self.calls.iter().filter(move |(_, other)| *other == kind);
        assert_eq!(*open, lines.values().map(|line| line.open).sum::<usize>());
        assert!(open <= most && *late <= LATE_PER_CONNECTION * most && *retries <= spare(*most));
        assert_eq!(*late, of_kind(Kind::Late).count());
        assert_eq!(*retries, of_kind(Kind::Retry).count());
        assert_eq!(*stuck, of_kind(Kind::Stuck).count());
        for (place, line) in lines {
            let within = of_kind(Kind::Connection).chain(of_kind(Kind::Stuck));
            assert_eq!(line.in_use, within.filter(|(other, _)| other == place).count());
            assert!(line.in_use <= line.open);
            assert_eq!(line.idle.is_some(), line.open > 0 && line.in_use == 0, "{place:?} {line:?}");
            assert!(line.idle.is_none_or(|tick| idle.get(&tick) == Some(place)));
        }
        assert_eq!(idle.len(), lines.values().filter(|line| line.idle.is_some()).count());
    }
}

/// Every counter is exact after any sequence of calls, successful or not, and an unused connection is always available.
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

async fn acquire(commons: &Arc<Commons>, place: u64) -> Permit {
    Permit::acquire(commons, Place(place), Priority::Normal).await
}

fn waiting_now(commons: &Commons) -> usize {
    let connections = lock(&commons.connections);
    connections.waiting.len() + connections.waiting_to_retry.len()
}

/// Begins to wait for a permit.
async fn waiting(commons: &Arc<Commons>, place: u64) -> tokio::task::JoinHandle<Permit> {
    waiting_with(commons, place, Priority::Normal).await
}

async fn waiting_with(
    commons: &Arc<Commons>,
    place: u64,
    priority: Priority,
) -> tokio::task::JoinHandle<Permit> {
    let (of, before) = (Arc::clone(commons), waiting_now(commons));
    let waiting = tokio::spawn(async move { Permit::acquire(&of, Place(place), priority).await });
    tokio::task::yield_now().await;
    assert_eq!(waiting_now(commons), before + 1, "it waits");
    waiting
}

/// What it waited for.
async fn served(waiting: tokio::task::JoinHandle<Permit>) -> Permit {
    tokio::time::timeout(Duration::from_secs(120), waiting).await.expect("it is served").unwrap()
}

/// A caller that gives up while it waits does not block the next.
#[tokio::test(start_paused = true)]
async fn who_gives_up_lets_the_next_one_in() {
    let commons = commons(1);
    let first = acquire(&commons, 1).await;
    let (second, third) = (waiting(&commons, 2).await, waiting(&commons, 3).await);
    // It was called already when it gives up.
    first.done(true).await;
    second.abort();
    let third = served(third).await;
    assert_eq!((commons.connections(), third.place), ((1, 0), Place(3)));
    assert_eq!(waiting_now(&commons), 0);
}

/// No new caller overtakes waiting ones, unless its connection is open.
#[tokio::test(start_paused = true)]
async fn nobody_overtakes() {
    let commons = commons(2);
    let (one, two) = (acquire(&commons, 1).await, acquire(&commons, 2).await);
    let (third, fourth) = (waiting(&commons, 3).await, waiting(&commons, 4).await);
    one.done(true).await;
    // One is free now, and the third has not come for it yet.
    assert!(lock(&commons.connections).take_turn(Place(5), Priority::Normal, None).is_none());
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
    drop(acquire(&commons, 1).await);
    assert_eq!(commons.connections(), (0, 0));
    let mut late = acquire(&commons, 1).await;
    assert!(late.outlasted());
    assert_eq!(commons.connections(), (0, 1), "it is late, and others need not wait for it");
    let other = acquire(&commons, 2).await;
    drop(late);
    assert_eq!(commons.connections(), (1, 0));
    other.done(true).await;
    assert_eq!(commons.connections(), (1, 0), "it stays open");
    acquire(&commons, 2).await.done(false).await;
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
        share.call(Priority::Normal, async { Ok(()) }).await.unwrap();
        assert_eq!(commons.connections(), (1, 0));
        share.call(Priority::Normal, async { Err::<(), _>(Error::new(kind, "")) }).await.unwrap_err();
        assert_eq!(commons.connections(), (open, 0), "{kind:?}");
    }
}

/// With any number of callers and failures, each caller that does not give up is served.
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
                    let acquiring = acquire(&commons, random.u64(..10));
                    let patience = if random.u8(..4) == 0 { pause(&mut random) } else { Duration::MAX };
                    let Ok(mut permit) = tokio::time::timeout(patience, acquiring).await else { return };
                    tokio::time::sleep(pause(&mut random)).await;
                    if random.u8(..4) == 0 {
                        permit.outlasted();
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
        assert_eq!(waiting_now(&commons), 0);
        let mut connections = lock(&commons.connections);
        assert!(connections.open <= most && connections.stuck == 0);
        connections.unused(Instant::now(), Duration::ZERO);
        assert_eq!(connections.counts(), (0, 0), "everything that is open can be closed");
    }
}

/// R2: settling and renewing go before everything that came earlier, and among themselves in their order.
#[tokio::test(start_paused = true)]
async fn the_urgent_go_first() {
    let commons = commons(1);
    let mut held = acquire(&commons, 1).await;
    let normal = waiting(&commons, 2).await;
    let first = waiting_with(&commons, 3, Priority::High).await;
    let second = waiting_with(&commons, 4, Priority::High).await;
    for (waiting, place) in [(first, 3), (second, 4), (normal, 2)] {
        held.done(true).await;
        held = served(waiting).await;
        assert_eq!(held.place, Place(place));
    }
    let normal = waiting(&commons, 5).await;
    held.done(true).await;
    let urgent = Permit::acquire(&commons, Place(6), Priority::High).await;
    urgent.done(true).await;
    drop(served(normal).await);
}

/// A store that outlasts the patience is called within a small budget of its own, until it answers, or refuses, in time.
#[tokio::test(start_paused = true)]
async fn a_silent_store_has_a_budget_of_its_own() {
    for is_up in [true, false] {
        let commons = commons(2);
        let mut late = acquire(&commons, 1).await;
        let patience = late.patience();
        assert!(late.outlasted());
        let (retry, other) = (acquire(&commons, 1).await, acquire(&commons, 2).await);
        assert_eq!((retry.kind, other.kind), (Kind::Retry, Kind::Connection));
        let next = waiting(&commons, 1).await;
        tokio::time::sleep(patience).await;
        late.done(false).await;
        assert!(lock(&commons.connections).is_silent(Place(1)), "it did not answer");
        assert_eq!(waiting_now(&commons), 1, "only one retry at a time");
        retry.done(false).await;
        let next = served(next).await;
        assert_eq!(next.kind, Kind::Retry);
        let waiting = waiting(&commons, 1).await;
        next.done(is_up).await;
        let answered = served(waiting).await;
        assert_eq!(answered.kind, Kind::Connection, "who answers is not silent any more");
        drop((answered, other));
    }
}

/// The calls to a store that answers again do not wait behind those to a silent one.
#[tokio::test(start_paused = true)]
async fn a_store_that_answers_again_leaves_the_silent_ones() {
    let commons = commons(4);
    let mut late = [acquire(&commons, 1).await, acquire(&commons, 2).await];
    for call in &mut late {
        assert!(call.outlasted());
    }
    let retries = [acquire(&commons, 1).await, acquire(&commons, 2).await];
    assert!(retries.iter().all(|call| call.kind == Kind::Retry));
    let silent = waiting(&commons, 2).await;
    let answering = waiting(&commons, 1).await;
    let [retry, _other] = retries;
    retry.done(true).await;
    assert_eq!(served(answering).await.kind, Kind::Connection);
    assert_eq!(served(silent).await.kind, Kind::Retry);
}

/// While no store answers, calls leave a full budget one at a time, and seldom. While others answer, and many are stuck, more do.
#[tokio::test(start_paused = true)]
async fn a_stall_of_everything_opens_few_connections() {
    let commons = commons(4);
    let mut calls = Vec::new();
    for place in 0..7 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut call = acquire(&commons, place).await;
        let _ = call.outlasted();
        calls.push(call);
    }
    assert_eq!(commons.connections(), (4, 3), "two are spare, and one left so that another store is tried");
    assert!(!calls[6].outlasted(), "one has left already");
    tokio::time::sleep(RELIEF_EVERY).await;
    assert!(calls[6].outlasted(), "it is time for another one");
    calls.push(acquire(&commons, 7).await);
    assert!(!calls[7].outlasted(), "no store has answered");
    tokio::time::sleep(Duration::from_millis(1)).await;
    calls.remove(0).done(true).await;
    assert!(calls[6].outlasted(), "another store has answered");
}

/// R2: a store that makes one call after the other does not keep its connection from a settlement that waits.
#[tokio::test(start_paused = true)]
async fn an_open_connection_overtakes_nothing_urgent() {
    let commons = commons(1);
    let first = acquire(&commons, 1).await;
    let settling = tokio::spawn({
        let commons = Arc::clone(&commons);
        async move { Permit::acquire(&commons, Place(2), Priority::High).await.done(true).await }
    });
    while lock(&commons.connections).waiting.len() == 0 {
        tokio::task::yield_now().await;
    }
    first.done(true).await;
    // On one thread the settlement has not run yet.
    let again = acquire(&commons, 1).await;
    assert!(settling.is_finished(), "the settlement came first");
    again.done(true).await;
}

/// R3: stores that hang with several calls each leave no connection to the others, until one of the calls makes room.
#[tokio::test(start_paused = true)]
async fn several_calls_of_silent_stores_keep_no_connection_from_others() {
    let commons = commons(2);
    let mut calls = [acquire(&commons, 1).await, acquire(&commons, 1).await];
    assert!(calls[0].outlasted() && !calls[1].outlasted());
    let mut hung = acquire(&commons, 2).await;
    assert!(hung.outlasted(), "both connections were stuck");
    let healthy = tokio::time::timeout(Duration::from_millis(1), acquire(&commons, 3)).await;
    assert!(healthy.is_ok(), "the third store is called");
}

/// Patience follows what calls take: a slow network has no silent stores, and one long call changes little.
#[tokio::test(start_paused = true)]
async fn patience_follows_what_calls_take() {
    let commons = commons(1);
    for (took, least, most) in [(2, 20, 20), (100, 300, 400), (5_000, 1_000, 1_000), (2, 20, 20)] {
        for _ in 0..100 {
            let call = acquire(&commons, 1).await;
            tokio::time::sleep(Duration::from_millis(took)).await;
            call.done(true).await;
        }
        let patience = lock(&commons.connections).patience();
        assert!((least..=most).contains(&patience.as_millis()), "{took} ms: {patience:?}");
    }
    let before = lock(&commons.connections).patience();
    let long = acquire(&commons, 1).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    long.done(true).await;
    assert!(lock(&commons.connections).patience() <= 2 * before);
}

/// Retries are served in their order: stores that cannot settle do not keep others from being tried.
#[tokio::test(start_paused = true)]
async fn retries_are_served_in_their_order() {
    let commons = commons(2);
    let long = Duration::from_secs(3);
    for place in 1..=3 {
        let mut call = acquire(&commons, place).await;
        let _ = call.outlasted();
        tokio::time::sleep(long).await;
        call.done(false).await;
    }
    let retry = acquire(&commons, 3).await;
    let normal = waiting(&commons, 1).await;
    let urgent = waiting_with(&commons, 2, Priority::High).await;
    tokio::time::sleep(long).await;
    retry.done(false).await;
    let normal = served(normal).await;
    assert_eq!(waiting_now(&commons), 1, "the urgent one came later");
    normal.done(false).await;
    assert_eq!(served(urgent).await.kind, Kind::Retry);
}
