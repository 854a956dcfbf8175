//! Secrets of the configuration: URLs with logins, tokens, keys.
//!
//! A secret is read where it is used, and shown nowhere: neither by `Debug` nor by `Display`. Of a URL only scheme, host, port
//! and path are ever shown.

use std::fmt;

/// The text that is shown instead.
pub(crate) const HIDDEN: &str = "***";

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for code that needs it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// A URL without its login and its query, which may hold one, too. What cannot be taken apart with certainty is hidden.
pub(crate) fn shown_url(url: &str) -> String {
    let url = url.trim();
    let (Some((scheme, rest)), true) = (url.split_once(':'), url.is_ascii()) else {
        return HIDDEN.to_owned();
    };
    if !scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+') {
        return HIDDEN.to_owned();
    }
    let Some(rest) = rest.strip_prefix("//").filter(|_| scheme != "sqlite") else {
        // A file, or nothing at all; anything else would be ambiguous.
        let rest = if scheme == "sqlite" || rest.is_empty() { rest } else { HIDDEN };
        return format!("{scheme}:{}", rest.split('?').next().unwrap_or_default());
    };
    let has_login = rest.contains('@');
    // Several servers of one cluster: each stands for itself.
    let servers = rest.split(',').map(|server| {
        let server = server.split_once("://").map_or(server, |(_, server)| server);
        shown_server(server, has_login).unwrap_or_else(|| HIDDEN.to_owned())
    });
    format!("{scheme}://{}", servers.collect::<Vec<_>>().join(","))
}

/// Host, port and path; none if a part of a login may be among them.
fn shown_server(server: &str, has_login: bool) -> Option<String> {
    let (before, after) = match server.rsplit_once('@') {
        Some((before, after)) => (before, after),
        None if has_login => return None,
        None => ("", server),
    };
    // With these in front of the @ it may as well be a part of a query.
    if before.contains(['?', '#']) {
        return None;
    }
    let shown = after.split(['?', '#']).next()?;
    let authority = shown.split('/').next()?;
    let port = match authority.strip_prefix('[') {
        Some(ip) => ip.split_once(']')?.1.strip_prefix(':'),
        None => authority.split_once(':').map(|(_, port)| port),
    };
    port.is_none_or(|port| port.parse::<u16>().is_ok()).then(|| shown.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_login_and_its_query() {
        for (url, shown) in [
            ("postgres://ada:hush@db.example:5432/shop?sslmode=require", "postgres://db.example:5432/shop"),
            ("postgres://db/shop?password=hush", "postgres://db/shop"),
            ("mysql://ada:hu/sh@db/shop", "mysql://db/shop"),
            ("amqp://[::1]:5672/%2f", "amqp://[::1]:5672/%2f"),
            ("nats://u:hush@a:4222,nats://u:hush@b:4222", "nats://a:4222,b:4222"),
            ("sqlite:shop.db?mode=rw", "sqlite:shop.db"),
            ("sqlite://shop.db", "sqlite://shop.db"),
            ("log:", "log:"),
        ] {
            assert_eq!(shown_url(url), shown);
        }
    }

    #[test]
    fn what_cannot_be_taken_apart_is_hidden() {
        for url in [
            "hush",
            "postgres://ada:hush",
            "postgres://ada:hu?sh@db/shop",
            "postgres://db/shop?password=x@hush",
            "nats://u:1,hush@b",
            "amqp://[hush",
            "hu sh:hush",
            "postgres:ada:hush@db/shop",
            "nats:u:hush@127.0.0.1:4222",
            "mysql:hush",
        ] {
            assert!(!shown_url(url).contains("hush"), "{url}: {}", shown_url(url));
        }
        assert_eq!(format!("{:?} {}", Secret::new("hush"), Secret::new("hush")), "*** ***");
    }
}
