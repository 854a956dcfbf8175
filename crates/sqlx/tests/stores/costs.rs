//! The counted cost of a message, compared with `costs.txt`. A higher cost fails; a lower one fails as well, so that it cannot
//! rise again unnoticed.
//!
//! Log records, buffers, rows, handler calls and steps of the virtual machine, all of one session's own, so that others at the
//! same server do not disturb them. Never seconds. `POSTHASTE_UPDATE_DUMPS=1` stores the changed ones.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posthaste_core::{
    Birth, ClaimRequest, Enqueued, Lease, Message, NewMessage, Outbox, Outcome, Settlement, Store,
    TransactionalStore, Uuid, WorkerId, handled,
};
use posthaste_sqlx::SqlStore;
use posthaste_testkit::Fixture;
use serde_json::Value;
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolConnection;
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;

use crate::fixture::{Backend, Connection, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, session};
use crate::round_trips::{Counter, address_of, through};

/// How many messages a batch has.
const BATCH: u32 = 1_000;
const PAYLOAD_BYTES: usize = 256;
const LEASE: Duration = Duration::from_secs(60);

/// The stored and the measured value may differ by this part, or by this much per message.
const TOLERANCE: f64 = 0.05;
const SLACK: f64 = 0.02;

/// Counters of rows, which are the same in all versions of the server.
const ROWS: &str = "rows";
/// What depends on what else goes on, and so has a bound instead of a figure.
const AT_MOST: &str = "at most";

// ---------------------------------------------------------------- the stored figures

/// One figure: of one message, in an operation.
#[derive(Clone, Debug)]
struct Figure {
    operation: String,
    counted: String,
    value: f64,
}

impl Figure {
    fn new(operation: &str, counted: impl Into<String>, total: u64, messages: u32) -> Self {
        let value = f64::from(u32::try_from(total).unwrap()) / f64::from(messages);
        Self { operation: operation.to_owned(), counted: counted.into(), value }
    }

    fn names(&self, other: &Self) -> bool {
        self.operation == other.operation && self.counted == other.counted
    }

    /// Whether the measured value matches the stored one.
    fn holds(&self, stored: &Self) -> bool {
        if self.counted.ends_with(AT_MOST) {
            return self.value <= stored.value;
        }
        (self.value - stored.value).abs() <= (stored.value * TOLERANCE).max(SLACK)
    }

    /// What to store for it.
    fn to_store(&self) -> Self {
        let room = if self.counted.ends_with(AT_MOST) { 2.0 } else { 1.0 };
        Self { value: self.value * room, ..self.clone() }
    }

    fn depends_on_the_version(&self) -> bool {
        !self.counted.starts_with(ROWS) && !self.counted.ends_with(AT_MOST)
    }
}

/// All figures of one database.
#[derive(Clone, Debug)]
struct Section {
    /// As in `PostgreSQL 15`.
    title: String,
    figures: Vec<Figure>,
}

impl Section {
    /// The database without its version.
    fn database(&self) -> &str {
        self.title.split(' ').next().unwrap_or_default()
    }
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stores/costs.txt")
}

fn read(text: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [operation, counted, value] => {
                let value = value.replace(',', "").parse().unwrap_or_else(|_| panic!("no figure: {line}"));
                let figure = Figure { operation: operation.to_owned(), counted: counted.to_owned(), value };
                sections.last_mut().expect("a title comes first").figures.push(figure);
            }
            _ => sections.push(Section { title: line.trim().to_owned(), figures: Vec::new() }),
        }
    }
    sections
}

fn written(sections: &[Section]) -> String {
    let mut text = "# What a message costs, counted: see costs.rs. Written by `POSTHASTE_UPDATE_DUMPS=1`, which leaves alone what\n\
                    # still holds. Each figure is per message.\n"
        .to_owned();
    for Section { title, figures } in sections {
        writeln!(text, "\n{title}").unwrap();
        for Figure { operation, counted, value } in figures {
            writeln!(text, "  {operation:<32} | {counted:<26} | {value:>10.3}").unwrap();
        }
    }
    text
}

/// Compares a database's figures with the stored ones, and reports changes.
fn changes(found: &Section, stored: Option<&Section>) -> Vec<String> {
    let Some(stored) = stored else {
        return vec![format!("{}: nothing is stored", found.title)];
    };
    let same_version = found.title == stored.title;
    if !same_version {
        eprintln!(
            "the stored costs are those of {}, this is {}: only what every version has in common is compared",
            stored.title, found.title
        );
    }
    let compared = |figure: &&Figure| same_version || !figure.depends_on_the_version();
    let name = |figure: &Figure| format!("{}, {}, {}", found.title, figure.operation, figure.counted);
    let mut changes = Vec::new();
    for figure in found.figures.iter().filter(compared) {
        match stored.figures.iter().find(|stored| figure.names(stored)) {
            None => changes.push(format!("{}: {:.3}, nothing is stored", name(figure), figure.value)),
            Some(stored) if !figure.holds(stored) => {
                let verdict = if figure.value > stored.value { "dearer" } else { "cheaper" };
                changes.push(format!(
                    "{}: {:.3} stored, {:.3} found: {verdict}",
                    name(figure),
                    stored.value,
                    figure.value
                ));
            }
            Some(_) => {}
        }
    }
    for stored in stored.figures.iter().filter(compared) {
        if !found.figures.iter().any(|figure| figure.names(stored)) {
            changes.push(format!("{}: {:.3} stored, nothing found", name(stored), stored.value));
        }
    }
    changes
}

/// The values to store: new and changed ones, and the rest as it was, so that small steps do not add up.
fn renewed(found: &Section, stored: Option<&Section>) -> Section {
    let stored = stored.filter(|stored| stored.title == found.title);
    let keep = |figure: &Figure| {
        let stored = stored.and_then(|stored| stored.figures.iter().find(|stored| figure.names(stored)));
        stored.filter(|stored| figure.holds(stored)).cloned().unwrap_or_else(|| figure.to_store())
    };
    Section { title: found.title.clone(), figures: found.figures.iter().map(keep).collect() }
}

/// OBX-098: the cost of a message is the stored one. One test for all databases, because they share the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_are_the_stored_ones() {
    let mut found = Vec::new();
    if PgFixture::available() {
        found.push(postgres().await);
    }
    if MySqlFixture::available() {
        found.push(mysql().await);
    }
    if SqliteFixture::available() {
        found.push(sqlite().await);
    }
    let mut stored = read(&std::fs::read_to_string(file()).unwrap_or_default());
    let of = |sections: &[Section], found: &Section| {
        sections.iter().position(|stored| stored.database() == found.database())
    };
    if std::env::var_os("POSTHASTE_UPDATE_DUMPS").is_some() {
        for found in &found {
            match of(&stored, found) {
                Some(place) => stored[place] = renewed(found, Some(&stored[place])),
                None => stored.push(renewed(found, None)),
            }
        }
        std::fs::write(file(), written(&stored)).unwrap();
    }
    eprint!("{}", written(&found));
    let changes: Vec<String> = found
        .iter()
        .flat_map(|found| changes(found, of(&stored, found).map(|place| &stored[place])))
        .collect();
    assert!(
        changes.is_empty(),
        "what a message costs has changed:\n  {}\nIf that is meant, store it, and say why in the commit:\n  \
         POSTHASTE_UPDATE_DUMPS=1 cargo test -p posthaste-sqlx --all-features --test stores costs_are",
        changes.join("\n  ")
    );
}

#[test]
fn dearer_and_cheaper_are_both_seen() {
    let section = |value| Section {
        title: "PostgreSQL 15".to_owned(),
        figures: vec![Figure {
            operation: "claim of 1,000".to_owned(),
            counted: "buffers".to_owned(),
            value,
        }],
    };
    let changed = |found: f64| changes(&section(found), Some(&section(10.0)));
    assert!(changed(10.4).is_empty() && changed(9.6).is_empty());
    assert_eq!(
        changed(11.0),
        ["PostgreSQL 15, claim of 1,000, buffers: 10.000 stored, 11.000 found: dearer"]
    );
    assert_eq!(changed(9.0), ["PostgreSQL 15, claim of 1,000, buffers: 10.000 stored, 9.000 found: cheaper"]);
    assert_eq!(changes(&section(1.0), None), ["PostgreSQL 15: nothing is stored"]);
    // Matching values stay as stored, others get the measured value, and the written file can be read.
    for (found, kept) in [(10.4, 10.0), (11.0, 11.0)] {
        let renewed = renewed(&section(found), Some(&section(10.0)));
        let read = read(&written(&[renewed]));
        assert_eq!(read[0].figures[0].value.to_bits(), f64::to_bits(kept));
        assert!(read[0].title == "PostgreSQL 15" && read[0].figures[0].names(&section(0.0).figures[0]));
    }
}

// ---------------------------------------------------------------- what is counted

fn messages(count: u32) -> Vec<NewMessage> {
    (0..count).map(|_| NewMessage::bytes("t", vec![b'x'; PAYLOAD_BYTES]).build().unwrap()).collect()
}

fn worker() -> WorkerId {
    WorkerId::new("w").unwrap()
}

async fn claimed(store: &impl Store) -> Vec<Lease> {
    let claimed = store.claim(&ClaimRequest::new(worker()).limit(BATCH)).await.unwrap();
    assert_eq!(claimed.len(), BATCH as usize);
    let mut leases: Vec<Lease> = claimed.iter().map(Message::lease).collect();
    leases.sort();
    leases
}

/// A batch that was stored leased.
async fn born<D: Backend>(fixture: &SqlFixture<D>) -> Vec<Lease>
where
    Connection<D>: Send,
{
    let mut tx = fixture.begin().await;
    let (worker, messages) = (worker(), messages(BATCH));
    let birth = Birth::Leased { worker: &worker, lease: LEASE };
    let stored = fixture.store.insert(fixture.connection(&mut tx), &messages, birth).await.unwrap();
    fixture.commit(tx).await;
    let lease = |stored: &Enqueued| match stored {
        Enqueued::New { lease, .. } => lease.expect("born leased"),
        Enqueued::Duplicate { .. } => panic!("stored before"),
    };
    stored.iter().map(lease).collect()
}

// ---------------------------------------------------------------- PostgreSQL

/// A statement of the store, and two lists of arguments: the measured ones, and ones with which it finds nothing to
/// do.
struct Probe {
    operation: &'static str,
    messages: u32,
    types: &'static str,
    file: &'static str,
    args: String,
    idle: String,
}

/// One message has a statement of its own. Its idle run stores another one: all runs are taken back.
fn pg_enqueue_one() -> Probe {
    let args = || {
        let (id, payload) = (Uuid::now_v7(), format!("decode(repeat('78', {PAYLOAD_BYTES}), 'hex')"));
        let nulls = |count: usize| vec!["null"; count].join(", ");
        let [texts, times] = [nulls(5), nulls(4)];
        format!(
            "'{id}', 't', 0, null, {payload}, 'application/octet-stream', {texts}, 0, null, null, {times}"
        )
    };
    Probe {
        operation: "enqueue of 1",
        messages: 1,
        types: "uuid, text, smallint, bytea, bytea, text, text, text, text, text, text, smallint, bigint, text, bigint, \
                bigint, bigint, bigint",
        file: include_str!("../../sql/postgres/shortcuts/one.sql"),
        args: args(),
        idle: args(),
    }
}

fn pg_enqueue() -> Probe {
    let args = |count: u32| {
        let ids: Vec<String> = (0..count).map(|_| Uuid::now_v7().to_string()).collect();
        let fill = |value: &str| format!("array_fill({value}, array[{count}])");
        let payload = format!("decode(repeat('78', {PAYLOAD_BYTES}), 'hex')");
        let mut args = vec![format!("'{{{}}}'", ids.join(","))];
        let values = [
            "'t'::text",
            "null::text",
            "0::smallint",
            "null::bytea",
            &payload,
            "'application/octet-stream'::text",
        ];
        args.extend(values.map(fill));
        args.extend(["null::text"; 5].map(fill));
        args.push(fill("0::smallint"));
        args.extend(["null::bigint"; 5].map(fill));
        args.join(", ")
    };
    Probe {
        operation: "enqueue of 1,000",
        messages: BATCH,
        types: "uuid[], text[], text[], smallint[], bytea[], bytea[], text[], text[], text[], text[], text[], text[], \
                smallint[], bigint[], bigint[], bigint[], bigint[], bigint[]",
        file: include_str!("../../sql/postgres/shortcuts/batch.sql"),
        args: args(BATCH),
        idle: args(0),
    }
}

fn pg_claim() -> Probe {
    Probe {
        operation: "claim of 1,000",
        messages: BATCH,
        types: "text, bigint, interval, text[], text[]",
        file: include_str!("../../sql/postgres/claim.sql"),
        args: format!("'w', {BATCH}, '60 s', null, null"),
        idle: format!("'w', {BATCH}, '60 s', '{{nothing}}', null"),
    }
}

/// Seqs and epochs, as arrays; of no message for an idle run.
fn pg_leases(leases: &[Lease]) -> [String; 2] {
    let list = |values: Vec<String>| format!("'{{{}}}'", values.join(","));
    [
        list(leases.iter().map(|lease| lease.item.get().to_string()).collect()),
        list(leases.iter().map(|lease| lease.epoch.to_string()).collect()),
    ]
}

const PG_NOBODY: [&str; 2] = ["'{-1}'", "'{1}'"];

/// Acks alone, of one epoch, and of neighbours.
fn pg_settle(operation: &'static str, leases: &[Lease], keep_done: bool) -> Probe {
    let items: Vec<i64> = leases.iter().map(|lease| lease.item.get()).collect();
    let (first, last) = (items.iter().min().unwrap(), items.iter().max().unwrap());
    assert_eq!(last - first + 1, i64::from(BATCH), "neighbours");
    assert!(leases.iter().all(|lease| lease.epoch == leases[0].epoch));
    let args = |first: i64, last: i64| {
        format!("'{{{first}}}', '{{{last}}}', '{{{}}}', {keep_done}", leases[0].epoch)
    };
    Probe {
        operation,
        messages: BATCH,
        types: "bigint[], bigint[], integer[], boolean",
        file: include_str!("../../sql/postgres/shortcuts/ack.sql"),
        args: args(*first, *last),
        idle: args(-1, -1),
    }
}

fn pg_renew(leases: &[Lease]) -> Probe {
    Probe {
        operation: "renew of 1,000",
        messages: BATCH,
        types: "bigint[], integer[], interval",
        file: include_str!("../../sql/postgres/renew.sql"),
        args: format!("{}, '60 s'", pg_leases(leases).join(", ")),
        idle: format!("{}, '60 s'", PG_NOBODY.join(", ")),
    }
}

type PgSession = PoolConnection<sqlx_postgres::Postgres>;

async fn pg_rows(session: &mut PgSession, sql: String) -> Vec<sqlx_postgres::PgRow> {
    session.fetch_all(raw_sql(AssertSqlSafe(sql))).await.unwrap()
}

/// This transaction's changes of rows, by table, including earlier ones that the server's statistics do not have yet.
const PG_ROWS: &str = "select relname || ' ' || word, count from pg_stat_xact_user_tables \
                       cross join lateral (values ('inserted', n_tup_ins), ('updated', n_tup_upd), \
                                                  ('deleted', n_tup_del)) as v (word, count) \
                       where schemaname = current_schema() order by 1";

/// Runs it, and takes it back. The plan, and what became of rows.
async fn pg_run(session: &mut PgSession, probe: &Probe, args: &str) -> (Value, Vec<(String, i64)>) {
    let Probe { types, file, .. } = probe;
    let statement = file.replace("/*:*/", "");
    pg_rows(session, format!("prepare probe ({types}) as {statement}")).await;
    let sql = format!(
        "begin;\n{PG_ROWS};\nexplain (analyze, buffers, wal, format json) execute probe({args});\n{PG_ROWS};\nrollback"
    );
    let rows = pg_rows(session, sql).await;
    pg_rows(session, "deallocate probe".to_owned()).await;
    let plan = rows.iter().position(|row| row.len() == 1).expect("a plan");
    let json: Value = serde_json::from_str(rows[plan].get_unchecked(0)).unwrap();
    let rows_of =
        |row: &sqlx_postgres::PgRow| (row.get_unchecked::<String, _>(0), row.get_unchecked::<i64, _>(1));
    let before: Vec<(String, i64)> = rows[..plan].iter().map(rows_of).collect();
    let changed =
        rows[plan + 1..].iter().map(rows_of).zip(&before).filter_map(|((name, after), (same, before))| {
            assert_eq!(name, *same);
            (after > *before).then_some((name, after - before))
        });
    (json[0]["Plan"].clone(), changed.collect())
}

/// The lowest cost of a statement. A run that was rolled back leaves dead tuples, which are removed first, even with other
/// transactions open. That invalidates the session's caches, and an idle run fills them again. Changes of the catalogue by others
/// may still cause another lookup, so the lowest of several runs counts. In a page's first change since a checkpoint the whole
/// page is logged: such a run does not count.
async fn pg_cost(session: &mut PgSession, probe: &Probe) -> Vec<Figure> {
    let Probe { operation, messages, .. } = *probe;
    let mut least: Option<Vec<(String, u64)>> = None;
    for round in 0..6 {
        for table in ["outbox", "outbox_lease"] {
            pg_rows(session, format!("vacuum (index_cleanup on) {table}")).await;
        }
        pg_run(session, probe, &probe.idle).await;
        let (plan, rows) = pg_run(session, probe, &probe.args).await;
        let of = |name: &str| plan[name].as_u64().expect("a count");
        // The first one makes plans.
        if round == 0 || of("WAL FPI") > 0 {
            continue;
        }
        let mut counts = vec![
            ("WAL records".to_owned(), of("WAL Records")),
            ("WAL bytes".to_owned(), of("WAL Bytes")),
            ("buffers".to_owned(), of("Shared Hit Blocks") + of("Shared Read Blocks")),
        ];
        counts.extend(rows.iter().map(|(name, count)| (format!("{ROWS} {name}"), count.unsigned_abs())));
        if let Some(least) = &least {
            assert_eq!(counts.len(), least.len(), "other rows than before: {counts:?}, {least:?}");
            for ((name, count), (same, least)) in counts.iter_mut().zip(least) {
                assert_eq!(name, same);
                *count = (*count).min(*least);
            }
        }
        least = Some(counts);
    }
    let least = least.expect("a checkpoint in each of five runs: let the server have some rest");
    least.into_iter().map(|(counted, total)| Figure::new(operation, counted, total, messages)).collect()
}

async fn postgres() -> Section {
    let fixture = PgFixture::create().await;
    let version = fixture.texts("select current_setting('server_version_num')").await.remove(0);
    let title = format!("PostgreSQL {}", version.parse::<u32>().unwrap() / 10_000);
    let mut session = session(&fixture.store).await;
    let mut figures = Vec::new();
    for probe in [pg_enqueue_one(), pg_enqueue()] {
        figures.extend(pg_cost(&mut session, &probe).await);
    }
    fixture.store.enqueue(&messages(BATCH)).await.unwrap();
    figures.extend(pg_cost(&mut session, &pg_claim()).await);
    let leases = claimed(&fixture.store).await;
    figures.extend(pg_cost(&mut session, &pg_renew(&leases)).await);
    for (operation, keep_done) in [("ack of 1,000, deleting", false), ("ack of 1,000, keeping", true)] {
        figures.extend(pg_cost(&mut session, &pg_settle(operation, &leases, keep_done)).await);
    }
    fixture.run("truncate outbox, outbox_lease".to_owned()).await;
    let leases = born(&fixture).await;
    figures.extend(pg_cost(&mut session, &pg_settle("ack of 1,000 born leased", &leases, false)).await);
    fixture.run("truncate outbox, outbox_lease".to_owned()).await;
    drop(session);
    figures.push(pg_drain(&fixture).await);
    fixture.destroy().await;
    Section { title, figures }
}

/// How often a running outbox asks the server, for a thousand messages that are there.
async fn pg_drain(fixture: &PgFixture) -> Figure {
    let counter = Counter::before(address_of(&fixture.url)).await;
    let url = through(&fixture.url, |_| counter.port);
    let store = SqlStore::<posthaste_sqlx::Postgres>::connect_with(&url, &fixture.options).await.unwrap();
    let outbox =
        Outbox::builder(store.clone()).on_topic("t", async |_: Message| handled()).build().await.unwrap();
    let mut least = usize::MAX;
    // A machine that is busy with other things settles more often, because settlements come at intervals.
    for _ in 0..3 {
        fixture.store.enqueue(&messages(BATCH)).await.unwrap();
        let (trips, tally) = counter.of(outbox.drain()).await;
        assert_eq!(tally.unwrap().delivered, u64::from(BATCH));
        least = least.min(trips);
    }
    store.close().await;
    let counted = format!("round trips, {AT_MOST}");
    Figure::new("drain of 1,000 by the runtime", counted, u64::try_from(least).unwrap(), BATCH)
}

// ---------------------------------------------------------------- MariaDB, SQLite

/// Counters of a session, by name.
type Counts = Vec<(&'static str, u64)>;

/// Adds the cost of a call, without the cost of reading the counters.
async fn add<T>(
    figures: &mut Vec<Figure>,
    counts: &impl AsyncFn() -> Counts,
    (operation, messages): (&str, u32),
    call: impl Future<Output = posthaste_core::Result<T>>,
) {
    let (first, before) = (counts().await, counts().await);
    call.await.unwrap();
    for (((counted, first), (_, before)), (_, after)) in first.into_iter().zip(before).zip(counts().await) {
        figures.push(Figure::new(operation, counted, after - before - (before - first), messages));
    }
}

/// The cost of the store's calls in its only session.
async fn calls<D: Backend>(
    fixture: &SqlFixture<D>,
    store: &SqlStore<D>,
    counts: impl AsyncFn() -> Counts,
) -> Vec<Figure>
where
    Connection<D>: Send,
{
    let acks = |leases: &[Lease]| -> Vec<Settlement> {
        leases.iter().map(|lease| Settlement::new(*lease, Outcome::Ack)).collect()
    };
    let deleting = store.keep_done(false);
    let mut figures = Vec::new();
    // The second round counts: by then the session knows every statement and every table.
    for _ in 0..2 {
        figures.clear();
        let of = &mut figures;
        add(of, &counts, ("enqueue of 1", 1), store.enqueue(&messages(1))).await;
        add(of, &counts, ("enqueue of 1,000", BATCH), store.enqueue(&messages(BATCH))).await;
        fixture.clear().await;
        store.enqueue(&messages(BATCH)).await.unwrap();
        let request = ClaimRequest::new(worker()).limit(BATCH).lease(LEASE);
        let mut leases = Vec::new();
        let claim = async {
            leases.extend(store.claim(&request).await?.iter().map(Message::lease));
            posthaste_core::Result::Ok(())
        };
        add(of, &counts, ("claim of 1,000", BATCH), claim).await;
        assert_eq!(leases.len(), BATCH as usize);
        add(of, &counts, ("renew of 1,000", BATCH), store.renew(&leases, LEASE)).await;
        add(of, &counts, ("ack of 1,000, keeping", BATCH), store.settle(&acks(&leases))).await;
        store.enqueue(&messages(BATCH)).await.unwrap();
        let leases = claimed(store).await;
        add(of, &counts, ("ack of 1,000, deleting", BATCH), deleting.settle(&acks(&leases))).await;
        let leases = born(fixture).await;
        add(of, &counts, ("ack of 1,000 born leased", BATCH), deleting.settle(&acks(&leases))).await;
        fixture.clear().await;
    }
    figures
}

async fn mysql() -> Section {
    let fixture = MySqlFixture::create().await;
    let version = fixture.texts("select version()").await.remove(0);
    let product = if version.contains("MariaDB") { "MariaDB" } else { "MySQL" };
    let number: Vec<&str> = version.splitn(3, '.').take(2).collect();
    let options = fixture.options.clone().max_connections(1);
    let store = SqlStore::<posthaste_sqlx::MySql>::connect_with(&fixture.url, &options).await.unwrap();
    store.check().await.unwrap();
    let counts = async || {
        let mut session = store.pool().acquire().await.unwrap();
        let rows = session.fetch_all(raw_sql("show session status like 'Handler_%'")).await.unwrap();
        let of = |names: &[&str]| {
            let counted = rows
                .iter()
                .filter(|row| names.iter().any(|name| row.get_unchecked::<String, _>(0).starts_with(name)));
            counted.map(|row| row.get_unchecked::<String, _>(1).parse::<u64>().unwrap()).sum()
        };
        vec![
            ("handler reads", of(&["Handler_read_"])),
            ("handler writes", of(&["Handler_write", "Handler_update", "Handler_delete"])),
        ]
    };
    let figures = calls(&fixture, &store, counts).await;
    store.close().await;
    fixture.destroy().await;
    Section { title: format!("{product} {}", number.join(".")), figures }
}

async fn sqlite() -> Section {
    let fixture = SqliteFixture::create().await;
    let options = fixture.options.clone().max_connections(1);
    let store = SqlStore::<posthaste_sqlx::Sqlite>::connect_with(&fixture.url, &options).await.unwrap();
    store.check().await.unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let step = Arc::clone(&steps);
    store.pool().acquire().await.unwrap().lock_handle().await.unwrap().set_progress_handler(1, move || {
        step.fetch_add(1, Ordering::SeqCst);
        true
    });
    let figures = calls(&fixture, &store, async || vec![("steps", steps.load(Ordering::SeqCst))]).await;
    store.close().await;
    fixture.destroy().await;
    // Its version comes with the driver, and so is the same for all.
    Section { title: "SQLite".to_owned(), figures }
}
