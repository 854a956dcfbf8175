//! What these tests need of a database beyond the fixture of the stores' tests: names of columns, the journal's tables,
//! and how to disconnect a case's own sessions.
//!
//! SQL here is assembled from names and numbers of the tests' own; none of it may reach another session, schema or
//! database.

use std::str::FromStr as _;
use std::time::Duration;

use async_trait::async_trait;
use posthaste_sqlx::{MySql, Postgres, Sqlite, StoreOptions};
use sqlx_core::pool::{Pool, PoolOptions};
use sqlx_sqlite::{SqliteConnectOptions, SqliteSynchronous};

use crate::case::PATIENCE;
use crate::fixture::Backend;

/// A database that processes are tested on.
#[async_trait]
pub trait Base: Backend {
    /// How the column of the key is written.
    const KEY: &'static str;
    /// The type of a number that the database counts up by itself, as a primary key.
    const COUNTER: &'static str;
    /// The type of a text in an index.
    const NAME_TYPE: &'static str;

    /// A message id as 32 hexadecimal digits.
    fn hex(column: &str) -> String;

    /// The options of a store at this URL.
    fn options(_url: &str) -> StoreOptions {
        StoreOptions::new().max_connections(4).acquire_timeout(PATIENCE)
    }

    /// The URL under which a worker of this case is known to the server.
    fn as_program(url: &str, _name: &str) -> String {
        url.to_owned()
    }

    /// Connections of an application.
    async fn pool(url: &str, most: u32) -> Result<Pool<Self::Db>, sqlx_core::Error>;

    /// The statement that disconnects the sessions of this case's workers, or that answers with the statements that do; it
    /// answers with a text for each.
    fn disconnect(url: &str) -> String;

    /// The messages that are leased to a process, as a `from` clause.
    fn leased(process: &str) -> String {
        format!("{} where state = 1 and worker like '{process}-%'", Self::TABLE)
    }

    /// The statement that lets the leases of a process run out.
    fn run_out(process: &str) -> String {
        let earlier = Self::earlier("leased_until", Duration::from_secs(24 * 3_600));
        let lease = |table: &str, and: &str| {
            let past = format!("update {table} set leased_until = {earlier}");
            format!("{past} where worker like '{process}-%' and leased_until is not null{and}")
        };
        let own = Self::OWN_TIMES.iter().filter(|(table, _)| *table == "lease");
        let own = own.map(|(table, _)| lease(&format!("{}_{table}", Self::TABLE), ""));
        own.chain([lease(Self::TABLE, " and state = 1")]).collect::<Vec<_>>().join("; ")
    }

    /// Fills the outbox with so many ready messages of this topic, in one statement.
    fn fill(topic: &str, count: u32) -> String;
}

/// The column names for a million messages, in all databases.
const FILLED: &str = "message_id, created_at, due_at, epoch, attempts, lease_losses, state, priority, order_policy, \
                      topic, payload, content_type";

fn pool_options<Db: sqlx_core::database::Database>(most: u32) -> PoolOptions<Db> {
    PoolOptions::new().max_connections(most).acquire_timeout(PATIENCE)
}

#[async_trait]
impl Base for Postgres {
    const KEY: &'static str = "key";
    const COUNTER: &'static str = "bigint generated always as identity primary key";
    const NAME_TYPE: &'static str = "text";

    fn hex(column: &str) -> String {
        format!("replace({column}::text, '-', '')")
    }

    fn options(url: &str) -> StoreOptions {
        StoreOptions::new().max_connections(4).acquire_timeout(PATIENCE).schema(schema_of(url))
    }

    fn as_program(url: &str, name: &str) -> String {
        url.replacen('?', &format!("?application_name={}-{name}&", schema_of(url)), 1)
    }

    async fn pool(url: &str, most: u32) -> Result<Pool<Self::Db>, sqlx_core::Error> {
        pool_options(most).connect(url).await
    }

    /// Its sessions have the schema's name in front of their program's.
    fn disconnect(url: &str) -> String {
        let schema = schema_of(url);
        format!(
            "select case when pg_terminate_backend(pid) then '' end from pg_stat_activity \
             where application_name like '{schema}-%' and pid <> pg_backend_pid()"
        )
    }

    fn leased(process: &str) -> String {
        format!(
            "outbox o where worker like '{process}-%' or exists \
             (select from outbox_lease l where l.items @> o.seq and l.worker like '{process}-%' \
              and ((o.state = 0 and o.epoch <> l.token) or (o.state = 1 and o.epoch = l.token)))"
        )
    }

    fn fill(topic: &str, count: u32) -> String {
        format!(
            "insert into outbox ({FILLED}) select lpad(to_hex(n), 32, '0')::uuid, now(), now(), 0, 0, 0, 0, 0, 0, \
             '{topic}', 'x', 'text/plain' from generate_series(1, {count}) n"
        )
    }
}

/// The schema that a fixture has put into the search path.
fn schema_of(url: &str) -> &str {
    url.rsplit("%3D").next().unwrap()
}

#[async_trait]
impl Base for MySql {
    const KEY: &'static str = "`key`";
    const COUNTER: &'static str = "bigint auto_increment primary key";
    const NAME_TYPE: &'static str = "varchar(100)";

    fn hex(column: &str) -> String {
        format!("lower(hex({column}))")
    }

    async fn pool(url: &str, most: u32) -> Result<Pool<Self::Db>, sqlx_core::Error> {
        pool_options(most).connect(url).await
    }

    /// Its sessions are those in its database, the producers' among them. `kill` takes a number only.
    fn disconnect(url: &str) -> String {
        let database = url.rsplit('/').next().unwrap();
        format!(
            "select concat('kill ', id) from information_schema.processlist \
             where db = '{database}' and id <> connection_id()"
        )
    }

    fn fill(topic: &str, count: u32) -> String {
        format!(
            "insert into posthaste_outbox ({FILLED}) select unhex(lpad(hex(seq), 32, '0')), utc_timestamp(6), \
             utc_timestamp(6), 0, 0, 0, 0, 0, 0, '{topic}', 'x', 'text/plain' from seq_1_to_{count}"
        )
    }
}

#[async_trait]
impl Base for Sqlite {
    const KEY: &'static str = "key";
    const COUNTER: &'static str = "integer primary key autoincrement";
    const NAME_TYPE: &'static str = "text";

    fn hex(column: &str) -> String {
        format!("lower(hex({column}))")
    }

    /// A killed process loses nothing that the operating system has, so the journal need not wait for the disk.
    async fn pool(url: &str, most: u32) -> Result<Pool<Self::Db>, sqlx_core::Error> {
        let options = SqliteConnectOptions::from_str(url)?
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(PATIENCE);
        pool_options(most).connect_with(options).await
    }

    fn disconnect(_url: &str) -> String {
        unreachable!("SQLite has no sessions")
    }

    fn fill(topic: &str, count: u32) -> String {
        let now = "cast(unixepoch('subsec') * 1000000 as integer)";
        format!(
            "insert into posthaste_outbox ({FILLED}) \
             with recursive c (n) as (select 1 union all select n + 1 from c where n < {count}) \
             select unhex(printf('%032x', n)), {now}, {now}, 0, 0, 0, 0, 0, 0, '{topic}', 'x', 'text/plain' from c"
        )
    }
}
