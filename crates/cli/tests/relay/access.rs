//! Access over HTTP: every operation of the document with every identity.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::support::{Answer, Relay, Scene, eventually};

pub const VIEWER: &str = "viewer-token-CANARY-0001";
pub const OPERATOR: &str = "operator-token-CANARY-0002";
pub const ADMIN: &str = "admin-token-CANARY-0003";

/// Three tokens, and their names.
pub const TOKENS: &str = "[[http.tokens]]\nname = \"eve\"\nrole = \"viewer\"\ntoken_env = \"VIEWER\"\n\
    [[http.tokens]]\nname = \"olga\"\nrole = \"operator\"\ntoken_env = \"OPERATOR\"\n\
    [[http.tokens]]\nname = \"ada\"\nrole = \"admin\"\ntoken_env = \"ADMIN\"\n";

pub async fn scene(http: &str) -> Scene {
    let scene = Scene::small(&format!("[http]\n{http}\n{TOKENS}")).await;
    scene.env("VIEWER", VIEWER).env("OPERATOR", OPERATOR).env("ADMIN", ADMIN)
}

/// The role that each operation needs. Add new operations here, too.
fn rules() -> BTreeMap<&'static str, (&'static str, Value)> {
    let filter = json!({ "filter": { "state": "dead" }, "why": "test" });
    BTreeMap::from([
        ("get /v1/status", ("viewer", Value::Null)),
        ("get /v1/databases/{db}/stats", ("viewer", Value::Null)),
        ("get /v1/databases/{db}/messages", ("viewer", Value::Null)),
        (
            "post /v1/databases/{db}/messages",
            ("operator", json!({ "messages": [{ "topic": "kept", "json": 1 }] })),
        ),
        ("get /v1/databases/{db}/messages/{id}", ("viewer", Value::Null)),
        ("get /v1/databases/{db}/messages/{id}/why", ("viewer", Value::Null)),
        ("post /v1/databases/{db}/requeue", ("operator", filter.clone())),
        ("post /v1/databases/{db}/bury", ("operator", filter)),
        ("get /v1/databases/{db}/pauses", ("viewer", Value::Null)),
        ("post /v1/databases/{db}/pauses", ("operator", json!({ "topics": "test.*", "why": "test" }))),
        ("delete /v1/databases/{db}/pauses", ("operator", Value::Null)),
    ])
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}

async fn ask(relay: &Relay, method: &str, path: &str, token: Option<&str>, body: &Value) -> Answer {
    let token = token.map(bearer);
    let mut headers = vec![("content-type", "application/json")];
    headers.extend(token.as_deref().map(|token| ("authorization", token)));
    let body = if body.is_null() { String::new() } else { body.to_string() };
    relay.call(&method.to_uppercase(), path, &headers, &body).await
}

#[tokio::test]
async fn every_operation_is_for_its_role_and_those_above_it() {
    let scene = scene("failures = 1000\nrate = 1000").await;
    let relay = scene.start().await;
    let stored = ask(
        &relay,
        "post",
        "/v1/databases/shop/messages",
        Some(OPERATOR),
        &json!({ "messages": [{ "topic": "kept" }] }),
    )
    .await;
    assert_eq!(stored.status, 201, "{stored:?}");
    let id = stored.json()["messages"][0]["id"].as_str().unwrap().to_owned();
    let document = relay.get("/v1/openapi.json").await.json();
    let mut rules = rules();
    let identities = [None, Some("wrong-token-of-some-length"), Some(VIEWER), Some(OPERATOR), Some(ADMIN)];
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let name = format!("{method} {path}");
            let (role, body) =
                rules.remove(name.as_str()).unwrap_or_else(|| panic!("{name} has no rule in this test"));
            let rank = ["viewer", "operator", "admin"].iter().position(|known| *known == role).unwrap();
            let path = path.replace("{db}", "shop").replace("{id}", &id);
            let path = if name.starts_with("delete") { format!("{path}?topics=test.*") } else { path };
            for (i, token) in identities.into_iter().enumerate() {
                let answer = ask(&relay, method, &path, token, &body).await;
                match i {
                    0 | 1 => drop(answer.refused(401)),
                    _ if i - 2 < rank => drop(answer.refused(403)),
                    // The second caller finds it done.
                    _ if name.starts_with("delete") && answer.status == 404 => drop(answer.refused(404)),
                    _ => assert!((200..300).contains(&answer.status), "{name} as {token:?}: {answer:?}"),
                }
            }
        }
    }
    assert!(rules.is_empty(), "there is no such operation any more: {:?}", rules.keys());
    relay.stop().await;
}

#[tokio::test]
async fn what_a_message_carries_is_for_admins_and_each_look_is_logged() {
    let scene = scene("").await;
    let relay = scene.start().await;
    let body = json!({ "messages": [{ "topic": "kept", "json": { "card": "PAYLOAD-CANARY" }, "headers": { "h": "HEADER-CANARY" } }] });
    let stored = ask(&relay, "post", "/v1/databases/shop/messages", Some(OPERATOR), &body).await.json();
    let id = stored["messages"][0]["id"].as_str().unwrap();
    let path = format!("/v1/databases/shop/messages/{id}?content=true");
    for token in [VIEWER, OPERATOR] {
        let refused = ask(&relay, "get", &path, Some(token), &Value::Null).await;
        assert!(!refused.refused(403).body.contains("CANARY"));
    }
    let shown = ask(&relay, "get", &path, Some(ADMIN), &Value::Null).await.json();
    assert_eq!(shown["message"]["content"]["text"], "{\"card\":\"PAYLOAD-CANARY\"}");
    assert_eq!(shown["message"]["content"]["headers"]["h"], "HEADER-CANARY");
    let line = relay.line("the content of a message was looked at");
    assert_eq!((line["by"].as_str(), line["message_id"].as_str()), (Some("ada"), Some(id)));
    let plain =
        ask(&relay, "get", &format!("/v1/databases/shop/messages/{id}"), Some(ADMIN), &Value::Null).await;
    assert!(plain.status == 200 && !plain.body.contains("CANARY"), "{plain:?}");
    assert!(!relay.log().contains("CANARY"));
    relay.stop().await;
}

#[tokio::test]
async fn who_changed_a_message_is_the_tokens_name() {
    let scene = scene("").await;
    let relay = scene.start().await;
    let body = json!({ "messages": [{ "topic": "kept" }, { "topic": "kept", "dedup_key": "one" }, { "topic": "kept", "dedup_key": "one" }] });
    let stored = ask(&relay, "post", "/v1/databases/shop/messages", Some(OPERATOR), &body).await;
    assert_eq!(stored.status, 201, "{stored:?}");
    assert_eq!(stored.json()["messages"][2]["duplicate"], true);
    let again = json!({ "messages": [{ "topic": "kept", "dedup_key": "one" }] });
    assert_eq!(ask(&relay, "post", "/v1/databases/shop/messages", Some(OPERATOR), &again).await.status, 200);
    let id = stored.json()["messages"][0]["id"].as_str().unwrap().to_owned();
    let change = json!({ "filter": { "ids": [id] }, "why": "nobody wants it" });
    let mut dry = change.clone();
    dry["dry_run"] = json!(true);
    for (verb, body) in [("bury", &dry), ("bury", &change), ("requeue", &change)] {
        let changed =
            ask(&relay, "post", &format!("/v1/databases/shop/{verb}"), Some(OPERATOR), body).await.json();
        assert_eq!(changed["ids"][0], id.as_str(), "{verb}");
    }
    let shown = ask(&relay, "get", &format!("/v1/databases/shop/messages/{id}"), Some(VIEWER), &Value::Null)
        .await
        .json();
    assert_eq!(shown["history"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&shown["history"][0]["by"], &shown["history"][0]["why"]),
        (&json!("olga"), &json!("nobody wants it"))
    );
    let everything = json!({ "why": "oops" });
    ask(&relay, "post", "/v1/databases/shop/bury", Some(OPERATOR), &everything).await.refused(422);
    relay.stop().await;
}

#[tokio::test]
async fn pages_follow_each_other() {
    let scene = scene("").await;
    let relay = scene.start().await;
    let body = json!({ "messages": vec![json!({ "topic": "kept" }); 7] });
    ask(&relay, "post", "/v1/databases/shop/messages", Some(OPERATOR), &body).await;
    let (mut seen, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/databases/shop/messages?limit=3&topic=kep*{after}");
        let page = ask(&relay, "get", &path, Some(VIEWER), &Value::Null).await.json();
        seen.extend(page["messages"].as_array().unwrap().iter().map(|message| message["id"].to_string()));
        match page["next"].as_i64() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    seen.dedup();
    assert_eq!(seen.len(), 7);
    relay.stop().await;
}

#[tokio::test]
async fn paused_topics_are_left_alone_until_they_are_resumed() {
    let scene = scene("").await;
    let relay = scene.start().await;
    let pause = json!({ "topics": "sent.a", "why": "the broker moves" });
    let path = "/v1/databases/shop/pauses";
    assert_eq!(ask(&relay, "post", path, Some(OPERATOR), &pause).await.status, 201);
    assert_eq!(ask(&relay, "post", path, Some(OPERATOR), &pause).await.status, 200);
    let told = ask(&relay, "get", path, Some(VIEWER), &Value::Null).await.json();
    assert_eq!((&told["pauses"][0]["topics"], &told["pauses"][0]["by"]), (&json!("sent.a"), &json!("olga")));
    // Messages after the paused ones are delivered, the paused ones are not.
    let messages: Vec<Value> =
        (0..20).map(|i| json!({ "topic": if i < 10 { "sent.a" } else { "sent.b" } })).collect();
    let store = json!({ "messages": messages });
    assert_eq!(ask(&relay, "post", "/v1/databases/shop/messages", Some(OPERATOR), &store).await.status, 201);
    let count = async |state: &str| {
        let stats = ask(&relay, "get", "/v1/databases/shop/stats", Some(VIEWER), &Value::Null).await.json();
        stats[state]["value"].as_u64().unwrap()
    };
    eventually("the others are delivered", async || count("done").await == 10).await;
    assert_eq!(count("ready").await, 10, "those that are paused wait");
    let resume = format!("{path}?topics=sent.a");
    assert_eq!(ask(&relay, "delete", &resume, Some(OPERATOR), &Value::Null).await.status, 200);
    ask(&relay, "delete", &resume, Some(OPERATOR), &Value::Null).await.refused(404);
    eventually("they are delivered, too", async || count("done").await == 20).await;
    relay.stop().await;
}
