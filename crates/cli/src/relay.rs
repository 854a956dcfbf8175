//! `posthaste relay`: the daemon that delivers the messages of one or many databases to brokers.
//!
//! Here is its command line. All sources end up in one configuration. Mistakes are reported all at once, and then
//! nothing is started.

mod api_stores;
mod build;
mod check;
pub(crate) mod config;
mod generation;
mod http;
mod log;
mod migrate;
mod prometheus;
mod run;
pub(crate) mod secret;
mod simple;

use std::path::{Path, PathBuf};

use posthaste::Result;
use serde_json::json;

use self::config::{Config, Mistakes};
use crate::exit::Exit;
use crate::output::Output;

pub(crate) use self::build::store;

/// Deliver what is in one or many databases to brokers
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    posthaste relay --from postgres://app@db/shop --to 'amqp://rabbit/?exchange=shop' --topics 'order.*'\n  \
    posthaste relay --from sqlite:shop.db --to log:\n  \
    posthaste relay --config relay.toml --check\n\n\
    Every key of the file can be given in the environment, too: POSTHASTE__HTTP__LISTEN=127.0.0.1:8080.\n\
    SIGHUP reads the configuration again; SIGTERM ends after what is under way, a second one at once.")]
pub(crate) struct Args {
    /// The file that says which databases, sinks and routes there are
    #[arg(long, short, value_name = "FILE", env = "POSTHASTE_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// A database: postgres://…, mysql://… or sqlite:FILE; may be given several times
    #[arg(long, value_name = "URL")]
    from: Vec<String>,
    /// Where messages go: amqp://HOST/VHOST?exchange=NAME, `nats://HOST?stream=NAME`, log: or null:
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Which topics go there: one, or the beginning of some and a *; may be given several times [default: *]
    #[arg(long, value_name = "TOPICS", requires = "to")]
    topics: Vec<String>,
    /// The address of the HTTP API, health and metrics, or off
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Print the effective configuration, try every connection, and end
    #[arg(long)]
    check: bool,
    /// Print every key of the configuration, with its default and its meaning, and end
    #[arg(long)]
    keys: bool,
    /// Create or update the tables of every database first
    #[arg(long)]
    migrate: bool,
}

impl Args {
    /// Reads everything that was said.
    fn load(&self) -> Result<Config, Mistakes> {
        Config::load(self.config.as_deref(), |raw| simple::add(raw, self))
    }
}

/// Reads a configuration for another command.
pub(crate) fn load(file: &Path) -> Result<Config, Mistakes> {
    Config::load(Some(file), |_| {})
}

/// Reports the mistakes of a configuration.
pub(crate) fn refuse(mistakes: &Mistakes, output: &Output) -> Exit {
    if output.is_json() {
        let error = json!({ "error": {
            "kind": "invalid configuration",
            "message": mistakes.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "mistakes": mistakes.0,
        }});
        output.say(error.to_string());
    } else {
        for mistake in &mistakes.0 {
            output.say(format!("error: {}", crate::output::printable(&mistake.to_string())));
        }
    }
    Exit::Usage
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    if args.keys {
        let reference = config::schema::reference();
        output.answer(&json!({ "reference": reference }), || reference.clone());
        return Ok(Exit::Done);
    }
    let config = match args.load() {
        Ok(config) => config,
        Err(mistakes) => return Ok(refuse(&mistakes, output)),
    };
    let unmigrated = if args.migrate { migrate::all(&config).await? } else { Vec::new() };
    if args.check {
        // It reaches every database itself, and prints those that fail.
        return Ok(check::run(&config, output).await);
    }
    run::run(args, config, unmigrated).await
}
