//! The cost of the statements on a large table: counted in buffers, in handler reads and in steps of the virtual
//! machine, never in seconds.
//!
//! A queue's cost must depend on the request, not on done or scheduled messages. So every case measures a small table,
//! adds a million done messages in front of the ready ones and a hundred thousand scheduled ones, and measures again.
//! The order matters: done messages are older than ready ones, and a plan that walks the primary key from its
//! beginning is cheap only as long as they are not.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{ClaimRequest, MessageId, Store, WorkerId};
use posthaste_sqlx::{PgStore, StoreOptions};
use posthaste_testkit::Fixture;
use serde_json::Value;
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::{PoolConnection, PoolOptions};
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_postgres::PgConnectOptions;

use crate::fixture::{MySqlFixture, PgFixture, SqliteFixture, session};

/// How many are asked for, of a thousand that are ready.
const LIMIT: u64 = 100;

/// A statement's text, as a store without a schema and with this prefix renders it.
fn rendered(file: &str, prefix: &str) -> String {
    file.replace("/*:*/", prefix).replace("/*+*/", prefix)
}

/// The allowed extra cost of the large table: the depth of its indexes, and no more.
fn at_most(small: u64, more: u64) -> u64 {
    small * 13 / 10 + more
}

// ---------------------------------------------------------------- PostgreSQL

const PG_COLUMNS: &str = "message_id, created_at, due_at, leased_until, done_at, epoch, attempts, lease_losses, state, \
                          priority, order_policy, topic, key, payload, content_type";

/// One statement of the store, as it is prepared.
struct Probe {
    name: &'static str,
    types: &'static str,
    file: &'static str,
    args: String,
    /// The index that must serve it; none if it is a function, whose plans are not shown.
    index: Option<&'static str>,
}

fn pg_claim() -> Probe {
    Probe {
        name: "claim",
        types: "text, bigint, interval, text[], text[]",
        file: include_str!("../../sql/postgres/claim.sql"),
        args: format!("'w', {LIMIT}, '30 s', null, null"),
        index: None,
    }
}

fn pg_reap() -> Probe {
    Probe {
        name: "reap",
        types: "bigint, bigint",
        file: include_str!("../../sql/postgres/reap.sql"),
        args: "50, 5".to_owned(),
        index: None,
    }
}

fn pg_stats() -> Probe {
    Probe {
        name: "stats",
        types: "bigint",
        file: include_str!("../../sql/postgres/stats.sql"),
        args: "1001".to_owned(),
        index: Some("outbox_new"),
    }
}

fn pg_settle(seqs: &[i64]) -> Probe {
    let fill = |value: &str| format!("array_fill({value}, array[{}])", seqs.len());
    let args = [
        format!("'{{{}}}'", seqs.iter().map(i64::to_string).collect::<Vec<_>>().join(",")),
        fill("1"),
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
    Probe {
        name: "settle",
        types: "bigint[], integer[], smallint[], bigint[], smallint[], text[], integer[], boolean, bigint[], text[], boolean",
        file: include_str!("../../sql/postgres/settle.sql"),
        args: args.join(", "),
        index: None,
    }
}

fn pg_survivors(seqs: &[i64]) -> Probe {
    let list = seqs.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
    Probe {
        name: "survivors",
        types: "bigint[], integer[]",
        file: include_str!("../../sql/postgres/survivors.sql"),
        args: format!("'{{{list}}}', array_fill(1, array[{}])", seqs.len()),
        index: Some("outbox_pkey"),
    }
}

async fn pg_rows(fixture: &PgFixture, sql: String) -> Vec<sqlx_postgres::PgRow> {
    // A connection of the store's own, and so with the planner's settings that the store chose.
    let mut connection = session(&fixture.store).await;
    connection.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap()
}

/// The plan of the statement as it ran; its changes are rolled back.
async fn pg_explain(connection: &mut PoolConnection<sqlx_postgres::Postgres>, probe: &Probe) -> Value {
    let Probe { name, types, file, args, .. } = probe;
    let sql = rendered(file, "");
    let sql = format!(
        "prepare probe_{name} ({types}) as {sql};\nbegin;\n\
         explain (analyze, buffers, format json) execute probe_{name}({args});\n\
         rollback; deallocate probe_{name}"
    );
    let rows = connection.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap();
    let json: Value = serde_json::from_str(rows[0].get_unchecked(0)).unwrap();
    json[0]["Plan"].clone()
}

/// The nodes of a plan, in no order that matters.
fn nodes(plan: &Value) -> Vec<&Value> {
    let mut found = vec![plan];
    for child in plan["Plans"].as_array().into_iter().flatten() {
        found.extend(nodes(child));
    }
    found
}

fn buffers(node: &Value) -> u64 {
    let of = |kind: &str| node[format!("Shared {kind} Blocks")].as_u64().unwrap();
    of("Hit") + of("Read") + of("Dirtied")
}

/// All that the statement touched. A change whose result is not read runs after the rest, and is not in its total.
fn touched(plan: &Value) -> u64 {
    let all = nodes(plan);
    let read: HashSet<&str> = all.iter().filter_map(|node| node["CTE Name"].as_str()).collect();
    let unread = |node: &&&Value| {
        let name = node["Subplan Name"].as_str().and_then(|name| name.strip_prefix("CTE "));
        node["Node Type"] == "ModifyTable" && name.is_some_and(|name| !read.contains(name))
    };
    buffers(plan) + all.iter().filter(unread).map(|node| buffers(node)).sum::<u64>()
}

/// The reads of each table, for a failure message.
fn scans(plan: &Value) -> Vec<String> {
    let all = nodes(plan);
    let scans = all.iter().filter(|node| node["Relation Name"] == "outbox" && node["Operation"].is_null());
    let line = |node: &&Value| {
        let (rows, loops) = (&node["Actual Rows"], &node["Actual Loops"]);
        format!("{} {}: {rows} rows x {loops}", node["Node Type"], node["Index Name"])
    };
    scans.map(line).collect()
}

/// How often a statement is run after the first time.
const RUNS: usize = 20;

/// Runs the probe several times on one connection and returns the cost of the cheapest run. The first run pays for planning and
/// for what restocking left behind. A later run may have to reload the catalogue cache, because another test ran DDL.
async fn pg_cost(fixture: &PgFixture, probe: &Probe) -> u64 {
    pg_cost_in(&mut session(&fixture.store).await, probe).await
}

async fn pg_cost_in(connection: &mut PoolConnection<sqlx_postgres::Postgres>, probe: &Probe) -> u64 {
    pg_explain(connection, probe).await;
    let mut least: Option<Value> = None;
    for _ in 0..RUNS {
        let plan = pg_explain(connection, probe).await;
        if least.as_ref().is_none_or(|least| touched(&plan) < touched(least)) {
            least = Some(plan);
        }
    }
    let plan = least.unwrap();
    let all = nodes(&plan);
    assert!(
        !all.iter().any(|node| node["Node Type"] == "Seq Scan" && node["Relation Name"] == "outbox"),
        "{} scans the table: {:?}",
        probe.name,
        scans(&plan)
    );
    assert!(
        probe.index.is_none_or(|index| all.iter().any(|node| node["Index Name"] == index)),
        "{} does not use {:?}: {:?}",
        probe.name,
        probe.index,
        scans(&plan)
    );
    let cost = touched(&plan);
    eprintln!("{}: {cost} buffers; {:?}", probe.name, scans(&plan));
    cost
}

/// Rows deleted or moved before must not count now. The next read of an index removes their entries, unless another
/// transaction, of another test for example, is older: the test waits for those.
async fn pg_bury_the_dead(fixture: &PgFixture) {
    let now = fixture.texts("select pg_current_xact_id()::xid::text").await.remove(0);
    let older = format!(
        "select count(*)::text from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() \
         and greatest(age(backend_xmin), age(backend_xid)) >= age('{now}'::xid)"
    );
    let begin = Instant::now();
    while fixture.texts(&older).await != ["0"] {
        assert!(begin.elapsed() < Duration::from_secs(120), "another transaction is open for two minutes");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fixture
        .run(
            "set enable_seqscan = off; set enable_bitmapscan = off; \
             select max(seq) from outbox where state = 1 and leased_until < now(); \
             select count(payload) from outbox where state = 1; select count(payload) from outbox where state = 0 and due_at < now(); \
             reset enable_seqscan; reset enable_bitmapscan"
                .to_owned(),
        )
        .await;
}

/// A thousand ready ones, each with a key of its own or none, and a hundred whose lease has run out.
async fn pg_restock(fixture: &PgFixture, keyed: bool) {
    let key = if keyed { "'k' || n % 1000" } else { "null" };
    fixture.run("delete from outbox where state < 2 and due_at < now()".to_owned()).await;
    pg_bury_the_dead(fixture).await;
    fixture
        .run(format!(
            "insert into outbox ({PG_COLUMNS}) \
             select gen_random_uuid(), now(), now() - interval '1 hour', \
                    case when n > 1000 then now() - interval '1 minute' end, null, \
                    case when n > 1000 then 1 else 0 end, 0, 0, case when n > 1000 then 1 else 0 end, \
                    0, 0, 't', case when n <= 1000 then {key} end, 'x', 'text/plain' \
             from generate_series(1, 1100) n"
        ))
        .await;
}

/// A store whose tables are neither vacuumed nor analyzed unless the test does it: both change plans, and what is touched.
async fn pg_undisturbed() -> PgFixture {
    let fixture = PgFixture::create().await;
    let tables = "select format('alter table %I set (autovacuum_enabled = off)', relname) from pg_class \
                  where relnamespace = current_schema()::regnamespace and relkind = 'r'";
    for alter in fixture.texts(tables).await {
        fixture.run(alter).await;
    }
    fixture
}

/// A million done ones, older than all others and with the same keys, and a hundred thousand for later, of the ready
/// ones' priority and of others.
async fn pg_fill(fixture: &PgFixture) {
    fixture
        .run(format!(
            "set synchronous_commit = off; \
             insert into outbox (seq, {PG_COLUMNS}) overriding system value \
             select n, lpad(to_hex(n + 1000000), 32, '0')::uuid, now(), now() - interval '1 hour', null, now(), 1, 0, \
                    0, 2, 0, 0, 't', 'k' || (n + 1000000) % 1000, 'x', 'text/plain' \
             from generate_series(-1000000, -1) n; \
             insert into outbox ({PG_COLUMNS}, born) \
             select lpad(to_hex(n + 2000000), 32, '0')::uuid, now(), now() + interval '1 hour', null, null, 0, 0, 0, 0, \
                    n % 3 - 1, 0, 't', null, 'x', 'text/plain', null \
             from generate_series(1, 100000) n; \
             set synchronous_commit = on"
        ))
        .await;
}

/// The cost of the store's statements, by name.
async fn pg_costs(fixture: &PgFixture) -> Vec<(&'static str, u64)> {
    let mut costs = Vec::new();
    pg_restock(fixture, true).await;
    costs.push(("claim with keys", pg_cost(fixture, &pg_claim()).await));
    pg_restock(fixture, false).await;
    costs.push(("claim", pg_cost(fixture, &pg_claim()).await));
    let rows = pg_rows(fixture, "select seq from outbox where state = 1 order by seq".to_owned()).await;
    let leased: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    costs.push(("settle", pg_cost(fixture, &pg_settle(&leased)).await));
    // On a user's connection, whose settings are none of ours.
    costs.push((
        "survivors",
        pg_cost_in(&mut fixture.users.acquire().await.unwrap(), &pg_survivors(&leased)).await,
    ));
    costs.push(("reap", pg_cost(fixture, &pg_reap()).await));
    costs
}

/// OBX-098: claims, settlements and reaps cost the same in front of a long history, whether the planner knows of it or
/// not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_postgres_costs_do_not_grow_with_the_table() {
    if !PgFixture::available() {
        return;
    }
    let small = pg_undisturbed().await;
    let before = pg_costs(&small).await;
    small.destroy().await;

    let fixture = pg_undisturbed().await;
    pg_fill(&fixture).await;
    // Nothing is ready: one look into each priority's beginning.
    let idle = pg_cost(&fixture, &pg_claim()).await;
    assert!(idle <= 60, "a claim that finds nothing touches {idle} buffers");
    for analyzed in [false, true] {
        if analyzed {
            fixture.run("analyze outbox".to_owned()).await;
        }
        let after = pg_costs(&fixture).await;
        for ((name, before), (_, after)) in before.iter().zip(&after) {
            // A settlement looks each of its hundred messages up twice, in an index that is one page deeper.
            let deeper = if *name == "settle" { 200 } else { 80 };
            assert!(
                *after <= at_most(*before, deeper),
                "{name}, analyzed {analyzed}: {before} buffers, now {after}"
            );
        }
        // Counted up to a cap of 1,001 in each of three priorities, each row at worst on a page of its own.
        let stats = pg_cost(&fixture, &pg_stats()).await;
        assert!(stats <= 5_000, "stats touches {stats} buffers");
    }
    fixture.destroy().await;
}

/// A store whose planner has nothing but nested loops.
async fn pg_nested_loops(url: &str, options: &StoreOptions) -> PgStore {
    let off = ["hashjoin", "mergejoin", "material", "hashagg", "sort", "seqscan", "bitmapscan", "memoize"];
    let off = off.map(|name| format!("enable_{name}"));
    // Disabled plan types count as very expensive, and expensive plans would be compiled, for seconds.
    let settings = off.into_iter().chain(["jit".to_owned()]).map(|name| (name, "off"));
    let connect = url.parse::<PgConnectOptions>().unwrap().options(settings);
    let pool = PoolOptions::new().max_connections(1).connect_with(connect).await.unwrap();
    PgStore::from_pool(pool, options).unwrap()
}

/// Rule 11 of the protocol, OBX-098: a claim takes no more than requested, with any plan, and eight sessions at once
/// take every message exactly once; a claim changes no message, and so waits for no lock of one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_claims_stay_within_their_limit_in_nested_loops() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture
        .run(format!(
            "insert into outbox ({PG_COLUMNS}) \
             select gen_random_uuid(), now(), now() - n * interval '1 ms', null, null, 0, 0, 0, 0, n % 2, 0, 't', \
                    case when n % 5 = 0 then 'k' || n end, 'x', 'text/plain' from generate_series(1, 2000) n"
        ))
        .await;
    let mut locks = fixture.users.begin().await.unwrap();
    locks.execute(raw_sql("select seq from outbox where seq % 7 = 0 for update")).await.unwrap();
    let claimed = pg_claim_all(&fixture).await;
    locks.rollback().await.unwrap();
    assert_eq!(claimed.len(), 2_000 - 2_000 / 7, "what another session has locked is left");
    let rest = pg_claim_all(&fixture).await;
    let all: HashSet<_> = claimed.iter().chain(&rest).collect();
    assert_eq!((all.len(), claimed.len() + rest.len()), (2_000, 2_000), "each of them once");
    fixture.destroy().await;
}

/// Eight sessions claim ten at a time until there is nothing more to be had.
async fn pg_claim_all(fixture: &PgFixture) -> Vec<MessageId> {
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let store = pg_nested_loops(&fixture.url, &fixture.options).await;
        sessions.push(tokio::spawn(async move {
            let request = ClaimRequest::new(WorkerId::new("nested").unwrap()).limit(10);
            let mut claimed = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(240);
            loop {
                let messages = store.claim(&request).await.unwrap();
                assert!(messages.len() <= 10, "asked for 10, got {}", messages.len());
                assert!(Instant::now() < deadline, "still claiming after four minutes");
                if messages.is_empty() {
                    break;
                }
                claimed.extend(messages.iter().map(|message| message.id));
            }
            store.close().await;
            claimed
        }));
    }
    let mut all = Vec::new();
    for session in sessions {
        all.extend(session.await.unwrap());
    }
    all
}

// ---------------------------------------------------------------- MySQL, MariaDB

const MYSQL_COLUMNS: &str = "message_id, created_at, due_at, done_at, epoch, attempts, lease_losses, state, priority, \
                             order_policy, topic, `key`, payload, content_type";

/// Numbers from 0 to 999, in a form that both MySQL and MariaDB know.
const MYSQL_THOUSAND: &str = "with d as (select 0 n union all select 1 union all select 2 union all select 3 union all \
                              select 4 union all select 5 union all select 6 union all select 7 union all select 8 \
                              union all select 9), \
                              k as (select a.n + 10 * b.n + 100 * c.n as n from d a, d b, d c)";

type MySqlSession = PoolConnection<sqlx_mysql::MySql>;

async fn mysql_rows(session: &mut MySqlSession, sql: String) -> Vec<sqlx_mysql::MySqlRow> {
    session.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap()
}

async fn mysql_handler_reads(session: &mut MySqlSession) -> u64 {
    let rows = mysql_rows(session, "show session status like 'Handler_read_%'".to_owned()).await;
    rows.iter().map(|row| row.get_unchecked::<String, _>(1).parse::<u64>().unwrap()).sum()
}

/// The rows and index entries that the server handed to the statements of a claim of so many.
async fn mysql_claim_cost(fixture: &MySqlFixture, expected: usize) -> u64 {
    let (claimed, cost) = mysql_claim(fixture).await;
    assert_eq!(claimed, expected);
    cost
}

/// The number of messages of a claim, which are then given back, and its cost.
async fn mysql_claim(fixture: &MySqlFixture) -> (usize, u64) {
    let mut session = fixture.store.pool().acquire().await.unwrap();
    let before = mysql_handler_reads(&mut session).await;
    let call = format!("call posthaste_claim('w', {LIMIT}, 30000000, null, null)");
    let claimed = mysql_rows(&mut session, call).await.len();
    let cost = mysql_handler_reads(&mut session).await - before;
    eprintln!("claim of {claimed}: {cost} handler reads");
    let back = "update posthaste_outbox force index (posthaste_outbox_state) \
                set state = 0, leased_until = null where state = 1";
    mysql_rows(&mut session, back.to_owned()).await;
    (claimed, cost)
}

async fn mysql_restock(fixture: &MySqlFixture, keyed: bool) {
    let key = if keyed { "concat('k', n)" } else { "null" };
    let old = "delete from posthaste_outbox where state = 0 and due_at < utc_timestamp(6)";
    fixture.run(old.to_owned()).await;
    fixture
        .run(format!(
            "insert into posthaste_outbox ({MYSQL_COLUMNS}) {MYSQL_THOUSAND} \
             select unhex(lpad(hex(n + 3000000), 32, '0')), utc_timestamp(6), utc_timestamp(6) - interval 1 hour, null, \
                    0, 0, 0, 0, 0, 0, 't', {key}, 'x', 'text/plain' from k"
        ))
        .await;
}

/// In pieces and in the order of every index, because a transaction that outgrows the buffer pool takes minutes.
async fn mysql_fill(fixture: &MySqlFixture) {
    for piece in 0..5 {
        fixture
            .run(format!(
                "set unique_checks = 0; insert into posthaste_outbox (seq, {MYSQL_COLUMNS}) {MYSQL_THOUSAND} \
                 select x.n * 1000 + y.n - 1000000, unhex(lpad(hex(x.n * 1000 + y.n), 32, '0')), utc_timestamp(6), \
                        utc_timestamp(6) - interval 1 hour, utc_timestamp(6), 1, 0, 0, 2, 0, 0, 't', \
                        concat('k', y.n), 'x', 'text/plain' \
                 from k x straight_join k y where x.n between {piece} * 200 and {piece} * 200 + 199; \
                 set unique_checks = 1"
            ))
            .await;
    }
    fixture
        .run(format!(
            "insert into posthaste_outbox ({MYSQL_COLUMNS}) {MYSQL_THOUSAND} \
             select unhex(lpad(hex(x.n * 1000 + y.n + 2000000), 32, '0')), utc_timestamp(6), \
                    utc_timestamp(6) + interval 1 hour, null, 0, 0, 0, 0, x.n % 3 - 1, 0, 't', null, 'x', 'text/plain' \
             from k x straight_join k y where x.n < 100"
        ))
        .await;
}

async fn mysql_costs(fixture: &MySqlFixture) -> [u64; 2] {
    let mut costs = [0; 2];
    for (cost, keyed) in costs.iter_mut().zip([false, true]) {
        mysql_restock(fixture, keyed).await;
        *cost = mysql_claim_cost(fixture, 100).await;
    }
    costs
}

/// Few keys with long queues are not walked over for the first message of each, but for one time out of fifty; then what lies far
/// behind them is found as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mysql_few_keys_do_not_cost_a_walk() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    for (count, key) in [(20, "concat('k', x.n)"), (1, "null")] {
        fixture
            .run(format!(
                "insert into posthaste_outbox ({MYSQL_COLUMNS}) {MYSQL_THOUSAND} \
                 select unhex(lpad(hex(y.n * 1000 + x.n + {count} * 1000000), 32, '0')), utc_timestamp(6), \
                        utc_timestamp(6) - interval 1 hour + interval {count} = 1 minute, null, 0, 0, 0, 0, 0, 0, 't', \
                        {key}, 'x', 'text/plain' \
                 from k y straight_join k x where x.n < {count} and y.n < 50 * {count}"
            ))
            .await;
    }
    // As it would be by itself after a few seconds.
    fixture.run("analyze table posthaste_outbox".to_owned()).await;
    // Of 50 without a key: all, or none. A thousand claims without a walk are not to be expected.
    let (mut quick, mut found) = (Vec::new(), false);
    while !found || quick.len() < 20 {
        assert!(quick.len() < 1_000, "what lies behind those that wait is not found");
        match mysql_claim(&fixture).await {
            (20, cost) => quick.push(cost),
            (70, _) => found = true,
            (other, _) => panic!("{other} were claimed"),
        }
    }
    let most = quick.iter().max().unwrap();
    assert!(*most < 10_000, "a claim reads {most} times, for 20 of 20,000");
    fixture.destroy().await;
}

/// The query of a claim that looks for candidates, with values for its variables.
fn mysql_candidates() -> String {
    let file = include_str!("../../sql/mysql/routines/claim.sql");
    let (_, rest) = file.split_once("into v_more, v_round, v_keyed from (").unwrap();
    let (query, _) = rest.split_once(") clean;").unwrap();
    let mut query = rendered(query, "posthaste_");
    for (variable, value) in [
        ("v_priority", "0"),
        ("v_due", "'1970-01-01'"),
        ("v_now", "utc_timestamp(6)"),
        ("v_seq", "0"),
        ("v_round", "200"),
        ("v_paused", "1"),
        ("p_topics", "null"),
        ("p_prefixes", "null"),
    ] {
        query = query.replace(variable, value);
    }
    query
}

/// The candidates come from their index, in its order.
async fn mysql_check_plan(fixture: &MySqlFixture) {
    let mut session = fixture.store.pool().acquire().await.unwrap();
    let rows = mysql_rows(&mut session, format!("explain {}", mysql_candidates())).await;
    let text = |row: &sqlx_mysql::MySqlRow, column: &str| -> String {
        row.get_unchecked::<Option<String>, _>(column).unwrap_or_default()
    };
    let candidates = rows.iter().find(|row| text(row, "table") == "o").unwrap();
    assert_eq!(text(candidates, "key"), "posthaste_outbox_ready");
    assert_eq!(text(candidates, "type"), "range");
    let extra = text(candidates, "Extra");
    assert!(!extra.contains("filesort") && !extra.contains("temporary"), "{extra}");
}

/// The same for MySQL and MariaDB, by requests to the storage engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_mysql_costs_do_not_grow_with_the_table() {
    if !MySqlFixture::available() {
        return;
    }
    let small = MySqlFixture::create().await;
    let before = mysql_costs(&small).await;
    small.destroy().await;

    let fixture = MySqlFixture::create().await;
    mysql_fill(&fixture).await;
    let idle = mysql_claim_cost(&fixture, 0).await;
    assert!(idle <= 100, "a claim that finds nothing reads {idle} times");
    for analyzed in [false, true] {
        if analyzed {
            fixture.run("analyze table posthaste_outbox".to_owned()).await;
        }
        let after = mysql_costs(&fixture).await;
        for (before, after) in before.iter().zip(after) {
            assert!(after <= at_most(*before, 100), "analyzed {analyzed}: {before} reads, now {after}");
        }
        mysql_check_plan(&fixture).await;
    }
    fixture.destroy().await;
}

// ---------------------------------------------------------------- SQLite

const SQLITE_COLUMNS: &str = "message_id, created_at, due_at, done_at, epoch, attempts, lease_losses, state, priority, \
                              order_policy, topic, key, payload, content_type";
const SQLITE_NOW: &str = "cast(unixepoch('subsec') * 1000000 as integer)";

/// The claim statement, its parameters written out.
fn sqlite_claim() -> String {
    let sql = rendered(include_str!("../../sql/sqlite/claim.sql"), "posthaste_");
    let sql: Vec<&str> = sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    let values = ["'w'", &LIMIT.to_string(), "30000000", "null", "null"];
    (1..).zip(values).fold(sql.join("\n"), |sql, (n, value)| sql.replace(&format!("?{n}"), value))
}

async fn sqlite_restock(fixture: &SqliteFixture, keyed: bool) {
    let key = if keyed { "'k' || n" } else { "null" };
    fixture.run(format!("delete from posthaste_outbox where state < 2 and due_at < {SQLITE_NOW}")).await;
    fixture
        .run(format!(
            "with recursive c (n) as (select 0 union all select n + 1 from c where n < 999) \
             insert into posthaste_outbox ({SQLITE_COLUMNS}) \
             select randomblob(16), {SQLITE_NOW}, {SQLITE_NOW} - 3600000000, null, 0, 0, 0, 0, 0, 0, 't', {key}, 'x', \
                    'text/plain' from c"
        ))
        .await;
}

async fn sqlite_fill(fixture: &SqliteFixture) {
    fixture
        .run(format!(
            "with recursive c (n) as (select 0 union all select n + 1 from c where n < 1099999) \
             insert into posthaste_outbox ({SQLITE_COLUMNS}) \
             select unhex(printf('%032x', n)), {SQLITE_NOW}, \
                    {SQLITE_NOW} + case when n < 1000000 then -3600000000 else 3600000000 end, \
                    case when n < 1000000 then {SQLITE_NOW} end, 0, 0, 0, case when n < 1000000 then 2 else 0 end, \
                    case when n < 1000000 then 0 else n % 3 - 1 end, 0, 't', \
                    case when n < 1000000 then 'k' || n % 1000 end, 'x', 'text/plain' from c"
        ))
        .await;
}

/// How many steps the virtual machine takes for a claim, which is then rolled back.
async fn sqlite_claim_cost(fixture: &SqliteFixture, expected: usize) -> u64 {
    let mut connection = fixture.users.acquire().await.unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&steps);
    connection.execute(raw_sql("begin immediate")).await.unwrap();
    connection.lock_handle().await.unwrap().set_progress_handler(1, move || {
        counter.fetch_add(1, Ordering::SeqCst);
        true
    });
    let claimed = connection.fetch_all(raw_sql(AssertSqlSafe(sqlite_claim()))).await.unwrap().len();
    connection.lock_handle().await.unwrap().remove_progress_handler();
    connection.execute(raw_sql("rollback")).await.unwrap();
    assert_eq!(claimed, expected);
    let steps = steps.load(Ordering::SeqCst);
    eprintln!("claim of {claimed}: {steps} steps");
    steps
}

async fn sqlite_costs(fixture: &SqliteFixture) -> [u64; 2] {
    let mut costs = [0; 2];
    for (cost, keyed) in costs.iter_mut().zip([false, true]) {
        sqlite_restock(fixture, keyed).await;
        *cost = sqlite_claim_cost(fixture, 100).await;
    }
    costs
}

/// What SQLite says that it will do: each step with its number and that of the step it belongs to.
async fn sqlite_plan(fixture: &SqliteFixture) -> Vec<(i64, i64, String)> {
    let mut connection = fixture.users.acquire().await.unwrap();
    let sql = format!("explain query plan {}", sqlite_claim());
    let rows = connection.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap();
    rows.iter().map(|row| (row.get_unchecked(0), row.get_unchecked(1), row.get_unchecked(3))).collect()
}

fn sqlite_check_plan(plan: &[(i64, i64, String)]) {
    let has = |wanted: &str| plan.iter().any(|(_, _, step)| step.contains(wanted));
    assert!(
        has("SEARCH i USING INDEX posthaste_outbox_ready (topic=? AND priority=? AND due_at>? AND due_at<?)"),
        "{plan:#?}"
    );
    assert!(has("posthaste_outbox_key (key=? AND seq<?)"), "{plan:#?}");
    // Only the index of suspects and the table of pauses are read in full, and both are small.
    for (_, _, step) in plan {
        let walks =
            ["SCAN posthaste_outbox", "SCAN o", "SCAN i", "SCAN e"].iter().any(|scan| step.starts_with(scan));
        let few = ["posthaste_outbox_suspect", "posthaste_outbox_pause"];
        assert!(!walks || few.iter().any(|few| step.contains(few)), "{step} in {plan:#?}");
    }
    // The clean ones come in their index's order.
    let clean = plan.iter().find(|(_, _, step)| step == "MATERIALIZE clean").unwrap().0;
    let sorts = plan.iter().any(|(_, part, step)| *part == clean && step.contains("TEMP B-TREE"));
    assert!(!sorts, "{plan:#?}");
}

/// Disabling a plan type makes plans look expensive, and expensive plans are compiled: a twentieth of a second for a
/// call that takes almost none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_compiles_no_routine() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let compiled = "select proname from pg_proc where pronamespace = current_schema()::regnamespace \
                    and 'enable_seqscan=off' = any(proconfig) and not 'jit=off' = any(proconfig)";
    assert_eq!(fixture.texts(compiled).await, Vec::<String>::new());
    let forbidding = "select count(*)::text from pg_proc where pronamespace = current_schema()::regnamespace \
                      and 'enable_seqscan=off' = any(proconfig)";
    assert_ne!(fixture.texts(forbidding).await, ["0"]);
    fixture.destroy().await;
}

/// The same for SQLite, by the steps of its virtual machine, and by its plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_sqlite_costs_do_not_grow_with_the_table() {
    if !SqliteFixture::available() {
        return;
    }
    let small = SqliteFixture::create().await;
    let before = sqlite_costs(&small).await;
    small.destroy().await;

    let fixture = SqliteFixture::create().await;
    sqlite_fill(&fixture).await;
    let idle = sqlite_claim_cost(&fixture, 0).await;
    assert!(idle <= 1_500, "a claim that finds nothing takes {idle} steps");
    for analyzed in [false, true] {
        if analyzed {
            fixture.run("analyze".to_owned()).await;
        }
        let after = sqlite_costs(&fixture).await;
        for (before, after) in before.iter().zip(after) {
            assert!(after <= at_most(*before, 500), "analyzed {analyzed}: {before} steps, now {after}");
        }
        sqlite_check_plan(&sqlite_plan(&fixture).await);
    }
    fixture.destroy().await;
}
