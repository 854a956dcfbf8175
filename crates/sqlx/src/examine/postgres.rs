//! Checks for PostgreSQL.

use posthaste_core::Severity;

use super::{Check, Found, Rows, Subject, first, judge_age, judge_indexes, judge_numbers, oldest};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "version",
        sql: include_str!("../../sql/postgres/examine/version.sql"),
        takes_names: false,
        judge: version,
    },
    Check {
        name: "durability",
        sql: include_str!("../../sql/postgres/examine/durability.sql"),
        takes_names: false,
        judge: durability,
    },
    Check {
        name: "tables",
        sql: include_str!("../../sql/postgres/examine/tables.sql"),
        takes_names: true,
        judge: tables,
    },
    Check {
        name: "indexes",
        sql: include_str!("../../sql/postgres/examine/indexes.sql"),
        takes_names: true,
        judge: judge_indexes,
    },
    Check {
        name: "oldest transaction",
        sql: include_str!("../../sql/postgres/examine/oldest.sql"),
        takes_names: false,
        judge: transactions,
    },
    Check {
        name: "locks",
        sql: include_str!("../../sql/postgres/holder/waits.sql"),
        takes_names: true,
        judge: locks,
    },
    Check {
        name: "autovacuum",
        sql: include_str!("../../sql/postgres/examine/autovacuum.sql"),
        takes_names: true,
        judge: autovacuum,
    },
    Check {
        name: "isolation",
        sql: include_str!("../../sql/postgres/examine/isolation.sql"),
        takes_names: false,
        judge: isolation,
    },
    Check {
        name: "numbers",
        sql: include_str!("../../sql/postgres/examine/numbers.sql"),
        takes_names: false,
        judge: numbers,
    },
];

/// What only our own connections can tell: a pooler may drop the settings that we ask for.
pub(crate) const OWN_CHECKS: &[Check] = &[
    Check {
        name: "isolation of claims",
        sql: include_str!("../../sql/postgres/examine/isolation.sql"),
        takes_names: false,
        judge: isolation_of_claims,
    },
    Check {
        name: "search path",
        sql: include_str!("../../sql/postgres/examine/search_path.sql"),
        takes_names: false,
        judge: search_path,
    },
];

pub(crate) const CLOCK: &str = include_str!("../../sql/postgres/examine/clock.sql");

fn version(_: &Subject, rows: &Rows) -> Found {
    let found = format!("PostgreSQL {}", first(rows, 1));
    if first(rows, 0).parse::<u32>().is_ok_and(|number| number >= 140_000) {
        return Found::fine(found);
    }
    Found::bad(Severity::Danger, found, "use PostgreSQL 14 or newer: nothing older is tested")
}

fn durability(_: &Subject, rows: &Rows) -> Found {
    let settings = [("fsync", 0), ("full_page_writes", 1), ("synchronous_commit", 2)];
    let off: Vec<&str> =
        settings.iter().filter(|(_, column)| first(rows, *column) == "off").map(|(name, _)| *name).collect();
    if off.is_empty() {
        return Found::fine(format!(
            "fsync and full_page_writes are on, synchronous_commit is {}",
            first(rows, 2)
        ));
    }
    Found::bad(
        Severity::Danger,
        format!("{} is off", off.join(", ")),
        "turn it on: what was committed, messages and acks alike, may be lost when the server or its machine crashes",
    )
}

fn tables(_: &Subject, rows: &Rows) -> Found {
    let is_unlogged = |row: &&Vec<Option<String>>| row.get(1).and_then(Option::as_deref) == Some("u");
    let unlogged: Vec<&str> =
        rows.iter().filter(is_unlogged).filter_map(|row| row.first()?.as_deref()).collect();
    if unlogged.is_empty() {
        return Found::fine(format!("all {} are logged", rows.len()));
    }
    Found::bad(
        Severity::Danger,
        format!("{} is unlogged", unlogged.join(", ")),
        "alter table … set logged: an unlogged table is empty after a crash",
    )
}

/// Beside the oldest: how many sessions there are of which nothing may be seen.
fn transactions(_: &Subject, rows: &Rows) -> Found {
    let oldest = oldest(rows);
    let found = judge_age(oldest.as_ref().map(|(age, whose)| (*age, whose.as_str())));
    let hidden = first(rows, 4);
    if found.severity > Severity::Fine || matches!(hidden, "" | "0") {
        return found;
    }
    Found::bad(
        Severity::Notice,
        format!("{}; of {hidden} sessions of others nothing may be seen", found.found),
        "grant pg_read_all_stats to this role, or let another one examine",
    )
}

/// The sessions that wait for locks: see holder/waits.sql.
fn locks(_: &Subject, rows: &Rows) -> Found {
    if rows.is_empty() {
        return Found::fine("no session waits for one");
    }
    let text = |row: &[Option<String>], column: usize| row.get(column).cloned().flatten().unwrap_or_default();
    let wait = |row: &Vec<Option<String>>| {
        let about = [("user", 5), ("program", 6), ("", 8)].map(|(what, column)| (what, text(row, column)));
        let about: Vec<String> = about
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(what, text)| format!("{what} {text}").trim().to_owned())
            .collect();
        let holder = match text(row, 4).as_str() {
            "0" => "a prepared transaction".to_owned(),
            pid => format!("session {pid} ({})", about.join(", ")),
        };
        match text(row, 0).as_str() {
            "" => format!("{holder} keeps a table locked"),
            waiter => {
                let waited = text(row, 3).parse().map_or(0.0, |millis: f64| millis / 1_000.0);
                format!("session {waiter} has waited {waited:.1} s for {holder}")
            }
        }
    };
    let waits: Vec<String> = rows.iter().take(3).map(wait).collect();
    let more = if rows.len() > waits.len() {
        format!(", and {} more", rows.len() - waits.len())
    } else {
        String::new()
    };
    let found = format!("{}{more}", waits.join("; "));
    let remedy = "let the session that holds the lock commit, or end it: select pg_terminate_backend(…)";
    Found::bad(Severity::Warning, found, remedy)
}

fn autovacuum(_: &Subject, rows: &Rows) -> Found {
    let off = match (first(rows, 0), first(rows, 1), first(rows, 2)) {
        ("off", _, _) => "autovacuum is off",
        (_, "off", _) => "track_counts is off, and autovacuum with it",
        (_, _, "off") => "autovacuum is off for the outbox",
        _ => return Found::fine("on"),
    };
    Found::bad(
        Severity::Warning,
        off,
        "turn it on: a queue leaves a dead row behind for every change, and gets slower until they are cleaned up",
    )
}

fn isolation(_: &Subject, rows: &Rows) -> Found {
    match first(rows, 0) {
        level @ ("read committed" | "read uncommitted") => Found::fine(level),
        level => Found::bad(
            Severity::Notice,
            format!("{level} is the default of transactions"),
            "be ready to repeat whole transactions that publish: at this level they may fail for what others do. Workers in \
             other languages must claim and settle at READ COMMITTED",
        ),
    }
}

fn isolation_of_claims(_: &Subject, rows: &Rows) -> Found {
    match first(rows, 0) {
        level @ ("read committed" | "read uncommitted") => Found::fine(level),
        level => Found::bad(
            Severity::Danger,
            format!("{level}: a pooler dropped our start-up option, and nothing can be claimed or settled"),
            "ALTER ROLE … SET default_transaction_isolation = 'read committed', for the role that posthaste connects as",
        ),
    }
}

/// The schemas on our path in which other roles may create functions, and those roles.
fn search_path(_: &Subject, rows: &Rows) -> Found {
    let (path, schemas) = (first(rows, 0), first(rows, 1));
    if schemas.is_empty() {
        return Found::fine(path);
    }
    Found::bad(
        Severity::Warning,
        format!("a pooler dropped our start-up option, and others may create functions in {schemas}"),
        "REVOKE CREATE ON SCHEMA … from them, or ALTER ROLE … SET search_path = pg_catalog for the role that posthaste \
         connects as: what is on the path may run with that role's rights",
    )
}

fn numbers(_: &Subject, rows: &Rows) -> Found {
    judge_numbers(first(rows, 0), first(rows, 1), first(rows, 2).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject {
        Subject { prefix: String::new(), indexes: Vec::new() }
    }

    fn row(texts: &[&str]) -> Vec<Vec<Option<String>>> {
        vec![texts.iter().map(|text| Some((*text).to_owned())).collect()]
    }

    #[test]
    fn what_may_be_lost_is_a_danger() {
        for commit in ["on", "local", "remote_write", "remote_apply"] {
            assert_eq!(durability(&subject(), &row(&["on", "on", commit])).severity, Severity::Fine);
        }
        for off in [["off", "on", "on"], ["on", "off", "on"], ["on", "on", "off"]] {
            assert_eq!(durability(&subject(), &row(&off)).severity, Severity::Danger, "{off:?}");
        }
    }

    #[test]
    fn what_cannot_be_seen_is_no_all_clear() {
        let (fine, hidden) = (["7", "12", "ada", "psql", "0"], ["7", "12", "ada", "psql", "3"]);
        assert_eq!(transactions(&subject(), &row(&fine)).severity, Severity::Fine);
        assert_eq!(transactions(&subject(), &row(&hidden)).severity, Severity::Notice);
        let none = vec![vec![None, None, None, None, Some("2".to_owned())]];
        assert_eq!(transactions(&subject(), &none).severity, Severity::Notice);
        let old = transactions(&subject(), &row(&["4000", "12", "ada", "psql", "3"]));
        assert_eq!(old.severity, Severity::Danger);
        assert!(old.found.contains("session 12, user ada, program psql"), "{old:?}");
    }

    #[test]
    fn versions_and_settings_are_judged() {
        assert_eq!(version(&subject(), &row(&["130014", "13.14"])).severity, Severity::Danger);
        assert_eq!(version(&subject(), &row(&["140000", "14.0"])).severity, Severity::Fine);
        for (answer, severity) in [
            (["on", "on", "on"], Severity::Fine),
            (["off", "on", "on"], Severity::Warning),
            (["on", "off", "on"], Severity::Warning),
            (["on", "on", "off"], Severity::Warning),
        ] {
            assert_eq!(autovacuum(&subject(), &row(&answer)).severity, severity, "{answer:?}");
        }
        assert_eq!(isolation(&subject(), &row(&["serializable"])).severity, Severity::Notice);
        assert_eq!(isolation(&subject(), &row(&["read committed"])).severity, Severity::Fine);
        assert_eq!(isolation_of_claims(&subject(), &row(&["repeatable read"])).severity, Severity::Danger);
        assert_eq!(isolation_of_claims(&subject(), &row(&["read committed"])).severity, Severity::Fine);
        assert_eq!(search_path(&subject(), &row(&["public", "public (PUBLIC)"])).severity, Severity::Warning);
        assert_eq!(search_path(&subject(), &row(&["pg_catalog, pg_temp", ""])).severity, Severity::Fine);
        for (taken, given, severity) in [
            ("7", "7", Severity::Fine),
            ("", "", Severity::Fine),
            ("8", "7", Severity::Danger),
            ("9223372036854775807", "7", Severity::Danger),
        ] {
            assert_eq!(numbers(&subject(), &row(&[taken, given, "s"])).severity, severity, "{taken} {given}");
        }
    }
}
