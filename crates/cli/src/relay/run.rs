//! The life of a relay: it starts, hears signals, reads its configuration again, and ends when all leases are given back.
//!
//! Nothing that is wrong with a new configuration may disturb what runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use posthaste::{Error, ErrorKind, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::config::raw::Mistake;
use super::config::{Config, Mistakes, SinkKind};
use super::generation::{Current, Generation};
use super::migrate::Unmigrated;
use super::secret::shown_url;
use super::{Args, http, log, migrate, prometheus};
use crate::exit::Exit;

/// A signal to the relay.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self> {
        let hear = |kind| {
            signal(kind).map_err(|source| {
                Error::new(ErrorKind::Refused, "this process may not listen to signals").with_source(source)
            })
        };
        Ok(Self {
            hangup: hear(SignalKind::hangup())?,
            terminate: hear(SignalKind::terminate())?,
            interrupt: hear(SignalKind::interrupt())?,
        })
    }

    /// Waits for one that says to end.
    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// How long reading a configuration may take: a file may be anything, on anything.
const READING: Duration = Duration::from_secs(5);
/// How many generations may be ending at a time: each has connections of its own.
const MOST_LEAVING: usize = 3;

/// A relay at work.
struct Relay {
    args: Args,
    /// The settings with which the socket was opened, which a reload does not change.
    listen: Option<SocketAddr>,
    /// Whether the configuration is to be read again as soon as a generation has ended.
    asked: bool,
    current: Current,
    running: JoinHandle<Result<()>>,
    /// Generations that are shutting down.
    leaving: JoinSet<()>,
    level: log::Level,
}

pub(super) async fn run(args: Args, config: Config, unmigrated: Vec<Unmigrated>) -> Result<Exit> {
    let level = log::begin(&config.log, config.log_format);
    let mut signals = Signals::new()?;
    let metrics = prometheus::install(config.http.metrics_topics)?;
    let listen = config.http.listen;
    let listener = match listen {
        Some(address) => Some(http::bind(address).await?),
        None => None,
    };
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    announce(&config, address);
    let (generation, running) = Generation::start(config).await?;
    migrate::keep_trying(unmigrated);
    let current = Current::new(generation);
    let server = listener.map(|listener| http::Server::start(listener, current.clone(), metrics));
    let mut relay = Relay { args, listen, asked: false, current, running, leaving: JoinSet::new(), level };
    let outcome = relay.serve(&mut signals).await;
    if let Some(server) = server {
        server.stop().await;
    }
    outcome
}

/// Says what there is, and no secret.
fn announce(config: &Config, address: Option<std::net::SocketAddr>) {
    let databases: Vec<String> = config
        .databases
        .iter()
        .map(|database| format!("{} ({})", database.name, shown_url(database.url.reveal())))
        .collect();
    let sinks = config.sinks.iter().map(|sink| match sink.kind {
        SinkKind::Log | SinkKind::Null => format!("{} ({})", sink.name, sink.kind.as_str()),
        _ => format!("{} ({})", sink.name, shown_url(sink.url.reveal())),
    });
    let sinks: Vec<String> = sinks.collect();
    let routes: Vec<String> =
        config.routes.iter().map(|route| format!("{} -> {}", route.topics.join(" "), route.sink)).collect();
    let listen = address.map_or_else(|| "off".to_owned(), |address| address.to_string());
    info!(
        version = env!("CARGO_PKG_VERSION"), name = %config.name, databases = %databases.join(", "), sinks = %sinks.join(", "),
        routes = %routes.join(", "), %listen, "the relay starts"
    );
}

impl Relay {
    /// Delivers until a signal says to end.
    async fn serve(&mut self, signals: &mut Signals) -> Result<Exit> {
        loop {
            tokio::select! {
                () = async {
                    tokio::select! {
                        _ = signals.terminate.recv() => {}
                        _ = signals.interrupt.recv() => {}
                    }
                } => return self.end(signals).await,
                _ = signals.hangup.recv() => self.reload().await,
                ended = &mut self.running => return died(ended),
                Some(_) = self.leaving.join_next() => {
                    if std::mem::take(&mut self.asked) {
                        self.reload().await;
                    }
                }
            }
        }
    }

    /// Reads the configuration in a thread of its own, which may be left behind: nothing here waits for a file for ever.
    async fn load(&self) -> Result<Config, Mistakes> {
        let (tell, told) = oneshot::channel();
        let args = self.args.clone();
        std::thread::spawn(move || {
            // The receiver is gone if it took too long.
            let _ = tell.send(args.load());
        });
        match timeout(READING, told).await {
            Ok(Ok(config)) => config,
            _ => Err(Mistakes(vec![Mistake {
                place: "configuration".to_owned(),
                text: format!("it could not be read within {} s", READING.as_secs()),
            }])),
        }
    }

    /// Reads the configuration again. If it is wrong, everything goes on as before.
    async fn reload(&mut self) {
        if self.leaving.len() >= MOST_LEAVING {
            self.asked = true;
            warn!("the configuration is read again when what ran under one before has ended");
            return;
        }
        let config = match self.load().await {
            Ok(config) => config,
            Err(mistakes) => {
                for mistake in &mistakes.0 {
                    error!(place = %mistake.place, mistake = %mistake.text, "the configuration is wrong: everything goes on as before");
                }
                return;
            }
        };
        if self.listen != config.http.listen {
            warn!("another http.listen takes effect when the relay is started again");
        }
        if config.http.tokens.is_empty() && self.listen.is_some_and(|address| !address.ip().is_loopback()) {
            error!(
                "the relay listens to others, and the configuration has no tokens: everything goes on as before"
            );
            return;
        }
        let (log, summary) = (config.log.clone(), config.clone());
        match Generation::start(config).await {
            Ok((generation, running)) => {
                self.level.set(&log);
                let old = self.current.replace(generation);
                let old_running = std::mem::replace(&mut self.running, running);
                info!(
                    databases = summary.databases.len(),
                    sinks = summary.sinks.len(),
                    routes = summary.routes.len(),
                    "the configuration was read again, and counts from now on"
                );
                old.stop();
                self.leaving.spawn(leave(old, old_running));
            }
            Err(error) => {
                error!(error = %error, "the configuration cannot be used: everything goes on as before");
            }
        }
    }

    /// Stops gracefully, unless a second signal has no time for that.
    async fn end(&mut self, signals: &mut Signals) -> Result<Exit> {
        info!("the relay ends: what is under way is finished");
        self.current.get().stop();
        let finished = async {
            let outcome = (&mut self.running).await;
            while self.leaving.join_next().await.is_some() {}
            outcome
        };
        let outcome = tokio::select! {
            outcome = finished => outcome,
            () = signals.end() => {
                warn!("a second signal: the relay ends at once, and leases run out by themselves");
                std::process::exit(i32::from(Exit::Failed as u8));
            }
        };
        match outcome {
            Ok(Ok(())) => {
                info!("the relay has ended");
                Ok(Exit::Done)
            }
            ended => died(ended),
        }
    }
}

async fn leave(old: Arc<Generation>, running: JoinHandle<Result<()>>) {
    let outcome = running.await;
    old.api.close().await;
    drop(old);
    match outcome {
        Ok(Ok(())) => info!("what ran under the configuration before has ended"),
        Ok(Err(error)) => error!(error = %error, "what ran under the configuration before has failed"),
        Err(_) => error!("what ran under the configuration before has panicked"),
    }
}

fn died(ended: Result<Result<()>, tokio::task::JoinError>) -> Result<Exit> {
    ended.map_err(|source| {
        Error::new(ErrorKind::Database, "the relay's task panicked").with_source(source)
    })??;
    Ok(Exit::Failed)
}
