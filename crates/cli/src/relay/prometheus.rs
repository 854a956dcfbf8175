//! Every metric of the library, kept for a scraper to fetch.

use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use posthaste::{Error, ErrorKind, METRICS, Result};

/// From a millisecond to five minutes.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
const MESSAGES: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];
/// How often recorded values are moved to the histograms.
const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the recorder of this process.
pub(super) fn install() -> Result<PrometheusHandle> {
    let refused = |error: metrics_exporter_prometheus::BuildError| {
        Error::new(ErrorKind::Configuration, "metrics cannot be recorded").with_source(error)
    };
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS.iter().filter(|metric| metric.kind == "histogram") {
        let buckets: &[f64] = if metric.name.ends_with("_seconds") { &SECONDS } else { &MESSAGES };
        builder = builder
            .set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), buckets)
            .map_err(refused)?;
    }
    let handle = builder.install_recorder().map_err(refused)?;
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
    Ok(handle)
}
