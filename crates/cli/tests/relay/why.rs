//! What only a relay knows of a message: that no route takes it, and that its sink is down. Asked over HTTP and by the command.

use serde_json::{Value, json};

use crate::support::{Relay, Scene, eventually};

const MESSAGES: &str = "/v1/databases/shop/messages";

async fn store(relay: &Relay, topic: &str) -> String {
    let stored = relay.post(MESSAGES, &json!({ "messages": [{ "topic": topic }] })).await;
    stored.json()["messages"][0]["id"].as_str().unwrap().to_owned()
}

async fn reasons(relay: &Relay, id: &str) -> Vec<Value> {
    let why = relay.get(&format!("{MESSAGES}/{id}/why")).await.json();
    why["reasons"].as_array().unwrap().iter().map(|reason| reason["reason"].clone()).collect()
}

#[tokio::test]
async fn a_relay_knows_routes_and_sinks() {
    // No server listens there.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let scene = Scene::small(&format!(
        "[[routes]]\ntopics = [\"down\"]\nsink = \"gone\"\n[sinks.gone]\nurl = \"amqp://{gone}\"\n"
    ))
    .await;
    let relay = scene.start().await;
    let unrouted = store(&relay, "nobody.takes.it").await;
    assert_eq!(reasons(&relay, &unrouted).await, [json!("no_route")]);
    let down = store(&relay, "down").await;
    eventually("the sink is found to be down", async || {
        reasons(&relay, &down).await.contains(&json!("sink_down"))
    })
    .await;
    let delivered = store(&relay, "sent.well").await;
    eventually("it is delivered", async || reasons(&relay, &delivered).await == [json!("done")]).await;

    // The command asks the relay, even if the environment names a store.
    let base = format!("http://{}", relay.address);
    let ask = async |id: &str| {
        let mut command = scene.command();
        command.env("POSTHASTE_STORE", "postgres://nobody@127.0.0.1:9/none");
        let output =
            command.args(["why", id, "--relay", &base, "--database", "shop"]).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, told) = ask(&unrouted).await;
    assert!(code == Some(0) && told.contains("no route takes nobody.takes.it"), "{code:?} {told}");
    let (code, told) = ask(&down).await;
    assert!(code == Some(0) && told.contains("the sink gone is down"), "{code:?} {told}");
    let (code, _) = ask("00000000-0000-7000-8000-000000000000").await;
    assert_eq!(code, Some(3));
    relay.stop().await;
}
