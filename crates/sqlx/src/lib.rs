//! Stores for SQLite, PostgreSQL and MySQL/MariaDB, on sqlx.
//!
//! Publishing takes your own sqlx connection or transaction. Each dialect is a feature: `sqlite`, `postgres`, `mysql`.

mod admin;
mod arg;
mod dialect;
mod error;
mod join;
#[cfg(any(feature = "mysql", feature = "sqlite"))]
mod json;
mod listen;
mod migrate;
#[cfg(feature = "mysql")]
mod mysql;
mod naming;
mod options;
#[cfg(feature = "postgres")]
mod postgres;
mod retry;
mod row;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;

pub use dialect::Dialect;
#[cfg(feature = "mysql")]
pub use mysql::{MySql, MySqlStore};
pub use options::StoreOptions;
#[cfg(feature = "postgres")]
pub use postgres::{PgStore, Postgres};
#[cfg(feature = "sqlite")]
pub use sqlite::{Sqlite, SqliteStore};
pub use store::SqlStore;
