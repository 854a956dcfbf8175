//! What a person reads at the end of a run, and the lines a shell reads from `xtask servers`.
//!
//! Pure text building: nothing here may print, ask the environment or look at a clock.

use std::fmt::Write;
use std::time::Duration;

use crate::servers::Server;
use crate::stages::{self, Outcome, Stage};

const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";

/// Everything a run has to tell.
pub(crate) struct Report<'a> {
    pub(crate) stages: &'a [Stage],
    pub(crate) servers: &'a [Server],
    /// Whether a missing server fails the run, as it does under CI.
    pub(crate) strict: bool,
    pub(crate) took: Duration,
}

impl Report<'_> {
    /// Whether the run counts as a success.
    pub(crate) fn passed(&self) -> bool {
        let failed = self.stages.iter().any(|stage| matches!(stage.outcome, Outcome::Failed(_)));
        let missing = self.servers.iter().any(|server| server.state.is_err());
        !failed && (!missing || !self.strict)
    }

    /// The report as text, one line per stage and per server.
    pub(crate) fn render(&self, colour: bool) -> String {
        let paint = |code: &str, text: &str| {
            if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
        };
        let mut text = String::new();
        let verdict = if self.passed() { paint(GREEN, "passed") } else { paint(RED, "FAILED") };
        line(&mut text, format_args!("\nThe run {verdict} after {}.\n\nStages", seconds(self.took)));
        for Stage { name, outcome, took } in self.stages {
            // Padded before it is painted: colour codes would count as width.
            let (word, remark) = match outcome {
                Outcome::Passed => (paint(GREEN, "ok     "), ""),
                Outcome::Failed(reason) => (paint(RED, "FAILED "), reason.as_str()),
                Outcome::Skipped(reason) => (paint(YELLOW, "skipped"), reason.as_str()),
            };
            let took = seconds(*took);
            line(&mut text, format_args!("  {word}  {name:<10}{took:>9}  {remark}"));
        }
        line(&mut text, format_args!("\nServers"));
        for Server { name, state, .. } in self.servers {
            match state {
                Ok(ready) => {
                    let (version, source) = (&ready.version, &ready.source);
                    line(&mut text, format_args!("  {name:<10}  {version:<10}  {source}"));
                }
                Err(why) => {
                    let why = paint(if self.strict { RED } else { YELLOW }, &format!("not tested: {why}"));
                    let price = if self.strict { " (fails the run, because CI=true)" } else { "" };
                    line(&mut text, format_args!("  {name:<10}  {why}{price}"));
                }
            }
        }
        line(&mut text, format_args!("  {:<10}  bundled", "SQLite"));
        text
    }
}

/// The lines that point a developer's own test run at the servers.
pub(crate) fn exports(servers: &[Server]) -> String {
    let mut text = String::new();
    for server in servers {
        if let Ok(ready) = &server.state {
            line(&mut text, format_args!("export {}={}", server.variable, quoted(&ready.url)));
        }
    }
    if let Some(missing) = stages::missing(servers) {
        line(&mut text, format_args!("export {}={missing}", stages::MISSING));
    }
    text
}

/// As a shell takes it literally; a given URL may hold any character.
fn quoted(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || ":/@._-".contains(letter);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

/// Adds a line without the blanks that an empty last column leaves.
fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    let start = text.len();
    // Writing to a string cannot fail.
    let _ = text.write_fmt(content);
    text.truncate(start + text[start..].trim_end_matches(' ').len());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Ready;

    fn postgres(url: &str) -> Server {
        let ready = Ready {
            url: url.to_owned(),
            version: "15.14".to_owned(),
            source: "running on 127.0.0.1:5432".to_owned(),
        };
        Server { name: "PostgreSQL", key: "postgres", variable: "POSTHASTE_TEST_POSTGRES", state: Ok(ready) }
    }

    fn no_mariadb() -> Server {
        let why = "none is installed; install it".to_owned();
        Server { name: "MariaDB", key: "mysql", variable: "POSTHASTE_TEST_MYSQL", state: Err(why) }
    }

    fn stage(name: &'static str, outcome: Outcome) -> Stage {
        Stage { name, outcome, took: Duration::from_millis(1250) }
    }

    #[test]
    fn a_person_finds_every_stage_and_server() {
        let stages = [
            stage("format", Outcome::Passed),
            stage("clippy", Outcome::Failed("exit status: 101".to_owned())),
            stage("doc tests", Outcome::Skipped("--fast".to_owned())),
        ];
        let servers = [postgres("postgres://here"), no_mariadb()];
        let report =
            Report { stages: &stages, servers: &servers, strict: false, took: Duration::from_millis(94_040) };
        let expected = "
The run FAILED after 94.0 s.

Stages
  ok       format        1.2 s
  FAILED   clippy        1.2 s  exit status: 101
  skipped  doc tests     1.2 s  --fast

Servers
  PostgreSQL  15.14       running on 127.0.0.1:5432
  MariaDB     not tested: none is installed; install it
  SQLite      bundled
";
        assert_eq!(report.render(false), expected);
        assert!(!report.passed());
        assert!(report.render(true).contains("\x1b[31mFAILED \x1b[0m  clippy"));
    }

    #[test]
    fn a_missing_server_fails_the_run_under_ci_only() {
        let (stages, servers) = ([stage("tests", Outcome::Passed)], [no_mariadb()]);
        let report = |strict| Report { stages: &stages, servers: &servers, strict, took: Duration::ZERO };
        assert!(report(false).passed());
        assert!(!report(true).passed());
        assert!(report(true).render(false).contains("install it (fails the run, because CI=true)\n"));
    }

    #[test]
    fn exports_survive_a_shell() {
        let servers = [postgres("postgres://me:it's@here/x"), no_mariadb()];
        let expected = "export POSTHASTE_TEST_POSTGRES='postgres://me:it'\\''s@here/x'
export POSTHASTE_TEST_MISSING=mysql
";
        assert_eq!(exports(&servers), expected);
    }
}
