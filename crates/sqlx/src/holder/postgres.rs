//! Who locks a row in PostgreSQL: the row names the transaction that locked it last, and the lock that every transaction has on its
//! own number names the session.

use std::time::Duration;

use posthaste_core::{Holder, LockWait, MessageId};
use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_core::row::Row as _;
use sqlx_postgres::{PgConnectOptions, PgConnection, PgRow};

use super::{holder, somebody};
use crate::arg::{Arg, from_micros};
use crate::dialect::Dialect as _;
use crate::naming::Naming;
use crate::postgres::Postgres;
use crate::row::Columns as _;
use crate::sql::Statement;

const LOCKED: &str = include_str!("../../sql/postgres/holder/locked.sql");
const SESSION: &str = include_str!("../../sql/postgres/holder/session.sql");
const WAITS: &str = include_str!("../../sql/postgres/holder/waits.sql");
const LOCK_NOT_AVAILABLE: &str = "55P03";

pub(crate) async fn find(
    options: &PgConnectOptions,
    naming: &Naming,
    id: MessageId,
) -> Result<Option<Holder>, SqlxError> {
    let mut connection = PgConnection::connect_with(options).await?;
    let found = ask(&mut connection, naming, id).await;
    connection.close().await?;
    found
}

async fn ask(
    connection: &mut PgConnection,
    naming: &Naming,
    id: MessageId,
) -> Result<Option<Holder>, SqlxError> {
    let args = [Arg::Id(Some(id.as_uuid()))];
    let mut tx = connection.begin().await?;
    let locked = Postgres::fetch(&mut tx, &Statement::new(naming.render(LOCKED)), &args).await;
    tx.rollback().await?;
    match locked {
        Ok(_) => return Ok(None),
        Err(SqlxError::Database(error)) if error.code().as_deref() == Some(LOCK_NOT_AVAILABLE) => {}
        Err(error) => return Err(error),
    }
    let rows = Postgres::fetch(connection, &Statement::new(naming.render(SESSION)), &args).await?;
    let Some(row) = rows.first() else { return Ok(Some(somebody())) };
    let text = |column: usize| row.try_get::<Option<String>, _>(column);
    let about = [("user", text(1)?), ("program", text(2)?), ("from", text(3)?), ("state", text(4)?)];
    let session = text(0)?.map_or_else(|| "unknown".to_owned(), |pid| format!("pid {pid}"));
    Ok(Some(holder(session, &about, row.opt_time(5).unwrap_or_default())))
}

pub(crate) async fn lock_waits(
    options: &PgConnectOptions,
    naming: &Naming,
) -> Result<Vec<LockWait>, SqlxError> {
    let mut connection = PgConnection::connect_with(options).await?;
    let args = [Arg::Text(naming.schema.as_deref()), Arg::text(&naming.prefix)];
    let rows = Postgres::fetch(&mut connection, &Statement::new(naming.render(WAITS)), &args).await;
    connection.close().await?;
    rows?.iter().filter_map(|row| lock_wait(row).transpose()).collect()
}

/// None for a session that nobody waits for.
fn lock_wait(row: &PgRow) -> Result<Option<LockWait>, SqlxError> {
    let text = |column: usize| row.try_get::<Option<String>, _>(column);
    let Some(waiter) = text(0)? else { return Ok(None) };
    let session = match text(4)?.as_deref() {
        Some("0") | None => "a prepared transaction".to_owned(),
        Some(pid) => format!("pid {pid}"),
    };
    let waited = text(3)?.and_then(|millis| millis.parse().ok()).unwrap_or_default();
    let since = text(9)?.and_then(|micros| micros.parse().ok()).map(from_micros);
    let about = [("user", text(5)?), ("program", text(6)?), ("from", text(7)?), ("state", text(8)?)];
    Ok(Some(LockWait {
        waiter: format!("pid {waiter}"),
        waited: Duration::from_millis(waited),
        holder: holder(session, &about, since),
    }))
}
