//! What selects handlers and routes: topics, and patterns over them.
//!
//! Topics are compared byte by byte: `Order.Placed`, `order.placed` and `order.placed ` are three topics.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::text;

/// The name under which a message is published: 1 to 255 bytes, compared byte by byte.
///
/// ```
/// use posthaste_core::Topic;
///
/// assert_eq!(Topic::new("order.placed")?.as_str(), "order.placed");
/// assert!(Topic::new("").is_err());
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Topic(String);

impl Topic {
    /// The most bytes that a topic may have.
    pub const MAX_BYTES: usize = 255;

    /// The topic with this name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        text::required("topic", name.into(), Self::MAX_BYTES).map(Self)
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Topic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Topic {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for Topic {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl PartialEq<str> for Topic {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Topic {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// A set of topics: all, or the ones that match one of some patterns.
///
/// A pattern is a topic, or the beginning of one followed by `*`: `order.*` matches `order.placed` and
/// `order.line.added`, and `*` matches everything.
///
/// ```
/// use posthaste_core::Topics;
///
/// let topics = Topics::of(["order.*", "payment.received"])?;
/// assert!(topics.contains("order.placed"));
/// assert!(!topics.contains("payment.refused"));
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topics(Option<Patterns>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Patterns {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl Topics {
    /// Every topic.
    pub fn all() -> Self {
        Self(None)
    }

    /// No topic at all.
    pub fn none() -> Self {
        Self(Some(Patterns::default()))
    }

    /// Whether no topic is in the set.
    pub fn is_none(&self) -> bool {
        self.0.as_ref().is_some_and(|set| set.exact.is_empty() && set.prefixes.is_empty())
    }

    /// The topics that match one of these patterns. No pattern at all is the empty set.
    pub fn of<P: AsRef<str>>(patterns: impl IntoIterator<Item = P>) -> Result<Self> {
        let mut set = Patterns::default();
        for pattern in patterns {
            let pattern = text::required("topic pattern", pattern.as_ref().to_owned(), Topic::MAX_BYTES)?;
            match pattern.split_once('*') {
                None => set.exact.push(pattern),
                Some(("", "")) => return Ok(Self::all()),
                Some((prefix, "")) => set.prefixes.push(prefix.to_owned()),
                Some(_) => {
                    return Err(Error::invalid(
                        "topic pattern has a * before its end",
                        "use * only as the last character, as in order.*",
                    )
                    .with_context("pattern", pattern));
                }
            }
        }
        Ok(Self(Some(set)))
    }

    /// Whether this topic is in the set.
    pub fn contains(&self, topic: &str) -> bool {
        self.0.as_ref().is_none_or(|set| {
            set.exact.iter().any(|exact| exact == topic)
                || set.prefixes.iter().any(|prefix| topic.starts_with(prefix.as_str()))
        })
    }

    /// Whether a topic of this pattern may be in the set.
    pub(crate) fn meets(&self, pattern: &str) -> bool {
        let Some(set) = &self.0 else { return true };
        match pattern.strip_suffix('*') {
            None => self.contains(pattern),
            Some(beginning) => {
                set.exact.iter().any(|exact| exact.starts_with(beginning))
                    || set
                        .prefixes
                        .iter()
                        .any(|prefix| prefix.starts_with(beginning) || beginning.starts_with(prefix.as_str()))
            }
        }
    }

    /// Whether every topic of this pattern is in the set.
    pub(crate) fn covers(&self, pattern: &str) -> bool {
        let Some(set) = &self.0 else { return true };
        match pattern.strip_suffix('*') {
            None => self.contains(pattern),
            Some(beginning) => set.prefixes.iter().any(|prefix| beginning.starts_with(prefix.as_str())),
        }
    }

    /// Whether this is the set of all topics.
    pub fn is_all(&self) -> bool {
        self.0.is_none()
    }

    /// The topics named in full; empty for the set of all.
    pub fn exact(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |set| &set.exact)
    }

    /// The beginnings of topics, without their `*`; empty for the set of all.
    pub fn prefixes(&self) -> &[String] {
        self.0.as_ref().map_or(&[], |set| &set.prefixes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_documented() {
        let topics = Topics::of(["order.*", "Exact"]).unwrap();
        for (topic, expected) in [
            ("order.", true),
            ("order.placed", true),
            ("order", false),
            ("Order.placed", false),
            ("Exact", true),
            ("Exact ", false),
            ("exact", false),
        ] {
            assert_eq!(topics.contains(topic), expected, "{topic}");
        }
        assert!(Topics::of(["x", "*"]).unwrap().is_all());
        assert!(!Topics::of([""; 0]).unwrap().contains("x"));
    }

    #[test]
    fn a_star_elsewhere_is_refused_with_the_remedy() {
        let error = Topics::of(["order.*.placed"]).unwrap_err();
        assert!(error.to_string().contains("pattern=order.*.placed"), "{error}");
        assert!(error.to_string().contains("last character"), "{error}");
    }
}
