//! Obstacles: the bare loop, with very many messages that it cannot take in front of messages that it can.
//!
//! The limit is the same loop with nothing in front, in the same turn. Some deliveries come before the clock starts: a store may look
//! at an obstacle once.

use std::sync::Arc;

use posthaste::{ClaimRequest, Store as _, StoreAdmin as _, Topics, WorkerId};

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Held, Product, Room, in_room};
use crate::workload::{self, Note};

const SCENARIO: &str = "obstacles";
/// As many as a busy worker claims at a time.
const BATCH: u32 = 200;

/// What stands in front.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Obstacle {
    Nothing,
    Paused,
    Unhandled,
    Blocked,
    Delivered,
    IdleClaim,
}

impl Obstacle {
    const fn subject(self) -> &'static str {
        match self {
            Self::Nothing => "nothing in front",
            Self::Paused => "paused messages in front",
            Self::Unhandled => "messages of a topic without handler in front",
            Self::Blocked => "messages that wait for their key in front",
            Self::Delivered => "delivered messages that cannot be vacuumed in front",
            Self::IdleClaim => "a claim that idles in its transaction",
        }
    }
}

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let mut obstacles = vec![
        Obstacle::Nothing,
        Obstacle::Paused,
        Obstacle::Unhandled,
        Obstacle::Blocked,
        Obstacle::Delivered,
    ];
    if P::IDLE_CLAIM.is_some() {
        obstacles.push(Obstacle::IdleClaim);
    }
    // Without rows that the server copies itself, a million takes too long to make.
    let count = if P::COPIES { scale.done } else { scale.done / 10 };
    let case = |obstacle: Obstacle| {
        let product = Arc::clone(product);
        let run = move || {
            in_room(Arc::clone(&product), move |room| Box::pin(measure(room, obstacle, count, scale.growth)))
        };
        let role = if obstacle == Obstacle::Nothing { Role::Limit } else { Role::Posthaste };
        Case::new(SCENARIO, P::NAME, obstacle.subject(), Unit::Messages, run).role(role)
    };
    obstacles.into_iter().map(case).collect()
}

async fn measure<P: Product>(
    room: &Room<P>,
    obstacle: Obstacle,
    count: u64,
    deliveries: u64,
) -> Result<Sample> {
    let store = room.store(false).await?;
    let held = put(room, &store, obstacle, count).await?;
    workload::preload(&store, 2 * deliveries, |_| None).await?;
    if obstacle != Obstacle::Delivered {
        room.analyze().await?;
    }
    let mut request = ClaimRequest::new(WorkerId::new("bare-loop")?).limit(BATCH);
    if obstacle == Obstacle::Unhandled {
        request = request.topics(Topics::of([<Note as posthaste::Event>::TOPIC])?);
    }
    workload::bare_loop_of(&store, &request, deliveries / 2).await?;
    let meter = Meter::start(room).await?;
    workload::bare_loop_of(&store, &request, deliveries).await?;
    let stopped = meter.stop(room).await?;
    held.close().await;
    P::close(&store).await;
    let mut sample = stopped.sample(room, deliveries).await?;
    sample.configuration = Some(format!("one task, batch {BATCH}, {count} in front"));
    Ok(sample)
}

/// Puts the obstacle in front, and keeps its connection open.
async fn put<P: Product>(
    room: &Room<P>,
    store: &P::Store,
    obstacle: Obstacle,
    count: u64,
) -> Result<Held<P>> {
    let (topic, key) = match obstacle {
        Obstacle::Nothing => return room.hold(false).await,
        Obstacle::IdleClaim => {
            workload::preload(store, 10, |_| None).await?;
            return room.idle_claim().await;
        }
        Obstacle::Paused | Obstacle::Unhandled => ("obstacle", None),
        Obstacle::Blocked => (<Note as posthaste::Event>::TOPIC, Some("key")),
        Obstacle::Delivered => (<Note as posthaste::Event>::TOPIC, None),
    };
    let held = room.hold(obstacle == Obstacle::Delivered).await?;
    workload::preload_of(store, topic, key, if P::COPIES { 2 } else { count }).await?;
    if P::COPIES {
        room.copy(count - 2, false).await?;
    }
    match obstacle {
        Obstacle::Paused => {
            store.pause("obstacle", "bench", "to be in the way").await?;
        }
        Obstacle::Blocked => {
            // The first of the key is under way for as long as this takes.
            let lease = std::time::Duration::from_secs(3_600);
            let request = ClaimRequest::new(WorkerId::new("head")?).limit(1).lease(lease);
            store.claim(&request).await?;
        }
        Obstacle::Delivered => workload::bare_loop(store, 1_000, count).await?,
        _ => {}
    }
    Ok(held)
}
