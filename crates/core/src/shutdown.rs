//! Stops a running outbox: gracefully at the first signal, at once at the second.
//!
//! Stopping at once loses nothing either: messages in delivery stay leased until the lease runs out.

use tokio_util::sync::CancellationToken;

/// Tells a running outbox to stop. Clones tell the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use posthaste_core::{MemoryStore, Message, Outbox, Shutdown};
///
/// let outbox = Outbox::builder(MemoryStore::new())
///     .on_topic("greeting", async |_: Message| posthaste_core::handled())
///     .build().await?;
/// let shutdown = Shutdown::new();
/// let running = tokio::spawn(outbox.run(shutdown.clone()));
/// // …
/// shutdown.begin();                       // no more claims; handlers finish, their messages are settled
/// running.await.expect("it does not panic")?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    begun: CancellationToken,
    now: CancellationToken,
}

impl Shutdown {
    /// A shutdown that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a graceful shutdown. Said twice, it ends at once, as [`now`](Self::now).
    pub fn begin(&self) {
        if self.begun.is_cancelled() {
            self.now.cancel();
        }
        self.begun.cancel();
    }

    /// Ends at once: handlers are dropped where they stand, and their messages come again when their leases have run out.
    pub fn now(&self) {
        // In this order: a task that saw only the beginning would begin to stop gracefully.
        self.now.cancel();
        self.begun.cancel();
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Waits until it has begun.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Waits until it is to end at once.
    pub async fn ended(&self) {
        self.now.cancelled().await;
    }

    pub(crate) fn begin_once(&self) {
        self.begun.cancel();
    }

    /// Begins a shutdown when what this answers is dropped.
    pub(crate) fn on_drop(&self) -> tokio_util::sync::DropGuard {
        self.begun.clone().drop_guard()
    }
}

/// A graceful shutdown when the future resolves.
impl<F: Future<Output = ()> + Send + 'static> From<F> for Shutdown {
    fn from(future: F) -> Self {
        let shutdown = Self::new();
        let begun = shutdown.clone();
        tokio::spawn(async move {
            future.await;
            begun.begin_once();
        });
        shutdown
    }
}

/// A shutdown that begins with the first SIGTERM or Ctrl-C and ends at once with the second.
///
/// If this process may not listen to signals, it never begins by itself.
pub fn shutdown_signal() -> Shutdown {
    let shutdown = Shutdown::new();
    let told = shutdown.clone();
    tokio::spawn(async move {
        for _ in 0..2 {
            signal().await;
            told.begin();
        }
    });
    shutdown
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::terminate()), signal(SignalKind::interrupt())) {
        (Ok(mut terminate), Ok(mut interrupt)) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(not(unix))]
async fn signal() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await;
    }
}
