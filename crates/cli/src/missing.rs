//! Errors of a build without a feature: the missing feature, and the command that builds it.

use posthaste::{Error, ErrorKind};

/// This build lacks something that the command needs.
pub(crate) fn missing(what: &str, feature: &str) -> Error {
    Error::new(ErrorKind::Configuration, format!("this posthaste was built without {what}")).with_remedy(
        format!(
            "build it in a clone of the repository: `cargo install --path crates/cli` builds everything, \
         `--features {feature}` adds what is missing"
        ),
    )
}
