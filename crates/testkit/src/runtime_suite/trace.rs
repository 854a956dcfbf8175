//! The W3C trace context: from a publisher to its handlers, and on to the messages that they publish.
//!
//! A message must never fail because of it.

use std::sync::{Arc, Mutex, OnceLock};

use posthaste_core::{
    HandlerResult, JoinWait, Message, NewJoin, Outbox, Shared, State, TRACEPARENT, TRACESTATE, TraceContext,
};

use super::Scene;
use super::support::{
    Journal, becomes, done, draft, eventually, outbox, record, records, run, settings, start_join,
};
use crate::Fixture;

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// RMQ-006: a header's trace is the current one in the handler, and in the messages that it publishes, on either
/// path.
pub async fn a_trace_goes_on<F: Fixture>(scene: &Scene<F>) {
    type Own<S> = Arc<OnceLock<Outbox<S>>>;
    let (journal, own) = (Journal::new(), Own::<F::Store>::default());
    let current = Arc::new(Mutex::new(None));
    let seen = current.clone();
    let parent = move |_: Message, Shared(own): Shared<Own<F::Store>>| {
        let seen = seen.clone();
        async move {
            *seen.lock().unwrap() = TraceContext::current();
            let outbox = own.get().unwrap();
            let mut tx = outbox.begin().await?;
            tx.publish(draft("child")).await?;
            tx.commit().await?;
            outbox.enqueue(draft("child")).await?;
            HandlerResult::Ok(())
        }
    };
    let outbox = outbox(scene.store(), settings())
        .share(own.clone())
        .on_topic("parent", parent)
        .on_topic("child", journal.noting("child"))
        .build()
        .await
        .unwrap();
    own.set(outbox.clone()).unwrap();
    let running = run(&outbox);
    let message = draft("parent").header(TRACEPARENT, PARENT).header(TRACESTATE, "vendor=1");
    outbox.enqueue(message).await.unwrap();
    done(outbox.store(), 3).await;
    running.stop().await;
    let parent: TraceContext = PARENT.parse().unwrap();
    let current = current.lock().unwrap().clone().unwrap();
    assert_eq!(current.trace_id(), parent.trace_id());
    assert_ne!(current.span_id(), parent.span_id());
    for call in journal.calls() {
        let context = TraceContext::from_headers(&call.message.headers).unwrap();
        assert_eq!((context.trace_id(), context.span_id()), (parent.trace_id(), current.span_id()));
        assert_eq!(call.message.headers.get(TRACESTATE).map(String::as_str), Some("vendor=1"));
    }
    assert_eq!(journal.count(), 2);
    let spans: Vec<_> = scene.logs.all().into_iter().filter(|logged| logged.message == "deliver").collect();
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| span.field("trace_id") == parent.trace_id()));
}

/// RMQ-006: a publisher's own context is carried, too; an unreadable header does no harm.
pub async fn a_publishers_trace<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings()).on_topic("t", journal.noting("t")).build().await.unwrap();
    let running = run(&outbox);
    let context = TraceContext::new();
    let id = context.clone().scope(outbox.enqueue(draft("t"))).await.unwrap().id();
    let odd = outbox.enqueue(draft("t").header(TRACEPARENT, "00-garbage")).await.unwrap().id();
    becomes(outbox.store(), id, State::Done).await;
    becomes(outbox.store(), odd, State::Done).await;
    let headers = record(outbox.store(), id).await.message.headers;
    assert_eq!(headers.get(TRACEPARENT), Some(&context.to_string()));
    assert_eq!(record(outbox.store(), odd).await.message.headers[TRACEPARENT], "00-garbage");
    let plain = outbox.enqueue(draft("t")).await.unwrap().id();
    eventually("it is done", async || journal.has(plain)).await;
    becomes(outbox.store(), plain, State::Done).await;
    running.stop().await;
    assert!(record(outbox.store(), plain).await.message.headers.is_empty());
}

/// RMQ-006, JOIN-055: steps, waits and continuations all belong to the trace that started their join.
pub async fn a_joins_trace<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox =
        outbox(scene.store(), settings()).on_topic("*", journal.noting("all")).build().await.unwrap();
    let context = TraceContext::new();
    let join = NewJoin::of([draft("t")]).wait(JoinWait::on_complete(draft("next")));
    context.clone().scope(start_join(scene, &outbox, join)).await;
    assert_eq!(outbox.drain().await.unwrap().delivered, 3);
    let stored = records(outbox.store()).await;
    assert_eq!(stored.len(), 3);
    for record in stored {
        let headers = record.message.headers;
        assert_eq!(headers.get(TRACEPARENT), Some(&context.to_string()), "{}", record.message.topic);
    }
}
