//! Wrong usage, stores that are not there: the exit code, and what to do.

use crate::support::{command, posthaste, unique};

const ID: &str = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";

#[test]
fn no_store_is_a_matter_of_usage() {
    for args in [
        &["status"][..],
        &["list"],
        &["show", ID],
        &["why", ID],
        &["top"],
        &["joins"],
        &["pause"],
        &["doctor"],
    ] {
        posthaste(args, "").exits(2).warns("POSTHASTE_STORE");
    }
    posthaste(&["status", "--store", "oracle://db"], "").exits(2).warns("postgres://, mysql:// or sqlite:");
    posthaste(&["odd"], "").exits(2).warns("unrecognized subcommand");
    posthaste(&["list", "--limit", "0"], "").exits(2);
    posthaste(&["list", "--state", "odd"], "").exits(2).warns("ready");
}

#[test]
fn what_cannot_be_reached_can_be_tried_again() {
    let ran = posthaste(&["status", "--store", "postgres://app@127.0.0.1:9/shop"], "").exits(4);
    ran.warns("unavailable");
    let ran = posthaste(&["status", "--json", "--store", "postgres://app@127.0.0.1:9/shop"], "").exits(4);
    let error: serde_json::Value = serde_json::from_str(&ran.err).unwrap();
    assert_eq!(error["error"]["kind"], "unavailable");
}

#[test]
fn missing_tables_are_told_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("empty.db").display());
    posthaste(&["status", "--store", &url], "").exits(1).warns("migrate");
    if let Ok(url) = std::env::var("POSTHASTE_TEST_POSTGRES") {
        posthaste(&["status", "--store", &url, "--schema", &unique()], "").exits(1).warns("migrate");
    }
}

#[test]
fn the_environment_names_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
    let output = command(&["migrate"]).env("POSTHASTE_STORE", &url).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let output = command(&["status"]).env("POSTHASTE_STORE", &url).output().unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("nothing waits"));
}

#[test]
fn a_missing_file_is_made_by_migrate_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.db");
    let url = format!("sqlite:{}", file.display());
    posthaste(&["status", "--store", &url], "").exits(2).warns("posthaste migrate");
    assert!(!file.exists());
    posthaste(&["migrate", "--store", &url], "").exits(0).says("version");
    posthaste(&["status", "--store", &url], "").exits(0).says("nothing waits");
}
