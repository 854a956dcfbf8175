//! Hearing from other processes that there may be something to claim: one task and one connection for all clones of a
//! store, started by the first that waits.
//!
//! All of it is a hint. Nothing here may fail a call, keep a store alive, or take a connection from the store's pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx_core::pool::{Pool, PoolOptions};
use tokio::sync::Notify;

use crate::dialect::{ConnectOptions, Dialect};

/// The pause before the first new connection after a loss; it doubles up to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_secs(30);

/// One connection is in use. A silent one keeps its place until TCP gives it up, which takes minutes.
const PLACES: u32 = 4;
/// How long to wait for the end of the connection, which may be silent.
const CLOSE_PATIENCE: Duration = Duration::from_secs(5);

/// Wakes the waiting task, or else the next one that waits.
#[derive(Debug, Default)]
pub struct Bell {
    rung: AtomicU64,
    heard: AtomicU64,
    notify: Notify,
}

impl Bell {
    /// Rings once.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "the others have nothing to listen to"))]
    pub(crate) fn ring(&self) {
        self.rung.fetch_add(1, Ordering::SeqCst);
        self.notify.notify_waiters();
    }

    /// Resolves once it has rung since the last time. A dropped future does not consume a ring.
    pub(crate) async fn wait(&self) {
        // Created before the check, so that a ring in between is not missed.
        let next = self.notify.notified();
        if self.rung.load(Ordering::SeqCst) == self.heard.load(Ordering::SeqCst) {
            next.await;
        }
        self.heard.store(self.rung.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// The task that listens. It ends when this is closed or dropped; the bell stays.
#[derive(Debug)]
pub(crate) struct Listener<D: Dialect> {
    pool: Pool<D::Db>,
}

impl<D: Dialect> Listener<D> {
    /// Begins to listen on a connection of its own, and rings the bell after a notification, or when one may have
    /// been missed.
    pub(crate) fn start(
        connect: ConnectOptions<D>,
        channel: String,
        bell: &Arc<Bell>,
        quiet: Duration,
    ) -> Self {
        // Kept for as long as it lasts: replacing a connection for its age would lose notifications meanwhile.
        let pool = PoolOptions::<D::Db>::new().max_connections(PLACES).max_lifetime(None).idle_timeout(None);
        let pool = pool.connect_lazy_with(connect);
        tokio::spawn(keep_listening::<D>(pool.clone(), channel, Arc::clone(bell), quiet));
        Self { pool }
    }

    /// Ends the task and its connection.
    pub(crate) async fn close(&self) {
        drop(tokio::time::timeout(CLOSE_PATIENCE, self.pool.close()).await);
    }
}

impl<D: Dialect> Drop for Listener<D> {
    fn drop(&mut self) {
        // Marks the pool as closed, which ends the task; nothing waits for the rest.
        drop(self.pool.close());
    }
}

async fn keep_listening<D: Dialect>(pool: Pool<D::Db>, channel: String, bell: Arc<Bell>, quiet: Duration) {
    let mut pause = FIRST_PAUSE;
    while !pool.is_closed() {
        let before = bell.rung.load(Ordering::SeqCst);
        // After an error it only tries again: waiting tasks poll as well.
        drop(D::listen(&pool, &channel, &bell, quiet).await);
        if bell.rung.load(Ordering::SeqCst) != before {
            pause = FIRST_PAUSE;
        }
        let wait = tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64()));
        if pool.close_event().do_until(wait).await.is_err() {
            return;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn hears(bell: &Bell) -> bool {
        tokio::time::timeout(Duration::from_millis(20), bell.wait()).await.is_ok()
    }

    /// A ring wakes a waiting task, or else the next one, once. Dropped futures lose no ring.
    #[tokio::test]
    async fn a_ring_is_heard_once_and_never_lost() {
        let bell = Arc::new(Bell::default());
        assert!(!hears(&bell).await);
        bell.ring();
        bell.ring();
        drop(bell.wait());
        assert!(hears(&bell).await, "it rang before");
        assert!(!hears(&bell).await, "once");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let bell = Arc::clone(&bell);
                tokio::spawn(async move { bell.wait().await })
            })
            .collect();
        while Arc::strong_count(&bell) < 4 || waiting.iter().any(|task| task.is_finished()) {
            tokio::task::yield_now().await;
        }
        tokio::task::yield_now().await;
        bell.ring();
        for task in waiting {
            task.await.unwrap();
        }
        assert!(!hears(&bell).await, "all of them heard it");
        {
            let mut dropped = Box::pin(bell.wait());
            assert!(
                std::future::poll_fn(|cx| std::task::Poll::Ready(dropped.as_mut().poll(cx).is_pending()))
                    .await
            );
            bell.ring();
        }
        assert!(hears(&bell).await, "whoever was woken and dropped has heard nothing");
    }
}
