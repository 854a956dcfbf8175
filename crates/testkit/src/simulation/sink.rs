//! Sinks of a simulated run: two that get the same messages, each with outages of its own.
//!
//! The audit learns at once which messages a sink took, even if its answer is lost.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{Batch, Guarded, Message, Sink, SinkError, SinkOptions, Verdict};

use super::plan::SINKS;
use super::world::{Being, What, World};

/// How long the breaker of a simulated sink pauses at most.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Shorter than every lease and every time-out of the simulation.
const DEADLINE: Duration = Duration::from_millis(900);

/// One of the sinks, as one process sees it.
#[derive(Debug)]
struct SimSink {
    world: Arc<World>,
    being: Arc<Being>,
    index: usize,
}

/// The sinks of one process.
pub(super) fn sinks(world: &Arc<World>, being: &Arc<Being>) -> impl Iterator<Item = Guarded> {
    (0..SINKS.len()).map(|index| {
        let sink = SimSink { world: Arc::clone(world), being: Arc::clone(being), index };
        let options = SinkOptions::new().batch(4).in_flight(2).deadline(DEADLINE);
        Guarded::with(sink, options.pauses(Duration::from_millis(50), LONGEST_PAUSE))
    })
}

impl SimSink {
    fn is_down(&self) -> bool {
        self.world.plan.is_down(self.index, self.world.now())
    }

    fn took(&self, message: &Message) {
        let (name, now, life) = (SINKS[self.index], self.world.now(), self.being.life);
        let mut state = self.world.state();
        let n = state.audit.number_of(message.id);
        state.note(now, What::Took { life, n, epoch: message.epoch, sink: name });
        state.audit.took(message, name);
        *state.hits.entry("sink took").or_default() += 1;
    }
}

#[async_trait]
impl Sink for SimSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        let world = &self.world;
        world.stand(&self.being).await;
        let takes = world.state().rng.u64(0..60);
        tokio::time::sleep(Duration::from_millis(takes)).await;
        world.stand(&self.being).await;
        if self.is_down() {
            world.hit("sink down");
            return batch.all(&Err(SinkError::down("connection refused")));
        }
        batch.iter().for_each(|message| self.took(message));
        tokio::time::sleep(Duration::from_millis(takes)).await;
        world.stand(&self.being).await;
        if self.is_down() {
            world.hit("sink answer lost");
            return batch.all(&Err(SinkError::down("the connection was cut")));
        }
        batch.all(&Ok(()))
    }

    async fn probe(&self) -> Verdict {
        self.world.stand(&self.being).await;
        if self.is_down() { Err(SinkError::down("connection refused")) } else { Ok(()) }
    }

    fn name(&self) -> String {
        SINKS[self.index].to_owned()
    }
}
