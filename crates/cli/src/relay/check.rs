//! `posthaste relay --check`: shows the effective configuration, and tries every connection that it names.

use posthaste::{ErrorKind, Result, Severity};
use serde::Serialize;
use serde_json::json;

use super::build;
use super::config::{Config, SinkConfig, show};
use crate::exit::Exit;
use crate::output::{Output, printable};

/// The result of one try.
#[derive(Debug, Serialize)]
struct Tried {
    what: &'static str,
    name: String,
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

pub(super) async fn run(config: &Config, output: &Output) -> Exit {
    let mut tried = Vec::new();
    let mut exit = Exit::Done;
    for database in &config.databases {
        let outcome = match build::store(database, config.databases.len()) {
            Ok(store) => store.check().await,
            Err(error) => Err(error),
        };
        if let Err(error) = &outcome {
            exit = worse(exit, of(error.kind()));
        }
        tried.push(Tried {
            what: "database",
            name: database.name.clone(),
            ok: outcome.is_ok(),
            why: why(outcome),
        });
    }
    for sink in &config.sinks {
        let outcome = match build::guarded(sink) {
            Ok(guarded) => guarded.probe().await.map_err(|error| error.failure().text().to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let outcome = match outcome {
            Ok(()) => there(sink).await,
            Err(why) => Err(why),
        };
        if outcome.is_err() {
            exit = worse(exit, Exit::Unavailable);
        }
        tried.push(Tried { what: "sink", name: sink.name.clone(), ok: outcome.is_ok(), why: outcome.err() });
    }
    let answer = json!({ "configuration": config.shown, "connections": tried });
    output.answer(&answer, || {
        let mut text = show::toml(&config.shown);
        text.push('\n');
        for Tried { what, name, ok, why } in &tried {
            let state = if *ok { "ok" } else { "failed" };
            text.push_str(&format!("{what} {name}: {state}"));
            if let Some(why) = why {
                text.push_str(&format!(": {}", printable(why)));
            }
            text.push('\n');
        }
        text
    });
    exit
}

/// Whether a sink's destination exists, and keeps its messages.
async fn there(sink: &SinkConfig) -> Result<(), String> {
    match build::examine(sink).await {
        Ok(Some(finding)) if finding.severity > Severity::Notice => {
            let remedy = finding.remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
            Err(format!("{} {}{remedy}", finding.check, finding.found))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn why(outcome: Result<()>) -> Option<String> {
    outcome.err().map(|error| error.to_string())
}

/// A server that cannot be reached may be there later; other failures need a correction.
fn of(kind: ErrorKind) -> Exit {
    if kind.is_transient() { Exit::Unavailable } else { Exit::Usage }
}

fn worse(one: Exit, other: Exit) -> Exit {
    match (one, other) {
        (Exit::Usage, _) | (_, Exit::Usage) => Exit::Usage,
        (Exit::Unavailable, _) | (_, Exit::Unavailable) => Exit::Unavailable,
        _ => Exit::Done,
    }
}
