//! The sink: a batch is published at once, and then every acknowledgement is awaited.
//!
//! A message counts as taken when JetStream has acknowledged it, and not before. Nothing is created on the server unless
//! [`NatsSink::declare`] is called.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::PublishAckFuture;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Config as StreamConfig;
use async_trait::async_trait;
use posthaste_core::{Batch, Error, ErrorKind, Message, Result, Sink, SinkError, Verdict};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::link::Link;
use crate::options::NatsOptions;
use crate::verdict::{self, Refusal};
use crate::{headers, subject};

/// How long a question to the server may take that is no message.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Hands messages to JetStream.
///
/// Each is published to the subject of its topic, under its id as `Nats-Msg-Id`: what is sent again within the stream's
/// duplicate window is not stored again. See the [crate] for subjects and headers.
///
/// It connects at the first message, and again when the connection was lost.
pub struct NatsSink {
    options: NatsOptions,
    stream: Option<String>,
    prefix: String,
    source: Option<String>,
    link: Mutex<Option<Arc<Link>>>,
}

impl NatsSink {
    /// A sink that connects with these options. Nothing is connected yet.
    pub fn new(options: NatsOptions) -> Self {
        Self { options, stream: None, prefix: String::new(), source: None, link: Mutex::default() }
    }

    /// Insists that messages go to this stream: one whose subject belongs to another is not taken. Default: whichever
    /// stream has the subject.
    pub fn stream(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        subject::check_name("the name of the stream", &name)?;
        self.stream = Some(name);
        Ok(self)
    }

    /// Puts this in front of every subject, with a dot after it: with `shop`, messages of the topic `order.placed` go to
    /// `shop.order.placed`. Default: nothing.
    pub fn subject_prefix(mut self, prefix: impl Into<String>) -> Result<Self> {
        let prefix = prefix.into();
        subject::check("the prefix of subjects", &prefix)?;
        self.prefix = prefix;
        Ok(self)
    }

    /// Says who sends, in the header `Posthaste-Source`: 1 to 255 bytes. Consumers know messages by source and id together.
    /// Default: none, and consumers take `nats`.
    pub fn source(mut self, source: impl Into<String>) -> Result<Self> {
        let source = source.into();
        if source.is_empty() || source.len() > 255 {
            return Err(crate::options::refused(
                format!("the source has {} bytes", source.len()),
                "give it 1 to 255",
            ));
        }
        self.source = Some(source);
        Ok(self)
    }

    /// The subject that messages of a topic go to.
    pub fn subject(&self, topic: &str) -> String {
        subject::of_topic(&self.prefix, topic)
    }

    /// Creates a stream, unless it is there exactly as it is described here.
    ///
    /// Its duplicate window should be longer than a message may wait to be sent again: 2 minutes unless it is set.
    pub async fn declare(&self, stream: StreamConfig) -> Result<()> {
        let unavailable = |error: &SinkError| {
            Error::new(ErrorKind::Unavailable, error.failure().text().to_owned())
                .with_context("server", self.options.name())
                .with_remedy("is NATS running there?")
        };
        let link = self.link().await.map_err(|error| unavailable(&error))?;
        let name = stream.name.clone();
        let created = timeout(PATIENCE * 5, link.context().create_stream(stream)).await;
        let created = created.map_err(|_| unavailable(&verdict::late()))?;
        created.map(drop).map_err(|error| {
            Error::new(ErrorKind::Refused, "the stream was not created")
                .with_context("stream", name)
                .with_remedy("describe it as it is on the server, or change it there")
                .with_source(error)
        })
    }

    /// Where it connects to, without any secret.
    pub(crate) fn server(&self) -> String {
        self.options.name()
    }

    /// The connection, if it stands; else a new one, in one try.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, SinkError> {
        let mut held = self.link.lock().await;
        if let Some(link) = held.as_ref().filter(|link| !link.has_ended()) {
            return Ok(Arc::clone(link));
        }
        *held = None;
        let link = Arc::new(Link::open(&self.options).await.map_err(SinkError::down)?);
        if !link.client().server_info().jetstream {
            return Err(SinkError::down("JetStream is not enabled on the server; start it with -js"));
        }
        *held = Some(Arc::clone(&link));
        Ok(link)
    }

    /// Hands one message to the connection.
    async fn publish(
        &self,
        link: &Link,
        message: &Message,
        deadline: Instant,
    ) -> Result<PublishAckFuture, SinkError> {
        if link.has_ended() {
            return Err(verdict::lost());
        }
        let headers = headers::of_message(message, self.source.as_deref(), self.stream.as_deref());
        let size = headers::size(&headers, &message.payload);
        let publish = PublishMessage::build().payload(message.payload.clone()).headers(headers);
        let sending = link.context().send_publish(self.subject(message.topic.as_str()), publish);
        match timeout_at(deadline, sending).await {
            Ok(Ok(ack)) => Ok(ack),
            Ok(Err(error)) => Err(verdict::of_sending(&error, size, link.client().max_payload())),
            Err(_) => Err(verdict::late()),
        }
    }

    /// Waits for one acknowledgement.
    async fn answer(
        &self,
        link: &Link,
        message: &Message,
        ack: PublishAckFuture,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let subject = self.subject(message.topic.as_str());
        let acknowledged = tokio::select! {
            biased;
            acknowledged = timeout_at(deadline, ack.into_future()) => acknowledged,
            () = link.forbidden(&subject) => {
                let text = format!("this user may not publish to the subject {subject}; permit it on the server");
                return Err(SinkError::unroutable(text).into());
            }
            // What was queued just when the connection ended is not always told so.
            () = link.ended() => return Err(verdict::lost().into()),
        };
        match acknowledged {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(verdict::of_answer(&error)),
            Err(_) => Err(verdict::late().into()),
        }
    }

    /// Why nobody took what was published to a subject.
    async fn why_nobody(link: &Link, subject: &str, deadline: Instant) -> SinkError {
        let deadline = deadline.min(Instant::now() + PATIENCE);
        let asked = timeout_at(deadline, link.context().stream_by_subject(subject)).await;
        let nobody = || SinkError::unroutable(format!("no stream has the subject {subject}; give it to one"));
        match asked {
            Ok(Ok(stream)) => SinkError::busy(format!("the stream {stream} has no leader now")),
            Ok(Err(_)) if link.has_ended() => verdict::lost(),
            Ok(Err(error)) => verdict::jetstream_error(&error).map_or_else(nobody, verdict::of_server),
            // A user who may not ask.
            Err(_) => nobody(),
        }
    }

    /// Tells those that nobody took why: once for every subject.
    async fn explain(
        &self,
        link: &Link,
        batch: &Batch<'_>,
        answers: Vec<Result<(), Refusal>>,
    ) -> Vec<Verdict> {
        let mut known: HashMap<String, SinkError> = HashMap::new();
        let mut verdicts = Vec::with_capacity(answers.len());
        for (answer, message) in answers.into_iter().zip(batch.iter()) {
            verdicts.push(match answer {
                Ok(()) => Ok(()),
                Err(Refusal::Known(error)) => Err(error),
                Err(Refusal::Nobody) => {
                    let subject = self.subject(message.topic.as_str());
                    if !known.contains_key(&subject) {
                        let why = Self::why_nobody(link, &subject, batch.deadline()).await;
                        known.insert(subject.clone(), why);
                    }
                    Err(known[&subject].clone())
                }
            });
        }
        verdicts
    }
}

/// A batch under way. If it is given up, or was not answered in time, its connection ends: nothing of it may be sent later, and
/// nothing may wait for answers that do not come.
struct Underway<'a> {
    link: &'a Link,
    is_answered: bool,
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.link.close();
        }
    }
}

#[async_trait]
impl Sink for NatsSink {
    async fn send(&self, batch: &Batch<'_>) -> Vec<Verdict> {
        let deadline = batch.deadline();
        let link = match timeout_at(deadline, self.link()).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return batch.all(&Err(error)),
            Err(_) => return batch.all(&Err(SinkError::down("no connection in time"))),
        };
        let mut underway = Underway { link: &link, is_answered: false };
        let mut sent = Vec::with_capacity(batch.len());
        for message in batch.iter() {
            sent.push(self.publish(&link, message, deadline).await);
        }
        let mut answers = Vec::with_capacity(batch.len());
        for (sent, message) in sent.into_iter().zip(batch.iter()) {
            answers.push(match sent {
                Ok(ack) => self.answer(&link, message, ack, deadline).await,
                Err(error) => Err(error.into()),
            });
        }
        let verdicts = self.explain(&link, batch, answers).await;
        underway.is_answered =
            !verdicts.iter().any(|verdict| verdict.as_ref().is_err_and(SinkError::is_down));
        verdicts
    }

    async fn probe(&self) -> Verdict {
        let link = self.link().await?;
        let nothing = json!({});
        let asking = link.context().request::<_, _, Response<Value>>("INFO", &nothing);
        let asked = tokio::select! {
            asked = timeout(PATIENCE, asking) => asked,
            // It answered: it is there. Whether it takes messages, the next one tells.
            () = link.forbidden("$JS.API.INFO") => return Ok(()),
        };
        let error = match asked {
            // Read loosely: what an account has to tell differs from version to version.
            Ok(Ok(Response::Ok(_))) => return Ok(()),
            Ok(Ok(Response::Err { error })) => verdict::of_server(&error),
            Ok(Err(error)) => SinkError::down(format!("JetStream does not answer: {error}")),
            Err(_) => SinkError::down("JetStream does not answer"),
        };
        link.close();
        Err(error)
    }

    fn name(&self) -> String {
        self.options.name()
    }
}

impl fmt::Debug for NatsSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsSink")
            .field("options", &self.options)
            .field("stream", &self.stream)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
