//! Numbers, ages and texts as people read them.
//!
//! Nothing here decides anything. Stored texts lose what could command a terminal.

use std::time::SystemTime;

use console::{Term, truncate_str};
use posthaste::words::duration;
use posthaste::{Clock as _, Count, SystemClock};

/// What time it is here, to say how long ago something was.
pub(crate) fn now() -> SystemTime {
    SystemClock.now()
}

/// A number with separators: `1,234`.
pub(crate) fn number(number: impl TryInto<u64>) -> String {
    let digits = number.try_into().unwrap_or(u64::MAX).to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A count: `10,000+` if there are more than were counted.
pub(crate) fn count(count: Count) -> String {
    if count.exact {
        return number(count.value);
    }
    // A query that stops at the cap has seen one more than the cap.
    let value = count.value.saturating_sub(1).max(1);
    let round = if count.value.is_multiple_of(10) { count.value } else { value };
    format!("{}+", number(round))
}

/// A number of things: `1 message`, `1,234 messages`.
pub(crate) fn things(count: usize, thing: &str) -> String {
    format!("{} {thing}{}", number(count), if count == 1 { "" } else { "s" })
}

/// How long ago, or how long from now.
pub(crate) fn away(time: SystemTime, now: SystemTime) -> String {
    match now.duration_since(time) {
        Ok(age) => format!("{} ago", duration(age)),
        Err(ahead) => format!("in {}", duration(ahead.duration())),
    }
}

/// Whether a character controls a terminal (C0, C1), breaks a line, or reverses its text.
fn is_hostile(c: char) -> bool {
    let breaks_or_turns = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || breaks_or_turns
}

/// A text without characters that control a terminal, or reverse its text.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if is_hostile(c) { '\u{fffd}' } else { c }).collect()
}

/// The same of a whole answer: lines, tabs and, where colours are on, colours stay.
pub(crate) fn printable_answer(text: &str, colours: bool) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let colour = if colours { colour(rest) } else { "" };
        let taken = if colour.is_empty() { &rest[..c.len_utf8()] } else { colour };
        let stays = !colour.is_empty() || matches!(c, '\n' | '\t') || !is_hostile(c);
        shown.push_str(if stays { taken } else { "\u{fffd}" });
        rest = &rest[taken.len()..];
    }
    shown
}

/// The escape sequence for a colour that a text begins with; empty if it begins with none.
fn colour(text: &str) -> &str {
    let Some(numbers) = text.strip_prefix("\u{1b}[") else { return "" };
    let end = numbers.find(|c: char| !c.is_ascii_digit() && c != ';').unwrap_or(numbers.len());
    if numbers[end..].starts_with('m') { &text[..end + 3] } else { "" }
}

/// The same JSON, in which those characters are escapes. JSON itself escapes only some of them.
pub(crate) fn printable_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for c in json.chars() {
        // Outside of its texts JSON has no control characters but these, and inside it has neither.
        if is_hostile(c) && !matches!(c, '\n' | '\t') {
            shown.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            shown.push(c);
        }
    }
    shown
}

/// A text of one line for a log, in which those characters are escapes.
#[cfg(feature = "relay")]
pub(crate) fn escaped(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hostile(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// The same for a text that may have several lines.
pub(crate) fn printable_lines(text: &str) -> String {
    text.lines().map(|line| printable(&line.replace('\t', "    "))).collect::<Vec<_>>().join("\n")
}

/// A text of one line, at most so many columns wide.
pub(crate) fn cut(text: &str, width: usize) -> String {
    truncate_str(&printable(&text.split_whitespace().collect::<Vec<_>>().join(" ")), width, "…").into_owned()
}

/// How many columns the terminal has; none if answers do not go to one.
pub(crate) fn columns() -> Option<usize> {
    Term::stdout().size_checked().filter(|_| console::user_attended()).map(|(_, columns)| columns.into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_have_separators() {
        for (value, text) in [(0_u64, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(value), text);
        }
        assert_eq!(count(Count { value: 10_001, exact: false }), "10,000+");
        assert_eq!(count(Count { value: 120_000, exact: false }), "120,000+");
        assert_eq!(count(Count { value: 10_000, exact: true }), "10,000");
        assert_eq!((things(1, "message"), things(2, "message")), ("1 message".into(), "2 messages".into()));
    }

    #[test]
    fn times_are_said_from_now() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(away(now - Duration::from_secs(200), now), "3 min 20 s ago");
        assert_eq!(away(now + Duration::from_secs(3_600), now), "in 1 h");
    }

    #[test]
    fn hostile_texts_cannot_command_the_terminal() {
        assert_eq!(
            printable("\u{1b}[31mred\u{7}\u{9b}x\u{202e}"),
            "\u{fffd}[31mred\u{fffd}\u{fffd}x\u{fffd}"
        );
        assert_eq!(printable("a\u{200e}b\u{2028}c\u{61c}\u{2069}"), "a\u{fffd}b\u{fffd}c\u{fffd}\u{fffd}");
        assert_eq!(printable_lines("a\r\nb\u{1b}c"), "a\nb\u{fffd}c");
        assert_eq!(cut("a  b\n c", 10), "a b c");
        assert_eq!(cut("abcdefghijkl", 5), "abcd…");
    }

    #[test]
    fn answers_keep_their_lines_and_colours() {
        let red = "a\t\u{1b}[1;31mred\u{1b}[0m\nb";
        assert_eq!(printable_answer(red, true), red);
        assert_eq!(printable_answer(red, false), "a\t\u{fffd}[1;31mred\u{fffd}[0m\nb");
        let hostile = "\u{1b}]0;x\u{7}\u{1b}[2Jé\u{9b}31m\r\u{202e}\u{1b}[1";
        let shown = "\u{fffd}]0;x\u{fffd}\u{fffd}[2Jé\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}[1";
        assert_eq!(printable_answer(hostile, true), shown);
    }

    #[test]
    fn json_and_logs_have_escapes_in_place_of_hostile_characters() {
        let text = "é\u{7f}\u{9b}31m\u{202e}\u{2028}\u{1b}\r\n";
        let json = serde_json::to_string_pretty(&[text]).unwrap();
        let shown = printable_json(&json);
        assert!(!shown.chars().any(|c| is_hostile(c) && c != '\n'), "{shown:?}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&shown).unwrap(), [text]);
        #[cfg(feature = "relay")]
        assert_eq!(escaped(text), "é\\u{7f}\\u{9b}31m\\u{202e}\\u{2028}\\u{1b}\\r\\n");
    }
}
