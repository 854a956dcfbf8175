//! Discovery of tenants: asks the user's source repeatedly.
//!
//! An answer is compared with the current tenants; unchanged tenants are not touched. A failed discovery changes
//! nothing.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use super::entry::{Entry, Open, Opening};
use super::key::TenantKey;
use super::source::{Opened, Source};
use crate::error::Result;
use crate::store::StoreAdmin;

/// A tenant, as a discovery finds it: its key, and where its database is.
#[derive(Clone)]
pub struct Tenant {
    pub(super) key: TenantKey,
    pub(super) source: Arc<dyn AnySource>,
}

impl Tenant {
    /// A tenant whose store is opened from this source.
    pub fn new(key: impl Into<TenantKey>, source: impl Source) -> Self {
        Self { key: key.into(), source: Arc::new(source) }
    }

    /// A tenant with a store that is open already. It is used for as long as the tenant is there, whichever store later
    /// answers have.
    pub fn of(key: impl Into<TenantKey>, store: impl StoreAdmin + Clone) -> Self {
        Self::new(key, Opened(store))
    }

    /// Its key.
    pub fn key(&self) -> &TenantKey {
        &self.key
    }
}

impl fmt::Debug for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenant").field("key", &self.key).field("source", &self.source).finish()
    }
}

/// Knows which tenants there are.
///
/// Any function that answers with a future of them is one.
///
/// ```
/// use posthaste_core::{Discovery, MemoryStore, Result, Tenant};
///
/// struct Directory {
///     acme: MemoryStore,
/// }
///
/// impl Discovery for Directory {
///     async fn discover(&self) -> Result<Vec<Tenant>> {
///         Ok(vec![Tenant::of("acme", self.acme.clone())])          // usually a query, or a file, and sources
///     }
/// }
/// ```
pub trait Discovery: Send + Sync + 'static {
    /// Lists all current tenants. After an error, everything stays as it is.
    fn discover(&self) -> impl Future<Output = Result<Vec<Tenant>>> + Send;
}

impl<F, Fut> Discovery for F
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Vec<Tenant>>> + Send,
{
    fn discover(&self) -> impl Future<Output = Result<Vec<Tenant>>> + Send {
        self()
    }
}

type Discovering<'a> = Pin<Box<dyn Future<Output = Result<Vec<Tenant>>> + Send + 'a>>;

/// A discovery with its type forgotten.
pub(super) trait AnyDiscovery: Send + Sync {
    fn discover(&self) -> Discovering<'_>;
}

impl<D: Discovery> AnyDiscovery for D {
    fn discover(&self) -> Discovering<'_> {
        Box::pin(Discovery::discover(self))
    }
}

/// A source with its type forgotten.
pub(super) trait AnySource: fmt::Debug + Send + Sync {
    fn as_any(&self) -> &(dyn Any + Send + Sync);
    fn open(&self, opening: &Opening<'_>) -> Result<Arc<dyn Entry>>;
    fn is(&self, other: &dyn AnySource) -> bool;
}

impl<Src: Source> AnySource for Src {
    fn as_any(&self) -> &(dyn Any + Send + Sync) {
        self
    }

    fn open(&self, opening: &Opening<'_>) -> Result<Arc<dyn Entry>> {
        Ok(Arc::new(Open::new(self, opening)?))
    }

    fn is(&self, other: &dyn AnySource) -> bool {
        other.as_any().downcast_ref::<Src>().is_some_and(|other| self == other)
    }
}
