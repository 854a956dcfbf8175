//! What a delivery under way shares with the dispatcher: how far it has come, whether it is to stop, and the task that it is, if it
//! is one.
//!
//! Nothing here waits, but for whoever asks to be told when to stop.

use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::registry::Registered;

/// One for each delivery.
#[derive(Default)]
pub(crate) struct Progress {
    way: Mutex<Way>,
    cancelled: AtomicBool,
    bell: Notify,
}

#[derive(Default)]
struct Way {
    /// The handlers that are done.
    done: Vec<String>,
    /// The one that was called last.
    last: Option<Arc<Registered>>,
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

    /// Tells it to stop.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        self.bell.notify_waiters();
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
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
        }
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
        progress.cancel();
        waiting.await.unwrap();
        progress.cancelled().await;
        assert!(progress.is_cancelled());
    }
}
