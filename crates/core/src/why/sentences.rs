//! Reasons as sentences: the meaning, and the next step.
//!
//! They contain foreign texts (errors, names, reasons) unchanged: code that prints them must remove control characters for a
//! terminal.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::{Blocker, Reason};
use crate::outcome::State;
use crate::words::{duration, moment};

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {} ({}, {}", self.message, self.topic, self.state)?;
        match self.class.filter(|_| self.state == State::Dead) {
            Some(class) => write!(f, ": {class})"),
            None => f.write_str(")"),
        }
    }
}

impl Reason {
    /// The meaning, and the next step.
    pub fn sentence(&self, now: SystemTime) -> String {
        match self {
            Self::Unknown => "it is not stored here: it was never published to this store, its transaction was rolled \
                              back or is still open, or it was pruned after its end"
                .to_owned(),
            Self::Nothing => "nothing is in its way: the next claim of a running worker takes it; if it stays, no worker \
                              runs for its topic"
                .to_owned(),
            Self::Done { at, by } => format!(
                "it was delivered{}{}: look at the receiving side",
                by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default(),
                ago(*at, now)
            ),
            Self::Expired { at } => format!(
                "it is dead: nobody claimed it before its expiry, and it was given up{}; requeue it if it is still wanted",
                ago(*at, now)
            ),
            Self::Buried { at, by, why } => format!(
                "it was buried by {}{}: {}; requeue it if that was a mistake",
                by.as_deref().unwrap_or("an operator"),
                ago(*at, now),
                why.as_deref().unwrap_or("the history does not say why")
            ),
            Self::Dead { at, class, error, attempts } => format!(
                "it died{}, of this: {}{} ({}); mend the cause, then requeue it",
                ago(*at, now),
                error.as_deref().unwrap_or("no error is recorded"),
                if *attempts > 0 { format!(", after {}", count(*attempts, "attempt")) } else { String::new() },
                class.map_or_else(|| "no class".to_owned(), |class| class.to_string()),
            ),
            Self::Leased { worker, until, attempts } => format!(
                "{} has it{}{}: look at that worker if it takes too long",
                worker.as_deref().unwrap_or("a worker"),
                until.map(|until| format!(" until {}", moment(until))).unwrap_or_default(),
                if *attempts > 0 { format!(", after {} failed", count(*attempts, "attempt")) } else { String::new() }
            ),
            Self::LeaseRanOut { worker, since } => format!(
                "{} had it and fell silent: its lease ran out{}; it is taken back as soon as any worker runs",
                worker.as_deref().unwrap_or("a worker"),
                ago(Some(*since), now)
            ),
            Self::Parked { behind: None } => {
                "it is parked, and what it was parked behind is gone: requeue or bury the dead messages of its key".to_owned()
            }
            Self::Parked { behind: Some(dead) } => {
                format!("it is parked behind {dead} of its key: requeue that one, or bury it, and this one follows")
            }
            Self::KeyBlocked { by } if by.state == State::Dead => {
                format!("its key is held back by {by}, which was enqueued before it: requeue that one, or bury it")
            }
            Self::KeyBlocked { by } => {
                format!("{by} of its key comes first: ask why that one has not arrived")
            }
            Self::ExpiryPassed { expired_at } => format!(
                "its expiry passed{}: nobody claims it any more, and it is given up as soon as any worker runs; publish it anew \
                 if it is still wanted",
                ago(Some(*expired_at), now)
            ),
            Self::Paused { topics, by, why, since } => {
                format!("{topics} was paused by {by}{}: {why}; resume it when that is over", ago(Some(*since), now))
            }
            Self::Scheduled { until } => format!("it is due {}: it was scheduled or deferred", ahead(*until, now)),
            Self::Retry { until, attempts, class, error } => format!(
                "its next attempt is due {}, after {}: {class} ({})",
                ahead(*until, now),
                if *attempts > 0 {
                    format!("{} failed", count(*attempts, "attempt"))
                } else {
                    "failures that cost none".to_owned()
                },
                error.as_deref().unwrap_or("no error is recorded")
            ),
            Self::Failed { class, error } => format!(
                "it is due, and its last attempt failed: {class} ({}); if it stays, a sink may be down, which the relay that \
                 delivers it knows, or no worker runs for its topic",
                error.as_deref().unwrap_or("no error is recorded")
            ),
            Self::NoRoute { topic } => {
                format!("no route takes {topic}: add one to the relay's configuration, and reload it")
            }
            Self::SinkDown { sink, why } => {
                format!("the sink {sink} is down: {why}; messages wait until it is back, and lose no attempt")
            }
            Self::Held { session, about, since } => format!(
                "{session} keeps its row locked{} ({about}): let it commit, or end it",
                since.map(|since| format!(" since {}", moment(since))).unwrap_or_default()
            ),
            Self::Blocked { session, about, since, waiter, waited_ms } => format!(
                "{waiter} has waited {} for a lock of {session} ({about}){}: let {session} commit, or end it",
                duration(Duration::from_millis(*waited_ms)),
                since.map(|since| format!(", whose transaction is open since {}", moment(since))).unwrap_or_default()
            ),
            Self::Suspect { lease_losses } => format!(
                "{} ran out on it, so it is claimed alone, and after others: look at what its workers did then",
                count(*lease_losses, "lease")
            ),
        }
    }
}

fn count(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// How long ago, and when exactly, with a space in front; empty if unknown.
fn ago(at: Option<SystemTime>, now: SystemTime) -> String {
    at.map_or_else(String::new, |at| {
        let age = now.duration_since(at).unwrap_or_default();
        format!(" {} ago, at {}", duration(age), moment(at))
    })
}

fn ahead(at: SystemTime, now: SystemTime) -> String {
    format!("in {}, at {}", duration(at.duration_since(now).unwrap_or_default()), moment(at))
}
