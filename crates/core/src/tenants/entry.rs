//! A tenant whose store is open: its outbox, behind a type that forgets which store it is.
//!
//! Opening connects to nothing.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use super::discovery::AnySource;
use super::key::TenantKey;
use super::source::Source;
use crate::commons::{Commons, Share};
use crate::dispatch::Tally;
use crate::dispatch::wake::Reason;
use crate::error::Result;
use crate::id::WorkerId;
use crate::outbox::{Home, Inner, Outbox, Plan, Trouble};
use crate::shutdown::Shutdown;
use crate::store::{Store as _, StoreAdmin};

/// An operation under way, in any task.
pub(super) type Doing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Everything needed to open a tenant.
pub(super) struct Opening<'a> {
    pub(super) key: &'a TenantKey,
    pub(super) worker: &'a WorkerId,
    pub(super) plan: &'a Arc<Plan>,
    pub(super) commons: &'a Arc<Commons>,
}

/// The state of a tenant since it was opened.
#[derive(Debug)]
pub(super) struct Life {
    pub(super) key: TenantKey,
    /// In how many answers in a row it was missing.
    pub(super) missing: AtomicU32,
    /// Until when it may be drained, if it was removed.
    pub(super) removed: watch::Sender<Option<Instant>>,
    /// The tenant that has the same queue, and is polled instead.
    pub(super) twin: Mutex<Option<TenantKey>>,
}

impl Life {
    fn new(key: TenantKey) -> Self {
        let removed = watch::Sender::new(None);
        Self { key, missing: AtomicU32::new(0), removed, twin: Mutex::default() }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.borrow().is_some()
    }

    pub(super) fn twin(&self) -> Option<TenantKey> {
        self.twin.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_twin(&self, twin: Option<TenantKey>) {
        *self.twin.lock().unwrap_or_else(PoisonError::into_inner) = twin;
    }
}

/// How a source compares with the one that a store was opened from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// They are equal.
    Same,
    /// It is another way to the same database, and the store now goes it.
    Changed,
    /// It is another database.
    Other,
}

/// An open tenant with its store's type forgotten.
pub(super) trait Entry: fmt::Debug + Send + Sync {
    fn life(&self) -> &Life;
    fn home(&self) -> Arc<dyn Home>;
    fn admin(&self) -> Arc<dyn StoreAdmin>;
    /// Its share of the process's resources.
    fn share(&self) -> &Share;
    fn trouble(&self) -> Option<Trouble>;
    fn compare(&self, source: &dyn AnySource) -> Result<Compared>;
    /// Checks that the store is there, and answers which queue it is.
    fn reach(&self) -> Doing<Result<Option<String>>>;
    fn run(&self, shutdown: Shutdown) -> Doing<Result<()>>;
    fn drain(&self) -> Doing<Result<Tally>>;
    /// Removes it once it is drained, until this time; or takes that back.
    fn remove(&self, until: Option<Instant>);
    /// Something went wrong in its life.
    fn failed(&self, operation: &'static str, error: &crate::error::Error);
}

pub(super) struct Open<Src: Source> {
    life: Life,
    source: Mutex<Src>,
    inner: Arc<Inner<Src::Store>>,
}

impl<Src: Source> Open<Src> {
    pub(super) fn new(source: &Src, opening: &Opening<'_>) -> Result<Self> {
        let store = source.open()?;
        let name = Arc::clone(opening.key.name());
        let share = opening.commons.share();
        let inner =
            Inner::new(store, Arc::clone(&name), opening.worker.clone(), Arc::clone(opening.plan), share);
        let inner = Arc::new(inner);
        let home: Arc<dyn Home> = Arc::clone(&inner) as Arc<dyn Home>;
        inner.share.belongs_to(&name, Arc::downgrade(&home));
        Ok(Self { life: Life::new(opening.key.clone()), source: Mutex::new(source.clone()), inner })
    }
}

impl<Src: Source> fmt::Debug for Open<Src> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("key", &self.life.key).field("store", &self.inner.store).finish()
    }
}

impl<Src: Source> Entry for Open<Src> {
    fn life(&self) -> &Life {
        &self.life
    }

    fn home(&self) -> Arc<dyn Home> {
        Arc::clone(&self.inner) as Arc<dyn Home>
    }

    fn admin(&self) -> Arc<dyn StoreAdmin> {
        Arc::new(self.inner.store.clone())
    }

    fn share(&self) -> &Share {
        &self.inner.share
    }

    fn trouble(&self) -> Option<Trouble> {
        self.inner.health.trouble()
    }

    fn compare(&self, source: &dyn AnySource) -> Result<Compared> {
        let Some(new) = source.as_any().downcast_ref::<Src>() else { return Ok(Compared::Other) };
        let mut old = self.source.lock().unwrap_or_else(PoisonError::into_inner);
        if *old == *new {
            return Ok(Compared::Same);
        }
        if !new.change(&self.inner.store)? {
            return Ok(Compared::Other);
        }
        *old = new.clone();
        // It may have failed for lack of the new password.
        self.inner.wakeup.wake(Reason::Now);
        Ok(Compared::Changed)
    }

    fn reach(&self) -> Doing<Result<Option<String>>> {
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let reach = async {
                inner.store.check().await?;
                inner.store.identity().await
            };
            inner.call(reach).await
        })
    }

    fn run(&self, shutdown: Shutdown) -> Doing<Result<()>> {
        Box::pin(Outbox { inner: Arc::clone(&self.inner) }.run(shutdown))
    }

    fn drain(&self) -> Doing<Result<Tally>> {
        let outbox = Outbox { inner: Arc::clone(&self.inner) };
        Box::pin(async move { outbox.drain().await })
    }

    fn remove(&self, until: Option<Instant>) {
        self.life.removed.send_replace(until);
        self.inner.draining.store(until.is_some(), Ordering::Release);
        self.inner.wakeup.wake(Reason::Now);
    }

    fn failed(&self, operation: &'static str, error: &crate::error::Error) {
        self.inner.failed(operation, error);
    }
}
