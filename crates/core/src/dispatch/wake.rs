//! Wakes a task without tying it to the thread that woke it.
//!
//! A worker thread of tokio runs the task that it woke or spawned last as its next one, and no other thread may take that
//! task. If the code that goes on blocks its thread, that task is stuck with it: a dispatcher that a handler has woken, a
//! delivery that was spawned just before a handler that computes.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Lets other threads run the task that this thread has woken or spawned last: an empty task takes its place.
pub(crate) fn release_last_woken() {
    if let Ok(handle) = Handle::try_current()
        && handle.runtime_flavor() == RuntimeFlavor::MultiThread
    {
        handle.spawn(async {});
    }
}
