//! Fan-in: three extractions side by side, and the transformation when all of them are done.
//! `cargo run --example fan_in --features sqlite`
//!
//! The customer's row, the join, its three steps and what waits for it are written in one transaction. The handlers of the
//! steps know nothing of the join.

#![allow(clippy::print_stdout, reason = "it is for looking at")]

use posthaste::{
    Delivery, Event, HandlerResult, JoinStatus, JoinWait, NewJoin, Outbox, SqliteStore, StoreAdmin,
};
use serde::{Deserialize, Serialize};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// One step: extract a table of a customer's.
#[derive(Serialize, Deserialize)]
struct Extract {
    customer: i64,
    table: String,
}

impl Event for Extract {
    const TOPIC: &'static str = "etl.extract";
}

/// Sent when all steps are done.
#[derive(Serialize, Deserialize)]
struct Transform {
    customer: i64,
}

impl Event for Transform {
    const TOPIC: &'static str = "etl.transform";
}

/// Sent when one of them failed for good.
#[derive(Serialize, Deserialize)]
struct ExtractFailed {
    customer: i64,
}

impl Event for ExtractFailed {
    const TOPIC: &'static str = "etl.extract.failed";
}

async fn extract(step: Delivery<Extract>) -> HandlerResult {
    println!("extracting {} of customer {}", step.table, step.customer);
    Ok(())
}

async fn transform(next: Delivery<Transform>) -> HandlerResult {
    println!("all tables are here: transforming customer {}", next.customer);
    Ok(())
}

async fn apologise(failed: Delivery<ExtractFailed>) -> HandlerResult {
    println!("customer {} could not be extracted", failed.customer);
    Ok(())
}

#[tokio::main]
async fn main() -> Result {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("etl.db")).await?;
    store.migrate().await?;
    let outbox = Outbox::builder(store.clone()).on(extract).on(transform).on(apologise).build().await?;

    let customer = 12;
    let mut tx = outbox.begin().await?;
    sqlx::query("create table customers (id integer)").execute(&mut *tx).await?;
    sqlx::query("insert into customers values (?)").bind(customer).execute(&mut *tx).await?;
    let tables = ["customers", "orders", "products"];
    let join = tx
        .start_join(
            NewJoin::of(tables.map(|table| Extract { customer, table: table.to_owned() }).iter())
                .grouping_key(format!("customer-{customer}"))
                .metadata(r#"{"type": "etl", "phase": "extract"}"#)
                .wait(JoinWait::on_complete(&Transform { customer }).on_fail(&ExtractFailed { customer })),
        )
        .await?;
    tx.commit().await?; // all of it, or nothing

    // In a service: outbox.run(shutdown_signal()).await?
    let done = outbox.drain().await?;

    let join = store.join(join.id).await?.ok_or("the join is gone")?;
    println!(
        "{} of {} steps completed: the join is {}",
        join.completed_steps, join.expected_steps, join.status
    );
    // Three steps, the message that waited, and the continuation.
    assert_eq!((join.status, done.delivered), (JoinStatus::Completed, 5));
    Ok(())
}

#[test]
fn it_holds() {
    main().unwrap();
}
