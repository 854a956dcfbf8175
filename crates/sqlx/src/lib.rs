//! Stores for SQLite, PostgreSQL and MySQL/MariaDB, on sqlx.
//!
//! Publishing takes your own sqlx connection or transaction. Each dialect is a feature: `sqlite`, `postgres`, `mysql`.

mod admin;
mod arg;
mod dialect;
mod error;
mod examine;
mod holder;
mod inbox;
mod interrupt;
mod join;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod json;
mod link;
mod listen;
mod locks;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
mod naming;
mod open_file;
mod options;
mod pools;
#[cfg(feature = "postgres")]
mod postgres;
mod retry;
mod role;
mod row;
mod source;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod url;

pub use dialect::Dialect;
#[cfg(feature = "mysql")]
pub use mysql::{MySql, MySqlDatabase, MySqlStore};
pub use options::StoreOptions;
#[cfg(feature = "postgres")]
pub use postgres::{PgDatabase, PgStore, Postgres};
pub use role::Role;
pub use source::Database;
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteDatabase, SqliteStore};
pub use store::SqlStore;
