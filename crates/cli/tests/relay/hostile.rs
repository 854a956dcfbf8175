//! Hostile callers: invalid bodies, clients that never finish, too many requests, foreign web pages.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::access::{self, VIEWER};
use crate::support::{Answer, PATIENCE, Relay, Scene};

const MESSAGES: &str = "/v1/databases/shop/messages";

async fn post(relay: &Relay, content_type: &str, body: &[u8]) -> Answer {
    let mut request = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: {}\r\ncontent-type: {content_type}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        relay.address,
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    relay.raw(request).await
}

#[tokio::test]
async fn bodies_that_are_none_are_refused_in_the_one_shape() {
    let scene = Scene::small("[http]\nbody_limit = 100000\n").await;
    let relay = scene.start().await;
    let json = "application/json";
    let deep = format!(
        "{{\"messages\":[{{\"topic\":\"t\",\"json\":{}1{}}}]}}",
        "[".repeat(5_000),
        "]".repeat(5_000)
    );
    let message = |message: &str| format!("{{\"messages\":[{message}]}}").into_bytes();
    for (content_type, body, status) in [
        (json, deep.into_bytes(), 422),
        (json, b"{\"messages\":[".to_vec(), 400),
        (json, vec![b' '; 200_000], 413),
        (json, b"{\"messages\":[{\"topic\":\"\xff\xfe\"}]}".to_vec(), 400),
        (json, Vec::new(), 400),
        ("text/plain", message("{\"topic\":\"t\"}"), 415),
        ("application/x-www-form-urlencoded", b"topic=t".to_vec(), 415),
        (json, b"{\"messages\":[]}".to_vec(), 422),
        (json, b"[]".to_vec(), 422),
        (json, message("{\"topic\":3}"), 422),
        (json, message("{\"topic\":\"\"}"), 422),
        (json, message("{\"topic\":\"a\\u0000b\"}"), 422),
        (json, message("{\"topic\":\"t\",\"key\":\"a\\u0000b\"}"), 422),
        (json, message("{\"topic\":\"t\",\"headers\":{\"a\":\"\\u0000\"}}"), 0),
        (json, message("{\"topic\":\"t\",\"unknown\":1}"), 422),
        (json, message("{\"topic\":\"t\",\"base64\":\"%\"}"), 422),
        (json, message("{\"topic\":\"t\",\"text\":\"a\",\"base64\":\"YQ==\"}"), 422),
        (json, message("{\"topic\":\"t\",\"id\":\"x\"}"), 422),
        (json, message("{\"topic\":\"t\",\"delay_seconds\":-1}"), 422),
        (json, message("{\"topic\":\"t\",\"delay_seconds\":1e400}"), 400),
        (json, [b'{'; 101].repeat(3), 400),
    ] {
        let shown = String::from_utf8_lossy(&body).chars().take(60).collect::<String>();
        let answer = post(&relay, content_type, &body).await;
        // Each store decides which values it takes; the response must say so, and nothing else.
        if status == 0 {
            assert!(matches!(answer.status, 201 | 422), "{shown}: {answer:?}");
        } else {
            assert_eq!(answer.status, status, "{shown}: {answer:?}");
            answer.refused(status);
        }
    }
    let many = json!({ "messages": vec![json!({ "topic": "t" }); 101] });
    relay.post(MESSAGES, &many).await.refused(422);
    relay.get("/v1/databases/none/stats").await.refused(404);
    relay.get("/v1/databases/%ff/stats").await.refused(404);
    relay.get(&format!("{MESSAGES}/not-an-id")).await.refused(422);
    relay.get(&format!("{MESSAGES}/00000000-0000-7000-8000-000000000000")).await.refused(404);
    relay.get(&format!("{MESSAGES}?limit=201")).await.refused(422);
    relay.get(&format!("{MESSAGES}?limit=x")).await.refused(400);
    relay.get(&format!("{MESSAGES}?nothing=x")).await.refused(400);
    relay.get("/v2").await.refused(404);
    relay.call("PUT", "/v1/status", &[], "").await.refused(405);
    assert_eq!(relay.get("/healthz").await.status, 200, "it lives");
    relay.stop().await;
}

#[tokio::test]
async fn slow_clients_are_cut_and_others_are_answered() {
    let scene = Scene::small("[http]\ndeadline = \"10s\"\nconnections_per_address = 256\n").await;
    let relay = scene.start().await;
    let mut half = Vec::new();
    for i in 0..200 {
        let mut stream = TcpStream::connect(&relay.address).await.unwrap();
        let begin: &[u8] = match i % 3 {
            0 => b"",
            1 => b"GET /healthz HTTP/1.1\r\nhost: 127",
            _ => b"POST /v1/databases/shop/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
        };
        stream.write_all(begin).await.unwrap();
        half.push(stream);
    }
    let begin = Instant::now();
    let answer = relay.get("/v1/status").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(begin.elapsed() < Duration::from_secs(8), "others are answered before those are cut");
    for mut stream in half {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "a client that never finishes is cut");
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.contains(" 408 "), "{answer}");
    }
    relay.stop().await;
}

#[tokio::test]
async fn whoever_asks_too_often_is_told_to_wait() {
    let scene = access::scene("rate = 5").await;
    let relay = scene.start().await;
    let token = format!("Bearer {VIEWER}");
    let headers = [("authorization", token.as_str())];
    let calls = (0..40).map(|_| relay.call("GET", "/v1/databases/shop/pauses", &headers, ""));
    // All at once: a slow machine would answer them in the time that they may take one after the other.
    let statuses = futures_util::future::join_all(calls).await;
    let refused =
        statuses.iter().find(|answer| answer.status == 429).expect("40 requests are more than 5 a second");
    assert!(refused.refused(429).head.contains("retry-after: 1"), "{refused:?}");
    assert!(statuses.iter().any(|answer| answer.status == 200), "{statuses:?}");
    relay.stop().await;
}

#[tokio::test]
async fn slow_guesses_are_slowed_down_and_reported_with_their_count() {
    let scene = access::scene("failures = 3").await;
    let relay = scene.start().await;
    let call = async |token: &str| {
        let token = format!("Bearer {token}");
        relay.call("GET", "/v1/status", &[("authorization", &token)], "").await
    };
    for _ in 0..3 {
        call("guess-guess-guess-guess").await.refused(401);
    }
    let begin = Instant::now();
    for _ in 0..2 {
        assert!(call("guess-guess-guess-guess").await.refused(429).head.contains("retry-after: "));
    }
    assert!(begin.elapsed() >= Duration::from_secs(2), "each takes a second");
    assert_eq!(call(VIEWER).await.status, 200, "behind a proxy, the others have the same address");
    assert_eq!(relay.get("/healthz").await.status, 200, "health is for everybody");
    let counts = || {
        relay
            .lines("wrong tokens were shown")
            .iter()
            .map(|line| line["tokens"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    crate::support::eventually("all are reported", async || counts().iter().sum::<u64>() == 5).await;
    assert!(!relay.log().contains("guess"), "{}", relay.log());
    relay.stop().await;
}

/// A client that sends requests and never reads the answers loses its connection, and the others are served.
#[tokio::test]
async fn slow_readers_are_cut() {
    let scene = Scene::small("[http]\ndeadline = \"1s\"\nconnections = 4\n").await;
    let relay = scene.start().await;
    let request = format!("GET /v1/openapi.json HTTP/1.1\r\nhost: {}\r\n\r\n", relay.address);
    let mut deaf = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(&relay.address).await.unwrap();
        // Enough to fill all buffers.
        let ask = async { while stream.write_all(request.as_bytes()).await.is_ok() {} };
        let _ = tokio::time::timeout(Duration::from_millis(500), ask).await;
        deaf.push(stream);
    }
    assert_eq!(relay.get("/healthz").await.status, 200);
    relay.stop().await;
}

/// A list of none is not a list of all.
#[tokio::test]
async fn nothing_is_changed_for_an_empty_list() {
    let scene = Scene::small("").await;
    let relay = scene.start().await;
    let stored = relay.post(MESSAGES, &json!({ "messages": [{ "topic": "kept" }] })).await;
    assert_eq!(stored.status, 201);
    for verb in ["bury", "requeue"] {
        let path = format!("/v1/databases/shop/{verb}");
        relay.post(&path, &json!({ "filter": { "ids": [] }, "why": "none was meant" })).await.refused(422);
        relay.post(&path, &json!({ "filter": {}, "why": "none was meant" })).await.refused(422);
        let why = "x".repeat(1_001);
        relay.post(&path, &json!({ "filter": { "state": "dead" }, "why": why })).await.refused(422);
    }
    assert_eq!(relay.get("/v1/databases/shop/stats").await.json()["dead"]["value"], 0);
    relay.stop().await;
}

/// The stored payload equals the sent one: digits of numbers, order of fields.
#[tokio::test]
async fn json_payloads_are_kept_as_they_are() {
    let scene = Scene::small("").await;
    let relay = scene.start().await;
    let payload = r#"{"b":1,"a":12345678901234567890123,"c":0.1234567890123456789}"#;
    let body = format!(r#"{{"messages": [{{"topic": "kept", "json": {payload}}}]}}"#);
    let stored = relay.call("POST", MESSAGES, &[("content-type", "application/json")], &body).await.json();
    let id = stored["messages"][0]["id"].as_str().unwrap();
    let shown = relay.get(&format!("{MESSAGES}/{id}?content=true")).await.json();
    assert!(shown.to_string().contains(&payload.replace('"', "\\\"")), "{shown}");
    relay.stop().await;
}

#[tokio::test]
async fn web_pages_of_others_are_kept_away() {
    let scene = Scene::small("").await;
    let relay = scene.start().await;
    let port = relay.address.rsplit(':').next().unwrap().to_owned();
    let call = async |headers: &[(&str, &str)]| relay.call("GET", "/v1/status", headers, "").await;
    for site in ["cross-site", "same-site"] {
        call(&[("sec-fetch-site", site)]).await.refused(403);
        relay.call("GET", "/metrics", &[("sec-fetch-site", site)], "").await.refused(403);
    }
    assert_eq!(call(&[("sec-fetch-site", "none")]).await.status, 200);
    call(&[("origin", "https://evil.example")]).await.refused(403);
    call(&[("origin", "null")]).await.refused(403);
    call(&[("host", &format!("evil.example:{port}"))]).await.refused(403);
    call(&[("host", "")]).await.refused(403);
    relay.call("GET", "/metrics", &[("host", "evil.example")], "").await.refused(403);
    let own = format!("localhost:{port}");
    assert_eq!(call(&[("host", &own), ("origin", &format!("http://{own}"))]).await.status, 200);
    let body = json!({ "messages": [{ "topic": "t" }] }).to_string();
    // Requests that a form of another page can send without a preflight.
    relay.call("POST", MESSAGES, &[("content-type", "text/plain")], &body).await.refused(415);
    relay.stop().await;
}

/// A token makes no page welcome.
#[tokio::test]
async fn names_of_others_are_refused_with_a_token_too() {
    let scene = access::scene("allowed_hosts = [\"relay.example\", \"10.0.0.5\"]").await;
    let relay = scene.start().await;
    let token = format!("Bearer {VIEWER}");
    let call = async |path: &str, name: &str, value: &str| {
        relay.call("GET", path, &[("authorization", &token), (name, value)], "").await
    };
    for (name, value) in [
        ("host", "evil.example"),
        ("host", "10.0.0.6:7070"),
        ("host", ""),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("origin", "https://evil.example"),
    ] {
        call("/v1/status", name, value).await.refused(403);
    }
    for host in ["relay.example", "RELAY.example:443", "10.0.0.5:7070", "localhost"] {
        assert_eq!(call("/v1/status", "host", host).await.status, 200, "{host}");
    }
    // Load balancers and scrapers call by address.
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(call(path, "host", "10.0.0.6:7070").await.status, 200, "{path}");
        call(path, "host", "evil.example").await.refused(403);
        call(path, "sec-fetch-site", "cross-site").await.refused(403);
    }
    relay.stop().await;
}

#[tokio::test]
async fn every_answer_is_for_no_cache_and_says_its_type() {
    let scene = access::scene("failures = 100").await;
    let relay = scene.start().await;
    let token = format!("Bearer {VIEWER}");
    let mut statuses = Vec::new();
    for (method, path, headers) in [
        ("GET", "/healthz", &[][..]),
        ("GET", "/readyz", &[]),
        ("GET", "/metrics", &[]),
        ("GET", "/v1/openapi.json", &[]),
        ("GET", "/v1/status", &[("authorization", token.as_str())]),
        ("GET", "/v1/status", &[("authorization", "Bearer wrong-wrong-wrong")]),
        ("GET", "/v1/status", &[("host", "evil.example")]),
        ("PUT", "/v1/status", &[("authorization", token.as_str())]),
        ("POST", "/v1/databases/shop/bury", &[("authorization", token.as_str())]),
        ("GET", "/nothing", &[]),
    ] {
        let answer = relay.call(method, path, headers, "").await;
        assert!(answer.head.contains("\r\nx-content-type-options: nosniff"), "{path}: {answer:?}");
        assert!(answer.head.contains("\r\ncache-control: no-store"), "{path}: {answer:?}");
        statuses.push(answer.status);
    }
    assert_eq!(statuses, [200, 200, 200, 200, 200, 401, 403, 405, 403, 404]);
    relay.stop().await;
}

#[tokio::test]
async fn others_than_this_machine_need_a_token_and_so_do_metrics_then() {
    let scene = Scene::small("").await.env("POSTHASTE__HTTP__LISTEN", "0.0.0.0:0");
    let (code, _, told) = scene.finish(&[]).await;
    assert!(code == 2 && told.contains("there are no tokens"), "{told}");
    let scene = access::scene("").await.env("POSTHASTE__HTTP__LISTEN", "0.0.0.0:0");
    let relay = scene.start().await;
    assert_eq!(relay.get("/readyz").await.status, 200);
    relay.get("/metrics").await.refused(401);
    let token = format!("Bearer {VIEWER}");
    let metrics = relay.call("GET", "/metrics", &[("authorization", &token)], "").await;
    assert_eq!(metrics.status, 200);
    relay.stop().await;
}

/// The address of the socket counts, not the earlier file's.
#[tokio::test]
async fn a_reload_takes_no_tokens_away_from_a_socket_for_others() {
    let with = async |listen: &str, tokens: bool| {
        let tokens = if tokens { access::TOKENS } else { "" };
        let scene = Scene::small(&format!("[http]\nlisten = \"{listen}\"\n{tokens}")).await;
        std::fs::read_to_string(scene.config()).unwrap()
    };
    let scene = access::scene("").await;
    scene.write(&with("0.0.0.0:0", true).await);
    let relay = scene.start().await;
    scene.write(&with("127.0.0.1:0", true).await);
    relay.signal("HUP");
    crate::support::eventually("the other address is read", async || {
        relay.has("another http.listen takes effect")
            && relay.count("what ran under the configuration before has ended") == 1
    })
    .await;
    scene.write(&with("127.0.0.1:0", false).await);
    relay.signal("HUP");
    crate::support::eventually("no tokens are refused", async || relay.has("the relay listens to others"))
        .await;
    relay.get("/v1/status").await.refused(401);
    relay.stop().await;
}

#[tokio::test]
async fn readiness_names_what_fails() {
    let folder = tempfile::tempdir().unwrap();
    let scene = Scene::small("").await;
    let config = std::fs::read_to_string(scene.config()).unwrap();
    scene.write(&format!(
        "{config}[databases.gone]\nurl = \"sqlite:{}/no/such.db\"\n",
        folder.path().display()
    ));
    let relay = scene.start().await;
    crate::support::eventually("one database fails", async || {
        relay.get("/readyz").await.json()["failing_databases"] == json!(["gone"])
    })
    .await;
    let told = relay.get("/readyz").await;
    assert_eq!((told.status, &told.json()["status"]), (200, &json!("degraded")));
    assert_eq!(relay.get("/readyz?strict=true").await.status, 503);
    relay.stop().await;
}
