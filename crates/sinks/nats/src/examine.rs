//! Checks whether a stream keeps its messages. It changes nothing.

use async_nats::jetstream::context::GetStreamErrorKind;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use posthaste_core::{Error, ErrorKind, Finding, Result, Severity};
use tokio::time::timeout;

use crate::sink::{NatsSink, PATIENCE};

impl NatsSink {
    /// Checks whether a stream exists, keeps its messages in files, and acknowledges them. A stream in memory loses them
    /// when its server restarts, including messages whose receipt it has confirmed.
    ///
    /// Changes nothing. An error means that the server could not be asked.
    pub async fn examine_stream(&self, name: &str) -> Result<Finding> {
        let unavailable = |what: String| {
            Error::new(ErrorKind::Unavailable, what)
                .with_context("server", self.server())
                .with_remedy("check that NATS runs there with JetStream, and what the user may do")
        };
        let link = self.link().await.map_err(|error| unavailable(error.failure().text().to_owned()))?;
        let asked = timeout(PATIENCE, link.context().get_stream(name)).await;
        match asked {
            Ok(Ok(stream)) => Ok(judge(&stream.cached_info().config)),
            Ok(Err(error)) => match error.kind() {
                GetStreamErrorKind::JetStream(error) if error.code() == 404 => Ok(missing(name)),
                GetStreamErrorKind::EmptyName | GetStreamErrorKind::InvalidStreamName => {
                    Err(crate::options::refused("no stream can have this name", "leave out blanks and dots"))
                }
                _ => Err(unavailable(error.to_string())),
            },
            Err(_) => Err(unavailable("no answer in time".to_owned())),
        }
    }
}

fn missing(name: &str) -> Finding {
    let remedy = "create it: what no stream takes waits in the outbox";
    finding(Severity::Warning, format!("{name} is not there"), Some(remedy))
}

fn judge(config: &Config) -> Finding {
    let name = &config.name;
    if config.storage == StorageType::Memory {
        let remedy = "its messages are lost when the server starts again: make a stream with file storage";
        return finding(Severity::Danger, format!("{name} is kept in memory"), Some(remedy));
    }
    if config.no_ack {
        let remedy = "nobody learns whether it took a message: create it without no_ack";
        return finding(Severity::Danger, format!("{name} acknowledges nothing"), Some(remedy));
    }
    let is_limited = config.max_messages > 0 || config.max_bytes > 0;
    if is_limited && config.discard == DiscardPolicy::Old && config.retention == RetentionPolicy::Limits {
        let remedy = "set discard to new: then messages wait in the outbox until there is room";
        let found = format!("{name} drops its oldest messages when it is full, whether read or not");
        return finding(Severity::Warning, found, Some(remedy));
    }
    finding(Severity::Fine, format!("{name} is kept in files"), None)
}

fn finding(severity: Severity, found: String, remedy: Option<&str>) -> Finding {
    Finding { check: "stream", severity, found, remedy: remedy.map(str::to_owned) }
}
