//! What deliveries came to, on its way back to the dispatcher: each leaves its end here, and all are taken at once.
//!
//! A delivery that is dropped half-way leaves its end as well: nothing that was started may end unnoticed.
//!
//! A woken task runs next on the thread that woke it, and nowhere else. A runner that wakes the dispatcher and then goes on would
//! keep it from running. So a runner wakes it when it pauses, and not before it begins another delivery, which may take long.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::id::Lease;
use crate::outcome::Settlement;

/// The end of one delivery.
#[derive(Debug)]
pub(super) struct End {
    pub(super) lease: Lease,
    /// What to tell the store; none if the delivery was dropped before that was decided, or its lease was lost.
    pub(super) settlement: Option<Settlement>,
}

/// Ends that the dispatcher has not taken yet.
#[derive(Debug, Default)]
pub(super) struct Ends {
    left: Mutex<Left>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct Left {
    ends: Vec<End>,
    /// Whether the dispatcher was told: it takes all ends at once.
    is_told: bool,
}

impl Ends {
    fn left(&self) -> MutexGuard<'_, Left> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all there are.
    pub(super) fn take(&self) -> Vec<End> {
        std::mem::take(&mut *self.left()).ends
    }

    /// Resolves when there may be some.
    pub(super) async fn some(&self) {
        self.bell.notified().await;
    }

    /// Notifies the dispatcher, if there is an end that it does not know of.
    pub(super) fn ring(&self) {
        let mut left = self.left();
        let is_news = !left.ends.is_empty() && !std::mem::replace(&mut left.is_told, true);
        drop(left);
        if is_news {
            self.bell.notify_one();
        }
    }
}

/// Held by a delivery for as long as it lasts; leaves its end when it is dropped.
#[derive(Debug)]
pub(super) struct Ending {
    ends: Arc<Ends>,
    lease: Lease,
    settlement: Option<Settlement>,
    rings: bool,
}

impl Ending {
    pub(super) fn new(ends: &Arc<Ends>, lease: Lease) -> Self {
        Self { ends: Arc::clone(ends), lease, settlement: None, rings: true }
    }

    /// It is decided what becomes of the message.
    pub(super) fn decided(mut self, settlement: Settlement) {
        self.settlement = Some(settlement);
    }

    /// The same, and the caller notifies soon.
    pub(super) fn decided_silently(mut self, settlement: Settlement) {
        (self.settlement, self.rings) = (Some(settlement), false);
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends.left().ends.push(End { lease: self.lease, settlement: self.settlement.take() });
        if self.rings {
            self.ends.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::id::WorkItemId;
    use crate::outcome::Outcome;

    fn ack(item: i64) -> Settlement {
        Settlement::new(lease(item), Outcome::Ack)
    }

    fn lease(item: i64) -> Lease {
        Lease { item: WorkItemId::new(item), epoch: 1 }
    }

    /// All ends arrive, of deliveries that answered and of deliveries that were dropped before they began.
    #[tokio::test]
    async fn every_end_arrives() {
        let ends = Arc::new(Ends::default());
        let task = |item| {
            let ending = Ending::new(&ends, lease(item));
            tokio::spawn(async move { ending.decided(ack(item)) })
        };
        let dropped = task(1);
        dropped.abort();
        let answered = task(2);
        drop((dropped.await, answered.await));
        ends.some().await;
        let mut came: Vec<_> =
            ends.take().into_iter().map(|end| (end.lease, end.settlement.is_some())).collect();
        came.sort_unstable();
        assert_eq!(came, [(lease(1), false), (lease(2), true)]);
        assert!(ends.take().is_empty());
    }

    /// The next notification covers an end that was left silently, once.
    #[tokio::test]
    async fn silent_ones_wait_for_a_ring() {
        let ends = Arc::new(Ends::default());
        let is_told = async || tokio::time::timeout(Duration::from_millis(20), ends.some()).await.is_ok();
        Ending::new(&ends, lease(1)).decided_silently(ack(1));
        assert!(!is_told().await);
        drop(Ending::new(&ends, lease(2)));
        assert!(is_told().await);
        ends.ring();
        assert!(!is_told().await, "it knows");
        assert_eq!(ends.take().len(), 2);
        ends.ring();
        assert!(!is_told().await, "nothing is there");
        Ending::new(&ends, lease(3)).decided_silently(ack(3));
        ends.ring();
        assert!(is_told().await);
    }
}
