//! Takes orders by HTTP. An order and its event are saved in one transaction, and the service answers the customer at once,
//! whether the broker and its consumers are up or not.

use std::path::Path;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use posthaste::rabbitmq::{RabbitOptions, RabbitSink};
use posthaste::{Outbox, Settings, SqliteStore, shutdown_signal};
use posthaste_story::{Failure, OrderPlaced, broker, exchange, from_env, log, topology};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct NewOrder {
    item: String,
    quantity: i64,
}

#[derive(Serialize)]
struct Order {
    order_id: i64,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    log();
    let store = SqliteStore::open(Path::new(&from_env("STORY_ORDERS", "orders.db"))).await?;
    store.migrate().await?;
    let mut connection = store.pool().acquire().await?;
    sqlx::query("create table if not exists orders (id integer primary key, item text not null, quantity integer not null)")
        .execute(&mut *connection)
        .await?;
    drop(connection);

    let sink =
        RabbitSink::new(RabbitOptions::new(&broker(), exchange())?.source("orders").declare(topology()))?;
    let settings = Settings::from_env("POSTHASTE_")?;
    let outbox = Outbox::builder(store).settings(settings).sink("order.*", sink).build().await?;

    let listener = tokio::net::TcpListener::bind(from_env("STORY_LISTEN", "127.0.0.1:8080")).await?;
    announce(&format!("orders are taken at http://{}/orders", listener.local_addr()?));
    let app = Router::new().route("/orders", post(place)).with_state(outbox.clone());

    let shutdown = shutdown_signal();
    let stop = shutdown.clone();
    let serving = axum::serve(listener, app).with_graceful_shutdown(async move { stop.begun().await });
    let (served, ran) = tokio::join!(serving, outbox.run(shutdown));
    served?;
    Ok(ran?)
}

async fn place(
    State(outbox): State<Outbox<SqliteStore>>,
    Json(order): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), (StatusCode, String)> {
    let order_id = save(&outbox, order).await.map_err(|error| {
        // The customer may try again: nothing was saved.
        (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    })?;
    Ok((StatusCode::CREATED, Json(Order { order_id })))
}

async fn save(outbox: &Outbox<SqliteStore>, order: NewOrder) -> Result<i64, Failure> {
    let mut tx = outbox.begin().await?;
    let order_id = sqlx::query("insert into orders (item, quantity) values (?, ?)")
        .bind(&order.item)
        .bind(order.quantity)
        .execute(&mut *tx)
        .await?
        .last_insert_rowid();
    tx.publish(&OrderPlaced { order_id, item: order.item, quantity: order.quantity }).await?;
    tx.commit().await?;
    Ok(order_id)
}

#[allow(clippy::print_stdout, reason = "how whoever started it learns the address")]
fn announce(line: &str) {
    println!("{line}");
}
