//! `posthaste why`: why a message has not arrived. The reasons are found by the library; here they are printed.

use posthaste::{MessageId, Reason, Result};
use serde_json::Value;

use crate::client::RelayArgs;
use crate::exit::Exit;
use crate::human::printable_lines;
use crate::output::Output;
use crate::target::Target;

/// Say why a message has not arrived, and what to do about it
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A relay knows its routes and whether its sinks are down; a store alone does not.\n\nExamples:\n  posthaste why 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11\n  \
                        posthaste why 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11 --relay http://127.0.0.1:7070 --database shop"
)]
pub(crate) struct Args {
    /// Which message
    id: MessageId,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    relay: RelayArgs,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    if let Some(answer) = args.relay.get(&format!("/messages/{}/why", args.id)).await? {
        output.answer(&answer, || explanation(&answer));
        let unknown = answer["reasons"][0]["reason"] == "unknown";
        return Ok(if unknown { Exit::NotFound } else { Exit::Done });
    }
    let store = args.target.open().await?;
    let why = posthaste::why(&*store, args.id, None).await?;
    output.answer(&why, || printable_lines(&why.explanation));
    Ok(if why.reasons == [Reason::Unknown] { Exit::NotFound } else { Exit::Done })
}

fn explanation(answer: &Value) -> String {
    printable_lines(
        answer["explanation"].as_str().unwrap_or("the relay gave no explanation; look at it with --json"),
    )
}
