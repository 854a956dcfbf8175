//! The store in memory, as operators see it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use async_trait::async_trait;

use super::{MemoryStore, Queue, Row};
use crate::error::Result;
use crate::id::MessageId;
use crate::join::{Join, JoinId, Step, StepEnd};
use crate::outcome::{Failure, FailureClass, State};
use crate::store::admin::{
    Change, Count, Cursor, Filter, HistoryEntry, JoinFilter, JoinListing, Listing, MAX_PAGE, Pause, Record,
    Stats, StepListing, StoreAdmin, TopicCount,
};
use crate::store::check_batch;

impl Queue {
    fn select(&self, change: &Change, eligible: impl Fn(&Row) -> bool) -> Vec<i64> {
        let matching = self.rows.values().filter(|row| eligible(row) && matches(change.filter(), None, row));
        matching.take(change.get_limit() as usize).map(Row::seq).collect()
    }

    fn ids(&self, seqs: &[i64]) -> Vec<MessageId> {
        seqs.iter().filter_map(|seq| self.rows.get(seq)).map(|row| row.record.message.id).collect()
    }
}

impl Row {
    fn note(&mut self, now: SystemTime, action: &str, change: &Change) {
        self.history.push(HistoryEntry {
            at: now,
            action: action.to_owned(),
            by: change.by().to_owned(),
            why: change.why().to_owned(),
            attempts: self.record.message.attempts,
            lease_losses: self.record.message.lease_losses,
            last_error: self.record.last_error.clone(),
        });
    }
}

fn matches(filter: &Filter, after: Option<Cursor>, row: &Row) -> bool {
    let Record { message, state, error_class, .. } = &row.record;
    after.is_none_or(|cursor| message.item > cursor.item())
        && filter.state.is_none_or(|wanted| wanted == *state)
        && filter.topics.contains(message.topic.as_str())
        && filter.key.as_ref().is_none_or(|key| message.key.as_ref() == Some(key))
        && filter.tenant_id.as_ref().is_none_or(|id| message.tenant_id.as_ref() == Some(id))
        && filter.correlation_id.as_ref().is_none_or(|id| message.correlation_id.as_ref() == Some(id))
        && filter.class.is_none_or(|class| *error_class == Some(class))
        && filter.created_from.is_none_or(|from| message.created_at >= from)
        && filter.created_before.is_none_or(|before| message.created_at < before)
        && (filter.ids.is_empty() || filter.ids.contains(&message.id))
}

#[async_trait]
impl StoreAdmin for MemoryStore {
    async fn stats(&self) -> Result<Stats> {
        let now = self.clock.now();
        let queue = self.lock();
        let mut stats = Stats::default();
        let mut topics: BTreeMap<(String, State), u64> = BTreeMap::new();
        for Row { record, .. } in queue.rows.values() {
            let count = match record.state {
                State::Ready if record.parked => &mut stats.parked,
                State::Ready if record.message.due_at > now => &mut stats.scheduled,
                State::Ready => &mut stats.ready,
                State::Leased => &mut stats.leased,
                State::Done => &mut stats.done,
                State::Dead => &mut stats.dead,
            };
            count.value += 1;
            let is_scheduled = record.state == State::Ready && !record.parked && record.message.due_at > now;
            if is_scheduled && record.error_class.is_some_and(|class| !class.costs_attempt()) {
                stats.failing.value += 1;
                let since = record.message.failing_since.unwrap_or(now);
                stats.oldest_failing = stats.oldest_failing.max(now.duration_since(since).ok());
            }
            if record.state != State::Done {
                *topics.entry((record.message.topic.to_string(), record.state)).or_default() += 1;
            }
        }
        let Stats { ready, scheduled, failing, parked, leased, done, dead, .. } = &mut stats;
        for count in [ready, scheduled, failing, parked, leased, done, dead] {
            count.exact = true;
        }
        stats.topics = topics
            .into_iter()
            .map(|((topic, state), value)| TopicCount { topic, state, count: Count { value, exact: true } })
            .collect();
        let due = queue.rows.values().filter(|row| row.is_due(now)).map(|row| row.record.message.due_at);
        stats.oldest_ready = due.min().map(|oldest| now.duration_since(oldest).unwrap_or_default());
        Ok(stats)
    }

    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        check_batch("page", limit, MAX_PAGE)?;
        filter.check()?;
        let queue = self.lock();
        let mut rows = queue.rows.values().filter(|row| matches(filter, after, row));
        let records: Vec<Record> = rows.by_ref().take(limit as usize).map(|row| row.record.clone()).collect();
        let next =
            records.last().filter(|_| rows.next().is_some()).map(|last| Cursor::after(last.message.item));
        Ok(Listing { records, next })
    }

    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        let queue = self.lock();
        let row = queue.rows.values().find(|row| row.record.message.id == id);
        Ok(row.map(|row| (row.record.clone(), row.history.clone())))
    }

    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        change.check()?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let seqs = queue.select(change, |row| row.record.state == State::Dead);
        let ids = queue.ids(&seqs);
        for seq in seqs.into_iter().filter(|_| !change.is_dry_run()) {
            let Some(row) = queue.rows.get_mut(&seq) else { continue };
            row.note(now, "requeue", change);
            row.record.state = State::Ready;
            row.record.done_at = None;
            row.record.message.attempts = 0;
            row.record.message.lease_losses = 0;
            row.record.message.failing_since = None;
            (row.record.last_error, row.record.error_class) = (None, None);
            row.record.message.due_at = now;
            if row.is_expired(now) {
                row.record.message.expires_at = None;
            }
            let (key, id) = (row.record.message.key.clone(), row.record.message.id);
            queue.unpark_behind(seq, key.as_deref(), now);
            queue.joins.uncount(id, now);
        }
        Ok(ids)
    }

    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        change.check()?;
        let now = self.clock.now();
        let mut queue = self.lock();
        let seqs = queue.select(change, |row| row.record.state == State::Ready || row.record.holds_key());
        let ids = queue.ids(&seqs);
        for seq in seqs.into_iter().filter(|_| !change.is_dry_run()) {
            let Some(row) = queue.rows.get_mut(&seq) else { continue };
            row.note(now, "bury", change);
            let text = format!("buried by {}: {}", change.by(), change.why());
            row.die(now, &Failure::new(FailureClass::Buried, text));
            let (key, id) = (row.record.message.key.clone(), row.record.message.id);
            queue.unpark_behind(seq, key.as_deref(), now);
            queue.count(&[(id, StepEnd::Failed)], now);
        }
        Ok(ids)
    }

    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        Ok(self.lock().joins.get(id).map(|entry| entry.join.clone()))
    }

    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        check_batch("page", limit, MAX_PAGE)?;
        filter.check()?;
        let queue = self.lock();
        let mut entries = queue.joins.all().filter(|entry| {
            after.is_none_or(|after| entry.join.id > after)
                && filter.status.is_none_or(|status| entry.join.status == status)
                && filter
                    .grouping_key
                    .as_ref()
                    .is_none_or(|key| entry.join.grouping_key.as_ref() == Some(key))
                && filter.message.is_none_or(|message| entry.steps.contains_key(&message))
        });
        let joins: Vec<Join> =
            entries.by_ref().take(limit as usize).map(|entry| entry.join.clone()).collect();
        let next = joins.last().filter(|_| entries.next().is_some()).map(|last| last.id);
        Ok(JoinListing { joins, next })
    }

    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        check_batch("page", limit, MAX_PAGE)?;
        let queue = self.lock();
        let entry = queue.joins.get(join);
        let mut steps = entry
            .into_iter()
            .flat_map(|entry| entry.steps.values())
            .filter(|step| after.is_none_or(|after| step.message > after));
        let page: Vec<Step> = steps.by_ref().take(limit as usize).copied().collect();
        let next = page.last().filter(|_| steps.next().is_some()).map(|last| last.message);
        Ok(StepListing { steps: page, next })
    }

    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        Pause::check(topics, by, why)?;
        let since = self.clock.now();
        let pauses = &mut self.lock().pauses;
        if pauses.contains_key(topics) {
            return Ok(false);
        }
        let (topics, by, why) = (topics.to_owned(), by.to_owned(), why.to_owned());
        pauses.insert(topics.clone(), Pause { topics, by, why, since });
        Ok(true)
    }

    async fn resume(&self, topics: &str) -> Result<bool> {
        Ok(self.lock().pauses.remove(topics).is_some())
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        Ok(self.lock().pauses.values().cloned().collect())
    }
}
