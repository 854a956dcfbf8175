//! The API against its own document, by schemathesis: every request that the document allows gets a documented
//! response.

use std::process::Stdio;

use crate::access::{self, ADMIN};

#[tokio::test]
async fn slow_fuzzed_against_its_document() {
    let Ok(program) = std::env::var("POSTHASTE_TEST_SCHEMATHESIS") else {
        eprintln!("skipped: POSTHASTE_TEST_SCHEMATHESIS is not set");
        return;
    };
    let scene = access::scene("rate = 10000\nfailures = 100000").await;
    // A database that is there: or most requests would be about none.
    std::fs::write(scene.folder.path().join("schemathesis.toml"), "[parameters]\ndb = \"shop\"\n").unwrap();
    let relay = scene.start().await;
    let output = tokio::process::Command::new(program)
        .args(["run", &format!("http://{}/v1/openapi.json", relay.address)])
        .args(["--url", &format!("http://{}", relay.address)])
        .args(["--header", &format!("Authorization: Bearer {ADMIN}")])
        .args([
            "--max-examples",
            "30",
            "--seed",
            "20261116",
            "--workers",
            "1",
            "--generation-database",
            "none",
        ])
        .args(["--checks", "all", "--exclude-checks", EXCLUDED])
        .current_dir(scene.folder.path())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(relay.get("/healthz").await.status, 200, "it lives");
    // Or it was refused all the time, and has tested nothing but that.
    let token = format!("Bearer {ADMIN}");
    let stored =
        relay.call("GET", "/v1/databases/shop/messages", &[("authorization", &token)], "").await.json();
    assert!(!stored["messages"].as_array().unwrap().is_empty(), "it stored some messages:\n{told}");
    relay.stop().await;
}

/// A document cannot say all that makes a value wrong: patterns of topics, times, two payloads of one message.
const EXCLUDED: &str = "positive_data_acceptance";
