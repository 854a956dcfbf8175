//! The demo, as its user runs it: it ends by itself, its promises hold, and it touches nothing but its own files.

#![allow(clippy::unwrap_used, reason = "test code: a panic is how it reports")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_posthaste");
/// The shell and `rm` are there, and nothing of ours.
const PATH: &str = "/usr/bin:/bin";

fn posthaste(words: &[&str], temporary: &Path) -> Output {
    Command::new(PROGRAM).args(words).env("TMPDIR", temporary).output().unwrap()
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

/// Plays a demo with dead letters in this folder, and returns the commands that it prints.
fn try_next(words: &[&str], here: &Path, path: &str) -> Vec<String> {
    let mut demo = Command::new(PROGRAM);
    demo.args(["demo", "--seconds", "3", "--rate", "30"]).args(words).current_dir(here).env("PATH", path);
    let ended = demo.output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let said = String::from_utf8(ended.stdout).unwrap();
    let (_, next) = said.split_once("Try next\n").unwrap();
    let commands = next.lines().filter_map(|line| line.strip_prefix("  "));
    commands.filter(|line| !line.starts_with(' ')).map(str::to_owned).collect()
}

/// A command as a user pastes it, with nothing of ours in the environment.
fn pasted(command: &str, here: &Path) -> Command {
    let mut shell = Command::new("sh");
    // The shell gives its process to the command, so that a signal reaches it.
    shell.args(["-c", &format!("exec {command}")]).current_dir(here).env("PATH", PATH);
    shell.env_remove("POSTHASTE_STORE").env_remove("POSTHASTE_CONFIG").stdin(Stdio::null());
    shell
}

/// Runs what ends by itself.
fn run(command: &str, here: &Path) -> String {
    let ended = pasted(command, here).output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{command}\n{told}");
    String::from_utf8(ended.stdout).unwrap()
}

/// Lets the relay run until nothing is ready, as `status` says, and ends it as Ctrl-C does.
fn run_relay(command: &str, status: &str, here: &Path) {
    let mut relay: Child = pasted(command, here).stderr(Stdio::null()).spawn().unwrap();
    let begin = Instant::now();
    while serde_json::from_str::<Value>(&run(&format!("{status} --json"), here)).unwrap()["ready"]["value"]
        != 0
    {
        assert!(begin.elapsed() < Duration::from_secs(120), "the relay delivers nothing: {command}");
        assert!(relay.try_wait().unwrap().is_none(), "the relay has ended: {command}");
        std::thread::sleep(Duration::from_millis(100));
    }
    // `kill` is the shell's own: not every system has a program of that name.
    let kill = Command::new("sh").args(["-c", &format!("kill -INT {}", relay.id())]).status().unwrap();
    assert!(kill.success());
    assert_eq!(relay.wait().unwrap().code(), Some(0), "{command}");
}

/// Runs every command, in the order in which they stand there.
fn run_all(commands: &[String], here: &Path) {
    for part in [" status ", " list ", " why ", " joins ", " requeue "] {
        assert!(commands.iter().any(|command| command.contains(part)), "{part}: {commands:?}");
    }
    assert_eq!(cfg!(feature = "relay"), commands.iter().any(|command| command.contains(" relay ")));
    for command in commands {
        if command.contains(" relay ") {
            run_relay(command, &commands[0], here);
        } else {
            run(command, here);
        }
    }
}

#[test]
fn every_command_it_prints_works_when_pasted_in_the_repository() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let commands = try_next(&["--file", file.to_str().unwrap()], &root, PATH);
    run_all(&commands, &root);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left: {commands:?}");
}

#[test]
fn every_command_it_prints_works_when_pasted_in_a_folder_with_an_odd_name() {
    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().join("Ada's $HOME");
    std::fs::create_dir(&here).unwrap();
    let commands = try_next(&["--file", "50% of #1? shop.db"], &here, PATH);
    run_all(&commands, &here);
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "nothing is left: {commands:?}");
}

#[cfg(unix)]
#[test]
fn a_program_on_the_path_is_called_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(PROGRAM, folder.path().join("posthaste")).unwrap();
    let path = format!("{PATH}:{}", folder.path().display());
    let commands = try_next(&["--file", "shop.db"], folder.path(), &path);
    assert_eq!(commands[0], "posthaste status --store sqlite:shop.db");
    let commands = try_next(&["--file", "shop2.db"], folder.path(), PATH);
    assert!(commands[0].starts_with('/'), "{commands:?}");
}

/// With every feature there is nothing to refuse.
#[test]
fn a_build_without_a_feature_names_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for (feature, has, words) in [
        ("postgres", cfg!(feature = "postgres"), "status --store postgres://127.0.0.1/shop"),
        ("mysql", cfg!(feature = "mysql"), "status --store mysql://127.0.0.1/shop"),
        ("rabbitmq", cfg!(feature = "rabbitmq"), "doctor --rabbitmq amqp://127.0.0.1 --queue a"),
        ("nats", cfg!(feature = "nats"), "doctor --nats nats://127.0.0.1 --stream a"),
        ("relay", cfg!(feature = "relay"), "relay --from sqlite:shop.db --to log:"),
        ("relay", cfg!(feature = "relay"), "relay --help"),
        ("relay", cfg!(feature = "relay"), "tenants --config relay.toml"),
        (
            "relay",
            cfg!(feature = "relay"),
            "why 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11 --relay http://127.0.0.1:7070 --database shop",
        ),
    ] {
        if has {
            continue;
        }
        let ended = posthaste(&words.split(' ').collect::<Vec<_>>(), folder.path());
        let told = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{words}: {told}");
        assert!(told.contains("was built without"), "{words}: {told}");
        assert!(told.contains(&format!("--features {feature}")), "{words}: {told}");
        assert!(told.contains("cargo install"), "{words}: {told}");
    }
}
