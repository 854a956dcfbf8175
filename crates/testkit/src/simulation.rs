//! A deterministic simulation of the dispatcher: the real outbox, on tokio's paused clock and one thread, over a store, a
//! network, clocks, processes, producers and handlers that are all simulated and fail as a seed says.
//!
//! The same seed does the same, always: nothing here may read a wall clock, use another thread, or depend on the order of
//! a hash map. The audit sees every change at the moment it is made, and finds violations.

mod audit;
mod audit_joins;
mod node;
mod plan;
mod producer;
mod sink;
mod store;
mod world;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::Once;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_core::{Join, JoinStatus, Step, StepStatus};

pub use self::plan::Fault;
use self::plan::Plan;
pub use self::world::Sabotage;
use self::world::{What, World};

/// What simulated panics say; the hook stays silent about them.
const QUIET: &str = "a simulated panic";
/// How long everything may take to come to rest after the faults have ended.
const REST: u64 = 240_000;

/// How a seed ended.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The first violation, if there is one.
    pub objection: Option<String>,
    /// The faults that it had.
    pub faults: Vec<Fault>,
    /// A hash over everything that happened.
    pub hash: u64,
    /// How often what happened.
    pub hits: BTreeMap<&'static str, u64>,
    /// The last events.
    pub tail: String,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, faults, tail, .. } = self;
        let objection = self.objection.as_deref().unwrap_or("nothing to object to");
        writeln!(f, "seed {seed}: {objection}")?;
        writeln!(f, "faults: {faults:?}")?;
        writeln!(
            f,
            "reproduce: POSTHASTE_SIM_SEED={seed} cargo test -p posthaste-testkit --test simulation"
        )?;
        write!(f, "{tail}")
    }
}

/// Which seed to run, and how.
#[derive(Clone, Debug)]
pub struct Simulation {
    seed: u64,
    without: Vec<Fault>,
    sabotage: Option<Sabotage>,
    events: usize,
}

impl Simulation {
    /// This seed, as it is.
    pub fn new(seed: u64) -> Self {
        Self { seed, without: Vec::new(), sabotage: None, events: 200 }
    }

    /// The same without faults of these kinds.
    #[must_use]
    pub fn without(mut self, faults: &[Fault]) -> Self {
        self.without.extend_from_slice(faults);
        self
    }

    /// The same over a store with a defect.
    #[must_use]
    pub fn sabotage(mut self, sabotage: Sabotage) -> Self {
        self.sabotage = Some(sabotage);
        self
    }

    /// How many of the last events are reported. Default: 200.
    #[must_use]
    pub fn events(mut self, events: usize) -> Self {
        self.events = events;
        self
    }

    /// Runs it.
    pub fn run(&self) -> Report {
        be_quiet();
        // The dispatcher's own jitter.
        fastrand::seed(self.seed);
        let plan = Plan::new(self.seed, &self.without);
        let faults = plan.faults.iter().map(|(fault, _)| *fault).collect();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let world = runtime.block_on(simulate(plan, self.sabotage));
        world.closed.store(true, Ordering::Relaxed);
        drop(runtime);
        let tail = world.tail(self.events);
        let hash = world.hash();
        let state = world.state();
        let objection = state.audit.objection().map(str::to_owned);
        Report { seed: self.seed, objection, faults, hash, hits: state.hits.clone(), tail }
    }

    /// Drops kinds of faults for as long as the seed still fails, and says how it fails with the fewest.
    pub fn shrink(&self) -> Report {
        let mut least = self.clone();
        let mut report = self.run();
        for fault in report.faults.clone() {
            let fewer = least.clone().without(&[fault]);
            let tried = fewer.run();
            if tried.objection.is_some() {
                (least, report) = (fewer, tried);
            }
        }
        report
    }
}

/// Simulated panics are noise; others are not.
fn be_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().downcast_ref::<&str>() != Some(&QUIET) {
                loud(info);
            }
        }));
    });
}

async fn simulate(plan: Plan, sabotage: Option<Sabotage>) -> Arc<World> {
    let world = World::new(plan, sabotage);
    let nodes: Vec<_> =
        (0..world.plan.nodes.len()).map(|node| tokio::spawn(node::chaos(Arc::clone(&world), node))).collect();
    for job in world.plan.jobs.clone() {
        tokio::spawn(producer::produce(Arc::clone(&world), job));
    }
    for n in 0..world.plan.joins.len() {
        producer::join(&world, n);
    }
    for kind in [Fault::Outage, Fault::ClockForward, Fault::ClockBack, Fault::Operator] {
        tokio::spawn(producer::fate(Arc::clone(&world), kind));
    }
    tokio::time::sleep_until(world.at(world.plan.heals_at)).await;
    world.state().healed = true;
    if world.plan.liveness {
        come_to_rest(&world, nodes).await;
    }
    let (records, joins) = (world.records().await, world.joins().await);
    tally(&world, &joins);
    world.state().audit.finish(&records);
    world.state().audit.finish_joins(&joins, world.plan.liveness);
    world
}

/// How the joins ended.
fn tally(world: &World, joins: &[(Join, Vec<Step>)]) {
    for (join, steps) in joins {
        world.hit(match join.status {
            JoinStatus::Pending => "join pending",
            JoinStatus::Completed => "join completed",
            JoinStatus::Failed => "join failed",
            JoinStatus::Cancelled => "join cancelled",
            JoinStatus::Expired => "join expired",
        });
        let late = |step: &&Step| matches!(step.status, StepStatus::LateCompleted | StepStatus::LateFailed);
        steps.iter().filter(late).for_each(|_| world.hit("late step"));
        let n = audit::join_number(join.id);
        let (status, completed, failed) = (join.status.code(), join.completed_steps, join.failed_steps);
        world.log(What::Joined { n, status, completed, failed });
    }
}

/// The faults are over: everything must end, and so must the nodes.
async fn come_to_rest(world: &Arc<World>, nodes: Vec<tokio::task::JoinHandle<node::Node>>) {
    // Producers that repeat themselves end soon.
    tokio::time::sleep(Duration::from_secs(3)).await;
    loop {
        let (records, joins) = (world.records().await, world.joins().await);
        world.state().audit.look_at_joins(&joins);
        let unfinished = world.state().audit.unfinished(&records);
        let database = posthaste_core::Clock::now(&*world.clock);
        let overdue = |join: &Join| {
            join.status == JoinStatus::Pending && join.expires_at.is_some_and(|expires| expires <= database)
        };
        let overdue = joins.iter().find(|(join, _)| overdue(join));
        let too_late = world.now() > world.plan.heals_at + REST;
        if let Some((join, _)) = overdue.filter(|_| too_late) {
            let n = audit::join_number(join.id);
            world.state().audit.object(format!("I11: join {n} is pending, and its deadline has passed"));
            return;
        }
        if unfinished.is_none() && overdue.is_none() {
            break;
        }
        if let Some(n) = unfinished.filter(|_| too_late) {
            let id = world.state().audit.id_of(n);
            let record = records.iter().find(|record| record.message.id == id);
            let (state, due) = record.map(|record| (record.state, record.message.due_at)).unzip();
            let why = format!(
                "I11: message {n} does not come to its end: {state:?}, due {due:?}, now {database:?}"
            );
            world.state().audit.object(why);
            return;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    world.ending.send_replace(true);
    for node in nodes {
        match node.await {
            Ok(node) => node.stop().await,
            Err(error) => world.state().audit.object(format!("a node panicked: {error}")),
        }
    }
}
