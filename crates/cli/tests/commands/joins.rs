//! Joins: lists, and one with its steps.

use posthaste::{NewJoin, Outcome};

use crate::support::{Place, message, on_both};

on_both!(joins_are_listed_and_shown);

async fn joins_are_listed_and_shown(place: &Place) {
    place.run(&["joins"]).exits(0).says("no joins match");
    let steps = [message("step"), message("step")];
    let started = place.start_join(NewJoin::of(steps).grouping_key("order-7")).await;
    place.start_join(NewJoin::expecting(1)).await;
    place.settle(Outcome::Ack).await;
    let id = started.id.to_string();
    place.run(&["joins"]).exits(0).like("joins");
    place.run(&["joins", &id]).exits(0).like("joins-one");
    place.run(&["joins", &id, "--json"]).exits(0).like("joins-one-json");
    let count = |args: &[&str]| {
        let args: Vec<&str> = ["joins"].iter().chain(args).copied().collect();
        place.json(&args)["joins"].as_array().unwrap().len()
    };
    assert_eq!((count(&["--status", "pending"]), count(&["--status", "completed"])), (1, 1));
    assert_eq!((count(&["--group", "order-7"]), count(&["--group", "order-8"])), (1, 0));
    assert_eq!(count(&["--message", &started.steps[0].id().to_string()]), 1);
    let first = place.json(&["joins", "--limit", "1"]);
    let next = first["next"].as_str().unwrap();
    assert_eq!(place.json(&["joins", "--after", next])["joins"].as_array().unwrap().len(), 1);
    place.run(&["joins", "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11"]).exits(3).warns("no such join");
    place.run(&["joins", "--status", "odd"]).exits(2).warns("pending");
}
