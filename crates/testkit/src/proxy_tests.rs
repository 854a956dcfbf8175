//! The proxy in front of an echo server.

use std::sync::Mutex;
use std::time::Instant;

use super::*;

/// An echo server that records its input, and a proxy in front of it.
async fn echo() -> (Proxy, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let got = Arc::new(Mutex::new(Vec::new()));
    let remembered = got.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let got = remembered.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    got.lock().unwrap().extend_from_slice(&buffer[..count]);
                    if stream.write_all(&buffer[..count]).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    (Proxy::start(addr).await.unwrap(), got)
}

async fn client(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(proxy.addr()).await.unwrap()
}

/// Sends, and returns what comes back; none if the connection ends.
async fn ask(stream: &mut TcpStream, bytes: &[u8]) -> Option<Vec<u8>> {
    stream.write_all(bytes).await.ok()?;
    let mut answer = vec![0; bytes.len()];
    stream.read_exact(&mut answer).await.ok()?;
    Some(answer)
}

#[tokio::test]
async fn forwards_both_ways() {
    let (proxy, _) = echo().await;
    let mut stream = client(&proxy).await;
    assert_eq!(ask(&mut stream, b"hello").await.unwrap(), b"hello");
    // An end of one direction is passed on, and the other one may finish.
    stream.write_all(b"bye").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    assert_eq!(rest, b"bye");
}

#[tokio::test]
async fn refuses_new_connections_only() {
    let (proxy, _) = echo().await;
    let mut old = client(&proxy).await;
    assert!(ask(&mut old, b"a").await.is_some());
    proxy.set(Mode::Refuse);
    assert!(ask(&mut client(&proxy).await, b"a").await.is_none());
    assert!(ask(&mut old, b"b").await.is_some());
    proxy.set(Mode::Forward);
    assert!(ask(&mut client(&proxy).await, b"c").await.is_some());
}

#[tokio::test]
async fn cuts_what_is_open() {
    let (proxy, _) = echo().await;
    let mut streams = [client(&proxy).await, client(&proxy).await];
    for stream in &mut streams {
        assert!(ask(stream, b"a").await.is_some());
    }
    proxy.cut();
    for stream in &mut streams {
        assert!(ask(stream, b"b").await.is_none());
    }
    assert!(ask(&mut client(&proxy).await, b"c").await.is_some());
}

#[tokio::test]
async fn ends_when_it_is_dropped() {
    let (proxy, _) = echo().await;
    let mut stream = client(&proxy).await;
    assert!(ask(&mut stream, b"a").await.is_some());
    drop(proxy);
    assert!(ask(&mut stream, b"b").await.is_none());
}

#[tokio::test]
async fn cuts_after_the_request_and_before_the_answer() {
    let (proxy, got) = echo().await;
    let (mut one, mut other) = (client(&proxy).await, client(&proxy).await);
    proxy.set(Mode::CutAfterRequest(b"COMMIT".to_vec()));
    assert!(ask(&mut one, b"begin").await.is_some());
    assert!(ask(&mut one, b"...com").await.is_some(), "only half of it");
    assert!(ask(&mut one, b"mit;").await.is_none(), "both halves");
    assert!(got.lock().unwrap().ends_with(b"...commit;"), "the server got it all");
    assert_eq!(proxy.answers_lost(), 1);
    assert!(ask(&mut other, b"commit").await.is_some(), "it happens once");
    assert_eq!(proxy.answers_lost(), 1);
}

#[tokio::test]
async fn delays() {
    let (proxy, _) = echo().await;
    let mut stream = client(&proxy).await;
    proxy.set(Mode::Delay(Duration::from_millis(50)));
    let started = Instant::now();
    assert!(ask(&mut stream, b"a").await.is_some());
    assert!(started.elapsed() >= Duration::from_millis(100), "once in each direction");
}

#[tokio::test]
async fn a_black_hole_holds_up_and_loses_nothing() {
    let (proxy, got) = echo().await;
    let mut stream = client(&proxy).await;
    assert!(ask(&mut stream, b"a").await.is_some());
    proxy.set(Mode::Blackhole);
    stream.write_all(b"held up").await.unwrap();
    let mut answer = [0; 7];
    let waited = tokio::time::timeout(Duration::from_millis(100), stream.read_exact(&mut answer)).await;
    assert!(waited.is_err() && *got.lock().unwrap() == b"a");
    proxy.set(Mode::Forward);
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"held up");
    proxy.set(Mode::Blackhole);
    stream.write_all(b"x").await.unwrap();
    proxy.cut();
    assert_eq!(stream.read(&mut answer).await.unwrap_or(0), 0, "a black hole can be cut");
}
