//! `posthaste doctor`: whether a database, and the brokers' queues, are set up so that posthaste's promises hold.
//!
//! It changes nothing. A danger sets the exit code, too.

use console::Style;
use posthaste::{Error, Finding, Result, Severity};
use serde::Serialize;
use serde_json::json;

use crate::brokers;
use crate::exit::Exit;
use crate::human::{columns, printable};
use crate::output::{Cell, Output, Table};
use crate::target::Target;

/// Look for what endangers messages: durability, tables, clocks, old transactions
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  posthaste doctor --store postgres://app@db/shop\n  \
                        posthaste doctor --rabbitmq amqp://broker --queue stock --queue stock.dead\n  \
                        posthaste doctor --json || page somebody")]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Look at queues of this RabbitMQ, too
    #[arg(
        long,
        value_name = "URL",
        env = "POSTHASTE_RABBITMQ",
        hide_env_values = true,
        help_heading = "Brokers"
    )]
    rabbitmq: Option<String>,
    /// A queue to look at; may be repeated
    #[arg(long = "queue", value_name = "NAME", requires = "rabbitmq", help_heading = "Brokers")]
    queues: Vec<String>,
    /// Look at streams of this NATS, too
    #[arg(
        long,
        value_name = "URL",
        env = "POSTHASTE_NATS",
        hide_env_values = true,
        help_heading = "Brokers"
    )]
    nats: Option<String>,
    /// A stream to look at; may be repeated
    #[arg(long = "stream", value_name = "NAME", requires = "nats", help_heading = "Brokers")]
    streams: Vec<String>,
}

/// The findings about one place.
#[derive(Serialize)]
struct Examined {
    place: String,
    findings: Vec<Finding>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let mut unreachable = None;
    let examined = args.examine(&mut unreachable).await?;
    let findings = || examined.iter().flat_map(|place| &place.findings);
    let worst = findings().map(|finding| finding.severity).max().unwrap_or(Severity::Fine);
    output.answer(&json!({ "worst": worst, "examined": examined }), || {
        let tables = examined.iter().map(|place| {
            let remedies: String = place.findings.iter().filter_map(remedy).collect();
            format!("{}\n\n{}\n{remedies}", printable(&place.place), table(&place.findings).render())
        });
        let end = match worst {
            Severity::Danger => "a promise does not hold here",
            _ => "no danger was found",
        };
        format!("{}{end}", tables.collect::<String>())
    });
    Ok(if worst == Severity::Danger { Exit::Danger } else { unreachable.unwrap_or(Exit::Done) })
}

impl Args {
    /// Checks the store, unless only brokers are named, and the brokers. Reports what could not be checked, with the exit code of
    /// that failure.
    async fn examine(&self, unreachable: &mut Option<Exit>) -> Result<Vec<Examined>> {
        let mut at_broker = |check: &'static str, flag: &str, names: &[String], found: brokers::Examined| {
            let mut findings = none_named(check, flag, names);
            for answer in found.answers {
                findings.push(answer.unwrap_or_else(|error| {
                    *unreachable = Some(Exit::of(&error));
                    unknown(check, &error)
                }));
            }
            Examined { place: found.place, findings }
        };
        let mut examined = Vec::new();
        if self.target.store.is_some() || (self.queues.is_empty() && self.streams.is_empty()) {
            let store = self.target.connect().await?;
            examined.push(Examined { place: store.name(), findings: store.examine().await? });
        }
        if let Some(url) = &self.rabbitmq {
            let found = brokers::rabbitmq::examine(url, &self.queues).await?;
            examined.push(at_broker("queue", "--queue", &self.queues, found));
        }
        if let Some(url) = &self.nats {
            let found = brokers::nats::examine(url, &self.streams).await?;
            examined.push(at_broker("stream", "--stream", &self.streams, found));
        }
        Ok(examined)
    }
}

/// Warns if no queue or stream of a broker was checked.
fn none_named(check: &'static str, flag: &str, names: &[String]) -> Vec<Finding> {
    if !names.is_empty() {
        return Vec::new();
    }
    let found = format!("none was looked at: no {check} is named");
    vec![Finding { check, severity: Severity::Notice, found, remedy: Some(format!("name them by {flag}")) }]
}

/// A place that could not be checked. The rest is reported all the same.
fn unknown(check: &'static str, error: &Error) -> Finding {
    let remedy = error.remedy().unwrap_or("see that the broker can be reached with this login").to_owned();
    Finding { check, severity: Severity::Warning, found: error.to_string(), remedy: Some(remedy) }
}

fn style(severity: Severity) -> Style {
    match severity {
        Severity::Fine => Style::new().green(),
        Severity::Notice => Style::new().cyan(),
        Severity::Warning => Style::new().yellow(),
        Severity::Danger => Style::new().red().bold(),
    }
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Notice => "notice",
        Severity::Warning => "warning",
        Severity::Danger => "danger",
    }
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new(&["", "check", "found"]).fit(columns());
    for Finding { check, severity, found, .. } in findings {
        table.row([Cell::styled(word(*severity), style(*severity)), Cell::from(check), Cell::from(found)]);
    }
    table
}

fn remedy(finding: &Finding) -> Option<String> {
    let text = finding.remedy.as_ref().filter(|_| finding.severity > Severity::Fine)?;
    Some(format!("{}: {}\n", finding.check, printable(text)))
}
