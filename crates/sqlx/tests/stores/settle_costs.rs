//! What a settlement pays for others: joins, if its messages are in none, and other leases. Counted in buffers, in handler reads
//! and in steps of the virtual machine.
//!
//! A settlement of five hundred messages that are in no join is measured in a database without joins, where it may cost no
//! more than the settling alone, and beside a hundred thousand steps of others.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::{ClaimRequest, Lease, NewMessage, Store, WorkerId};
use posthaste_testkit::Fixture;
use serde_json::Value;
use sqlx_core::executor::Executor as _;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;

use crate::fixture::{MySqlFixture, PgFixture, SqliteFixture, session};

const BATCH: u32 = 500;

/// Messages that are leased, and in no join.
async fn leased<F: Fixture>(fixture: &F) -> Vec<Lease> {
    let messages: Vec<_> = (0..BATCH).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    fixture.store().enqueue(&messages).await.unwrap();
    let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(BATCH);
    let claimed = fixture.store().claim(&request).await.unwrap();
    assert_eq!(claimed.len(), BATCH as usize);
    let mut leases: Vec<Lease> = claimed.iter().map(posthaste_core::Message::lease).collect();
    leases.sort();
    leases
}

/// Acks, as the databases without arrays take them.
fn acks(leases: &[Lease]) -> String {
    let ack = |lease: &Lease| format!("[{},{},0,0,null,null,10]", lease.item, lease.epoch);
    format!("[{}]", leases.iter().map(ack).collect::<Vec<_>>().join(","))
}

// ---------------------------------------------------------------- PostgreSQL

/// The buffers that settling these messages touches, and how often the tables of joins were asked; nothing of it remains.
async fn pg_cost(fixture: &PgFixture, statement: &str, leases: &[Lease]) -> (u64, Vec<(String, i64)>) {
    let mut connection = session(&fixture.store).await;
    let column = |value: fn(&Lease) -> i64| {
        leases.iter().map(|lease| value(lease).to_string()).collect::<Vec<_>>().join(",")
    };
    let fill = |value: &str| format!("array_fill({value}, array[{BATCH}])");
    let args = [
        format!("'{{{}}}'", column(|lease| lease.item.get())),
        format!("'{{{}}}'", column(|lease| lease.epoch.into())),
        fill("0::smallint"),
        fill("0::bigint"),
        fill("null::smallint"),
        fill("null::text"),
        fill("10"),
        "true".to_owned(),
        fill("null::bigint"),
        fill("null::text"),
        "false".to_owned(),
    ];
    let sql = format!(
        "prepare probe (bigint[], integer[], smallint[], bigint[], smallint[], text[], integer[], boolean, bigint[], text[], \
         boolean) as {statement};\nbegin;\nexplain (analyze, buffers, format json) execute probe({args});\n\
         select relname::text, coalesce(idx_scan, 0) + coalesce(seq_scan, 0) from pg_stat_xact_user_tables \
         where schemaname = current_schema() and relname like 'outbox_join%' order by relname;\n\
         rollback; deallocate probe",
        args = args.join(", ")
    );
    let (mut least, mut asked) = (u64::MAX, Vec::new());
    // The first run pays for what others left behind, and DDL of another test makes a session reload its catalogue cache in the
    // middle of a run. So the cheapest counts.
    for run in 0..5 {
        connection.execute(raw_sql("vacuum outbox")).await.unwrap();
        let rows = connection.fetch_all(raw_sql(AssertSqlSafe(sql.clone()))).await.unwrap();
        let json: Value = serde_json::from_str(rows[0].get_unchecked(0)).unwrap();
        let of = |kind: &str| json[0]["Plan"][format!("Shared {kind} Blocks")].as_u64().unwrap();
        // Counts that the server's statistics do not have yet add up over the runs.
        if run == 1 {
            asked = rows[1..].iter().map(|row| (row.get_unchecked(0), row.get_unchecked(1))).collect();
        }
        least = least.min(of("Hit") + of("Read"));
    }
    (least, asked)
}

/// The function that settles messages without its part for joins.
fn pg_messages_alone(fixture: &PgFixture) -> String {
    let file = include_str!("../../sql/postgres/routines/settle.sql");
    let (function, _) = file.split_once("create or replace function /*:*/settle(").unwrap();
    let counting =
        "return query select null::smallint, c.* from /*:*/count_steps(v_messages, v_ends, v_now) c;";
    assert!(function.contains(counting), "it counts in another way");
    let schema = fixture.url.rsplit("%3D").next().unwrap();
    let function =
        function.replace("settle_locked", "settle_locked_alone").replace("settle_free", "settle_alone");
    let function = function.replace(counting, "null;");
    function.replace("/*:*/", &format!("{schema}."))
}

/// JOIN-033, OBX-089: messages that are in no join cost the same as without any joins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_settles_the_joinless_at_no_cost() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let leases = leased(&fixture).await;
    let function = include_str!("../../sql/postgres/settle.sql").replace("/*:*/", "");
    fixture.run(pg_messages_alone(&fixture)).await;
    let (alone, _) = pg_cost(&fixture, &function.replace("settle_free", "settle_alone"), &leases).await;
    let (without, scans) = pg_cost(&fixture, &function, &leases).await;
    eprintln!("messages alone {alone} buffers, with the tables of joins {without}, asked: {scans:?}");
    let asked: i64 = scans.iter().map(|(_, scans)| scans).sum();
    // In this run, and in the one before it on the same connection.
    assert!(asked <= 2, "only whether there is a join: {scans:?}");
    // What runs that were rolled back left in the indexes is part of it, if others keep vacuum from removing it; the tables of
    // joins are not asked, as shown above.
    assert!(without <= alone + alone / 20, "{alone} buffers before there were joins, {without} now");

    fixture
        .run(
            "insert into outbox_join select gen_random_uuid(), null, 0, 100, 100, 0, 0, now(), now() \
             from generate_series(1, 1000); \
             insert into outbox_join_member select j.join_id, gen_random_uuid(), 0, now(), now() \
             from outbox_join j, generate_series(1, 100)"
                .to_owned(),
        )
        .await;
    let (beside, scans) = pg_cost(&fixture, &function, &leases).await;
    eprintln!("beside 100,000 steps of others {beside} buffers, asked: {scans:?}");
    assert!(
        beside <= without + 5 * u64::from(BATCH) + 30,
        "{without} buffers without joins, {beside} beside them"
    );
    fixture.destroy().await;
}

// ---------------------------------------------------------------- MySQL, MariaDB

async fn mysql_cost(fixture: &MySqlFixture) -> u64 {
    let call = format!("call posthaste_settle('{}', true)", acks(&leased(fixture).await));
    let mut session = fixture.store.pool().acquire().await.unwrap();
    let mut reads = Vec::new();
    for sql in
        ["show session status like 'Handler_read_%'", &call, "show session status like 'Handler_read_%'"]
    {
        let rows = session.fetch_all(raw_sql(AssertSqlSafe(sql.to_owned()))).await.unwrap();
        if sql != call {
            reads.push(
                rows.iter().map(|row| row.get_unchecked::<String, _>(1).parse::<u64>().unwrap()).sum::<u64>(),
            );
        } else {
            assert_eq!(rows.len(), BATCH as usize);
        }
    }
    reads[1] - reads[0]
}

/// The same for MySQL and MariaDB: in a database without joins the looks for them are a handful.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_settles_the_joinless_at_no_cost() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let without = mysql_cost(&fixture).await;
    fixture
        .run(
            "insert into posthaste_outbox_join (join_id, status, expected_steps, attached_steps, completed_steps, \
             failed_steps, created_at, updated_at) \
             select unhex(replace(uuid(), '-', '')), 0, 100, 100, 0, 0, utc_timestamp(6), utc_timestamp(6) \
             from seq_1_to_1000"
                .to_owned(),
        )
        .await;
    fixture
        .run(
            "insert into posthaste_outbox_join_member (join_id, message_id, status, created_at, updated_at) \
             select j.join_id, unhex(md5(concat(hex(j.join_id), s.seq))), 0, utc_timestamp(6), utc_timestamp(6) \
             from posthaste_outbox_join j, seq_1_to_100 s"
                .to_owned(),
        )
        .await;
    let beside = mysql_cost(&fixture).await;
    eprintln!("without joins {without} handler reads, beside 100,000 steps of others {beside}");
    // The messages themselves, read, locked and changed, are nine reads each: a look per message for joins would be seen.
    assert!(without <= 9 * u64::from(BATCH) + 200, "{without} reads for {BATCH} messages");
    assert!(beside <= without + 8 * u64::from(BATCH), "{without} reads without joins, {beside} beside them");
    fixture.destroy().await;
}

// ---------------------------------------------------------------- SQLite

/// The statements of a settlement.
fn sqlite_settlement() -> String {
    let file = include_str!("../../sql/sqlite/settle.sql").replace("/*:*/", "posthaste_");
    file.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n")
}

async fn sqlite_cost(fixture: &SqliteFixture, script: &str, acks: &str) -> u64 {
    let sql = script.replace("?1", &format!("'{acks}'")).replace("?2", "true").replace("?3", "0");
    let mut connection = fixture.users.acquire().await.unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&steps);
    connection.execute(raw_sql("begin immediate")).await.unwrap();
    connection.lock_handle().await.unwrap().set_progress_handler(1, move || {
        counter.fetch_add(1, Ordering::SeqCst);
        true
    });
    connection.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap();
    connection.lock_handle().await.unwrap().remove_progress_handler();
    connection.execute(raw_sql("rollback")).await.unwrap();
    steps.load(Ordering::SeqCst)
}

/// The same for SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_settles_the_joinless_at_no_cost() {
    if !SqliteFixture::available() {
        return;
    }
    let fixture = SqliteFixture::create().await;
    let acks = acks(&leased(&fixture).await);
    let whole = sqlite_settlement();
    let alone: Vec<&str> = whole.split(';').filter(|statement| !statement.contains("outbox_join")).collect();
    assert_eq!(whole.split(';').count(), alone.len() + 2);
    let before = sqlite_cost(&fixture, &alone.join(";"), &acks).await;
    let without = sqlite_cost(&fixture, &whole, &acks).await;
    eprintln!("messages alone {before} steps, with the tables of joins {without}");
    assert!(without <= before + 100, "{before} steps before there were joins, {without} now");
    fixture.destroy().await;
}

/// Nor does what else is leased meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_settles_without_walking_over_what_is_leased() {
    if !SqliteFixture::available() {
        return;
    }
    let fixture = SqliteFixture::create().await;
    let acks = acks(&leased(&fixture).await);
    for keep in ["true", "false"] {
        let script = sqlite_settlement().replace("?2", keep);
        let alone = sqlite_cost(&fixture, &script, &acks).await;
        for _ in 0..4 {
            leased(&fixture).await;
        }
        let beside = sqlite_cost(&fixture, &script, &acks).await;
        eprintln!("{alone} steps alone, {beside} beside {} more that are leased", 4 * BATCH);
        assert!(beside <= alone + 1_000, "{alone} steps alone, {beside} beside what others hold");
    }
    fixture.destroy().await;
}
