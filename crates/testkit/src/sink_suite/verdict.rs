//! One verdict per message, and each of them right.

use std::sync::Arc;

use posthaste_core::{FailureClass, Sink as _};

use super::support::{CANARY, arrived, message, messages, send};
use crate::SinkFixture;

/// RMQ-002: a message without a queue or stream is unroutable, at once, and the sink is not down.
pub async fn nobody_takes_it<F: SinkFixture>(fixture: &Arc<F>) {
    let sink = fixture.sink(fixture.server());
    let verdict = send(&sink, &messages("nobody.listens", 1)).await.remove(0);
    let error = verdict.unwrap_err();
    assert_eq!(error.class(), FailureClass::Unroutable, "{}", error.failure().text());
    assert!(!error.is_down());
    assert!(sink.probe().await.is_ok());
}

/// RMQ-005: once a queue or stream takes the topic, the next try succeeds.
pub async fn until_somebody_does<F: SinkFixture>(fixture: &Arc<F>) {
    let sink = fixture.sink(fixture.server());
    let batch = messages("later", 3);
    assert!(send(&sink, &batch).await.iter().all(Result::is_err));
    fixture.take("later").await;
    assert!(send(&sink, &batch).await.iter().all(Result::is_ok));
    assert_eq!(arrived(fixture, "later", &batch).await.len(), 3);
}

/// RMQ-002, RMQ-003: in one batch some are taken and some are not, wherever they stand.
pub async fn each_message_has_its_own<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("known").await;
    let sink = fixture.sink(fixture.server());
    for (every, size) in [(2, 10), (3, 200), (7, 200), (97, 500)] {
        let topic = |n: usize| if n.is_multiple_of(every) { "unknown" } else { "known" };
        let batch: Vec<_> = (0..size).map(|n| Arc::new(message(topic(n), CANARY))).collect();
        let verdicts = send(&sink, &batch).await;
        for (n, verdict) in verdicts.iter().enumerate() {
            let class = verdict.as_ref().err().map(|error| error.class());
            let expected = n.is_multiple_of(every).then_some(FailureClass::Unroutable);
            assert_eq!(class, expected, "message {n} of {size}, every {every}");
        }
        let known: Vec<_> = batch.into_iter().filter(|message| message.topic == "known").collect();
        arrived(fixture, "known", &known).await;
    }
}

/// RMQ-003: batches under way at the same time have answers of their own.
pub async fn many_batches_at_a_time<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("known").await;
    let sink = Arc::new(fixture.sink(fixture.server()));
    let batches: Vec<Vec<_>> = (0..8)
        .map(|of| {
            let topic = |n: usize| if (n + of).is_multiple_of(5) { "unknown" } else { "known" };
            (0..100).map(|n| Arc::new(message(topic(n), CANARY))).collect()
        })
        .collect();
    let tasks: Vec<_> = batches
        .iter()
        .cloned()
        .map(|batch| {
            let sink = Arc::clone(&sink);
            tokio::spawn(async move { send(&*sink, &batch).await })
        })
        .collect();
    for (batch, task) in batches.iter().zip(tasks) {
        for (message, verdict) in batch.iter().zip(task.await.unwrap()) {
            assert_eq!(verdict.is_ok(), message.topic == "known");
        }
    }
    let known: Vec<_> = batches.into_iter().flatten().filter(|message| message.topic == "known").collect();
    assert_eq!(arrived(fixture, "known", &known).await.len(), known.len());
}

/// Protocol rule 13: a message that is larger than the receiver takes is reported as too large, and harms no message
/// with it or after it.
pub async fn too_large_is_said<F: SinkFixture>(fixture: &Arc<F>) {
    let Some(bytes) = F::TOO_LARGE else { return };
    fixture.take("sizes").await;
    let sink = fixture.sink(fixture.server());
    let batch = [vec![b'a'; 10], vec![b'b'; bytes], vec![b'c'; 10]]
        .map(|payload| Arc::new(message("sizes", payload)));
    let verdicts = send(&sink, &batch).await;
    let error = verdicts[1].as_ref().unwrap_err();
    assert_eq!((error.class(), error.is_down()), (FailureClass::TooLarge, false));
    assert!(verdicts[0].is_ok() && verdicts[2].is_ok(), "{verdicts:?}");
    let small = [Arc::clone(&batch[0]), Arc::clone(&batch[2])];
    assert_eq!(arrived(fixture, "sizes", &small).await.len(), 2);
}

/// Nothing to send is nothing to answer for.
pub async fn an_empty_batch<F: SinkFixture>(fixture: &Arc<F>) {
    let sink = fixture.sink(fixture.server());
    assert!(send(&sink, &[]).await.is_empty());
}
