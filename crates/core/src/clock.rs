//! The only file of core that reads a clock.
//!
//! With a real database every time is the database's own; this clock serves the store in memory, and tests that want
//! to decide for themselves what time it is.

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

/// Tells the time to a store in memory.
pub trait Clock: Debug + Send + Sync + 'static {
    /// What time it is.
    fn now(&self) -> SystemTime;
}

/// The time of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// A clock that stands still until it is advanced.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use posthaste_core::{Clock, ManualClock};
///
/// let clock = ManualClock::at(SystemTime::UNIX_EPOCH);
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), SystemTime::UNIX_EPOCH + Duration::from_secs(60));
/// ```
#[derive(Debug)]
pub struct ManualClock(Mutex<SystemTime>);

impl ManualClock {
    /// A clock that shows this time.
    pub fn at(now: SystemTime) -> Self {
        Self(Mutex::new(now))
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner) += by;
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
