//! One run of cargo-nextest in the copy, and what its end means.
//!
//! A build failure is never a kill: the compiler is not one of our tests.

use std::process::{Command, Stdio};

/// How a run of tests ended; with the last lines of its output.
#[derive(Debug, PartialEq)]
pub(super) enum Ended {
    Passed,
    /// At least one test failed.
    Failed(String),
    /// Nothing was tested.
    Broken(String),
}

/// The exit code of cargo-nextest after a test has failed; see `nextest-metadata`, `NextestExitCode`.
const TEST_RUN_FAILED: i32 = 100;
/// How many lines of output are worth reading.
const LAST_WORDS: usize = 40;
/// For the tests of a mutant: one that waits for ever has failed, too, and they take seconds when nothing is wrong.
pub(super) const SETTINGS: &str =
    "[profile.default]\nslow-timeout = { period = \"30s\", terminate-after = 1 }\n";

/// Builds the named targets, and runs the tests that the filter chooses.
pub(super) fn run(cargo: &mut Command, arguments: &[&str], filter: &str) -> Result<Ended, String> {
    let output = cargo
        .args(["nextest", "run", "--all-features", "-E", filter])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cargo did not start: {error}"))?;
    let words = last_words(&String::from_utf8_lossy(&output.stderr));
    Ok(meaning(output.status.code(), words))
}

fn meaning(code: Option<i32>, words: String) -> Ended {
    match code {
        Some(0) => Ended::Passed,
        Some(TEST_RUN_FAILED) => Ended::Failed(words),
        _ => Ended::Broken(words),
    }
}

fn last_words(output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    lines[lines.len().saturating_sub(LAST_WORDS)..].iter().map(|line| format!("  {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_failed_test_is_a_kill() {
        assert_eq!(meaning(Some(0), String::new()), Ended::Passed);
        assert_eq!(meaning(Some(100), String::new()), Ended::Failed(String::new()));
        // 101: it does not build; 4: no test was chosen; none: ended by a signal.
        for code in [Some(101), Some(4), Some(1), None] {
            assert_eq!(meaning(code, String::new()), Ended::Broken(String::new()));
        }
    }

    #[test]
    fn the_end_of_a_long_output_is_kept() {
        let output: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let words = last_words(&output);
        assert_eq!((words.lines().count(), words.lines().last()), (LAST_WORDS, Some("  line 99")));
    }
}
