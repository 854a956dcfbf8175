//! Alerts: four figures of a queue, each with a threshold in the settings.
//!
//! Pure: it only compares. Housekeeping measures and reports.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::settings::Settings;
use crate::store::admin::Stats;

/// How long messages took from when they were due to their end, since the last reading.
#[derive(Debug, Default)]
pub(crate) struct Latency(Mutex<(Duration, u32)>);

impl Latency {
    pub(crate) fn add(&self, took: Duration) {
        let mut sum = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *sum = (sum.0.saturating_add(took), sum.1.saturating_add(1));
    }

    /// The average since the last call; none if nothing ended.
    pub(crate) fn take(&self) -> Option<Duration> {
        let (sum, count) = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        sum.checked_div(count)
    }
}

/// A figure with its threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Alert {
    pub(crate) name: &'static str,
    /// Messages, or seconds.
    pub(crate) value: f64,
    pub(crate) threshold: f64,
}

/// The figures that are watched.
#[allow(clippy::cast_precision_loss, reason = "counted up to 10,000")]
pub(crate) fn figures(settings: &Settings, stats: &Stats, latency: Option<Duration>) -> [Alert; 4] {
    let alert = |name, value, threshold| Alert { name, value, threshold };
    let secs = |span: Option<Duration>| span.unwrap_or_default().as_secs_f64();
    // What waits for the end of an outage is late, although it is due later.
    let late = stats.ready.value + stats.failing.value;
    let oldest = stats.oldest_ready.max(stats.oldest_failing);
    [
        alert("ready", late as f64, f64::from(settings.alert_ready)),
        alert("dead", stats.dead.value as f64, f64::from(settings.alert_dead)),
        alert("latency", secs(latency), settings.alert_latency.as_secs_f64()),
        alert("oldest", secs(oldest), settings.alert_oldest.as_secs_f64()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RMQ-010: an average over messages that ended since the last measurement.
    #[test]
    fn an_average_since_the_last_look() {
        let latency = Latency::default();
        assert_eq!(latency.take(), None);
        latency.add(Duration::from_secs(1));
        latency.add(Duration::from_secs(2));
        assert_eq!(latency.take(), Some(Duration::from_millis(1_500)));
        assert_eq!(latency.take(), None);
    }

    /// RMQ-010: a figure is raised above its threshold, not at it.
    #[test]
    fn each_figure_has_its_threshold() {
        let settings = Settings::default();
        let mut stats = Stats::default();
        let raised = |stats: &Stats, latency| {
            let figures = figures(&settings, stats, latency);
            figures
                .iter()
                .filter(|figure| figure.value > figure.threshold)
                .map(|figure| figure.name)
                .collect::<Vec<_>>()
        };
        stats.ready.value = 1_000;
        stats.dead.value = 10;
        stats.oldest_ready = Some(Duration::from_secs(300));
        assert!(raised(&stats, Some(Duration::from_secs(30))).is_empty());
        stats.ready.value += 1;
        stats.dead.value += 1;
        stats.oldest_ready = Some(Duration::from_secs(301));
        assert_eq!(raised(&stats, Some(Duration::from_secs(31))), ["ready", "dead", "latency", "oldest"]);
        let mut outage = Stats::default();
        outage.failing.value = 1_001;
        outage.oldest_failing = Some(Duration::from_secs(301));
        assert_eq!(raised(&outage, None), ["ready", "oldest"], "F1: an outage alerts, too");
    }
}
