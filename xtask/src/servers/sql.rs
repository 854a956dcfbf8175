//! Shared by the databases: a client for statements, and a database of their own for the tests.
//!
//! Must never change anything in a server beyond that one database.

use std::process::Command;

use super::{Address, Engine, Room};
use crate::guard::Guard;
use crate::programs;

/// An engine that understands statements.
pub(super) trait Sql: Engine {
    /// The database user with all rights.
    const SUPERUSER: &str;
    /// A database every server has.
    const HOME: &str;

    /// A command that runs one statement and prints bare values.
    fn client(address: &Address, statement: &str) -> Result<Command, String>;
    /// The statement that creates a database for the tests.
    fn create(database: &str) -> String;
    /// The statement that drops it, connected or not.
    fn drop(database: &str) -> String;
}

/// The database that every server has, on this port of this machine.
pub(super) fn home<E: Sql>(port: u16) -> Address {
    let database = Some(E::HOME.to_owned());
    Address { user: Some(E::SUPERUSER.to_owned()), database, ..Address::local(port) }
}

/// Runs a statement.
pub(super) fn query<E: Sql>(address: &Address, statement: &str) -> Result<String, String> {
    programs::answer(&mut E::client(address, statement)?)
}

/// Creates a database for the tests; in a shared server it is dropped at the end, a private one is deleted whole.
pub(super) fn room<E: Sql>(home: &Address, shared: bool) -> Result<Room, String> {
    // One name per run, so that two checkouts can share a server.
    let name = format!("posthaste_test_{}", std::process::id());
    query::<E>(home, &E::create(&name))?;
    let guard = if shared {
        // Should the guard not start, the empty database stays behind; the error then says so by its name.
        let guard = Guard::finally(&E::client(home, &E::drop(&name))?)
            .map_err(|fault| format!("{fault}; database {name} was left in the server"))?;
        Some(guard)
    } else {
        None
    };
    let address = Address { database: Some(name), ..home.clone() };
    Ok(Room { address, guard })
}
