//! Shared by the cases: messages to send, and waiting for their arrival.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{Batch, Headers, Message, MessageId, Sink, Verdict};
use tokio::time::{Instant, sleep};

use crate::{Arrived, SinkFixture, claimed};

/// How long a case waits for messages that must come, on a slow and busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// In every payload and header: it must never be seen in a log.
pub(crate) const CANARY: &str = "canary-7f3a";

/// A message of a topic, with something in it that must not be seen.
pub(crate) fn message(topic: &str, payload: impl Into<Vec<u8>>) -> Message {
    let headers = Headers::from([("note".to_owned(), CANARY.to_owned())]);
    Message { headers, ..claimed(topic, payload) }
}

/// So many messages of a topic.
pub(crate) fn messages(topic: &str, count: usize) -> Vec<Arc<Message>> {
    (0..count).map(|n| Arc::new(message(topic, format!("{{\"n\":{n},\"of\":\"{CANARY}\"}}")))).collect()
}

/// Sends a batch with all the time it needs.
pub(crate) async fn send(sink: &impl Sink, batch: &[Arc<Message>]) -> Vec<Verdict> {
    let verdicts = sink.send(&Batch::new(batch, Instant::now() + LONG)).await;
    assert_eq!(verdicts.len(), batch.len(), "one verdict per message");
    verdicts
}

/// The arrived messages of a topic, once they include all of these.
pub(crate) async fn arrived<F: SinkFixture>(
    fixture: &Arc<F>,
    topic: &str,
    expected: &[Arc<Message>],
) -> Vec<Arrived> {
    let ids: BTreeSet<MessageId> = expected.iter().map(|message| message.id).collect();
    let deadline = Instant::now() + LONG;
    loop {
        let arrived = fixture.arrived(topic).await;
        let there: BTreeSet<MessageId> = arrived.iter().map(|arrived| arrived.id).collect();
        if ids.is_subset(&there) {
            return arrived;
        }
        assert!(Instant::now() < deadline, "{} of {} have arrived", there.len(), ids.len());
        sleep(Duration::from_millis(20)).await;
    }
}
