//! MySQL 8 and MariaDB 10.6 and newer.
//!
//! Claims, settlements and renewals are routines in the database, because each takes several statements in one
//! transaction: one round trip instead of five, and the very same code for programs in other languages.

use std::borrow::Cow;
use std::collections::HashSet;
use std::slice;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, Enqueued, Error, ErrorKind, Holder, Lease, MessageId, NewMessage, Result, Settlement, WorkItemId,
};
use sqlx_core::Error as SqlxError;
use sqlx_core::arguments::Arguments as _;
use sqlx_core::connection::{ConnectOptions as _, Connection as _};
use sqlx_core::error::{BoxDynError, DatabaseError};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;
use sqlx_core::query::{query_with, query_with_result};
use sqlx_core::row::Row as _;
use sqlx_mysql::{MySqlArguments, MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow};

use crate::arg::{Arg, from_micros, span_micros};
use crate::dialect::{Dialect, Passing, answers, chunks, sealed, sends};
use crate::error::{TOOK_TOO_LONG, Verdict};
use crate::examine::{self, Check};
use crate::holder;
use crate::interrupt::Interrupt;
use crate::json;
use crate::migrate::Script;
use crate::naming::Naming;
use crate::row::{columns, id_of, read};
use crate::source::Database;
use crate::sql::{Files, Statement, Statements, files};
use crate::store::SqlStore;

/// A store over MySQL or MariaDB.
pub type MySqlStore = SqlStore<MySql>;

/// A description of a MySQL or MariaDB database.
pub type MySqlDatabase = Database<MySql>;

/// The dialect of MySQL and MariaDB.
#[derive(Clone, Copy, Debug)]
pub struct MySql;

impl sealed::Sealed for MySql {}

const DUPLICATE_ENTRY: u16 = 1062;
const SIGNALLED: u16 = 1644;

/// The SQL mode of our connections and routines. A number that does not fit must be an error: where the server stores the
/// largest one instead, two holders of a message can have the same epoch.
pub(crate) const SQL_MODE: &str = "STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION";

#[allow(private_interfaces, reason = "sealed: nobody else implements or calls it")]
impl Dialect for MySql {
    type Db = sqlx_mysql::MySql;

    const FILES: Files = files!(
        "mysql",
        shortcuts: None,
        migrations: ["0001_outbox", "0002_joins", "0003_inbox", "0004_pause", "0005_lease", "0006_walk", "0007_crash", "0008_open", "0009_failing", "0010_cursor", "0011_waiting"],
        routines: [
            "enqueue", "claim", "wake_waits", "count_steps", "uncount_steps", "settle", "ack", "abandon", "defer",
            "release", "fail", "renew", "reap", "expire", "hasten", "park", "over", "list", "select", "stats", "topics", "turn",
            "join_answer", "attach_steps", "report_step", "end_join", "wait_for_join", "continue_join", "expire_joins", "expire_join",
            "joins", "over_joins", "prune_joins", "start_join", "attach", "report_step_completed", "report_step_failed",
            "cancel_join", "enqueue_join_wait", "inbox_once", "inbox_forget", "pause", "resume",
        ]
    );
    const SCHEMES: &'static [&'static str] = &["mysql", "mariadb"];
    const URL_OPTIONS: &'static [&'static str] = &[
        "sslmode",
        "ssl-mode",
        "sslca",
        "ssl-ca",
        "sslcert",
        "ssl-cert",
        "sslkey",
        "ssl-key",
        "charset=utf8mb4",
        "collation",
        "statement-cache-capacity",
        "socket",
        "timezone",
        "time-zone",
    ];
    const QUOTE: char = '`';
    const DEFAULT_SCHEMA: Option<&'static str> = None;
    const DEFAULT_PREFIX: &'static str = "posthaste_";
    const BEGIN: &'static str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
    const BEGIN_USER: &'static str = "BEGIN";
    // Half of the smallest usual max_allowed_packet.
    const MAX_INSERT_BYTES: usize = 8 << 20;

    fn judge(error: &dyn DatabaseError) -> Verdict {
        match number(error) {
            1054 | 1146 | 1305 => Verdict::new(ErrorKind::SchemaMissing),
            1044 | 1045 | 1142 | 1143 | 1227 | 1370 | 1698 => Verdict::new(ErrorKind::Permission),
            1049 => {
                Verdict::new(ErrorKind::Configuration).or("create the database, or name another in the URL")
            }
            1020 | 1213 => Verdict::new(ErrorKind::Conflict).or(
                "the database has rolled the whole transaction back: begin it again, with all that it did",
            ),
            1205 => {
                Verdict::new(ErrorKind::Busy).or("another transaction holds a lock for long: commit sooner")
            }
            1969 | 3024 => Verdict::new(ErrorKind::Busy).or(TOOK_TOO_LONG),
            1040 | 1203 | 1226 => {
                Verdict::new(ErrorKind::Busy).or("lower the pools' sizes or raise max_connections")
            }
            167 | 1467 => Verdict::new(ErrorKind::Database)
                .or("the numbers of the column seq are used up: run `posthaste doctor`"),
            1021 | 1114 => Verdict::new(ErrorKind::Full),
            1053 | 1079 | 1317 | 1927 => Verdict::new(ErrorKind::Unavailable),
            1153 | 1301 => Verdict::new(ErrorKind::InvalidInput)
                .or("raise the server's max_allowed_packet, or publish less"),
            // Raised by our routines, with a remedy in the text.
            SIGNALLED => match error.code().as_deref() {
                Some("40001") => Verdict::new(ErrorKind::Conflict),
                Some("22023" | "25001") => Verdict::new(ErrorKind::InvalidInput),
                _ => Verdict::new(ErrorKind::Database),
            },
            _ => Verdict::new(ErrorKind::Database),
        }
    }

    fn endpoint(options: &MySqlConnectOptions) -> String {
        let host =
            options.get_socket().map_or(Cow::Borrowed(options.get_host()), |file| file.to_string_lossy());
        format!("mysql {host}:{}/{}", options.get_port(), options.get_database().unwrap_or_default())
    }

    fn own_connections(
        options: MySqlConnectOptions,
        pool: PoolOptions<Self::Db>,
        _: Duration,
    ) -> (MySqlConnectOptions, PoolOptions<Self::Db>) {
        let pool = pool.after_connect(|connection, _| Box::pin(prepare(connection, None)));
        (options.disable_statement_logging(), pool)
    }

    fn limit_statements(
        options: MySqlConnectOptions,
        pool: PoolOptions<Self::Db>,
        timeout: Duration,
        _: &Interrupt,
    ) -> (MySqlConnectOptions, PoolOptions<Self::Db>) {
        (options, pool.after_connect(move |connection, _| Box::pin(prepare(connection, Some(timeout)))))
    }

    const CHECKS: &'static [Check] = examine::mysql::CHECKS;
    const CLOCK: Option<&'static str> = Some(examine::mysql::CLOCK);

    sends!(MySqlConnection, MySqlRow);

    /// A duplicate key fails this one statement and does not end the caller's transaction, so a plain insert is tried first.
    /// Only an insert that succeeded makes a message new: rows that are merely there may be another publisher's.
    async fn insert(
        connection: &mut MySqlConnection,
        statements: &Statements,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Result<Vec<Enqueued>>, SqlxError> {
        if insert_rows(connection, statements, messages, birth).await? {
            let leases = leases_of(connection, statements, messages, birth).await?;
            return Ok(answers(messages, &leases, &[]));
        }
        // Without a lock: outside of READ COMMITTED, a lock on a missing row stops other publishers.
        let mut there = twins(connection, statements, messages, messages, "").await?;
        let mut fresh: Vec<NewMessage> = Vec::new();
        for message in messages {
            let is_twin = |id, dedup: Option<&[u8]>| is_twin(message, id, dedup);
            let is_known = there.iter().any(|twin| is_twin(twin.id, twin.dedup.as_deref()))
                || fresh.iter().any(|other| is_twin(other.id(), other.dedup().map(|hash| &hash[..])));
            if !is_known {
                fresh.push(message.clone());
            }
        }
        let mut stored = Vec::with_capacity(fresh.len());
        for chunk in chunks::<Self>(&fresh) {
            if insert_rows(connection, statements, chunk, birth).await? {
                stored.extend_from_slice(chunk);
                continue;
            }
            // Another transaction has stored a twin since the look-up, or since the snapshot.
            for message in chunk {
                if insert_rows(connection, statements, slice::from_ref(message), birth).await? {
                    stored.push(message.clone());
                } else {
                    there.extend(locked_twin(connection, statements, message).await?);
                }
            }
        }
        let leases = leases_of(connection, statements, &stored, birth).await?;
        let there = there.into_iter().map(|twin| (twin.id, twin.dedup));
        let there: Vec<_> =
            there.chain(stored.iter().map(|new| (new.id(), new.dedup().map(|hash| hash.to_vec())))).collect();
        Ok(answers(messages, &leases, &there))
    }

    /// The error of this one statement does not end the caller's transaction.
    async fn insert_unless_there(
        connection: &mut MySqlConnection,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<bool, SqlxError> {
        match Self::execute(connection, statement, args).await {
            Err(SqlxError::Database(error)) if number(error.as_ref()) == DUPLICATE_ENTRY => Ok(false),
            inserted => inserted.map(|rows| rows > 0),
        }
    }

    fn insert_rows(left: usize) -> usize {
        json::insert_rows(left)
    }

    fn insert_is_long(messages: &[NewMessage]) -> bool {
        messages.iter().any(|message| message.dedup().is_some())
    }

    async fn settle(
        connection: &mut MySqlConnection,
        statements: &Statements,
        settlements: &[&Settlement],
        keep_done: bool,
        _passes_locked: bool,
    ) -> Result<Vec<MySqlRow>, SqlxError> {
        let order = order_by_item(settlements, |settlement| settlement.lease);
        let sorted: Vec<&Settlement> = order.iter().map(|index| settlements[*index]).collect();
        let mut args = MySqlArguments::default();
        args.add(json::settlements(&sorted)).and_then(|()| args.add(keep_done)).map_err(SqlxError::Encode)?;
        let rows = query_with(statements.settle.sql(), args).fetch_all(connection).await?;
        Ok(restore(rows, &order))
    }

    async fn renew(
        connection: &mut MySqlConnection,
        statement: &Statement,
        leases: &[&Lease],
        lease: Duration,
    ) -> Result<Vec<MySqlRow>, SqlxError> {
        let order = order_by_item(leases, |lease| *lease);
        let sorted: Vec<&Lease> = order.iter().map(|index| leases[*index]).collect();
        let mut args = MySqlArguments::default();
        args.add(json::leases(sorted))
            .and_then(|()| args.add(span_micros(lease)))
            .map_err(SqlxError::Encode)?;
        let rows = query_with(statement.sql(), args).fetch_all(connection).await?;
        Ok(restore(rows, &order))
    }

    const PASSING: Passing = Passing::ByLooking;

    async fn unlocked(
        connection: &mut MySqlConnection,
        naming: &Naming,
        items: &[i64],
    ) -> Result<HashSet<i64>, SqlxError> {
        holder::mysql::unlocked(connection, naming, items).await
    }

    async fn holder(
        options: &MySqlConnectOptions,
        naming: &Naming,
        id: MessageId,
    ) -> Result<Option<Holder>, SqlxError> {
        holder::mysql::find(options, naming, id).await
    }

    fn print(script: &Script) -> String {
        let routine = |sql: &str| {
            let [drop, create] = replace_routine(sql);
            format!("{drop};\ndelimiter $$\n{create}$$\ndelimiter ;")
        };
        let text = script.print(&setup(script), routine, &record(script));
        format!(
            "set @posthaste_sql_mode = @@session.sql_mode;\nset session sql_mode = '{SQL_MODE}';\n\n{text}\n\
             set session sql_mode = @posthaste_sql_mode;\n"
        )
    }

    /// Tables cannot be made in a transaction here: a named lock keeps migrations apart, every step can be repeated, and
    /// the version is written last.
    async fn migrate(options: &MySqlConnectOptions, script: &Script) -> Result<Result<u32>, SqlxError> {
        let mut connection = MySqlConnection::connect_with(options).await?;
        let lock = format!("posthaste {:016x}", script.lock_key());
        let take = Statement::new(format!("select coalesce(get_lock('{lock}', 120), 0)"));
        let rows = Self::fetch(&mut connection, &take, &[]).await?;
        if rows.first().map_or(Ok(0), |row| row.try_get_unchecked::<i64, _>(0))? != 1 {
            return Ok(Err(Error::new(
                ErrorKind::Busy,
                "another migration has been running for two minutes",
            )
            .with_remedy("wait for it, or end it, and try again")));
        }
        Self::run_script(&mut connection, &format!("set session sql_mode = '{SQL_MODE}'")).await?;
        Self::run_script(&mut connection, &setup(script)).await?;
        let table = script.naming.full("outbox_version");
        let select = Statement::new(format!("select version, routines from {table}"));
        let rows = Self::fetch(&mut connection, &select, &[]).await?;
        let found = match rows.first() {
            Some(row) => (row.try_get_unchecked::<i32, _>(0)?, row.try_get_unchecked::<String, _>(1)?),
            None => (0, String::new()),
        };
        let missing = match script.missing(u32::try_from(found.0).unwrap_or_default()) {
            Ok(missing) => missing,
            Err(error) => return Ok(Err(error)),
        };
        if !missing.is_empty() || found.1 != script.routines_mark {
            for (_, sql) in missing {
                Self::run_script(&mut connection, sql).await?;
            }
            let grants = grants_to_restore(&mut connection, script).await?;
            for routine in &script.routines {
                for sql in replace_routine(routine) {
                    Self::run_script(&mut connection, &sql).await?;
                }
            }
            for grant in grants {
                Self::run_script(&mut connection, &grant).await?;
            }
            Self::run_script(&mut connection, &record(script)).await?;
        }
        connection.close().await?;
        Ok(Ok(script.version()))
    }
}

/// Gives a connection of our own its settings. Limits are the server's, because a dropped future is no way to stop a statement.
async fn prepare(connection: &mut MySqlConnection, timeout: Option<Duration>) -> Result<(), SqlxError> {
    let mut settings = format!(
        "set session transaction isolation level read committed; \
         set session innodb_lock_wait_timeout = 10, session sql_mode = '{SQL_MODE}', session autocommit = 1, \
         session completion_type = 'NO_CHAIN'"
    );
    if let Some(timeout) = timeout {
        // MariaDB limits every statement, in seconds, and MySQL those that only read, in milliseconds.
        let (seconds, millis) = (timeout.as_secs_f64(), timeout.as_millis());
        settings.push_str(&format!(
            "/*M!100100 , session max_statement_time = {seconds} *//*!80000 , session max_execution_time = {millis} */"
        ));
    }
    MySql::run_script(connection, &settings).await
}

pub(crate) fn number(error: &dyn DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// The statements that put a routine in the place of an older one. MariaDB replaces it, and keeps the rights to execute it. MySQL
/// cannot; the first statement is for MySQL alone, as `/*!50701` and `/*M!` say.
pub(crate) fn replace_routine(create: &str) -> [String; 2] {
    let rest = create.trim_start_matches("create procedure ");
    let name = rest.split('(').next().unwrap_or_default();
    [
        format!("/*!50701 drop procedure if exists {name} */"),
        format!("create /*M! or replace */ procedure {rest}"),
    ]
}

/// Statements that give back the rights to execute our routines, where replacing takes them away.
async fn grants_to_restore(
    connection: &mut MySqlConnection,
    script: &Script,
) -> Result<Vec<String>, SqlxError> {
    let version = Statement::new("select version()".to_owned());
    let rows = MySql::fetch(connection, &version, &[]).await?;
    if rows
        .first()
        .map_or(Ok(String::new()), |row| row.try_get_unchecked::<String, _>(0))?
        .contains("MariaDB")
    {
        return Ok(Vec::new());
    }
    let naming = &script.naming;
    let names = [Arg::Text(naming.schema.as_deref()), Arg::text(&naming.prefix)];
    let grants = Statement::new(include_str!("../sql/mysql/grants/routines.sql").to_owned());
    match MySql::fetch(connection, &grants, &names).await {
        Ok(rows) => rows.iter().map(|row| row.try_get_unchecked(0)).collect(),
        Err(error) => {
            tracing::warn!(
                %error,
                "rights to execute routines cannot be read and are lost: grant EXECUTE again after this migration"
            );
            Ok(Vec::new())
        }
    }
}

/// Creates the table of the version.
pub(crate) fn setup(script: &Script) -> String {
    let table = script.naming.full("outbox_version");
    format!(
        "create table if not exists {table} (version int not null, routines varchar(64) character set ascii not null) \
         engine = InnoDB;"
    )
}

/// Writes the version down.
pub(crate) fn record(script: &Script) -> String {
    let table = script.naming.full("outbox_version");
    let (version, mark) = (script.version(), &script.routines_mark);
    format!("delete from {table};\ninsert into {table} (version, routines) values ({version}, '{mark}');")
}

/// Inserts all of these messages, or none of them if one is there already: false.
async fn insert_rows(
    connection: &mut MySqlConnection,
    statements: &Statements,
    messages: &[NewMessage],
    birth: Birth<'_>,
) -> Result<bool, SqlxError> {
    let sql = Statement::new(json::repeat_rows(statements.enqueue.as_str(), messages.len()));
    match query_with_result(sql.sql(), insert_args(messages, birth)).execute(connection).await {
        Ok(_) => Ok(true),
        Err(SqlxError::Database(error)) if number(error.as_ref()) == DUPLICATE_ENTRY => Ok(false),
        Err(error) => Err(error),
    }
}

/// The leases of messages that were stored just now; the rows are looked up only if some are stored leased.
async fn leases_of(
    connection: &mut MySqlConnection,
    statements: &Statements,
    messages: &[NewMessage],
    birth: Birth<'_>,
) -> Result<Vec<(MessageId, Option<Lease>)>, SqlxError> {
    let is_leased = |message: &NewMessage| matches!(birth.for_message(message), Birth::Leased { .. });
    let rows = if messages.iter().any(is_leased) {
        twins(connection, statements, messages, &[], "").await?
    } else {
        Vec::new()
    };
    let lease = |id| rows.iter().find(|twin| twin.id == id && twin.lease.epoch > 0).map(|twin| twin.lease);
    Ok(messages.iter().map(|message| (message.id(), lease(message.id()))).collect())
}

/// A stored row with the id or the dedup key of a message.
struct Twin {
    id: MessageId,
    dedup: Option<Vec<u8>>,
    lease: Lease,
}

fn is_twin(message: &NewMessage, id: MessageId, dedup: Option<&[u8]>) -> bool {
    message.id() == id || (dedup.is_some() && dedup == message.dedup().map(|hash| &hash[..]))
}

/// The stored rows with the ids of some messages, and with the dedup keys of some.
async fn twins(
    connection: &mut MySqlConnection,
    statements: &Statements,
    with_ids: &[NewMessage],
    with_keys: &[NewMessage],
    lock: &str,
) -> Result<Vec<Twin>, SqlxError> {
    let sql = Statement::new(statements.duplicates.as_str().replace("/*lock*/", lock));
    let mut args = MySqlArguments::default();
    let ids = json::ids_of(with_ids.iter().map(NewMessage::id));
    args.add(ids).and_then(|()| args.add(json::hashes_of(with_keys))).map_err(SqlxError::Encode)?;
    let rows = query_with(sql.sql(), args).fetch_all(connection).await?;
    let twin = |row: &MySqlRow| {
        let lease =
            Lease { item: WorkItemId::new(row.try_get_unchecked(2)?), epoch: row.try_get_unchecked(3)? };
        let id = id_of(&row.try_get_unchecked::<Vec<u8>, _>(0)?)?;
        Ok(Twin { id, dedup: row.try_get_unchecked(1)?, lease })
    };
    rows.iter().map(twin).collect()
}

/// The twin of a message, even if it was committed after the caller's snapshot: only a lock sees it. By its dedup key first,
/// because a lock on an id that is not there stops other publishers.
async fn locked_twin(
    connection: &mut MySqlConnection,
    statements: &Statements,
    message: &NewMessage,
) -> Result<Vec<Twin>, SqlxError> {
    const LOCK: &str = "lock in share mode";
    let message = slice::from_ref(message);
    let by_key = twins(connection, statements, &[], message, LOCK).await?;
    if !by_key.is_empty() {
        return Ok(by_key);
    }
    twins(connection, statements, message, &[], LOCK).await
}

/// The order in which rows are locked.
fn order_by_item<T>(batch: &[&T], lease: impl Fn(&T) -> Lease) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|index| lease(batch[*index]));
    order
}

/// The results in the order of the batch again; later columns stay behind them.
fn restore<R>(rows: Vec<R>, order: &[usize]) -> Vec<R> {
    let mut rows: Vec<(usize, R)> = order.iter().copied().chain(order.len()..).zip(rows).collect();
    rows.sort_by_key(|(index, _)| *index);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn bind(args: &[Arg<'_>]) -> Result<MySqlArguments, BoxDynError> {
    let mut bound = MySqlArguments::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Small(value) => bound.add(value),
            Arg::Bool(value) => bound.add(value),
            Arg::Text(value) => bound.add(*value),
            Arg::Bytes(value) => bound.add(*value),
            Arg::Span(span) => bound.add(span_micros(*span)),
            Arg::Id(id) => bound.add(id.map(|id| id.as_bytes().to_vec())),
            Arg::Ints(_) | Arg::Texts(_) | Arg::Ids(_) | Arg::Leases(_) | Arg::Ends(_) => {
                bound.add(json::list(arg))
            }
        }?;
    }
    Ok(bound)
}

fn insert_args(messages: &[NewMessage], birth: Birth<'_>) -> Result<MySqlArguments, BoxDynError> {
    let mut args = MySqlArguments::default();
    json::bind_rows!(args, messages, birth);
    Ok(args)
}

columns!(MySqlRow {
    /// Names are binary strings in the tables, so that they are compared byte by byte.
    fn opt_text(&self, column: usize) -> Result<Option<String>> {
        let bytes: Option<Vec<u8>> = read(self.try_get_unchecked(column))?;
        bytes.map(String::from_utf8).transpose().map_err(|_| {
            Error::new(ErrorKind::Codec, "a text in the database is not UTF-8").with_context("column", column)
        })
    }

    fn id(&self, column: usize) -> Result<MessageId> {
        read(self.try_get_unchecked(column).and_then(|bytes: Vec<u8>| id_of(&bytes)))
    }

    /// Statements give times as microseconds since 1970.
    fn opt_time(&self, column: usize) -> Result<Option<SystemTime>> {
        let stored: Option<i64> = read(self.try_get_unchecked(column))?;
        Ok(stored.map(from_micros))
    }
});
