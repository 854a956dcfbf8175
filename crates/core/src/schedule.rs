//! When a job of housekeeping is due: at an interval, by a cron expression, or never.
//!
//! A schedule only proposes; whether a turn is taken is decided by the database, once for all processes.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use crate::error::{Error, ErrorKind, Result};
use crate::message::MAX_DELAY;
use crate::settings::{parse_duration, show_duration};

/// The shortest interval.
const SHORTEST: Duration = Duration::from_millis(10);

/// When a job is due.
///
/// In files: `off`, a duration like `5s`, or a cron expression like `0 3 * * *` (minute, hour, day of the month, month,
/// day of the week; in UTC), for which the crate's feature `cron` must be on.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::Schedule;
///
/// let every: Schedule = "30s".parse()?;
/// assert_eq!(every, Schedule::every(Duration::from_secs(30)));
/// assert!("whenever".parse::<Schedule>().is_err());
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Off,
    Every(Duration),
    #[cfg(feature = "cron")]
    Cron(Box<croner::Cron>),
}

/// The next turn of a schedule, as it is seen from a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Never,
    After(Duration),
    #[cfg_attr(not(feature = "cron"), allow(dead_code, reason = "only cron expressions name times"))]
    At(SystemTime),
}

impl Schedule {
    /// Never.
    pub const fn off() -> Self {
        Self(Kind::Off)
    }

    /// At this interval: 10 ms to 100 years. Other values are cut to these.
    pub const fn every(interval: Duration) -> Self {
        Self(Kind::Every(if interval.as_millis() < SHORTEST.as_millis() {
            SHORTEST
        } else if interval.as_secs() >= MAX_DELAY.as_secs() {
            MAX_DELAY
        } else {
            interval
        }))
    }

    /// By this cron expression, in UTC.
    #[cfg(feature = "cron")]
    pub fn cron(expression: &str) -> Result<Self> {
        croner::Cron::from_str(expression).map(|cron| Self(Kind::Cron(Box::new(cron)))).map_err(|source| {
            Error::new(ErrorKind::Configuration, "the cron expression cannot be understood")
                .with_remedy("write it like 0 3 * * *: minute, hour, day, month, day of the week")
                .with_source(source)
        })
    }

    #[cfg_attr(
        not(feature = "cron"),
        allow(unused_variables, reason = "only cron expressions look at the time")
    )]
    pub(crate) fn next(&self, now: SystemTime) -> Next {
        match &self.0 {
            Kind::Off => Next::Never,
            Kind::Every(interval) => Next::After(*interval),
            #[cfg(feature = "cron")]
            Kind::Cron(cron) => {
                let now = chrono::DateTime::<chrono::Utc>::from(now);
                cron.find_next_occurrence(&now, false).map_or(Next::Never, |next| Next::At(next.into()))
            }
        }
    }
}

impl FromStr for Schedule {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if text == "off" {
            return Ok(Self::off());
        }
        if let Some(interval) = parse_duration(text) {
            return if interval >= SHORTEST {
                Ok(Self::every(interval))
            } else {
                Err(Error::new(
                    ErrorKind::Configuration,
                    format!("the interval is {}", show_duration(interval)),
                )
                .with_remedy("give it at least 10ms, or say off"))
            };
        }
        #[cfg(feature = "cron")]
        {
            Self::cron(text)
        }
        #[cfg(not(feature = "cron"))]
        Err(Error::new(ErrorKind::Configuration, "the schedule cannot be understood")
            .with_remedy("give it a duration like 5s, or off; for cron expressions turn the feature cron on"))
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Off => f.write_str("off"),
            Kind::Every(interval) => f.write_str(&show_duration(*interval)),
            #[cfg(feature = "cron")]
            Kind::Cron(cron) => f.write_str(&cron.pattern.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_off() {
        let now = SystemTime::UNIX_EPOCH;
        assert_eq!("off".parse::<Schedule>().unwrap().next(now), Next::Never);
        assert_eq!("5s".parse::<Schedule>().unwrap().next(now), Next::After(Duration::from_secs(5)));
        assert!("1ms".parse::<Schedule>().unwrap_err().to_string().contains("at least 10ms"));
        assert_eq!(Schedule::every(Duration::from_secs(300)).to_string(), "5m");
        assert_eq!(Schedule::every(Duration::MAX).next(now), Next::After(MAX_DELAY));
        assert_eq!(Schedule::every(Duration::ZERO).next(now), Next::After(SHORTEST));
    }

    /// INB-007: jobs run by a cron expression, too.
    #[cfg(feature = "cron")]
    #[test]
    fn cron_expressions_are_in_utc() {
        let hours = |n: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(n * 3600);
        let schedule: Schedule = "0 3 * * *".parse().unwrap();
        assert_eq!(schedule.next(hours(0)), Next::At(hours(3)));
        assert_eq!(schedule.next(hours(3)), Next::At(hours(27)));
        assert_eq!(schedule.to_string(), "0 3 * * *");
        assert!("0 25 * * *".parse::<Schedule>().is_err());
    }
}
