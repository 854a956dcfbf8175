//! When and how much to claim: polling, prefetch, and the claims under way.
//!
//! Nothing is claimed that could not start, or that memory has no room for.

use std::sync::Arc;

use tokio::time::Instant;
use tracing::debug;

use super::held::Held;
use super::prefetch::Prefetch;
use crate::message::Message;
use crate::metrics::{self, count};
use crate::outbox::Home;
use crate::poll::Poll;

/// How many claims may be under way at a time.
const MOST_CLAIMS: u32 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Claimer {
    home: Arc<dyn Home>,
    poll: Poll,
    prefetch: Prefetch,
    last_full: Option<Instant>,
    /// How many claims are under way, and how many messages they may bring.
    under_way: u32,
    expected: usize,
    /// Whether the last claim came back full, so that there is more.
    was_full: bool,
    /// Whether this outbox waits for its turn among the tenants of the process.
    awaits_turn: bool,
    /// Whether something became claimable that the claim under way may have missed: certainly, or perhaps.
    look_again: bool,
    look_soon: bool,
    average_bytes: f64,
    /// Grows with everything that may have made something claimable.
    activity: u64,
    /// The activity as of which a claim found nothing.
    nothing_since: Option<u64>,
}

/// The rest of the dispatcher's state that matters for claiming.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation {
    /// Whether nothing may be claimed at the moment.
    pub(super) is_closed: bool,
    /// Handlers that have nothing to do.
    pub(super) free: usize,
    /// Whether to claim only until nothing is left that is due.
    pub(super) until_idle: bool,
}

/// A claim that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) limit: u32,
    /// The activity when it began.
    activity: u64,
}

impl Claimer {
    pub(super) fn new(home: Arc<dyn Home>, now: Instant) -> Self {
        let settings = &home.plan().settings;
        let poll = Poll::of(settings, home.share().has_others(), now);
        let prefetch = Prefetch::new(settings.workers as usize, settings.batch as usize);
        Self {
            home,
            poll,
            prefetch,
            last_full: None,
            under_way: 0,
            expected: 0,
            was_full: false,
            awaits_turn: false,
            look_again: false,
            look_soon: false,
            average_bytes: 1024.0,
            activity: 0,
            nothing_since: None,
        }
    }

    pub(super) fn is_claiming(&self) -> bool {
        self.under_way > 0
    }

    /// Whether the last claim found nothing, and nothing has happened since.
    pub(super) fn found_nothing(&self) -> bool {
        self.nothing_since == Some(self.activity)
    }

    /// Something happened that may have made a message claimable.
    pub(super) fn note_activity(&mut self) {
        self.activity += 1;
    }

    /// A message will be due then.
    pub(super) fn hint(&mut self, due: Instant) {
        self.poll.hint(due);
    }

    /// There is something to claim, certainly or as good as.
    pub(super) fn look_at_once(&mut self, now: Instant) {
        self.poll.found_all(now);
        self.look_again = self.is_claiming();
    }

    /// There may be something to claim.
    pub(super) fn look_soon(&mut self, now: Instant) {
        self.poll.woken(now);
        self.look_soon = self.is_claiming();
    }

    /// A delivery has ended.
    pub(super) fn delivery_ended(&mut self) {
        self.prefetch.ended();
    }

    /// A claimed message has waited this long in memory.
    pub(super) fn waited(&mut self, waited: std::time::Duration) {
        self.prefetch.waited(waited);
    }

    /// When to poll next. While it waits for a turn, this outbox is woken for it.
    pub(super) fn next_wakeup(&self, held: &Held, situation: &Situation) -> Option<Instant> {
        let is_over = situation.until_idle && self.found_nothing();
        if self.awaits_turn || is_over {
            return None;
        }
        self.wanted(held, situation).map(|_| self.poll.next())
    }

    /// How many messages to claim, if any at all.
    fn wanted(&self, held: &Held, situation: &Situation) -> Option<u32> {
        let (settings, share, counts) = (&self.home.plan().settings, self.home.share(), held.counts());
        // A second claim while the first is being read keeps the database busy, if there is more than handlers can wait for.
        let most = if self.was_full && share.may_claim_twice() { MOST_CLAIMS } else { 1 };
        if situation.is_closed || self.under_way >= most {
            return None;
        }
        // A cold message has its turn among hot ones, too.
        let free = situation.free.max(usize::from(counts.hot > 0));
        // A message that waits for its lease to be renewed waits in memory, too.
        let waiting = counts.cold + counts.awaiting_renewal + self.expected;
        let room = (settings.cold_capacity as usize).saturating_sub(waiting);
        let bytes = (settings.cold_bytes as usize).saturating_sub(counts.cold_bytes);
        // Other tenants may have filled the memory that all share; one message is always possible.
        let shared = share.room();
        let (room, bytes) = match shared {
            Some(all) => (room.min(all.messages.max(1)), bytes.min(all.bytes.max(1))),
            None => (room, bytes),
        };
        let fitting = self.fitting(bytes).saturating_sub(self.expected);
        let quantum = shared.map_or(usize::MAX, |_| settings.tenants_quantum as usize);
        let want = self.prefetch.want(waiting, free, self.is_claiming());
        u32::try_from(want.min(room).min(fitting).min(quantum)).ok().filter(|want| *want > 0)
    }

    /// How many messages of the usual size have room in so many bytes; at least one, if there is any room.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an estimate"
    )]
    fn fitting(&self, bytes: usize) -> usize {
        ((bytes as f64 / self.average_bytes) as usize).max(usize::from(bytes > 0))
    }

    /// The next claim, if it is time for one.
    pub(super) fn next_claim(&mut self, held: &Held, situation: &Situation, now: Instant) -> Option<Claim> {
        let is_due = if situation.until_idle { !self.found_nothing() } else { self.poll.next() <= now };
        let Some(limit) = self.wanted(held, situation).filter(|_| is_due) else {
            if std::mem::take(&mut self.awaits_turn) {
                self.home.share().wants_no_look();
            }
            return None;
        };
        self.awaits_turn = !self.home.share().may_look();
        if self.awaits_turn {
            return None;
        }
        self.poll.looked(now);
        self.under_way += 1;
        self.expected += limit as usize;
        (self.look_again, self.look_soon) = (false, false);
        Some(Claim { limit, activity: self.activity })
    }

    /// A claim has brought these messages. `is_dry` says that handlers had nothing to do meanwhile.
    pub(super) fn claimed(&mut self, claim: Claim, messages: &[Message], is_dry: bool) {
        self.is_over(claim);
        let (now, found) = (Instant::now(), messages.len());
        let found_count = u32::try_from(found).unwrap_or(claim.limit);
        self.home.share().looked(Some((found_count, claim.limit)));
        if found > 0 {
            debug!(store = %self.home.name(), claimed = found, "claimed");
            count(metrics::CLAIMED, self.home.name(), found as u64);
            self.note_activity();
        }
        // A suspect is claimed alone: that says nothing about what else there is.
        let is_alone = came_alone(messages);
        self.was_full = found == claim.limit as usize && !is_alone;
        if is_alone {
            self.poll.found_all(now);
        } else if self.was_full {
            self.poll.found_all(now);
            let since_last = self.last_full.replace(now).map(|last| now - last);
            self.prefetch.full(is_dry, since_last);
        } else if found > 0 {
            self.poll.found_some(now, found_count);
        } else {
            self.poll.found_none(now, fastrand::f64());
            self.nothing_since = Some(claim.activity);
        }
        if std::mem::take(&mut self.look_again) {
            self.poll.found_all(now);
        } else if std::mem::take(&mut self.look_soon) {
            self.poll.woken(now);
        }
        for message in messages {
            #[allow(clippy::cast_precision_loss, reason = "an estimate")]
            let bytes = (message.size() as f64).max(1.0);
            self.average_bytes = 0.8 * self.average_bytes + 0.2 * bytes;
        }
    }

    /// A claim has failed.
    pub(super) fn failed(&mut self, claim: Claim) {
        self.is_over(claim);
        self.home.share().looked(None);
        self.poll.failed(Instant::now(), fastrand::f64());
    }

    /// A call to the store ended in a panic of posthaste's own: it may have been a claim.
    pub(super) fn lost_track(&mut self) {
        (self.under_way, self.expected) = (0, 0);
        self.home.share().looked(None);
        self.poll.failed(Instant::now(), fastrand::f64());
    }

    fn is_over(&mut self, claim: Claim) {
        self.under_way = self.under_way.saturating_sub(1);
        self.expected = self.expected.saturating_sub(claim.limit as usize);
    }
}

/// Whether a claim has brought a suspect, which is claimed alone.
pub(super) fn came_alone(messages: &[Message]) -> bool {
    matches!(messages, [only] if only.lease_losses > 0)
}
