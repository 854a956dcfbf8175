//! Why: every reason that a real store can be brought to give.

use std::time::Duration;

use posthaste::{Change, Failure, Filter, MessageId, OrderPolicy, Outcome};

use crate::support::{Place, fail, message, on_both, until};

on_both!(
    every_reason_has_its_sentence,
    a_lease_that_ran_out_is_told,
    an_expiry_that_passed_is_told,
    keys_are_held_back_by_the_first_open_message,
    a_session_that_holds_the_row_is_named,
);

fn reason(place: &Place, id: MessageId) -> String {
    let json = place.json(&["why", &id.to_string()]);
    json["reasons"][0]["reason"].as_str().unwrap().to_owned()
}

async fn every_reason_has_its_sentence(place: &Place) {
    let unknown = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";
    place.run(&["why", unknown]).exits(3).like("why-unknown");

    let done = place.publish(message("t")).await;
    place.settle(Outcome::Ack).await;
    place.run(&["why", &done.to_string()]).exits(0).like("why-done");

    let dead = place.kill(message("t")).await;
    place.run(&["why", &dead.to_string()]).exits(0).like("why-dead");

    let retry = place.publish(message("t")).await;
    let failure = Failure::business("out of stock");
    let delay = Duration::from_secs(600);
    place.settle(Outcome::Abandon { delay, failure, max_attempts: 9, max_age: None }).await;
    place.run(&["why", &retry.to_string()]).exits(0).like("why-retry");

    let scheduled = place.publish(message("t").delay(Duration::from_secs(600))).await;
    place.run(&["why", &scheduled.to_string()]).exits(0).like("why-scheduled");

    let leased = place.publish(message("t")).await;
    place.claim(Duration::from_secs(600)).await;
    place.run(&["why", &leased.to_string(), "--json"]).exits(0).like("why-leased-json");

    let buried = place.publish(message("t")).await;
    let filter = Filter { ids: vec![buried], ..Filter::default() };
    place.store.bury(&Change::new(filter, "ada", "customer left").unwrap()).await.unwrap();
    place.run(&["why", &buried.to_string()]).exits(0).like("why-buried");

    let free = place.publish(message("t")).await;
    place.run(&["why", &free.to_string()]).exits(0).like("why-nothing");

    place.store.pause("t*", "ada", "broker moves").await.unwrap();
    place.run(&["why", &free.to_string()]).exits(0).like("why-paused");
}

async fn a_lease_that_ran_out_is_told(place: &Place) {
    let id = place.publish(message("t")).await;
    place.claim(Duration::from_millis(1)).await;
    until("the lease has run out", || reason(place, id) == "lease_ran_out").await;
    place.run(&["why", &id.to_string()]).exits(0).says("worker-7 had it and fell silent");
    place.store.reap(10).await.unwrap();
    assert_eq!(reason(place, id), "suspect");
}

async fn an_expiry_that_passed_is_told(place: &Place) {
    let id = place.publish(message("t").expires_after(Duration::from_millis(1))).await;
    until("it has expired", || reason(place, id) == "expiry_passed").await;
    place.store.expire(10).await.unwrap();
    assert_eq!(reason(place, id), "expired");
}

async fn keys_are_held_back_by_the_first_open_message(place: &Place) {
    let first = place.publish(message("t").key("key-canary")).await;
    place.publish(message("t").key("key-canary")).await;
    let last = place.publish(message("t").key("key-canary")).await.to_string();
    let says = |says: &str| {
        place.run(&["why", &last]).exits(0).says(&first.to_string()).says(says).never("canary");
    };
    says("ready) of its key comes first");
    place.claim(Duration::from_secs(60)).await;
    says("leased) of its key comes first");

    let dead = place.kill(message("t").key("another").order(OrderPolicy::Park)).await;
    let parked = place.publish(message("t").key("another")).await;
    let blocked = place.run(&["why", &parked.to_string()]).exits(0);
    blocked.says(&format!("its key is held back by message {dead} (t, dead: permanent)"));
    place.store.park(10).await.unwrap();
    place.run(&["why", &parked.to_string()]).exits(0).says(&format!("parked behind message {dead}"));
}

/// Only where the store can tell.
async fn a_session_that_holds_the_row_is_named(place: &Place) {
    let id = place.publish(message("t")).await;
    if !place.is_postgres() {
        assert_eq!(reason(place, id), "nothing");
        return;
    }
    use sqlx_core::connection::Connection as _;
    use sqlx_core::executor::Executor as _;
    use sqlx_core::raw_sql::raw_sql;
    use sqlx_core::sql_str::AssertSqlSafe;
    let mut connection = sqlx_postgres::PgConnection::connect(&place.url).await.unwrap();
    let lock = format!("begin; select 1 from {} where message_id = '{id}' for update", place.table());
    connection.execute(raw_sql(AssertSqlSafe(lock))).await.unwrap();
    assert_eq!(reason(place, id), "held");
    place.run(&["why", &id.to_string()]).exits(0).says("keeps its row locked");
    connection.close().await.unwrap();
    until("the row is free", || reason(place, id) == "nothing").await;
    place.settle(fail("over")).await;
}
