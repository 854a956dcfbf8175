//! The list of tests that were flaky, kept from run to run, so that a summary can tell a new one from an old acquaintance.
//!
//! One line for each time: when, and which test, and why, parted by tabs. It lives in the target folder; a CI system that
//! starts with an empty one keeps the list by naming a file in `POSTHASTE_FLAKY_LIST`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::results::{Results, Test};
use crate::tools;

/// The variable that names the file.
const VARIABLE: &str = "POSTHASTE_FLAKY_LIST";
/// The oldest lines beyond these are forgotten.
const MOST_LINES: usize = 1_000;

/// Where the list is.
pub(crate) fn file() -> PathBuf {
    let given = std::env::var_os(VARIABLE).filter(|path| !path.is_empty());
    given.map_or_else(|| tools::target().join("flaky.tsv"), PathBuf::from)
}

/// Adds the flaky tests of a run; answers with each, and how often it was on the list before.
pub(crate) fn note(file: &Path, results: &Results) -> Vec<(Test, usize)> {
    let known = fs::read_to_string(file).unwrap_or_default();
    let times = |name: &str| known.lines().filter(|line| line.split('\t').nth(1) == Some(name)).count();
    let noted: Vec<_> = results.flaky.iter().map(|test| (test.clone(), times(&test.name))).collect();
    if noted.is_empty() {
        return noted;
    }
    let new = results.flaky.iter().map(|test| {
        let reason = test.reason.replace(['\t', '\n'], " ");
        format!("{}\t{}\t{reason}", results.began, test.name)
    });
    let lines: Vec<String> = known.lines().map(str::to_owned).chain(new).collect();
    let kept = &lines[lines.len().saturating_sub(MOST_LINES)..];
    if let Err(error) = fs::write(file, kept.join("\n") + "\n") {
        eprintln!("xtask: cannot keep the list of flaky tests in {}: {error}", file.display());
    }
    noted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_recognised_in_the_next_run() {
        let file = std::env::temp_dir().join(format!("posthaste-flaky-{}", std::process::id()));
        let test = Test { name: "a b::c".to_owned(), reason: "x\ty".to_owned() };
        let results = Results { began: "now".to_owned(), flaky: vec![test.clone()], ..Results::default() };
        assert_eq!(note(&file, &results), [(test.clone(), 0)]);
        assert_eq!(note(&file, &results), [(test, 1)]);
        assert_eq!(note(&file, &Results::default()), []);
        assert_eq!(fs::read_to_string(&file).unwrap(), "now\ta b::c\tx y\n".repeat(2));
        fs::remove_file(file).unwrap();
    }
}
