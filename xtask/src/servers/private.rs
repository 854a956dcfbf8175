//! Private servers: a fresh folder, a free port, and the wait until the server answers.
//!
//! A private server listens on loopback only and never outlives this process; [`crate::guard`] sees to that.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{Address, Apt, Engine, Found, Identity};
use crate::guard::Guard;
use crate::programs;

/// How long a server may take from an empty folder to its first answer: RabbitMQ takes half a minute of two busy cores.
const DEADLINE: Duration = Duration::from_secs(120);
/// How often it is asked meanwhile.
const INTERVAL: Duration = Duration::from_millis(100);

/// Starts a private server, installing the package first where that is possible and needed.
pub(super) fn start<E: Engine>(apt: &mut Apt) -> Result<Found, String> {
    let engine = match E::installed() {
        Some(engine) => engine,
        None if Apt::is_usable() => {
            apt.install(E::PACKAGE)?;
            E::installed()
                .ok_or_else(|| format!("package {} was installed but brought no server", E::PACKAGE))?
        }
        None => {
            return Err(format!("no server is installed; run `apt-get install {}` as root", E::PACKAGE));
        }
    };
    eprintln!("xtask: starting a private {}", E::NAME);
    let port = free_port()?;
    let folder = fresh_folder::<E>()?;
    let mut guard = engine
        .recipe(&folder, port)
        .and_then(|recipe| Guard::server(&recipe, &folder))
        // No guard took the folder over, so it is still ours to delete.
        .inspect_err(|_| drop(fs::remove_dir_all(&folder)))?;
    let home = E::home(port);
    let identity = first_answer::<E>(&home, &mut guard)?;
    let room = E::room(&home, false)?;
    Ok(Found {
        url: room.address.url(E::SCHEME),
        identity,
        source: "private, started for this run".to_owned(),
        guard: Some(guard),
    })
}

fn first_answer<E: Engine>(home: &Address, guard: &mut Guard) -> Result<Identity, String> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let silence = match E::identify(home) {
            Ok(identity) => return Ok(identity),
            Err(silence) => silence,
        };
        if guard.has_ended() {
            return Err("the private server did not start, see its messages above".to_owned());
        }
        if Instant::now() >= deadline {
            return Err(format!(
                "the private server did not answer within {} s ({silence})",
                DEADLINE.as_secs()
            ));
        }
        std::thread::sleep(INTERVAL);
    }
}

/// An unused port. Another process may take it before the server does; then the server reports it.
pub(super) fn free_port() -> Result<u16, String> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|error| format!("no free port on 127.0.0.1: {error}"))
}

/// An empty folder that belongs to the user that will run the server.
fn fresh_folder<E: Engine>() -> Result<PathBuf, String> {
    let root = std::env::temp_dir();
    if E::ACCOUNT.is_some() && programs::is_root() {
        must_be_open_to_all(&root)?;
    }
    let folder = root.join(format!("posthaste-{}-{}", E::KEY, std::process::id()));
    let refused =
        |error| format!("cannot create {}: {error}; delete it or set TMPDIR elsewhere", folder.display());
    // Fails on an existing folder, which could belong to another user.
    fs::create_dir(&folder).map_err(refused)?;
    let handed_over = fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))
        .map_err(refused)
        .and_then(|()| hand_over::<E>(&folder));
    if let Err(fault) = handed_over {
        let _ = fs::remove_dir(&folder);
        return Err(fault);
    }
    Ok(folder)
}

/// As root, most servers run as users of their own, who must be able to write here.
fn hand_over<E: Engine>(folder: &Path) -> Result<(), String> {
    let Some(name) = E::ACCOUNT.filter(|_| programs::is_root()) else { return Ok(()) };
    let account =
        programs::account(name).map_err(|fault| format!("root must run it as user {name}: {fault}"))?;
    chown(folder, Some(account.user), Some(account.group))
        .map_err(|error| format!("cannot give {} to user {name}: {error}", folder.display()))
}

fn must_be_open_to_all(folder: &Path) -> Result<(), String> {
    let closed = folder
        .ancestors()
        .find(|folder| folder.metadata().is_ok_and(|data| data.permissions().mode() & 0o001 == 0));
    match closed {
        None => Ok(()),
        Some(closed) => Err(format!(
            "the server's user cannot enter {}; set TMPDIR to a folder open to all users",
            closed.display()
        )),
    }
}
