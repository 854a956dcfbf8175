//! What all nodes of a simulated run share: the database with its clock, the seed's generator, the log and the audit.
//!
//! Everything happens on one thread, at times that only tokio's paused clock decides. Nothing here may wait while it
//! holds the lock.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use posthaste_core::{Clock, Filter, Join, JoinFilter, MemoryStore, Outbox, Record, Step, StoreAdmin};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::audit::{self, Audit, Ended};
use super::plan::{Fault, Plan};
use super::store::SimStore;

/// The database's clock: tokio's, and its jumps.
#[derive(Debug)]
pub(super) struct SimClock {
    start: Instant,
    offset: AtomicI64,
}

impl SimClock {
    pub(super) fn jump(&self, millis: i64) {
        self.offset.fetch_add(millis, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn now(&self) -> SystemTime {
        let base = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let offset = self.offset.load(Ordering::Relaxed);
        let shift = Duration::from_millis(offset.unsigned_abs());
        let now = base + self.start.elapsed();
        if offset < 0 { now - shift } else { now + shift }
    }
}

/// One thing that happened.
#[derive(Clone, Debug, Hash)]
pub(super) enum What {
    Started { life: usize },
    Stopping { life: usize },
    Stopped { life: usize, fine: bool },
    Fault { kind: Fault, life: Option<usize>, millis: i64 },
    Asked { life: usize, call: &'static str },
    Failed { life: usize, call: &'static str, applied: bool },
    Born { n: usize, seq: i64, leased: bool },
    RolledBack { ns: Vec<usize> },
    Claimed { life: usize, n: usize, epoch: i32 },
    Renewed { life: usize, n: usize, epoch: i32, answer: &'static str },
    Settled { life: usize, n: usize, epoch: i32, outcome: i16, answer: &'static str },
    Swept { by: &'static str, n: usize },
    Begun { life: usize, n: usize, epoch: i32, handler: &'static str },
    Ended { life: usize, n: usize, epoch: i32, handler: &'static str, how: Ended },
    Took { life: usize, n: usize, epoch: i32, sink: &'static str },
    Joined { n: usize, status: i16, completed: u32, failed: u32 },
    Objection(String),
}

/// One incarnation of a node.
#[derive(Debug)]
pub(super) struct Being {
    pub(super) life: audit::Life,
    pub(super) node: usize,
    dead: AtomicBool,
    paused_until: AtomicU64,
    /// The process ended it itself.
    pub(super) killed: Notify,
}

impl Being {
    pub(super) fn new(life: audit::Life, node: usize) -> Self {
        Self {
            life,
            node,
            dead: AtomicBool::new(false),
            paused_until: AtomicU64::new(0),
            killed: Notify::new(),
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(super) fn pause(&self, until: u64) {
        self.paused_until.store(until, Ordering::Relaxed);
    }
}

pub(super) struct State {
    pub(super) rng: Rng,
    pub(super) audit: Audit,
    pub(super) log: Vec<(u64, What)>,
    pub(super) hits: BTreeMap<&'static str, u64>,
    /// Until when the database cannot be reached.
    pub(super) outage_until: u64,
    pub(super) healed: bool,
    objected: bool,
    /// How many rows were numbered.
    pub(super) last_seq: i64,
    /// Dedup keys of open transactions, with the transaction and its process.
    pub(super) dedups: BTreeMap<[u8; 32], (u64, Arc<Being>)>,
    pub(super) last_transaction: u64,
    /// The calls of handlers so far, by message and handler.
    pub(super) steps: BTreeMap<(usize, &'static str), usize>,
}

impl State {
    /// Keeps what happened; an objection, too, so that people see when it came.
    pub(super) fn note(&mut self, at: u64, what: What) {
        self.log.push((at, what));
        if let Some(why) = self.audit.objection().filter(|_| !self.objected) {
            self.log.push((at, What::Objection(why.to_owned())));
            self.objected = true;
        }
    }
}

/// A node, as producers see it.
#[derive(Clone)]
pub(super) struct Door {
    pub(super) outbox: Outbox<SimStore>,
    pub(super) being: Arc<Being>,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) clock: Arc<SimClock>,
    pub(super) memory: MemoryStore,
    pub(super) sabotage: Option<Sabotage>,
    start: Instant,
    state: Mutex<State>,
    pub(super) doors: Mutex<Vec<Option<Door>>>,
    pub(super) closed: AtomicBool,
    /// Whether nodes are to be left alone from now on.
    pub(super) ending: watch::Sender<bool>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("seed", &self.plan.seed).finish_non_exhaustive()
    }
}

/// A defect that is put into the store on purpose, to see that the audit notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Settlements of stale holders are accepted.
    IgnoreEpochs,
    /// Renewals are answered, and not done.
    NoRenewal,
    /// Rows that are rolled back to a savepoint are reported as survivors.
    EverythingSurvives,
    /// A release is charged as an attempt.
    ChargeReleases,
    /// Infrastructure failures are charged as attempts.
    ChargeOutages,
    /// A step that is done is counted twice.
    CountTwice,
    /// A step that is done is counted as failed.
    MiscountSteps,
    /// A continuation is said to be stored, and is not.
    ForgetContinuations,
    /// Sending a continuation again reports that it is the first time.
    ContinueAgain,
    /// Which receivers of a message are done is not stored.
    ForgetReceivers,
    /// Messages that wait for a sink are not made due when it is back.
    NoRecovery,
}

impl World {
    pub(super) fn new(plan: Plan, sabotage: Option<Sabotage>) -> Arc<Self> {
        let start = Instant::now();
        let clock = Arc::new(SimClock { start, offset: AtomicI64::new(0) });
        let memory = MemoryStore::with_clock(clock.clone()).keep_done(plan.keep_done);
        let state = State {
            rng: Rng::with_seed(plan.seed),
            audit: Audit::new(&plan),
            log: Vec::new(),
            hits: BTreeMap::new(),
            outage_until: 0,
            healed: false,
            objected: false,
            last_seq: 0,
            dedups: BTreeMap::new(),
            last_transaction: 0,
            steps: BTreeMap::new(),
        };
        let doors = Mutex::new(vec![None; plan.nodes.len()]);
        let closed = AtomicBool::new(false);
        let (ending, state) = (watch::Sender::new(false), Mutex::new(state));
        Arc::new(Self { plan, clock, memory, sabotage, start, state, doors, closed, ending })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Milliseconds since the beginning.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    pub(super) fn log(&self, what: What) {
        let now = self.now();
        self.state().note(now, what);
    }

    pub(super) fn hit(&self, name: &'static str) {
        *self.state().hits.entry(name).or_default() += 1;
    }

    /// A fault strikes one process, or all of them, and lasts until then.
    pub(super) fn fault(&self, kind: Fault, life: Option<usize>, until: u64) {
        let now = self.now();
        let mut state = self.state();
        let millis = i64::try_from(until - now).unwrap_or_default();
        state.note(now, What::Fault { kind, life, millis });
        *state.hits.entry(kind.name()).or_default() += 1;
        match life {
            Some(life) if kind.is_light() => state.audit.error(life, until),
            _ if kind.is_harmless() => {}
            _ => state.audit.fault(life, until),
        }
    }

    /// Waits while a process stands still, and for ever once it is dead.
    pub(super) async fn stand(&self, being: &Being) {
        loop {
            if being.is_dead() {
                std::future::pending::<()>().await;
            }
            let until = being.paused_until.load(Ordering::Relaxed);
            if until <= self.now() {
                return;
            }
            tokio::time::sleep_until(self.at(until)).await;
        }
    }

    /// The whole table, in the order of enqueueing.
    pub(super) async fn records(&self) -> Vec<Record> {
        let mut records = Vec::new();
        let mut after = None;
        loop {
            let page = self.memory.list(&Filter::default(), after, 200).await.unwrap();
            records.extend(page.records);
            after = page.next;
            if after.is_none() {
                return records;
            }
        }
    }

    /// All joins with their steps, in the order of their ids.
    pub(super) async fn joins(&self) -> Vec<(Join, Vec<Step>)> {
        let mut joins = Vec::new();
        for mut join in self.memory.joins(&JoinFilter::default(), None, 200).await.unwrap().joins {
            if self.sabotage == Some(Sabotage::CountTwice) && join.completed_steps > 0 {
                join.completed_steps += 1;
            }
            let steps = self.memory.steps(join.id, None, 200).await.unwrap().steps;
            joins.push((join, steps));
        }
        joins
    }

    pub(super) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.state().log.hash(&mut hasher);
        hasher.finish()
    }

    /// The last events, for people.
    pub(super) fn tail(&self, most: usize) -> String {
        let state = self.state();
        let mut lines = VecDeque::new();
        for (at, what) in &state.log {
            if lines.len() == most {
                lines.pop_front();
            }
            lines.push_back(format!("{at:>7} ms  {what:?}"));
        }
        lines.make_contiguous().join("\n")
    }
}
