//! The simulation of the dispatcher, over many seeds.
//!
//! `POSTHASTE_SIM_SEED=7` runs one seed and shows all its events; `POSTHASTE_SIM_SEEDS=200000` runs that many. A seed
//! that fails is named, with the fewest kinds of faults that make it fail.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "test code: this is how it reports"
)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use posthaste_testkit::simulation::{Fault, Sabotage, Simulation};

/// The default number of seeds of each half: about half a minute in a debug build.
const SEEDS: u64 = 1_200;
/// How often everything that can happen must happen in a half.
const OFTEN: u64 = 100;

/// Events besides the faults.
const TRANSITIONS: &[&str] = &[
    "enqueue ready",
    "enqueue leased",
    "claim",
    "renew",
    "ack",
    "abandon",
    "abandon for an outage",
    "abandon to dead",
    "outage to dead",
    "defer",
    "release",
    "fail",
    "reap to ready",
    "reap to dead",
    "expire",
    "park",
    "requeue",
    "bury",
    "prune",
    "rolled back",
    "savepoint rolled back",
    "handler: succeeded",
    "handler: failed",
    "handler: panicked",
    "handler: dropped",
    "join pending",
    "join completed",
    "join failed",
    "join cancelled",
    "join expired",
    "late step",
    "attached what is over",
    "look",
    "wait deferred",
    "nothing to continue with",
    "continuation sent",
    "hasten",
    "sink took",
    "sink down",
];

/// What needs a coincidence to happen: a waiting message that goes on, and is not acked in time; a sink that goes down between a message
/// and its answer.
const SELDOM: &[(&str, u64)] =
    &[("crash after a continuation", 30), ("continuation repeated", 30), ("sink answer lost", 3)];

/// A loop that never waits stops the simulated clock, and so the test: it is named and ended from outside.
struct Watchdog {
    seed: Arc<AtomicU64>,
    began: Arc<AtomicU64>,
    _end: mpsc::Sender<()>,
}

impl Watchdog {
    fn new() -> Self {
        let (seed, began) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (end, ended) = mpsc::channel::<()>();
        let (watched, since) = (Arc::clone(&seed), Arc::clone(&began));
        std::thread::spawn(move || {
            let mut last = (u64::MAX, Instant::now());
            while ended.recv_timeout(Duration::from_secs(1)) == Err(mpsc::RecvTimeoutError::Timeout) {
                let run = since.load(Ordering::Relaxed);
                if last.0 != run {
                    last = (run, Instant::now());
                } else if last.1.elapsed() > Duration::from_secs(60) {
                    let seed = watched.load(Ordering::Relaxed);
                    eprintln!(
                        "seed {seed} does not end: something never waits. POSTHASTE_SIM_SEED={seed} repeats it"
                    );
                    std::process::exit(101);
                }
            }
        });
        Self { seed, began, _end: end }
    }

    fn begins(&self, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.began.fetch_add(1, Ordering::Relaxed);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap_or_else(|_| panic!("{variable} is not a number")))
}

fn run(from: u64, count: u64) {
    let watchdog = Watchdog::new();
    let mut hits: BTreeMap<&'static str, u64> = BTreeMap::new();
    let began = Instant::now();
    for seed in from..from + count {
        watchdog.begins(seed);
        let report = Simulation::new(seed).run();
        if report.objection.is_some() {
            let least = Simulation::new(seed).shrink();
            panic!(
                "{report}\nwith the fewest faults {:?}: {}",
                least.faults,
                least.objection.unwrap_or_default()
            );
        }
        if seed % 50 == 0 {
            let again = Simulation::new(seed).run();
            assert_eq!(report.hash, again.hash, "seed {seed} did not do the same twice");
        }
        for (what, times) in report.hits {
            *hits.entry(what).or_default() += times;
        }
    }
    println!("{count} seeds in {:?}: {hits:#?}", began.elapsed());
    if count >= SEEDS {
        let names = TRANSITIONS.iter().copied().chain(Fault::ALL.map(Fault::name));
        let seldom: Vec<&str> =
            names.filter(|name| hits.get(name).copied().unwrap_or_default() < OFTEN).collect();
        assert!(seldom.is_empty(), "these happened less than {OFTEN} times: {seldom:?}");
        for (name, least) in SELDOM {
            let times = hits.get(name).copied().unwrap_or_default();
            assert!(times >= *least, "{name} happened {times} times, less than {least}");
        }
    }
}

/// Two halves, so that two cores have something to do.
fn half(n: u64) {
    if let Some(seed) = number("POSTHASTE_SIM_SEED") {
        let watchdog = Watchdog::new();
        watchdog.begins(seed);
        let report = Simulation::new(seed).events(usize::MAX).run();
        println!("{report}");
        assert!(report.objection.is_none(), "seed {seed} failed: {}", report.objection.unwrap_or_default());
        return;
    }
    let count = number("POSTHASTE_SIM_SEEDS").map_or(SEEDS, |seeds| seeds / 2);
    run(n * count, count);
}

#[test]
fn slow_nothing_goes_wrong_in_the_first_half() {
    half(0);
}

#[test]
fn slow_nothing_goes_wrong_in_the_second_half() {
    half(1);
}

/// The audit notices defects that are put into the store on purpose.
#[test]
fn defects_are_noticed() {
    let watchdog = Watchdog::new();
    for (sabotage, says) in [
        (Sabotage::IgnoreEpochs, "I4"),
        (Sabotage::NoRenewal, "I"),
        (Sabotage::EverythingSurvives, "I2"),
        (Sabotage::ChargeReleases, "I10"),
        (Sabotage::ChargeOutages, "I10"),
        (Sabotage::CountTwice, "I7"),
        (Sabotage::MiscountSteps, "I7"),
        (Sabotage::ForgetContinuations, "I8"),
        (Sabotage::ContinueAgain, "I8"),
        (Sabotage::ForgetReceivers, "I5"),
        (Sabotage::NoRecovery, "I11"),
    ] {
        let noticed = AtomicBool::new(false);
        let seed = (0..400).find(|seed| {
            watchdog.begins(*seed);
            let report = Simulation::new(*seed).sabotage(sabotage).run();
            let objection = report.objection.unwrap_or_default();
            noticed.fetch_or(!objection.is_empty(), Ordering::Relaxed);
            objection.starts_with(says)
        });
        assert!(seed.is_some(), "{sabotage:?} went unnoticed ({noticed:?})");
    }
}
