//! Checks whether a database is set up so that posthaste's promises hold: the checks, and the findings from their
//! results.
//!
//! Every check is one statement of the database's and one pure function. Nothing here changes anything, and no check that fails, for
//! a right that is missing, say, keeps the others from being made.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::time::{Duration, SystemTime};

use posthaste_core::{Clock as _, ErrorKind, Finding, Result, Severity, Store as _, SystemClock};
use sqlx_core::connection::Connection as _;
use sqlx_core::database::Database;
use sqlx_core::row::Row as _;

use crate::arg::{Arg, from_micros};
use crate::dialect::{Connection, Dialect};
use crate::naming::Naming;
use crate::pools::Whose;
use crate::row::Columns;
use crate::sql::{Files, Statement};
use crate::store::SqlStore;

/// The differences of clocks that are a notice and a warning.
const CLOCKS_DIFFER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// The ages from which on an open transaction is a warning and a danger.
#[cfg(any(test, feature = "postgres", feature = "mysql"))]
const TRANSACTION_IS_OLD: [Duration; 2] = [Duration::from_secs(5 * 60), Duration::from_secs(3600)];

/// The rows of an answer: texts, or none.
type Rows = [Vec<Option<String>>];

/// One check.
#[derive(Clone, Copy)]
pub struct Check {
    /// A check.
    name: &'static str,
    /// The statement that asks.
    sql: &'static str,
    /// Whether it takes the schema, or none, and the prefix of the tables.
    takes_names: bool,
    /// Judges the result.
    judge: fn(&Subject, &Rows) -> Found,
}

/// The examined store.
pub(crate) struct Subject {
    prefix: String,
    indexes: Vec<Index>,
}

/// An index that the migrations make.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Index {
    name: String,
    is_unique: bool,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    severity: Severity,
    found: String,
    remedy: Option<String>,
}

impl Found {
    fn fine(found: impl Into<String>) -> Self {
        Self { severity: Severity::Fine, found: found.into(), remedy: None }
    }

    fn bad(severity: Severity, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity, found: found.into(), remedy: Some(remedy.into()) }
    }

    pub(crate) fn of(self, check: &'static str) -> Finding {
        Finding { check, severity: self.severity, found: self.found, remedy: self.remedy }
    }
}

/// A value of the first row; empty if there is none.
fn first(rows: &Rows, column: usize) -> &str {
    rows.first().and_then(|row| row.get(column)).and_then(Option::as_deref).unwrap_or_default()
}

/// The indexes that a dialect's migrations make.
fn indexes(files: &Files, naming: &Naming) -> Vec<Index> {
    let mut indexes = Vec::new();
    for line in files.migrations.iter().flat_map(|(_, sql)| sql.lines()).map(str::trim_start) {
        let Some((before, after)) = line.split_once("/*+*/").or(line.split_once("/*:*/")) else { continue };
        // Of two marks on a line the first is the index's, the second its table's.
        let (before, after) = match before.split_once("/*:*/") {
            Some((before, name)) => (before, name),
            None => (before, after),
        };
        if matches!(before.trim_end(), "create index" | "create unique index" | "key" | "unique key") {
            let name: String = after.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let is_unique = before.contains("unique");
            indexes.push(Index { name: format!("{}{name}", naming.prefix), is_unique });
        } else if before.trim_end() == "drop index" {
            let name = format!("{}{}", naming.prefix, after.trim_end().trim_end_matches(';'));
            indexes.retain(|index| index.name != name);
        }
    }
    indexes
}

/// The existing indexes, each with whether it is valid, compared with the expected ones.
fn judge_indexes(subject: &Subject, rows: &Rows) -> Found {
    let usable = |name: &str| {
        let row = rows.iter().find(|row| row.first().and_then(Option::as_deref) == Some(name))?;
        Some(row.get(1).and_then(Option::as_deref) == Some("valid"))
    };
    let mut found = Vec::new();
    let mut severity = Severity::Fine;
    for index in &subject.indexes {
        let what = match usable(&index.name) {
            Some(true) => continue,
            Some(false) => "is invalid",
            None => "is missing",
        };
        severity = severity.max(if index.is_unique { Severity::Danger } else { Severity::Warning });
        found.push(format!("{} {what}", index.name));
    }
    let count = subject.indexes.len();
    match severity {
        Severity::Fine => Found::fine(format!("all {count} are there")),
        Severity::Danger => Found::bad(
            severity,
            found.join(", "),
            "without a unique index messages may be stored twice: create it again, as migration_sql() prints it",
        ),
        _ => Found::bad(
            severity,
            found.join(", "),
            "claims and housekeeping walk the whole table: create it again, as migration_sql() prints it; drop an \
             invalid one before",
        ),
    }
}

/// How far the machine's clock is from the database's.
fn judge_clock(apart: Duration) -> Found {
    let found = format!("{} ms between this machine's and the database's", apart.as_millis());
    let remedy = "let both be set by NTP: due times that publishers give as a time of day are off by as much";
    match apart {
        apart if apart > CLOCKS_DIFFER[1] => Found::bad(Severity::Warning, found, remedy),
        apart if apart > CLOCKS_DIFFER[0] => Found::bad(Severity::Notice, found, remedy),
        _ => Found::fine(found),
    }
}

/// Whether the numbers that messages get are free: the highest that is taken, the last that was given out, and what to do.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn judge_numbers(taken: &str, given: &str, remedy: String) -> Found {
    let number = |text: &str| text.parse::<i64>().unwrap_or_default();
    if number(taken) > i64::MAX / 2 {
        let remedy =
            "remove that row: it was not stored by posthaste, and leaves no numbers for other messages";
        return Found::bad(Severity::Danger, format!("a message has the number {taken}"), remedy);
    }
    if number(taken) > number(given) {
        let found =
            format!("{taken} is taken, and the last one given out is {given}: messages cannot be stored");
        return Found::bad(Severity::Danger, found, remedy);
    }
    Found::fine("the next one is free")
}

/// The age and the owner of the oldest open transaction; `None` if there is none.
#[cfg(any(test, feature = "postgres", feature = "mysql"))]
fn judge_age(oldest: Option<(Duration, &str)>) -> Found {
    let Some((age, whose)) = oldest else { return Found::fine("none is open") };
    let found = format!("open for {} s: {whose}", age.as_secs());
    let remedy =
        "end it: what is deleted cannot be cleaned up while it is open, and claims get slower by the hour";
    match age {
        age if age > TRANSACTION_IS_OLD[1] => Found::bad(Severity::Danger, found, remedy),
        age if age > TRANSACTION_IS_OLD[0] => Found::bad(Severity::Warning, found, remedy),
        _ => Found::fine(found),
    }
}

/// The row of the oldest transaction: its age in seconds, its session's number, user and program.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn oldest(rows: &Rows) -> Option<(Duration, String)> {
    let seconds = first(rows, 0).parse().ok()?;
    let about = [("session", 1), ("user", 2), ("program", 3)];
    let about = about.iter().map(|(what, column)| (what, first(rows, *column)));
    let about: Vec<String> =
        about.filter(|(_, text)| !text.is_empty()).map(|(what, text)| format!("{what} {text}")).collect();
    Some((Duration::from_secs(seconds), about.join(", ")))
}

/// Whether a version, in numbers with dots between them, is new enough.
#[cfg(any(test, feature = "mysql", feature = "sqlite"))]
fn is_at_least(version: &str, needed: &[u32]) -> bool {
    let numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse::<u32>().ok());
    numbers.collect::<Vec<_>>().as_slice() >= needed
}

impl<D: Dialect> SqlStore<D> {
    pub(crate) async fn examination(&self) -> Result<Vec<Finding>> {
        let failed = |error| self.wrap("examine", error);
        let naming = self.get_naming();
        let subject = Subject { prefix: naming.prefix.clone(), indexes: indexes(&D::FILES, naming) };
        // Before any check: a database that cannot be reached is no finding.
        let mut connection = self.pool_of(D::EXAMINED).acquire().await.map_err(failed)?;
        let mut findings = Vec::new();
        for check in D::CHECKS {
            findings.push(self.look(&mut connection, &subject, check, D::BEGIN_EXAMINATION).await?);
        }
        findings.push(self.look_at_clock(&mut connection).await?);
        drop(connection);
        if !D::OWN_CHECKS.is_empty() {
            let mut connection = self.pool_of(Whose::Ours).acquire().await.map_err(failed)?;
            for check in D::OWN_CHECKS {
                findings.push(self.look(&mut connection, &subject, check, None).await?);
            }
        }
        findings.push(match self.check().await {
            Ok(()) => Found::fine("as this code knows it").of("schema version"),
            Err(error) => {
                let remedy = "call migrate(), or use the release of posthaste that these tables are of";
                Found::bad(Severity::Danger, error.to_string(), remedy).of("schema version")
            }
        });
        findings.extend(D::look_around(&self.connect_options()));
        Ok(findings)
    }

    async fn look(
        &self,
        connection: &mut Connection<D>,
        subject: &Subject,
        check: &Check,
        begin: Option<&'static str>,
    ) -> Result<Finding> {
        let naming = self.get_naming();
        let names = [Arg::Text(naming.schema.as_deref()), Arg::text(&subject.prefix)];
        let statement = Statement::new(naming.render(check.sql));
        let args = if check.takes_names { &names[..] } else { &[] };
        let rows = match ask::<D>(connection, begin, &statement, args).await {
            Ok(rows) => rows,
            Err(error) => return self.unseen(check.name, error),
        };
        let texts = |row| -> Result<Vec<Option<String>>> {
            let row: &<D::Db as Database>::Row = row;
            (0..row.len()).map(|column| row.opt_text(column)).collect()
        };
        let rows = rows.iter().map(texts).collect::<Result<Vec<_>>>()?;
        Ok((check.judge)(subject, &rows).of(check.name))
    }

    /// A check without the needed right is a notice; a database that is gone is an error.
    fn unseen(&self, check: &'static str, error: sqlx_core::Error) -> Result<Finding> {
        let error = self.wrap("examine", error);
        match error.kind() {
            ErrorKind::Unavailable => Err(error),
            kind => {
                let remedy = match kind {
                    ErrorKind::Permission => "give this role the right to look, or let another one examine",
                    ErrorKind::Busy => "look again when no session keeps the table locked",
                    _ => "look at it with the database's own tools",
                };
                let found = format!("it could not be looked at: {error}");
                Ok(Found::bad(Severity::Notice, found, remedy).of(check))
            }
        }
    }

    /// Asks for the time, and takes it for that of the middle of the round trip.
    async fn look_at_clock(&self, connection: &mut Connection<D>) -> Result<Finding> {
        let Some(sql) = D::CLOCK else {
            return Ok(Found::fine("the database has this machine's").of("clock"));
        };
        let statement = Statement::new(sql.to_owned());
        // The first time the statement is prepared, which may take a round trip of its own.
        let mut apart = Duration::MAX;
        for _ in 0..2 {
            let before = SystemClock.now();
            let rows = match ask::<D>(connection, D::BEGIN_EXAMINATION, &statement, &[]).await {
                Ok(rows) => rows,
                Err(error) => return self.unseen("clock", error),
            };
            let middle = before + SystemClock.now().duration_since(before).unwrap_or_default() / 2;
            let theirs = from_micros(rows.first().map_or(Ok(0), |row| row.int(0))?);
            apart = apart.min(difference(theirs, middle));
        }
        Ok(judge_clock(apart).of("clock"))
    }
}

/// Runs one statement, in a transaction of its own if that has to begin in a special way.
async fn ask<D: Dialect>(
    connection: &mut Connection<D>,
    begin: Option<&'static str>,
    statement: &Statement,
    args: &[Arg<'_>],
) -> Result<Vec<<D::Db as Database>::Row>, sqlx_core::Error> {
    let Some(begin) = begin else { return D::fetch(connection, statement, args).await };
    let mut tx = connection.begin_with(begin).await?;
    let rows = D::fetch(&mut tx, statement, args).await;
    tx.rollback().await?;
    rows
}

fn difference(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|before| before.duration())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[&[&str]]) -> Vec<Vec<Option<String>>> {
        rows.iter().map(|row| row.iter().map(|text| Some((*text).to_owned())).collect()).collect()
    }

    #[test]
    fn ages_and_differences_have_thresholds() {
        for (seconds, severity) in [
            (0, Severity::Fine),
            (300, Severity::Fine),
            (301, Severity::Warning),
            (3_600, Severity::Warning),
            (3_601, Severity::Danger),
        ] {
            let found = judge_age(Some((Duration::from_secs(seconds), "session 7")));
            assert_eq!(found.severity, severity, "{seconds}");
            assert!(found.found.contains("session 7"), "{found:?}");
            assert_eq!(found.remedy.is_none(), severity == Severity::Fine);
        }
        assert_eq!(judge_age(None).severity, Severity::Fine);
        for (millis, severity) in [
            (1_000, Severity::Fine),
            (1_001, Severity::Notice),
            (5_000, Severity::Notice),
            (5_001, Severity::Warning),
        ] {
            assert_eq!(judge_clock(Duration::from_millis(millis)).severity, severity, "{millis}");
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(
            difference(now, now + Duration::from_secs(3)),
            difference(now + Duration::from_secs(3), now)
        );
    }

    #[test]
    fn a_missing_index_is_named() {
        let index = |name: &str, is_unique| Index { name: name.to_owned(), is_unique };
        let subject = Subject { prefix: String::new(), indexes: vec![index("a", true), index("b", false)] };
        assert_eq!(
            judge_indexes(&subject, &rows(&[&["a", "valid"], &["b", "valid"], &["c", "invalid"]])).severity,
            Severity::Fine
        );
        let slow = judge_indexes(&subject, &rows(&[&["a", "valid"], &["b", "invalid"]]));
        assert_eq!((slow.severity, slow.found.as_str()), (Severity::Warning, "b is invalid"));
        let twice = judge_indexes(&subject, &rows(&[&["b", "valid"]]));
        assert_eq!((twice.severity, twice.found.as_str()), (Severity::Danger, "a is missing"));
    }

    #[test]
    fn versions_are_compared_number_by_number() {
        assert!(is_at_least("10.6.3-MariaDB", &[10, 6]) && is_at_least("10.11.2", &[10, 6]));
        assert!(is_at_least("3.51.3", &[3, 51, 3]) && !is_at_least("3.51.2", &[3, 51, 3]));
        assert!(!is_at_least("5.7.44-log", &[8, 0]) && !is_at_least("", &[1]));
    }
}
