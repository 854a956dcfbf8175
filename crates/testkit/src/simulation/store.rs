//! A store in memory behind a network that delays and loses requests and replies, as one process sees it.
//!
//! Every call is a request, a change and a reply. Without a fault, each call does exactly what the reference does:
//! nothing here may be kinder than a database.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::store::memory::Savepoint;
use posthaste_core::{
    Attached, Birth, Change, ClaimRequest, Clock as _, Cursor, EndedJoin, Enqueued, Error, ErrorKind,
    Expired, Failure, Filter, Finding, HistoryEntry, Holder, Join, JoinFilter, JoinId, JoinListing,
    JoinStore, Lease, Listing, Look, MemoryTransaction, Message, MessageId, NewJoin, NewMessage, Outcome,
    Pause, Reaped, Record, Reported, Result, Retention, Settled, SettledBatch, Settlement, State, Stats,
    StepEnd, StepListing, Store, StoreAdmin, Topics, TransactionalStore, Transactions, Turn, WorkItemId,
};

use super::audit::{NOBODY, Sweep, WAIT, costs_attempt};
use super::plan::Fault;
use super::world::{Being, Sabotage, What, World};

/// How late what was locked may be settled, in milliseconds: longer than the longest pause before it is tried again.
const LOCKED_FOR: u64 = 2_000;

/// The store of one incarnation of a node.
#[derive(Clone, Debug)]
pub(super) struct SimStore {
    pub(super) world: Arc<World>,
    pub(super) being: Arc<Being>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Before(ErrorKind),
    After(ErrorKind),
    Panic,
}

#[derive(Clone, Copy, Debug)]
struct Journey {
    before: u64,
    after: u64,
    fate: Fate,
}

/// What kind of call it is, and so how it can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One transaction of the store's own.
    Whole,
    /// A statement in a caller's transaction: if it fails, the transaction is lost.
    Statement,
    /// A commit of any kind.
    Commit,
}

/// An open transaction on the simulated database.
#[derive(Debug)]
pub(super) struct SimConnection {
    world: Arc<World>,
    number: u64,
    memory: Option<MemoryTransaction>,
    pending: Vec<Pending>,
    /// The messages that are to wait for joins.
    waits: Vec<(JoinId, MessageId)>,
    doomed: bool,
}

#[derive(Clone, Debug)]
struct Pending {
    n: usize,
    seq: i64,
    leased: Option<(u64, std::time::SystemTime)>,
}

impl SimConnection {
    pub(super) fn savepoint(&self) -> (Savepoint, usize) {
        (self.memory.as_ref().unwrap().savepoint(), self.pending.len())
    }

    pub(super) fn rollback_to(&mut self, savepoint: &(Savepoint, usize)) {
        self.memory.as_mut().unwrap().rollback_to(&savepoint.0);
        let undone: Vec<usize> = self.pending.drain(savepoint.1..).map(|pending| pending.n).collect();
        self.world.hit("savepoint rolled back");
        self.world.log(What::RolledBack { ns: undone });
    }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        let number = self.number;
        self.world.state().dedups.retain(|_, (holder, _)| *holder != number);
    }
}

/// A transaction that the store opened.
#[derive(Debug)]
pub(super) struct SimTransaction(Box<SimConnection>);

impl Deref for SimTransaction {
    type Target = SimConnection;

    fn deref(&self) -> &SimConnection {
        &self.0
    }
}

impl DerefMut for SimTransaction {
    fn deref_mut(&mut self) -> &mut SimConnection {
        &mut self.0
    }
}

fn answer(settled: Settled) -> &'static str {
    match settled {
        Settled::Applied => "applied",
        Settled::Lost => "lost",
        Settled::Gone => "gone",
        Settled::Locked => "locked",
    }
}

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "simulated")
}

impl SimStore {
    fn life(&self) -> usize {
        self.being.life
    }

    /// Decides what becomes of a call.
    fn journey(&self, kind: Kind) -> Journey {
        let plan = &self.world.plan;
        let now = self.world.now();
        let mut state = self.world.state();
        let latency = plan.latency;
        let (before, after) = (state.rng.u64(0..=latency), state.rng.u64(0..=latency));
        let mut journey = Journey { before, after, fate: Fate::Fine };
        if state.healed {
            return journey;
        }
        let mut struck: Vec<(Fault, u64)> = Vec::new();
        if state.outage_until > now {
            journey.fate = Fate::Before(ErrorKind::Unavailable);
            return journey;
        }
        let mut chance = |fault: Fault, most: f64| {
            let strikes = plan.rate(fault).is_some_and(|rate| state.rng.f64() < most * rate);
            strikes.then(|| state.rng.u64(0..=u64::MAX))
        };
        if let Some(random) = chance(Fault::Slow, 0.08) {
            let longest = plan.nodes.iter().map(|node| node.lease.as_millis()).max().unwrap_or(1);
            let millis = random % u64::try_from(longest * 2).unwrap_or(1);
            if random & (1 << 40) == 0 {
                journey.before += millis;
            } else {
                journey.after += millis;
            }
            struck.push((Fault::Slow, millis + 2 * latency));
        }
        if chance(Fault::ErrorBefore, 0.15).is_some() {
            journey.fate = Fate::Before(ErrorKind::Unavailable);
            struck.push((Fault::ErrorBefore, journey.before));
        } else if chance(Fault::Refusal, 0.08).is_some() {
            journey.fate = Fate::Before(ErrorKind::Database);
            struck.push((Fault::Refusal, journey.before));
        } else if kind == Kind::Commit
            && let Some(random) = chance(Fault::CommitUnknown, 0.5)
        {
            let fate = if random & 1 == 0 { Fate::Before } else { Fate::After };
            journey.fate = fate(ErrorKind::CommitUnknown);
            struck.push((Fault::CommitUnknown, journey.before + journey.after));
        } else if kind != Kind::Commit && chance(Fault::ErrorAfter, 0.15).is_some() {
            journey.fate = Fate::After(ErrorKind::Unavailable);
            struck.push((Fault::ErrorAfter, journey.before + journey.after));
        } else if kind == Kind::Whole && chance(Fault::StorePanic, 0.02).is_some() {
            journey.fate = Fate::Panic;
            struck.push((Fault::StorePanic, journey.before));
        }
        drop(state);
        for (fault, millis) in struck {
            self.world.fault(fault, Some(self.life()), now + millis);
        }
        journey
    }

    /// Settles all but the messages that another session has locked.
    async fn settle_unlocked(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let locked = self.locked(settlements.len());
        let free = settlements.iter().zip(&locked).filter(|(_, locked)| !**locked);
        let free: Vec<Settlement> = free.map(|(settlement, _)| settlement.clone()).collect();
        let SettledBatch { settled, joins } = self.world.memory.settle(&free).await?;
        let mut settled = settled.into_iter();
        let answer = |locked: bool| if locked { Some(Settled::Locked) } else { settled.next() };
        Ok(SettledBatch { settled: locked.into_iter().map_while(answer).collect(), joins })
    }

    /// Which of so many messages another session has locked.
    fn locked(&self, count: usize) -> Vec<bool> {
        let mut state = self.world.state();
        let rate = self.world.plan.rate(Fault::Locked).filter(|_| !state.healed).unwrap_or_default();
        let locked: Vec<bool> = (0..count).map(|_| rate > 0.0 && state.rng.f64() < 0.3 * rate).collect();
        drop(state);
        if locked.contains(&true) {
            self.world.fault(Fault::Locked, Some(self.life()), self.world.now() + LOCKED_FOR);
        }
        locked
    }

    /// Takes a call there and back.
    async fn call<T>(
        &self,
        name: &'static str,
        kind: Kind,
        change: impl Future<Output = Result<T>> + Send,
    ) -> Result<T> {
        let world = &self.world;
        world.stand(&self.being).await;
        let journey = self.journey(kind);
        world.log(What::Asked { life: self.life(), call: name });
        travel(journey.before).await;
        match journey.fate {
            Fate::Before(kind) => {
                world.stand(&self.being).await;
                world.log(What::Failed { life: self.life(), call: name, applied: false });
                return Err(error(kind));
            }
            Fate::Panic => {
                world.stand(&self.being).await;
                world.log(What::Failed { life: self.life(), call: name, applied: false });
                std::panic::panic_any(super::QUIET);
            }
            Fate::Fine | Fate::After(_) => {}
        }
        // A request that was sent before the end may arrive after it.
        if self.being.is_dead() {
            let arrives = world.state().rng.bool();
            world.hit(if arrives { "applied after a crash" } else { "lost in a crash" });
            if arrives {
                let _ = change.await;
            } else {
                drop(change);
            }
            return std::future::pending().await;
        }
        let changed = change.await;
        travel(journey.after).await;
        world.stand(&self.being).await;
        if let Fate::After(kind) = journey.fate {
            world.log(What::Failed { life: self.life(), call: name, applied: true });
            return Err(error(kind));
        }
        changed
    }

    fn after_sweep(&self, sweep: Sweep, records: &[Record]) {
        let now = self.world.now();
        let mut state = self.world.state();
        for (by, n) in state.audit.swept(sweep, records, now) {
            state.note(now, What::Swept { by, n });
            *state.hits.entry(by).or_default() += 1;
        }
    }

    async fn swept(&self, sweep: Sweep, changed: u64) {
        if changed > 0 {
            let records = self.world.records().await;
            self.after_sweep(sweep, &records);
        }
    }

    /// Numbers and keeps the inserted rows.
    fn stored(
        &self,
        messages: &[NewMessage],
        enqueued: &[Enqueued],
        lease: Option<Duration>,
    ) -> Vec<Pending> {
        let (now, database) = (self.world.now(), self.world.clock.now());
        let mut state = self.world.state();
        let mut pending = Vec::new();
        for (message, one) in messages.iter().zip(enqueued) {
            let n = state.audit.meet(message);
            if let Enqueued::New { lease: leased, .. } = one {
                state.last_seq += 1;
                let leased = leased.zip(lease).map(|(_, lease)| (now, database + lease));
                pending.push(Pending { n, seq: state.last_seq, leased });
            }
        }
        pending
    }

    /// The stored rows are visible now.
    fn visible(&self, pending: Vec<Pending>) {
        let now = self.world.now();
        let mut state = self.world.state();
        for Pending { n, seq, leased } in pending {
            let name = if leased.is_some() { "enqueue leased" } else { "enqueue ready" };
            *state.hits.entry(name).or_default() += 1;
            state.note(now, What::Born { n, seq, leased: leased.is_some() });
            state.audit.committed(n, seq, leased.map(|(at, until)| (self.life(), at, until)));
        }
    }

    /// The database makes a publisher wait that uses the dedup key of an open transaction.
    async fn wait_for_dedup(&self, messages: &[NewMessage], number: u64) {
        let keys: Vec<[u8; 32]> = messages.iter().filter_map(|message| message.dedup().copied()).collect();
        loop {
            {
                let mut state = self.world.state();
                state.dedups.retain(|_, (_, holder)| !holder.is_dead());
                let taken = |key| state.dedups.get(key).is_some_and(|(holder, _)| *holder != number);
                if !keys.iter().any(taken) {
                    for key in keys {
                        state.dedups.insert(key, (number, Arc::clone(&self.being)));
                    }
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    fn open(&self) -> SimConnection {
        let mut state = self.world.state();
        state.last_transaction += 1;
        let number = state.last_transaction;
        drop(state);
        let memory = Some(self.world.memory.begin());
        let (pending, waits) = (Vec::new(), Vec::new());
        SimConnection { world: Arc::clone(&self.world), number, memory, pending, waits, doomed: false }
    }

    /// A transaction of a producer's own.
    pub(super) async fn begin_own(&self) -> Result<SimConnection> {
        self.call("begin", Kind::Statement, async { Ok(self.open()) }).await
    }

    pub(super) async fn commit_own(&self, connection: SimConnection) -> Result<()> {
        if connection.doomed {
            return Err(error(ErrorKind::Database));
        }
        let commit = async move {
            let mut connection = connection;
            connection.memory.take().unwrap().commit();
            let mut pending = std::mem::take(&mut connection.pending);
            if self.being.is_dead() {
                // Others did not wait for it, and may have used its dedup keys.
                let there = self.world.records().await;
                pending.retain(|one| there.iter().any(|record| record.message.item.get() == one.seq));
            }
            self.visible(pending);
            let mut state = self.world.state();
            connection.waits.drain(..).for_each(|(join, wait)| state.audit.waits(join, wait));
            drop(state);
            Ok(())
        };
        self.call("commit", Kind::Commit, commit).await
    }

    /// The worst moment to crash: a continuation is stored, and what waited for it is not acked.
    fn crash_now_and_then(&self) {
        let mut state = self.world.state();
        let rate = self.world.plan.rate(Fault::Crash).filter(|_| !state.healed && !self.being.is_dead());
        if rate.is_some_and(|rate| state.rng.f64() < rate) {
            *state.hits.entry("crash after a continuation").or_default() += 1;
            state.audit.gone(self.life());
            drop(state);
            self.being.die();
            self.being.killed.notify_one();
        }
    }

    fn joins_ended(&self, joins: &[EndedJoin]) {
        self.world.state().audit.joins_ended(joins);
    }

    /// Counts steps that are about to be done as failed.
    async fn miscount(&self, settlements: &[Settlement]) -> Result<()> {
        for settlement in settlements.iter().filter(|settlement| settlement.outcome == Outcome::Ack) {
            let audit = self.world.state().audit.number(settlement.lease);
            let id = self.world.state().audit.id_of(audit);
            let with = JoinFilter { message: Some(id), ..JoinFilter::default() };
            for join in self.world.memory.joins(&with, None, 10).await?.joins {
                let mut tx = self.world.memory.begin();
                self.world.memory.report(&mut tx, join.id, id, StepEnd::Failed).await?;
                tx.commit();
            }
        }
        Ok(())
    }

    async fn sabotaged(&self, settlements: &[Settlement]) -> Vec<Settlement> {
        let mut settlements = settlements.to_vec();
        for settlement in &mut settlements {
            let outage = settlement.outcome.failure().is_some_and(|failure| !costs_attempt(failure.class()));
            let charge = match self.world.sabotage {
                Some(Sabotage::ChargeReleases) => settlement.outcome == Outcome::Release,
                Some(Sabotage::ChargeOutages) => outage,
                _ => false,
            };
            if charge {
                let failure = Failure::business("sabotage");
                let delay = Duration::ZERO;
                settlement.outcome = Outcome::Abandon { delay, failure, max_attempts: 100, max_age: None };
            }
            if self.world.sabotage == Some(Sabotage::ForgetReceivers) {
                settlement.handled = None;
            }
            if self.world.sabotage == Some(Sabotage::IgnoreEpochs) {
                let records = self.world.records().await;
                let row = records.iter().find(|record| record.message.item == settlement.lease.item);
                settlement.lease.epoch = row.map_or(settlement.lease.epoch, |record| record.message.epoch);
            }
        }
        settlements
    }
}

async fn travel(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

#[async_trait]
impl Store for SimStore {
    async fn check(&self) -> Result<()> {
        Ok(())
    }

    async fn enqueue(&self, messages: &[NewMessage]) -> Result<Vec<Enqueued>> {
        let number = self.open().number;
        let change = async {
            self.wait_for_dedup(messages, number).await;
            let enqueued = self.world.memory.enqueue(messages).await?;
            self.visible(self.stored(messages, &enqueued, None));
            self.world.state().dedups.retain(|_, (holder, _)| *holder != number);
            Ok(enqueued)
        };
        self.call("enqueue", Kind::Commit, change).await
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Message>> {
        let life = self.life();
        let change = async {
            let until = self.world.clock.now() + request.get_lease();
            let messages = self.world.memory.claim(request).await?;
            let now = self.world.now();
            let mut state = self.world.state();
            for message in &messages {
                let (n, epoch) = (state.audit.number_of(message.id), message.epoch);
                state.note(now, What::Claimed { life, n, epoch });
                *state.hits.entry("claim").or_default() += 1;
                state.audit.claimed(life, message, now, until);
            }
            drop(state);
            Ok(messages)
        };
        let messages = self.call("claim", Kind::Whole, change).await?;
        self.world.state().audit.received(life, &messages);
        Ok(messages)
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<SettledBatch> {
        let life = self.life();
        if !self.being.is_dead() {
            let mut state = self.world.state();
            let now = self.world.now();
            settlements.iter().for_each(|settlement| state.audit.settling(life, settlement, now));
        }
        let change = async {
            let sent = match self.world.sabotage {
                Some(_) => self.sabotaged(settlements).await,
                None => settlements.to_vec(),
            };
            if self.world.sabotage == Some(Sabotage::MiscountSteps) {
                self.miscount(&sent).await?;
            }
            let answers = self.settle_unlocked(&sent).await?;
            self.joins_ended(&answers.joins);
            for (settlement, settled) in settlements.iter().zip(&answers.settled) {
                let (n, epoch) = (self.world.state().audit.number(settlement.lease), settlement.lease.epoch);
                let id = self.world.state().audit.id_of(n);
                let shown = self.world.memory.show(id).await?;
                let record = shown.as_ref().map(|(record, _)| record);
                let now = self.world.now();
                let mut state = self.world.state();
                state.audit.settled(settlement, *settled, record);
                let outcome = settlement.outcome.code();
                state.note(now, What::Settled { life, n, epoch, outcome, answer: answer(*settled) });
                if *settled == Settled::Applied {
                    let dead = record.is_some_and(|record| record.state == State::Dead);
                    *state.hits.entry(transition(&settlement.outcome, dead)).or_default() += 1;
                    let waits = n != NOBODY && state.audit.scripts[n].topic == WAIT;
                    if waits && matches!(settlement.outcome, Outcome::Defer { .. }) {
                        *state.hits.entry("wait deferred").or_default() += 1;
                    }
                }
            }
            Ok(answers)
        };
        self.call("settle", Kind::Whole, change).await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Settled>> {
        let life = self.life();
        let change = async {
            if self.world.sabotage == Some(Sabotage::NoRenewal) {
                return Ok(vec![Settled::Applied; leases.len()]);
            }
            let answers = self.world.memory.renew(leases, lease).await?;
            let (now, until) = (self.world.now(), self.world.clock.now() + lease);
            let mut state = self.world.state();
            for (lease, settled) in leases.iter().zip(&answers) {
                let (n, epoch) = (state.audit.number(*lease), lease.epoch);
                state.note(now, What::Renewed { life, n, epoch, answer: answer(*settled) });
                state.audit.renewed(*lease, *settled, now, until);
                *state.hits.entry("renew").or_default() += 1;
            }
            drop(state);
            Ok(answers)
        };
        let answers = self.call("renew", Kind::Whole, change).await;
        if answers.is_err() {
            let now = self.world.now();
            self.world.state().audit.renewal_failed(life, now);
        }
        let answers = answers?;
        let now = self.world.now();
        let mut state = self.world.state();
        let lost = leases.iter().zip(&answers).filter(|(_, answer)| **answer != Settled::Applied);
        lost.for_each(|(lease, _)| state.audit.told(life, *lease, now));
        drop(state);
        Ok(answers)
    }

    async fn reap(&self, limit: u32) -> Result<Reaped> {
        let change = async {
            let reaped = self.world.memory.reap(limit).await?;
            self.joins_ended(&reaped.joins);
            self.swept(Sweep::Reap, reaped.ready + reaped.dead).await;
            Ok(reaped)
        };
        self.call("reap", Kind::Whole, change).await
    }

    async fn expire(&self, limit: u32) -> Result<Expired> {
        let change = async {
            let expired = self.world.memory.expire(limit).await?;
            self.joins_ended(&expired.joins);
            self.swept(Sweep::Expire, expired.messages).await;
            Ok(expired)
        };
        self.call("expire", Kind::Whole, change).await
    }

    async fn park(&self, limit: u32) -> Result<u64> {
        let change = async {
            let parked = self.world.memory.park(limit).await?;
            (0..parked).for_each(|_| self.world.hit("park"));
            self.swept(Sweep::Park, parked).await;
            Ok(parked)
        };
        self.call("park", Kind::Whole, change).await
    }

    async fn hasten(&self, topics: &Topics, limit: u32) -> Result<u64> {
        let change = async {
            if self.world.sabotage == Some(Sabotage::NoRecovery) {
                return Ok(0);
            }
            let hastened = self.world.memory.hasten(topics, limit).await?;
            (0..hastened).for_each(|_| self.world.hit("hasten"));
            Ok(hastened)
        };
        self.call("hasten", Kind::Whole, change).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<u64> {
        let change = async {
            let pruned = self.world.memory.prune(retention, limit).await?;
            self.swept(Sweep::Prune, pruned).await;
            Ok(pruned)
        };
        self.call("prune", Kind::Whole, change).await
    }

    async fn look(&self, join: JoinId) -> Result<Look> {
        let change = async {
            let look = self.world.memory.look(join).await?;
            self.world.hit("look");
            Ok(look)
        };
        self.call("look", Kind::Whole, change).await
    }

    async fn continue_join(
        &self,
        join: JoinId,
        wait: MessageId,
        continuation: Option<&NewMessage>,
    ) -> Result<bool> {
        let change = async {
            let memory = &self.world.memory;
            let there = memory.join(join).await?;
            let sabotage = self.world.sabotage;
            let sent = continuation.filter(|_| sabotage != Some(Sabotage::ForgetContinuations));
            let first = memory.continue_join(join, wait, sent).await?;
            let again = sabotage == Some(Sabotage::ContinueAgain) && !first;
            self.world.state().audit.continues(there.as_ref(), wait, continuation, first || again);
            self.world.hit(match (first, continuation) {
                (false, _) => "continuation repeated",
                (true, None) => "nothing to continue with",
                (true, Some(_)) => "continuation sent",
            });
            if let Some(continuation) = sent.filter(|_| first) {
                let enqueued = [Enqueued::New { id: continuation.id(), lease: None }];
                self.visible(self.stored(std::slice::from_ref(continuation), &enqueued, None));
            }
            self.crash_now_and_then();
            Ok(first)
        };
        self.call("continue_join", Kind::Whole, change).await
    }

    async fn prune_joins(&self, keep: Duration, limit: u32) -> Result<u64> {
        self.call("prune_joins", Kind::Whole, self.world.memory.prune_joins(keep, limit)).await
    }

    async fn turn(&self, job: &str, turn: Turn) -> Result<bool> {
        self.call("turn", Kind::Whole, self.world.memory.turn(job, turn)).await
    }

    async fn paused(&self) -> Result<Topics> {
        self.call("paused", Kind::Whole, self.world.memory.paused()).await
    }

    fn name(&self) -> String {
        format!("node {}", self.being.node)
    }
}

/// The row of the protocol's table that this settlement is.
fn transition(outcome: &Outcome, dead: bool) -> &'static str {
    match outcome {
        Outcome::Ack => "ack",
        Outcome::Abandon { failure, .. } => match (costs_attempt(failure.class()), dead) {
            (true, true) => "abandon to dead",
            (true, false) => "abandon",
            (false, true) => "outage to dead",
            (false, false) => "abandon for an outage",
        },
        Outcome::Defer { .. } => "defer",
        Outcome::Release => "release",
        Outcome::Fail { .. } => "fail",
    }
}

impl TransactionalStore for SimStore {
    type Connection = SimConnection;

    async fn insert(
        &self,
        connection: &mut SimConnection,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Vec<Enqueued>> {
        if connection.doomed {
            return Err(error(ErrorKind::Database));
        }
        // Any failure from here on makes the transaction useless.
        connection.doomed = true;
        let number = connection.number;
        let (memory, pending) = (&mut connection.memory, &mut connection.pending);
        let change = async {
            self.wait_for_dedup(messages, number).await;
            let memory = memory.as_mut().unwrap();
            let enqueued = self.world.memory.insert(memory, messages, birth).await?;
            let lease = match birth {
                Birth::Ready => None,
                Birth::Leased { lease, .. } => Some(lease),
            };
            pending.extend(self.stored(messages, &enqueued, lease));
            Ok(enqueued)
        };
        let enqueued = self.call("insert", Kind::Statement, change).await?;
        connection.doomed = false;
        Ok(enqueued)
    }

    async fn survivors(&self, connection: &mut SimConnection, leases: &[Lease]) -> Result<Vec<bool>> {
        if connection.doomed {
            return Err(error(ErrorKind::Database));
        }
        if self.world.sabotage == Some(Sabotage::EverythingSurvives) {
            return Ok(vec![true; leases.len()]);
        }
        connection.doomed = true;
        let memory = connection.memory.as_mut().unwrap();
        let survived =
            self.call("survivors", Kind::Statement, self.world.memory.survivors(memory, leases)).await?;
        connection.doomed = false;
        Ok(survived)
    }
}

/// A statement about joins in a caller's transaction: a fault makes the transaction useless, a refusal does not.
macro_rules! statement {
    ($self:ident, $connection:ident, $name:literal, $call:ident($($argument:expr),*)) => {{
        if $connection.doomed {
            return Err(error(ErrorKind::Database));
        }
        $connection.doomed = true;
        let memory = $connection.memory.as_mut().unwrap();
        let change = $self.world.memory.$call(memory, $($argument),*);
        let answer = $self.call($name, Kind::Statement, change).await;
        let refused =
            |error: &Error| matches!(error.kind(), ErrorKind::Refused | ErrorKind::NotFound);
        $connection.doomed = answer.as_ref().is_err_and(|error| !refused(error));
        answer
    }};
}

impl JoinStore for SimStore {
    async fn has_join(&self, connection: &mut SimConnection, join: JoinId) -> Result<bool> {
        statement!(self, connection, "has_join", has_join(join))
    }

    async fn start_join(&self, connection: &mut SimConnection, join: &NewJoin) -> Result<()> {
        statement!(self, connection, "start_join", start_join(join))
    }

    async fn attach(
        &self,
        connection: &mut SimConnection,
        join: JoinId,
        messages: &[MessageId],
    ) -> Result<Attached> {
        for message in messages {
            let shown = self.world.memory.show(*message).await?;
            if shown.is_some_and(|(record, _)| matches!(record.state, State::Done | State::Dead)) {
                self.world.hit("attached what is over");
            }
        }
        statement!(self, connection, "attach", attach(join, messages))
    }

    async fn report(
        &self,
        connection: &mut SimConnection,
        join: JoinId,
        message: MessageId,
        end: StepEnd,
    ) -> Result<Reported> {
        statement!(self, connection, "report", report(join, message, end))
    }

    async fn cancel_join(&self, connection: &mut SimConnection, join: JoinId) -> Result<Option<EndedJoin>> {
        statement!(self, connection, "cancel_join", cancel_join(join))
    }

    async fn wait_for_join(
        &self,
        connection: &mut SimConnection,
        join: JoinId,
        wait: MessageId,
    ) -> Result<Look> {
        let look = statement!(self, connection, "wait_for_join", wait_for_join(join, wait))?;
        connection.waits.push((join, wait));
        Ok(look)
    }
}

impl Transactions for SimStore {
    type Transaction = SimTransaction;

    async fn begin(&self) -> Result<SimTransaction> {
        Ok(SimTransaction(Box::new(self.begin_own().await?)))
    }

    async fn commit(&self, transaction: SimTransaction) -> Result<()> {
        let born: Vec<i64> =
            transaction.pending.iter().filter(|one| one.leased.is_some()).map(|one| one.seq).collect();
        self.commit_own(*transaction.0).await?;
        for seq in born {
            let lease = Lease { item: WorkItemId::new(seq), epoch: 1 };
            self.world.state().audit.knows(self.life(), lease);
        }
        Ok(())
    }

    async fn rollback(&self, transaction: SimTransaction) -> Result<()> {
        self.call("rollback", Kind::Statement, async {
            drop(transaction);
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl StoreAdmin for SimStore {
    async fn stats(&self) -> Result<Stats> {
        self.call("stats", Kind::Whole, self.world.memory.stats()).await
    }

    async fn list(&self, filter: &Filter, after: Option<Cursor>, limit: u32) -> Result<Listing> {
        self.world.memory.list(filter, after, limit).await
    }

    async fn show(&self, id: MessageId) -> Result<Option<(Record, Vec<HistoryEntry>)>> {
        self.world.memory.show(id).await
    }

    async fn requeue(&self, change: &Change) -> Result<Vec<MessageId>> {
        let ids = self.world.memory.requeue(change).await?;
        self.swept(Sweep::Requeue, ids.len() as u64).await;
        Ok(ids)
    }

    async fn bury(&self, change: &Change) -> Result<Vec<MessageId>> {
        let ids = self.world.memory.bury(change).await?;
        self.swept(Sweep::Bury, ids.len() as u64).await;
        Ok(ids)
    }
    async fn join(&self, id: JoinId) -> Result<Option<Join>> {
        self.world.memory.join(id).await
    }

    async fn joins(&self, filter: &JoinFilter, after: Option<JoinId>, limit: u32) -> Result<JoinListing> {
        self.world.memory.joins(filter, after, limit).await
    }

    async fn steps(&self, join: JoinId, after: Option<MessageId>, limit: u32) -> Result<StepListing> {
        self.world.memory.steps(join, after, limit).await
    }

    async fn pause(&self, topics: &str, by: &str, why: &str) -> Result<bool> {
        self.world.memory.pause(topics, by, why).await
    }

    async fn resume(&self, topics: &str) -> Result<bool> {
        self.world.memory.resume(topics).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        self.world.memory.pauses().await
    }

    async fn holder(&self, id: MessageId) -> Result<Option<Holder>> {
        self.world.memory.holder(id).await
    }

    async fn examine(&self) -> Result<Vec<Finding>> {
        self.world.memory.examine().await
    }
}
