//! Prune: only ended messages and joins, only with consent.

use posthaste::Outcome;
use serde_json::json;

use crate::support::{Place, message, on_both, until};

on_both!(
    what_is_over_is_pruned,
    nothing_is_pruned_without_consent,
    dead_ones_and_joins_are_pruned_only_if_asked_for
);

async fn what_is_over_is_pruned(place: &Place) {
    let messages: Vec<_> = (0..1_020).map(|_| message("t").build().unwrap()).collect();
    place.store.enqueue(&messages).await.unwrap();
    while place.store.stats().await.unwrap().ready.value > 0 {
        place.settle(Outcome::Ack).await;
    }
    place.publish(message("t")).await;
    place.run(&["prune", "--done", "1h", "--yes"]).exits(0).says("0 messages pruned");
    until("all are pruned", || {
        place.run(&["prune", "--done", "1ms", "--yes"]).exits(0);
        place.json(&["status"])["done"]["value"] == 0
    })
    .await;
    assert_eq!(place.json(&["status"])["ready"]["value"], 1);
}

async fn nothing_is_pruned_without_consent(place: &Place) {
    place.publish(message("t")).await;
    place.settle(Outcome::Ack).await;
    place
        .run(&["prune", "--done", "0s"])
        .exits(2)
        .warns("Prune done messages older than 0 ms")
        .warns("--yes");
    place.run(&["prune", "--yes"]).exits(2).warns("--done");
    assert_eq!(place.json(&["status"])["done"]["value"], 1);
}

async fn dead_ones_and_joins_are_pruned_only_if_asked_for(place: &Place) {
    place.kill(message("t")).await;
    place.publish(message("t")).await;
    place.settle(Outcome::Ack).await;
    let mut archived = 0;
    until("the dead one is archived", || {
        let answer = place.json(&["prune", "--dead", "0s", "--archive", "--yes"]);
        archived += answer["messages"].as_u64().unwrap();
        archived == 1
    })
    .await;
    let answer = place.json(&["prune", "--joins", "0s", "--yes"]);
    assert_eq!(answer, json!({ "messages": 0, "joins": 0, "archived": false }));
    let status = place.json(&["status"]);
    assert_eq!((&status["done"]["value"], &status["dead"]["value"]), (&json!(1), &json!(0)));
}
