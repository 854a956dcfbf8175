//! A RabbitMQ server: address, login, TLS, and the topology to declare on arrival.
//!
//! The password is in here; it must never leave by `Debug`, by a name or by an error.

use std::fmt;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};
use posthaste_core::{Error, ErrorKind, Result};

#[cfg(feature = "tls")]
use crate::tls::Tls;
use crate::topology::Topology;

const HEARTBEAT_SECONDS: u16 = 20;
const FRAME_BYTES: u32 = 128 << 10;

/// A RabbitMQ server, or a cluster behind one address, and how to get there.
///
/// ```
/// use posthaste_rabbitmq::RabbitServer;
///
/// let server = RabbitServer::new("amqps://shop:secret@rabbit.example/orders")?;
/// assert_eq!(server.to_string(), "rabbit.example:5671/orders");        // the password is never shown
///
/// let same = RabbitServer::at("rabbit.example", 5671).tls()?.login("shop", "secret").vhost("orders");
/// assert_eq!(same.to_string(), server.to_string());
/// # Ok::<(), posthaste_core::Error>(())
/// ```
#[must_use = "it does nothing until a sink or a consumer connects to it"]
#[derive(Clone)]
pub struct RabbitServer {
    pub(crate) uri: AMQPUri,
    #[cfg(feature = "tls")]
    pub(crate) tls: Tls,
    pub(crate) topology: Topology,
    pub(crate) connection_name: String,
    pub(crate) patience: Duration,
}

impl RabbitServer {
    /// The server of this URL: `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS. Without a login it is
    /// `guest`/`guest`, without a virtual host it is `/`. Characters like `/` and `@` in a name or password are written
    /// `%2F` and `%40`. A query may set `heartbeat` (seconds, default 20), `connection_timeout` (milliseconds, default
    /// 5000), `frame_max`, `channel_max` and `auth_mechanism` (`plain`, or `external` for a client certificate).
    pub fn new(url: &str) -> Result<Self> {
        let url = url.trim();
        if !url.starts_with("amqp://") && !url.starts_with("amqps://") {
            return Err(refused("the URL of RabbitMQ begins with neither amqp:// nor amqps://", LIKE));
        }
        // The parser's own error may quote the URL, and with it the password.
        let mut uri: AMQPUri =
            url.parse().map_err(|_| refused("the URL of RabbitMQ cannot be understood", LIKE))?;
        if let Some(host) = ipv6_host(url) {
            host.clone_into(&mut uri.authority.host);
        }
        if uri.authority.host.is_empty() {
            return Err(refused("the URL of RabbitMQ names no host", LIKE));
        }
        Self::of(uri).checked()
    }

    /// The server at this host and port, without TLS, as `guest`/`guest`, in the virtual host `/`.
    pub fn at(host: impl Into<String>, port: u16) -> Self {
        let mut uri = AMQPUri::default();
        uri.authority.host = host.into();
        uri.authority.port = port;
        Self::of(uri)
    }

    fn of(mut uri: AMQPUri) -> Self {
        if uri.vhost.is_empty() {
            // A virtual host has a name: a slash at the end of a URL means the default one.
            "/".clone_into(&mut uri.vhost);
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
        let patience = Duration::from_millis(uri.query.connection_timeout.unwrap_or(5_000).max(1));
        Self {
            uri,
            #[cfg(feature = "tls")]
            tls: Tls::default(),
            topology: Topology::default(),
            connection_name: "posthaste".to_owned(),
            patience,
        }
    }

    /// The user.
    pub fn login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        self.uri.authority.userinfo.username = user.into();
        self.uri.authority.userinfo.password = password.into();
        self
    }

    /// The virtual host. Default: `/`.
    pub fn vhost(mut self, vhost: impl Into<String>) -> Self {
        self.uri.vhost = vhost.into();
        self
    }

    /// The connection's name in RabbitMQ's own lists. Default: `posthaste`.
    pub fn connection_name(mut self, name: impl Into<String>) -> Self {
        self.connection_name = name.into();
        self
    }

    /// The topology to declare on each new connection. Default: nothing; posthaste never declares anything by itself.
    pub fn declare(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// How long connecting may take, and opening a channel. Default: 5 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.patience = timeout;
        self
    }

    /// Connects by TLS, as `amqps://` does. The server's certificate is verified, always.
    pub fn tls(mut self) -> Result<Self> {
        self.uri.scheme = AMQPScheme::AMQPS;
        self.checked()
    }

    /// The authorities that the server's certificate is verified against, as PEM; those of the system no longer count.
    #[cfg(feature = "tls")]
    pub fn ca(mut self, pem: impl AsRef<[u8]>) -> Result<Self> {
        self.tls.set_roots(pem.as_ref())?;
        Ok(self)
    }

    /// The client certificate: the chain and its private key, as PEM.
    #[cfg(feature = "tls")]
    pub fn client_certificate(mut self, chain: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self> {
        self.tls.set_identity(chain.as_ref(), key.as_ref())?;
        Ok(self)
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    fn checked(self) -> Result<Self> {
        if self.is_tls() && cfg!(not(feature = "tls")) {
            return Err(refused(
                "TLS is not compiled in",
                "switch on the feature `tls` of posthaste-rabbitmq",
            ));
        }
        Ok(self)
    }

    /// Refuses what no server would take.
    pub(crate) fn check(&self) -> Result<()> {
        if self.uri.authority.host.is_empty() {
            return Err(refused("the host of RabbitMQ is empty", "name it"));
        }
        if self.patience.is_zero() {
            return Err(refused("connect_timeout is 0", "give it at least a millisecond"));
        }
        // Properties and headers are one frame, and headers alone may have 64 KiB.
        if self.uri.query.frame_max.is_some_and(|bytes| bytes != 0 && bytes < FRAME_BYTES) {
            return Err(refused(
                "frame_max is too small for headers",
                format!("give it at least {FRAME_BYTES}, or 0"),
            ));
        }
        for (what, text) in [("the virtual host", &self.uri.vhost), ("the user", self.user())] {
            name_fits(what, text)?;
        }
        self.topology.check()
    }

    fn user(&self) -> &String {
        &self.uri.authority.userinfo.username
    }
}

const LIKE: &str = "give it like amqp://user:password@host:5672/vhost";

pub(crate) fn refused(what: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::new(ErrorKind::Configuration, what).with_remedy(remedy)
}

/// The protocol has one byte for the length of a name.
pub(crate) fn name_fits(what: &str, name: &str) -> Result<()> {
    if name.len() <= 255 {
        return Ok(());
    }
    Err(refused(format!("{what} has {} bytes", name.len()), "give it at most 255"))
}

/// The parser takes an IPv6 address for no host at all, and then for `localhost`.
fn ipv6_host(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    host.strip_prefix('[')?.split_once(']').map(|(host, _)| host)
}

/// Host, port and virtual host.
impl fmt::Display for RabbitServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = &self.uri.authority;
        let (open, close) = if authority.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(
            f,
            "{open}{}{close}:{}/{}",
            authority.host,
            authority.port,
            self.uri.vhost.trim_start_matches('/')
        )
    }
}

/// Without its login.
impl fmt::Debug for RabbitServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RabbitServer").field(&format_args!("{self}")).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(url: &str) -> String {
        RabbitServer::new(url).unwrap().to_string()
    }

    #[test]
    fn urls_mean_what_they_say() {
        assert_eq!(shown("amqp://localhost"), "localhost:5672/");
        assert_eq!(shown("amqp://localhost/"), "localhost:5672/");
        assert_eq!(shown("amqp://localhost/%2f"), "localhost:5672/");
        assert_eq!(shown("amqp://a:b@127.0.0.1:5673/shop?heartbeat=7"), "127.0.0.1:5673/shop");
        assert_eq!(shown("amqp://a:b@[::1]:5673/shop"), "[::1]:5673/shop");
        assert_eq!(shown("amqp://a:b%40%5b@[::1]"), "[::1]:5672/");
        assert_eq!(RabbitServer::new("amqp://h/").unwrap().uri.vhost, "/");
    }

    /// OBX-126: a URL that cannot be used is refused, and its password is in no text.
    #[test]
    fn a_bad_url_is_refused_without_being_quoted() {
        for url in
            ["", "rabbit", "http://u:hush@h", "amqp:u:hush@h", "amqp://u:hush@h:99999", "amqp://u:hush@"]
        {
            let error = RabbitServer::new(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Configuration, "{url}");
            assert!(error.remedy().is_some() && !format!("{error:?}").contains("hush"), "{error:?}");
        }
    }

    #[test]
    fn the_password_is_not_shown() {
        let server = RabbitServer::new("amqp://u:hush@h").unwrap();
        assert!(!format!("{server:?} {server}").contains("hush"));
        assert!(server.check().is_ok());
        assert!(server.clone().vhost("v".repeat(256)).check().is_err());
        assert!(server.connect_timeout(Duration::ZERO).check().is_err());
        assert!(RabbitServer::new("amqp://h?frame_max=4096").unwrap().check().is_err());
    }
}
