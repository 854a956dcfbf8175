//! The command line: every command and what all of them take. What a command does is in its own file.

use clap::{Args, ColorChoice, Parser, Subcommand};

use crate::{commands, demo, relay};

/// A transactional outbox: messages written in your transaction, delivered at least once.
#[derive(Debug, Parser)]
#[command(
    name = "posthaste",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 it failed; 2 wrong usage or configuration; 3 not found; \
                  4 the database or broker cannot be reached or is busy, try again; 5 the doctor found a danger.\n\n\
                  Start here: posthaste demo"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How to answer.
#[derive(Clone, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Answer with JSON, for programs
    #[arg(long, global = true, help_heading = "Output")]
    pub(crate) json: bool,
    /// Colours: only on a terminal, always, or never
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Output")]
    pub(crate) color: ColorChoice,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Play a small shop in the terminal: nothing to install, no server needed
    Demo(demo::Args),
    /// Deliver what is in one or many databases to brokers
    Relay(relay::Args),
    /// The databases of a relay's configuration, and how each of them is
    Tenants(commands::tenants::Args),
    /// Create or update the tables, or print the SQL that does
    Migrate(commands::migrate::Args),
    /// Print the SQL that gives database roles their rights
    Grants(commands::grants::Args),
    /// How many messages are ready, scheduled, parked, leased, done and dead
    Status(commands::status::Args),
    /// Watch the queue: counts, how fast they change, and how old the oldest message is
    Top(commands::top::Args),
    /// List messages, in the order of enqueueing
    List(commands::list::Args),
    /// Show one message, and what operators did to it
    Show(commands::show::Args),
    /// Say why a message has not arrived, and what to do about it
    Why(commands::why::Args),
    /// Store a message, or one per line of standard input
    Enqueue(commands::enqueue::Args),
    /// Give dead messages another chance: ready again, with no attempts
    Requeue(commands::requeue::Args),
    /// Give up messages: dead, and out of the way of their key
    Bury(commands::bury::Args),
    /// Pause topics: nobody claims them until they are resumed; without topics, list what is paused
    Pause(commands::pause::Args),
    /// Resume topics that were paused
    Resume(commands::resume::Args),
    /// List joins, or show one with its steps
    Joins(commands::joins::Args),
    /// Remove, or archive, messages and joins that have been over for long enough
    Prune(commands::prune::Args),
    /// Look for what endangers messages: durability, tables, clocks, old transactions
    Doctor(commands::doctor::Args),
    /// Print a script that completes commands in your shell
    Completions(commands::completions::Args),
}
