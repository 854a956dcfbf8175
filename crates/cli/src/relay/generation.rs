//! A generation: the tenants and sinks of one reading of the configuration, and their shutdown.
//!
//! A new reading makes a new generation beside the old one. Leases keep them from each other's messages, as they do two processes.

use std::sync::{Arc, PoisonError, RwLock};

use posthaste::{Guarded, Result, Shutdown, Tenants};
use tokio::task::JoinHandle;

use super::api_stores::ApiStores;
use super::build;
use super::config::Config;

/// A configuration at work.
pub(crate) struct Generation {
    pub(crate) config: Config,
    pub(crate) tenants: Tenants,
    pub(crate) sinks: Vec<Guarded>,
    /// The stores that requests use.
    pub(crate) api: Arc<ApiStores>,
    shutdown: Shutdown,
}

impl Generation {
    /// Starts to deliver.
    pub(crate) async fn start(config: Config) -> Result<(Arc<Self>, JoinHandle<Result<()>>)> {
        let (tenants, sinks) = build::tenants(&config).await?;
        let api = ApiStores::open(&config)?;
        let shutdown = Shutdown::new();
        let running = tokio::spawn(tenants.run(shutdown.clone()));
        Ok((Arc::new(Self { config, tenants, sinks, api, shutdown }), running))
    }

    /// Claims no more, finishes running deliveries, gives back the rest.
    pub(crate) fn stop(&self) {
        if !self.shutdown.has_begun() {
            self.shutdown.begin();
        }
    }

    /// Whether it is shutting down.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shutdown.has_begun()
    }
}

/// The generation that counts now.
#[derive(Clone)]
pub(crate) struct Current(Arc<RwLock<Arc<Generation>>>);

impl Current {
    pub(crate) fn new(generation: Arc<Generation>) -> Self {
        Self(Arc::new(RwLock::new(generation)))
    }

    pub(crate) fn get(&self) -> Arc<Generation> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new one in its place, and answers with the old one.
    pub(crate) fn replace(&self, generation: Arc<Generation>) -> Arc<Generation> {
        std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), generation)
    }
}
