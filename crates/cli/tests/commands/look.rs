//! What only looks: status, list, show, migrate.

use std::time::Duration;

use posthaste::{Change, Filter, Outcome};

use crate::support::{Place, fail, message, on_both};

on_both!(
    an_empty_queue_is_said_in_sentences,
    status_counts_every_state,
    status_says_that_a_topic_may_be_missing,
    list_shows_what_matches,
    list_goes_on_where_it_ended,
    list_pages_until_its_limit,
    show_tells_everything_but_the_content,
    migrate_says_the_version,
);

async fn an_empty_queue_is_said_in_sentences(place: &Place) {
    place.run(&["status"]).exits(0).like("status-empty");
    place.run(&["list"]).exits(0).says("no messages match");
    place.run(&["list", "--state", "dead"]).exits(0).says("no dead messages match");
    assert_eq!(place.json(&["list"]), serde_json::json!({ "messages": [], "next": null }));
}

/// One message in each of six states, two of them of one topic.
async fn six(place: &Place) {
    place.publish(message("order.placed")).await;
    place.settle(Outcome::Ack).await;
    place.kill(message("order.placed").key("k").order(posthaste::OrderPolicy::Park)).await;
    place.publish(message("order.shipped").key("k")).await;
    assert_eq!(place.store.park(10).await.unwrap(), 1);
    place.publish(message("order.placed").key("lease")).await;
    assert_eq!(place.claim(Duration::from_secs(3_000)).await.len(), 1);
    place.publish(message("invoice.sent").delay(Duration::from_secs(3_600))).await;
    place.publish(message("invoice.sent")).await;
}

async fn status_counts_every_state(place: &Place) {
    six(place).await;
    place.store.pause("invoice.*", "ada", "printer is broken").await.unwrap();
    place.run(&["status"]).exits(0).like("status");
    place.run(&["status", "--json"]).exits(0).like("status-json");
}

async fn list_shows_what_matches(place: &Place) {
    six(place).await;
    place.run(&["list"]).exits(0).like("list").never("canary");
    place.run(&["list", "--state", "dead", "--json"]).exits(0).like("list-json").never("canary");
    let count = |args: &[&str]| {
        let args: Vec<&str> = ["list"].iter().chain(args).copied().collect();
        place.json(&args)["messages"].as_array().unwrap().len()
    };
    assert_eq!(count(&["--topic", "order.*"]), 4);
    assert_eq!(count(&["--topic", "order.placed", "--topic", "invoice.sent"]), 5);
    assert_eq!(count(&["--key", "k"]), 2);
    assert_eq!(count(&["--state", "ready"]), 3);
    assert_eq!(count(&["--class", "permanent"]), 1);
    assert_eq!(count(&["--from", "1h"]), 6);
    assert_eq!(count(&["--before", "1h"]), 0);
    assert_eq!(count(&["--from", "2020-01-01T00:00:00Z", "--before", "2020-01-02T00:00:00Z"]), 0);
    assert_eq!(count(&["--tenant", "nobody"]) + count(&["--correlation", "nothing"]), 0);
}

async fn list_goes_on_where_it_ended(place: &Place) {
    for _ in 0..5 {
        place.publish(message("t")).await;
    }
    let first = place.json(&["list", "--limit", "3"]);
    assert_eq!(first["messages"].as_array().unwrap().len(), 3);
    let next = first["next"].to_string();
    let second = place.json(&["list", "--limit", "3", "--after", &next]);
    assert_eq!(
        (second["messages"].as_array().unwrap().len(), &second["next"]),
        (2, &serde_json::Value::Null)
    );
    assert_ne!(first["messages"][2]["id"], second["messages"][0]["id"]);
    place.run(&["list", "--limit", "3"]).exits(0).warns(&format!("--after {next}"));
}

async fn list_pages_until_its_limit(place: &Place) {
    let messages: Vec<_> = (0..450).map(|_| message("t").build().unwrap()).collect();
    place.store.enqueue(&messages).await.unwrap();
    let all = place.json(&["list", "--limit", "1000"]);
    assert_eq!((all["messages"].as_array().unwrap().len(), &all["next"]), (450, &serde_json::Value::Null));
    let most = place.json(&["list", "--limit", "410"]);
    assert_eq!(most["messages"].as_array().unwrap().len(), 410);
    assert!(most["next"].is_number());
}

async fn show_tells_everything_but_the_content(place: &Place) {
    let builder = message("order.placed").key("customer-12").correlation_id("request-9").tenant_id("eu");
    let id = place.kill(builder.aggregate("order", 7)).await;
    let filter = Filter { ids: vec![id], ..Filter::default() };
    place.store.requeue(&Change::new(filter, "ada", "card was renewed").unwrap()).await.unwrap();
    place.settle(fail("card refused again")).await;
    let id = id.to_string();
    place.run(&["show", &id]).exits(0).like("show").never("canary");
    place.run(&["show", &id, "--json"]).exits(0).like("show-json").never("canary");
    place.run(&["show", &id, "--payload"]).exits(0).says("payload-canary").says("h: header-canary");
    let json = place.json(&["show", &id, "--payload"]);
    assert_eq!(json["content"]["headers"]["h"], "header-canary");
    place.run(&["show", "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11"]).exits(3).warns("posthaste why");
}

async fn migrate_says_the_version(place: &Place) {
    place.run(&["migrate"]).exits(0).says("the tables are at version");
    assert!(place.json(&["migrate"])["version"].is_number());
    place.run(&["migrate", "--print"]).exits(0).says("create table");
}

/// More of one topic than are counted: another one behind them may be missing, and that is said.
async fn status_says_that_a_topic_may_be_missing(place: &Place) {
    let many: Vec<_> = (0..10_100).map(|_| message("mail.bulk").build().unwrap()).collect();
    for batch in many.chunks(200) {
        place.store.enqueue(batch).await.unwrap();
    }
    place.publish(message("pay.urgent")).await;
    place.run(&["status"]).exits(0).says("there may be more topics");
    assert_eq!(place.json(&["status"])["topics_complete"], false);
    place.run(&["list", "--topic", "pay.urgent"]).exits(0).says("pay.urgent");
}
