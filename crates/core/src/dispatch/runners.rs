//! Runners: a few tasks that call handlers. They begin one delivery after the other. A delivery that has to wait goes on as a
//! task of its own.
//!
//! A task for every message takes longer than many a handler does. But handlers are users' code: one that computes, or blocks
//! its thread, must keep neither the dispatcher nor other messages waiting. So a runner takes no more than it begins next,
//! pauses often, and where none gets on another is started.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::yield_now;
use tokio::time::Instant;

use super::deliver::Delivery;
use super::ends::{Ending, Ends};
use super::progress::Progress;
use crate::outcome::Settlement;

/// How long a runner goes on before it lets others have its thread, the dispatcher among them.
const TURN: Duration = Duration::from_micros(100);
/// How long nothing may be begun before another runner is started.
const STALL: Duration = Duration::from_millis(2);

/// A delivery that can begin.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) delivery: Delivery,
    pub(super) ending: Ending,
}

#[derive(Debug, Default)]
struct Line {
    starts: VecDeque<Start>,
    runners: usize,
    /// How many were ever taken.
    taken: u64,
}

/// Deliveries that can begin, and the runners that begin them.
#[derive(Debug, Default)]
pub(super) struct Runners {
    line: Arc<Mutex<Line>>,
    seen: Seen,
}

/// The result of the last check of the queue.
#[derive(Debug, Default)]
struct Seen {
    taken: u64,
    /// Since when no more were taken; `None` if nothing waits, and all ends were checked.
    since: Option<Instant>,
}

impl Runners {
    /// Adds deliveries, and sees to it that they are begun; there are never more runners than this.
    pub(super) fn start(&mut self, starts: &mut Vec<Start>, ends: &Arc<Ends>, most: usize, now: Instant) {
        let mut line = lock(&self.line);
        line.starts.extend(starts.drain(..));
        let get_on = self.seen.taken != line.taken;
        // A delivery taken since the last check may have finished without notifying, and the next one may be blocking
        // its runner.
        if line.starts.is_empty() && !(get_on && line.runners > 0) {
            self.seen.since = None;
            return;
        }
        if get_on || self.seen.since.is_none() {
            self.seen = Seen { taken: line.taken, since: Some(now) };
        }
        // As many as there are threads, and more if they do not get on: handlers may have blocked those.
        let stalls = self.seen.since.is_some_and(|since| now >= since + STALL);
        let enough = if stalls { line.runners + 1 } else { Handle::current().metrics().num_workers() };
        for _ in line.runners..enough.min(most).min(line.runners + line.starts.len()) {
            line.runners += 1;
            let runner = Runner { line: Arc::clone(&self.line), is_counted: true };
            tokio::spawn(run(runner, Arc::clone(ends)));
        }
        if stalls {
            self.seen.since = Some(now);
        }
    }

    /// When to check whether they make progress, and which ends they have left, if it matters.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.seen.since.map(|since| since + STALL)
    }
}

impl Drop for Runners {
    fn drop(&mut self) {
        // Outside of the lock: dropping them leaves their ends.
        let starts = std::mem::take(&mut lock(&self.line).starts);
        drop(starts);
    }
}

fn lock(line: &Mutex<Line>) -> MutexGuard<'_, Line> {
    line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of those at the line; it is counted for as long as it is there.
struct Runner {
    line: Arc<Mutex<Line>>,
    is_counted: bool,
}

impl Runner {
    fn next(&mut self) -> Option<Start> {
        let mut line = lock(&self.line);
        let start = line.starts.pop_front();
        if start.is_some() {
            line.taken += 1;
        } else {
            // Atomically: deliveries that are added from now on must not count on this runner.
            line.runners -= usize::from(std::mem::take(&mut self.is_counted));
        }
        start
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        lock(&self.line).runners -= usize::from(self.is_counted);
    }
}

async fn run(mut runner: Runner, ends: Arc<Ends>) {
    // The room of one that has not had to wait is used again.
    let mut room = Box::pin(None);
    let mut since = Instant::now();
    while let Some(Start { delivery, ending }) = runner.next() {
        let progress = Arc::clone(&delivery.progress);
        if progress.is_dropped() {
            continue;
        }
        room.as_mut().set(Some(delivery.run()));
        match poll_fn(|context| Poll::Ready(poll(&progress, room.as_mut(), context))).await {
            Poll::Ready(settlement) => {
                room.as_mut().set(None);
                ending.decided_silently(settlement);
            }
            Poll::Pending => {
                let mut delivery = std::mem::replace(&mut room, Box::pin(None));
                let own = Arc::clone(&progress);
                let settlement = poll_fn(move |context| poll(&own, delivery.as_mut(), context));
                progress.becomes(async move { ending.decided(settlement.await) });
            }
        }
        if since.elapsed() >= TURN {
            ends.ring();
            yield_now().await;
            since = Instant::now();
        }
    }
    ends.ring();
}

/// Polls the delivery in a slot; there is always one.
fn poll<F: Future<Output = Settlement>>(
    progress: &Progress,
    room: Pin<&mut Option<F>>,
    context: &mut Context<'_>,
) -> Poll<Settlement> {
    progress.polled(|| room.as_pin_mut().map_or(Poll::Pending, |delivery| delivery.poll(context)))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    use tokio::sync::Notify;

    use super::*;
    use crate::handler::{Arrival, Extract, HandlerError, HandlerResult, Shared};
    use crate::id::{Lease, WorkItemId};
    use crate::message::{Message, NewMessage};
    use crate::outbox::{Home, Outbox};
    use crate::store::memory::MemoryStore;

    /// Shared by the handlers of a test.
    #[derive(Clone, Default)]
    struct Gate {
        open: Arc<Notify>,
        inside: Arc<AtomicUsize>,
    }

    struct Bench {
        home: Arc<dyn Home>,
        ends: Arc<Ends>,
        runners: Runners,
        gate: Gate,
    }

    impl Bench {
        async fn new<H: crate::handler::Handler<Args>, Args: 'static>(handler: H) -> Self {
            let gate = Gate::default();
            let outbox = Outbox::builder(MemoryStore::new()).share(gate.clone()).on_topic("topic", handler);
            let outbox = outbox.build().await.unwrap();
            let (ends, runners) = (Arc::default(), Runners::default());
            Self { home: outbox.inner, ends, runners, gate }
        }

        /// Adds so many deliveries.
        fn start(&mut self, count: i64, most: usize) -> Vec<Arc<Progress>> {
            let mut starts = Vec::new();
            let mut all = Vec::new();
            for item in 0..count {
                let new = NewMessage::bytes("topic", "x").build().unwrap();
                let lease = Lease { item: WorkItemId::new(item), epoch: 1 };
                let message = Arc::new(new.leased(lease, SystemTime::UNIX_EPOCH));
                let progress = Progress::new();
                all.push(Arc::clone(&progress));
                let home = Arc::clone(&self.home);
                let delivery = Delivery { message, progress, home, timeout: Duration::from_secs(60) };
                starts.push(Start { delivery, ending: Ending::new(&self.ends, lease) });
            }
            self.runners.start(&mut starts, &self.ends, most, Instant::now());
            all
        }

        /// Waits for so many ends, with a dispatcher's checks in between; returns how many of them answered.
        async fn ended(&mut self, count: usize, most: usize) -> usize {
            let deadline = Instant::now() + Duration::from_secs(120);
            let mut ends = Vec::new();
            while ends.len() < count {
                assert!(Instant::now() < deadline, "{} of {count} ended", ends.len());
                self.runners.start(&mut Vec::new(), &self.ends, most, Instant::now());
                ends.extend(self.ends.take());
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            ends.iter().filter(|end| end.settlement.is_some()).count()
        }
    }

    async fn ready(_: Message, Shared(gate): Shared<Gate>) -> HandlerResult {
        gate.inside.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    async fn waits(_: Message, Shared(gate): Shared<Gate>) -> HandlerResult {
        waits_for(&gate).await
    }

    async fn waits_for(gate: &Gate) -> HandlerResult {
        gate.inside.fetch_add(1, Ordering::AcqRel);
        gate.open.notified().await;
        Ok(())
    }

    /// The delivery's own progress, as a handler never sees it.
    struct Itself(Arc<Progress>);

    impl Extract for Itself {
        fn extract(arrival: &Arrival) -> Result<Self, HandlerError> {
            Ok(Self(Arc::clone(&arrival.progress)))
        }
    }

    /// Blocks its thread until all others are inside, too.
    async fn blocks(_: Message, Shared(gate): Shared<Gate>) -> HandlerResult {
        gate.inside.fetch_add(1, Ordering::AcqRel);
        tokio::task::block_in_place(|| {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while gate.inside.load(Ordering::Acquire) < 6 && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Ok(())
    }

    /// Waiting deliveries do not hold up later ones; all end.
    #[tokio::test]
    async fn whoever_waits_steps_aside() {
        let mut bench = Bench::new(waits).await;
        bench.start(100, 4);
        while bench.gate.inside.load(Ordering::Acquire) < 100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(bench.ends.take().len(), 0);
        bench.gate.open.notify_waiters();
        assert_eq!(bench.ended(100, 4).await, 100);
    }

    /// Handlers that block their threads are begun all the same, up to the limit, although the runners are all inside of one.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn blocked_ones_do_not_keep_the_others() {
        let mut bench = Bench::new(blocks).await;
        bench.start(6, 6);
        assert_eq!(bench.ended(6, 6).await, 6);
        assert!(bench.gate.inside.load(Ordering::Acquire) == 6);
    }

    /// Ends that were left before a handler blocks its thread are found soon, not only when that handler ends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn one_that_blocks_hides_no_end() {
        let mut bench = Bench::new(the_last_one_blocks).await;
        bench.start(4, 1);
        while bench.gate.inside.load(Ordering::Acquire) < 4 {
            tokio::task::yield_now().await;
        }
        let mut look = || {
            bench.runners.start(&mut Vec::new(), &bench.ends, 1, Instant::now());
            bench.runners.next_look()
        };
        assert!(look().is_some(), "three have left their ends, and nobody rang");
        while let Some(next) = look() {
            tokio::time::sleep_until(next).await;
        }
        assert_eq!(bench.ends.take().len(), 3);
        bench.gate.inside.fetch_add(1, Ordering::AcqRel);
        assert_eq!(bench.ended(1, 1).await, 1);
    }

    /// Blocks its thread until the test says so, if three are through.
    async fn the_last_one_blocks(_: Message, Shared(gate): Shared<Gate>) -> HandlerResult {
        if gate.inside.fetch_add(1, Ordering::AcqRel) == 3 {
            let deadline = std::time::Instant::now() + Duration::from_secs(60);
            while gate.inside.load(Ordering::Acquire) < 5 && std::time::Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// Handlers that compute let others have their thread in between.
    #[tokio::test]
    async fn a_runner_pauses() {
        let mut bench = Bench::new(computes).await;
        bench.start(100, 1);
        let mut turns = 0;
        while bench.gate.inside.load(Ordering::Acquire) < 100 {
            turns += 1;
            tokio::task::yield_now().await;
        }
        assert!(
            turns >= 50,
            "{turns} turns of others beside 100 handlers that each take as long as a runner may"
        );
        assert_eq!(bench.ended(100, 1).await, 100);
    }

    async fn computes(_: Message, Shared(gate): Shared<Gate>) -> HandlerResult {
        let until = std::time::Instant::now() + TURN;
        while std::time::Instant::now() < until {
            std::hint::spin_loop();
        }
        gate.inside.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// One that is dropped before it begins never does; one that waits is gone at once. Either leaves its end.
    #[tokio::test]
    async fn dropped_ones_leave_their_ends() {
        let mut bench = Bench::new(waits).await;
        let all = bench.start(3, 1);
        all[0].abort();
        while bench.gate.inside.load(Ordering::Acquire) < 2 {
            tokio::task::yield_now().await;
        }
        all[1].abort();
        assert_eq!(bench.ended(2, 1).await, 0);
        bench.gate.open.notify_waiters();
        assert_eq!(bench.ended(1, 1).await, 1);
        assert_eq!(bench.gate.inside.load(Ordering::Acquire), 2);
    }

    /// Gives itself up before it has to wait.
    async fn gives_itself_up(arrival: Itself, Shared(gate): Shared<Gate>) -> HandlerResult {
        arrival.0.abort();
        waits_for(&gate).await
    }

    #[tokio::test]
    async fn one_that_is_dropped_while_it_begins_does_not_go_on() {
        let mut bench = Bench::new(gives_itself_up).await;
        bench.start(1, 1);
        assert_eq!(bench.ended(1, 1).await, 0);
    }

    /// A delivery that has not begun when the dispatcher ends leaves its end, too.
    #[tokio::test]
    async fn nothing_is_left_in_the_line() {
        let mut bench = Bench::new(ready).await;
        bench.start(5, 1);
        bench.runners = Runners::default();
        assert_eq!((bench.ended(5, 1).await, bench.gate.inside.load(Ordering::Acquire)), (0, 0));
    }
}
