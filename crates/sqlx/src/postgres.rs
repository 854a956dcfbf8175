//! PostgreSQL, 14 and newer.
//!
//! Claims, settlements and renewals are one statement each, and so one round trip; batches go in as arrays.

use std::borrow::Cow;
use std::io;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, Enqueued, ErrorKind, Holder, Lease, LockWait, MessageId, NewMessage, Outcome, Result, Settlement,
    Uuid, When, WorkItemId,
};
use sqlx_core::Error as SqlxError;
use sqlx_core::arguments::Arguments as _;
use sqlx_core::connection::{ConnectOptions as _, Connection as _};
use sqlx_core::error::{BoxDynError, DatabaseError};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::{Pool, PoolOptions};
use sqlx_core::query::query_with_result;
use sqlx_core::row::Row as _;
use sqlx_postgres::types::PgInterval;
use sqlx_postgres::{PgArguments, PgConnectOptions, PgConnection, PgListener, PgRow};
use tokio::time::timeout;

use crate::arg::{Arg, from_micros, micros, span_micros};
use crate::dialect::{Dialect, Passing, answers, sealed, sends};
use crate::error::Verdict;
use crate::examine::{self, Check};
use crate::holder;
use crate::interrupt::Interrupt;
use crate::listen::Bell;
use crate::migrate::Script;
use crate::naming::Naming;
use crate::options::StoreOptions;
use crate::role::Role;
use crate::row::{columns, read};
use crate::source::Database;
use crate::sql::{Files, Shortcuts, Statement, Statements, files};
use crate::store::SqlStore;

/// A store over PostgreSQL.
pub type PgStore = SqlStore<Postgres>;

/// A description of a PostgreSQL database.
pub type PgDatabase = Database<Postgres>;

/// The dialect of PostgreSQL.
#[derive(Clone, Copy, Debug)]
pub struct Postgres;

impl sealed::Sealed for Postgres {}

impl PgStore {
    /// The SQL that gives a database role the rights it needs for what it does. The role must exist; it may be given several.
    ///
    /// ```
    /// use posthaste_sqlx::{PgStore, Role, StoreOptions};
    ///
    /// let sql = PgStore::grants_sql(&StoreOptions::new(), Role::Publisher, "shop_app")?;
    /// assert!(sql.contains("to \"shop_app\""));
    /// # Ok::<(), posthaste_core::Error>(())
    /// ```
    pub fn grants_sql(options: &StoreOptions, role: Role, name: &str) -> Result<String> {
        let sql = match role {
            Role::Publisher => include_str!("../sql/postgres/roles/publisher.sql"),
            Role::Joins => include_str!("../sql/postgres/roles/joins.sql"),
            Role::Relay => include_str!("../sql/postgres/roles/relay.sql"),
            Role::Operator => include_str!("../sql/postgres/roles/operator.sql"),
            Role::Consumer => include_str!("../sql/postgres/roles/consumer.sql"),
        };
        let name = crate::naming::quoted("role", name)?;
        Ok(Self::naming(options)?.render(sql).replace(":\"role\"", &name))
    }
}

/// What nudges; only PostgreSQL has such a statement, so it is not one of those that all dialects have.
const NUDGE: &str = include_str!("../sql/postgres/notify/nudge.sql");

/// Microseconds from 1970 to 2000, where PostgreSQL's clock begins.
const EPOCH_2000: i64 = 946_684_800_000_000;

#[allow(private_interfaces, reason = "sealed: nobody else implements or calls it")]
impl Dialect for Postgres {
    type Db = sqlx_postgres::Postgres;

    const FILES: Files = files!(
        "postgres",
        shortcuts: Some(Shortcuts {
            one: include_str!("../sql/postgres/shortcuts/one.sql"),
            batch: include_str!("../sql/postgres/shortcuts/batch.sql"),
            leased: include_str!("../sql/postgres/shortcuts/leased.sql"),
            ack: include_str!("../sql/postgres/shortcuts/ack.sql"),
        }),
        migrations: ["0001_outbox", "0002_joins", "0003_inbox", "0004_pause", "0005_lease", "0006_walk", "0007_crash", "0008_open", "0009_failing", "0010_cursor", "0011_waiting"],
        routines: ["check", "lease", "cursor", "claim", "joins", "settle", "keep", "choose", "publish", "enqueue", "inbox", "pause", "rights"]
    );
    const SCHEMES: &'static [&'static str] = &["postgres", "postgresql"];
    const URL_OPTIONS: &'static [&'static str] = &[
        "sslmode",
        "ssl-mode",
        "sslrootcert",
        "ssl-root-cert",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "statement-cache-capacity",
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "application_name",
        "options",
        "options[",
    ];
    const QUOTE: char = '"';
    const DEFAULT_SCHEMA: Option<&'static str> = Some("posthaste");
    const DEFAULT_PREFIX: &'static str = "";
    // What runs in transactions are operators' questions and changes: planned for what each of them asks.
    const BEGIN: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL plan_cache_mode = force_custom_plan; \
         SET LOCAL search_path = pg_catalog, pg_temp";
    const BEGIN_EXAMINATION: Option<&'static str> =
        Some("BEGIN; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL lock_timeout = '500ms'");
    const LISTENS: bool = true;
    const PASSING: Passing = Passing::Itself;
    // A transaction in which a statement has failed is rolled back by COMMIT, and the driver takes that for success.
    const COMMIT_MAY_ROLL_BACK: bool = true;
    const MAX_INSERT_BYTES: usize = 64 << 20;

    fn judge(error: &dyn DatabaseError) -> Verdict {
        let code = error.code().unwrap_or(Cow::Borrowed(""));
        match &*code {
            "42P01" | "3F000" | "42883" | "42703" => Verdict::new(ErrorKind::SchemaMissing),
            "42501" => Verdict::new(ErrorKind::Permission),
            "3D000" => {
                Verdict::new(ErrorKind::Configuration).or("create the database, or name another in the URL")
            }
            "40001" | "40P01" => Verdict::new(ErrorKind::Conflict),
            "55P03" | "57014" => Verdict::new(ErrorKind::Busy),
            "53300" => Verdict::new(ErrorKind::Busy)
                .or("lower the pools' sizes or raise the server's max_connections"),
            "53100" | "53200" => Verdict::new(ErrorKind::Full),
            "25P02" => Verdict::new(ErrorKind::Database)
                .or("an earlier statement of this transaction failed: roll it back, to a savepoint or whole"),
            "25006" => Verdict::new(ErrorKind::Permission)
                .or("connect to the primary, in a transaction that may write"),
            "25000" => Verdict::new(ErrorKind::Configuration).or(
                "make READ COMMITTED the default of this role: ALTER ROLE … SET default_transaction_isolation = 'read committed'",
            ),
            "42939" => Verdict::new(ErrorKind::Configuration).or("choose another schema name"),
            "57P01" | "57P02" | "57P03" => Verdict::new(ErrorKind::Unavailable),
            _ if code.starts_with("28") => Verdict::new(ErrorKind::Permission),
            _ if code.starts_with("08") => Verdict::new(ErrorKind::Unavailable),
            _ => Verdict::new(ErrorKind::Database),
        }
    }

    fn endpoint(options: &PgConnectOptions) -> String {
        let database = options.get_database().unwrap_or(options.get_username());
        let host =
            options.get_socket().map_or(Cow::Borrowed(options.get_host()), |file| file.to_string_lossy());
        format!("postgres {host}:{}/{database}", options.get_port())
    }

    fn own_connections(
        options: PgConnectOptions,
        pool: PoolOptions<Self::Db>,
        statement_timeout: Duration,
    ) -> (PgConnectOptions, PoolOptions<Self::Db>) {
        // A queue is empty when the planner looks at it and full when it matters: every statement of ours is served by
        // an index, so nothing else is to be considered. Server-side limits, because a dropped future is no way to
        // stop a statement. A pooler may drop all of these: routines set, or check, what they cannot do without.
        let statement_timeout = statement_timeout.as_millis().to_string();
        let options = options.disable_statement_logging().options([
            ("default_transaction_isolation", "read committed"),
            ("search_path", "pg_catalog, pg_temp"),
            ("jit", "off"),
            ("enable_seqscan", "off"),
            ("enable_bitmapscan", "off"),
            ("plan_cache_mode", "force_generic_plan"),
            ("lock_timeout", "10s"),
            ("statement_timeout", &*statement_timeout),
            ("idle_in_transaction_session_timeout", "60s"),
        ]);
        (options, pool)
    }

    fn limit_statements(
        options: PgConnectOptions,
        pool: PoolOptions<Self::Db>,
        timeout: Duration,
        _: &Interrupt,
    ) -> (PgConnectOptions, PoolOptions<Self::Db>) {
        (options.options([("statement_timeout", timeout.as_millis().to_string())]), pool)
    }

    const CHECKS: &'static [Check] = examine::postgres::CHECKS;
    const OWN_CHECKS: &'static [Check] = examine::postgres::OWN_CHECKS;
    const CLOCK: Option<&'static str> = Some(examine::postgres::CLOCK);

    sends!(PgConnection, PgRow);

    async fn insert(
        connection: &mut PgConnection,
        statements: &Statements,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Result<Vec<Enqueued>>, SqlxError> {
        let stored = match (messages, &statements.shortcuts) {
            ([message], Some(shortcuts)) => {
                insert_one(connection, shortcuts, message, birth).await?.into_iter().collect()
            }
            (_, Some(shortcuts)) if matches!(birth, Birth::Ready) => {
                insert_ready(connection, &shortcuts.batch, messages).await?
            }
            _ => insert_many(connection, &statements.enqueue, messages, birth).await?,
        };
        let twins = if stored.len() == messages.len() {
            Vec::new()
        } else {
            // Another transaction may have stored a twin after our statement's snapshot: look again, in a new one.
            let mut args = PgArguments::default();
            let ids: Vec<Uuid> = messages.iter().map(|message| *message.id().as_uuid()).collect();
            let hashes: Vec<&[u8]> =
                messages.iter().filter_map(|m| m.dedup().map(|hash| &hash[..])).collect();
            args.add(ids).and_then(|()| args.add(hashes)).map_err(SqlxError::Encode)?;
            let rows = query_with_result(statements.duplicates.sql(), Ok(args)).fetch_all(connection).await?;
            rows.iter()
                .map(|row| Ok((MessageId::from_uuid(row.try_get(0)?), row.try_get(1)?)))
                .collect::<Result<Vec<_>, SqlxError>>()?
        };
        Ok(answers(messages, &stored, &twins))
    }

    fn insert_rows(left: usize) -> usize {
        left.min(10_000)
    }

    fn insert_is_long(_messages: &[NewMessage]) -> bool {
        false
    }

    async fn settle(
        connection: &mut PgConnection,
        statements: &Statements,
        settlements: &[&Settlement],
        keep_done: bool,
        passes_locked: bool,
    ) -> Result<Vec<PgRow>, SqlxError> {
        let acks = if passes_locked { None } else { ack_args(settlements, keep_done) };
        let (statement, args) = match (acks, &statements.shortcuts) {
            (Some(args), Some(shortcuts)) => (&shortcuts.ack, args),
            _ => (&statements.settle, settle_args(settlements, keep_done, passes_locked)),
        };
        query_with_result(statement.sql(), args).fetch_all(connection).await
    }

    async fn renew(
        connection: &mut PgConnection,
        statement: &Statement,
        leases: &[&Lease],
        lease: Duration,
    ) -> Result<Vec<PgRow>, SqlxError> {
        let leases: Vec<Lease> = leases.iter().map(|lease| **lease).collect();
        Self::fetch(connection, statement, &[Arg::Leases(&leases), Arg::Span(lease)]).await
    }

    async fn nudge(connection: &mut PgConnection, channel: &str) -> Result<(), SqlxError> {
        let statement = Statement::new(NUDGE.to_owned());
        Self::execute(connection, &statement, &[Arg::text(channel)]).await.map(drop)
    }

    async fn listen(
        pool: &Pool<Self::Db>,
        channel: &str,
        bell: &Bell,
        quiet: Duration,
    ) -> Result<(), SqlxError> {
        let mut listener = PgListener::connect_with(pool).await?;
        listener.eager_reconnect(false);
        listener.listen(channel).await?;
        // What was said before this moment was not heard.
        bell.ring();
        loop {
            match timeout(quiet, listener.try_recv()).await {
                Ok(heard) => match heard? {
                    Some(_) => bell.ring(),
                    None => return Ok(()),
                },
                Err(_) => {
                    let check = timeout(quiet, (&mut listener).execute("select 1")).await;
                    if !matches!(check, Ok(Ok(_))) {
                        return Err(io::Error::from(io::ErrorKind::TimedOut).into());
                    }
                }
            }
        }
    }

    async fn holder(
        options: &PgConnectOptions,
        naming: &Naming,
        id: MessageId,
    ) -> Result<Option<Holder>, SqlxError> {
        holder::postgres::find(options, naming, id).await
    }

    async fn lock_waits(options: &PgConnectOptions, naming: &Naming) -> Result<Vec<LockWait>, SqlxError> {
        holder::postgres::lock_waits(options, naming).await
    }

    fn print(script: &Script) -> String {
        let text = script.print(&setup(script), str::to_owned, &record(script));
        format!("begin;\n\n{text}\ncommit;\n")
    }

    /// Everything in one transaction under an advisory lock that the transaction holds: no half-made schema, and it
    /// works through a pooler.
    async fn migrate(options: &PgConnectOptions, script: &Script) -> Result<Result<u32>, SqlxError> {
        let mut connection = PgConnection::connect_with(options).await?;
        let mut tx = connection.begin().await?;
        // Other migrations are waited for, however long they take.
        Self::run_script(&mut tx, "set local lock_timeout = 0; set local statement_timeout = 0").await?;
        Self::run_script(&mut tx, &format!("select pg_advisory_xact_lock({})", script.lock_key())).await?;
        Self::run_script(&mut tx, &setup(script)).await?;
        let table = script.naming.full("outbox_version");
        let select = Statement::new(format!("select version, routines from {table}"));
        let rows = Self::fetch(&mut tx, &select, &[]).await?;
        let found = match rows.first() {
            Some(row) => (row.try_get::<i32, _>(0)?, row.try_get::<String, _>(1)?),
            None => (0, String::new()),
        };
        let missing = match script.missing(u32::try_from(found.0).unwrap_or_default()) {
            Ok(missing) => missing,
            Err(error) => return Ok(Err(error)),
        };
        let version = script.version();
        if !missing.is_empty() || found.1 != script.routines_mark {
            for sql in missing.iter().map(|(_, sql)| sql).chain(&script.routines) {
                Self::run_script(&mut tx, sql).await?;
            }
            Self::run_script(&mut tx, &record(script)).await?;
        }
        tx.commit().await?;
        connection.close().await?;
        Ok(Ok(version))
    }
}

/// Creates the schema, unless it is there (which takes fewer rights), and the table of the version.
pub(crate) fn setup(script: &Script) -> String {
    let naming = &script.naming;
    let schema = naming.schema.as_deref().unwrap_or("public");
    format!(
        "do $$ begin if to_regnamespace('\"{schema}\"') is null then create schema \"{schema}\"; end if; end $$;\n\
         create table if not exists {} (version integer not null, routines text not null);",
        naming.full("outbox_version")
    )
}

/// Writes the version down.
pub(crate) fn record(script: &Script) -> String {
    let table = script.naming.full("outbox_version");
    format!(
        "delete from {table};\ninsert into {table} (version, routines) values ({}, '{}');",
        script.version(),
        script.routines_mark
    )
}

fn interval(span: Duration) -> PgInterval {
    PgInterval { months: 0, days: 0, microseconds: span_micros(span) }
}

fn bind(args: &[Arg<'_>]) -> Result<PgArguments, BoxDynError> {
    let mut bound = PgArguments::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Small(value) => bound.add(value),
            Arg::Bool(value) => bound.add(value),
            Arg::Text(value) => bound.add(value),
            Arg::Bytes(value) => bound.add(value),
            Arg::Span(span) => bound.add(interval(*span)),
            Arg::Ints(list) => bound.add(*list),
            Arg::Texts(list) => bound.add(list),
            Arg::Leases(list) => bound
                .add(list.iter().map(|lease| lease.item.get()).collect::<Vec<_>>())
                .and_then(|()| bound.add(list.iter().map(|lease| lease.epoch).collect::<Vec<_>>())),
            Arg::Id(id) => bound.add(id.copied()),
            Arg::Ends(list) => bound
                .add(list.iter().map(|(id, _)| *id.as_uuid()).collect::<Vec<Uuid>>())
                .and_then(|()| bound.add(list.iter().map(|(_, end)| *end).collect::<Vec<_>>())),
            Arg::Ids(list) => {
                bound.add(list.map(|ids| ids.iter().map(|id| *id.as_uuid()).collect::<Vec<Uuid>>()))
            }
        }?;
    }
    Ok(bound)
}

type Stored = (MessageId, Option<Lease>);

/// What was stored of a batch, with the leases of what was born leased.
async fn insert_many(
    connection: &mut PgConnection,
    statement: &Statement,
    messages: &[NewMessage],
    birth: Birth<'_>,
) -> Result<Vec<Stored>, SqlxError> {
    let rows = query_with_result(statement.sql(), insert_args(messages, birth)).fetch_all(connection).await?;
    let stored = |row: &PgRow| {
        let epoch: i32 = row.try_get(2)?;
        let lease = Lease { item: WorkItemId::new(row.try_get(1)?), epoch };
        Ok((MessageId::from_uuid(row.try_get(0)?), (epoch > 0).then_some(lease)))
    };
    rows.iter().map(stored).collect()
}

/// The same if none is born leased.
async fn insert_ready(
    connection: &mut PgConnection,
    statement: &Statement,
    messages: &[NewMessage],
) -> Result<Vec<Stored>, SqlxError> {
    let args = batch_args(messages);
    let rows = query_with_result(statement.sql(), args).fetch_all(connection).await?;
    rows.iter().map(|row| Ok((MessageId::from_uuid(row.try_get(0)?), None))).collect()
}

/// The same for one message.
async fn insert_one(
    connection: &mut PgConnection,
    shortcuts: &Shortcuts<Statement>,
    message: &NewMessage,
    birth: Birth<'_>,
) -> Result<Option<Stored>, SqlxError> {
    if let Birth::Leased { worker, lease } = birth.for_message(message) {
        let epoch = new_token();
        let args = leased_args(message, worker.as_str(), interval(lease), epoch);
        let row = query_with_result(shortcuts.leased.sql(), args).fetch_optional(connection).await?;
        let item = row.map(|row| row.try_get(0)).transpose()?.map(WorkItemId::new);
        return Ok(item.map(|item| (message.id(), Some(Lease { item, epoch }))));
    }
    let stored =
        query_with_result(shortcuts.one.sql(), ready_args(message)).fetch_optional(connection).await?;
    Ok(stored.map(|_| (message.id(), None)))
}

/// A time as microseconds from now, or since 1970.
fn time(when: When) -> (Option<i64>, Option<i64>) {
    match when {
        When::Now => (Some(0), None),
        When::After(delay) => (Some(span_micros(delay)), None),
        When::At(time) => (None, Some(micros(time))),
    }
}

/// What both statements for one message begin with, and room for so many more values.
fn message_args(message: &NewMessage, more: usize) -> Result<PgArguments, BoxDynError> {
    let mut args = PgArguments::default();
    args.reserve(13 + more, message.payload().len() + 256);
    args.add(message.id().as_uuid())?;
    args.add(message.topic())?;
    args.add(message.order().unwrap_or_default().code())?;
    args.add(message.dedup().map(|hash| &hash[..]))?;
    args.add(message.payload())?;
    args.add(message.content_type())?;
    args.add(message.encoded_headers())?;
    args.add(message.correlation_id())?;
    args.add(message.aggregate_type())?;
    args.add(message.aggregate_id())?;
    args.add(message.tenant_id())?;
    args.add(message.priority())?;
    args.add(message.occurred_at().map(micros))?;
    Ok(args)
}

fn ready_args(message: &NewMessage) -> Result<PgArguments, BoxDynError> {
    let mut args = message_args(message, 5)?;
    args.add(message.key())?;
    let times = [(message.due() != When::Now).then(|| message.due()), message.expires()];
    for (from_now, since_1970) in times.map(|when| when.map(time).unwrap_or_default()) {
        args.add(from_now)?;
        args.add(since_1970)?;
    }
    Ok(args)
}

fn leased_args(
    message: &NewMessage,
    worker: &str,
    lease: PgInterval,
    epoch: i32,
) -> Result<PgArguments, BoxDynError> {
    let mut args = message_args(message, 3)?;
    args.add(worker)?;
    args.add(lease)?;
    args.add(epoch)?;
    Ok(args)
}

/// The epoch of messages that are born leased: random, so that it fits none of those that a server has forgotten which was
/// promoted, or restored, without the last transactions.
fn new_token() -> i32 {
    fastrand::i32(1..)
}

fn batch_args(messages: &[NewMessage]) -> Result<PgArguments, BoxDynError> {
    /// One array per column: the binary form is written once, straight from the messages.
    fn column<'a, T>(messages: &'a [NewMessage], value: impl Fn(&'a NewMessage) -> T) -> Vec<T> {
        messages.iter().map(value).collect()
    }
    let mut args = PgArguments::default();
    args.add(column(messages, |m| *m.id().as_uuid()))?;
    args.add(column(messages, NewMessage::topic))?;
    args.add(column(messages, NewMessage::key))?;
    args.add(column(messages, |m| m.order().unwrap_or_default().code()))?;
    args.add(column(messages, |m| m.dedup().map(|hash| &hash[..])))?;
    args.add(column(messages, NewMessage::payload))?;
    args.add(column(messages, NewMessage::content_type))?;
    args.add(column(messages, NewMessage::encoded_headers))?;
    args.add(column(messages, NewMessage::correlation_id))?;
    args.add(column(messages, NewMessage::aggregate_type))?;
    args.add(column(messages, NewMessage::aggregate_id))?;
    args.add(column(messages, NewMessage::tenant_id))?;
    args.add(column(messages, NewMessage::priority))?;
    args.add(column(messages, |m| m.occurred_at().map(micros)))?;
    let (due, due_at): (Vec<_>, Vec<_>) = messages
        .iter()
        .map(|m| (m.due() != When::Now).then(|| m.due()).map(time).unwrap_or_default())
        .unzip();
    args.add(due)?;
    args.add(due_at)?;
    let (expires, expires_at): (Vec<_>, Vec<_>) =
        messages.iter().map(|m| m.expires().map(time).unwrap_or_default()).unzip();
    args.add(expires)?;
    args.add(expires_at)?;
    Ok(args)
}

fn insert_args(messages: &[NewMessage], birth: Birth<'_>) -> Result<PgArguments, BoxDynError> {
    let mut args = batch_args(messages)?;
    let is_leased = |message| matches!(birth.for_message(message), Birth::Leased { .. });
    args.add(messages.iter().map(is_leased).collect::<Vec<_>>())?;
    let (worker, lease) = match birth {
        Birth::Ready => (None, None),
        Birth::Leased { worker, lease } => (Some(worker.as_str()), Some(interval(lease))),
    };
    args.add(worker)?;
    args.add(lease)?;
    args.add(new_token())?;
    Ok(args)
}

/// The runs of neighbours with one epoch, if all are acks; none if they are not.
fn ack_args(settlements: &[&Settlement], keep_done: bool) -> Option<Result<PgArguments, BoxDynError>> {
    let (mut firsts, mut lasts, mut epochs) = (Vec::<i64>::new(), Vec::<i64>::new(), Vec::<i32>::new());
    for settlement in settlements {
        let Lease { item, epoch } = settlement.lease;
        let item = item.get();
        // The largest number there is has no next one, which a range would need; and the answer names an item once.
        let is_plain = settlement.outcome == Outcome::Ack && settlement.handled.is_none() && item < i64::MAX;
        if !is_plain || lasts.last() == Some(&item) {
            return None;
        }
        match (lasts.last_mut(), epochs.last()) {
            (Some(last), Some(same)) if *last + 1 == item && *same == epoch => *last = item,
            _ => {
                firsts.push(item);
                lasts.push(item);
                epochs.push(epoch);
            }
        }
    }
    let mut args = PgArguments::default();
    let added = args.add(firsts).and_then(|()| args.add(lasts)).and_then(|()| args.add(epochs));
    Some(added.and_then(|()| args.add(keep_done)).map(|()| args))
}

fn settle_args(
    settlements: &[&Settlement],
    keep_done: bool,
    passes_locked: bool,
) -> Result<PgArguments, BoxDynError> {
    fn column<'a, T>(settlements: &[&'a Settlement], value: impl Fn(&'a Settlement) -> T) -> Vec<T> {
        settlements.iter().map(|settlement| value(settlement)).collect()
    }
    let mut args = PgArguments::default();
    args.add(column(settlements, |s| s.lease.item.get()))?;
    args.add(column(settlements, |s| s.lease.epoch))?;
    args.add(column(settlements, |s| s.outcome.code()))?;
    args.add(column(settlements, |s| span_micros(s.outcome.delay())))?;
    args.add(column(settlements, |s| s.outcome.failure().map(|failure| failure.class().code())))?;
    args.add(column(settlements, |s| s.outcome.failure().map(posthaste_core::Failure::text)))?;
    args.add(column(settlements, |s| i32::try_from(s.outcome.max_attempts()).unwrap_or(i32::MAX)))?;
    args.add(keep_done)?;
    args.add(column(settlements, |s| s.outcome.max_age().map(span_micros)))?;
    args.add(column(settlements, Settlement::encoded_handled))?;
    args.add(passes_locked)?;
    Ok(args)
}

columns!(PgRow {
    fn opt_text(&self, column: usize) -> Result<Option<String>> {
        read(self.try_get_unchecked(column))
    }

    fn id(&self, column: usize) -> Result<MessageId> {
        read(self.try_get_unchecked(column).map(MessageId::from_uuid))
    }

    /// A timestamp's binary form is a number of microseconds; infinity is the largest.
    fn opt_time(&self, column: usize) -> Result<Option<SystemTime>> {
        let stored: Option<i64> = read(self.try_get_unchecked(column))?;
        Ok(stored.map(|micros| from_micros(micros.saturating_add(EPOCH_2000))))
    }
});
