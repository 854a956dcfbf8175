//! The cost of a piece of work beside its time: WAL, dead tuples, transactions, blocks, CPU time.
//!
//! Readings are of the server as a whole where it cannot attribute them; `foreign_transactions` says how much of that came from
//! other clients. Nothing is read while the clock runs.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

use crate::measure::{Result, Sample};
use crate::store::{Product, Room};

/// Numbers that only grow, by name.
pub(crate) type Reading = BTreeMap<&'static str, f64>;

/// What `/proc` counts time in, on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A stretch of work whose clock runs.
pub(crate) struct Meter {
    early: Reading,
    late: Reading,
    begin: Instant,
}

/// The same when its clock has stopped, and before the servers have told the rest.
pub(crate) struct Stopped {
    early: Reading,
    late: Reading,
    seconds: f64,
}

impl Meter {
    /// Takes the readings, then starts the clock.
    pub(crate) async fn start<P: Product>(room: &Room<P>) -> Result<Self> {
        room.checkpoint().await?;
        let late = room.late_reading().await?;
        let early = early_reading(room).await?;
        Ok(Self { early, late, begin: Instant::now() })
    }

    /// Stops the clock, then takes the readings that cannot wait.
    pub(crate) async fn stop<P: Product>(self, room: &Room<P>) -> Result<Stopped> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let early = difference(&early_reading(room).await?, &self.early);
        Ok(Stopped { early, late: self.late, seconds })
    }
}

impl Stopped {
    pub(crate) fn seconds(&self) -> f64 {
        self.seconds
    }

    /// The result, as work per second and costs per unit of work. All other connections to the database must be closed by now:
    /// servers count for good when a connection ends.
    pub(crate) async fn sample<P: Product>(self, room: &Room<P>, work: u64) -> Result<Sample> {
        let mut sample = Sample::rate(work, self.seconds);
        self.costs(room, work, &mut sample).await?;
        Ok(sample)
    }

    /// The same costs beside another value.
    pub(crate) async fn costs<P: Product>(self, room: &Room<P>, work: u64, sample: &mut Sample) -> Result {
        let late = difference(&room.late_reading().await?, &self.late);
        for (name, value) in self.early.into_iter().chain(late) {
            sample.count(name, value / work.max(1) as f64);
        }
        Ok(())
    }
}

async fn early_reading<P: Product>(room: &Room<P>) -> Result<Reading> {
    let mut reading = room.early_reading().await?;
    if let Some(seconds) = own_cpu() {
        reading.insert("client_cpu_us", seconds * 1e6);
    }
    Ok(reading)
}

fn difference(after: &Reading, before: &Reading) -> Reading {
    after.iter().filter_map(|(name, value)| Some((*name, value - before.get(name)?))).collect()
}

/// The CPU time of this process and of its children that have ended: a peer is one of them.
fn own_cpu() -> Option<f64> {
    times("/proc/self/stat").map(|times| times.iter().sum())
}

/// The CPU time of a server that forks: the first process, its ended descendants, and its live children.
pub(crate) fn family_cpu(first: u32) -> Option<f64> {
    let mut seconds: f64 = times(&format!("/proc/{first}/stat"))?.iter().sum();
    for process in processes() {
        if parent(process) == Some(first)
            && let Some(times) = times(&format!("/proc/{process}/stat"))
        {
            seconds += times[0] + times[1];
        }
    }
    Some(seconds)
}

/// The process whose child this is.
pub(crate) fn parent(process: u32) -> Option<u32> {
    fields(&format!("/proc/{process}/stat"))?.get(1)?.parse().ok()
}

/// The only process of one of these names.
pub(crate) fn only_process(names: &[&str]) -> Option<u32> {
    let named = |process: &u32| {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        names.contains(&name.trim())
    };
    let mut found = processes().filter(named);
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Of itself in user and system mode, then of its ended children, in seconds.
fn times(stat: &str) -> Option<[f64; 4]> {
    let fields = fields(stat)?;
    let time = |n: usize| fields.get(n)?.parse::<f64>().ok().map(|ticks| ticks / TICKS_PER_SECOND);
    Some([time(11)?, time(12)?, time(13)?, time(14)?])
}

/// What follows the name, which may itself contain spaces and brackets; the first is the state.
fn fields(stat: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(stat).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_of_what_both_have() {
        let before = Reading::from([("wal_bytes", 10.0)]);
        let after = Reading::from([("wal_bytes", 35.0), ("blocks", 1.0)]);
        assert_eq!(difference(&after, &before), Reading::from([("wal_bytes", 25.0)]));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_knows_its_own_time_and_parent() {
        assert!(own_cpu().is_some_and(|seconds| seconds >= 0.0));
        assert!(family_cpu(std::process::id()).is_some());
        assert!(parent(std::process::id()).is_some());
    }
}
