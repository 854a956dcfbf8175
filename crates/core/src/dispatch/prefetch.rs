//! How many messages to claim ahead of the handlers. Pure.
//!
//! Claimed messages are owned and cannot go elsewhere, so at first only messages that can start now are claimed. When
//! handlers run dry although a claim was full, or use claims up so fast that they would follow each other closely, the
//! reach doubles; when messages wait too long in memory, it is halved.

use std::time::Duration;

/// How long a claimed message may wait in memory before the reach is too long.
const PATIENCE: Duration = Duration::from_millis(250);
/// Claims that follow each other more closely than this are too small.
const CLOSE: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Prefetch {
    workers: usize,
    most: usize,
    ahead: usize,
    /// How many handlers have ended since the last full claim.
    ended: usize,
}

impl Prefetch {
    pub(crate) fn new(workers: usize, most: usize) -> Self {
        Self { workers, most, ahead: 0, ended: 0 }
    }

    /// How many to claim now, given how many wait in memory or are on their way, and how many handlers are free; none means not
    /// yet. Behind fast handlers the reach is twice as long while some are on their way, so that the next ones can be, too.
    pub(crate) fn want(&self, waiting: usize, free: usize, some_come: bool) -> usize {
        let is_fast = self.ahead > self.workers;
        let ahead = if some_come && is_fast { 2 * self.ahead } else { self.ahead };
        // Waiting until half of the prefetched messages are used up keeps claims large.
        if waiting > ahead / 2 {
            return 0;
        }
        (free + ahead).saturating_sub(waiting).min(self.most)
    }

    /// A claim came back full: this long after the one before, and perhaps while handlers were without work.
    pub(crate) fn full(&mut self, dry: bool, since_last: Option<Duration>) {
        let used_up = self.ended > 0 && self.ended >= self.ahead / 2;
        let close = since_last.is_some_and(|since| since < CLOSE);
        if dry || (used_up && close) {
            self.ahead = (self.ahead * 2).max(self.workers).min(self.most);
        }
        self.ended = 0;
    }

    /// A handler has ended.
    pub(crate) fn ended(&mut self) {
        self.ended += 1;
    }

    /// A message waited this long in memory.
    pub(crate) fn waited(&mut self, waited: Duration) {
        if waited > PATIENCE {
            self.ahead = if self.ahead > self.workers { self.ahead / 2 } else { 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OBX-016: with slow handlers only messages that can start are claimed; with fast ones as many as keep them
    /// busy.
    #[test]
    fn the_reach_follows_the_handlers() {
        let mut prefetch = Prefetch::new(4, 200);
        assert_eq!(
            (prefetch.want(0, 4, false), prefetch.want(0, 0, false), prefetch.want(1, 4, false)),
            (4, 0, 0)
        );
        let mut wants = Vec::new();
        for _ in 0..8 {
            prefetch.full(true, None);
            wants.push(prefetch.want(0, 4, false));
        }
        assert_eq!(wants, [8, 12, 20, 36, 68, 132, 200, 200]);
        assert_eq!((prefetch.want(101, 4, false), prefetch.want(100, 0, false)), (0, 100));
        assert_eq!(
            (prefetch.want(200, 0, true), prefetch.want(201, 0, true)),
            (200, 0),
            "a claim behind a claim"
        );
        let mut slow = Prefetch::new(4, 200);
        slow.full(true, None);
        assert_eq!((slow.want(4, 0, true), slow.want(2, 0, true)), (0, 2), "as if they were here");
        (0..8).for_each(|_| prefetch.waited(Duration::from_secs(1)));
        assert_eq!(prefetch.want(0, 0, false), 0);
        prefetch.waited(Duration::ZERO);
        assert_eq!(prefetch.want(0, 3, false), 3);
    }

    /// HOT-014: claims that are used up at once grow, too, although the handlers never run dry; while no handler
    /// ends they do not, however close they are.
    #[test]
    fn close_claims_grow() {
        let mut prefetch = Prefetch::new(4, 200);
        prefetch.full(false, Some(Duration::ZERO));
        assert_eq!(prefetch.want(0, 0, false), 0);
        prefetch.ended();
        prefetch.full(false, Some(Duration::from_millis(50)));
        assert_eq!(prefetch.want(0, 0, false), 0);
        let mut reaches = Vec::new();
        for _ in 0..4 {
            (0..16).for_each(|_| prefetch.ended());
            prefetch.full(false, Some(Duration::from_millis(1)));
            reaches.push(prefetch.want(0, 0, false));
        }
        assert_eq!(reaches, [4, 8, 16, 32]);
    }
}
