//! The values of a statement, before a dialect binds them. An array in PostgreSQL is a JSON text elsewhere.

use std::time::{Duration, SystemTime};

use posthaste_core::{Lease, MessageId, Topics, Uuid, When};

/// A value to bind.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    /// A number.
    Int(Option<i64>),
    /// A small number: a state, a class.
    Small(Option<i16>),
    /// Yes or no.
    Bool(bool),
    /// A text.
    Text(Option<&'a str>),
    /// Bytes.
    Bytes(Option<&'a [u8]>),
    /// A span of time.
    Span(Duration),
    /// Numbers.
    Ints(&'a [i64]),
    /// Texts.
    Texts(Option<Vec<Option<&'a str>>>),
    /// Ids.
    Ids(Option<&'a [MessageId]>),
    /// Leases: two arrays, or one JSON text.
    Leases(&'a [Lease]),
    /// An id.
    Id(Option<&'a Uuid>),
    /// What became of messages (1 done, 2 dead, 0 deferred): two arrays, or one JSON text.
    Ends(&'a [(MessageId, i16)]),
}

impl<'a> Arg<'a> {
    pub(crate) fn int(value: impl Into<i64>) -> Self {
        Self::Int(Some(value.into()))
    }

    pub(crate) fn text(value: &'a str) -> Self {
        Self::Text(Some(value))
    }

    pub(crate) fn time(time: Option<SystemTime>) -> Self {
        Self::Int(time.map(micros))
    }

    /// The two values of a set of topics: those named in full, and the beginnings; both null for all.
    pub(crate) fn topics(topics: &'a Topics) -> [Self; 2] {
        let texts = |list: &'a [String]| {
            Self::Texts((!topics.is_all()).then(|| list.iter().map(|text| Some(text.as_str())).collect()))
        };
        [texts(topics.exact()), texts(topics.prefixes())]
    }
}

/// Microseconds since 1970; earlier times count as 1970.
pub(crate) fn micros(time: SystemTime) -> i64 {
    span_micros(time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default())
}

/// A span in microseconds, rounded up: a wait may be a little longer than asked for, never shorter.
pub(crate) fn span_micros(span: Duration) -> i64 {
    i64::try_from(span.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX)
}

/// The time so many microseconds after 1970.
pub(crate) fn from_micros(micros: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or_default())
}

/// A time as its two values: whether it counts from now, and microseconds.
pub(crate) fn moment(when: Option<When>) -> (bool, Option<i64>) {
    match when {
        None => (true, None),
        Some(When::Now) => (true, Some(0)),
        Some(When::After(delay)) => (true, Some(span_micros(delay))),
        Some(When::At(time)) => (false, Some(micros(time))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_and_spans_round_up() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(from_micros(micros(time)), time);
        assert_eq!(micros(SystemTime::UNIX_EPOCH - Duration::from_secs(1)), 0);
        assert_eq!(span_micros(Duration::from_nanos(1)), 1);
        assert_eq!(span_micros(Duration::MAX), i64::MAX);
    }
}
