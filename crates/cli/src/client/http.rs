//! A small HTTP client for the relay's API: one request, one answer, no redirects, no reuse.
//!
//! A token is sent and never shown; nor is a URL, which may have a password in it.

use std::time::Duration;

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HOST};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use posthaste::{Error, ErrorKind, Result};
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of an answer.
const MOST: usize = 4 * 1024 * 1024;

/// Gets the answer to this path below a database of the relay.
pub(super) async fn get(relay: &str, database: &str, path: &str, token: Option<&str>) -> Result<Value> {
    let path = format!("/v1/databases/{}{path}", encoded(database));
    let answer = timeout(PATIENCE, request(&uri(relay)?, &path, token)).await;
    answer.unwrap_or_else(|_| Err(unreachable("the relay does not answer")))
}

fn uri(text: &str) -> Result<Uri> {
    text.parse().map_err(|_| not_http())
}

/// A segment of a path.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

async fn request(relay: &Uri, path: &str, token: Option<&str>) -> Result<Value> {
    let (host, port) = address(relay)?;
    let stream = TcpStream::connect((host, port))
        .await
        .map_err(|error| unreachable("the relay cannot be reached").with_source(error))?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) =
        handshake.map_err(|error| unreachable("the relay does not speak HTTP").with_source(error))?;
    // It ends with the answer, or with the sender.
    let connection = tokio::spawn(connection);
    let mut request = Request::get(path).header(HOST, format!("{host}:{port}"));
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|_| {
        // The error might quote the token.
        Error::new(ErrorKind::Configuration, "no request can be made of this")
            .with_remedy("check the token and the database's name")
    })?;
    let response = sender
        .send_request(request)
        .await
        .map_err(|error| unreachable("the relay closed the connection").with_source(error))?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MOST).collect().await;
    let body =
        body.map_err(|error| unreachable("the relay's answer broke off").with_source(error))?.to_bytes();
    connection.abort();
    let value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if status.is_success() && !value.is_null() { Ok(value) } else { Err(refused(status, &value)) }
}

fn address(relay: &Uri) -> Result<(&str, u16)> {
    let host = relay.host().filter(|_| relay.scheme_str() == Some("http"));
    let host = host.ok_or_else(not_http)?;
    // An address of version 6 stands in brackets there, and without them here.
    Ok((host.trim_start_matches('[').trim_end_matches(']'), relay.port_u16().unwrap_or(80)))
}

fn not_http() -> Error {
    Error::new(ErrorKind::Configuration, "the relay's URL is not one of plain HTTP")
        .with_remedy("give it like http://127.0.0.1:7070; over a network, forward the port through ssh")
}

fn unreachable(what: &str) -> Error {
    Error::new(ErrorKind::Unavailable, what)
        .with_remedy("check that it runs, and where its HTTP server listens")
}

/// The relay's error.
fn refused(status: StatusCode, value: &Value) -> Error {
    let kind = match status {
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ErrorKind::Permission,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Busy,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => ErrorKind::InvalidInput,
        _ => ErrorKind::Refused,
    };
    let text = |name: &str| value["error"][name].as_str();
    let error = Error::new(kind, text("message").unwrap_or("the relay refuses"))
        .with_context("status", status.as_u16());
    match (text("remedy"), kind) {
        (Some(remedy), _) => error.with_remedy(remedy),
        (None, ErrorKind::Permission) => {
            error.with_remedy("put a token of the relay's into the variable that --token-env names")
        }
        (None, _) => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_https_is_refused() {
        let uri = |text| uri(text).unwrap();
        assert_eq!(address(&uri("http://127.0.0.1:7070")).unwrap(), ("127.0.0.1", 7070));
        assert_eq!(address(&uri("http://[::1]:7070/")).unwrap(), ("::1", 7070));
        assert_eq!(address(&uri("http://relay")).unwrap(), ("relay", 80));
        assert!(address(&uri("https://relay")).is_err() && address(&uri("/path")).is_err());
    }

    #[test]
    fn names_are_encoded_and_refusals_keep_the_remedy() {
        assert_eq!(encoded("shop/eu 1"), "shop%2Feu%201");
        let value =
            serde_json::json!({ "error": { "message": "no such database", "remedy": "name another" } });
        let error = refused(StatusCode::NOT_FOUND, &value);
        assert_eq!((error.kind(), error.remedy()), (ErrorKind::NotFound, Some("name another")));
        assert!(refused(StatusCode::FORBIDDEN, &Value::Null).remedy().unwrap().contains("--token-env"));
    }
}
