//! A copy of the workspace in which mutants are made, built and tested.
//!
//! Nothing outside of the copy's folder is ever written: target folder and temporary files are inside of it, and a
//! [`Guard`] deletes it even if this process is killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::list::{Mutant, Program};
use super::trial::{self, Ended};
use crate::guard::Guard;
use crate::stages::{self, Environment};

/// Deletes a folder in which an interrupted process may still write for a moment.
const DELETE: &str =
    r#"for pause in 0 1 2 4 8; do sleep $pause; rm -rf "$0" 2>/dev/null && exit; done; rm -rf "$0""#;

pub(super) struct Workshop {
    folder: PathBuf,
    environment: Environment,
    _guard: Guard,
}

impl Workshop {
    /// Copies the workspace, and hands the environment on to its tests.
    pub(super) fn open(environment: Environment) -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("posthaste-mutants-{}", std::process::id()));
        let refused = |error| format!("cannot create {}: {error}", folder.display());
        // Fails on an existing folder, which could belong to another user.
        fs::create_dir(&folder).map_err(refused)?;
        let guard = Guard::finally(Command::new("sh").args(["-c", DELETE]).arg(&folder))
            // No guard took the folder over, so it is still ours to delete.
            .inspect_err(|_| drop(fs::remove_dir(&folder)))?;
        let workshop = Self { folder: folder.clone(), environment, _guard: guard };
        copy(&stages::root(), &workshop.copy())?;
        fs::create_dir(workshop.scratch()).map_err(refused)?;
        fs::write(workshop.settings(), trial::SETTINGS).map_err(refused)?;
        Ok(workshop)
    }

    fn copy(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    fn scratch(&self) -> PathBuf {
        self.folder.join("scratch")
    }

    fn settings(&self) -> PathBuf {
        self.folder.join("nextest.toml")
    }

    /// Runs the tests that the filter chooses, on the copy as it is.
    pub(super) fn test(&self, program: Program, filter: &str) -> Result<Ended, String> {
        trial::run(&mut self.cargo(), program.arguments(), filter)
    }

    /// Runs the tests that must kill this mutant, each for a limited time.
    pub(super) fn test_mutant(&self, mutant: &Mutant) -> Result<Ended, String> {
        let mut arguments = mutant.program.arguments().to_vec();
        // In place of the workspace's own, which would take precedence, and are more patient.
        let settings = self.settings().display().to_string();
        arguments.extend(["--config-file", &settings]);
        trial::run(&mut self.cargo(), &arguments, mutant.killers)
    }

    fn cargo(&self) -> Command {
        let mut cargo = stages::cargo();
        cargo.current_dir(self.copy());
        stages::set(&mut cargo, &self.environment);
        // Mutants are not debugged, so they need no debug information.
        cargo.envs([("CARGO_PROFILE_DEV_DEBUG", "0"), ("CARGO_PROFILE_TEST_DEBUG", "0")]);
        cargo.envs([("CARGO_TERM_COLOR", "never"), ("RUST_BACKTRACE", "0")]);
        cargo.env("CARGO_TARGET_DIR", self.folder.join("target")).env("TMPDIR", self.scratch());
        cargo
    }

    /// Makes a mutant; the error tells why it cannot be made.
    pub(super) fn apply(&self, mutant: &Mutant) -> Result<Mutation, String> {
        Mutation::apply(&self.copy().join(mutant.file), mutant.original, mutant.mutated)
    }
}

/// A changed file with its original text.
#[derive(Debug)]
pub(super) struct Mutation {
    file: PathBuf,
    before: String,
}

impl Mutation {
    fn apply(file: &Path, original: &str, mutated: &str) -> Result<Self, String> {
        let stale =
            |what: String| format!("{}: {what}; mutant no longer applies: update the list", file.display());
        let before = fs::read_to_string(file).map_err(|error| stale(error.to_string()))?;
        match before.matches(original).count() {
            1 => {}
            count => return Err(stale(format!("its text occurs {count} times"))),
        }
        let after = before.replace(original, mutated);
        fs::write(file, after).map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        Ok(Self { file: file.to_owned(), before })
    }

    /// Restores the original text.
    pub(super) fn revert(self) -> Result<(), String> {
        fs::write(&self.file, self.before)
            .map_err(|error| format!("cannot write {}: {error}", self.file.display()))
    }
}

/// Copies tracked and untracked files; ignored ones are large and can be created again.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-co", "--exclude-standard", "-z"]).current_dir(from);
    let listed = crate::programs::answer(&mut git)?;
    // A file that is deleted but not yet from git's list is not there to be copied.
    for name in listed.split('\0').filter(|name| from.join(name).is_file()) {
        let (source, target) = (from.join(name), to.join(name));
        let parent = target.parent().unwrap_or(to);
        fs::create_dir_all(parent)
            .and_then(|()| fs::copy(&source, &target))
            .map_err(|error| format!("cannot copy {}: {error}", source.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of this content in a folder that no other test uses.
    fn file(name: &str, content: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-mutants-{name}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("it.sql"), content).unwrap();
        folder.join("it.sql")
    }

    #[test]
    fn a_mutation_changes_one_place_and_is_taken_back() {
        let file = file("applies", "where a = 1\n  and b = 2\n");
        let mutation = Mutation::apply(&file, " and b = 2", "").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "where a = 1\n \n");
        mutation.revert().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "where a = 1\n  and b = 2\n");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_mutation_that_is_not_exact_changes_nothing() {
        let file = file("stale", "a a b");
        for (original, count) in [("a", 2), ("c", 0)] {
            let refusal = Mutation::apply(&file, original, "x").unwrap_err();
            assert!(
                refusal.contains(&format!("occurs {count} times; mutant no longer applies: update the list"))
            );
        }
        assert!(
            Mutation::apply(&file.with_extension("gone"), "a", "x")
                .unwrap_err()
                .contains("no longer applies")
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "a a b");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
}
