//! The relay's configuration: databases, sinks, routes, and access over HTTP.
//!
//! It is read whole and checked whole: all mistakes are reported together, each with its place. Nothing is connected here.

mod check;
pub(crate) mod raw;
pub(crate) mod schema;
pub(crate) mod show;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use posthaste::{Keyring, Settings};

use self::raw::{Mistake, Raw, Reader};
use super::secret::Secret;
use crate::target::Kind;

/// A configuration that makes sense.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) databases: Vec<Database>,
    pub(crate) sinks: Vec<SinkConfig>,
    pub(crate) routes: Vec<Route>,
    pub(crate) settings: Settings,
    pub(crate) http: Http,
    pub(crate) keyring: Option<Keyring>,
    /// As it is shown to people.
    pub(crate) shown: serde_json::Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Auto,
    Json,
    Text,
}

#[derive(Clone, Debug)]
pub(crate) struct Database {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) url: Secret,
    pub(crate) schema: Option<String>,
    pub(crate) prefix: Option<String>,
    pub(crate) keep_done: bool,
    pub(crate) max_connections: Option<u32>,
    pub(crate) acquire_timeout: Duration,
    pub(crate) answer_timeout: Duration,
    pub(crate) listen: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SinkKind {
    Rabbit,
    Nats,
    Log,
    Null,
}

impl SinkKind {
    fn of(url: &str) -> Option<Self> {
        Some(match url.trim().split_once(':')?.0 {
            "amqp" | "amqps" => Self::Rabbit,
            "nats" | "tls" => Self::Nats,
            "log" => Self::Log,
            "null" => Self::Null,
            _ => return None,
        })
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Rabbit => "rabbitmq",
            Self::Nats => "nats",
            Self::Log => "log",
            Self::Null => "null",
        }
    }

    /// Whether a key of a sink says anything about this kind.
    fn has(self, key: &str) -> bool {
        match key {
            "exchange" | "window" | "max_message_bytes" => self == Self::Rabbit,
            "stream" | "prefix" | "credentials_file" => self == Self::Nats,
            "source" | "ca_file" | "cert_file" | "cert_key_file" | "connect_timeout" => {
                matches!(self, Self::Rabbit | Self::Nats)
            }
            _ => true,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SinkConfig {
    pub(crate) name: String,
    pub(crate) kind: SinkKind,
    pub(crate) url: Secret,
    /// Its texts: exchange, stream, files and so on.
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) window: Option<u32>,
    pub(crate) max_message_bytes: Option<usize>,
    pub(crate) connect_timeout: Duration,
    pub(crate) batch: u32,
    pub(crate) in_flight: u32,
    pub(crate) deadline: Option<Duration>,
    pub(crate) shortest_pause: Duration,
    pub(crate) longest_pause: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) topics: Vec<String>,
    pub(crate) sink: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Http {
    /// None: no server at all.
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) body_limit: usize,
    pub(crate) deadline: Duration,
    pub(crate) connections: usize,
    pub(crate) connections_per_address: usize,
    pub(crate) database_connections: u32,
    pub(crate) queue: usize,
    pub(crate) rate: u32,
    pub(crate) failures: u32,
    /// In lower case, without ports.
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) metrics_topics: usize,
    pub(crate) tokens: Vec<Token>,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) token: Secret,
}

/// The rights of a token; each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    Viewer,
    Operator,
    Admin,
}

impl Role {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::Viewer, Self::Operator, Self::Admin].into_iter().find(|role| role.as_str() == text)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// Everything that is wrong, with its places.
#[derive(Clone, Debug)]
pub(crate) struct Mistakes(pub(crate) Vec<Mistake>);

/// The most bytes of a file.
const MOST_BYTES: u64 = 1 << 20;

fn read(file: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(file)?.take(MOST_BYTES + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(std::io::Error::other(format!("it has more than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

impl Config {
    /// Reads a file and the environment.
    pub(crate) fn load(file: Option<&Path>, add: impl FnOnce(&mut Raw)) -> Result<Self, Mistakes> {
        let mut raw = match file {
            None => Raw::default(),
            Some(file) => {
                let place = file.display().to_string();
                let text = read(file).map_err(|error| {
                    Mistakes(vec![Mistake {
                        place: place.clone(),
                        text: format!("the file cannot be read: {error}"),
                    }])
                })?;
                Reader::read(&place, &text)
            }
        };
        raw.apply_env(
            std::env::vars_os()
                .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?))),
        );
        add(&mut raw);
        Self::of(raw)
    }

    /// Turns the raw text into a configuration.
    pub(crate) fn of(mut raw: Raw) -> Result<Self, Mistakes> {
        let mut check = check::Check { mistakes: std::mem::take(&mut raw.mistakes) };
        let config = check.config(&raw);
        match config {
            Some(config) if check.mistakes.is_empty() => Ok(config),
            _ => {
                // By line, as one reads.
                let line = |mistake: &Mistake| {
                    mistake.place.rsplit_once(':').and_then(|(_, line)| line.parse::<usize>().ok())
                };
                check.mistakes.sort_by_key(|mistake| line(mistake).unwrap_or(usize::MAX));
                Err(Mistakes(check.mistakes))
            }
        }
    }
}

/// A duration as the library's settings have it.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let mut settings = Settings::default();
    settings.set("shutdown_grace", text).ok()?;
    Some(settings.shutdown_grace)
}

#[cfg(test)]
mod tests;
