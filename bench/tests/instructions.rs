//! How many instructions the runtime spends on a message, counted by callgrind and compared with `instructions.txt`: what becomes
//! dearer fails, and so does what becomes cheaper, until it is stored by `POSTHASTE_UPDATE_DUMPS=1`.
//!
//! Two runs, one with three times the messages of the other: their difference is free of all that happens once; and from each what
//! storing the messages takes is subtracted. Never seconds.
//! The clock stands still meanwhile, or whatever goes by it would depend on what else the machine does.
//! Without valgrind nothing is counted, and the test says so.

#![allow(clippy::print_stderr, reason = "tests")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many messages the smaller run has.
const MESSAGES: u64 = 300;
/// What compilers may differ by, in percent.
const TOLERANCE: u64 = 10;

/// The profile that all of this was built in; unoptimised code costs several times as much.
const PROFILE: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

const HEADER: &str = "# Instructions per message, claimed, handled and settled in memory on one thread, by the profile of the\n\
                      # build: see instructions.rs. Written by `POSTHASTE_UPDATE_DUMPS=1`.\n";

/// The instructions for delivering so many, and for everything that happens once.
fn instructions(messages: u64) -> u64 {
    whole(messages, &[]) - whole(messages, &["--only-store"])
}

/// The instructions of a whole run.
fn whole(messages: u64, flags: &[&str]) -> u64 {
    let folder = tempfile::tempdir().expect("a folder for what callgrind writes");
    let file = folder.path().join("callgrind.out");
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(env!("CARGO_BIN_EXE_posthaste-bench"))
        .args(["--count", &messages.to_string()])
        .args(flags)
        .output()
        .expect("valgrind was there a moment ago");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let counted = std::fs::read_to_string(&file).expect("callgrind wrote what it counted");
    let total = counted.lines().find_map(|line| line.strip_prefix("totals: "));
    total.expect("a total").trim().parse().expect("a number")
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/instructions.txt")
}

/// The stored figures, by profile.
fn stored() -> Vec<(String, u64)> {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let figures = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('|'));
    let figure = |(profile, value): (&str, &str)| {
        (profile.trim().to_owned(), value.trim().parse().unwrap_or_else(|_| panic!("no figure: {value}")))
    };
    figures.map(figure).collect()
}

fn store(found: u64) {
    let mut figures = stored();
    figures.retain(|(profile, _)| profile != PROFILE);
    figures.push((PROFILE.to_owned(), found));
    figures.sort();
    let mut text = HEADER.to_owned();
    for (profile, value) in figures {
        writeln!(text, "{profile:<8} | {value:>8}").expect("memory");
    }
    std::fs::write(file(), text).expect("the file can be written");
}

#[test]
fn instructions_per_message_are_the_stored_ones() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("valgrind is not installed: instructions are not counted");
        return;
    }
    let found = (instructions(3 * MESSAGES) - instructions(MESSAGES)) / (2 * MESSAGES);
    let of_profile = || stored().into_iter().find(|(profile, _)| profile == PROFILE).map(|(_, value)| value);
    let near = |value: u64| found.abs_diff(value) * 100 <= value * TOLERANCE;
    eprintln!("{found} instructions per message, {PROFILE}; stored: {:?}", of_profile());
    // What still holds stays, so that small steps do not add up.
    if std::env::var_os("POSTHASTE_UPDATE_DUMPS").is_some() && !of_profile().is_some_and(near) {
        store(found);
    }
    let advice = "If that is meant, store it, and say why in the commit:\n  \
                  POSTHASTE_UPDATE_DUMPS=1 cargo test -p posthaste-bench --features counting --test instructions";
    let advice = if PROFILE == "release" { format!("{advice} --release") } else { advice.to_owned() };
    let Some(value) = of_profile() else {
        eprintln!("nothing is stored for {PROFILE}, and so nothing is compared. {advice}");
        return;
    };
    let verdict = if found > value { "dearer" } else { "cheaper" };
    assert!(
        near(value),
        "a message costs {found} instructions, {value} are stored for {PROFILE}: {verdict} by more than {TOLERANCE} %. {advice}"
    );
}
