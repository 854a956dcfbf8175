//! A database per customer: one set of handlers for all of them, customers that come and go, and one whose file is
//! broken. `cargo run --example tenants --features sqlite`

#![allow(clippy::print_stdout, reason = "it is for looking at")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use posthaste::{
    Delivery, Discovery, Event, HandlerResult, Origin, Shutdown, SqliteDatabase, SqliteStore, Tenant, Tenants,
};
use serde::{Deserialize, Serialize};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    order_id: i64,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "order.placed";
}

async fn send_receipt(order: Delivery<OrderPlaced>, origin: Origin) -> HandlerResult {
    println!("  receipt for order {} of {}", order.order_id, origin.store());
    Ok(())
}

/// Every file in a folder is a customer. A real service would ask a table.
struct Folder(PathBuf);

impl Discovery for Folder {
    async fn discover(&self) -> posthaste::Result<Vec<Tenant>> {
        let failed = |error| {
            let what = "the customers' folder cannot be read";
            posthaste::Error::new(posthaste::ErrorKind::Unavailable, what).with_source(error)
        };
        let mut tenants = Vec::new();
        for file in std::fs::read_dir(&self.0).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            if let Some(key) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".db")) {
                let database = SqliteDatabase::new(format!("sqlite://{}", path.display()))?;
                tenants.push(Tenant::new(key, database));
            }
        }
        Ok(tenants)
    }
}

/// A new customer: the file, your tables, and the outbox's own.
async fn sign_up(folder: &Path, name: &str) -> Result {
    let store = SqliteStore::open(&folder.join(format!("{name}.db"))).await?;
    store.migrate().await?;
    sqlx::query("create table orders (id integer primary key)").execute(&store.pool()).await?;
    store.close().await;
    Ok(())
}

/// A request of a customer's: the order and its event in one transaction of that customer's own database.
async fn place_order(tenants: &Tenants, customer: &str, order_id: i64) -> Result {
    let outbox = tenants.outbox::<SqliteStore>(customer).await?;
    let mut tx = outbox.begin().await?;
    sqlx::query("insert into orders (id) values (?)").bind(order_id).execute(&mut *tx).await?;
    tx.publish(&OrderPlaced { order_id }).await?;
    tx.commit().await?;
    Ok(())
}

/// Waits until so many messages are done.
async fn done(tenants: &Tenants, count: u64) -> Result {
    for _ in 0..1_000 {
        if tenants.stats().await.total.done.value == count {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Err("not delivered within ten seconds".into())
}

#[tokio::main]
async fn main() -> Result {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    for customer in ["acme", "globex"] {
        sign_up(folder, customer).await?;
    }
    std::fs::write(folder.join("initech.db"), "this is no database")?;

    let tenants = Tenants::builder()
        .discover(Folder(folder.to_owned()))
        .refresh(Duration::from_secs(60))
        .on(send_receipt)
        .build()
        .await?;
    let shutdown = Shutdown::new();
    let running = tokio::spawn(tenants.run(shutdown.clone()));

    println!("two customers order:");
    place_order(&tenants, "acme", 1).await?;
    place_order(&tenants, "globex", 1).await?;
    place_order(&tenants, "acme", 2).await?;
    done(&tenants, 3).await?;

    println!("a new one is found when it is needed:");
    sign_up(folder, "hooli").await?;
    place_order(&tenants, "hooli", 1).await?;
    done(&tenants, 4).await?;

    println!("nobody knows this one:");
    let unknown = place_order(&tenants, "umbrella", 1).await;
    println!("  {}", unknown.err().ok_or("it was known")?);

    println!("all of them:");
    for tenant in tenants.list() {
        println!("  {}: {}", tenant.key, tenant.state.as_str());
    }
    let failing = tenants.list().into_iter().filter(|tenant| tenant.state.as_str() == "failing");
    assert_eq!(failing.map(|tenant| tenant.key.to_string()).collect::<Vec<_>>(), ["initech"]);

    shutdown.begin();
    running.await??;
    Ok(())
}

#[cfg(test)]
#[test]
fn it_does_what_it_says() -> Result {
    main()
}
