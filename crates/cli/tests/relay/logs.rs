//! Lines of the log that have stored texts in them.

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::Scene;

/// A publisher's topic with control characters stays on its line, in a log of text or of JSON, and sends no commands to the terminal.
async fn a_log_keeps_a_topic_on_its_line(format: &str) {
    const HOSTILE: &str = "a\r\nforged line\u{1b}[2J\u{9b}31m\u{202e}\u{2028}z";
    let scene = Scene::small(&format!("[relay]\nlog_format = \"{format}\"\n")).await;
    let mut command = scene.command();
    command.env("POSTHASTE__HTTP__LISTEN", "127.0.0.1:0").arg("relay").arg("--config").arg(scene.config());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut log = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("the relay starts") {
        line.clear();
        assert!(log.read_line(&mut line).await.unwrap() > 0, "it ended");
    }
    let port = line.split("127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let body = json!({ "topics": HOSTILE, "why": HOSTILE }).to_string();
    let request = format!(
        "POST /v1/databases/shop/pauses HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    while !line.contains("topics were paused") {
        line.clear();
        assert!(log.read_line(&mut line).await.unwrap() > 0, "it ended");
    }
    assert!(line.contains("forged line"), "the whole topic is on the line: {line:?}");
    for bad in ['\r', '\u{1b}', '\u{9b}', '\u{202e}', '\u{2028}'] {
        assert!(!line.contains(bad), "{bad:?} is in {line:?}");
    }
    child.kill().await.unwrap();
}

#[tokio::test]
async fn a_log_of_text_keeps_a_topic_on_its_line() {
    a_log_keeps_a_topic_on_its_line("text").await;
}

#[tokio::test]
async fn a_log_of_json_keeps_a_topic_on_its_line() {
    a_log_keeps_a_topic_on_its_line("json").await;
}
