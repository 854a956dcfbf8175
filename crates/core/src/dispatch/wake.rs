//! Wakes a dispatcher, with the reason, and without tying it to the thread that woke it.
//!
//! A worker thread of tokio runs the task that it woke or spawned last as its next one, and no other thread may take that
//! task. If the code that goes on blocks its thread, that task is stuck with it: a dispatcher that a handler has woken, a
//! delivery that was spawned just before a handler that computes.

use std::sync::atomic::{AtomicU8, Ordering};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Notify;

/// Why a dispatcher is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It may start or claim something now: another tenant of the process has made room.
    Turn,
    /// There may be something to claim, now or after a commit that is about to come.
    Soon,
    /// There is something to claim, or what failed until now may work.
    Now,
}

/// The reasons to wake up that have come since the dispatcher's last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reasons(u8);

impl Reasons {
    pub(crate) fn has(self, reason: Reason) -> bool {
        self.0 & reason.bit() != 0
    }
}

impl Reason {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// The bell of one dispatcher.
#[derive(Debug, Default)]
pub(crate) struct Wakeup {
    reasons: AtomicU8,
    bell: Notify,
}

impl Wakeup {
    /// Wakes the dispatcher, or keeps it from falling asleep.
    pub(crate) fn wake(&self, reason: Reason) {
        self.reasons.fetch_or(reason.bit(), Ordering::AcqRel);
        self.bell.notify_one();
        // Other dispatchers give turns, and go on for a moment only. All other callers may be code of users.
        if reason != Reason::Turn {
            release_last_woken();
        }
    }

    /// Waits for a reason to wake up, and takes all that have come. Dropped before it resolves, it takes none.
    pub(crate) async fn reasons(&self) -> Reasons {
        loop {
            self.bell.notified().await;
            // One wake-up may be left over from a reason that was taken already.
            let reasons = self.reasons.swap(0, Ordering::AcqRel);
            if reasons != 0 {
                return Reasons(reasons);
            }
        }
    }
}

/// Lets other threads run the task that this thread has woken or spawned last: an empty task takes its place.
pub(crate) fn release_last_woken() {
    if let Ok(handle) = Handle::try_current()
        && handle.runtime_flavor() == RuntimeFlavor::MultiThread
    {
        handle.spawn(async {});
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;

    async fn is_asleep(wakeup: &Wakeup) -> bool {
        let mut reasons = pin!(wakeup.reasons());
        std::future::poll_fn(|context| Poll::Ready(reasons.as_mut().poll(context).is_pending())).await
    }

    #[tokio::test]
    async fn all_reasons_arrive_at_once_and_only_once() {
        let wakeup = Wakeup::default();
        assert!(is_asleep(&wakeup).await);
        wakeup.wake(Reason::Turn);
        wakeup.wake(Reason::Now);
        let reasons = wakeup.reasons().await;
        assert_eq!(
            [Reason::Turn, Reason::Soon, Reason::Now].map(|reason| reasons.has(reason)),
            [true, false, true]
        );
        assert!(is_asleep(&wakeup).await);
        wakeup.wake(Reason::Soon);
        let reasons = wakeup.reasons().await;
        assert_eq!(
            [Reason::Turn, Reason::Soon, Reason::Now].map(|reason| reasons.has(reason)),
            [false, true, false]
        );
    }

    /// The loop stops waiting whenever something else happens first.
    #[tokio::test]
    async fn a_wait_that_is_dropped_loses_no_reason() {
        let wakeup = Wakeup::default();
        let mut dropped = Box::pin(wakeup.reasons());
        assert!(
            std::future::poll_fn(|context| Poll::Ready(dropped.as_mut().poll(context).is_pending())).await
        );
        wakeup.wake(Reason::Now);
        drop(dropped);
        assert!(wakeup.reasons().await.has(Reason::Now));
    }
}
