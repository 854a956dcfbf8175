//! URLs of servers: building ours, and reading given ones far enough to ask for the version.
//!
//! Not a general URL library: it ignores parameters after `?`, and refuses everything else that it does not
//! understand. A password must never appear in a command line or an error text, which is why clients get an
//! [`Address`] and not the URL.

/// The address of a server, and the login.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Address {
    pub(super) host: String,
    /// The product's usual port when absent.
    pub(super) port: Option<u16>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    /// Or the server's own term for its parts.
    pub(super) database: Option<String>,
}

impl Address {
    /// A server on this machine that asks for nothing.
    pub(super) fn local(port: u16) -> Self {
        Self { host: "127.0.0.1".to_owned(), port: Some(port), user: None, password: None, database: None }
    }

    /// Reads `scheme://user:password@host:port/database`; everything but scheme and host may be absent.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let (_, rest) = url.split_once("://").ok_or("a URL has `://` after its scheme")?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
        // The last `@`: careless passwords contain one.
        let (login, place) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let (host, port) = match place.rsplit_once(':') {
            Some((host, port)) => {
                (host, Some(port.parse().map_err(|_| "the port of the URL is not a number")?))
            }
            None => (place, None),
        };
        if host.is_empty() {
            return Err("the URL names no host".to_owned());
        }
        Ok(Self {
            host: decode(host)?.ok_or("the URL names no host")?,
            port,
            user: decode(user)?,
            password: decode(password)?,
            database: decode(database)?,
        })
    }

    /// The URL of an address made by [`Address::local`], whose parts need no escaping.
    pub(super) fn url(&self, scheme: &str) -> String {
        let password = self.password.as_deref().map(|password| format!(":{password}")).unwrap_or_default();
        let login = self.user.as_deref().map(|user| format!("{user}{password}@")).unwrap_or_default();
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let database = self.database.as_deref().map(|database| format!("/{database}")).unwrap_or_default();
        format!("{scheme}://{login}{}{port}{database}", self.host)
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
        bytes.push(code.ok_or("the URL has a `%` without two hexadecimal digits")?);
    }
    let text = String::from_utf8(bytes).map_err(|_| "the URL is not UTF-8 once decoded")?;
    Ok(Some(text).filter(|text| !text.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_urls_are_read_back_unchanged() {
        let database = Address {
            user: Some("postgres".to_owned()),
            database: Some("posthaste_test_7".to_owned()),
            ..Address::local(5433)
        };
        let broker = Address {
            user: Some("guest".to_owned()),
            password: Some("guest".to_owned()),
            ..Address::local(5672)
        };
        for (address, scheme, expected) in [
            (database, "postgres", "postgres://postgres@127.0.0.1:5433/posthaste_test_7"),
            (broker, "amqp", "amqp://guest:guest@127.0.0.1:5672"),
            (Address::local(4222), "nats", "nats://127.0.0.1:4222"),
        ] {
            let url = address.url(scheme);
            assert_eq!(url, expected);
            assert_eq!(Address::parse(&url), Ok(address));
        }
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
