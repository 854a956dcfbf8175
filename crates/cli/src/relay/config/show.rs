//! The effective configuration, for people and programs to read: the given values, the defaults of the rest, and no
//! secrets.

use serde_json::{Map, Value as Json, json};

use posthaste::Settings;

use super::raw::{Keys, Raw, Value};
use super::schema::{self, Section, Shape};
use super::{Database, SinkConfig};
use crate::relay::secret::{HIDDEN, shown_url};

/// Everything that counts.
pub(super) fn effective(
    raw: &Raw,
    settings: &Settings,
    databases: &[Database],
    sinks: &[SinkConfig],
) -> Json {
    let mut all = Map::new();
    all.insert("relay".into(), section(&raw.relay, &schema::RELAY, None));
    let urls = databases.iter().map(|database| (database.name.clone(), shown_url(database.url.reveal())));
    all.insert("databases".into(), named(&raw.databases, &schema::DATABASE, &urls.collect::<Vec<_>>()));
    let urls = sinks.iter().map(|sink| (sink.name.clone(), shown_url(sink.url.reveal())));
    let mut shown = named(&raw.sinks, &schema::SINK, &urls.collect::<Vec<_>>());
    for sink in sinks {
        // A default that says nothing about this kind is none.
        if let Some(keys) = shown.get_mut(&sink.name).and_then(Json::as_object_mut) {
            keys.retain(|key, _| sink.kind.has(key));
        }
    }
    all.insert("sinks".into(), shown);
    let routes = raw.routes.iter().map(|keys| section(keys, &schema::ROUTE, None)).collect();
    all.insert("routes".into(), Json::Array(routes));
    all.insert("settings".into(), shown_settings(raw, settings));
    let mut http = section(&raw.http, &schema::HTTP, None);
    let tokens: Vec<Json> = raw.tokens.iter().map(|keys| section(keys, &schema::TOKEN, None)).collect();
    if let (Some(http), false) = (http.as_object_mut(), tokens.is_empty()) {
        http.insert("tokens".into(), Json::Array(tokens));
    }
    all.insert("http".into(), http);
    if let Some(keys) = &raw.encryption {
        all.insert("encryption".into(), section(keys, &schema::ENCRYPTION, None));
    }
    Json::Object(all)
}

fn named(
    sections: &std::collections::BTreeMap<String, Keys>,
    schema: &Section,
    urls: &[(String, String)],
) -> Json {
    let shown = sections.iter().map(|(name, keys)| {
        let url = urls.iter().find(|(of, _)| of == name).map(|(_, url)| url.as_str());
        (name.clone(), section(keys, schema, url))
    });
    Json::Object(shown.collect())
}

/// One section; wherever its URL came from, it is shown as it is shown.
fn section(keys: &Keys, schema: &Section, url: Option<&str>) -> Json {
    let mut shown = Map::new();
    for key in schema.keys {
        let written = keys.entries.get(key.name).map(|entry| &entry.value);
        let value = match (key.shape, written) {
            (Shape::Url, written) => match (url, written) {
                (Some(url), _) => Some(json!(url)),
                (None, Some(_)) => Some(json!(HIDDEN)),
                (None, None) => None,
            },
            (_, Some(Value::List(texts))) => Some(json!(texts)),
            (shape, Some(Value::Text(text) | Value::Other(text))) => Some(typed(shape, text)),
            (shape, None) => Some(key.default).filter(|text| !text.is_empty()).map(|text| typed(shape, text)),
        };
        if let Some(value) = value {
            shown.insert(key.name.into(), value);
        }
    }
    Json::Object(shown)
}

fn typed(shape: Shape, text: &str) -> Json {
    match shape {
        Shape::Number(..) => {
            text.replace('_', "").parse::<i64>().map_or_else(|_| json!(text), |number| json!(number))
        }
        Shape::Bool => text.parse::<bool>().map_or_else(|_| json!(text), |truth| json!(truth)),
        _ => json!(text),
    }
}

fn shown_settings(raw: &Raw, settings: &Settings) -> Json {
    let mut shown = Map::new();
    for info in Settings::table() {
        let written = raw.settings.entries.get(info.name).and_then(|entry| entry.value.text());
        let own = (info.name == "workers").then(|| settings.workers.to_string());
        let text = written.map(str::to_owned).or(own).unwrap_or(info.default);
        let value = text.replace('_', "").parse::<i64>().map(|number| json!(number));
        let value = value.or_else(|_| text.parse::<bool>().map(|truth| json!(truth)));
        shown.insert(info.name.into(), value.unwrap_or_else(|_| json!(text)));
    }
    Json::Object(shown)
}

/// The same as TOML.
pub(crate) fn toml(shown: &Json) -> String {
    let mut text = String::new();
    for (title, value) in shown.as_object().into_iter().flatten() {
        write(&mut text, title, value);
    }
    text.trim_start().to_owned()
}

fn write(text: &mut String, title: &str, value: &Json) {
    if let Json::Array(items) = value {
        for item in items {
            text.push_str(&format!("\n[[{title}]]\n"));
            body(text, title, item);
        }
        return;
    }
    let is_group = |value: &Json| {
        value.as_object().is_some_and(|map| !map.is_empty() && map.values().all(Json::is_object))
    };
    if is_group(value) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let name = if name.contains('.') { format!("\"{name}\"") } else { name.clone() };
            write(text, &format!("{title}.{name}"), value);
        }
        return;
    }
    text.push_str(&format!("\n[{title}]\n"));
    body(text, title, value);
}

fn body(text: &mut String, title: &str, value: &Json) {
    let mut later = Vec::new();
    for (key, value) in value.as_object().into_iter().flatten() {
        match value {
            Json::Array(items) if items.iter().any(Json::is_object) => later.push((key, value)),
            _ => text.push_str(&format!("{key} = {value}\n")),
        }
    }
    for (key, value) in later {
        write(text, &format!("{title}.{key}"), value);
    }
}
