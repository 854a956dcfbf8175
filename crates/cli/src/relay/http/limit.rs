//! How much one caller may ask for: so many requests a second, so many wrong tokens a minute.
//!
//! The caller says what time it is. What is remembered is bounded.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

use super::places::network;

/// The most callers that are remembered.
const MOST: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);
/// How often wrong tokens are reported.
pub(super) const REPORT: Duration = Duration::from_secs(10);

/// What callers have used up.
#[derive(Debug, Default)]
pub(super) struct Limits {
    buckets: Mutex<HashMap<String, Bucket>>,
    failures: Mutex<HashMap<IpAddr, Failures>>,
    unreported: Mutex<Option<Unreported>>,
}

/// Wrong tokens since the last report.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Unreported {
    tokens: u64,
    last: IpAddr,
}

#[derive(Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

#[derive(Debug)]
struct Failures {
    count: u32,
    since: Instant,
}

impl Limits {
    /// Whether this caller may ask once more, with so many requests a second and as many at once.
    pub(super) fn may_ask(&self, who: &str, rate: u32, now: Instant) -> bool {
        let rate = f64::from(rate);
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        if buckets.len() >= MOST {
            buckets.clear();
        }
        let bucket = buckets.entry(who.to_owned()).or_insert(Bucket { left: rate, at: now });
        let passed = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.left = (bucket.left + passed * rate).min(rate);
        bucket.at = now;
        let may = bucket.left >= 1.0;
        if may {
            bucket.left -= 1.0;
        }
        may
    }

    /// After how many seconds this address may show a token again; none if it may now.
    pub(super) fn shut_out(&self, peer: IpAddr, most: u32, now: Instant) -> Option<u32> {
        let peer = network(peer);
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = all.get(&peer)?;
        let passed = now.saturating_duration_since(failures.since);
        if passed >= MINUTE {
            all.remove(&peer);
            return None;
        }
        let left = u32::try_from((MINUTE - passed).as_secs()).unwrap_or(60) + 1;
        (failures.count >= most).then_some(left)
    }

    /// A wrong token came from this address.
    pub(super) fn failed(&self, peer: IpAddr, now: Instant) {
        self.note(peer);
        let peer = network(peer);
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, failures| now.saturating_duration_since(failures.since) < MINUTE);
        }
        if all.len() < MOST {
            all.entry(peer).or_insert(Failures { count: 0, since: now }).count += 1;
        }
    }
}

impl Limits {
    fn note(&self, last: IpAddr) {
        let mut unreported = self.unreported.lock().unwrap_or_else(PoisonError::into_inner);
        let tokens = unreported.map_or(0, |unreported| unreported.tokens);
        *unreported = Some(Unreported { tokens: tokens + 1, last });
    }

    fn unreported(&self) -> Option<Unreported> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Logs how many wrong tokens came since the last report, if any did.
    pub(super) fn report(&self) {
        if let Some(Unreported { tokens, last }) = self.unreported() {
            warn!(tokens, last_address = %last, "wrong tokens were shown");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_may_ask_so_often_a_second() {
        let (limits, start) = (Limits::default(), Instant::now());
        let asked = |at| (0..20).filter(|_| limits.may_ask("ada", 10, at)).count();
        assert_eq!(asked(start), 10);
        assert!(limits.may_ask("grace", 10, start), "others have their own");
        assert_eq!(asked(start + Duration::from_millis(500)), 5);
        assert_eq!(asked(start + Duration::from_secs(60)), 10);
    }

    #[test]
    fn wrong_tokens_shut_an_address_out_for_a_minute() {
        let (limits, start) = (Limits::default(), Instant::now());
        let (peer, other) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        for _ in 0..3 {
            assert_eq!(limits.shut_out(peer, 3, start), None);
            limits.failed(peer, start);
        }
        assert!(limits.shut_out(peer, 3, start).is_some_and(|seconds| seconds <= 61));
        assert_eq!(limits.shut_out(other, 3, start), None);
        assert_eq!(limits.shut_out(peer, 3, start + MINUTE), None);
    }
    #[test]
    fn wrong_tokens_are_counted_for_one_report() {
        let (limits, start) = (Limits::default(), Instant::now());
        assert_eq!(limits.unreported(), None);
        for last in [1, 2, 3] {
            limits.failed([10, 0, 0, last].into(), start);
        }
        assert_eq!(limits.unreported(), Some(Unreported { tokens: 3, last: [10, 0, 0, 3].into() }));
        assert_eq!(limits.unreported(), None);
    }
}
