//! Messages over one connection: all published at once, then every acknowledgement awaited, and silence explained.
//!
//! Each message is judged on its own. A subject that only a core subscriber listens to is never acknowledged, and must not
//! count as a server that is down. Whether the server lives is asked only when acknowledgements stop arriving.

use std::collections::{BTreeSet, HashMap};
use std::future::IntoFuture as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{GetStreamByNameErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use futures_util::future::join_all;
use posthaste_core::{Message, SinkError};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::headers;
use crate::link::Link;
use crate::remembered::Remembered;
use crate::sink::{PATIENCE, Shape};
use crate::verdict::{self, Refusal};

/// How long no acknowledgement may arrive before the server is asked which streams take the open subjects.
const QUIET: Duration = Duration::from_millis(250);
/// Where the server is asked which stream takes a subject.
const NAMES: &str = "$JS.API.STREAM.NAMES";

pub(crate) type Answer = Result<(), Refusal>;
type Acknowledging = Pin<Box<dyn Future<Output = Result<PublishAck, PublishError>> + Send>>;

/// A message that was sent and has no answer yet.
struct Open {
    index: usize,
    subject: String,
    ack: Acknowledging,
}

/// The server's answer about a subject.
#[derive(Clone)]
enum Taker {
    /// This stream takes it.
    Stream(String),
    /// No stream takes it, or one that never acknowledges.
    NoStream(SinkError),
    /// The user may not ask. The server has answered so, and lives.
    Untold,
    /// The server did not answer.
    Silence,
}

/// One sending of messages over a connection.
pub(crate) struct Flight<'a> {
    pub(crate) link: &'a Link,
    pub(crate) shape: &'a Shape,
    pub(crate) deadline: Instant,
    /// Subjects that were not acknowledged the last time, although the server lived.
    pub(crate) unanswered: &'a Remembered<String>,
}

impl Flight<'_> {
    /// Publishes the messages, and says what became of each.
    pub(crate) async fn send(&self, messages: &[Arc<Message>]) -> Vec<Answer> {
        let mut answers: Vec<Option<Answer>> = Vec::with_capacity(messages.len());
        let (mut prompt, mut slow) = (Vec::new(), Vec::new());
        for (index, message) in messages.iter().enumerate() {
            let subject = self.shape.subject(message.topic.as_str());
            match self.publish(message, &subject).await {
                Ok(ack) => {
                    let queue = if self.unanswered.contains(&subject) { &mut slow } else { &mut prompt };
                    queue.push(Open { index, subject, ack });
                    answers.push(None);
                }
                Err(refusal) => answers.push(Some(Err(refusal))),
            }
        }
        let mut open = self.listen(prompt, &mut answers).await;
        // Their subjects are asked about at once: waiting for them first would delay the batch.
        open.append(&mut slow);
        let unheard = |(n, answer): (usize, &Option<Answer>)| {
            matches!(answer, Some(Err(Refusal::NoListener)))
                .then(|| self.shape.subject(messages[n].topic.as_str()))
        };
        let unheard: BTreeSet<String> = answers.iter().enumerate().filter_map(unheard).collect();
        let takers = self.takers(open.iter().map(|open| open.subject.clone()).chain(unheard).collect()).await;
        let ends: Vec<_> = open.iter().map(|open| self.verdict_of_silence(&open.subject, &takers)).collect();
        for (open, end) in open.into_iter().zip(ends) {
            let index = open.index;
            answers[index] = Some(self.conclude(open, end).await);
        }
        let explain = |(answer, message): (Option<Answer>, &Arc<Message>)| match answer {
            Some(Err(Refusal::NoListener)) if self.link.has_ended() => Err(Refusal::Lost),
            Some(Err(Refusal::NoListener)) => {
                let subject = self.shape.subject(message.topic.as_str());
                Err(not_heard(takers.get(&subject), &subject).into())
            }
            Some(answer) => answer,
            None => Err(verdict::late().into()),
        };
        answers.into_iter().zip(messages).map(explain).collect()
    }

    /// Hands one message to the connection.
    async fn publish(&self, message: &Message, subject: &str) -> Result<Acknowledging, Refusal> {
        if self.link.has_ended() {
            return Err(Refusal::Lost);
        }
        let headers = self.shape.headers(message);
        let size = headers::size(&headers, &message.payload);
        let publish = PublishMessage::build().payload(message.payload.clone()).headers(headers);
        let sending = self.link.context().send_publish(subject.to_owned(), publish);
        match timeout_at(self.deadline, sending).await {
            Ok(Ok(ack)) => Ok(ack.into_future()),
            Ok(Err(error)) => Err(verdict::of_sending(&error, size, self.link.client().max_payload())),
            Err(_) => Err(verdict::late().into()),
        }
    }

    /// Waits for acknowledgements until none arrives for a while. Returns the messages that have none.
    async fn listen(&self, open: Vec<Open>, answers: &mut [Option<Answer>]) -> Vec<Open> {
        let soon = || (Instant::now() + QUIET).min(self.deadline);
        let (mut until, mut rest) = (soon(), Vec::new());
        for mut open in open {
            match self.answer(&mut open, until).await {
                Some(answer) => {
                    answers[open.index] = Some(answer);
                    // Once it was quiet, acknowledgements that have arrived are taken, and none is waited for.
                    if rest.is_empty() {
                        until = soon();
                    }
                }
                None => rest.push(open),
            }
        }
        rest
    }

    /// Waits for one acknowledgement, until this moment.
    async fn answer(&self, open: &mut Open, until: Instant) -> Option<Answer> {
        tokio::select! {
            biased;
            acknowledged = &mut open.ack => Some(match acknowledged {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == PublishErrorKind::TimedOut => Err(verdict::late().into()),
                Err(error) => Err(verdict::of_answer(&error)),
            }),
            () = self.link.forbidden(&open.subject) => {
                let subject = &open.subject;
                let text = format!("this user may not publish to the subject {subject}; permit it on the server");
                Some(Err(SinkError::unroutable(text).into()))
            }
            // The driver does not always fail messages that were queued just when the connection ended.
            () = self.link.ended() => Some(Err(Refusal::Lost)),
            () = sleep_until(until) => None,
        }
    }

    /// Waits for the acknowledgement of a message for as long as one can come, and judges the message without it.
    async fn conclude(&self, mut open: Open, (until, refusal): (Instant, SinkError)) -> Answer {
        if let Some(answer) = self.answer(&mut open, until).await {
            if answer.is_ok() {
                self.unanswered.forget(&open.subject);
            }
            return answer;
        }
        if !refusal.is_down() {
            self.unanswered.add(open.subject);
            self.link.leave_unanswered();
        }
        Err(refusal.into())
    }

    /// Until when to wait for an acknowledgement, and what its absence means then.
    fn verdict_of_silence(&self, subject: &str, takers: &HashMap<String, Taker>) -> (Instant, SinkError) {
        // One that was not acknowledged the last time does not hold up a whole batch again.
        let patient = match self.unanswered.contains(subject) {
            true => self.deadline.min(Instant::now() + PATIENCE),
            false => self.deadline,
        };
        match takers.get(subject) {
            Some(Taker::NoStream(error)) => (Instant::now(), error.clone()),
            Some(Taker::Stream(stream)) => {
                (patient, SinkError::busy(format!("the stream {stream} did not acknowledge it in time")))
            }
            Some(Taker::Untold) => {
                let text = format!("no stream acknowledged the subject {subject}; give it to one");
                (patient, SinkError::unroutable(text))
            }
            Some(Taker::Silence) | None => (self.deadline, verdict::late()),
        }
    }

    /// Asks which streams take these subjects, all at once.
    async fn takers(&self, subjects: BTreeSet<String>) -> HashMap<String, Taker> {
        let asking = subjects.into_iter().map(async |subject| {
            let taker = self.taker(&subject).await;
            (subject, taker)
        });
        join_all(asking).await.into_iter().collect()
    }

    async fn taker(&self, subject: &str) -> Taker {
        let until = self.deadline.min(Instant::now() + PATIENCE);
        let before = self.link.times_forbidden(NAMES);
        let asked = tokio::select! {
            biased;
            asked = timeout_at(until, self.link.context().stream_by_subject(subject)) => asked,
            () = self.link.forbidden_again(NAMES, before) => return Taker::Untold,
            () = self.link.ended() => return Taker::Silence,
        };
        let error = match asked {
            Ok(Ok(stream)) => return self.stream(stream, until).await,
            Ok(Err(error)) => error,
            Err(_) => return Taker::Silence,
        };
        match verdict::jetstream_error(&error) {
            Some(error) => Taker::NoStream(verdict::of_server(error)),
            None if error.kind() == GetStreamByNameErrorKind::NotFound => Taker::NoStream(no_stream(subject)),
            None => Taker::Silence,
        }
    }

    /// Checks whether a stream acknowledges at all.
    async fn stream(&self, name: String, until: Instant) -> Taker {
        let place = format!("$JS.API.STREAM.INFO.{name}");
        let asked = tokio::select! {
            biased;
            asked = timeout_at(until, self.link.context().get_stream(&name)) => asked,
            () = self.link.forbidden(&place) => return Taker::Stream(name),
        };
        match asked {
            Ok(Ok(stream)) if stream.cached_info().config.no_ack => {
                let text = format!("the stream {name} acknowledges nothing; unset its no_ack");
                Taker::NoStream(SinkError::unroutable(text))
            }
            _ => Taker::Stream(name),
        }
    }
}

/// Why a subject has no listener.
fn not_heard(taker: Option<&Taker>, subject: &str) -> SinkError {
    match taker {
        Some(Taker::Stream(stream)) => SinkError::busy(format!("the stream {stream} has no leader now")),
        Some(Taker::NoStream(error)) => error.clone(),
        Some(Taker::Untold | Taker::Silence) | None => no_stream(subject),
    }
}

fn no_stream(subject: &str) -> SinkError {
    SinkError::unroutable(format!("no stream has the subject {subject}; give it to one"))
}
