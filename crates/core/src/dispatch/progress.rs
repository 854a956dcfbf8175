//! State that a running delivery shares with the dispatcher: the progress of each receiver, whether to stop, and its task,
//! if it has one.
//!
//! Nothing here waits, except for the signal to stop.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::held::Why;
use super::together::Judgement;
use super::wake;
use crate::registry::Registered;

/// One for each delivery.
#[derive(Default)]
pub(crate) struct Progress {
    way: Mutex<Way>,
    /// Whether it is to stop: a check that needs no lock.
    cancelled: AtomicBool,
    pace: AtomicU8,
    bell: Notify,
}

const NOT_BEGUN: u8 = 0;
const IDLE: u8 = 1;
const POLLED: u8 = 2;

#[derive(Default)]
struct Way {
    /// The receivers that were called, in this order.
    calls: Vec<Call>,
    why_cancelled: Option<Why>,
    dropped: bool,
    task: Option<AbortHandle>,
}

/// A receiver that was called, and the decision after its answer.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) receiver: Arc<Registered>,
    pub(super) judgement: Option<Judgement>,
}

impl Progress {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A receiver is called.
    pub(super) fn calls(&self, receiver: &Arc<Registered>) {
        self.way().calls.push(Call { receiver: Arc::clone(receiver), judgement: None });
    }

    /// A receiver has answered.
    pub(super) fn answered(&self, receiver: &Arc<Registered>, judgement: Judgement) {
        let mut way = self.way();
        if let Some(call) = way.calls.iter_mut().find(|call| Arc::ptr_eq(&call.receiver, receiver)) {
            call.judgement = Some(judgement);
        }
    }

    /// The receivers that were called so far.
    pub(super) fn called(&self) -> Vec<Call> {
        self.way().calls.clone()
    }

    /// The decision for the receiver that was called first.
    pub(super) fn judgement(&self) -> Option<Judgement> {
        self.way().calls.first_mut().and_then(|call| call.judgement.take())
    }

    /// Asks it to stop. The first reason counts.
    pub(super) fn cancel(&self, why: Why) {
        self.way().why_cancelled.get_or_insert(why);
        self.cancelled.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(super) fn why_cancelled(&self) -> Option<Why> {
        self.way().why_cancelled
    }

    /// Resolves when it is to stop.
    pub(crate) async fn cancelled(&self) {
        let mut rung = pin!(self.bell.notified());
        // Registered before the check, so that no signal between the two is lost.
        rung.as_mut().enable();
        if !self.is_cancelled() {
            rung.await;
        }
    }

    /// Drops it: now, if it waits for something, or as soon as it does.
    pub(super) fn abort(&self) {
        let mut way = self.way();
        way.dropped = true;
        if let Some(task) = &way.task {
            task.abort();
        }
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.way().dropped
    }

    /// It has to wait, and becomes a task of its own, unless it was dropped.
    pub(super) fn becomes(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut way = self.way();
        if !way.dropped {
            way.task = Some(tokio::spawn(task).abort_handle());
            drop(way);
            // The runner begins another delivery next, and that may block.
            wake::release_last_woken();
        }
    }

    /// Polls the delivery, or does other work of its user, so that others see it.
    pub(super) fn polled<T>(&self, poll: impl FnOnce() -> T) -> T {
        self.pace.store(POLLED, Ordering::Release);
        let polled = poll();
        self.pace.store(IDLE, Ordering::Release);
        polled
    }

    /// Whether the delivery has been polled at all.
    pub(super) fn has_begun(&self) -> bool {
        self.pace.load(Ordering::Acquire) != NOT_BEGUN
    }

    /// Whether the delivery is being polled: then it holds a thread.
    pub(super) fn is_polled(&self) -> bool {
        self.pace.load(Ordering::Acquire) == POLLED
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("is_cancelled", &self.is_cancelled()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signal reaches a task that waits for it, and one that asks later.
    #[tokio::test]
    async fn everybody_is_told_to_stop() {
        let progress = Progress::new();
        let waiting = tokio::spawn({
            let progress = Arc::clone(&progress);
            async move { progress.cancelled().await }
        });
        tokio::task::yield_now().await;
        assert!(!progress.is_cancelled() && !waiting.is_finished());
        progress.cancel(Why::TimedOut);
        waiting.await.unwrap();
        progress.cancelled().await;
        assert!(progress.is_cancelled());
    }
}
