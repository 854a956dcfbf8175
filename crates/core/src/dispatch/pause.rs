//! What is paused, as far as this dispatcher knows. Claims need no knowledge: the database leaves out what is paused. It is for
//! messages that are never claimed, because they come from memory, and for those that were claimed and have not started.
//!
//! Nothing that is paused may start because the store did not answer: knowledge that is old counts as none, and the message goes to
//! the cold path, where a claim decides. A handler that runs is left alone.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{debug, info};

use super::queue::Waiting;
use super::{Dispatcher, Reply};
use crate::error::Result;
use crate::id::Lease;
use crate::store::Store;
use crate::topic::Topics;

/// How often the store is asked while there is something in memory.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// And while there is nothing: often enough that the first message to come finds an answer that holds.
const ASK_IDLE_EVERY: Duration = Duration::from_secs(5);
/// For how long an answer holds.
const HOLDS_FOR: Duration = Duration::from_secs(8);

/// What a dispatcher knows of pauses.
#[derive(Debug)]
pub(super) struct Pauses {
    topics: Topics,
    /// As of when: before the store was asked.
    known: Option<Instant>,
    /// When it was asked last, whatever came of it.
    asked: Option<Instant>,
    asking: bool,
    /// Whether something came by the hot path since it was asked.
    heard: bool,
    /// Fresh messages that came while nothing was known: they wait for the answer.
    unsure: Vec<Waiting>,
    /// What was released because nobody could tell: it may be claimed at once.
    released: HashSet<Lease>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self {
            topics: Topics::none(),
            known: None,
            asked: None,
            asking: false,
            heard: false,
            unsure: Vec::new(),
            released: HashSet::new(),
        }
    }
}

impl Pauses {
    fn is_known(&self, now: Instant) -> bool {
        self.known.is_some_and(|known| now < known + HOLDS_FOR)
    }

    /// How many wait for an answer.
    pub(super) fn waiting(&self) -> usize {
        self.unsure.len()
    }

    /// Takes those who wait for an answer.
    pub(super) fn drain(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.unsure)
    }

    /// Forgets one of those who wait for an answer.
    pub(super) fn remove(&mut self, lease: Lease) {
        self.released.remove(&lease);
        self.unsure.retain(|waiting| waiting.lease() != lease);
    }

    /// Whether a look is to follow now that this one is settled.
    pub(super) fn was_released(&mut self, lease: Lease) -> bool {
        self.released.remove(&lease)
    }

    /// The call panicked, and has no answer.
    pub(super) fn unasked(&mut self) {
        self.asking = false;
    }
}

impl<S: Store> Dispatcher<S> {
    /// A fresh message starts only if it is known not to be paused.
    pub(super) fn admit(&mut self, waiting: Waiting, now: Instant) {
        self.pauses.heard = true;
        if self.pauses.is_known(now) {
            self.keep_unless_paused(waiting);
        } else {
            self.pauses.unsure.push(waiting);
        }
    }

    /// Answers whether it is kept.
    fn keep_unless_paused(&mut self, waiting: Waiting) -> bool {
        let is_paused = self.pauses.topics.contains(waiting.message.topic.as_str());
        if is_paused {
            self.release(waiting.message);
        } else {
            self.queue.push(waiting);
        }
        !is_paused
    }

    /// When to ask next. One of many that has nothing in memory never does.
    pub(super) fn next_question(&self, now: Instant) -> Option<Instant> {
        let Pauses { asked, asking, heard, unsure, .. } = &self.pauses;
        let busy = *heard || !self.queue.is_empty();
        if *asking || self.is_stopping() || (!busy && self.inner.share.has_others()) {
            return None;
        }
        let every = if busy { ASK_EVERY } else { ASK_IDLE_EVERY };
        Some(asked.filter(|_| unsure.is_empty()).map_or(now, |asked| asked + every))
    }

    pub(super) fn ask(&mut self, now: Instant) {
        if self.next_question(now).is_none_or(|at| now < at) {
            return;
        }
        (self.pauses.asking, self.pauses.heard, self.pauses.asked) = (true, false, Some(now));
        let inner = Arc::clone(&self.inner);
        self.calls.spawn(async move {
            let asked = Instant::now();
            let outcome = inner.call(inner.store.paused()).await;
            Reply::Paused { asked, outcome }
        });
    }

    pub(super) fn learned(&mut self, asked: Instant, outcome: Result<Topics>) {
        self.pauses.asking = false;
        match outcome {
            Ok(topics) => {
                self.pauses.known = Some(asked);
                self.know(topics);
            }
            Err(error) => debug!(store = %self.inner.name, %error, "nobody can tell what is paused"),
        }
        let known = self.pauses.is_known(Instant::now());
        for waiting in self.pauses.drain() {
            if known {
                self.keep_unless_paused(waiting);
            } else {
                self.pauses.released.insert(waiting.lease());
                self.release(waiting.message);
            }
        }
    }

    /// Gives back what waits and is paused: what a claim that was under way has brought since the last time, too.
    fn know(&mut self, topics: Topics) {
        let has_changed = self.pauses.topics != topics;
        self.pauses.topics = topics;
        let mut given_back = 0_usize;
        if !self.pauses.topics.is_none() {
            for waiting in self.queue.drain() {
                given_back += usize::from(!self.keep_unless_paused(waiting));
            }
            let topics = &self.pauses.topics;
            let is_paused = |waiting: &mut Waiting| topics.contains(waiting.message.topic.as_str());
            for waiting in self.stale.extract_if(.., is_paused).collect::<Vec<_>>() {
                given_back += 1;
                self.release(waiting.message);
            }
        }
        if has_changed {
            info!(store = %self.inner.name, given_back, "what is paused has changed");
            // What was paused until now may be claimed.
            self.activity += 1;
            self.look_at_once(Instant::now());
        }
    }
}
