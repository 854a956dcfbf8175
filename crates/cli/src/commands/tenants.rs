//! `posthaste tenants`: the databases of a relay's configuration, and how each of them is.
//!
//! It asks the databases, not a relay. One that fails is shown with its error, and concerns no other.

use std::path::PathBuf;

use posthaste::{Result, Stats};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::exit::Exit;
use crate::output::{Output, Table, printable};
use crate::relay;
use crate::view::StatsView;

/// The databases of a relay's configuration, and how each of them is
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  posthaste tenants --config relay.toml")]
pub(crate) struct Args {
    /// The relay's configuration
    #[arg(long, short, value_name = "FILE", env = "POSTHASTE_CONFIG")]
    config: PathBuf,
}

#[derive(Serialize)]
struct Tenant {
    name: String,
    /// Where it is, without any login.
    database: String,
    /// `ok` or `failing`.
    state: &'static str,
    error: Option<String>,
    stats: Option<StatsView>,
}

#[derive(Serialize)]
struct Answer {
    tenants: Vec<Tenant>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let config = match relay::load(&args.config) {
        Ok(config) => config,
        Err(mistakes) => return Ok(relay::refuse(&mistakes, output)),
    };
    let of = config.databases.len();
    let mut asked = JoinSet::new();
    for database in config.databases {
        asked.spawn(async move {
            let store = relay::store(&database, of)?;
            let stats = match store.check().await {
                Ok(()) => store.stats().await,
                Err(error) => Err(error),
            };
            Ok::<_, posthaste::Error>(tenant(database.name, store.name(), stats))
        });
    }
    let mut tenants = Vec::new();
    while let Some(tenant) = asked.join_next().await {
        if let Ok(tenant) = tenant {
            tenants.push(tenant?);
        }
    }
    tenants.sort_by(|a, b| a.name.cmp(&b.name));
    let failing = tenants.iter().any(|tenant| tenant.error.is_some());
    let answer = Answer { tenants };
    output.answer(&answer, || table(&answer.tenants));
    Ok(if failing { Exit::Unavailable } else { Exit::Done })
}

fn tenant(name: String, database: String, stats: Result<Stats>) -> Tenant {
    match stats {
        Ok(stats) => Tenant { name, database, state: "ok", error: None, stats: Some((&stats).into()) },
        Err(error) => {
            Tenant { name, database, state: "failing", error: Some(error.to_string()), stats: None }
        }
    }
}

fn table(tenants: &[Tenant]) -> String {
    let mut table =
        Table::new(&["tenant", "database", "state", ">ready", ">scheduled", ">leased", ">dead", "error"]);
    for tenant in tenants {
        let stats = tenant.stats.as_ref();
        let number = |count: fn(&StatsView) -> crate::view::CountView| {
            stats.map(count).map_or_else(
                || "-".to_owned(),
                |count| format!("{}{}", count.value, if count.exact { "" } else { "+" }),
            )
        };
        table.row([
            tenant.name.clone(),
            printable(&tenant.database),
            tenant.state.to_owned(),
            number(|stats| stats.ready),
            number(|stats| stats.scheduled),
            number(|stats| stats.leased),
            number(|stats| stats.dead),
            printable(tenant.error.as_deref().unwrap_or_default()),
        ]);
    }
    table.render()
}
