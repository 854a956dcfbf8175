//! Batches on their way to a sink: what gathers while one is under way leaves with the next.
//!
//! Nothing waits for a batch to fill. A message whose delivery was given up meanwhile is not sent any more.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use super::breaker::BreakerState;
use super::guarded::{Shared, lock};
use super::{Batch, SinkError, Verdict};
use crate::dispatch::call::caught;
use crate::dispatch::wake;
use crate::handler::HandlerResult;
use crate::message::Message;
use crate::metrics;
use crate::outcome::Failure;
use crate::settings::show_duration;

/// The most bytes of payload of one batch, unless one message has more.
const MOST_BYTES: usize = 16 << 20;

/// A message that waits for its verdict.
pub(super) struct Parcel {
    pub(super) message: Arc<Message>,
    /// How long its batch may take.
    pub(super) patience: Duration,
    pub(super) answer: oneshot::Sender<HandlerResult>,
}

#[derive(Default)]
pub(super) struct Flights {
    waiting: VecDeque<Parcel>,
    under_way: u32,
    /// Whether one message tries a sink that was down.
    trying: bool,
}

/// What to do with waiting messages.
enum Next {
    Send(Vec<Parcel>),
    Refuse(Vec<Parcel>),
    Nothing,
}

impl Shared {
    pub(super) fn submit(self: &Arc<Self>, parcel: Parcel) {
        let mut flights = lock(&self.flights);
        flights.waiting.push_back(parcel);
        if flights.under_way < self.options.in_flight {
            flights.under_way += 1;
            tokio::spawn(Arc::clone(self).fly());
        }
    }

    /// Sends batch after batch, until nothing waits.
    async fn fly(self: Arc<Self>) {
        loop {
            // Deliveries that begin in the same moment come along.
            tokio::task::yield_now().await;
            match self.next() {
                Next::Nothing => return,
                Next::Refuse(parcels) => {
                    for parcel in parcels {
                        let _ = parcel.answer.send(self.refusal());
                    }
                }
                Next::Send(parcels) => self.send(parcels).await,
            }
        }
    }

    /// Takes the next batch. A flight that finds nothing ends, and is no longer counted when it releases the lock: a
    /// message that comes then finds room for another flight.
    fn next(&self) -> Next {
        let mut flights = lock(&self.flights);
        let next = self.take(&mut flights);
        if matches!(next, Next::Nothing) {
            flights.under_way -= 1;
        }
        next
    }

    fn take(&self, flights: &mut Flights) -> Next {
        flights.waiting.retain(|parcel| !parcel.answer.is_closed());
        if flights.waiting.is_empty() {
            return Next::Nothing;
        }
        let most = match self.breaker.state() {
            BreakerState::Open { .. } => return Next::Refuse(flights.waiting.drain(..).collect()),
            // The one that tries sends the others when it is back.
            BreakerState::HalfOpen if flights.trying => return Next::Nothing,
            BreakerState::HalfOpen => {
                flights.trying = true;
                1
            }
            BreakerState::Closed => self.options.batch as usize,
        };
        let mut bytes = 0;
        let fits = |parcel: &&Parcel| {
            bytes += parcel.message.size();
            bytes <= MOST_BYTES
        };
        let count = flights.waiting.iter().take(most).take_while(fits).count().max(1);
        Next::Send(flights.waiting.drain(..count).collect())
    }

    async fn send(self: &Arc<Self>, parcels: Vec<Parcel>) {
        let patience = parcels.iter().map(|parcel| parcel.patience).min().unwrap_or_default();
        let messages: Vec<Arc<Message>> = parcels.iter().map(|parcel| Arc::clone(&parcel.message)).collect();
        let started = Instant::now();
        // The sink gets a slightly shorter deadline than the batch, so that its partial results are not lost.
        let batch = Batch::new(&messages, started + patience.mul_f64(0.9));
        let sending = async { self.sink.send(&batch).await };
        let answered = timeout(patience, caught(sending)).await;
        metrics::sent(&self.name, messages.len(), started.elapsed());
        let verdicts: Vec<Verdict> = match answered {
            Ok(Ok(verdicts)) => verdicts,
            // A defect, as a handler's panic is: it costs an attempt, and says nothing of the receiver.
            Ok(Err(_)) => batch.all(&Err(Failure::business("the sink panicked").into())),
            Err(_) => {
                let text = format!("the sink did not answer in {}", show_duration(patience));
                batch.all(&Err(SinkError::down(text)))
            }
        };
        self.learn(&verdicts);
        lock(&self.flights).trying = false;
        let mut verdicts = verdicts.into_iter();
        for parcel in parcels {
            let missing = || Err(SinkError::busy("the sink gave no verdict"));
            let _ = parcel.answer.send(self.answer(verdicts.next().unwrap_or_else(missing)));
        }
        // The sink's own code comes next.
        wake::release_last_woken();
    }
}
