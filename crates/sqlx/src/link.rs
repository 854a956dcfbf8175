//! One connection of the store's own, from the pool and back, so that a silent one harms no other call.
//!
//! A network can lose a connection without telling either end. sqlx tests every connection that comes back to its pool and waits for that
//! without a limit; a `Link` limits it, and closes its connection if the store has met silence since the link was taken.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx_core::pool::PoolConnection;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::dialect::{Connection, Dialect};

/// How long a connection may take to come back to its pool.
const RETURN_PATIENCE: Duration = Duration::from_secs(5);

/// How often calls of a store were not answered. Clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silences(Arc<AtomicU64>);

impl Silences {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection that is in use.
pub(crate) struct Link<D: Dialect> {
    connection: PoolConnection<D::Db>,
    silences: Silences,
    /// How many there were when it was taken.
    known: u64,
}

impl<D: Dialect> Link<D> {
    pub(crate) fn new(connection: PoolConnection<D::Db>, silences: Silences) -> Self {
        let known = silences.count();
        Self { connection, silences, known }
    }
}

impl<D: Dialect> Deref for Link<D> {
    type Target = Connection<D>;

    fn deref(&self) -> &Connection<D> {
        &self.connection
    }
}

impl<D: Dialect> DerefMut for Link<D> {
    fn deref_mut(&mut self) -> &mut Connection<D> {
        &mut self.connection
    }
}

impl<D: Dialect> Drop for Link<D> {
    fn drop(&mut self) {
        if self.silences.count() != self.known {
            self.connection.close_on_drop();
        } else if D::IS_REMOTE
            && let Ok(runtime) = Handle::try_current()
        {
            // Dropped at the limit, the connection closes and its place in the pool is free again.
            drop(runtime.spawn(timeout(RETURN_PATIENCE, self.connection.return_to_pool())));
        }
    }
}
