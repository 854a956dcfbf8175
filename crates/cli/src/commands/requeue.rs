//! `posthaste requeue`: gives dead messages another chance.

use posthaste::Result;

use crate::change::{self, ChangeArgs, Verb};
use crate::exit::Exit;
use crate::output::Output;

/// Give dead messages another chance: ready again, with no attempts
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  posthaste requeue 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11 --why 'address was corrected'\n  \
                        posthaste requeue --topic 'order.*' --class permanent --why 'fixed in 1.4.2' --dry-run\n  \
                        posthaste requeue --all --limit 100000 --rate 500 --yes --why 'broker is back'"
)]
pub(crate) struct Args {
    #[command(flatten)]
    change: ChangeArgs,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    change::run(Verb::Requeue, args.change, output).await
}
