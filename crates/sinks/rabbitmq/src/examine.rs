//! Checks whether an exchange exists, and whether a queue keeps its messages when its server restarts.
//!
//! AMQP does not report how a queue was declared, but it refuses to declare one differently under the same name, and names
//! the difference. So the check tries a declaration that must differ in one point; it changes nothing.

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{Channel, ExchangeKind};
use posthaste_core::{Error, ErrorKind, Finding, Result, Severity};
use tokio::time::{Instant, timeout_at};

use crate::link::{Link, Trouble};
use crate::quiet::quietly;
use crate::server::{RabbitServer, name_fits, refused};

const CHECK: &str = "queue";
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
/// If the queue goes away just before the declaration, an unused one is created, which expires after this time.
const GOES_AFTER_MILLIS: i32 = 1_000;

impl RabbitServer {
    /// Checks whether a queue exists and is durable. One that is not loses its messages when the server restarts, including
    /// messages whose receipt it has confirmed.
    ///
    /// Changes nothing. An error means that the server could not be asked.
    pub async fn examine_queue(&self, name: &str) -> Result<Finding> {
        self.check()?;
        if name.is_empty() {
            return Err(refused("the queue to look at has no name", "name it"));
        }
        name_fits("the queue to look at", name)?;
        let deadline = Instant::now() + self.patience;
        // A check declares nothing on arrival.
        let server = self.clone().declare(crate::Topology::default());
        let link = Link::connect(&server, deadline).await.map_err(|trouble| self.unavailable(&trouble))?;
        let looked = look(&link, name, deadline).await;
        link.close().await;
        looked.map_err(|trouble| self.unavailable(&trouble))
    }

    /// Checks whether an exchange exists: messages to a missing one are lost.
    ///
    /// Changes nothing. An error means that the server could not be asked.
    pub async fn examine_exchange(&self, name: &str) -> Result<Finding> {
        self.check()?;
        name_fits("the exchange to look at", name)?;
        let deadline = Instant::now() + self.patience;
        let server = self.clone().declare(crate::Topology::default());
        let link = Link::connect(&server, deadline).await.map_err(|trouble| self.unavailable(&trouble))?;
        let looked = look_at_exchange(&link, name, deadline).await;
        link.close().await;
        looked.map_err(|trouble| self.unavailable(&trouble))
    }

    fn unavailable(&self, trouble: &Trouble) -> Error {
        let kind = match trouble {
            Trouble::Channel(..) => ErrorKind::Permission,
            Trouble::Lost(text) if text.contains("Login was refused") => ErrorKind::Permission,
            Trouble::Lost(_) | Trouble::Late => ErrorKind::Unavailable,
        };
        Error::new(kind, trouble.to_string())
            .with_context("server", self)
            .with_remedy("check that RabbitMQ runs there, and what the user may do")
    }
}

async fn look(link: &Link, name: &str, deadline: Instant) -> Result<Finding, Trouble> {
    let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    match declare(&link.channel(deadline).await?, name, passive, deadline).await {
        Ok(()) => {}
        Err(Trouble::Channel(NOT_FOUND, _)) => {
            let remedy = "declare it, durable, and bind it: what no queue takes waits in the outbox";
            return Ok(finding(Severity::Warning, format!("{name} is not there"), Some(remedy)));
        }
        Err(Trouble::Channel(RESOURCE_LOCKED, _)) => return Ok(exclusive(name)),
        Err(trouble) => return Err(trouble),
    }
    // The server closed the channel only if it refused.
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    match declare(&link.channel(deadline).await?, name, durable, deadline).await {
        Err(Trouble::Channel(PRECONDITION_FAILED, text)) => Ok(differs(name, &text)),
        Err(Trouble::Channel(RESOURCE_LOCKED, _)) => Ok(exclusive(name)),
        // It was declared with the very same arguments.
        Ok(()) => Ok(fine(name)),
        Err(trouble) => Err(trouble),
    }
}

async fn look_at_exchange(link: &Link, name: &str, deadline: Instant) -> Result<Finding, Trouble> {
    let answer = |severity, found, remedy: Option<&str>| Finding {
        check: "exchange",
        severity,
        found,
        remedy: remedy.map(str::to_owned),
    };
    if name.is_empty() {
        let found = "the one without a name, which leads to the queue of the topic's name".to_owned();
        return Ok(answer(Severity::Fine, found, None));
    }
    let channel = link.channel(deadline).await?;
    let passive = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    // The kind of an existing exchange is not compared.
    let declaring = channel.exchange_declare(
        ShortString::from(name),
        ExchangeKind::Topic,
        passive,
        FieldTable::default(),
    );
    match timeout_at(deadline, quietly(declaring)).await {
        Ok(Ok(())) => Ok(answer(Severity::Fine, format!("{name} is there"), None)),
        Ok(Err(error)) => match Trouble::from(error) {
            Trouble::Channel(NOT_FOUND, _) => {
                let remedy = "declare it, and bind a queue to it: what no queue takes waits in the outbox";
                Ok(answer(Severity::Warning, format!("{name} is not there"), Some(remedy)))
            }
            trouble => Err(trouble),
        },
        Err(_) => Err(Trouble::Late),
    }
}

async fn declare(
    channel: &Channel,
    name: &str,
    options: QueueDeclareOptions,
    deadline: Instant,
) -> Result<(), Trouble> {
    let mut arguments = FieldTable::default();
    arguments.insert("x-expires".into(), AMQPValue::LongInt(GOES_AFTER_MILLIS));
    let declaring = quietly(channel.queue_declare(ShortString::from(name), options, arguments));
    match timeout_at(deadline, declaring).await {
        Ok(declared) => declared.map(drop).map_err(Trouble::from),
        Err(_) => Err(Trouble::Late),
    }
}

/// The server names the first point in which a queue differs, and whether it is durable comes before all arguments.
fn differs(name: &str, text: &str) -> Finding {
    if !text.contains("arg 'durable'") {
        return fine(name);
    }
    let remedy = "its messages are lost when the server starts again: delete it, and declare it durable";
    finding(Severity::Danger, format!("{name} is not durable"), Some(remedy))
}

fn exclusive(name: &str) -> Finding {
    let remedy = "it goes away with its connection, and its messages with it: use a durable one";
    finding(Severity::Danger, format!("{name} is exclusive to a connection"), Some(remedy))
}

fn fine(name: &str) -> Finding {
    finding(Severity::Fine, format!("{name} is durable"), None)
}

fn finding(severity: Severity, found: String, remedy: Option<&str>) -> Finding {
    Finding { check: CHECK, severity, found, remedy: remedy.map(str::to_owned) }
}
