//! The commands of operators, one file each, and what several of them say.

pub(crate) mod bury;
pub(crate) mod completions;
pub(crate) mod doctor;
pub(crate) mod enqueue;
pub(crate) mod grants;
pub(crate) mod joins;
pub(crate) mod list;
pub(crate) mod migrate;
pub(crate) mod pause;
pub(crate) mod prune;
pub(crate) mod requeue;
pub(crate) mod resume;
pub(crate) mod show;
pub(crate) mod status;
#[cfg(feature = "relay")]
pub(crate) mod tenants;
pub(crate) mod top;
pub(crate) mod why;

#[cfg(not(feature = "relay"))]
pub(crate) use crate::relay as tenants;

use posthaste::{Error, ErrorKind, MessageId};

/// No message has this id.
fn unknown_message(id: MessageId) -> Error {
    Error::new(ErrorKind::NotFound, "no such message is stored here")
        .with_context("message_id", id)
        .with_remedy("check the id and the store; `posthaste why` says what may have become of it")
}
