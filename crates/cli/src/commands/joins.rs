//! `posthaste joins`: joins that match, or one with its steps.

use posthaste::store::admin::MAX_PAGE;
use posthaste::{Error, ErrorKind, Join, JoinFilter, JoinId, JoinStatus, MessageId, Result, Step};
use serde::Serialize;

use crate::exit::Exit;
use crate::filter::status_parser;
use crate::human::{away, now, number};
use crate::output::{Output, Table};
use crate::target::{AnyStore, Target};
use crate::view::{JoinView, StepView};

/// List joins, in the order of their making; or show one with its steps
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  posthaste joins --status pending\n  posthaste joins 0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11\n  \
                        posthaste joins --message 0198c7a1-8f00-7cc0-b3a5-0d7d3f0b9a12"
)]
pub(crate) struct Args {
    /// This one, with its steps
    id: Option<JoinId>,
    /// With this status
    #[arg(long, value_parser = status_parser(), conflicts_with = "id", help_heading = "Which joins")]
    status: Option<JoinStatus>,
    /// Of this grouping key
    #[arg(long, value_name = "KEY", conflicts_with = "id", help_heading = "Which joins")]
    group: Option<String>,
    /// With this message as a step
    #[arg(long, value_name = "ID", conflicts_with = "id", help_heading = "Which joins")]
    message: Option<MessageId>,
    /// The most joins, or steps, to list
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Go on where the list before ended: its `next`
    #[arg(long, value_name = "ID")]
    after: Option<JoinId>,
    #[command(flatten)]
    target: Target,
}

#[derive(Serialize)]
struct Listed {
    joins: Vec<JoinView>,
    next: Option<JoinId>,
}

#[derive(Serialize)]
struct One {
    #[serde(flatten)]
    join: JoinView,
    steps: Vec<StepView>,
    next: Option<MessageId>,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    let store = args.target.open().await?;
    match args.id {
        Some(id) => show(&args, id, &*store, output).await,
        None => list(&args, &*store, output).await,
    }
}

async fn list(args: &Args, store: &dyn AnyStore, output: &Output) -> Result<Exit> {
    let filter = JoinFilter { grouping_key: args.group.clone(), status: args.status, message: args.message };
    filter.check()?;
    let (mut joins, mut next): (Vec<Join>, _) = (Vec::new(), args.after);
    loop {
        let page = store.joins(&filter, next, left(args.limit, joins.len())).await?;
        joins.extend(page.joins);
        next = page.next;
        if next.is_none() || joins.len() >= args.limit as usize {
            break;
        }
    }
    output.answer(&Listed { joins: joins.iter().map(JoinView::from).collect(), next }, || {
        match joins.is_empty() {
            true => "no joins match".to_owned(),
            false => table(&joins).render(),
        }
    });
    if let (Some(next), false) = (next, output.is_json()) {
        output.say(format!("there are more: go on with --after {next}"));
    }
    Ok(Exit::Done)
}

async fn show(args: &Args, id: JoinId, store: &dyn AnyStore, output: &Output) -> Result<Exit> {
    let join = store.join(id).await?.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "no such join is stored here")
            .with_context("join", id)
            .with_remedy("check the id and the store; it may have been pruned")
    })?;
    let (mut steps, mut next): (Vec<Step>, _) = (Vec::new(), None);
    loop {
        let page = store.steps(id, next, left(args.limit, steps.len())).await?;
        steps.extend(page.steps);
        next = page.next;
        if next.is_none() || steps.len() >= args.limit as usize {
            break;
        }
    }
    let one = One { join: (&join).into(), steps: steps.iter().map(StepView::from).collect(), next };
    output
        .answer(&one, || format!("{}\n{}", table(std::slice::from_ref(&join)).render(), steps_text(&steps)));
    Ok(Exit::Done)
}

/// The size of the next page.
fn left(limit: u32, have: usize) -> u32 {
    limit.saturating_sub(u32::try_from(have).unwrap_or(limit)).clamp(1, MAX_PAGE)
}

fn table(joins: &[Join]) -> Table {
    let now = now();
    let heads = ["id", "status", ">expected", ">attached", ">done", ">failed", "started", "group"];
    let mut table = Table::new(&heads);
    for join in joins {
        table.row([
            join.id.to_string(),
            join.status.to_string(),
            number(join.expected_steps),
            number(join.attached_steps),
            number(join.completed_steps),
            number(join.failed_steps),
            away(join.created_at, now),
            join.grouping_key.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn steps_text(steps: &[Step]) -> String {
    if steps.is_empty() {
        return "no steps are attached".to_owned();
    }
    let now = now();
    let mut table = Table::new(&["message", "step", "since"]);
    for step in steps {
        table.row([step.message.to_string(), step.status.to_string(), away(step.updated_at, now)]);
    }
    table.render()
}
