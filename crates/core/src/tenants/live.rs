//! A tenant's life while the tenants run: reached, run, drained when it was removed.
//!
//! Failures of one tenant end here, and affect no other.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, info, warn};

use super::Core;
use super::entry::Entry;
use crate::commons::Priority;
use crate::dispatch::call::unpanicked;
use crate::error::{Error, ErrorKind, Result};
use crate::shutdown::Shutdown;

/// The first pause after a database could not be reached.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Runs a tenant until the shutdown, or until it has been removed and drained; returns true if it has.
pub(super) async fn live(core: Arc<Core>, entry: Arc<dyn Entry>, shutdown: Shutdown) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        let outcome = turn(&core, &entry, &shutdown).await;
        core.identities.release(&entry);
        if shutdown.has_begun() {
            return false;
        }
        let until = *entry.life().removed.borrow();
        match outcome {
            Ok(()) if until.is_some() => {
                // In a task of its own: the store may be silent, and calls to it are never cancelled.
                let telling = tokio::spawn(told_end(Arc::clone(&entry)));
                tokio::select! {
                    biased;
                    _ = telling => {}
                    () = shutdown.begun() => {}
                }
                return true;
            }
            // It came back while it was drained.
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => entry.failed("run", &error),
        }
        if until.is_some_and(|until| until <= Instant::now()) {
            warn!(store = %entry.life().key, "a removed tenant could not be drained in time: it is left as it is");
            return true;
        }
        let mut removed = entry.life().removed.subscribe();
        removed.mark_unchanged();
        tokio::select! {
            biased;
            () = shutdown.begun() => return false,
            _ = removed.changed() => pause = FIRST_PAUSE,
            () = sleep(pause.mul_f64(0.75 + 0.5 * fastrand::f64())) => {
                pause = (pause * 2).min(core.plan.settings.tenants_retry);
            }
        }
    }
}

/// From being reached to the end of running.
async fn turn(core: &Arc<Core>, entry: &Arc<dyn Entry>, shutdown: &Shutdown) -> Result<()> {
    // In a task of its own: a database that is silent does not keep a shutdown waiting, and calls to it are never cancelled.
    let reaching = tokio::spawn(unpanicked(entry.reach()));
    let identity = tokio::select! {
        biased;
        () = shutdown.begun() => return Ok(()),
        reached = reaching => match reached {
            Ok(identity) => identity?,
            Err(_) => return Err(Error::new(ErrorKind::Database, "reaching the store was given up")),
        },
    };
    if let Some(identity) = identity {
        loop {
            let mut freed = std::pin::pin!(core.identities.freed());
            // Before asking which tenant has it: a queue that is freed right after must not be missed.
            freed.as_mut().enable();
            let Some(twin) = core.identities.take(&identity, entry) else { break };
            // The other one polls the queue that both are.
            if entry.life().is_removed() {
                return Ok(());
            }
            if entry.life().twin().as_ref() != Some(&twin) {
                info!(store = %entry.life().key, twin = %twin, "the same queue under another key: it is polled once");
                entry.life().set_twin(Some(twin));
            }
            let mut removed = entry.life().removed.subscribe();
            tokio::select! {
                biased;
                () = shutdown.begun() => return Ok(()),
                () = freed => {}
                _ = removed.changed() => {}
            }
        }
        entry.life().set_twin(None);
    }
    let own = Shutdown::new();
    let mut running = std::pin::pin!(entry.run(own.clone()));
    let mut removed = entry.life().removed.subscribe();
    loop {
        let until = *removed.borrow_and_update();
        tokio::select! {
            ended = &mut running => return ended,
            () = shutdown.ended() => {
                own.now();
                return running.await;
            }
            () = shutdown.begun(), if !own.has_begun() => own.begin(),
            () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() && !own.has_begun() => own.begin(),
            _ = removed.changed() => {}
        }
    }
}

/// Logs the messages that a removed tenant leaves behind.
async fn told_end(entry: Arc<dyn Entry>) {
    let store = entry.admin();
    match entry.share().call(Priority::Normal, unpanicked(store.stats())).await {
        Ok(stats) if stats.pending().value == 0 => {
            info!(store = %entry.life().key, "a tenant is gone, and drained");
        }
        Ok(stats) => warn!(
            store = %entry.life().key, scheduled = stats.scheduled.value, parked = stats.parked.value,
            ready = stats.ready.value, leased = stats.leased.value, "a tenant is gone, and messages are left in it"
        ),
        Err(error) => debug!(store = %entry.life().key, error = ?error, "a tenant is gone"),
    }
    entry.home().rest().await;
}
