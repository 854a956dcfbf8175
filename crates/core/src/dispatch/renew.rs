//! The leases that this worker holds: renewed together at a third of their time, and let go when they are lost.
//!
//! How long a lease lasts is counted from before the call that gave it, by the monotonic clock.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::warn;

use super::handle::Why;
use super::{Dispatcher, Reply};
use crate::id::Lease;
use crate::metrics::{self, count};
use crate::outcome::Settled;
use crate::store::{MAX_BATCH, Store};

/// Where a message that this worker owns is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Waiting,
    Running,
    /// Running still, but the store has said that the lease is lost.
    Lost,
    Gathered,
    Settling,
}

#[derive(Debug)]
pub(super) struct Held {
    /// Until when the lease lasts at least, by this machine's monotonic clock.
    pub(super) until: Instant,
    pub(super) stage: Stage,
}

impl<S: Store> Dispatcher<S> {
    pub(super) fn hold(&mut self, lease: Lease, until: Instant) {
        self.held.insert(lease, Held { until, stage: Stage::Waiting });
    }

    pub(super) fn renew(&mut self, now: Instant) {
        if self.renewing || now < self.renew_at {
            return;
        }
        let lease = self.inner.plan.settings.lease;
        self.renew_at = now + lease / 3;
        let due = self.held.iter().filter(|(_, held)| {
            !matches!(held.stage, Stage::Settling | Stage::Lost) && held.until <= now + lease.mul_f64(0.7)
        });
        let leases: Vec<Lease> = due.map(|(lease, _)| *lease).take(MAX_BATCH as usize).collect();
        if leases.is_empty() {
            return;
        }
        self.renewing = true;
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let asked = Instant::now();
            let outcome = inner.call(inner.store.renew(&leases, inner.plan.settings.lease)).await;
            Reply::Renewed { leases, asked, outcome }
        });
    }

    pub(super) fn renewed(&mut self, leases: &[Lease], asked: Instant, answers: &[Settled]) {
        let now = Instant::now();
        let until = asked + self.inner.plan.settings.lease;
        for (lease, answer) in leases.iter().zip(answers) {
            // One that is being settled meanwhile has another answer coming.
            let Some(held) = self.held.get_mut(lease).filter(|held| held.stage != Stage::Settling) else {
                continue;
            };
            if *answer == Settled::Applied {
                held.until = until;
            } else {
                self.lose(*lease, now);
            }
        }
        for waiting in std::mem::take(&mut self.stale) {
            let fresh = self.held.get(&waiting.lease()).is_some_and(|held| held.until == until);
            if fresh { self.queue.push(waiting) } else { self.stale.push(waiting) }
        }
        // What became stale after the question was asked is asked for again.
        if !self.stale.is_empty() {
            self.renew_at = now;
        }
    }

    /// A lease was lost: its message is not ours any more.
    pub(super) fn lose(&mut self, lease: Lease, now: Instant) {
        let Some(held) = self.held.get_mut(&lease) else { return };
        if matches!(held.stage, Stage::Settling | Stage::Lost) {
            return;
        }
        count(metrics::LOST, &self.inner.name, 1);
        warn!(item = %lease.item, store = %self.inner.name, "a lease was lost");
        match held.stage {
            Stage::Running => {
                held.stage = Stage::Lost;
                self.cancel(lease, Why::Lost, now, self.inner.plan.settings.cancel_grace);
            }
            Stage::Waiting => {
                self.held.remove(&lease);
                self.queue.remove(lease);
                self.stale.retain(|waiting| waiting.lease() != lease);
                self.pauses.remove(lease);
            }
            Stage::Gathered => {
                self.held.remove(&lease);
                self.pauses.remove(lease);
                self.gathered.retain(|gathered| gathered.settlement.lease != lease);
            }
            Stage::Settling | Stage::Lost => {}
        }
    }
}
