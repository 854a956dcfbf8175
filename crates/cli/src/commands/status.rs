//! `posthaste status`: how the queue is, in numbers that cost little to find out.

use std::collections::BTreeMap;

use console::Style;
use posthaste::words::duration;
use posthaste::{Count, Pause, Result, State, Stats};
use serde::Serialize;

use crate::exit::Exit;
use crate::human::{away, count, now};
use crate::output::{Cell, Output, Table};
use crate::target::{AnyStore, Target};
use crate::view::{PauseView, StatsView, topics_are_complete};

/// Said where a topic may be missing.
const INCOMPLETE: &str = "\nA state has more messages than are counted: there may be more topics. Ask for one by \
                          `posthaste list --topic NAME`.\n";

/// How many messages are ready, scheduled, parked, leased, done and dead
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A state with more than 10,000 messages is not counted to its end: a look at a queue in trouble must not make its trouble worse.\n\nExamples:\n  posthaste status --store sqlite:shop.db\n  posthaste status --json | jq .dead.value"
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
}

/// How a store is, for programs.
#[derive(Serialize)]
pub(super) struct Answer {
    store: String,
    #[serde(flatten)]
    stats: StatsView,
    paused: Vec<PauseView>,
}

/// The state of a queue at a glance.
pub(super) struct Glance {
    pub(super) store: String,
    pub(super) stats: Stats,
    pub(super) pauses: Vec<Pause>,
}

impl Glance {
    pub(super) async fn of(store: &dyn AnyStore) -> Result<Self> {
        Ok(Self { store: store.name(), stats: store.stats().await?, pauses: store.pauses().await? })
    }

    pub(super) fn answer(&self) -> Answer {
        Answer {
            store: self.store.clone(),
            stats: (&self.stats).into(),
            paused: self.pauses.iter().map(PauseView::from).collect(),
        }
    }

    /// The states in the order of a message's life.
    pub(super) fn states(&self) -> [(&'static str, Count); 6] {
        let stats = &self.stats;
        [
            ("ready", stats.ready),
            ("scheduled", stats.scheduled),
            ("parked", stats.parked),
            ("leased", stats.leased),
            ("done", stats.done),
            ("dead", stats.dead),
        ]
    }

    /// How long the oldest one has been waiting; a sentence if none is.
    pub(super) fn oldest(&self) -> String {
        let oldest = match self.stats.oldest_ready {
            Some(age) => format!("oldest waits {}", duration(age)),
            None => "nothing waits".to_owned(),
        };
        match self.stats.oldest_failing {
            Some(age) => {
                format!("{oldest}, {} failing for up to {}", count(self.stats.failing), duration(age))
            }
            None => oldest,
        }
    }

    /// The topics with most messages that are not over, or dead, first.
    pub(super) fn topics(&self, most: usize) -> Table {
        let mut topics: BTreeMap<&str, [Option<Count>; 3]> = BTreeMap::new();
        for topic in &self.stats.topics {
            let counts = topics.entry(&topic.topic).or_default();
            match topic.state {
                State::Ready => counts[0] = Some(topic.count),
                State::Leased => counts[1] = Some(topic.count),
                State::Dead => counts[2] = Some(topic.count),
                State::Done => {}
            }
        }
        let mut topics: Vec<_> = topics.into_iter().collect();
        let size =
            |counts: &[Option<Count>; 3]| counts.iter().flatten().map(|count| count.value).sum::<u64>();
        topics.sort_by_key(|(topic, counts)| (std::cmp::Reverse(size(counts)), *topic));
        let mut table = Table::new(&["topic", ">ready", ">leased", ">dead"]);
        for (topic, [ready, leased, dead]) in topics.into_iter().take(most) {
            let cell = |value: Option<Count>| Cell::from(value.map(count).unwrap_or_default());
            table.row([Cell::from(topic), cell(ready), cell(leased), red(dead)]);
        }
        table
    }

    pub(super) fn paused(&self) -> String {
        let now = now();
        let line = |pause: &Pause| {
            let text = format!(
                "paused: {} by {}, {}: {}",
                pause.topics,
                pause.by,
                away(pause.since, now),
                pause.why
            );
            Style::new().yellow().apply_to(crate::human::printable(&text)).to_string() + "\n"
        };
        self.pauses.iter().map(line).collect()
    }
}

/// A count that should be none.
pub(super) fn red(value: Option<Count>) -> Cell {
    let style = if value.is_some_and(|count| count.value > 0) { Style::new().red() } else { Style::new() };
    Cell::styled(&value.map(count).unwrap_or_default(), style)
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    let glance = Glance::of(&*store).await?;
    output.answer(&glance.answer(), || {
        let mut states = Table::new(&["state", ">messages"]);
        for (state, value) in glance.states() {
            let cell = if state == "dead" { red(Some(value)) } else { Cell::from(count(value)) };
            states.row([Cell::from(state), cell]);
        }
        let mut text = format!("{}: {}\n\n{}", glance.store, glance.oldest(), states.render());
        let topics = glance.topics(usize::MAX);
        if !topics.is_empty() {
            text.push_str(&format!("\n{}", topics.render()));
        }
        if !topics_are_complete(&glance.stats) {
            text.push_str(INCOMPLETE);
        }
        if !glance.pauses.is_empty() {
            text.push_str(&format!("\n{}", glance.paused()));
        }
        text
    });
    Ok(Exit::Done)
}
