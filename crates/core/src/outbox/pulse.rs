//! Wakes the runtime now and then, from outside of it, so that a handler that blocks its thread costs that thread and
//! nothing else.
//!
//! tokio's threads take turns at watching timers and sockets. A thread that returns from there with a single task does not
//! pass the turn on, and if that task blocks, no thread watches: the whole runtime stalls, however many threads it has
//! (tokio's issue 4730). A task from outside wakes another thread, which then takes the turn. Nothing here may touch a
//! message, and a runtime of one thread, which nothing could help, is left alone.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use tokio::runtime::{Handle, RuntimeFlavor};

/// The longest that a runtime may stand still.
const MOST: Duration = Duration::from_millis(250);

/// Beats until it is dropped.
#[derive(Debug)]
pub(crate) struct Pulse {
    _hangs_up: Sender<()>,
}

impl Pulse {
    /// Begins to beat for the runtime that this is called in, several times per lease. Without a thread for it there is
    /// none: it helps against faults of handlers, and is not itself needed.
    pub(crate) fn start(lease: Duration) -> Option<Self> {
        let runtime = Handle::current();
        if runtime.runtime_flavor() == RuntimeFlavor::CurrentThread {
            return None;
        }
        let every = (lease / 4).min(MOST);
        let (hangs_up, owner) = channel();
        let beat = move || {
            while owner.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                runtime.spawn(async {});
            }
        };
        std::thread::Builder::new().name("posthaste-pulse".to_owned()).spawn(beat).ok()?;
        Some(Self { _hangs_up: hangs_up })
    }
}
