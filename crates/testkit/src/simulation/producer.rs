//! Those who publish, and the operators: they do what the plan says, and repeat what failed with the same ids, as a program
//! that knows the protocol would.
//!
//! They must not know how a transaction really ended: only the simulated database does.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Change, Enqueued, Filter, MessageBuilder, MessageId, NewMessage, Result, State, StoreAdmin as _,
};

use super::audit::id_of;
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
