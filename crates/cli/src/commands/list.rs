//! `posthaste list`: messages that match, in the order of enqueueing.

use std::time::SystemTime;

use posthaste::store::admin::MAX_PAGE;
use posthaste::words::duration;
use posthaste::{Cursor, MessageId, Record, Result, State, WorkItemId};
use serde::Serialize;

use crate::exit::Exit;
use crate::filter::FilterArgs;
use crate::human::{away, columns, cut, now, number};
use crate::output::{Output, Table};
use crate::target::Target;
use crate::view::MessageView;

/// List messages, in the order of enqueueing
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  posthaste list --state dead --topic 'order.*' --from 2h\n  \
                        posthaste list --key customer-12 --json | jq '.messages[].id'")]
pub(crate) struct Args {
    /// The most messages to list
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Go on where the list before ended: its `next`
    #[arg(long, value_name = "CURSOR")]
    after: Option<i64>,
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    filter: FilterArgs,
    /// With this id; may be repeated
    #[arg(long = "id", value_name = "ID", help_heading = "Which messages")]
    ids: Vec<MessageId>,
}

#[derive(Serialize)]
struct Answer {
    messages: Vec<MessageView>,
    next: Option<Cursor>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let filter = args.filter.filter(&args.ids)?;
    let store = args.target.open().await?;
    let mut records: Vec<Record> = Vec::new();
    let mut next = args.after.map(|item| Cursor::after(WorkItemId::new(item)));
    loop {
        let left = args.limit - u32::try_from(records.len()).unwrap_or(args.limit);
        let page = store.list(&filter, next, left.min(MAX_PAGE)).await?;
        next = page.next;
        records.extend(page.records);
        if next.is_none() || records.len() >= args.limit as usize {
            break;
        }
    }
    let answer = Answer { messages: records.iter().map(MessageView::new).collect(), next };
    output.answer(&answer, || match records.is_empty() {
        true => nothing(args.filter.state),
        false => table(&records, now()).render(),
    });
    if let (Some(next), false) = (next, output.is_json()) {
        output.say(format!("there are more: go on with --after {}", next.item()));
    }
    Ok(Exit::Done)
}

fn nothing(state: Option<State>) -> String {
    match state {
        Some(state) => format!("no {state} messages match"),
        None => "no messages match".to_owned(),
    }
}

fn table(records: &[Record], now: SystemTime) -> Table {
    let mut table = Table::new(&["id", "topic", "state", ">attempts", "when", "error"]).fit(columns());
    for record in records {
        let message = &record.message;
        table.row([
            message.id.to_string(),
            message.topic.to_string(),
            record.state.to_string(),
            number(message.attempts),
            when(record, now),
            error(record),
        ]);
    }
    table
}

/// The relevant time of a message, by its state.
pub(super) fn when(record: &Record, now: SystemTime) -> String {
    match record.state {
        State::Ready if record.parked => "parked".to_owned(),
        State::Ready => match now.duration_since(record.message.due_at) {
            Ok(age) => format!("waits {}", duration(age)),
            Err(ahead) => format!("due in {}", duration(ahead.duration())),
        },
        State::Leased => match record.leased_until.map(|until| until.duration_since(now)) {
            Some(Ok(left)) => format!("{} left", duration(left)),
            Some(Err(over)) => format!("ran out {} ago", duration(over.duration())),
            None => String::new(),
        },
        State::Done | State::Dead => record.done_at.map(|at| away(at, now)).unwrap_or_default(),
    }
}

fn error(record: &Record) -> String {
    let class = record.error_class.map(|class| class.to_string()).unwrap_or_default();
    match &record.last_error {
        Some(text) => {
            // The class says it already.
            let text = text.trim_start_matches("[BUSINESS] ").trim_start_matches("[INFRA] ");
            cut(&format!("{class}: {text}"), 200)
        }
        None => class,
    }
}
