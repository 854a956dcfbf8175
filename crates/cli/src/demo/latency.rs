//! How long it took from commit to handler, for those published last.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use serde::Serialize;

/// The most figures that are kept.
const KEPT: usize = 5_000;

/// When orders were committed, and how long their handlers' beginning took after that.
#[derive(Debug, Default)]
pub(super) struct Latency {
    committed: HashMap<i64, Instant>,
    /// Handlers may begin before the committer has noted its commit.
    begun: HashMap<i64, Instant>,
    took: VecDeque<Duration>,
}

/// Two percentiles, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
}

impl Latency {
    pub(super) fn committed(&mut self, order: i64, at: Instant) {
        match self.begun.remove(&order) {
            Some(begun) => self.note(begun.saturating_duration_since(at)),
            None => drop(self.committed.insert(order, at)),
        }
    }

    pub(super) fn begun(&mut self, order: i64, at: Instant) {
        match self.committed.remove(&order) {
            Some(committed) => self.note(at.saturating_duration_since(committed)),
            None => drop(self.begun.insert(order, at)),
        }
    }

    fn note(&mut self, took: Duration) {
        if self.took.len() == KEPT {
            self.took.pop_front();
        }
        self.took.push_back(took);
    }

    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted: Vec<Duration> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        let at =
            |percent: usize| sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)));
        let ms = |took: &Duration| took.as_secs_f64() * 1_000.0;
        Some(Percentiles { p50: ms(at(50)?), p99: ms(at(99)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_of_events_count() {
        let (mut latency, now) = (Latency::default(), Instant::now());
        assert!(latency.percentiles().is_none());
        for order in 0..100 {
            latency.committed(order, now);
            latency.begun(order, now + Duration::from_millis(2));
        }
        latency.begun(100, now + Duration::from_millis(50));
        latency.committed(100, now);
        let percentiles = latency.percentiles().unwrap();
        assert!((percentiles.p50 - 2.0).abs() < 1e-6 && percentiles.p99 >= 2.0);
        assert!(latency.committed.is_empty() && latency.begun.is_empty());
    }
}
