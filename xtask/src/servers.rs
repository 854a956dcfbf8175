//! The databases of a test run: given, found running, or started privately, in this order.
//!
//! What differs between the products lives in the files below; this one knows only [`Engine`]. It must never
//! change anything in a server beyond the one database it creates there, and never name a URL's password.

mod address;
mod apt;
mod mariadb;
mod postgres;
mod private;

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;

use crate::guard::{Guard, Recipe};
use crate::programs;
use address::Address;
use apt::Apt;

/// One database product: how to talk to it, and how to run it.
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
    /// The user inside the database who may do everything.
    const SUPERUSER: &str;
    /// A database every server has.
    const HOME: &str;
    /// The user of the machine it runs as when root starts it.
    const ACCOUNT: &str;
    /// The Debian package that brings server and client.
    const PACKAGE: &str;
    /// The statement that asks for the version.
    const VERSION: &str;

    /// A command that runs one statement and prints bare values.
    fn client(address: &Address, statement: &str) -> Result<Command, String>;
    /// The statement that creates a database for the tests.
    fn create(database: &str) -> String;
    /// The statement that drops it, connected or not.
    fn drop(database: &str) -> String;
    /// The product's name and number, read from the server's answer.
    fn tidy_version(answer: &str) -> (&'static str, String);
    /// The server's programs, if they are on this machine.
    fn installed() -> Option<Self>;
    /// How to run a private server with them.
    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String>;
}

/// A database as the tests and the summary see it.
pub(crate) struct Database {
    pub(crate) name: &'static str,
    pub(crate) key: &'static str,
    pub(crate) variable: &'static str,
    /// Ready, or a sentence on why it is not and what would help.
    pub(crate) state: Result<Ready, String>,
}

/// A database the tests can use.
pub(crate) struct Ready {
    pub(crate) url: String,
    pub(crate) version: String,
    pub(crate) source: String,
}

/// All databases that need a server, with what keeps them alive.
pub(crate) struct Servers {
    databases: Vec<Database>,
    guards: Vec<Guard>,
}

impl Servers {
    /// Finds or starts every server; one that cannot be had is noted, not fatal.
    pub(crate) fn find(private: bool) -> Self {
        let mut servers = Self { databases: Vec::new(), guards: Vec::new() };
        let mut apt = Apt::default();
        servers.add::<postgres::Postgres>(private, &mut apt);
        servers.add::<mariadb::Mariadb>(private, &mut apt);
        servers
    }

    pub(crate) fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// Stops what was started and drops what was created; returns when that is done.
    pub(crate) fn stop(self) -> Vec<Database> {
        drop(self.guards);
        self.databases
    }

    fn add<E: Engine>(&mut self, private: bool, apt: &mut Apt) {
        let found = if private { private::start::<E>(apt) } else { find::<E>(apt) };
        let (name, state) = match found {
            Ok(found) => {
                self.guards.extend(found.guard);
                let (name, version) = match &found.version {
                    Some(answer) => E::tidy_version(answer),
                    None => (E::NAME, "unknown".to_owned()),
                };
                (name, Ok(Ready { url: found.url, version, source: found.source }))
            }
            Err(why) => (E::NAME, Err(format!("{why}; alternatively set {} to a URL", E::VARIABLE))),
        };
        self.databases.push(Database { name, key: E::KEY, variable: E::VARIABLE, state });
    }
}

/// A usable server, before its answers are made readable.
struct Found {
    url: String,
    version: Option<String>,
    source: String,
    guard: Option<Guard>,
}

fn find<E: Engine>(apt: &mut Apt) -> Result<Found, String> {
    if let Some(found) = given::<E>() {
        return Ok(found);
    }
    running::<E>().or_else(|unusable| {
        // Silence about a server that is there but unusable would puzzle whoever started it.
        if TcpStream::connect(("127.0.0.1", E::PORT)).is_ok() {
            eprintln!("xtask: 127.0.0.1:{} is not usable for {}: {unusable}", E::PORT, E::NAME);
        }
        private::start::<E>(apt)
            .map_err(|fault| format!("nothing usable on 127.0.0.1:{}, and {fault}", E::PORT))
    })
}

/// The server somebody named; not examined, because the tests will say best what is wrong with it.
fn given<E: Engine>() -> Option<Found> {
    let url = std::env::var(E::VARIABLE).ok().filter(|url| !url.is_empty())?;
    let version = Address::parse(&url).and_then(|address| query::<E>(&address, E::VERSION)).ok();
    Some(Found { url, version, source: format!("given by {}", E::VARIABLE), guard: None })
}

/// The server on the usual port, with a database of our own in it.
fn running<E: Engine>() -> Result<Found, String> {
    let home = Address::local(E::SUPERUSER, E::PORT, E::HOME);
    let version = query::<E>(&home, E::VERSION)?;
    let name = test_database();
    query::<E>(&home, &E::create(&name))?;
    // Should the guard not start, the empty database stays behind; the error then says so by its name.
    let guard = Guard::finally(&E::client(&home, &E::drop(&name))?)
        .map_err(|fault| format!("{fault}; database {name} was left in the server"))?;
    Ok(Found {
        url: Address::local(E::SUPERUSER, E::PORT, &name).url(E::SCHEME),
        version: Some(version),
        source: format!("running on 127.0.0.1:{}", E::PORT),
        guard: Some(guard),
    })
}

fn query<E: Engine>(address: &Address, statement: &str) -> Result<String, String> {
    programs::answer(&mut E::client(address, statement)?)
}

/// One name per run, so that two checkouts can share a server.
fn test_database() -> String {
    format!("posthaste_test_{}", std::process::id())
}
