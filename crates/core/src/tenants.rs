//! Many databases at a time: which there are, whose messages are delivered next, and where writes go.
//!
//! Each tenant has an outbox of its own over a store of its own; nothing is ever written to, or read from, another tenant's.
//! They share the handlers, and resources that a process has only once. A failure of one tenant affects no other.

mod builder;
mod discovery;
mod entry;
mod identities;
mod inboxes;
mod key;
mod live;
mod source;
mod view;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{error, info, warn};

pub use self::builder::{TenantSet, TenantsBuilder};
use self::discovery::AnyDiscovery;
pub use self::discovery::{Discovery, Tenant};
use self::entry::{Compared, Entry, Opening};
use self::identities::Identities;
pub use self::inboxes::Inboxes;
pub use self::key::TenantKey;
use self::live::live;
pub use self::source::Source;
pub use self::view::{Changes, TenantInfo, TenantState, TenantsStats};
use crate::commons::{Commons, Priority};
use crate::dispatch::Tally;
use crate::dispatch::call::unpanicked;
use crate::error::{Error, ErrorKind, Result};
use crate::id::WorkerId;
use crate::metrics;
use crate::outbox::{Outbox, OutboxBuilder, Plan, Pulse};
use crate::shutdown::Shutdown;
use crate::sink::{self, Recovery};
use crate::store::{Store, StoreAdmin};

/// How long a discovery may take.
const DISCOVERY_TIME: Duration = Duration::from_secs(30);
/// Discoveries that unknown keys ask for follow each other no more closely than this.
const DISCOVERY_PAUSE: Duration = Duration::from_secs(1);
/// In how many answers in a row a tenant must be missing before it is removed.
const MISSING_BEFORE_REMOVED: u32 = 2;
/// How often tenants are counted, and unused connections closed.
const LOOK_ROUND: Duration = Duration::from_secs(5);

/// How often more tenants are woken after a sink has recovered, and after how long even if claims still wait for their turn.
const WAKE_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_WAKE_PAUSE: Duration = Duration::from_millis(100);

/// Many databases, each with an outbox of its own, and one set of handlers for all. Cloning it is cheap.
///
/// ```
/// use posthaste_core::{MemoryStore, Message, NewMessage, Origin, Shutdown, Tenants};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let tenants = Tenants::builder()
///     .store("acme", MemoryStore::new())                        // or tenant(key, source), or discover(…)
///     .store("globex", MemoryStore::new())
///     .on_topic("order.placed", async |message: Message, origin: Origin| {
///         println!("{} of {}", message.id, origin.store());
///         posthaste_core::handled()
///     })
///     .build().await?;
/// let shutdown = Shutdown::new();
/// let running = tokio::spawn(tenants.run(shutdown.clone()));
///
/// let outbox = tenants.outbox::<MemoryStore>("acme").await?;    // publishes in acme's own transactions
/// outbox.enqueue(NewMessage::bytes("order.placed", "42")).await?;
/// assert!(tenants.outbox::<MemoryStore>("initech").await.is_err());
///
/// shutdown.begin();
/// running.await.expect("it does not panic")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Tenants {
    core: Arc<Core>,
}

/// What all clones share.
pub(crate) struct Core {
    plan: Arc<Plan>,
    worker: WorkerId,
    commons: Arc<Commons>,
    /// The tenants that were named when it was built.
    fixed: Vec<Tenant>,
    discovery: Option<Box<dyn AnyDiscovery>>,
    entries: RwLock<BTreeMap<TenantKey, Arc<dyn Entry>>>,
    identities: Identities,
    refreshed: tokio::sync::Mutex<Option<Refreshed>>,
    /// Where new tenants go while they run.
    newcomers: Mutex<Option<UnboundedSender<Arc<dyn Entry>>>>,
    /// The task that wakes tenants after a sink has recovered.
    waking: Mutex<BTreeMap<String, AbortHandle>>,
}

/// Where new tenants arrive.
type Newcomers = UnboundedReceiver<Arc<dyn Entry>>;

/// The result of the last discovery.
struct Refreshed {
    started: Instant,
    failure: Option<String>,
}

impl fmt::Debug for Tenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tenants").field("tenants", &self.core.all().len()).finish_non_exhaustive()
    }
}

impl Tenants {
    /// Configures tenants: which there are, and every option of an outbox.
    pub fn builder() -> TenantsBuilder {
        OutboxBuilder::new(TenantSet::default())
    }

    /// The outbox of this tenant, by a text or a UUID, over the type of store that it has.
    ///
    /// It costs a look-up: each outbox is created once. An unknown key starts one new discovery, which all concurrent callers
    /// share. If the key is still unknown, the call fails with [`NotFound`](ErrorKind::NotFound).
    pub async fn outbox<S: Store>(&self, key: impl Into<TenantKey>) -> Result<Outbox<S>> {
        let entry = self.entry(key.into()).await?;
        Outbox::of_home(&entry.home())
    }

    /// The store of this tenant, as operators see it, of any type.
    pub async fn admin(&self, key: impl Into<TenantKey>) -> Result<Arc<dyn StoreAdmin>> {
        Ok(self.entry(key.into()).await?.admin())
    }

    async fn entry(&self, key: TenantKey) -> Result<Arc<dyn Entry>> {
        if let Some(entry) = self.core.find(&key) {
            return Ok(entry);
        }
        let failure = match &self.core.discovery {
            Some(_) => self.core.refresh_since(Instant::now()).await.err(),
            None => None,
        };
        if let Some(entry) = self.core.find(&key) {
            return Ok(entry);
        }
        let unknown = match failure {
            None => Error::new(ErrorKind::NotFound, "there is no such tenant")
                .with_remedy("check the key, and what the discovery finds"),
            Some(error) => {
                Error::new(ErrorKind::Unavailable, "this tenant is not known, and nobody could be asked")
                    .with_source(error)
            }
        };
        Err(unknown.during("route").with_context("tenant", crate::text::cut(key.as_str(), 200)))
    }

    /// Discovers the tenants again, now, and returns what has changed. While they run, this happens by itself.
    pub async fn refresh(&self) -> Result<Changes> {
        self.core.refresh().await
    }

    /// Delivers the messages of all tenants to the handlers, until the shutdown, as [`Outbox::run`] does for one: as many
    /// handlers at a time as `workers` says, over all of them.
    ///
    /// A tenant whose database fails is tried again and again; that is never an error of this call.
    pub fn run<E: Into<Shutdown>>(&self, shutdown: E) -> impl Future<Output = Result<()>> + Send + use<E> {
        let core = Arc::clone(&self.core);
        let shutdown = shutdown.into();
        async move {
            if core.plan.registry.is_empty() {
                return Err(Error::new(ErrorKind::Configuration, "the tenants have no handlers")
                    .during("run")
                    .with_remedy("give them some by on() or on_topic(), or do not run them"));
            }
            let Some((known, newcomers)) = core.open_door() else {
                return Err(Error::new(ErrorKind::Configuration, "these tenants run already").during("run"));
            };
            let running = tokio::spawn(run(core, known, newcomers, shutdown.clone()));
            let _guard = shutdown.on_drop();
            running.await.map_err(|error| {
                Error::new(ErrorKind::Database, "the tenants' task panicked")
                    .during("run")
                    .with_remedy("this is a defect of posthaste's: please report it")
                    .with_source(error)
            })
        }
    }

    /// Runs the handlers of everything that is due, tenant by tenant, and returns when nothing is left: for tests, and for programs
    /// that run now and then. It ends at the first tenant that fails, with an error that names it. See [`Outbox::drain`].
    pub async fn drain(&self) -> Result<Tally> {
        let mut total = Tally::default();
        for entry in self.core.all() {
            let tally = entry.drain().await?;
            total.delivered += tally.delivered;
            total.failed += tally.failed;
            total.deferred += tally.deferred;
            total.dead += tally.dead;
        }
        Ok(total)
    }

    /// Every tenant that is known, with how it is, sorted by key.
    pub fn list(&self) -> Vec<TenantInfo> {
        self.core.all().iter().map(|entry| TenantInfo::of(&**entry)).collect()
    }

    /// How the queues are, of every tenant and together. A tenant that cannot be asked has an error instead of figures.
    pub async fn stats(&self) -> TenantsStats {
        TenantsStats::of(self.each(|store| async move { store.stats().await }).await)
    }

    /// Calls a function with every tenant's store, as operators see it, several at a time, on the shared connections, and returns
    /// the results, sorted by key. A tenant that fails at the moment is not waited for: its error is the one that it fails with.
    pub async fn each<T, F, Fut>(&self, work: F) -> Vec<(TenantKey, Result<T>)>
    where
        T: Send + 'static,
        F: Fn(Arc<dyn StoreAdmin>) -> Fut,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let mut calls = JoinSet::new();
        let mut outcomes = BTreeMap::new();
        for entry in self.core.all() {
            let key = entry.life().key.clone();
            if let Some(trouble) = entry.trouble() {
                let failing =
                    Error::new(ErrorKind::Unavailable, format!("the store fails: {}", trouble.error));
                outcomes.insert(key.clone(), Err(failing.with_context("store", key.as_str())));
                continue;
            }
            let call = work(entry.admin());
            calls.spawn(async move {
                let outcome = entry.share().call(Priority::Normal, unpanicked(call)).await;
                let outcome = outcome.map_err(|error| error.with_context("store", key.as_str()));
                (key, outcome)
            });
        }
        while let Some(call) = calls.join_next().await {
            if let Ok((key, outcome)) = call {
                outcomes.insert(key, outcome);
            }
        }
        outcomes.into_iter().collect()
    }
}

impl Core {
    fn all(&self) -> Vec<Arc<dyn Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.values().map(Arc::clone).collect()
    }

    /// A tenant that is there, and not being removed.
    fn find(&self, key: &TenantKey) -> Option<Arc<dyn Entry>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(key).filter(|entry| !entry.life().is_removed()).cloned()
    }

    /// The current tenants, and a channel for new ones; `None` if they are running already.
    fn open_door(&self) -> Option<(Vec<Arc<dyn Entry>>, Newcomers)> {
        // No tenant is added while this is read.
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let mut newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        if newcomers.as_ref().is_some_and(|sender| !sender.is_closed()) {
            return None;
        }
        let (sender, receiver) = unbounded_channel();
        *newcomers = Some(sender);
        Some((entries.values().map(Arc::clone).collect(), receiver))
    }

    fn is_running(&self) -> bool {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        newcomers.as_ref().is_some_and(|sender| !sender.is_closed())
    }

    fn welcome(&self, entry: Arc<dyn Entry>) {
        let newcomers = self.newcomers.lock().unwrap_or_else(PoisonError::into_inner);
        // If they are not running, a later run begins with all of them.
        let _ = newcomers.as_ref().map(|sender| sender.send(entry));
    }

    /// A discovery that began after this time: a new one, unless another caller has started one.
    async fn refresh_since(&self, asked: Instant) -> Result<()> {
        let mut refreshed = self.refreshed.lock().await;
        if let Some(Refreshed { started, failure }) = &*refreshed {
            if *started >= asked {
                let failed = |text: &String| Err(Error::new(ErrorKind::Unavailable, text.clone()));
                return failure.as_ref().map_or(Ok(()), failed);
            }
            sleep_until(*started + DISCOVERY_PAUSE).await;
        }
        self.refresh_now(&mut refreshed).await.map(drop)
    }

    async fn refresh(&self) -> Result<Changes> {
        let mut refreshed = self.refreshed.lock().await;
        self.refresh_now(&mut refreshed).await
    }

    async fn refresh_now(&self, refreshed: &mut Option<Refreshed>) -> Result<Changes> {
        let started = Instant::now();
        let outcome = unpanicked(self.discover()).await.map(|found| self.apply(&found));
        let failure = outcome.as_ref().err().map(ToString::to_string);
        *refreshed = Some(Refreshed { started, failure });
        outcome
    }

    async fn discover(&self) -> Result<Vec<Tenant>> {
        let mut found = self.fixed.clone();
        if let Some(discovery) = &self.discovery {
            let asked = timeout(DISCOVERY_TIME, unpanicked(discovery.discover())).await;
            let late = || Error::new(ErrorKind::Unavailable, "the discovery of tenants timed out");
            found.extend(asked.map_err(|_| late())?.map_err(|error| error.during("discover"))?);
        }
        let mut known: BTreeMap<&TenantKey, &Tenant> = BTreeMap::new();
        for tenant in &found {
            tenant.key.check().map_err(|error| error.during("discover"))?;
            match known.get(&tenant.key) {
                // Which of them is it? posthaste does not guess where messages go.
                Some(other) if !other.source.is(&*tenant.source) => {
                    return Err(Error::new(ErrorKind::Configuration, "one key has two databases")
                        .during("discover")
                        .with_context("tenant", tenant.key.as_str())
                        .with_remedy("give each tenant a key of its own"));
                }
                _ => drop(known.insert(&tenant.key, tenant)),
            }
        }
        Ok(known.into_values().cloned().collect())
    }

    /// Replaces the tenants by the discovered ones.
    fn apply(&self, found: &[Tenant]) -> Changes {
        let mut changes = Changes::default();
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let mut missing: BTreeMap<TenantKey, Arc<dyn Entry>> =
            entries.iter().map(|(key, entry)| (key.clone(), Arc::clone(entry))).collect();
        for tenant in found {
            let known = missing.remove(&tenant.key);
            match self.try_found(tenant, known.as_ref(), &mut changes) {
                Ok(None) => {}
                Ok(Some(new)) => {
                    if let Some(old) = known.filter(|entry| !entry.life().is_removed()) {
                        old.remove(Some(self.drain_until()));
                    }
                    entries.insert(tenant.key.clone(), Arc::clone(&new));
                    self.welcome(new);
                }
                Err(error) => {
                    error!(store = %tenant.key, error = ?error, "a tenant's store cannot be opened");
                    changes.refused += 1;
                }
            }
        }
        let is_running = self.is_running();
        for (key, entry) in missing {
            let times = entry.life().missing.fetch_add(1, Ordering::Relaxed) + 1;
            if times >= MISSING_BEFORE_REMOVED && !entry.life().is_removed() {
                info!(store = %key, "a tenant is not there any more: it is drained");
                entry.remove(Some(self.drain_until()));
                changes.removed += 1;
                if !is_running {
                    entries.remove(&key);
                }
            } else if times < MISSING_BEFORE_REMOVED {
                warn!(store = %key, "a tenant is missing in the discovery: removed if it is missing again");
                changes.missing += 1;
            }
        }
        changes
    }

    /// The same as [`found`](Self::found); a panic of the tenant's source is an error of this tenant alone.
    fn try_found(
        &self,
        tenant: &Tenant,
        known: Option<&Arc<dyn Entry>>,
        changes: &mut Changes,
    ) -> Result<Option<Arc<dyn Entry>>> {
        let panicked = || {
            Error::new(ErrorKind::Configuration, "the tenant's source panicked")
                .during("discover")
                .with_remedy("repair its `Source`: the panic is in the log")
        };
        catch_unwind(AssertUnwindSafe(|| self.found(tenant, known, changes)))
            .unwrap_or_else(|_| Err(panicked()))
    }

    /// A tenant was found: answers with a new entry, if there must be one.
    fn found(
        &self,
        tenant: &Tenant,
        known: Option<&Arc<dyn Entry>>,
        changes: &mut Changes,
    ) -> Result<Option<Arc<dyn Entry>>> {
        if let Some(entry) = known {
            let compared = entry.compare(&*tenant.source)?;
            if compared != Compared::Other {
                entry.life().missing.store(0, Ordering::Relaxed);
                if entry.life().is_removed() {
                    info!(store = %tenant.key, "a tenant is back");
                    entry.remove(None);
                    changes.returned += 1;
                } else if compared == Compared::Changed {
                    info!(store = %tenant.key, "a tenant's database is reached in another way");
                    changes.changed += 1;
                }
                return Ok(None);
            }
            info!(store = %tenant.key, "a tenant has another database: the old one is drained");
            changes.replaced += 1;
        } else {
            changes.added += 1;
        }
        let Self { worker, plan, commons, .. } = self;
        tenant.source.open(&Opening { key: &tenant.key, worker, plan, commons }).map(Some)
    }

    fn drain_until(&self) -> Instant {
        Instant::now() + self.plan.settings.tenants_drain
    }

    /// Forgets a tenant that was removed and drained. Returns false if it came back meanwhile, and must run again.
    fn gone(&self, entry: &Arc<dyn Entry>) -> bool {
        // A discovery holds the same lock when it brings a tenant back.
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        let key = &entry.life().key;
        if entries.get(key).is_none_or(|other| !Arc::ptr_eq(other, entry)) {
            // Another database has its key by now.
            return true;
        }
        if entry.life().is_removed() {
            entries.remove(key);
        }
        !entries.contains_key(key)
    }

    /// A sink can be sent to again: tenants claim what waited for it, a few at a time.
    fn recovered(&self, sink: &str, recovery: Recovery) {
        let waking = wake_in_slices(self.all(), Arc::clone(&self.commons), sink.to_owned(), recovery);
        // Without a runtime no tenant runs.
        let Ok(runtime) = Handle::try_current() else { return };
        let task = runtime.spawn(waking).abort_handle();
        let mut waking = self.waking.lock().unwrap_or_else(PoisonError::into_inner);
        // The new task wakes tenants that the last one has not reached yet.
        if let Some(last) = waking.insert(sink.to_owned(), task) {
            last.abort();
        }
    }

    fn gauges(&self) {
        let mut counts = [("running", 0), ("failing", 0), ("draining", 0), ("twin", 0)];
        for entry in self.all() {
            let state = TenantState::of(&*entry).as_str();
            counts.iter_mut().filter(|(name, _)| *name == state).for_each(|(_, count)| *count += 1);
        }
        for (state, count) in counts {
            metrics::tenants(metrics::TENANTS, "state", state, count);
        }
        let (open, attempts) = self.commons.connections();
        metrics::tenants(metrics::CONNECTIONS, "kind", "open", open);
        metrics::tenants(metrics::CONNECTIONS, "kind", "attempt", attempts);
    }
}

/// Wakes tenants as fast as the connections can serve them. All at once would keep tenants that have work waiting.
async fn wake_in_slices(
    entries: Vec<Arc<dyn Entry>>,
    commons: Arc<Commons>,
    sink: String,
    recovery: Recovery,
) {
    let slice = commons.most_claims();
    for entries in entries.chunks(slice) {
        entries.iter().for_each(|entry| entry.home().recovered(&sink, recovery));
        let deadline = Instant::now() + LONGEST_WAKE_PAUSE;
        loop {
            sleep(WAKE_PAUSE).await;
            if commons.waiting_claims() < slice || Instant::now() >= deadline {
                break;
            }
        }
    }
}

/// Runs all tenants until the shutdown, including ones that are added meanwhile.
async fn run(core: Arc<Core>, known: Vec<Arc<dyn Entry>>, mut newcomers: Newcomers, shutdown: Shutdown) {
    let settings = &core.plan.settings;
    let mut lives = JoinSet::new();
    let begin = |lives: &mut JoinSet<_>, entry: Arc<dyn Entry>| {
        let (core, shutdown) = (Arc::clone(&core), shutdown.clone());
        lives.spawn(async move {
            while live(Arc::clone(&core), Arc::clone(&entry), shutdown.clone()).await {
                if core.gone(&entry) {
                    return;
                }
            }
        });
    };
    info!(tenants = known.len(), worker = %core.worker, workers = settings.workers, "running");
    known.into_iter().for_each(|entry| begin(&mut lives, entry));
    let _pulse = Pulse::start(settings.lease);
    sink::attend(core.plan.registry.sinks(), &shutdown);
    let discovering = tokio::spawn(discover_again_and_again(Arc::clone(&core), shutdown.clone()));
    let mut look_round =
        tokio::time::interval(LOOK_ROUND.min(settings.tenants_idle.max(Duration::from_millis(100))));
    loop {
        tokio::select! {
            biased;
            () = shutdown.begun() => break,
            Some(entry) = newcomers.recv() => begin(&mut lives, entry),
            Some(_) = lives.join_next() => {}
            _ = look_round.tick() => {
                core.gauges();
                core.commons.rest(settings.tenants_idle).await;
            }
        }
    }
    let _ = discovering.await;
    while lives.join_next().await.is_some() {}
    info!(worker = %core.worker, "stopped");
}

async fn discover_again_and_again(core: Arc<Core>, shutdown: Shutdown) {
    if core.discovery.is_none() {
        return;
    }
    let refresh = core.plan.settings.tenants_refresh;
    let mut pause = refresh.mul_f64(0.9 + 0.2 * fastrand::f64());
    loop {
        tokio::select! {
            biased;
            () = shutdown.begun() => return,
            () = sleep(pause) => {}
        }
        let refreshing = core.refresh();
        let outcome = tokio::select! {
            biased;
            () = shutdown.begun() => return,
            outcome = refreshing => outcome,
        };
        pause = match outcome {
            Ok(changes) => {
                if changes != Changes::default() {
                    info!(?changes, "the tenants have changed");
                }
                refresh
            }
            Err(error) => {
                error!(error = ?error, "the tenants could not be discovered: those that are known go on");
                (refresh / 10).clamp(Duration::from_millis(100), Duration::from_secs(30)).min(refresh)
            }
        };
    }
}
