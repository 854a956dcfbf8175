//! Percent-encoding of characters that a subject or a header cannot have: reversible and deterministic.
//!
//! Ordinary texts stay as they are. Nothing here may lose a byte: escaped text can be read back.

use std::fmt::Write as _;

/// Writes a character byte by byte as `%XX`.
pub(crate) fn push(out: &mut String, character: char) {
    let mut bytes = [0; 4];
    for byte in character.encode_utf8(&mut bytes).bytes() {
        // Writing to a string cannot fail.
        let _ = write!(out, "%{byte:02X}");
    }
}

/// A text as the value of a header: no line break, no other control character, no blank at its ends, and no `%` that does not
/// stand for something.
pub(crate) fn value(text: &str) -> String {
    let inner = text.trim();
    if inner.len() == text.len() && !text.chars().any(is_unfit) {
        return text.to_owned();
    }
    let start = text.len() - text.trim_start().len();
    let end = start + inner.len();
    let mut out = String::with_capacity(text.len() + 16);
    for (at, character) in text.char_indices() {
        if is_unfit(character) || at < start || at >= end {
            push(&mut out, character);
        } else {
            out.push(character);
        }
    }
    out
}

/// Whether a header can carry this text as it is, for readers that do not look for escapes.
pub(crate) fn is_plain(text: &str) -> bool {
    text.trim().len() == text.len() && !text.chars().any(char::is_control)
}

fn is_unfit(character: char) -> bool {
    character.is_control() || character == '%'
}

/// Undoes it; nothing if a `%` is not followed by two hexadecimal digits, or if the bytes are no text.
pub(crate) fn decode(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || char::from(rest.next()?).to_digit(16);
        let code = digit()? * 16 + digit()?;
        bytes.push(u8::try_from(code).ok()?);
    }
    String::from_utf8(bytes).ok()
}

/// The same for what others may have written: a text that makes no sense as an escaped one is taken as it is.
pub(crate) fn decode_or_keep(text: &str) -> String {
    decode(text).unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back() {
        for text in ["", "plain", "a b", " a ", "50 %", "a\r\nNats-Rollup: all", "\u{a0}ä€\t", "%41", " "]
        {
            let escaped = value(text);
            assert!(!escaped.contains(['\r', '\n']) && escaped.trim() == escaped, "{escaped}");
            assert_eq!(decode(&escaped).as_deref(), Some(text));
        }
        assert_eq!(value("application/json; charset=utf-8"), "application/json; charset=utf-8");
    }

    #[test]
    fn nonsense_of_others_is_kept() {
        assert_eq!(decode("50 % off"), None);
        assert_eq!(decode("%ff"), None);
        assert_eq!(decode_or_keep("50 % off"), "50 % off");
    }
}
