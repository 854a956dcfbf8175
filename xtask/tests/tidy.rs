//! The rules of this repository that a compiler does not know: headers, equal dialects, crate arrows, SQL in its files,
//! links that lead somewhere, texts that name the actor.
//!
//! It reads files and asks cargo for one tree; it changes nothing. One function is one rule, and every fault names its
//! file, its line and what to do about it.

#![allow(clippy::unwrap_used, reason = "a test that cannot read the repository has failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where SQL may be put together in Rust, and why.
const SQL_IN_RUST: [(&str, &str); 3] = [
    ("crates/sqlx/src/postgres.rs", "migrating: names that naming.rs has checked, and numbers"),
    ("crates/sqlx/src/mysql.rs", "migrating: names that naming.rs has checked, and numbers"),
    ("crates/sqlx/src/sqlite.rs", "migrating: names that naming.rs has checked, and numbers"),
];
const DIALECTS: [&str; 3] = ["mysql", "postgres", "sqlite"];
/// Words that hide the actor of a sentence; see "Language" in CONTRIBUTING.md.
const VAGUE: [&str; 5] = ["whoever", "nobody", "somebody", "anybody", "anew"];
/// Files, and beginnings of paths, whose texts still have such words. Remove an entry once its texts are rewritten.
const STILL_VAGUE: [&str; 7] = [
    "crates/cli/src/args.rs",
    "crates/cli/src/commands/pause.rs",
    "crates/cli/src/relay/http",
    "crates/core/src/settings.rs",
    "crates/sqlx/src/holder",
    "docs/http.md",
    "docs/settings.md",
];
/// What no crate name in the tree of posthaste-core may contain.
const FOREIGN: [&str; 10] =
    ["sqlx", "postgres", "mysql", "sqlite", "tiberius", "diesel", "lapin", "nats", "kafka", "redis"];

#[test]
fn every_rust_file_says_what_lives_in_it() {
    let mut faults = Faults::default();
    for file in files(&["crates", "xtask"], &["rs"]) {
        if !read(&file).starts_with("//!") {
            faults.add(&file, 1, "begin the file with `//!`: what lives here, and what it must never do");
        }
    }
    faults.report();
}

#[test]
fn every_sql_file_says_what_it_does() {
    let mut faults = Faults::default();
    for file in files(&["crates"], &["sql"]) {
        if !read(&file).starts_with("--") {
            faults.add(&file, 1, "begin the file with a `--` comment: what it does, and its parameters");
        }
    }
    faults.report();
}

#[test]
fn dialects_have_the_same_statements() {
    let statements = |dialect: &str| names_in(&format!("crates/sqlx/sql/{dialect}"));
    compare_dialects(statements, "write the statement for this dialect too, under the same name");
}

#[test]
fn dialects_have_the_same_migrations() {
    let numbers = |dialect: &str| {
        let names = names_in(&format!("crates/sqlx/sql/{dialect}/migrations"));
        names.iter().map(|name| name.split('_').next().unwrap_or(name).to_owned()).collect()
    };
    compare_dialects(numbers, "add a migration of this number; if there is nothing to do, a comment says so");
}

/// HOT-021: the core builds, and can be used, without any database or broker.
#[test]
fn the_core_depends_on_no_database_and_no_broker() {
    let manifest = root().join("crates/core/Cargo.toml");
    let remedy = "the core knows no database and no broker: put this behind a trait, in a crate of its own";
    let mut faults = Faults::default();
    for (number, line) in lines(&read(&manifest)) {
        let line = line.split('#').next().unwrap_or_default();
        // Words like `categories = ["database"]` are not dependencies, so only the name on the left counts.
        let name = line.split(['=', '.']).next().unwrap_or_default().trim();
        let header =
            line.trim().starts_with("[dependencies.") || line.trim().starts_with("[dev-dependencies.");
        if is_foreign(if header { line } else { name }) {
            faults.add(&manifest, number, remedy);
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree =
        ["tree", "--package", "posthaste-core", "--edges", "normal", "--all-features", "--prefix", "none"];
    let output = Command::new(cargo).args(tree).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo tree failed: {}", String::from_utf8_lossy(&output.stderr));
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.starts_with("posthaste-core "), "cargo tree answered something else: {output}");
    for name in output.lines().filter_map(|line| line.split(' ').next()) {
        if is_foreign(name) {
            faults.add(
                &manifest,
                0,
                &format!("`{name}` is in the tree (see `cargo tree -i {name}`): {remedy}"),
            );
        }
    }
    faults.report();
}

#[test]
fn sql_lives_in_sql_files() {
    let mut faults = Faults::default();
    let mut unused: BTreeSet<PathBuf> = SQL_IN_RUST.iter().map(|(file, _)| root().join(file)).collect();
    for file in files(&["crates"], &["rs"]).into_iter().filter(|file| is_source_of_a_crate(file)) {
        let text = read(&file);
        for (start, call) in format_calls(&text) {
            if !contains_sql(call) {
                continue;
            }
            unused.remove(&file);
            if !SQL_IN_RUST.iter().any(|(allowed, _)| root().join(allowed) == file) {
                let remedy =
                    "put the statement into a .sql file and bind its values; names are rendered by naming.rs";
                faults.add(&file, line_of(&text, start), remedy);
            }
        }
    }
    for file in unused {
        faults.add(&file, 0, "has no SQL any more: remove it from SQL_IN_RUST");
    }
    faults.report();
}

#[test]
fn nothing_names_a_place_on_one_machine() {
    // In two pieces, or this file would break its own rule.
    let places =
        [["/", "work/"], ["/", "tmp/"], ["/", "home/"], ["/", "Users/"]].map(|halves| halves.concat());
    let remedy = "write it relative to the repository, or use std::env::temp_dir() or tempfile";
    let mut faults = Faults::default();
    for file in files(&["."], &["rs", "sql", "toml", "md", "yml", "yaml", "sh", "run"]) {
        for (number, line) in lines(&read(&file)) {
            // A letter in front makes it a part of something else: of a web address, say.
            let named = places.iter().flat_map(|place| line.match_indices(place.as_str())).any(|(at, _)| {
                !line[..at]
                    .ends_with(|before: char| before.is_alphanumeric() || matches!(before, '.' | '_' | '-'))
            });
            if named {
                faults.add(&file, number, remedy);
            }
        }
    }
    faults.report();
}

#[test]
fn links_lead_somewhere() {
    let mut faults = Faults::default();
    for file in files(&["."], &["md"]) {
        for (number, line) in lines(&read(&file)) {
            for target in links(line) {
                let path = target.split('#').next().unwrap_or_default();
                let elsewhere = path.is_empty() || path.contains("://") || path.starts_with("mailto:");
                if !elsewhere && !file.parent().unwrap().join(path).exists() {
                    faults.add(
                        &file,
                        number,
                        &format!("`{path}` does not exist: correct the link or write the page"),
                    );
                }
            }
        }
    }
    faults.report();
}

#[test]
fn guides_and_comments_name_the_actor() {
    let remedy = "name the actor: the worker, the relay, the store, the caller, you";
    let mut faults = Faults::default();
    let mut unused: BTreeSet<&str> = STILL_VAGUE.into_iter().collect();
    for file in files(&["."], &["md", "rs"]) {
        let place = file.strip_prefix(root()).unwrap_or(&file).display().to_string().replace('\\', "/");
        let excused = STILL_VAGUE.into_iter().find(|vague| place.starts_with(vague));
        let is_guide = place.ends_with(".md");
        for (number, line) in lines(&read(&file)) {
            for word in vague_words(if is_guide { line } else { comment(line) }) {
                match excused {
                    Some(vague) => _ = unused.remove(vague),
                    None => faults.add(&file, number, &format!("`{word}`: {remedy}")),
                }
            }
        }
    }
    for vague in unused {
        faults.add(&root().join(vague), 0, "has no vague word any more: remove it from STILL_VAGUE");
    }
    faults.report();
}

// Helpers of the rules.

/// Gathered, so that one run tells everything.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    /// A fault in this line; 0 is the file as a whole.
    fn add(&mut self, file: &Path, line: usize, remedy: &str) {
        let file = file.strip_prefix(root()).unwrap_or(file).display();
        let line = if line == 0 { String::new() } else { format!(":{line}") };
        self.0.push(format!("{file}{line}: {remedy}"));
    }

    fn report(self) {
        assert!(self.0.is_empty(), "{} untidy:\n  {}\n", self.0.len(), self.0.join("\n  "));
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("cannot read {}: {error}", file.display()))
}

/// The files below these folders with one of these endings; a file without an ending counts by its name.
fn files(folders: &[&str], endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if !matches!(name.as_str(), "target" | ".git") {
                    open.push(path);
                }
            } else if endings.contains(&name.rsplit('.').next().unwrap_or_default()) {
                found.push(path.components().collect());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no file to look at in {folders:?}: the rule has lost its subject");
    found
}

fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The names of the .sql files directly in this folder.
fn names_in(folder: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap());
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let names: BTreeSet<String> = names.filter(|name| name.ends_with(".sql")).collect();
    assert!(!names.is_empty(), "{folder} has no .sql file");
    names
}

/// All dialects must have the same names.
fn compare_dialects(of: impl Fn(&str) -> BTreeSet<String>, remedy: &str) {
    let each: BTreeMap<&str, BTreeSet<String>> =
        DIALECTS.iter().map(|dialect| (*dialect, of(dialect))).collect();
    let all: BTreeSet<&String> = each.values().flatten().collect();
    let mut faults = Faults::default();
    for (dialect, has) in &each {
        for name in all.iter().filter(|name| !has.contains(**name)) {
            faults.add(
                &root().join(format!("crates/sqlx/sql/{dialect}")),
                0,
                &format!("lacks {name}: {remedy}"),
            );
        }
    }
    faults.report();
}

fn is_foreign(name: &str) -> bool {
    FOREIGN.iter().any(|foreign| name.contains(foreign))
}

/// Whether the file is part of a shipped crate, not one of its tests, examples or benchmarks.
fn is_source_of_a_crate(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "src")
}

/// Every call of `format!` or `write!`, with where it begins.
fn format_calls(text: &str) -> Vec<(usize, &str)> {
    let starts = ["format!(", "write!(", "writeln!("];
    let starts = starts.iter().flat_map(|start| text.match_indices(start));
    starts
        .map(|(at, start)| (at, &text[at..at + call_length(&text[at + start.len()..]) + start.len()]))
        .collect()
}

/// Up to the parenthesis that closes the call; those inside of strings are balanced, or the call just seems longer.
fn call_length(text: &str) -> usize {
    let mut depth = 1;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Whether a string in this call has one of SQL's verbs where a statement begins. In the middle of a sentence it is prose.
fn contains_sql(call: &str) -> bool {
    let call = call.to_ascii_lowercase();
    ["select ", "insert ", "update ", "delete ", "create ", "drop "].iter().any(|verb| {
        call.match_indices(verb).any(|(at, _)| {
            let before = call[..at].trim_end_matches([' ', '\n']);
            ['"', ';', '(', '\\'].iter().any(|mark| before.ends_with(*mark)) || before.ends_with("\\n")
        })
    })
}

/// The targets of this line's links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next())
}

/// The comment of a line of Rust; empty if it has none. Slashes inside of a string are no comment.
fn comment(line: &str) -> &str {
    if line.trim_start().starts_with("//") {
        return line;
    }
    match line.find(" // ") {
        Some(at) if line[..at].matches('"').count().is_multiple_of(2) => &line[at..],
        _ => "",
    }
}

/// The vague words of a text, in its order.
fn vague_words(text: &str) -> Vec<&'static str> {
    let words = text.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
    words.filter_map(|word| VAGUE.into_iter().find(|vague| word.eq_ignore_ascii_case(vague))).collect()
}

#[test]
fn the_rules_see_what_they_are_for() {
    assert_eq!(vague_words("Nobody\u{2019}s, whoever_it_is, and somebody"), ["nobody", "somebody"]);
    assert_eq!(comment("    let a = 1; // why"), " // why");
    assert_eq!(comment(r#"    let a = "b // c";"#), "");
    assert_eq!(comment("    /// Why."), "    /// Why.");
    assert!(contains_sql(r#"format!("select 1 from {table}")"#));
    assert!(contains_sql("format!(\n    \"delete from {table};\\ninsert into {table} values (1)\")"));
    assert!(contains_sql(r#"format!("with a as (SELECT 1) {}", rest)"#));
    assert!(!contains_sql(r#"format!("cannot delete {file}")"#));
    assert_eq!(format_calls("let a = format!(\"x {}\", f(1)); b").len(), 1);
    assert_eq!(format_calls("let a = format!(\"x {}\", f(1)); b")[0].1, "format!(\"x {}\", f(1)");
    assert_eq!(
        links("see [a](b.md), [c](https://d.e) and [f](g/h.md#i)").collect::<Vec<_>>(),
        ["b.md", "https://d.e", "g/h.md#i"]
    );
    assert!(is_foreign("sqlx-core") && is_foreign("async-nats") && !is_foreign("serde_json"));
}
