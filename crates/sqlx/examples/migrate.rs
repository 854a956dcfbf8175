//! Creates or updates posthaste's tables in a database, or prints the SQL that does.
//!
//! ```text
//! migrate [--print] [--schema NAME] [--prefix NAME] URL
//! ```

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command's output")]

use posthaste_core::{Error, ErrorKind, Result};
use posthaste_sqlx::{MySqlStore, PgStore, SqliteStore, StoreOptions};

const USAGE: &str = "usage: migrate [--print] [--schema NAME] [--prefix NAME] URL
  URL       postgres://…, mysql://… or sqlite://…
  --print   print the SQL instead of running it
  example:  migrate --print --schema billing postgres://localhost/shop";

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::process::ExitCode {
    match run(std::env::args().skip(1)).await {
        Ok(text) => {
            println!("{text}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:?}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn run(mut args: impl Iterator<Item = String>) -> Result<String> {
    let wrong = |what: String| Error::new(ErrorKind::InvalidInput, what).with_remedy(USAGE);
    let (mut url, mut print, mut options) = (None, false, StoreOptions::new());
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| wrong(format!("{arg} needs a name")));
        match arg.as_str() {
            "--print" => print = true,
            "--schema" => options = options.schema(value()?),
            "--prefix" => options = options.prefix(value()?),
            _ if arg.starts_with('-') || url.is_some() => {
                return Err(wrong(format!("unexpected argument {arg}")));
            }
            _ => url = Some(arg),
        }
    }
    let url = url.ok_or_else(|| wrong("no URL given".to_owned()))?;
    let version = match url.split(':').next() {
        Some("postgres" | "postgresql") if print => return PgStore::migration_sql(&options),
        Some("mysql" | "mariadb") if print => return MySqlStore::migration_sql(&options),
        Some("sqlite") if print => return SqliteStore::migration_sql(&options),
        Some("postgres" | "postgresql") => PgStore::connect_with(&url, &options).await?.migrate().await?,
        Some("mysql" | "mariadb") => MySqlStore::connect_with(&url, &options).await?.migrate().await?,
        Some("sqlite") => SqliteStore::connect_with(&url, &options).await?.migrate().await?,
        _ => return Err(wrong("the URL names no database that posthaste knows".to_owned())),
    };
    Ok(format!("the tables are at version {version}"))
}
