//! Top: lines for pipes, JSON lines for programs, and an end by Ctrl-C.

use std::io::{BufRead as _, BufReader};

use serde_json::Value;

use crate::support::{Place, command, message, on_both};

on_both!(lines_come_as_often_as_asked_for, an_interrupt_ends_it);

async fn lines_come_as_often_as_asked_for(place: &Place) {
    place.publish(message("order.placed")).await;
    place.run(&["top", "--once"]).exits(0).like("top");
    let ran = place.run(&["top", "--count", "3", "--every", "100ms", "--json"]).exits(0);
    let lines: Vec<Value> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["done_per_second"], &lines[0]["ready"]["value"]), (&Value::Null, &Value::from(1)));
    assert_eq!(lines[2]["done_per_second"], 0.0);
    place.run(&["top", "--every", "1ms"]).exits(2).warns("at least 100ms");
}

#[cfg(unix)]
async fn an_interrupt_ends_it(place: &Place) {
    let url = place.url.clone();
    let schema = place.table().split_once('.').map(|(schema, _)| schema.to_owned());
    let mut args = vec!["top", "--every", "1h", "--store", &url];
    if let Some(schema) = &schema {
        args.extend(["--schema", schema]);
    }
    let mut child = command(&args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready 0"), "{line}");
    let killed = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
