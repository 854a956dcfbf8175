//! `posthaste show`: everything that is stored about one message, and what operators did to it.
//!
//! Payload and headers are shown only with `--payload`.

use posthaste::{HistoryEntry, MessageId, Record, Result};
use serde::Serialize;

use super::list::when;
use super::unknown_message;
use crate::exit::Exit;
use crate::human::{away, now, number, printable, printable_lines};
use crate::output::{Output, Table};
use crate::target::Target;
use crate::view::{HistoryView, MessageView, ReceiverView};

/// Show one message, and what operators did to it
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  posthaste show 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11\n  \
                        posthaste show 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11 --payload")]
pub(crate) struct Args {
    /// Which message
    id: MessageId,
    /// Show its payload and headers, too
    #[arg(long)]
    payload: bool,
    #[command(flatten)]
    target: Target,
}

#[derive(Serialize)]
struct Answer {
    #[serde(flatten)]
    message: MessageView,
    headers: usize,
    history: Vec<HistoryView>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    let (record, history) = store.show(args.id).await?.ok_or_else(|| unknown_message(args.id))?;
    let message = if args.payload { MessageView::with_content(&record) } else { MessageView::new(&record) };
    let answer = Answer {
        message,
        headers: record.message.headers.len(),
        history: history.iter().map(HistoryView::from).collect(),
    };
    output.answer(&answer, || {
        let mut text = facts(&record, &answer.message);
        if args.payload {
            text.push_str(&content(&answer.message));
        }
        text.push_str(&actions(&history));
        text
    });
    Ok(Exit::Done)
}

/// One fact a line; empty fields are left out.
fn facts(record: &Record, view: &MessageView) -> String {
    let message = &record.message;
    let state = format!("{}, {}", view.state, when(record, now()));
    let failure = view.last_error.as_ref().map(|error| match &view.error_class {
        Some(class) => format!("{class}: {error}"),
        None => error.clone(),
    });
    let priority = (message.priority != 0).then(|| message.priority.to_string());
    let losses = (message.lease_losses > 0).then(|| number(message.lease_losses));
    let receivers =
        message.receivers().into_iter().map(ReceiverView::from).map(|receiver| match receiver.error {
            Some(error) => format!("{} {}: {error}", receiver.name, receiver.state),
            None => format!("{} {}", receiver.name, receiver.state),
        });
    let receivers = Some(receivers.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty());
    let size = format!("{} bytes, {}", number(message.payload.len()), message.content_type);
    let facts = [
        ("id", Some(view.id.clone())),
        ("topic", Some(view.topic.clone())),
        ("state", Some(state)),
        ("key", view.key.clone()),
        ("order", view.key.as_ref().map(|_| view.order.clone())),
        ("priority", priority),
        ("attempts", Some(number(message.attempts))),
        ("lease losses", losses),
        ("failure", failure),
        ("failing since", view.failing_since.clone()),
        ("created", Some(view.created_at.clone())),
        ("occurred", (view.occurred_at != view.created_at).then(|| view.occurred_at.clone())),
        ("due", view.due_at.clone()),
        ("expires", view.expires_at.clone()),
        ("leased until", view.leased_until.clone()),
        ("worker", view.worker.clone()),
        ("ended", view.done_at.clone()),
        ("delivered by", view.done_by.clone()),
        ("receivers", receivers),
        ("correlation id", view.correlation_id.clone()),
        (
            "aggregate",
            view.aggregate_type
                .clone()
                .zip(view.aggregate_id.clone())
                .map(|(kind, id)| format!("{kind} {id}")),
        ),
        ("tenant", view.tenant_id.clone()),
        ("payload", Some(size)),
        ("headers", Some(number(message.headers.len()))),
    ];
    let there = facts.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    there.map(|(name, value)| format!("{name:<14}  {}\n", printable(&value))).collect()
}

fn content(view: &MessageView) -> String {
    let Some(content) = &view.content else { return String::new() };
    let mut text = String::new();
    for (name, value) in &content.headers {
        text.push_str(&format!("\n{}: {}", printable(name), printable(value)));
    }
    let payload = match (&content.text, &content.base64) {
        (Some(text), _) => printable_lines(text),
        (None, Some(base64)) => format!("base64: {base64}"),
        (None, None) => String::new(),
    };
    format!("{text}\n\n{payload}\n")
}

fn actions(history: &[HistoryEntry]) -> String {
    if history.is_empty() {
        return String::new();
    }
    let now = now();
    let mut table = Table::new(&["when", "what", "by", "why"]);
    for entry in history {
        table.row([away(entry.at, now), entry.action.clone(), entry.by.clone(), entry.why.clone()]);
    }
    format!("\n{}", table.render())
}
