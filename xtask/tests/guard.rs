//! Guards do their duty however their owner ends; tried with the real program and harmless commands.
//!
//! No database takes part here, and nothing may outlive a test: every guard ends when its input is closed, which
//! the operating system does at the latest when the test process ends.

#![allow(clippy::unwrap_used, reason = "a test that cannot set up its scene has failed")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A folder that no other test uses.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("xtask-guard-{name}-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    folder
}

fn guard(orders: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("guard")
        .args(orders)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process of this number exists.
fn is_alive(process: &str) -> bool {
    Command::new("sh").args(["-c", r#"kill -0 "$0" 2>/dev/null"#, process]).status().unwrap().success()
}

/// A stand-in for a server: it leaves its process number in the folder, then does nothing for long.
fn stand_in(folder: &Path) -> String {
    format!("echo $$ > {0}/number.new && mv {0}/number.new {0}/number && exec sleep 600", folder.display())
}

#[test]
fn the_last_command_runs_when_the_input_closes_and_not_before() {
    let folder = folder("finally");
    let trace = folder.join("trace");
    let mut guard = guard(&["finally", "touch", trace.to_str().unwrap()]);
    // Nothing to wait for: a guard that acted early would do so at once.
    std::thread::sleep(Duration::from_millis(200));
    assert!(!trace.exists());
    drop(guard.stdin.take());
    assert!(guard.wait().unwrap().success());
    assert!(trace.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_server_is_stopped_and_its_folder_deleted() {
    let folder = folder("server");
    let script = stand_in(&folder);
    let place = folder.to_str().unwrap();
    let mut guard = guard(&["server", "TERM", place, "true", "--", "sh", "-c", &script, "--", "true"]);
    wait_until("the server runs", || folder.join("number").exists());
    let number = std::fs::read_to_string(folder.join("number")).unwrap();
    assert!(is_alive(number.trim()));
    drop(guard.stdin.take());
    assert!(guard.wait().unwrap().success());
    assert!(!is_alive(number.trim()));
    assert!(!folder.exists());
}

#[test]
fn a_server_that_does_not_start_is_reported_with_its_last_words() {
    let folder = folder("broken");
    let mut guard = guard(&[
        "server",
        "TERM",
        folder.to_str().unwrap(),
        "true",
        "--",
        "sh",
        "-c",
        "echo no room on the disk; exit 3",
        "--",
        "true",
    ]);
    // Kept open until the guard gives up by itself; a closed pipe would tell it to stop before it began.
    let owner = guard.stdin.take();
    let output = guard.wait_with_output().unwrap();
    drop(owner);
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(words.contains("no room on the disk") && words.contains("exit status: 3"), "{words}");
    assert!(!folder.exists());
}
