//! One message through its handlers: in their order, only those that are not done yet, with panics caught.
//!
//! Nothing here talks to the store: what came of it is told to the dispatcher.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::{Instrument as _, info, info_span};

use super::call::caught;
use crate::handler::{Arrival, HandlerError, HandlerResult};
use crate::registry::Registered;
use crate::trace::TraceContext;

/// How far a message has come, shared with the dispatcher, which may have to drop the delivery half-way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress(Arc<Mutex<Way>>);

#[derive(Debug, Default)]
struct Way {
    /// The handlers that are done.
    done: Vec<String>,
    /// The one that was called last.
    last: Option<Arc<Registered>>,
}

impl Progress {
    pub(crate) fn new(handled: &[String]) -> Self {
        Self(Arc::new(Mutex::new(Way { done: handled.to_vec(), last: None })))
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.way().done.clone()
    }

    /// The name of the handler that was called last.
    pub(crate) fn last(&self) -> Option<String> {
        self.way().last.as_ref().map(|handler| handler.name.clone())
    }
}

/// Calls the handlers, one after the other, until one is not done.
pub(crate) async fn deliver(
    handlers: Vec<Arc<Registered>>,
    arrival: Arrival,
    progress: Progress,
    store: Arc<str>,
) -> HandlerResult {
    let message = Arc::clone(&arrival.message);
    let context = TraceContext::of(&message).child();
    let span = info_span!(
        "deliver",
        message_id = %message.id,
        topic = %message.topic,
        attempt = message.attempts.saturating_add(1),
        trace_id = %context.trace_hex(),
        span_id = %context.span_hex(),
        store = %store,
    );
    let many = handlers.len() > 1;
    let calls = async {
        for handler in handlers {
            if progress.way().done.contains(&handler.name) {
                continue;
            }
            if arrival.cancel.is_cancelled() {
                // Its lease is lost, or its time is over: nothing more begins. The dispatcher knows why, and what follows.
                return Err(HandlerError::defer(Duration::ZERO));
            }
            // A target of its own: whoever has thousands a second can leave it out, and keep the span.
            info!(target: "posthaste_core::delivery", handler = %handler.name, "handler called");
            progress.way().last = Some(Arc::clone(&handler));
            // Inside of the future, so that a panic in making the handler's own is caught, too.
            caught(async { handler.call(&arrival).await })
                .await
                .unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic)))?;
            // With one handler, the ack says all there is to say.
            if many {
                progress.way().done.push(handler.name.clone());
            }
        }
        Ok(())
    };
    context.scope(calls.instrument(span)).await
}
