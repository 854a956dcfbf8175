//! The report as one table for a terminal of 120 columns.
//!
//! What failed is a row as well, with its reason below the table.

use std::fmt::Write as _;

use super::{Report, number};
use crate::measure::{Line, Role};

/// The columns, and whether their texts stand on the left.
const COLUMNS: [(&str, bool); 10] = [
    ("subject", true),
    ("median", false),
    ("unit", true),
    ("range", true),
    ("×limit", false),
    ("×peer", false),
    ("WAL B", false),
    ("dead", false),
    ("stmts", false),
    ("CPU µs", false),
];
const MAX_SUBJECT: usize = 32;

/// The whole of it.
pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    let cells: Vec<Option<[String; 10]>> = report.lines.iter().map(|line| row(line, &report.lines)).collect();
    let mut widths = COLUMNS.map(|(name, _)| name.chars().count());
    for cells in cells.iter().flatten() {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = (*width).max(cell.chars().count());
        }
    }
    for line in &report.lines {
        widths[0] = widths[0].max(line.subject.chars().count().min(MAX_SUBJECT));
    }
    let _ =
        writeln!(out, "posthaste {}, {} repetitions, {}", report.posthaste, report.repetitions, report.scale);
    let _ = writeln!(out, "{}; {}", report.machine, report.stores.join("; "));

    let mut group = None;
    for (line, cells) in report.lines.iter().zip(&cells) {
        if group != Some(line.group()) {
            group = Some(line.group());
            let _ = writeln!(out, "\n{}", title(line));
            put(&mut out, &COLUMNS.map(|(name, _)| name.to_owned()), &widths);
            let rule: Vec<String> = widths.iter().map(|width| "─".repeat(*width)).collect();
            let _ = writeln!(out, "{}", rule.join("──"));
        }
        match cells {
            Some(cells) => put(&mut out, cells, &widths),
            None => {
                let subject = cut(&line.subject);
                let _ = writeln!(out, "{subject:width$}  failed", width = widths[0]);
            }
        }
        if !line.failures.is_empty() {
            let (failed, all) = (line.failures.len(), line.failures.len() + line.samples.len());
            let why = line.failures.last().map(|why| why.lines().next().unwrap_or_default());
            let why: String = why.unwrap_or_default().chars().take(96).collect();
            let _ = writeln!(out, "  ! {failed} of {all} failed: {why}");
        }
        if let Some(extra) = extra(line) {
            let _ = writeln!(out, "  · {extra}");
        }
    }
    out
}

/// The name of a group.
pub(crate) fn title(line: &Line) -> String {
    let variation = if line.variation.is_empty() { String::new() } else { format!(" · {}", line.variation) };
    let store = if line.store.is_empty() { String::new() } else { format!(" · {}", line.store) };
    format!("{}{store}{variation}", line.scenario)
}

fn row(line: &Line, lines: &[Line]) -> Option<[String; 10]> {
    let value = line.value()?;
    let ratio = |role| {
        if line.role == role {
            return String::new();
        }
        line.ratio_to(role, lines).map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
    };
    let counted = |name| line.counted(name).map(number).unwrap_or_default();
    let cpu = match (line.counted("server_cpu_us"), line.counted("client_cpu_us")) {
        (Some(server), Some(client)) => format!("{}+{}", number(server), number(client)),
        (None, Some(client)) => number(client),
        _ => String::new(),
    };
    Some([
        cut(&line.subject),
        number(value.median),
        line.unit.text().to_owned(),
        format!("{}–{}", number(value.min), number(value.max)),
        ratio(Role::Limit),
        ratio(Role::Peer),
        counted("wal_bytes"),
        counted("dead_tuples"),
        counted("statements"),
        cpu,
    ])
}

/// What does not fit into columns.
pub(crate) fn extra(line: &Line) -> Option<String> {
    let mut parts = Vec::new();
    if let (Some(p99), Some(max)) = (line.counted("p99_ms"), line.counted("max_ms")) {
        let p50 = line.counted("p50_ms").unwrap_or_default();
        parts.push(format!("latency p50 {}, p99 {}, max {} ms", number(p50), number(p99), number(max)));
    }
    if let Some(blocks) = line.counted("blocks").filter(|_| line.scenario == "growth") {
        parts.push(format!("{} blocks per message", number(blocks)));
    }
    if let Some(ratio) = line.counted("times_the_small") {
        parts.push(format!("{ratio:.2} times as long as the smallest in turns with it"));
    }
    parts.extend(line.configuration().map(str::to_owned));
    let foreign = line.counted("foreign_transactions").unwrap_or_default();
    if foreign > 0.05 * line.counted("transactions").unwrap_or(f64::INFINITY) && foreign > 0.01 {
        parts.push("others used the server meanwhile".to_owned());
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn put(out: &mut String, cells: &[String; 10], widths: &[usize; 10]) {
    let mut text = String::new();
    for ((cell, width), (_, left)) in cells.iter().zip(widths).zip(COLUMNS) {
        let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
        let _ = if left { write!(text, "{cell}{pad}  ") } else { write!(text, "{pad}{cell}  ") };
    }
    let _ = writeln!(out, "{}", text.trim_end());
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MAX_SUBJECT {
        return text.to_owned();
    }
    text.chars().take(MAX_SUBJECT - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Sample, Unit};
    use crate::report::{html, json};

    fn sample(value: f64, counts: &[(&str, f64)]) -> Sample {
        let mut sample = Sample { value, ..Sample::default() };
        for (name, value) in counts {
            sample.count(name, *value);
        }
        sample
    }

    fn line(subject: &str, role: Role, samples: Vec<Sample>) -> Line {
        let mut line = Line::failed("drain", "postgres", subject, role, String::new());
        line.failures.clear();
        line.unit = Unit::Messages;
        line.samples = samples;
        line
    }

    fn report() -> Report {
        let costs = [
            ("wal_bytes", 1_530.4),
            ("dead_tuples", 2.0),
            ("statements", 0.002),
            ("server_cpu_us", 21.5),
            ("client_cpu_us", 9.25),
        ];
        let mut own = line(
            "posthaste",
            Role::Posthaste,
            vec![sample(40_000.0, &costs), sample(60_000.0, &costs), sample(50_000.0, &costs)],
        );
        own.samples[2].configuration = Some("workers 4, batch 1000".to_owned());
        let limit = line("limit: destructive read", Role::Limit, vec![sample(200_000.0, &[])]);
        let peer = line("pgmq 1.0", Role::Peer, vec![sample(40_000.0, &[])]);
        let mut broken = line("<broken>", Role::Peer, Vec::new());
        broken.failures = vec!["drain: exit status: 1: no such table".to_owned()];
        Report {
            posthaste: "0.1.0".to_owned(),
            began: 0,
            seconds: 1.0,
            machine: "2 × a processor, linux".to_owned(),
            stores: vec!["PostgreSQL 15.1".to_owned()],
            repetitions: 3,
            scale: "default",
            lines: vec![own, limit, peer, broken],
        }
    }

    #[test]
    fn the_table_is_the_one_in_the_file() {
        let rendered = render(&report());
        assert_eq!(rendered, include_str!("table_golden.txt"), "is it better? then keep it:\n{rendered}");
        assert!(rendered.lines().all(|line| line.chars().count() <= 120));
    }

    #[test]
    fn the_page_stands_alone_and_escapes() {
        let page = html::render(&report());
        assert!(page.contains("&lt;broken&gt;") && !page.contains("<broken>"));
        assert!(!page.contains("<script") && !page.contains("http://") && !page.contains("https://"));
        assert!(
            page.contains("no such table")
                && page.contains("<svg")
                && page.contains("prefers-color-scheme: dark")
        );
    }

    #[test]
    fn programs_get_samples_and_ratios() {
        let value: serde_json::Value = serde_json::from_str(&json::render(&report()).unwrap()).unwrap();
        let own = &value["lines"][0];
        assert_eq!(own["samples"].as_array().unwrap().len(), 3);
        assert_eq!(own["derived"]["summary"]["median"], 50_000.0);
        assert_eq!(own["derived"]["ratio_to_limit"], 0.25);
        assert_eq!(own["derived"]["ratio_to_best_peer"], 1.25);
        assert_eq!(value["lines"][3]["failures"][0], "drain: exit status: 1: no such table");
    }
}
