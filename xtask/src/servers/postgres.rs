//! PostgreSQL: its clients, its programs, and how a private one is started.
//!
//! Must never rely on a system service, a configuration file or a locale of the machine.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::sql::{self, Sql};
use super::{Address, Engine, Identity, Room};
use crate::guard::Recipe;
use crate::programs;

/// Where Debian keeps one folder per major version, outside the search path.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The user of the machine it runs as when root starts it.
const ACCOUNT: &str = "postgres";

/// The folder of the server's programs.
pub(super) struct Postgres {
    bin: PathBuf,
}

impl Engine for Postgres {
    const NAME: &str = "PostgreSQL";
    const KEY: &str = "postgres";
    const VARIABLE: &str = "POSTHASTE_TEST_POSTGRES";
    const SCHEME: &str = "postgres";
    const PORT: u16 = 5432;
    const PACKAGE: &str = "postgresql";
    const ACCOUNT: Option<&str> = Some(ACCOUNT);

    fn home(port: u16) -> Address {
        sql::home::<Self>(port)
    }

    fn identify(address: &Address) -> Result<Identity, String> {
        let answer = sql::query::<Self>(address, "show server_version")?;
        Ok(identity(&answer))
    }

    fn room(home: &Address, shared: bool) -> Result<Room, String> {
        sql::room::<Self>(home, shared)
    }

    fn installed() -> Option<Self> {
        let told = || {
            let folder = programs::answer(Command::new("pg_config").arg("--bindir")).ok()?;
            Some(PathBuf::from(folder))
        };
        let searched = || programs::find("initdb")?.parent().map(Path::to_owned);
        let complete = |bin: &PathBuf| {
            ["initdb", "postgres"].iter().all(|name| programs::is_executable(&bin.join(name)))
        };
        newest_of(Path::new(DEBIAN))
            .filter(complete)
            .or_else(|| told().filter(complete))
            .or_else(|| searched().filter(complete))
            .map(|bin| Self { bin })
    }

    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String> {
        // It refuses to run as root, and unlike MariaDB has no option to switch users.
        let prefix = if programs::is_root() { programs::become_user(ACCOUNT)? } else { Vec::new() };
        let data = folder.join("data");
        let mut prepare = prefix.clone();
        prepare.extend([self.bin.join("initdb").into(), "-D".into(), data.clone().into()]);
        prepare.extend(
            ["-A", "trust", "-U", Self::SUPERUSER, "--no-sync", "-E", "UTF8", "--locale=C"].map(Into::into),
        );
        let mut serve = prefix;
        serve.extend([self.bin.join("postgres").into(), "-D".into(), data.into()]);
        serve.extend(["-p".into(), port.to_string().into()]);
        serve.extend(["-c".into(), "listen_addresses=127.0.0.1".into()]);
        serve.extend(["-c".into(), format!("unix_socket_directories={}", folder.display()).into()]);
        // SIGINT is its fast shutdown: it does not wait for clients to leave.
        Ok(Recipe { prepare, serve, stop: "INT", afterwards: Vec::new() })
    }
}

impl Sql for Postgres {
    const SUPERUSER: &str = "postgres";
    const HOME: &str = "postgres";

    fn client(address: &Address, statement: &str) -> Result<Command, String> {
        let psql = programs::find("psql")
            .or_else(|| Self::installed().map(|own| own.bin.join("psql")))
            .ok_or("its client psql is not installed")?;
        let mut command = Command::new(psql);
        // -X: no start-up file; -w: fail where a password would be asked for, instead of waiting for one.
        command.args(["-X", "-w", "-At", "-h", &address.host, "-c", statement]);
        command.args(["-p", &address.port.unwrap_or(Self::PORT).to_string()]);
        command.args(["-U", address.user.as_deref().unwrap_or(Self::SUPERUSER)]);
        command.args(["-d", address.database.as_deref().unwrap_or(Self::HOME)]);
        command.env("PGCONNECT_TIMEOUT", "5");
        match &address.password {
            Some(password) => command.env("PGPASSWORD", password),
            None => command.env_remove("PGPASSWORD"),
        };
        Ok(command)
    }

    fn create(database: &str) -> String {
        // Spelled out, because a cluster made without a locale would give us SQL_ASCII.
        format!("create database {database} template template0 encoding 'UTF8' lc_collate 'C' lc_ctype 'C'")
    }

    fn drop(database: &str) -> String {
        format!("drop database if exists {database} with (force)")
    }
}

/// Without the remark that a distribution adds to the number.
fn identity(answer: &str) -> Identity {
    let version = answer.split_whitespace().next().unwrap_or("unknown").to_owned();
    Identity { name: Postgres::NAME, version }
}

/// The program folder of the highest version below `root`.
fn newest_of(root: &Path) -> Option<PathBuf> {
    let versions = root.read_dir().ok()?.flatten();
    let newest = versions.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).max()?;
    Some(root.join(newest.to_string()).join("bin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distributions_remark_is_cut_from_the_version() {
        let Identity { name, version } = identity("15.14 (Debian 15.14-0+deb12u1)");
        assert_eq!((name, version.as_str()), ("PostgreSQL", "15.14"));
    }

    #[test]
    fn a_password_reaches_the_client_by_environment_only() {
        let address = Address::parse("postgres://me:hush@db.example/shop").unwrap();
        let Ok(command) = Postgres::client(&address, "select 1") else {
            eprintln!("psql is not installed here: nothing to look at");
            return;
        };
        assert!(!command.get_args().any(|word| word.to_string_lossy().contains("hush")));
    }
}
