//! Redacts a message's own words in an error's text: values of the payload, headers, keys and users' ids.
//!
//! Errors quote input that they could not process, and error texts are stored and logged. This is the second line of
//! defence; the first is not to put payloads into errors.

use std::collections::HashSet;

use serde_json::Value;

use crate::encryption::ENCRYPTION_HEADER;
use crate::inbox::Received;
use crate::message::{Headers, Message};

/// Shorter words are not secrets, or not recognisable as such.
const SHORTEST: usize = 4;
const BLOT: &str = "[redacted]";

/// The text without words that stand in the message's values. Names of fields stay: they are the code's, not the user's.
pub(crate) fn redact(text: &str, message: &Message) -> String {
    let Message { key, correlation_id, aggregate_id, tenant_id, .. } = message;
    let names = [key, correlation_id, aggregate_id, tenant_id].into_iter().flatten();
    blot(text, &Values::of(&message.payload, &message.headers, names))
}

/// The same for a message that came from a broker.
pub(crate) fn redact_received(text: &str, message: &Received) -> String {
    blot(text, &Values::of(&message.payload, &message.headers, &message.correlation_id))
}

fn blot(text: &str, values: &Values) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(is_word) {
        let (before, tail) = rest.split_at(start);
        let end = tail.find(|c| !is_word(c)).unwrap_or(tail.len());
        let (word, after) = tail.split_at(end);
        out.push_str(before);
        out.push_str(if values.contain(word) { BLOT } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '@' | '.' | '+')
}

/// Every word of every value of a message.
#[derive(Default)]
struct Values {
    words: HashSet<String>,
}

impl Values {
    fn of<'a>(payload: &[u8], headers: &Headers, names: impl IntoIterator<Item = &'a String>) -> Self {
        let mut values = Self::default();
        match serde_json::from_slice::<Value>(payload) {
            Ok(json) => values.add_json(&json),
            Err(_) => values.add(&String::from_utf8_lossy(payload)),
        }
        // Under which key it is encrypted is for operators to know.
        let own = headers.iter().filter(|(name, _)| *name != ENCRYPTION_HEADER);
        own.for_each(|(_, value)| values.add(value));
        names.into_iter().for_each(|name| values.add(name));
        values
    }

    fn add(&mut self, text: &str) {
        for word in text.split(|c| !is_word(c)).filter(|word| word.len() >= SHORTEST) {
            self.words.insert(bare(word).to_owned());
        }
    }

    fn add_json(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.add(text),
            Value::Number(number) => self.add(&number.to_string()),
            Value::Array(values) => values.iter().for_each(|value| self.add_json(value)),
            Value::Object(fields) => fields.values().for_each(|value| self.add_json(value)),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn contain(&self, word: &str) -> bool {
        let bare = bare(word);
        bare.len() >= SHORTEST && self.words.contains(bare)
    }
}

/// A word without the punctuation that a sentence puts around it.
fn bare(word: &str) -> &str {
    word.trim_matches(|c| matches!(c, '.' | '-' | '_' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkerId;
    use crate::message::NewMessage;
    use crate::store::memory::MemoryStore;
    use crate::store::{ClaimRequest, Store};

    async fn message(builder: crate::message::MessageBuilder) -> Message {
        let store = MemoryStore::new();
        store.enqueue(&[builder.build().unwrap()]).await.unwrap();
        store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap().remove(0)
    }

    /// OBX-125: values of a payload, headers and keys are redacted; names of fields and other words stay.
    #[tokio::test(flavor = "current_thread")]
    async fn values_are_blotted_out() {
        let json = serde_json::json!({ "email": "ann@example.org", "card": { "number": 4111222233334444u64 }, "n": 7 });
        let builder = NewMessage::json("t", &json).header("auth", "Bearer abc.def-123").key("customer-9");
        let message = message(builder).await;
        let text =
            "invalid email ann@example.org: card number 4111222233334444 (abc.def-123), customer-9, n=7.";
        assert_eq!(
            redact(text, &message),
            "invalid email [redacted]: card number [redacted] ([redacted]), [redacted], n=7."
        );
        assert_eq!(redact("", &message), "");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn payloads_that_are_no_json_are_read_as_words() {
        let message = message(NewMessage::bytes("t", b"name;secret-word\xff".to_vec())).await;
        assert_eq!(redact("bad line: name;secret-word", &message), "bad line: [redacted];[redacted]");
    }
}
