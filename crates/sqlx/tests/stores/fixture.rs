//! Fresh, empty stores on the real databases: a schema of its own in PostgreSQL, a database of its own in MySQL and
//! MariaDB, a file of its own in SQLite.
//!
//! The servers are the ones that `cargo xtask test` or `cargo xtask servers` names, or the usual ones on this
//! machine.

use std::marker::PhantomData;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_core::{MessageId, Store as _, TransactionalStore, Uuid};
use posthaste_sqlx::{Dialect, MySql, Postgres, SqlStore, Sqlite, StoreOptions};
use posthaste_testkit::Fixture;
use sqlx_core::connection::Connection as _;
use sqlx_core::database::Database;
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::{Pool, PoolConnection, PoolOptions};
use sqlx_core::raw_sql::raw_sql;
use sqlx_core::row::Row as _;
use sqlx_core::sql_str::AssertSqlSafe;
use sqlx_core::transaction::Transaction;
use tempfile::TempDir;

pub type PgFixture = SqlFixture<Postgres>;
pub type MySqlFixture = SqlFixture<MySql>;
pub type SqliteFixture = SqlFixture<Sqlite>;

/// How long a store waits for a connection: the tests are about what happens, not about how soon on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// Options as they are by default, with patience.
fn patient() -> StoreOptions {
    StoreOptions::new().acquire_timeout(PATIENCE)
}

pub type Connection<D> = <<D as Dialect>::Db as Database>::Connection;

/// Operations that the tests need of a database beyond its store.
#[async_trait]
pub trait Backend: Dialect {
    /// As in `POSTHASTE_TEST_MISSING`.
    const NAME: &'static str;
    /// How the outbox table is called.
    const TABLE: &'static str;
    /// The times in tables that only this database has.
    const OWN_TIMES: &'static [(&'static str, &'static [&'static str])] = &[];

    /// Creates a place for a store: the URL, the options, and values that must live as long as it does.
    async fn make_room() -> (String, StoreOptions, Option<TempDir>);
    /// Takes it back.
    async fn take_back(url: &str, options: &StoreOptions);
    /// Runs SQL.
    async fn run(connection: &mut Connection<Self>, sql: String) -> Result<(), sqlx_core::Error>;
    /// The ids that a query answers with.
    async fn ids(connection: &mut Connection<Self>, sql: String) -> Vec<MessageId>;
    /// The texts that a query answers with, in one column.
    async fn texts(connection: &mut Connection<Self>, sql: String) -> Result<Vec<String>, sqlx_core::Error>;
    /// A time column moved into the past; a parked message's due time stays.
    fn earlier(column: &str, by: Duration) -> String;
    /// An id as a literal.
    fn literal(id: MessageId) -> String;
}

pub fn url_of(name: &str, default: &str) -> String {
    std::env::var(format!("POSTHASTE_TEST_{}", name.to_uppercase())).unwrap_or_else(|_| default.to_owned())
}

/// The URL of a connection that can be read on its way; the driver encrypts where the server would have it so.
pub fn in_the_clear(url: &str) -> String {
    let parameter = if url.starts_with("mysql") { "ssl-mode=disabled" } else { "sslmode=disable" };
    // In front of the existing options: some read their schema from the end.
    match url.split_once('?') {
        Some((address, rest)) => format!("{address}?{parameter}&{rest}"),
        None => format!("{url}?{parameter}"),
    }
}

pub fn is_missing(name: &str) -> bool {
    std::env::var("POSTHASTE_TEST_MISSING").is_ok_and(|missing| missing.split(',').any(|item| item == name))
}

pub fn unique() -> String {
    let random = Uuid::now_v7().simple().to_string();
    format!("t{}{}", &random[4..12], &random[20..])
}

/// Compares the text with the committed file of the crate. `POSTHASTE_UPDATE_DUMPS=1` writes the file.
pub fn is_committed(file: &Path, found: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    if std::env::var_os("POSTHASTE_UPDATE_DUMPS").is_some() {
        std::fs::write(&file, found).unwrap();
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    let different = found.lines().zip(committed.lines()).find(|(found, committed)| found != committed);
    assert_eq!(different, None, "left: found, committed; see {}", file.display());
    assert_eq!(found, committed, "see {}", file.display());
}

fn sql(text: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(text)
}

/// A connection of the store's own, with its settings; on PostgreSQL, statements of a test find the tables by their plain names.
pub async fn session<D: Backend>(store: &SqlStore<D>) -> PoolConnection<D::Db> {
    let mut session = store.pool().acquire().await.unwrap();
    if D::NAME == "postgres" {
        let name = store.name();
        let (schema, _) = name.rsplit(' ').next().unwrap().split_once('.').unwrap();
        D::run(&mut session, format!("set search_path = {schema}")).await.unwrap();
    }
    session
}

/// A store of its own, and a pool as an application would have one.
pub struct SqlFixture<D: Backend> {
    pub store: SqlStore<D>,
    pub url: String,
    pub options: StoreOptions,
    pub users: Pool<D::Db>,
    room: Option<TempDir>,
    dialect: PhantomData<D>,
}

impl<D: Backend> SqlFixture<D> {
    /// Room for a store, without any tables in it.
    pub async fn bare() -> Self {
        let (url, options, room) = D::make_room().await;
        let store = SqlStore::<D>::connect_with(&url, &options).await;
        let store = store.unwrap_or_else(|error| {
            panic!(
                "{error}\nThese tests need a running {}: use `cargo xtask test`, which brings one",
                D::NAME
            )
        });
        let users =
            PoolOptions::new().max_connections(24).acquire_timeout(PATIENCE).connect(&url).await.unwrap();
        Self { store, url, options, users, room, dialect: PhantomData }
    }

    /// The texts that a query answers with.
    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let mut connection = self.users.acquire().await.unwrap();
        D::texts(&mut connection, sql.to_owned()).await.unwrap()
    }

    /// Runs SQL on a connection that is not the store's.
    pub async fn run(&self, sql: String) {
        let mut connection = self.users.acquire().await.unwrap();
        D::run(&mut connection, sql).await.unwrap();
    }

    /// The same for a change of the whole table, which may deadlock with a store that is at work: then once more.
    async fn sweep(&self, sql: String) {
        let mut connection = self.users.acquire().await.unwrap();
        for tries_left in (0..20).rev() {
            match D::run(&mut connection, sql.clone()).await {
                Ok(()) => return,
                Err(error) => assert!(tries_left > 0 && error.to_string().contains("eadlock"), "{error}"),
            }
        }
    }
}

#[async_trait]
impl<D: Backend> Fixture for SqlFixture<D> {
    type Store = SqlStore<D>;
    type Transaction = Transaction<'static, D::Db>;

    fn available() -> bool {
        !is_missing(D::NAME)
    }

    async fn create() -> Self {
        let fixture = Self::bare().await;
        fixture.store.migrate().await.unwrap();
        fixture
    }

    fn store(&self) -> &Self::Store {
        &self.store
    }

    fn store_that_deletes(&self) -> Self::Store {
        self.store.keep_done(false)
    }

    async fn advance(&self, by: Duration) {
        let columns =
            ["created_at", "due_at", "leased_until", "expires_at", "occurred_at", "done_at", "failing_since"];
        let earlier = |columns: &[&str]| {
            let set = columns.iter().map(|column| format!("{column} = {}", D::earlier(column, by)));
            set.collect::<Vec<_>>().join(", ")
        };
        // Leases and messages at once, or a lease that is taken in between would be moved, and its message not.
        let own = D::OWN_TIMES.iter();
        let mut all: Vec<String> = own
            .map(|(table, columns)| format!("update {}_{table} set {}", D::TABLE, earlier(columns)))
            .collect();
        all.push(format!("update {} set {}", D::TABLE, earlier(&columns)));
        self.sweep(all.join("; ")).await;
        for (table, columns) in [
            ("history", &["at"][..]),
            ("job", &["at"]),
            ("join", &["created_at", "updated_at", "ended_at", "expires_at"]),
            ("join_member", &["created_at", "updated_at"]),
            ("join_wait", &["continued_at"]),
            ("inbox", &["occurred_at", "received_at"]),
            ("pause", &["since"]),
        ] {
            self.sweep(format!("update {}_{table} set {}", D::TABLE, earlier(columns))).await;
        }
    }

    async fn begin(&self) -> Self::Transaction {
        self.users.begin().await.unwrap()
    }

    fn connection<'a>(
        &self,
        tx: &'a mut Self::Transaction,
    ) -> &'a mut <Self::Store as TransactionalStore>::Connection {
        tx
    }

    async fn savepoint(&self, connection: &mut Connection<D>) {
        D::run(connection, "savepoint here".to_owned()).await.unwrap();
    }

    async fn rollback_to_savepoint(&self, connection: &mut Connection<D>) {
        D::run(connection, "rollback to savepoint here".to_owned()).await.unwrap();
    }

    async fn commit(&self, tx: Self::Transaction) {
        tx.commit().await.unwrap();
    }

    async fn rollback(&self, tx: Self::Transaction) {
        tx.rollback().await.unwrap();
    }

    async fn spoil(&self, id: MessageId) -> bool {
        let id = D::literal(id);
        self.run(format!("update {} set headers = 'no JSON' where message_id = {id}", D::TABLE)).await;
        true
    }

    async fn archived(&self) -> Vec<MessageId> {
        let mut connection = self.users.acquire().await.unwrap();
        D::ids(&mut connection, format!("select message_id from {}_archive order by seq", D::TABLE)).await
    }

    async fn clear(&self) {
        self.run(format!("delete from {}", D::TABLE)).await;
        let own = D::OWN_TIMES.iter().map(|(table, _)| *table);
        for table in
            ["history", "job", "join", "join_member", "join_wait", "inbox", "pause"].into_iter().chain(own)
        {
            self.run(format!("delete from {}_{table}", D::TABLE)).await;
        }
    }

    async fn destroy(self) {
        self.store.close().await;
        self.users.close().await;
        D::take_back(&self.url, &self.options).await;
        drop(self.room);
    }
}

/// The name that a fixture of PostgreSQL has put into its search path.
const PG_SCHEMA: &str = "options=-csearch_path%3D";

#[async_trait]
impl Backend for Postgres {
    const NAME: &'static str = "postgres";
    const TABLE: &'static str = "outbox";
    const OWN_TIMES: &'static [(&'static str, &'static [&'static str])] = &[("lease", &["leased_until"])];

    async fn make_room() -> (String, StoreOptions, Option<TempDir>) {
        let schema = unique();
        let url = url_of(Self::NAME, "postgres://postgres@127.0.0.1:5432/test");
        let separator = if url.contains('?') { '&' } else { '?' };
        (format!("{url}{separator}{PG_SCHEMA}{schema}"), patient().schema(schema), None)
    }

    async fn take_back(url: &str, _options: &StoreOptions) {
        let schema = url.rsplit("%3D").next().unwrap();
        let mut connection = sqlx_postgres::PgConnection::connect(url).await.unwrap();
        Self::run(&mut connection, format!("drop schema {schema} cascade")).await.unwrap();
    }

    async fn run(connection: &mut Connection<Self>, text: String) -> Result<(), sqlx_core::Error> {
        connection.execute(raw_sql(sql(text))).await.map(drop)
    }

    async fn ids(connection: &mut Connection<Self>, text: String) -> Vec<MessageId> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await.unwrap();
        rows.iter().map(|row| MessageId::from_uuid(row.get(0))).collect()
    }

    async fn texts(connection: &mut Connection<Self>, text: String) -> Result<Vec<String>, sqlx_core::Error> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await?;
        rows.iter().map(|row| row.try_get_unchecked(0)).collect()
    }

    fn earlier(column: &str, by: Duration) -> String {
        format!("{column} - interval '{} seconds'", by.as_secs())
    }

    fn literal(id: MessageId) -> String {
        format!("'{id}'")
    }
}

#[async_trait]
impl Backend for MySql {
    const NAME: &'static str = "mysql";
    const TABLE: &'static str = "posthaste_outbox";

    async fn make_room() -> (String, StoreOptions, Option<TempDir>) {
        let server = url_of(Self::NAME, "mysql://root@127.0.0.1:3306/test");
        let database = unique();
        let mut connection = sqlx_mysql::MySqlConnection::connect(&server).await.unwrap_or_else(|error| {
            panic!(
                "{error}\nThese tests need a running {}: use `cargo xtask test`, which brings one",
                Self::NAME
            )
        });
        // For the payloads of 16 MiB.
        Self::run(&mut connection, "set global max_allowed_packet = 67108864".to_owned()).await.unwrap();
        // Another character set than ours, as many servers have it: nothing of ours may depend on it.
        let create = format!("create database {database} character set latin1");
        Self::run(&mut connection, create).await.unwrap();
        let (base, _) = server.rsplit_once('/').unwrap();
        (format!("{base}/{database}"), patient(), None)
    }

    async fn take_back(url: &str, _options: &StoreOptions) {
        let database = url.rsplit('/').next().unwrap();
        let mut connection = sqlx_mysql::MySqlConnection::connect(url).await.unwrap();
        Self::run(&mut connection, format!("drop database {database}")).await.unwrap();
    }

    async fn run(connection: &mut Connection<Self>, text: String) -> Result<(), sqlx_core::Error> {
        connection.execute(raw_sql(sql(text))).await.map(drop)
    }

    async fn ids(connection: &mut Connection<Self>, text: String) -> Vec<MessageId> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await.unwrap();
        rows.iter().map(|row| id_from(row.get_unchecked::<&[u8], _>(0))).collect()
    }

    async fn texts(connection: &mut Connection<Self>, text: String) -> Result<Vec<String>, sqlx_core::Error> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await?;
        rows.iter().map(|row| row.try_get_unchecked(0)).collect()
    }

    fn earlier(column: &str, by: Duration) -> String {
        let seconds = by.as_secs();
        format!("if({column} = '9999-12-31 23:59:59.999999', {column}, {column} - interval {seconds} second)")
    }

    fn literal(id: MessageId) -> String {
        format!("x'{}'", id.as_uuid().simple())
    }
}

#[async_trait]
impl Backend for Sqlite {
    const NAME: &'static str = "sqlite";
    const TABLE: &'static str = "posthaste_outbox";

    async fn make_room() -> (String, StoreOptions, Option<TempDir>) {
        let folder = TempDir::new().unwrap();
        let url = format!("sqlite://{}?mode=rwc", folder.path().join("outbox.db").display());
        (url, patient(), Some(folder))
    }

    async fn take_back(_url: &str, _options: &StoreOptions) {}

    async fn run(connection: &mut Connection<Self>, text: String) -> Result<(), sqlx_core::Error> {
        connection.execute(raw_sql(sql(text))).await.map(drop)
    }

    async fn ids(connection: &mut Connection<Self>, text: String) -> Vec<MessageId> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await.unwrap();
        rows.iter().map(|row| id_from(row.get_unchecked::<&[u8], _>(0))).collect()
    }

    async fn texts(connection: &mut Connection<Self>, text: String) -> Result<Vec<String>, sqlx_core::Error> {
        let rows = connection.fetch_all(sqlx_core::query::query(sql(text))).await?;
        rows.iter().map(|row| row.try_get_unchecked(0)).collect()
    }

    fn earlier(column: &str, by: Duration) -> String {
        let micros = by.as_micros();
        format!("case when {column} = 9223372036854775807 then {column} else {column} - {micros} end")
    }

    fn literal(id: MessageId) -> String {
        format!("x'{}'", id.as_uuid().simple())
    }
}

fn id_from(bytes: &[u8]) -> MessageId {
    MessageId::from_uuid(Uuid::from_slice(bytes).unwrap())
}
