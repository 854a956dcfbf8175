//! Who locks a row in SQLite: there are no locks of rows, and one writer for the whole file, who has no name.

use std::time::Duration;

use posthaste_core::{ErrorKind, Holder, MessageId};
use sqlx_core::Error as SqlxError;
use sqlx_core::connection::Connection as _;
use sqlx_sqlite::{SqliteConnectOptions, SqliteConnection};

use super::holder;
use crate::arg::Arg;
use crate::dialect::Dialect as _;
use crate::naming::Naming;
use crate::sql::Statement;
use crate::sqlite::Sqlite;

const ROW: &str = include_str!("../../sql/sqlite/holder/row.sql");
/// Whoever only writes a message is gone by then.
const PATIENCE: Duration = Duration::from_millis(500);

pub(crate) async fn find(
    options: &SqliteConnectOptions,
    naming: &Naming,
    id: MessageId,
) -> Result<Option<Holder>, SqlxError> {
    let options = options.clone().busy_timeout(PATIENCE).create_if_missing(false);
    let mut connection = SqliteConnection::connect_with(&options).await?;
    let row = Statement::new(naming.render(ROW));
    let is_there = !Sqlite::fetch(&mut connection, &row, &[Arg::Id(Some(id.as_uuid()))]).await?.is_empty();
    let found = match connection.begin_with(Sqlite::BEGIN).await {
        Ok(tx) => {
            tx.rollback().await?;
            None
        }
        Err(SqlxError::Database(error)) if Sqlite::judge(error.as_ref()).kind == ErrorKind::Busy => {
            let session = "another connection that writes to the file".to_owned();
            is_there.then(|| holder(session, &[], None))
        }
        Err(error) => return Err(error),
    };
    connection.close().await?;
    Ok(found)
}
