//! Database URLs: building ours, and reading given ones far enough to ask for the version.
//!
//! Not a general URL library: parameters after `?` are ignored, and what it does not understand it refuses. A
//! password must never appear in a command line or an error text, which is why clients get an [`Address`] and
//! not the URL.

/// Where a database is and who asks.
#[derive(Debug, PartialEq)]
pub(super) struct Address {
    pub(super) host: String,
    /// The product's usual port when absent.
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: Option<String>,
}

impl Address {
    /// A server on this machine that asks for no password.
    pub(super) fn local(user: &str, port: u16, database: &str) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port: Some(port),
            user: Some(user.to_owned()),
            password: None,
            database: Some(database.to_owned()),
        }
    }

    /// Reads `scheme://user:password@host:port/database`; everything but scheme and host may be absent.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (_, rest) = url.split_once("://").ok_or("a database URL has `://` after its scheme")?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        // The last `@`: careless passwords contain one.
        let (login, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => {
                (host, Some(port.parse().map_err(|_| "the port of the database URL is not a number")?))
            }
            None => (place, None),
        };
        if host.is_empty() {
            return Err("the database URL names no host".to_owned());
        }
        Ok(Self {
            host: decode(host)?.ok_or("the database URL names no host")?,
            port,
            user: decode(user)?,
            password: decode(password)?,
            database: decode(database)?,
        })
    }

    /// The URL of an address made by [`Address::local`], whose parts need no escaping.
    pub(super) fn url(&self, scheme: &str) -> String {
        let user = self.user.as_deref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let database = self.database.as_deref().unwrap_or_default();
        format!("{scheme}://{user}{}{port}/{database}", self.host)
    }
}

/// Undoes percent encoding; nothing at all becomes `None`.
fn decode(text: &str) -> Result<Option<String>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let code = digit(rest.next()).zip(digit(rest.next())).map(|(high, low)| high * 16 + low);
        let code = code.and_then(|code| u8::try_from(code).ok());
        bytes.push(code.ok_or("the database URL has a `%` without two hexadecimal digits")?);
    }
    let text = String::from_utf8(bytes).map_err(|_| "the database URL is not UTF-8 once decoded")?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_urls_are_read_back_unchanged() {
        let address = Address::local("postgres", 5433, "posthaste_test_7");
        let url = address.url("postgres");
        assert_eq!(url, "postgres://postgres@127.0.0.1:5433/posthaste_test_7");
        assert_eq!(Address::parse(&url), Ok(address));
    }

    #[test]
    fn every_part_but_the_host_may_be_absent() {
        let address = Address::parse("mysql://db.example").unwrap();
        assert_eq!(address.host, "db.example");
        assert_eq!(
            (address.port, address.user, address.password, address.database),
            (None, None, None, None)
        );
    }

    #[test]
    fn encoded_characters_and_parameters_are_understood() {
        let address = Address::parse("mysql://me:a%40b:c@db.example:3307/shop?ssl-mode=REQUIRED").unwrap();
        assert_eq!(address.password.as_deref(), Some("a@b:c"));
        assert_eq!(address.port, Some(3307));
        assert_eq!(address.database.as_deref(), Some("shop"));
    }

    #[test]
    fn refusals_do_not_repeat_the_password() {
        for url in
            ["secret", "mysql://me:secret@/x", "mysql://me:secret@h:port/x", "mysql://me:secret%zz@h/x"]
        {
            let refusal = Address::parse(url).unwrap_err();
            assert!(!refusal.contains("secret"), "{refusal}");
        }
    }
}
