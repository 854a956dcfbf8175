//! The benchmark: what posthaste costs, beside the limits of its databases and beside its peers.
//!
//! `cargo run --release -p posthaste-bench`; see the README beside it. It writes only into databases and files of its own making.

mod args;
mod count;
mod measure;
mod meter;
mod peer;
mod report;
mod runner;
mod scenario;
mod statistics;
mod store;
mod workload;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser as _;

use crate::args::{Args, Scale, Scenario, StoreName};
use crate::measure::{Case, Line, Result, Role};
use crate::peer::Peer;
use crate::report::Report;
use crate::scenario::{
    batch_enqueue, claimers, drain, enqueue, growth, joins, latency, long_transaction, obstacles, ordered,
    sinks, steady,
};
use crate::store::{Mariadb, Postgres, Product, Sqlite};

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.count {
        // What other threads do, and how often, is never the same twice.
        Some(messages) => {
            on(tokio::runtime::Builder::new_current_thread(), count::run(messages, args.only_store))
        }
        None => on(tokio::runtime::Builder::new_multi_thread(), run(&args)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "posthaste-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on(mut runtime: tokio::runtime::Builder, work: impl Future<Output = Result>) -> Result {
    runtime.enable_all().build()?.block_on(work)
}

async fn run(args: &Args) -> Result {
    if cfg!(debug_assertions) {
        let _ =
            writeln!(std::io::stderr(), "built without --release: the figures below say nothing about speed");
    }
    let (began, begin, scale) = (report::now(), Instant::now(), args.scale());
    let output = output(args);
    std::fs::create_dir_all(&output)
        .map_err(|error| format!("{}: {error}; name another folder by --output", output.display()))?;
    let mut plan = Plan::default();
    let (mut postgres, mut mariadb, mut sqlite) = (None, None, None);
    for name in &args.store {
        match name {
            StoreName::Postgres => {
                postgres = plan.add("postgres", Postgres::new(&args.postgres), args, scale).await;
            }
            StoreName::Mariadb => {
                mariadb = plan.add("mariadb", Mariadb::new(&args.mariadb), args, scale).await;
            }
            StoreName::Sqlite => sqlite = plan.add("sqlite", Sqlite::new(), args, scale).await,
        }
    }
    if let Some(postgres) = postgres.as_ref().filter(|_| args.has(Scenario::Claimers)) {
        plan.cases.extend(claimers::cases(postgres, scale));
    }
    if let Some(names) = &args.peers {
        plan.add_peers(postgres.as_ref(), peer::find(names, &output).await, args, scale);
    }
    plan.sort();
    let mut lines = runner::run(plan.cases, scale.repetitions, &posthaste::shutdown_signal()).await;
    // There are no results for cases that were stopped before their turn.
    lines.retain(|line| !line.samples.is_empty() || !line.failures.is_empty());
    lines.append(&mut plan.missing);
    finish(postgres).await?;
    finish(mariadb).await?;
    finish(sqlite).await?;
    let report = Report {
        posthaste: env!("CARGO_PKG_VERSION").to_owned(),
        began,
        seconds: begin.elapsed().as_secs_f64(),
        machine: report::machine(),
        stores: plan.stores,
        repetitions: scale.repetitions,
        scale: if args.quick {
            "quick"
        } else if args.full {
            "full"
        } else {
            "default"
        },
        lines,
    };
    let json = report::json::render(&report)?;
    std::fs::write(output.join("report.json"), &json)?;
    std::fs::write(output.join("report.html"), report::html::render(&report))?;
    let shown = if args.json { json } else { report::table::render(&report) };
    std::io::stdout().write_all(shown.as_bytes())?;
    let _ = writeln!(
        std::io::stderr(),
        "all samples: {0}/report.json; to look at: {0}/report.html",
        output.display()
    );
    Ok(())
}

async fn finish<P: Product>(product: Option<Arc<P>>) -> Result {
    match product {
        Some(product) => product.finish().await,
        None => Ok(()),
    }
}

/// The folder of the report.
fn output(args: &Args) -> PathBuf {
    let target = || std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let home = || Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(|home| home.join("target"));
    args.output.clone().unwrap_or_else(|| target().or_else(home).unwrap_or_default().join("bench"))
}

/// What will be measured, and what cannot be.
#[derive(Default)]
struct Plan {
    cases: Vec<Case>,
    missing: Vec<Line>,
    stores: Vec<String>,
}

impl Plan {
    async fn add<P: Product>(
        &mut self,
        name: &str,
        product: Result<P>,
        args: &Args,
        scale: Scale,
    ) -> Option<Arc<P>> {
        let reached = async {
            let product = product?;
            let version = product.version().await?;
            Result::<_>::Ok((product, version))
        };
        let (product, version) = match reached.await {
            Ok((product, version)) => (Arc::new(product), version),
            Err(error) => {
                let why = format!(
                    "cannot be reached: {error}; give its URL by --{name}, or leave it out by --store"
                );
                self.stores.push(format!("{name} cannot be reached"));
                self.missing.push(Line::failed("all", name, "posthaste", Role::Posthaste, why));
                return None;
            }
        };
        self.stores.push(version);
        let best = drain::Best::default();
        let mut add = |scenario, cases: &dyn Fn() -> Vec<Case>| {
            if args.has(scenario) {
                self.cases.extend(cases());
            }
        };
        add(Scenario::Enqueue, &|| enqueue::cases(&product, scale));
        add(Scenario::BatchEnqueue, &|| batch_enqueue::cases(&product, scale));
        add(Scenario::Drain, &|| drain::cases(&product, scale, &best));
        add(Scenario::Steady, &|| steady::cases(&product, scale));
        add(Scenario::Latency, &|| latency::cases(&product, scale));
        add(Scenario::LongTransaction, &|| long_transaction::cases(&product, scale));
        add(Scenario::Growth, &|| growth::cases(&product, scale));
        add(Scenario::Obstacles, &|| obstacles::cases(&product, scale));
        add(Scenario::Ordered, &|| ordered::cases(&product, scale));
        add(Scenario::Joins, &|| joins::cases(&product, scale));
        // Once: what differs is the broker.
        if self.stores.len() == 1 {
            add(Scenario::Sinks, &|| sinks::cases(&product, scale, &args.rabbitmq, &args.nats));
        }
        Some(product)
    }

    fn add_peers(
        &mut self,
        postgres: Option<&Arc<Postgres>>,
        peers: Vec<(String, Result<Peer>)>,
        args: &Args,
        scale: Scale,
    ) {
        let measured =
            [(Scenario::Enqueue, "enqueue"), (Scenario::Drain, "drain"), (Scenario::Latency, "latency")];
        let wanted: Vec<&str> =
            measured.into_iter().filter(|(scenario, _)| args.has(*scenario)).map(|(_, name)| name).collect();
        for (name, peer) in peers {
            let why = match (peer, postgres) {
                (Ok(peer), Some(postgres)) => {
                    self.cases.extend(peer.cases(postgres, scale, &wanted));
                    continue;
                }
                (Ok(_), None) => "peers are measured on PostgreSQL, which is not there".to_owned(),
                (Err(error), _) => error.to_string(),
            };
            self.missing.push(Line::failed("peers", "postgres", &name, Role::Peer, why));
        }
    }

    /// Groups compared rows, in the order of first appearance.
    fn sort(&mut self) {
        let mut groups: Vec<(&'static str, &'static str, String)> = Vec::new();
        let mut keyed = Vec::new();
        for case in self.cases.drain(..) {
            let group = (case.scenario, case.store, case.variation.clone());
            let place = groups.iter().position(|known| *known == group).unwrap_or(groups.len());
            if place == groups.len() {
                groups.push(group);
            }
            keyed.push((place, case));
        }
        keyed.sort_by_key(|(place, _)| *place);
        self.cases = keyed.into_iter().map(|(_, case)| case).collect();
    }
}
