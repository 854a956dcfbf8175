//! From topics to subjects, and which texts the server takes for one.
//!
//! Every topic has exactly one subject, and no two have the same. A topic must never reach the server as a wildcard, as one
//! of the server's own subjects, or as the inbox of a client: a message is neither a command nor an answer.

use posthaste_core::Result;

use crate::escape;
use crate::options::refused;

/// The subject of a topic: the topic, with `%XX` for characters that a subject cannot have. That is blanks and control
/// characters, `*`, `>` and `%` anywhere, a `.` without something on both of its sides, and a `$` or `_` at the beginning.
///
/// `$` begins the server's own subjects, such as `$JS` and `$SYS`. `_` begins the subjects on which clients and servers get
/// replies, such as `_INBOX` and `_R_`. Behind a prefix both are ordinary letters.
pub(crate) fn of_topic(prefix: &str, topic: &str) -> String {
    let mut subject = String::with_capacity(prefix.len() + 1 + topic.len());
    if !prefix.is_empty() {
        subject.push_str(prefix);
        subject.push('.');
    }
    let mut before = '.';
    let mut characters = topic.chars().peekable();
    while let Some(character) = characters.next() {
        let parts_nothing = character == '.' && (before == '.' || characters.peek().is_none());
        let is_reserved = subject.is_empty() && matches!(character, '$' | '_');
        if is_unfit(character) || parts_nothing || is_reserved {
            escape::push(&mut subject, character);
            // An escaped dot is not a dot any more.
            before = '%';
        } else {
            subject.push(character);
            before = character;
        }
    }
    subject
}

fn is_unfit(character: char) -> bool {
    character.is_whitespace() || character.is_control() || matches!(character, '*' | '>' | '%')
}

/// Refuses text that is not a single subject.
pub(crate) fn check(what: &str, subject: &str) -> Result<()> {
    let fault = if subject.is_empty() {
        "is empty"
    } else if subject.split('.').any(str::is_empty) {
        "has nothing between two dots"
    } else if subject.chars().any(|c| c.is_whitespace() || c.is_control() || matches!(c, '*' | '>')) {
        "has a blank or a wildcard"
    } else if subject.starts_with('$') || subject.starts_with("_INBOX") {
        "is one of the server's own, or a client's inbox"
    } else {
        return Ok(());
    };
    Err(refused(format!("{what} {fault}"), "give it words with dots between them, such as `shop.orders`"))
}

/// Refuses what cannot be the name of a stream or of a consumer.
pub(crate) fn check_name(what: &str, name: &str) -> Result<()> {
    let unfit = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '.' | '*' | '>' | '/' | '\\');
    if name.is_empty() || name.len() > 255 || name.chars().any(unfit) {
        return Err(refused(
            format!("{what} is not a name for NATS"),
            "give it 1 to 255 letters without blanks, dots, `*`, `>` and slashes",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_topics_are_their_own_subjects() {
        for topic in ["order.placed", "Bestellung.über_alles", "a-b_c.1", "cost$", "a._INBOX.$b"] {
            assert_eq!(of_topic("", topic), topic);
            assert_eq!(of_topic("shop.eu", topic), format!("shop.eu.{topic}"));
        }
    }

    #[test]
    fn what_a_subject_cannot_have_is_escaped() {
        for (topic, subject) in [
            ("order placed", "order%20placed"),
            ("*", "%2A"),
            ("a.>", "a.%3E"),
            (".a", "%2Ea"),
            ("a.", "a%2E"),
            ("a..b", "a.%2Eb"),
            ("...", "%2E.%2E"),
            ("100%", "100%25"),
            ("$JS.API.STREAM.DELETE.X", "%24JS.API.STREAM.DELETE.X"),
            ("_INBOX.x", "%5FINBOX.x"),
            ("_R_.x", "%5FR_.x"),
            ("__", "%5F_"),
            ("._INBOX", "%2E_INBOX"),
            ("a\r\nPUB x", "a%0D%0APUB%20x"),
        ] {
            assert_eq!(of_topic("", topic), subject);
            assert!(check("it", subject).is_ok(), "{subject}");
            assert_eq!(
                escape::decode(subject).as_deref(),
                Some(topic),
                "no two topics have the same subject"
            );
        }
    }

    #[test]
    fn prefixes_and_names_are_checked() {
        for prefix in ["", "a..b", "a.", "a b", "a.*", ">", "$SYS", "_INBOX", "_INBOX.x"] {
            assert!(check("the prefix", prefix).is_err(), "{prefix}");
        }
        for name in ["", "a.b", "a b", "a/b", "*"] {
            assert!(check_name("the stream", name).is_err(), "{name}");
        }
        assert!(check_name("the stream", "ORDERS_2").is_ok());
    }
}
