//! Watches a simulated run and reports what must never happen. The simulated store and the handlers tell it everything
//! at the moment it takes place; it trusts no other source.
//!
//! It must never report a false violation: a fault excuses its own effects, and no more. The first violation is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use posthaste_core::{
    FailureClass, JoinId, Lease, MAX_LEASE_LOSSES, Message, MessageId, NewMessage, OrderPolicy, Outcome,
    Record, Settled, Settlement, State, Uuid, WorkItemId,
};

use super::audit_joins::JoinAudit;
use super::plan::{Act, BOTH, Plan, SINKS, Script, handlers_of};

/// Which incarnation of which node: never used again after a restart.
pub(super) type Life = usize;

/// How a call of a handler ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ended {
    Ok,
    Failed(Act),
    Dropped,
}

/// Which call changed rows without saying which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sweep {
    Reap,
    Expire,
    Park,
    Prune,
    Requeue,
    Bury,
}

/// The audit's knowledge of an incarnation.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) workers: usize,
    pub(super) lease: u64,
    pub(super) timeout: u64,
    pub(super) cancel_grace: u64,
    pub(super) capacity: usize,
    /// When something last went wrong for it.
    pub(super) last_fault: Option<u64>,
    /// The same for calls that failed at once: they can be repeated, and must cost nothing that the process knew of.
    pub(super) last_error: Option<u64>,
    pub(super) failed_renewals: Vec<u64>,
    pub(super) known: BTreeSet<Lease>,
    /// It ended without being able to say goodbye.
    pub(super) gone: bool,
    /// The number of the event that asked it to stop.
    pub(super) stopping: Option<u64>,
    pub(super) running: BTreeSet<usize>,
    pub(super) waiting: BTreeSet<Lease>,
}

impl Facts {
    /// Whether this process could lose this lease, which was last written then.
    fn excuses(&self, lease: Lease, written: u64, jump: Option<u64>) -> bool {
        let since = |last: u64| last + self.lease >= written;
        let errors = self.failed_renewals.iter().filter(|at| **at >= written).count();
        self.gone
            || self.last_fault.max(jump).is_some_and(since)
            || (self.last_error.is_some_and(since) && (!self.known.contains(&lease) || errors > 1))
    }
}

#[derive(Clone, Debug)]
struct Run {
    life: Life,
    begun: u64,
    handled: Vec<String>,
    calls: Vec<(&'static str, Option<Ended>)>,
    ended: u64,
}

impl Run {
    /// The handlers that are done, before it and in it.
    fn done(&self) -> Vec<&str> {
        let now = self.calls.iter().filter(|(_, ended)| *ended == Some(Ended::Ok)).map(|(name, _)| *name);
        let before = self.handled.iter().map(String::as_str).filter(|line| !line.contains('\t'));
        before.chain(now).collect()
    }

    /// The classes of what its handlers failed with.
    fn failures(&self) -> Vec<FailureClass> {
        let class = |ended: &Option<Ended>| match ended {
            Some(Ended::Failed(Act::Infrastructure)) => Some(FailureClass::Infrastructure),
            Some(Ended::Failed(Act::Unroutable)) => Some(FailureClass::Unroutable),
            Some(Ended::Failed(Act::Dead)) => Some(FailureClass::Permanent),
            Some(Ended::Failed(Act::Defer(_)) | Ended::Ok) | None => None,
            Some(Ended::Failed(_) | Ended::Dropped) => Some(FailureClass::Business),
        };
        self.calls.iter().filter_map(|(_, ended)| class(ended)).collect()
    }
}

/// The state of a handler in a settlement, or in the row: `done`, `waiting` or `gave-up`.
fn said_of<'a>(lines: &'a [String], handler: &str) -> &'a str {
    let own = lines
        .iter()
        .find_map(|line| line.strip_prefix(handler).filter(|rest| rest.is_empty() || rest.starts_with('\t')));
    match own.map(|rest| rest.split('\t').nth(1)) {
        None => "waiting",
        Some(None) => "done",
        Some(Some(word)) => word,
    }
}

/// A message that was committed.
#[derive(Clone, Debug)]
struct Row {
    seq: i64,
    /// Gone: no longer there, because it was pruned, or acked in a store that does not keep done messages.
    state: Option<State>,
    epoch: i32,
    attempts: u32,
    losses: u32,
    holder: Option<Life>,
    /// When its lease was last written, and until when it lasts by the database's clock.
    written: u64,
    until: SystemTime,
    /// The number of the event that made it visible, and of its last claim.
    committed: u64,
    claimed: u64,
    /// The last epoch whose outcome was lost, or undone by an operator.
    lost: i32,
    /// Which handlers succeeded, and with which epoch.
    succeeded: BTreeMap<&'static str, i32>,
    /// Which sinks the row says are done.
    recorded: BTreeSet<&'static str>,
    begun: bool,
    over: bool,
    /// Whether it came to life a second time: enqueued once more after it was gone, or requeued.
    again: bool,
    /// Whether it has ever been dead.
    died: bool,
}

/// The number of no message.
pub(super) const NOBODY: usize = 999_999;
/// The topic of messages that wait for joins.
pub(super) const WAIT: &str = posthaste_core::DEFAULT_WAIT_TOPIC;

/// The audit of one seed.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) scripts: Vec<Script>,
    /// How many of the scripts are the plan's; the others are of messages that the outbox made by itself, and these are
    /// their ids.
    planned: usize,
    made: Vec<MessageId>,
    pub(super) joins: JoinAudit,
    sink_outages: [Vec<(u64, u64)>; 2],
    max_attempts: u32,
    faultless: bool,
    calm: bool,
    lives: Vec<Facts>,
    rows: BTreeMap<usize, Row>,
    items: BTreeMap<i64, usize>,
    runs: BTreeMap<Lease, Run>,
    /// When each lease was last written, and when its holder learnt that it was lost.
    written: BTreeMap<Lease, u64>,
    told: BTreeMap<Lease, u64>,
    keys: BTreeMap<u64, Vec<usize>>,
    event: u64,
    last_jump: Option<u64>,
    objection: Option<String>,
    pub(super) duplicates: u64,
}

/// The id of the message with this number, and back.
pub(super) fn id_of(n: usize) -> MessageId {
    MessageId::from_uuid(Uuid::from_u128(n as u128 + 1))
}

/// The id of the join with this number, and back.
pub(super) fn join_of(n: usize) -> JoinId {
    JoinId::from_uuid(Uuid::from_u128(n as u128 + 1))
}

pub(super) fn join_number(id: JoinId) -> usize {
    usize::try_from(id.as_uuid().as_u128() - 1).unwrap_or(usize::MAX)
}

impl Audit {
    pub(super) fn new(plan: &Plan) -> Self {
        Self {
            scripts: plan.scripts.clone(),
            planned: plan.scripts.len(),
            made: Vec::new(),
            joins: JoinAudit::new(plan),
            sink_outages: plan.sink_outages.clone(),
            max_attempts: plan.nodes[0].max_attempts,
            faultless: plan.is_faultless(),
            calm: plan.is_calm(),
            lives: Vec::new(),
            rows: BTreeMap::new(),
            items: BTreeMap::new(),
            runs: BTreeMap::new(),
            written: BTreeMap::new(),
            told: BTreeMap::new(),
            keys: BTreeMap::new(),
            event: 0,
            last_jump: None,
            objection: None,
            duplicates: 0,
        }
    }

    /// The number of the message with this id. Messages that the outbox created by itself are numbered when they are
    /// first seen.
    pub(super) fn number_of(&self, id: MessageId) -> usize {
        match usize::try_from(id.as_uuid().as_u128() - 1) {
            Ok(n) if n < self.planned => n,
            _ => {
                let made = self.made.iter().position(|made| *made == id);
                made.map_or(NOBODY, |position| self.planned + position)
            }
        }
    }

    /// And back.
    pub(super) fn id_of(&self, n: usize) -> MessageId {
        n.checked_sub(self.planned).and_then(|at| self.made.get(at)).copied().unwrap_or(id_of(n))
    }

    /// A message is about to be stored: if it has no number, it gets one.
    pub(super) fn meet(&mut self, message: &NewMessage) -> usize {
        if self.number_of(message.id()) == NOBODY {
            self.made.push(message.id());
            let topic = [WAIT, "next", "failed"].into_iter().find(|topic| *topic == message.topic());
            let (key, dedup, delay, expires) = (None, None, None, None);
            let (order, priority, steps) = (OrderPolicy::Block, 0, Vec::new());
            let topic = topic.unwrap_or_else(|| {
                self.object(format!("a message of the topic {} came from nowhere", message.topic()));
                "nobody"
            });
            self.scripts.push(Script { topic, key, order, dedup, delay, expires, priority, steps });
        }
        self.number_of(message.id())
    }

    pub(super) fn objection(&self) -> Option<&str> {
        self.objection.as_deref()
    }

    /// Which message this is the lease of; a number that no message has if it was never committed.
    pub(super) fn number(&self, lease: Lease) -> usize {
        self.items.get(&lease.item.get()).copied().unwrap_or(NOBODY)
    }

    pub(super) fn object(&mut self, why: String) {
        self.objection.get_or_insert(why);
    }

    fn next_event(&mut self) -> u64 {
        self.event += 1;
        self.event
    }

    // Processes

    pub(super) fn born(&mut self, facts: Facts) -> Life {
        self.lives.push(facts);
        self.lives.len() - 1
    }

    pub(super) fn fault(&mut self, life: Option<Life>, at: u64) {
        match life {
            Some(life) => self.lives[life].last_fault = self.lives[life].last_fault.max(Some(at)),
            None => self.lives.iter_mut().for_each(|facts| facts.last_fault = facts.last_fault.max(Some(at))),
        }
    }

    pub(super) fn error(&mut self, life: Life, at: u64) {
        self.lives[life].last_error = self.lives[life].last_error.max(Some(at));
    }

    pub(super) fn renewal_failed(&mut self, life: Life, at: u64) {
        self.lives[life].failed_renewals.push(at);
    }

    /// A process learnt that this lease is its own.
    pub(super) fn knows(&mut self, life: Life, lease: Lease) {
        self.lives[life].known.insert(lease);
    }

    pub(super) fn jumped(&mut self, at: u64) {
        self.last_jump = Some(at);
    }

    pub(super) fn gone(&mut self, life: Life) {
        self.lives[life].gone = true;
        self.lives[life].running.clear();
    }

    pub(super) fn stopping(&mut self, life: Life) {
        let event = self.next_event();
        self.lives[life].stopping = Some(event);
    }

    /// A graceful shutdown ended without an error: I15.
    pub(super) fn stopped(&mut self, life: Life) {
        let facts = &self.lives[life];
        if !facts.running.is_empty() {
            let left = facts.running.clone();
            self.object(format!("I15: handlers of {left:?} outlived the graceful shutdown of life {life}"));
        }
        // A commit that comes after the order to stop finds the door closed, and gives its messages back itself.
        let stopping = self.lives[life].stopping;
        let is_late = |row: &Row| {
            row.claimed == row.committed && stopping.is_some_and(|stopping| stopping < row.committed)
        };
        let held = self
            .rows
            .iter()
            .find(|(_, row)| row.state == Some(State::Leased) && row.holder == Some(life) && !is_late(row));
        // It could not give back messages that a fault kept from it.
        if let Some((n, _)) = held.filter(|_| {
            self.lives[life].last_fault.max(self.lives[life].last_error).max(self.last_jump).is_none()
        }) {
            let why = format!("I15: life {life} ended gracefully and left message {n} leased");
            self.object(why);
        }
    }

    // Rows

    /// A message became visible; with the holder, the time and the end of its lease if it was stored leased.
    pub(super) fn committed(&mut self, n: usize, seq: i64, lease: Option<(Life, u64, SystemTime)>) {
        let event = self.next_event();
        let (holder, written, until) = match lease {
            Some((life, at, until)) => (Some(life), at, until),
            None => (None, 0, SystemTime::UNIX_EPOCH),
        };
        let state = Some(if holder.is_some() { State::Leased } else { State::Ready });
        let row = Row {
            seq,
            state,
            epoch: i32::from(holder.is_some()),
            attempts: 0,
            losses: 0,
            holder,
            written,
            until,
            committed: event,
            claimed: event,
            lost: 0,
            succeeded: BTreeMap::new(),
            recorded: BTreeSet::new(),
            begun: false,
            over: false,
            again: self.rows.contains_key(&n),
            died: false,
        };
        // A store that no longer has the first cannot recognise the second as a duplicate.
        let before = self.rows.insert(n, row);
        if before.as_ref().is_some_and(|before| before.state.is_some()) {
            self.object(format!("I3: message {n} became visible twice"));
        }
        self.items.insert(seq, n);
        self.written.insert(Lease { item: WorkItemId::new(seq), epoch: 1 }, written);
        if let Some(key) = self.scripts[n].key.filter(|_| before.is_none()) {
            self.keys.entry(key).or_default().push(n);
        }
    }

    pub(super) fn claimed(&mut self, life: Life, message: &Message, at: u64, until: SystemTime) {
        let event = self.next_event();
        let n = self.number_of(message.id);
        let Some(row) = self.rows.get_mut(&n) else {
            return self.object(format!("I2: life {life} claimed message {n}, which was never committed"));
        };
        let (state, epoch) = (row.state, row.epoch);
        (row.state, row.epoch, row.holder) = (Some(State::Leased), message.epoch, Some(life));
        (row.written, row.until, row.claimed) = (at, until, event);
        self.written.insert(message.lease(), at);
        if state != Some(State::Ready) || message.epoch <= epoch {
            let new = message.epoch;
            return self.object(format!("I4: message {n} was {state:?}/{epoch} and is claimed with {new}"));
        }
        if message.attempts != row.attempts {
            let (said, charged) = (message.attempts, row.attempts);
            return self.object(format!("I10: message {n} has {said} attempts, {charged} were charged"));
        }
        self.turn_of_key(n);
    }

    /// The waiting messages of a process, as far as they can be seen from outside.
    pub(super) fn received(&mut self, life: Life, messages: &[Message]) {
        let numbers: Vec<usize> = messages.iter().map(|message| self.number_of(message.id)).collect();
        let facts = &mut self.lives[life];
        for (message, n) in messages.iter().zip(numbers) {
            facts.known.insert(message.lease());
            // A message that is under way here already, or a suspect while another one runs, does not wait: it is put
            // off. When the outbox's own handler begins, or a batch of a sink, is not visible from outside.
            let is_unseen = [WAIT, BOTH].contains(&message.topic.as_str());
            let put_off = message.lease_losses > 0 || facts.running.contains(&n) || is_unseen;
            // A lease that ran out while the answer to a renewal was under way is forgotten unseen.
            facts.waiting.retain(|lease| lease.item != message.item);
            if !put_off {
                facts.waiting.insert(message.lease());
            }
        }
        let (count, most) = (facts.waiting.len(), facts.capacity);
        if count > most {
            self.object(format!("HOT-013: {count} messages wait in life {life}, which has room for {most}"));
        }
    }

    fn dropped(&mut self, life: Life, lease: Lease) {
        self.lives[life].waiting.remove(&lease);
    }

    /// A renewal was answered: the lease is lost.
    pub(super) fn told(&mut self, life: Life, lease: Lease, at: u64) {
        self.dropped(life, lease);
        self.told.entry(lease).or_insert(at);
    }

    /// I6, in the store: nothing of the key that became visible before, and was enqueued before, is under way.
    fn turn_of_key(&mut self, n: usize) {
        let Some(key) = self.scripts[n].key else { return };
        let seq = self.rows[&n].seq;
        let before = self.keys[&key].iter().find(|other| {
            let row = &self.rows[other];
            row.seq < seq && matches!(row.state, Some(State::Ready | State::Leased))
        });
        if let Some(other) = before.copied() {
            self.object(format!("I6: message {n} of key {key} was claimed before {other} was over"));
        }
    }

    pub(super) fn renewed(&mut self, lease: Lease, answer: Settled, at: u64, until: SystemTime) {
        let Some(n) = self.items.get(&lease.item.get()).copied() else { return };
        let Some(row) = self.rows.get_mut(&n) else { return };
        if answer != Settled::Applied {
            return;
        }
        if row.epoch != lease.epoch || row.state != Some(State::Leased) {
            let why = format!(
                "I4: message {n} is {:?}/{} and was renewed with {}",
                row.state, row.epoch, lease.epoch
            );
            return self.object(why);
        }
        (row.written, row.until) = (at, until);
        self.written.insert(lease, at);
    }

    /// A process's outcome for a message must match its handlers' results: I10, and rule 16.
    pub(super) fn settling(&mut self, life: Life, settlement: &Settlement, at: u64) {
        let lease = settlement.lease;
        self.dropped(life, lease);
        let Some(n) = self.items.get(&lease.item.get()).copied() else {
            // The row never became visible: it was released after a commit that did not take place.
            if settlement.outcome != Outcome::Release {
                self.object(format!("I2: {lease:?} was settled, and was never committed"));
            }
            return;
        };
        let verdict = match self.runs.get(&lease) {
            _ if self.scripts[n].topic == WAIT => self.expected_of_wait(n, life, settlement),
            _ if self.scripts[n].topic == BOTH => self.expected_of_sinks(n, settlement, at),
            None => unstarted(&settlement.outcome),
            Some(run) => self.expected(n, run, settlement),
        };
        if let Err(why) = verdict {
            let code = settlement.outcome.code();
            self.object(format!("I10: message {n} is settled with outcome {code} by life {life}: {why}"));
        }
    }

    fn expected(&self, n: usize, run: &Run, settlement: &Settlement) -> Result<(), String> {
        let Some((_, Some(last))) = run.calls.last() else {
            return Err("its handler is still at work".to_owned());
        };
        let facts = &self.lives[run.life];
        let outcome = &settlement.outcome;
        // A lease that was feared to be lost is given back, too; without a fault there is nothing to fear.
        let feared = facts.last_fault.is_some() || facts.last_error.is_some() || self.last_jump.is_some();
        let may_release = facts.stopping.is_some() || feared;
        let handlers = handlers_of(self.scripts[n].topic);
        if handlers.len() > 1 {
            let timed_out = run.ended - run.begun >= facts.timeout;
            return expected_of_several(run, settlement, handlers, timed_out, may_release);
        }
        if *last == Ended::Ok {
            return if *outcome == Outcome::Ack { Ok(()) } else { Err("its handler succeeded".to_owned()) };
        }
        let timed_out = run.ended - run.begun >= facts.timeout;
        if timed_out && is_abandon(outcome, FailureClass::Business) {
            return Ok(());
        }
        if may_release && *outcome == Outcome::Release {
            return Ok(());
        }
        let as_said = match last {
            Ended::Ok | Ended::Dropped => false,
            Ended::Failed(act) => match act {
                Act::Business | Act::Panic => is_abandon(outcome, FailureClass::Business),
                Act::RetryAfter(delay) => {
                    is_abandon(outcome, FailureClass::Business)
                        && outcome.delay() == Duration::from_millis(*delay)
                }
                Act::Infrastructure => is_abandon(outcome, FailureClass::Infrastructure),
                Act::Unroutable => is_abandon(outcome, FailureClass::Unroutable),
                Act::Defer(delay) => *outcome == Outcome::Defer { delay: Duration::from_millis(*delay) },
                Act::Dead => matches!(outcome, Outcome::Fail { .. }),
                Act::Succeed | Act::Deaf | Act::Listening | Act::Finishing | Act::Kill => false,
            },
        };
        if as_said { Ok(()) } else { Err(format!("its handler ended with {last:?}")) }
    }

    /// What waits for a join is put off, free of charge, until it has sent its continuation.
    fn expected_of_wait(&self, n: usize, life: Life, settlement: &Settlement) -> Result<(), String> {
        let facts = &self.lives[life];
        // Its handler may have panicked in a call to the store, or waited too long for one.
        let troubled = facts.last_fault.is_some();
        match &settlement.outcome {
            Outcome::Ack if self.joins.has_continued(self.id_of(n)) => Ok(()),
            Outcome::Ack => Err("I8: it is done, and has not gone on".to_owned()),
            Outcome::Defer { .. } | Outcome::Release => Ok(()),
            Outcome::Abandon { failure, .. } if !costs_attempt(failure.class()) || troubled => Ok(()),
            _ => Err("waiting costs nothing".to_owned()),
        }
    }

    /// Each sink gets a message regardless of the other one, and an outage costs nothing: F1.
    fn expected_of_sinks(&self, n: usize, settlement: &Settlement, at: u64) -> Result<(), String> {
        /// How long a sink may be back before every breaker has noticed, and every delivery from before has ended.
        const NOTICED: u64 = 5_000;
        let Some(row) = self.rows.get(&n) else { return Ok(()) };
        match &settlement.outcome {
            // That both sinks took it is checked when it is applied.
            Outcome::Ack | Outcome::Release | Outcome::Defer { .. } => Ok(()),
            Outcome::Abandon { failure, .. } if failure.class() == FailureClass::Infrastructure => {
                let was_up = |outages: &[(u64, u64)]| {
                    outages.iter().all(|(from, to)| at < *from || *to + NOTICED <= at)
                };
                let missed = SINKS.iter().zip(&self.sink_outages).find(|(name, outages)| {
                    self.calm && at >= NOTICED && was_up(outages) && !row.succeeded.contains_key(*name)
                });
                match missed {
                    Some((name, _)) => Err(format!("F1: {name} was up, and did not get it")),
                    None => Ok(()),
                }
            }
            outcome => Err(format!("sinks that are down cost nothing, and it says {outcome:?}")),
        }
    }

    /// A sink took a message, whether or not its answer arrives.
    pub(super) fn took(&mut self, message: &Message, sink: &'static str) {
        let (n, lease) = (self.number_of(message.id), message.lease());
        let Some(row) = self.rows.get_mut(&n) else {
            return self.object(format!("I2: {sink} got message {n}, which was never committed"));
        };
        if row.seq != lease.item.get() {
            return;
        }
        // A process that has lost its lease, and cannot know yet, may send it once more.
        let is_repeated = row.epoch == lease.epoch && row.recorded.contains(sink);
        row.succeeded.insert(sink, lease.epoch);
        if is_repeated {
            self.object(format!("I5: {sink} got message {n} again, and the row says that it is done"));
        }
    }

    /// What became of a message, for counting: its state, if it was ever committed, and whether this is its first
    /// life.
    pub(super) fn fate(&self, id: MessageId) -> Option<(Option<State>, bool)> {
        self.rows.get(&self.number_of(id)).map(|row| (row.state, !row.again))
    }

    /// Whether it has ever been dead, for people to see.
    pub(super) fn has_died(&self, id: MessageId) -> bool {
        self.rows.get(&self.number_of(id)).is_some_and(|row| row.died)
    }

    /// Whether a handler has had it.
    pub(super) fn was_delivered(&self, id: MessageId) -> bool {
        self.rows.get(&self.number_of(id)).is_some_and(|row| row.begun)
    }

    /// A settlement was applied, or not; with the row as it is now.
    pub(super) fn settled(&mut self, settlement: &Settlement, answer: Settled, now: Option<&Record>) {
        let lease = settlement.lease;
        let Some(n) = self.items.get(&lease.item.get()).copied() else { return };
        let Some(row) = self.rows.get_mut(&n) else { return };
        if answer != Settled::Applied {
            return;
        }
        if self.scripts[n].topic == BOTH
            && let Some(lines) = &settlement.handled
        {
            row.recorded = SINKS.into_iter().filter(|sink| said_of(lines, sink) == "done").collect();
        }
        let repeated = row.state == Some(State::Done) && settlement.outcome == Outcome::Ack;
        if row.epoch != lease.epoch || !(row.state == Some(State::Leased) || repeated) {
            let why = format!(
                "I4: message {n} is {:?}/{} and was settled with {}",
                row.state, row.epoch, lease.epoch
            );
            return self.object(why);
        }
        if let Outcome::Abandon { failure, .. } = &settlement.outcome
            && costs_attempt(failure.class())
        {
            row.attempts += 1;
        }
        let state = now.map(|record| record.state);
        (row.state, row.holder) = (state, None);
        row.over = matches!(state, None | Some(State::Done | State::Dead));
        row.died |= state == Some(State::Dead);
        let (attempts, losses) = (row.attempts, row.losses);
        let missing = handlers_of(self.scripts[n].topic)
            .iter()
            .find(|name| !self.rows[&n].succeeded.contains_key(*name));
        if let (Some(name), true) = (missing, settlement.outcome == Outcome::Ack) {
            return self.object(format!("I1: message {n} was acked, and its handler {name} never succeeded"));
        }
        let Some(record) = now else { return };
        if record.message.attempts != attempts || record.message.lease_losses != losses {
            let said = record.message.attempts;
            return self.object(format!("I10: message {n} has {said} attempts, {attempts} were charged"));
        }
        if record.state == State::Dead {
            let allowed = match record.error_class {
                Some(FailureClass::Business) => attempts >= self.max_attempts,
                Some(FailureClass::Infrastructure | FailureClass::Unroutable) => true,
                Some(FailureClass::Permanent) => matches!(settlement.outcome, Outcome::Fail { .. }),
                _ => false,
            };
            if !allowed {
                let class = record.error_class;
                self.object(format!("I1: message {n} is dead after {attempts} attempts, {class:?}"));
            }
        }
    }

    /// Rows were changed by a call that does not say which: here is everything that there is now.
    pub(super) fn swept(&mut self, sweep: Sweep, records: &[Record], at: u64) -> Vec<(&'static str, usize)> {
        let event = self.next_event();
        let there: BTreeMap<usize, &Record> =
            records.iter().map(|record| (self.number_of(record.message.id), record)).collect();
        let mut changes = Vec::new();
        let mut why = None;
        for (n, row) in &mut self.rows {
            let Some(before) = row.state else { continue };
            let now = there.get(n).map(|record| record.state);
            let losses = there.get(n).map_or(row.losses, |record| record.message.lease_losses);
            if now == Some(before) && losses == row.losses {
                continue;
            }
            match (sweep, before, now) {
                (Sweep::Reap, State::Leased, Some(State::Ready | State::Dead)) => {
                    row.losses += 1;
                    row.lost = row.epoch;
                    let dead = now == Some(State::Dead);
                    if losses != row.losses || dead != (losses >= MAX_LEASE_LOSSES) {
                        why = Some(format!("I10: message {n} lost {losses} leases and is {now:?}"));
                    }
                    if dead && self.calm && !Plan::is_killer(&self.scripts[*n]) {
                        why = Some(format!("I10: message {n} is dead as a crash suspect, and is innocent"));
                    }
                    let facts = row.holder.map(|life| &self.lives[life]);
                    let lease = Lease { item: WorkItemId::new(row.seq), epoch: row.epoch };
                    let excused =
                        facts.is_some_and(|facts| facts.excuses(lease, row.written, self.last_jump));
                    if !excused {
                        let (holder, since) = (row.holder, at - row.written);
                        why = Some(format!(
                            "I5: message {n} of life {holder:?} lost its lease for no reason, {since} ms after it was written"
                        ));
                    }
                    changes.push((if dead { "reap to dead" } else { "reap to ready" }, *n));
                }
                (Sweep::Expire, State::Ready, Some(State::Dead)) => {
                    if self.scripts[*n].expires.is_none() {
                        why = Some(format!("I1: message {n} expired, and has no expiry"));
                    }
                    changes.push(("expire", *n));
                }
                (Sweep::Requeue, State::Dead, Some(State::Ready)) => {
                    (row.attempts, row.losses, row.lost) = (0, 0, row.epoch);
                    // Messages that were claimed before may be delivered before it.
                    row.committed = event;
                    row.again = true;
                    changes.push(("requeue", *n));
                }
                (Sweep::Bury, State::Ready, Some(State::Dead)) => changes.push(("bury", *n)),
                (Sweep::Prune, State::Done | State::Dead, None) => changes.push(("prune", *n)),
                _ => why = Some(format!("message {n} went from {before} to {now:?} by {sweep:?}")),
            }
            row.state = now;
            row.holder = None;
            row.over = matches!(now, None | Some(State::Done | State::Dead));
            row.died |= now == Some(State::Dead);
        }
        if let Some(why) = why {
            self.object(why);
        }
        changes
    }

    // Handlers

    pub(super) fn begun(
        &mut self,
        life: Life,
        message: &Message,
        handler: &'static str,
        at: u64,
        database: SystemTime,
    ) {
        let n = self.number_of(message.id);
        let lease = message.lease();
        self.dropped(life, lease);
        let Some(row) = self.rows.get(&n) else {
            return self
                .object(format!("I2: message {n} was delivered by life {life}, and was never committed"));
        };
        let written = self.written.get(&lease).copied();
        let jumped = self.last_jump.is_some_and(|last| written.is_some_and(|written| last >= written));
        let owned = row.state == Some(State::Leased) && row.epoch == lease.epoch && row.until >= database;
        let first = !self.runs.contains_key(&lease);
        if first && !owned && !jumped {
            let why = format!(
                "I4: life {life} starts message {n} with epoch {}, and it is {:?}/{}",
                lease.epoch, row.state, row.epoch
            );
            return self.object(why);
        }
        // One of several handlers sees its own attempts.
        let is_charged = if handlers_of(self.scripts[n].topic).len() > 1 {
            message.attempts <= row.attempts
        } else {
            message.attempts == row.attempts
        };
        if first && !is_charged && owned {
            let (said, charged) = (message.attempts, row.attempts);
            return self.object(format!("I10: message {n} says {said} attempts, {charged} were charged"));
        }
        if n < self.planned && message.payload != n.to_string().as_bytes() {
            return self.object(format!("message {n} has another payload"));
        }
        self.begun_in(life, n, handler);
        let handled = message.handled.iter().any(|name| name == handler);
        let row = &self.rows[&n];
        // A worker that has lost its lease, and cannot know yet, may repeat what its successor did.
        let again =
            lease.epoch > row.lost && row.succeeded.get(handler).is_some_and(|epoch| *epoch > row.lost);
        let known = self.told.get(&lease).is_some_and(|told| *told < at);
        self.duplicates += u64::from(row.succeeded.contains_key(handler));
        if known {
            return self.object(format!(
                "I4: {handler} has message {n}, and life {life} knows that the lease is lost"
            ));
        }
        if handled || again {
            return self.object(format!("I5: {handler} has message {n} again, and has succeeded before"));
        }
        self.order_of_key(n);
        if let Some(row) = self.rows.get_mut(&n) {
            row.begun = true;
        }
        let run = self.runs.entry(lease).or_insert_with(|| Run {
            life,
            begun: at,
            handled: message.handled.clone(),
            calls: Vec::new(),
            ended: at,
        });
        let twice = run.calls.iter().any(|(name, _)| *name == handler) || run.life != life;
        run.calls.push((handler, None));
        if twice {
            self.object(format!("HOT-010: message {n} is delivered twice with one lease"));
        }
    }

    fn begun_in(&mut self, life: Life, n: usize, handler: &str) {
        let facts = &mut self.lives[life];
        let alone = facts.running.insert(n);
        let (running, workers) = (facts.running.len(), facts.workers);
        if !alone {
            self.object(format!(
                "HOT-010: {handler} has message {n} while it is under way in the same process"
            ));
        } else if running > workers {
            self.object(format!(
                "HOT-013: {running} handlers run in life {life}, which has {workers} workers"
            ));
        } else if self.faultless
            && self.lives.iter().enumerate().any(|(other, facts)| other != life && facts.running.contains(&n))
        {
            self.object(format!("I4: message {n} is under way in two processes, and nothing went wrong"));
        }
    }

    /// I6, as handlers see it: each message that was visible before this one was claimed, and comes before it, has been
    /// delivered or has ended.
    fn order_of_key(&mut self, n: usize) {
        let Some(key) = self.scripts[n].key else { return };
        let row = &self.rows[&n];
        if row.begun {
            return;
        }
        let (seq, claimed) = (row.seq, row.claimed);
        let before = self.keys[&key].iter().find(|other| {
            let other = &self.rows[other];
            other.seq < seq && other.committed < claimed && !other.over && !other.begun
        });
        if let Some(other) = before.copied() {
            self.object(format!("I6: message {n} of key {key} is delivered before {other}"));
        }
    }

    pub(super) fn ended(
        &mut self,
        life: Life,
        message: &Message,
        handler: &'static str,
        ended: Ended,
        at: u64,
    ) {
        let (n, lease) = (self.number_of(message.id), message.lease());
        self.lives[life].running.remove(&n);
        let Some(run) = self.runs.get_mut(&lease) else { return };
        run.ended = at;
        let begun = run.begun;
        if let Some(call) = run.calls.iter_mut().rfind(|(name, ended)| *name == handler && ended.is_none()) {
            call.1 = Some(ended);
        }
        if ended == Ended::Ok
            && let Some(row) = self.rows.get_mut(&n).filter(|row| row.seq == lease.item.get())
        {
            row.succeeded.insert(handler, lease.epoch);
        }
        let facts = &self.lives[life];
        let most = facts.timeout + facts.cancel_grace + 100;
        if self.faultless && at - begun > most {
            self.object(format!(
                "message {n} was with its handlers for {} ms, and {most} are allowed",
                at - begun
            ));
        }
    }

    // The end

    /// I12, and that the table matches the audit's state.
    pub(super) fn finish(&mut self, records: &[Record]) {
        let there: BTreeMap<usize, &Record> =
            records.iter().map(|record| (self.number_of(record.message.id), record)).collect();
        for (n, record) in &there {
            match self.rows.get(n) {
                None => return self.object(format!("I2: message {n} is there, and was never committed")),
                Some(row) if row.state != Some(record.state) || row.epoch != record.message.epoch => {
                    let (state, epoch, there) = (row.state, row.epoch, record.state);
                    return self
                        .object(format!("I12: message {n} should be {state:?}/{epoch}, and is {there}"));
                }
                Some(_) => {}
            }
        }
        if let Some((n, row)) =
            self.rows.iter().find(|(n, row)| row.state.is_some() && !there.contains_key(n))
        {
            let why = format!("I12: message {n} was {:?}, and is not there", row.state);
            self.object(why);
        }
    }

    /// Messages that have not ended, and are not excused by an earlier one of their key, or by a missing handler:
    /// I11.
    pub(super) fn unfinished(&self, records: &[Record]) -> Option<usize> {
        let mut blocked: BTreeSet<&str> = BTreeSet::new();
        for record in records {
            let n = self.number_of(record.message.id);
            let key = record.message.key.as_deref();
            let over = matches!(record.state, State::Done | State::Dead);
            let nobodys = self.scripts[n].topic != WAIT
                && handlers_of(self.scripts[n].topic).is_empty()
                && record.message.expires_at.is_none();
            let waits = self.scripts[n].topic == WAIT && !self.joins.is_wait_of_over(record.message.id);
            let excused = over
                || ((nobodys || waits) && record.state == State::Ready)
                || key.is_some_and(|key| blocked.contains(key));
            if !excused || (over && record.parked) {
                return Some(n);
            }
            if let Some(key) = key.filter(|_| !over || record.holds_key()) {
                blocked.insert(key);
            }
        }
        None
    }
}

/// Rule 13, said once more: the audit does not ask the code that it audits.
pub(super) fn costs_attempt(class: FailureClass) -> bool {
    !matches!(class, FailureClass::Infrastructure | FailureClass::Unroutable)
}

fn is_abandon(outcome: &Outcome, class: FailureClass) -> bool {
    matches!(outcome, Outcome::Abandon { failure, .. } if failure.class() == class)
}

/// Each of several handlers goes its own way: the message is done when all are, and dead if one gave up and none is left.
fn expected_of_several(
    run: &Run,
    settlement: &Settlement,
    handlers: &[&str],
    timed_out: bool,
    may_release: bool,
) -> Result<(), String> {
    let lines = settlement.handled.as_ref().unwrap_or(&run.handled);
    let done = run.done();
    if let Some(name) = handlers.iter().find(|name| (said_of(lines, name) == "done") != done.contains(*name))
    {
        return Err(format!("it says that {name} is {}, and {done:?} are done", said_of(lines, name)));
    }
    let is_any = |state: &str| handlers.iter().any(|name| said_of(lines, name) == state);
    let (is_left, gave_up) = (is_any("waiting"), is_any("gave-up"));
    // A handler's result after it timed out does not count.
    let late = timed_out.then_some(FailureClass::Business);
    let failures: Vec<FailureClass> = run.failures().into_iter().chain(late).collect();
    let is_expected = match &settlement.outcome {
        Outcome::Ack => !is_left && !gave_up,
        Outcome::Fail { .. } => !is_left && gave_up,
        Outcome::Abandon { max_attempts: 1, .. } => {
            !is_left && gave_up && failures.contains(&FailureClass::Business)
        }
        Outcome::Abandon { failure, .. } => is_left && failures.contains(&failure.class()),
        Outcome::Defer { .. } => is_left && (failures.is_empty() || timed_out),
        Outcome::Release => may_release,
    };
    if is_expected {
        Ok(())
    } else {
        Err(format!("its handlers ended with {:?}, and it says {lines:?}", run.calls))
    }
}

/// A message that was never started may only be given back, or put off because its last delivery is still under way.
fn unstarted(outcome: &Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Release | Outcome::Defer { .. } => Ok(()),
        _ => Err("no handler had it".to_owned()),
    }
}

#[cfg(test)]
#[path = "audit_tests.rs"]
mod tests;
