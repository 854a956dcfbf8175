//! `grants`: its SQL gives a role the rights that its task needs, and no more.

use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::sql_str::AssertSqlSafe;

use crate::support::{posthaste, unique};

async fn sql(url: &str, text: String) {
    let mut connection = sqlx_postgres::PgConnection::connect(url).await.unwrap();
    connection.execute(raw_sql(AssertSqlSafe(text))).await.unwrap();
}

#[tokio::test]
async fn a_publisher_publishes_and_reads_nothing() {
    let Ok(server) = std::env::var("POSTHASTE_TEST_POSTGRES") else {
        eprintln!("skipped: POSTHASTE_TEST_POSTGRES is not set");
        return;
    };
    let (schema, role) = (unique(), unique());
    let on = |url: &str, args: &[&str]| {
        let args: Vec<&str> = args.iter().copied().chain(["--store", url, "--schema", &schema]).collect();
        posthaste(&args, "")
    };
    on(&server, &["migrate"]).exits(0);
    sql(&server, format!("create role {role} login password 'pw'")).await;
    let grants = on(&server, &["grants", "publisher", &role]).exits(0).out;
    sql(&server, grants).await;

    let (scheme, rest) = server.split_once("://").unwrap();
    let own = format!("{scheme}://{role}:pw@{}", rest.rsplit_once('@').map_or(rest, |(_, place)| place));
    on(&own, &["enqueue", "order.placed", "{}"]).exits(0);
    on(&own, &["list"]).exits(1).warns("docs/roles.md");
    sql(&server, format!("drop owned by {role}; drop role {role}; drop schema {schema} cascade")).await;
}

#[test]
fn all_tasks_are_printed_without_a_connection() {
    let all = posthaste(&["grants", "--store", "postgres://nowhere.invalid/shop"], "").exits(0).out;
    for task in ["publisher", "joins", "relay", "operator", "consumer"] {
        assert!(all.contains(&format!("-- {task}: posthaste_{task}\n")), "{all}");
        assert!(all.contains(&format!("to \"posthaste_{task}\";")), "{all}");
    }
    posthaste(&["grants", "--store", "postgres://db/shop", "--json"], "").exits(0).says("\"sql\"");
}

#[test]
fn other_databases_are_refused_with_what_to_do() {
    posthaste(&["grants", "--store", "sqlite:shop.db"], "").exits(2).warns("protect the file");
    posthaste(&["grants", "--store", "mysql://db/shop"], "").exits(2).warns("docs/roles.md");
    posthaste(&["grants", "publisher", "", "--store", "postgres://db/shop"], "").exits(2).warns("role");
}
