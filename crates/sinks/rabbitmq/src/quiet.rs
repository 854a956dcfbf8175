//! lapin without its log.
//!
//! lapin writes returned messages to its log, payloads and all, and every frame at TRACE. Everything of it that meets a
//! payload or a password runs on a thread and in tasks of its own, and those are given no subscriber here. Nothing of
//! posthaste itself may run in them.

use std::cell::RefCell;
use std::sync::LazyLock;

use async_rs::traits::Executor;
use async_rs::util::{RuntimeParts, Task};
use async_rs::{Runtime, Tokio};
use tracing::Dispatch;
use tracing::dispatcher::DefaultGuard;
use tracing::instrument::{WithDispatch, WithSubscriber as _};
use tracing::subscriber::NoSubscriber;

/// What lapin runs on: the current tokio runtime, but quietly.
pub(crate) type QuietKit = RuntimeParts<Quiet, Tokio>;

/// The current tokio runtime, for lapin.
pub(crate) fn runtime() -> Runtime<QuietKit> {
    let tokio = Tokio::current();
    Runtime::new(RuntimeParts::new(Quiet(tokio.clone()), tokio))
}

/// A subscriber that discards everything. `tracing` must know it, unlike `Dispatch::none()`. Otherwise the first subscriber's
/// lack of interest would silence lapin's log for the whole program, including connections of its own.
static NOBODY: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(NoSubscriber::new()));

/// Runs a call of lapin without its log.
pub(crate) fn quietly<F: Future>(call: F) -> WithDispatch<F> {
    call.with_subscriber(NOBODY.clone())
}

/// Runs a function without a subscriber.
#[derive(Clone, Debug)]
pub(crate) struct Quiet(Tokio);

impl Executor for Quiet {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    /// Called by the thread that reads and writes the connection, before it does either.
    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        mute_this_thread();
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(quietly(future))
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(|| tracing::dispatcher::with_default(&NOBODY, work))
    }
}

/// Leaves the current thread without a subscriber for as long as it lives.
fn mute_this_thread() {
    thread_local! {
        static MUTED: RefCell<Option<DefaultGuard>> = const { RefCell::new(None) };
    }
    MUTED.with_borrow_mut(|muted| {
        muted.get_or_insert_with(|| tracing::dispatcher::set_default(&NOBODY));
    });
}
