//! The tables: made only when asked for, once however many ask, as the committed dump says, and with no more rights
//! than each kind of user needs.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use posthaste_core::{
    Birth, Change, ClaimRequest, ErrorKind, Failure, Filter, JoinStore, Lease, NewJoin, NewMessage, Outbox,
    Outcome, Retention, Settled, Settlement, Store, StoreAdmin, TransactionalStore, WorkItemId, WorkerId,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture;
use sqlx_core::executor::Executor as _;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, is_committed, unique};

/// The version of the tables that this code makes.
const VERSION: u32 = 11;

/// What differs between the databases in these tests.
trait Schema: Backend {
    /// A query that answers with one line of text for everything that exists.
    const DUMP: &'static str;
    /// The arguments of the migrate example beside the URL.
    fn arguments(url: &str) -> Vec<String> {
        let _ = url;
        Vec::new()
    }

    /// A row as one text: these columns, none of them null to the reader.
    fn row(columns: &[&str]) -> String;

    /// Runs a script as a user's own migration tool would.
    async fn apply(fixture: &SqlFixture<Self>, script: &str);
}

fn schema_of(url: &str) -> String {
    url.rsplit("%3D").next().unwrap().to_owned()
}

fn client(command: &mut Command, script: &str) {
    use std::io::Write;
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

impl Schema for Postgres {
    const DUMP: &'static str = "
        select line from (
            select 1 as part, c.relname || '.' || lpad(a.attnum::text, 2, '0') as place,
                   c.relname || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                   || case when a.attnotnull then ' not null' else '' end
                   || case when a.attidentity <> '' then ' identity' else '' end
                   || coalesce(' collate ' || (select collname from pg_collation
                                               where oid = a.attcollation and collname <> 'default'), '') as line
            from pg_class c join pg_attribute a on a.attrelid = c.oid
            where c.relnamespace = current_schema()::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
            union all
            select 2, indexname, replace(indexdef, quote_ident(current_schema()) || '.', '')
            from pg_indexes where schemaname = current_schema()
            union all
            select 3, p.proname, 'function ' || p.proname || '(' || pg_get_function_arguments(p.oid) || ')'
            from pg_proc p where p.pronamespace = current_schema()::regnamespace
        ) x order by part, place";

    fn arguments(url: &str) -> Vec<String> {
        vec!["--schema".to_owned(), schema_of(url)]
    }

    fn row(columns: &[&str]) -> String {
        format!(
            "concat_ws('|', {})",
            columns.iter().map(|c| format!("coalesce({c}::text, '-')")).collect::<Vec<_>>().join(", ")
        )
    }

    async fn apply(fixture: &SqlFixture<Self>, script: &str) {
        client(Command::new("psql").args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", &fixture.url]), script);
    }
}

impl Schema for MySql {
    // Display widths of integers are shown by some servers and not by others.
    const DUMP: &'static str = "
        select cast(line as char) from (
            select 1 as part, concat(table_name, '.', lpad(ordinal_position, 2, '0')) as place,
                   concat(table_name, ' ', column_name, ' ',
                          regexp_replace(column_type, '(int)\\\\([0-9]+\\\\)', '\\\\1'),
                          if(is_nullable = 'NO', ' not null', ''), if(extra like '%auto_increment%', ' auto_increment', ''),
                          if(extra like '%VIRTUAL%', ' virtual', ''), coalesce(concat(' collate ', collation_name), '')) as line
            from information_schema.columns where table_schema = database()
            union all
            select 2, concat(table_name, '.', index_name),
                   concat(if(min(non_unique) = 0, 'unique ', ''), 'index ', index_name, ' on ', table_name, ' (',
                          group_concat(column_name order by seq_in_index separator ', '), ')')
            from information_schema.statistics where table_schema = database() group by table_name, index_name
            union all
            select 3, specific_name,
                   concat('procedure ', specific_name, '(',
                          group_concat(concat(lower(parameter_mode), ' ', parameter_name, ' ', data_type)
                                       order by ordinal_position separator ', '), ')')
            from information_schema.parameters where specific_schema = database() group by specific_name
        ) x order by part, place";

    fn row(columns: &[&str]) -> String {
        let columns: Vec<String> = columns.iter().map(|c| format!("coalesce(hex(`{c}`), '-')")).collect();
        format!("cast(concat_ws('|', {}) as char)", columns.join(", "))
    }

    async fn apply(fixture: &SqlFixture<Self>, script: &str) {
        let rest = fixture.url.strip_prefix("mysql://root@").unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let (host, port) = address.split_once(':').unwrap();
        let command = ["--no-defaults", "-h", host, "-P", port, "-u", "root", database];
        client(Command::new("mariadb").args(command), script);
    }
}

impl Schema for Sqlite {
    const DUMP: &'static str = "select type || ' ' || name || char(10) || sql from sqlite_master where sql is not null order by type, name";

    fn row(columns: &[&str]) -> String {
        columns.iter().map(|c| format!("quote({c})")).collect::<Vec<_>>().join(" || '|' || ")
    }

    async fn apply(fixture: &SqlFixture<Self>, script: &str) {
        fixture.run(script.to_owned()).await;
    }
}

async fn tables<D: Schema>(fixture: &SqlFixture<D>) -> Vec<String> {
    fixture.texts(D::DUMP).await
}

async fn works<D: Schema>(store: &SqlStore<D>) {
    store.check().await.unwrap();
    let message = NewMessage::bytes("t", "x").build().unwrap();
    store.enqueue(std::slice::from_ref(&message)).await.unwrap();
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
    assert_eq!(claimed.iter().map(|message| message.id).collect::<Vec<_>>(), [message.id()]);
}

/// OBX-109: nothing is created unless you ask for it, and the error for a missing schema has a remedy.
async fn only_when_asked<D: Schema>() {
    let fixture = SqlFixture::<D>::bare().await;
    for error in [
        fixture.store.check().await.unwrap_err(),
        fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap_err(),
        fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap_err(),
        fixture.store.stats().await.unwrap_err(),
        fixture.store.prune(&Retention::done(std::time::Duration::ZERO), 1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
        assert!(error.to_string().contains("migrate()"), "{error}");
    }
    assert_eq!(tables(&fixture).await, Vec::<String>::new());
    fixture.store.migrate().await.unwrap();
    fixture.destroy().await;
}

/// OBX-108, OBX-110: made when asked for; asked again, nothing happens.
async fn again_is_harmless<D: Schema>() {
    let fixture = SqlFixture::<D>::bare().await;
    assert_eq!(fixture.store.migrate().await.unwrap(), VERSION);
    works(&fixture.store).await;
    let before = tables(&fixture).await;
    assert_eq!(fixture.store.migrate().await.unwrap(), VERSION);
    assert_eq!(tables(&fixture).await, before);
    assert_eq!(fixture.store.stats().await.unwrap().leased.value, 1, "and what was there is there");
    fixture.destroy().await;
}

/// OBX-110: twenty processes that start at once, all of which want the tables.
async fn twenty_processes<D: Schema>() {
    let fixture = SqlFixture::<D>::bare().await;
    let deps = std::env::current_exe().unwrap();
    let example: PathBuf = deps.parent().and_then(Path::parent).unwrap().join("examples").join("migrate");
    let mut children: Vec<_> = (0..20)
        .map(|_| {
            let mut command = Command::new(&example);
            command
                .args(D::arguments(&fixture.url))
                .arg(&fixture.url)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            command.spawn().unwrap_or_else(|error| panic!("{}: {error}", example.display()))
        })
        .collect();
    for child in children.drain(..) {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told = format!("the tables are at version {VERSION}\n");
        assert_eq!(String::from_utf8_lossy(&output.stdout), told);
    }
    works(&fixture.store).await;
    fixture.destroy().await;
}

/// Everything that checks the version refuses tables of a newer one, and leaves them as they are.
async fn newer_is_refused<D: Schema>() {
    let fixture = SqlFixture::<D>::create().await;
    let table = format!("{}_version", D::TABLE);
    fixture.run(format!("update {table} set version = 99")).await;
    let build = Outbox::builder(fixture.store.clone()).build().await.map(drop);
    for outcome in [fixture.store.migrate().await.map(drop), fixture.store.check().await, build] {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaTooNew, "{error}");
        assert!(error.to_string().contains(&format!("found=99, known={VERSION}")), "{error}");
        assert!(error.to_string().contains("nothing was changed"), "{error}");
    }
    fixture.destroy().await;
}

/// The printed script for other migration tools creates the same tables.
async fn printed_is_the_same<D: Schema>() {
    let (fixture, other) = (SqlFixture::<D>::bare().await, SqlFixture::<D>::create().await);
    let script = SqlStore::<D>::migration_sql(&fixture.options).unwrap();
    if D::NAME == "postgres" {
        assert!(script.contains(&schema_of(&fixture.url)));
    }
    D::apply(&fixture, &script).await;
    assert_eq!(tables(&fixture).await, tables(&other).await);
    works(&fixture.store).await;
    assert_eq!(fixture.store.migrate().await.unwrap(), VERSION, "and it knows that it is up to date");
    fixture.destroy().await;
    other.destroy().await;
}

/// OBX-119: the schema is the committed one. `POSTHASTE_UPDATE_DUMPS=1` rewrites it.
async fn dump_is_committed<D: Schema>() {
    let fixture = SqlFixture::<D>::create().await;
    let found = tables(&fixture).await.join("\n") + "\n";
    fixture.destroy().await;
    is_committed(&Path::new("sql").join(D::NAME).join("schema.txt"), &found);
}

/// OBX-111, JOIN-014, JOIN-033: joins have tables of their own, and nothing in the queue refers to them.
async fn joins_have_tables_of_their_own<D: Schema>() {
    let fixture = SqlFixture::<D>::create().await;
    let tables = tables(&fixture).await;
    let prefix = D::TABLE;
    for table in ["_join", "_join_member", "_join_wait", ""] {
        let name = format!("{prefix}{table}");
        let is_named = |line: &&String| line.split([' ', '(', '"', '`']).any(|word| word == name);
        assert!(tables.iter().any(|line| is_named(&line)), "{name} is missing in {tables:#?}");
    }
    for line in &tables {
        let lower = line.to_lowercase();
        assert!(!lower.contains("foreign key") && !lower.contains("references"), "{line}");
        let of_queue = line.starts_with(&format!("{prefix} "));
        assert!(!of_queue || !lower.contains("join"), "{line}");
    }
    fixture.destroy().await;
}

/// JOIN-090, JOIN-091, JOIN-092, INB-008: joins, the inbox and pauses are added to tables that were made before there were any, which
/// stay as they are.
async fn older_tables_are_added_to<D: Schema>() {
    let whole = {
        let fixture = SqlFixture::<D>::create().await;
        let whole = tables(&fixture).await;
        fixture.destroy().await;
        whole
    };
    for version in 1..VERSION {
        let fixture = SqlFixture::<D>::bare().await;
        D::apply(&fixture, &script_of(&fixture, version)).await;
        let error = fixture.store.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::SchemaMissing, "{error}");
        for _ in 0..2 {
            assert_eq!(fixture.store.migrate().await.unwrap(), VERSION);
            assert_eq!(tables(&fixture).await, whole, "from version {version}");
        }
        works(&fixture.store).await;
        fixture.destroy().await;
    }
}

/// What made the tables of an older version, without the routines.
fn script_of<D: Schema>(fixture: &SqlFixture<D>, version: u32) -> String {
    let script = SqlStore::<D>::migration_sql(&fixture.options).unwrap();
    let older = script.split(&format!("-- {:04}_", version + 1)).next().unwrap();
    let table = match D::NAME {
        "postgres" => format!("{}.{}_version", schema_of(&fixture.url), D::TABLE),
        _ => format!("{}_version", D::TABLE),
    };
    let (columns, values) = match D::NAME {
        "sqlite" => ("version", String::new()),
        _ => ("version, routines", ", 'older'".to_owned()),
    };
    let end = if older.starts_with("begin") { "commit;" } else { "" };
    format!("{older}\ninsert into {table} ({columns}) values ({version}{values});\n{end}\n")
}

/// INB-008: two outboxes with their own prefixes in one database do not touch each other.
async fn prefixes_are_apart<D: Schema>() {
    let fixture = SqlFixture::<D>::bare().await;
    let mut stores = Vec::new();
    for prefix in ["first_", "Second_"] {
        let store =
            SqlStore::<D>::connect_with(&fixture.url, &fixture.options.clone().prefix(prefix)).await.unwrap();
        store.migrate().await.unwrap();
        stores.push(store);
    }
    for store in &stores {
        works(store).await;
    }
    for store in &stores {
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.leased.value, stats.ready.value), (1, 0));
        store.close().await;
    }
    fixture.destroy().await;
}

/// RMQ-011: the archive has the whole row, with its history; pruning removes a message's history with it.
async fn archived_whole<D: Schema>() {
    const COLUMNS: [&str; 30] = [
        "seq",
        "message_id",
        "created_at",
        "due_at",
        "leased_until",
        "expires_at",
        "occurred_at",
        "done_at",
        "failing_since",
        "epoch",
        "attempts",
        "lease_losses",
        "state",
        "priority",
        "order_policy",
        "error_class",
        "topic",
        "key",
        "dedup",
        "payload",
        "content_type",
        "headers",
        "correlation_id",
        "aggregate_type",
        "aggregate_id",
        "tenant_id",
        "worker",
        "done_by",
        "last_error",
        "handled",
    ];
    let fixture = SqlFixture::<D>::create().await;
    let full = || {
        let message =
            NewMessage::bytes("t", "payload").key("k").priority(3).header("a", "b").correlation_id("c");
        let message =
            message.aggregate("order", 7).tenant_id("t1").occurred_at(std::time::SystemTime::UNIX_EPOCH);
        message
            .dedup_key("d")
            .order(posthaste_core::OrderPolicy::Park)
            .expires_after(std::time::Duration::from_secs(9_000))
    };
    let history = format!("select action from {}_history", D::TABLE);
    for archive in [true, false] {
        fixture.store.enqueue(&[full().build().unwrap()]).await.unwrap();
        let down = Outcome::Abandon {
            delay: std::time::Duration::ZERO,
            failure: Failure::infrastructure("down"),
            max_attempts: 1,
            max_age: None,
        };
        for outcome in [down, Outcome::Fail { failure: Failure::permanent("no") }] {
            let claimed = fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
            let handled = Some(vec!["mail".to_owned(), "search".to_owned()]);
            let settlement = Settlement { handled, ..Settlement::new(claimed[0].lease(), outcome) };
            fixture.store.settle(&[settlement]).await.unwrap();
        }
        fixture.store.bury(&Change::new(Filter::default(), "ada", "enough").unwrap()).await.unwrap();
        fixture.advance(std::time::Duration::from_secs(60)).await;
        let rows = |table: &str| format!("select {} from {table} order by seq", D::row(&COLUMNS));
        let before = fixture.texts(&rows(D::TABLE)).await;
        assert_eq!(before.len(), 1);
        let record = fixture.store.list(&Filter::default(), None, 1).await.unwrap().records.remove(0);
        assert!(record.message.failing_since.is_some() && record.message.handled == ["mail", "search"]);
        let now = Retention::done(std::time::Duration::ZERO).dead(std::time::Duration::ZERO);
        assert_eq!(fixture.store.prune(&if archive { now.archive() } else { now }, 10).await.unwrap(), 1);
        if archive {
            assert_eq!(fixture.texts(&rows(&format!("{}_archive", D::TABLE))).await, before);
        }
        assert_eq!(
            fixture.texts(&history).await,
            ["bury"],
            "kept with what was archived, gone with what was not"
        );
    }
    fixture.destroy().await;
}

macro_rules! on_every_database {
    ($($case:ident),* $(,)?) => {
        on_every_database!(@ postgres, Postgres, PgFixture, $($case),*);
        on_every_database!(@ mysql, MySql, MySqlFixture, $($case),*);
        on_every_database!(@ sqlite, Sqlite, SqliteFixture, $($case),*);
    };
    (@ $name:ident, $dialect:ty, $fixture:ty, $($case:ident),*) => {
        mod $name {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if <$fixture>::available() {
                    super::$case::<$dialect>().await;
                }
            })*
        }
    };
}

on_every_database!(
    only_when_asked,
    again_is_harmless,
    twenty_processes,
    newer_is_refused,
    printed_is_the_same,
    dump_is_committed,
    joins_have_tables_of_their_own,
    older_tables_are_added_to,
    prefixes_are_apart,
    archived_whole,
);

/// A migration of MySQL that was ended in the middle, where nothing can be rolled back, is finished by the next.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_made_mysql_schema_is_completed() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let whole = tables(&fixture).await;
    fixture.run("delete from posthaste_outbox_version; drop procedure posthaste_settle".to_owned()).await;
    fixture.run("drop table posthaste_outbox_archive".to_owned()).await;
    fixture.store.migrate().await.unwrap();
    assert_eq!(tables(&fixture).await, whole);
    works(&fixture.store).await;
    fixture.destroy().await;
}

/// A routine whose text has changed is made again, without a new version of the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_routines_are_made_again() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture.run("update outbox_version set routines = 'older'; drop function reap".to_owned()).await;
    fixture.store.migrate().await.unwrap();
    let reap = "select proname::text from pg_proc where pronamespace = current_schema()::regnamespace and proname = 'reap'";
    assert_eq!(fixture.texts(reap).await, ["reap"]);
    fixture.destroy().await;
}

/// WAL mode has a bug in versions before this one that can lose commits.
#[tokio::test]
async fn the_bundled_sqlite_is_new_enough() {
    let fixture = SqliteFixture::create().await;
    let version = fixture.texts("select sqlite_version()").await.remove(0);
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
    assert!(numbers >= vec![3, 51, 3], "{version}");
    assert_eq!(fixture.texts("pragma journal_mode").await, ["wal"]);
    fixture.destroy().await;
}

/// OBX-123, OBX-124: on MySQL and MariaDB a publisher needs no more than docs/roles.md says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mysql_publisher_needs_little() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let user = &unique()[..16];
    let database = fixture.url.rsplit('/').next().unwrap();
    for sql in [
        format!("create user '{user}'@'%' identified by 'pw'"),
        format!("grant insert on {database}.posthaste_outbox to '{user}'@'%'"),
        format!(
            "grant select (seq, message_id, dedup, no_dedup, epoch, state) on {database}.posthaste_outbox to '{user}'@'%'"
        ),
        format!("grant select on {database}.posthaste_outbox_version to '{user}'@'%'"),
        format!("grant execute on procedure {database}.posthaste_enqueue to '{user}'@'%'"),
        format!("grant select (due_at), update (due_at) on {database}.posthaste_outbox to '{user}'@'%'"),
    ] {
        fixture.run(sql).await;
    }
    for table in ["join", "join_member", "join_wait"] {
        let on = format!("{database}.posthaste_outbox_{table}");
        fixture.run(format!("grant select, insert, update on {on} to '{user}'@'%'")).await;
    }
    for name in ["attach_steps", "report_step", "end_join", "wait_for_join", "wake_waits", "join_answer"] {
        fixture.run(format!("grant execute on procedure {database}.posthaste_{name} to '{user}'@'%'")).await;
    }
    let url = fixture.url.replace("root@", &format!("{user}:pw@"));
    let store = SqlStore::<MySql>::connect(&url).await.unwrap();
    store.check().await.unwrap();
    let message = || NewMessage::bytes("t", "secret").dedup_key("once").build().unwrap();
    store.enqueue(&[message(), NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    assert!(store.enqueue(&[message()]).await.unwrap()[0].is_duplicate());
    store
        .pool()
        .execute("call posthaste_enqueue('t', 'x', '{\"dedup_key\": \"twice\"}', @id, @duplicate)")
        .await
        .unwrap();
    let mut connection = store.pool().acquire().await.unwrap();
    let lease = posthaste_core::Lease { item: posthaste_core::WorkItemId::new(1), epoch: 1 };
    assert_eq!(store.survivors(&mut connection, &[lease]).await.unwrap(), [false], "it is ready");
    let (step, join) = (NewMessage::bytes("t", "x").build().unwrap(), NewJoin::expecting(1).build().unwrap());
    store.insert(&mut connection, std::slice::from_ref(&step), Birth::Ready).await.unwrap();
    store.start_join(&mut connection, &join).await.unwrap();
    store.attach(&mut connection, join.id(), &[step.id()]).await.unwrap();
    let wait = NewMessage::bytes("join.wait", "x").delay(std::time::Duration::from_secs(60)).build().unwrap();
    store.wait_for_join(&mut connection, join.id(), wait.id()).await.unwrap();
    store.insert(&mut connection, &[wait], Birth::Ready).await.unwrap();
    let done = posthaste_core::StepEnd::Completed;
    assert!(store.report(&mut connection, join.id(), step.id(), done).await.unwrap().ended.is_some());
    assert!(store.cancel_join(&mut connection, join.id()).await.unwrap().is_none());
    drop(connection);
    let error = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
    store.close().await;
    fixture.run(format!("drop user '{user}'@'%'")).await;
    fixture.destroy().await;
}

/// Rights to execute routines survive an upgrade that changes them, by `migrate` or by the printed script.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_grants_survive_an_upgrade() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let database = fixture.url.rsplit('/').next().unwrap().to_owned();
    let user = unique();
    fixture.run(format!("create user '{user}'@'%'")).await;
    fixture.run(format!("grant execute on procedure {database}.posthaste_enqueue to '{user}'@'%'")).await;
    let granted = "select cast(proc_priv as char) from mysql.procs_priv where db = database()";
    assert_eq!(fixture.texts(granted).await, ["Execute"]);

    fixture.run("update posthaste_outbox_version set routines = 'of an older release'".to_owned()).await;
    fixture.store.migrate().await.unwrap();
    assert_eq!(fixture.texts(granted).await, ["Execute"], "after migrate()");

    let script = SqlStore::<MySql>::migration_sql(&fixture.options).unwrap();
    assert!(script.contains("create /*M! or replace */ procedure"), "{script}");
    mariadb(&fixture.url, &script);
    assert_eq!(fixture.texts(granted).await, ["Execute"], "after the printed script");

    // What MySQL needs, which cannot replace a routine: the grants as statements.
    let sql = include_str!("../../sql/mysql/grants/routines.sql").replacen('?', "null", 1).replacen(
        '?',
        "'posthaste_'",
        1,
    );
    let statements = fixture.texts(&sql).await;
    assert_eq!(statements.len(), 1);
    fixture.run(format!("revoke execute on procedure {database}.posthaste_enqueue from '{user}'@'%'")).await;
    fixture.run(statements[0].clone()).await;
    assert_eq!(fixture.texts(granted).await, ["Execute"], "{statements:?}");
    fixture.run(format!("drop user '{user}'@'%'")).await;
    fixture.destroy().await;
}

/// Runs a script by the database's own client, in a session without any SQL mode.
fn mariadb(url: &str, script: &str) {
    use std::io::Write as _;
    let (login, rest) = url.strip_prefix("mysql://").unwrap().split_once('@').unwrap();
    let (address, database) = rest.split_once('/').unwrap();
    let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    let mut client = std::process::Command::new("mariadb")
        .args([
            "--no-defaults",
            &format!("-h{host}"),
            &format!("-P{port}"),
            &format!("-u{user}"),
            "-D",
            database,
        ])
        .args((!password.is_empty()).then(|| format!("-p{password}")))
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    client
        .stdin
        .take()
        .unwrap()
        .write_all(format!("set session sql_mode = '';\n{script}").as_bytes())
        .unwrap();
    assert!(client.wait().unwrap().success());
}

/// Routines are strict even if the server, or the session that migrates, is not: an epoch that cannot grow is an error and is
/// not given out twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_epochs_never_stand_still() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::bare().await;
    let script = SqlStore::<MySql>::migration_sql(&fixture.options).unwrap();
    mariadb(&fixture.url, &script);
    let modes = "select distinct cast(sql_mode as char) from information_schema.routines where routine_schema = database()";
    let by_script = fixture.texts(modes).await;
    fixture.run("update posthaste_outbox_version set routines = 'of an older release'".to_owned()).await;
    fixture.store.migrate().await.unwrap();
    assert_eq!(fixture.texts(modes).await, by_script, "both make the same routines");
    assert!(by_script.len() == 1 && by_script[0].contains("STRICT_ALL_TABLES"), "{by_script:?}");

    fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    fixture.run("update posthaste_outbox set epoch = 2147483647".to_owned()).await;
    let mut session = fixture.users.acquire().await.unwrap();
    MySql::run(&mut session, "set session sql_mode = ''".to_owned()).await.unwrap();
    let claim = "call posthaste_claim('w', 1, 1000000, null, null)".to_owned();
    let error = MySql::run(&mut session, claim).await.unwrap_err().to_string();
    assert!(error.contains("Out of range value"), "{error}");
    assert_eq!(
        fixture.texts("select cast(state as char) from posthaste_outbox").await,
        ["0"],
        "it is not leased"
    );
    drop(session);
    fixture.destroy().await;
}

/// The rows of an outbox of version 8 that is at work, with leases, a mark, and values that no publisher of ours stores.
const UNDER_WAY: &str = "
    insert into outbox (seq, message_id, created_at, due_at, leased_until, done_at, epoch, attempts, lease_losses, state, priority,
                        order_policy, error_class, topic, key, payload, content_type, worker) overriding system value
    select v.seq, lpad(to_hex(v.seq & 65535), 32, '0')::uuid, now(), v.due_at, v.leased_until,
           case when v.state > 1 then now() end, v.epoch, v.attempts, v.losses, v.state, 0, v.policy,
           case when v.state = 3 then 4 end, 't', v.key, 'x', 'text/plain', case when v.state = 1 then 'old' end
    from (values
        (1::bigint, now(), null::timestamptz, 0, 0, 0, 0, 0, null),
        (2, now(), null, 0, 0, 0, 0, 0, 'k'), (3, now(), null, 0, 0, 0, 0, 0, 'k'),
        (4, now() + interval '1 hour', null, 0, 0, 0, 0, 0, null),
        (5, now(), null, 7, 2, 0, 0, 0, null),
        (6, now(), null, 1, 0, 1, 0, 0, null),
        (7, now(), null, 3, 0, 0, 0, 0, null),
        (8, now(), null, 3, 0, 0, 0, 0, 'j'), (9, now(), null, 0, 0, 0, 0, 0, 'j'),
        (10, now(), now() + interval '1 hour', 1, 0, 0, 1, 0, null),
        (11, now(), null, 1, 0, 0, 2, 0, null),
        (12, now(), null, 1, 0, 0, 3, 0, 'd'), (13, now(), null, 0, 0, 0, 0, 0, 'd'),
        (14, now(), null, 1, 0, 0, 3, 1, 'p'), (15, 'infinity', null, 0, 0, 0, 0, 0, 'p'),
        (16, now(), null, 4, 0, 0, 0, 0, null),
        (17, now(), null, 0, 2147483647, -5, 0, 0, null),
        (9223372036854775807, now(), null, 0, 0, 0, 0, 0, null)
    ) v (seq, due_at, leased_until, epoch, attempts, losses, state, policy, key);
    alter table outbox alter column seq restart with 100;
    insert into outbox_lease (leased_until, worker, items, step) values
        (now() + interval '1 hour', 'old', '{[7,9)}', 1), (now() - interval '1 minute', 'dead', '{[16,17)}', 2);
    insert into outbox_mark (priority, low, until, lease, again_at, open, seen, seen_at)
        values (0, now() + interval '1 hour', now() + interval '1 hour', 1, now() + interval '1 hour', '{}', '1', now());
    insert into outbox_walk (again_at) values (now() + interval '1 hour')";

/// From version 8, with messages in every state, leases held and marks present: nothing is lost, and nothing is delivered twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_upgrades_what_is_under_way() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::bare().await;
    Postgres::apply(&fixture, &script_of(&fixture, 8)).await;
    fixture.run(UNDER_WAY.to_owned()).await;
    let store = &fixture.store;
    assert_eq!(store.migrate().await.unwrap(), VERSION);

    let request = ClaimRequest::new(WorkerId::new("new").unwrap()).limit(100);
    let mut delivered = Vec::new();
    let mut deliver = async || {
        loop {
            let claimed = store.claim(&request).await.unwrap();
            if claimed.is_empty() {
                return std::mem::take(&mut delivered);
            }
            let acks = claimed.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack));
            store.settle(&acks.collect::<Vec<_>>()).await.unwrap();
            delivered.extend(claimed.iter().map(|message| message.item.get()));
        }
    };
    let mut first = deliver().await;
    first.sort_unstable();
    assert_eq!(first, [1, 2, 3, 5, 6, 17], "what waits, and nothing that is held, blocked or for later");

    let held = |item, epoch| Lease { item: WorkItemId::new(item), epoch };
    let leases = [held(7, 4), held(8, 4), held(10, 1), held(7, 3), held(16, 6)];
    use Settled::{Applied, Lost};
    let kept = store.renew(&leases[..4], Duration::from_secs(60)).await.unwrap();
    assert_eq!(kept, [Applied, Applied, Applied, Lost]);
    assert_eq!(store.reap(10).await.unwrap().ready, 1, "the lease that had run out");
    let ends = [Outcome::Ack, Outcome::Release, Outcome::Ack, Outcome::Ack, Outcome::Ack];
    let ends: Vec<_> = leases.into_iter().zip(ends).map(|(lease, end)| Settlement::new(lease, end)).collect();
    assert_eq!(store.settle(&ends).await.unwrap().settled, [Applied, Applied, Applied, Lost, Lost]);
    assert_eq!(deliver().await, [8, 9, 16], "what came back, and its key");

    let stats = store.stats().await.unwrap();
    let counts = [stats.ready, stats.scheduled, stats.parked, stats.leased, stats.done, stats.dead];
    assert_eq!(counts.map(|count| count.value), [1, 1, 1, 0, 12, 2], "{stats:?}");
    assert_eq!(fixture.texts("select seq::text from outbox_archive").await, ["9223372036854775807"]);
    fixture.destroy().await;
}

/// P9: the database refuses a row that claims and settlements could not calculate with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_refuses_unusable_rows() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let columns = "seq, message_id, created_at, due_at, leased_until, epoch, attempts, lease_losses, state, priority, order_policy, \
                   topic, payload, content_type";
    let values =
        "1, gen_random_uuid(), now(), now(), null::timestamptz, 0, 0, 0, 0, 0, 0, 't', 'x', 'text/plain'";
    let names: Vec<&str> = columns.split(", ").collect();
    for (column, value) in [
        ("seq", "9223372036854775807"),
        ("seq", "-9223372036854775808"),
        ("created_at", "'infinity'"),
        ("due_at", "'-infinity'"),
        ("leased_until", "'infinity'"),
        ("attempts", "2147483647"),
        ("attempts", "-1"),
        ("lease_losses", "2147483647"),
        ("state", "7"),
    ] {
        let mut values: Vec<&str> = values.split(", ").collect();
        values[names.iter().position(|name| *name == column).unwrap()] = value;
        let insert =
            format!("insert into outbox ({columns}) overriding system value values ({})", values.join(", "));
        let mut users = fixture.users.acquire().await.unwrap();
        let error = Postgres::run(&mut users, insert).await.unwrap_err().to_string();
        assert!(error.contains("outbox_usable"), "{column} = {value}: {error}");
    }
    works(&fixture.store).await;
    fixture.destroy().await;
}
