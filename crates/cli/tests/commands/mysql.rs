//! The same commands on MySQL or MariaDB: that they find their way there, and answer.

use serde_json::json;
use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;

use crate::support::{Ran, posthaste, unique};

async fn sql(url: &str, text: String) {
    let mut connection = sqlx_mysql::MySqlConnection::connect(url).await.unwrap();
    connection.execute(raw_sql(AssertSqlSafe(text))).await.unwrap();
}

#[tokio::test]
async fn every_command_works_there_too() {
    let Ok(server) = std::env::var("POSTHASTE_TEST_MYSQL") else {
        eprintln!("skipped: POSTHASTE_TEST_MYSQL is not set");
        return;
    };
    let database = unique();
    sql(&server, format!("create database {database}")).await;
    let url = format!("{}/{database}", server.rsplit_once('/').unwrap().0);
    let run = |args: &[&str]| -> Ran {
        let args: Vec<&str> = args.iter().copied().chain(["--store", &url]).collect();
        posthaste(&args, "")
    };
    run(&["migrate"]).exits(0);
    let id = run(&["enqueue", "order.placed", "{}", "--key", "k"]).exits(0).out.trim().to_owned();
    run(&["status"]).exits(0).says("order.placed");
    run(&["top", "--once"]).exits(0).says("ready 1");
    run(&["list", "--key", "k"]).exits(0).says(&id);
    run(&["why", &id]).exits(0).says("nothing is in its way");
    run(&["pause", "order.*", "--why", "moves"]).exits(0);
    run(&["why", &id]).exits(0).says("order.* was paused by ada@desk");
    run(&["resume", "order.*"]).exits(0);
    run(&["bury", &id, "--why", "not wanted"]).exits(0);
    run(&["show", &id]).exits(0).says("not wanted");
    let answer = run(&["requeue", "--all", "--why", "wanted again", "--json"]).exits(0).json();
    assert_eq!(answer, json!({ "changed": 1, "ids": [id], "dry_run": false }));
    run(&["joins"]).exits(0).says("no joins match");
    run(&["prune", "--done", "1h", "--dead", "1h", "--joins", "1h", "--yes"])
        .exits(0)
        .says("0 messages pruned");
    let doctor = run(&["doctor", "--json"]);
    assert!(
        [0, 5].contains(&doctor.code) && doctor.json()["examined"][0]["findings"].is_array(),
        "{doctor:?}"
    );
    sql(&server, format!("drop database {database}")).await;
}
