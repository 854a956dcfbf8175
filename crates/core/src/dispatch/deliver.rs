//! One message through its handlers: in their order, only those that are not done yet, with panics caught.
//!
//! Nothing here talks to the store: what came of it is told to the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use tracing::{Instrument as _, info, info_span};

use super::call::caught;
use crate::handler::{Arrival, HandlerError, HandlerResult};
use crate::registry::Registered;
use crate::trace::TraceContext;

/// Calls the handlers, one after the other, until one is not done.
pub(crate) async fn deliver(
    handlers: Vec<Arc<Registered>>,
    arrival: Arrival,
    store: Arc<str>,
) -> HandlerResult {
    let (message, progress) = (&arrival.message, &arrival.progress);
    let context = TraceContext::of(message).child();
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
            if progress.is_done(&handler) {
                continue;
            }
            if progress.is_cancelled() {
                // Its lease is lost, or its time is over: nothing more begins. The dispatcher knows why, and what follows.
                return Err(HandlerError::defer(Duration::ZERO));
            }
            // A target of its own: whoever has thousands a second can leave it out, and keep the span.
            info!(target: "posthaste_core::delivery", handler = %handler.name, "handler called");
            progress.calls(&handler);
            // Inside of the future, so that a panic in making the handler's own is caught, too.
            caught(async { handler.call(&arrival).await })
                .await
                .unwrap_or_else(|panic| Err(HandlerError::panicked(&*panic)))?;
            // With one handler, the ack says all there is to say.
            if many {
                progress.done(&handler);
            }
        }
        Ok(())
    };
    context.scope(calls.instrument(span)).await
}
