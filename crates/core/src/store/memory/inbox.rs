//! The inbox of the store in memory. Where a database would let a transaction wait for another one, this store, which
//! cannot wait, answers that it is busy.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{MemoryStore, MemoryTransaction};
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::message::MAX_DELAY;
use crate::store::inbox::{InboxEntry, InboxRecord, InboxStore, Once};
use crate::store::{MAX_PRUNE_BATCH, check_batch};

/// Consumer, source and message.
type Key = (String, String, MessageId);

/// What consumers have acted upon.
#[derive(Clone, Debug, Default)]
pub(super) struct InboxTable(Arc<Mutex<Rows>>);

#[derive(Debug, Default)]
struct Rows {
    rows: BTreeMap<Key, InboxRecord>,
    /// Rows of a transaction that is still open.
    open: BTreeSet<Key>,
}

impl InboxTable {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The inbox rows of a new transaction.
    pub(super) fn begin(&self) -> Remembered {
        Remembered { table: self.clone(), rows: Vec::new() }
    }
}

/// The inbox rows of a transaction so far; forgotten unless it commits.
#[derive(Debug)]
pub(super) struct Remembered {
    table: InboxTable,
    rows: Vec<(Key, InboxRecord)>,
}

impl Remembered {
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn truncate(&mut self, len: usize) {
        let mut table = self.table.lock();
        for (key, _) in self.rows.drain(len.min(self.rows.len())..) {
            table.open.remove(&key);
        }
    }

    pub(super) fn keep(mut self) {
        let mut table = self.table.lock();
        for (key, row) in self.rows.drain(..) {
            table.open.remove(&key);
            table.rows.insert(key, row);
        }
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.truncate(0);
    }
}

impl InboxStore for MemoryStore {
    async fn remember(&self, transaction: &mut MemoryTransaction, entry: &InboxEntry<'_>) -> Result<Once> {
        let key = (entry.consumer.to_owned(), entry.source.to_owned(), entry.message_id);
        let now = self.clock.now();
        let remembered = &mut transaction.remembered;
        let mut table = self.inbox.lock();
        let own = remembered.rows.iter().find(|(other, _)| *other == key).map(|(_, row)| row);
        if let Some(row) = own.or_else(|| table.rows.get(&key)) {
            let same = row.payload_hash == *entry.payload_hash;
            return Ok(if same { Once::Repeated } else { Once::Altered });
        }
        if !table.open.insert(key.clone()) {
            return Err(Error::new(ErrorKind::Busy, "another transaction is about to remember this message")
                .during("inbox")
                .with_context("message_id", entry.message_id));
        }
        let payload = entry.payload.map(<[u8]>::to_vec);
        let row =
            InboxRecord::new(entry.topic.to_owned(), *entry.payload_hash, payload, entry.occurred_at, now);
        remembered.rows.push((key, row));
        Ok(Once::First)
    }

    async fn remembered(
        &self,
        consumer: &str,
        source: &str,
        message_id: MessageId,
    ) -> Result<Option<InboxRecord>> {
        let key = (consumer.to_owned(), source.to_owned(), message_id);
        Ok(self.inbox.lock().rows.get(&key).cloned())
    }

    async fn forget(&self, consumer: &str, keep: Duration, limit: u32) -> Result<u64> {
        check_batch("forget limit", limit, MAX_PRUNE_BATCH)?;
        let now = self.clock.now();
        let mut table = self.inbox.lock();
        let old = table
            .rows
            .iter()
            .filter(|((of, ..), row)| of == consumer && row.received_at + keep.min(MAX_DELAY) < now);
        let old: Vec<Key> = old.map(|(key, _)| key.clone()).take(limit as usize).collect();
        for key in &old {
            table.rows.remove(key);
        }
        Ok(old.len() as u64)
    }
}
