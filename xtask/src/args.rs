//! The command line: words in, a [`Task`] out.
//!
//! Parsing never touches the outside world, so that every refusal can be tested. An unknown word is refused with
//! the valid ones named, never ignored: a mistyped `--fast` must not become a slow run.

use std::ffi::OsString;

/// What `cargo xtask help` prints.
pub(crate) const HELP: &str = "\
Chores of this repository.

Usage: cargo xtask <command>

Commands:
  test     check format and lints, then run every test against real servers
  servers  find or start databases and brokers, print their URLs, stay until Ctrl-C or the end of the input
  mutants  break the stores on purpose, one line at a time, and require a test to notice each time
  book     make the documentation as pages for a browser, in the target folder
  help     print this text

cargo xtask test [--fast] [--no-lint] [--only <test>] [--under-load] [--runs <n>] [--private]
                 [-- <arguments for cargo nextest run>]
  --fast        tests only: no lints, no doc tests, no test with `slow` in its name
  --no-lint     leave out rustfmt and clippy
  --only        run this one test, named as the summary names it: '<binary> <test>'
  --under-load  run the tests alone, three per core, next to a process that keeps the cores and the disk busy
  --runs        run the tests this many times
  --private     start servers for this run even if some are given or running
A failure does not stop the run: the summary names each failed test, why it failed, and the command that runs it alone.
Tests that talk to servers or start processes are tried a second time; those that pass then are listed as flaky, also
in target/flaky.tsv (or the file in POSTHASTE_FLAKY_LIST), and do not fail the run. A test that hangs is killed after
its processes and their stacks have been printed (with gdb installed, the functions too).

cargo xtask servers [--private]

cargo xtask mutants [--only <part>[,<part>...]] [--list]
  --only     try only the mutants with one of these in their name or in the path of the file they change
  --list     print the mutants and try none
Works on a copy of the workspace and with private servers, and deletes both in the end.

Each server is taken from the first of these that works:
  1. the URL in POSTHASTE_TEST_POSTGRES, POSTHASTE_TEST_MYSQL, POSTHASTE_TEST_RABBITMQ or POSTHASTE_TEST_NATS,
     used as it is
  2. a server on 127.0.0.1 and its usual port: PostgreSQL on 5432 (user postgres) or MariaDB on 3306 (user root)
     that asks for no password, where the tests get a database of their own, dropped at the end; RabbitMQ on
     5672 (user guest, password guest); NATS on 4222 with JetStream and without login
  3. a private server in a temporary folder, stopped and deleted at the end
  4. the same, after installing the package (only as root, only where apt-get exists)
A server that cannot be had is left out and named in the summary; with CI=true it fails the run. schemathesis, which
tests the HTTP API, is the program in POSTHASTE_TEST_SCHEMATHESIS, or is installed into the target folder by python3.

Exit codes: 0 all passed, 1 something failed, 2 the command line was not understood.
";

/// The task that the command line asks for.
#[derive(Debug, PartialEq)]
pub(crate) enum Task {
    Help,
    Test(TestOptions),
    Servers {
        private: bool,
    },
    Mutants(MutantOptions),
    Book,
    /// What this program starts itself with, see [`crate::guard`]; not for people, hence not in the help.
    Guard(Vec<OsString>),
    /// The same, see [`crate::watch`].
    Watch(Vec<OsString>),
    /// The same, see [`crate::load`].
    Load(Vec<OsString>),
}

/// How much of the checks to run, and against which servers.
#[derive(Debug, PartialEq)]
pub(crate) struct TestOptions {
    /// Leave out lints, doc tests and tests named slow.
    pub(crate) fast: bool,
    /// Leave out rustfmt and clippy.
    pub(crate) no_lint: bool,
    /// Run this test alone: `<binary> <test>`, or the test's name.
    pub(crate) only: Option<String>,
    /// Run the tests next to a busy neighbour.
    pub(crate) under_load: bool,
    /// How many times to run the tests.
    pub(crate) runs: u32,
    /// Start servers even if some are given or running.
    pub(crate) private: bool,
    /// Handed to `cargo nextest run` untouched.
    pub(crate) extra: Vec<OsString>,
}

impl Default for TestOptions {
    fn default() -> Self {
        Self {
            fast: false,
            no_lint: false,
            only: None,
            under_load: false,
            runs: 1,
            private: false,
            extra: Vec::new(),
        }
    }
}

/// Which mutants to try, or to print.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct MutantOptions {
    /// A part of their names.
    pub(crate) only: Option<String>,
    /// Print them, and try none.
    pub(crate) list: bool,
}

/// Reads the words after `cargo xtask`; the error is a sentence for the person who typed them.
pub(crate) fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Task, String> {
    let mut words = words.into_iter();
    let Some(command) = words.next() else {
        return Err("no command given; valid commands: test, servers, mutants, book, help".to_owned());
    };
    match command.to_string_lossy().as_ref() {
        "help" | "--help" | "-h" => Ok(Task::Help),
        "test" => parse_test(words),
        "servers" => parse_servers(words),
        "mutants" => parse_mutants(words),
        "book" => parse_book(words),
        "guard" => Ok(Task::Guard(words.collect())),
        "watch" => Ok(Task::Watch(words.collect())),
        "load" => Ok(Task::Load(words.collect())),
        other => {
            Err(format!("unknown command `{other}`; valid commands: test, servers, mutants, book, help"))
        }
    }
}

fn parse_test(mut words: impl Iterator<Item = OsString>) -> Result<Task, String> {
    let mut options = TestOptions::default();
    while let Some(word) = words.next() {
        match word.to_string_lossy().as_ref() {
            "--fast" => options.fast = true,
            "--no-lint" => options.no_lint = true,
            "--under-load" => options.under_load = true,
            "--only" => {
                let name =
                    words.next().ok_or("--only needs a test, such as `--only 'xtask args::tests::x'`")?;
                options.only = Some(name.to_string_lossy().into_owned());
            }
            "--runs" => {
                let number = words.next().unwrap_or_default();
                let runs = number.to_string_lossy().parse().ok().filter(|runs| *runs > 0);
                options.runs = runs.ok_or("--runs needs a number above 0, such as `--runs 10`")?;
            }
            "--private" => options.private = true,
            "--help" | "-h" => return Ok(Task::Help),
            "--" => options.extra = words.by_ref().collect(),
            other => {
                return Err(format!(
                    "unknown argument `{other}` for test; valid: --fast, --no-lint, --only, --under-load, --runs, \
                     --private, --help, and after `--` arguments for cargo nextest run"
                ));
            }
        }
    }
    if options.fast && options.only.is_some() {
        return Err("--only names one test, slow or not: drop --fast".to_owned());
    }
    // nextest runs the union of several expressions, so a second one would bring the slow tests back unnoticed.
    if options.only.is_some() && options.extra.iter().any(is_filter_expression) {
        return Err(
            "--only is itself a filter expression, and nextest would run either match; drop one".to_owned()
        );
    }
    if options.fast && options.extra.iter().any(is_filter_expression) {
        return Err("--fast is itself a filter expression, and nextest would run either match; \
                    drop --fast and write `-E 'not test(slow) and (…)'`"
            .to_owned());
    }
    Ok(Task::Test(options))
}

fn parse_servers(words: impl Iterator<Item = OsString>) -> Result<Task, String> {
    let mut private = false;
    for word in words {
        match word.to_string_lossy().as_ref() {
            "--private" => private = true,
            "--help" | "-h" => return Ok(Task::Help),
            other => {
                return Err(format!("unknown argument `{other}` for servers; valid: --private, --help"));
            }
        }
    }
    Ok(Task::Servers { private })
}

fn parse_book(mut words: impl Iterator<Item = OsString>) -> Result<Task, String> {
    match words.next().map(|word| word.to_string_lossy().into_owned()) {
        None => Ok(Task::Book),
        Some(word) if word == "--help" || word == "-h" => Ok(Task::Help),
        Some(other) => Err(format!("unknown argument `{other}` for book; valid: --help")),
    }
}

fn parse_mutants(mut words: impl Iterator<Item = OsString>) -> Result<Task, String> {
    let mut options = MutantOptions::default();
    while let Some(word) = words.next() {
        match word.to_string_lossy().as_ref() {
            "--only" => {
                let part = words.next().ok_or("--only needs a part of a name, such as `--only M-01`")?;
                options.only = Some(part.to_string_lossy().into_owned());
            }
            "--list" => options.list = true,
            "--help" | "-h" => return Ok(Task::Help),
            other => {
                return Err(format!(
                    "unknown argument `{other}` for mutants; valid: --only <part of a name>, --list, --help"
                ));
            }
        }
    }
    Ok(Task::Mutants(options))
}

fn is_filter_expression(word: &OsString) -> bool {
    let word = word.to_string_lossy();
    ["-E", "--filterset", "--filter-expr"].iter().any(|flag| word.starts_with(flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Task, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn every_flag_of_test_is_understood() {
        let line = "test --fast --no-lint --private --under-load --runs 10 -- --no-capture --fast";
        let Ok(Task::Test(options)) = parsed(line) else {
            panic!("a valid line was refused");
        };
        assert!(options.fast && options.no_lint && options.private && options.under_load);
        assert_eq!(options.runs, 10);
        assert_eq!(options.extra, ["--no-capture", "--fast"]);
    }

    #[test]
    fn one_test_is_chosen_by_its_name() {
        let words = ["test", "--only", "xtask args::tests::x"].map(OsString::from);
        let Ok(Task::Test(options)) = parse(words) else { panic!("a valid line was refused") };
        assert_eq!(options.only.as_deref(), Some("xtask args::tests::x"));
        assert!(parsed("test --only").unwrap_err().contains("needs a test"));
        assert!(parsed("test --only x --fast").unwrap_err().contains("drop --fast"));
        assert!(parsed("test --only x -- -E test(y)").unwrap_err().contains("drop one"));
        for line in ["test --runs", "test --runs 0", "test --runs many"] {
            assert!(parsed(line).unwrap_err().contains("--runs 10"), "{line}");
        }
    }

    #[test]
    fn servers_knows_only_private() {
        assert_eq!(parsed("servers"), Ok(Task::Servers { private: false }));
        assert_eq!(parsed("servers --private"), Ok(Task::Servers { private: true }));
        assert!(parsed("servers --fast").unwrap_err().contains("--private"));
    }

    #[test]
    fn mutants_are_chosen_by_a_part_of_their_name() {
        let options = MutantOptions { only: Some("M-01".to_owned()), list: true };
        assert_eq!(parsed("mutants --list --only M-01"), Ok(Task::Mutants(options)));
        assert_eq!(parsed("mutants"), Ok(Task::Mutants(MutantOptions::default())));
        assert!(parsed("mutants --only").unwrap_err().contains("--only M-01"));
        assert!(parsed("mutants M-01").unwrap_err().contains("--list"));
    }

    #[test]
    fn the_book_takes_nothing() {
        assert_eq!(parsed("book"), Ok(Task::Book));
        assert!(parsed("book --fast").unwrap_err().contains("--fast"));
    }

    #[test]
    fn help_is_found_wherever_it_is_asked_for() {
        for line in [
            "help",
            "--help",
            "-h",
            "test --help",
            "test --fast -h",
            "servers --help",
            "mutants -h",
            "book -h",
        ] {
            assert_eq!(parsed(line), Ok(Task::Help), "{line}");
        }
    }

    #[test]
    fn a_refusal_names_what_would_have_been_valid() {
        let refusal = parsed("test --fats").unwrap_err();
        assert!(refusal.contains("`--fats`") && refusal.contains("--fast"), "{refusal}");
        for line in ["", "tset"] {
            let refusal = parsed(line).unwrap_err();
            assert!(refusal.contains("test, servers, mutants, book, help"), "{refusal}");
        }
    }

    #[test]
    fn fast_does_not_combine_with_another_filter_expression() {
        assert!(parsed("test --fast -- -E test(claim)").unwrap_err().contains("not test(slow)"));
        assert!(parsed("test --fast -- claim").is_ok());
        assert!(parsed("test -- -E test(claim)").is_ok());
    }
}
