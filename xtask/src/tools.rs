//! Programs that are no servers and no part of Rust: found on the machine, or brought into the target folder.
//!
//! Nothing is installed outside of that folder, and each in one version, so that a run means the same everywhere.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs;
use crate::servers::{Ready, Server};

/// What sends requests of all kinds to an HTTP API, and compares the answers with the API's own document.
const SCHEMATHESIS: &str = "4.32.5";
/// What makes the book.
const MDBOOK: &str = "0.5.4";

/// The fuzzer of the HTTP API, for the tests that read `POSTHASTE_TEST_SCHEMATHESIS`.
pub(crate) fn schemathesis() -> Server {
    const VARIABLE: &str = "POSTHASTE_TEST_SCHEMATHESIS";
    let given = std::env::var(VARIABLE).ok().filter(|path| !path.is_empty());
    let state = match given {
        Some(path) => Ok((PathBuf::from(path), format!("given by {VARIABLE}"))),
        None => bring_schemathesis().map(|path| (path, "in the target folder".to_owned())),
    };
    let state = state.and_then(|(path, source)| {
        let version = programs::answer(Command::new(&path).arg("--version"))?;
        let version = version.rsplit(' ').next().unwrap_or_default().to_owned();
        Ok(Ready { url: path.display().to_string(), version, source })
    });
    let state = state.map_err(|why| format!("{why}; alternatively set {VARIABLE} to the program"));
    Server { name: "schemathesis", key: "schemathesis", variable: VARIABLE, state }
}

fn bring_schemathesis() -> Result<PathBuf, String> {
    let folder = target().join("tools").join(format!("schemathesis-{SCHEMATHESIS}"));
    let program = folder.join("bin/schemathesis");
    if programs::is_executable(&program) {
        return Ok(program);
    }
    let python = programs::find("python3").ok_or("python3 is not installed")?;
    eprintln!("xtask: installing schemathesis {SCHEMATHESIS} into the target folder");
    // A partial result of an earlier run would be taken for a complete one.
    let _ = std::fs::remove_dir_all(&folder);
    programs::answer(Command::new(python).args(["-m", "venv"]).arg(&folder))?;
    let wanted = format!("schemathesis=={SCHEMATHESIS}");
    programs::answer(
        Command::new(folder.join("bin/python")).args(["-m", "pip", "install", "--quiet", &wanted]),
    )?;
    Ok(program)
}

/// The program that makes the book.
pub(crate) fn mdbook() -> Result<PathBuf, String> {
    let root = target().join("tools").join(format!("mdbook-{MDBOOK}"));
    let program = root.join("bin/mdbook");
    if programs::is_executable(&program) {
        return Ok(program);
    }
    if let Some(found) = programs::find("mdbook") {
        return Ok(found);
    }
    eprintln!("xtask: building mdBook {MDBOOK}, once; this takes some minutes");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args([
        "install",
        "mdbook",
        "--locked",
        "--version",
        MDBOOK,
        "--no-default-features",
        "--features",
        "search",
    ]);
    match cargo.arg("--root").arg(&root).status() {
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(format!("cargo install mdbook: {status}")),
        Err(error) => Err(format!("cargo did not start: {error}")),
    }
}

/// The folder of everything that is built.
pub(crate) fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The repository.
pub(crate) fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}
