//! `posthaste grants`: prints the rights that database roles need. It needs no connection.

use clap::ValueEnum;
use posthaste::{Error, ErrorKind, Result};
use serde_json::json;

use crate::exit::Exit;
use crate::output::Output;
use crate::target::{Kind, Target};

/// Print the SQL that gives database roles their rights
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  posthaste grants publisher shop_app --store postgres://owner@db/shop | psql -d shop\n  \
                  posthaste grants > roles.sql        # all tasks, each for a role called posthaste_TASK\n\n\
                  The roles must exist. Run the SQL as the owner of the tables, after `posthaste migrate`."
)]
pub(crate) struct Args {
    #[command(flatten)]
    target: Target,
    /// What the role does; all tasks by default
    task: Option<Task>,
    /// The database role that gets the rights
    #[arg(requires = "task", value_name = "ROLE")]
    role: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Task {
    /// Publishes messages
    Publisher,
    /// Starts joins and attaches messages to them
    Joins,
    /// Claims, delivers and prunes messages: a worker or `posthaste relay`
    Relay,
    /// Lists, requeues, buries, pauses and prunes messages
    Operator,
    /// Remembers received messages in an inbox
    Consumer,
}

pub(crate) fn run(args: &Args, output: &Output) -> Result<Exit> {
    let tasks = args.task.as_ref().map_or(Task::value_variants(), std::slice::from_ref);
    let mut sql = String::new();
    for task in tasks {
        let name = task.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let role = args.role.clone().unwrap_or_else(|| format!("posthaste_{name}"));
        sql += &format!("-- {name}: {role}\n{}\n", grants(&args.target, *task, &role)?.trim_end());
    }
    output.answer(&json!({ "sql": sql }), || sql.trim_end().to_owned());
    Ok(Exit::Done)
}

#[cfg_attr(
    not(feature = "postgres"),
    allow(unused_variables, reason = "a build without PostgreSQL knows no role")
)]
fn grants(target: &Target, task: Task, role: &str) -> Result<String> {
    let refuse = |what: &str, remedy: &str| {
        Err(Error::new(ErrorKind::Configuration, what.to_owned()).with_remedy(remedy.to_owned()))
    };
    match Kind::of(target.url()?)? {
        #[cfg(feature = "postgres")]
        Kind::Postgres => posthaste::PgStore::grants_sql(&target.options(), task.into(), role),
        #[cfg(feature = "mysql")]
        Kind::MySql => refuse(
            "rights are printed for PostgreSQL only",
            "grant what docs/roles.md lists for MySQL and MariaDB",
        ),
        Kind::Sqlite => {
            refuse("SQLite has no roles", "protect the file: a user who may write to it may do everything")
        }
    }
}

#[cfg(feature = "postgres")]
impl From<Task> for posthaste::Role {
    fn from(task: Task) -> Self {
        match task {
            Task::Publisher => Self::Publisher,
            Task::Joins => Self::Joins,
            Task::Relay => Self::Relay,
            Task::Operator => Self::Operator,
            Task::Consumer => Self::Consumer,
        }
    }
}
