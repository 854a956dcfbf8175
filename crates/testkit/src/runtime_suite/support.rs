//! Shared by the cases: fast outboxes, a journal of handled messages, gates that hold handlers up, and waiting for a
//! condition.
//!
//! Nothing here asserts a requirement. Nothing here may wait for a time instead of a condition.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{
    Answering, ClaimRequest, FixedDelay, HandlerResult, JoinBuilder, JoinStore, Message, MessageBuilder,
    MessageId, NewMessage, Outbox, OutboxBuilder, Outcome, Record, Result, Schedule, Settings, Settlement,
    Shutdown, StartedJoin, State, Store, StoreAdmin, TransactionalStore, WorkerId,
};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Scene;
use crate::Fixture;
pub(crate) use crate::store_suite::records;

/// How long a condition may take to become true on a machine that is slow and busy with other things.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
/// Less than the pause before a regular poll in [`hot_only`]: a minute, less a quarter by chance.
pub(crate) const BEFORE_THE_NEXT_LOOK: Duration = Duration::from_secs(40);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3_600);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn eventually<C: AsyncFnMut() -> bool>(what: &str, mut condition: C) -> impl Future<Output = ()> {
    let (place, what) = (std::panic::Location::caller(), what.to_owned());
    async move {
        let begin = Instant::now();
        while !condition().await {
            assert!(
                begin.elapsed() < DEADLINE,
                "{place}: in {DEADLINE:?} it did not become true that {what}"
            );
            tokio::time::sleep(ms(4)).await;
        }
    }
}

/// Settings for short waits: frequent polls, no jobs but those that a case turns on.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    (settings.poll_floor, settings.poll_ceiling) = (ms(5), ms(50));
    settings.cancel_grace = ms(100);
    settings.shutdown_grace = DEADLINE;
    settings.reap = Schedule::off();
    settings.expire = Schedule::off();
    settings.park = Schedule::off();
    settings.prune = Schedule::off();
    settings.stats = Schedule::off();
    settings
}

/// Settings with which the cold path polls once, at the start, and then not again for as long as a case takes.
pub(crate) fn hot_only() -> Settings {
    let mut settings = settings();
    (settings.poll_floor, settings.poll_ceiling) = (MINUTE, HOUR);
    settings
}

/// An outbox with these settings whose retries come at once.
pub(crate) fn outbox<S: Store>(store: S, settings: Settings) -> OutboxBuilder<S> {
    Outbox::builder(store).settings(settings).retry(FixedDelay(ms(1)))
}

/// An outbox that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) shutdown: Shutdown,
    pub(crate) task: JoinHandle<Result<()>>,
}

/// Runs an outbox.
pub(crate) fn run<S: StoreAdmin>(outbox: &Outbox<S>) -> Running {
    let shutdown = Shutdown::new();
    Running { task: tokio::spawn(outbox.run(shutdown.clone())), shutdown }
}

impl Running {
    /// Stops it gracefully, which must succeed.
    pub(crate) async fn stop(self) {
        self.shutdown.begin();
        self.ended().await.unwrap();
    }

    /// Waits for its end.
    pub(crate) async fn ended(self) -> Result<()> {
        tokio::time::timeout(2 * DEADLINE, self.task).await.expect("it ends").expect("it does not panic")
    }
}

/// A call of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) handler: &'static str,
    pub(crate) message: Message,
    pub(crate) at: Instant,
}

/// What handlers were called with, and how many of them at a time.
#[derive(Default)]
pub(crate) struct Journal {
    calls: Mutex<Vec<Call>>,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    now: usize,
    suspects: usize,
    by_message: HashMap<MessageId, usize>,
    most: usize,
    most_of_one: usize,
    suspects_met: usize,
}

/// A handler under way.
pub(crate) struct Stay {
    journal: Arc<Journal>,
    id: MessageId,
    suspect: bool,
}

impl Drop for Stay {
    fn drop(&mut self) {
        let mut inside = self.journal.inside.lock().unwrap();
        inside.now -= 1;
        inside.suspects -= usize::from(self.suspect);
        *inside.by_message.get_mut(&self.id).unwrap() -= 1;
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("calls", &self.count()).finish_non_exhaustive()
    }
}

impl Journal {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A handler begins; it ends when the answer is dropped.
    pub(crate) fn enter(self: &Arc<Self>, handler: &'static str, message: &Message) -> Stay {
        let (id, suspect) = (message.id, message.lease_losses > 1);
        {
            let mut inside = self.inside.lock().unwrap();
            if inside.now > 0 && (suspect || inside.suspects > 0) {
                inside.suspects_met += 1;
            }
            inside.now += 1;
            inside.suspects += usize::from(suspect);
            inside.most = inside.most.max(inside.now);
            let of_one = inside.by_message.entry(id).or_default();
            *of_one += 1;
            let of_one = *of_one;
            inside.most_of_one = inside.most_of_one.max(of_one);
        }
        let call = Call { handler, message: message.clone(), at: Instant::now() };
        self.calls.lock().unwrap().push(call);
        Stay { journal: Arc::clone(self), id, suspect }
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }

    pub(crate) fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// The messages of the calls, in order.
    pub(crate) fn ids(&self) -> Vec<MessageId> {
        self.calls().iter().map(|call| call.message.id).collect()
    }

    pub(crate) fn has(&self, id: MessageId) -> bool {
        self.ids().contains(&id)
    }

    /// The handlers that were called for a message, in order.
    pub(crate) fn handlers_of(&self, id: MessageId) -> Vec<&'static str> {
        self.calls().iter().filter(|call| call.message.id == id).map(|call| call.handler).collect()
    }

    pub(crate) fn running(&self) -> usize {
        self.inside.lock().unwrap().now
    }

    /// The most handlers that ran at a time.
    pub(crate) fn most(&self) -> usize {
        self.inside.lock().unwrap().most
    }

    /// The most handlers that ran at a time for one message.
    pub(crate) fn most_of_one(&self) -> usize {
        self.inside.lock().unwrap().most_of_one
    }

    /// How often a suspect was not alone.
    pub(crate) fn suspects_met(&self) -> usize {
        self.inside.lock().unwrap().suspects_met
    }

    /// A handler that is noted, and then does this.
    pub(crate) fn handler<A>(
        self: &Arc<Self>,
        name: &'static str,
        then: impl Fn(Message) -> A + Send + Sync + 'static,
    ) -> impl Fn(Message) -> Answering + Send + Sync + 'static
    where
        A: Future<Output = HandlerResult> + Send + 'static,
    {
        let journal = Arc::clone(self);
        move |message| {
            let stay = journal.enter(name, &message);
            let answer = then(message);
            Box::pin(async move {
                let _stay = stay;
                answer.await
            })
        }
    }

    /// A handler that is noted, and succeeds.
    pub(crate) fn noting(
        self: &Arc<Self>,
        name: &'static str,
    ) -> impl Fn(Message) -> Answering + Send + Sync + 'static {
        self.handler(name, async |_| Ok(()))
    }

    /// A handler that is noted, and succeeds once the gate lets it through.
    pub(crate) fn gated(
        self: &Arc<Self>,
        name: &'static str,
        gate: &Gate,
    ) -> impl Fn(Message) -> Answering + Send + Sync + 'static {
        let gate = gate.clone();
        self.handler(name, move |_| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok(())
            }
        })
    }
}

/// Holds handlers up.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }

    /// Lets so many through.
    pub(crate) fn let_through(&self, count: usize) {
        self.0.add_permits(count);
    }

    /// Lets all through from now on.
    pub(crate) fn open(&self) {
        self.let_through(1_000_000);
    }
}

/// Blocks the threads of handlers for as long as it lives, which is not longer than its case.
pub(crate) struct Blocker(Arc<AtomicBool>);

impl Blocker {
    pub(crate) fn new() -> Self {
        let blocking = Arc::new(AtomicBool::new(true));
        let (beating, runtime) = (Arc::clone(&blocking), tokio::runtime::Handle::current());
        // A thread that is blocked may be the one that minds the clock for the whole runtime; in a program that does
        // anything at all, the next thread that wakes up takes over.
        std::thread::spawn(move || {
            while beating.load(Ordering::Acquire) {
                runtime.spawn(async {});
                std::thread::sleep(ms(5));
            }
        });
        Self(blocking)
    }

    /// Blocks the handler's thread.
    pub(crate) fn block(&self) -> impl Fn() + Clone + Send + Sync + 'static {
        let blocking = Arc::clone(&self.0);
        move || {
            while blocking.load(Ordering::Acquire) {
                std::thread::sleep(ms(5));
            }
        }
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Counts something in handlers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<AtomicUsize>);

impl Counter {
    /// One more; returns the new number.
    pub(crate) fn next(&self) -> usize {
        self.0.fetch_add(1, Ordering::AcqRel) + 1
    }
}

/// A message of this topic.
pub(crate) fn draft(topic: &str) -> MessageBuilder {
    NewMessage::bytes(topic, "payload")
}

/// So many messages of this topic.
pub(crate) fn drafts(topic: &str, count: usize) -> Vec<NewMessage> {
    (0..count).map(|_| draft(topic).build().unwrap()).collect()
}

/// Everything stored about a message.
pub(crate) async fn record<S: StoreAdmin>(store: &S, id: MessageId) -> Record {
    store.show(id).await.unwrap().expect("the message is stored").0
}

/// The state of a message; none if it is not stored.
pub(crate) async fn state<S: StoreAdmin>(store: &S, id: MessageId) -> Option<State> {
    store.show(id).await.unwrap().map(|(record, _)| record.state)
}

/// Waits until a message is in this state.
pub(crate) async fn becomes<S: StoreAdmin>(store: &S, id: MessageId, expected: State) {
    eventually(&format!("{id} is {expected}"), async || state(store, id).await == Some(expected)).await;
}

/// Waits until so many messages are done.
pub(crate) async fn done<S: StoreAdmin>(store: &S, count: usize) {
    let done = async || store.stats().await.unwrap().done.value == count as u64;
    eventually(&format!("{count} messages are done"), done).await;
}

/// A worker that is none of the outboxes.
pub(crate) fn stranger() -> WorkerId {
    WorkerId::new("stranger").unwrap()
}

/// Claims as a worker that is none of the outboxes.
pub(crate) async fn claim_elsewhere<S: Store>(store: &S, limit: u32, lease: Duration) -> Vec<Message> {
    store.claim(&ClaimRequest::new(stranger()).limit(limit).lease(lease)).await.unwrap()
}

/// The settlement of a message that was claimed elsewhere, and is done.
pub(crate) fn acked(message: &Message) -> Settlement {
    Settlement::new(message.lease(), Outcome::Ack)
}

/// Starts a join in a transaction of the user's own.
pub(crate) async fn start_join<F: Fixture, S>(
    scene: &Scene<F>,
    outbox: &Outbox<S>,
    join: JoinBuilder,
) -> StartedJoin
where
    S: JoinStore<Connection = <F::Store as TransactionalStore>::Connection>,
{
    let fixture = &scene.fixture;
    let mut tx = fixture.begin().await;
    let started = outbox.start_join(fixture.connection(&mut tx), join).await.unwrap();
    fixture.commit(tx).await;
    started
}
