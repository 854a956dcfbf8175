//! The circuit breaker of a sink: it opens when the sink is down, so that a backlog is not walked into it, and lets one
//! message try before the others follow.
//!
//! While it is open, messages for the sink are not claimed. It never decides about a message, and it goes by the monotonic
//! clock alone.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Where a breaker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BreakerState {
    /// The sink takes messages.
    Closed,
    /// It is down: nothing is tried before this moment.
    Open {
        /// When it is probed next.
        until: Instant,
    },
    /// It may be there again: one message is sent first.
    HalfOpen,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    shortest: Duration,
    longest: Duration,
    inside: Mutex<Inside>,
}

#[derive(Debug)]
struct Inside {
    state: BreakerState,
    /// How long the next pause is.
    pause: Duration,
}

impl Breaker {
    /// A closed one. Pauses double from the shortest to the longest for as long as the sink is down.
    pub(crate) fn new(shortest: Duration, longest: Duration) -> Self {
        let inside = Inside { state: BreakerState::Closed, pause: shortest };
        Self { shortest, longest, inside: Mutex::new(inside) }
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.inside().state
    }

    /// Whether messages are to be left alone.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state(), BreakerState::Open { .. })
    }

    /// How long messages are left alone from now.
    pub(crate) fn remaining(&self, now: Instant) -> Duration {
        match self.state() {
            BreakerState::Open { until } => until.saturating_duration_since(now),
            _ => Duration::ZERO,
        }
    }

    /// The sink took or refused a message, so it is up. True if it was down before.
    pub(crate) fn close(&self) -> bool {
        let mut inside = self.inside();
        // Batches that were sent before it went down may still be answered: they do not tell whether it is back.
        if matches!(inside.state, BreakerState::Open { .. }) {
            return false;
        }
        inside.pause = self.shortest;
        std::mem::replace(&mut inside.state, BreakerState::Closed) != BreakerState::Closed
    }

    /// The sink is down. True if it was up before: the caller has to probe it from now on.
    pub(crate) fn open(&self, now: Instant, random: f64) -> bool {
        let mut inside = self.inside();
        if matches!(inside.state, BreakerState::Open { .. }) {
            return false;
        }
        self.wait(&mut inside, now, random);
        true
    }

    /// A probe found it down: how long to wait until the next one.
    pub(crate) fn still_down(&self, now: Instant, random: f64) -> Duration {
        self.wait(&mut self.inside(), now, random)
    }

    /// A probe found it there: one message may try.
    pub(crate) fn half_open(&self) {
        self.inside().state = BreakerState::HalfOpen;
    }

    fn wait(&self, inside: &mut Inside, now: Instant, random: f64) -> Duration {
        // A quarter more or less, so that not all processes come back at the same moment.
        let pause = inside.pause.mul_f64(0.75 + random.clamp(0.0, 1.0) / 2.0);
        inside.pause = (inside.pause * 2).min(self.longest);
        inside.state = BreakerState::Open { until: now + pause };
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn pauses_double_until_the_sink_takes_something() {
        let breaker = Breaker::new(secs(1), secs(5));
        let now = Instant::now();
        assert!(breaker.open(now, 0.5), "the first failure is news");
        assert!(!breaker.open(now, 0.5), "another one of the same outage is not");
        assert_eq!(breaker.remaining(now), secs(1));
        assert_eq!([(); 3].map(|()| breaker.still_down(now, 0.5)), [secs(2), secs(4), secs(5)]);
        breaker.half_open();
        assert!(!breaker.is_open() && breaker.remaining(now) == Duration::ZERO);
        assert!(breaker.open(now, 0.5), "the message that tried was not taken");
        assert_eq!(breaker.remaining(now), secs(5), "and the pause goes on from where it was");
        breaker.half_open();
        assert!(breaker.close());
        assert!(!breaker.close(), "that it is there is no news");
        assert!(breaker.open(now, 0.5));
        assert_eq!(breaker.remaining(now), secs(1));
    }

    #[tokio::test(flavor = "current_thread", start_paused = true)]
    async fn a_late_answer_does_not_close_it() {
        let breaker = Breaker::new(secs(1), secs(5));
        breaker.open(Instant::now(), 0.5);
        assert!(!breaker.close() && breaker.is_open());
    }
}
