//! Checks for MySQL and MariaDB.

use posthaste_core::Severity;

use super::{
    Check, Found, Rows, Subject, first, is_at_least, judge_age, judge_indexes, judge_numbers, oldest,
};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "version",
        sql: include_str!("../../sql/mysql/examine/version.sql"),
        takes_names: false,
        judge: version,
    },
    Check {
        name: "durability",
        sql: include_str!("../../sql/mysql/examine/durability.sql"),
        takes_names: false,
        judge: durability,
    },
    Check {
        name: "tables",
        sql: include_str!("../../sql/mysql/examine/tables.sql"),
        takes_names: true,
        judge: tables,
    },
    Check {
        name: "indexes",
        sql: include_str!("../../sql/mysql/examine/indexes.sql"),
        takes_names: true,
        judge: judge_indexes,
    },
    Check {
        name: "oldest transaction",
        sql: include_str!("../../sql/mysql/examine/oldest.sql"),
        takes_names: false,
        judge: transactions,
    },
    Check {
        name: "numbers",
        sql: include_str!("../../sql/mysql/examine/numbers.sql"),
        takes_names: false,
        judge: numbers,
    },
];

pub(crate) const CLOCK: &str = include_str!("../../sql/mysql/examine/clock.sql");

fn numbers(_: &Subject, rows: &Rows) -> Found {
    judge_numbers(first(rows, 0), first(rows, 0), String::new())
}

fn version(_: &Subject, rows: &Rows) -> Found {
    let version = first(rows, 0);
    let (name, needed) =
        if version.contains("MariaDB") { ("MariaDB", &[10, 6][..]) } else { ("MySQL", &[8, 0][..]) };
    let found = format!("{name} {version}");
    if is_at_least(version, needed) {
        return Found::fine(found);
    }
    Found::bad(Severity::Danger, found, "use MariaDB 10.6, MySQL 8.0, or newer: claims need SKIP LOCKED")
}

fn durability(_: &Subject, rows: &Rows) -> Found {
    let (flush, doublewrite, log_bin, sync) =
        (first(rows, 0), first(rows, 1), first(rows, 2), first(rows, 3));
    if flush != "1" {
        return Found::bad(
            Severity::Danger,
            format!("innodb_flush_log_at_trx_commit is {flush}"),
            "set it to 1: what was committed, messages and acks alike, may be lost when the machine crashes",
        );
    }
    if matches!(doublewrite, "0" | "OFF") {
        return Found::bad(
            Severity::Danger,
            "innodb_doublewrite is off",
            "turn it on, unless the file system writes pages whole: a half-written page cannot be repaired",
        );
    }
    if matches!(log_bin, "1" | "ON") && sync != "1" {
        return Found::bad(
            Severity::Warning,
            format!("sync_binlog is {sync}"),
            "set it to 1: after a crash replicas may lack what was committed here",
        );
    }
    Found::fine("every commit is written to disk")
}

fn tables(_: &Subject, rows: &Rows) -> Found {
    let engine = |row: &&Vec<Option<String>>| row.get(1).and_then(Option::as_deref) != Some("InnoDB");
    let others: Vec<&str> = rows.iter().filter(engine).filter_map(|row| row.first()?.as_deref()).collect();
    if others.is_empty() {
        return Found::fine(format!("all {} are InnoDB's", rows.len()));
    }
    Found::bad(
        Severity::Danger,
        format!("{} is not InnoDB's", others.join(", ")),
        "alter table … engine = InnoDB: other engines know no transactions, and publish what was rolled back",
    )
}

fn transactions(_: &Subject, rows: &Rows) -> Found {
    let oldest = oldest(rows);
    judge_age(oldest.as_ref().map(|(age, whose)| (*age, whose.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(judge: fn(&Subject, &Rows) -> Found, texts: &[&str]) -> Severity {
        let row = texts.iter().map(|text| Some((*text).to_owned())).collect();
        judge(&Subject { prefix: String::new(), indexes: Vec::new() }, &[row]).severity
    }

    #[test]
    fn settings_are_judged() {
        for (answer, severity) in [
            (["1", "1", "1", "1"], Severity::Fine),
            (["1", "ON", "OFF", "0"], Severity::Fine),
            (["1", "1", "1", "0"], Severity::Warning),
            (["2", "1", "1", "1"], Severity::Danger),
            (["0", "1", "1", "1"], Severity::Danger),
            (["1", "OFF", "1", "1"], Severity::Danger),
        ] {
            assert_eq!(judged(durability, &answer), severity, "{answer:?}");
        }
        for (answer, severity) in [
            ("10.6.0-MariaDB", Severity::Fine),
            ("11.4.2-MariaDB-ubu2404", Severity::Fine),
            ("10.5.20-MariaDB", Severity::Danger),
            ("8.0.36", Severity::Fine),
            ("5.7.44-log", Severity::Danger),
        ] {
            assert_eq!(judged(version, &[answer]), severity, "{answer}");
        }
        assert_eq!(judged(tables, &["outbox", "MyISAM"]), Severity::Danger);
        assert_eq!(judged(tables, &["outbox", "InnoDB"]), Severity::Fine);
    }
}
