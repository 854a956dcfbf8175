//! Configures an outbox: its handlers, their shared values, its policies and settings. Invalid values are refused.

use std::sync::Arc;
use std::time::Duration;

use super::{Home as _, Inner, Outbox, Plan};
use crate::commons::Share;
use crate::dispatch::verdict::Rules;
use crate::encryption::Cipher;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, OfEvent, States};
use crate::id::WorkerId;
use crate::order::OrderPolicy;
use crate::registry::Registration;
use crate::retry::{ExponentialBackoff, RetryPolicy};
use crate::schedule::Schedule;
use crate::settings::{Settings, show_duration};
use crate::sink::Guarded;
use crate::store::Store;
use crate::topic::Topics;

/// Rules by topic; unset ones are as for all topics.
///
/// ```
/// use std::time::Duration;
/// use posthaste_core::{FixedDelay, Policy};
///
/// let mail = Policy::new().retry(FixedDelay(Duration::from_secs(60))).max_attempts(3).timeout(Duration::from_secs(10));
/// # let _ = mail;
/// ```
#[derive(Clone, Debug, Default)]
pub struct Policy {
    retry: Option<Arc<dyn RetryPolicy>>,
    max_attempts: Option<u32>,
    timeout: Option<Duration>,
}

impl Policy {
    /// As for all topics.
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait before the next attempt.
    #[must_use]
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Some(Arc::new(policy));
        self
    }

    /// How many attempts a message has: at least 1.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// How long the handlers of a message may take: 10 ms to 7 days.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

/// Configures an [`Outbox`].
#[must_use = "a builder does nothing until it is built"]
#[derive(Debug)]
pub struct OutboxBuilder<S> {
    pub(crate) store: S,
    worker: Option<String>,
    pub(crate) settings: Settings,
    retry: Option<Arc<dyn RetryPolicy>>,
    policies: Vec<(Topics, Policy)>,
    order: Vec<(Topics, OrderPolicy)>,
    registration: Registration,
    states: States,
    sinks: Vec<(String, Guarded)>,
    cipher: Option<Arc<dyn Cipher>>,
    error: Option<Error>,
}

macro_rules! setters {
    ($($(#[doc = $doc:literal])+ $name:ident: $type:ty;)*) => {
        $($(#[doc = $doc])+ pub fn $name(mut self, value: $type) -> Self {
            self.settings.$name = value;
            self
        })*
    };
}

impl<S> OutboxBuilder<S> {
    pub(crate) fn new(store: S) -> Self {
        Self {
            store,
            worker: None,
            settings: Settings::default(),
            retry: None,
            policies: Vec::new(),
            order: Vec::new(),
            registration: Registration::default(),
            states: States::default(),
            sinks: Vec::new(),
            cipher: None,
            error: None,
        }
    }

    /// Handles events: an async function whose first argument is a [`Delivery`](crate::Delivery) of the event, which says
    /// the topic.
    ///
    /// Several handlers of one topic are called in the order of registration, and a retry calls only the handlers that
    /// are not done. The store identifies them by their type's name; see [`on_named`](Self::on_named).
    pub fn on<H, Args>(self, handler: H) -> Self
    where
        Args: OfEvent + 'static,
        H: Handler<Args>,
    {
        self.register(Args::TOPIC, None, handler)
    }

    /// The same under a name of its own, which stays when the function is moved or renamed: 1 to 200 bytes.
    pub fn on_named<H, Args>(self, name: &str, handler: H) -> Self
    where
        Args: OfEvent + 'static,
        H: Handler<Args>,
    {
        self.register(Args::TOPIC, Some(name), handler)
    }

    /// Handles the messages of a topic, or of all that begin alike (`order.*`), or all (`*`). Patterns come after the
    /// topic's own handlers.
    ///
    /// The topic may be a text, or an enum of yours with `AsRef<str>`. The handler takes a [`Message`](crate::Message), or a
    /// [`Delivery`](crate::Delivery) of the type of its JSON.
    pub fn on_topic<H, Args>(self, topic: impl AsRef<str>, handler: H) -> Self
    where
        Args: 'static,
        H: Handler<Args>,
    {
        self.register(topic.as_ref(), None, handler)
    }

    /// The same under a name of its own.
    pub fn on_topic_named<H, Args>(self, topic: impl AsRef<str>, name: &str, handler: H) -> Self
    where
        Args: 'static,
        H: Handler<Args>,
    {
        self.register(topic.as_ref(), Some(name), handler)
    }

    fn register<H: Handler<Args>, Args: 'static>(
        mut self,
        topic: &str,
        name: Option<&str>,
        handler: H,
    ) -> Self {
        if let Err(error) = self.registration.add(topic, name, handler) {
            self.error.get_or_insert(error);
        }
        self
    }

    /// Sends the messages of a topic, or of all that begin alike (`order.*`), or all (`*`), to a sink. Handlers of the same topic
    /// come before it. If several sinks match, each gets the message; a sink that is given for several patterns gets it once.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
    /// use posthaste_core::{Guarded, LogSink, MemoryStore, NewMessage, NullSink, Outbox};
    ///
    /// let log = Guarded::new(LogSink);
    /// let outbox = Outbox::builder(MemoryStore::new())
    ///     .sink("order.*", log.clone())
    ///     .sink("payment.received", log)                     // the same sink, with the same circuit breaker
    ///     .sink("heartbeat", NullSink)
    ///     .build().await?;
    /// outbox.enqueue(NewMessage::bytes("order.placed", "42")).await?;
    /// assert_eq!(outbox.drain().await?.delivered, 1);
    /// # Ok(()) }
    /// ```
    pub fn sink(mut self, topic: impl AsRef<str>, sink: impl Into<Guarded>) -> Self {
        self.sinks.push((topic.as_ref().to_owned(), sink.into()));
        self
    }

    /// Encrypts payloads and headers of messages published from now on, and decrypts them before handlers and sinks
    /// get them. Default: off.
    ///
    /// The ciphertext is bound to the message's id, topic and content type. Topics, keys, ids and times stay readable, and so do
    /// the texts of errors. See `Keyring`, of the feature `encryption`.
    pub fn encryption(mut self, cipher: impl Cipher) -> Self {
        self.cipher = Some(Arc::new(cipher));
        self
    }

    /// Shares a value with handlers, which take it by [`Shared`](crate::Shared); one of each type.
    pub fn share<T: Clone + Send + Sync + 'static>(mut self, value: T) -> Self {
        self.states.insert(value);
        self
    }

    /// What this process is called in leases: up to 60 bytes, followed by something unique. Default: `worker`.
    pub fn worker(mut self, name: impl Into<String>) -> Self {
        self.worker = Some(name.into());
        self
    }

    /// All settings at once, from a file or the environment.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    setters! {
        /// How many handlers run at a time: 1 to 10,000. Default: 4.
        workers: u32;
        /// How many messages may wait in memory right after their commit: up to 1,000,000; 0 switches the hot path off.
        /// Default: 1,000.
        hot_capacity: u32;
        /// How many claimed messages may wait in memory for a handler: 1 to 1,000,000. Default: 1,000.
        cold_capacity: u32;
        /// The most messages of one claim: 1 to 10,000. Default: 200.
        batch: u32;
        /// The most outcomes of one settlement: 1 to 10,000. Default: 500.
        settle_batch: u32;
        /// The shortest pause between settlements that are not full and that nothing waits for: up to 10 s; 0 settles at
        /// once. Messages delivered since the last settlement come again after a crash. Default: 50 ms.
        settle_interval: Duration;
        /// How long a message is owned without being renewed, and so how long a crash hides it: 100 ms to 24 h.
        /// Default: 30 s.
        lease: Duration;
        /// How many attempts a message has before it is dead: at least 1. Default: 10.
        max_attempts: u32;
        /// How long a handler may take before it is cancelled and its attempt has failed: 10 ms to 7 d. Default: 5 min.
        handler_timeout: Duration;
        /// How long handlers may go on after a shutdown has begun: up to 1 h. Default: 25 s.
        shutdown_grace: Duration;
        /// For how long a message may fail without a break because something is down; none is for ever. Default: 24 h.
        outage_limit: Option<Duration>;
        /// How often a message that waits for a join checks it, although the join's end makes it due at once: 100 ms to 30
        /// d. Default: 60 s.
        join_check: Duration;
        /// When messages are taken back whose lease has run out. Default: every 10 s.
        reap: Schedule;
        /// When messages are given up that no worker claimed before their expiry. Default: every minute.
        expire: Schedule;
        /// When messages behind a dead one with the policy park are set aside. Default: every minute.
        park: Schedule;
        /// When messages are removed, or archived, whose retention is over. Default: every 5 min.
        prune: Schedule;
    }

    /// The most bytes of a payload: 1 byte to 1 GiB. Default: 1 MiB.
    pub fn max_payload_bytes(mut self, bytes: u32) -> Self {
        self.settings.max_payload_bytes = bytes;
        self
    }

    /// The shortest and the longest pause between polls, while there is work and while there is none: 1 ms to 1 h.
    /// Default: 10 ms and 1 s.
    pub fn poll(mut self, floor: Duration, ceiling: Duration) -> Self {
        (self.settings.poll_floor, self.settings.poll_ceiling) = (floor, ceiling);
        self
    }

    /// How long to wait before the next attempt. Default: [`ExponentialBackoff`], 2 s to 60 s.
    pub fn retry(mut self, policy: impl RetryPolicy) -> Self {
        self.retry = Some(Arc::new(policy));
        self
    }

    /// Retries, attempts and time-out of some topics; of several policies that match, the first one given decides.
    pub fn policy(mut self, topics: Topics, policy: Policy) -> Self {
        self.policies.push((topics, policy));
        self
    }

    /// What becomes of a key when one of its messages of these topics dies; of several that match, the first one given
    /// decides. Default: [`OrderPolicy::Block`].
    pub fn order(mut self, topics: Topics, policy: OrderPolicy) -> Self {
        self.order.push((topics, policy));
        self
    }

    /// Checks everything that can be checked without a store, and answers with what there is for all of them.
    pub(crate) fn finish(self) -> Result<Finished<S>> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let settings = self.settings;
        settings.check()?;
        let backoff = ExponentialBackoff::new(settings.retry_base, settings.retry_max);
        let rules = Rules {
            retry: self.retry.unwrap_or_else(|| Arc::new(backoff)),
            max_attempts: settings.max_attempts,
            timeout: settings.handler_timeout,
        };
        let mut rules_by_topic = Vec::with_capacity(self.policies.len());
        for (topics, policy) in self.policies {
            let own = Rules {
                retry: policy.retry.unwrap_or_else(|| Arc::clone(&rules.retry)),
                max_attempts: policy.max_attempts.unwrap_or(rules.max_attempts),
                timeout: policy.timeout.unwrap_or(rules.timeout),
            };
            let as_settings =
                Settings { max_attempts: own.max_attempts, handler_timeout: own.timeout, ..settings.clone() };
            as_settings.check().map_err(|error| error.during("policy"))?;
            rules_by_topic.push((topics, own));
        }
        let mut registration = self.registration;
        for (topic, sink) in &self.sinks {
            registration.add_sink(topic, sink, settings.lease)?;
            check_timeout(sink, settings.lease, shortest_timeout(topic, &rules_by_topic, &rules))?;
        }
        if !registration.is_empty() {
            registration.reserve(&settings.join_wait_topic)?;
        }
        let registry = registration.finish(&self.states)?;
        let worker = self.worker.unwrap_or_else(|| "worker".to_owned());
        if worker.len() > 60 || worker.contains('\0') {
            return Err(Error::new(ErrorKind::Configuration, "the worker's name is not acceptable")
                .with_remedy("give it up to 60 bytes, without NUL"));
        }
        let plan = Plan {
            settings,
            registry,
            states: Arc::new(self.states),
            cipher: self.cipher,
            rules,
            rules_by_topic,
            order: self.order,
        };
        let sinks = self.sinks.into_iter().map(|(_, sink)| sink).collect();
        Ok(Finished { store: self.store, worker, plan: Arc::new(plan), sinks })
    }
}

/// The shortest time-out that a topic of this pattern can have. The first policy that matches a topic decides.
fn shortest_timeout(pattern: &str, by_topic: &[(Topics, Rules)], default: &Rules) -> Duration {
    let mut shortest: Option<Duration> = None;
    for (topics, own) in by_topic.iter().filter(|(topics, _)| topics.meets(pattern)) {
        shortest = Some(shortest.map_or(own.timeout, |shortest| shortest.min(own.timeout)));
        if topics.covers(pattern) {
            return shortest.unwrap_or(own.timeout);
        }
    }
    shortest.map_or(default.timeout, |shortest| shortest.min(default.timeout))
}

/// Refuses a time-out that would cut off a sink before the sink's own deadline: an outage would look like a handler's failure.
fn check_timeout(sink: &Guarded, lease: Duration, timeout: Duration) -> Result<()> {
    let deadline = sink.patience(lease);
    if timeout > deadline {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Configuration,
        format!("a handler's time-out is {}, and the deadline of its sink is {}", show_duration(timeout), show_duration(deadline)),
    )
    .with_context("sink", sink.name())
    .with_remedy("give handlers more time (handler_timeout, or the topic's policy), or the sink less (SinkOptions::deadline)"))
}

/// The result of a builder.
pub(crate) struct Finished<S> {
    pub(crate) store: S,
    /// The process's name in leases, in front of a unique suffix.
    pub(crate) worker: String,
    pub(crate) plan: Arc<Plan>,
    pub(crate) sinks: Vec<Guarded>,
}

impl<S: Store> OutboxBuilder<S> {
    /// The outbox, once everything has been checked: the settings, the handlers, and the store, which must be reachable and
    /// have tables that this code knows.
    pub async fn build(self) -> Result<Outbox<S>> {
        let Finished { store, worker, plan, sinks } = self.finish()?;
        store.check().await?;
        let name = store.name().into();
        let inner = Arc::new(Inner::new(store, name, WorkerId::unique(&worker), plan, Share::alone()));
        for sink in sinks {
            let outbox = Arc::downgrade(&inner);
            let name = sink.name().to_owned();
            sink.watch(move |recovery| {
                outbox.upgrade().inspect(|inner| inner.recovered(&name, recovery)).is_some()
            });
        }
        Ok(Outbox { inner })
    }
}
