//! Verdicts from the server's answers.
//!
//! Only an acknowledgement means that a message was taken. Descriptions of the server go into the texts, because they name
//! limits and streams; nothing of a message does.

use std::error::Error as StdError;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};
use posthaste_core::SinkError;

/// What became of a message that was not taken.
pub(crate) enum Refusal {
    /// Its subject has no listener: there is no stream for it, or the stream has no leader.
    NoListener,
    /// The connection was lost before the answer.
    Lost,
    Known(SinkError),
}

impl From<SinkError> for Refusal {
    fn from(error: SinkError) -> Self {
        Self::Known(error)
    }
}

/// A message that could not even be handed to the connection.
pub(crate) fn of_sending(error: &PublishError, size: usize, most: usize) -> Refusal {
    match error.kind() {
        PublishErrorKind::MaxPayloadExceeded => {
            SinkError::too_large(format!("{size} bytes with headers, and the server takes {most}")).into()
        }
        PublishErrorKind::Other
            if error.source().is_some_and(|source| source.is::<async_nats::PublishError>()) =>
        {
            SinkError::refused("the topic makes no subject that NATS takes").into()
        }
        _ => Refusal::Lost,
    }
}

/// A message that was sent, and the error instead of an acknowledgement.
pub(crate) fn of_answer(error: &PublishError) -> Refusal {
    match error.kind() {
        PublishErrorKind::StreamNotFound => Refusal::NoListener,
        PublishErrorKind::TimedOut => late().into(),
        PublishErrorKind::BrokenPipe => Refusal::Lost,
        _ => match error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()) {
            Some(error) => of_server(error).into(),
            None => SinkError::unroutable("somebody answered who is not JetStream").into(),
        },
    }
}

/// An error that JetStream answered with.
pub(crate) fn of_server(error: &jetstream::Error) -> SinkError {
    let text = error.to_string();
    match error.error_code() {
        ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => SinkError::too_large(format!("the stream: {text}")),
        // The stream is full and discards new messages: this message waits, others may fit elsewhere.
        ErrorCode::STREAM_STORE_FAILED if text.contains("maximum") => {
            SinkError::busy(format!("the stream is full: {text}"))
        }
        ErrorCode::STREAM_NOT_MATCH => {
            SinkError::unroutable(format!("the subject belongs to another stream: {text}"))
        }
        ErrorCode::STREAM_SEALED => SinkError::unroutable(format!("the stream is sealed: {text}")),
        ErrorCode::STREAM_STORE_FAILED
        | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
        | ErrorCode::INSUFFICIENT_RESOURCES
        | ErrorCode::STORAGE_RESOURCES_EXCEEDED
        | ErrorCode::MEMORY_RESOURCES_EXCEEDED
        | ErrorCode::CLUSTER_NOT_AVAILABLE
        | ErrorCode::JETSTREAM_NOT_ENABLED
        | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => SinkError::down(format!("JetStream: {text}")),
        _ if error.code() >= 500 => SinkError::down(format!("JetStream: {text}")),
        // A refusal that is not known here must not kill a message.
        _ => SinkError::unroutable(format!("the stream refused it: {text}")),
    }
}

pub(crate) fn lost() -> SinkError {
    SinkError::down("the connection was lost")
}

pub(crate) fn late() -> SinkError {
    SinkError::down("no acknowledgement in time")
}

/// The error of JetStream that is the reason of another one.
pub(crate) fn jetstream_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a jetstream::Error> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}
