//! A TCP proxy on loopback that fails on command, for tests of what happens when the network does.
//!
//! It knows no protocol beyond a sequence of bytes to look for, and must never change a byte that it lets through.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does with the bytes that it receives. A change holds for open connections, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on.
    Forward,
    /// Closes new connections at once; open ones go on.
    Refuse,
    /// Passes everything on, but later.
    Delay(Duration),
    /// Passes nothing on and closes nothing. Held-up bytes go on when the mode changes, as after a lost route.
    Blackhole,
    /// Passes everything on until a client has sent these bytes (ASCII letters of either case). They still reach the
    /// server; when that has answered, the answer is dropped and the connection cut, so that the client cannot know
    /// what became of its request. Happens once; then the mode is `Forward`.
    CutAfterRequest(Vec<u8>),
}

/// A proxy in front of one server. It ends when it is dropped, and its connections with it.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    control: Arc<Control>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Control {
    mode: watch::Sender<Mode>,
    /// Grows with every order to cut open connections.
    cuts: watch::Sender<usize>,
    /// Grows with every order to silence open connections.
    silences: watch::Sender<usize>,
    /// How many connections lost an answer.
    answers_lost: AtomicUsize,
}

/// One connection, seen from both of its directions.
struct Link {
    control: Arc<Control>,
    /// The request was seen: the next answer is to be dropped.
    doomed: AtomicBool,
    cut: watch::Sender<bool>,
}

impl Proxy {
    /// Listens on a free port of loopback and forwards to this server.
    pub async fn start(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await?;
        let addr = listener.local_addr()?;
        let control = Arc::new(Control {
            mode: watch::Sender::new(Mode::Forward),
            cuts: watch::Sender::new(0),
            silences: watch::Sender::new(0),
            answers_lost: AtomicUsize::new(0),
        });
        let accepting = tokio::spawn(accept(listener, upstream, control.clone()));
        Ok(Self { addr, control, accepting })
    }

    /// Where clients connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets its mode from now on.
    pub fn set(&self, mode: Mode) {
        self.control.mode.send_replace(mode);
    }

    /// Cuts every open connection, now. New ones are treated by the mode.
    pub fn cut(&self) {
        self.control.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Silences every open connection for good: it passes nothing on, and is not closed, as if a firewall had forgotten it. New
    /// ones are treated by the mode.
    pub fn silence(&self) {
        self.control.silences.send_modify(|silences| *silences += 1);
    }

    /// How many answers [`Mode::CutAfterRequest`] has dropped.
    pub fn answers_lost(&self) -> usize {
        self.control.answers_lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(listener: TcpListener, upstream: SocketAddr, control: Arc<Control>) {
    while let Ok((client, _)) = listener.accept().await {
        if *control.mode.borrow() != Mode::Refuse {
            tokio::spawn(connect(client, upstream, control.clone()));
        }
    }
}

async fn connect(client: TcpStream, upstream: SocketAddr, control: Arc<Control>) {
    let mut cuts = control.cuts.subscribe();
    let mut silences = control.silences.subscribe();
    let link = Arc::new(Link { control, doomed: AtomicBool::new(false), cut: watch::Sender::new(false) });
    let mut cut = link.cut.subscribe();
    let Ok(server) = TcpStream::connect(upstream).await else { return };
    // Without this, small messages of a request-and-answer protocol wait for each other.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let up = pump(from_client, to_server, link.clone(), Direction::Up);
    let down = pump(from_server, to_client, link.clone(), Direction::Down);
    let mut pumping = std::pin::pin!(async { tokio::join!(up, down) });
    tokio::select! {
        // A cut comes first: bytes that are held up when it is cut do not pass when the mode changes right
        // afterwards.
        biased;
        _ = cuts.changed() => {}
        _ = cut.changed() => {}
        // The pumps stay, and with them both sockets.
        _ = silences.changed() => drop(cuts.changed().await),
        _ = &mut pumping => {}
    }
    // Both directions are dropped here, and so is the connection.
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// Moves bytes one way until their source ends, or the connection is cut.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, link: Arc<Link>, direction: Direction) {
    let (mut buffer, mut seen) = (vec![0; 64 * 1024], Vec::new());
    loop {
        let bytes = match from.read(&mut buffer).await {
            // Half a connection ends; the other half may still have something to say.
            Ok(0) => {
                let _ = to.shutdown().await;
                return;
            }
            Ok(count) => &buffer[..count],
            Err(_) => {
                link.cut.send_replace(true);
                return;
            }
        };
        if direction == Direction::Up {
            link.look_for_request(&mut seen, bytes);
        } else if link.doomed.load(Ordering::SeqCst) {
            link.control.answers_lost.fetch_add(1, Ordering::SeqCst);
            link.cut.send_replace(true);
            return;
        }
        link.hold_up().await;
        if to.write_all(bytes).await.is_err() {
            link.cut.send_replace(true);
            return;
        }
    }
}

impl Link {
    /// Dooms the connection if these bytes, after those before them, complete the request that is looked for.
    fn look_for_request(&self, seen: &mut Vec<u8>, bytes: &[u8]) {
        self.control.mode.send_if_modified(|mode| {
            let Mode::CutAfterRequest(needle) = mode else {
                seen.clear();
                return false;
            };
            seen.extend_from_slice(bytes);
            let found = seen.windows(needle.len().max(1)).any(|window| window.eq_ignore_ascii_case(needle));
            // The request may be spread over two reads: enough is kept to see its beginning again.
            seen.drain(..seen.len().saturating_sub(needle.len().saturating_sub(1)));
            if found {
                self.doomed.store(true, Ordering::SeqCst);
                *mode = Mode::Forward;
            }
            found
        });
    }

    /// Waits as long as the mode says.
    async fn hold_up(&self) {
        let mut modes = self.control.mode.subscribe();
        let mode = modes.borrow_and_update().clone();
        match mode {
            Mode::Delay(delay) => tokio::time::sleep(delay).await,
            Mode::Blackhole => {
                let _ = modes.wait_for(|mode| *mode != Mode::Blackhole).await;
            }
            Mode::Forward | Mode::Refuse | Mode::CutAfterRequest(_) => {}
        }
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
