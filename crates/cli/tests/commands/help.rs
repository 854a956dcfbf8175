//! What every `--help` says.

use crate::support::{golden, posthaste};

/// Every command of this list has a file; a command that is not in it fails the test below.
const COMMANDS: [&str; 20] = [
    "bury",
    "completions",
    "demo",
    "doctor",
    "enqueue",
    "grants",
    "joins",
    "list",
    "migrate",
    "pause",
    "prune",
    "relay",
    "requeue",
    "resume",
    "show",
    "status",
    "tenants",
    "top",
    "why",
    "help",
];
#[test]
fn help_is_as_it_was() {
    for command in COMMANDS.iter().filter(|command| **command != "help") {
        let ran = posthaste(&[command, "--help"], "").exits(0);
        golden(&format!("help-{command}"), &ran.out);
        assert!(ran.out.contains("Example"), "{command} shows no example");
        assert!(
            ran.out.lines().all(|line| line.chars().count() <= 100),
            "{command} has a line that is too long"
        );
    }
}

#[test]
fn every_command_is_known_here() {
    let ran = posthaste(&["--help"], "").exits(0);
    golden("help", &ran.out);
    let commands =
        ran.out.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names: Vec<&str> = commands
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .map(|line| line.split_whitespace().next().unwrap())
        .collect();
    assert!(names.len() >= COMMANDS.len(), "{names:?}");
    for name in names {
        assert!(COMMANDS.contains(&name), "{name} has no file in tests/golden: add it here");
    }
}

#[test]
fn completions_know_the_commands() {
    posthaste(&["completions", "bash"], "").exits(0).says("requeue").says("doctor");
}
