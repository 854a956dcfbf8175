//! Pause and resume.

use std::time::Duration;

use serde_json::json;

use crate::support::{Place, message, on_both};

on_both!(what_is_paused_is_not_claimed_until_it_is_resumed, pauses_are_listed, wrong_pauses_are_refused);

async fn what_is_paused_is_not_claimed_until_it_is_resumed(place: &Place) {
    place.publish(message("order.placed")).await;
    place.run(&["pause", "order.*", "--why", "warehouse moves"]).exits(0).says("order.* is paused");
    assert!(place.claim(Duration::from_secs(9)).await.is_empty());
    place.run(&["pause", "order.*", "--why", "again"]).exits(0).says("was paused already");
    place.run(&["resume", "order.*"]).exits(0).says("order.* is resumed");
    assert_eq!(place.claim(Duration::from_secs(9)).await.len(), 1);
    place.run(&["resume", "order.*"]).exits(3).says("order.* is not paused").warns("nothing is paused");
}

async fn pauses_are_listed(place: &Place) {
    place.run(&["pause"]).exits(0).says("nothing is paused");
    assert_eq!(place.json(&["pause"]), json!({ "paused": [] }));
    let answer = place.json(&["pause", "a", "b.*", "--why", "broker moves", "--by", "grace"]);
    assert_eq!(answer, json!({ "paused": ["a", "b.*"], "paused_before": [] }));
    place.run(&["pause"]).exits(0).like("pause");
    place.run(&["pause", "--json"]).exits(0).like("pause-json");
    place.run(&["resume", "b"]).exits(3).warns("b.*");
    let answer = place.run(&["resume", "a", "odd", "--json"]).exits(3).json();
    assert_eq!(answer, json!({ "resumed": ["a"], "not_paused": ["odd"] }));
}

async fn wrong_pauses_are_refused(place: &Place) {
    place.run(&["pause", "a"]).exits(2).warns("--why");
    place.run(&["pause", "good", "a.*.b", "--why", "x"]).exits(2).warns("last character");
    place.run(&["resume"]).exits(2);
    assert!(place.store.pauses().await.unwrap().is_empty());
}
