//! `--migrate`: creates or updates the tables of every database first. A database that fails concerns no other: the relay delivers from
//! those, and goes on trying this one.

use std::sync::Arc;
use std::time::Duration;

use posthaste::{Error, Result};
use tokio::task::JoinSet;
use tracing::{error, info};

use super::build;
use super::config::Config;
use crate::target::AnyStore;

/// How many databases are migrated at a time.
const AT_A_TIME: usize = 8;
/// The pause between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// A database whose tables could not be migrated yet.
pub(super) struct Unmigrated {
    pub(super) name: String,
    pub(super) error: Error,
    store: Arc<dyn AnyStore>,
}

/// Migrates every database, and answers with those that failed. If all did, that is an error.
pub(super) async fn all(config: &Config) -> Result<Vec<Unmigrated>> {
    let of = config.databases.len();
    let (mut running, mut failed) = (JoinSet::new(), Vec::new());
    for database in &config.databases {
        if running.len() >= AT_A_TIME {
            failed.extend(running.join_next().await.and_then(Result::ok).flatten());
        }
        let (name, store) = (database.name.clone(), build::store(database, of)?);
        running.spawn(async move {
            let error = store.migrate().await.err()?.with_context("tenant", &name);
            Some(Unmigrated { name, error, store })
        });
    }
    failed.extend(running.join_all().await.into_iter().flatten());
    failed.sort_by(|a, b| a.name.cmp(&b.name));
    if of > 0 && failed.len() == of {
        return Err(failed.remove(0).error);
    }
    Ok(failed)
}

/// Tries the databases that failed again until they are migrated.
pub(super) fn keep_trying(failed: Vec<Unmigrated>) {
    for Unmigrated { name, error, store } in failed {
        error!(store = %name, error = %error, "a database could not be migrated: the relay tries again");
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(PAUSE).await;
                if let Ok(version) = store.migrate().await {
                    info!(store = %name, version, "a database has been migrated");
                    return;
                }
            }
        });
    }
}
