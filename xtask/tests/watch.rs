//! The watchdog around each test, as nextest starts it: it ends as its test ends, and shows a test that hangs before it kills it.

#![allow(clippy::unwrap_used, reason = "a test that cannot prepare has failed")]

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Runs a shell script as the test, with this deadline, in a process group of its own.
fn watched(script: &str, deadline: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.args(["watch", "sh", "-c", script]).env_remove("POSTHASTE_TEST_DEADLINE").process_group(0);
    command.envs(deadline.map(|seconds| ("POSTHASTE_TEST_DEADLINE", seconds)));
    command.output().unwrap()
}

#[test]
fn it_ends_as_the_test_ends() {
    for deadline in [None, Some("600")] {
        let ended = watched("echo said; exit 7", deadline);
        assert_eq!((ended.status.code(), ended.stdout.as_slice()), (Some(7), b"said\n".as_slice()));
        assert!(watched("true", deadline).status.success());
        let killed = watched("kill -s ABRT $$", deadline);
        assert_eq!(killed.status.code(), Some(128 + 6));
        assert!(String::from_utf8_lossy(&killed.stderr).contains("ended by signal 6"));
    }
}

#[test]
fn a_test_that_hangs_is_shown_with_its_children_and_killed() {
    // An orphan, a child, and a child that was stopped.
    let script = r#"
        sh -c 'sleep 611 & echo $!'
        sleep 612 & echo $!
        kill -s STOP $!
        sleep 613 & echo $!
        wait
    "#;
    let ended = watched(script, Some("5"));
    let (said, told) = (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    assert_eq!(ended.status.code(), Some(1), "{told}");
    assert!(told.ends_with("Error: timed out after 5 s; stacks are above\n"), "{told}");
    for process in ["sleep 611", "sleep 612", "sleep 613"] {
        assert!(told.contains(process), "{process} is not in: {told}");
    }
    assert!(told.contains("STOPPED by a signal"), "{told}");
    let deadline = Instant::now() + Duration::from_secs(60);
    for id in said.lines() {
        let command = || std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        while String::from_utf8_lossy(&command()).contains("61") {
            assert!(Instant::now() < deadline, "{id} is still there");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
