//! The inbox on the real databases: what only one of them can show, of snapshots, locks, lost answers, costs and rights.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{
    Consumer, Disposal, ErrorKind, HandlerResult, Inbox, InboxStore, MessageId, Once, Received, Shutdown,
    Store, Tries, Turn, handled,
};
use posthaste_sqlx::{MySql, PgStore, Postgres, Role, SqlStore, Sqlite};
use posthaste_testkit::Fixture;
use serde_json::Value;
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_mysql::MySqlConnection;
use sqlx_postgres::PgConnection;

use crate::atomicity::{after_commit, proxy};
use crate::fixture::{
    Backend, Connection, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, session, unique,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn received() -> Received {
    Received::new("shop", MessageId::new(), "order.placed", "{}")
}

fn altered(message: &Received) -> Received {
    let mut altered = message.clone();
    altered.payload = "other".into();
    altered
}

fn inbox<D: Backend>(store: &SqlStore<D>) -> Inbox<SqlStore<D>> {
    Inbox::new(store.clone(), "stock").unwrap()
}

/// Remembers a message in a transaction of its own.
async fn once<D: Backend>(fixture: &SqlFixture<D>, message: &Received) -> Once {
    let mut tx = fixture.begin().await;
    let once = inbox(&fixture.store).once(&mut tx, message).await.unwrap();
    fixture.commit(tx).await;
    once
}

/// A fixture with a table for a handler's own rows.
async fn shop<D: Backend>() -> Option<SqlFixture<D>> {
    if !SqlFixture::<D>::available() {
        return None;
    }
    let fixture = SqlFixture::<D>::create().await;
    fixture.run("create table reserved (n integer not null)".to_owned()).await;
    Some(fixture)
}

async fn reserved<D: Backend>(fixture: &SqlFixture<D>) -> usize {
    fixture.texts("select 'one' from reserved").await.len()
}

// ---------------------------------------------------------------- snapshots and locks

/// INB-001, OBX-099: a transaction whose snapshot is older than the row. In READ COMMITTED it learns that the message is there.
/// At a stricter level PostgreSQL refuses: a conflict, and never a second first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_snapshot_older_than_the_row() {
    let Some(fixture) = shop::<Postgres>().await else { return };
    for (level, refuses) in [("read committed", false), ("repeatable read", true), ("serializable", true)] {
        let message = received();
        let mut tx = fixture.begin().await;
        Postgres::run(&mut tx, format!("set transaction isolation level {level}")).await.unwrap();
        Postgres::run(&mut tx, "select 1 from reserved".to_owned()).await.unwrap();
        assert_eq!(once(&fixture, &message).await, Once::First);
        match inbox(&fixture.store).once(&mut tx, &message).await {
            Ok(once) => assert!(!refuses && once == Once::Repeated, "{level}: {once:?}"),
            Err(error) => assert!(refuses && error.kind() == ErrorKind::Conflict, "{level}: {error:?}"),
        }
        tx.rollback().await.unwrap();
        assert_eq!(once(&fixture, &message).await, Once::Repeated);
    }
    fixture.destroy().await;
}

/// INB-001: in REPEATABLE READ, where MySQL and MariaDB begin, the hash is compared with the row that is there, not with a snapshot
/// that has none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_snapshot_older_than_the_row() {
    let Some(fixture) = shop::<MySql>().await else { return };
    for level in ["repeatable read", "read committed", "serializable"] {
        let message = received();
        let mut connection = fixture.users.acquire().await.unwrap();
        MySql::run(&mut connection, format!("set session transaction isolation level {level}"))
            .await
            .unwrap();
        MySql::run(&mut connection, "start transaction; select * from reserved".to_owned()).await.unwrap();
        let count =
            "select cast(count(*) as char) from posthaste_outbox_inbox where topic = 'none'".to_owned();
        if level != "serializable" {
            assert_eq!(MySql::texts(&mut connection, count).await.unwrap(), ["0"]);
        }
        assert_eq!(once(&fixture, &message).await, Once::First);
        let inbox = inbox(&fixture.store);
        assert_eq!(inbox.once(&mut connection, &message).await.unwrap(), Once::Repeated, "{level}");
        assert_eq!(inbox.once(&mut connection, &altered(&message)).await.unwrap(), Once::Altered, "{level}");
        MySql::run(&mut connection, "rollback".to_owned()).await.unwrap();
        drop(connection.detach());
    }
    fixture.destroy().await;
}

/// INB-001: in SQLite a transaction that read before another one wrote begins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_snapshot_older_than_the_row() {
    let Some(fixture) = shop::<Sqlite>().await else { return };
    let message = received();
    let mut tx = fixture.begin().await;
    assert!(Sqlite::texts(&mut tx, "select 'x' from reserved".to_owned()).await.unwrap().is_empty());
    assert_eq!(once(&fixture, &message).await, Once::First);
    let error = inbox(&fixture.store).once(&mut tx, &message).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    tx.rollback().await.unwrap();
    assert_eq!(once(&fixture, &message).await, Once::Repeated);
    fixture.destroy().await;
}

/// INB-004: pruning neither waits for rows that are being added, or were just found again, nor delays them.
async fn forgetting_waits_for_nobody<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (inbox, old, met, new) = (inbox(&fixture.store), received(), received(), received());
    for message in [&old, &met] {
        once(&fixture, message).await;
    }
    fixture.advance(2 * HOUR).await;
    let mut tx = fixture.begin().await;
    assert_eq!(inbox.once(&mut tx, &met).await.unwrap(), Once::Repeated);
    assert_eq!(inbox.once(&mut tx, &new).await.unwrap(), Once::First);
    let begun = Instant::now();
    let forgotten = fixture.store.forget("stock", HOUR, 1_000).await.unwrap();
    // PostgreSQL would wait for as long as the transaction is open, and MySQL for 50 s.
    assert!(begun.elapsed() < Duration::from_secs(40), "it waited for {:?}", begun.elapsed());
    // On MySQL and MariaDB, a transaction that finds a row has a lock on it, and pruning skips it.
    assert_eq!(forgotten, if D::NAME == "mysql" { 1 } else { 2 });
    assert_eq!(inbox.once(&mut tx, &received()).await.unwrap(), Once::First);
    fixture.commit(tx).await;
    assert_eq!(once(&fixture, &new).await, Once::Repeated);
    assert_eq!(once(&fixture, &old).await, Once::First);
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_forgetting_waits_for_nobody() {
    forgetting_waits_for_nobody::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_forgetting_waits_for_nobody() {
    forgetting_waits_for_nobody::<MySql>().await;
}

// ---------------------------------------------------------------- consumers

/// INB-002: on PostgreSQL a failed statement dooms its transaction, and COMMIT then silently rolls back. A handler that
/// ignores the failure has not succeeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doomed_transaction_is_no_success() {
    async fn careless(connection: &mut PgConnection, _: &Received) -> HandlerResult {
        Postgres::run(connection, "insert into reserved values (1)".to_owned()).await?;
        let _ = Postgres::run(connection, "select 1 / 0".to_owned()).await;
        handled()
    }
    let Some(fixture) = shop::<Postgres>().await else { return };
    let (consumer, message) = (Consumer::new(inbox(&fixture.store), careless), received());
    let disposal = consumer.receive(&message, Tries::default()).await;
    assert!(matches!(disposal, Disposal::Again { charged: true, .. }), "{disposal:?}");
    assert!(fixture.store.remembered("stock", "shop", message.id).await.unwrap().is_none());
    assert_eq!(reserved(&fixture).await, 0);
    fixture.destroy().await;
}

static POSTGRES_RUNS: AtomicUsize = AtomicUsize::new(0);
static MYSQL_RUNS: AtomicUsize = AtomicUsize::new(0);

async fn reserve_in_postgres(connection: &mut PgConnection, _: &Received) -> HandlerResult {
    POSTGRES_RUNS.fetch_add(1, Ordering::SeqCst);
    Ok(Postgres::run(connection, "insert into reserved values (1)".to_owned()).await?)
}

async fn reserve_in_mysql(connection: &mut MySqlConnection, _: &Received) -> HandlerResult {
    MYSQL_RUNS.fetch_add(1, Ordering::SeqCst);
    Ok(MySql::run(connection, "insert into reserved values (1)".to_owned()).await?)
}

/// Rule 7, crash point B3: the answer to the COMMIT is cut off. The consumer looks for the row at once, finds it, and does not act
/// again.
async fn commit_whose_answer_is_lost<D: Backend>(
    handler: impl posthaste_core::Consume<SqlStore<D>>,
    runs: &AtomicUsize,
) {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let store = SqlStore::<D>::connect_with(&url, &fixture.options.clone().max_connections(1)).await.unwrap();
    let consumer = Consumer::new(inbox(&store), handler);
    for n in 1..=5 {
        let message = received();
        proxy.set(after_commit::<D>());
        assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
        assert_eq!((proxy.answers_lost(), runs.load(Ordering::SeqCst)), (n, n));
        assert_eq!(consumer.receive(&message, Tries::default()).await, Disposal::Ack);
        assert_eq!((reserved(&fixture).await, runs.load(Ordering::SeqCst)), (n, n));
    }
    store.close().await;
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_commit_whose_answer_is_lost() {
    commit_whose_answer_is_lost::<Postgres>(reserve_in_postgres, &POSTGRES_RUNS).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_commit_whose_answer_is_lost() {
    commit_whose_answer_is_lost::<MySql>(reserve_in_mysql, &MYSQL_RUNS).await;
}

// ---------------------------------------------------------------- costs

/// How many rows of other consumers and of this one's recent past there are.
const MANY: u32 = 100_000;

/// The statement with its parameters written out.
fn written_out(file: &str, prefix: &str, marks: [&str; 3], values: [&str; 3]) -> String {
    let sql: Vec<&str> = file.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let sql = sql.join("\n").replace("/*:*/", prefix).replace("/*+*/", prefix);
    marks
        .iter()
        .zip(values)
        .fold(sql, |sql, (mark, value)| sql.replacen(mark, value, if *mark == "?" { 1 } else { 9 }))
}

/// INB-004: pruning uses its index, and reads only the rows that it removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_postgres_forgets_by_its_index() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture
        .run(format!(
            "insert into outbox_inbox (consumer, source, message_id, topic, payload_hash, received_at) \
             select case when n % 2 = 0 then 'stock' else 'mail' end, 'shop', lpad(to_hex(n), 32, '0')::uuid, 't', \
                    '\\x00', now() - case when n % 2 = 1 or n <= 100 then interval '1 day' else interval '0' end \
             from generate_series(1, {MANY}) n"
        ))
        .await;
    let file = include_str!("../../sql/postgres/forget_inbox.sql");
    let sql = written_out(file, "", ["$1", "$2", "$3"], ["'stock'", "3600000000", "1000"]);
    for analyzed in [false, true] {
        if analyzed {
            fixture.run("analyze outbox_inbox".to_owned()).await;
        }
        let mut connection = session(&fixture.store).await;
        let explain = format!("begin; explain (analyze, buffers, format json) {sql}; rollback");
        let rows = connection.fetch_all(raw_sql(AssertSqlSafe(explain))).await.unwrap();
        let plan: Value = serde_json::from_str(rows[0].get_unchecked(0)).unwrap();
        let text = plan.to_string();
        assert!(text.contains("\"outbox_inbox_received\""), "{plan:#}");
        assert!(!text.contains("\"Seq Scan\""), "{plan:#}");
        let touched = plan[0]["Plan"]["Shared Hit Blocks"].as_u64().unwrap()
            + plan[0]["Plan"]["Shared Read Blocks"].as_u64().unwrap();
        assert!(touched <= 1_000, "forgetting 50 of {MANY} touches {touched} buffers: {plan:#}");
    }
    assert_eq!(fixture.store.forget("stock", HOUR, 1_000).await.unwrap(), 50);
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mysql_forgets_by_its_index() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture
        .run(format!(
            "insert into posthaste_outbox_inbox (consumer, source, message_id, topic, payload_hash, received_at) \
             with d as (select 0 n union all select 1 union all select 2 union all select 3 union all select 4 union all \
                        select 5 union all select 6 union all select 7 union all select 8 union all select 9), \
                  k as (select a.n + 10 * b.n + 100 * c.n + 1000 * e.n + 10000 * f.n + 1 as n from d a, d b, d c, d e, d f) \
             select if(n % 2 = 0, 'stock', 'mail'), 'shop', unhex(lpad(hex(n), 32, '0')), 't', unhex(repeat('0', 64)), \
                    utc_timestamp(6) - interval if(n % 2 = 1 or n <= 100, 86400, 0) second \
             from k where n <= {MANY}"
        ))
        .await;
    for (analyzed, expected) in [(false, 50), (true, 0)] {
        if analyzed {
            fixture.run("analyze table posthaste_outbox_inbox".to_owned()).await;
        }
        let mut connection = fixture.store.pool().acquire().await.unwrap();
        let reads = async |connection: &mut Connection<MySql>| -> u64 {
            let rows =
                connection.fetch_all(raw_sql("show session status like 'Handler_read_%'")).await.unwrap();
            rows.iter().map(|row| row.get_unchecked::<String, _>(1).parse::<u64>().unwrap()).sum()
        };
        let before = reads(&mut connection).await;
        let call = raw_sql("call posthaste_inbox_forget('stock', 3600000000, 1000)");
        let rows = connection.fetch_all(call).await.unwrap();
        assert_eq!(rows[0].get_unchecked::<i64, _>(0), expected);
        let cost = reads(&mut connection).await - before;
        assert!(cost <= 1_000, "forgetting {expected} of {MANY} reads {cost} times");
    }
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_forgets_by_its_index() {
    if !SqliteFixture::available() {
        return;
    }
    let fixture = SqliteFixture::create().await;
    let file = include_str!("../../sql/sqlite/forget_inbox.sql");
    let sql = written_out(file, "posthaste_", ["?1", "?2", "?3"], ["'stock'", "3600000000", "1000"]);
    let mut connection = fixture.users.acquire().await.unwrap();
    let plan =
        connection.fetch_all(raw_sql(AssertSqlSafe(format!("explain query plan {sql}")))).await.unwrap();
    let steps: Vec<String> = plan.iter().map(|row| row.get_unchecked(3)).collect();
    let has = |wanted: &str| steps.iter().any(|step| step.contains(wanted));
    assert!(has("posthaste_outbox_inbox_received (consumer=? AND received_at<?)"), "{steps:#?}");
    assert!(has("PRIMARY KEY (consumer=? AND source=? AND message_id=?)"), "{steps:#?}");
    assert!(!has("SCAN posthaste") && !has("TEMP B-TREE"), "{steps:#?}");
    drop(connection);
    fixture.destroy().await;
}

// ---------------------------------------------------------------- rights

/// A consumer's calls, and calls that it must not be able to make.
async fn a_consumers_work<D: Backend>(store: &SqlStore<D>, may_not: &[&str]) {
    store.check().await.unwrap();
    let message = received();
    let inbox = inbox(store).keep_payload(true);
    for expected in [Once::First, Once::Repeated] {
        let mut tx = store.pool().begin().await.unwrap();
        assert_eq!(inbox.once(&mut tx, &message).await.unwrap(), expected);
        assert!(posthaste_core::TransactionalStore::survivors(store, &mut tx, &[]).await.is_ok());
        tx.commit().await.unwrap();
    }
    assert!(store.turn("inbox stock", Turn::Every(HOUR)).await.unwrap());
    assert_eq!(store.forget("stock", HOUR, 10).await.unwrap(), 0);
    assert_eq!(store.forget("stock", Duration::ZERO, 10).await.unwrap(), 1);
    for sql in may_not {
        let mut connection = session(store).await;
        let error = D::run(&mut connection, (*sql).to_owned()).await.expect_err(sql);
        assert!(error.to_string().contains("denied"), "{sql}: {error}");
    }
}

/// OBX-123, INB-011: on PostgreSQL, `grants_sql` gives a consumer enough, and it cannot read the audit columns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_rights_of_a_consumer() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let role = format!("{}_consumer", unique());
    fixture.run(format!("create role {role}")).await;
    fixture.run(PgStore::grants_sql(&fixture.options, Role::Consumer, &role).unwrap()).await;
    assert!(PgStore::grants_sql(&fixture.options, Role::Consumer, "a\"b").is_err());
    let set = format!("set role {role}");
    let pool = PoolOptions::new().max_connections(1).after_connect(move |connection, _| {
        let set = set.clone();
        Box::pin(async move { Postgres::run(connection, set).await })
    });
    let store = PgStore::from_pool(pool.connect(&fixture.url).await.unwrap(), &fixture.options).unwrap();
    let may_not = [
        "select payload from outbox_inbox",
        "update outbox_inbox set topic = 'x'",
        "select payload from outbox",
        "insert into outbox_history (seq, at, action, by_whom, why, attempts, lease_losses) values (1, now(), '', '', '', 0, 0)",
    ];
    a_consumers_work(&store, &may_not).await;
    store.close().await;
    fixture.run(format!("drop owned by {role}; drop role {role}")).await;
    fixture.destroy().await;
}

/// OBX-124: the same on MySQL and MariaDB, with the grants of docs/roles.md.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_rights_of_a_consumer() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let user = &unique()[..16];
    let database = fixture.url.rsplit('/').next().unwrap();
    fixture.run(format!("create user '{user}'@'%' identified by 'pw'")).await;
    for grant in [
        "select on SHOP.posthaste_outbox_version",
        "insert, delete on SHOP.posthaste_outbox_inbox",
        "select (consumer, source, message_id, payload_hash, received_at) on SHOP.posthaste_outbox_inbox",
        "select, insert, update on SHOP.posthaste_outbox_job",
        "execute on procedure SHOP.posthaste_inbox_forget",
        "execute on procedure SHOP.posthaste_turn",
    ] {
        fixture.run(format!("grant {} to '{user}'@'%'", grant.replace("SHOP", database))).await;
    }
    let url = fixture.url.replace("root@", &format!("{user}:pw@"));
    let store = SqlStore::<MySql>::connect(&url).await.unwrap();
    let may_not = [
        "select payload from posthaste_outbox_inbox",
        "select * from posthaste_outbox",
        "call posthaste_reap(1, 5)",
    ];
    a_consumers_work(&store, &may_not).await;
    store.close().await;
    fixture.run(format!("drop user '{user}'@'%'")).await;
    fixture.destroy().await;
}

/// INB-008: two stores with their own prefixes have inboxes of their own, and the turns of their consumers are their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_apart() {
    let fixture = SqliteFixture::bare().await;
    let message = Arc::new(received());
    for prefix in ["one_", "two_"] {
        let options = fixture.options.clone().prefix(prefix);
        let store = SqlStore::<Sqlite>::connect_with(&fixture.url, &options).await.unwrap();
        store.migrate().await.unwrap();
        for expected in [Once::First, Once::Repeated] {
            let mut tx = fixture.begin().await;
            assert_eq!(inbox(&store).once(&mut tx, &message).await.unwrap(), expected, "{prefix}");
            fixture.commit(tx).await;
        }
        assert!(store.turn("inbox stock", Turn::Every(HOUR)).await.unwrap());
        store.close().await;
    }
    fixture.destroy().await;
}

/// INB-003: a consumer without tables does not begin, and says what to do; with tables it does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_needs_its_tables() {
    async fn nothing(_: &mut PgConnection, _: &Received) -> HandlerResult {
        Ok(())
    }
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::bare().await;
    let consumer = Consumer::new(inbox(&fixture.store), nothing);
    let shutdown = Shutdown::new();
    let error = consumer.ready(&shutdown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::SchemaMissing);
    assert!(error.to_string().contains("migrate"), "{error}");
    fixture.store.migrate().await.unwrap();
    assert!(consumer.ready(&shutdown).await.unwrap());
    fixture.destroy().await;
}
