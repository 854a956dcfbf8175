//! A configuration from the command line alone: some databases, one sink.

use std::collections::BTreeMap;

use super::Args;
use super::config::raw::{Entry, Keys, Mistake, Raw, Value, name, suggestion};
use super::config::schema::{self, Shape};

/// Adds the options of the command line to the file's.
pub(super) fn add(raw: &mut Raw, args: &Args) {
    for (i, url) in args.from.iter().enumerate() {
        let name = if args.from.len() == 1 { "database".to_owned() } else { format!("database{}", i + 1) };
        Raw::insert(raw.databases.entry(name).or_default(), "url", "--from", url);
    }
    if let Some(url) = &args.to {
        let (keys, mistakes) = sink(url);
        raw.sinks.insert("sink".to_owned(), keys);
        raw.mistakes.extend(mistakes);
        let topics = if args.topics.is_empty() { vec!["*".to_owned()] } else { args.topics.clone() };
        let entries = [
            ("topics".to_owned(), Entry { place: "--topics".to_owned(), value: Value::List(topics) }),
            ("sink".to_owned(), Entry { place: "--to".to_owned(), value: Value::Text("sink".to_owned()) }),
        ];
        raw.routes.push(Keys { place: "--to".to_owned(), entries: BTreeMap::from(entries) });
    }
    if let Some(listen) = &args.listen {
        Raw::insert(&mut raw.http, "listen", "--listen", listen);
    }
}

/// The query options of a RabbitMQ URL that are the client's.
const RABBITMQ: [&str; 5] = ["auth_mechanism", "channel_max", "connection_timeout", "frame_max", "heartbeat"];

/// The sink of a URL, and its mistakes. Query options of the sink are posthaste's, the rest must be the broker's: a
/// misspelt exchange must not pass for none.
fn sink(url: &str) -> (Keys, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let mut keys = Keys { place: "--to".to_owned(), entries: BTreeMap::new() };
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let mut rest = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some((key, value)) if is_own(key) => Raw::insert(&mut keys, key, "--to", value),
            Some((key, _)) if base.starts_with("amqp") && RABBITMQ.contains(&key) => rest.push(pair),
            named => {
                let key = named.map_or(pair, |(key, _)| key);
                let known = schema::SINK.keys.iter().map(|key| key.name).filter(|name| is_own(name));
                let hint = suggestion(key, known);
                let text = format!("unknown key `{}` in the sink's URL{hint}", name(key));
                mistakes.push(Mistake { place: "--to".to_owned(), text });
            }
        }
    }
    let url = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
    Raw::insert(&mut keys, "url", "--to", url);
    (keys, mistakes)
}

fn is_own(key: &str) -> bool {
    schema::find(&schema::SINK, key).is_some_and(|key| key.shape != Shape::Url)
        && !matches!(key, "url_env" | "url_file" | "connect_timeout")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_says_what_the_sink_is_told() {
        let (keys, mistakes) = sink("amqp://u:p@rabbit/shop?exchange=orders&heartbeat=5&window=10");
        assert!(mistakes.is_empty());
        let text = |key: &str| keys.entries.get(key).and_then(|entry| entry.value.text()).map(str::to_owned);
        assert_eq!(text("url").as_deref(), Some("amqp://u:p@rabbit/shop?heartbeat=5"));
        assert_eq!((text("exchange"), text("window")), (Some("orders".to_owned()), Some("10".to_owned())));
        assert_eq!(sink("log:").0.entries.len(), 1);
        for (url, says) in [
            (
                "amqp://rabbit?exchang=shop",
                "unknown key `exchang` in the sink's URL; did you mean `exchange`?",
            ),
            ("nats://n?strem=ORDERS", "did you mean `stream`?"),
            ("nats://n?heartbeat=5", "unknown key `heartbeat`"),
        ] {
            let (_, mistakes) = sink(url);
            assert!(mistakes.len() == 1 && mistakes[0].text.contains(says), "{}", mistakes[0].text);
        }
    }
}
