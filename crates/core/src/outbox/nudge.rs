//! When other processes are notified that there may be something to claim: at once at low rates, and once for many messages
//! at high rates.
//!
//! A notification may come before its commit: a notified process polls repeatedly, soon at first and then with growing pauses. It
//! is a hint, and nothing here may fail or delay a publisher.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The pause after a notification about few messages, and after one about many.
const PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// How many are few.
const FEW: u32 = 4;

/// Messages that others have not been notified of yet.
#[derive(Debug, Default)]
pub(crate) struct Nudges {
    gathered: AtomicU32,
    under_way: AtomicBool,
}

impl Nudges {
    /// There is something to notify. True for the one caller that has to do it, by [`next`](Self::next).
    pub(crate) fn gather(&self) -> bool {
        self.gathered.fetch_add(1, Ordering::AcqRel);
        !self.under_way.swap(true, Ordering::AcqRel)
    }

    /// How long to pause after the word that is to be said now; none if there is nothing to say any more.
    pub(crate) fn next(&self) -> Option<Duration> {
        loop {
            match self.gathered.swap(0, Ordering::AcqRel) {
                0 => {
                    // A swap, not a store: a plain store may become visible after the load below. A caller of `gather` in
                    // between would then rely on this task, and this task would miss it.
                    self.under_way.swap(false, Ordering::AcqRel);
                    let missed = self.gathered.load(Ordering::Acquire) > 0;
                    if !missed || self.under_way.swap(true, Ordering::AcqRel) {
                        return None;
                    }
                }
                few if few <= FEW => return Some(PAUSE),
                _ => return Some(LONG_PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_sees_to_what_all_gather() {
        let nudges = Nudges::default();
        assert_eq!([nudges.gather(), nudges.gather()], [true, false]);
        assert_eq!(nudges.next(), Some(PAUSE), "at once");
        (0..FEW).for_each(|_| assert!(!nudges.gather(), "somebody sees to it"));
        assert_eq!(nudges.next(), Some(PAUSE));
        (0..=FEW).for_each(|_| assert!(!nudges.gather()));
        assert_eq!(nudges.next(), Some(LONG_PAUSE), "many share a word");
        assert_eq!(nudges.next(), None);
        assert!(nudges.gather(), "nobody saw to it any more");
    }

    /// R17: a nudge that is gathered while the last task ends is sent by that task or by its caller. The race needs two
    /// processors; with one, this shows nothing.
    #[test]
    fn no_nudge_is_lost_when_a_task_ends() {
        let nudges = Nudges::default();
        let (begun, ended, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let is_callers = AtomicBool::new(false);
        let gather_once = |round: u32| {
            while begun.load(Ordering::Acquire) < round && !is_over.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            (0..round % 16).for_each(|_| std::hint::spin_loop());
            is_callers.store(nudges.gather(), Ordering::Relaxed);
            ended.store(round, Ordering::Release);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (1..).take_while(|_| !is_over.load(Ordering::Acquire)).for_each(gather_once));
            let started = std::time::Instant::now();
            // However slow the machine is, the rounds that it manages in this time must do.
            for round in (1..=300_000).take_while(|_| started.elapsed() < Duration::from_secs(3)) {
                nudges.gathered.store(0, Ordering::SeqCst);
                nudges.under_way.store(true, Ordering::SeqCst);
                begun.store(round, Ordering::Release);
                let is_told = std::iter::from_fn(|| nudges.next()).count() > 0;
                while ended.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
                if !is_told && !is_callers.load(Ordering::Relaxed) {
                    is_over.store(true, Ordering::Release);
                    panic!("round {round}: neither the task nor the caller tells it");
                }
            }
            is_over.store(true, Ordering::Release);
        });
    }
}
