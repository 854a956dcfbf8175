//! Announces messages that can be claimed, or soon can: to the dispatcher of this outbox, or to other processes.
//!
//! An announcement is a hint. Without it, polling finds the same messages, later.

use std::sync::Arc;

use tracing::{debug, info};

use super::{Inner, Outbox};
use crate::dispatch::wake::{self, Reason};
use crate::join::EndedJoin;
use crate::message::{NewMessage, When};
use crate::metrics::{self, count_with};
use crate::store::Store;

impl<S: Store> Outbox<S> {
    /// Announces those of these messages that are due at once.
    pub(super) fn announce(&self, messages: &[NewMessage]) {
        let now = messages.iter().filter(|message| message.due() == When::Now);
        self.inner
            .announce(Reason::Soon, now.map(|message| self.inner.plan.registry.handles(message.topic())));
    }
}

impl<S: Store> Inner<S> {
    /// Announces a message whose transaction has committed.
    pub(crate) fn announce_committed(self: &Arc<Self>, message: &NewMessage) {
        if message.due() == When::Now {
            self.announce(Reason::Now, [self.plan.registry.handles(message.topic())]);
        }
    }

    /// Logs and counts joins that have ended, and announces the messages that waited for them.
    pub(crate) fn joins_ended(self: &Arc<Self>, joins: &[EndedJoin]) {
        for join in joins {
            info!(
                store = %self.name, join_id = %join.id, status = %join.status, expected = join.expected_steps,
                completed = join.completed_steps, failed = join.failed_steps, "join ended"
            );
        }
        self.announce_waiting(Reason::Now, joins);
    }

    /// The same for joins that end when the user commits, some time from now.
    pub(crate) fn joins_will_end(self: &Arc<Self>, joins: &[EndedJoin]) {
        for join in joins {
            info!(
                store = %self.name, join_id = %join.id, status = %join.status, expected = join.expected_steps,
                completed = join.completed_steps, failed = join.failed_steps, "join ends with its transaction"
            );
        }
        self.announce_waiting(Reason::Soon, joins);
    }

    fn announce_waiting(self: &Arc<Self>, reason: Reason, joins: &[EndedJoin]) {
        for join in joins {
            count_with(metrics::JOINS_ENDED, &self.name, "status", join.status.as_str(), 1);
        }
        if !joins.is_empty() {
            self.announce(reason, [self.plan.registry.handles(&self.plan.settings.join_wait_topic)]);
        }
    }

    /// Wakes this outbox if it handles one of the messages, and other processes if it does not. Each item says whether
    /// the topic of one message has a handler here.
    pub(crate) fn announce(self: &Arc<Self>, reason: Reason, handled_here: impl IntoIterator<Item = bool>) {
        let running = self.door.is_open();
        let (mut here, mut elsewhere) = (false, false);
        for handled in handled_here {
            here |= handled && running;
            elsewhere |= !(handled && running);
        }
        if here {
            self.wakeup.wake(reason);
        }
        if !elsewhere || !self.plan.settings.notify || !self.nudges.gather() {
            return;
        }
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            while let Some(pause) = inner.nudges.next() {
                // A hint that is lost costs time, not messages: others poll.
                if let Err(error) = inner.call(inner.store.nudge()).await {
                    debug!(store = %inner.name, error = ?error, "other processes could not be told");
                }
                tokio::time::sleep(pause).await;
            }
        });
        wake::release_last_woken();
    }
}
