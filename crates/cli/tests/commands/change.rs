//! Requeue and bury: the choice, the confirmation, the history.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use posthaste::{ClaimRequest, Settlement, State, WorkerId};
use serde_json::json;

use crate::support::{Place, command, fail, message, on_both};

const WHY: [&str; 2] = ["--why", "cause is mended"];

on_both!(
    a_dead_message_is_requeued_by_its_id,
    a_dry_run_changes_nothing,
    many_need_a_yes_where_nobody_can_be_asked,
    filters_choose,
    a_limit_is_kept_and_calls_are_repeated,
    slow_more_than_one_choice_can_tell_are_requeued,
    a_rate_is_kept,
    an_interrupt_ends_it_between_two_calls,
    ids_that_cannot_be_changed_are_told,
    bury_gives_up_what_is_ready,
    nothing_named_is_refused,
);

fn run<'a>(verb: &'a str, args: &[&'a str]) -> Vec<&'a str> {
    [verb].into_iter().chain(args.iter().copied()).chain(WHY).collect()
}

async fn dead(place: &Place, topic: &str, count: usize) {
    let messages: Vec<_> = (0..count).map(|_| message(topic).build().unwrap()).collect();
    place.store.enqueue(&messages).await.unwrap();
    let mut left = count;
    while left > 0 {
        place.settle(fail("card refused")).await;
        left = left.saturating_sub(50);
    }
    assert_eq!(count_of(place, "dead").await, count as u64);
}

async fn count_of(place: &Place, state: &str) -> u64 {
    let stats = place.store.stats().await.unwrap();
    if state == "dead" { stats.dead.value } else { stats.ready.value }
}

async fn a_dead_message_is_requeued_by_its_id(place: &Place) {
    let id = place.kill(message("t")).await;
    let text = id.to_string();
    place.run(&run("requeue", &[&text])).exits(0).like("requeue");
    let (record, history) = place.store.show(id).await.unwrap().unwrap();
    assert_eq!((record.state, record.message.attempts), (State::Ready, 0));
    assert_eq!((history[0].by.as_str(), history[0].why.as_str()), ("ada@desk", "cause is mended"));
}

async fn a_dry_run_changes_nothing(place: &Place) {
    dead(place, "t", 3).await;
    let answer = place.json(&run("requeue", &["--all", "--dry-run"]));
    assert_eq!((&answer["changed"], &answer["dry_run"]), (&json!(3), &json!(true)));
    assert_eq!(answer["ids"].as_array().unwrap().len(), 3);
    place.run(&run("requeue", &["--all", "--dry-run"])).exits(0).says("3 messages would be requeued");
    assert_eq!(count_of(place, "dead").await, 3);
}

async fn many_need_a_yes_where_nobody_can_be_asked(place: &Place) {
    dead(place, "t", 2).await;
    place.run(&run("requeue", &["--all"])).exits(2).warns("Requeue 2 messages?").warns("--yes");
    assert_eq!(count_of(place, "dead").await, 2);
    place.run(&run("requeue", &["--all", "--yes"])).exits(0).says("2 messages requeued");
    assert_eq!(count_of(place, "ready").await, 2);
    place.run(&run("requeue", &["--all", "--yes"])).exits(0).says("only dead messages");
}

async fn filters_choose(place: &Place) {
    dead(place, "order.placed", 2).await;
    place.kill(message("invoice.sent")).await;
    let answer = place.json(&run("requeue", &["--topic", "order.*", "--class", "permanent", "--yes"]));
    assert_eq!(answer["changed"], 2);
    assert_eq!(count_of(place, "dead").await, 1);
    let answer = place.json(&run("requeue", &["--before", "1h", "--yes"]));
    assert_eq!(answer, json!({ "changed": 0, "ids": [], "dry_run": false }));
}

async fn a_limit_is_kept_and_calls_are_repeated(place: &Place) {
    dead(place, "t", 1_250).await;
    let answer = place.json(&run("requeue", &["--all", "--yes", "--limit", "1100"]));
    assert_eq!((&answer["changed"], answer["ids"].as_array().unwrap().len()), (&json!(1_100), 1_100));
    assert_eq!(count_of(place, "dead").await, 150);
    let answer = place.run(&run("requeue", &["--all", "--yes"])).exits(0);
    answer.says("150 messages requeued");
}

/// A choice tells of ten thousand; those behind them are found by the next one.
async fn slow_more_than_one_choice_can_tell_are_requeued(place: &Place) {
    let worker = WorkerId::new("w").unwrap();
    for count in [10_000, 40] {
        let messages: Vec<_> = (0..count).map(|_| message("t").build().unwrap()).collect();
        place.store.enqueue(&messages).await.unwrap();
        let claimed = place.store.claim(&ClaimRequest::new(worker.clone()).limit(10_000)).await.unwrap();
        let settlements: Vec<_> =
            claimed.iter().map(|message| Settlement::new(message.lease(), fail("no"))).collect();
        place.store.settle(&settlements).await.unwrap();
    }
    let answer = place.json(&run("requeue", &["--all", "--yes", "--limit", "10030"]));
    let ids: HashSet<&str> = answer["ids"].as_array().unwrap().iter().filter_map(|id| id.as_str()).collect();
    assert_eq!((&answer["changed"], ids.len()), (&json!(10_030), 10_030));
    assert_eq!(count_of(place, "dead").await, 10);
}

async fn a_rate_is_kept(place: &Place) {
    dead(place, "t", 5).await;
    let begin = Instant::now();
    let answer = place.json(&run("requeue", &["--all", "--yes", "--rate", "2"]));
    assert_eq!(answer["changed"], 5);
    // Two at a time: the second and the third call each wait a second.
    assert!(begin.elapsed() >= Duration::from_secs(2), "{:?}", begin.elapsed());
}

#[cfg(unix)]
async fn an_interrupt_ends_it_between_two_calls(place: &Place) {
    dead(place, "t", 3).await;
    let schema = place.table().split_once('.').map(|(schema, _)| schema.to_owned());
    let mut args = run("requeue", &["--all", "--yes", "--rate", "1", "--json", "--store", &place.url]);
    if let Some(schema) = &schema {
        args.extend(["--schema", schema]);
    }
    let child = command(&args).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while count_of(place, "dead").await == 3 {
        assert!(Instant::now() < deadline, "nothing was requeued");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let left = count_of(place, "dead").await;
    assert!(left > 0 && answer["changed"] == 3 - left, "{answer}, {left} left");
}

async fn ids_that_cannot_be_changed_are_told(place: &Place) {
    let ready = place.publish(message("t")).await.to_string();
    place.run(&run("requeue", &[&ready])).exits(3).warns("1 id of 1").says("only dead messages");
    let gone = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";
    place.run(&run("bury", &[&ready, gone])).exits(0).says("1 message buried").warns("1 id of 2");
    place.run(&run("requeue", &[gone, "--json"])).exits(3);
}

async fn bury_gives_up_what_is_ready(place: &Place) {
    let id = place.publish(message("t")).await;
    place.run(&run("bury", &[&id.to_string(), "--by", "grace"])).exits(0).like("bury");
    let (record, history) = place.store.show(id).await.unwrap().unwrap();
    assert_eq!((record.state, history[0].by.as_str()), (State::Dead, "grace"));
}

async fn nothing_named_is_refused(place: &Place) {
    dead(place, "t", 1).await;
    place.run(&run("requeue", &["--yes"])).exits(2).warns("--all");
    place.run(&["requeue", "--all"]).exits(2).warns("--why");
    place.run(&["bury", "--all", "--why", ""]).exits(2).warns("reason");
    place.run(&run("requeue", &["not-an-id"])).exits(2).warns("not a UUID");
    assert_eq!(count_of(place, "dead").await, 1);
}
