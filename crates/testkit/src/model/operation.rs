//! Random operations of a user, worker or operator: small values from small sets, so that they collide.
//!
//! Every duration is a multiple of [`UNIT`], or half of one: the difference of the two clocks must never decide
//! anything. Cases that the contract leaves open (which of several messages a limited prune takes, for example) must
//! not be drawn.

use std::time::{Duration, SystemTime};

use posthaste_core::{
    Failure, FailureClass, Filter, MessageId, NewMessage, OrderPolicy, Outcome, State, Topics, Turn,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::joins::{End, Move, end, moves, start, whole};

/// What all durations are multiples of.
pub(super) const UNIT: Duration = Duration::from_secs(1_000);

/// One step of a sequence.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Enqueue {
        batch: Vec<Draft>,
        how: How,
    },
    Claim {
        worker: u8,
        limit: u32,
        lease: u32,
        topics: &'static [&'static str],
    },
    Settle {
        picks: Vec<(Pick, Verdict, Handled)>,
        delete: bool,
    },
    Renew {
        picks: Vec<Pick>,
        lease: u32,
    },
    Reap,
    Expire,
    Park,
    /// Of these topics.
    Hasten {
        topics: &'static [&'static str],
        limit: u32,
    },
    Prune {
        done: u32,
        dead: Option<u32>,
        archive: bool,
    },
    Requeue(Choice),
    Bury(Choice),
    Turn {
        job: u8,
        turn: Ask,
    },
    /// Moves with joins in one transaction.
    Join {
        moves: Vec<Move>,
        end: End,
    },
    /// Looks at a join, counted from the newest.
    Look(usize),
    /// The waiting message, counted from the newest, sends its continuation; or one that waits for nothing does.
    Continue {
        wait: usize,
        stranger: bool,
        continuation: Option<Draft>,
    },
    PruneJoins(u32),
    Advance(u32),
}

/// In which transaction a batch is enqueued.
#[derive(Clone, Copy, Debug)]
pub(super) enum How {
    Alone,
    Committed,
    RolledBack,
    /// After so many of the batch there is a savepoint, and the rest is rolled back to it.
    SavepointAt(usize),
    Leased,
}

/// A message to be.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    topic: &'static str,
    key: Option<&'static str>,
    order: OrderPolicy,
    priority: i16,
    due: Due,
    expires: Option<i8>,
    dedup: Option<u8>,
    /// The id of a message of before, rather than a new one.
    again: Option<usize>,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Now,
    After(u32),
    At(i8),
}

/// A lease out of all that there ever were, counted from the newest, or one that never was.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pick {
    pub(super) index: usize,
    pub(super) later: i32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Verdict {
    Ack,
    Abandon { units: u32, class: FailureClass, max_attempts: u32, max_age: Option<u32> },
    Defer(u32),
    Release,
    Fail(FailureClass),
}

/// Which handlers are said to be done, if any are.
pub(super) type Handled = Option<&'static [&'static str]>;

/// Which turn of a job is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ask {
    Every(u32),
    At(i8),
}

impl Ask {
    /// The turn for a store where it is now this late.
    pub(super) fn turn(self, now: SystemTime) -> Turn {
        match self {
            Self::Every(units) => Turn::Every(UNIT * units),
            Self::At(units) => Turn::At(shift(now, units)),
        }
    }
}

/// An operator's filter.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    state: Option<State>,
    topics: Option<&'static str>,
    key: Option<&'static str>,
    class: Option<FailureClass>,
    ids: Vec<usize>,
    pub(super) limit: u32,
    pub(super) dry_run: bool,
}

/// So many and a half units from now: a given time and a delay are added to clocks that were read at different moments,
/// and must not come so close that this decides which is first.
pub(super) fn shift(now: SystemTime, units: i8) -> SystemTime {
    let by = UNIT * u32::from(units.unsigned_abs());
    if units < 0 { now - by + UNIT / 2 } else { now + by + UNIT / 2 }
}

impl Draft {
    /// The message for a store where it is now this late. Its id is the caller's, so that two stores get the same.
    pub(super) fn message(&self, id: MessageId, known: &[MessageId], now: SystemTime) -> NewMessage {
        let again = self.again.filter(|_| !known.is_empty()).map(|index| known[index % known.len()]);
        let mut draft = NewMessage::bytes(self.topic, self.topic)
            .order(self.order)
            .priority(self.priority)
            .id(again.unwrap_or(id));
        if let Some(key) = self.key {
            draft = draft.key(key);
        }
        draft = match self.due {
            Due::Now => draft,
            Due::After(units) => draft.delay(UNIT * units),
            Due::At(units) => draft.due_at(shift(now, units)),
        };
        draft = match self.expires {
            None => draft,
            Some(units @ 0..) => draft.expires_after(UNIT * u32::from(units.unsigned_abs())),
            Some(units) => draft.expires_at(shift(now, units)),
        };
        // A message that is one stored message by its id and another by its dedup key has no right answer.
        if let (Some(dedup), None) = (self.dedup, again) {
            draft = draft.dedup_key([dedup]);
        }
        draft.build().unwrap()
    }
}

impl Verdict {
    pub(super) fn outcome(self) -> Outcome {
        match self {
            Self::Ack => Outcome::Ack,
            Self::Abandon { units, class, max_attempts, max_age } => {
                let failure = Failure::new(class, format!("abandoned for {units}"));
                let max_age = max_age.map(|units| UNIT * units);
                Outcome::Abandon { delay: UNIT * units, failure, max_attempts, max_age }
            }
            Self::Defer(units) => Outcome::Defer { delay: UNIT * units },
            Self::Release => Outcome::Release,
            Self::Fail(class) => Outcome::Fail { failure: Failure::new(class, "failed") },
        }
    }
}

impl Choice {
    pub(super) fn filter(&self, known: &[MessageId]) -> Filter {
        let known_ids = self.ids.iter().filter(|_| !known.is_empty()).map(|index| known[index % known.len()]);
        Filter {
            state: self.state,
            topics: self.topics.map_or_else(Topics::all, |topic| Topics::of([topic]).unwrap()),
            key: self.key.map(str::to_owned),
            class: self.class,
            ids: known_ids.collect(),
            ..Filter::default()
        }
    }
}

const TOPICS: [&str; 4] = ["a", "A", "a.b", "c"];
const KEYS: [&str; 4] = ["k", "k", "K", "k "];

fn class() -> impl Strategy<Value = FailureClass> {
    use FailureClass::{Business, Infrastructure, Permanent, TooLarge, Unroutable};
    select(&[Business, Business, Infrastructure, Unroutable, Permanent, TooLarge][..])
}

pub(super) fn draft() -> impl Strategy<Value = Draft> {
    let due = prop_oneof![
        6 => Just(Due::Now),
        1 => (0..3u32).prop_map(Due::After),
        1 => (-2..3i8).prop_map(Due::At),
    ];
    let order = select(&[OrderPolicy::Block, OrderPolicy::Park, OrderPolicy::Park, OrderPolicy::Skip][..]);
    let key = prop::option::weighted(0.5, select(&KEYS[..]));
    let again = prop::option::weighted(0.1, 0..1_000usize);
    let expires = prop::option::weighted(0.15, -1..4i8);
    let dedup = prop::option::weighted(0.2, 0..3u8);
    (select(&TOPICS[..]), key, order, -1..2i16, due, expires, dedup, again).prop_map(
        |(topic, key, order, priority, due, expires, dedup, again)| Draft {
            topic,
            key,
            order,
            priority,
            due,
            expires,
            dedup,
            again,
        },
    )
}

fn pick() -> impl Strategy<Value = Pick> {
    (prop_oneof![3 => 0..4usize, 1 => 0..1_000usize], prop_oneof![9 => Just(0), 1 => -1..2i32])
        .prop_map(|(index, later)| Pick { index, later })
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        3 => Just(Verdict::Ack),
        4 => (0..3u32, class(), 1..4u32, prop::option::of(0..4u32)).prop_map(
            |(units, class, max_attempts, max_age)| Verdict::Abandon { units, class, max_attempts, max_age }
        ),
        1 => (0..3u32).prop_map(Verdict::Defer),
        1 => Just(Verdict::Release),
        3 => class().prop_map(Verdict::Fail),
    ]
}

fn handled() -> impl Strategy<Value = Handled> {
    let lists: [&'static [&'static str]; 4] = [&["a"], &["a", "b"], &["a", "b"], &[]];
    prop::option::weighted(0.4, select(lists.to_vec()))
}

fn choice() -> impl Strategy<Value = Choice> {
    (
        prop::option::weighted(0.1, select(&State::ALL[..])),
        prop::option::weighted(0.1, select(&["a", "a*", "c"][..])),
        prop::option::weighted(0.1, select(&KEYS[..])),
        prop::option::weighted(0.1, class()),
        prop_oneof![5 => Just(vec![]), 1 => vec(0..1_000usize, 1..3)],
        1..5u32,
        prop::bool::weighted(0.2),
    )
        .prop_map(|(state, topics, key, class, ids, limit, dry_run)| Choice {
            state,
            topics,
            key,
            class,
            ids,
            limit,
            dry_run,
        })
}

/// A few steps that belong together: chance alone would seldom lose a lease, or park anything.
pub(super) fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let claim = |limit| Operation::Claim { worker: 0, limit, lease: 1, topics: &["*"] };
    let newest = |index| Pick { index, later: 0 };
    let crash = (1..4u32).prop_map(move |limit| vec![claim(limit), Operation::Advance(2), Operation::Reap]);
    let deleting = prop::bool::weighted(0.4);
    let settled =
        (1..4u32, verdict(), handled(), deleting).prop_map(move |(limit, verdict, handled, delete)| {
            let picks = (0..2).map(|index| (newest(index), verdict, handled)).collect();
            vec![claim(limit), Operation::Settle { picks, delete }]
        });
    let poisoned = class().prop_map(move |class| {
        let picks = (0..4).map(|index| (newest(index), Verdict::Fail(class), None)).collect();
        vec![claim(4), Operation::Settle { picks, delete: false }, Operation::Park]
    });
    let outage = move |units: u32| {
        let class = FailureClass::Infrastructure;
        let verdict = Verdict::Abandon { units: 0, class, max_attempts: 1, max_age: Some(units) };
        vec![claim(1), Operation::Settle { picks: vec![(newest(0), verdict, None)], delete: false }]
    };
    let failing = (1..4u32, 1..4u32)
        .prop_map(move |(age, units)| [outage(age), vec![Operation::Advance(units)], outage(age)].concat());
    // Joins whose steps end, with waits that are deferred before or afterwards.
    let steps = (whole(), end(), vec(verdict(), 1..3)).prop_map(move |(moves, end, verdicts)| {
        let settle = |verdict| {
            let picks = (0..3).map(|index| (newest(index), verdict, None)).collect();
            Operation::Settle { picks, delete: false }
        };
        let rounds = verdicts.into_iter().flat_map(|verdict| [claim(3), settle(verdict)]);
        std::iter::once(Operation::Join { moves, end }).chain(rounds).collect()
    });
    let waiting = (whole(), 0..2u32).prop_map(move |(mut moves, delay)| {
        moves.push(Move::Wait { join: 0, delay: 0 });
        let over = Operation::Join { moves: vec![Move::Cancel(0)], end: End::Commit };
        let settle = |picks: usize| {
            let picks = (0..picks).map(|index| (newest(index), Verdict::Defer(delay), None)).collect();
            Operation::Settle { picks, delete: false }
        };
        vec![Operation::Join { moves, end: End::Commit }, claim(4), over, settle(4)]
    });
    // And joins whose deadline passes.
    let overdue = (start(1..4), prop_oneof![Just(Operation::Look(0)), Just(Operation::Expire)]).prop_map(
        |(start, notice)| {
            let moves = vec![start.expiring(1), Move::Wait { join: 0, delay: 2 }];
            vec![Operation::Join { moves, end: End::Commit }, Operation::Advance(2), notice]
        },
    );
    prop_oneof![
        17 => operation().prop_map(|operation| vec![operation]),
        2 => crash,
        3 => settled,
        2 => poisoned,
        1 => failing,
        3 => steps,
        1 => waiting,
        1 => overdue,
    ]
}

/// One step.
fn operation() -> impl Strategy<Value = Operation> {
    let how = prop_oneof![
        2 => Just(How::Alone),
        2 => Just(How::Committed),
        1 => Just(How::RolledBack),
        1 => (0..3usize).prop_map(How::SavepointAt),
        1 => Just(How::Leased),
    ];
    let topics: [&'static [&'static str]; 8] =
        [&["*"], &["*"], &["*"], &["*"], &["*"], &["a"], &["a*", "c"], &[]];
    prop_oneof![
        9 => (vec(draft(), 1..6), how).prop_map(|(batch, how)| Operation::Enqueue { batch, how }),
        6 => (0..2u8, 1..5u32, 1..4u32, select(topics.to_vec())).prop_map(
            |(worker, limit, lease, topics)| Operation::Claim { worker, limit, lease, topics }
        ),
        6 => (vec((pick(), verdict(), handled()), 1..5), prop::bool::weighted(0.2))
            .prop_map(|(picks, delete)| Operation::Settle { picks, delete }),
        1 => (vec(pick(), 1..4), 1..4u32).prop_map(|(picks, lease)| Operation::Renew { picks, lease }),
        2 => Just(Operation::Reap),
        1 => Just(Operation::Expire),
        2 => Just(Operation::Park),
        2 => (select(topics.to_vec()), 1..4u32)
            .prop_map(|(topics, limit)| Operation::Hasten { topics, limit }),
        3 => (0..2u32, prop::option::weighted(0.7, 0..3u32), any::<bool>())
            .prop_map(|(done, dead, archive)| Operation::Prune { done, dead, archive }),
        3 => choice().prop_map(Operation::Requeue),
        1 => choice().prop_map(Operation::Bury),
        2 => (0..2u8, prop_oneof![(0..3u32).prop_map(Ask::Every), (-3..2i8).prop_map(Ask::At)])
            .prop_map(|(job, turn)| Operation::Turn { job, turn }),
        8 => (moves(), end()).prop_map(|(moves, end)| Operation::Join { moves, end }),
        2 => (0..5usize).prop_map(Operation::Look),
        3 => (0..4usize, prop::bool::weighted(0.1), prop::option::weighted(0.8, draft())).prop_map(
            |(wait, stranger, continuation)| Operation::Continue { wait, stranger, continuation }
        ),
        1 => (0..2u32).prop_map(Operation::PruneJoins),
        3 => (1..4u32).prop_map(Operation::Advance),
    ]
}
