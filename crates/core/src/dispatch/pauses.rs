//! Paused topics, as far as this dispatcher knows.
//!
//! Claims need no such knowledge: the database leaves out paused topics. It is for messages that are never claimed, because
//! they come from memory, and for messages that were claimed and have not started. Old knowledge counts as none: the message
//! goes back to the cold path, where a claim decides. A handler that runs is left alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use crate::error::Result;
use crate::id::Lease;
use crate::outbox::Home;
use crate::topic::Topics;

/// How often the store is asked while there is something in memory.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// And while there is nothing: often enough that the first message to come finds an answer that holds.
const ASK_IDLE_EVERY: Duration = Duration::from_secs(5);
/// How long an answer holds.
const HOLDS_FOR: Duration = Duration::from_secs(8);

/// See the module.
#[derive(Debug)]
pub(super) struct Pauses {
    home: Arc<dyn Home>,
    topics: Topics,
    /// As of when: before the store was asked.
    known: Option<Instant>,
    /// When it was last asked, successfully or not.
    asked: Option<Instant>,
    is_asking: bool,
    /// Whether something came by the hot path since it was asked.
    heard: bool,
    /// Fresh messages that wait for the answer, in their order.
    unsure: Vec<Lease>,
}

/// Whether a message may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Start,
    Paused,
    /// Nothing is known that is recent enough.
    Unknown,
}

/// The effect of the store's answer on waiting messages.
#[derive(Debug)]
pub(super) struct Learned {
    /// Fresh messages that waited for the answer.
    pub(super) unsure: Vec<Lease>,
    /// Whether something is paused.
    pub(super) is_any_paused: bool,
    /// Whether that is news.
    pub(super) has_changed: bool,
}

impl Pauses {
    pub(super) fn new(home: Arc<dyn Home>) -> Self {
        Self {
            home,
            topics: Topics::none(),
            known: None,
            asked: None,
            is_asking: false,
            heard: false,
            unsure: Vec::new(),
        }
    }

    /// Whether a message of this topic may start.
    pub(super) fn admission(&self, topic: &str, now: Instant) -> Admission {
        if self.known.is_none_or(|known| now >= known + HOLDS_FOR) {
            Admission::Unknown
        } else if self.topics.contains(topic) {
            Admission::Paused
        } else {
            Admission::Start
        }
    }

    /// A message came by the hot path.
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }

    /// This message waits for the next answer.
    pub(super) fn await_answer(&mut self, lease: Lease) {
        self.unsure.push(lease);
    }

    /// Forgets the messages that wait for an answer.
    pub(super) fn forget(&mut self) {
        self.unsure.clear();
    }

    /// When to ask next. A tenant that has nothing in memory never does.
    pub(super) fn next_wakeup(&self, now: Instant, is_any_queued: bool) -> Option<Instant> {
        let is_busy = self.heard || is_any_queued;
        if self.is_asking || (!is_busy && self.home.share().has_others()) {
            return None;
        }
        let every = if is_busy { ASK_EVERY } else { ASK_IDLE_EVERY };
        Some(self.asked.filter(|_| self.unsure.is_empty()).map_or(now, |asked| asked + every))
    }

    /// Whether to ask the store now.
    pub(super) fn asks(&mut self, now: Instant, is_any_queued: bool) -> bool {
        let asks = self.next_wakeup(now, is_any_queued).is_some_and(|at| at <= now);
        if asks {
            (self.is_asking, self.heard, self.asked) = (true, false, Some(now));
        }
        asks
    }

    /// The store has answered.
    pub(super) fn learned(&mut self, asked: Instant, outcome: Result<Topics>) -> Learned {
        self.is_asking = false;
        let mut has_changed = false;
        match outcome {
            Ok(topics) => {
                self.known = Some(asked);
                has_changed = self.topics != topics;
                self.topics = topics;
            }
            Err(error) => debug!(store = %self.home.name(), %error, "cannot tell which topics are paused"),
        }
        let unsure = std::mem::take(&mut self.unsure);
        Learned { unsure, is_any_paused: !self.topics.is_none(), has_changed }
    }

    /// The query ended in a panic of posthaste's own, and has no answer.
    pub(super) fn lost_track(&mut self) {
        self.is_asking = false;
    }
}
