//! The nodes: each is a real outbox that runs over its own view of the simulated database, with handlers that do what the
//! plan says, and is crashed, paused, halted and restarted.
//!
//! A process that crashed is not cleaned up: its tasks wait for ever and may change nothing any more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use posthaste_core::{
    Cancellation, Clock as _, ExponentialBackoff, Failure, FailureClass, HandlerError, HandlerResult,
    Message, Outbox, Result, RetryPolicy, Shutdown,
};
use tokio::task::JoinHandle;

use super::audit::{Ended, Facts};
use super::plan::{Act, BOTH, Fault, Step};
use super::sink;
use super::store::SimStore;
use super::world::{Being, Door, What, World};

/// A node that runs.
pub(super) struct Node {
    world: Arc<World>,
    being: Arc<Being>,
    shutdown: Shutdown,
    running: JoinHandle<Result<()>>,
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Node {
    pub(super) async fn start(world: &Arc<World>, node: usize) -> Self {
        let settings = world.plan.nodes[node].clone();
        let facts = Facts {
            workers: settings.workers as usize,
            lease: millis(settings.lease),
            timeout: millis(settings.handler_timeout),
            cancel_grace: millis(settings.cancel_grace),
            capacity: settings.cold_capacity as usize,
            ..Facts::default()
        };
        let life = world.state().audit.born(facts);
        let being = Arc::new(Being::new(life, node));
        world.log(What::Started { life });
        let store = SimStore { world: Arc::clone(world), being: Arc::clone(&being) };
        let policy = Panicking(ExponentialBackoff::new(settings.retry_base, settings.retry_max));
        let mut builder = Outbox::builder(store).settings(settings).retry(policy);
        let handlers = [
            ("one", "one.a"),
            ("two", "two.a"),
            ("two", "two.b"),
            ("next", "next.a"),
            ("failed", "failed.a"),
        ];
        for (topic, name) in handlers {
            let (world, being) = (Arc::clone(world), Arc::clone(&being));
            builder =
                builder.on_topic_named(topic, name, move |message: Arc<Message>, cancel: Cancellation| {
                    let call = Call {
                        world: Arc::clone(&world),
                        being: Arc::clone(&being),
                        message,
                        name,
                        ended: None,
                    };
                    async move { call.run(cancel).await }
                });
        }
        for sink in sink::sinks(world, &being) {
            builder = builder.sink(BOTH, sink);
        }
        let outbox = builder.build().await.unwrap();
        let shutdown = Shutdown::new();
        let running = tokio::spawn(outbox.run(shutdown.clone()));
        world.doors.lock().unwrap()[node] = Some(Door { outbox, being: Arc::clone(&being) });
        Self { world: Arc::clone(world), being, shutdown, running }
    }

    fn close(&self) {
        self.world.doors.lock().unwrap()[self.being.node] = None;
    }

    /// Killed.
    pub(super) fn crash(self) {
        let now = self.world.now();
        self.world.fault(Fault::Crash, Some(self.being.life), now);
        self.world.state().audit.gone(self.being.life);
        self.being.die();
        self.close();
        // Its tasks come to rest; dead, they change nothing.
        self.shutdown.now();
    }

    pub(super) fn pause(&self, millis: u64) {
        let until = self.world.now() + millis;
        self.world.fault(Fault::Pause, Some(self.being.life), until);
        self.being.pause(until);
    }

    /// Asked to end at once: its messages keep their leases.
    pub(super) async fn halt(self) {
        let now = self.world.now();
        self.world.fault(Fault::Halt, Some(self.being.life), now);
        self.world.state().audit.gone(self.being.life);
        self.world.state().audit.stopping(self.being.life);
        self.close();
        self.shutdown.now();
        self.over().await;
    }

    /// A graceful shutdown, to its end.
    pub(super) async fn stop(self) {
        let (world, life) = (Arc::clone(&self.world), self.being.life);
        let grace = millis(world.plan.nodes[self.being.node].shutdown_grace);
        let began = world.now();
        world.log(What::Stopping { life });
        world.state().audit.stopping(life);
        self.close();
        self.shutdown.begin();
        let being = Arc::clone(&self.being);
        let fine = self.over().await;
        if being.is_dead() {
            // A message killed it on the way.
            return;
        }
        world.log(What::Stopped { life, fine });
        let took = world.now() - began;
        let mut state = world.state();
        if took > grace {
            state.audit.object(format!("I15: the graceful shutdown of life {life} took {took} ms"));
        }
        if fine {
            state.audit.stopped(life);
        } else {
            // It said that it could not give everything back.
            state.audit.gone(life);
            if world.plan.is_calm() {
                state.audit.object(format!("I15: the graceful shutdown of life {life} failed"));
            }
        }
    }

    /// Waits for its end, and tells whether it was a good one. A message may kill it on the way: its tasks may then wait for
    /// ever.
    async fn over(self) -> bool {
        let ended = tokio::select! {
            biased;
            ended = self.running => ended,
            () = self.being.killed.notified() => {
                self.shutdown.now();
                return false;
            }
        };
        ended.map_or_else(
            |error| {
                let why = format!("the run of life {} panicked: {error}", self.being.life);
                self.world.state().audit.object(why);
                true
            },
            |ended| ended.is_ok(),
        )
    }
}

/// A retry policy that panics now and then, by the random number that it is given.
#[derive(Debug)]
struct Panicking(ExponentialBackoff);

impl RetryPolicy for Panicking {
    fn delay(&self, attempt: u32, random: f64) -> Duration {
        if (0.4..0.42).contains(&random) {
            std::panic::panic_any(super::QUIET);
        }
        self.0.delay(attempt, random)
    }
}

/// Crashes, pauses and restarts a node until the faults end; a message may kill it even then.
pub(super) async fn chaos(world: Arc<World>, node: usize) -> Node {
    let kinds: Vec<(Fault, f64)> = [Fault::Crash, Fault::Pause, Fault::Halt, Fault::Restart]
        .into_iter()
        .filter_map(|fault| world.plan.rate(fault).map(|rate| (fault, rate)))
        .collect();
    let mut running = Node::start(&world, node).await;
    loop {
        let (wait, kind, random) = {
            let mut state = world.state();
            let choice = kinds.len().max(1);
            let (kind, rate) = kinds.get(state.rng.usize(0..choice)).copied().unwrap_or((Fault::Crash, 0.0));
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds")]
            let mean = if rate > 0.0 { (4_000.0 / rate) as u64 } else { world.plan.heals_at };
            (state.rng.u64(10..2 * mean), kind, state.rng.u64(0..100_000))
        };
        let being = Arc::clone(&running.being);
        let healed = world.now() >= world.plan.heals_at;
        let mut ending = world.ending.subscribe();
        let killed = tokio::select! {
            biased;
            () = being.killed.notified() => true,
            _ = ending.wait_for(|ending| *ending) => return running,
            () = tokio::time::sleep(Duration::from_millis(wait)), if !healed => false,
        };
        if !killed && (kinds.is_empty() || world.now() >= world.plan.heals_at) {
            continue;
        }
        let kind = if killed { Fault::Crash } else { kind };
        let lease = millis(world.plan.nodes[node].lease);
        match kind {
            Fault::Pause => {
                running.pause(random % (2 * lease));
                continue;
            }
            Fault::Crash => running.crash(),
            Fault::Halt => running.halt().await,
            _ => {
                world.fault(Fault::Restart, Some(running.being.life), world.now());
                running.stop().await;
            }
        }
        tokio::time::sleep(Duration::from_millis(random % 3_000)).await;
        running = Node::start(&world, node).await;
    }
}

/// One call of a handler.
struct Call {
    world: Arc<World>,
    being: Arc<Being>,
    message: Arc<Message>,
    name: &'static str,
    ended: Option<Ended>,
}

impl Call {
    async fn run(mut self, cancel: Cancellation) -> HandlerResult {
        let world = Arc::clone(&self.world);
        if self.being.is_dead() {
            std::future::pending::<()>().await;
        }
        let step = self.begin();
        tokio::time::sleep(Duration::from_millis(step.takes)).await;
        world.stand(&self.being).await;
        match step.act {
            Act::Kill => {
                world.hit("handler: killed its process");
                world.state().audit.gone(self.being.life);
                self.being.die();
                self.being.killed.notify_one();
                std::future::pending::<()>().await;
            }
            Act::Deaf => std::future::pending::<()>().await,
            Act::Listening | Act::Finishing => {
                cancel.cancelled().await;
                world.stand(&self.being).await;
            }
            _ => {}
        }
        let answer = answer(step.act);
        self.ended = Some(if answer.is_ok() { Ended::Ok } else { Ended::Failed(step.act) });
        if step.act == Act::Panic {
            drop(self);
            std::panic::panic_any(super::QUIET);
        }
        drop(self);
        answer
    }

    fn begin(&self) -> Step {
        let (now, database) = (self.world.now(), self.world.clock.now());
        let (epoch, life) = (self.message.epoch, self.being.life);
        let mut state = self.world.state();
        let n = state.audit.number_of(self.message.id);
        state.note(now, What::Begun { life, n, epoch, handler: self.name });
        state.audit.begun(life, &self.message, self.name, now, database);
        let made = state.steps.entry((n, self.name)).or_default();
        *made += 1;
        let handler = usize::from(self.name == "two.b");
        let script = self.world.plan.scripts.get(n);
        let step = script.and_then(|script| script.steps[handler].get(*made - 1));
        step.copied().unwrap_or(Step { takes: 1, act: Act::Succeed })
    }
}

fn answer(act: Act) -> HandlerResult {
    match act {
        Act::Succeed | Act::Finishing => Ok(()),
        Act::Infrastructure => Err(HandlerError::infrastructure("it is down")),
        Act::Unroutable => Err(HandlerError::failed(Failure::new(FailureClass::Unroutable, "no route"))),
        Act::RetryAfter(delay) => Err(HandlerError::retry_after(Duration::from_millis(delay), "not now")),
        Act::Defer(delay) => Err(HandlerError::defer(Duration::from_millis(delay))),
        Act::Dead => Err(HandlerError::dead("never")),
        Act::Business | Act::Panic | Act::Deaf | Act::Listening | Act::Kill => Err("it refused".into()),
    }
}

/// However a call ends, it is recorded, unless its process is gone.
impl Drop for Call {
    fn drop(&mut self) {
        if self.being.is_dead() || self.world.closed.load(Ordering::Relaxed) {
            return;
        }
        let how = self.ended.unwrap_or(Ended::Dropped);
        let (epoch, life) = (self.message.epoch, self.being.life);
        let now = self.world.now();
        let mut state = self.world.state();
        let n = state.audit.number_of(self.message.id);
        state.note(now, What::Ended { life, n, epoch, handler: self.name, how });
        state.audit.ended(life, &self.message, self.name, how, now);
        let name = match how {
            Ended::Ok => "handler: succeeded",
            Ended::Failed(Act::Panic) => "handler: panicked",
            Ended::Failed(_) => "handler: failed",
            Ended::Dropped => "handler: dropped",
        };
        *state.hits.entry(name).or_default() += 1;
    }
}
