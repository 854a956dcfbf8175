//! PostgreSQL: databases made and dropped, and what its statistics tell.
//!
//! It never reads another database than its own fresh one, apart from the counters that the server shares.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use posthaste::{PgStore, StoreOptions};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

use super::{Product, Result};
use crate::meter::{self, Reading};

/// How long servers may take to count for good what ended connections did.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server of PostgreSQL.
pub(crate) struct Postgres {
    home: PgConnectOptions,
    url: String,
    /// Databases that were created and not dropped yet, in case the run is stopped.
    open: Mutex<BTreeSet<String>>,
    /// The template of every database: creating the tables each time takes longer than most measurements.
    template: OnceCell<String>,
}

/// Without encryption, unless the URL says otherwise: not every subject can do it, and it would cost the others a core.
fn in_the_clear(url: &str) -> String {
    if url.contains("sslmode=") {
        return url.to_owned();
    }
    format!("{url}{}sslmode=disable", if url.contains('?') { '&' } else { '?' })
}

impl Postgres {
    /// By the URL of any database in it.
    pub(crate) fn new(url: &str) -> Result<Self> {
        let url = in_the_clear(url);
        Ok(Self { home: Self::options(&url)?, url, open: Mutex::default(), template: OnceCell::new() })
    }

    async fn template(&self) -> Result<String> {
        let name = format!("bench_{:012x}", fastrand::u64(..1 << 48));
        self.at_home(format!("create database {name}")).await?;
        let mut connection = Self::options(&self.url(&name))?.connect().await?;
        Self::batch(&mut connection, Self::TABLES).await?;
        // Where it is not loaded, statements are not counted.
        let _ = connection.execute("create extension if not exists pg_stat_statements").await;
        connection.close().await?;
        let store = PgStore::connect(&self.url(&name)).await?;
        store.migrate().await?;
        store.close().await;
        Ok(name)
    }

    async fn at_home(&self, sql: String) -> Result {
        let mut connection = self.home.connect().await?;
        connection.execute(AssertSqlSafe(sql)).await?;
        Ok(connection.close().await?)
    }
}

impl Product for Postgres {
    type Db = sqlx::Postgres;
    type Store = PgStore;

    const NAME: &'static str = "postgres";
    const BEGIN: &'static str = "begin";
    const TABLES: &'static str = include_str!("../../sql/postgres/tables.sql");
    const NOTE: &'static str = "insert into business (note) values ($1)";
    const BARE: &'static str = "insert into bare (payload) values ($1)";
    const DESTROY: Option<&'static str> = Some(include_str!("../../sql/postgres/destroy.sql"));
    const IDLE_CLAIM: Option<&'static str> =
        Some("begin; select count(*) from posthaste.claim('idle', 10, interval '1 hour')");
    const TEMPLATE: bool = true;
    const COPIES: bool = true;
    const OFFERED: u64 = 2_000;

    async fn version(&self) -> Result<String> {
        let mut connection = self.home.connect().await?;
        let version: String = sqlx::query_scalar("show server_version").fetch_one(&mut connection).await?;
        connection.close().await?;
        Ok(format!("PostgreSQL {version}"))
    }

    async fn create(&self, name: &str) -> Result {
        super::lock(&self.open).insert(name.to_owned());
        let template = self.template.get_or_try_init(|| self.template()).await?;
        self.at_home(format!("create database {name} template {template}")).await
    }

    async fn finish(&self) -> Result {
        let left = super::lock(&self.open).clone();
        for name in &left {
            // One that could not be made cannot be dropped.
            let _ = self.discard(name).await;
        }
        match self.template.get() {
            Some(template) => self.discard(template).await,
            None => Ok(()),
        }
    }

    async fn discard(&self, name: &str) -> Result {
        self.at_home(format!("drop database {name} with (force)")).await?;
        super::lock(&self.open).remove(name);
        Ok(())
    }

    fn url(&self, name: &str) -> String {
        super::with_database(&self.url, name)
    }

    fn options(url: &str) -> Result<PgConnectOptions> {
        Ok(url.parse::<PgConnectOptions>()?.disable_statement_logging())
    }

    async fn open(url: &str, options: &StoreOptions) -> Result<PgStore> {
        Ok(PgStore::connect_with(url, options).await?)
    }

    async fn migrate(store: &PgStore) -> Result {
        store.migrate().await?;
        Ok(())
    }

    async fn close(store: &PgStore) {
        store.close().await;
    }

    async fn run(connection: &mut PgConnection, sql: &'static str, text: &str) -> Result {
        sqlx::query(sql).bind(text).execute(connection).await?;
        Ok(())
    }

    async fn batch(connection: &mut PgConnection, sql: &'static str) -> Result {
        connection.execute(sqlx::raw_sql(sql)).await?;
        Ok(())
    }

    async fn checkpoint(connection: &mut PgConnection) -> Result {
        // Without the right to do it, measurements go on, with more noise from full-page writes in the WAL.
        let _ = connection.execute("checkpoint").await;
        Ok(())
    }

    async fn analyze(connection: &mut PgConnection) -> Result {
        let filled = include_str!("../../sql/postgres/filled.sql");
        for table in sqlx::query_scalar::<_, String>(filled).fetch_all(&mut *connection).await? {
            connection.execute(AssertSqlSafe(format!("vacuum analyze {table}"))).await?;
        }
        Ok(())
    }

    async fn early(connection: &mut PgConnection) -> Result<Reading> {
        let row = sqlx::query(include_str!("../../sql/postgres/early.sql")).fetch_one(connection).await?;
        let mut reading =
            Reading::from([("wal_bytes", row.try_get(0)?), ("foreign_transactions", row.try_get(1)?)]);
        // A server on another machine has no processes here, and a process of the same number would be unrelated.
        let process = u32::try_from(row.try_get::<i32, _>(2)?)?;
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        if name.trim() == "postgres"
            && let Some(seconds) = meter::parent(process).and_then(meter::family_cpu)
        {
            reading.insert("server_cpu_us", seconds * 1e6);
        }
        Ok(reading)
    }

    async fn late(connection: &mut PgConnection) -> Result<Reading> {
        let begin = Instant::now();
        let others = include_str!("../../sql/postgres/others.sql");
        while sqlx::query_scalar::<_, i64>(others).fetch_one(&mut *connection).await? > 0
            && begin.elapsed() < PATIENCE
        {
            sleep(Duration::from_millis(20)).await;
        }
        let statements = include_str!("../../sql/postgres/statements.sql");
        let statements = sqlx::query_scalar::<_, f64>(statements).fetch_one(&mut *connection).await;
        let row = sqlx::query(include_str!("../../sql/postgres/late.sql")).fetch_one(connection).await?;
        let (updated, deleted, hot): (f64, f64, f64) = (row.try_get(2)?, row.try_get(3)?, row.try_get(4)?);
        let mut reading = Reading::from([
            ("transactions", row.try_get(0)?),
            ("blocks", row.try_get(1)?),
            ("updates", updated),
            ("hot_updates", hot),
            ("deletes", deleted),
            // The next reader of a page removes heap-only updates from it.
            ("dead_tuples", updated + deleted - hot),
        ]);
        reading.extend(statements.ok().map(|statements| ("statements", statements)));
        Ok(reading)
    }

    async fn bare_many(connection: &mut PgConnection, payloads: &[String]) -> Result {
        let insert = "insert into bare (payload) select unnest($1::text[])";
        sqlx::query(insert).bind(payloads).execute(connection).await?;
        Ok(())
    }

    /// All columns are copied, except those that the database numbers itself.
    async fn copy(connection: &mut PgConnection, messages: u64, done: bool) -> Result {
        let copy: String = sqlx::query_scalar(include_str!("../../sql/postgres/copy.sql"))
            .fetch_one(&mut *connection)
            .await?;
        let copied = sqlx::query(AssertSqlSafe(copy))
            .bind(i64::try_from(messages)?)
            .bind(if done { 2_i16 } else { 0 })
            .execute(connection)
            .await?;
        if copied.rows_affected() == messages {
            return Ok(());
        }
        Err(format!("{} of {messages} messages were copied", copied.rows_affected()).into())
    }

    async fn fill_bare(connection: &mut PgConnection, messages: u64, payload: &str) -> Result {
        let fill = "insert into bare (payload) select $1 from generate_series(1, $2::bigint)";
        sqlx::query(fill).bind(payload).bind(i64::try_from(messages)?).execute(connection).await?;
        Ok(())
    }

    async fn fetch(connection: &mut PgConnection, sql: &'static str) -> Result<u64> {
        let rows = sqlx::query(sql).fetch_all(connection).await?;
        // As a reader would: the payload is looked at.
        for row in &rows {
            std::hint::black_box(row.try_get::<&str, _>(0)?);
        }
        Ok(rows.len() as u64)
    }

    async fn hold(connection: &mut PgConnection) -> Result {
        connection.execute("begin isolation level repeatable read").await?;
        connection.execute("insert into business (note) values ('held')").await?;
        Ok(())
    }
}
