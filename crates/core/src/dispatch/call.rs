//! Calls to users' code and stores, whose panics count as results: a handler's is a failed attempt, a store's an
//! error.
//!
//! Nothing is forgotten because of a panic: what such a call was to do is up to the caller to repeat.

use std::any::Any;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::error::{Error, ErrorKind, Result};

/// Runs a future to its end, or to its panic.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    let end = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Pending) => Poll::Pending,
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Err(panic) => Poll::Ready(Err(panic)),
    });
    end.await
}

/// A call to the store. If it panics, the store has a defect, and the caller goes on.
pub(crate) async fn unpanicked<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    caught(call).await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Database, "the store panicked")))
}
