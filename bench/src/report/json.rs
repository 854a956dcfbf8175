//! The report for programs: every sample, with the medians and ratios that people see.

use serde::Serialize;
use serde_json::Value;

use super::Report;
use crate::measure::{Result, Role};
use crate::statistics::Summary;

/// Statistics of a line's samples.
#[derive(Serialize)]
struct Derived {
    summary: Option<Summary>,
    ratio_to_limit: Option<f64>,
    ratio_to_best_peer: Option<f64>,
}

pub(crate) fn render(report: &Report) -> Result<String> {
    let mut value = serde_json::to_value(report)?;
    if let Some(lines) = value.get_mut("lines").and_then(Value::as_array_mut) {
        for (object, line) in lines.iter_mut().zip(&report.lines) {
            object["derived"] = serde_json::to_value(Derived {
                summary: line.value(),
                ratio_to_limit: line.ratio_to(Role::Limit, &report.lines),
                ratio_to_best_peer: line.ratio_to(Role::Peer, &report.lines),
            })?;
        }
    }
    Ok(format!("{value:#}\n"))
}
