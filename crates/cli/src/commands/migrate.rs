//! `posthaste migrate`: makes the tables, or prints how.

use posthaste::Result;
use serde_json::json;

use crate::exit::Exit;
use crate::output::Output;
use crate::target::Target;

/// Create or update the tables, or print the SQL that does
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  posthaste migrate --store postgres://app@db/shop\n  \
                        posthaste migrate --store mysql://app@db/shop --print > outbox.sql")]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// Print the SQL, and change nothing
    #[arg(long)]
    print: bool,
}

pub(crate) async fn run(args: Args, output: &Output) -> Result<Exit> {
    if args.print {
        let sql = args.target.migration_sql()?;
        output.answer(&json!({ "sql": sql }), || sql.clone());
        return Ok(Exit::Done);
    }
    let store = args.target.create().await?;
    let version = store.migrate().await?;
    output.answer(&json!({ "store": store.name(), "version": version }), || {
        format!("{}: the tables are at version {version}", store.name())
    });
    Ok(Exit::Done)
}
