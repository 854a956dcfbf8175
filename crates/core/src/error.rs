//! The one error type of posthaste: what kind of thing went wrong, during which operation, with which facts, and
//! what to do about it.
//!
//! It must never carry a payload, a header, a key or a secret: everything put into [`Error::context`] reaches logs.

use std::error::Error as StdError;
use std::fmt;

/// The result of everything in posthaste that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of thing went wrong. Programs decide by this; people read the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A value that the caller gave is not acceptable; nothing was sent to the database.
    InvalidInput,
    /// The thing that was named does not exist.
    NotFound,
    /// The request is not possible in the current state; nothing was changed.
    Refused,
    /// A value could not be encoded to, or decoded from, its stored form.
    Codec,
    /// A setting (URL, schema name, table prefix, …) is not acceptable.
    Configuration,
    /// The tables are missing, or older than this code needs.
    SchemaMissing,
    /// The tables were made by a newer version than this code knows.
    SchemaTooNew,
    /// The database refused for lack of a privilege, or refused the login.
    Permission,
    /// The database, or the broker, could not be reached, or the connection was lost.
    Unavailable,
    /// The database is there but busy: a lock, a pool or a statement time-out ran out.
    Busy,
    /// The transaction lost a conflict with another one (deadlock, serialisation failure).
    Conflict,
    /// The database has no room left.
    Full,
    /// The connection was lost while COMMIT was under way: it is unknown whether it took place. Repeating the call is
    /// harmless, because the message id and the dedup key are the same.
    CommitUnknown,
    /// The database answered with an error that has no kind of its own.
    Database,
}

impl ErrorKind {
    /// Whether the same call may succeed later without any change.
    pub fn is_transient(self) -> bool {
        matches!(self, Self::Unavailable | Self::Busy | Self::Conflict | Self::Full | Self::CommitUnknown)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::InvalidInput => "invalid input",
            Self::NotFound => "not found",
            Self::Refused => "refused",
            Self::Codec => "encoding error",
            Self::Configuration => "invalid configuration",
            Self::SchemaMissing => "schema missing",
            Self::SchemaTooNew => "schema too new",
            Self::Permission => "permission denied",
            Self::Unavailable => "unavailable",
            Self::Busy => "database busy",
            Self::Conflict => "transaction conflict",
            Self::Full => "database full",
            Self::CommitUnknown => "outcome of commit unknown",
            Self::Database => "database error",
        })
    }
}

/// An error with its kind, the operation that met it, facts about it, and its source.
///
/// ```
/// use posthaste_core::{ErrorKind, NewMessage};
///
/// let error = NewMessage::bytes("", "hello").build().unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidInput);
/// assert!(!error.is_transient());
/// assert_eq!(error.to_string(), "invalid input: topic is empty; give it 1 to 255 bytes");
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: Option<&'static str>,
    message: String,
    remedy: Option<String>,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error of this kind that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            operation: None,
            message: message.into(),
            remedy: None,
            context: Vec::new(),
            source: None,
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidInput, message).with_remedy(remedy)
    }

    /// Says during which operation it happened (`"claim"`, `"publish"`, …); the innermost one is kept.
    #[must_use]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation.get_or_insert(operation);
        self
    }

    /// Adds a remedy for the reader.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.0.remedy = Some(remedy.into());
        self
    }

    /// Adds a fact. Never a payload, header, key or secret.
    #[must_use]
    pub fn with_context(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Keeps the error that caused this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that met it, where one is known.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// The remedy, if one is known.
    pub fn remedy(&self) -> Option<&str> {
        self.0.remedy.as_deref()
    }

    /// The facts, in the order in which they were added.
    pub fn context(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.context.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Whether the same call may succeed later without any change.
    pub fn is_transient(&self) -> bool {
        self.0.kind.is_transient()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(f, "{operation}: ")?;
        }
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        for (i, (name, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{name}={value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        if let Some(remedy) = &self.0.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

/// The same as `Display`, followed by the sources. A source's own `Debug` is never used: drivers put rows, and with
/// them payloads, into theirs.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.to_string();
        let mut source = self.source();
        while let Some(error) = source {
            let more = error.to_string();
            // Drivers repeat themselves from layer to layer.
            if !text.contains(&more) && !more.contains(&self.0.message) {
                text.push_str(": ");
                text.push_str(&more);
            }
            source = error.source();
        }
        f.write_str(&text)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_operation_kind_message_facts_and_remedy() {
        let error = Error::new(ErrorKind::SchemaMissing, "the table does not exist")
            .during("claim")
            .during("outer")
            .with_context("table", "posthaste.outbox")
            .with_context("version", 3)
            .with_remedy("call migrate()")
            .with_source("relation missing");
        assert_eq!(
            error.to_string(),
            "claim: schema missing: the table does not exist (table=posthaste.outbox, version=3); call migrate()"
        );
        assert!(format!("{error:?}").ends_with("call migrate(): relation missing"));
        assert_eq!(error.operation(), Some("claim"));
    }

    #[test]
    fn an_error_is_one_word_wide() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }

    #[test]
    fn transient_kinds_are_those_that_pass_by_themselves() {
        assert!(Error::new(ErrorKind::Conflict, "").is_transient());
        assert!(Error::new(ErrorKind::CommitUnknown, "").is_transient());
        assert!(!Error::new(ErrorKind::InvalidInput, "").is_transient());
        assert!(!Error::new(ErrorKind::SchemaTooNew, "").is_transient());
    }
}
