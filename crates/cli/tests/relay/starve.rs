//! Requests that keep their database busy: deliveries go on, the database ends their statements, and a bounded number of them waits.

use posthaste::Filter;
use sqlx_core::connection::Connection as _;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use tokio::task::JoinSet;

use crate::support::{Answer, Base, PATIENCE, Relay, Scene, eventually, server};

const LIST: &str = "/v1/databases/shop/messages?state=ready";

/// A gate in a database, at which lists wait for as long as it is closed.
struct Gate {
    server: Server,
    /// A number that no other test has.
    number: u32,
}

enum Server {
    Postgres(sqlx_postgres::PgConnection),
    MySql(sqlx_mysql::MySqlConnection),
}

impl Gate {
    async fn postgres(url: &str, base: &Base) -> Self {
        let schema = value(&base.section, "schema");
        let number = fastrand::u32(1..1 << 30);
        let mut connection = sqlx_postgres::PgConnection::connect(url).await.unwrap();
        // What a list, and no claim, asks for.
        let sql = format!(
            "select pg_advisory_lock({number});
             alter function {schema}.leased() rename to leased_really;
             create function {schema}.leased() returns int8multirange language plpgsql volatile as $$
             begin
                 if position('limit $12' in current_query()) > 0 then
                     while not pg_try_advisory_xact_lock_shared({number}) loop perform pg_sleep(0.02); end loop;
                 end if;
                 return {schema}.leased_really();
             end $$"
        );
        connection.execute(raw_sql(AssertSqlSafe(sql))).await.unwrap();
        Self { server: Server::Postgres(connection), number }
    }

    async fn mysql(url: &str, base: &Base) -> Self {
        let prefix = value(&base.section, "prefix");
        let number = fastrand::u32(1..1 << 30);
        let mut connection = sqlx_mysql::MySqlConnection::connect(url).await.unwrap();
        for sql in [
            format!("do get_lock('{number}', 0)"),
            format!("drop procedure {prefix}list"),
            format!(
                "create procedure {prefix}list(
                     a bigint, b int, c text, d text, e text, f text, g text, h int, i bigint, j bigint, k text, l int)
                 begin
                     do get_lock('{number}', 3600), release_lock('{number}');
                     select null from {prefix}outbox where false;
                 end"
            ),
        ] {
            connection.execute(raw_sql(AssertSqlSafe(sql))).await.unwrap();
        }
        Self { server: Server::MySql(connection), number }
    }

    /// How many sessions of the server wait at the gate.
    async fn waiting(&mut self, base: &Base) -> i64 {
        match &mut self.server {
            Server::Postgres(connection) => {
                let sql = "select count(*) from pg_stat_activity where state = 'active' and query like '%' || $1 || '%' and query like '%coalesce(l.token%'";
                let schema = value(&base.section, "schema");
                let rows = sqlx_core::query::query(sql)
                    .bind(format!("{schema}\""))
                    .fetch_all(connection)
                    .await
                    .unwrap();
                rows[0].get(0)
            }
            Server::MySql(connection) => {
                let number = self.number;
                let sql = format!(
                    "select count(*) from information_schema.processlist where info like 'do get_lock(''{number}''%'"
                );
                let rows = sqlx_core::query::query(AssertSqlSafe(sql)).fetch_all(connection).await.unwrap();
                rows[0].get(0)
            }
        }
    }

    async fn open(&mut self) {
        let number = self.number;
        match &mut self.server {
            Server::Postgres(connection) => {
                let sql = format!("select pg_advisory_unlock({number})");
                connection.execute(raw_sql(AssertSqlSafe(sql))).await.map(drop).unwrap();
            }
            Server::MySql(connection) => {
                let sql = format!("do release_lock('{number}')");
                connection.execute(raw_sql(AssertSqlSafe(sql))).await.map(drop).unwrap();
            }
        }
    }
}

/// The value of a line of a section.
fn value<'a>(section: &'a str, key: &str) -> &'a str {
    let line = section.lines().find(|line| line.starts_with(key)).unwrap();
    line.split('"').nth(1).unwrap()
}

/// Nothing but the relay's own limits for requests may end a statement.
async fn relay(base: &Base, http: &str) -> (Scene, Relay) {
    let scene = Scene::new(&format!(
        "[databases.shop]\n{}answer_timeout = \"10m\"\n[sinks.nowhere]\nurl = \"null:\"\n\
         [[routes]]\ntopics = [\"sent.*\"]\nsink = \"nowhere\"\n[http]\n{http}\n",
        base.section
    ));
    let relay = scene.start().await;
    (scene, relay)
}

/// Sends so many requests for a list at once.
fn lists(relay: &Relay, count: usize) -> JoinSet<Answer> {
    let mut requests = JoinSet::new();
    for _ in 0..count {
        requests.spawn(crate::support::get(relay.address.clone(), LIST));
    }
    requests
}

async fn deliveries_go_on(base: Base, mut gate: Gate) {
    let (_scene, relay) = relay(&base, "deadline = \"5m\"\nqueue = 10").await;
    // For a list to look at.
    base.fill("kept", 1).await;
    base.fill("sent.x", 20).await;
    is_done(&base, 20).await;
    let requests = lists(&relay, 24);
    // Two have the connections, ten wait, and twelve are refused, in any order.
    eventually("lists wait in the database", async || gate.waiting(&base).await == 2).await;
    base.fill("sent.x", 200).await;
    is_done(&base, 220).await;
    assert_eq!(gate.waiting(&base).await, 2, "they wait still, and were not what deliveries waited for");
    assert_eq!(relay.get("/readyz").await.status, 200);
    gate.open().await;
    let answers = requests.join_all().await;
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 12, "{answers:?}");
    for answer in refused {
        assert!(answer.refused(503).head.contains("retry-after: 1"), "{answer:?}");
    }
    assert_eq!(relay.get(LIST).await.status, 200);
    relay.stop().await;
}

#[tokio::test]
async fn postgres_delivers_next_to_requests_that_hang() {
    let Some(url) = server("POSTHASTE_TEST_POSTGRES") else { return };
    let base = Base::postgres(&url).await;
    let gate = Gate::postgres(&url, &base).await;
    deliveries_go_on(base, gate).await;
}

#[tokio::test]
async fn mysql_delivers_next_to_requests_that_hang() {
    let Some(url) = server("POSTHASTE_TEST_MYSQL") else { return };
    let base = Base::mysql(&url).await;
    let gate = Gate::mysql(&url, &base).await;
    deliveries_go_on(base, gate).await;
}

async fn is_done(base: &Base, count: u64) {
    eventually(&format!("{count} messages are done"), async || base.done().await == count).await;
}

async fn statements_end(base: Base, mut gate: Gate) {
    base.fill("kept", 1).await;
    let (_scene, relay) = relay(&base, "deadline = \"1s\"").await;
    for answer in lists(&relay, 4).join_all().await {
        assert!(answer.refused(503).head.contains("retry-after: 1"), "{answer:?}");
    }
    // The gate is closed still.
    eventually("no list is left in the database", async || gate.waiting(&base).await == 0).await;
    eventually("requests are answered", async || relay.get("/v1/databases/shop/stats").await.status == 200)
        .await;
    relay.stop().await;
}

#[tokio::test]
async fn postgres_ends_the_statements_of_requests() {
    let Some(url) = server("POSTHASTE_TEST_POSTGRES") else { return };
    let base = Base::postgres(&url).await;
    let gate = Gate::postgres(&url, &base).await;
    statements_end(base, gate).await;
}

#[tokio::test]
async fn mysql_ends_the_statements_of_requests() {
    let Some(url) = server("POSTHASTE_TEST_MYSQL") else { return };
    let base = Base::mysql(&url).await;
    let gate = Gate::mysql(&url, &base).await;
    statements_end(base, gate).await;
}

/// Lists over many messages, and deliveries from the same file.
#[tokio::test]
async fn slow_sqlite_delivers_next_to_requests_that_take_long() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let base = Base::sqlite(&file).await;
    base.fill("sent.x", 1).await;
    let (_scene, relay) = relay(&base, "deadline = \"5m\"\nqueue = 100").await;
    base.is_done(1).await;
    multiply(&file, 18).await;
    let mut requests = JoinSet::new();
    for _ in 0..24 {
        let list = "/v1/databases/shop/messages?topic=nothing*";
        requests.spawn(crate::support::get(relay.address.clone(), list));
    }
    let first = requests.join_next().await.unwrap().unwrap();
    assert_eq!(first.status, 200, "{first:?}");
    base.fill("sent.x", 20).await;
    let left = Filter { state: Some(posthaste::State::Ready), ..Filter::default() };
    eventually("all are delivered", async || {
        base.store.list(&left, None, 1).await.unwrap().records.is_empty()
    })
    .await;
    let mut answered = 1;
    while requests.try_join_next().is_some() {
        answered += 1;
    }
    assert!(answered < 24, "deliveries waited for all lists");
    for answer in requests.join_all().await {
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    relay.stop().await;
}

/// Statements over so many messages that they cannot end by the deadline: on SQLite nothing but the relay could end them.
#[tokio::test]
async fn slow_sqlite_ends_the_statements_of_requests() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    let base = Base::sqlite(&file).await;
    base.fill("sent.x", 1).await;
    let (_scene, relay) = relay(&base, "deadline = \"100ms\"").await;
    base.is_done(1).await;
    multiply(&file, 19).await;
    let list = "/v1/databases/shop/messages?topic=nothing*";
    let answer = relay.get(list).await;
    assert!(answer.refused(503).head.contains("retry-after: 1"), "{answer:?}");
    base.fill("sent.x", 20).await;
    let left = Filter { state: Some(posthaste::State::Ready), ..Filter::default() };
    eventually("all are delivered", async || {
        base.store.list(&left, None, 1).await.unwrap().records.is_empty()
    })
    .await;
    eventually("requests are answered", async || relay.get("/v1/databases/shop/pauses").await.status == 200)
        .await;
    relay.stop().await;
}

/// Doubles what is done so many times.
async fn multiply(file: &std::path::Path, times: u32) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(PATIENCE);
    let mut connection = sqlx::sqlite::SqliteConnection::connect_with(&options).await.unwrap();
    let names = "select group_concat(name, ', ') from pragma_table_info('posthaste_outbox') where name not in ('seq', 'message_id')";
    let rows = sqlx::query(names).fetch_all(&mut connection).await.unwrap();
    let names: String = sqlx::Row::get(&rows[0], 0);
    for _ in 0..times {
        let sql = format!(
            "insert into posthaste_outbox (message_id, {names}) select randomblob(16), {names} from posthaste_outbox"
        );
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
}
