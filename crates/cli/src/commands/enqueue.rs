//! `posthaste enqueue`: stores messages from the command line, a file or a pipe.
//!
//! A payload that is not JSON needs a content type; otherwise a receiver that expects JSON would find out by failing.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use posthaste::{
    DEFAULT_MAX_PAYLOAD_BYTES, Enqueued, Error, ErrorKind, JSON, MessageBuilder, MessageId, NewMessage,
    OrderPolicy, Result, When,
};
use serde::Serialize;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, stdin};

use crate::exit::Exit;
use crate::filter::order_parser;
use crate::human::{number, things};
use crate::output::Output;
use crate::target::{AnyStore, Target};
use crate::when::{future, span};

/// How many messages of many are stored at a time.
const BATCH: usize = 500;

/// Store a message, or one per line of standard input
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  posthaste enqueue order.placed '{\"order\": 7}' --key customer-12\n  \
                        posthaste enqueue report.ready --file report.pdf --content-type application/pdf\n  \
                        jq -c '.[]' orders.json | posthaste enqueue order.placed --lines")]
pub(crate) struct Args {
    /// The topic
    topic: String,
    /// The payload; `-` reads it from standard input
    #[arg(required_unless_present_any = ["file", "lines"])]
    payload: Option<String>,
    /// Read the payload from this file
    #[arg(long, value_name = "FILE", conflicts_with = "payload")]
    file: Option<PathBuf>,
    /// One message per line of standard input
    #[arg(long, conflicts_with_all = ["payload", "file", "id", "dedup"])]
    lines: bool,
    /// What the payload is, if it is not JSON
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The key: messages of one key are delivered one at a time, in order
    #[arg(long)]
    key: Option<String>,
    /// What becomes of the key when the message dies
    #[arg(long, value_parser = order_parser())]
    order: Option<OrderPolicy>,
    /// A header; may be repeated
    // Read later: the parser of arguments would quote a wrong one, and it may hold a secret.
    #[arg(long, value_name = "NAME=VALUE")]
    header: Vec<String>,
    /// Its id, if not a new one
    #[arg(long)]
    id: Option<MessageId>,
    /// Store it only if no message with this dedup key is there
    #[arg(long, value_name = "KEY")]
    dedup: Option<String>,
    /// Not before this long from now: 30s, 5m, 2h
    #[arg(long, value_name = "DURATION", value_parser = span, conflicts_with = "at")]
    delay: Option<Duration>,
    /// Not before this time: RFC 3339
    #[arg(long, value_name = "TIME", value_parser = future)]
    at: Option<When>,
    /// Not after this time, or this long from now
    #[arg(long, value_name = "TIME", value_parser = future)]
    expires: Option<When>,
    /// Which go first: smaller numbers do
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,
    /// Links it to a request or to other messages
    #[arg(long, value_name = "ID")]
    correlation: Option<String>,
    /// The tenant that it belongs to
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    target: Target,
}

fn header(text: &str) -> Result<(String, String)> {
    let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "a header has no value").with_remedy("write it as NAME=VALUE")
    })
}

#[derive(Serialize)]
struct Answer {
    id: MessageId,
    duplicate: bool,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    if args.lines {
        return lines(&args, output).await;
    }
    let message = args.message(args.read().await?)?;
    let store = args.target.open().await?;
    let enqueued = store.enqueue(&[message]).await?;
    wake(&*store).await;
    for enqueued in enqueued {
        let answer = Answer { id: enqueued.id(), duplicate: enqueued.is_duplicate() };
        output.answer(&answer, || answer.id.to_string());
        if answer.duplicate && !output.is_json() {
            output.say("nothing was stored: a message with this id or dedup key is there already");
        }
    }
    Ok(Exit::Done)
}

/// Workers elsewhere poll sooner; a hint, which may fail.
async fn wake(store: &dyn AnyStore) {
    let _ = store.nudge().await;
}

async fn lines(args: &Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    let mut input = BufReader::new(stdin());
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let (mut stored, mut duplicates, mut line) = (0, 0, 0);
    loop {
        let (batch, over) = read_batch(args, &mut input, &mut line)
            .await
            .map_err(|error| error.with_context("stored before", stored))?;
        if !batch.is_empty() {
            let enqueued =
                store.enqueue(&batch).await.map_err(|error| error.with_context("stored before", stored))?;
            duplicates += enqueued.iter().filter(|one| Enqueued::is_duplicate(one)).count();
            stored += enqueued.iter().filter(|one| !Enqueued::is_duplicate(one)).count();
            bar.set_message(format!("{} stored", number(stored)));
            bar.tick();
        }
        if over {
            break;
        }
    }
    bar.finish_and_clear();
    wake(&*store).await;
    output.answer(&json!({ "enqueued": stored, "duplicates": duplicates }), || {
        format!("{} stored", things(stored, "message"))
    });
    Ok(Exit::Done)
}

/// The messages of the next lines, and whether there are no more; empty lines are passed over.
async fn read_batch(
    args: &Args,
    input: &mut BufReader<tokio::io::Stdin>,
    line: &mut usize,
) -> Result<(Vec<NewMessage>, bool)> {
    let mut batch = Vec::new();
    while batch.len() < BATCH {
        let mut text = Vec::new();
        // One byte more than is accepted, so that a line that never ends does not fill the memory.
        let most = DEFAULT_MAX_PAYLOAD_BYTES as u64 + 2;
        let read = (&mut *input).take(most).read_until(b'\n', &mut text).await.map_err(unreadable)?;
        if read == 0 {
            return Ok((batch, true));
        }
        *line += 1;
        let end = text.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        text.truncate(end);
        if !text.is_empty() {
            batch.push(args.message(text).map_err(|error| error.with_context("line", *line))?);
        }
    }
    Ok((batch, false))
}

fn unreadable(error: std::io::Error) -> Error {
    Error::new(ErrorKind::InvalidInput, "the payload cannot be read")
        .with_remedy("check that it is there, and that it may be read")
        .with_source(error)
}

impl Args {
    async fn read(&self) -> Result<Vec<u8>> {
        match (&self.payload, &self.file) {
            (_, Some(file)) => tokio::fs::read(file).await.map_err(unreadable),
            (Some(dash), None) if dash == "-" => {
                let mut payload = Vec::new();
                stdin().read_to_end(&mut payload).await.map_err(unreadable)?;
                Ok(payload)
            }
            (payload, None) => Ok(payload.clone().unwrap_or_default().into_bytes()),
        }
    }

    fn message(&self, payload: Vec<u8>) -> Result<NewMessage> {
        if payload.len() > DEFAULT_MAX_PAYLOAD_BYTES {
            let text = format!("the payload has more than {} bytes", number(DEFAULT_MAX_PAYLOAD_BYTES));
            return Err(Error::new(ErrorKind::InvalidInput, text)
                .with_remedy("store the content elsewhere, and enqueue a reference to it"));
        }
        let content_type = content_type(self.content_type.as_deref(), &payload)?;
        let headers = self.header.iter().map(|text| header(text)).collect::<Result<Vec<_>>>()?;
        self.fill(NewMessage::bytes(&self.topic, payload).content_type(content_type).headers(headers)).build()
    }

    fn fill(&self, mut builder: MessageBuilder) -> MessageBuilder {
        builder = builder.priority(self.priority);
        if let Some(id) = self.id {
            builder = builder.id(id);
        }
        if let Some(order) = self.order {
            builder = builder.order(order);
        }
        for (value, set) in [
            (&self.key, MessageBuilder::key as fn(MessageBuilder, String) -> MessageBuilder),
            (&self.dedup, MessageBuilder::dedup_key),
            (&self.correlation, MessageBuilder::correlation_id),
            (&self.tenant, MessageBuilder::tenant_id),
        ] {
            if let Some(value) = value {
                builder = set(builder, value.clone());
            }
        }
        builder = match self.at.or(self.delay.map(When::After)) {
            Some(When::After(delay)) => builder.delay(delay),
            Some(When::At(time)) => builder.due_at(time),
            _ => builder,
        };
        match self.expires {
            Some(When::After(delay)) => builder.expires_after(delay),
            Some(When::At(time)) => builder.expires_at(time),
            _ => builder,
        }
    }
}

/// The content type: JSON if the payload parses as that, else the given one.
fn content_type(said: Option<&str>, payload: &[u8]) -> Result<String> {
    let is_json = serde_json::from_slice::<serde::de::IgnoredAny>(payload).is_ok();
    match said {
        Some(said) if is_json || !(said == JSON || said.ends_with("+json")) => Ok(said.to_owned()),
        None if is_json => Ok(JSON.to_owned()),
        _ => Err(Error::new(ErrorKind::InvalidInput, "the payload is not JSON")
            .with_remedy("write it as JSON, or say what it is, as in --content-type text/plain")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_json_needs_another_content_type() {
        assert_eq!(content_type(None, b"{\"a\": 1}").unwrap(), JSON);
        assert_eq!(content_type(Some("text/plain"), b"hello").unwrap(), "text/plain");
        assert_eq!(content_type(Some("text/plain"), b"7").unwrap(), "text/plain");
        for said in [None, Some(JSON), Some("application/cloudevents+json")] {
            assert!(content_type(said, b"hello").is_err(), "{said:?}");
        }
    }

    #[test]
    fn headers_are_pairs() {
        assert_eq!(header("a=b=c").unwrap(), ("a".to_owned(), "b=c".to_owned()));
        assert!(header("secret").is_err_and(|error| !error.to_string().contains("secret")));
    }
}
