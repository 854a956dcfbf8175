//! One delivery, from its arrival to its end: acked, given back, or a dead letter.
//!
//! It is a task of its own. It waits for nothing that the end of the line does not end, but for its handler.

use std::sync::Arc;
use std::time::Duration;

use lapin::BasicProperties;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicNackOptions, BasicRejectOptions};
use lapin::types::AMQPValue;
use posthaste_core::store::Transactions;
use posthaste_core::{Consume, Consumer, Disposal, Failure, InboxStore};
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, error, warn};

use super::incoming::received;
use super::line::DeadLetters;
use super::waiting::Waiting;
use super::{DeadLetter, Options, YEAR};
use crate::properties::{ERROR_CLASS_HEADER, ERROR_HEADER, QUEUE_HEADER, delivery_count};
use crate::quiet::quietly;

/// How long to wait before a dead letter that was not taken is tried again.
const BURY_AGAIN: Duration = Duration::from_secs(2);

/// Shared by the deliveries of one connection.
pub(super) struct Work<S, H> {
    pub(super) options: Arc<Options>,
    pub(super) consumer: Arc<Consumer<S, H>>,
    /// Shared by all lines of a consumer, as is what waits.
    pub(super) permits: Arc<Semaphore>,
    pub(super) waiting: Arc<Waiting>,
    pub(super) dead_letters: DeadLetters,
}

/// Whether the line is lost, or the shutdown has begun: nothing new is to begin.
type Over = watch::Receiver<bool>;

impl<S: InboxStore + Transactions, H: Consume<S>> Work<S, H> {
    pub(super) async fn deliver(self: Arc<Self>, mut delivery: Delivery, over: Over) {
        let message = match received(&mut delivery, &self.options) {
            Ok(message) => message,
            Err((failure, payload)) => {
                error!(queue = self.options.queue, error = failure.text(), "a message cannot be received");
                return self.bury(&delivery, &failure, &payload, &over).await;
            }
        };
        let mut wait = self.waiting.take(&message, delivery_count(&delivery.properties));
        let give_back_at = Instant::now() + self.options.hold;
        loop {
            let Some(permit) = self.permit(wait.due, give_back_at, &over).await else {
                self.waiting.put(&message, wait);
                return give_back(&delivery).await;
            };
            let disposal = self.consumer.receive(&message, wait.tries).await;
            drop(permit);
            wait.tries.count(&disposal);
            match disposal {
                Disposal::Ack => return ack(&delivery).await,
                Disposal::Dead(failure) => {
                    return self.bury(&delivery, &failure, &message.payload, &over).await;
                }
                Disposal::Again { after, .. } => wait.due = Instant::now() + after.min(YEAR),
            }
        }
    }

    /// Waits until a handler may run; none if the message is to be given back before that.
    async fn permit(&self, due: Instant, give_back_at: Instant, over: &Over) -> Option<SemaphorePermit<'_>> {
        let permitted = async {
            sleep_until(due).await;
            self.permits.acquire().await.ok()
        };
        tokio::select! {
            biased;
            () = has_come(over) => None,
            permit = permitted => permit,
            () = sleep_until(give_back_at) => None,
        }
    }

    /// Sends it to the dead letters, for as long as it takes; without a confirm it is not acked.
    async fn bury(&self, delivery: &Delivery, failure: &Failure, payload: &[u8], over: &Over) {
        let queue = match &self.options.dead_letter {
            DeadLetter::Queue(queue) => queue,
            DeadLetter::BrokerPolicy => {
                let rejecting = delivery.acker.reject(BasicRejectOptions { requeue: false });
                if let Err(error) = quietly(rejecting).await {
                    debug!(%error, "a dead letter could not be rejected: it comes again");
                }
                return;
            }
        };
        loop {
            let properties = dead(&delivery.properties, failure, &self.options.queue);
            match self.dead_letters.publish(queue, properties, payload).await {
                Ok(()) => return ack(delivery).await,
                Err(trouble) => warn!(queue, error = %trouble, "a dead letter was not taken"),
            }
            if timeout(BURY_AGAIN, has_come(over)).await.is_ok() {
                return give_back(delivery).await;
            }
        }
    }
}

/// Waits for the end of the line.
async fn has_come(over: &Over) {
    // An error means that the line is no longer worked on.
    let _ = over.clone().wait_for(|over| *over).await;
}

/// The properties of a dead letter: the message's own, and the reason. Without those that the server would act on, or
/// accept from their owner only.
fn dead(was: &BasicProperties, failure: &Failure, queue: &str) -> BasicProperties {
    let mut headers = was.headers().clone().unwrap_or_default();
    let class = failure.class().to_string();
    for (name, value) in [(ERROR_HEADER, failure.text()), (ERROR_CLASS_HEADER, &class), (QUEUE_HEADER, queue)]
    {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let mut dead = BasicProperties::default().with_delivery_mode(2).with_headers(headers);
    macro_rules! keep {
        ($($read:ident $write:ident),+) => {
            $(if let Some(value) = was.$read().clone() { dead = dead.$write(value); })+
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding, priority with_priority,
        correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id
    );
    dead
}

async fn ack(delivery: &Delivery) {
    if let Err(error) = quietly(delivery.acker.ack(BasicAckOptions::default())).await {
        debug!(%error, "a message could not be acked: it comes again, and is known");
    }
}

pub(super) async fn give_back(delivery: &Delivery) {
    let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
    // If this is not heard, the end of the connection says the same.
    let _ = quietly(delivery.acker.nack(options)).await;
}
