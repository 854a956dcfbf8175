//! MariaDB, and MySQL where only that is installed: clients, programs, and how a private one is started.
//!
//! Must never read the machine's option files: they name other folders, sockets and users. Starting a private MySQL
//! follows its manual but has not been tried; the project tests with MariaDB.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::sql::{self, Sql};
use super::{Address, Engine, Identity, Room};
use crate::guard::Recipe;
use crate::programs;

/// The user of the machine it runs as when root starts it.
const ACCOUNT: &str = "mysql";

/// The server's programs.
pub(super) struct Mariadb {
    server: PathBuf,
    /// MariaDB's script that fills a data folder; MySQL's server does that itself.
    installer: Option<PathBuf>,
}

impl Engine for Mariadb {
    const NAME: &str = "MariaDB";
    const KEY: &str = "mysql";
    const VARIABLE: &str = "POSTHASTE_TEST_MYSQL";
    const SCHEME: &str = "mysql";
    const PORT: u16 = 3306;
    const PACKAGE: &str = "mariadb-server";
    const ACCOUNT: Option<&str> = Some(ACCOUNT);

    fn home(port: u16) -> Address {
        sql::home::<Self>(port)
    }

    fn identify(address: &Address) -> Result<Identity, String> {
        let answer = sql::query::<Self>(address, "select version()")?;
        Ok(identity(&answer))
    }

    fn room(home: &Address, shared: bool) -> Result<Room, String> {
        sql::room::<Self>(home, shared)
    }

    fn installed() -> Option<Self> {
        let installer = programs::find_any(&["mariadb-install-db", "mysql_install_db"]);
        // Without that script a server called mysqld is MySQL's, and one called mariadbd is of no use.
        let names: &[&str] = if installer.is_some() { &["mariadbd", "mysqld"] } else { &["mysqld"] };
        Some(Self { server: programs::find_any(names)?, installer })
    }

    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String> {
        let data = format!("--datadir={}", folder.join("data").display());
        // A server that starts deletes the temporary tables in its folder: not those of its neighbours.
        let temporary = format!("--tmpdir={}", folder.display());
        let mut common = vec!["--no-defaults".into(), data.into(), temporary.into()];
        if programs::is_root() {
            common.push(format!("--user={ACCOUNT}").into());
        }
        let mut prepare = vec![self.installer.as_ref().unwrap_or(&self.server).into()];
        prepare.extend_from_slice(&common);
        let mut serve = vec![self.server.clone().into()];
        serve.extend(common);
        serve.extend([format!("--port={port}").into(), "--bind-address=127.0.0.1".into()]);
        serve.push(format!("--socket={}", folder.join("s.sock").display()).into());
        serve.push(format!("--pid-file={}", folder.join("pid").display()).into());
        serve.push("--skip-log-bin".into());
        if self.installer.is_some() {
            // The usual root may log in over a socket only; `normal` lets it in over TCP, without password.
            prepare.push("--auth-root-authentication-method=normal".into());
            prepare.push("--skip-test-db".into());
        } else {
            prepare.push("--initialize-insecure".into());
            // Its second protocol would listen on every interface.
            serve.push("--mysqlx=OFF".into());
        }
        Ok(Recipe { prepare, serve, stop: "TERM", afterwards: Vec::new() })
    }
}

impl Sql for Mariadb {
    const SUPERUSER: &str = "root";
    const HOME: &str = "mysql";

    fn client(address: &Address, statement: &str) -> Result<Command, String> {
        let client = programs::find_any(&["mariadb", "mysql"])
            .ok_or("neither of the clients mariadb and mysql is installed")?;
        let mut command = Command::new(client);
        // --no-defaults is obeyed in the first place only.
        command.args(["--no-defaults", "--connect-timeout=5", "--protocol=tcp", "-N", "-B"]);
        command.args(["-h", &address.host, "-P", &address.port.unwrap_or(Self::PORT).to_string()]);
        command.args(["-u", address.user.as_deref().unwrap_or(Self::SUPERUSER), "-e", statement]);
        command.args(["-D", address.database.as_deref().unwrap_or(Self::HOME)]);
        match &address.password {
            Some(password) => command.env("MYSQL_PWD", password),
            None => command.env_remove("MYSQL_PWD"),
        };
        Ok(command)
    }

    fn create(database: &str) -> String {
        format!("create database {database} character set utf8mb4")
    }

    fn drop(database: &str) -> String {
        // An abandoned transaction would otherwise hold the drop back for a day, which is the default.
        format!("set lock_wait_timeout = 10; drop database if exists {database}")
    }
}

/// The answer tells which of the two products it is.
fn identity(answer: &str) -> Identity {
    let name = if answer.contains("MariaDB") { Mariadb::NAME } else { "MySQL" };
    Identity { name, version: answer.split('-').next().unwrap_or("unknown").to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_tells_which_product_it_is() {
        let Identity { name, version } = identity("10.11.14-MariaDB-0+deb12u2");
        assert_eq!((name, version.as_str()), ("MariaDB", "10.11.14"));
        let Identity { name, version } = identity("8.4.2");
        assert_eq!((name, version.as_str()), ("MySQL", "8.4.2"));
    }

    #[test]
    fn each_product_gets_only_options_it_knows() {
        let spelled = |installer: Option<PathBuf>| {
            let recipe =
                Mariadb { server: "mysqld".into(), installer }.recipe(Path::new("folder"), 3307).unwrap();
            (programs::spelled(&recipe.prepare), programs::spelled(&recipe.serve))
        };
        let (prepare, serve) = spelled(Some("mariadb-install-db".into()));
        assert!(prepare.starts_with("mariadb-install-db --no-defaults --datadir=folder/data"), "{prepare}");
        assert!(
            prepare.contains("--tmpdir=folder") && serve.contains("--tmpdir=folder"),
            "{prepare}, {serve}"
        );
        assert!(
            serve.contains("--port=3307 --bind-address=127.0.0.1") && !serve.contains("mysqlx"),
            "{serve}"
        );
        let (prepare, serve) = spelled(None);
        assert!(prepare.starts_with("mysqld --no-defaults") && prepare.ends_with("--initialize-insecure"));
        assert!(serve.ends_with("--mysqlx=OFF"), "{serve}");
    }
}
