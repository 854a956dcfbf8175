//! The options of a database URL: the drivers ignore unknown ones, and a misspelt `sslmode` would connect in plain text.
//! Nothing here shows a value, and no name that may be part of a password.

use posthaste_core::{Error, ErrorKind, Result};

/// Refuses a URL with an option that its driver does not know. A known one that ends in `[` is a family, like
/// `options[search_path]`; one with a value may have no other.
pub(crate) fn check_options(url: &str, known: &[&str]) -> Result<()> {
    let Some((_, query)) = url.split_once('?') else { return Ok(()) };
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let is_known = |known: &&str| match (known.strip_suffix('['), known.split_once('=')) {
            (Some(family), _) => {
                name.strip_prefix(family).is_some_and(|rest| rest.starts_with('[') && rest.ends_with(']'))
            }
            (None, Some((known, only))) => name == known && value.eq_ignore_ascii_case(only),
            (None, None) => name == **known,
        };
        if !known.iter().any(is_known) {
            // A part of a password, perhaps, that has a ? or a & in it.
            let is_login = query.contains('@') || query.contains("password");
            return Err(refuse(if is_login { "" } else { &name }, known));
        }
    }
    Ok(())
}

/// Refuses a URL with a `#`: the drivers drop all that follows it, options for TLS included.
pub(crate) fn check_fragment(url: &str) -> Result<()> {
    if !url.contains('#') {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Configuration, "the database URL has a # in it")
        .during("connect")
        .with_remedy("write it as %23: what follows a # is not read"))
}

fn refuse(name: &str, known: &[&str]) -> Error {
    let is_plain =
        name.len() <= 40 && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    let (text, remedy) = if is_plain && !name.is_empty() {
        let lower = name.to_ascii_lowercase();
        let near = known.iter().map(|known| (strsim::damerau_levenshtein(&lower, known), *known)).min();
        let only = known.iter().find(|known| known.split_once('=').is_some_and(|(known, _)| known == lower));
        let remedy = match (only, near) {
            (Some(only), _) => format!("write it as {only}, or leave it out"),
            (None, Some((distance, near))) if distance <= 1 + near.len() / 4 => {
                format!("did you mean `{near}`?")
            }
            _ => {
                let all: Vec<&str> = known.iter().filter(|known| !known.ends_with('[')).copied().collect();
                format!("remove it; these are known: {}", all.join(", "))
            }
        };
        (format!("unknown option `{name}` in the database URL"), remedy)
    } else {
        let remedy = "write it like ?name=value&name=value; a ? or & in a password is written as %3F or %26";
        ("unknown option in the database URL".to_owned(), remedy.to_owned())
    };
    Error::new(ErrorKind::Configuration, text).during("connect").with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["sslmode", "ssl-mode", "host", "charset=utf8mb4", "options", "options["];

    #[test]
    fn known_options_pass() {
        for url in [
            "postgres://u:p@h/db",
            "postgres://u:p@h/db?sslmode=verify-full&host=%2Frun",
            "postgres://u:p@h/db?options[search_path]=x&options%5Bjit%5D=off&options=-c%20a%3Db&charset=UTF8MB4",
            "postgres://u:p@h/db?",
        ] {
            check_options(url, KNOWN).unwrap();
        }
    }

    #[test]
    fn unknown_options_are_refused_with_a_suggestion() {
        let refused =
            |query: &str| check_options(&format!("x://u@h/db?{query}"), KNOWN).unwrap_err().to_string();
        for misspelt in ["sslmod=verify-full", "SSLMODE=verify-full", "ssl_mode=require", "host=a&slmode=x"] {
            let error = refused(misspelt);
            assert!(error.contains("did you mean `ssl"), "{misspelt}: {error}");
        }
        let far = refused("target_session_attrs=primary");
        assert!(far.contains("`target_session_attrs`") && far.contains("these are known: sslmode"), "{far}");
        assert!(refused("options[=x").contains("unknown option"), "no family without its end");
        let charset = refused("charset=latin1");
        assert!(charset.contains("write it as charset=utf8mb4"), "{charset}");
        let fragment = check_fragment("x://u:se#cret@h/db?application_name=a#1&sslmode=require")
            .unwrap_err()
            .to_string();
        assert!(fragment.contains("%23") && !fragment.contains("cret"), "{fragment}");
    }

    #[test]
    fn what_may_be_a_password_is_not_shown() {
        for url in [
            "postgres://u:se?cret@h/db?sslmode=x",
            "postgres://u:se?cret&x@h/db",
            "postgres://h/db?password=se&cret",
        ] {
            let error = check_options(url, KNOWN).unwrap_err().to_string();
            assert!(!error.contains("cret") && error.contains("%3F"), "{error}");
        }
    }
}
