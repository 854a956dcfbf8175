//! Checks for SQLite and its file.

use std::io;
use std::path::Path;

use posthaste_core::{Finding, Severity};

use super::{Check, Found, Rows, Subject, first, is_at_least, judge_indexes};

pub(crate) const CHECKS: &[Check] = &[
    Check {
        name: "version",
        sql: include_str!("../../sql/sqlite/examine/version.sql"),
        takes_names: false,
        judge: version,
    },
    Check {
        name: "durability",
        sql: include_str!("../../sql/sqlite/examine/durability.sql"),
        takes_names: false,
        judge: durability,
    },
    Check {
        name: "journal",
        sql: include_str!("../../sql/sqlite/examine/journal.sql"),
        takes_names: false,
        judge: journal,
    },
    Check {
        name: "indexes",
        sql: include_str!("../../sql/sqlite/examine/indexes.sql"),
        takes_names: false,
        judge: judge_indexes,
    },
];

fn version(_: &Subject, rows: &Rows) -> Found {
    let version = first(rows, 0);
    let found = format!("SQLite {version}");
    if is_at_least(version, &[3, 51, 3]) {
        return Found::fine(found);
    }
    Found::bad(Severity::Warning, found, "use 3.51.3 or newer: older ones can lose commits in WAL mode")
}

fn durability(_: &Subject, rows: &Rows) -> Found {
    match first(rows, 0) {
        "2" | "3" => Found::fine("every commit is written to disk"),
        "1" => Found::bad(
            Severity::Warning,
            "synchronous is NORMAL",
            "set it to FULL: the last commits before a power failure may be lost",
        ),
        _ => Found::bad(
            Severity::Danger,
            "synchronous is OFF",
            "set it to FULL: a power failure may lose commits, or spoil the file",
        ),
    }
}

fn journal(_: &Subject, rows: &Rows) -> Found {
    match first(rows, 0) {
        "wal" => Found::fine("wal"),
        mode => Found::bad(
            Severity::Notice,
            format!("journal_mode is {mode}"),
            "use WAL: without it readers and the writer wait for each other",
        ),
    }
}

/// Whether the file and its folder, where the journal is made, can be written.
pub(crate) fn file(file: &Path) -> Finding {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    for (what, path) in [("the file", file), ("its folder", folder)] {
        match path.metadata() {
            Ok(data) if data.permissions().readonly() => {
                let remedy = "give this user the right to write: the journal is made beside the file";
                return Found::bad(Severity::Danger, format!("{what} cannot be written"), remedy).of("file");
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let remedy = "put it back, or another one in its place: what is stored now is lost when the connections close";
                return Found::bad(Severity::Danger, format!("{what} was moved or deleted"), remedy)
                    .of("file");
            }
            Err(error) => {
                let remedy = "check where the file is, and the rights of its folder";
                let found = format!("{what} cannot be looked at: {}", error.kind());
                return Found::bad(Severity::Notice, found, remedy).of("file");
            }
        }
    }
    Found::fine("it and its folder can be written").of("file")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(judge: fn(&Subject, &Rows) -> Found, text: &str) -> Severity {
        judge(&Subject { prefix: String::new(), indexes: Vec::new() }, &[vec![Some(text.to_owned())]])
            .severity
    }

    #[test]
    fn settings_are_judged() {
        let levels =
            [("0", Severity::Danger), ("1", Severity::Warning), ("2", Severity::Fine), ("3", Severity::Fine)];
        for (level, severity) in levels {
            assert_eq!(judged(durability, level), severity, "{level}");
        }
        assert_eq!((judged(journal, "wal"), judged(journal, "delete")), (Severity::Fine, Severity::Notice));
        assert_eq!(
            (judged(version, "3.51.3"), judged(version, "3.40.0")),
            (Severity::Fine, Severity::Warning)
        );
    }

    #[test]
    fn a_file_that_is_not_there_is_a_danger() {
        assert_eq!(file(Path::new("no such folder/outbox.db")).severity, Severity::Danger);
    }
}
