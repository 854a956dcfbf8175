//! A password in a URL never appears, in any failure.

use crate::support::{Place, on_both, posthaste};

const CANARY: &str = "s3cr3t-canary";
const ID: &str = "0198c7a1-7d1e-7cc0-b3a5-0d7d3f0b9a11";

fn every_command(url: &str) {
    for args in [
        &["status"][..],
        &["top", "--once"],
        &["list"],
        &["show", ID],
        &["why", ID],
        &["enqueue", "t", "1"],
        &["requeue", "--all", "--why", "x"],
        &["bury", "--all", "--why", "x"],
        &["pause"],
        &["resume", "t"],
        &["joins"],
        &["prune", "--done", "7d", "--yes"],
        &["doctor"],
        &["migrate"],
        &["status", "--json"],
        &["status", "--odd"],
        &["list", "--limit", "many"],
    ] {
        let args: Vec<&str> = args.iter().copied().chain(["--store", url]).collect();
        let ran = posthaste(&args, "");
        assert_ne!(ran.code, 0, "{args:?}");
        ran.never(CANARY);
    }
}

#[test]
fn wrong_urls_are_not_quoted() {
    every_command(&format!("postgres://app:{CANARY}@127.0.0.1:port/shop"));
    every_command(&format!("oracle://app:{CANARY}@db/shop"));
    every_command(&format!("mysql://app:{CANARY}@[/shop"));
    every_command(CANARY);
    posthaste(&["--help"], "").exits(0);
    let mut help = crate::support::command(&["status", "--help"]);
    let output = help.env("POSTHASTE_STORE", format!("postgres://app:{CANARY}@db/shop")).output().unwrap();
    assert!(!String::from_utf8(output.stdout).unwrap().contains(CANARY));
}

#[test]
fn what_cannot_be_reached_is_not_quoted() {
    every_command(&format!("postgres://app:{CANARY}@127.0.0.1:9/shop"));
    let ran = posthaste(&["status", "--store", &format!("mysql://app:{CANARY}@127.0.0.1:9/shop")], "");
    ran.exits(4).never(CANARY);
}

#[test]
fn a_refused_login_is_not_quoted() {
    for (name, scheme) in [("POSTHASTE_TEST_POSTGRES", "postgres"), ("POSTHASTE_TEST_MYSQL", "mysql")] {
        let Ok(url) = std::env::var(name) else {
            eprintln!("skipped: {name} is not set");
            continue;
        };
        let place = url.rsplit('@').next().unwrap();
        let url = format!("{scheme}://nobody_of_this_name:{CANARY}@{place}");
        posthaste(&["status", "--store", &url], "").exits(1).never(CANARY);
        posthaste(&["doctor", "--store", &url, "--json"], "").never(CANARY);
    }
}

#[test]
fn a_relays_url_and_token_are_not_quoted() {
    let url = format!("http://user:{CANARY}@127.0.0.1:9");
    let mut why = crate::support::command(&["why", ID, "--relay", &url, "--database", "shop"]);
    let output = why.env("POSTHASTE_TOKEN", CANARY).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    assert!(!String::from_utf8(output.stderr).unwrap().contains(CANARY));
    for url in [format!("https://user:{CANARY}@db"), format!("http://user:{CANARY}@[")] {
        posthaste(&["why", ID, "--relay", &url, "--database", "shop"], "").exits(2).never(CANARY);
    }
}

on_both!(a_password_that_is_right_is_not_shown);

async fn a_password_that_is_right_is_not_shown(place: &Place) {
    // Where a server trusts every user, any password is right.
    let url = place.url.replace("postgres@", &format!("postgres:{CANARY}@"));
    if place.is_postgres() && url.contains(CANARY) {
        posthaste(&["status", "--store", &url], "").never(CANARY);
        posthaste(&["doctor", "--store", &url], "").never(CANARY);
    }
}
