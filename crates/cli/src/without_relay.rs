//! Stands in for `posthaste relay` and `posthaste tenants` in a build without the relay: takes any arguments, and refuses.

use std::ffi::OsString;

use posthaste::Result;

use crate::exit::Exit;
use crate::missing::missing;
use crate::output::Output;

/// Any arguments: the relay that would read them is not in this build.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    ignored: Vec<OsString>,
}

pub(crate) async fn run(_: Args, _: &Output) -> Result<Exit> {
    Err(missing("the relay", "relay"))
}
