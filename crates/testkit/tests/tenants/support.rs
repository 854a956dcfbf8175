//! Shared by the tests of tenants.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{
    HandlerResult, Message, MessageId, NewMessage, Origin, Result, Settings, Shutdown, Store as _, Tenant,
    Tenants, TenantsBuilder,
};
use posthaste_testkit::{Network, Shape};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A network without delays.
pub(crate) fn network() -> Network {
    network_of(3, 2)
}

/// A network in which opening a connection, and a call, take so many milliseconds.
pub(crate) fn network_of(connect: u64, call: u64) -> Network {
    let ms = Duration::from_millis;
    Network::new(Shape { connect: ms(connect), call: ms(call), patience: Duration::from_secs(3) })
}

/// Which messages were handled, of which store, in their order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Journal(Arc<Mutex<Vec<(String, MessageId)>>>);

impl Journal {
    /// A builder whose handler of `t` writes into this journal.
    pub(crate) fn builder(&self) -> TenantsBuilder {
        let journal = self.clone();
        Tenants::builder().on_topic("t", move |message: Message, origin: Origin| {
            let journal = journal.clone();
            async move {
                journal.note(origin.store(), message.id);
                HandlerResult::Ok(())
            }
        })
    }

    pub(crate) fn note(&self, store: &str, id: MessageId) {
        self.0.lock().unwrap().push((store.to_owned(), id));
    }

    pub(crate) fn stores(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(store, _)| store.clone()).collect()
    }

    pub(crate) fn of(&self, store: &str) -> Vec<MessageId> {
        let handled = self.0.lock().unwrap();
        handled.iter().filter(|(of, _)| of == store).map(|(_, id)| *id).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    /// How many of each store.
    pub(crate) fn counts(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        self.stores().into_iter().for_each(|store| *counts.entry(store).or_default() += 1);
        counts
    }
}

/// Tenants that run until this is stopped.
pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    task: JoinHandle<Result<()>>,
}

pub(crate) fn run(tenants: &Tenants) -> Running {
    let shutdown = Shutdown::new();
    let task = tokio::spawn(tenants.run(shutdown.clone()));
    Running { shutdown, task }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
    }
}

/// Stores messages as another process would.
pub(crate) async fn enqueue(network: &Network, database: &str, count: usize) -> Vec<MessageId> {
    let messages: Vec<_> = (0..count).map(|_| NewMessage::bytes("t", "").build().unwrap()).collect();
    network.database(database).enqueue(&messages).await.unwrap();
    messages.iter().map(NewMessage::id).collect()
}

/// Waits until it is so, in simulated time.
pub(crate) async fn eventually(what: &str, within: Duration, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {within:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A list of tenants that a test changes as it goes, and how often it was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory(Arc<Mutex<Listed>>);

#[derive(Debug, Default)]
struct Listed {
    tenants: BTreeMap<String, Tenant>,
    asked: usize,
    failing: bool,
}

impl Directory {
    pub(crate) fn put(&self, tenant: Tenant) {
        self.0.lock().unwrap().tenants.insert(tenant.key().to_string(), tenant);
    }

    pub(crate) fn remove(&self, key: &str) {
        self.0.lock().unwrap().tenants.remove(key);
    }

    pub(crate) fn fail(&self, failing: bool) {
        self.0.lock().unwrap().failing = failing;
    }

    pub(crate) fn asked(&self) -> usize {
        self.0.lock().unwrap().asked
    }
}

impl posthaste_core::Discovery for Directory {
    async fn discover(&self) -> Result<Vec<Tenant>> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut listed = self.0.lock().unwrap();
        listed.asked += 1;
        if listed.failing {
            return Err(posthaste_core::Error::new(posthaste_core::ErrorKind::Unavailable, "nobody knows"));
        }
        Ok(listed.tenants.values().cloned().collect())
    }
}

/// Settings with these changes.
pub(crate) fn settings(change: impl FnOnce(&mut Settings)) -> Settings {
    let mut settings = Settings::default();
    change(&mut settings);
    settings
}
