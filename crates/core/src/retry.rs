//! How long to wait before the next attempt. Pure: the number of attempts and a random number go in, a delay comes
//! out; the database adds it to its own clock.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tracing::error;

use crate::message::MAX_DELAY;

/// The default number of attempts.
pub const DEFAULT_MAX_ATTEMPTS: u32 = 10;

/// Decides how long to wait after a failed attempt.
pub trait RetryPolicy: Debug + Send + Sync + 'static {
    /// The delay after the attempt with this number (1 is the first), given a random number in `0.0..1.0`. Delays of more than
    /// 100 years are cut to that.
    fn delay(&self, attempt: u32, random: f64) -> Duration;
}

/// The delay that a policy gives: at most 100 years. A policy that panics is logged, and the default decides in its place.
pub(crate) fn delay_of(policy: &dyn RetryPolicy, attempt: u32, random: f64) -> Duration {
    let delay = catch_unwind(AssertUnwindSafe(|| policy.delay(attempt, random))).unwrap_or_else(|_| {
        error!(attempt, "retry policy panicked, using the default one");
        ExponentialBackoff::default().delay(attempt, random)
    });
    delay.min(MAX_DELAY)
}

/// `min(max, base * 2^(attempt - 1))`, times a jitter of 0.5 to 1.5 that keeps messages which failed together from
/// coming back together.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::{ExponentialBackoff, RetryPolicy};
///
/// let policy = ExponentialBackoff::default().without_jitter();
/// let delays = [1, 2, 3, 10].map(|attempt| policy.delay(attempt, 0.0).as_secs());
/// assert_eq!(delays, [2, 4, 8, 60]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExponentialBackoff {
    base: Duration,
    max: Duration,
    jitter: bool,
}

impl ExponentialBackoff {
    /// From `base` after the first attempt up to `max`. Delays of less than a millisecond become one: without any pause, an
    /// outage would be retried in a tight loop.
    pub const fn new(base: Duration, max: Duration) -> Self {
        Self { base: at_least_a_millisecond(base), max: at_least_a_millisecond(max), jitter: true }
    }

    /// Exactly the formula.
    #[must_use]
    pub const fn without_jitter(mut self) -> Self {
        self.jitter = false;
        self
    }
}

const fn at_least_a_millisecond(delay: Duration) -> Duration {
    if delay.as_millis() == 0 { Duration::from_millis(1) } else { delay }
}

/// Two seconds after the first attempt, at most a minute.
impl Default for ExponentialBackoff {
    fn default() -> Self {
        Self::new(Duration::from_secs(2), Duration::from_secs(60))
    }
}

impl RetryPolicy for ExponentialBackoff {
    fn delay(&self, attempt: u32, random: f64) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        let delay = self.base.saturating_mul(1 << doublings).min(self.max).min(MAX_DELAY);
        if self.jitter { delay.mul_f64(0.5 + random.clamp(0.0, 1.0)) } else { delay }
    }
}

/// The same delay after every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedDelay(pub Duration);

impl RetryPolicy for FixedDelay {
    fn delay(&self, _attempt: u32, _random: f64) -> Duration {
        self.0
    }
}

/// One delay after each attempt, the last one repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delays(pub Vec<Duration>);

impl RetryPolicy for Delays {
    fn delay(&self, attempt: u32, _random: f64) -> Duration {
        let index = usize::try_from(attempt.saturating_sub(1)).unwrap_or(usize::MAX);
        self.0.get(index).or(self.0.last()).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// OBX-061, OBX-062, HOT-012: exponential, bounded, with a jitter of half to one and a half.
    #[test]
    fn the_default_doubles_up_to_a_minute() {
        let policy = ExponentialBackoff::default();
        assert_eq!(policy.delay(1, 0.5), Duration::from_secs(2));
        assert_eq!(policy.delay(1, 0.0), Duration::from_secs(1));
        assert_eq!(policy.delay(5, 0.5), Duration::from_secs(32));
        assert_eq!(policy.delay(6, 0.5), Duration::from_secs(60));
        assert_eq!(policy.delay(u32::MAX, 1.0), Duration::from_secs(90));
        assert_eq!(policy.delay(0, 0.5), Duration::from_secs(2));
    }

    #[test]
    fn no_delay_is_too_long_and_no_panic_escapes() {
        #[derive(Debug)]
        struct Panics;
        impl RetryPolicy for Panics {
            fn delay(&self, _: u32, _: f64) -> Duration {
                panic!("a policy's own")
            }
        }
        assert_eq!(delay_of(&Panics, 1, 0.5), Duration::from_secs(2));
        assert_eq!(delay_of(&FixedDelay(Duration::MAX), 1, 0.5), MAX_DELAY);
        let longest = ExponentialBackoff::new(Duration::MAX, Duration::MAX);
        assert_eq!(delay_of(&longest, u32::MAX, 1.0), MAX_DELAY);
    }

    /// R15: no pause at all is none.
    #[test]
    fn a_backoff_always_pauses() {
        let policy = ExponentialBackoff::new(Duration::ZERO, Duration::ZERO).without_jitter();
        assert_eq!([1, 9].map(|attempt| policy.delay(attempt, 0.0)), [Duration::from_millis(1); 2]);
    }

    /// OBX-063: policies can be replaced.
    #[test]
    fn other_policies() {
        let seconds = Duration::from_secs;
        assert_eq!(FixedDelay(seconds(3)).delay(9, 0.9), seconds(3));
        let delays = Delays(vec![seconds(1), seconds(5)]);
        assert_eq!([1, 2, 3].map(|n| delays.delay(n, 0.0)), [seconds(1), seconds(5), seconds(5)]);
        assert_eq!(Delays(vec![]).delay(1, 0.0), Duration::ZERO);
    }

    proptest! {
        #[test]
        fn delays_stay_in_bounds(attempt: u32, random in 0.0f64..1.0, base in 1u64..10_000, max in 1u64..100_000) {
            let policy = ExponentialBackoff::new(Duration::from_millis(base), Duration::from_millis(max));
            prop_assert!(policy.delay(attempt, random) <= Duration::from_millis(max).mul_f64(1.5));
            prop_assert!(policy.delay(attempt, random) >= Duration::from_millis(base.min(max)).mul_f64(0.5));
        }
    }
}
