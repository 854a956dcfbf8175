//! Statements of ours that wait for a lock: which session holds it, for the log and for errors.

use std::pin::pin;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use posthaste_core::{Error, ErrorKind, Holder, Result};
use sqlx_core::Error as SqlxError;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use tracing::warn;

use crate::dialect::Dialect;
use crate::store::SqlStore;

/// A statement without an answer for this long may be waiting for a lock.
const LOOK_AFTER: Duration = Duration::from_millis(500);
/// All waiting statements share a result for this long.
const FRESH: Duration = Duration::from_millis(900);
/// After a locked message, settlements do not wait for such a one for this long.
const RECENT: Duration = Duration::from_secs(5);
/// Looking for the session takes no longer than this.
const LOOK_FOR: Duration = Duration::from_secs(5);

/// The last query for the session that statements wait for.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<Option<(Instant, Option<Holder>)>>);

/// When a settlement last met a message that another session has locked.
#[derive(Debug, Default)]
pub(crate) struct LockMet(std::sync::Mutex<Option<Instant>>);

impl LockMet {
    pub(crate) fn note(&self) {
        *self.lock() = Some(Instant::now());
    }

    /// Whether to expect another one: then settlements do not wait at all.
    pub(crate) fn is_recent(&self) -> bool {
        self.lock().is_some_and(|at| at.elapsed() < RECENT)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: Dialect> SqlStore<D> {
    /// Waits for a statement, and looks for the session that it waits for if it takes long.
    pub(crate) async fn watched<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, SqlxError>>,
    ) -> Result<T> {
        let mut call = pin!(call);
        let mut pause = LOOK_AFTER;
        let mut holder = None;
        let answer = loop {
            if holder.is_some() {
                break call.await;
            }
            if let Ok(answer) = timeout(pause, &mut call).await {
                break answer;
            }
            tokio::select! {
                biased;
                answer = &mut call => break answer,
                found = self.look_for_lock(operation) => holder = found,
            }
            pause *= 2;
        };
        answer.map_err(|error| blame(self.wrap(operation, error), holder))
    }

    /// Names the process that keeps a file locked, in an error that came of it.
    pub(crate) fn name_writer(&self, error: Error) -> Error {
        if D::IS_REMOTE || error.kind() != ErrorKind::Busy {
            return error;
        }
        match D::writer(&self.connect_options()) {
            Some(writer) => error.with_context("blocked by", writer),
            None => error,
        }
    }

    /// The session that statements of this outbox wait for, from a query that all waiting statements share. Logs each
    /// query that finds one.
    async fn look_for_lock(&self, operation: &'static str) -> Option<Holder> {
        let mut last = self.last_look().0.lock().await;
        if let Some((at, holder)) = &*last
            && at.elapsed() < FRESH
        {
            return holder.clone();
        }
        let looked = timeout(LOOK_FOR, D::lock_waits(&self.connect_options(), self.get_naming())).await;
        let wait = looked.ok().and_then(Result::ok).and_then(|waits| waits.into_iter().next());
        if let Some(wait) = &wait {
            warn!(
                store = %self.endpoint(), operation, waiter = %wait.waiter, waited_ms = wait.waited.as_millis(),
                holder = %wait.holder, "a statement waits for a lock of another session"
            );
        }
        let holder = wait.map(|wait| wait.holder);
        *last = Some((Instant::now(), holder.clone()));
        holder
    }
}

/// Names the session in an error that came of waiting for it.
fn blame(error: Error, holder: Option<Holder>) -> Error {
    match holder {
        Some(holder) if error.kind() == ErrorKind::Busy => {
            let remedy = format!("let {} commit, or end it", holder.session);
            error.with_context("blocked by", holder).with_remedy(remedy)
        }
        _ => error,
    }
}
