//! The combined outcome of a message's receivers. They do not affect each other. The message is done when all are, and dead if
//! one gave up, but not before the others are finished. Pure.

use std::time::Duration;

use crate::message::Message;
use crate::outcome::{Failure, FailureClass, Outcome};
use crate::receiver::{Receiver, ReceiverState};

/// How long a message waits for a sink that is down, unless the sink's recovery makes it due before. Long: each try costs
/// a claim and a settlement.
pub(super) const RECOVERY_DELAY: Duration = Duration::from_secs(600);

/// The decision for one receiver.
#[derive(Clone, Debug)]
pub(super) struct Judgement {
    /// The outcome, as if it were the only receiver.
    pub(super) outcome: Outcome,
    /// The attempts that it had used up before.
    pub(super) attempts: u32,
    /// Whether it is a sink that is down.
    pub(super) is_down: bool,
}

/// Where a receiver is after a delivery.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    Done,
    Again {
        attempts: u32,
        delay: Delay,
        /// What went wrong in this delivery, if anything, and for how long that may go on.
        failure: Option<(Failure, Option<Duration>)>,
    },
    GaveUp {
        attempts: u32,
        failure: Failure,
        /// Whether it gave up in this delivery.
        is_new: bool,
    },
}

/// When a receiver wants a message again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delay {
    For(Duration),
    /// When its sink is there again.
    Recovery,
}

impl Fate {
    /// The fate of a receiver that was called.
    pub(super) fn judged(judgement: Judgement) -> Self {
        let Judgement { outcome, attempts, is_down } = judgement;
        let after = outcome.delay();
        match outcome {
            Outcome::Ack => Self::Done,
            Outcome::Fail { failure } => {
                Self::GaveUp { attempts: attempts.saturating_add(1), failure, is_new: true }
            }
            Outcome::Abandon { failure, max_attempts, max_age, .. } => {
                let costs = failure.class().costs_attempt();
                let attempts = attempts.saturating_add(u32::from(costs));
                if costs && attempts >= max_attempts {
                    return Self::GaveUp { attempts, failure, is_new: true };
                }
                let delay = if is_down { Delay::Recovery } else { Delay::For(after) };
                Self::Again { attempts, delay, failure: Some((failure, max_age)) }
            }
            Outcome::Defer { .. } | Outcome::Release => {
                Self::Again { attempts, delay: Delay::For(after), failure: None }
            }
        }
    }
}

/// Where a receiver of a message stands before a delivery; `Waiting` without attempts if it has not had the message.
pub(super) fn standing(message: &Message, known: &[Receiver], name: &str) -> ReceiverState {
    let known_one = known.iter().find(|receiver| receiver.name == name);
    known_one.map(|receiver| receiver.state.clone()).unwrap_or_else(|| {
        // Attempts from before the message had several receivers are those of the only one.
        let attempts = if known.is_empty() { message.attempts } else { 0 };
        ReceiverState::Waiting { attempts, delay: Duration::ZERO }
    })
}

/// The outcome for the message, and the stored state of its receivers. Receivers that are registered elsewhere keep their
/// state. The random number is between 0 and 1.
pub(super) fn combine(known: &[Receiver], fates: &[(String, Fate)], random: f64) -> (Outcome, Vec<String>) {
    let delay = soonest(fates, random);
    let is_here = |receiver: &&Receiver| fates.iter().any(|(name, _)| *name == receiver.name);
    let elsewhere = known.iter().filter(|receiver| !is_here(receiver)).map(Receiver::line);
    let here = fates.iter().filter_map(|(name, fate)| line(name, fate, delay));
    (outcome(fates, delay), here.chain(elsewhere).collect())
}

/// When the first receiver wants the message again; none if all are finished.
fn soonest(fates: &[(String, Fate)], random: f64) -> Option<Duration> {
    let delays = fates.iter().filter_map(|(_, fate)| match fate {
        Fate::Again { delay: Delay::For(delay), .. } => Some(*delay),
        // All processes would come back in the same moment otherwise.
        Fate::Again { delay: Delay::Recovery, .. } => Some(RECOVERY_DELAY.mul_f64(0.75 + random / 2.0)),
        Fate::Done | Fate::GaveUp { .. } => None,
    });
    delays.min()
}

fn outcome(fates: &[(String, Fate)], delay: Option<Duration>) -> Outcome {
    let Some(delay) = delay else {
        let gave_up = fates.iter().find_map(|(name, fate)| match fate {
            Fate::GaveUp { failure, is_new, .. } => Some((named(name, failure, *is_new), *is_new)),
            _ => None,
        });
        return match gave_up {
            None => Outcome::Ack,
            // The last attempt is charged like all others.
            Some((failure, true)) if failure.class() == FailureClass::Business => {
                Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 1, max_age: None }
            }
            Some((failure, _)) => Outcome::Fail { failure },
        };
    };
    match worst(fates) {
        // Which receiver has used up its attempts was decided above.
        Some((failure, max_age)) => Outcome::Abandon { delay, failure, max_attempts: u32::MAX, max_age },
        None => Outcome::Defer { delay },
    }
}

/// What went wrong in this delivery: what costs an attempt before what costs none. A limit of time holds only if all receivers
/// that are not finished wait for the end of an outage.
fn worst(fates: &[(String, Fate)]) -> Option<(Failure, Option<Duration>)> {
    let failures = fates.iter().filter_map(|(name, fate)| match fate {
        Fate::Again { failure: Some((failure, max_age)), .. } => Some((named(name, failure, true), *max_age)),
        Fate::GaveUp { failure, is_new: true, .. } => Some((named(name, failure, true), None)),
        _ => None,
    });
    let all_fail_for_free = fates.iter().all(|(_, fate)| match fate {
        Fate::Again { failure, .. } => {
            failure.as_ref().is_some_and(|(failure, _)| !failure.class().costs_attempt())
        }
        Fate::Done | Fate::GaveUp { .. } => true,
    });
    let (failure, max_age) = failures.min_by_key(|(failure, _)| !failure.class().costs_attempt())?;
    Some((failure, max_age.filter(|_| all_fail_for_free)))
}

/// A failure that names its receiver. A stored one names it already.
fn named(name: &str, failure: &Failure, is_new: bool) -> Failure {
    if is_new { failure.map_text(|text| format!("{name}: {text}")) } else { failure.clone() }
}

fn line(name: &str, fate: &Fate, delay: Option<Duration>) -> Option<String> {
    let state = match fate {
        Fate::Done => ReceiverState::Done,
        Fate::Again { attempts, delay: own, .. } => {
            let rest = match own {
                Delay::For(own) => own.saturating_sub(delay.unwrap_or_default()),
                Delay::Recovery => Duration::ZERO,
            };
            ReceiverState::Waiting { attempts: *attempts, delay: rest }
        }
        Fate::GaveUp { attempts, failure, is_new } => {
            ReceiverState::GaveUp { attempts: *attempts, failure: named(name, failure, *is_new) }
        }
    };
    // A receiver without a line is as new as one that has used up nothing.
    let is_news = state != ReceiverState::Waiting { attempts: 0, delay: Duration::ZERO };
    is_news.then(|| Receiver { name: name.to_owned(), state }.line())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn fates(list: Vec<(&str, Fate)>) -> Vec<(String, Fate)> {
        list.into_iter().map(|(name, fate)| (name.to_owned(), fate)).collect()
    }

    fn combined(list: Vec<(&str, Fate)>) -> (Outcome, Vec<String>) {
        combine(&[], &fates(list), 0.5)
    }

    fn business(delay: u64, max_attempts: u32, attempts: u32) -> Fate {
        let failure = Failure::business("no");
        let outcome = Outcome::Abandon {
            delay: SECOND * u32::try_from(delay).unwrap(),
            failure,
            max_attempts,
            max_age: None,
        };
        Fate::judged(Judgement { outcome, attempts, is_down: false })
    }

    fn down() -> Fate {
        let outcome = Outcome::Abandon {
            delay: SECOND,
            failure: Failure::infrastructure("away"),
            max_attempts: 5,
            max_age: Some(SECOND * 60),
        };
        Fate::judged(Judgement { outcome, attempts: 0, is_down: true })
    }

    fn deferred(delay: u64) -> Fate {
        Fate::judged(Judgement {
            outcome: Outcome::Defer { delay: SECOND * u32::try_from(delay).unwrap() },
            attempts: 0,
            is_down: false,
        })
    }

    fn abandoned(outcome: &Outcome) -> (Duration, FailureClass, &str, u32, Option<Duration>) {
        let Outcome::Abandon { delay, failure, max_attempts, max_age } = outcome else {
            panic!("{outcome:?}")
        };
        (*delay, failure.class(), failure.text(), *max_attempts, *max_age)
    }

    #[test]
    fn done_when_all_are() {
        assert_eq!(
            combined(vec![("a", Fate::Done), ("b", Fate::Done)]),
            (Outcome::Ack, vec!["a".to_owned(), "b".to_owned()])
        );
    }

    /// F1: a sink that is down waits for its recovery, costs nothing, and leaves no line of its own.
    #[test]
    fn the_others_are_done_while_one_is_down() {
        let (outcome, lines) = combined(vec![("a", down()), ("b", Fate::Done)]);
        let said = abandoned(&outcome);
        assert_eq!(
            said,
            (RECOVERY_DELAY, FailureClass::Infrastructure, "[INFRA] a: away", u32::MAX, Some(SECOND * 60))
        );
        assert_eq!(lines, ["b"]);
    }

    #[test]
    fn a_failed_attempt_is_charged_before_an_outage() {
        let (outcome, lines) = combined(vec![("a", down()), ("b", business(3, 5, 1))]);
        assert_eq!(
            abandoned(&outcome),
            (SECOND * 3, FailureClass::Business, "[BUSINESS] b: no", u32::MAX, None)
        );
        assert_eq!(lines, ["b\twaiting\t2\t0"]);
    }

    /// The first one that is due decides when, and the others store their remaining delay.
    #[test]
    fn each_keeps_its_own_time() {
        let (outcome, lines) =
            combined(vec![("a", deferred(100)), ("b", business(3, 5, 0)), ("c", deferred(3))]);
        assert_eq!(abandoned(&outcome).0, SECOND * 3);
        assert_eq!(lines, ["a\twaiting\t0\t97000", "b\twaiting\t1\t0"]);
        assert_eq!(
            combined(vec![("a", deferred(100)), ("b", Fate::Done)]).0,
            Outcome::Defer { delay: SECOND * 100 }
        );
    }

    /// A message is dead once one has given up and all others are finished, and not before.
    #[test]
    fn dead_when_the_others_are_finished() {
        let (outcome, lines) = combined(vec![("a", business(3, 1, 0)), ("b", deferred(7))]);
        assert_eq!(
            abandoned(&outcome),
            (SECOND * 7, FailureClass::Business, "[BUSINESS] a: no", u32::MAX, None)
        );
        assert_eq!(lines, ["a\tgave-up\t1\t1\t[BUSINESS] a: no"]);
        let gave_up = Fate::GaveUp {
            attempts: 1,
            failure: Failure::stored(FailureClass::Business, "[BUSINESS] a: no"),
            is_new: false,
        };
        let (outcome, _) = combined(vec![("a", gave_up.clone()), ("b", down())]);
        assert_eq!(abandoned(&outcome).1, FailureClass::Infrastructure);
        let (outcome, lines) = combined(vec![("a", gave_up), ("b", Fate::Done)]);
        assert_eq!(outcome.failure().unwrap().text(), "[BUSINESS] a: no");
        assert!(matches!(outcome, Outcome::Fail { .. }), "{outcome:?}");
        assert_eq!(lines, ["a\tgave-up\t1\t1\t[BUSINESS] a: no", "b"]);
        let (outcome, _) = combined(vec![("a", business(3, 2, 1)), ("b", Fate::Done)]);
        assert_eq!(abandoned(&outcome).3, 1, "its last attempt is charged, and ends it");
    }

    /// Processes of other versions may have other receivers: what those have done stays known.
    #[test]
    fn receivers_elsewhere_are_remembered() {
        let known = [Receiver { name: "elsewhere".to_owned(), state: ReceiverState::Done }];
        let (outcome, lines) = combine(&known, &fates(vec![("a", deferred(1))]), 0.5);
        assert_eq!((outcome, lines), (Outcome::Defer { delay: SECOND }, vec!["elsewhere".to_owned()]));
    }
}
