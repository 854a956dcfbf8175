//! How messages come in: fresh ones through the hot path, claimed ones through the cold path, and how many of those.
//!
//! Nothing is claimed that could not start, or that memory has no room for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::hot::Fresh;
use super::queue::{Waiting, runs_alone};
use super::{Dispatcher, Reply, Until};
use crate::id::{Lease, WorkItemId};
use crate::message::Message;
use crate::metrics::{self, count};
use crate::outcome::Outcome;
use crate::store::{ClaimRequest, Store};

/// How many claims may be under way at a time.
const MOST_CLAIMS: u32 = 2;
/// A message that comes back while its last delivery is still under way here waits this long.
const OVERLAP_DELAY: Duration = Duration::from_secs(1);
impl<S: Store> Dispatcher<S> {
    pub(super) fn arrived(&mut self, fresh: Fresh) {
        let Fresh { message, slot, leased } = fresh;
        count(metrics::HOT_ENQUEUED, &self.inner.name, 1);
        self.activity += 1;
        self.hold(message.lease(), leased + self.inner.plan.settings.lease);
        if self.is_stopping() {
            self.release(message);
        } else {
            let now = Instant::now();
            self.admit(Waiting { message, since: now, slot: Some(slot) }, now);
        }
    }

    /// How many messages to claim, if any at all.
    pub(super) fn wanted(&self, now: Instant) -> Option<u32> {
        let registry = &self.inner.plan.registry;
        // A second one while the first is being read keeps the database busy, if there is more than handlers can wait for.
        let most = if self.was_full && !self.inner.share.has_others() { MOST_CLAIMS } else { 1 };
        if self.claims >= most || self.is_stopping() || self.settle_at.is_some() || registry.is_empty() {
            return None;
        }
        if self.inner.share.must_give_way(now) {
            return None;
        }
        if self.has_loner(now) {
            return None;
        }
        let settings = &self.inner.plan.settings;
        let busy = self.running.len() + self.stuck.len();
        let mut free = (settings.workers as usize).saturating_sub(busy);
        if free == 0 && self.queue.hot_len() > 0 {
            // A cold message has its turn among hot ones, too.
            free = 1;
        }
        // What waits for its lease to be renewed waits in memory, too.
        let waiting = self.queue.cold_len() + self.stale.len() + self.expected;
        let room = (settings.cold_capacity as usize).saturating_sub(waiting);
        let bytes = (settings.cold_bytes as usize).saturating_sub(self.queue.cold_bytes());
        // Others may have filled the memory that all share; what is then left is for whoever has a turn.
        let shared = self.inner.share.room();
        let (room, bytes) = match shared {
            Some(all) => (room.min(all.messages.max(1)), bytes.min(all.bytes.max(1))),
            None => (room, bytes),
        };
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "an estimate"
        )]
        let fitting = ((bytes as f64 / self.average_bytes) as usize).max(usize::from(bytes > 0));
        let fitting = fitting.saturating_sub(self.expected);
        let quantum = shared.map_or(usize::MAX, |_| settings.tenants_quantum as usize);
        let want = self.prefetch.want(waiting, free, self.claims > 0).min(room).min(fitting).min(quantum);
        u32::try_from(want).ok().filter(|want| *want > 0)
    }

    /// Whether a suspect is here that runs alone. While it runs, or is to run, nothing else could start; nor may anything join
    /// one that waits: if it kills the process, that would be blamed as well, each time.
    fn has_loner(&self, now: Instant) -> bool {
        let runs = self.alone_until.is_some_and(|until| now < until) && !self.running.is_empty();
        let waits = self.queue.has_loner() || self.stale.iter().any(Waiting::runs_alone);
        runs || self.clearing_since.is_some() || waits
    }

    pub(super) fn claim(&mut self, now: Instant) {
        let due = match self.until() {
            Until::ShutDown => self.poll.next() <= now,
            Until::Idle => self.nothing_since != Some(self.activity),
        };
        let Some(limit) = self.wanted(now).filter(|_| due) else {
            if std::mem::take(&mut self.asked_to_look) {
                self.inner.share.wants_no_look();
            }
            return;
        };
        self.asked_to_look = !self.inner.share.may_look();
        if self.asked_to_look {
            return;
        }
        self.poll.looked(now);
        (self.claims, self.expected) = (self.claims + 1, self.expected + limit as usize);
        (self.look_again, self.look_soon) = (false, false);
        let (inner, activity) = (Arc::clone(&self.inner), self.activity);
        self.calls.spawn(async move {
            let request = ClaimRequest::new(inner.worker.clone())
                .limit(limit)
                .lease(inner.plan.settings.lease)
                .topics(inner.plan.registry.topics().into_owned());
            let asked = Instant::now();
            let outcome = inner.call(inner.store.claim(&request)).await;
            Reply::Claimed { limit, asked, activity, outcome }
        });
    }

    pub(super) fn claimed(&mut self, limit: u32, asked: Instant, activity: u64, messages: Vec<Message>) {
        let now = Instant::now();
        let found = messages.len();
        let found_count = u32::try_from(found).unwrap_or(limit);
        self.inner.share.looked(Some((found_count, limit)));
        if found > 0 {
            debug!(store = %self.inner.name, claimed = found, "claimed");
            count(metrics::CLAIMED, &self.inner.name, found as u64);
            self.activity += 1;
        }
        let free = self.running.len() + self.stuck.len() < self.inner.plan.settings.workers as usize;
        // A suspect comes alone: that says nothing about what else there is.
        let alone = found == 1 && messages.iter().any(|message| message.lease_losses > 0);
        self.was_full = found == limit as usize && !alone;
        if self.was_full || alone {
            self.poll.found_all(now);
            if !alone {
                let since_last = self.last_full_claim.replace(now).map(|last| now - last);
                self.prefetch.full(free && self.queue.is_empty(), since_last);
            }
        } else if found > 0 {
            self.poll.found_some(now, found_count);
        } else {
            self.poll.found_none(now, fastrand::f64());
            self.nothing_since = Some(activity);
        }
        if std::mem::take(&mut self.look_again) {
            self.poll.found_all(now);
        } else if std::mem::take(&mut self.look_soon) {
            self.poll.woken(now);
        }
        let old = self.older(&messages);
        old.iter().for_each(|old| self.lose(*old, now));
        // What was asked for before a suspect came in by another claim does not join it, either.
        let give_back = self.is_stopping() || (self.has_loner(now) && !alone);
        for message in messages {
            #[allow(clippy::cast_precision_loss, reason = "an estimate")]
            let bytes = (message.payload.len() as f64).max(1.0);
            self.average_bytes = 0.8 * self.average_bytes + 0.2 * bytes;
            let lease = message.lease();
            self.hold(lease, asked + self.inner.plan.settings.lease);
            let message = Arc::new(message);
            if give_back {
                self.release(message);
            } else if old.iter().any(|old| old.item == lease.item && self.running.contains_key(old)) {
                // Its handler has not stopped yet, and no two may have it at a time.
                self.gather(message, Outcome::Defer { delay: OVERLAP_DELAY }, None);
            } else if runs_alone(&message) && self.running.values().any(|one| runs_alone(&one.message)) {
                // The suspect that runs has taken longer than its time alone, and may still be the one that kills.
                self.gather(message, Outcome::Defer { delay: OVERLAP_DELAY }, None);
            } else {
                self.queue.push(Waiting { message, since: now, slot: None });
            }
        }
    }

    /// Leases of the same messages that were lost without this worker's noticing. None has, whose first lease this is.
    fn older(&self, messages: &[Message]) -> Vec<Lease> {
        let again: HashMap<WorkItemId, i32> = messages
            .iter()
            .filter(|message| message.epoch > 1)
            .map(|message| (message.item, message.epoch))
            .collect();
        if again.is_empty() {
            return Vec::new();
        }
        let is_older = |lease: &&Lease| again.get(&lease.item).is_some_and(|epoch| lease.epoch < *epoch);
        self.held.keys().filter(is_older).copied().collect()
    }
}
