//! Address and login of the server: everything that a connection needs, checked before there is one.
//!
//! Secrets come in and go to the driver; they must never come out by `Debug`, a name or an error. Certificates are always
//! verified: there is no option that says otherwise.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use posthaste_core::{Error, ErrorKind, Result};

/// How to reach NATS, for a [sink](crate::NatsSink) or a [consumer](crate::NatsConsumer). Clones are cheap; each sink and each
/// consumer has a connection of its own.
///
/// ```
/// use posthaste_nats::NatsOptions;
///
/// let options = NatsOptions::new("tls://shop:secret@broker.example:4222")?.ca_file("ca.pem");
/// assert_eq!(options.name(), "nats broker.example:4222");
/// assert!(!format!("{options:?}").contains("secret"));
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use = "they do nothing until they are given to a sink or a consumer"]
pub struct NatsOptions {
    servers: Arc<[ServerAddr]>,
    login: Login,
    tls: Tls,
    connect_timeout: Duration,
}

#[derive(Clone)]
enum Login {
    None,
    User { name: String, password: String },
    Token(String),
    Nkey(String),
    CredentialsFile(PathBuf),
}

#[derive(Clone, Default)]
struct Tls {
    required: bool,
    #[cfg(feature = "tls")]
    ca_files: Vec<PathBuf>,
    #[cfg(feature = "tls")]
    client: Option<(PathBuf, PathBuf)>,
}

impl NatsOptions {
    /// The server at this URL: `nats://host:port`, or `tls://host:port` to insist on TLS. The port is 4222 if it is not
    /// named. A cluster is named by several URLs with commas between them; each try goes to all of them, in any order.
    ///
    /// User and password may stand in the URL: `nats://user:password@host`. A user without a password is a token.
    ///
    /// Refuses invalid URLs, and different logins in several of them.
    pub fn new(urls: impl AsRef<str>) -> Result<Self> {
        let mut servers = Vec::new();
        let mut login = None;
        for url in urls.as_ref().split(',').map(str::trim) {
            let (server, own) = server(url)?;
            if let Some(own) = own {
                let same = |other: &Login| other.secrets() == own.secrets();
                if !login.as_ref().is_none_or(same) {
                    return Err(refused("the URLs of NATS have different logins", "give the login once"));
                }
                login = Some(own);
            }
            servers.push(server);
        }
        let required = servers.iter().any(ServerAddr::tls_required);
        if required && !cfg!(feature = "tls") {
            return Err(refused("this build of posthaste-nats has no TLS", "enable its feature `tls`"));
        }
        Ok(Self {
            servers: servers.into(),
            login: login.unwrap_or(Login::None),
            tls: Tls { required, ..Tls::default() },
            connect_timeout: Duration::from_secs(5),
        })
    }

    /// Logs in with a name and a password.
    pub fn user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.login = Login::User { name: name.into(), password: password.into() };
        self
    }

    /// Logs in with a token.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.login = Login::Token(token.into());
        self
    }

    /// Logs in with an nkey, of which this is the seed: it begins with `SU`.
    ///
    /// Refused: the seed of anything but a user.
    pub fn nkey(mut self, seed: impl Into<String>) -> Result<Self> {
        let seed = seed.into();
        if !seed.starts_with("SU") {
            return Err(refused("an nkey is not the seed of a user", "give the seed that begins with `SU`"));
        }
        self.login = Login::Nkey(seed);
        Ok(self)
    }

    /// Logs in with a credentials file: a JWT and the seed of its nkey. It is read again for every connection.
    pub fn credentials_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.login = Login::CredentialsFile(path.into());
        self
    }

    /// Insists on TLS, and trusts the certificates in this PEM file instead of the system's. Several calls add up.
    #[cfg(feature = "tls")]
    pub fn ca_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.tls.required = true;
        self.tls.ca_files.push(path.into());
        self
    }

    /// Insists on TLS, and shows the server this certificate (PEM files: the chain and its key).
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls.required = true;
        self.tls.client = Some((chain.into(), key.into()));
        self
    }

    /// How long one server may take until the connection stands. Default: 5 s.
    ///
    /// Refused: nothing at all, and more than 60 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Result<Self> {
        if timeout.is_zero() || timeout > Duration::from_secs(60) {
            return Err(refused(
                format!("the connect time-out of NATS is {timeout:?}"),
                "give it more than 0 and at most 60 s",
            ));
        }
        self.connect_timeout = timeout;
        Ok(self)
    }

    /// Where it is, for people: `nats host:port`, without any secret.
    pub fn name(&self) -> String {
        let places: Vec<String> = self.servers.iter().map(place).collect();
        format!("nats {}", places.join(","))
    }

    pub(crate) fn servers(&self) -> Vec<ServerAddr> {
        self.servers.to_vec()
    }

    /// How long a whole try may take: every server has its time.
    pub(crate) fn patience(&self) -> Duration {
        self.connect_timeout * u32::try_from(self.servers.len()).unwrap_or(u32::MAX)
            + Duration::from_millis(500)
    }

    /// For the driver. Reads the credentials file.
    pub(crate) async fn for_driver(&self) -> std::io::Result<ConnectOptions> {
        let options = ConnectOptions::new()
            .name("posthaste")
            .connection_timeout(self.connect_timeout)
            .require_tls(self.tls.required);
        let options = match &self.login {
            Login::None => options,
            Login::User { name, password } => options.user_and_password(name.clone(), password.clone()),
            Login::Token(token) => options.token(token.clone()),
            Login::Nkey(seed) => options.nkey(seed.clone()),
            Login::CredentialsFile(path) => options.credentials_file(path).await?,
        };
        Ok(self.with_certificates(options))
    }

    #[cfg(feature = "tls")]
    fn with_certificates(&self, mut options: ConnectOptions) -> ConnectOptions {
        for file in &self.tls.ca_files {
            options = options.add_root_certificates(file.clone());
        }
        if let Some((chain, key)) = &self.tls.client {
            options = options.add_client_certificate(chain.clone(), key.clone());
        }
        options
    }

    #[cfg(not(feature = "tls"))]
    fn with_certificates(&self, options: ConnectOptions) -> ConnectOptions {
        options
    }
}

impl Login {
    fn secrets(&self) -> (&str, &str) {
        match self {
            Self::User { name, password } => (name, password),
            Self::Token(secret) | Self::Nkey(secret) => (secret, ""),
            Self::None | Self::CredentialsFile(_) => ("", ""),
        }
    }
}

/// Shows only the kind of login.
impl fmt::Debug for NatsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let login = match self.login {
            Login::None => "none",
            Login::User { .. } => "user and password",
            Login::Token(_) => "token",
            Login::Nkey(_) => "nkey",
            Login::CredentialsFile(_) => "credentials file",
        };
        f.debug_struct("NatsOptions")
            .field("name", &self.name())
            .field("login", &login)
            .field("tls", &self.tls.required)
            .field("connect_timeout", &self.connect_timeout)
            .finish()
    }
}

/// An error of configuration.
pub(crate) fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, what).with_remedy(remedy)
}

/// The server that a URL names, without its login, and that login. The driver logs its addresses as they are.
fn server(url: &str) -> Result<(ServerAddr, Option<Login>)> {
    // The parser's own words could repeat the password.
    let unclear = || refused("a URL of NATS cannot be read", "write it as `nats://host:port`");
    let parsed: ServerAddr = url.parse().map_err(|_| unclear())?;
    if parsed.is_websocket() {
        return Err(refused("a URL of NATS is one of a web socket", "write it as `nats://host:port`"));
    }
    if parsed.host().is_empty() {
        return Err(refused("a URL of NATS names no host", "write it as `nats://host:port`"));
    }
    let login = match (parsed.username(), parsed.password()) {
        (None, _) => None,
        (Some(token), None) => Some(Login::Token(decoded(token).ok_or_else(unclear)?)),
        (Some(name), Some(password)) => Some(Login::User {
            name: decoded(name).ok_or_else(unclear)?,
            password: decoded(password).ok_or_else(unclear)?,
        }),
    };
    let bare = format!("{}://{}", parsed.scheme(), place(&parsed));
    Ok((bare.parse().map_err(|_| unclear())?, login))
}

fn place(server: &ServerAddr) -> String {
    let host = server.host();
    if host.contains(':') {
        format!("[{host}]:{}", server.port())
    } else {
        format!("{host}:{}", server.port())
    }
}

/// Undoes percent encoding.
fn decoded(text: &str) -> Option<String> {
    crate::escape::decode(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_their_logins_taken_out() {
        for (url, name) in [
            ("nats://127.0.0.1:4223", "nats 127.0.0.1:4223"),
            ("broker.example", "nats broker.example:4222"),
            ("nats://me:hush@[::1]:4222", "nats [::1]:4222"),
            ("nats://a:1, nats://b:2", "nats a:1,b:2"),
        ] {
            let options = NatsOptions::new(url).unwrap();
            assert_eq!(options.name(), name);
            assert!(options.servers().iter().all(|server| !server.as_url_str().contains("hush")));
        }
        let Login::User { name, password } = NatsOptions::new("nats://me:a%40b@h").unwrap().login else {
            panic!("a user was named");
        };
        assert_eq!((name.as_str(), password.as_str()), ("me", "a@b"));
        assert!(
            matches!(NatsOptions::new("nats://s3cret@h").unwrap().login, Login::Token(token) if token == "s3cret")
        );
    }

    /// No secret in an error, a name or `Debug`.
    #[test]
    fn refusals_say_what_to_do_and_repeat_no_secret() {
        for url in [
            "",
            "http://me:hush@h",
            "wss://me:hush@h",
            "nats://me:hush@h:port",
            "nats://me:hush%zz@h",
            "nats://me:hush@a,nats://me:other-hush@b",
        ] {
            let error = NatsOptions::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
            assert!(error.remedy().is_some() && !format!("{error} {error:?}").contains("hush"), "{error:?}");
        }
        let options = NatsOptions::new("nats://me:hush@h").unwrap();
        for shown in [
            format!("{options:?} {}", options.name()),
            format!("{:?}", options.clone().token("hush")),
            format!("{:?}", options.clone().nkey("SUhush").unwrap()),
        ] {
            assert!(!shown.contains("hush"), "{shown}");
        }
        assert!(options.clone().nkey("hush").is_err());
        assert!(options.connect_timeout(Duration::ZERO).is_err());
    }
}
