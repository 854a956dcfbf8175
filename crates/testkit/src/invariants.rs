//! What happened, and whether it may have: an append-only record of a run, and the checks of I1, I2, I4, I5,
//! I6, I7, I9 and I12.
//!
//! Recording must never report a false violation: a claim is recorded after it returned and a settlement before it is
//! sent, so the recorded tenure lies within the real one. Checks name the first violation they find.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Mutex;
use std::time::Instant;

use posthaste_core::{
    Filter, Join, JoinFilter, JoinStatus, Lease, MessageId, NewMessage, Settled, State, Stats, Step,
    StepStatus, StoreAdmin, WorkItemId, WorkerId,
};

/// What became of the transaction that a message was enqueued in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was committed.
    Committed,
    /// It, or a savepoint in it, was rolled back.
    RolledBack,
}

#[derive(Clone, Debug)]
enum Event {
    Enqueued { id: MessageId, key: Option<String>, fate: Fate },
    Claimed { asked: Instant, worker: WorkerId, id: MessageId, lease: Lease },
    Delivered { worker: WorkerId, id: MessageId },
    Settling { lease: Lease },
    Settled { lease: Lease, answer: Settled },
}

/// An append-only record of a run, for many tasks at once.
#[derive(Debug, Default)]
pub struct History(Mutex<Vec<(Instant, Event)>>);

/// How many messages there are at rest, by where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Ready, scheduled or parked.
    pub ready: u64,
    /// Leased.
    pub leased: u64,
    /// Done and kept.
    pub done: u64,
    /// Dead and kept.
    pub dead: u64,
    /// Removed, or archived.
    pub pruned: u64,
}

impl Census {
    /// The census of a store, and of the messages pruned from it.
    pub fn of(stats: &Stats, pruned: u64) -> Self {
        Self {
            ready: stats.ready.value + stats.scheduled.value + stats.parked.value,
            leased: stats.leased.value,
            done: stats.done.value,
            dead: stats.dead.value,
            pruned,
        }
    }

    /// How many there are in all.
    pub fn total(&self) -> u64 {
        self.ready + self.leased + self.done + self.dead + self.pruned
    }
}

/// The ownership of one claim: from when to when, and whether its settlement was accepted.
#[derive(Clone, Debug)]
struct Tenure {
    id: MessageId,
    worker: WorkerId,
    lease: Lease,
    asked: Instant,
    from: Instant,
    until: Option<Instant>,
    accepted: bool,
}

/// Nothing to object to, or what.
type Verdict = Result<(), String>;

impl Tenure {
    /// Whether both were held at some moment, of those in which they certainly were.
    fn overlaps(&self, other: &Self) -> bool {
        let begins_before_the_end =
            |one: &Self, other: &Self| other.until.is_none_or(|until| one.from < until);
        begins_before_the_end(self, other) && begins_before_the_end(other, self)
    }
}

impl History {
    /// A message was enqueued. Those of one key must be recorded in the order of enqueueing.
    pub fn enqueued(&self, id: MessageId, key: Option<&str>, fate: Fate) {
        self.push(Event::Enqueued { id, key: key.map(str::to_owned), fate });
    }

    /// A claim that was sent at this moment returned this message.
    pub fn claimed(&self, asked: Instant, worker: &WorkerId, id: MessageId, lease: Lease) {
        self.push(Event::Claimed { asked, worker: worker.clone(), id, lease });
    }

    /// A worker delivered this message.
    pub fn delivered(&self, worker: &WorkerId, id: MessageId) {
        self.push(Event::Delivered { worker: worker.clone(), id });
    }

    /// This lease is about to be settled: its worker makes no further use of it.
    pub fn settling(&self, lease: Lease) {
        self.push(Event::Settling { lease });
    }

    /// The settlement of this lease was answered.
    pub fn settled(&self, lease: Lease, answer: Settled) {
        self.push(Event::Settled { lease, answer });
    }

    fn push(&self, event: Event) {
        // The time is taken inside, so that the order of the record is the order of the times.
        let mut events = self.0.lock().unwrap();
        events.push((Instant::now(), event));
    }

    fn events(&self) -> Vec<(Instant, Event)> {
        self.0.lock().unwrap().clone()
    }

    fn committed(&self) -> HashSet<MessageId> {
        let committed = |(_, event)| match event {
            Event::Enqueued { id, fate: Fate::Committed, .. } => Some(id),
            _ => None,
        };
        self.events().into_iter().filter_map(committed).collect()
    }

    fn deliveries(&self) -> Vec<MessageId> {
        let delivered = |(_, event)| match event {
            Event::Delivered { id, .. } => Some(id),
            _ => None,
        };
        self.events().into_iter().filter_map(delivered).collect()
    }

    /// I1: everything that was committed was delivered, or is accounted for otherwise (dead or parked, with a reason).
    pub fn no_loss(&self, accounted: &HashSet<MessageId>) -> Verdict {
        let delivered: HashSet<_> = self.deliveries().into_iter().collect();
        let lost: Vec<_> = self
            .committed()
            .into_iter()
            .filter(|id| !delivered.contains(id) && !accounted.contains(id))
            .collect();
        match lost.first() {
            None => Ok(()),
            Some(id) => Err(format!("{} messages were lost, {id} among them", lost.len())),
        }
    }

    /// I2: everything that was claimed or delivered had been committed.
    pub fn no_phantom(&self) -> Verdict {
        let committed = self.committed();
        for (_, event) in self.events() {
            let (Event::Claimed { worker, id, .. } | Event::Delivered { worker, id }) = event else {
                continue;
            };
            if !committed.contains(&id) {
                return Err(format!("{worker} has {id}, which was never committed"));
            }
        }
        Ok(())
    }

    /// I5 without faults: nothing was delivered twice.
    pub fn delivered_once(&self) -> Verdict {
        let mut seen = HashSet::new();
        match self.deliveries().into_iter().find(|id| !seen.insert(*id)) {
            None => Ok(()),
            Some(id) => Err(format!("{id} was delivered twice")),
        }
    }

    fn tenures(&self) -> Result<Vec<Tenure>, String> {
        let mut tenures: Vec<Tenure> = Vec::new();
        let mut index: HashMap<Lease, usize> = HashMap::new();
        for (at, event) in self.events() {
            match event {
                Event::Claimed { asked, worker, id, lease } => {
                    if let Some(first) = index.insert(lease, tenures.len()) {
                        let first = &tenures[first].worker;
                        return Err(format!("{first} and {worker} claimed {id} with the same {lease:?}"));
                    }
                    tenures.push(Tenure { id, worker, lease, asked, from: at, until: None, accepted: false });
                }
                Event::Settling { lease } => {
                    if let Some(n) = index.get(&lease) {
                        tenures[*n].until.get_or_insert(at);
                    }
                }
                Event::Settled { lease, answer: Settled::Applied } => {
                    if let Some(n) = index.get(&lease) {
                        tenures[*n].accepted = true;
                    }
                }
                _ => {}
            }
        }
        Ok(tenures)
    }

    /// I4: no epoch was handed out twice, nothing was accepted from a holder whose message another worker had already
    /// claimed, and of two holders whose settlements were both accepted one was finished before the other began.
    pub fn single_ownership(&self) -> Verdict {
        let mut by_row: BTreeMap<WorkItemId, Vec<Tenure>> = BTreeMap::new();
        for tenure in self.tenures()? {
            by_row.entry(tenure.lease.item).or_default().push(tenure);
        }
        for tenures in by_row.into_values() {
            for (n, one) in tenures.iter().enumerate() {
                for other in &tenures[n + 1..] {
                    if one.id != other.id {
                        return Err(format!("{:?} is {} and {}", one.lease.item, one.id, other.id));
                    }
                    // Epochs have no order. A claim is certainly newer than another only if it was sent after the other was
                    // answered; of two that were under way together, either may have been first.
                    let (old, new) = if one.asked < other.asked { (one, other) } else { (other, one) };
                    let kept_on = new.asked >= old.from && old.until.is_none_or(|until| until > new.from);
                    if old.accepted && (kept_on || (new.accepted && old.overlaps(new))) {
                        return Err(format!(
                            "{} was settled by {} with epoch {} while {} had it with epoch {}",
                            old.id, old.worker, old.lease.epoch, new.worker, new.lease.epoch
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// I6: per key, first deliveries are in the order of enqueueing, and no worker claims the next before the one
    /// before is given back.
    pub fn key_order(&self) -> Verdict {
        let mut places: HashMap<MessageId, (String, usize)> = HashMap::new();
        for (place, (_, event)) in self.events().into_iter().enumerate() {
            if let Event::Enqueued { id, key: Some(key), fate: Fate::Committed } = event {
                places.insert(id, (key, place));
            }
        }
        let mut latest: HashMap<&str, (usize, MessageId)> = HashMap::new();
        let mut seen = HashSet::new();
        for id in self.deliveries().into_iter().filter(|id| seen.insert(*id)) {
            let Some((key, place)) = places.get(&id) else { continue };
            if let Some((before, earlier)) = latest.insert(key, (*place, id))
                && before > *place
            {
                return Err(format!("{id} was delivered after {earlier}, which was enqueued later"));
            }
        }
        let mut holders: HashMap<&str, Tenure> = HashMap::new();
        for tenure in self.tenures()? {
            let Some((key, _)) = places.get(&tenure.id) else { continue };
            if let Some(before) = holders.insert(key, tenure.clone())
                && before.id != tenure.id
                && before.until.is_none_or(|until| until > tenure.from)
            {
                let (a, b) = (&before, &tenure);
                return Err(format!("{} had {} while {} had {}", a.worker, a.id, b.worker, b.id));
            }
        }
        Ok(())
    }

    /// I12: the committed messages are those that are stored and those that were pruned.
    pub fn conservation(&self, census: &Census) -> Verdict {
        let committed = self.committed().len() as u64;
        if committed == census.total() {
            return Ok(());
        }
        Err(format!("{committed} messages were committed, and there are {}: {census:?}", census.total()))
    }
}

/// Every join of a store at rest with its steps, and the state of every message.
#[derive(Clone, Debug, Default)]
pub struct JoinCensus {
    joins: Vec<(Join, Vec<Step>)>,
    states: HashMap<MessageId, State>,
}

impl JoinCensus {
    /// The census of a store that does not change meanwhile.
    pub async fn of<S: StoreAdmin + ?Sized>(store: &S) -> Self {
        let mut census = Self::default();
        let mut after = None;
        loop {
            let page = store.list(&Filter::default(), after, 200).await.unwrap();
            census.states.extend(page.records.iter().map(|record| (record.message.id, record.state)));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut after = None;
        loop {
            let page = store.joins(&JoinFilter::default(), after, 200).await.unwrap();
            for join in page.joins {
                let (mut steps, mut after) = (Vec::new(), None);
                loop {
                    let page = store.steps(join.id, after, 200).await.unwrap();
                    steps.extend(page.steps);
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
                census.joins.push((join, steps));
            }
            after = page.next;
            if after.is_none() {
                return census;
            }
        }
    }

    /// I7: a join's counters are those of its steps, it is over if and only if they say so or a caller ended it, and
    /// each step that is not counted can still be: its message is ready or leased.
    pub fn exact(&self) -> Verdict {
        self.joins.iter().try_for_each(|(join, steps)| {
            self.exact_join(join, steps).map_err(|fault| format!("{fault}: {join:?}"))
        })
    }

    fn exact_join(&self, join: &Join, steps: &[Step]) -> Verdict {
        let of = |status| steps.iter().filter(|step| step.status == status).count();
        let number = |count: u32| usize::try_from(count).unwrap();
        let (completed, failed) = (of(StepStatus::Completed), of(StepStatus::Failed));
        if number(join.attached_steps) != steps.len() || join.attached_steps > join.expected_steps {
            return Err(format!("there are {} steps", steps.len()));
        }
        if (number(join.completed_steps), number(join.failed_steps)) != (completed, failed) {
            return Err(format!("{completed} completed and {failed} failed steps are not the counters"));
        }
        let late = of(StepStatus::LateCompleted) + of(StepStatus::LateFailed);
        let complete = completed + failed >= number(join.expected_steps);
        let right = match join.status {
            JoinStatus::Pending => !complete && late == 0,
            JoinStatus::Completed => complete && failed == 0,
            JoinStatus::Failed => complete && failed > 0,
            JoinStatus::Cancelled | JoinStatus::Expired => !complete,
        };
        if !right || join.ended_at.is_some() == (join.status == JoinStatus::Pending) {
            return Err(format!(
                "{completed} completed and {failed} failed steps do not make it {}",
                join.status
            ));
        }
        for step in steps.iter().filter(|step| step.status == StepStatus::Pending) {
            match self.states.get(&step.message) {
                Some(State::Ready | State::Leased) => {}
                Some(state) => return Err(format!("the pending step {} is {state}", step.message)),
                None => return Err(format!("the pending step {} is gone", step.message)),
            }
        }
        Ok(())
    }
}

/// What consumers have done, counted by consumer and message.
///
/// An effect that every store has is a message that is published in the transaction in which the consumer acts: its key is the
/// consumer, its correlation id the message that was acted upon.
#[derive(Clone, Debug, Default)]
pub struct Effects(BTreeMap<(String, String), u64>);

impl Effects {
    /// The topic of a message that is an effect.
    pub const TOPIC: &'static str = "effect";

    /// The effect of this consumer's acting upon this message, to be published in the transaction in which it acts.
    pub fn effect(consumer: &str, message: MessageId) -> NewMessage {
        let effect = NewMessage::bytes(Self::TOPIC, "").key(consumer).correlation_id(message.to_string());
        effect.build().unwrap()
    }

    /// One more effect.
    pub fn add(&mut self, consumer: impl Into<String>, message: impl fmt::Display) {
        *self.0.entry((consumer.into(), message.to_string())).or_default() += 1;
    }

    /// The effects in a store.
    pub async fn of<S: StoreAdmin + ?Sized>(store: &S) -> Self {
        let (mut effects, mut after) = (Self::default(), None);
        loop {
            let page = store.list(&Filter::default(), after, 200).await.unwrap();
            for message in page.records.into_iter().map(|record| record.message) {
                if message.topic.as_str() == Self::TOPIC {
                    effects.add(message.key.unwrap_or_default(), message.correlation_id.unwrap_or_default());
                }
            }
            after = page.next;
            if after.is_none() {
                return effects;
            }
        }
    }

    /// How often this consumer has acted upon this message.
    pub fn of_message(&self, consumer: &str, message: MessageId) -> u64 {
        self.0.get(&(consumer.to_owned(), message.to_string())).copied().unwrap_or_default()
    }

    /// I9: each of these consumers has acted exactly once upon each of these messages, and upon no other.
    pub fn exactly_once(&self, consumers: &[&str], messages: &[MessageId]) -> Verdict {
        for consumer in consumers {
            for message in messages {
                match self.of_message(consumer, *message) {
                    1 => {}
                    times => return Err(format!("{consumer} acted {times} times upon {message}")),
                }
            }
        }
        match self.0.len() - consumers.len() * messages.len() {
            0 => Ok(()),
            more => Err(format!("{more} effects are of messages that nobody sent")),
        }
    }
}

#[cfg(test)]
#[path = "invariants_tests.rs"]
mod tests;
