//! A database as a description: its URL and the settings of its store.
//!
//! Making, comparing or showing a description connects to nothing, and shows no user and no password.

use std::fmt;

use posthaste_core::{Result, Source};

use crate::dialect::{ConnectOptions, Dialect};
use crate::options::StoreOptions;
use crate::store::SqlStore;

/// A description of a database, from which its store is opened; `PgDatabase`, `MySqlDatabase` and `SqliteDatabase` are its
/// names.
///
/// Two are equal if their URLs and settings are. Without settings of its own it has those of
/// [`StoreOptions::tenant`], which are for one database of many.
///
#[cfg_attr(feature = "postgres", doc = "```no_run")]
#[cfg_attr(not(feature = "postgres"), doc = "```ignore")]
/// use posthaste_core::{Source, Store};
/// use posthaste_sqlx::{PgDatabase, StoreOptions};
///
/// # async fn example() -> posthaste_core::Result<()> {
/// let before = PgDatabase::new("postgres://shop:old@db.example/shop_42")?;
/// let store = before.open()?;                           // connects to nothing
/// store.check().await?;                                 // connects
/// store.rest().await;                                   // closes its connections until they are needed again
///
/// let after = PgDatabase::new("postgres://shop:new@db.example/shop_42")?;
/// assert!(before != after && after.change(&store)?);    // what comes now logs in with the new password
///
/// let billing = PgDatabase::new("postgres://shop:new@db.example/shop_42")?
///     .options(StoreOptions::tenant().schema("billing"));
/// assert!(!billing.change(&store)?);                    // other tables: another store
/// # Ok(()) }
/// ```
pub struct Database<D: Dialect> {
    url: String,
    connect: ConnectOptions<D>,
    options: StoreOptions,
}

impl<D: Dialect> Database<D> {
    /// The database at this URL. That it can be reached is not tried.
    pub fn new(url: impl Into<String>) -> Result<Self> {
        let url = url.into();
        let connect = SqlStore::<D>::parse(&url)?;
        D::check_options(&connect)?;
        Ok(Self { url, connect, options: StoreOptions::tenant() })
    }

    /// With these settings, which are checked when it is opened. To change some of the defaults, begin with
    /// [`StoreOptions::tenant`].
    #[must_use]
    pub fn options(mut self, options: StoreOptions) -> Self {
        self.options = options;
        self
    }
}

impl<D: Dialect> Clone for Database<D> {
    fn clone(&self) -> Self {
        let Self { url, connect, options } = self;
        Self { url: url.clone(), connect: connect.clone(), options: options.clone() }
    }
}

impl<D: Dialect> PartialEq for Database<D> {
    fn eq(&self, other: &Self) -> bool {
        (&self.url, &self.options) == (&other.url, &other.options)
    }
}

impl<D: Dialect> Eq for Database<D> {}

impl<D: Dialect> fmt::Debug for Database<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database")
            .field("database", &D::endpoint(&self.connect))
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl<D: Dialect> Source for Database<D> {
    type Store = SqlStore<D>;

    fn open(&self) -> Result<SqlStore<D>> {
        SqlStore::lazy(self.connect.clone(), &self.options)
    }

    /// True if the store has the same server or file, database, schema, prefix and choice about done messages: then the login,
    /// TLS, the sizes of the pools, the time to wait for a connection and listening change.
    fn change(&self, store: &SqlStore<D>) -> Result<bool> {
        store.replace_connections(self.connect.clone(), &self.options)
    }
}
