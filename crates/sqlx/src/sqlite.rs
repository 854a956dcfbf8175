//! SQLite, bundled, in WAL mode.
//!
//! There is one writer at a time: statements that write are a transaction by themselves, or stand in one that begins
//! with the write lock, so that no read of ours has to be upgraded and fail.

use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, Enqueued, Error, ErrorKind, Finding, Holder, Lease, MessageId, NewMessage, Result, Settlement,
    StepStatus, WorkItemId,
};
use sqlx_core::Error as SqlxError;
use sqlx_core::arguments::Arguments as _;
use sqlx_core::connection::{ConnectOptions as _, Connection as _};
use sqlx_core::error::{BoxDynError, DatabaseError};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::PoolOptions;
use sqlx_core::query::{query_with, query_with_result};
use sqlx_core::row::Row as _;
use sqlx_sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteRow, SqliteSynchronous,
};

use crate::arg::{Arg, from_micros, span_micros};
use crate::dialect::{Dialect, answers, sealed, sends};
use crate::error::{TOOK_TOO_LONG, Verdict, WRITE_FIRST};
use crate::examine::{self, Check};
use crate::holder;
use crate::interrupt::Interrupt;
use crate::json;
use crate::migrate::Script;
use crate::naming::Naming;
use crate::open_file;
use crate::options::StoreOptions;
use crate::pools::Whose;
use crate::row::{columns, id_of, read};
use crate::source::Database;
use crate::sql::{Files, Statement, Statements, files};
use crate::store::SqlStore;

/// A store over SQLite.
pub type SqliteStore = SqlStore<Sqlite>;

/// A description of a SQLite database.
pub type SqliteDatabase = Database<Sqlite>;

/// The dialect of SQLite.
#[derive(Clone, Copy, Debug)]
pub struct Sqlite;

impl sealed::Sealed for Sqlite {}

const NO_FILE: &str = "check the path and the folder's permissions; a missing file is created by SqliteStore::open, or by \
                       ?mode=rwc in the URL";

impl SqliteStore {
    /// A store in this file, which is created if it is missing; the tables are not: see [`migrate`](Self::migrate).
    pub async fn open(file: impl AsRef<Path>) -> Result<Self> {
        let connect = SqliteConnectOptions::new().filename(file).create_if_missing(true);
        Self::open_with(connect, &StoreOptions::new()).await
    }
}

/// How long a connection waits for the write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
/// After how many instructions of SQLite's a statement asks whether to go on.
const INSTRUCTIONS: i32 = 10_000;

/// What time it is; only here a statement of its own.
const NOW: &str = include_str!("../sql/sqlite/clock/now.sql");

#[allow(private_interfaces, reason = "sealed: nobody else implements or calls it")]
impl Dialect for Sqlite {
    type Db = sqlx_sqlite::Sqlite;

    const FILES: Files = files!(
        "sqlite",
        shortcuts: None,
        migrations: ["0001_outbox", "0002_joins", "0003_inbox", "0004_pause", "0005_lease", "0006_walk", "0007_crash", "0008_open", "0009_failing", "0010_cursor", "0011_waiting"],
        routines: []
    );
    const SCHEMES: &'static [&'static str] = &["sqlite"];
    const URL_OPTIONS: &'static [&'static str] = &["mode", "cache", "immutable", "vfs"];
    const QUOTE: char = '"';
    const DEFAULT_SCHEMA: Option<&'static str> = None;
    const DEFAULT_PREFIX: &'static str = "posthaste_";
    const BEGIN: &'static str = "BEGIN IMMEDIATE";
    const BEGIN_READ: &'static str = "BEGIN";
    const IS_REMOTE: bool = false;
    const BEGIN_USER: &'static str = Self::BEGIN;
    // 23 values a row, of 32,766 that a statement may have.
    const MAX_INSERT_BYTES: usize = 256 << 20;

    fn judge(error: &dyn DatabaseError) -> Verdict {
        let code: i32 = error.code().unwrap_or(Cow::Borrowed("")).parse().unwrap_or_default();
        match (code & 0xff, code) {
            // The snapshot is older than another's write: only a new transaction can go on.
            (_, 517) => Verdict::new(ErrorKind::Conflict).or(WRITE_FIRST),
            (5 | 6, _) => Verdict::new(ErrorKind::Busy).or(WRITE_FIRST),
            (9, _) => Verdict::new(ErrorKind::Busy).or(TOOK_TOO_LONG),
            (13, _) => Verdict::new(ErrorKind::Full),
            (3 | 8 | 23, _) => {
                Verdict::new(ErrorKind::Permission).or("check the file's and its folder's permissions")
            }
            (14, _) => Verdict::new(ErrorKind::Configuration).or(NO_FILE),
            (10, _) => Verdict::new(ErrorKind::Unavailable),
            (18, _) => Verdict::new(ErrorKind::InvalidInput).or("make the payload smaller"),
            (26, _) => {
                Verdict::new(ErrorKind::Configuration).or("the file is no SQLite database: name another")
            }
            (1, _) if error.message().starts_with("no such table") => Verdict::new(ErrorKind::SchemaMissing),
            (1, _) if error.message().starts_with("no such index") => Verdict::new(ErrorKind::SchemaMissing),
            (1, _) if error.message().starts_with("no such column") => Verdict::new(ErrorKind::SchemaMissing),
            _ => Verdict::new(ErrorKind::Database),
        }
    }

    fn check_naming(naming: &Naming) -> Result<()> {
        match &naming.schema {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::Configuration, "SQLite has no schemas")
                .with_remedy("leave the schema out, and use the table prefix")),
        }
    }

    fn check_options(options: &SqliteConnectOptions) -> Result<()> {
        let file = options.get_filename().to_string_lossy();
        if !file.is_empty() && file != ":memory:" && !file.contains("sqlx-in-memory") {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Configuration, "a database in memory is another one for every connection")
            .during("connect")
            .with_remedy("name a file, or use MemoryStore"))
    }

    fn endpoint(options: &SqliteConnectOptions) -> String {
        format!("sqlite {}", options.get_filename().display())
    }

    /// The answer is the file's path; one file may have many.
    fn place(file: String) -> io::Result<Option<String>> {
        if file.is_empty() { Ok(None) } else { open_file::id_of(Path::new(&file)).map(Some) }
    }

    fn file(options: &SqliteConnectOptions) -> Option<PathBuf> {
        // As SQLite does when it opens the file: a later change of the current folder does not matter.
        std::path::absolute(options.get_filename()).ok()
    }

    fn own_connections(
        options: SqliteConnectOptions,
        pool: PoolOptions<Self::Db>,
        _: Duration,
    ) -> (SqliteConnectOptions, PoolOptions<Self::Db>) {
        let options = options
            .journal_mode(SqliteJournalMode::Wal)
            // What was committed is kept through a power failure, too.
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(BUSY_TIMEOUT)
            .disable_statement_logging();
        // There is one write lock, and waiting for it in SQLite is by polling: our own queue for it is fair.
        (options, pool.max_connections(1))
    }

    fn limit_statements(
        options: SqliteConnectOptions,
        pool: PoolOptions<Self::Db>,
        timeout: Duration,
        interrupt: &Interrupt,
    ) -> (SqliteConnectOptions, PoolOptions<Self::Db>) {
        let interrupt = interrupt.clone();
        let pool = pool.after_connect(move |connection, _| {
            let interrupt = interrupt.clone();
            Box::pin(async move {
                let goes_on = move || !interrupt.has_begun();
                connection.lock_handle().await?.set_progress_handler(INSTRUCTIONS, goes_on);
                Ok(())
            })
        });
        (options.busy_timeout(timeout.min(BUSY_TIMEOUT)), pool)
    }

    fn user_connections(options: SqliteConnectOptions) -> SqliteConnectOptions {
        // The store itself writes, too, and is waited for.
        options.busy_timeout(BUSY_TIMEOUT)
    }

    const CHECKS: &'static [Check] = examine::sqlite::CHECKS;
    // Its settings are those of each connection: ours are what counts.
    const EXAMINED: Whose = Whose::Ours;

    fn look_around(options: &SqliteConnectOptions) -> Vec<Finding> {
        vec![examine::sqlite::file(options.get_filename())]
    }

    sends!(SqliteConnection, SqliteRow);

    async fn insert(
        connection: &mut SqliteConnection,
        statements: &Statements,
        messages: &[NewMessage],
        birth: Birth<'_>,
    ) -> Result<Result<Vec<Enqueued>>, SqlxError> {
        let sql = Statement::new(json::repeat_rows(statements.enqueue.as_str(), messages.len()));
        let rows =
            query_with_result(sql.sql(), insert_args(messages, birth)).fetch_all(&mut *connection).await?;
        let mut stored = Vec::with_capacity(rows.len());
        for row in &rows {
            let epoch: i32 = row.try_get_unchecked(2)?;
            let lease = Lease { item: WorkItemId::new(row.try_get_unchecked(1)?), epoch };
            stored.push((id_of(&row.try_get_unchecked::<Vec<u8>, _>(0)?)?, (epoch > 0).then_some(lease)));
        }
        let twins = if stored.len() == messages.len() {
            Vec::new()
        } else {
            let mut args = SqliteArguments::default();
            let ids = json::ids_of(messages.iter().map(NewMessage::id));
            args.add(ids).and_then(|()| args.add(json::hashes_of(messages))).map_err(SqlxError::Encode)?;
            let rows = query_with(statements.duplicates.sql(), args).fetch_all(connection).await?;
            let twin = |row: &SqliteRow| {
                Ok((id_of(&row.try_get_unchecked::<Vec<u8>, _>(0)?)?, row.try_get_unchecked(1)?))
            };
            rows.iter().map(twin).collect::<Result<Vec<_>, SqlxError>>()?
        };
        Ok(answers(messages, &stored, &twins))
    }

    fn insert_rows(left: usize) -> usize {
        json::insert_rows(left)
    }

    /// A dedup key may need a second look, for which the write lock must still be held.
    fn insert_is_long(_messages: &[NewMessage]) -> bool {
        true
    }

    async fn settle(
        connection: &mut SqliteConnection,
        statements: &Statements,
        settlements: &[&Settlement],
        keep_done: bool,
        _passes_locked: bool,
    ) -> Result<Vec<SqliteRow>, SqlxError> {
        let mut args = SqliteArguments::default();
        args.add(json::settlements(settlements))
            .and_then(|()| args.add(keep_done))
            .map_err(SqlxError::Encode)?;
        counting(connection, statements, &statements.settle, args).await
    }

    async fn sweep(
        connection: &mut SqliteConnection,
        statements: &Statements,
        statement: &Statement,
        args: &[Arg<'_>],
    ) -> Result<Vec<SqliteRow>, SqlxError> {
        counting(connection, statements, statement, bind(args).map_err(SqlxError::Encode)?).await
    }

    async fn renew(
        connection: &mut SqliteConnection,
        statement: &Statement,
        leases: &[&Lease],
        lease: Duration,
    ) -> Result<Vec<SqliteRow>, SqlxError> {
        let mut args = SqliteArguments::default();
        args.add(json::leases(leases.iter().copied()))
            .and_then(|()| args.add(span_micros(lease)))
            .map_err(SqlxError::Encode)?;
        in_transaction(connection, statement, args).await
    }

    async fn holder(
        options: &SqliteConnectOptions,
        naming: &Naming,
        id: MessageId,
    ) -> Result<Option<Holder>, SqlxError> {
        holder::sqlite::find(options, naming, id).await
    }

    fn writer(options: &SqliteConnectOptions) -> Option<Holder> {
        holder::sqlite::writer(options.get_filename())
    }

    fn print(script: &Script) -> String {
        let text = script.print(&setup(script), str::to_owned, &record(script));
        format!("begin immediate;\n\n{text}\ncommit;\n")
    }

    async fn migrate(options: &SqliteConnectOptions, script: &Script) -> Result<Result<u32>, SqlxError> {
        // Other migrations are waited for.
        let options = options.clone().busy_timeout(Duration::from_secs(60));
        let mut connection = SqliteConnection::connect_with(&options).await?;
        let mut tx = connection.begin_with(Self::BEGIN).await?;
        Self::run_script(&mut tx, &setup(script)).await?;
        let select = Statement::new(format!("select version from {}", script.naming.full("outbox_version")));
        let rows = Self::fetch(&mut tx, &select, &[]).await?;
        let found: i32 = rows.first().map_or(Ok(0), |row| row.try_get_unchecked(0))?;
        let missing = match script.missing(u32::try_from(found).unwrap_or_default()) {
            Ok(missing) => missing,
            Err(error) => return Ok(Err(error)),
        };
        for (_, sql) in missing {
            Self::run_script(&mut tx, sql).await?;
        }
        if !missing.is_empty() {
            Self::run_script(&mut tx, &record(script)).await?;
        }
        tx.commit().await?;
        connection.close().await?;
        Ok(Ok(script.version()))
    }
}

async fn in_transaction(
    connection: &mut SqliteConnection,
    statement: &Statement,
    args: SqliteArguments,
) -> Result<Vec<SqliteRow>, SqlxError> {
    let mut tx = connection.begin_with(Sqlite::BEGIN).await?;
    let rows = query_with(statement.sql(), args).fetch_all(&mut *tx).await?;
    tx.commit().await?;
    Ok(rows)
}

/// Runs a statement that ends messages, and counts in the same transaction what became of them in their joins. Its last
/// value is what time it is.
///
/// Beside its answers the statement gives, if there are any joins, a row of two columns for each message: its id and what
/// became of it; or it has that in its answers: whether the message is dead in column 6, and its id in column 7.
async fn counting(
    connection: &mut SqliteConnection,
    statements: &Statements,
    statement: &Statement,
    mut args: SqliteArguments,
) -> Result<Vec<SqliteRow>, SqlxError> {
    let mut tx = connection.begin_with(Sqlite::BEGIN).await?;
    // Each statement here has a time of its own; what happens in one transaction happens at one.
    let clock = Sqlite::fetch(&mut tx, &Statement::new(NOW.to_owned()), &[]).await?;
    let now: i64 = clock.first().ok_or(SqlxError::RowNotFound)?.try_get_unchecked(0)?;
    args.add(now).map_err(SqlxError::Encode)?;
    let rows = query_with(statement.sql(), args).fetch_all(&mut *tx).await?;
    let (mut ended, mut answers) = (Vec::new(), Vec::new());
    for row in rows {
        let id = |column: usize| id_of(&row.try_get_unchecked::<Vec<u8>, _>(column)?);
        match row.len() {
            2 => {
                ended.push((id(0)?, row.try_get_unchecked(1)?));
                continue;
            }
            8 if row.try_get_unchecked(6)? => ended.push((id(7)?, StepStatus::Failed.code())),
            _ => {}
        }
        answers.push(row);
    }
    if !ended.is_empty() {
        answers.extend(Sqlite::fetch(&mut tx, &statements.count, &[Arg::Ends(&ended), Arg::int(now)]).await?);
    }
    tx.commit().await?;
    Ok(answers)
}

/// Creates the table of the version.
pub(crate) fn setup(script: &Script) -> String {
    let table = script.naming.full("outbox_version");
    format!("create table if not exists {table} (version integer not null);")
}

/// Writes the version down.
pub(crate) fn record(script: &Script) -> String {
    let table = script.naming.full("outbox_version");
    format!("delete from {table};\ninsert into {table} (version) values ({});", script.version())
}

fn bind(args: &[Arg<'_>]) -> Result<SqliteArguments, BoxDynError> {
    let mut bound = SqliteArguments::default();
    for arg in args {
        match arg {
            Arg::Int(value) => bound.add(value),
            Arg::Small(value) => bound.add(value.map(i64::from)),
            Arg::Bool(value) => bound.add(value),
            Arg::Text(value) => bound.add(value.map(str::to_owned)),
            Arg::Bytes(value) => bound.add(value.map(<[u8]>::to_vec)),
            Arg::Span(span) => bound.add(span_micros(*span)),
            Arg::Id(id) => bound.add(id.map(|id| id.as_bytes().to_vec())),
            Arg::Ints(_) | Arg::Texts(_) | Arg::Ids(_) | Arg::Leases(_) | Arg::Ends(_) => {
                bound.add(json::list(arg))
            }
        }?;
    }
    Ok(bound)
}

fn insert_args(messages: &[NewMessage], birth: Birth<'_>) -> Result<SqliteArguments, BoxDynError> {
    let mut args = SqliteArguments::default();
    json::bind_rows!(args, messages, birth);
    Ok(args)
}

columns!(SqliteRow {
    fn opt_text(&self, column: usize) -> Result<Option<String>> {
        read(self.try_get_unchecked(column))
    }

    fn id(&self, column: usize) -> Result<MessageId> {
        read(self.try_get_unchecked(column).and_then(|bytes: Vec<u8>| id_of(&bytes)))
    }

    fn opt_time(&self, column: usize) -> Result<Option<SystemTime>> {
        let stored: Option<i64> = read(self.try_get_unchecked(column))?;
        Ok(stored.map(from_micros))
    }
});
