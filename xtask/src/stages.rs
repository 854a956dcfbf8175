//! The stages of a test run: which ones, with which commands, and how they ended.
//!
//! A failed stage does not stop the ones after it, so that one run reports everything. Deciding ([`plan`]) is kept apart
//! from doing ([`run_all`]), so that the decisions can be tested without cargo.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::args::TestOptions;
use crate::load::Load;
use crate::results::Results;
use crate::servers::Server;
use crate::{programs, tools, watch};

/// Where tests read which servers they must do without.
pub(crate) const MISSING: &str = "POSTHASTE_TEST_MISSING";

/// After how many seconds the watchdog ends a test; nextest's own limits in `.config/nextest.toml` are longer.
const DEADLINE: u32 = 330;
/// The same under load.
const DEADLINE_UNDER_LOAD: u32 = 1_750;
/// Where nextest reads how many tests to run side by side.
const TEST_THREADS: &str = "NEXTEST_TEST_THREADS";
/// How many tests share a core. Half of their time they wait: for servers, timeouts and leases.
const TESTS_PER_CORE: usize = 2;
/// Under load more of them share one: each is slowed down further, and the run is over sooner.
const TESTS_PER_CORE_UNDER_LOAD: usize = 3;
/// The name of the stage that runs the tests; of several runs, how each one's name begins.
const TESTS: &str = "tests";
/// The profile of nextest under load.
const UNDER_LOAD: &str = "under-load";

/// A stage that is over.
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) outcome: Outcome,
    pub(crate) took: Duration,
    /// What became of each test, if nextest ran them.
    pub(crate) results: Option<Results>,
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
type Planned = (String, Result<Vec<OsString>, Outcome>);

/// Runs all stages, one after the other, with the terminal as theirs.
pub(crate) fn run_all(options: &TestOptions, servers: &[Server], strict: bool) -> Vec<Stage> {
    let mut environment = environment(servers, strict);
    // The servers are on this machine: thousands of handshakes would prove nothing, and take minutes.
    environment.push(("PGSSLMODE", Some("disable".to_owned())));
    let deadline = if options.under_load { DEADLINE_UNDER_LOAD } else { DEADLINE };
    environment.push((watch::DEADLINE, Some(deadline.to_string())));
    if std::env::var_os(TEST_THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let per_core = if options.under_load { TESTS_PER_CORE_UNDER_LOAD } else { TESTS_PER_CORE };
        environment.push((TEST_THREADS, Some((cores * per_core).to_string())));
    }
    let mut load = None;
    let mut stages = Vec::new();
    for (name, work) in plan(options, Tools::detect(), strict) {
        // Builds come first: they prove nothing under load, and take three times as long.
        if options.under_load && load.is_none() && name.starts_with(TESTS) {
            match Load::start() {
                Ok(started) => load = Some(started),
                Err(fault) => stages.push(Stage::certain("load", Outcome::Failed(fault))),
            }
        }
        stages.push(match work {
            Ok(arguments) => run(name, &arguments, &environment, options),
            Err(outcome) => Stage::certain(&name, outcome),
        });
    }
    stages
}

impl Stage {
    /// One that ended before it began.
    fn certain(name: &str, outcome: Outcome) -> Self {
        Self { name: name.to_owned(), outcome, took: Duration::ZERO, results: None }
    }
}

fn plan(options: &TestOptions, tools: Tools, strict: bool) -> Vec<Planned> {
    // Which option leaves out all but the tests, if one does.
    let tests_alone =
        [(options.fast, "--fast"), (options.only.is_some(), "--only"), (options.under_load, "--under-load")];
    let tests_alone = tests_alone.into_iter().find(|(given, _)| *given).map(|(_, option)| option);
    let skipped = |option: &str| Err(Outcome::Skipped(option.to_owned()));
    let lint = |installed: bool, component: &str, command: &str| {
        if let Some(option) = tests_alone.or(options.no_lint.then_some("--no-lint")) {
            skipped(option)
        } else if installed {
            Ok(words(command))
        } else {
            let reason = format!("not installed; `rustup component add {component}` adds it");
            Err(if strict { Outcome::Failed(reason) } else { Outcome::Skipped(reason) })
        }
    };
    let doc_tests = match tests_alone {
        Some(option) => skipped(option),
        None => Ok(words("test --doc --workspace --all-features --no-fail-fast")),
    };
    let runs = (1..=options.runs).map(|run| {
        let name = if options.runs == 1 { TESTS.to_owned() } else { format!("{TESTS} {run}") };
        (name, tests(options, tools.nextest))
    });
    let build = options.under_load.then(|| ("build".to_owned(), build(tools.nextest)));
    let clippy = "clippy --workspace --all-targets --all-features -- -D warnings";
    [
        ("format", lint(tools.rustfmt, "rustfmt", "fmt --all --check")),
        ("clippy", lint(tools.clippy, "clippy", clippy)),
    ]
    .map(|(name, work)| (name.to_owned(), work))
    .into_iter()
    .chain(build)
    .chain(runs)
    .chain([("doc tests".to_owned(), doc_tests)])
    .collect()
}

fn build(nextest: bool) -> Result<Vec<OsString>, Outcome> {
    let command = if nextest { "nextest run" } else { "test --all-targets" };
    Ok(words(&format!("{command} --workspace --all-features --no-run")))
}

fn tests(options: &TestOptions, nextest: bool) -> Result<Vec<OsString>, Outcome> {
    if nextest {
        let mut command = words("nextest run --workspace --all-features");
        if options.under_load {
            command.extend(["--profile", UNDER_LOAD].map(OsString::from));
        }
        let filter =
            options.only.as_deref().map(only).or_else(|| options.fast.then(|| "not test(slow)".to_owned()));
        if let Some(filter) = filter {
            command.extend(["-E".into(), filter.into()]);
        }
        command.extend_from_slice(&options.extra);
        return Ok(command);
    }
    if !options.extra.is_empty() || options.only.is_some() {
        // Running everything instead of the few tests that were asked for would be no kindness.
        return Err(Outcome::Failed(
            "--only and the arguments after `--` are for cargo-nextest, which is not installed; \
             `cargo install cargo-nextest --locked` adds it"
                .to_owned(),
        ));
    }
    let mut command = words("test --workspace --all-features --all-targets --no-fail-fast");
    if options.fast {
        command.extend(words("-- --skip slow"));
    }
    Ok(command)
}

/// The filter for one test, named as nextest prints it: `<binary> <test>`, or by the test's name alone.
fn only(name: &str) -> String {
    match name.split_once(' ') {
        Some((binary, test)) => format!("binary_id(={binary}) & test(={test})"),
        None => format!("test(={name})"),
    }
}

/// The variables that tell the tests about the servers.
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

fn run(name: String, arguments: &[OsString], environment: &Environment, options: &TestOptions) -> Stage {
    println!("\n==> {name}: cargo {}", programs::spelled(arguments));
    let started = Instant::now();
    let is_nextest = arguments.first().is_some_and(|word| word == "nextest");
    let mut command = cargo();
    command.args(arguments).stdin(Stdio::inherit());
    set(&mut command, environment);
    if is_nextest {
        watch_each_test(&mut command);
        // Results of an earlier run must not be taken for this one's.
        let _ = std::fs::remove_file(report(options));
    }
    let outcome = match command.status() {
        Ok(status) if status.success() => Outcome::Passed,
        Ok(status) => Outcome::Failed(status.to_string()),
        Err(error) => Outcome::Failed(format!("cargo did not start: {error}")),
    };
    let results = std::fs::read_to_string(report(options)).ok().filter(|_| is_nextest);
    Stage { name, outcome, took: started.elapsed(), results: results.as_deref().map(Results::parse) }
}

/// Where nextest leaves its report.
fn report(options: &TestOptions) -> PathBuf {
    tools::target().join("nextest").join(profile(options)).join("junit.xml")
}

/// The profile that nextest uses: the one given after `--`, or ours.
fn profile(options: &TestOptions) -> &str {
    let mut words = options.extra.iter().filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        match word.strip_prefix("--profile=").or_else(|| word.strip_prefix("-P")) {
            Some("") => return words.next().unwrap_or_default(),
            None if word == "--profile" => return words.next().unwrap_or_default(),
            Some(name) => return name,
            None => {}
        }
    }
    if options.under_load { UNDER_LOAD } else { "default" }
}

/// Makes nextest start each test beneath the watchdog.
fn watch_each_test(command: &mut Command) {
    let host = programs::answer(Command::new("rustc").arg("-vV")).ok();
    let host = host.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("host: ")));
    if let (Some(host), Ok(program)) = (host, std::env::current_exe()) {
        // A list keeps a path with blanks in one piece; the variable for it would not.
        command
            .arg("--config")
            .arg(format!("target.{host}.runner=[{:?}, \"watch\"]", program.display().to_string()));
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

    /// The work of the stage of this name.
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
    fn one_test_runs_alone_as_often_as_asked() {
        let options = TestOptions {
            only: Some("a::b c::d".to_owned()),
            runs: 2,
            under_load: true,
            ..TestOptions::default()
        };
        let names: Vec<String> = plan(&options, ALL, false).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["format", "clippy", "build", "tests 1", "tests 2", "doc tests"]);
        let command =
            "nextest run --workspace --all-features --profile under-load -E binary_id(=a::b) & test(=c::d)";
        assert_eq!(planned("tests 2", &options, ALL, false).unwrap(), command);
        assert_eq!(planned("clippy", &options, ALL, false), Err(Outcome::Skipped("--only".to_owned())));
        assert_eq!(only("c::d"), "test(=c::d)");
    }

    #[test]
    fn the_report_is_looked_for_where_the_profile_puts_it() {
        let profile_of = |extra: &str| {
            let options = TestOptions { extra: words(extra), ..TestOptions::default() };
            profile(&options).to_owned()
        };
        assert_eq!(profile_of("--no-capture"), "default");
        for given in ["--profile night", "--profile=night", "-P night", "-Pnight", "-j 1 -P night"] {
            assert_eq!(profile_of(given), "night", "{given}");
        }
        let loaded = TestOptions { under_load: true, ..TestOptions::default() };
        assert_eq!(profile(&loaded), UNDER_LOAD);
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
        let command = "test --workspace --all-features --all-targets --no-fail-fast -- --skip slow";
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
