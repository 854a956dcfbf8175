//! `posthaste prune`: removes, or archives, messages and joins that have ended long enough ago.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::ProgressBar;
use posthaste::store::MAX_PRUNE_BATCH;
use posthaste::words::duration;
use posthaste::{Result, Retention};
use serde_json::json;

use crate::confirm::Consent;
use crate::exit::Exit;
use crate::human::{number, things};
use crate::output::Output;
use crate::target::{AnyStore, Target};
use crate::when::span;

/// Remove, or archive, messages and joins that have been over for long enough
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Never a ready or leased one, nor one that is a step of a pending join.\n\nExamples:\n  posthaste prune --done 7d\n  posthaste prune --done 7d --dead 30d --joins 7d --archive --yes"
)]
pub(crate) struct Args {
    /// Done messages that have been so for longer than this
    #[arg(long, value_name = "DURATION", value_parser = span, required_unless_present_any = ["dead", "joins"])]
    done: Option<Duration>,
    /// Dead messages that have been so for longer than this; they no longer hold their key back then
    #[arg(long, value_name = "DURATION", value_parser = span)]
    dead: Option<Duration>,
    /// Joins that have been over for longer than this
    #[arg(long, value_name = "DURATION", value_parser = span)]
    joins: Option<Duration>,
    /// Move messages to the archive table instead of deleting them
    #[arg(long)]
    archive: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    if !args.consent.ask(&args.question(&store.name()))? {
        output.say("nothing was changed");
        return Ok(Exit::Done);
    }
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let messages = args.prune_messages(&*store, &bar).await?;
    let joins = args.prune_joins(&*store, &bar).await?;
    bar.finish_and_clear();
    let verb = if args.archive { "archived" } else { "pruned" };
    output.answer(&json!({ "messages": messages, "joins": joins, "archived": args.archive }), || {
        let count = |count: u64, thing| things(usize::try_from(count).unwrap_or(usize::MAX), thing);
        let joins = args.joins.map(|_| format!(", {} pruned", count(joins, "join"))).unwrap_or_default();
        format!("{} {verb}{joins}", count(messages, "message"))
    });
    Ok(Exit::Done)
}

impl Args {
    fn question(&self, store: &str) -> String {
        let what = [("done messages", self.done), ("dead messages", self.dead), ("joins", self.joins)];
        let what: Vec<String> = what
            .iter()
            .filter_map(|(what, age)| age.map(|age| format!("{what} older than {}", duration(age))))
            .collect();
        format!("{} {} of {store}?", if self.archive { "Archive" } else { "Prune" }, what.join(", "))
    }

    async fn prune_messages(&self, store: &dyn AnyStore, bar: &ProgressBar) -> Result<u64> {
        if self.done.is_none() && self.dead.is_none() {
            return Ok(0);
        }
        // Kinds that are not to be pruned get the longest retention.
        let mut retention = Retention::done(self.done.unwrap_or(Duration::MAX));
        if let Some(dead) = self.dead {
            retention = retention.dead(dead);
        }
        if self.archive {
            retention = retention.archive();
        }
        let mut total = 0;
        loop {
            let pruned = store.prune(&retention, MAX_PRUNE_BATCH).await?;
            total += pruned;
            show(bar, total, "messages");
            if pruned < u64::from(MAX_PRUNE_BATCH) {
                return Ok(total);
            }
        }
    }

    async fn prune_joins(&self, store: &dyn AnyStore, bar: &ProgressBar) -> Result<u64> {
        let Some(keep) = self.joins else { return Ok(0) };
        let mut total = 0;
        loop {
            let pruned = store.prune_joins(keep, MAX_PRUNE_BATCH).await?;
            total += pruned;
            show(bar, total, "joins");
            if pruned < u64::from(MAX_PRUNE_BATCH) {
                return Ok(total);
            }
        }
    }
}

fn show(bar: &ProgressBar, total: u64, what: &str) {
    bar.set_message(format!("{} {what}", number(total)));
    bar.tick();
}
