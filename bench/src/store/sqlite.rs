//! SQLite: a file in a temporary folder for every repetition.
//!
//! The database runs in this process, so its work is in the client's CPU time; its WAL is the file beside it.

use std::path::PathBuf;

use posthaste::{SqliteStore, StoreOptions};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{ConnectOptions as _, Connection as _, Executor as _};
use tempfile::TempDir;

use super::{Product, Result};
use crate::meter::Reading;

/// A folder for files of SQLite.
pub(crate) struct Sqlite {
    folder: TempDir,
}

impl Sqlite {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { folder: tempfile::Builder::new().prefix("posthaste-bench-").tempdir()? })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.db"))
    }
}

impl Product for Sqlite {
    type Db = sqlx::Sqlite;
    type Store = SqliteStore;

    const NAME: &'static str = "sqlite";
    // There is one write lock; a transaction that asks for it only at its first write may be refused.
    const BEGIN: &'static str = "begin immediate";
    const TABLES: &'static str = include_str!("../../sql/sqlite/tables.sql");
    const NOTE: &'static str = "insert into business (note) values (?)";
    const BARE: &'static str = "insert into bare (payload) values (?)";
    const OFFERED: u64 = 500;

    async fn version(&self) -> Result<String> {
        let mut connection = SqliteConnection::connect("sqlite::memory:").await?;
        let version: String =
            sqlx::query_scalar("select sqlite_version()").fetch_one(&mut connection).await?;
        Ok(format!("SQLite {version}"))
    }

    async fn create(&self, name: &str) -> Result {
        let options = SqliteConnectOptions::new().filename(self.file(name)).create_if_missing(true);
        // A file that its pools find in this mode needs no change of it while others look on.
        let connection = options.journal_mode(SqliteJournalMode::Wal).connect().await?;
        Ok(connection.close().await?)
    }

    async fn discard(&self, name: &str) -> Result {
        for ending in ["", "-wal", "-shm"] {
            let mut file = self.file(name).into_os_string();
            file.push(ending);
            // The last connection takes two of them away itself.
            let _ = std::fs::remove_file(file);
        }
        Ok(())
    }

    fn url(&self, name: &str) -> String {
        format!("sqlite://{}", self.file(name).display())
    }

    fn options(url: &str) -> Result<SqliteConnectOptions> {
        let options = url.parse::<SqliteConnectOptions>()?;
        // As durable as the store's own connections.
        Ok(options
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(super::ACQUIRE)
            .disable_statement_logging())
    }

    async fn open(url: &str, options: &StoreOptions) -> Result<SqliteStore> {
        Ok(SqliteStore::connect_with(url, options).await?)
    }

    async fn migrate(store: &SqliteStore) -> Result {
        store.migrate().await?;
        Ok(())
    }

    async fn close(store: &SqliteStore) {
        store.close().await;
    }

    async fn run(connection: &mut SqliteConnection, sql: &'static str, text: &str) -> Result {
        sqlx::query(sql).bind(text).execute(connection).await?;
        Ok(())
    }

    async fn batch(connection: &mut SqliteConnection, sql: &'static str) -> Result {
        connection.execute(sqlx::raw_sql(sql)).await?;
        Ok(())
    }

    async fn checkpoint(connection: &mut SqliteConnection) -> Result {
        connection.execute("pragma wal_checkpoint(truncate)").await?;
        Ok(())
    }

    async fn analyze(connection: &mut SqliteConnection) -> Result {
        connection.execute("analyze").await?;
        Ok(())
    }

    async fn early(_: &mut SqliteConnection) -> Result<Reading> {
        Ok(Reading::new())
    }

    async fn late(_: &mut SqliteConnection) -> Result<Reading> {
        Ok(Reading::new())
    }

    async fn hold(connection: &mut SqliteConnection) -> Result {
        // A writer would keep all others out: it only reads.
        connection.execute("begin").await?;
        connection.execute("select count(*) from business").await?;
        Ok(())
    }
}
