//! Configures tenants: which there are, and the order of their turns. Everything else is as for one outbox.

use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use super::discovery::{AnyDiscovery, Discovery, Tenant};
use super::identities::Identities;
use super::key::TenantKey;
use super::source::Source;
use super::{Core, Tenants};
use crate::commons::Commons;
use crate::commons::selection::{Fair, Selection};
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::outbox::{Finished, OutboxBuilder};
use crate::store::StoreAdmin;

/// Configures [`Tenants`]: every option of [`OutboxBuilder`], and options for tenants.
pub type TenantsBuilder = OutboxBuilder<TenantSet>;

/// The tenants, while they are configured.
#[derive(Default)]
pub struct TenantSet {
    fixed: Vec<Tenant>,
    discovery: Option<Box<dyn AnyDiscovery>>,
    selection: Option<Box<dyn Selection>>,
}

impl fmt::Debug for TenantSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantSet").field("fixed", &self.fixed).finish_non_exhaustive()
    }
}

impl OutboxBuilder<TenantSet> {
    /// A tenant that is always there, with a store that is open already.
    pub fn store(mut self, key: impl Into<TenantKey>, store: impl StoreAdmin + Clone) -> Self {
        self.store.fixed.push(Tenant::of(key, store));
        self
    }

    /// A tenant that is always there, with a store that is opened from this source.
    pub fn tenant(mut self, key: impl Into<TenantKey>, source: impl Source) -> Self {
        self.store.fixed.push(Tenant::new(key, source));
        self
    }

    /// Lists the tenants, besides the fixed ones.
    pub fn discover(mut self, discovery: impl Discovery) -> Self {
        self.store.discovery = Some(Box::new(discovery));
        self
    }

    /// Which store is polled next. Default: [`Fair`]; there are [`RoundRobin`](crate::RoundRobin),
    /// [`DrainFirst`](crate::DrainFirst), and yours.
    pub fn selection(mut self, selection: impl Selection) -> Self {
        self.store.selection = Some(Box::new(selection));
        self
    }

    /// The most connections over all tenants' databases, for the work in the background: 1 to 10,000. Default: 64.
    pub fn connections(mut self, most: u32) -> Self {
        self.settings.tenants_connections = most;
        self
    }

    /// The most messages of one tenant's turn, before the others that wait have theirs: 1 to 10,000. Default: 100.
    pub fn quantum(mut self, messages: u32) -> Self {
        self.settings.tenants_quantum = messages;
        self
    }

    /// How often the tenants are discovered: 100 ms to 24 h. Default: 5 min.
    pub fn refresh(mut self, every: Duration) -> Self {
        self.settings.tenants_refresh = every;
        self
    }

    /// The tenants, once the settings and the handlers have been checked, and they have been discovered. No database is
    /// connected yet: that one cannot be reached concerns no other tenant.
    pub async fn build(self) -> Result<Tenants> {
        let Finished { store: set, worker, plan, sinks } = self.finish()?;
        if set.fixed.is_empty() && set.discovery.is_none() {
            return Err(Error::new(ErrorKind::Configuration, "there are no tenants")
                .with_remedy("name some by tenant() or store(), or say who knows them by discover()"));
        }
        let selection = set.selection.unwrap_or_else(|| Box::new(Fair::default()));
        let core = Arc::new(Core {
            commons: Commons::new(&plan.settings, selection),
            worker: WorkerId::unique(&worker),
            plan,
            fixed: set.fixed,
            discovery: set.discovery,
            entries: RwLock::default(),
            identities: Identities::default(),
            refreshed: tokio::sync::Mutex::default(),
            newcomers: std::sync::Mutex::default(),
            waking: std::sync::Mutex::default(),
        });
        core.refresh().await?;
        for sink in sinks {
            let core = Arc::downgrade(&core);
            let name = sink.name().to_owned();
            sink.watch(move |recovery| core.upgrade().map(|core| core.recovered(&name, recovery)).is_some());
        }
        Ok(Tenants { core })
    }
}
