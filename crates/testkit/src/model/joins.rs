//! Random moves of a user with joins in one transaction, applied to both stores.
//!
//! Moves refer to joins and messages by number, so that moves can be left out when a sequence is shrunk. A number may
//! then mean another one, an unknown one, or one that was rolled back.

use std::time::{Duration, SystemTime};

use posthaste_core::{
    Attached, Birth, EndedJoin, Enqueued, Error, JoinId, JoinStore, Look, MessageId, NewJoin, NewMessage,
    Reported, Result, StepEnd,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::operation::{Draft, UNIT, draft, shift};

/// One thing that is done to joins.
#[derive(Clone, Debug)]
pub(super) enum Move {
    Start {
        expected: u32,
        grouping_key: Option<&'static str>,
        metadata: bool,
        expires: Option<i8>,
        again: bool,
    },
    /// Publishes, without attaching.
    Publish(Vec<Draft>),
    Attach {
        join: usize,
        messages: Vec<Which>,
    },
    Report {
        join: usize,
        message: Which,
        failed: bool,
    },
    Cancel(usize),
    /// Registers a message that waits, and stores it; due after so many units.
    Wait {
        join: usize,
        delay: u32,
    },
}

impl Move {
    /// The same with a deadline.
    pub(super) fn expiring(mut self, units: i8) -> Self {
        if let Self::Start { expires, again, .. } = &mut self {
            (*expires, *again) = (Some(units), false);
        }
        self
    }
}

/// A message: of this transaction, of all that there ever were (counted from the newest), or one that never was.
#[derive(Clone, Copy, Debug)]
pub(super) enum Which {
    Fresh(usize),
    Known(usize),
    Unknown,
}

/// How the transaction ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Commit,
    RollBack,
    /// After so many moves there is a savepoint, and the rest is rolled back to it.
    SavepointAt(usize),
}

/// The result of a move, as far as it must be the same everywhere.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    Started(Told<()>),
    Published(Vec<(MessageId, bool)>),
    Attached(Told<Attached>),
    Reported(Told<Reported>),
    Cancelled(Told<Option<EndedJoin>>),
    Waits(Told<Seen>),
}

/// A result, or a refusal: the contract leaves open which of several unknown messages an error names.
type Told<T> = std::result::Result<T, String>;

fn told<T>(answer: Result<T>) -> Told<T> {
    answer.map_err(|error: Error| {
        let text = error.to_string();
        text.split(" (").next().unwrap_or_default().to_owned()
    })
}

/// The state of a join, with the remaining time in halves of a unit: the clocks are not read at the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    Unknown,
    Pending { halves: Option<u64> },
    Over(EndedJoin),
    Expired(EndedJoin),
}

pub(super) fn seen(look: Look) -> Seen {
    let half = UNIT.as_millis() / 2;
    let halves = |left: Duration| u64::try_from((left.as_millis() + half / 2) / half).unwrap_or(u64::MAX);
    match look {
        Look::Unknown => Seen::Unknown,
        Look::Pending { expires_in } => Seen::Pending { halves: expires_in.map(halves) },
        Look::Over(join) => Seen::Over(join),
        Look::Expired(join) => Seen::Expired(join),
    }
}

/// The moves of one transaction, with everything decided that both stores must agree on.
pub(super) struct Moves<'a> {
    moves: &'a [Move],
    known: &'a [MessageId],
    /// The join of each move, and the ids of the messages that it makes.
    joins: Vec<JoinId>,
    ids: Vec<Vec<MessageId>>,
    unknown: MessageId,
}

impl<'a> Moves<'a> {
    /// Given all messages and joins that there ever were.
    pub(super) fn new(moves: &'a [Move], known: &'a [MessageId], joins: &[JoinId]) -> Self {
        let mut all = joins.to_vec();
        let (mut targets, mut ids) = (Vec::new(), Vec::new());
        for one in moves {
            let target = match one {
                Move::Start { again: false, .. } | Move::Publish(_) => None,
                Move::Start { .. } => all.last().copied(),
                Move::Attach { join, .. }
                | Move::Report { join, .. }
                | Move::Cancel(join)
                | Move::Wait { join, .. } => {
                    join.checked_rem(all.len()).map(|back| all[all.len() - 1 - back])
                }
            };
            let target = target.unwrap_or_else(JoinId::new);
            if matches!(one, Move::Start { .. }) {
                all.push(target);
            }
            targets.push(target);
            let made = match one {
                Move::Publish(batch) => batch.len(),
                Move::Wait { .. } => 1,
                _ => 0,
            };
            ids.push((0..made).map(|_| MessageId::new()).collect());
        }
        Self { moves, known, joins: targets, ids, unknown: MessageId::new() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.moves.len()
    }

    /// The ids that were made for it.
    pub(super) fn messages(&self) -> Vec<MessageId> {
        self.ids.concat()
    }

    /// The joins that it started.
    pub(super) fn started(&self) -> Vec<JoinId> {
        let moves = self.moves.iter().zip(&self.joins);
        moves.filter(|(one, _)| matches!(one, Move::Start { .. })).map(|(_, join)| *join).collect()
    }

    /// The messages that it made wait, with their joins.
    pub(super) fn waits(&self) -> Vec<(JoinId, MessageId)> {
        let moves = self.moves.iter().zip(&self.joins).zip(&self.ids);
        moves
            .filter(|((one, _), _)| matches!(one, Move::Wait { .. }))
            .map(|((_, join), ids)| (*join, ids[0]))
            .collect()
    }

    /// How many moves come before the savepoint.
    pub(super) fn cut(&self, end: End) -> usize {
        match end {
            End::SavepointAt(at) => at.min(self.moves.len()),
            _ => self.moves.len(),
        }
    }

    /// Applies some of the moves to a store, at this time. `fresh` has the messages published before.
    pub(super) async fn make<S: JoinStore>(
        &self,
        store: &S,
        connection: &mut S::Connection,
        range: std::ops::Range<usize>,
        fresh: &mut Vec<MessageId>,
        now: SystemTime,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        for at in range {
            let (join, ids) = (self.joins[at], &self.ids[at]);
            answers.push(match &self.moves[at] {
                Move::Start { expected, grouping_key, metadata, expires, .. } => {
                    let mut draft = NewJoin::expecting(*expected).id(join);
                    draft = grouping_key.iter().fold(draft, |draft, key| draft.grouping_key(*key));
                    draft = if *metadata { draft.metadata("{\"é\":1}") } else { draft };
                    draft = match *expires {
                        None => draft,
                        Some(units @ 0..) => draft.expires_after(UNIT * u32::from(units.unsigned_abs())),
                        Some(units) => draft.expires_at(shift(now, units)),
                    };
                    Answer::Started(told(store.start_join(connection, &draft.build().unwrap()).await))
                }
                Move::Publish(batch) => {
                    let messages: Vec<NewMessage> = batch
                        .iter()
                        .zip(ids)
                        .map(|(draft, id)| draft.message(*id, self.known, now))
                        .collect();
                    let enqueued = store.insert(connection, &messages, Birth::Ready).await.unwrap();
                    fresh.extend(enqueued.iter().map(Enqueued::id));
                    let is_new = |one: &Enqueued| (one.id(), matches!(one, Enqueued::New { .. }));
                    Answer::Published(enqueued.iter().map(is_new).collect())
                }
                Move::Attach { messages, .. } => {
                    let messages: Vec<MessageId> =
                        messages.iter().map(|which| self.resolve(*which, fresh)).collect();
                    Answer::Attached(told(store.attach(connection, join, &messages).await))
                }
                Move::Report { message, failed, .. } => {
                    let end = if *failed { StepEnd::Failed } else { StepEnd::Completed };
                    let message = self.resolve(*message, fresh);
                    Answer::Reported(told(store.report(connection, join, message, end).await))
                }
                Move::Cancel(_) => Answer::Cancelled(told(store.cancel_join(connection, join).await)),
                Move::Wait { delay, .. } => {
                    let look = store.wait_for_join(connection, join, ids[0]).await;
                    if look.is_ok() {
                        let wait = NewMessage::bytes("wait", "").id(ids[0]).delay(UNIT * *delay);
                        let wait = [wait.build().unwrap()];
                        store.insert(connection, &wait, Birth::Ready).await.unwrap();
                    }
                    Answer::Waits(told(look.map(seen)))
                }
            });
        }
        answers
    }

    fn resolve(&self, which: Which, fresh: &[MessageId]) -> MessageId {
        let found = match which {
            Which::Fresh(index) => index.checked_rem(fresh.len()).map(|index| fresh[index]),
            Which::Known(back) => {
                back.checked_rem(self.known.len()).map(|back| self.known[self.known.len() - 1 - back])
            }
            Which::Unknown => None,
        };
        found.unwrap_or(self.unknown)
    }
}

/// A join, counted from the newest: mostly one of the last.
fn join() -> impl Strategy<Value = usize> {
    prop_oneof![3 => Just(0), 2 => 0..3usize, 1 => 0..1_000usize]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        3 => (0..3usize).prop_map(Which::Fresh),
        3 => (0..6usize).prop_map(Which::Known),
        2 => (0..1_000usize).prop_map(Which::Known),
        1 => Just(Which::Unknown),
    ]
}

fn one() -> impl Strategy<Value = Move> {
    prop_oneof![
        3 => start(1..4),
        1 => vec(draft(), 1..3).prop_map(Move::Publish),
        5 => (join(), vec(which(), 1..4)).prop_map(|(join, messages)| Move::Attach { join, messages }),
        2 => (join(), which(), any::<bool>())
            .prop_map(|(join, message, failed)| Move::Report { join, message, failed }),
        1 => join().prop_map(Move::Cancel),
        3 => (join(), 0..3u32).prop_map(|(join, delay)| Move::Wait { join, delay }),
    ]
}

pub(super) fn start(expected: std::ops::Range<u32>) -> impl Strategy<Value = Move> {
    let key = prop::option::weighted(0.5, select(&["g", "G", "g "][..]));
    let expires = prop::option::weighted(0.3, -1..4i8);
    (expected, key, any::<bool>(), expires, prop::bool::weighted(0.1)).prop_map(
        |(expected, grouping_key, metadata, expires, again)| Move::Start {
            expected,
            grouping_key,
            metadata,
            expires,
            again,
        },
    )
}

pub(super) fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        6 => Just(End::Commit),
        1 => Just(End::RollBack),
        1 => (0..3usize).prop_map(End::SavepointAt),
    ]
}

/// Any moves in any order.
pub(super) fn moves() -> impl Strategy<Value = Vec<Move>> {
    vec(one(), 1..4)
}

/// A join as most are: started with its steps, and waited for.
pub(super) fn whole() -> impl Strategy<Value = Vec<Move>> {
    (start(1..4), vec(draft(), 1..4), prop::option::of(0..3u32)).prop_map(|(start, batch, delay)| {
        let messages = (0..batch.len()).map(Which::Fresh).collect();
        let wait = delay.map(|delay| Move::Wait { join: 0, delay });
        let moves = vec![start, Move::Publish(batch), Move::Attach { join: 0, messages }];
        moves.into_iter().chain(wait).collect()
    })
}
