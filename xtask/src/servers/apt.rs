//! Installing a server's package, where this is root on a Debian: in containers and on CI machines.
//!
//! Must never start a system service: the tests use a private server, and a stray one would keep the usual port.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::guard::Guard;
use crate::programs;

/// Debian's agreed place for a script that says whether packages may start their services.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// The package manager, and whether its lists are fresh.
#[derive(Default)]
pub(super) struct Apt {
    updated: bool,
}

impl Apt {
    /// Whether packages can be installed without a question.
    pub(super) fn is_usable() -> bool {
        programs::find("apt-get").is_some() && programs::is_root()
    }

    /// Installs a package, with its service kept from starting.
    pub(super) fn install(&mut self, package: &str) -> Result<(), String> {
        eprintln!(
            "xtask: package {package} is not installed; this is root on a Debian, so apt-get installs it"
        );
        if !self.updated {
            apt_get(&["update"])?;
            self.updated = true;
        }
        let _quiet = forbid_services()?;
        apt_get(&["install", "-y", "--no-install-recommends", package])
    }
}

fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let spelled = format!("apt-get {}", arguments.join(" "));
    let status = Command::new("apt-get")
        .arg("-q")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        // Our own output may be read by a shell (`xtask servers`), so the chatter goes to the side.
        .stdout(Stdio::from(io::stderr()))
        .status()
        .map_err(|error| format!("`{spelled}` did not start: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("`{spelled}` failed ({status})")) }
}

/// Forbids services until the guard is dropped; a policy the machine already has is respected.
fn forbid_services() -> Result<Option<Guard>, String> {
    if Path::new(POLICY).exists() {
        return Ok(None);
    }
    // The guard first: a forgotten policy would keep every later package from starting its service.
    let guard = Guard::finally(Command::new("rm").args(["-f", POLICY]))?;
    fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(POLICY)
        .and_then(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n"))
        .map_err(|error| format!("cannot write {POLICY}: {error}"))?;
    Ok(Some(guard))
}
