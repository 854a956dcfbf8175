//! Publishers and operators: they do what the plan says, and repeat failed calls with the same ids, as a program that knows
//! the protocol would.
//!
//! They must not know how a transaction really ended: only the simulated database does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Change, Enqueued, ErrorKind, Filter, JoinBuilder, JoinWait, MessageBuilder, MessageId, NewJoin,
    NewMessage, Result, State, StoreAdmin as _,
};

use super::audit::{id_of, join_of};
use super::plan::{End, Fault, Job, Style};
use super::store::SimStore;
use super::world::{Door, What, World};

fn message(world: &World, n: usize) -> MessageBuilder {
    let script = &world.plan.scripts[n];
    let mut message = NewMessage::bytes(script.topic, n.to_string())
        .id(id_of(n))
        .order(script.order)
        .priority(script.priority);
    if let Some(key) = script.key {
        message = message.key(format!("key {key}"));
    }
    if let Some(dedup) = script.dedup {
        message = message.dedup_key(format!("dedup {dedup}"));
    }
    if let Some(delay) = script.delay {
        message = message.delay(Duration::from_millis(delay));
    }
    if let Some(expires) = script.expires {
        message = message.expires_after(Duration::from_millis(script.delay.unwrap_or(0) + expires));
    }
    message
}

async fn door(world: &World, node: usize) -> Door {
    loop {
        let door = world.doors.lock().unwrap()[node].clone();
        if let Some(door) = door {
            return door;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Publishes, and again with the same ids if it failed.
pub(super) async fn produce(world: Arc<World>, job: Job) {
    tokio::time::sleep_until(world.at(job.at)).await;
    for attempt in 0..4 {
        let door = door(&world, job.node).await;
        let done = match job.style {
            Style::Hot => hot(&world, &door, &job).await,
            Style::Own => own(&world, &door, &job).await,
            Style::Alone => {
                let messages: Vec<MessageBuilder> =
                    job.messages.iter().map(|n| message(&world, *n)).collect();
                door.outbox.enqueue_all(messages).await.map(drop)
            }
        };
        if done.is_ok() || job.end != End::Commit {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
    }
}

async fn think(world: &World) {
    let millis = world.state().rng.u64(0..30);
    if millis < 5 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

async fn hot(world: &World, door: &Door, job: &Job) -> Result<()> {
    let mut transaction = door.outbox.begin().await?;
    let (from, to) = job.undone.unwrap_or((job.messages.len(), 0));
    if job.together && job.undone.is_none() {
        let messages: Vec<MessageBuilder> = job.messages.iter().map(|n| message(world, *n)).collect();
        transaction.publish_all(messages).await?;
    } else {
        let mut savepoint = None;
        for (place, n) in job.messages.iter().enumerate() {
            if place == from {
                savepoint = Some(transaction.savepoint());
            }
            if let Some(savepoint) = savepoint.take_if(|_| place == to && to > from) {
                transaction.rollback_to(&savepoint);
            }
            let _: Enqueued = transaction.publish(message(world, *n)).await?;
            think(world).await;
        }
        if let Some(savepoint) = savepoint.filter(|_| to == job.messages.len()) {
            transaction.rollback_to(&savepoint);
        }
    }
    think(world).await;
    match job.end {
        End::Commit => transaction.commit().await,
        End::Rollback => {
            world.hit("rolled back");
            world.log(What::RolledBack { ns: job.messages.clone() });
            transaction.rollback().await
        }
        End::Drop => Ok(()),
    }
}

async fn own(world: &World, door: &Door, job: &Job) -> Result<()> {
    let store = SimStore { world: door.outbox.store().world.clone(), being: Arc::clone(&door.being) };
    let mut connection = store.begin_own().await?;
    for n in &job.messages {
        door.outbox.publish(&mut connection, message(world, *n)).await?;
        think(world).await;
    }
    match job.end {
        End::Commit => store.commit_own(connection).await,
        End::Rollback | End::Drop => {
            drop(connection);
            Ok(())
        }
    }
}

/// Moves with a join in one transaction.
#[derive(Clone, Copy, Debug)]
enum Step {
    Start,
    Attach(usize),
    Cancel,
}

/// Starts a join, and its later moves, each in a task of its own.
pub(super) fn join(world: &Arc<World>, n: usize) {
    let plan = &world.plan.joins[n];
    let later = plan.later.iter().map(|(at, message)| (*at, Step::Attach(*message)));
    let cancel = plan.cancelled_at.map(|at| (at, Step::Cancel));
    for (at, step) in std::iter::once((plan.at, Step::Start)).chain(later).chain(cancel) {
        tokio::spawn(join_step(Arc::clone(world), n, at, step));
    }
}

/// Does it, and again with the same ids if it failed; a refusal is final.
async fn join_step(world: Arc<World>, n: usize, at: u64, step: Step) {
    tokio::time::sleep_until(world.at(at)).await;
    for attempt in 0..4 {
        let door = door(&world, world.plan.joins[n].node).await;
        match try_step(&world, &door, n, step).await {
            Err(error) if !matches!(error.kind(), ErrorKind::Refused) => {}
            _ => return,
        }
        tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
    }
}

async fn try_step(world: &World, door: &Door, n: usize, step: Step) -> Result<()> {
    let (outbox, id) = (&door.outbox, join_of(n));
    if let (Step::Start, true) = (step, world.plan.joins[n].hot) {
        let mut transaction = outbox.begin().await?;
        transaction.start_join(new_join(world, n)).await?;
        think(world).await;
        return transaction.commit().await;
    }
    let store = SimStore { world: outbox.store().world.clone(), being: Arc::clone(&door.being) };
    let mut connection = store.begin_own().await?;
    match step {
        Step::Start => drop(outbox.start_join(&mut connection, new_join(world, n)).await?),
        Step::Attach(message) => drop(outbox.attach(&mut connection, id, id_of(message)).await?),
        Step::Cancel => drop(outbox.cancel_join(&mut connection, id).await?),
    }
    think(world).await;
    store.commit_own(connection).await
}

fn new_join(world: &World, n: usize) -> JoinBuilder {
    let plan = &world.plan.joins[n];
    // One message may be attached twice.
    let later: BTreeSet<usize> = plan.later.iter().map(|(_, message)| *message).collect();
    let expected = u32::try_from(plan.steps.len() + later.len()).unwrap_or(1);
    let steps = plan.steps.iter().map(|step| message(world, *step));
    let mut join = NewJoin::expecting(expected).id(join_of(n)).steps(steps);
    if let Some(expires) = plan.expires {
        join = join.expires_after(Duration::from_millis(expires));
    }
    if let Some((strict, on_fail)) = plan.wait {
        let to = |topic: &str| NewMessage::bytes(topic, n.to_string());
        let wait = JoinWait::on_complete(to("next")).fail_if_any_step_failed(strict);
        join = join.wait(if on_fail { wait.on_fail(to("failed")) } else { wait });
    }
    join
}

/// Puts the database's clock forward and back, cuts it off, and requeues and buries at random.
pub(super) async fn fate(world: Arc<World>, kind: Fault) {
    let Some(rate) = world.plan.rate(kind) else { return };
    loop {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "milliseconds")]
        let mean = (5_000.0 / rate) as u64;
        let (wait, random) = {
            let mut state = world.state();
            (state.rng.u64(10..2 * mean), state.rng.u64(0..1_000_000))
        };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let now = world.now();
        if now >= world.plan.heals_at {
            return;
        }
        match kind {
            Fault::Outage => {
                let until = (now + 50 + random % 4_000).min(world.plan.heals_at);
                world.state().outage_until = until;
                world.fault(kind, None, until);
            }
            Fault::ClockForward | Fault::ClockBack => {
                // An hour, now and then; for liveness nothing that would have to be waited for.
                let jump = if random.is_multiple_of(4) { 3_600_000 } else { random % 5_000 };
                let forward = kind == Fault::ClockForward;
                let jump = if forward || !world.plan.liveness { jump } else { jump.min(1_000) };
                let jump = i64::try_from(jump).unwrap_or_default();
                world.clock.jump(if forward { jump } else { -jump });
                world.fault(kind, None, now);
                world.state().audit.jumped(now);
            }
            _ => operate(&world, random).await,
        }
    }
}

async fn operate(world: &Arc<World>, random: u64) {
    let Some(door) = world.doors.lock().unwrap().iter().flatten().next().cloned() else { return };
    world.fault(Fault::Operator, None, world.now());
    let state = if random.is_multiple_of(3) { State::Ready } else { State::Dead };
    let records = world.records().await;
    let ids: Vec<MessageId> =
        records.iter().filter(|record| record.state == state).map(|record| record.message.id).collect();
    let Some(id) = ids.get(usize::try_from(random).unwrap_or_default() % ids.len().max(1)) else { return };
    let filter = Filter { ids: vec![*id], ..Filter::default() };
    let change = Change::new(filter, "ada", "simulation").unwrap();
    let store = door.outbox.store();
    let changed =
        if state == State::Ready { store.bury(&change).await } else { store.requeue(&change).await };
    changed.unwrap();
}
