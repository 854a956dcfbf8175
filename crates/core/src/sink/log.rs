//! Two sinks that need no receiver: one that tells of messages, one that forgets them.
//!
//! Neither shows anything of a message but what any log line may.

use async_trait::async_trait;
use tracing::info;

use super::{Batch, Sink, Verdict};

/// Takes everything and writes one line about each message to the log: its id, topic and size. For development.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogSink;

#[async_trait]
impl Sink for LogSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        for message in batch.iter() {
            info!(
                message_id = %message.id, topic = %message.topic, bytes = message.payload.len(),
                content_type = %message.content_type, "sent to the log"
            );
        }
        batch.all(&Ok(()))
    }

    fn name(&self) -> String {
        "log".to_owned()
    }
}

/// Takes everything and does nothing with it: for measurements, and for topics without a receiver.
#[derive(Clone, Copy, Debug, Default)]
pub struct NullSink;

#[async_trait]
impl Sink for NullSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        batch.all(&Ok(()))
    }

    fn name(&self) -> String {
        "null".to_owned()
    }
}
