//! Everything that a program under test says about itself: its log, at every level and of every target, and its metrics.
//!
//! Both are kept per runtime, so that tests in one process do not see each other's. Nothing is filtered: a search for
//! secrets must see all of it.

mod logs;
mod meters;

pub use logs::{Logged, Logs};
pub use meters::Meters;

/// Lets the current thread, for as long as it lives, report to these.
pub(crate) fn listen_on_this_thread(logs: &Logs, meters: &'static Meters) {
    std::mem::forget(tracing::subscriber::set_default(logs.clone()));
    std::mem::forget(metrics::set_default_local_recorder(meters));
}
