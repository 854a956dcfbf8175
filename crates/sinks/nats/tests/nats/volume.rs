//! Many messages in batches of every size: each verdict belongs to its message.

use std::sync::Arc;
use std::time::Instant;

use async_nats::jetstream::stream::Config;
use posthaste_core::{FailureClass, Message};

use crate::support::{count, look, message, send, shared, sink, stream, unique};

/// F-22: of 20,000 messages every hundredth is unroutable, in batches of 1, 10, 50 and 500: no verdict is another's.
#[tokio::test]
async fn slow_every_verdict_is_its_own() {
    let Some(url) = shared() else { return };
    let js = look(&url).await;
    for size in [1, 10, 50, 500] {
        let name = unique();
        js.create_stream(Config { subjects: vec![format!("{name}.a")], ..stream(&name) }).await.unwrap();
        let sink = sink(&url, &name);
        let topic = |n: usize| if n % 100 == 37 { "nobody" } else { "a" };
        let all: Vec<Arc<Message>> =
            (0..20_000).map(|n| Arc::new(message(topic(n), format!("{{\"n\":{n}}}")))).collect();
        let started = Instant::now();
        for batch in all.chunks(size) {
            for (verdict, message) in send(&sink, batch).await.iter().zip(batch) {
                match verdict {
                    Ok(()) => assert!(message.topic == "a", "an unroutable message was taken"),
                    Err(error) => {
                        assert_eq!(error.class(), FailureClass::Unroutable);
                        assert!(message.topic == "nobody", "{}", error.failure().text());
                    }
                }
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("batches of {size}: {:.0} messages a second", 20_000.0 / seconds);
        assert_eq!(count(&js, &name).await, 19_800);
        js.delete_stream(&name).await.unwrap();
    }
}
