//! A run for a counter of instructions: so many messages from the store in memory through the runtime, on one thread, and nothing
//! else. It measures no time and prints nothing; see `tests/instructions.rs`.

use posthaste::{MemoryStore, Settings};

use crate::measure::Result;
use crate::workload::{self, Count};

/// Stores so many messages, and delivers them to a handler that does nothing but count; or only stores them, so that what that takes can
/// be subtracted.
pub(crate) async fn run(messages: u64, only_store: bool) -> Result {
    #[cfg(feature = "counting")]
    tokio::time::pause();
    let store = MemoryStore::new().keep_done(false);
    workload::preload(&store, messages, |_| None).await?;
    if only_store {
        return Ok(());
    }
    let counter = Count::until(messages);
    let outbox = workload::counting(store.clone(), Settings::default(), &counter).build().await?;
    workload::deliver(&outbox, &counter).await?;
    workload::nothing_left(&store).await
}
