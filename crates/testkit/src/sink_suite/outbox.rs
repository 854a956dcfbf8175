//! A sink behind an outbox: nothing is lost, nothing is charged for an outage, and delivery goes on by itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Guarded, MemoryStore, MessageId, NewMessage, Outbox, Settings, Shutdown, SinkOptions, State,
};
use tokio::time::{Instant, sleep};

use super::support::{CANARY, LONG};
use crate::store_suite::records;
use crate::{Mode, Proxy, SinkFixture};

const WINDOW: usize = 50;

/// An outbox in memory that sends to a sink.
struct Sender {
    outbox: Outbox<MemoryStore>,
    sink: Guarded,
    shutdown: Shutdown,
    task: tokio::task::JoinHandle<posthaste_core::Result<()>>,
}

impl Sender {
    /// An outbox whose batches have this much time.
    async fn start<F: SinkFixture>(fixture: &F, proxy: &Proxy, deadline: Duration) -> Self {
        let mut settings = Settings::default();
        settings.workers = WINDOW as u32;
        // It never runs out.
        settings.lease = 10 * LONG;
        settings.unroutable_delay = Duration::from_millis(200);
        (settings.poll_floor, settings.poll_ceiling) = (Duration::from_millis(2), Duration::from_millis(20));
        let options = SinkOptions::new()
            .batch(WINDOW as u32 / 2)
            .deadline(deadline)
            .pauses(Duration::from_millis(50), Duration::from_secs(1));
        let sink = Guarded::with(fixture.sink(proxy.addr()), options);
        let outbox = Outbox::builder(MemoryStore::new()).settings(settings).sink("*", sink.clone());
        let outbox = outbox.build().await.unwrap();
        let shutdown = Shutdown::new();
        let task = tokio::spawn(outbox.run(shutdown.clone()));
        Self { outbox, sink, shutdown, task }
    }

    async fn publish(&self, topic: &str, count: usize) -> Vec<MessageId> {
        let messages = (0..count).map(|_| NewMessage::bytes(topic, CANARY));
        let enqueued = self.outbox.enqueue_all(messages).await.unwrap();
        enqueued.iter().map(posthaste_core::Enqueued::id).collect()
    }

    async fn done(&self) -> usize {
        let records = records(self.outbox.store()).await;
        records.iter().filter(|record| record.state == State::Done).count()
    }

    /// Waits until so many are done.
    async fn until_done(&self, count: usize) {
        let begin = Instant::now();
        while self.done().await < count {
            assert!(begin.elapsed() < LONG, "{} of {count} are done", self.done().await);
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_down(&self) {
        let begin = Instant::now();
        while !self.sink.is_down() {
            assert!(begin.elapsed() < LONG, "the breaker does not open");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops, and checks the invariants of any end: no attempt charged, nothing dead.
    async fn stop(self) {
        self.shutdown.begin();
        self.task.await.unwrap().unwrap();
        for record in records(self.outbox.store()).await {
            assert_eq!((record.message.attempts, record.message.lease_losses), (0, 0), "{record:?}");
            assert_ne!(record.state, State::Dead, "{record:?}");
        }
    }
}

/// How many times each of these has arrived, all of which must have.
async fn arrivals<F: SinkFixture>(fixture: &F, topic: &str, ids: &[MessageId]) -> BTreeMap<MessageId, usize> {
    let mut times = BTreeMap::new();
    for arrived in fixture.arrived(topic).await {
        *times.entry(arrived.id).or_default() += 1;
    }
    assert_eq!(times.len(), ids.len(), "everything that was published has arrived, and nothing else");
    assert!(ids.iter().all(|id| times.contains_key(id)));
    times
}

/// RMQ-004, F-06, F-07, I1, I5, I10: unreachable in three ways, in the middle of a backlog: nothing is lost or charged, what comes
/// twice was in flight when a connection was cut, and delivery resumes by itself.
pub async fn slow_through_an_outage<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("order.placed").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sender = Sender::start(&**fixture, &proxy, Duration::from_secs(2)).await;
    let mut ids = sender.publish("order.placed", 200).await;
    sender.until_done(200).await;
    for mode in [Mode::Refuse, Mode::Blackhole, Mode::Delay(Duration::from_secs(6))] {
        let refuses = matches!(mode, Mode::Refuse);
        proxy.set(mode);
        if refuses {
            proxy.cut();
        }
        ids.extend(sender.publish("order.placed", 500).await);
        sender.until_down().await;
        let before = sender.done().await;
        // A while in which everything that could go wrong has the time to.
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(sender.done().await, before, "nothing is done that nobody has answered for");
        proxy.set(Mode::Forward);
        sender.until_done(ids.len()).await;
    }
    let times = arrivals(&**fixture, "order.placed", &ids).await;
    let duplicates: usize = times.values().map(|times| times - 1).sum();
    // Each of the three outages, and each try to get through one, may have cut a window off.
    assert!(duplicates <= 3 * 3 * WINDOW, "{duplicates} came twice");
    sender.stop().await;
}

/// RMQ-004, I5: connections cut again and again under load cost at most a window each.
pub async fn slow_through_lost_answers<F: SinkFixture>(fixture: &Arc<F>) {
    const CUTS: usize = 10;
    fixture.take("order.placed").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sender = Sender::start(&**fixture, &proxy, LONG).await;
    let mut ids = Vec::new();
    for _ in 0..CUTS {
        ids.extend(sender.publish("order.placed", 200).await);
        sleep(Duration::from_millis(fastrand::u64(5..60))).await;
        proxy.cut();
    }
    sender.until_done(ids.len()).await;
    let times = arrivals(&**fixture, "order.placed", &ids).await;
    let duplicates: usize = times.values().map(|times| times - 1).sum();
    assert!(duplicates <= CUTS * WINDOW, "{duplicates} came twice");
    sender.stop().await;
}

/// RMQ-002, RMQ-005: an unroutable message waits, uncharged, and stops nothing else; it is sent once there is a
/// route.
pub async fn an_unroutable_message_waits<F: SinkFixture>(fixture: &Arc<F>) {
    fixture.take("known").await;
    let proxy = Proxy::start(fixture.server()).await.unwrap();
    let sender = Sender::start(&**fixture, &proxy, LONG).await;
    let early = sender.publish("early", 3).await;
    let known = sender.publish("known", 100).await;
    sender.until_done(100).await;
    let begin = Instant::now();
    loop {
        let records = records(sender.outbox.store()).await;
        let tried = records.iter().filter(|record| record.last_error.is_some()).count();
        if tried == 3 {
            assert!(records.iter().all(|record| record.state != State::Dead));
            break;
        }
        assert!(begin.elapsed() < LONG);
        sleep(Duration::from_millis(10)).await;
    }
    assert!(!sender.sink.is_down());
    fixture.take("early").await;
    sender.until_done(103).await;
    arrivals(&**fixture, "known", &known).await;
    arrivals(&**fixture, "early", &early).await;
    sender.stop().await;
}
