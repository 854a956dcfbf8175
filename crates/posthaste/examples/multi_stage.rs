//! A workflow of two stages: the continuation of the first join starts the second.
//! `cargo run --example multi_stage --features sqlite`
//!
//! A handler may be called twice, so the second join has an id that follows from the message that starts it: starting the
//! same join again changes nothing, and publishes nothing.

#![allow(clippy::print_stdout, reason = "it is for looking at")]

use posthaste::{
    Delivery, Event, HandlerResult, JoinFilter, JoinId, JoinStatus, JoinWait, Message, NewJoin, NewMessage,
    Outbox, Shared, SqliteStore, StoreAdmin,
};
use serde::{Deserialize, Serialize};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Sent when all sources are ingested.
#[derive(Serialize, Deserialize)]
struct StartValidation {
    workflow: String,
}

impl Event for StartValidation {
    const TOPIC: &'static str = "workflow.start-validation";
}

/// Sent when everything is validated.
#[derive(Serialize, Deserialize)]
struct Publish {
    workflow: String,
}

impl Event for Publish {
    const TOPIC: &'static str = "workflow.publish";
}

/// What handlers need to publish; an outbox without handlers of its own.
type Publisher = Outbox<SqliteStore>;

async fn work(step: Message) -> HandlerResult {
    println!("{}", step.topic);
    Ok(())
}

async fn start_validation(
    next: Delivery<StartValidation>,
    Shared(outbox): Shared<Publisher>,
) -> HandlerResult {
    println!("all sources are here: validating {}", next.workflow);
    let workflow = next.workflow.clone();
    let mut tx = outbox.begin().await?;
    tx.start_join(
        NewJoin::of(
            ["validate.schema", "validate.business-rules"].map(|topic| NewMessage::json(topic, &workflow)),
        )
        .id(JoinId::from_uuid(*next.message().id.as_uuid()))
        .grouping_key(&workflow)
        .metadata(r#"{"stage": "validation"}"#)
        .wait(JoinWait::on_complete(&Publish { workflow: workflow.clone() })),
    )
    .await?;
    tx.commit().await?;
    Ok(())
}

async fn publish(last: Delivery<Publish>) -> HandlerResult {
    println!("everything is valid: publishing {}", last.workflow);
    Ok(())
}

#[tokio::main]
async fn main() -> Result {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("workflow.db")).await?;
    store.migrate().await?;
    let publisher = Outbox::builder(store.clone()).build().await?;
    let outbox = Outbox::builder(store.clone())
        .on_topic("ingest.*", work)
        .on_topic("validate.*", work)
        .on(start_validation)
        .on(publish)
        .share(publisher)
        .build()
        .await?;

    let workflow = "workflow-7".to_owned();
    let mut tx = outbox.begin().await?;
    tx.start_join(
        NewJoin::of(
            ["source1", "source2", "source3"]
                .map(|source| NewMessage::json(format!("ingest.{source}"), &workflow)),
        )
        .grouping_key(&workflow)
        .metadata(r#"{"stage": "ingestion"}"#)
        .wait(JoinWait::on_complete(&StartValidation { workflow: workflow.clone() })),
    )
    .await?;
    tx.commit().await?;

    outbox.drain().await?;

    let of_workflow = JoinFilter { grouping_key: Some(workflow), ..JoinFilter::default() };
    let stages = store.joins(&of_workflow, None, 200).await?.joins;
    for stage in &stages {
        println!("{}: {}", stage.metadata.as_deref().unwrap_or_default(), stage.status);
    }
    assert!(stages.len() == 2 && stages.iter().all(|stage| stage.status == JoinStatus::Completed));
    Ok(())
}

#[test]
fn it_holds() {
    main().unwrap();
}
