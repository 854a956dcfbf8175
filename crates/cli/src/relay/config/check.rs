//! From the raw text to a valid configuration. The check collects every mistake, so that one run reports all of them. No
//! mistake quotes a value.

use std::net::SocketAddr;
use std::time::Duration;

use posthaste::{Keyring, Settings, Topics};

use super::raw::{Entry, Keys, Mistake, Raw, Value};
use super::{
    Config, Database, Http, LogFormat, Role, Route, SinkConfig, SinkKind, Token, duration, schema, show,
};
use crate::relay::secret::Secret;
use crate::target::Kind;

/// Shorter ones can be guessed.
const SHORTEST_TOKEN: usize = 16;

/// Collects mistakes while it goes through a configuration.
pub(super) struct Check {
    pub(super) mistakes: Vec<Mistake>,
}

impl Check {
    fn mistake(&mut self, place: &str, text: impl Into<String>) {
        let place = if place.is_empty() { "configuration" } else { place };
        self.mistakes.push(Mistake { place: place.to_owned(), text: text.into() });
    }

    /// A text, or the schema's default.
    fn text(&mut self, keys: &Keys, name: &str, default: &str) -> String {
        keys.entries.get(name).and_then(|entry| entry.value.text()).unwrap_or(default).to_owned()
    }

    /// A text that this function parses, or a mistake that names the expected form.
    fn read<T>(
        &mut self,
        keys: &Keys,
        name: &str,
        like: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Option<T> {
        let entry = keys.entries.get(name)?;
        let value = entry.value.text().and_then(|text| read(text.trim()));
        if value.is_none() {
            self.mistake(&entry.place, format!("`{name}` should be {like}"));
        }
        value
    }

    fn number(&mut self, keys: &Keys, section: &schema::Section, name: &str) -> Option<i64> {
        let key = schema::find(section, name)?;
        let schema::Shape::Number(low, high) = key.shape else { return None };
        let read =
            |text: &str| text.replace('_', "").parse().ok().filter(|number| (low..=high).contains(number));
        let number = self.read(keys, name, &format!("a whole number, {low} to {high}"), read);
        number.or_else(|| key.default.parse().ok())
    }

    fn bool(&mut self, keys: &Keys, name: &str) -> Option<bool> {
        self.read(keys, name, "true or false", |text| text.parse().ok())
    }

    fn duration(&mut self, keys: &Keys, section: &schema::Section, name: &str) -> Option<Duration> {
        let given = self.read(keys, name, "a duration like 500ms, 30s or 5m", duration);
        given.or_else(|| duration(schema::find(section, name)?.default))
    }

    /// A secret: `name`, or `name_env`, or `name_file`; exactly one of them.
    fn secret(&mut self, keys: &Keys, name: &str, whose: &str) -> Option<(String, Secret)> {
        let ways: Vec<(&String, &Entry)> = keys
            .entries
            .iter()
            .filter(|(key, _)| {
                *key == name || key.strip_prefix(name).is_some_and(|rest| rest == "_env" || rest == "_file")
            })
            .collect();
        let (key, entry) = match ways.as_slice() {
            [(key, entry)] => (key.as_str(), *entry),
            [] => {
                let plain = schema::SECTIONS
                    .iter()
                    .any(|section| section.title.starts_with(whose) && schema::find(section, name).is_some());
                let plain = if plain { format!("{name}, ") } else { String::new() };
                self.mistake(
                    &keys.place,
                    format!("no {name} is given; write {plain}{name}_env or {name}_file"),
                );
                return None;
            }
            [.., (_, second)] => {
                let place = second.place.clone();
                self.mistake(
                    &place,
                    format!("the {name} is given twice; write one of {name}, {name}_env and {name}_file"),
                );
                return None;
            }
        };
        let text = entry.value.text().unwrap_or_default();
        let found = if key == name {
            Ok(text.to_owned())
        } else if key.ends_with("_env") {
            std::env::var(text).map_err(|_| format!("`{key}`: there is no variable {text}, or it is no text"))
        } else {
            std::fs::read_to_string(text)
                .map_err(|error| format!("`{key}`: the file cannot be read: {error}"))
        };
        match found.map(|secret| secret.trim().to_owned()) {
            Ok(secret) if !secret.is_empty() => Some((entry.place.clone(), Secret::new(secret))),
            Ok(_) => {
                self.mistake(&entry.place, format!("`{key}`: the {name} is empty"));
                None
            }
            Err(why) => {
                self.mistake(&entry.place, why);
                None
            }
        }
    }

    pub(super) fn config(&mut self, raw: &Raw) -> Option<Config> {
        let name = self.text(&raw.relay, "name", "relay");
        if name.is_empty() || name.len() > 60 || name.contains('\0') {
            self.mistake(&raw.relay.place, "`name` should have 1 to 60 bytes");
        }
        let log = self.text(&raw.relay, "log", "info");
        if crate::relay::log::filter(&log).is_none() {
            self.mistake(
                &raw.relay.place,
                "`log` should be error, warn, info, debug, trace, or directives of tracing",
            );
        }
        let log_format = match self.text(&raw.relay, "log_format", "auto").as_str() {
            "auto" => LogFormat::Auto,
            "json" => LogFormat::Json,
            "text" => LogFormat::Text,
            _ => {
                self.mistake(&raw.relay.place, "`log_format` should be auto, json or text");
                LogFormat::Auto
            }
        };
        let settings = self.settings(&raw.settings);
        let databases: Vec<_> =
            raw.databases.iter().filter_map(|(name, keys)| self.database(name, keys)).collect();
        if raw.databases.is_empty() {
            self.mistake("", "there is no database; write [databases.NAME], or give --from URL");
        }
        let sinks: Vec<_> = raw.sinks.iter().filter_map(|(name, keys)| self.sink(name, keys)).collect();
        if raw.sinks.is_empty() {
            self.mistake("", "there is no sink; write [sinks.NAME], or give --to URL");
        }
        let routes: Vec<_> = raw.routes.iter().filter_map(|keys| self.route(keys, raw)).collect();
        if raw.routes.is_empty() {
            self.mistake("", "there is no route, and nothing would be delivered; write [[routes]]");
        }
        let http = self.http(raw);
        let keyring = raw.encryption.as_ref().and_then(|keys| self.keyring(keys));
        let shown = show::effective(raw, &settings, &databases, &sinks);
        Some(Config {
            name,
            log,
            log_format,
            databases,
            sinks,
            routes,
            settings,
            http: http?,
            keyring,
            shown,
        })
    }

    fn settings(&mut self, keys: &Keys) -> Settings {
        let mut settings = schema::default_settings();
        for (name, entry) in &keys.entries {
            let set = match &entry.value {
                Value::Text(text) | Value::Other(text) => {
                    settings.set(name, text).map_err(|error| remedied(&error))
                }
                Value::List(_) => Err(format!("`{name}` is a list, and should be one value")),
            };
            // Each alone, so that every wrong one is reported.
            let alone = set.and_then(|()| {
                let mut alone = schema::default_settings();
                let text = entry.value.text().unwrap_or_default();
                alone.set(name, text).map_err(|error| remedied(&error))
            });
            if let Err(why) = alone {
                self.mistake(&entry.place, why);
            }
        }
        if let Err(error) = settings.check() {
            self.mistake(&keys.place, remedied(&error));
        }
        settings
    }

    fn database(&mut self, name: &str, keys: &Keys) -> Option<Database> {
        self.name(name, keys);
        let max_connections = self.number(keys, &schema::DATABASE, "max_connections");
        let acquire_timeout = self.duration(keys, &schema::DATABASE, "acquire_timeout");
        let answer_timeout = self.duration(keys, &schema::DATABASE, "answer_timeout");
        let (keep_done, listen) = (self.bool(keys, "keep_done").unwrap_or(true), self.bool(keys, "listen"));
        let text = |key: &str| keys.entries.get(key).and_then(|entry| entry.value.text()).map(str::to_owned);
        let (place, url) = self.secret(keys, "url", "databases")?;
        let kind = match Kind::of(url.reveal()) {
            Ok(kind) => kind,
            Err(error) => {
                self.mistake(&place, remedied(&error));
                return None;
            }
        };
        let database = Database {
            name: name.to_owned(),
            kind,
            url,
            schema: text("schema"),
            prefix: text("prefix"),
            keep_done,
            max_connections: max_connections.and_then(|number| u32::try_from(number).ok()),
            acquire_timeout: acquire_timeout?,
            answer_timeout: answer_timeout?,
            listen,
        };
        if let Err(error) = crate::relay::build::try_database(&database) {
            self.mistake(&place, remedied(&error));
        }
        Some(database)
    }

    /// A name is a label of metrics, a part of paths, and of variables.
    fn name(&mut self, name: &str, keys: &Keys) {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > 100 || !name.chars().all(fits) {
            let place = keys.place.clone();
            self.mistake(
                &place,
                "a name should have 1 to 100 letters, digits, hyphens, dots and underscores",
            );
        }
    }

    fn sink(&mut self, name: &str, keys: &Keys) -> Option<SinkConfig> {
        self.name(name, keys);
        let mut number = |key| self.number(keys, &schema::SINK, key);
        let (window, max, batch, in_flight) =
            (number("window"), number("max_message_bytes"), number("batch"), number("in_flight"));
        let mut duration = |key| self.duration(keys, &schema::SINK, key);
        let (connect_timeout, deadline) = (duration("connect_timeout"), duration("deadline"));
        let (shortest_pause, longest_pause) = (duration("shortest_pause"), duration("longest_pause"));
        let (place, url) = self.secret(keys, "url", "sinks")?;
        let with_login = |kind: &SinkKind| !matches!(kind, SinkKind::Log | SinkKind::Null);
        let kind = SinkKind::of(url.reveal());
        let Some(kind) = kind.filter(|kind| !with_login(kind) || url.reveal().contains("://")) else {
            self.mistake(&place, "the sink's URL has no scheme that is known; begin it with amqp://, amqps://, nats://, tls://, log: or null:");
            return None;
        };
        for (key, entry) in keys.entries.iter().filter(|(key, _)| !kind.has(key)) {
            self.mistake(
                &entry.place,
                format!("`{key}` says nothing about a sink of the kind {}; remove it", kind.as_str()),
            );
        }
        let texts = keys.entries.iter().filter(|(key, _)| !key.starts_with("url"));
        let texts =
            texts.filter_map(|(key, entry)| Some((key.clone(), entry.value.text()?.to_owned()))).collect();
        let sink = SinkConfig {
            name: name.to_owned(),
            kind,
            url,
            texts,
            window: window.and_then(|number| u32::try_from(number).ok()),
            max_message_bytes: max.and_then(|number| usize::try_from(number).ok()),
            connect_timeout: connect_timeout?,
            batch: u32::try_from(batch?).ok()?,
            in_flight: u32::try_from(in_flight?).ok()?,
            deadline,
            shortest_pause: shortest_pause?,
            longest_pause: longest_pause?,
        };
        if let Err(error) = crate::relay::build::guarded(&sink) {
            self.mistake(&place, remedied(&error));
        }
        Some(sink)
    }

    fn route(&mut self, keys: &Keys, raw: &Raw) -> Option<Route> {
        let topics = match keys.entries.get("topics").map(|entry| (&entry.place, &entry.value)) {
            Some((place, Value::List(topics))) if !topics.is_empty() => {
                if let Err(error) = Topics::of(topics) {
                    self.mistake(place, remedied(&error));
                }
                topics.clone()
            }
            _ => {
                self.mistake(&keys.place, "a route has no topics; write topics = [\"order.*\"]");
                return None;
            }
        };
        let Some(entry) = keys.entries.get("sink") else {
            self.mistake(&keys.place, "a route has no sink; write sink = \"NAME\"");
            return None;
        };
        let sink = entry.value.text().unwrap_or_default().to_owned();
        if !raw.sinks.contains_key(&sink) {
            let known: Vec<&str> = raw.sinks.keys().map(String::as_str).collect();
            self.mistake(
                &entry.place,
                format!("there is no sink of that name; the sinks are {}", known.join(", ")),
            );
        }
        Some(Route { topics, sink })
    }

    fn http(&mut self, raw: &Raw) -> Option<Http> {
        let keys = &raw.http;
        let mut number = |key| self.number(keys, &schema::HTTP, key);
        let (body_limit, connections) = (number("body_limit"), number("connections"));
        let per_address = number("connections_per_address");
        let (database_connections, queue) = (number("database_connections"), number("queue"));
        let (rate, failures) = (number("rate"), number("failures"));
        let metrics_topics = number("metrics_topics");
        let allowed_hosts = self.allowed_hosts(keys);
        let deadline = self.duration(keys, &schema::HTTP, "deadline")?;
        if !(Duration::from_millis(100)..=Duration::from_secs(300)).contains(&deadline) {
            self.mistake(&keys.place, "`deadline` should be 100ms to 5m");
        }
        let tokens: Vec<_> = raw.tokens.iter().filter_map(|keys| self.token(keys)).collect();
        for (i, token) in tokens.iter().enumerate() {
            if tokens.iter().take(i).any(|other| other.name == token.name || other.token == token.token) {
                self.mistake(
                    &keys.place,
                    "two tokens have the same name, or are the same; give each its own",
                );
            }
        }
        let listen = match self.text(keys, "listen", "127.0.0.1:7070").trim() {
            "off" => None,
            text => {
                let address = text.replace("localhost:", "127.0.0.1:").parse::<SocketAddr>().ok();
                if address.is_none() {
                    self.mistake(
                        &keys.place,
                        "`listen` should be an address and a port, as in 127.0.0.1:7070, or off",
                    );
                }
                if address.is_some_and(|address| !address.ip().is_loopback()) && raw.tokens.is_empty() {
                    self.mistake(&keys.place, "`listen` is not loopback, and there are no tokens: anybody could change messages; add [[http.tokens]]");
                }
                address
            }
        };
        Some(Http {
            listen,
            body_limit: usize::try_from(body_limit?).ok()?,
            deadline,
            connections: usize::try_from(connections?).ok()?,
            connections_per_address: usize::try_from(per_address?).ok()?,
            database_connections: u32::try_from(database_connections?).ok()?,
            queue: usize::try_from(queue?).ok()?,
            rate: u32::try_from(rate?).ok()?,
            failures: u32::try_from(failures?).ok()?,
            allowed_hosts,
            metrics_topics: usize::try_from(metrics_topics?).ok()?,
            tokens,
        })
    }

    fn allowed_hosts(&mut self, keys: &Keys) -> Vec<String> {
        let Some(entry) = keys.entries.get("allowed_hosts") else { return Vec::new() };
        let hosts: Vec<&str> = match &entry.value {
            Value::List(hosts) => hosts.iter().map(String::as_str).collect(),
            // From the environment.
            value => value.text().unwrap_or_default().split(',').map(str::trim).collect(),
        };
        if hosts.iter().any(|host| !is_host(host)) {
            self.mistake(
                &entry.place,
                "`allowed_hosts` should have names and addresses without scheme and port, as in [\"relay.example\", \"10.0.0.5\"]",
            );
        }
        hosts.iter().map(|host| host.to_ascii_lowercase()).collect()
    }

    fn token(&mut self, keys: &Keys) -> Option<Token> {
        let name = self.text(keys, "name", "");
        if name.is_empty() || name.len() > 60 || name.chars().any(char::is_control) {
            self.mistake(
                &keys.place,
                "a token has no name, or an unusual one; write name = \"ada\", up to 60 bytes",
            );
        }
        let role = self.read(keys, "role", "viewer, operator or admin", Role::parse);
        if !keys.entries.contains_key("role") {
            self.mistake(
                &keys.place,
                "a token has no role; write role = \"viewer\", \"operator\" or \"admin\"",
            );
        }
        let (place, token) = self.secret(keys, "token", "[http.tokens")?;
        if token.reveal().len() < SHORTEST_TOKEN {
            self.mistake(&place, format!("the token can be guessed; give it {SHORTEST_TOKEN} bytes or more, as in openssl rand -hex 32"));
        }
        Some(Token { name, role: role?, token })
    }

    fn keyring(&mut self, keys: &Keys) -> Option<Keyring> {
        let refuse = self.bool(keys, "refuse_plaintext").unwrap_or(false);
        let (place, secret) = self.secret(keys, "keys", "encryption")?;
        match Keyring::parse(secret.reveal()) {
            Ok(keyring) if refuse => Some(keyring.refuse_plaintext()),
            Ok(keyring) => Some(keyring),
            Err(error) => {
                self.mistake(&place, remedied(&error));
                None
            }
        }
    }
}

/// Whether this can be the host of a URL: an address, or a name without a port and without patterns.
fn is_host(text: &str) -> bool {
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'))
    };
    text.parse::<std::net::IpAddr>().is_ok() || is_name(text)
}

/// An error's text, without what every mistake is.
fn remedied(error: &posthaste::Error) -> String {
    let text = error.to_string();
    text.replacen("invalid configuration: ", "", 1)
}
