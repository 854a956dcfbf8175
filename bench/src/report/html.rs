//! The report as one page: tables and bars, in light and in dark, without scripts and without anything from elsewhere.
//!
//! All text that comes from elsewhere is escaped.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::{Report, number, table};
use crate::measure::{Line, Role};

const STYLE: &str = include_str!("page.css");
const BAR: f64 = 340.0;

pub(crate) fn render(report: &Report) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>posthaste, measured</title>\n\
         <style>\n{STYLE}</style>\n<h1>posthaste {}, measured</h1>\n<p>{}. {}. {} repetitions, interleaved; {} counts.</p>\n\
         <p>Read the ratios: absolute figures are this machine’s. A bar is a median, the thin line its range. Costs are per \
         message (per transaction or join where that is the unit).</p>\n",
        escape(&report.posthaste),
        escape(&report.machine),
        escape(&report.stores.join("; ")),
        report.repetitions,
        report.scale,
    );
    let mut start = 0;
    while start < report.lines.len() {
        let group = report.lines[start].group();
        let end = start + report.lines[start..].iter().take_while(|line| line.group() == group).count();
        section(&mut out, &report.lines[start..end], &report.lines);
        start = end;
    }
    out.push_str("</html>\n");
    out
}

fn section(out: &mut String, group: &[Line], all: &[Line]) {
    let unit = group[0].unit.text();
    let better = if unit == "ms" { "less is better" } else { "more is better" };
    let _ = writeln!(
        out,
        "<section>\n<h2>{}</h2>\n<p class=\"unit\">{unit}, {better}</p>",
        escape(&table::title(&group[0]))
    );
    chart(out, group);
    let skip = ["seconds", "work"];
    let names: BTreeSet<&str> = group
        .iter()
        .flat_map(|line| &line.samples)
        .flat_map(|sample| sample.counts.keys())
        .map(String::as_str)
        .filter(|name| !skip.contains(name))
        .collect();
    out.push_str("<div class=\"wide\"><table>\n<tr><th>subject<th>median<th>range<th>× limit<th>× best peer");
    for name in &names {
        let _ = write!(out, "<th>{}", escape(&name.replace('_', " ")));
    }
    out.push('\n');
    for line in group {
        let _ = write!(out, "<tr><td>{}", escape(&line.subject));
        if let Some(extra) = table::extra(line) {
            let _ = write!(out, "<small>{}</small>", escape(&extra));
        }
        for why in line.failures.iter().collect::<BTreeSet<_>>() {
            let _ = write!(out, "<small class=\"failed\">failed: {}</small>", escape(why));
        }
        let ratio = |role| {
            let ratio = if line.role == role { None } else { line.ratio_to(role, all) };
            ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
        };
        match line.value() {
            Some(value) => {
                let _ = write!(
                    out,
                    "<td>{}<td>{}–{}<td>{}<td>{}",
                    number(value.median),
                    number(value.min),
                    number(value.max),
                    ratio(Role::Limit),
                    ratio(Role::Peer)
                );
            }
            None => out.push_str("<td>–<td><td><td>"),
        }
        for name in &names {
            let _ = write!(out, "<td>{}", line.counted(name).map(number).unwrap_or_default());
        }
        out.push('\n');
    }
    out.push_str("</table></div>\n</section>\n");
}

fn chart(out: &mut String, group: &[Line]) {
    let most = group.iter().filter_map(Line::value).map(|value| value.max).fold(0.0, f64::max);
    if most <= 0.0 {
        return;
    }
    let height = group.len() * 24;
    let _ = writeln!(out, "<svg viewBox=\"0 0 720 {height}\" role=\"img\" aria-label=\"medians\">");
    for (n, line) in group.iter().enumerate() {
        let y = n * 24;
        let class = match line.role {
            Role::Posthaste => "posthaste",
            Role::Peer => "peer",
            Role::Floor | Role::Limit | Role::Reference => "limit",
        };
        let _ = write!(
            out,
            "<text x=\"268\" y=\"{}\" text-anchor=\"end\">{}</text>",
            y + 16,
            escape(&line.subject)
        );
        let Some(value) = line.value() else {
            let _ = writeln!(out, "<text x=\"276\" y=\"{}\" class=\"failed\">failed</text>", y + 16);
            continue;
        };
        let place = |value: f64| 276.0 + value / most * BAR;
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"276\" y=\"{top}\" width=\"{width:.1}\" height=\"16\" rx=\"2\"/>\
             <line x1=\"{low:.1}\" x2=\"{high:.1}\" y1=\"{middle}\" y2=\"{middle}\"/>\
             <text x=\"{after:.1}\" y=\"{base}\">{text}</text>",
            top = y + 4,
            width = (place(value.median) - 276.0).max(1.0),
            low = place(value.min),
            high = place(value.max),
            middle = y + 12,
            after = place(value.max) + 6.0,
            base = y + 16,
            text = number(value.median),
        );
    }
    out.push_str("</svg>\n");
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
