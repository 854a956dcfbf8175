//! Times and durations on the command line: RFC 3339, or an age like `2h`.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use posthaste::When;
use posthaste::words::parse_duration;

use crate::human::now;

/// A duration like `30s`, `5m`, `2h` or `7d`.
pub(crate) fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "give a number and its unit, like 30s, 5m, 2h or 7d".to_owned())
}

/// A time in the past: RFC 3339, or how long ago.
pub(crate) fn past(text: &str) -> Result<SystemTime, String> {
    match parse_duration(text) {
        Some(span) => now().checked_sub(span).ok_or_else(|| "that is out of range".to_owned()),
        None => timestamp(text).ok_or_else(|| wrong("how long ago it was")),
    }
}

/// A time in the future: RFC 3339, or how long from the database's now.
pub(crate) fn future(text: &str) -> Result<When, String> {
    let when = parse_duration(text).map(When::After).or_else(|| timestamp(text).map(When::At));
    when.ok_or_else(|| wrong("how long it is from now"))
}

fn timestamp(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

fn wrong(or: &str) -> String {
    format!("give a time like 2026-01-31T14:05:00Z, or {or}, like 2h or 7d")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_absolute_or_ages() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(past("1970-01-01T00:01:00Z"), Ok(epoch + Duration::from_secs(60)));
        assert_eq!(past("1970-01-01T01:01:00+01:00"), Ok(epoch + Duration::from_secs(60)));
        let hour = Duration::from_secs(3_600);
        let then = past("2h").unwrap();
        let age = now().duration_since(then).unwrap();
        assert!(age >= 2 * hour && age < 3 * hour);
        assert_eq!(future("2h"), Ok(When::After(2 * hour)));
        assert_eq!(future("1970-01-01T00:01:00Z"), Ok(When::At(epoch + Duration::from_secs(60))));
        assert!(past("yesterday").unwrap_err().contains("7d") && span("5").is_err());
    }
}
