//! Times and durations as texts: one form for people, one for programs.
//!
//! Pure, and without a calendar of any place: every time is UTC. Nothing here reads a clock.

use std::time::{Duration, SystemTime};

const DAY: u64 = 24 * 3600;

/// A duration for people, in its two largest units: `3 min 20 s`.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::words::duration;
///
/// assert_eq!(duration(Duration::from_secs(200)), "3 min 20 s");
/// assert_eq!(duration(Duration::from_millis(40)), "40 ms");
/// ```
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if seconds == 0 {
        return format!("{} ms", duration.as_millis());
    }
    let units = [(DAY, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(size, _)| seconds >= *size).unwrap_or(units.len() - 1);
    let (size, unit) = units[first];
    let mut text = format!("{} {unit}", seconds / size);
    if let Some((next, unit)) = units.get(first + 1)
        && (seconds % size) / next > 0
    {
        text.push_str(&format!(" {} {unit}", (seconds % size) / next));
    }
    text
}

/// The duration that a text like `500ms`, `30s`, `5m`, `24h` or `7d` means.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::words::parse_duration;
///
/// assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
/// assert_eq!(parse_duration("5 apples"), None);
/// ```
pub fn parse_duration(text: &str) -> Option<Duration> {
    crate::settings::parse_duration(text)
}

/// A time for programs: RFC 3339, in UTC, to the microsecond.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use posthaste_core::words::time;
///
/// assert_eq!(time(SystemTime::UNIX_EPOCH + Duration::from_millis(1_500)), "1970-01-01T00:00:01.500000Z");
/// ```
pub fn time(time: SystemTime) -> String {
    let (date, clock, micros) = parts(time);
    format!("{date}T{clock}.{micros:06}Z")
}

/// A time for people, in UTC, to the second: `2026-01-31 14:05:00 UTC`.
pub fn moment(time: SystemTime) -> String {
    let (date, clock, _) = parts(time);
    format!("{date} {clock} UTC")
}

/// Date, time of the day, and microseconds. Times before 1970 or after 9999 are cut to that end.
fn parts(time: SystemTime) -> (String, String, u32) {
    const LAST: Duration = Duration::new(253_402_300_799, 999_999_999);
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().min(LAST);
    let (year, month, day) = date(since.as_secs() / DAY);
    let second = since.as_secs() % DAY;
    let clock = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), clock, since.subsec_micros())
}

/// Year, month and day of a number of days since 1970. Years are counted from March, so that the leap day is their last one.
fn date(days: u64) -> (u64, u64, u64) {
    const FOUR_CENTURIES: u64 = 146_097;
    // Days since the first of March of the year 0.
    let days = days + 719_468;
    let (era, day) = (days / FOUR_CENTURIES, days % FOUR_CENTURIES);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day_of_month)
}

/// For `#[serde(serialize_with = …)]`: a time as programs read it.
pub(crate) fn serialize_time<S: serde::Serializer>(at: &SystemTime, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&time(*at))
}

/// The same for one that may be missing.
pub(crate) fn serialize_some_time<S: serde::Serializer>(
    at: &Option<SystemTime>,
    to: S,
) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => to.serialize_some(&time(*at)),
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_their_two_largest_units() {
        for (seconds, text) in [
            (1, "1 s"),
            (60, "1 min"),
            (200, "3 min 20 s"),
            (3_600, "1 h"),
            (3_605, "1 h"),
            (5_400, "1 h 30 min"),
            (86_400 * 3 + 3_600 * 4 + 59, "3 d 4 h"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
        assert_eq!(duration(Duration::ZERO), "0 ms");
    }

    #[test]
    fn dates_are_right_around_leap_days_and_at_both_ends() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (951_868_800, "2000-03-01T00:00:00.000000Z"),
            (1_709_164_800, "2024-02-29T00:00:00.000000Z"),
            (1_735_689_599, "2024-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
            (253_402_300_799, "9999-12-31T23:59:59.000000Z"),
        ] {
            assert_eq!(time(at(seconds)), text);
        }
        assert_eq!(time(at(300_000_000_000)), "9999-12-31T23:59:59.999999Z");
        assert_eq!(time(SystemTime::UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(moment(at(1_709_164_805)), "2024-02-29 00:00:05 UTC");
    }
}
