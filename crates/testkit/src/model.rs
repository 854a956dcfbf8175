//! The differential test: random sequences of all operations, run against a store and against the reference in memory,
//! which must answer alike and look alike after every step.
//!
//! The same seed is the same sequences on every machine. No step may depend on how fast the machine is.

mod compare;
mod joins;
mod operation;
mod step;

use std::sync::Arc;
use std::time::SystemTime;

use posthaste_core::{ManualClock, MemoryStore};
use proptest::test_runner::{
    Config, RngAlgorithm, TestCaseError, TestCaseResult, TestError, TestRng, TestRunner,
};
use tokio::runtime::Handle;

use crate::Fixture;
use operation::{Operation, operations};
use step::Pair;

/// Where the sequences begin unless `POSTHASTE_MODEL_SEED` says otherwise.
const SEED: u64 = 20_251_115;
/// A sequence has fewer steps than this, or a few more where some belong together.
const STEPS: usize = 60;

/// Runs so many sequences (or `POSTHASTE_MODEL_CASES`, if that is more) on a store of this kind and on the reference.
///
/// A difference is a panic that names the seed, the shortest sequence found that shows it, and the step. Needs a
/// multi-threaded runtime.
pub async fn run_model<F: Fixture>(cases: u32) {
    let fixture = Arc::new(F::create().await);
    run_on(&fixture, cases).await;
    Arc::into_inner(fixture).expect("the model leaves no task behind").destroy().await;
}

/// The same on a store that is there already, and will be cleared.
pub(crate) async fn run_on<F: Fixture>(fixture: &Arc<F>, cases: u32) {
    let cases = from_environment("POSTHASTE_MODEL_CASES").map_or(cases, |more| cases.max(more));
    let seed = from_environment("POSTHASTE_MODEL_SEED").unwrap_or(SEED);
    let handle = Handle::current();
    // The runner is not asynchronous: it calls each sequence, shrinks it and calls it again, on this thread.
    tokio::task::block_in_place(|| {
        check(cases, seed, |operations| handle.block_on(run_sequence(&**fixture, operations)));
    });
}

fn from_environment<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
}

fn check(cases: u32, seed: u64, run: impl Fn(&[Operation]) -> Result<(), String>) {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        max_shrink_time: 120_000,
        ..Config::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    let sequences = proptest::collection::vec(operations(), 1..STEPS);
    let test = |operations: Vec<Vec<Operation>>| -> TestCaseResult {
        run(&operations.concat()).map_err(TestCaseError::fail)
    };
    match runner.run(&sequences, test) {
        Ok(()) => {}
        Err(TestError::Fail(difference, operations)) => panic!(
            "the store differs from the reference (POSTHASTE_MODEL_SEED={seed}) {difference}\n\
             in this sequence: {operations:#?}"
        ),
        Err(TestError::Abort(reason)) => panic!("the model gave up (POSTHASTE_MODEL_SEED={seed}): {reason}"),
    }
}

async fn run_sequence<F: Fixture>(fixture: &F, operations: &[Operation]) -> Result<(), String> {
    fixture.clear().await;
    let clock = Arc::new(ManualClock::at(SystemTime::now()));
    let reference = MemoryStore::with_clock(clock.clone());
    let mut pair = Pair::new(fixture, reference, clock);
    for (n, operation) in operations.iter().enumerate() {
        let at = |difference| format!("at step {} ({operation:?}): {difference}", n + 1);
        pair.step(operation).await.map_err(at)?;
        pair.compare().await.map_err(at)?;
    }
    let at_the_end = |difference| format!("at the end: {difference}");
    pair.compare_views().await.map_err(at_the_end)?;
    pair.compare_histories().await.map_err(at_the_end)
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "model_join_tests.rs"]
mod join_tests;
