//! What a delivery under way shares with the dispatcher: how far it has come, whether it is to stop, and the task that it is, if it
//! is one.
//!
//! Nothing here waits, but for whoever asks to be told when to stop.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::held::Why;
use super::wake;
use crate::registry::Registered;

/// One for each delivery.
#[derive(Default)]
pub(crate) struct Progress {
    way: Mutex<Way>,
    /// Whether it is to stop: a look that needs no lock.
    cancelled: AtomicBool,
    pace: AtomicU8,
    bell: Notify,
}

const NOT_BEGUN: u8 = 0;
const IDLE: u8 = 1;
const POLLED: u8 = 2;

#[derive(Default)]
struct Way {
    /// The handlers that are done.
    done: Vec<String>,
    /// The one that was called last.
    last: Option<Arc<Registered>>,
    why_cancelled: Option<Why>,
    dropped: bool,
    task: Option<AbortHandle>,
}

impl Progress {
    pub(crate) fn new(handled: &[String]) -> Arc<Self> {
        let way = Way { done: handled.to_vec(), ..Way::default() };
        Arc::new(Self { way: Mutex::new(way), ..Self::default() })
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_done(&self, handler: &Registered) -> bool {
        self.way().done.contains(&handler.name)
    }

    pub(super) fn calls(&self, handler: &Arc<Registered>) {
        self.way().last = Some(Arc::clone(handler));
    }

    pub(super) fn done(&self, handler: &Registered) {
        self.way().done.push(handler.name.clone());
    }

    /// The names of the handlers that are done.
    pub(super) fn names(&self) -> Vec<String> {
        self.way().done.clone()
    }

    /// The name of the handler that was called last.
    pub(super) fn last(&self) -> Option<String> {
        self.way().last.as_ref().map(|handler| handler.name.clone())
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
        // Who waits is registered before the look: what is said between the two is heard.
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

    /// Whoever waits is told, and so is whoever asks later.
    #[tokio::test]
    async fn everybody_is_told_to_stop() {
        let progress = Progress::new(&[]);
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
