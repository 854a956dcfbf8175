//! From the driver's errors to ours: which kind, and what to do about it.
//!
//! The database's own message is kept in the text, its details are not: they quote rows.

use std::io;
use std::time::Duration;

use posthaste_core::{Error, ErrorKind};
use sqlx_core::Error as SqlxError;

use crate::dialect::Dialect;

/// What to do about a statement that the database has ended.
pub(crate) const TOOK_TOO_LONG: &str =
    "ask for less at a time, or try again when the database has less to do";

/// A dialect's classification of an error of its database.
pub(crate) struct Verdict {
    pub(crate) kind: ErrorKind,
    pub(crate) remedy: Option<&'static str>,
}

impl Verdict {
    pub(crate) const fn new(kind: ErrorKind) -> Self {
        let remedy = match kind {
            ErrorKind::SchemaMissing => Some(
                "create or update the tables: call migrate(), or apply what migration_sql() prints with your own tool",
            ),
            ErrorKind::Permission => Some("check the user, the password and the grants (docs/roles.md)"),
            ErrorKind::Full => Some("make room on the database's disk; what was under way was rolled back"),
            _ => None,
        };
        Self { kind, remedy }
    }

    pub(crate) const fn or(mut self, remedy: &'static str) -> Self {
        self.remedy = Some(remedy);
        self
    }
}

/// What to do about a file that another connection keeps locked.
pub(crate) const WRITE_FIRST: &str = "another connection holds the write lock: commit sooner, and begin transactions that will \
                                      write with BEGIN IMMEDIATE";

/// Our error for one of the driver's.
pub(crate) fn wrap<D: Dialect>(operation: &'static str, endpoint: &str, source: SqlxError) -> Error {
    let (Verdict { kind, remedy }, text) = match &source {
        SqlxError::Database(error) => (D::judge(error.as_ref()), error.message().to_owned()),
        SqlxError::Io(error) => {
            (Verdict::new(ErrorKind::Unavailable).or(io_remedy::<D>(error)), error.to_string())
        }
        SqlxError::Tls(error) => (
            Verdict::new(ErrorKind::Unavailable).or(
                "check the certificate, the host's name and sslmode, and that one of sqlx's tls features is turned on",
            ),
            error.to_string(),
        ),
        SqlxError::PoolTimedOut if !D::IS_REMOTE => (
            Verdict::new(ErrorKind::Busy).or(WRITE_FIRST),
            "the connection to the file did not come free in time: a call that came before waits for a lock".to_owned(),
        ),
        SqlxError::PoolTimedOut => (
            Verdict::new(ErrorKind::Busy)
                .or("raise max_connections, or check that the server can be reached"),
            "no connection came free in time".to_owned(),
        ),
        SqlxError::PoolClosed | SqlxError::WorkerCrashed | SqlxError::BeginFailed => {
            (Verdict::new(ErrorKind::Unavailable), source.to_string())
        }
        // A connection that was cut in the middle of an answer.
        SqlxError::Protocol(_) => (Verdict::new(ErrorKind::Unavailable), source.to_string()),
        SqlxError::Configuration(error) => {
            (Verdict::new(ErrorKind::Configuration).or("check the URL"), error.to_string())
        }
        SqlxError::Decode(_) | SqlxError::ColumnDecode { .. } | SqlxError::Encode(_) => {
            (Verdict::new(ErrorKind::Codec), "a value could not be read".to_owned())
        }
        _ => (Verdict::new(ErrorKind::Database), source.to_string()),
    };
    let error =
        Error::new(kind, text).during(operation).with_context("database", endpoint).with_source(source);
    match remedy {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    }
}

/// What to do about a server that cannot be reached, or a file that cannot be used.
fn io_remedy<D: Dialect>(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if D::IS_REMOTE => "check that the server runs and can be reached",
        io::ErrorKind::NotFound => {
            "put the file back, or another one in its place without -wal and -shm files of the old one: a store with a pool of \
             its own then opens it"
        }
        _ => "check the file, its folder and its disk",
    }
}

/// A first connection that did not come about in time.
pub(crate) fn not_opened<D: Dialect>(endpoint: &str, waited: Duration) -> Error {
    let (kind, text, remedy) = if D::IS_REMOTE {
        let remedy = "check the host and the port, and that such a database listens there";
        (ErrorKind::Unavailable, "no answer in time".to_owned(), remedy)
    } else {
        (ErrorKind::Busy, format!("the file has been locked for {waited:?}"), WRITE_FIRST)
    };
    Error::new(kind, text).during("connect").with_context("database", endpoint).with_remedy(remedy)
}

/// The server did not answer a call, and said nothing about why.
pub(crate) fn silent(operation: &'static str, endpoint: &str, waited: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the server has not answered for {waited:?}; the connection was closed"),
    )
    .during(operation)
    .with_context("database", endpoint)
    .with_remedy(
        "nothing, if the next calls succeed: they use new connections. If it comes back, look for a firewall, NAT or load balancer that \
         drops connections silently, or for a server that stands still",
    )
}

/// An error of a call that may have taken place before the connection was lost.
pub(crate) fn unknown(error: Error) -> Error {
    unless_known(
        error,
        "repeat the call with the same message: if it is stored already, that is what you are told",
    )
}

/// The same of a user's own commit.
pub(crate) fn unknown_commit(error: Error) -> Error {
    unless_known(
        error,
        "look whether it took place, or repeat the transaction with the same message ids and dedup keys",
    )
}

fn unless_known(error: Error, remedy: &'static str) -> Error {
    if error.kind() != ErrorKind::Unavailable {
        return error;
    }
    Error::new(ErrorKind::CommitUnknown, "the connection was lost before the database answered")
        .during(error.operation().unwrap_or("commit"))
        .with_remedy(remedy)
        .with_source(error)
}
