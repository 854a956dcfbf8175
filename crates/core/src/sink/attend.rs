//! Looks after sinks that nothing is sent to: a broker that cannot be reached is found before the first message needs it.
//!
//! Readiness and metrics tell of a wrong password or a missing broker from the start, and while nothing is published.

use std::time::Duration;

use tokio::time::sleep;

use super::guarded::Guarded;
use crate::metrics;
use crate::shutdown::Shutdown;

/// How long a sink may be silent before it is probed.
const SILENCE: Duration = Duration::from_secs(15);

/// Probes sinks at once, and then each time that nothing was sent to them for a while, until the shutdown begins. One that is
/// found to be down counts as down, as if a message had found it so.
pub(crate) fn attend(sinks: &[Guarded], shutdown: &Shutdown) {
    for sink in sinks {
        let (sink, shutdown) = (sink.clone(), shutdown.clone());
        tokio::spawn(async move {
            metrics::breaker(sink.name(), sink.is_down());
            loop {
                tokio::select! {
                    biased;
                    () = shutdown.begun() => return,
                    () = sink.look_after(SILENCE) => {}
                }
                tokio::select! {
                    biased;
                    () = shutdown.begun() => return,
                    () = sleep(SILENCE) => {}
                }
            }
        });
    }
}
