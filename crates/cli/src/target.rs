//! Which store a command is about, from its URL, and the store behind it with its type forgotten.
//!
//! A URL may hold a password: it is never printed, and messages name the store as the store names itself.

use std::sync::Arc;

use async_trait::async_trait;
use clap::Args;
use posthaste::{Dialect, Error, ErrorKind, Result, Source, SqlStore, StoreAdmin, StoreOptions};

use crate::missing::missing;

/// Which store.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The store's URL: postgres://…, mysql://… or sqlite:FILE
    #[arg(
        long,
        short,
        value_name = "URL",
        env = "POSTHASTE_STORE",
        hide_env_values = true,
        help_heading = "Store"
    )]
    pub(crate) store: Option<String>,
    /// The schema of its tables, if not `posthaste` (PostgreSQL) or the URL's database (MySQL)
    #[arg(long, value_name = "NAME", help_heading = "Store")]
    pub(crate) schema: Option<String>,
    /// What its tables begin with, if not `posthaste_` (nothing in PostgreSQL)
    #[arg(long, value_name = "TEXT", help_heading = "Store")]
    pub(crate) prefix: Option<String>,
}

/// A store as commands use it.
#[async_trait]
pub(crate) trait AnyStore: StoreAdmin {
    /// Creates or updates the tables; answers with their version.
    async fn migrate(&self) -> Result<u32>;
}

#[async_trait]
impl<D: Dialect> AnyStore for SqlStore<D> {
    async fn migrate(&self) -> Result<u32> {
        Self::migrate(self).await
    }
}

/// The kinds of databases that this build knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sqlite,
    #[cfg(feature = "postgres")]
    Postgres,
    #[cfg(feature = "mysql")]
    MySql,
}

/// Does something that is written the same for every kind: inside `$work`, `$Database` is the description of a database of this
/// kind, and `StoreOf<$Database>` its store.
macro_rules! with_kind {
    ($kind:expr, $Database:ident => $work:expr) => {
        match $kind {
            $crate::target::Kind::Sqlite => {
                type $Database = posthaste::SqliteDatabase;
                $work
            }
            #[cfg(feature = "postgres")]
            $crate::target::Kind::Postgres => {
                type $Database = posthaste::PgDatabase;
                $work
            }
            #[cfg(feature = "mysql")]
            $crate::target::Kind::MySql => {
                type $Database = posthaste::MySqlDatabase;
                $work
            }
        }
    };
}
pub(crate) use with_kind;

/// The store of a description of a database.
pub(crate) type StoreOf<D> = <D as Source>::Store;

impl Kind {
    /// How many connections a store of this kind uses at most, if it may have so many.
    pub(crate) fn api_connections(self, most: u32) -> usize {
        // A store over SQLite has one.
        if self == Self::Sqlite { 1 } else { usize::try_from(most).unwrap_or(usize::MAX) }
    }

    /// The kind of a URL's scheme.
    pub(crate) fn of(url: &str) -> Result<Self> {
        match url.split_once(':') {
            Some(("sqlite", _)) => Ok(Self::Sqlite),
            #[cfg(feature = "postgres")]
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => Ok(Self::Postgres),
            #[cfg(feature = "mysql")]
            Some(("mysql" | "mariadb", rest)) if rest.starts_with("//") => Ok(Self::MySql),
            // A build that has the feature has answered above.
            Some(("postgres" | "postgresql", rest)) if rest.starts_with("//") => {
                Err(missing("PostgreSQL", "postgres"))
            }
            Some(("mysql" | "mariadb", rest)) if rest.starts_with("//") => Err(missing("MySQL", "mysql")),
            _ => Err(Error::new(ErrorKind::Configuration, "the store's URL has no scheme that is known")
                .with_remedy("begin it with postgres://, mysql:// or sqlite:")),
        }
    }
}

impl Target {
    /// The URL, or what to do if there is none.
    pub(crate) fn url(&self) -> Result<&str> {
        self.store.as_deref().ok_or_else(|| {
            Error::new(ErrorKind::Configuration, "no store is named").with_remedy(
                "give its URL by --store, or in POSTHASTE_STORE, which keeps a password off the command line",
            )
        })
    }

    pub(crate) fn options(&self) -> StoreOptions {
        let mut options = StoreOptions::new().listen(false);
        if let Some(schema) = &self.schema {
            options = options.schema(schema);
        }
        if let Some(prefix) = &self.prefix {
            options = options.prefix(prefix);
        }
        options
    }

    /// The store, connected, and with tables that this program knows.
    pub(crate) async fn open(&self) -> Result<Arc<dyn AnyStore>> {
        let store = self.connect().await?;
        store.check().await.map_err(|error| match error.kind() {
            ErrorKind::SchemaMissing => {
                error.with_remedy("run `posthaste migrate`, or apply what `posthaste migrate --print` prints")
            }
            _ => error,
        })?;
        Ok(store)
    }

    /// The store, connected, with or without current tables.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn AnyStore>> {
        let url = self.url()?;
        let kind = Kind::of(url)?;
        self.connect_to(kind, url).await.map_err(|error| match (kind, error.kind()) {
            (Kind::Sqlite, ErrorKind::Configuration) => error.with_remedy(
                "check the path and the folder's permissions; `posthaste migrate` makes a file that is missing",
            ),
            _ => error,
        })
    }

    /// The same, for a file that may not be there yet.
    pub(crate) async fn create(&self) -> Result<Arc<dyn AnyStore>> {
        let url = self.url()?;
        let kind = Kind::of(url)?;
        if kind != Kind::Sqlite || url.contains("mode=") {
            return self.connect_to(kind, url).await;
        }
        let joint = if url.contains('?') { '&' } else { '?' };
        self.connect_to(kind, &format!("{url}{joint}mode=rwc")).await
    }

    async fn connect_to(&self, kind: Kind, url: &str) -> Result<Arc<dyn AnyStore>> {
        let options = self.options();
        with_kind!(kind, Database => Ok(Arc::new(StoreOf::<Database>::connect_with(url, &options).await?)))
    }

    /// The SQL that makes the tables.
    pub(crate) fn migration_sql(&self) -> Result<String> {
        let options = self.options();
        with_kind!(Kind::of(self.url()?)?, Database => StoreOf::<Database>::migration_sql(&options))
    }
}
