//! `posthaste pause`: pauses topics until they are resumed; without topics, lists the pauses.

use posthaste::{Error, ErrorKind, Pause, Result};
use serde_json::json;

use crate::change::whoami;
use crate::exit::Exit;
use crate::human::{away, now};
use crate::output::{Output, Table};
use crate::target::Target;
use crate::view::PauseView;

/// Pause topics: nobody claims them until they are resumed; without topics, list what is paused
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Publishing goes on. What a worker has already is delivered.\n\nExamples:\n  posthaste pause 'order.*' --why 'warehouse moves'\n  posthaste pause"
)]
pub(crate) struct Args {
    /// A topic, or the beginning of some and a `*`
    topics: Vec<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    why: Option<String>,
    /// Who [default: user and host]
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    if args.topics.is_empty() {
        let pauses = args.target.open().await?.pauses().await?;
        let views: Vec<PauseView> = pauses.iter().map(PauseView::from).collect();
        output.answer(&json!({ "paused": views }), || table(&pauses));
        return Ok(Exit::Done);
    }
    let why = args.why.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "a pause needs a reason")
            .with_remedy("say --why, for those who find it tomorrow")
    })?;
    let by = args.by.unwrap_or_else(whoami);
    for topics in &args.topics {
        Pause::check(topics, &by, &why)?;
    }
    let store = args.target.open().await?;
    let (mut paused, mut before) = (Vec::new(), Vec::new());
    for topics in &args.topics {
        let new = store.pause(topics, &by, &why).await?;
        if new { &mut paused } else { &mut before }.push(topics.clone());
    }
    output.answer(&json!({ "paused": paused, "paused_before": before }), || {
        let lines = paused.iter().map(|topics| format!("{topics} is paused\n"));
        let lines = lines.chain(before.iter().map(|topics| format!("{topics} was paused already\n")));
        crate::human::printable_lines(&lines.collect::<String>())
    });
    Ok(Exit::Done)
}

/// The pauses, for people.
pub(super) fn table(pauses: &[Pause]) -> String {
    if pauses.is_empty() {
        return "nothing is paused".to_owned();
    }
    let now = now();
    let mut table = Table::new(&["topics", "since", "by", "why"]);
    for pause in pauses {
        table.row([pause.topics.clone(), away(pause.since, now), pause.by.clone(), pause.why.clone()]);
    }
    table.render()
}
