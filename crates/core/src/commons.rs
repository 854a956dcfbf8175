//! Resources that the outboxes of one process share when they serve many databases: handler slots, turns to claim,
//! connections.
//!
//! A single outbox has all of it: its [`Share`] never waits. Nothing here talks to a store, and nothing here may hold its
//! locks across an await.

mod connections;
mod line;
mod looks;
pub(crate) mod selection;
mod slots;
mod waiters;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use self::connections::{Connections, Permit};
pub(crate) use self::looks::Load;
use self::looks::Looks;
use self::selection::Place;
use self::selection::Selection;
use self::slots::Slots;
pub(crate) use self::slots::Wish;
pub(crate) use self::waiters::Priority;
use crate::dispatch::hot::Door;
use crate::error::{ErrorKind, Result};
use crate::outbox::Home;
use crate::settings::Settings;

/// What outboxes share.
#[derive(Debug)]
pub(crate) struct Commons {
    slots: Mutex<Slots>,
    looks: Mutex<Looks>,
    connections: Mutex<Connections>,
    homes: Mutex<HashMap<Place, Weak<dyn Home>>>,
    /// The room of the hot path, which all doors lead to.
    door: Door,
    next: AtomicU64,
}

impl Commons {
    /// As many handlers, messages in memory and connections at a time as the settings say, and this selection of the next
    /// store.
    pub(crate) fn new(settings: &Settings, selection: Box<dyn Selection>) -> Arc<Self> {
        let connections = settings.tenants_connections as usize;
        Arc::new(Self {
            slots: Mutex::new(Slots::new(settings.workers as usize)),
            looks: Mutex::new(Looks::new(connections, Load::most(settings), selection)),
            connections: Mutex::new(Connections::new(connections)),
            homes: Mutex::default(),
            door: Door::of(settings),
            next: AtomicU64::new(0),
        })
    }

    /// A share for one more outbox.
    pub(crate) fn share(self: &Arc<Self>) -> Share {
        let place = Place(self.next.fetch_add(1, Ordering::Relaxed));
        Share(Some(Member { commons: Arc::clone(self), place }))
    }

    fn wake(&self, place: Place) {
        if let Some(home) = self.home(place) {
            home.wake();
        }
    }

    fn home(&self, place: Place) -> Option<Arc<dyn Home>> {
        lock(&self.homes).get(&place).and_then(Weak::upgrade)
    }

    fn wake_all(&self, places: Vec<Place>) {
        places.into_iter().for_each(|place| self.wake(place));
    }

    /// Lets others claim while this store is silent: its turn to claim may take long.
    fn step_aside_if_silent(&self, place: Place) {
        if lock(&self.connections).is_silent(place) {
            let woken = lock(&self.looks).late(place);
            self.wake_all(woken);
        }
    }

    /// How many connections are open, and how many calls wait for stores that do not answer.
    pub(crate) fn connections(&self) -> (usize, usize) {
        lock(&self.connections).counts()
    }

    /// The most claims at a time.
    pub(crate) fn most_claims(&self) -> usize {
        lock(&self.looks).most()
    }

    /// How many tenants wait for their turn to claim.
    pub(crate) fn waiting_claims(&self) -> usize {
        lock(&self.looks).waiting()
    }

    /// Closes the connections of stores that have not been called for this long.
    pub(crate) async fn rest(&self, unused_for: Duration) {
        let unused = lock(&self.connections).unused(Instant::now(), unused_for);
        for place in unused {
            if let Some(home) = self.home(place) {
                home.rest().await;
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One outbox's share. Without commons it is alone, and has everything.
#[derive(Debug)]
pub(crate) struct Share(Option<Member>);

#[derive(Debug)]
struct Member {
    commons: Arc<Commons>,
    place: Place,
}

impl Drop for Member {
    fn drop(&mut self) {
        let Self { commons, place } = self;
        lock(&commons.homes).remove(place);
        let woken = lock(&commons.slots).leave(*place);
        commons.wake_all(woken);
        let woken = lock(&commons.looks).leave(*place);
        commons.wake_all(woken);
        lock(&commons.connections).leave(*place);
    }
}

impl Share {
    /// That of an outbox which is alone.
    pub(crate) fn alone() -> Self {
        Self(None)
    }

    /// Whether there are others.
    pub(crate) fn has_others(&self) -> bool {
        self.0.is_some()
    }

    /// Whether it may have two claims under way: with other tenants, each has one at a time.
    pub(crate) fn may_claim_twice(&self) -> bool {
        self.0.as_ref().is_none_or(|Member { commons, .. }| lock(&commons.homes).len() == 1)
    }

    /// Returns the tasks to wake. No other task has this share by then.
    pub(crate) fn belongs_to(&self, key: &Arc<str>, home: Weak<dyn Home>) {
        if let Some(Member { commons, place }) = &self.0 {
            lock(&commons.homes).insert(*place, home);
            lock(&commons.looks).join(*place, key);
        }
    }

    /// Whether the caller may start a handler now. If not, its dispatcher is woken when it may be worth asking again.
    pub(crate) fn may_start(&self, wish: Wish) -> bool {
        let Some(Member { commons, place }) = &self.0 else { return true };
        let (granted, woken) = lock(&commons.slots).ask(*place, wish);
        commons.wake_all(woken);
        granted
    }

    /// A handler that was started has ended.
    pub(crate) fn ended(&self) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.slots).ended(*place);
            commons.wake_all(woken);
        }
    }

    /// Nothing is to be started at the moment.
    pub(crate) fn wants_none(&self) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.slots).withdraw(*place);
            commons.wake_all(woken);
        }
    }

    /// Says whether it holds messages at all, and the load of claimed ones: waiting, running, or not settled yet.
    pub(crate) fn holds(&self, any: bool, load: Load) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.slots).holds(*place, any);
            commons.wake_all(woken);
            let woken = lock(&commons.looks).holds(*place, load);
            commons.wake_all(woken);
        }
    }

    /// How much more may be claimed, by all outboxes together.
    pub(crate) fn room(&self) -> Option<Load> {
        self.0.as_ref().map(|Member { commons, .. }| lock(&commons.looks).room())
    }

    /// The entrance of its hot path.
    pub(crate) fn door(&self, settings: &Settings) -> Door {
        self.0.as_ref().map_or_else(|| Door::of(settings), |Member { commons, .. }| commons.door.beside())
    }

    /// Whether a suspect of another outbox runs, or is about to run, alone in this process: nothing may be claimed, and what
    /// waits is to be given back.
    pub(crate) fn must_give_way(&self, now: Instant) -> bool {
        self.0.as_ref().is_some_and(|Member { commons, place }| {
            let (must, woken) = lock(&commons.slots).must_give_way(*place, now);
            commons.wake_all(woken);
            must
        })
    }

    /// How long the suspect of another outbox may keep this one waiting.
    pub(crate) fn gives_way_until(&self) -> Option<Instant> {
        let Member { commons, place } = self.0.as_ref()?;
        lock(&commons.slots).gives_way_until(*place)
    }

    /// Whether it is this outbox's turn to claim. If not, its dispatcher is woken when it is.
    pub(crate) fn may_look(&self) -> bool {
        let Some(Member { commons, place }) = &self.0 else { return true };
        let (granted, woken) = lock(&commons.looks).ask(*place);
        commons.wake_all(woken);
        granted
    }

    /// A claim has ended: it found so many of the requested messages. The result of a failed one is unknown.
    pub(crate) fn looked(&self, found: Option<(u32, u32)>) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.looks).looked(*place, found);
            commons.wake_all(woken);
        }
    }

    /// A turn to claim is not wanted any more.
    pub(crate) fn wants_no_look(&self) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.looks).withdraw(*place);
            commons.wake_all(woken);
        }
    }

    /// Its dispatcher has ended: it wants and holds nothing any more.
    pub(crate) fn ends(&self) {
        if let Some(Member { commons, place }) = &self.0 {
            let woken = lock(&commons.slots).leave(*place);
            commons.wake_all(woken);
            let mut looks = lock(&commons.looks);
            let mut woken = looks.withdraw(*place);
            woken.extend(looks.holds(*place, Load::default()));
            woken.extend(looks.looked(*place, None));
            drop(looks);
            commons.wake_all(woken);
        }
    }

    /// Runs a call to the store on one of the connections that all share.
    pub(crate) async fn call<T>(
        &self,
        priority: Priority,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let Some(member) = &self.0 else { return call.await };
        let mut permit = Permit::acquire(&member.commons, member.place, priority).await;
        let mut call = std::pin::pin!(call);
        let outcome = loop {
            match timeout(permit.patience(), call.as_mut()).await {
                Ok(outcome) => break outcome,
                // Calls are run to their end, however long that takes.
                Err(_) if permit.outlasted() => break call.await,
                Err(_) => {}
            }
        };
        let is_lost = outcome.as_ref().is_err_and(|error| {
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Permission | ErrorKind::CommitUnknown)
        });
        permit.done(!is_lost).await;
        if priority == Priority::High && outcome.is_err() {
            member.cannot_settle();
        }
        outcome
    }
}

impl Member {
    /// It claims nothing until it can settle: a selection must not wait for its next claim.
    fn cannot_settle(&self) {
        let woken = lock(&self.commons.looks).cannot_settle(self.place);
        self.commons.wake_all(woken);
    }
}
