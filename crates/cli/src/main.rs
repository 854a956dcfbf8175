//! `posthaste`: the relay for services in any language, the commands of operators, and a demo.
//!
//! Here the command line is read and handed over; what failed becomes a line on the terminal and an exit code. Nothing is
//! decided about messages: that is the library's.

// Builds without some features leave helpers unused; the default build still finds them.
#![cfg_attr(not(feature = "default"), allow(dead_code, unused_imports))]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line tool speaks on its terminal")]

mod args;
mod brokers;
mod change;
mod client;
mod commands;
mod confirm;
mod demo;
mod exit;
mod filter;
mod human;
mod missing;
mod output;
#[cfg(feature = "relay")]
mod relay;
#[cfg(not(feature = "relay"))]
#[path = "without_relay.rs"]
mod relay;
mod target;
mod view;
mod when;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::{Cli, Command};
use crate::exit::Exit;
use crate::output::Output;

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { output, command } = Cli::parse();
    let output = Output::new(&output);
    let ended = match command {
        Command::Demo(args) => demo::run(args, &output).await,
        Command::Relay(args) => relay::run(args, &output).await,
        Command::Tenants(args) => commands::tenants::run(args, &output).await,
        Command::Migrate(args) => commands::migrate::run(args, &output).await,
        Command::Grants(args) => commands::grants::run(&args, &output),
        Command::Status(args) => commands::status::run(args, &output).await,
        Command::Top(args) => commands::top::run(args, &output).await,
        Command::List(args) => commands::list::run(args, &output).await,
        Command::Show(args) => commands::show::run(args, &output).await,
        Command::Why(args) => commands::why::run(args, &output).await,
        Command::Enqueue(args) => commands::enqueue::run(args, &output).await,
        Command::Requeue(args) => commands::requeue::run(args, &output).await,
        Command::Bury(args) => commands::bury::run(args, &output).await,
        Command::Pause(args) => commands::pause::run(args, &output).await,
        Command::Resume(args) => commands::resume::run(args, &output).await,
        Command::Joins(args) => commands::joins::run(args, &output).await,
        Command::Prune(args) => commands::prune::run(args, &output).await,
        Command::Doctor(args) => commands::doctor::run(args, &output).await,
        Command::Completions(args) => Ok(commands::completions::run(&args)),
    };
    match ended {
        Ok(exit) => exit.into(),
        Err(error) => {
            output.error(&error);
            Exit::of(&error).into()
        }
    }
}
