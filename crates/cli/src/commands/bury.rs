//! `posthaste bury`: gives up messages.

use posthaste::Result;

use crate::change::{self, ChangeArgs, Verb};
use crate::exit::Exit;
use crate::output::Output;

/// Give up messages: dead, and out of the way of their key
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Those that are ready, and dead ones that hold their key back. Leased ones are their worker's.\n\nExamples:\n  posthaste bury 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11 --why 'customer left'\n  \
                        posthaste bury --topic newsletter.send --before 7d --why 'too late' --dry-run"
)]
pub(crate) struct Args {
    #[command(flatten)]
    change: ChangeArgs,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    change::run(Verb::Bury, args.change, output).await
}
