//! The relay's log: lines of JSON, or of text on a terminal, at a level that can be changed while it runs.
//!
//! A level alone applies to posthaste's own lines. Drivers stay at warnings: their lower levels were not checked for secrets.

use std::fmt;
use std::io::{self, IsTerminal as _, Write};

use console::Style;
use tracing::field::Field;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::format::{self, Writer};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Registry, reload};

use super::config::LogFormat;
use crate::human::{escaped, printable_json};

/// Where posthaste's own lines come from.
const OWN: [&str; 5] =
    ["posthaste", "posthaste_core", "posthaste_sqlx", "posthaste_rabbitmq", "posthaste_nats"];
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The filter of a configured text; `None` if it is invalid.
pub(crate) fn filter(text: &str) -> Option<EnvFilter> {
    let text = text.trim().to_lowercase();
    if !LEVELS.contains(&text.as_str()) {
        // The parser takes any word for a target's name.
        return text.contains('=').then(|| EnvFilter::try_new(&text).ok()).flatten();
    }
    let others = if matches!(text.as_str(), "off" | "error") { text.as_str() } else { "warn" };
    let own = OWN.map(|target| format!("{target}={text}")).join(",");
    // A relay has nothing to tell of each message that arrives as it should; `debug` tells it all the same.
    let deliveries = if text == "info" { ",posthaste_core::delivery=warn" } else { "" };
    EnvFilter::try_new(format!("{others},{own}{deliveries}")).ok()
}

/// The level, to be changed.
#[derive(Debug)]
pub(crate) struct Level(reload::Handle<EnvFilter, Registry>);

impl Level {
    pub(crate) fn set(&self, text: &str) {
        if let Some(filter) = filter(text) {
            // Fails only if the subscriber is gone, and then nothing is logged anyway.
            let _ = self.0.reload(filter);
        }
    }
}

/// Begins to write the log to standard error.
pub(crate) fn begin(level: &str, format: LogFormat) -> Level {
    let (filter, handle) = reload::Layer::new(filter(level).unwrap_or_default());
    let json = match format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let registry = tracing_subscriber::registry().with(filter);
    // A second one, in a test's process, changes nothing.
    let _ = if json {
        let lines = layer().json().flatten_event(true).with_writer(|| JsonLines(std::io::stderr()));
        registry.with(lines).try_init()
    } else {
        let fields = format::debug_fn(write_field).delimited(" ");
        let lines = layer().with_ansi(console::colors_enabled_stderr()).fmt_fields(fields);
        registry.with(lines.with_writer(std::io::stderr)).try_init()
    };
    Level(handle)
}

/// Writes a field of a line of text. A value may be a stored text: it must not be able to begin another line or command a terminal.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = escaped(&format!("{value:?}"));
    match (field.name(), writer.has_ansi_escapes()) {
        ("message", _) => write!(writer, "{value}"),
        (name, false) => write!(writer, "{name}={value}"),
        (name, true) => {
            write!(writer, "{}{}{value}", forced().italic().apply_to(name), forced().dim().apply_to("="))
        }
    }
}

/// A style that does not look for a terminal: that is decided already.
fn forced() -> Style {
    Style::new().force_styling(true)
}

/// Lines of JSON, each written at once, in which what JSON does not escape is escaped.
struct JsonLines<W>(W);

impl<W: Write> Write for JsonLines<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match std::str::from_utf8(line) {
            Ok(text) => self.0.write_all(printable_json(text).as_bytes())?,
            Err(_) => self.0.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_that_of_our_own_lines() {
        let shown = filter("TRACE").unwrap().to_string();
        assert!(shown.contains("posthaste_core=trace") && shown.contains("warn"), "{shown}");
        assert!(filter("info").unwrap().to_string().contains("posthaste_core::delivery=warn"));
        assert!(filter("off").is_some() && filter("sqlx=debug,warn").is_some());
        assert!(filter("verbose").is_none() && filter("").is_none());
    }
}
