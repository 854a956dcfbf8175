//! The servers of a test run, databases and brokers: given, found running, or started privately, in this order.
//!
//! What differs between the products lives in the files below; this one knows only [`Engine`]. It must never
//! change anything in a server beyond the room it gets there, and never name a URL's password.

mod address;
mod apt;
mod mariadb;
mod nats;
mod postgres;
mod private;
mod rabbitmq;
mod sql;
mod wire;

use std::net::TcpStream;
use std::path::Path;

use crate::guard::{Guard, Recipe};
use address::Address;
use apt::Apt;

/// One product that tests talk to: how to recognise it, and how to run it.
trait Engine: Sized {
    /// How people call it.
    const NAME: &str;
    /// How `POSTHASTE_TEST_MISSING` calls it.
    const KEY: &str;
    /// The environment variable that holds its URL.
    const VARIABLE: &str;
    /// The scheme of its URLs.
    const SCHEME: &str;
    /// Where it usually listens.
    const PORT: u16;
    /// The Debian package that brings server and client.
    const PACKAGE: &str;
    /// The user that it runs as when root starts it; none if it may run as root.
    const ACCOUNT: Option<&str>;

    /// How a server on this port of this machine is reached, if it is as fresh as a private one.
    fn home(port: u16) -> Address;
    /// Talks to the server until it is known what it is, and that the login works.
    fn identify(address: &Address) -> Result<Identity, String>;
    /// Room for the tests in a server. In one that is shared with others they get a part of their own, if the product
    /// has parts.
    fn room(home: &Address, _shared: bool) -> Result<Room, String> {
        Ok(Room { address: home.clone(), guard: None })
    }
    /// The server's programs, if they are on this machine.
    fn installed() -> Option<Self>;
    /// How to run a private server with them.
    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String>;
}

/// A server's own identification.
struct Identity {
    name: &'static str,
    version: String,
}

/// The tests' own place in a server, and its cleanup.
struct Room {
    address: Address,
    guard: Option<Guard>,
}

/// A server as the tests and the summary see it.
pub(crate) struct Server {
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) variable: &'static str,
    /// Ready, or a sentence on why it is not and what would help.
    pub(crate) state: Result<Ready, String>,
}

/// A server the tests can use.
pub(crate) struct Ready {
    pub(crate) url: String,
    pub(crate) version: String,
    pub(crate) source: String,
}

/// All servers, with what keeps them alive.
pub(crate) struct Servers {
    all: Vec<Server>,
    guards: Vec<Guard>,
}

impl Servers {
    /// Finds or starts every server; one that cannot be had is noted, not fatal.
    pub(crate) fn find(private: bool) -> Self {
        let mut servers = Self { all: Vec::new(), guards: Vec::new() };
        let mut apt = Apt::default();
        servers.add::<postgres::Postgres>(private, &mut apt);
        servers.add::<mariadb::Mariadb>(private, &mut apt);
        servers.add::<rabbitmq::Rabbitmq>(private, &mut apt);
        servers.add::<nats::Nats>(private, &mut apt);
        servers
    }

    pub(crate) fn all(&self) -> &[Server] {
        &self.all
    }

    /// And a program that tests run, which is found and reported like a server.
    pub(crate) fn add_tool(&mut self, tool: Server) {
        self.all.push(tool);
    }

    /// Stops started servers and drops created databases; returns when that is done.
    pub(crate) fn stop(self) -> Vec<Server> {
        drop(self.guards);
        self.all
    }

    fn add<E: Engine>(&mut self, private: bool, apt: &mut Apt) {
        let found = if private { private::start::<E>(apt) } else { find::<E>(apt) };
        let (name, state) = match found {
            Ok(found) => {
                self.guards.extend(found.guard);
                let Identity { name, version } = found.identity;
                (name, Ok(Ready { url: found.url, version, source: found.source }))
            }
            Err(why) => (E::NAME, Err(format!("{why}; alternatively set {} to a URL", E::VARIABLE))),
        };
        self.all.push(Server { name, key: E::KEY, variable: E::VARIABLE, state });
    }
}

/// A usable server.
struct Found {
    url: String,
    identity: Identity,
    source: String,
    guard: Option<Guard>,
}

fn find<E: Engine>(apt: &mut Apt) -> Result<Found, String> {
    if let Some(found) = given::<E>() {
        return Ok(found);
    }
    running::<E>().or_else(|unusable| {
        // Report a server that is there but unusable: its owner would otherwise wonder.
        if TcpStream::connect(("127.0.0.1", E::PORT)).is_ok() {
            eprintln!("xtask: 127.0.0.1:{} is not usable for {}: {unusable}", E::PORT, E::NAME);
        }
        private::start::<E>(apt)
            .map_err(|fault| format!("nothing usable on 127.0.0.1:{}, and {fault}", E::PORT))
    })
}

/// The server that the environment names; not examined, because the tests report its faults best.
fn given<E: Engine>() -> Option<Found> {
    let url = std::env::var(E::VARIABLE).ok().filter(|url| !url.is_empty())?;
    let unknown = |_| Identity { name: E::NAME, version: "unknown".to_owned() };
    let identity = Address::parse(&url).and_then(|address| E::identify(&address)).unwrap_or_else(unknown);
    Some(Found { url, identity, source: format!("given by {}", E::VARIABLE), guard: None })
}

/// The server on the usual port.
fn running<E: Engine>() -> Result<Found, String> {
    let home = E::home(E::PORT);
    let identity = E::identify(&home)?;
    let room = E::room(&home, true)?;
    Ok(Found {
        url: room.address.url(E::SCHEME),
        identity,
        source: format!("running on 127.0.0.1:{}", E::PORT),
        guard: room.guard,
    })
}
