//! One delivery: acted upon while the server is kept informed, and then answered.
//!
//! A delivery is answered at most once, and a dead letter is stored elsewhere before the server may forget it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, AckKind};
use async_nats::{Request, Subject};
use posthaste_core::{Consume, Disposal, Failure, InboxStore, Shutdown, SinkError, Transactions};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tracing::{error, info, warn};

use super::{DeadLetter, PATIENCE, Shared, text};
use crate::headers;
use crate::link::Link;
use crate::verdict::{self, Refusal};

/// How long a message waits if no stream took its dead letter.
const UNDELIVERABLE: Duration = Duration::from_secs(30);

const REASON: &str = "Posthaste-Dead-Reason";
const CLASS: &str = "Posthaste-Dead-Class";
const STREAM: &str = "Posthaste-Dead-Stream";
const SEQUENCE: &str = "Posthaste-Dead-Sequence";
const SUBJECT: &str = "Posthaste-Dead-Subject";
const CONSUMER: &str = "Posthaste-Dead-Consumer";
const DELIVERIES: &str = "Posthaste-Dead-Deliveries";

/// Where the server is answered for the messages that are being acted upon, by their numbers in the stream.
#[derive(Default)]
pub(super) struct Underway {
    replies: Mutex<HashMap<u64, Subject>>,
}

impl Underway {
    fn inside(&self) -> MutexGuard<'_, HashMap<u64, Subject>> {
        self.replies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S, H> Shared<S, H>
where
    S: InboxStore + Transactions,
    H: Consume<S>,
{
    /// Begins to act upon a message, or gives it back if the shutdown has begun.
    pub(super) async fn start(
        self: &Arc<Self>,
        link: &Arc<Link>,
        message: jetstream::Message,
        slots: &Arc<Semaphore>,
        shutdown: &Shutdown,
        ack_wait: Duration,
    ) {
        let Some(reply) = message.reply.clone() else { return };
        if shutdown.has_begun() {
            say(link, &reply, AckKind::Nak(None)).await;
            return;
        }
        // There is one: no more were asked for than there were.
        let Ok(slot) = Arc::clone(slots).acquire_owned().await else { return };
        let (own, link) = (Arc::clone(self), Arc::clone(link));
        // In a task of its own, so that it is never cut off.
        tokio::spawn(async move {
            own.deliver(&link, &message, &reply, ack_wait).await;
            drop(slot);
        });
    }

    async fn deliver(&self, link: &Link, message: &jetstream::Message, reply: &Subject, ack_wait: Duration) {
        let info = match message.info() {
            Ok(info) => info,
            Err(error) => {
                error!(error = %error, stream = self.stream, "a delivery has no number");
                return;
            }
        };
        let sequence = info.stream_sequence;
        self.underway.inside().insert(sequence, reply.clone());
        let received = headers::received(message, info.stream, sequence, info.delivered);
        let tries = self.memory().tries(sequence, info.delivered);
        let mut acting = std::pin::pin!(self.consumer.receive(&received, tries));
        let third = (ack_wait / 3).max(Duration::from_millis(10));
        let mut reminder = interval_at(Instant::now() + third, third);
        reminder.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let disposal = loop {
            tokio::select! {
                biased;
                disposal = &mut acting => break disposal,
                _ = reminder.tick() => say(link, reply, AckKind::Progress).await,
            }
        };
        self.memory().note(sequence, &disposal);
        let answer = match disposal {
            Disposal::Ack => AckKind::Ack,
            Disposal::Again { after, .. } => AckKind::Nak(Some(after).filter(|after| !after.is_zero())),
            Disposal::Dead(failure) => self.bury(link, message, &info, &failure).await,
        };
        // If it was given back meanwhile, the server has its answer; the inbox has the outcome.
        if self.underway.inside().remove(&sequence).is_some() {
            confirm(link, reply, answer).await;
        }
    }

    /// Brings a dead letter to safety, and says what to answer.
    async fn bury(
        &self,
        link: &Link,
        message: &jetstream::Message,
        info: &jetstream::message::Info<'_>,
        failure: &Failure,
    ) -> AckKind {
        let DeadLetter::Subject(subject) = &self.dead else { return AckKind::Term };
        // The same every time, so that it is stored once.
        let id = format!("dead {} {}:{}", self.durable, info.stream, info.stream_sequence);
        let why = [
            (REASON, failure.text().to_owned()),
            (CLASS, failure.class().to_string()),
            (STREAM, info.stream.to_owned()),
            (SEQUENCE, info.stream_sequence.to_string()),
            (SUBJECT, message.subject.to_string()),
            (CONSUMER, self.durable.clone()),
            (DELIVERIES, info.delivered.to_string()),
        ];
        let letter = PublishMessage::build()
            .payload(message.payload.clone())
            .headers(headers::of_dead_letter(message, &id, &why));
        match self.publish(link, subject, letter).await {
            Ok(()) => {
                info!(stream = info.stream, sequence = info.stream_sequence, "a dead letter");
                AckKind::Term
            }
            Err(error) => {
                // It comes again, and is tried again: nothing is lost.
                error!(
                    error = text(&error),
                    stream = info.stream,
                    sequence = info.stream_sequence,
                    "a dead letter was not taken; it comes again"
                );
                AckKind::Nak(Some(UNDELIVERABLE))
            }
        }
    }

    async fn publish(&self, link: &Link, subject: &str, letter: PublishMessage) -> Result<(), SinkError> {
        let publishing = async {
            let sent = link.context().send_publish(subject.to_owned(), letter).await;
            let sent = sent.map_err(|error| verdict::of_sending(&error, 0, link.client().max_payload()))?;
            sent.await.map(drop).map_err(|error| verdict::of_answer(&error))
        };
        let published = timeout(PATIENCE, publishing).await.unwrap_or_else(|_| Err(verdict::late().into()));
        published.map_err(|refusal| match refusal {
            Refusal::Known(error) => error,
            Refusal::NoListener => SinkError::unroutable("no stream has the subject of dead letters"),
            Refusal::Lost => verdict::lost(),
        })
    }

    fn memory(&self) -> MutexGuard<'_, super::Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for running deliveries; if the shutdown is to end at once, gives them back instead.
    pub(super) async fn finish(&self, link: &Link, slots: &Semaphore, shutdown: &Shutdown) {
        tokio::select! {
            biased;
            _ = slots.acquire_many(self.concurrency) => {}
            () = shutdown.ended() => {
                let unfinished: Vec<Subject> = self.underway.inside().drain().map(|(_, reply)| reply).collect();
                warn!(messages = unfinished.len(), "ended at once: what has begun is given back");
                for reply in &unfinished {
                    say(link, reply, AckKind::Nak(None)).await;
                }
            }
        }
        let _ = timeout(PATIENCE, link.client().flush()).await;
        link.close();
    }
}

/// Tells the server something, without waiting for more than room to say it.
async fn say(link: &Link, reply: &Subject, what: AckKind) {
    if let Err(error) = link.client().publish(reply.clone(), what.into()).await {
        warn!(error = %error, "the server was not told: the message comes again");
    }
}

/// Tells the server something, and waits until it has heard it.
async fn confirm(link: &Link, reply: &Subject, what: AckKind) {
    let request = Request::new().payload(what.into()).timeout(Some(PATIENCE));
    if let Err(error) = link.client().send_request(reply.clone(), request).await {
        warn!(error = %error, "the server did not confirm an answer: the message may come again");
    }
}
