//! The doctor's findings on a healthy store, and on a missing one.

use crate::support::{Place, on_both, posthaste, unique};

on_both!(a_healthy_store_is_no_danger);

async fn a_healthy_store_is_no_danger(place: &Place) {
    let ran = place.run(&["doctor", "--json"]);
    let json = ran.json();
    let findings = json["examined"][0]["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    let dangers: Vec<_> = findings.iter().filter(|finding| finding["severity"] == "danger").collect();
    // A server made for tests may be set up for speed: then the doctor has to say so.
    assert_eq!(ran.code, if dangers.is_empty() { 0 } else { 5 }, "{dangers:?}");
    for finding in findings {
        let fine = finding["severity"] == "fine" || finding["severity"] == "notice";
        assert!(fine || finding["remedy"].is_string(), "{finding} has no remedy");
    }
    place.run(&["doctor"]).says("check").says("fine");
}

#[tokio::test]
async fn missing_tables_are_a_danger_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}?mode=rwc", folder.path().join("empty.db").display());
    posthaste(&["doctor", "--store", &url], "").exits(5).says("danger").says("migrate");
    if let Ok(url) = std::env::var("POSTHASTE_TEST_POSTGRES") {
        posthaste(&["doctor", "--store", &url, "--schema", &unique()], "").exits(5).says("danger");
    }
}

#[test]
fn brokers_are_looked_at_without_a_store() {
    let gone = unique();
    if let Ok(url) = std::env::var("POSTHASTE_TEST_RABBITMQ") {
        let ran = posthaste(&["doctor", "--rabbitmq", &url, "--queue", &gone], "").exits(0);
        ran.says(&format!("{gone} is not there")).says("declare it");
    }
    if let Ok(url) = std::env::var("POSTHASTE_TEST_NATS") {
        let ran = posthaste(&["doctor", "--nats", &url, "--stream", &gone, "--json"], "").exits(0).json();
        assert_eq!(ran["examined"][0]["findings"][0]["severity"], "warning");
    }
    posthaste(&["doctor", "--queue", "q"], "").exits(2).warns("--rabbitmq");
    let canary = "s3cr3t-canary";
    for (option, scheme, name) in [("--rabbitmq", "amqp", "--queue"), ("--nats", "nats", "--stream")] {
        let url = format!("{scheme}://user:{canary}@127.0.0.1:9");
        posthaste(&["doctor", option, &url, name, "x"], "").exits(4).never(canary);
        let wrong = format!("http://user:{canary}@db");
        posthaste(&["doctor", option, &wrong, name, "x"], "").exits(2).never(canary);
    }
}
