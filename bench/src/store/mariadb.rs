//! MariaDB, or MySQL: databases made and dropped, and what its status tells.
//!
//! Its counters are the server's, not the database's: they include other clients' work.

use posthaste::{MySqlStore, StoreOptions};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use std::collections::BTreeSet;
use std::sync::Mutex;

use super::{Product, Result};
use crate::meter::{self, Reading};

/// A server of MariaDB.
pub(crate) struct Mariadb {
    home: MySqlConnectOptions,
    url: String,
    /// Databases that were created and not dropped yet, in case the run is stopped.
    open: Mutex<BTreeSet<String>>,
}

impl Mariadb {
    /// By the URL of any database in it.
    pub(crate) fn new(url: &str) -> Result<Self> {
        Ok(Self { home: Self::options(url)?, url: url.to_owned(), open: Mutex::default() })
    }

    async fn at_home(&self, sql: String) -> Result {
        let mut connection = self.home.connect().await?;
        connection.execute(AssertSqlSafe(sql)).await?;
        Ok(connection.close().await?)
    }
}

impl Product for Mariadb {
    type Db = sqlx::MySql;
    type Store = MySqlStore;

    const NAME: &'static str = "mariadb";
    const BEGIN: &'static str = "begin";
    const TABLES: &'static str = include_str!("../../sql/mariadb/tables.sql");
    const NOTE: &'static str = "insert into business (note) values (?)";
    const BARE: &'static str = "insert into bare (payload) values (?)";
    const OFFERED: u64 = 500;

    async fn version(&self) -> Result<String> {
        let mut connection = self.home.connect().await?;
        let version: String = sqlx::query_scalar("select version()").fetch_one(&mut connection).await?;
        connection.close().await?;
        let name = if version.contains("Maria") { "MariaDB" } else { "MySQL" };
        Ok(format!("{name} {version}"))
    }

    async fn create(&self, name: &str) -> Result {
        super::lock(&self.open).insert(name.to_owned());
        self.at_home(format!("create database {name} character set utf8mb4")).await
    }

    async fn finish(&self) -> Result {
        let left = super::lock(&self.open).clone();
        for name in &left {
            // One that could not be made cannot be dropped.
            let _ = self.discard(name).await;
        }
        Ok(())
    }

    async fn discard(&self, name: &str) -> Result {
        self.at_home(format!("drop database {name}")).await?;
        super::lock(&self.open).remove(name);
        Ok(())
    }

    fn url(&self, name: &str) -> String {
        super::with_database(&self.url, name)
    }

    fn options(url: &str) -> Result<MySqlConnectOptions> {
        Ok(url.parse::<MySqlConnectOptions>()?.disable_statement_logging())
    }

    async fn open(url: &str, options: &StoreOptions) -> Result<MySqlStore> {
        Ok(MySqlStore::connect_with(url, options).await?)
    }

    async fn migrate(store: &MySqlStore) -> Result {
        store.migrate().await?;
        Ok(())
    }

    async fn close(store: &MySqlStore) {
        store.close().await;
    }

    async fn run(connection: &mut MySqlConnection, sql: &'static str, text: &str) -> Result {
        sqlx::query(sql).bind(text).execute(connection).await?;
        Ok(())
    }

    async fn batch(connection: &mut MySqlConnection, sql: &'static str) -> Result {
        connection.execute(sqlx::raw_sql(sql)).await?;
        Ok(())
    }

    async fn checkpoint(_: &mut MySqlConnection) -> Result {
        // It has no such statement; its pages are written all the time.
        Ok(())
    }

    async fn analyze(connection: &mut MySqlConnection) -> Result {
        let tables = "select table_name from information_schema.tables where table_schema = database()";
        for table in sqlx::query_scalar::<_, String>(tables).fetch_all(&mut *connection).await? {
            sqlx::query(AssertSqlSafe(format!("analyze table `{table}`")))
                .fetch_all(&mut *connection)
                .await?;
        }
        Ok(())
    }

    async fn early(connection: &mut MySqlConnection) -> Result<Reading> {
        let rows = sqlx::query(include_str!("../../sql/mariadb/status.sql")).fetch_all(connection).await?;
        let mut reading = Reading::new();
        for row in rows {
            let name = match row.try_get::<String, _>(0)?.to_uppercase().as_str() {
                "INNODB_OS_LOG_WRITTEN" => "wal_bytes",
                "INNODB_BUFFER_POOL_READ_REQUESTS" => "blocks",
                "COM_COMMIT" => "transactions",
                _ => "statements",
            };
            reading.insert(name, row.try_get(1)?);
        }
        // A server on another machine has none of these processes here.
        if let Some(seconds) = meter::only_process(&["mariadbd", "mysqld"]).and_then(meter::family_cpu) {
            reading.insert("server_cpu_us", seconds * 1e6);
        }
        Ok(reading)
    }

    async fn late(_: &mut MySqlConnection) -> Result<Reading> {
        Ok(Reading::new())
    }

    async fn hold(connection: &mut MySqlConnection) -> Result {
        connection.execute("start transaction with consistent snapshot").await?;
        connection.execute("insert into business (note) values ('held')").await?;
        Ok(())
    }
}
