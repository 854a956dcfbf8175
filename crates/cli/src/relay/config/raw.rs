//! The configuration as it was written: sections with keys and texts, and where each stood. The file, the environment and the command
//! line all end up here.
//!
//! Each fault becomes a mistake with its place; mistakes never quote values, which may be secrets.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use toml::de::{DeTable, DeValue};

use super::schema::{self, Section, Shape};

/// A mistake, and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Mistake {
    /// `relay.toml:12`, a variable's name, or an option's.
    pub(crate) place: String,
    pub(crate) text: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.text)
    }
}

/// A value, and where it stood.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) place: String,
    pub(crate) value: Value,
}

#[derive(Clone)]
pub(crate) enum Value {
    Text(String),
    /// The value as written, of any type.
    Other(String),
    List(Vec<String>),
}

impl Value {
    /// As a text, unless it is a list.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Other(text) => Some(text),
            Self::List(_) => None,
        }
    }
}

/// The keys of one section.
#[derive(Clone, Default)]
pub(crate) struct Keys {
    pub(crate) place: String,
    pub(crate) entries: BTreeMap<String, Entry>,
}

/// A configuration as it was written.
#[derive(Clone, Default)]
pub(crate) struct Raw {
    pub(crate) relay: Keys,
    pub(crate) databases: BTreeMap<String, Keys>,
    pub(crate) sinks: BTreeMap<String, Keys>,
    pub(crate) routes: Vec<Keys>,
    pub(crate) settings: Keys,
    pub(crate) http: Keys,
    pub(crate) tokens: Vec<Keys>,
    pub(crate) encryption: Option<Keys>,
    pub(crate) mistakes: Vec<Mistake>,
}

const SECTIONS: [&str; 7] = ["relay", "databases", "sinks", "routes", "settings", "http", "encryption"];

/// Adds a suggestion to the text.
pub(crate) fn suggestion<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let near = known.into_iter().map(|known| (strsim::damerau_levenshtein(name, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 1 + known.len() / 4 => format!("; did you mean `{known}`?"),
        _ => String::new(),
    }
}

/// Cut, and without control characters: a name out of a file may be anything.
pub(crate) fn name(text: &str) -> String {
    crate::output::printable(&text.chars().take(60).collect::<String>())
}

/// Reads a file's text.
pub(crate) struct Reader<'a> {
    file: &'a str,
    text: &'a str,
    raw: Raw,
}

impl<'a> Reader<'a> {
    pub(crate) fn read(file: &'a str, text: &'a str) -> Raw {
        let mut reader = Self { file, text, raw: Raw::default() };
        match DeTable::parse(text) {
            Ok(table) => reader.document(table.get_ref()),
            // The parser's own text quotes the line, and with it a password perhaps.
            Err(error) => {
                let at = error.span().map_or(0, |span| span.start);
                reader.mistake(at, format!("this is no TOML: {}", error.message()));
            }
        }
        reader.raw
    }

    fn place(&self, at: usize) -> String {
        let line = self.text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
        format!("{}:{line}", self.file)
    }

    fn mistake(&mut self, at: usize, text: String) {
        let place = self.place(at);
        self.raw.mistakes.push(Mistake { place, text });
    }

    fn document(&mut self, table: &DeTable<'_>) {
        for (key, value) in table {
            let at = key.span().start;
            let value = value.get_ref();
            match (key.get_ref().as_ref(), value) {
                ("relay", DeValue::Table(table)) => {
                    self.raw.relay = self.keys("relay", at, table, &schema::RELAY);
                }
                ("settings", DeValue::Table(table)) => self.raw.settings = self.settings(at, table),
                ("http", DeValue::Table(table)) => self.http(at, table),
                ("encryption", DeValue::Table(table)) => {
                    self.raw.encryption = Some(self.keys("encryption", at, table, &schema::ENCRYPTION));
                }
                ("databases", DeValue::Table(table)) => {
                    self.raw.databases = self.named("databases", table, &schema::DATABASE);
                }
                ("sinks", DeValue::Table(table)) => {
                    self.raw.sinks = self.named("sinks", table, &schema::SINK);
                }
                ("routes", DeValue::Array(_)) => {
                    self.raw.routes = self.list("routes", at, value, &schema::ROUTE);
                }
                ("routes", _) => self.mistake(at, "write [[routes]], with two brackets".to_owned()),
                (known, _) if SECTIONS.contains(&known) => {
                    self.mistake(at, format!("`{known}` is no section; write [{known}]"));
                }
                (unknown, _) => {
                    let text =
                        format!("unknown section `{}`{}", name(unknown), suggestion(unknown, SECTIONS));
                    self.mistake(at, text);
                }
            }
        }
    }

    fn named(&mut self, title: &str, table: &DeTable<'_>, section: &Section) -> BTreeMap<String, Keys> {
        let mut all = BTreeMap::new();
        for (key, value) in table {
            let (at, own) = (key.span().start, key.get_ref().as_ref());
            match value.get_ref() {
                DeValue::Table(table) => {
                    let keys = self.keys(&format!("{title}.{}", name(own)), at, table, section);
                    all.insert(own.to_owned(), keys);
                }
                _ => self.mistake(at, format!("write [{title}.NAME], and `{}` below it", name(own))),
            }
        }
        all
    }

    fn list(&mut self, title: &str, at: usize, value: &DeValue<'_>, section: &Section) -> Vec<Keys> {
        let DeValue::Array(items) = value else {
            self.mistake(at, format!("write [[{title}]], with two brackets"));
            return Vec::new();
        };
        let mut all = Vec::new();
        for item in items.iter() {
            let at = item.span().start;
            match item.get_ref() {
                DeValue::Table(table) => all.push(self.keys(&format!("[{title}]"), at, table, section)),
                _ => self.mistake(at, format!("write [[{title}]], with two brackets")),
            }
        }
        all
    }

    fn http(&mut self, at: usize, table: &DeTable<'_>) {
        let mut rest = table.clone();
        if let Some(tokens) = rest.remove("tokens") {
            self.raw.tokens = self.list("http.tokens", tokens.span().start, tokens.get_ref(), &schema::TOKEN);
        }
        self.raw.http = self.keys("http", at, &rest, &schema::HTTP);
    }

    fn settings(&mut self, at: usize, table: &DeTable<'_>) -> Keys {
        let names = posthaste::Settings::NAMES;
        self.entries("settings", at, table, |name| names.contains(&name), names)
    }

    fn keys(&mut self, title: &str, at: usize, table: &DeTable<'_>, section: &Section) -> Keys {
        let names: Vec<&str> = section.keys.iter().map(|key| key.name).collect();
        let mut keys = self.entries(title, at, table, |name| schema::find(section, name).is_some(), &names);
        let wrong = keys.entries.iter().filter(|(name, entry)| {
            let list = matches!(entry.value, Value::List(_));
            schema::find(section, name).is_some_and(|key| list != (key.shape == Shape::Texts))
        });
        for (name, entry) in wrong {
            let list = matches!(entry.value, Value::List(_));
            let text =
                if list { "is a list, and should be one value" } else { "should be a list, in [ and ]" };
            self.raw.mistakes.push(Mistake { place: entry.place.clone(), text: format!("`{name}` {text}") });
        }
        keys.entries.retain(|name, entry| {
            let list = matches!(entry.value, Value::List(_));
            schema::find(section, name).is_some_and(|key| list == (key.shape == Shape::Texts))
        });
        keys
    }

    fn entries(
        &mut self,
        title: &str,
        at: usize,
        table: &DeTable<'_>,
        is_known: impl Fn(&str) -> bool,
        names: &[&str],
    ) -> Keys {
        let mut keys = Keys { place: self.place(at), entries: BTreeMap::new() };
        for (key, value) in table {
            let (at, own) = (key.span().start, key.get_ref().as_ref());
            if !is_known(own) {
                let hint = suggestion(own, names.iter().copied());
                // A token of its own would be a secret in a file that many can read.
                let hint = if own == "token" {
                    "; write token_env or token_file: the file is no place for it"
                } else {
                    &hint
                };
                self.mistake(at, format!("unknown key `{}` in [{title}]{hint}", name(own)));
                continue;
            }
            match scalar(value.get_ref()) {
                Some(value) => {
                    keys.entries.insert(own.to_owned(), Entry { place: self.place(at), value });
                }
                None => {
                    self.mistake(at, format!("`{own}` in [{title}] is neither a value nor a list of texts"));
                }
            }
        }
        keys
    }
}

fn scalar(value: &DeValue<'_>) -> Option<Value> {
    Some(match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Value::Other(number.as_str().to_owned()),
        DeValue::Integer(_) | DeValue::Datetime(_) | DeValue::Table(_) => return None,
        DeValue::Float(number) => Value::Other(number.as_str().to_owned()),
        DeValue::Boolean(truth) => Value::Other(truth.to_string()),
        DeValue::Array(items) => {
            let texts: Option<Vec<String>> =
                items.iter().map(|item| item.get_ref().as_str().map(str::to_owned)).collect();
            Value::List(texts?)
        }
    })
}

/// The prefix of variables that override a key.
pub(crate) const ENV_PREFIX: &str = "POSTHASTE__";

impl Raw {
    /// Lets the environment have its say: `POSTHASTE__HTTP__LISTEN`, `POSTHASTE__SINKS__RABBIT__URL`.
    pub(crate) fn apply_env(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        for (variable, text) in variables {
            let Some(path) = variable.strip_prefix(ENV_PREFIX) else { continue };
            let path: Vec<String> = path.split("__").map(str::to_lowercase).collect();
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            if let Err(why) = self.set(&path, &variable, text) {
                self.mistakes.push(Mistake { place: variable, text: why });
            }
        }
    }

    fn set(&mut self, path: &[&str], place: &str, text: String) -> Result<(), String> {
        let (keys, section, key) = match path {
            ["relay", key] => (&mut self.relay, &schema::RELAY, key),
            ["http", key] => (&mut self.http, &schema::HTTP, key),
            ["encryption", key] => (self.encryption.get_or_insert_default(), &schema::ENCRYPTION, key),
            ["databases", name, key] => (named(&mut self.databases, name), &schema::DATABASE, key),
            ["sinks", name, key] => (named(&mut self.sinks, name), &schema::SINK, key),
            ["settings", key] => {
                if !posthaste::Settings::NAMES.contains(key) {
                    return Err(format!(
                        "there is no setting `{}`{}",
                        name(key),
                        suggestion(key, posthaste::Settings::NAMES.iter().copied())
                    ));
                }
                insert(&mut self.settings, key, place, text);
                return Ok(());
            }
            _ => {
                return Err("names no key; write POSTHASTE__SECTION__KEY, or POSTHASTE__SECTION__NAME__KEY"
                    .to_owned());
            }
        };
        if schema::find(section, key).is_none() {
            let names = section.keys.iter().map(|key| key.name);
            return Err(format!(
                "there is no key `{}` in [{}]{}",
                name(key),
                section.title,
                suggestion(key, names)
            ));
        }
        insert(keys, key, place, text);
        Ok(())
    }

    /// Adds a value that the command line gave.
    pub(crate) fn insert(keys: &mut Keys, key: &str, place: &str, text: impl Into<String>) {
        insert(keys, key, place, text.into());
    }
}

fn insert(keys: &mut Keys, key: &str, place: &str, text: String) {
    let entry = Entry { place: place.to_owned(), value: Value::Text(text) };
    keys.entries.insert(key.to_owned(), entry);
    // The three ways to give a secret replace each other: the one in the environment wins.
    for stem in ["url", "keys"] {
        let ways = [stem.to_owned(), format!("{stem}_env"), format!("{stem}_file")];
        if ways.iter().any(|way| way == key) {
            keys.entries.retain(|name, entry| name == key || !ways.contains(name) || entry.place == place);
        }
    }
    if keys.place.is_empty() {
        place.clone_into(&mut keys.place);
    }
}

/// The section of this name; variables have no small letters and no hyphens.
fn named<'a>(sections: &'a mut BTreeMap<String, Keys>, name: &str) -> &'a mut Keys {
    let plain = |text: &str| text.to_lowercase().replace(['-', '.'], "_");
    let known = sections.keys().find(|known| plain(known) == name).cloned();
    sections.entry(known.unwrap_or_else(|| name.to_owned())).or_default()
}
