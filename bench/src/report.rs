//! The report: measurements, the machine, and the formats.
//!
//! A table for the terminal, a page for people, JSON for programs; all of them from the same lines.

pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod table;

use std::time::SystemTime;

use serde::Serialize;

use crate::measure::Line;

/// Everything about one run of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) posthaste: String,
    /// When it began, in seconds since 1970.
    pub(crate) began: u64,
    pub(crate) seconds: f64,
    pub(crate) machine: String,
    /// The servers, as they call themselves, or why they could not be reached.
    pub(crate) stores: Vec<String>,
    pub(crate) repetitions: u32,
    pub(crate) scale: &'static str,
    pub(crate) lines: Vec<Line>,
}

/// The processors and the system, for comparisons.
pub(crate) fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|pair| pair.1));
    let model = model.unwrap_or("processors of an unknown kind");
    format!("{cores} × {model}, {}", std::env::consts::OS)
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A number as people read it: three digits that say something, thousands apart.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 99.95 {
        thousands(value.round())
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size == 0.0 {
        "0".to_owned()
    } else if size >= 0.01 {
        format!("{value:.2}")
    } else {
        format!("{value:.3}")
    }
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_say_as_much_as_they_know() {
        for (value, text) in [
            (1_234_567.0, "1,234,567"),
            (999.6, "1,000"),
            (123.4, "123"),
            (12.34, "12.3"),
            (1.234, "1.23"),
            (0.0123, "0.01"),
            (0.0012, "0.001"),
            (0.0, "0"),
            (-4_200.0, "-4,200"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
