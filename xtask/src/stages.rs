//! The stages of a test run: which ones, with which commands, and how they ended.
//!
//! A stage never stops the ones after it: whoever waits minutes for a run wants all the bad news at once. Deciding
//! ([`plan`]) is kept apart from doing ([`run_all`]), so that the decisions can be tested without cargo.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::programs;
use crate::servers::Server;

/// Where tests read which servers they must do without.
pub(crate) const MISSING: &str = "POSTHASTE_TEST_MISSING";

/// A stage that is over.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
}

/// How a stage ended.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Passed,
    /// With the reason.
    Failed(String),
    /// With the reason.
    Skipped(String),
}

/// Which helpers of cargo are installed.
#[derive(Clone, Copy)]
struct Tools {
    rustfmt: bool,
    clippy: bool,
    nextest: bool,
}

impl Tools {
    fn detect() -> Self {
        // Proxies of rustup exist even for components that do not, so the tool itself has to answer.
        let answers = |tool| programs::answer(cargo().args([tool, "--version"])).is_ok();
        Self { rustfmt: answers("fmt"), clippy: answers("clippy"), nextest: answers("nextest") }
    }
}

/// Variables and their values; `None` unsets a variable.
pub(crate) type Environment = Vec<(&'static str, Option<String>)>;

/// A stage still to come: cargo's arguments, or the outcome that is already certain.
type Planned = (&'static str, Result<Vec<OsString>, Outcome>);

/// Runs all stages, one after the other, with the terminal as theirs.
pub(crate) fn run_all(options: &TestOptions, servers: &[Server], strict: bool) -> Vec<Stage> {
    let mut environment = environment(servers, strict);
    // The servers are on this machine: thousands of handshakes would prove nothing, and take minutes.
    environment.push(("PGSSLMODE", Some("disable".to_owned())));
    plan(options, Tools::detect(), strict)
        .into_iter()
        .map(|(name, work)| {
            let started = Instant::now();
            let outcome = match work {
                Ok(arguments) => run(name, &arguments, &environment),
                Err(outcome) => outcome,
            };
            Stage { name, outcome, took: started.elapsed() }
        })
        .collect()
}

fn plan(options: &TestOptions, tools: Tools, strict: bool) -> Vec<Planned> {
    let lint = |installed: bool, component: &str, command: &str| {
        if options.fast || options.no_lint {
            Err(Outcome::Skipped(if options.fast { "--fast" } else { "--no-lint" }.to_owned()))
        } else if installed {
            Ok(words(command))
        } else {
            let reason = format!("not installed; `rustup component add {component}` adds it");
            Err(if strict { Outcome::Failed(reason) } else { Outcome::Skipped(reason) })
        }
    };
    let doc_tests = if options.fast {
        Err(Outcome::Skipped("--fast".to_owned()))
    } else {
        Ok(words("test --doc --workspace --all-features"))
    };
    vec![
        ("format", lint(tools.rustfmt, "rustfmt", "fmt --all --check")),
        (
            "clippy",
            lint(tools.clippy, "clippy", "clippy --workspace --all-targets --all-features -- -D warnings"),
        ),
        ("tests", tests(options, tools.nextest)),
        ("doc tests", doc_tests),
    ]
}

fn tests(options: &TestOptions, nextest: bool) -> Result<Vec<OsString>, Outcome> {
    if nextest {
        let mut command = words("nextest run --workspace --all-features");
        if options.fast {
            command.extend(["-E".into(), "not test(slow)".into()]);
        }
        command.extend_from_slice(&options.extra);
        return Ok(command);
    }
    if !options.extra.is_empty() {
        // Running everything instead of the few tests that were asked for would be no kindness.
        return Err(Outcome::Failed(
            "the arguments after `--` are for cargo-nextest, which is not installed; \
             `cargo install cargo-nextest --locked` adds it"
                .to_owned(),
        ));
    }
    let mut command = words("test --workspace --all-features --all-targets");
    if options.fast {
        command.extend(words("-- --skip slow"));
    }
    Ok(command)
}

/// What the tests learn about the servers.
pub(crate) fn environment(servers: &[Server], strict: bool) -> Environment {
    let mut variables = Vec::new();
    for server in servers {
        variables.push((server.variable, server.state.as_ref().ok().map(|ready| ready.url.clone())));
    }
    // Under CI no test may excuse itself, so the excuse is not offered.
    variables.push((MISSING, missing(servers).filter(|_| !strict)));
    variables
}

/// The value of `POSTHASTE_TEST_MISSING`, if anything is.
pub(crate) fn missing(servers: &[Server]) -> Option<String> {
    let keys: Vec<&str> =
        servers.iter().filter(|server| server.state.is_err()).map(|server| server.key).collect();
    Some(keys.join(",")).filter(|keys| !keys.is_empty())
}

fn run(name: &str, arguments: &[OsString], environment: &Environment) -> Outcome {
    println!("\n==> {name}: cargo {}", programs::spelled(arguments));
    let mut command = cargo();
    command.args(arguments).stdin(Stdio::inherit());
    set(&mut command, environment);
    match command.status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("cargo did not start: {error}")),
    }
}

/// Gives a command these variables.
pub(crate) fn set(command: &mut Command, environment: &Environment) {
    for (variable, value) in environment {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
}

/// The cargo that started this program, at the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    let own_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    own_folder.parent().unwrap_or(own_folder).to_owned()
}

fn words(line: &str) -> Vec<OsString> {
    line.split_whitespace().map(OsString::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Ready;

    const ALL: Tools = Tools { rustfmt: true, clippy: true, nextest: true };

    /// What the stage of this name would do.
    fn planned(name: &str, options: &TestOptions, tools: Tools, strict: bool) -> Result<String, Outcome> {
        let (_, work) = plan(options, tools, strict).into_iter().find(|(stage, _)| *stage == name).unwrap();
        work.map(|arguments| programs::spelled(&arguments))
    }

    #[test]
    fn fast_leaves_out_everything_but_the_quick_tests() {
        let fast = TestOptions { fast: true, ..TestOptions::default() };
        for stage in ["format", "clippy", "doc tests"] {
            assert_eq!(planned(stage, &fast, ALL, false), Err(Outcome::Skipped("--fast".to_owned())));
        }
        let command = "nextest run --workspace --all-features -E not test(slow)";
        assert_eq!(planned("tests", &fast, ALL, false).unwrap(), command);
    }

    #[test]
    fn an_absent_linter_is_skipped_by_people_and_failed_by_ci() {
        let bare = Tools { clippy: false, ..ALL };
        let options = TestOptions::default();
        assert!(matches!(planned("clippy", &options, bare, false), Err(Outcome::Skipped(_))));
        assert!(matches!(planned("clippy", &options, bare, true), Err(Outcome::Failed(_))));
        assert!(planned("format", &options, bare, true).is_ok());
    }

    #[test]
    fn without_nextest_cargo_runs_the_tests_unless_nextest_was_addressed() {
        let bare = Tools { nextest: false, ..ALL };
        let fast = TestOptions { fast: true, ..TestOptions::default() };
        let command = "test --workspace --all-features --all-targets -- --skip slow";
        assert_eq!(planned("tests", &fast, bare, false).unwrap(), command);
        let addressed = TestOptions { extra: words("--no-capture"), ..TestOptions::default() };
        assert!(matches!(planned("tests", &addressed, bare, false), Err(Outcome::Failed(_))));
        assert!(planned("tests", &addressed, ALL, false).unwrap().ends_with("--no-capture"));
    }

    #[test]
    fn a_missing_server_is_excused_outside_ci_only() {
        let ready =
            Ready { url: "postgres://here".to_owned(), version: String::new(), source: String::new() };
        let servers = [
            Server { name: "PostgreSQL", key: "postgres", variable: "A", state: Ok(ready) },
            Server { name: "MariaDB", key: "mysql", variable: "B", state: Err(String::new()) },
        ];
        let found = ("A", Some("postgres://here".to_owned()));
        let excused = [found.clone(), ("B", None), (MISSING, Some("mysql".to_owned()))];
        assert_eq!(environment(&servers, false), excused);
        assert_eq!(environment(&servers, true), [found, ("B", None), (MISSING, None)]);
    }
}
