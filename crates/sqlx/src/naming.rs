//! Names that come from configuration: the schema, and the prefix of everything that posthaste creates.
//!
//! They are the only text that is ever put into SQL, and this is the only file that does it. They are checked against
//! an allow-list and quoted, once, when a store is made; everything else is bound.

use std::ops::RangeInclusive;

use posthaste_core::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};

/// The longest schema name or prefix, so that a prefix and our longest name together fit into every database's limit.
const MAX_BYTES: usize = 32;

/// The schema and the prefix of posthaste's tables, indexes and routines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Naming {
    pub(crate) schema: Option<String>,
    pub(crate) prefix: String,
    pub(crate) quote: char,
}

impl Naming {
    pub(crate) fn new(schema: Option<String>, prefix: String, quote: char) -> Result<Self> {
        if let Some(schema) = &schema {
            check("schema name", schema, 1..=MAX_BYTES)?;
        }
        check("table prefix", &prefix, 0..=MAX_BYTES)?;
        Ok(Self { schema, prefix, quote })
    }

    /// The name in full, quoted.
    pub(crate) fn full(&self, name: &str) -> String {
        let q = self.quote;
        let name = self.short(name);
        self.schema.as_ref().map_or_else(|| name.clone(), |schema| format!("{q}{schema}{q}.{name}"))
    }

    /// The name of the channel on which processes with these tables tell each other that there is something to claim.
    /// A digest, because schema and prefix together may be longer than the 63 bytes that a name may have.
    pub(crate) fn channel(&self) -> String {
        let digest = Sha256::digest(format!("posthaste nudge {}", self.full("outbox")));
        digest.iter().take(16).fold("posthaste_".to_owned(), |name, byte| name + &format!("{byte:02x}"))
    }

    fn short(&self, name: &str) -> String {
        let q = self.quote;
        format!("{q}{}{name}{q}", self.prefix)
    }

    /// The SQL of a file, with its marks replaced: `/*:*/name` by the name in full, `/*+*/name` by the name with its
    /// prefix alone (for indexes, which live where their table does), `/*=*/name` by the schema. Lines that are
    /// comments are left out.
    pub(crate) fn render(&self, sql: &str) -> String {
        let mut out = String::with_capacity(sql.len() + 256);
        for line in sql.lines().filter(|line| !line.trim_start().starts_with("--")) {
            let mut rest = line;
            while let Some(at) = rest.find("/*") {
                out.push_str(&rest[..at]);
                let (mark, after) = rest[at..].split_at(rest[at..].len().min(5));
                let end =
                    after.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(after.len());
                match mark {
                    "/*:*/" => out.push_str(&self.full(&after[..end])),
                    "/*+*/" => out.push_str(&self.short(&after[..end])),
                    "/*=*/" => {
                        let schema = self.schema.as_deref().unwrap_or(&after[..end]);
                        out.extend([&self.quote.to_string(), schema, &self.quote.to_string()]);
                    }
                    _ => {
                        out.push_str(mark);
                        rest = after;
                        continue;
                    }
                }
                rest = &after[end..];
            }
            out.push_str(rest);
            out.push('\n');
        }
        out.trim().to_owned()
    }
}

/// A name that is not ours, such as a role's, in PostgreSQL's quotes.
#[cfg(feature = "postgres")]
pub(crate) fn quoted(what: &str, name: &str) -> Result<String> {
    check(what, name, 1..=63)?;
    Ok(format!("\"{name}\""))
}

fn check(what: &str, name: &str, bytes: RangeInclusive<usize>) -> Result<()> {
    let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if plain && bytes.contains(&name.len()) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        return Ok(());
    }
    let most = bytes.end();
    Err(Error::new(ErrorKind::Configuration, format!("{what} {name:?} is not acceptable")).with_remedy(
        format!("use at most {most} ASCII letters, digits and underscores, the first one not a digit"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn marks_become_quoted_names() {
        let naming = Naming::new(Some("app".into()), "ph_".into(), '"').unwrap();
        let sql = "-- a comment\nselect /* kept */ 1 from /*:*/outbox o, x\n  -- another\nwhere /*+*/outbox_ready = /*=*/s";
        let rendered = naming.render(sql);
        assert_eq!(
            rendered,
            "select /* kept */ 1 from \"app\".\"ph_outbox\" o, x\nwhere \"ph_outbox_ready\" = \"app\""
        );
        let plain = Naming::new(None, String::new(), '`').unwrap();
        assert_eq!(plain.render("/*:*/outbox"), "`outbox`");
    }

    /// Every process must come to the same name, whichever release it runs.
    #[test]
    fn channels_are_short_stable_and_apart() {
        let channel = |schema: &str, prefix: &str| {
            Naming::new(Some(schema.into()), prefix.into(), '"').unwrap().channel()
        };
        assert_eq!(channel("posthaste", ""), "posthaste_ce5dd390dc97cab647d4cd4e039d33eb");
        assert_ne!(channel("a", "b_"), channel("a", "c_"));
        assert_ne!(channel("a", "b_"), channel("b", "b_"));
        assert!(channel(&"s".repeat(32), &"p".repeat(32)).len() <= 63);
    }

    proptest! {
        /// An accepted name cannot end its quotes, and so cannot be executed.
        #[test]
        fn only_plain_names_pass(name in "\\PC{0,40}|[a-z`\"\\]';\\- \0]{1,40}|[A-Za-z_][A-Za-z0-9_]{0,40}") {
            let plain = !name.is_empty() && name.len() <= MAX_BYTES && !name.starts_with(|c: char| c.is_ascii_digit())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            prop_assert_eq!(Naming::new(Some(name.clone()), String::new(), '"').is_ok(), plain);
            prop_assert_eq!(Naming::new(None, name.clone(), '"').is_ok(), plain || name.is_empty());
        }
    }
}
