//! A join whose steps may fail: a report of five sections is assembled from the sections that succeeded. `cargo run
//! --example partial_failure --features sqlite`
//!
//! `fail_if_any_step_failed(false)` says that failed steps do not matter; the assembling handler asks which ones
//! there are.

#![allow(clippy::print_stdout, reason = "it is for looking at")]

use posthaste::{
    Delivery, Event, HandlerError, HandlerResult, JoinId, JoinStatus, JoinWait, NewJoin, Outbox, Shared,
    SqliteStore, StepStatus, StoreAdmin,
};
use serde::{Deserialize, Serialize};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// One step: make a section of a report.
#[derive(Serialize, Deserialize)]
struct MakeSection {
    report: i64,
    section: u32,
}

impl Event for MakeSection {
    const TOPIC: &'static str = "report.section";
}

/// Sent when every section was made, or given up.
#[derive(Serialize, Deserialize)]
struct Assemble {
    report: i64,
    join: JoinId,
}

impl Event for Assemble {
    const TOPIC: &'static str = "report.assemble";
}

async fn make_section(step: Delivery<MakeSection>) -> HandlerResult {
    if step.section == 3 {
        return Err(HandlerError::dead("its data is lost"));
    }
    println!("section {} of report {} is made", step.section, step.report);
    Ok(())
}

async fn assemble(next: Delivery<Assemble>, Shared(store): Shared<SqliteStore>) -> HandlerResult {
    let steps = store.steps(next.join, None, 200).await?.steps;
    let made = steps.iter().filter(|step| step.status == StepStatus::Completed).count();
    println!("report {}: assembled from {made} of {} sections", next.report, steps.len());
    Ok(())
}

#[tokio::main]
async fn main() -> Result {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("reports.db")).await?;
    store.migrate().await?;
    let outbox =
        Outbox::builder(store.clone()).on(make_section).on(assemble).share(store.clone()).build().await?;

    let (report, join) = (456, JoinId::new());
    let sections: Vec<MakeSection> = (1..=5).map(|section| MakeSection { report, section }).collect();
    let mut tx = outbox.begin().await?;
    tx.start_join(
        NewJoin::of(&sections)
            .id(join)
            .grouping_key(format!("report-{report}"))
            .wait(JoinWait::on_complete(&Assemble { report, join }).fail_if_any_step_failed(false)),
    )
    .await?;
    tx.commit().await?;

    let done = outbox.drain().await?;

    let join = store.join(join).await?.ok_or("the join is gone")?;
    println!("{} completed, {} failed: the join is {}", join.completed_steps, join.failed_steps, join.status);
    // That a step failed is a fact; that the report is assembled all the same is the wait's policy.
    assert_eq!((join.status, join.completed_steps, join.failed_steps), (JoinStatus::Failed, 4, 1));
    assert_eq!((done.delivered, done.dead), (6, 1));
    Ok(())
}

#[test]
fn it_holds() {
    main().unwrap();
}
