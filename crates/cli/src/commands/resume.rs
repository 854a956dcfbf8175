//! `posthaste resume`: ends a pause.

use posthaste::{Pause, Result};
use serde_json::json;

use super::pause::table;
use crate::change::whoami;
use crate::exit::Exit;
use crate::human::printable_lines;
use crate::output::Output;
use crate::target::Target;

/// Resume topics that were paused, written as they were then
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  posthaste resume 'order.*'")]
pub(crate) struct Args {
    /// A topic, or the beginning of some and a `*`
    #[arg(required = true)]
    topics: Vec<String>,
    #[command(flatten)]
    target: Target,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    for topics in &args.topics {
        Pause::check(topics, &whoami(), "resume")?;
    }
    let store = args.target.open().await?;
    let (mut resumed, mut unknown) = (Vec::new(), Vec::new());
    for topics in &args.topics {
        let was = store.resume(topics).await?;
        if was { &mut resumed } else { &mut unknown }.push(topics.clone());
    }
    output.answer(&json!({ "resumed": resumed, "not_paused": unknown }), || {
        let lines = resumed.iter().map(|topics| format!("{topics} is resumed\n"));
        let lines = lines.chain(unknown.iter().map(|topics| format!("{topics} is not paused\n")));
        printable_lines(&lines.collect::<String>())
    });
    if unknown.is_empty() {
        return Ok(Exit::Done);
    }
    if !output.is_json() {
        output.say(table(&store.pauses().await?));
    }
    Ok(Exit::NotFound)
}
