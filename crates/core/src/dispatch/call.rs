//! A call to the store whose panic is an error like others: the store has a defect then, and whoever called it goes on.
//!
//! What such a call was to do is not forgotten: as after any error, it is up to the caller to repeat it.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::error::{Error, ErrorKind, Result};

pub(crate) async fn unpanicked<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let mut call = pin!(call);
    let caught = poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(_) => Poll::Ready(Err(Error::new(ErrorKind::Database, "the store panicked"))),
    });
    caught.await
}
