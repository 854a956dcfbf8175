//! Who locks a row in MySQL and MariaDB. A lock says who holds it only to those who see somebody wait for it: so one connection waits,
//! for a second, and another one looks.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::{Holder, MessageId};
use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_core::row::Row as _;
use sqlx_mysql::{MySqlConnectOptions, MySqlConnection};

use super::{holder, somebody};
use crate::arg::Arg;
use crate::dialect::Dialect as _;
use crate::mysql::{MySql, number};
use crate::naming::Naming;
use crate::row::Columns as _;
use crate::sql::Statement;

const ROW: &str = include_str!("../../sql/mysql/holder/row.sql");
const FREE: &str = include_str!("../../sql/mysql/holder/free.sql");
const THERE: &str = include_str!("../../sql/mysql/holder/there.sql");
const PATIENCE: &str = include_str!("../../sql/mysql/holder/patience.sql");
const WAIT: &str = include_str!("../../sql/mysql/holder/wait.sql");
const WAITED_FOR_MARIADB: &str = include_str!("../../sql/mysql/holder/waited_for_mariadb.sql");
const WAITED_FOR_MYSQL: &str = include_str!("../../sql/mysql/holder/waited_for_mysql.sql");

/// What the server tells about locks is as old as this, at most.
const LOOK_AGAIN: Duration = Duration::from_millis(120);
const LOCK_WAIT_TIMEOUT: u16 = 1205;

pub(crate) async fn find(
    options: &MySqlConnectOptions,
    naming: &Naming,
    id: MessageId,
) -> Result<Option<Holder>, SqlxError> {
    let mut connection = MySqlConnection::connect_with(options).await?;
    let row = fetch(&mut connection, naming, ROW, &[Arg::Id(Some(id.as_uuid()))]).await?;
    let Some(row) = row.first() else { return Ok(None) };
    let (seq, waiting): (i64, i64) = (row.try_get_unchecked(0)?, row.try_get_unchecked(1)?);
    let is_mariadb = row.try_get_unchecked::<String, _>(2)?.contains("MariaDB");
    let mut tx = connection.begin().await?;
    let free = fetch(&mut tx, naming, FREE, &[Arg::text(&format!("[{seq}]"))]).await?;
    tx.rollback().await?;
    if !free.is_empty() {
        return Ok(None);
    }
    let mut beside = MySqlConnection::connect_with(options).await?;
    let is_over = AtomicBool::new(false);
    let wait = async {
        let got = wait(&mut connection, naming, seq).await;
        is_over.store(true, Ordering::Release);
        got
    };
    let waited_for = if is_mariadb { WAITED_FOR_MARIADB } else { WAITED_FOR_MYSQL };
    let (got, found) = tokio::join!(wait, look(&mut beside, naming, waited_for, waiting, &is_over));
    connection.close().await?;
    beside.close().await?;
    match (found, got?) {
        // Looking at the locks of others takes a right of its own.
        (Err(SqlxError::Database(_)) | Ok(None), false) => Ok(Some(somebody())),
        (Err(SqlxError::Database(_)) | Ok(None), true) => Ok(None),
        (found, _) => found,
    }
}

/// Waits for the row; true if it came free, and was given back.
async fn wait(connection: &mut MySqlConnection, naming: &Naming, seq: i64) -> Result<bool, SqlxError> {
    MySql::execute(connection, &Statement::new(naming.render(PATIENCE)), &[]).await?;
    let mut tx = connection.begin().await?;
    let got = fetch(&mut tx, naming, WAIT, &[Arg::int(seq)]).await;
    tx.rollback().await?;
    match got {
        Ok(_) => Ok(true),
        Err(SqlxError::Database(error)) if number(error.as_ref()) == LOCK_WAIT_TIMEOUT => Ok(false),
        Err(error) => Err(error),
    }
}

/// Looks for whom the other connection waits, until it waits no more.
async fn look(
    connection: &mut MySqlConnection,
    naming: &Naming,
    waited_for: &str,
    waiting: i64,
    is_over: &AtomicBool,
) -> Result<Option<Holder>, SqlxError> {
    while !is_over.load(Ordering::Acquire) {
        let rows = fetch(connection, naming, waited_for, &[Arg::int(waiting)]).await?;
        if let Some(row) = rows.first() {
            let text = |column: usize| row.try_get_unchecked::<Option<String>, _>(column);
            let about = [("user", text(1)?), ("from", text(2)?), ("which is in", text(3)?)];
            let session = text(0)?.map_or_else(|| "unknown".to_owned(), |id| format!("connection {id}"));
            return Ok(Some(holder(session, &about, row.opt_time(4).unwrap_or_default())));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Ok(None)
}

/// Which of these messages no other session has locked. One that is gone is not locked.
pub(crate) async fn unlocked(
    connection: &mut MySqlConnection,
    naming: &Naming,
    items: &[i64],
) -> Result<HashSet<i64>, SqlxError> {
    let all = serde_json::json!(items).to_string();
    let args = [Arg::text(&all)];
    let mut unlocked: HashSet<i64> = items.iter().copied().collect();
    for row in fetch(connection, naming, THERE, &args).await? {
        unlocked.remove(&row.try_get_unchecked::<i64, _>(0)?);
    }
    for row in fetch(connection, naming, FREE, &args).await? {
        unlocked.insert(row.try_get_unchecked::<i64, _>(0)?);
    }
    Ok(unlocked)
}

async fn fetch(
    connection: &mut MySqlConnection,
    naming: &Naming,
    sql: &str,
    args: &[Arg<'_>],
) -> Result<Vec<sqlx_mysql::MySqlRow>, SqlxError> {
    MySql::fetch(connection, &Statement::new(naming.render(sql)), args).await
}
