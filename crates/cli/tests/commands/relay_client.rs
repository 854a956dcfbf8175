//! `why --relay`: the requests, and the handling of the answers. The other side is a listener of the test.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::thread::JoinHandle;

use crate::support::{Ran, command};

const ID: &str = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";

/// Answers one request, and returns it.
fn relay(status: &'static str, body: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.push(byte[0]);
        }
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        String::from_utf8(request).unwrap()
    });
    (url, served)
}

fn why(url: &str, more: &[&str]) -> Ran {
    let args: Vec<&str> =
        ["why", ID, "--relay", url, "--database", "shop/eu"].iter().chain(more).copied().collect();
    let output = command(&args).env("RELAY_TOKEN", "t0ken").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn the_relays_explanation_is_printed() {
    let body = r#"{"explanation": "the sink rabbit is down\u001b[2J", "reasons": [{"reason": "sink_down"}]}"#;
    let (url, served) = relay("200 OK", body);
    why(&url, &["--token-env", "RELAY_TOKEN"]).exits(0).says("the sink rabbit is down").never("\u{1b}");
    let request = served.join().unwrap();
    assert!(
        request.starts_with(&format!("GET /v1/databases/shop%2Feu/messages/{ID}/why HTTP/1.1\r\n")),
        "{request}"
    );
    assert!(request.to_lowercase().contains("authorization: bearer t0ken"), "{request}");
}

#[test]
fn an_unknown_message_is_not_found() {
    let (url, served) =
        relay("200 OK", r#"{"explanation": "it is not stored here", "reasons": [{"reason": "unknown"}]}"#);
    why(&url, &[]).exits(3).says("not stored here");
    assert!(!served.join().unwrap().to_lowercase().contains("authorization"));
}

#[test]
fn refusals_keep_their_meaning() {
    let body = r#"{"error": {"kind": "not found", "message": "no such database", "remedy": "name one of the relay's"}}"#;
    for (status, code) in [("404 Not Found", 3), ("401 Unauthorized", 1), ("503 Service Unavailable", 4)] {
        let (url, served) = relay(status, body);
        why(&url, &[]).exits(code).warns("no such database").warns("name one of the relay's");
        served.join().unwrap();
    }
    let (url, served) = relay("200 OK", "no JSON");
    why(&url, &[]).exits(1);
    served.join().unwrap();
}
