//! A recorder of `metrics` that keeps every value under its name and labels.
//!
//! It must never leave out a label: every reader of the metrics sees them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

/// A metric: its kind, its name, and its labels in order.
type Name = (&'static str, String, Vec<(String, String)>);

/// The recorded metrics.
#[derive(Debug, Default)]
pub struct Meters(Mutex<BTreeMap<Name, Arc<Meter>>>);

/// All the values that a metric has had: increments, or levels, or observations.
#[derive(Debug, Default)]
struct Meter(Mutex<Vec<f64>>);

impl Meter {
    fn add(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl CounterFn for Meter {
    #[allow(clippy::cast_precision_loss, reason = "tests count to thousands")]
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    #[allow(clippy::cast_precision_loss, reason = "tests count to thousands")]
    fn absolute(&self, value: u64) {
        self.add(value as f64);
    }
}

impl GaugeFn for Meter {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, value: f64) {
        self.add(value);
    }
}

impl HistogramFn for Meter {
    fn record(&self, value: f64) {
        self.add(value);
    }
}

impl Meters {
    fn meter(&self, kind: &'static str, key: &Key) -> Arc<Meter> {
        let mut labels: Vec<_> =
            key.labels().map(|label| (label.key().to_owned(), label.value().to_owned())).collect();
        labels.sort_unstable();
        let name = (kind, key.name().to_owned(), labels);
        Arc::clone(self.0.lock().unwrap().entry(name).or_default())
    }

    fn values(&self, kind: &str, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let matches = |name_of: &Name| {
            let has = |(key, value): &(&str, &str)| name_of.2.iter().any(|(k, v)| k == key && v == value);
            name_of.0 == kind && name_of.1 == name && labels.iter().all(has)
        };
        let meters = self.0.lock().unwrap();
        let found = meters.iter().filter(|(name, _)| matches(name));
        found.flat_map(|(_, meter)| meter.0.lock().unwrap().clone()).collect()
    }

    /// The value of a counter, over all of its matching labels.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tests count to thousands")]
    pub fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.values("counter", name, labels).iter().sum::<f64>() as u64
    }

    /// Every value that a gauge has had.
    pub fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        self.values("gauge", name, labels)
    }

    /// Every value that a histogram was given.
    pub fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        self.values("histogram", name, labels)
    }

    /// Every metric: its kind, its name, and its labels.
    pub fn names(&self) -> Vec<Name> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

impl Recorder for Meters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.meter("counter", key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.meter("gauge", key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.meter("histogram", key))
    }
}
