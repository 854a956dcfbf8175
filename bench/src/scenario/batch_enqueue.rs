//! Batch enqueue: many messages in one transaction, by the call that takes many.
//!
//! One client: a batch saves round trips, which are the client's.

use std::sync::Arc;

use posthaste::Settings;

use crate::args::Scale;
use crate::measure::{Case, Result, Role, Sample, Unit};
use crate::meter::Meter;
use crate::store::{Product, Room, in_room};
use crate::workload::{self, Count, Note};

const SCENARIO: &str = "batch-enqueue";

pub(crate) fn cases<P: Product>(product: &Arc<P>, scale: Scale) -> Vec<Case> {
    let mut cases = Vec::new();
    for (size, transactions) in [(100, scale.batches * 4), (1_000, scale.batches)] {
        let variation = format!("{size} per transaction");
        let case = |subject, bare| {
            let product = Arc::clone(product);
            let run = move || {
                in_room(Arc::clone(&product), move |room| Box::pin(measure(room, size, transactions, bare)))
            };
            Case::new(SCENARIO, P::NAME, subject, Unit::Messages, run).variation(variation.clone())
        };
        if P::DESTROY.is_some() {
            cases.push(case("limit: one bare insert of all", true).role(Role::Limit));
        }
        cases.push(case("posthaste, publish_all", false));
    }
    cases
}

async fn measure<P: Product>(room: &Room<P>, size: u64, transactions: u64, bare: bool) -> Result<Sample> {
    let pool = room.pool(1).await?;
    let store = room.store(true).await?;
    let outbox = workload::counting(store.clone(), Settings::default(), &Count::until(0)).build().await?;
    let meter = Meter::start(room).await?;
    for batch in 0..transactions {
        let numbers = batch * size..(batch + 1) * size;
        let mut tx = pool.begin_with(P::BEGIN).await?;
        P::run(&mut tx, P::NOTE, "a business row").await?;
        if bare {
            let payloads = numbers.map(Note::json).collect::<Result<Vec<_>>>()?;
            P::bare_many(&mut tx, &payloads).await?;
        } else {
            let notes: Vec<Note> = numbers.map(Note::new).collect();
            outbox.publish_all(&mut tx, &notes).await?;
        }
        tx.commit().await?;
    }
    let stopped = meter.stop(room).await?;
    pool.close().await;
    P::close(&store).await;
    stopped.sample(room, size * transactions).await
}
