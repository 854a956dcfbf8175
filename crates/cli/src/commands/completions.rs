//! `posthaste completions`: a script for a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::exit::Exit;

/// Print a script that completes commands in your shell
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  posthaste completions bash > ~/.local/share/bash-completion/completions/posthaste"
)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Exit {
    clap_complete::generate(args.shell, &mut Cli::command(), "posthaste", &mut std::io::stdout());
    Exit::Done
}
