//! The demo, as its user runs it: it ends by itself, what it promises holds, and it touches nothing that is not its own.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::process::{Command, Output};

use serde_json::Value;

fn posthaste(words: &[&str], temporary: &std::path::Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_posthaste")).args(words).env("TMPDIR", temporary).output().unwrap()
}

#[test]
fn it_ends_well_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let ended = posthaste(&["demo", "--seconds", "3", "--rate", "30", "--clean", "--json"], folder.path());
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let summary: Value = serde_json::from_slice(&ended.stdout).unwrap();
    let figure = |name: &str| summary[name].as_u64().unwrap();
    assert_eq!(summary["broken"].as_array().unwrap().len(), 0, "{summary}");
    assert!(figure("orders") > 20 && figure("retried") > 0 && figure("rolled_back") > 0, "{summary}");
    assert!(figure("refused") >= 1 && figure("dead") == figure("refused"), "{summary}");
    assert_eq!(figure("orders"), figure("shipped") + figure("refused"), "{summary}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "its folder is gone");
}

#[test]
fn without_a_terminal_it_writes_lines_and_says_what_to_try_next() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let ended = posthaste(&["demo", "--seconds", "1", "--file", file.to_str().unwrap()], folder.path());
    let (said, told) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    assert!(ended.status.success(), "{told}");
    assert!(said.contains("Try next") && said.contains("nothing lost"), "{said}");
    assert!(told.contains("placed") && !told.contains('\u{1b}') && !said.contains('\u{1b}'), "{told}{said}");
    assert!(file.exists());
    let again = posthaste(&["demo", "--file", file.to_str().unwrap()], folder.path());
    assert_eq!(again.status.code(), Some(2), "what is there already is not touched");
}
