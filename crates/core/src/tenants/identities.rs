//! Which tenant polls which queue: one for each, however many keys lead to it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::entry::Entry;
use super::key::TenantKey;

#[derive(Debug, Default)]
pub(super) struct Identities {
    taken: Mutex<HashMap<String, Taken>>,
    freed: Notify,
}

#[derive(Debug)]
struct Taken {
    by: Arc<dyn Entry>,
    key: TenantKey,
}

impl Identities {
    /// Takes a queue for this tenant, or returns the tenant that has it.
    pub(super) fn take(&self, identity: &str, entry: &Arc<dyn Entry>) -> Option<TenantKey> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match taken.get(identity) {
            Some(other) if !Arc::ptr_eq(&other.by, entry) => Some(other.key.clone()),
            _ => {
                let key = entry.life().key.clone();
                taken.insert(identity.to_owned(), Taken { by: Arc::clone(entry), key });
                None
            }
        }
    }

    /// Lets others have what this tenant had.
    pub(super) fn release(&self, entry: &Arc<dyn Entry>) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let before = taken.len();
        taken.retain(|_, other| !Arc::ptr_eq(&other.by, entry));
        if taken.len() < before {
            self.freed.notify_waiters();
        }
    }

    /// Resolves when a queue has been freed since this was enabled.
    pub(super) fn freed(&self) -> Notified<'_> {
        self.freed.notified()
    }
}
