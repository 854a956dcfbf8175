//! Messages that wait for their next attempt and were given back meanwhile: when each is due, and how often it failed.
//!
//! RabbitMQ does not let a consumer hold a message for longer than its `consumer_timeout`. So a message that waits for long is
//! given back, and comes again at once, to this process or to another. The memory here is bounded, and forgetting is harmless:
//! the next attempt comes sooner.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use posthaste_core::{MessageId, Received, Tries};
use tokio::time::Instant;

/// The most messages that are remembered.
const MOST: usize = 10_000;

/// Knowledge about a message that was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    /// When its next attempt is due.
    pub(super) due: Instant,
    pub(super) tries: Tries,
    /// How often the queue had delivered it before, where it counts.
    pub(super) delivered: u32,
}

/// By source and id.
#[derive(Default)]
pub(super) struct Waiting(Mutex<HashMap<(String, MessageId), Wait>>);

impl Waiting {
    /// Remembers a message that is given back.
    pub(super) fn put(&self, message: &Received, wait: Wait) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            let now = Instant::now();
            all.retain(|_, wait| wait.due > now);
        }
        if all.len() >= MOST {
            all.clear();
        }
        all.insert((message.source.clone(), message.id), wait);
    }

    /// What to go on with when a message comes that the queue has delivered so often before.
    pub(super) fn take(&self, message: &Received, delivered: u32) -> Wait {
        let key = (message.source.clone(), message.id);
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
        let Some(Wait { due, mut tries, delivered: before }) = known else {
            let tries = Tries { charged: delivered, ..Tries::default() };
            return Wait { due: Instant::now(), tries, delivered };
        };
        // Giving it back is a delivery that the queue counts, and no attempt. Any other was another consumer's.
        tries.charged = tries.charged.saturating_add(delivered.saturating_sub(before.saturating_add(1)));
        Wait { due, tries, delivered }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn message() -> Received {
        Received::new("shop", MessageId::new(), "a", "{}")
    }

    #[test]
    fn a_message_that_was_given_back_goes_on_where_it_was() {
        let (waiting, message) = (Waiting::default(), message());
        assert_eq!(waiting.take(&message, 2).tries, Tries { charged: 2, free: 0 });
        let due = Instant::now() + Duration::from_secs(60);
        let tries = Tries { charged: 1, free: 3 };
        for (delivered, charged) in [(3, 1), (2, 1), (5, 3)] {
            waiting.put(&message, Wait { due, tries, delivered: 2 });
            let wait = waiting.take(&message, delivered);
            assert_eq!((wait.due, wait.tries), (due, Tries { charged, free: 3 }));
        }
        assert_eq!(waiting.take(&message, 0).tries, Tries::default(), "it is remembered once");
    }

    #[test]
    fn it_does_not_grow_without_bound() {
        let (waiting, due) = (Waiting::default(), Instant::now() + Duration::from_secs(60));
        for _ in 0..=2 * MOST {
            waiting.put(&message(), Wait { due, tries: Tries::default(), delivered: 0 });
        }
        assert!(waiting.0.lock().unwrap().len() <= MOST);
    }
}
