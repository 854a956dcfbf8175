//! Changes that an operator makes to many messages: requeue and bury.
//!
//! The messages are chosen first, shown or asked about, and then changed by their ids: what dies again meanwhile, or comes in
//! new, is not changed by an answer that was given before.

use std::collections::HashSet;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use posthaste::store::MAX_BATCH;
use posthaste::{Change, Error, ErrorKind, MessageId, Result, Shutdown, shutdown_signal};
use serde::Serialize;
use tokio::time::sleep;

use crate::confirm::Consent;
use crate::exit::Exit;
use crate::filter::FilterArgs;
use crate::human::things;
use crate::output::Output;
use crate::target::{AnyStore, Target};

/// How many messages one call changes.
const CALL: usize = 1_000;
/// Up to how many ids are shown to people.
const SHOWN: usize = 20;

/// What requeue and bury take.
#[derive(Debug, Args)]
pub(crate) struct ChangeArgs {
    /// Which messages
    #[arg(value_name = "ID")]
    ids: Vec<MessageId>,
    /// Why; it is kept in the history of each message
    #[arg(long, value_name = "TEXT")]
    why: String,
    /// Who; it is kept, too [default: user and host]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// Every message that can be changed, without any filter
    #[arg(long, conflicts_with = "ids", help_heading = "Which messages")]
    all: bool,
    /// The most messages to change, those enqueued first before the others
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
    /// The most messages to change in a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// Only say which would be changed
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    target: Target,
}

/// Which change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Requeue,
    Bury,
}

impl Verb {
    const fn words(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Requeue => ("Requeue", "requeued", "only dead messages can be requeued"),
            Self::Bury => (
                "Bury",
                "buried",
                "only messages that are ready, or dead and holding their key back, can be buried",
            ),
        }
    }

    async fn apply(self, store: &dyn AnyStore, change: &Change) -> Result<Vec<MessageId>> {
        match self {
            Self::Requeue => store.requeue(change).await,
            Self::Bury => store.bury(change).await,
        }
    }
}

#[derive(Serialize)]
struct Answer {
    changed: usize,
    ids: Vec<MessageId>,
    dry_run: bool,
}

pub(crate) async fn run(verb: Verb, mut args: ChangeArgs, output: &Output) -> Result<Exit> {
    args.ids.sort_unstable();
    args.ids.dedup();
    if args.ids.is_empty() && args.filter.is_empty() && !args.all {
        return Err(Error::new(ErrorKind::InvalidInput, "no messages are named")
            .with_remedy("name ids or a filter, or say --all"));
    }
    let work =
        Work { verb, store: args.target.open().await?, by: args.by.clone().unwrap_or_else(whoami), args };
    let first = work.choose(&HashSet::new(), work.args.limit as usize).await?;
    if !work.args.dry_run && !first.is_empty() && !work.agreed(first.len())? {
        output.say("nothing was changed");
        return Ok(Exit::Done);
    }
    let stop = shutdown_signal();
    let ids = if work.args.dry_run { first } else { work.change(first, &stop).await? };
    let missing = work.args.ids.len().min(work.args.limit as usize).saturating_sub(ids.len());
    output.answer(&Answer { changed: ids.len(), ids: ids.clone(), dry_run: work.args.dry_run }, || {
        work.text(&ids)
    });
    if stop.has_begun() {
        output.say("it was interrupted: there may be more");
        return Ok(Exit::Failed);
    }
    if missing > 0 {
        output.say(format!(
            "{} of {} could not be: {}",
            things(missing, "id"),
            work.args.ids.len(),
            verb.words().2
        ));
    }
    Ok(if ids.is_empty() && !work.args.ids.is_empty() { Exit::NotFound } else { Exit::Done })
}

struct Work {
    verb: Verb,
    store: std::sync::Arc<dyn AnyStore>,
    by: String,
    args: ChangeArgs,
}

impl Work {
    /// Messages that could be changed and were not chosen before: the first of them, up to what one call can tell.
    async fn choose(&self, before: &HashSet<MessageId>, most: usize) -> Result<Vec<MessageId>> {
        let change = Change::new(self.args.filter.filter(&self.args.ids)?, &self.by, &self.args.why)?;
        let limit = (most + before.len()).min(MAX_BATCH as usize);
        let change = change.limit(u32::try_from(limit).unwrap_or(MAX_BATCH)).dry_run();
        let mut ids = self.verb.apply(&*self.store, &change).await?;
        ids.retain(|id| !before.contains(id));
        ids.truncate(most);
        Ok(ids)
    }

    fn agreed(&self, chosen: usize) -> Result<bool> {
        if chosen == 1 && !Consent::can_ask() {
            return Ok(true);
        }
        let limit = self.args.limit as usize;
        let or_more = if chosen >= MAX_BATCH as usize && limit > chosen {
            format!(", and more up to {}", crate::human::number(limit))
        } else {
            String::new()
        };
        self.args.consent.ask(&format!("{} {}{or_more}?", self.verb.words().0, things(chosen, "message")))
    }

    /// Changes the chosen messages, and chooses again if there may be more than one choice returns. Ends early on Ctrl-C,
    /// between two calls.
    async fn change(&self, first: Vec<MessageId>, stop: &Shutdown) -> Result<Vec<MessageId>> {
        let limit = self.args.limit as usize;
        let (mut seen, mut changed): (HashSet<MessageId>, Vec<MessageId>) = Default::default();
        let pace = Pace::new(self.args.rate);
        let mut chosen = first;
        let bar = bar(if chosen.len() >= MAX_BATCH as usize { limit } else { chosen.len() }, pace.call);
        while !chosen.is_empty() {
            for ids in chosen.chunks(pace.call) {
                if !changed.is_empty() {
                    pace.wait(stop).await;
                }
                if stop.has_begun() {
                    return Ok(changed);
                }
                let call = self.call(ids).await;
                changed.extend(call.map_err(|error| error.with_context("changed before", changed.len()))?);
                bar.set_position(changed.len() as u64);
            }
            let full = chosen.len() >= MAX_BATCH as usize;
            seen.extend(chosen);
            let left = limit.saturating_sub(changed.len());
            chosen = if full && left > 0 { self.choose(&seen, left).await? } else { Vec::new() };
        }
        bar.finish_and_clear();
        Ok(changed)
    }

    async fn call(&self, ids: &[MessageId]) -> Result<Vec<MessageId>> {
        let change = Change::new(self.args.filter.filter(ids)?, &self.by, &self.args.why)?;
        self.verb.apply(&*self.store, &change).await
    }

    fn text(&self, ids: &[MessageId]) -> String {
        let (_, past, only) = self.verb.words();
        let verb = if self.args.dry_run { format!("would be {past}") } else { past.to_owned() };
        match ids.len() {
            0 => format!("no message matches: {only}"),
            count if count <= SHOWN => {
                let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
                format!("{lines}{} {verb}", things(count, "message"))
            }
            count => format!("{} {verb}", things(count, "message")),
        }
    }
}

/// How many messages a call changes, and how long it is until the next one.
struct Pace {
    call: usize,
    pause: Duration,
}

impl Pace {
    fn new(rate: Option<u32>) -> Self {
        let Some(rate) = rate else { return Self { call: CALL, pause: Duration::ZERO } };
        let call = CALL.min(rate as usize);
        #[allow(clippy::cast_precision_loss, reason = "at most a thousand")]
        let pause = Duration::from_secs_f64(call as f64 / f64::from(rate));
        Self { call, pause }
    }

    async fn wait(&self, stop: &Shutdown) {
        if !self.pause.is_zero() {
            tokio::select! {
                () = sleep(self.pause) => {}
                () = stop.begun() => {}
            }
        }
    }
}

/// A progress bar for more than one call; hidden without a terminal.
fn bar(messages: usize, call: usize) -> ProgressBar {
    if messages <= call || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(messages as u64);
    let style = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len}, {eta} left");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The name of the account that this process has, where the environment does not say it: under cron, in containers.
fn account() -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let number = std::fs::metadata("/proc/self").ok()?.uid();
        let accounts = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let mut lines = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let name = lines.find(|line| line.get(2).is_some_and(|uid| *uid == number.to_string()));
        Some(name.map_or_else(|| format!("uid {number}"), |line| line[0].to_owned()))
    }
    #[cfg(not(unix))]
    None
}

/// User and host, as far as the environment or the system tells them: `ada@host`.
pub(crate) fn whoami() -> String {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let user = set("USER")
        .or_else(|| set("LOGNAME"))
        .or_else(|| set("USERNAME"))
        .or_else(account)
        .unwrap_or_else(|| "somebody".to_owned());
    let host = set("HOSTNAME").or_else(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
        Some(text.trim().to_owned()).filter(|host| !host.is_empty())
    });
    let name = host.map_or_else(|| user.clone(), |host| format!("{user}@{host}"));
    name.chars().filter(|c| !c.is_control()).take(50).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_small_enough_for_the_rate() {
        let pace = |rate| {
            let pace = Pace::new(rate);
            (pace.call, pace.pause)
        };
        assert_eq!(pace(Some(50)), (50, Duration::from_secs(1)));
        assert_eq!(pace(Some(4_000)), (1_000, Duration::from_millis(250)));
        assert_eq!(pace(None), (1_000, Duration::ZERO));
    }

    #[test]
    fn everybody_has_a_name() {
        assert!(!whoami().is_empty() && whoami().len() <= 200);
    }
}
