//! The sink: which connection a batch takes, and what becomes of messages whose connection was lost.
//!
//! A message counts as taken when JetStream has acknowledged it, and not before. Nothing is created on the server unless
//! [`NatsSink::declare`] is called.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_nats::header::HeaderMap;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::Config as StreamConfig;
use async_trait::async_trait;
use posthaste_core::{Batch, Error, ErrorKind, Message, MessageId, Result, Sink, SinkError, Verdict};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::flight::{Answer, Flight};
use crate::link::Link;
use crate::options::NatsOptions;
use crate::remembered::Remembered;
use crate::verdict::{self, Refusal};
use crate::{headers, subject};

/// How long a question to the server may take that is no message.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Hands messages to JetStream.
///
/// Each is published to the subject of its topic, under its id as `Nats-Msg-Id`: a message that is sent again within
/// the stream's duplicate window is not stored again. See the [crate] for subjects and headers.
///
/// It connects at the first message, and again when the connection was lost.
pub struct NatsSink {
    options: NatsOptions,
    shape: Shape,
    link: Mutex<Option<Arc<Link>>>,
    /// Messages that were under way when a connection was lost: one of them may be the reason.
    suspects: Remembered<MessageId>,
    /// Subjects that were not acknowledged the last time, although the server lived.
    unanswered: Remembered<String>,
}

/// A message on the wire.
#[derive(Default)]
pub(crate) struct Shape {
    stream: Option<String>,
    prefix: String,
    source: Option<String>,
}

impl Shape {
    pub(crate) fn subject(&self, topic: &str) -> String {
        subject::of_topic(&self.prefix, topic)
    }

    pub(crate) fn headers(&self, message: &Message) -> HeaderMap {
        headers::of_message(message, self.source.as_deref(), self.stream.as_deref())
    }
}

impl NatsSink {
    /// A sink that connects with these options. Nothing is connected yet.
    pub fn new(options: NatsOptions) -> Self {
        Self {
            options,
            shape: Shape::default(),
            link: Mutex::default(),
            suspects: Remembered::default(),
            unanswered: Remembered::default(),
        }
    }

    /// Insists that messages go to this stream: one whose subject belongs to another is not taken. Default: whichever
    /// stream has the subject.
    pub fn stream(mut self, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        subject::check_name("the name of the stream", &name)?;
        self.shape.stream = Some(name);
        Ok(self)
    }

    /// Puts this in front of every subject, with a dot after it: with `shop`, messages of the topic `order.placed` go to
    /// `shop.order.placed`. Default: nothing.
    pub fn subject_prefix(mut self, prefix: impl Into<String>) -> Result<Self> {
        let prefix = prefix.into();
        subject::check("the prefix of subjects", &prefix)?;
        self.shape.prefix = prefix;
        Ok(self)
    }

    /// Names the sender, in the header `Posthaste-Source`: 1 to 255 bytes. Consumers know messages by source and id
    /// together. Default: none, and consumers take `nats`.
    pub fn source(mut self, source: impl Into<String>) -> Result<Self> {
        let source = source.into();
        if source.is_empty() || source.len() > 255 {
            return Err(crate::options::refused(
                format!("the source has {} bytes", source.len()),
                "give it 1 to 255",
            ));
        }
        self.shape.source = Some(source);
        Ok(self)
    }

    /// The subject that messages of a topic go to.
    pub fn subject(&self, topic: &str) -> String {
        self.shape.subject(topic)
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
        if let Some(link) = held.as_ref().filter(|link| !link.has_ended() && !link.is_worn_out()) {
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

    /// Sends messages over a connection, and says what became of each.
    async fn send_over(&self, link: &Link, messages: &[Arc<Message>], deadline: Instant) -> Vec<Answer> {
        let mut underway = Underway { link, is_answered: false };
        let flight = Flight { link, shape: &self.shape, deadline, unanswered: &self.unanswered };
        let answers = flight.send(messages).await;
        underway.is_answered = !answers.iter().any(is_down);
        answers
    }

    /// Sends messages over the usual connection. Messages that were under way when it was lost are suspects from then
    /// on.
    async fn send_together(&self, messages: &[Arc<Message>], deadline: Instant) -> Vec<Verdict> {
        let link = match timeout_at(deadline, self.link()).await {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return vec![Err(error); messages.len()],
            Err(_) => return vec![Err(SinkError::down("no connection in time")); messages.len()],
        };
        let answers = self.send_over(&link, messages, deadline).await;
        for (answer, message) in answers.iter().zip(messages) {
            if matches!(answer, Err(Refusal::Lost)) {
                self.suspects.add(message.id);
            }
        }
        answers.into_iter().map(known).collect()
    }

    /// Sends suspects over connections of their own, in ever smaller groups, until the one that ends them is alone.
    async fn send_apart(
        &self,
        suspects: Vec<Arc<Message>>,
        deadline: Instant,
    ) -> HashMap<MessageId, Verdict> {
        let mut verdicts = HashMap::new();
        let mut groups = VecDeque::from([suspects]);
        let mut held: Option<Link> = None;
        while let Some(group) = groups.pop_front() {
            let link = match self.own_link(held.take(), deadline).await {
                Ok(link) => link,
                Err(why) => {
                    let rest = group.iter().chain(groups.iter().flatten());
                    verdicts.extend(rest.map(|message| (message.id, Err(why.clone()))));
                    break;
                }
            };
            let answers = self.send_over(&link, &group, deadline).await;
            let is_alone = group.len() == 1;
            let mut lost = Vec::new();
            for (message, answer) in group.into_iter().zip(answers) {
                match answer {
                    Err(Refusal::Lost) if is_alone => {
                        verdicts.insert(message.id, Err(SinkError::busy(CULPRIT)));
                    }
                    Err(Refusal::Lost) => lost.push(message),
                    answer => {
                        self.suspects.forget(&message.id);
                        verdicts.insert(message.id, known(answer));
                    }
                }
            }
            let second = lost.split_off(lost.len() / 2);
            [second, lost]
                .into_iter()
                .filter(|half| !half.is_empty())
                .for_each(|half| groups.push_front(half));
            held = Some(link);
        }
        verdicts
    }

    /// A connection that no other batch uses: this one, if it still stands.
    async fn own_link(&self, held: Option<Link>, deadline: Instant) -> Result<Link, SinkError> {
        if let Some(link) = held.filter(|link| !link.has_ended()) {
            return Ok(link);
        }
        match timeout_at(deadline, Link::open(&self.options)).await {
            Ok(opened) => opened.map_err(SinkError::down),
            Err(_) => Err(SinkError::down("no connection in time")),
        }
    }
}

/// The verdict on a message that ends a connection on its own.
const CULPRIT: &str =
    "the server ended the connection when it got this message alone; see the server's log for why";

/// The verdict of an answer.
fn known(answer: Answer) -> Verdict {
    answer.map_err(|refusal| match refusal {
        Refusal::Known(error) => error,
        Refusal::Lost | Refusal::NoListener => verdict::lost(),
    })
}

fn is_down(answer: &Answer) -> bool {
    match answer {
        Err(Refusal::Lost) => true,
        Err(Refusal::Known(error)) => error.is_down(),
        Ok(()) | Err(Refusal::NoListener) => false,
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
        let (suspects, others): (Vec<_>, Vec<_>) =
            batch.iter().cloned().partition(|message| self.suspects.contains(&message.id));
        if suspects.is_empty() {
            return self.send_together(batch.messages(), deadline).await;
        }
        let mut verdicts: HashMap<MessageId, Verdict> = HashMap::new();
        if !others.is_empty() {
            let answers = self.send_together(&others, deadline).await;
            verdicts.extend(others.iter().map(|message| message.id).zip(answers));
        }
        // Last, so that a connection that they end does not delay the others.
        verdicts.extend(self.send_apart(suspects, deadline).await);
        let late = || Err(verdict::late());
        batch.iter().map(|message| verdicts.remove(&message.id).unwrap_or_else(late)).collect()
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
            // Read loosely: the fields of an account differ from version to version.
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
            .field("stream", &self.shape.stream)
            .field("prefix", &self.shape.prefix)
            .finish_non_exhaustive()
    }
}
