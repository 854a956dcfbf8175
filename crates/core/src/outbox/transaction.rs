//! A transaction whose messages take the hot path: their rows are stored leased, and they are handed over from memory
//! once they are known to have survived to COMMIT.
//!
//! The database decides which rows survive. A message whose savepoint was rolled back, by any means, is never delivered:
//! unless publishing was the last use of the connection, the rows are checked before the commit.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{Instrument as _, warn};

use super::{Outbox, one};
use crate::clock::{Clock as _, SystemClock};
use crate::dispatch::hot::{Fresh, Room, Slot};
use crate::dispatch::wake::Reason;
use crate::error::{ErrorKind, Result};
use crate::event::IntoMessage;
use crate::id::{Lease, WorkItemId};
use crate::join::{JoinBuilder, StartedJoin};
use crate::message::{Enqueued, NewMessage};
use crate::metrics::{self, count};
use crate::outcome::{Outcome, Settled, Settlement};
use crate::store::join::JoinStore;
use crate::store::{Birth, Transactions};

/// When a commit whose future was dropped has taken place, if it does.
const COMMITTED_BY_THEN: Duration = Duration::from_secs(1);

/// A transaction that publishes through the hot path. It dereferences to your database's connection; dropped without a
/// commit, it is rolled back.
///
/// See [`Outbox::begin`].
#[must_use = "a transaction does nothing until it is committed"]
pub struct OutboxTransaction<S: Transactions> {
    outbox: Outbox<S>,
    transaction: S::Transaction,
    /// Stored leased, in the order of publishing.
    born: Vec<Fresh>,
    /// The highest number of a row that was stored leased here.
    highest: Option<WorkItemId>,
    /// Of messages that were stored ready: whether their topics are handled here.
    ready: BTreeSet<bool>,
    /// Whether the connection was used for something else since the last row was stored.
    touched: bool,
}

impl<S: Transactions> OutboxTransaction<S> {
    /// A transaction that was used before may have failed already.
    pub(super) fn new(outbox: Outbox<S>, transaction: S::Transaction, was_used: bool) -> Self {
        let (born, ready) = (Vec::new(), BTreeSet::new());
        Self { outbox, transaction, born, highest: None, ready, touched: was_used }
    }

    /// Publishes a message in this transaction: it exists if, and only if, the transaction commits.
    ///
    /// A message whose id or dedup key is stored already is not stored again, and the transaction goes on.
    pub async fn publish(&mut self, message: impl IntoMessage) -> Result<Enqueued> {
        let message = self.outbox.prepare(message)?;
        one(self.insert(vec![message]).await?)
    }

    /// Publishes messages in this transaction, in one round trip, or a few if not all of them take the same path.
    pub async fn publish_all<M: IntoMessage>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Vec<Enqueued>> {
        let messages = self.outbox.prepare_all(messages)?;
        self.insert(messages).await
    }

    /// Starts a join in this transaction, with its steps and waits; see [`Outbox::start_join`]. The steps take the hot path.
    pub async fn start_join(&mut self, join: JoinBuilder) -> Result<StartedJoin>
    where
        S: JoinStore,
    {
        let (parts, steps) = self.outbox.prepare_join(join)?;
        // A question changes nothing, unless it fails.
        let touched = std::mem::replace(&mut self.touched, true);
        if let Some(started) = self.outbox.started_before(&mut self.transaction, &parts).await? {
            self.touched = touched;
            return Ok(started);
        }
        self.touched = touched;
        let steps = if steps.is_empty() { Vec::new() } else { self.insert(steps).await? };
        // What fails half-way may leave a transaction that cannot commit any more.
        let touched = std::mem::replace(&mut self.touched, true);
        let started = self.outbox.complete_start(&mut self.transaction, parts, steps).await?;
        self.touched = touched;
        Ok(started)
    }

    async fn insert(&mut self, messages: Vec<NewMessage>) -> Result<Vec<Enqueued>> {
        let mut slots: Vec<Option<Slot>> = Vec::with_capacity(messages.len());
        for message in &messages {
            slots.push(self.reserve(message));
        }
        // The order of publishing is the order of the rows, so a batch is cut where the path changes.
        let mut enqueued = Vec::with_capacity(messages.len());
        let mut rest = &messages[..];
        while let Some(first) = slots.first() {
            let hot = first.is_some();
            let run = slots.iter().take_while(|slot| slot.is_some() == hot).count();
            let (batch, after) = rest.split_at(run);
            let reserved: Vec<Option<Slot>> = slots.drain(..run).collect();
            enqueued.extend(self.insert_run(batch, reserved, hot).await?);
            rest = after;
        }
        self.outbox.published(&messages);
        Ok(enqueued)
    }

    async fn insert_run(
        &mut self,
        messages: &[NewMessage],
        slots: Vec<Option<Slot>>,
        hot: bool,
    ) -> Result<Vec<Enqueued>> {
        let inner = Arc::clone(&self.outbox.inner);
        let birth = if hot {
            Birth::Leased { worker: &inner.worker, lease: inner.plan.settings.lease }
        } else {
            Birth::Ready
        };
        let leased = Instant::now();
        // An insert that fails, or is given up half-way, may leave a transaction that cannot commit any more.
        let touched = std::mem::replace(&mut self.touched, true);
        let first = self.born.is_empty();
        let enqueued = inner.store.insert(&mut self.transaction, messages, birth).await?;
        // It took rows, so it has not failed; and no row was stored before that could have gone with a savepoint.
        self.touched = touched && !first;
        let now = SystemClock.now();
        for ((message, slot), stored) in messages.iter().zip(slots).zip(&enqueued) {
            match (stored, slot) {
                (Enqueued::New { lease: Some(lease), .. }, Some(slot)) => {
                    let message = Arc::new(message.leased(*lease, now));
                    // A number that was given out before is the number of a row that went with a savepoint: some databases
                    // use it again, and this message must not be taken for that one's survival.
                    if self.highest.is_some_and(|highest| lease.item <= highest) {
                        self.born.retain(|fresh| fresh.message.item != lease.item);
                    }
                    self.highest = self.highest.max(Some(lease.item));
                    self.born.push(Fresh { message, slot, leased });
                }
                (Enqueued::New { .. }, _) => {
                    self.ready.insert(inner.plan.registry.handles(message.topic()));
                }
                (Enqueued::Duplicate { .. }, _) => {}
            }
        }
        Ok(enqueued)
    }

    /// A place in the hot queue, for a message that may take the hot path.
    fn reserve(&self, message: &NewMessage) -> Option<Slot> {
        let inner = &self.outbox.inner;
        // Messages that a claim must decide about are stored ready: messages with a key, and messages that are due or
        // expire later.
        let at_once = Birth::is_at_once(message);
        if !at_once || !inner.plan.registry.handles_now(message.topic()) {
            return None;
        }
        match inner.door.reserve(message.size()) {
            Room::Slot(slot) => Some(slot),
            Room::Closed => None,
            Room::Paused => {
                count(metrics::HOT_DOWNGRADED, &inner.name, 1);
                None
            }
            Room::Full => {
                warn!(
                    store = %inner.name, message_id = %message.id(), topic = message.topic(),
                    "the hot queue is full: a message is left to the cold path"
                );
                count(metrics::HOT_DOWNGRADED, &inner.name, 1);
                None
            }
        }
    }

    /// Commits, and hands what took the hot path to its handlers.
    ///
    /// After an error nothing was committed, unless its kind is [`CommitUnknown`](crate::ErrorKind::CommitUnknown). A
    /// transaction that an earlier error has made useless is an error here, even where the database would silently treat
    /// COMMIT as ROLLBACK.
    pub async fn commit(mut self) -> Result<()> {
        let inner = Arc::clone(&self.outbox.inner);
        let mut born = std::mem::take(&mut self.born);
        if self.touched {
            let leases: Vec<Lease> = born.iter().map(|born| born.message.lease()).collect();
            let survived = inner.store.survivors(&mut self.transaction, &leases).await?;
            let mut survived = survived.into_iter();
            born.retain(|_| survived.next().unwrap_or(false));
        }
        let mut ready = std::mem::take(&mut self.ready);
        let leases = born.iter().map(|fresh| fresh.message.lease()).collect();
        let mut stranded = Stranded { outbox: self.outbox.clone(), leases };
        match inner.store.commit(self.transaction).await {
            Ok(()) => {
                // The run has ended meanwhile: others may have it at once.
                let refused = born.into_iter().filter_map(|fresh| inner.door.hand_over(fresh).err());
                stranded.leases = refused.map(|fresh| fresh.message.lease()).collect();
                if !stranded.leases.is_empty() {
                    ready.insert(false);
                    release(&self.outbox, &stranded.leases).await;
                    stranded.leases.clear();
                }
                inner.announce(Reason::Soon, ready);
                Ok(())
            }
            Err(error) => {
                if error.kind() != ErrorKind::CommitUnknown {
                    stranded.leases.clear();
                }
                Err(error)
            }
        }
    }

    /// Rolls back: nothing that was published in it ever existed.
    pub async fn rollback(self) -> Result<()> {
        self.outbox.inner.store.rollback(self.transaction).await
    }
}

/// Messages stored leased whose commit may have taken place without this process knowing: its answer was lost, or its future
/// was dropped. Nothing delivers them from memory, so others may have them at once.
struct Stranded<S: Transactions> {
    outbox: Outbox<S>,
    leases: Vec<Lease>,
}

impl<S: Transactions> Drop for Stranded<S> {
    fn drop(&mut self) {
        if self.leases.is_empty() || Handle::try_current().is_err() {
            return;
        }
        let (outbox, leases) = (self.outbox.clone(), std::mem::take(&mut self.leases));
        let give_back = async move {
            // The commit may be still under way.
            if !release(&outbox, &leases).await {
                tokio::time::sleep(COMMITTED_BY_THEN).await;
                release(&outbox, &leases).await;
            }
        };
        tokio::spawn(give_back.in_current_span());
    }
}

/// Gives messages back that were stored leased, and returns whether all were there. If that fails, too, their leases
/// run out.
async fn release<S: Transactions>(outbox: &Outbox<S>, leases: &[Lease]) -> bool {
    let settlements: Vec<Settlement> =
        leases.iter().map(|lease| Settlement::new(*lease, Outcome::Release)).collect();
    match outbox.inner.store.settle(&settlements).await {
        Ok(batch) => batch.settled.iter().all(|settled| *settled == Settled::Applied),
        Err(error) => {
            warn!(store = %outbox.inner.name, error = ?error, "messages could not be released; their leases will run out");
            false
        }
    }
}

impl<S: Transactions> Deref for OutboxTransaction<S> {
    type Target = S::Connection;

    fn deref(&self) -> &S::Connection {
        &self.transaction
    }
}

impl<S: Transactions> DerefMut for OutboxTransaction<S> {
    fn deref_mut(&mut self) -> &mut S::Connection {
        self.touched = true;
        &mut self.transaction
    }
}

impl<S: Transactions> fmt::Debug for OutboxTransaction<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboxTransaction").field("born_leased", &self.born.len()).finish_non_exhaustive()
    }
}
