//! The inboxes of a consumer that acts for many tenants: one in each tenant's database, beside the data that it
//! changes.

use std::fmt;
use std::marker::PhantomData;

use tracing::{debug, error};

use super::Tenants;
use super::key::TenantKey;
use crate::error::Result;
use crate::inbox::Inbox;
use crate::outbox::Outbox;
use crate::shutdown::Shutdown;
use crate::store::inbox::InboxStore;

/// One consumer's inbox in every tenant's database. See [`Inbox`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use std::time::Duration;
/// use posthaste_core::{Inbox, MemoryStore, MessageId, Once, Received, Tenants};
///
/// let store = MemoryStore::new();
/// let tenants = Tenants::builder().store("acme", store.clone()).build().await?;
/// let inboxes = tenants.inboxes::<MemoryStore>(Inbox::new((), "stock")?.keep_for(Duration::from_secs(86_400))?);
///
/// let message = Received::new("orders", MessageId::new(), "order.placed", "42");
/// let mut tx = store.begin();                                   // of acme's database, with what you change there
/// assert_eq!(inboxes.of("acme").await?.once(&mut tx, &message).await?, Once::First);
/// tx.commit();
/// # Ok(()) }
/// ```
pub struct Inboxes<S> {
    tenants: Tenants,
    like: Inbox<()>,
    stores: PhantomData<fn() -> S>,
}

impl<S> fmt::Debug for Inboxes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inboxes").field("consumer", &self.like.consumer()).finish_non_exhaustive()
    }
}

impl Tenants {
    /// The inboxes of a consumer, one in each tenant's database, all like this one.
    pub fn inboxes<S: InboxStore + Clone>(&self, like: Inbox<()>) -> Inboxes<S> {
        Inboxes { tenants: self.clone(), like, stores: PhantomData }
    }
}

impl<S: InboxStore + Clone> Inboxes<S> {
    /// That of one tenant.
    pub async fn of(&self, tenant: impl Into<TenantKey>) -> Result<Inbox<S>> {
        let outbox: Outbox<S> = self.tenants.outbox(tenant).await?;
        Ok(self.like.over(outbox.store().clone()))
    }

    /// Those of all tenants that do not fail at the moment, with what their calls are made by.
    fn all(&self) -> impl Iterator<Item = (TenantKey, Outbox<S>, Inbox<S>)> {
        let entries = self.tenants.core.all().into_iter().filter(|entry| entry.trouble().is_none());
        entries.filter_map(|entry| {
            // Those of other types are not this consumer's.
            let outbox = Outbox::<S>::of_home(&entry.home()).ok()?;
            let inbox = self.like.over(outbox.store().clone());
            Some((entry.life().key.clone(), outbox, inbox))
        })
    }

    /// Prunes old rows in all of them, now. Returns their number for each tenant that does not fail at the moment.
    pub async fn forget(&self) -> Vec<(TenantKey, Result<u64>)> {
        let mut forgotten = Vec::new();
        for (key, outbox, inbox) in self.all() {
            forgotten.push((key, outbox.inner.call(inbox.forget()).await));
        }
        forgotten
    }

    /// Forgets by the schedule of the inbox that they are like, until the shutdown begins. However many processes there are, one
    /// of them does it at a time in each database. Tenants that fail at the time are left for the next one.
    pub async fn run(&self, shutdown: impl Into<Shutdown>) {
        let shutdown = shutdown.into();
        loop {
            let Some((wait, turn)) = self.like.next_turn() else { return shutdown.begun().await };
            tokio::select! {
                biased;
                () = shutdown.begun() => return,
                () = tokio::time::sleep(wait) => {}
            }
            for (key, outbox, inbox) in self.all() {
                if shutdown.has_begun() {
                    return;
                }
                let consumer = self.like.consumer();
                match outbox.inner.call(inbox.forget_in_turn(turn)).await {
                    Ok(rows) => debug!(store = %key, consumer, rows, "inbox: forgotten"),
                    Err(error) => {
                        error!(store = %key, consumer, error = ?error, "the inbox could not be pruned");
                    }
                }
            }
        }
    }
}
