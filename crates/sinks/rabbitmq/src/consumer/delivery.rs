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
use posthaste_core::{Consume, Consumer, Disposal, Failure, InboxStore, Tries};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tracing::{debug, error, warn};

use super::incoming::received;
use super::line::DeadLetters;
use super::{DeadLetter, Options};
use crate::properties::{ERROR_CLASS_HEADER, ERROR_HEADER, QUEUE_HEADER, delivery_count};
use crate::quiet::quietly;

/// How long to wait before a dead letter that was not taken is tried again.
const BURY_AGAIN: Duration = Duration::from_secs(2);

/// What the deliveries of one line share.
pub(super) struct Work<S, H> {
    pub(super) options: Arc<Options>,
    pub(super) consumer: Arc<Consumer<S, H>>,
    pub(super) permits: Semaphore,
    pub(super) dead_letters: DeadLetters,
    /// Whether the line is lost, or the shutdown has begun: nothing new is to begin.
    pub(super) is_over: watch::Receiver<bool>,
}

impl<S: InboxStore + Transactions, H: Consume<S>> Work<S, H> {
    pub(super) async fn deliver(self: Arc<Self>, mut delivery: Delivery) {
        let message = match received(&mut delivery, &self.options) {
            Ok(message) => message,
            Err((failure, payload)) => {
                error!(queue = self.options.queue, error = failure.text(), "a message cannot be received");
                return self.bury(&delivery, &failure, &payload).await;
            }
        };
        let mut tries = Tries { charged: delivery_count(&delivery.properties), ..Tries::default() };
        loop {
            let permit = tokio::select! {
                biased;
                () = self.over() => return give_back(&delivery).await,
                permit = self.permits.acquire() => permit,
            };
            let disposal = self.consumer.receive(&message, tries).await;
            drop(permit);
            tries.count(&disposal);
            match disposal {
                Disposal::Ack => return ack(&delivery).await,
                Disposal::Dead(failure) => return self.bury(&delivery, &failure, &message.payload).await,
                Disposal::Again { after, .. } => {
                    if timeout(after, self.over()).await.is_ok() {
                        return give_back(&delivery).await;
                    }
                }
            }
        }
    }

    async fn over(&self) {
        // An error means that whoever worked on the line is gone, and so is the line.
        let _ = self.is_over.clone().wait_for(|over| *over).await;
    }

    /// To the dead letters, for as long as it takes; what is not known to be there is not acked.
    async fn bury(&self, delivery: &Delivery, failure: &Failure, payload: &[u8]) {
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
            if timeout(BURY_AGAIN, self.over()).await.is_ok() {
                return give_back(delivery).await;
            }
        }
    }
}

/// The properties of a dead letter: as they were, and why. Without those that the server would act upon, or refuse to take
/// from somebody else.
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
