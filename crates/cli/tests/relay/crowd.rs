//! Clients that hold all their connections: the relay still answers health checks, and clients from other addresses.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::support::{PATIENCE, Relay, Scene};

/// Longer than a test takes: no connection is cut for being idle.
const FOREVER: &str = "deadline = \"5m\"";

async fn connect(relay: &Relay) -> TcpStream {
    TcpStream::connect(&relay.address).await.unwrap()
}

/// Asks on a connection that is kept, and reads what comes at once.
async fn ask(stream: &mut TcpStream, relay: &Relay) -> String {
    let request = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\n\r\n", relay.address);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 4_096];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer[..read]).to_lowercase()
}

async fn machines_are_answered(relay: &Relay) {
    for path in ["/healthz", "/readyz", "/metrics"] {
        assert_eq!(relay.get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn idle_connections_of_one_address_do_not_lock_out_health_checks() {
    let scene = Scene::small(&format!("[http]\n{FOREVER}\n")).await;
    let relay = scene.start().await;
    let mut held = Vec::new();
    for _ in 0..256 {
        let mut stream = connect(&relay).await;
        assert!(ask(&mut stream, &relay).await.contains(" 200 ok"));
        held.push(stream);
    }
    machines_are_answered(&relay).await;
    let answer = relay.get("/v1/status").await;
    assert!(answer.refused(503).head.contains("retry-after: 1"), "{answer:?}");
    // Those that were there first are served still.
    assert!(ask(&mut held[0], &relay).await.contains(" 200 ok"));
    drop(held);
    crate::support::eventually("there is room again", async || relay.get("/v1/status").await.status == 200)
        .await;
    relay.stop().await;
}

#[tokio::test]
async fn silent_connections_do_not_lock_out_health_checks() {
    let scene = Scene::small(&format!("[http]\n{FOREVER}\n")).await;
    let relay = scene.start().await;
    let mut held = Vec::new();
    for i in 0..300 {
        let mut stream = connect(&relay).await;
        if i % 2 == 0 {
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: 127").await.unwrap();
        }
        held.push(stream);
    }
    machines_are_answered(&relay).await;
    drop(held);
    relay.stop().await;
}

#[tokio::test]
async fn an_address_leaves_places_for_others() {
    let scene =
        Scene::small(&format!("[http]\n{FOREVER}\nconnections = 20\nconnections_per_address = 10\n")).await;
    let relay = scene.start().await;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(connect(&relay).await);
    }
    relay.get("/v1/status").await.refused(503);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).unwrap();
    let mut other = socket.connect(relay.address.parse().unwrap()).await.unwrap();
    let request = format!("GET /v1/status HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", relay.address);
    other.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    tokio::time::timeout(PATIENCE, other.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    relay.stop().await;
}

/// However steadily a client writes, all of a request's head must come in time.
#[tokio::test]
async fn heads_that_never_end_are_cut() {
    let scene = Scene::small("[http]\ndeadline = \"500ms\"\n").await;
    let relay = scene.start().await;
    let mut stream = connect(&relay).await;
    stream.write_all(b"GET /healthz HTTP/1.1\r\nx: ").await.unwrap();
    let drip = async {
        let mut end = [0; 1];
        loop {
            tokio::select! {
                _ = stream.read(&mut end) => return,
                () = tokio::time::sleep(Duration::from_millis(50)) => {}
            }
            if stream.write_all(b"x").await.is_err() {
                return;
            }
        }
    };
    assert!(tokio::time::timeout(PATIENCE, drip).await.is_ok(), "it is cut");
    relay.stop().await;
}
