//! The protocol of `bench/peers`, once for all Rust peers: verbs, clients, the even rate, the clock.
//!
//! It measures and prints; it must never touch a database, retry for a peer, or know which peer it runs.

use std::collections::HashMap;
use std::future::Future;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

/// An error, as a sentence for stderr.
pub type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of everything here.
pub type Result<T> = std::result::Result<T, Error>;

/// How long a peer may be silent before it counts as stuck.
const SILENCE: Duration = Duration::from_secs(60);
/// Messages that are sent and awaited before the clock of `latency` starts.
const WARM_UP: u64 = 20;

/// What `about` says.
#[derive(Debug)]
pub struct About {
    /// The library, as its registry calls it.
    pub name: &'static str,
    /// Its exact version.
    pub version: &'static str,
    /// The features that are on.
    pub configuration: &'static str,
}

/// A library under test.
pub trait Peer: Send + Sync + 'static {
    /// One publisher: a connection and what enqueues on it.
    type Client: Send + 'static;

    /// Name, version and configuration.
    fn about(&self) -> About;

    /// Creates the peer's tables.
    fn setup(&self, url: &str) -> impl Future<Output = Result<()>> + Send;

    /// Connects one publisher.
    fn client(&self, url: &str) -> impl Future<Output = Result<Self::Client>> + Send;

    /// One user's transaction: begin, a business row, one message, commit.
    fn publish(
        &self,
        client: &mut Self::Client,
        note: &str,
        payload: Value,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Fills the queue with `count` messages; not timed.
    fn preload(&self, url: &str, count: u64, filler: &str) -> impl Future<Output = Result<()>> + Send;

    /// Handles and settles `count` messages, then says with which configuration.
    fn drain(&self, url: &str, progress: Progress) -> impl Future<Output = Result<Drained>> + Send;

    /// Handles messages as soon as it can, and tells `arrivals` when a handler starts, until it is dropped.
    fn attend(&self, url: &str, arrivals: Arrivals) -> impl Future<Output = Result<()>> + Send;
}

/// The result of a drain.
#[derive(Debug)]
pub struct Drained {
    /// From the first claim to the last settled message.
    pub elapsed: Duration,
    /// Batch, concurrency, connections.
    pub configuration: String,
}

/// How many messages the handlers of a drain have seen.
#[derive(Clone, Debug)]
pub struct Progress {
    expected: u64,
    handled: Arc<AtomicU64>,
}

impl Progress {
    /// How many there are.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.expected
    }

    /// Counts handled messages and says how many there are now.
    pub fn add(&self, messages: u64) -> u64 {
        self.handled.fetch_add(messages, Ordering::Relaxed) + messages
    }

    /// How many were handled so far.
    #[must_use]
    pub fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Waits until all were handled, or says that the peer is stuck.
    ///
    /// # Errors
    ///
    /// When nothing was handled for a minute.
    pub async fn all_handled(&self) -> Result<()> {
        let mut last = (self.handled(), Instant::now());
        while self.handled() < self.expected {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let now = self.handled();
            if now > last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > SILENCE {
                return Err(format!("stuck: {now} of {} handled, none for a minute", self.expected).into());
            }
        }
        Ok(())
    }
}

/// Where a handler says that it has started with a message.
#[derive(Clone, Debug)]
pub struct Arrivals(mpsc::UnboundedSender<(u64, Instant)>);

impl Arrivals {
    /// The handler of this payload starts now.
    pub fn started(&self, payload: &Value) {
        let now = Instant::now();
        if let Some(id) = payload.get("id").and_then(Value::as_u64) {
            // There is no receiver any more once the last sample is in.
            let _ = self.0.send((id, now));
        }
    }
}

/// The flags after the verb.
struct Flags(HashMap<String, String>);

impl Flags {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut flags = HashMap::new();
        while let Some(word) = words.next() {
            let name = word
                .strip_prefix("--")
                .ok_or_else(|| format!("{word:?} is not a flag: write --name value"))?;
            let value = words.next().ok_or_else(|| format!("--{name} needs a value"))?;
            flags.insert(name.to_owned(), value);
        }
        Ok(Self(flags))
    }

    fn number(&self, name: &str, default: Option<f64>) -> Result<f64> {
        match (self.0.get(name), default) {
            (Some(text), _) => text.parse().map_err(|_| format!("--{name} {text:?} is not a number").into()),
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("--{name} is missing").into()),
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts given by a person")]
    fn count(&self, name: &str, default: Option<f64>) -> Result<u64> {
        Ok(self.number(name, default)?.max(0.0) as u64)
    }
}

/// The text that makes `{"id":…,"text":"…"}` as long as asked for, whatever the id.
fn filler(bytes: u64) -> String {
    let frame = r#"{"id": 00000000, "text": ""}"#.len();
    "x".repeat(usize::try_from(bytes).unwrap_or(256).saturating_sub(frame))
}

/// One verb, with the answer that goes to stdout.
async fn answer<P: Peer>(peer: P, verb: &str, flags: Flags) -> Result<Value> {
    if verb == "about" {
        let About { name, version, configuration } = peer.about();
        return Ok(json!({ "name": name, "version": version, "configuration": configuration }));
    }
    let url = std::env::var("BENCH_URL").map_err(|_| "set BENCH_URL to the URL of a PostgreSQL database")?;
    let filler = filler(flags.count("payload-bytes", Some(256.0))?);
    match verb {
        "setup" => peer.setup(&url).await.map(|()| json!({})),
        "preload" => peer.preload(&url, flags.count("count", None)?, &filler).await.map(|()| json!({})),
        "enqueue" => {
            let length = Duration::from_secs_f64(flags.number("seconds", None)?);
            enqueue(peer, &url, flags.count("clients", Some(8.0))?, length, &filler).await
        }
        "drain" => {
            let progress = Progress { expected: flags.count("count", None)?, handled: Arc::default() };
            let drained = peer.drain(&url, progress.clone()).await?;
            Ok(json!({
                "messages": progress.handled(),
                "seconds": drained.elapsed.as_secs_f64(),
                "configuration": drained.configuration,
            }))
        }
        "latency" => {
            let rate = flags.number("rate", Some(100.0))?;
            let samples = flags.number("seconds", None)? * rate;
            latency(peer, &url, Duration::from_secs_f64(1.0 / rate), samples, filler).await
        }
        other => Err(format!("{other:?} is no verb: about, setup, enqueue, preload, drain, latency").into()),
    }
}

async fn enqueue<P: Peer>(peer: P, url: &str, clients: u64, length: Duration, filler: &str) -> Result<Value> {
    let peer = Arc::new(peer);
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(peer.client(url).await?);
    }
    let start = Instant::now();
    let tasks: Vec<_> = connected
        .into_iter()
        .map(|mut client| {
            let (peer, filler) = (Arc::clone(&peer), filler.to_owned());
            tokio::spawn(async move {
                let mut transactions = 0u64;
                while start.elapsed() < length {
                    peer.publish(&mut client, &filler, json!({ "id": 0, "text": filler })).await?;
                    transactions += 1;
                }
                Ok::<_, Error>(transactions)
            })
        })
        .collect();
    let mut transactions = 0;
    for task in tasks {
        transactions += task.await??;
    }
    Ok(json!({ "transactions": transactions, "seconds": start.elapsed().as_secs_f64() }))
}

/// Publisher and worker in one process, so that one clock serves both.
async fn latency<P: Peer>(
    peer: P,
    url: &str,
    pause: Duration,
    samples: f64,
    filler: String,
) -> Result<Value> {
    let peer = Arc::new(peer);
    let (sender, mut arrivals) = mpsc::unbounded_channel();
    let attending = {
        let (peer, url) = (Arc::clone(&peer), url.to_owned());
        tokio::spawn(async move { peer.attend(&url, Arrivals(sender)).await })
    };
    let mut client = peer.client(url).await?;
    for id in 0..WARM_UP {
        peer.publish(&mut client, &filler, json!({ "id": id, "text": filler })).await?;
    }
    for _ in 0..WARM_UP {
        if tokio::time::timeout(SILENCE, arrivals.recv()).await.ok().flatten().is_none() {
            return Err(why(attending, "the warm-up did not arrive within a minute").await);
        }
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of samples")]
    let last = WARM_UP + samples as u64;
    let publisher = tokio::spawn(async move {
        let mut committed = HashMap::new();
        let mut tick = tokio::time::interval(pause);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for id in WARM_UP..last {
            tick.tick().await;
            peer.publish(&mut client, &filler, json!({ "id": id, "text": filler })).await?;
            committed.insert(id, Instant::now());
        }
        Ok::<_, Error>(committed)
    });
    let mut started = HashMap::new();
    while started.len() < usize::try_from(last - WARM_UP)? {
        match tokio::time::timeout(SILENCE, arrivals.recv()).await {
            Ok(Some((id, at))) if id >= WARM_UP => {
                started.entry(id).or_insert(at);
            }
            Ok(Some(_)) => {}
            _ => return Err(why(attending, "messages are missing after a minute of silence").await),
        }
    }
    let committed = publisher.await??;
    attending.abort();
    // A handler may start before the publisher has read the server's answer to its commit: that is zero.
    let samples: Vec<f64> = (WARM_UP..last)
        .map(|id| started[&id].saturating_duration_since(committed[&id]).as_secs_f64() * 1000.0)
        .collect();
    Ok(json!({ "samples_ms": samples }))
}

/// The worker's own error, if that is why nothing arrives.
async fn why(attending: tokio::task::JoinHandle<Result<()>>, otherwise: &str) -> Error {
    if attending.is_finished()
        && let Ok(Err(error)) = attending.await
    {
        return error;
    }
    otherwise.into()
}

/// The whole program of a Rust peer: runs the verb of the command line and prints its answer.
#[must_use]
pub fn main(peer: impl Peer) -> std::process::ExitCode {
    let mut words = std::env::args().skip(1);
    let verb = words.next().unwrap_or_default();
    let run = async { answer(peer, &verb, Flags::parse(words)?).await };
    let outcome =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(Error::from).and_then(
            |runtime| {
                let outcome = runtime.block_on(run);
                // Workers of a peer may go on for ever; the answer is known.
                runtime.shutdown_background();
                outcome
            },
        );
    match outcome.and_then(|value| Ok(writeln!(std::io::stdout(), "{value}")?)) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "{verb}: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
