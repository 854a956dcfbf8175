//! Which session keeps a message's row locked, so that claims pass it over. On connections of its own, because it may have to wait
//! for the lock, and because what it takes of it is given back at once.
//!
//! Never the text of a statement: it has values in it.

#[cfg(feature = "mysql")]
pub(crate) mod mysql;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

use std::time::SystemTime;

use posthaste_core::Holder;

/// A holder that nobody can name.
#[cfg(any(feature = "postgres", feature = "mysql"))]
fn somebody() -> Holder {
    Holder {
        session: "unknown".to_owned(),
        about: "some session keeps the row locked, and this role may not see which, or there are several"
            .to_owned(),
        since: None,
    }
}

/// A holder with what is known about it; what is empty is left out.
fn holder(session: String, about: &[(&str, Option<String>)], since: Option<SystemTime>) -> Holder {
    let known = about.iter().filter_map(|(what, text)| Some((what, text.as_deref()?)));
    let known = known.filter(|(_, text)| !text.is_empty()).map(|(what, text)| format!("{what} {text}"));
    Holder { session, about: known.collect::<Vec<_>>().join(", "), since }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_left_out() {
        let about = [("user", Some("ada".to_owned())), ("program", Some(String::new())), ("from", None)];
        assert_eq!(holder("7".to_owned(), &about, None).about, "user ada");
    }
}
