//! A subscriber of `tracing` that keeps every event and every span, with all of their fields.
//!
//! It must never filter: no test can check lines that it leaves out.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// An event, or the beginning of a span.
#[derive(Clone, Debug)]
pub struct Logged {
    /// Its level.
    pub level: Level,
    /// Where it comes from.
    pub target: String,
    /// Its text; of a span the name.
    pub message: String,
    /// Everything else.
    pub fields: BTreeMap<String, String>,
    /// Whether it is a span.
    pub is_span: bool,
}

impl Logged {
    /// The value of a field; empty if there is none.
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn new(metadata: &Metadata<'_>, is_span: bool) -> Self {
        let message = if is_span { metadata.name().to_owned() } else { String::new() };
        let target = metadata.target().to_owned();
        Self { level: *metadata.level(), target, message, fields: BTreeMap::new(), is_span }
    }
}

impl Visit for Logged {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.fields.insert(field.name().to_owned(), value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

/// The recorded log. Clones keep the same record.
#[derive(Clone, Debug, Default)]
pub struct Logs {
    logged: Arc<Mutex<Vec<Logged>>>,
    spans: Arc<AtomicU64>,
}

impl Logs {
    /// Everything.
    pub fn all(&self) -> Vec<Logged> {
        self.logged.lock().unwrap().clone()
    }

    /// The events of this crate's core with this text.
    pub fn events(&self, message: &str) -> Vec<Logged> {
        self.ours().into_iter().filter(|logged| logged.message == message).collect()
    }

    /// The events that posthaste's crates logged at this level.
    pub fn at(&self, level: Level) -> Vec<Logged> {
        self.ours().into_iter().filter(|logged| logged.level == level).collect()
    }

    fn ours(&self) -> Vec<Logged> {
        let ours = |logged: &Logged| !logged.is_span && logged.target.starts_with("posthaste");
        self.all().into_iter().filter(ours).collect()
    }
}

impl Subscriber for Logs {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut logged = Logged::new(span.metadata(), true);
        span.record(&mut logged);
        self.logged.lock().unwrap().push(logged);
        Id::from_u64(self.spans.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        let mut logged = Logged {
            level: Level::TRACE,
            target: "span".to_owned(),
            message: String::new(),
            fields: BTreeMap::new(),
            is_span: true,
        };
        values.record(&mut logged);
        self.logged.lock().unwrap().push(logged);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut logged = Logged::new(event.metadata(), false);
        event.record(&mut logged);
        self.logged.lock().unwrap().push(logged);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
