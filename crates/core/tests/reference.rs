//! The reference tables in `docs/` match the code. `POSTHASTE_UPDATE_DUMPS=1` rewrites them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Write as _;
use std::path::PathBuf;

use posthaste_core::{METRICS, Settings};

fn compare(file: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
    if std::env::var_os("POSTHASTE_UPDATE_DUMPS").is_some() {
        std::fs::write(&path, expected).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found, expected,
        "docs/{file} is not what the code says: run this with POSTHASTE_UPDATE_DUMPS=1"
    );
}

#[test]
fn settings() {
    let mut text = String::from(
        "# Settings\n\nThe same names everywhere: fields of `Settings` in Rust (the builder has methods for those that are changed \
         most, and takes\nall of them by `settings()`), keys of a TOML file (`Settings::from_file`, feature `toml`), and the \
         environment (`from_env(\"POSTHASTE_\")`, or\n`apply_env` after a file), where they are in capitals behind a prefix: \
         `POSTHASTE_POLL_CEILING=500ms`. `Settings` implements\n`Deserialize`, so it can be a section of a configuration of \
         your own. In texts a duration is a number with its unit: `500ms`,\n`30s`, `5m`, `24h`, `7d`. An unknown name in a \
         file, and a value out of its bounds anywhere, are errors that name the remedy; the\nenvironment is only asked for the \
         names below.\n\n| name | default | may be | what it is |\n|---|---|---|---|\n",
    );
    for setting in Settings::table() {
        let meaning = setting.meaning.trim_end_matches('.');
        writeln!(text, "| `{}` | `{}` | {} | {meaning} |", setting.name, setting.default, setting.bound)
            .unwrap();
    }
    compare("settings.md", &text);
}

/// HOT-016: every metric stands in one table.
#[test]
fn metrics() {
    let mut text = String::from(
        "# Metrics\n\nThey go through the [`metrics`](https://crates.io/crates/metrics) facade to whatever recorder the \
         program installs. Labels have\nfew values; nothing of a payload, a key or an id is ever among them.\n\n\
         Topics are as many as publishers choose. The relay tells `http.metrics_topics` pairs of store and topic apart \
         (500 by default), and sums the\nothers as the topic `other`; a recorder of your own needs such a bound, too. \
         Control characters of a topic are shown as U+FFFD.\n\n\
         | name | kind | labels | what it counts |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let labels = if metric.labels.is_empty() { "–" } else { metric.labels };
        writeln!(text, "| `{}` | {} | {labels} | {} |", metric.name, metric.kind, metric.meaning).unwrap();
    }
    compare("metrics.md", &text);
}
