//! The statements for SQLite, as programs in other languages run them: on the SQLite of their system, which is older than ours.
//!
//! Debian 12 has 3.40, Ubuntu 22.04 has 3.37. The live test takes the program `sqlite3` as it is installed, if it is.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use posthaste_core::{MessageId, State, StoreAdmin as _, Uuid};
use posthaste_sqlx::SqliteStore;

/// Those that need SQLite 3.41, for `unhex`.
const NEED_UNHEX: [&str; 7] = ["attach", "count", "duplicates", "list", "prune_joins", "select", "uncount"];
/// What SQLite 3.37 does not have, or answers with null.
const NEWER: [&str; 7] =
    ["unixepoch(", "subsec", "->", "is distinct from", "concat(", "format(", "octet_length("];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/sqlite")
}

/// A statement without its comments, the marks of the names replaced.
fn statement(name: &str) -> String {
    let text = std::fs::read_to_string(folder().join(format!("{name}.sql"))).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("--"));
    let text = lines.collect::<Vec<_>>().join("\n");
    text.replace("/*:*/", "posthaste_").replace("/*+*/", "posthaste_")
}

/// The names of all statements.
fn names() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.map(|file| file.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// With these values in the places of its numbered parameters.
fn with(statement: &str, values: &[&str]) -> String {
    let number = |sql: String, (n, value): (usize, &&str)| sql.replace(&format!("?{}", n + 1), value);
    values.iter().enumerate().rev().fold(statement.to_owned(), number)
}

#[test]
fn statements_use_nothing_newer_than_sqlite_3_37() {
    for name in names() {
        let statement = statement(&name);
        for newer in NEWER {
            assert!(!statement.contains(newer), "{name}.sql: {newer}");
        }
        assert_eq!(statement.contains("unhex("), NEED_UNHEX.contains(&name.as_str()), "{name}.sql: unhex");
    }
}

/// The rows that the system's program answers, or what it complains of; none if it is not installed.
fn try_client(file: &Path, sql: &str) -> Option<Result<Vec<Vec<String>>, String>> {
    let mut client = Command::new("sqlite3");
    client.args(["-batch", "-bail"]).arg(file);
    let child = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.ok()?;
    child.stdin.take().unwrap().write_all(format!("{sql};\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if !output.status.success() {
        return Some(Err(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(Ok(text.lines().map(|line| line.split('|').map(str::to_owned).collect()).collect()))
}

fn client(file: &Path, sql: &str) -> Vec<Vec<String>> {
    try_client(file, sql).expect("it was there before").unwrap_or_else(|error| panic!("{error}: {sql}"))
}

#[tokio::test]
async fn a_whole_life_on_the_sqlite_of_the_system() {
    let room = tempfile::tempdir().unwrap();
    let file = room.path().join("outbox.db");
    let Some(version) = try_client(&file, "select sqlite_version()") else {
        eprintln!("the program sqlite3 is not installed");
        return;
    };
    eprintln!("SQLite {}", version.unwrap()[0][0]);
    let store = SqliteStore::open(&file).await.unwrap();
    store.migrate().await.unwrap();
    store.close().await;

    // The program prints its bytes as text: a random one may be the end of a line.
    let id = MessageId::from_uuid(Uuid::from_bytes([b'A'; 16]));
    let id_literal = format!("x'{}'", id.as_uuid().simple());
    let mut values = vec![id_literal.as_str(), "'t'", "null", "0", "null", "x'78'", "'text/plain'"];
    values.extend(["null"; 5]);
    values.extend(["0", "null", "1", "0", "0", "null", "0", "0", "null", "null"]);
    let mut enqueue = statement("enqueue");
    for value in values {
        enqueue = enqueue.replacen('?', value, 1);
    }
    assert_eq!(client(&file, &enqueue).len(), 1);
    let claim = with(&statement("claim"), &["'w'", "10", "30000000", "null", "null"]);
    let claimed = client(&file, &claim).remove(0);
    let (seq, epoch) = (&claimed[0], &claimed[1]);
    let lease = format!("'[[{seq}, {epoch}]]'");
    assert_eq!(client(&file, &with(&statement("renew"), &[&lease, "30000000"])), [["0"]]);
    assert!(client(&file, &with(&statement("reap"), &["10", "5", "0"])).is_empty());
    let now = client(&file, &statement("clock/now")).remove(0).remove(0);
    let ack = format!("'[[{seq}, {epoch}, 0, 0, null, null, 1, null, null]]'");
    assert_eq!(client(&file, &with(&statement("settle"), &[&ack, "true", &now])), [["0"]]);

    let store = SqliteStore::open(&file).await.unwrap();
    let record = store.show(id).await.unwrap().unwrap().0;
    assert_eq!(record.state, State::Done);
    assert!(record.message.created_at <= record.done_at.unwrap());
    store.close().await;

    for name in names() {
        let statements = statement(&name);
        let explained: Vec<String> = statements.split(';').map(|one| format!("explain {one}")).collect();
        match try_client(&file, &explained.join(";")).unwrap() {
            Ok(_) => {}
            Err(error) => {
                assert!(NEED_UNHEX.contains(&name.as_str()), "{name}: {error}");
                assert!(error.contains("no such function: unhex"), "{name}: {error}");
            }
        }
    }
}
