//! When other processes are told that there may be something to claim: at once while little is published, and in one word for
//! many messages while much is.
//!
//! The word may come before the commit that it is about: whoever hears it looks again, soon at first and then ever later. It is a
//! hint, and nothing here may fail or delay whoever publishes.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The pause after a word about few messages, and after one about many.
const PAUSE: Duration = Duration::from_millis(2);
const LONG_PAUSE: Duration = Duration::from_millis(20);
/// How many are few.
const FEW: u32 = 4;

/// What others have not been told about yet.
#[derive(Debug, Default)]
pub(crate) struct Nudges {
    gathered: AtomicU32,
    under_way: AtomicBool,
}

impl Nudges {
    /// There is something to tell. True for the one who has to see to it, by [`next`](Self::next).
    pub(crate) fn gather(&self) -> bool {
        self.gathered.fetch_add(1, Ordering::AcqRel);
        !self.under_way.swap(true, Ordering::AcqRel)
    }

    /// How long to pause after the word that is to be said now; none if there is nothing to say any more.
    pub(crate) fn next(&self) -> Option<Duration> {
        loop {
            match self.gathered.swap(0, Ordering::AcqRel) {
                0 => {
                    self.under_way.store(false, Ordering::Release);
                    // Whoever came in between relies on this one.
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
}
