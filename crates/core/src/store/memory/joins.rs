//! The joins of the store in memory: the reference for which steps count, when, and what ends a join.

use std::collections::{BTreeMap, HashMap};
use std::time::SystemTime;

use super::{MemoryStore, MemoryTransaction};
use crate::error::{Error, ErrorKind, Result};
use crate::id::MessageId;
use crate::join::{
    Attached, EndedJoin, Join, JoinId, JoinStatus, Look, NewJoin, Reported, Step, StepEnd, StepStatus,
    join_is_over, not_a_step, too_many_steps, unknown_join, unknown_step,
};
use crate::message::When;
use crate::outcome::State;
use crate::store::join::JoinStore;

/// Every join with its steps and waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Joins(BTreeMap<JoinId, Entry>);

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) join: Join,
    pub(super) steps: BTreeMap<MessageId, Step>,
    /// The messages that wait for it, and whether each has gone on.
    pub(super) waits: BTreeMap<MessageId, bool>,
}

/// A change that a transaction makes to joins.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Start(NewJoin),
    Attach(JoinId, Vec<MessageId>),
    Report(JoinId, MessageId, StepEnd),
    Cancel(JoinId),
    Wait(JoinId, MessageId),
    /// The same for a join that is known to be pending.
    WaitForEnd(JoinId, MessageId),
}

/// The result of a change; each kind has its own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Changed {
    Started,
    Attached(Attached),
    Reported(Reported),
    Cancelled(Option<EndedJoin>),
    Waits(Look),
}

impl Changed {
    pub(super) fn ended(&self) -> Option<EndedJoin> {
        match self {
            Self::Started | Self::Waits(_) => None,
            Self::Attached(attached) => attached.ended,
            Self::Reported(reported) => reported.ended,
            Self::Cancelled(ended) => *ended,
        }
    }
}

impl Entry {
    fn ended(&self) -> EndedJoin {
        let Join { id, status, expected_steps, completed_steps, failed_steps, .. } = self.join;
        EndedJoin { id, status, expected_steps, completed_steps, failed_steps }
    }

    fn end(&mut self, status: JoinStatus, now: SystemTime) -> EndedJoin {
        self.join.status = status;
        (self.join.updated_at, self.join.ended_at) = (now, Some(now));
        self.ended()
    }

    /// Counts the end of a pending step. Returns whether it counted, and whether the join ended by it.
    fn count(&mut self, message: MessageId, end: StepEnd, now: SystemTime) -> Reported {
        let pending = self.join.status == JoinStatus::Pending;
        let Some(step) = self.steps.get_mut(&message).filter(|step| step.status == StepStatus::Pending)
        else {
            return Reported { counted: false, ended: None };
        };
        step.updated_at = now;
        if !pending {
            step.status = match end {
                StepEnd::Completed => StepStatus::LateCompleted,
                StepEnd::Failed => StepStatus::LateFailed,
            };
            return Reported { counted: false, ended: None };
        }
        step.status = end.status();
        match end {
            StepEnd::Completed => self.join.completed_steps += 1,
            StepEnd::Failed => self.join.failed_steps += 1,
        }
        self.join.updated_at = now;
        let over = self.join.completed_steps + self.join.failed_steps >= self.join.expected_steps;
        let status = if self.join.failed_steps > 0 { JoinStatus::Failed } else { JoinStatus::Completed };
        Reported { counted: true, ended: over.then(|| self.end(status, now)) }
    }

    fn is_overdue(&self, now: SystemTime) -> bool {
        self.join.status == JoinStatus::Pending && self.join.expires_at.is_some_and(|expires| expires <= now)
    }

    fn look(&self, now: SystemTime) -> Look {
        match self.join.status {
            JoinStatus::Pending => Look::Pending {
                expires_in: self
                    .join
                    .expires_at
                    .map(|expires| expires.duration_since(now).unwrap_or_default()),
            },
            _ => Look::Over(self.ended()),
        }
    }
}

impl Joins {
    pub(super) fn all(&self) -> impl Iterator<Item = &Entry> {
        self.0.values()
    }

    pub(super) fn get(&self, id: JoinId) -> Option<&Entry> {
        self.0.get(&id)
    }

    fn find(&mut self, id: JoinId) -> Result<&mut Entry> {
        self.0.get_mut(&id).ok_or_else(|| unknown_join(id))
    }

    pub(super) fn remove(&mut self, id: JoinId) {
        self.0.remove(&id);
    }

    /// Makes a change, given the states of all stored messages.
    pub(super) fn apply(
        &mut self,
        change: &Change,
        states: &HashMap<MessageId, State>,
        now: SystemTime,
    ) -> Result<Changed> {
        match change {
            Change::Start(join) => {
                self.start(join, now);
                Ok(Changed::Started)
            }
            Change::Attach(join, messages) => {
                self.attach(*join, messages, states, now).map(Changed::Attached)
            }
            Change::Report(join, message, end) => {
                let entry = self.find(*join)?;
                if !entry.steps.contains_key(message) {
                    return Err(not_a_step(*join, *message));
                }
                Ok(Changed::Reported(entry.count(*message, *end, now)))
            }
            Change::Cancel(join) => {
                let entry = self.find(*join)?;
                let pending = entry.join.status == JoinStatus::Pending;
                Ok(Changed::Cancelled(pending.then(|| entry.end(JoinStatus::Cancelled, now))))
            }
            Change::Wait(join, wait) | Change::WaitForEnd(join, wait) => {
                let entry = self.find(*join)?;
                entry.waits.entry(*wait).or_insert(false);
                Ok(Changed::Waits(entry.look(now)))
            }
        }
    }

    fn start(&mut self, join: &NewJoin, now: SystemTime) {
        let expires = |when: When| match when {
            When::Now => now,
            When::After(delay) => now + delay,
            When::At(time) => time,
        };
        let stored = Join {
            id: join.id(),
            grouping_key: join.grouping_key().map(str::to_owned),
            status: JoinStatus::Pending,
            expected_steps: join.expected_steps(),
            attached_steps: 0,
            completed_steps: 0,
            failed_steps: 0,
            metadata: join.metadata().map(str::to_owned),
            created_at: now,
            updated_at: now,
            ended_at: None,
            expires_at: join.expires().map(expires),
        };
        let entry = Entry { join: stored, steps: BTreeMap::new(), waits: BTreeMap::new() };
        self.0.entry(join.id()).or_insert(entry);
    }

    fn attach(
        &mut self,
        join: JoinId,
        messages: &[MessageId],
        states: &HashMap<MessageId, State>,
        now: SystemTime,
    ) -> Result<Attached> {
        let entry = self.find(join)?;
        let mut new: Vec<MessageId> =
            messages.iter().copied().filter(|message| !entry.steps.contains_key(message)).collect();
        new.sort_unstable();
        new.dedup();
        if let Some(missing) = new.iter().find(|message| !states.contains_key(message)) {
            return Err(unknown_step(join, *missing));
        }
        if !new.is_empty() && entry.join.status != JoinStatus::Pending {
            return Err(join_is_over(join, entry.join.status));
        }
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let attached = entry.join.attached_steps.saturating_add(count);
        if attached > entry.join.expected_steps {
            return Err(too_many_steps(join, entry.join.expected_steps, attached));
        }
        entry.join.attached_steps = attached;
        let mut ended = None;
        for message in new {
            let step = Step { message, status: StepStatus::Pending, created_at: now, updated_at: now };
            entry.steps.insert(message, step);
            let end = match states.get(&message) {
                Some(State::Done) => Some(StepEnd::Completed),
                Some(State::Dead) => Some(StepEnd::Failed),
                _ => None,
            };
            if let Some(end) = end {
                ended = ended.or(entry.count(message, end, now).ended);
            }
        }
        Ok(Attached { new: count, ended })
    }

    /// Counts the end of a message in every join that it is a pending step of.
    pub(super) fn count(&mut self, message: MessageId, end: StepEnd, now: SystemTime) -> Vec<EndedJoin> {
        self.0.values_mut().filter_map(|entry| entry.count(message, end, now).ended).collect()
    }

    /// Takes back that a message had failed, wherever that is still open.
    pub(super) fn uncount(&mut self, message: MessageId, now: SystemTime) {
        for entry in self.0.values_mut() {
            let pending = entry.join.status == JoinStatus::Pending;
            let Some(step) = entry.steps.get_mut(&message) else { continue };
            if step.status == StepStatus::LateFailed || (pending && step.status == StepStatus::Failed) {
                if pending {
                    entry.join.failed_steps -= 1;
                    entry.join.updated_at = now;
                }
                (step.status, step.updated_at) = (StepStatus::Pending, now);
            }
        }
    }

    /// Ends joins whose deadline has passed: this one, or the first so many.
    pub(super) fn expire(&mut self, only: Option<JoinId>, limit: usize, now: SystemTime) -> Vec<EndedJoin> {
        let overdue = self
            .0
            .values_mut()
            .filter(|entry| entry.is_overdue(now) && only.is_none_or(|id| entry.join.id == id));
        let mut overdue: Vec<&mut Entry> = overdue.collect();
        overdue.sort_by_key(|entry| (entry.join.expires_at, entry.join.id));
        overdue.into_iter().take(limit).map(|entry| entry.end(JoinStatus::Expired, now)).collect()
    }

    pub(super) fn look(&self, id: JoinId, now: SystemTime) -> Look {
        self.get(id).map_or(Look::Unknown, |entry| entry.look(now))
    }

    /// Remembers that a waiting message has gone on; false if it had before.
    pub(super) fn continued(&mut self, id: JoinId, wait: MessageId) -> bool {
        self.0.get_mut(&id).is_some_and(|entry| entry.waits.insert(wait, true) != Some(true))
    }

    /// The messages that wait for a join and have not gone on.
    pub(super) fn waiting(&self, id: JoinId) -> Vec<MessageId> {
        let waits = self.get(id).into_iter().flat_map(|entry| &entry.waits);
        waits.filter(|(_, continued)| !**continued).map(|(wait, _)| *wait).collect()
    }

    /// Whether this message waits for a join that is over.
    pub(super) fn waits_for_nothing(&self, wait: MessageId) -> bool {
        self.all()
            .any(|entry| entry.join.status != JoinStatus::Pending && entry.waits.get(&wait) == Some(&false))
    }

    /// Whether this message is a step of a pending join.
    pub(super) fn needs(&self, message: MessageId) -> bool {
        self.all().any(|entry| entry.join.status == JoinStatus::Pending && entry.steps.contains_key(&message))
    }
}

fn mixed_up() -> Error {
    Error::new(ErrorKind::Database, "a change of a join had the answer of another")
}

impl JoinStore for MemoryStore {
    async fn has_join(&self, transaction: &mut MemoryTransaction, join: JoinId) -> Result<bool> {
        let mine = |change: &Change| matches!(change, Change::Start(started) if started.id() == join);
        Ok(transaction.changes.iter().any(mine) || self.lock().joins.get(join).is_some())
    }

    async fn start_join(&self, transaction: &mut MemoryTransaction, join: &NewJoin) -> Result<()> {
        transaction.change(Change::Start(join.clone())).map(drop)
    }

    async fn attach(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        match transaction.change(Change::Attach(join, messages.to_vec()))? {
            Changed::Attached(attached) => Ok(attached),
            _ => Err(mixed_up()),
        }
    }

    async fn report(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<Reported> {
        match transaction.change(Change::Report(join, message, end))? {
            Changed::Reported(reported) => Ok(reported),
            _ => Err(mixed_up()),
        }
    }

    async fn cancel_join(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
    ) -> Result<Option<EndedJoin>> {
        match transaction.change(Change::Cancel(join))? {
            Changed::Cancelled(ended) => Ok(ended),
            _ => Err(mixed_up()),
        }
    }

    async fn wait_for_join(
        &self,
        transaction: &mut MemoryTransaction,
        join: JoinId,
        wait: MessageId,
    ) -> Result<Look> {
        match transaction.change(Change::Wait(join, wait))? {
            Changed::Waits(look) => Ok(look),
            _ => Err(mixed_up()),
        }
    }
}
