//! Ends a statement of a database that runs in this process: its connection asks now and then whether to go on.
//!
//! The call is never cancelled. It ends with the database's own error, and the connection stays usable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shared by a store and its connection. A store has one such connection at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Interrupts the statement that runs, and those that begin, until the guard is dropped.
    pub(crate) fn begin(&self) -> Interrupting<'_> {
        self.0.store(true, Ordering::Relaxed);
        Interrupting(self)
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// An interruption that lasts until this is dropped.
pub(crate) struct Interrupting<'a>(&'a Interrupt);

impl Drop for Interrupting<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Relaxed);
    }
}
