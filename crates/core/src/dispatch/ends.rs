//! What deliveries came to, on its way back to the dispatcher: each leaves its end here, and all are taken at once.
//!
//! A delivery that is dropped half-way leaves its end as well: nothing that was started may end unnoticed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::handler::HandlerResult;
use crate::id::Lease;

/// The end of one delivery.
#[derive(Debug)]
pub(super) struct End {
    pub(super) lease: Lease,
    /// What the handlers answered; none if they were dropped before they did.
    pub(super) answer: Option<HandlerResult>,
}

/// Ends that nobody has looked at yet.
#[derive(Debug, Default)]
pub(super) struct Ends {
    waiting: Mutex<Vec<End>>,
    bell: Notify,
}

impl Ends {
    fn waiting(&self) -> MutexGuard<'_, Vec<End>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all there are.
    pub(super) fn take(&self) -> Vec<End> {
        std::mem::take(&mut *self.waiting())
    }

    /// Resolves when there may be some.
    pub(super) async fn some(&self) {
        self.bell.notified().await;
    }

    fn leave(&self, end: End) {
        let is_first = {
            let mut waiting = self.waiting();
            waiting.push(end);
            waiting.len() == 1
        };
        // Whoever comes to take the first one takes the others along.
        if is_first {
            self.bell.notify_one();
        }
    }
}

/// Held by a delivery for as long as it lasts; leaves its end when it is dropped.
#[derive(Debug)]
pub(super) struct Ending {
    ends: Arc<Ends>,
    lease: Lease,
    answer: Option<HandlerResult>,
}

impl Ending {
    pub(super) fn new(ends: &Arc<Ends>, lease: Lease) -> Self {
        Self { ends: Arc::clone(ends), lease, answer: None }
    }

    /// Its handlers have answered.
    pub(super) fn answered(mut self, answer: HandlerResult) {
        self.answer = Some(answer);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends.leave(End { lease: self.lease, answer: self.answer.take() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkItemId;

    fn lease(item: i64) -> Lease {
        Lease { item: WorkItemId::new(item), epoch: 1 }
    }

    /// All ends arrive, of those that answered and of those that were dropped before they began.
    #[tokio::test]
    async fn every_end_arrives() {
        let ends = Arc::new(Ends::default());
        let task = |item| {
            let ending = Ending::new(&ends, lease(item));
            tokio::spawn(async move { ending.answered(Ok(())) })
        };
        let dropped = task(1);
        dropped.abort();
        let answered = task(2);
        drop((dropped.await, answered.await));
        ends.some().await;
        let mut came: Vec<_> = ends.take().into_iter().map(|end| (end.lease, end.answer.is_some())).collect();
        came.sort_unstable();
        assert_eq!(came, [(lease(1), false), (lease(2), true)]);
        assert!(ends.take().is_empty());
    }
}
