//! NATS with JetStream: how it greets, and how a private one is started.
//!
//! It has no part that could be kept for the tests: they give their streams unique names.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::{Address, Engine, Identity, wire};
use crate::guard::Recipe;
use crate::programs;

/// The longest greeting that is read.
const GREETING_BYTES: u64 = 64 * 1024;

/// The server's program.
pub(super) struct Nats {
    server: PathBuf,
}

impl Engine for Nats {
    const NAME: &str = "NATS";
    const KEY: &str = "nats";
    const VARIABLE: &str = "POSTHASTE_TEST_NATS";
    const SCHEME: &str = "nats";
    const PORT: u16 = 4222;
    const PACKAGE: &str = "nats-server";
    const ACCOUNT: Option<&str> = None;

    fn home(port: u16) -> Address {
        Address::local(port)
    }

    fn identify(address: &Address) -> Result<Identity, String> {
        let stream = wire::connect(address, Self::PORT)?;
        let mut line = String::new();
        let greeted = BufReader::new(stream).take(GREETING_BYTES).read_line(&mut line);
        greeted.map_err(|error| format!("it did not greet: {error}"))?;
        identity(&line, address.user.is_some())
    }

    fn installed() -> Option<Self> {
        Some(Self { server: programs::find("nats-server")? })
    }

    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String> {
        let mut serve = vec![self.server.clone().into()];
        serve.extend(["-a".into(), "127.0.0.1".into(), "-p".into(), port.to_string().into()]);
        serve.extend(["-js".into(), "-sd".into(), folder.join("js").into()]);
        Ok(Recipe { prepare: Vec::new(), serve, stop: "TERM", afterwards: Vec::new() })
    }
}

/// The server that sent this greeting, if the tests can use it.
fn identity(line: &str, with_login: bool) -> Result<Identity, String> {
    let info = line.strip_prefix("INFO {").ok_or("it does not greet as a NATS server does")?;
    // A whole JSON reader would be much for three fields that hold no quotes.
    let has = |field: &str| info.contains(&format!("\"{field}\":true"));
    if !has("jetstream") {
        return Err("its JetStream is not enabled; start it with -js".to_owned());
    }
    if has("auth_required") && !with_login {
        return Err("it asks for a login".to_owned());
    }
    let version = info.split_once("\"version\":\"").and_then(|(_, rest)| rest.split('"').next());
    Ok(Identity { name: Nats::NAME, version: version.unwrap_or("unknown").to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_tells_whether_the_tests_can_use_it() {
        let greeting = |rest: &str| format!("INFO {{\"server_id\":\"A\",\"version\":\"2.9.10\"{rest}}} \r\n");
        let found = identity(&greeting(",\"jetstream\":true"), false).unwrap();
        assert_eq!((found.name, found.version.as_str()), ("NATS", "2.9.10"));
        let refusal = |line: &str| identity(line, false).map(|found| found.version).unwrap_err();
        assert!(refusal(&greeting("")).contains("-js"));
        let closed = greeting(",\"jetstream\":true,\"auth_required\":true");
        assert!(refusal(&closed).contains("login") && identity(&closed, true).is_ok());
        assert!(refusal("+PONG\r\n").contains("greet"));
    }
}
