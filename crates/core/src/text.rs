//! Checks and repairs of text before it goes to a database. Lengths are in bytes.
//!
//! NUL is refused in every name, because PostgreSQL cannot store it and SQLite's `length()` stops at it: a name that
//! only some databases accept breaks on the day you move to another.

use crate::error::{Error, Result};

/// A text that must be there, of at most `max` bytes.
pub(crate) fn required(field: &str, value: String, max: usize) -> Result<String> {
    if value.is_empty() {
        return Err(Error::invalid(format!("{field} is empty"), format!("give it 1 to {max} bytes")));
    }
    if value.len() > max {
        return Err(Error::invalid(
            format!("{field} has {} bytes, the limit is {max}", value.len()),
            "shorten it".to_owned(),
        ));
    }
    if value.contains('\0') {
        return Err(Error::invalid(format!("{field} contains a NUL character"), "remove it"));
    }
    Ok(value)
}

/// A text that may be left out, where the empty text means the same as none.
pub(crate) fn optional(field: &str, value: Option<String>, max: usize) -> Result<Option<String>> {
    match value {
        Some(text) if !text.is_empty() => required(field, text, max).map(Some),
        _ => Ok(None),
    }
}

/// The longest prefix of `text`, without NUL, that has at most `max` bytes and ends at a character's boundary.
pub(crate) fn cut(text: &str, max: usize) -> String {
    let mut out = String::with_capacity(text.len().min(max));
    for c in text.chars().filter(|c| *c != '\0') {
        if out.len() + c.len_utf8() > max {
            break;
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_are_in_bytes() {
        assert!(required("topic", "é".repeat(127) + "x", 255).is_ok());
        let error = required("topic", "é".repeat(128), 255).unwrap_err();
        assert_eq!(error.to_string(), "invalid input: topic has 256 bytes, the limit is 255; shorten it");
        assert_eq!(optional("key", Some(String::new()), 255).unwrap(), None);
        assert!(optional("key", Some("a\0".into()), 255).is_err());
    }

    proptest! {
        /// HOT-018: cut to a number of bytes, at a character's boundary, without NUL, for any text.
        #[test]
        fn cut_fits_and_is_a_prefix(text in "\\PC*|[\0a𝄞é]{0,40}", max in 0usize..60) {
            let out = cut(&text, max);
            let clean: String = text.chars().filter(|c| *c != '\0').collect();
            prop_assert!(out.len() <= max);
            prop_assert!(clean.starts_with(&out));
            prop_assert!(out == clean || clean[out.len()..].chars().next().unwrap().len_utf8() + out.len() > max);
        }
    }
}
