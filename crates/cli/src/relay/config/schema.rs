//! Every key of the configuration, once: its section, its type, its default and its meaning. The parser, the check for
//! unknown keys, the environment, the documentation and `--check` all use this list, and so cannot disagree.

use posthaste::Settings;

/// The type of a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Text,
    /// A URL: shown without its login.
    Url,
    /// A whole number between these.
    Number(i64, i64),
    Bool,
    Duration,
    /// A list of texts.
    Texts,
    /// One of these.
    Choice(&'static [&'static str]),
}

/// A key of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// Its default; empty if it has none.
    pub(crate) default: &'static str,
    pub(crate) meaning: &'static str,
}

/// A section of the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section {
    /// `relay`, or `databases.NAME`, or `[[routes]]`.
    pub(crate) title: &'static str,
    pub(crate) keys: &'static [Key],
}

const fn key(name: &'static str, shape: Shape, default: &'static str, meaning: &'static str) -> Key {
    Key { name, shape, default, meaning }
}

const ROLES: &[&str] = &["viewer", "operator", "admin"];
const FORMATS: &[&str] = &["auto", "json", "text"];

pub(crate) const RELAY: Section = Section {
    title: "relay",
    keys: &[
        key("name", Shape::Text, "relay", "What this relay is called in leases and logs: up to 60 bytes"),
        key(
            "log",
            Shape::Text,
            "info",
            "A level (error, warn, info, debug, trace) for posthaste's own lines, or directives as tracing has them",
        ),
        key(
            "log_format",
            Shape::Choice(FORMATS),
            "auto",
            "Lines of JSON or of text; auto is text on a terminal",
        ),
    ],
};

pub(crate) const DATABASE: Section = Section {
    title: "databases.NAME",
    keys: &[
        key("url", Shape::Url, "", "postgres://, mysql:// or sqlite:"),
        key("url_env", Shape::Text, "", "The variable that has the URL"),
        key("url_file", Shape::Text, "", "The file that has the URL"),
        key("schema", Shape::Text, "", "The schema of the tables, if it is not the usual one"),
        key("prefix", Shape::Text, "", "What the tables begin with, if it is not the usual text"),
        key(
            "keep_done",
            Shape::Bool,
            "true",
            "Whether delivered messages are kept until they are pruned, or deleted at once",
        ),
        key(
            "max_connections",
            Shape::Number(1, 1000),
            "",
            "The most connections; 4, or 1 and some for the API if there are more than 8 databases",
        ),
        key("acquire_timeout", Shape::Duration, "3s", "How long to wait for a connection"),
        key(
            "answer_timeout",
            Shape::Duration,
            "45s",
            "How long the server may take to answer before its connections count as lost and are replaced",
        ),
        key(
            "listen",
            Shape::Bool,
            "",
            "Whether to LISTEN, in PostgreSQL; yes, unless there are more than 8 databases",
        ),
    ],
};

pub(crate) const SINK: Section = Section {
    title: "sinks.NAME",
    keys: &[
        key("url", Shape::Url, "", "amqp://, amqps://, nats://, tls:// (NATS), log: or null:"),
        key("url_env", Shape::Text, "", "The variable that has the URL"),
        key("url_file", Shape::Text, "", "The file that has the URL"),
        key(
            "exchange",
            Shape::Text,
            "",
            "RabbitMQ: the exchange; empty is the one that routes to the queue of the topic's name",
        ),
        key(
            "window",
            Shape::Number(1, 10_000),
            "",
            "RabbitMQ: how many messages are sent before confirms are awaited; 200",
        ),
        key(
            "max_message_bytes",
            Shape::Number(1, 1 << 30),
            "",
            "RabbitMQ: the largest payload that the server takes; 128 MiB",
        ),
        key("stream", Shape::Text, "", "NATS: the stream that must take the messages"),
        key("prefix", Shape::Text, "", "NATS: what subjects begin with, before a dot and the topic"),
        key("credentials_file", Shape::Text, "", "NATS: a file with a JWT and its seed"),
        key("source", Shape::Text, "", "Who sends, as receivers see it"),
        key(
            "ca_file",
            Shape::Text,
            "",
            "The authorities, as PEM, that the server's certificate is verified against",
        ),
        key("cert_file", Shape::Text, "", "The certificate, as PEM, that shows the server who connects"),
        key("cert_key_file", Shape::Text, "", "The private key of that certificate"),
        key("connect_timeout", Shape::Duration, "5s", "How long connecting may take"),
        key("batch", Shape::Number(1, 10_000), "200", "The most messages of one batch"),
        key("in_flight", Shape::Number(1, 100), "2", "How many batches are under way at a time"),
        key(
            "deadline",
            Shape::Duration,
            "",
            "How long the sink may take for a batch; 10 s, or half the lease if that is less",
        ),
        key("shortest_pause", Shape::Duration, "200ms", "After how long a sink that is down is probed first"),
        key("longest_pause", Shape::Duration, "5s", "And how long the pauses between probes may grow"),
    ],
};

pub(crate) const ROUTE: Section = Section {
    title: "[routes]",
    keys: &[
        key(
            "topics",
            Shape::Texts,
            "",
            "Topics, or beginnings of topics and a *; order.* is all that begin with order.",
        ),
        key(
            "sink",
            Shape::Text,
            "",
            "The sink that gets them. Several routes may match: each sink gets the message once",
        ),
    ],
};

pub(crate) const HTTP: Section = Section {
    title: "http",
    keys: &[
        key(
            "listen",
            Shape::Text,
            "127.0.0.1:7070",
            "Address and port, or off. Anything but loopback needs tokens",
        ),
        key("body_limit", Shape::Number(1_024, 1 << 30), "1572864", "The most bytes of a request's body"),
        key(
            "deadline",
            Shape::Duration,
            "5s",
            "How long a client may take to send a request, and the relay to answer it",
        ),
        key(
            "connections",
            Shape::Number(1, 100_000),
            "256",
            "The most connections at a time, beside 32 that serve health and metrics only",
        ),
        key(
            "connections_per_address",
            Shape::Number(1, 100_000),
            "64",
            "The most of these connections from one address, or one IPv6 network (/64). Behind a proxy, all clients share an address",
        ),
        key(
            "database_connections",
            Shape::Number(1, 100),
            "2",
            "The most connections to each database for requests, beside those that deliver; SQLite has 1",
        ),
        key(
            "queue",
            Shape::Number(0, 10_000),
            "16",
            "The most requests that wait for one of these connections, for each database. More get 503",
        ),
        key("rate", Shape::Number(1, 100_000), "100", "The most requests a second of one token"),
        key(
            "failures",
            Shape::Number(1, 100_000),
            "10",
            "The most wrong tokens a minute from one address, before each further one is answered a second later",
        ),
        key(
            "allowed_hosts",
            Shape::Texts,
            "",
            "Names and addresses, without ports, by which clients call the relay, beside those of loopback and the one in listen",
        ),
        key(
            "metrics_topics",
            Shape::Number(0, 100_000),
            "500",
            "The most pairs of database and topic that metrics tell apart. The topics beyond are summed as topic other",
        ),
    ],
};

pub(crate) const TOKEN: Section = Section {
    title: "[http.tokens]",
    keys: &[
        key("name", Shape::Text, "", "Who it is: written to the history of what they requeue or bury"),
        key(
            "role",
            Shape::Choice(ROLES),
            "",
            "viewer sees; operator changes, too; admin reads payloads, too",
        ),
        key("token_env", Shape::Text, "", "The variable that has the token: at least 16 bytes"),
        key("token_file", Shape::Text, "", "The file that has the token"),
    ],
};

pub(crate) const ENCRYPTION: Section = Section {
    title: "encryption",
    keys: &[
        key(
            "keys_env",
            Shape::Text,
            "",
            "The variable that has the keys: id:HEX pairs with commas between them, the first one encrypts",
        ),
        key("keys_file", Shape::Text, "", "The file that has the keys"),
        key("refuse_plaintext", Shape::Bool, "false", "Whether messages that are not encrypted are given up"),
    ],
};

/// All of them but `settings`, in the order in which they are shown.
pub(crate) const SECTIONS: &[Section] = &[RELAY, DATABASE, SINK, ROUTE, HTTP, TOKEN, ENCRYPTION];

/// How many messages the relay has in hand at a time, if nothing is said: brokers like large batches.
pub(crate) const WORKERS: u32 = 100;

/// The library's settings, with the relay's own defaults.
pub(crate) fn default_settings() -> Settings {
    let mut settings = Settings::default();
    settings.workers = WORKERS;
    settings
}

/// The reference of all keys: a table for each section, as Markdown.
pub(crate) fn reference() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        text.push_str(&format!(
            "### `[{}]`\n\n| key | default | what it is |\n|---|---|---|\n",
            section.title
        ));
        for Key { name, default, meaning, .. } in section.keys {
            let default = if default.is_empty() { String::new() } else { format!("`{default}` ") };
            text.push_str(&format!("| `{name}` | {default}| {meaning} |\n"));
        }
        text.push('\n');
    }
    text
}

/// The key of this name in a section of this title.
pub(crate) fn find(section: &Section, name: &str) -> Option<&'static Key> {
    section.keys.iter().find(|key| key.name == name)
}
