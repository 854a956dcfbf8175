//! Keeps the leases of what this worker holds: renewed together, at a third of their time.
//!
//! A lease is counted from before the call that gave it, by the monotonic clock. What becomes of a lost one is decided by
//! the dispatcher.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::held::{Awaits, Decided, Held, Holding, Path, Running, Stage, Waiting};
use crate::id::Lease;
use crate::outbox::Home;
use crate::outcome::Settled;
use crate::store::MAX_BATCH;

/// The longest pause after a renewal that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Leases {
    home: Arc<dyn Home>,
    is_renewing: bool,
    renew_at: Instant,
}

/// The result of a renewal.
#[derive(Debug, Default)]
pub(super) struct Renewed {
    /// These are lost.
    pub(super) lost: Vec<Lease>,
    /// These waited for nothing else, and can start.
    pub(super) queued: Vec<(Lease, Path)>,
}

impl Leases {
    pub(super) fn new(home: Arc<dyn Home>, now: Instant) -> Self {
        let renew_at = now + home.plan().settings.lease / 3;
        Self { home, is_renewing: false, renew_at }
    }

    fn length(&self) -> Duration {
        self.home.plan().settings.lease
    }

    /// Renews as soon as possible: a message waits for it.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.renew_at = now;
    }

    pub(super) fn next_wakeup(&self, held: &Held) -> Option<Instant> {
        (!held.is_empty() && !self.is_renewing).then_some(self.renew_at)
    }

    /// The leases to renew, if it is time.
    pub(super) fn next_batch(&mut self, held: &Held, now: Instant) -> Option<Vec<Lease>> {
        if self.is_renewing || now < self.renew_at {
            return None;
        }
        let soon = now + self.length().mul_f64(0.7);
        let is_due = |holding: &Holding| holding.until <= soon && is_renewable(&holding.stage);
        let mut leases = held.leases(is_due);
        // The rest follows at once.
        self.renew_at = if leases.len() > MAX_BATCH as usize { now } else { now + self.length() / 3 };
        leases.truncate(MAX_BATCH as usize);
        self.is_renewing = !leases.is_empty();
        self.is_renewing.then_some(leases)
    }

    /// The store has answered, with one answer for each of these leases.
    pub(super) fn renewed(
        &mut self,
        held: &mut Held,
        leases: &[Lease],
        asked: Instant,
        answers: &[Settled],
    ) -> Renewed {
        self.is_renewing = false;
        let until = asked + self.length();
        let mut renewed = Renewed::default();
        for (lease, answer) in leases.iter().zip(answers) {
            if *answer == Settled::Locked {
                // It is still held, until its lease runs out.
                self.renew_at = self.renew_at.min(Instant::now() + self.pause());
                continue;
            }
            if *answer != Settled::Applied {
                // One that is being settled meanwhile has another answer coming.
                let is_renewable = held.get(*lease).is_some_and(|holding| is_renewable(&holding.stage));
                renewed.lost.extend(is_renewable.then_some(*lease));
                continue;
            }
            held.change(*lease, |holding| {
                holding.until = until;
                if let Stage::Waiting(waiting @ Waiting { awaits: Awaits::Renewal, .. }) = &mut holding.stage
                {
                    waiting.awaits = Awaits::Handler;
                    renewed.queued.push((*lease, waiting.path()));
                }
            });
        }
        // Messages that began to wait for a renewal after this one had been requested.
        if held.counts().awaiting_renewal > 0 {
            self.renew_at = Instant::now();
        }
        renewed
    }

    pub(super) fn failed(&mut self) {
        self.is_renewing = false;
        self.renew_at = Instant::now() + self.pause();
    }

    /// Before a renewal that did not take place is tried again.
    fn pause(&self) -> Duration {
        (self.length() / 10).min(LONGEST_PAUSE)
    }
}

fn is_renewable(stage: &Stage) -> bool {
    !matches!(
        stage,
        Stage::Decided(Decided { is_settling: true, .. }) | Stage::Running(Running { is_lost: true, .. })
    )
}
