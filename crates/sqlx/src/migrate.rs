//! The tables and routines: what makes them, in which order, and which version is there.
//!
//! Migrations are numbered alike in all dialects and never edited once released. Nothing here runs unless it is asked
//! to: an application's user often may not change tables, and a person may want to read the SQL first.

use posthaste_core::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

use crate::naming::Naming;
use crate::sql::Files;

/// The parts of a migration.
#[cfg_attr(
    not(any(feature = "postgres", feature = "mysql")),
    allow(dead_code, reason = "SQLite has no routines")
)]
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The names that everything has.
    pub(crate) naming: Naming,
    /// Numbered, and run once.
    pub(crate) migrations: Vec<(&'static str, String)>,
    /// Objects that are created again whenever their text has changed.
    pub(crate) routines: Vec<String>,
    /// A mark of that text.
    pub(crate) routines_mark: String,
}

impl Script {
    pub(crate) fn new(files: &Files, naming: &Naming) -> Self {
        let routines: Vec<String> = files.routines.iter().map(|sql| naming.render(sql)).collect();
        let routines_mark =
            Sha256::digest(routines.concat()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let migrations = files.migrations.iter().map(|(name, sql)| (*name, naming.render(sql))).collect();
        Self { naming: naming.clone(), migrations, routines, routines_mark }
    }

    /// The version that this code knows.
    pub(crate) fn version(&self) -> u32 {
        u32::try_from(self.migrations.len()).unwrap_or(u32::MAX)
    }

    /// The whole script as text: `setup`, the migrations, the routines as `routine` writes them, and `record`.
    pub(crate) fn print(&self, setup: &str, routine: impl Fn(&str) -> String, record: &str) -> String {
        let mut out = format!("-- posthaste, version {} of the tables\n\n{setup}\n\n", self.version());
        for (name, sql) in &self.migrations {
            out.push_str(&format!("-- {name}\n{sql}\n\n"));
        }
        for sql in &self.routines {
            out.push_str(&format!("{}\n\n", routine(sql)));
        }
        out + record + "\n"
    }

    /// The migrations that are missing at this version; an error if the version is newer than this code.
    pub(crate) fn missing(&self, found: u32) -> Result<&[(&'static str, String)]> {
        self.check(found.min(self.version()), found)?;
        Ok(&self.migrations[found as usize..])
    }

    /// Whether code with this script can work with tables of this version, of which it needs at least `needed`.
    pub(crate) fn check(&self, needed: u32, found: u32) -> Result<()> {
        let known = self.version();
        let (kind, message, remedy) = if found > known {
            let remedy = "use a release of posthaste that knows it; nothing was changed";
            (ErrorKind::SchemaTooNew, "the tables were made by a newer version of posthaste", remedy)
        } else if found < needed {
            let remedy = "call migrate(), or apply what migration_sql() prints with your own tool";
            (ErrorKind::SchemaMissing, "the tables are older than this code needs", remedy)
        } else {
            return Ok(());
        };
        Err(Error::new(kind, message)
            .with_context("found", found)
            .with_context("known", known)
            .with_remedy(remedy))
    }

    /// The key of the lock that keeps migrations apart.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn lock_key(&self) -> i64 {
        let name = Sha256::digest(format!("posthaste migrate {}", self.naming.full("outbox")));
        i64::from_be_bytes(name[..8].try_into().unwrap_or_default())
    }
}
