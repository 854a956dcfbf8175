//! No secret and no payload in anything that a relay writes or answers, however much it is asked to tell.

use serde_json::{Value, json};

use crate::access::{self, ADMIN, OPERATOR, VIEWER};
use crate::support::{Scene, eventually};

/// In every place where a secret may stand.
const CANARY: &str = "CANARY";

#[tokio::test]
async fn no_secret_is_in_a_check_or_in_the_mistakes() {
    let keys = format!("one:{}", "ca9a51".repeat(11));
    for config in [
        "[databases.a]\nurl = \"postgres://u:CANARY@127.0.0.1:1/d?password=CANARY\"\nacquire_timeout = \"1s\"\n\
         [databases.b]\nurl_env = \"SECRET_URL\"\nacquire_timeout = \"1s\"\n[sinks.s]\nurl = \"amqp://u:CANARY@127.0.0.1:1\"\n\
         [sinks.n]\nurl = \"nats://CANARY@127.0.0.1:1\"\n[[routes]]\ntopics = [\"*\"]\nsink = \"s\"\n",
        // Wrong in as many ways.
        "[databases.a]\nurl = \"postgres//u:CANARY@h/d\"\n[databases.b]\nurl = \"mysql://u:CANARY@h:port/d\"\n\
         [databases.c]\nurl = \"postgres://u:CA/NARY@h:CANARY/d\"\n[sinks.s]\nurl = \"amqp:/u:CANARY@h\"\n\
         [sinks.t]\nurl = \"nats://u:CANARY@h:CANARY\"\n[sinks.u]\nurl = \"amqp://u:CANARY@:CANARY\"\nwindow = \"CANARY\"\n\
         [settings]\nlease = 7\n[encryption]\nkeys_env = \"SECRET_KEYS\"\n[[http.tokens]]\nname = \"a\"\nrole = \"admin\"\ntoken_env = \"SHORT\"\n",
        "[databases.a]\nurl = \"postgres://u:CANARY@h/d\nkeep = 1\n",
        "[databases.a]\nurl = [\"postgres://u:CANARY@h/d\"]\n[[http.tokens]]\ntoken = \"CANARY\"\n",
    ] {
        let scene = Scene::new(config)
            .env("SECRET_URL", "mysql://u:CANARY@127.0.0.1:1/d")
            .env("SECRET_KEYS", &keys)
            .env("SHORT", "CANARY")
            .env("POSTHASTE__RELAY__LOG", "trace");
        for args in [&["--check"][..], &["--check", "--json"], &["--migrate"]] {
            let (code, told, said) = scene.finish(args).await;
            assert_ne!(code, 0);
            assert!(!told.contains(CANARY) && !said.contains(CANARY), "{told}\n{said}");
            assert!(!told.contains("ca9a51") && !said.contains("ca9a51"), "{told}\n{said}");
        }
    }
}

#[tokio::test]
async fn no_secret_and_no_payload_is_in_a_log_at_trace_or_in_an_answer() {
    let scene = access::scene("").await.env("POSTHASTE__RELAY__LOG", "trace");
    let config = std::fs::read_to_string(scene.config()).unwrap();
    // A sink that is down, so that deliveries fail, and a database that is not there.
    let config = format!(
        "{config}[sinks.down]\nurl = \"amqp://user:SECRET-CANARY@127.0.0.1:1\"\n[[routes]]\ntopics = [\"down\"]\nsink = \"down\"\n\
         [databases.gone]\nurl = \"postgres://user:SECRET-CANARY@127.0.0.1:1/gone\"\n"
    );
    scene.write(&config);
    let relay = scene.start().await;
    let call = async |method: &str, path: &str, token: &str, body: &Value| {
        let token = format!("Bearer {token}");
        let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
        relay.call(method, path, &headers, &body.to_string()).await
    };
    let message = |topic: &str| {
        json!({ "topic": topic, "json": { "card": "PAYLOAD-CANARY" }, "headers": { "h": "HEADER-CANARY" },
                "key": "KEY-CANARY", "dedup_key": format!("DEDUP-CANARY-{topic}") })
    };
    let body = json!({ "messages": [message("sent.a"), message("down")] });
    assert_eq!(call("POST", "/v1/databases/shop/messages", OPERATOR, &body).await.status, 201);
    let wrong =
        json!({ "messages": [{ "topic": "t", "json": "PAYLOAD-CANARY", "key": 3, "PAYLOAD-CANARY": 1 }] });
    let wrong = call("POST", "/v1/databases/shop/messages", OPERATOR, &wrong).await;
    assert!(!wrong.refused(422).body.contains(CANARY), "{wrong:?}");
    call("GET", "/v1/status", "wrong-token-CANARY-00000", &Value::Null).await.refused(401);
    eventually("the sink is down, and one is delivered", async || {
        let status = call("GET", "/v1/status", VIEWER, &Value::Null).await.json();
        let shop = &status["databases"].as_array().unwrap().iter().find(|one| one["name"] == "shop").unwrap()
            ["stats"];
        let down = status["sinks"].as_array().unwrap().iter().any(|sink| sink["down"] == true);
        let gone = status["databases"].as_array().unwrap().iter().any(|one| one["state"] == "failing");
        shop["done"]["value"] == 1 && down && gone
    })
    .await;
    for path in [
        "/v1/status",
        "/v1/databases/shop/stats",
        "/v1/databases/gone/stats",
        "/metrics",
        "/readyz",
        "/v1/openapi.json",
    ] {
        let answer = call("GET", path, VIEWER, &Value::Null).await;
        assert!(!answer.body.contains(CANARY), "{path}: {answer:?}");
    }
    let list = call("GET", "/v1/databases/shop/messages", ADMIN, &Value::Null).await;
    assert!(!list.body.contains("PAYLOAD-CANARY") && !list.body.contains("HEADER-CANARY"), "{list:?}");
    relay.signal("HUP");
    eventually("the configuration is read again", async || relay.has("the configuration was read again"))
        .await;
    relay.signal("TERM");
    let mut relay = relay;
    assert_eq!(relay.ended().await.code(), Some(0));
    let log = relay.log();
    assert!(log.contains("\"level\":\"DEBUG\"") || log.contains("\"level\":\"TRACE\""), "it told everything");
    let line = log.lines().find(|line| line.contains(CANARY));
    assert_eq!(line, None);
}
