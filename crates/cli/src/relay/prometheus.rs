//! Every metric of the library, kept for a scraper to fetch.
//!
//! Topics are as many as publishers choose: metrics tell so many of them apart, and sum the others.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use posthaste::{Error, ErrorKind, METRICS, Result};

use crate::output::printable;

/// From a millisecond to five minutes.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const MESSAGES: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// How often recorded values are moved to the histograms.
const UPKEEP: Duration = Duration::from_secs(5);
/// The topic of what is not told apart.
const OTHER: &str = "other";

/// Installs the recorder of this process, which tells so many pairs of store and topic apart.
pub(super) fn install(most_topics: usize) -> Result<Metrics> {
    let refused =
        |error| Error::new(ErrorKind::Configuration, "metrics cannot be recorded").with_source(error);
    let (recorder, handle) = recorder(most_topics).map_err(refused)?;
    metrics::set_global_recorder(recorder).map_err(|_| {
        Error::new(ErrorKind::Configuration, "metrics are recorded already, by another part of this process")
    })?;
    for metric in METRICS {
        match metric.kind {
            "counter" => metrics::describe_counter!(metric.name, metric.meaning),
            "gauge" => metrics::describe_gauge!(metric.name, metric.meaning),
            _ => metrics::describe_histogram!(metric.name, metric.meaning),
        }
    }
    let kept = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            kept.run_upkeep();
        }
    });
    Ok(Metrics::of(move || handle.render()))
}

fn recorder(
    most_topics: usize,
) -> Result<(Bounded, PrometheusHandle), metrics_exporter_prometheus::BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS.iter().filter(|metric| metric.kind == "histogram") {
        let buckets: &[f64] = if metric.name.ends_with("_seconds") { &SECONDS } else { &MESSAGES };
        builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)?;
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    Ok((Bounded { recorder, most: most_topics, known: RwLock::default(), sums: Mutex::default() }, handle))
}

/// What was recorded, as text.
pub(super) struct Metrics {
    make: Arc<dyn Fn() -> String + Send + Sync>,
    /// The last text, and when making it began.
    last: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
}

impl Metrics {
    fn of(make: impl Fn() -> String + Send + Sync + 'static) -> Self {
        Self { make: Arc::new(make), last: tokio::sync::Mutex::new(None) }
    }

    /// The text as it is now. It is made once for all that ask while another is being made.
    pub(super) async fn render(&self) -> Bytes {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((began, text)) = &*last
            && *began >= asked
        {
            return text.clone();
        }
        // The text before is not kept beside the new one.
        *last = None;
        let (began, make) = (Instant::now(), Arc::clone(&self.make));
        let text = tokio::task::spawn_blocking(move || Bytes::from(make())).await.unwrap_or_default();
        *last = Some((began, text.clone()));
        text
    }
}

/// A recorder with a bound on the values of the label `topic`.
struct Bounded {
    recorder: PrometheusRecorder,
    most: usize,
    known: RwLock<Topics>,
    /// The gauges of what is not told apart.
    sums: Mutex<HashMap<Key, Arc<Sum>>>,
}

/// The topics of each store that metrics tell apart.
#[derive(Default)]
struct Topics {
    count: usize,
    by_store: HashMap<String, HashSet<String>>,
}

impl Topics {
    fn has(&self, store: &str, topic: &str) -> bool {
        self.by_store.get(store).is_some_and(|topics| topics.contains(topic))
    }
}

impl Bounded {
    /// The key to record under, and whether several topics share it.
    fn key(&self, key: &Key) -> (Key, bool) {
        let value = |name: &str| key.labels().find(|label| label.key() == name).map(Label::value);
        let is_other =
            value("topic").is_some_and(|topic| !self.knows(value("store").unwrap_or_default(), topic));
        let labels = key.labels().map(|label| match label.key() {
            "topic" if is_other => Label::new("topic", OTHER),
            _ => Label::new(label.key().to_owned(), printable(label.value())),
        });
        (Key::from_parts(key.name().to_owned(), labels.collect::<Vec<_>>()), is_other)
    }

    /// Whether this topic has series of its own. A new one gets them until the cap is reached.
    fn knows(&self, store: &str, topic: &str) -> bool {
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            if known.has(store, topic) || known.count >= self.most {
                return known.has(store, topic);
            }
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.has(store, topic) && known.count < self.most {
            known.count += 1;
            known.by_store.entry(store.to_owned()).or_default().insert(topic.to_owned());
        }
        known.has(store, topic)
    }
}

impl Recorder for Bounded {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.recorder.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.recorder.register_counter(&self.key(key).0, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        let (shared, is_other) = self.key(key);
        if !is_other {
            return self.recorder.register_gauge(&shared, metadata);
        }
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = sums.entry(shared).or_insert_with_key(|shared| {
            let gauge = self.recorder.register_gauge(shared, metadata);
            Arc::new(Sum { gauge, parts: Mutex::default() })
        });
        let mut hasher = DefaultHasher::new();
        key.hash(&mut hasher);
        Gauge::from_arc(Arc::new(Part { of: hasher.finish(), sum: Arc::clone(sum) }))
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.recorder.register_histogram(&self.key(key).0, metadata)
    }
}

/// A gauge that is the sum of others. Counters and histograms add up by themselves.
struct Sum {
    gauge: Gauge,
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    /// By the hash of each one's key; those at zero are left out.
    values: HashMap<u64, f64>,
    total: f64,
}

impl Sum {
    fn change(&self, of: u64, change: impl FnOnce(f64) -> f64) {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let before = parts.values.remove(&of).unwrap_or_default();
        let value = change(before);
        if value != 0.0 {
            parts.values.insert(of, value);
        }
        parts.total += value - before;
        self.gauge.set(parts.total);
    }
}

/// One gauge of a sum.
struct Part {
    of: u64,
    sum: Arc<Sum>,
}

impl GaugeFn for Part {
    fn increment(&self, value: f64) {
        self.sum.change(self.of, |before| before + value);
    }

    fn decrement(&self, value: f64) {
        self.sum.change(self.of, |before| before - value);
    }

    fn set(&self, value: f64) {
        self.sum.change(self.of, |_| value);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn topics_beyond_the_cap_are_summed() {
        let (recorder, handle) = recorder(2).unwrap();
        metrics::with_local_recorder(&recorder, || {
            for topic in ["a", "b", "c", "d", "c", "a"] {
                metrics::counter!("posthaste_delivered_total", "store" => "s", "topic" => topic).increment(1);
                metrics::histogram!("posthaste_handler_seconds", "store" => "s", "topic" => topic)
                    .record(1.0);
            }
            metrics::counter!("posthaste_delivered_total", "store" => "t", "topic" => "a").increment(1);
            let unhandled = |topic: &'static str, count: f64| {
                metrics::gauge!("posthaste_unhandled", "store" => "s", "topic" => topic).set(count);
            };
            unhandled("a", 1.0);
            unhandled("c", 5.0);
            unhandled("d", 7.0);
            unhandled("c", 2.0);
            unhandled("e", 1.0);
            unhandled("e", 0.0);
        });
        let text = handle.render();
        for line in [
            "posthaste_delivered_total{store=\"s\",topic=\"a\"} 2",
            "posthaste_delivered_total{store=\"s\",topic=\"b\"} 1",
            "posthaste_delivered_total{store=\"s\",topic=\"other\"} 3",
            "posthaste_delivered_total{store=\"t\",topic=\"other\"} 1",
            "posthaste_handler_seconds_count{store=\"s\",topic=\"other\"} 3",
            "posthaste_unhandled{store=\"s\",topic=\"a\"} 1",
            "posthaste_unhandled{store=\"s\",topic=\"other\"} 9",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is missing in\n{text}");
        }
        assert!(!text.contains("topic=\"c\""), "{text}");
    }

    #[test]
    fn twenty_thousand_topics_are_a_few_megabytes() {
        let (recorder, handle) = recorder(500).unwrap();
        metrics::with_local_recorder(&recorder, || {
            for topic in (0..20_000).map(|i| format!("topic.with.a.name.of.usual.length.{i}")) {
                let labels = || [("store", "shop".to_owned()), ("topic", topic.clone())];
                for metric in METRICS.iter().filter(|metric| metric.labels.contains("topic")) {
                    match metric.kind {
                        "counter" => metrics::counter!(metric.name, &labels()).increment(1),
                        "gauge" => metrics::gauge!(metric.name, &labels()).set(1.0),
                        _ => metrics::histogram!(metric.name, &labels()).record(1.0),
                    }
                }
            }
        });
        let text = handle.render();
        assert!(text.len() < 4 << 20, "{} bytes", text.len());
        assert!(text.contains("posthaste_unhandled{store=\"shop\",topic=\"other\"} 19500"));
    }

    #[test]
    fn labels_cannot_command_a_terminal() {
        let (recorder, handle) = recorder(9).unwrap();
        metrics::with_local_recorder(&recorder, || {
            let topic = "a\u{1b}[2J\r\n\u{9b}\u{202e}b";
            metrics::counter!("posthaste_delivered_total", "store" => "s", "topic" => topic).increment(1);
        });
        let text = handle.render();
        assert!(
            !text.contains(|c: char| c != '\n' && printable(&c.to_string()) != c.to_string()),
            "{text:?}"
        );
    }

    #[tokio::test]
    async fn those_that_ask_while_a_text_is_made_share_the_next_one() {
        let made = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&made);
        let metrics = Arc::new(Metrics::of(move || counted.fetch_add(1, Ordering::SeqCst).to_string()));
        let making = metrics.last.lock().await;
        let asked: Vec<_> = (0..6)
            .map(|_| {
                let metrics = Arc::clone(&metrics);
                tokio::spawn(async move { metrics.render().await })
            })
            .collect();
        tokio::task::yield_now().await;
        drop(making);
        for text in asked {
            assert_eq!(text.await.unwrap(), "0");
        }
        assert_eq!(metrics.render().await, "1", "a later one gets a new text");
        assert_eq!(made.load(Ordering::SeqCst), 2);
    }
}
