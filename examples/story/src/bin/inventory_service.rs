//! Reserves the stock of orders. The broker may deliver an order twice, and this service may be killed at any moment: the row in
//! its inbox and the reservation are saved in one transaction, and the broker is told afterwards.

use std::path::Path;
use std::time::Duration;

use posthaste::rabbitmq::{DeadLetter, RabbitConsumer, RabbitServer};
use posthaste::{
    Consume, Consumer, HandlerError, HandlerResult, Inbox, Received, SqliteStore, shutdown_signal,
};
use posthaste_story::{Failure, OrderPlaced, broker, exchange, from_env, log, topology};
use sqlx::SqliteConnection;

/// What acts upon orders.
struct Inventory {
    /// How long it takes to look at the shelf.
    pace: Duration,
}

impl Consume<SqliteStore> for Inventory {
    async fn consume(&self, tx: &mut SqliteConnection, message: &Received) -> HandlerResult {
        // A payload that is no order will never become one.
        let order: OrderPlaced = message.json().map_err(HandlerError::dead)?;
        tokio::time::sleep(self.pace).await;
        sqlx::query("insert into reservation (order_id, item, quantity) values (?, ?, ?)")
            .bind(order.order_id)
            .bind(&order.item)
            .bind(order.quantity)
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "insert into stock (item, reserved) values (?, ?)
             on conflict (item) do update set reserved = reserved + excluded.reserved",
        )
        .bind(&order.item)
        .bind(order.quantity)
        .execute(&mut *tx)
        .await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    log();
    let store = SqliteStore::open(Path::new(&from_env("STORY_INVENTORY", "inventory.db"))).await?;
    store.migrate().await?;
    let mut connection = store.pool().acquire().await?;
    for table in [
        // Nothing here keeps an order from being reserved twice: the inbox does.
        "create table if not exists reservation (order_id integer not null, item text not null, quantity integer not null)",
        "create table if not exists stock (item text primary key, reserved integer not null)",
    ] {
        sqlx::query(table).execute(&mut *connection).await?;
    }
    drop(connection);

    let queue = from_env("STORY_QUEUE", "inventory");
    let dead = format!("{queue}.dead");
    let topology = topology().quorum_queue(&queue).bind(&queue, exchange(), "order.*").queue(&dead);
    let server = RabbitServer::new(&broker())?.declare(topology);
    let inventory = Inventory { pace: Duration::from_millis(from_env("STORY_PACE_MS", "0").parse()?) };
    let consumer = Consumer::new(Inbox::new(store, "inventory")?, inventory).max_attempts(5);
    RabbitConsumer::new(server, queue, DeadLetter::Queue(dead), consumer)?.run(shutdown_signal()).await?;
    Ok(())
}
