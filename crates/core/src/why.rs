//! Why has this message not arrived: every reason that the store, and a relay with its routes, can tell.
//!
//! It only looks: a handful of small reads, and one short wait for a lock at most. It never changes a message, and it shows
//! no payload, no header and no key.

mod sentences;

use std::pin::pin;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tokio::time::timeout;

use crate::clock::{Clock as _, SystemClock};
use crate::error::Result;
use crate::id::MessageId;
use crate::outcome::{FailureClass, State};
use crate::store::admin::{Filter, HistoryEntry, LockWait, MAX_PAGE, Record, StoreAdmin};
use crate::topic::Topics;
use crate::words::{serialize_some_time, serialize_time};

/// By how much the machine's clock may differ from the database's without a message being called not due.
const TOLERANCE: Duration = Duration::from_secs(1);
/// After how long without an answer to check whether the query waits for a lock.
const LOOK_FOR_LOCKS_AFTER: Duration = Duration::from_millis(400);
/// How many pages of dead messages of one key are read: many of them may not block the key.
const DEAD_PAGES: usize = 5;

/// What a deliverer of messages, such as a relay, knows about a topic.
pub trait Routes: Send + Sync {
    /// Where messages of this topic go; empty if nowhere.
    fn route(&self, topic: &str) -> Vec<RouteState>;
}

/// A sink that a topic goes to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RouteState {
    /// Its name.
    pub sink: String,
    /// Why nothing is sent to it now; none if it takes messages.
    pub down: Option<String>,
}

/// A message of the same key that has to end first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Blocker {
    /// Which one.
    pub message: MessageId,
    /// Its topic.
    pub topic: String,
    /// Its state.
    pub state: State,
    /// The class of its last failure.
    pub class: Option<FailureClass>,
}

impl From<&Record> for Blocker {
    fn from(record: &Record) -> Self {
        Self {
            message: record.message.id,
            topic: record.message.topic.to_string(),
            state: record.state,
            class: record.error_class,
        }
    }
}

/// One reason why a message has not arrived. As a text it says what to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// No message of this id is stored.
    Unknown,
    /// It was delivered.
    Done {
        /// When.
        #[serde(serialize_with = "serialize_some_time")]
        at: Option<SystemTime>,
        /// By which worker.
        by: Option<String>,
    },
    /// It was given up after a failure.
    Dead {
        /// When.
        #[serde(serialize_with = "serialize_some_time")]
        at: Option<SystemTime>,
        /// The class of its last failure.
        class: Option<FailureClass>,
        /// The text of its last failure.
        error: Option<String>,
        /// How many attempts it had.
        attempts: u32,
    },
    /// It was given up because no worker claimed it before its expiry.
    Expired {
        /// When it was given up.
        #[serde(serialize_with = "serialize_some_time")]
        at: Option<SystemTime>,
    },
    /// An operator gave it up.
    Buried {
        /// When.
        #[serde(serialize_with = "serialize_some_time")]
        at: Option<SystemTime>,
        /// Who; none if the history is gone.
        by: Option<String>,
        /// Why.
        why: Option<String>,
    },
    /// Its expiry is past, and it has not been given up yet. No worker claims it any more.
    ExpiryPassed {
        /// When it expired.
        #[serde(serialize_with = "serialize_time")]
        expired_at: SystemTime,
    },
    /// A worker has it.
    Leased {
        /// Who.
        worker: Option<String>,
        /// Until when.
        #[serde(serialize_with = "serialize_some_time")]
        until: Option<SystemTime>,
        /// How many attempts failed before.
        attempts: u32,
    },
    /// A worker had it and fell silent; it has not been taken back yet.
    LeaseRanOut {
        /// Who.
        worker: Option<String>,
        /// Since when the lease is over.
        #[serde(serialize_with = "serialize_time")]
        since: SystemTime,
    },
    /// Its topic is paused.
    Paused {
        /// The paused topics: one topic, or a prefix and a `*`.
        topics: String,
        /// Who paused it.
        by: String,
        /// Why.
        why: String,
        /// Since when.
        #[serde(serialize_with = "serialize_time")]
        since: SystemTime,
    },
    /// It is due later: it was scheduled or deferred.
    Scheduled {
        /// When it is due.
        #[serde(serialize_with = "serialize_time")]
        until: SystemTime,
    },
    /// It failed, and waits for its next attempt.
    Retry {
        /// When it is due.
        #[serde(serialize_with = "serialize_time")]
        until: SystemTime,
        /// How many attempts failed, without failures that cost none.
        attempts: u32,
        /// The class of its last failure.
        class: FailureClass,
        /// The text of its last failure.
        error: Option<String>,
    },
    /// It is set aside behind a dead message of its key.
    Parked {
        /// Behind which one; none if that one is just gone.
        behind: Option<Blocker>,
    },
    /// Another message of its key has to end first.
    KeyBlocked {
        /// Which one: the first of the key that is not over.
        by: Blocker,
    },
    /// The relay that was asked has no route for its topic.
    NoRoute {
        /// The topic.
        topic: String,
    },
    /// A sink that it goes to takes nothing now.
    SinkDown {
        /// Which one.
        sink: String,
        /// Why.
        why: String,
    },
    /// A session of the database keeps its row locked, and claims pass it over.
    Held {
        /// Which one, as the database's own tools name it.
        session: String,
        /// Known facts about it.
        about: String,
        /// Since when its transaction is open.
        #[serde(serialize_with = "serialize_some_time")]
        since: Option<SystemTime>,
    },
    /// A session of the database holds a lock, and sessions that use this outbox wait for it.
    Blocked {
        /// The session that holds the lock, as the database's own tools name it.
        session: String,
        /// Known facts about it.
        about: String,
        /// Since when its transaction is open.
        #[serde(serialize_with = "serialize_some_time")]
        since: Option<SystemTime>,
        /// The session that waits.
        waiter: String,
        /// For how long it has waited, in milliseconds.
        waited_ms: u64,
    },
    /// It lost leases, and is claimed alone, after others.
    Suspect {
        /// How many leases ran out on it.
        lease_losses: u32,
    },
    /// It is due, and its last attempt failed. Its deliverer may be leaving it alone: only the deliverer knows
    /// whether a sink is down.
    Failed {
        /// The class of its last failure.
        class: FailureClass,
        /// The text of its last failure.
        error: Option<String>,
    },
    /// Nothing is in its way.
    Nothing,
}

/// Why a message has not arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Why {
    /// Which message.
    pub message: MessageId,
    /// Its topic, if it is stored.
    pub topic: Option<String>,
    /// Its state, if it is stored.
    pub state: Option<State>,
    /// The reasons as text, one a line.
    pub explanation: String,
    /// The reasons, the most decisive one first; at least one.
    pub reasons: Vec<Reason>,
}

/// Why a message has not arrived, by this machine's clock where the store does not tell itself.
///
/// ```
/// use posthaste_core::{MemoryStore, NewMessage, Reason, Store, why};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// let store = MemoryStore::new();
/// let id = store.enqueue(&[NewMessage::bytes("greeting", "hello").build()?]).await?[0].id();
/// assert_eq!(why(&store, id, None).await?.reasons, [Reason::Nothing]);
/// # Ok(()) }
/// ```
pub async fn why(store: &dyn StoreAdmin, id: MessageId, routes: Option<&dyn Routes>) -> Result<Why> {
    why_at(store, id, routes, SystemClock.now()).await
}

/// The same at this time.
///
/// If the query itself waits for a lock, it returns within a second and names the session that holds the lock.
pub async fn why_at(
    store: &dyn StoreAdmin,
    id: MessageId,
    routes: Option<&dyn Routes>,
    now: SystemTime,
) -> Result<Why> {
    let mut explanation = pin!(explain(store, id, routes, now));
    loop {
        if let Ok(explanation) = timeout(LOOK_FOR_LOCKS_AFTER, &mut explanation).await {
            return explanation;
        }
        if let Some(blocked) = blocked(store).await? {
            return Ok(answer(id, None, vec![blocked], now));
        }
    }
}

async fn explain(
    store: &dyn StoreAdmin,
    id: MessageId,
    routes: Option<&dyn Routes>,
    now: SystemTime,
) -> Result<Why> {
    let shown = store.show(id).await?;
    let Some((record, history)) = &shown else { return Ok(answer(id, None, vec![Reason::Unknown], now)) };
    let reasons = match record.state {
        State::Done => vec![done(record)],
        State::Dead => vec![dead(record, history)],
        State::Leased => [leased(record, now)].into_iter().chain(blocked(store).await?).collect(),
        State::Ready => ready(store, record, routes, now).await?,
    };
    Ok(answer(id, Some(record), reasons, now))
}

fn answer(id: MessageId, record: Option<&Record>, reasons: Vec<Reason>, now: SystemTime) -> Why {
    let sentences: Vec<String> =
        reasons.iter().map(|reason| reason.sentence(now).replace('\n', " ")).collect();
    Why {
        message: id,
        topic: record.map(|record| record.message.topic.to_string()),
        state: record.map(|record| record.state),
        explanation: sentences.join("\n"),
        reasons,
    }
}

/// The lock that sessions of this outbox wait for, if there is one.
async fn blocked(store: &dyn StoreAdmin) -> Result<Option<Reason>> {
    let first = store.lock_waits().await?.into_iter().next();
    Ok(first.map(|LockWait { waiter, waited, holder }| Reason::Blocked {
        session: holder.session,
        about: holder.about,
        since: holder.since,
        waiter,
        waited_ms: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
    }))
}

fn done(record: &Record) -> Reason {
    Reason::Done { at: record.done_at, by: record.done_by.as_ref().map(ToString::to_string) }
}

fn dead(record: &Record, history: &[HistoryEntry]) -> Reason {
    let at = record.done_at;
    match record.error_class {
        Some(FailureClass::Expired) => Reason::Expired { at },
        Some(FailureClass::Buried) => {
            let entry = history.iter().rev().find(|entry| entry.action == "bury");
            Reason::Buried {
                at,
                by: entry.map(|entry| entry.by.clone()),
                why: entry.map(|entry| entry.why.clone()),
            }
        }
        class => {
            Reason::Dead { at, class, error: record.last_error.clone(), attempts: record.message.attempts }
        }
    }
}

fn leased(record: &Record, now: SystemTime) -> Reason {
    let worker = record.worker.as_ref().map(ToString::to_string);
    match record.leased_until {
        Some(since) if since + TOLERANCE < now => Reason::LeaseRanOut { worker, since },
        until => Reason::Leased { worker, until, attempts: record.message.attempts },
    }
}

/// Everything that is in the way of a message that is ready.
async fn ready(
    store: &dyn StoreAdmin,
    record: &Record,
    routes: Option<&dyn Routes>,
    now: SystemTime,
) -> Result<Vec<Reason>> {
    let mut reasons = Vec::new();
    let message = &record.message;
    if let Some(expired_at) = message.expires_at.filter(|expires| *expires <= now) {
        reasons.push(Reason::ExpiryPassed { expired_at });
    }
    reasons.extend(paused(store, record).await?);
    if !record.parked && message.due_at > now + TOLERANCE {
        reasons.push(not_due(record));
    }
    reasons.extend(behind(store, record).await?);
    reasons.extend(routes.map(|routes| unrouted(routes, record)).unwrap_or_default());
    if let Some(holder) = store.holder(message.id).await? {
        reasons.push(Reason::Held { session: holder.session, about: holder.about, since: holder.since });
    }
    reasons.extend(blocked(store).await?);
    if message.lease_losses > 0 {
        reasons.push(Reason::Suspect { lease_losses: message.lease_losses });
    }
    if reasons.is_empty() {
        reasons.push(match record.error_class {
            Some(class) => Reason::Failed { class, error: record.last_error.clone() },
            None => Reason::Nothing,
        });
    }
    Ok(reasons)
}

async fn paused(store: &dyn StoreAdmin, record: &Record) -> Result<Vec<Reason>> {
    let topic = record.message.topic.as_str();
    let pauses = store.pauses().await?.into_iter();
    let mine = pauses.filter(|pause| {
        // A stored pause is a valid pattern.
        Topics::of([&pause.topics]).is_ok_and(|topics| topics.contains(topic))
    });
    Ok(mine
        .map(|pause| Reason::Paused {
            topics: pause.topics,
            by: pause.by,
            why: pause.why,
            since: pause.since,
        })
        .collect())
}

fn not_due(record: &Record) -> Reason {
    let message = &record.message;
    let failed = message.attempts > 0 || message.failing_since.is_some();
    match record.error_class.filter(|_| failed) {
        Some(class) => Reason::Retry {
            until: message.due_at,
            attempts: message.attempts,
            class,
            error: record.last_error.clone(),
        },
        None => Reason::Scheduled { until: message.due_at },
    }
}

/// The message of its key that it waits for.
async fn behind(store: &dyn StoreAdmin, record: &Record) -> Result<Option<Reason>> {
    let Some(key) = &record.message.key else { return Ok(None) };
    let dead = dead_before(store, key, record).await?;
    if record.parked {
        return Ok(Some(Reason::Parked { behind: dead.as_ref().map(Blocker::from) }));
    }
    let mut first = dead;
    for state in [State::Ready, State::Leased] {
        let filter = Filter { key: Some(key.clone()), state: Some(state), ..Filter::default() };
        let open = store.list(&filter, None, 1).await?.records.into_iter().next();
        first = [first, open].into_iter().flatten().min_by_key(|record| record.message.item);
    }
    let first = first.filter(|first| first.message.item < record.message.item);
    Ok(first.as_ref().map(|first| Reason::KeyBlocked { by: first.into() }))
}

/// The first dead message of this key that holds it back from this one.
async fn dead_before(store: &dyn StoreAdmin, key: &str, record: &Record) -> Result<Option<Record>> {
    let filter = Filter { key: Some(key.to_owned()), state: Some(State::Dead), ..Filter::default() };
    let mut after = None;
    for _ in 0..DEAD_PAGES {
        let page = store.list(&filter, after, MAX_PAGE).await?;
        let mut before = page.records.into_iter().take_while(|dead| dead.message.item < record.message.item);
        if let Some(holding) = before.find(Record::holds_key) {
            return Ok(Some(holding));
        }
        match page.next {
            Some(next) if next.item() < record.message.item => after = Some(next),
            _ => break,
        }
    }
    Ok(None)
}

fn unrouted(routes: &dyn Routes, record: &Record) -> Vec<Reason> {
    let message = &record.message;
    let sinks = routes.route(message.topic.as_str());
    if sinks.is_empty() {
        return vec![Reason::NoRoute { topic: message.topic.to_string() }];
    }
    let open = sinks.into_iter().filter(|route| !message.handled.contains(&route.sink));
    open.filter_map(|route| route.down.map(|why| Reason::SinkDown { sink: route.sink, why })).collect()
}

#[cfg(test)]
#[path = "why_tests.rs"]
mod tests;
