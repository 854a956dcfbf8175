//! `posthaste top`: the same as `status`, again and again, with how fast it changes.
//!
//! It asks for what `status` asks for, and nothing more. A call to the store is never cancelled: Ctrl-C is heard between two.

use std::time::Duration;

use console::{Term, truncate_str};
use posthaste::{Count, Result, Stats, shutdown_signal};
use serde::Serialize;
use tokio::time::{Instant, sleep_until};

use super::status::{Answer, Glance, red};
use crate::exit::Exit;
use crate::human::{columns, count, printable_answer};
use crate::output::{Cell, Output, Table};
use crate::target::Target;
use crate::when::span;

/// How many topics are shown.
const TOPICS: usize = 10;

/// Watch the queue: counts, how fast they change, and how old the oldest message is
#[derive(Debug, clap::Args)]
#[command(
    after_help = "On a terminal it draws in place until Ctrl-C; elsewhere it answers one line per interval.\n\nExamples:\n  posthaste top --store postgres://app@db/shop\n  \
                        posthaste top --json --every 10s --count 6"
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = interval)]
    every: Duration,
    /// Look so many times, then end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Look once, then end
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

fn interval(text: &str) -> Result<Duration, String> {
    let every = span(text)?;
    if every < Duration::from_millis(100) { Err("give it at least 100ms".to_owned()) } else { Ok(every) }
}

/// Messages per second; `None` if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Rates {
    /// By how many the ready ones grow; negative if they become fewer.
    ready_per_second: Option<f64>,
    done_per_second: Option<f64>,
    dead_per_second: Option<f64>,
}

impl Rates {
    fn between(before: &Stats, after: &Stats, elapsed: Duration) -> Self {
        let change = |before: Count, after: Count| {
            let both = before.exact && after.exact && !elapsed.is_zero();
            #[allow(clippy::cast_precision_loss, reason = "a rate is rounded anyway")]
            both.then(|| (after.value as f64 - before.value as f64) / elapsed.as_secs_f64())
        };
        // Fewer than before means that some were pruned or requeued: how many came is not to be known.
        let growth = |before, after| change(before, after).filter(|rate| *rate >= 0.0);
        Self {
            ready_per_second: change(before.ready, after.ready),
            done_per_second: growth(before.done, after.done),
            dead_per_second: growth(before.dead, after.dead),
        }
    }

    fn of(&self, state: &str) -> String {
        let (rate, sign) = match state {
            "ready" => (self.ready_per_second, true),
            "done" => (self.done_per_second, false),
            "dead" => (self.dead_per_second, false),
            _ => return String::new(),
        };
        match rate {
            None => "–".to_owned(),
            Some(rate) if sign => format!("{rate:+.1}"),
            Some(rate) => format!("{rate:.1}"),
        }
    }
}

#[derive(Serialize)]
struct Snapshot {
    at: String,
    #[serde(flatten)]
    answer: Answer,
    #[serde(flatten)]
    rates: Rates,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    let live = !output.is_json() && !args.once && Term::stdout().is_term();
    let mut looks = if args.once { Some(1) } else { args.count };
    let stop = shutdown_signal();
    let mut drawn = 0;
    let mut before: Option<(Instant, Stats)> = None;
    loop {
        let began = Instant::now();
        let glance = Glance::of(&*store).await?;
        let rates = before.as_ref().map_or_else(Rates::default, |(at, stats)| {
            Rates::between(stats, &glance.stats, began.duration_since(*at))
        });
        if live {
            drawn = draw(&screen(&glance, rates), drawn);
        } else {
            let snapshot =
                Snapshot { at: posthaste::words::time(crate::human::now()), answer: glance.answer(), rates };
            if !output.answer_line(&snapshot, || line(&glance, rates)) {
                return Ok(Exit::Done);
            }
        }
        before = Some((began, glance.stats));
        looks = looks.map(|left| left.saturating_sub(1));
        if looks == Some(0) {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = sleep_until(began + args.every) => {}
            () = stop.begun() => return Ok(Exit::Done),
        }
    }
}

/// Draws over the last frame; returns the number of lines.
fn draw(text: &str, before: usize) -> usize {
    let term = Term::stdout();
    let (rows, columns) = term.size();
    let lines = fitted(text, rows.into(), columns.into());
    // A terminal that cannot be drawn on shows nothing; the error has no reader.
    let _ = term.clear_last_lines(before);
    for line in &lines {
        let _ = term.write_line(line);
    }
    lines.len()
}

/// What fits on the terminal: a line that wraps, or scrolls, could not be drawn over.
fn fitted(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let rows = rows.saturating_sub(1).max(1);
    let text = printable_answer(text, console::colors_enabled());
    text.lines().take(rows).map(|line| truncate_str(line, columns, "…").into_owned()).collect()
}

fn screen(glance: &Glance, rates: Rates) -> String {
    let mut states = Table::new(&["state", ">messages", ">per second"]).fit(columns());
    for (state, value) in glance.states() {
        let cell = if state == "dead" { red(Some(value)) } else { Cell::from(count(value)) };
        states.row([Cell::from(state), cell, Cell::from(rates.of(state))]);
    }
    let topics = glance.topics(TOPICS).fit(columns());
    let topics = if topics.is_empty() { String::new() } else { format!("\n{}", topics.render()) };
    let head = format!("{}: {}", glance.store, glance.oldest());
    format!("{head}\n\n{}{topics}{}\nCtrl-C ends it\n", states.render(), glance.paused())
}

fn line(glance: &Glance, rates: Rates) -> String {
    let states: Vec<String> =
        glance.states().iter().map(|(state, value)| format!("{state} {}", count(*value))).collect();
    let paused = if glance.pauses.is_empty() { "" } else { ", paused" };
    format!("{}; {}/s done; {}{paused}", states.join(", "), rates.of("done"), glance.oldest())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_wraps_and_none_scrolls() {
        assert_eq!(fitted("abcdef\nb\nc\nd", 3, 4), ["abc…", "b"]);
        assert_eq!(fitted("a", 0, 80), ["a"]);
    }

    #[test]
    fn rates_are_told_only_where_they_are_known() {
        let stats = |ready, done, exact| Stats {
            ready: Count { value: ready, exact: true },
            done: Count { value: done, exact },
            ..Stats::default()
        };
        let two = Duration::from_secs(2);
        let rates = Rates::between(&stats(10, 100, true), &stats(6, 130, true), two);
        assert_eq!((rates.ready_per_second, rates.done_per_second), (Some(-2.0), Some(15.0)));
        assert_eq!((rates.of("ready"), rates.of("done")), ("-2.0".to_owned(), "15.0".to_owned()));
        let pruned = Rates::between(&stats(0, 100, true), &stats(0, 90, true), two);
        assert_eq!(pruned.of("done"), "–");
        let many = Rates::between(&stats(0, 100, false), &stats(0, 120, true), two);
        assert_eq!(many.done_per_second, None);
    }
}
