//! Everything that this worker holds, by lease, with the stage that each message has reached: the one owner.
//!
//! The other parts of the dispatcher keep leases at most, in the order that they need. A lease whose message has left the
//! stage they knew it in is skipped, so that losing one is a matter of this map alone.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::by_lease::{ByItem, ByLease};
use super::hot::Slot;
use super::progress::Progress;
use crate::id::{Lease, WorkItemId};
use crate::message::Message;
use crate::outcome::Settlement;

/// A message that this worker owns.
#[derive(Debug)]
pub(super) struct Holding {
    pub(super) message: Arc<Message>,
    /// The lease lasts at least until then, by this machine's monotonic clock.
    pub(super) until: Instant,
    pub(super) stage: Stage,
}

/// How far a message has come.
#[derive(Debug)]
pub(super) enum Stage {
    Waiting(Waiting),
    Running(Running),
    Decided(Decided),
}

/// A message that has not started.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) awaits: Awaits,
    pub(super) since: Instant,
    /// Its place in the hot queue, if it came that way.
    pub(super) slot: Option<Slot>,
}

/// The condition that a message waits for before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    /// A free handler: it is queued.
    Handler,
    /// It came by the hot path, and nothing is known yet about pauses.
    PauseCheck,
    /// Its lease is about to end.
    Renewal,
}

/// How a message came here: from memory right after its commit, or by a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    Hot,
    Cold,
}

impl Path {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::Cold => "cold",
        }
    }
}

impl Waiting {
    pub(super) fn path(&self) -> Path {
        if self.slot.is_some() { Path::Hot } else { Path::Cold }
    }
}

/// A message in the hands of its handlers.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) progress: Arc<Progress>,
    pub(super) phase: Phase,
    /// When its phase ends, unless the handlers end before.
    pub(super) deadline: Instant,
    pub(super) timeout: Duration,
    pub(super) started: Instant,
    /// The store has said that the lease is lost.
    pub(super) is_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Working,
    /// Asked to stop.
    Cancelled(Why),
    /// Dropped, because it did not stop.
    Dropped(Why),
    /// Gone; its retry policy is being asked for a delay.
    Judged,
}

/// Why a delivery was asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    TimedOut,
    Lost,
    ShutDown,
}

/// An outcome that the store does not have yet.
#[derive(Debug)]
pub(super) struct Decided {
    pub(super) settlement: Settlement,
    /// Whether it is on its way to the store.
    pub(super) is_settling: bool,
    /// How often the store has refused it by itself.
    pub(super) refusals: u32,
    /// How often another session had locked its message.
    pub(super) locks_met: u32,
    /// Whether to claim at once when it is settled: the message was given back only because this worker could not tell
    /// whether it is paused.
    pub(super) then_look: bool,
}

/// How much is in which stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) awaiting_pause_check: usize,
    pub(super) hot: usize,
    pub(super) cold: usize,
    /// The bytes of the cold ones.
    pub(super) cold_bytes: usize,
    pub(super) awaiting_renewal: usize,
    /// Messages that wait and must run alone.
    pub(super) suspects: usize,
    pub(super) running: usize,
    pub(super) decided: usize,
    pub(super) settling: usize,
}

impl Counts {
    fn add(&mut self, holding: &Holding) {
        self.change(holding, |number, by| *number += by);
    }

    fn subtract(&mut self, holding: &Holding) {
        self.change(holding, |number, by| *number -= by);
    }

    fn change(&mut self, holding: &Holding, change: impl Fn(&mut usize, usize)) {
        match &holding.stage {
            Stage::Running(_) => change(&mut self.running, 1),
            Stage::Decided(Decided { is_settling: true, .. }) => change(&mut self.settling, 1),
            Stage::Decided(_) => change(&mut self.decided, 1),
            Stage::Waiting(Waiting { awaits, slot, .. }) => {
                change(&mut self.suspects, usize::from(runs_alone(&holding.message)));
                match (awaits, slot) {
                    (Awaits::PauseCheck, _) => change(&mut self.awaiting_pause_check, 1),
                    (Awaits::Renewal, _) => change(&mut self.awaiting_renewal, 1),
                    (Awaits::Handler, Some(_)) => change(&mut self.hot, 1),
                    (Awaits::Handler, None) => {
                        change(&mut self.cold, 1);
                        change(&mut self.cold_bytes, holding.message.size());
                    }
                }
            }
        }
    }

    /// Messages that wait for a free handler.
    pub(super) fn queued(&self) -> usize {
        self.hot + self.cold
    }

    /// Messages that have not started.
    pub(super) fn waiting(&self) -> usize {
        self.queued() + self.awaiting_pause_check + self.awaiting_renewal
    }
}

/// Whether a message must run alone. A message that lost one lease may only have waited in a process that died; two lost
/// leases suggest that it crashes its worker.
pub(super) fn runs_alone(message: &Message) -> bool {
    message.lease_losses > 1
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Held {
    by_lease: ByLease<Holding>,
    /// How many leases of each message: more than one if this worker lost one without noticing.
    by_item: ByItem<u32>,
    counts: Counts,
}

impl Held {
    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn len(&self) -> usize {
        self.by_lease.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_lease.is_empty()
    }

    pub(super) fn get(&self, lease: Lease) -> Option<&Holding> {
        self.by_lease.get(&lease)
    }

    pub(super) fn insert(&mut self, holding: Holding) {
        self.counts.add(&holding);
        let lease = holding.message.lease();
        match self.by_lease.insert(lease, holding) {
            Some(before) => self.counts.subtract(&before),
            None => *self.by_item.entry(lease.item).or_default() += 1,
        }
    }

    pub(super) fn remove(&mut self, lease: Lease) -> Option<Holding> {
        let holding = self.by_lease.remove(&lease)?;
        self.counts.subtract(&holding);
        if let Entry::Occupied(mut leases) = self.by_item.entry(lease.item) {
            *leases.get_mut() -= 1;
            if *leases.get() == 0 {
                leases.remove();
            }
        }
        Some(holding)
    }

    /// Whether this message is held under any lease.
    pub(super) fn has(&self, item: WorkItemId) -> bool {
        self.by_item.contains_key(&item)
    }

    /// Changes the message held under a lease; false if there is none.
    pub(super) fn change(&mut self, lease: Lease, change: impl FnOnce(&mut Holding)) -> bool {
        let Some(holding) = self.by_lease.get_mut(&lease) else { return false };
        self.counts.subtract(holding);
        change(holding);
        self.counts.add(holding);
        true
    }

    /// The message that waits under this lease.
    pub(super) fn waiting(&self, lease: Lease) -> Option<(&Holding, &Waiting)> {
        match self.by_lease.get(&lease) {
            Some(holding @ Holding { stage: Stage::Waiting(waiting), .. }) => Some((holding, waiting)),
            _ => None,
        }
    }

    /// The delivery under way of this lease.
    pub(super) fn running(&mut self, lease: Lease) -> Option<(&Arc<Message>, &mut Running)> {
        match self.by_lease.get_mut(&lease) {
            Some(Holding { message, stage: Stage::Running(running), .. }) => Some((message, running)),
            _ => None,
        }
    }

    /// All deliveries under way.
    pub(super) fn all_running(&mut self) -> impl Iterator<Item = (Lease, &Arc<Message>, &mut Running)> {
        self.by_lease.iter_mut().filter_map(|(lease, holding)| match &mut holding.stage {
            Stage::Running(running) => Some((*lease, &holding.message, running)),
            _ => None,
        })
    }

    pub(super) fn any(&self, is_it: impl Fn(&Holding) -> bool) -> bool {
        self.by_lease.values().any(is_it)
    }

    /// The leases of messages like this.
    pub(super) fn leases(&self, which: impl Fn(&Holding) -> bool) -> Vec<Lease> {
        let found = self.by_lease.iter().filter(|(_, holding)| which(holding));
        found.map(|(lease, _)| *lease).collect()
    }
}
