//! Measurements: cases, their samples, and the lines of the report that they become.
//!
//! A case is one subject in one variation of one scenario on one store. Nothing here runs or prints anything.

use std::collections::BTreeMap;
use std::pin::Pin;

use serde::Serialize;

use crate::statistics::{Summary, percentile, ratio};

/// Any error, with its own words.
pub(crate) type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;
/// One repetition of a case, to be awaited.
pub(crate) type Running = Pin<Box<dyn Future<Output = Result<Sample>> + Send>>;

/// A subject's role in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// What this repository is about.
    Posthaste,
    /// The same work without any message: what cannot be undercut.
    Floor,
    /// The least work that could do the job: the upper bound.
    Limit,
    /// For orientation; no ratio is taken to it.
    Reference,
    /// Another project.
    Peer,
}

/// The unit of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Unit {
    /// Transactions per second.
    #[serde(rename = "tx/s")]
    Transactions,
    /// Messages per second.
    #[serde(rename = "msg/s")]
    Messages,
    /// Joins per second.
    #[serde(rename = "joins/s")]
    Joins,
    /// Milliseconds; the only unit of which less is better.
    #[serde(rename = "ms")]
    Milliseconds,
}

impl Unit {
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Transactions => "tx/s",
            Self::Messages => "msg/s",
            Self::Joins => "joins/s",
            Self::Milliseconds => "ms",
        }
    }

    /// Whether the first is better than the second.
    pub(crate) fn better(self, one: f64, other: f64) -> bool {
        if self == Self::Milliseconds { one < other } else { one > other }
    }
}

/// What one repetition gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Sample {
    /// In the unit of its case.
    pub(crate) value: f64,
    /// How the subject was set up, if it chose that itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) configuration: Option<String>,
    /// The other counts, most of them per message.
    pub(crate) counts: BTreeMap<String, f64>,
}

impl Sample {
    /// So much work in so many seconds.
    pub(crate) fn rate(work: u64, seconds: f64) -> Self {
        let mut sample = Self { value: work as f64 / seconds, ..Self::default() };
        sample.count("seconds", seconds);
        sample.count("work", work as f64);
        sample
    }

    /// The median of latencies, with their tail beside it.
    pub(crate) fn latency(milliseconds: &[f64]) -> Result<Self> {
        let mut sample = Self::default();
        sample.tail("", milliseconds)?;
        sample.value = sample.counts["p50_ms"];
        Ok(sample)
    }

    /// The percentiles of latencies, as counts.
    pub(crate) fn tail(&mut self, prefix: &str, milliseconds: &[f64]) -> Result {
        for (name, share) in [("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1.0)] {
            let value =
                percentile(milliseconds, share).ok_or("there is no latency: nothing was delivered")?;
            self.count(&format!("{prefix}{name}"), value);
        }
        Ok(())
    }

    pub(crate) fn count(&mut self, name: &str, value: f64) {
        self.counts.insert(name.to_owned(), value);
    }
}

/// A subject in a variation of a scenario, ready to run any number of times.
pub(crate) struct Case {
    pub(crate) scenario: &'static str,
    pub(crate) variation: String,
    pub(crate) store: &'static str,
    pub(crate) subject: String,
    pub(crate) role: Role,
    pub(crate) unit: Unit,
    pub(crate) run: Box<dyn Fn() -> Running + Send + Sync>,
}

impl Case {
    pub(crate) fn new<R, F>(
        scenario: &'static str,
        store: &'static str,
        subject: &str,
        unit: Unit,
        run: R,
    ) -> Self
    where
        R: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<Sample>> + Send + 'static,
    {
        Self {
            scenario,
            variation: String::new(),
            store,
            subject: subject.to_owned(),
            role: Role::Posthaste,
            unit,
            run: Box::new(move || Box::pin(run())),
        }
    }

    pub(crate) fn variation(mut self, variation: impl Into<String>) -> Self {
        self.variation = variation.into();
        self
    }

    pub(crate) fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }
}

/// A case after its repetitions.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) scenario: String,
    pub(crate) variation: String,
    pub(crate) store: String,
    pub(crate) subject: String,
    pub(crate) role: Role,
    pub(crate) unit: Unit,
    pub(crate) samples: Vec<Sample>,
    /// Why repetitions gave nothing.
    pub(crate) failures: Vec<String>,
}

impl Line {
    pub(crate) fn of(case: &Case) -> Self {
        Self {
            scenario: case.scenario.to_owned(),
            variation: case.variation.clone(),
            store: case.store.to_owned(),
            subject: case.subject.clone(),
            role: case.role,
            unit: case.unit,
            samples: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// Something that could not be measured at all.
    pub(crate) fn failed(scenario: &str, store: &str, subject: &str, role: Role, why: String) -> Self {
        Self {
            scenario: scenario.to_owned(),
            variation: String::new(),
            store: store.to_owned(),
            subject: subject.to_owned(),
            role,
            unit: Unit::Messages,
            samples: Vec::new(),
            failures: vec![why],
        }
    }

    /// The rows to compare with each other.
    pub(crate) fn group(&self) -> (&str, &str, &str) {
        (&self.scenario, &self.store, &self.variation)
    }

    pub(crate) fn value(&self) -> Option<Summary> {
        Summary::of(&self.samples.iter().map(|sample| sample.value).collect::<Vec<_>>())
    }

    /// The median of something that was counted.
    pub(crate) fn counted(&self, name: &str) -> Option<f64> {
        let values: Vec<f64> =
            self.samples.iter().filter_map(|sample| sample.counts.get(name).copied()).collect();
        Summary::of(&values).map(|summary| summary.median)
    }

    /// How it was set up, last.
    pub(crate) fn configuration(&self) -> Option<&str> {
        self.samples.iter().rev().find_map(|sample| sample.configuration.as_deref())
    }

    /// How many times the best of this role, in the same group, it is.
    pub(crate) fn ratio_to(&self, role: Role, lines: &[Line]) -> Option<f64> {
        let own = self.value()?.median;
        let others = lines.iter().filter(|line| line.role == role && line.group() == self.group());
        let others = others.filter_map(|line| line.value()).map(|summary| summary.median);
        let best = others.reduce(|best, other| if self.unit.better(other, best) { other } else { best })?;
        ratio(own, best)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(role: Role, unit: Unit, values: &[f64]) -> Line {
        let mut line = Line::failed("drain", "postgres", "x", role, String::new());
        line.unit = unit;
        line.samples = values.iter().map(|value| Sample { value: *value, ..Sample::default() }).collect();
        line
    }

    #[test]
    fn ratios_are_of_medians_to_the_best_of_the_role() {
        let own = line(Role::Posthaste, Unit::Messages, &[10.0, 30.0, 20.0]);
        let peers = [line(Role::Peer, Unit::Messages, &[5.0]), line(Role::Peer, Unit::Messages, &[10.0])];
        assert_eq!(own.ratio_to(Role::Peer, &peers), Some(2.0));
        assert_eq!(own.ratio_to(Role::Limit, &peers), None);
    }

    #[test]
    fn the_best_latency_is_the_least() {
        let own = line(Role::Posthaste, Unit::Milliseconds, &[1.0]);
        let peers =
            [line(Role::Peer, Unit::Milliseconds, &[2.0]), line(Role::Peer, Unit::Milliseconds, &[4.0])];
        assert_eq!(own.ratio_to(Role::Peer, &peers), Some(0.5));
    }

    #[test]
    fn other_groups_do_not_count() {
        let own = line(Role::Posthaste, Unit::Messages, &[1.0]);
        let mut other = line(Role::Limit, Unit::Messages, &[2.0]);
        other.variation = "50 keys".to_owned();
        assert_eq!(own.ratio_to(Role::Limit, &[other]), None);
    }

    #[test]
    fn a_rate_is_work_by_time() {
        assert_eq!(Sample::rate(100, 4.0).value, 25.0);
        assert!(Sample::latency(&[]).is_err());
        let sample = Sample::latency(&[1.0, 3.0, 2.0]).unwrap();
        assert_eq!((sample.value, sample.counts["max_ms"]), (2.0, 3.0));
    }
}
