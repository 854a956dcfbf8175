//! The summary at the end of a run, and the lines of `xtask servers` for a shell.
//!
//! Pure text building: nothing here may print, ask the environment or look at a clock.

use std::fmt::Write;
use std::time::Duration;

use crate::results::{Results, Test};
use crate::servers::Server;
use crate::stages::{self, Outcome, Stage};

const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";

/// Everything a run has to tell.
pub(crate) struct Report<'a> {
    pub(crate) stages: &'a [Stage],
    pub(crate) servers: &'a [Server],
    /// Tests that passed on the second try, and how often each was flaky before.
    pub(crate) flaky: &'a [(Test, usize)],
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
        for Stage { name, outcome, took, results } in self.stages {
            // Padded before it is painted: colour codes would count as width.
            let (word, remark) = match outcome {
                Outcome::Passed => (paint(GREEN, "ok     "), ""),
                Outcome::Failed(reason) => (paint(RED, "FAILED "), reason.as_str()),
                Outcome::Skipped(reason) => (paint(YELLOW, "skipped"), reason.as_str()),
            };
            let remark = match results {
                // A run can fail without a failed test: no test matched, or nextest itself gave up.
                Some(results) if results.failed.is_empty() && !remark.is_empty() => {
                    format!("{remark}; {}", counts(results))
                }
                Some(results) => counts(results),
                None => remark.to_owned(),
            };
            let took = seconds(*took);
            line(&mut text, format_args!("  {word}  {name:<10}{took:>9}  {remark}"));
        }
        self.tell_tests(&mut text, &paint);
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

impl Report<'_> {
    /// The tests worth a look: failed ones, with the command that runs each alone; flaky ones; the slowest.
    fn tell_tests(&self, text: &mut String, paint: &dyn Fn(&str, &str) -> String) {
        let results =
            || self.stages.iter().filter_map(|stage| stage.results.as_ref().map(|results| (stage, results)));
        for (stage, results) in results().filter(|(_, results)| !results.failed.is_empty()) {
            line(text, format_args!("\nFailed in {}", stage.name));
            for Test { name, reason } in &results.failed {
                line(text, format_args!("  {}", paint(RED, name)));
                line(text, format_args!("    {reason}\n    cargo xtask test --only {}", quoted(name)));
            }
        }
        if !self.flaky.is_empty() {
            line(text, format_args!("\nFlaky: failed, then passed on the second try"));
        }
        for (Test { name, reason }, before) in self.flaky {
            let history =
                if *before == 0 { String::new() } else { format!(" (flaky {before} times before)") };
            line(text, format_args!("  {}{history}\n    {reason}", paint(YELLOW, name)));
        }
        if let [(_, results)] = results().collect::<Vec<_>>()[..]
            && results.slowest.len() > 1
        {
            line(text, format_args!("\nSlowest tests"));
            for (name, took) in &results.slowest {
                line(text, format_args!("  {took:>7.1} s  {name}"));
            }
        }
    }
}

fn counts(results: &Results) -> String {
    let count = |number: usize, word: &str| match number {
        0 => String::new(),
        _ => format!(", {number} {word}"),
    };
    let (failed, flaky) = (count(results.failed.len(), "failed"), count(results.flaky.len(), "flaky"));
    format!("{} passed{failed}{flaky}", results.passed)
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
        Stage { name: name.to_owned(), outcome, took: Duration::from_millis(1250), results: None }
    }

    #[test]
    fn a_person_finds_every_stage_and_server() {
        let test = |name: &str, reason: &str| Test { name: name.to_owned(), reason: reason.to_owned() };
        let flaky = test("sqlx::stores claim", "main.rs:7:1: too slow");
        let results = Results {
            passed: 2_900,
            failed: vec![test("sqlx::stores look::at", "look.rs:4:2: assertion failed: it holds")],
            flaky: vec![flaky.clone()],
            slowest: vec![("core a".to_owned(), 61.25), ("core b".to_owned(), 2.0)],
            ..Results::default()
        };
        let tests = Stage {
            results: Some(results),
            ..stage("tests", Outcome::Failed("exit status: 100".to_owned()))
        };
        let stages = [
            stage("format", Outcome::Passed),
            stage("clippy", Outcome::Failed("exit status: 101".to_owned())),
            tests,
            stage("doc tests", Outcome::Skipped("--fast".to_owned())),
        ];
        let servers = [postgres("postgres://here"), no_mariadb()];
        let took = Duration::from_millis(94_040);
        let report = Report { stages: &stages, servers: &servers, flaky: &[(flaky, 2)], strict: false, took };
        let expected = "
The run FAILED after 94.0 s.

Stages
  ok       format        1.2 s
  FAILED   clippy        1.2 s  exit status: 101
  FAILED   tests         1.2 s  2900 passed, 1 failed, 1 flaky
  skipped  doc tests     1.2 s  --fast

Failed in tests
  sqlx::stores look::at
    look.rs:4:2: assertion failed: it holds
    cargo xtask test --only 'sqlx::stores look::at'

Flaky: failed, then passed on the second try
  sqlx::stores claim (flaky 2 times before)
    main.rs:7:1: too slow

Slowest tests
     61.2 s  core a
      2.0 s  core b

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
    fn a_run_that_failed_without_a_failed_test_says_how_it_ended() {
        let results = Some(Results { passed: 7, ..Results::default() });
        let stages = [Stage { results, ..stage("tests", Outcome::Failed("exit status: 104".to_owned())) }];
        let report =
            Report { stages: &stages, servers: &[], flaky: &[], strict: false, took: Duration::ZERO };
        assert!(report.render(false).contains("1.2 s  exit status: 104; 7 passed\n"));
    }

    #[test]
    fn a_missing_server_fails_the_run_under_ci_only() {
        let (stages, servers) = ([stage("tests", Outcome::Passed)], [no_mariadb()]);
        let report =
            |strict| Report { stages: &stages, servers: &servers, flaky: &[], strict, took: Duration::ZERO };
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
