//! What operators see of tenants: each of them, and all together.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::entry::Entry;
use super::key::TenantKey;
use crate::error::Result;
use crate::store::admin::{Count, Stats, TopicCount};

/// How a tenant is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TenantState {
    /// Its store answers, or has not been asked yet.
    Running,
    /// Its store does not answer, or answers with errors.
    Failing {
        /// Its last error.
        error: String,
        /// For how long.
        lasts: Duration,
    },
    /// It was removed, and its remaining messages are being delivered.
    Draining,
    /// It has the same queue as another tenant, which is polled instead.
    Twin(TenantKey),
}

impl TenantState {
    pub(super) fn of(entry: &dyn Entry) -> Self {
        let life = entry.life();
        match (life.is_removed(), life.twin(), entry.trouble()) {
            (true, ..) => Self::Draining,
            (_, Some(twin), _) => Self::Twin(twin),
            (_, _, Some(trouble)) => Self::Failing { error: trouble.error, lasts: trouble.since.elapsed() },
            _ => Self::Running,
        }
    }

    /// As a word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Failing { .. } => "failing",
            Self::Draining => "draining",
            Self::Twin(_) => "twin",
        }
    }
}

impl fmt::Display for TenantState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failing { error, lasts } => write!(f, "failing for {lasts:.0?}: {error}"),
            Self::Twin(of) => write!(f, "twin of {of}"),
            other => f.write_str(other.as_str()),
        }
    }
}

/// A tenant that is known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TenantInfo {
    /// Its key, by which logs, metrics and errors name its store.
    pub key: TenantKey,
    /// Where its messages are, for people to read; without any secret.
    pub database: String,
    /// How it is.
    pub state: TenantState,
}

impl TenantInfo {
    pub(super) fn of(entry: &dyn Entry) -> Self {
        Self { key: entry.life().key.clone(), database: entry.admin().name(), state: TenantState::of(entry) }
    }
}

/// The changes of a discovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// Tenants that are new.
    pub added: usize,
    /// Tenants whose database is reached in another way, with another password for example, by the same store.
    pub changed: usize,
    /// Tenants that have another database now; the old one is drained.
    pub replaced: usize,
    /// Tenants that were being drained, and are there again.
    pub returned: usize,
    /// Tenants that were missing, but not often enough to be removed.
    pub missing: usize,
    /// Tenants that are drained now, and then gone.
    pub removed: usize,
    /// Tenants whose store could not be opened.
    pub refused: usize,
}

/// How the queues of all tenants are.
#[derive(Debug)]
#[non_exhaustive]
pub struct TenantsStats {
    /// The sum over all tenants that could be asked; the oldest of all.
    pub total: Stats,
    /// Each tenant's own, sorted by key.
    pub tenants: Vec<(TenantKey, Result<Stats>)>,
}

impl TenantsStats {
    pub(super) fn of(tenants: Vec<(TenantKey, Result<Stats>)>) -> Self {
        let mut total = Stats::default();
        for count in counts(&mut total) {
            count.exact = true;
        }
        let mut topics: BTreeMap<(String, i16), TopicCount> = BTreeMap::new();
        for stats in tenants.iter().filter_map(|(_, stats)| stats.as_ref().ok()) {
            let mut stats = stats.clone();
            for (sum, count) in counts(&mut total).into_iter().zip(counts(&mut stats)) {
                add(sum, *count);
            }
            total.oldest_ready = total.oldest_ready.max(stats.oldest_ready);
            for topic in stats.topics {
                let key = (topic.topic.clone(), topic.state.code());
                topics.entry(key).and_modify(|sum| add(&mut sum.count, topic.count)).or_insert(topic);
            }
        }
        total.topics = topics.into_values().collect();
        Self { total, tenants }
    }
}

fn counts(stats: &mut Stats) -> [&mut Count; 6] {
    let Stats { ready, scheduled, parked, leased, done, dead, .. } = stats;
    [ready, scheduled, parked, leased, done, dead]
}

fn add(sum: &mut Count, count: Count) {
    sum.value += count.value;
    sum.exact &= count.exact;
}
