//! MySQL 8 and MariaDB 10.6 and newer.
//!
//! Claims, settlements and renewals are routines in the database, because each takes several statements in one
//! transaction: one round trip instead of five, and the very same code for programs in other languages.

use std::borrow::Cow;
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
use crate::dialect::{Dialect, answers, chunks, sealed, sends};
use crate::error::Verdict;
use crate::examine::{self, Check};
use crate::holder;
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

#[allow(private_interfaces, reason = "sealed: nobody else implements or calls it")]
impl Dialect for MySql {
    type Db = sqlx_mysql::MySql;

    const FILES: Files = files!(
        "mysql",
        shortcuts: None,
        migrations: ["0001_outbox", "0002_joins", "0003_inbox", "0004_pause", "0005_lease", "0006_walk", "0007_crash", "0008_open"],
        routines: [
            "enqueue", "claim", "wake_waits", "count_steps", "uncount_steps", "settle", "ack", "abandon", "defer",
            "release", "fail", "renew", "reap", "expire", "park", "over", "list", "select", "stats", "topics", "turn",
            "join_answer", "attach_steps", "report_step", "end_join", "wait_for_join", "continue_join", "expire_joins", "expire_join",
            "joins", "over_joins", "prune_joins", "start_join", "attach", "report_step_completed", "report_step_failed",
            "cancel_join", "enqueue_join_wait", "inbox_once", "inbox_forget", "pause", "resume",
        ]
    );
    const SCHEMES: &'static [&'static str] = &["mysql", "mariadb"];
    const QUOTE: char = '`';
    const DEFAULT_SCHEMA: Option<&'static str> = None;
    const DEFAULT_PREFIX: &'static str = "posthaste_";
    const BEGIN: &'static str = "START TRANSACTION";
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
            1020 | 1213 => Verdict::new(ErrorKind::Conflict),
            1205 => {
                Verdict::new(ErrorKind::Busy).or("another transaction holds a lock for long: commit sooner")
            }
            1040 | 1203 | 1226 => {
                Verdict::new(ErrorKind::Busy).or("lower the pools' sizes or raise max_connections")
            }
            1021 | 1114 => Verdict::new(ErrorKind::Full),
            1053 | 1079 | 1317 | 1927 => Verdict::new(ErrorKind::Unavailable),
            1153 | 1301 => Verdict::new(ErrorKind::InvalidInput)
                .or("raise the server's max_allowed_packet, or publish less"),
            1568 => Verdict::new(ErrorKind::InvalidInput).or("call it outside of a transaction"),
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
    ) -> (MySqlConnectOptions, PoolOptions<Self::Db>) {
        let pool = pool.after_connect(|connection, _| {
            Box::pin(async move {
                // Server-side limits, because a dropped future is no way to stop a statement.
                Self::run_script(connection, "set session transaction isolation level read committed")
                    .await?;
                Self::run_script(connection, "set session innodb_lock_wait_timeout = 10").await
            })
        });
        (options.disable_statement_logging(), pool)
    }

    const CHECKS: &'static [Check] = examine::mysql::CHECKS;
    const CLOCK: Option<&'static str> = Some(examine::mysql::CLOCK);

    sends!(MySqlConnection, MySqlRow);

    /// An error of this one statement does not end the caller's transaction here, so a plain insert is tried first, and
    /// what stands in the way is looked for only if there is something.
    async fn insert(
        connection: &mut MySqlConnection,
        statements: &Statements,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Result<Vec<Enqueued>>, SqlxError> {
        let strict = statements.enqueue.as_str();
        let tolerant = strict.replace("/*ignore*/", "ignore");
        if messages.iter().all(|message| message.dedup().is_none()) {
            match insert_rows(connection, strict, messages, birth).await {
                Ok(()) => return stored(connection, statements, messages, birth).await.map(Ok),
                Err(SqlxError::Database(error)) if number(error.as_ref()) == DUPLICATE_ENTRY => {}
                Err(error) => return Err(error),
            }
        }
        // Without a lock, which would keep apart the very rows that are about to be inserted. A twin that is committed
        // after this look is met by the insert and found by the second one, which sees the latest.
        let before = twins(connection, statements, messages, "").await?;
        let fresh: Vec<NewMessage> = {
            let mut seen = std::collections::HashSet::new();
            let known = |message: &NewMessage| {
                before.iter().any(|twin| {
                    twin.id == message.id()
                        || (message.dedup().is_some()
                            && twin.dedup.as_deref() == message.dedup().map(|hash| &hash[..]))
                })
            };
            messages.iter().filter(|m| !known(m) && seen.insert(m.id())).cloned().collect()
        };
        for some in chunks::<Self>(&fresh) {
            insert_rows(connection, &tolerant, some, birth).await?;
        }
        let after = twins(connection, statements, messages, "lock in share mode").await?;
        let is_new = |twin: &Twin| !before.iter().any(|old| old.id == twin.id);
        let stored: Vec<_> = after
            .iter()
            .filter(|twin| is_new(twin) && fresh.iter().any(|message| message.id() == twin.id))
            .map(|twin| (twin.id, (twin.lease.epoch > 0).then_some(twin.lease)))
            .collect();
        // Passed over, and with no hash to be found by: its own id was stored after our snapshot.
        let by_id =
            messages.iter().filter(|message| message.dedup().is_none()).map(|message| (message.id(), None));
        let twins: Vec<_> = after.into_iter().map(|twin| (twin.id, twin.dedup)).chain(by_id).collect();
        Ok(answers(messages, &stored, &twins))
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

    async fn holder(
        options: &MySqlConnectOptions,
        naming: &Naming,
        id: MessageId,
    ) -> Result<Option<Holder>, SqlxError> {
        holder::mysql::find(options, naming, id).await
    }

    fn print(script: &Script) -> String {
        let routine = |sql: &str| format!("{};\ndelimiter $$\n{sql}$$\ndelimiter ;", drop_routine(sql));
        script.print(&setup(script), routine, &record(script))
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
            for routine in &script.routines {
                Self::run_script(&mut connection, &drop_routine(routine)).await?;
                Self::run_script(&mut connection, routine).await?;
            }
            Self::run_script(&mut connection, &record(script)).await?;
        }
        connection.close().await?;
        Ok(Ok(script.version()))
    }
}

pub(crate) fn number(error: &dyn DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

/// MySQL cannot replace a routine, only drop and create it.
pub(crate) fn drop_routine(create: &str) -> String {
    let name = create.trim_start_matches("create procedure ").split('(').next().unwrap_or_default();
    format!("drop procedure if exists {name}")
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

async fn insert_rows(
    connection: &mut MySqlConnection,
    sql: &str,
    messages: &[NewMessage],
    birth: Birth<'_>,
) -> Result<(), SqlxError> {
    let sql = Statement::new(json::repeat_rows(sql, messages.len()));
    query_with_result(sql.sql(), insert_args(messages, birth)).execute(connection).await.map(drop)
}

/// The answer for a batch that was stored whole; the rows are looked up only for their leases.
async fn stored(
    connection: &mut MySqlConnection,
    statements: &Statements,
    messages: &[NewMessage],
    birth: Birth<'_>,
) -> Result<Vec<Enqueued>, SqlxError> {
    let leased = messages.iter().any(|message| matches!(birth.for_message(message), Birth::Leased { .. }));
    let rows = if leased { twins(connection, statements, messages, "").await? } else { Vec::new() };
    let lease = |id| rows.iter().find(|twin| twin.id == id && twin.lease.epoch > 0).map(|twin| twin.lease);
    Ok(messages
        .iter()
        .map(|message| Enqueued::New { id: message.id(), lease: lease(message.id()) })
        .collect())
}

/// A stored row with the id or the dedup key of a message.
struct Twin {
    id: MessageId,
    dedup: Option<Vec<u8>>,
    lease: Lease,
}

async fn twins(
    connection: &mut MySqlConnection,
    statements: &Statements,
    messages: &[NewMessage],
    lock: &str,
) -> Result<Vec<Twin>, SqlxError> {
    let sql = Statement::new(statements.duplicates.as_str().replace("/*lock*/", lock));
    let mut args = MySqlArguments::default();
    let ids = json::ids_of(messages.iter().map(NewMessage::id));
    args.add(ids).and_then(|()| args.add(json::hashes_of(messages))).map_err(SqlxError::Encode)?;
    let rows = query_with(sql.sql(), args).fetch_all(connection).await?;
    let twin = |row: &MySqlRow| {
        let lease =
            Lease { item: WorkItemId::new(row.try_get_unchecked(2)?), epoch: row.try_get_unchecked(3)? };
        let id = id_of(&row.try_get_unchecked::<Vec<u8>, _>(0)?)?;
        Ok(Twin { id, dedup: row.try_get_unchecked(1)?, lease })
    };
    rows.iter().map(twin).collect()
}

/// The order in which rows are locked.
fn order_by_item<T>(batch: &[&T], lease: impl Fn(&T) -> Lease) -> Vec<usize> {
    let mut order: Vec<usize> = (0..batch.len()).collect();
    order.sort_by_key(|index| lease(batch[*index]));
    order
}

/// The answers in the order of the batch again; what follows them stays behind them.
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
