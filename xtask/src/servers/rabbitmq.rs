//! RabbitMQ: logging in by hand, and how a private one is started.
//!
//! It has no part that could be kept for the tests without its own tools: they give their exchanges and queues unique
//! names. A private node must share nothing with another one: not the name, not a port, not the name server (epmd),
//! which it starts by itself and which has to be stopped with it.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use super::{Address, Engine, Identity, private, wire};
use crate::guard::Recipe;
use crate::programs;

/// Where the package keeps its scripts. Those in the search path drop the environment.
const SCRIPTS: [&str; 2] = ["/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin"];
/// The user of the machine it runs as when root starts it.
const ACCOUNT: &str = "rabbitmq";
/// The user that every fresh broker has, and its password.
const GUEST: &str = "guest";
/// The longest greeting that is read.
const MOST_BYTES: usize = 64 * 1024;

/// The methods of a login, as AMQP 0-9-1 numbers them: class, method.
const START: [u8; 4] = [0, 10, 0, 10];
const START_OK: [u8; 4] = [0, 10, 0, 11];
const TUNE: [u8; 4] = [0, 10, 0, 30];

/// The server's programs.
pub(super) struct Rabbitmq {
    server: PathBuf,
    epmd: PathBuf,
}

impl Engine for Rabbitmq {
    const NAME: &str = "RabbitMQ";
    const KEY: &str = "rabbitmq";
    const VARIABLE: &str = "POSTHASTE_TEST_RABBITMQ";
    const SCHEME: &str = "amqp";
    const PORT: u16 = 5672;
    const PACKAGE: &str = "rabbitmq-server";
    const ACCOUNT: Option<&str> = Some(ACCOUNT);

    fn home(port: u16) -> Address {
        let guest = || Some(GUEST.to_owned());
        Address { user: guest(), password: guest(), ..Address::local(port) }
    }

    fn identify(address: &Address) -> Result<Identity, String> {
        let mut stream = wire::connect(address, Self::PORT)?;
        let greeting = stream
            .write_all(b"AMQP\x00\x00\x09\x01")
            .map_err(|error| error.to_string())
            .and_then(|()| read_method(&mut stream, START))
            .map_err(|fault| format!("it does not greet as an AMQP server does: {fault}"))?;
        let product = table_text(&greeting, "product").unwrap_or_default();
        if product != Self::NAME {
            return Err("it speaks AMQP but is not RabbitMQ".to_owned());
        }
        let user = address.user.as_deref().unwrap_or(GUEST);
        let password = address.password.as_deref().unwrap_or(GUEST);
        stream
            .write_all(&start_ok(user, password))
            .map_err(|error| error.to_string())
            .and_then(|()| read_method(&mut stream, TUNE))
            .map_err(|_| format!("it does not let user {user} in"))?;
        let version = table_text(&greeting, "version").unwrap_or_else(|| "unknown".to_owned());
        Ok(Identity { name: Self::NAME, version })
    }

    fn installed() -> Option<Self> {
        let mut scripts = SCRIPTS.iter().map(|folder| Path::new(folder).join("rabbitmq-server"));
        let server = scripts.find(|file| programs::is_executable(file))?;
        Some(Self { server, epmd: programs::find("epmd")? })
    }

    fn recipe(&self, folder: &Path, port: u16) -> Result<Recipe, String> {
        let (between_nodes, epmd) = (private::free_port()?.to_string(), private::free_port()?.to_string());
        let mut serve = if programs::is_root() { programs::become_user(ACCOUNT)? } else { Vec::new() };
        serve.push("env".into());
        let mut set = |variable: &str, value: OsString| {
            let mut pair = OsString::from(format!("{variable}="));
            pair.push(value);
            serve.push(pair);
        };
        // Its secret file of the cluster goes there.
        set("HOME", folder.into());
        set("RABBITMQ_NODENAME", format!("posthaste-{port}@localhost").into());
        set("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1".into());
        set("RABBITMQ_NODE_PORT", port.to_string().into());
        set("RABBITMQ_DIST_PORT", between_nodes.into());
        set("ERL_EPMD_PORT", epmd.clone().into());
        set("ERL_EPMD_ADDRESS", "127.0.0.1".into());
        set("RABBITMQ_MNESIA_BASE", folder.join("data").into());
        set("RABBITMQ_LOG_BASE", folder.join("logs").into());
        set("RABBITMQ_LOGS", "-".into());
        // Files that are not there: the machine's own would name other ports.
        set("RABBITMQ_CONFIG_FILE", folder.join("no-config").into());
        set("RABBITMQ_ADVANCED_CONFIG_FILE", folder.join("no-advanced-config").into());
        set("RABBITMQ_CONF_ENV_FILE", folder.join("no-environment").into());
        set("RABBITMQ_ENABLED_PLUGINS_FILE", folder.join("no-plugins").into());
        // One scheduler that does not spin: two cores are shared with the tests.
        let erlang = "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1 +sbwt none";
        set("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", erlang.into());
        // The script then becomes the server, instead of waiting for a child that would survive its death.
        set("RUNNING_UNDER_SYSTEMD", "true".into());
        serve.push(self.server.clone().into());
        let afterwards = vec![self.epmd.clone().into(), "-port".into(), epmd.into(), "-kill".into()];
        Ok(Recipe { prepare: Vec::new(), serve, stop: "TERM", afterwards })
    }
}

/// The arguments of the method that must come next.
fn read_method(stream: &mut TcpStream, expected: [u8; 4]) -> Result<Vec<u8>, String> {
    let mut head = [0; 7];
    stream.read_exact(&mut head).map_err(|error| error.to_string())?;
    let [kind, _, _, length @ ..] = head;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if kind != 1 || !(4..MOST_BYTES).contains(&length) {
        return Err("it answered something else".to_owned());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).map_err(|error| error.to_string())?;
    let mut end = [0];
    stream.read_exact(&mut end).map_err(|error| error.to_string())?;
    if body[..4] != expected || end != [0xCE] {
        return Err("it answered something else".to_owned());
    }
    Ok(body.split_off(4))
}

/// The frame that logs in.
fn start_ok(user: &str, password: &str) -> Vec<u8> {
    let login = format!("\0{user}\0{password}");
    let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
    let mut body = START_OK.to_vec();
    body.extend([0; 4]); // nothing to say about ourselves
    body.extend(b"\x05PLAIN");
    body.extend(length(login.len()));
    body.extend(login.as_bytes());
    body.extend(b"\x05en_US");
    let mut frame = vec![1, 0, 0];
    frame.extend(length(body.len()));
    frame.extend(body);
    frame.push(0xCE);
    frame
}

/// The value of a field, if it is a text: found by its name, because the rest of the table does not matter.
fn table_text(table: &[u8], field: &str) -> Option<String> {
    let mut name = vec![u8::try_from(field.len()).ok()?];
    name.extend(field.as_bytes());
    name.push(b'S');
    let start = table.windows(name.len()).position(|window| window == name)? + name.len();
    let length = u32::from_be_bytes(table.get(start..start + 4)?.try_into().ok()?);
    let text = table.get(start + 4..start + 4 + usize::try_from(length).ok()?)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_in_the_greeting() {
        let greeting = b"\x07productS\x00\x00\x00\x08RabbitMQ\x07versionS\x00\x00\x00\x063.10.8";
        assert_eq!(table_text(greeting, "product").as_deref(), Some("RabbitMQ"));
        assert_eq!(table_text(greeting, "version").as_deref(), Some("3.10.8"));
        assert_eq!(table_text(greeting, "platform"), None);
        assert_eq!(table_text(&greeting[..12], "product"), None, "a text that is cut off is none");
    }

    #[test]
    fn a_login_says_how_long_it_is() {
        let frame = start_ok("me", "hush");
        let announced = u32::from_be_bytes(frame[3..7].try_into().unwrap());
        assert_eq!(frame.len(), 7 + announced as usize + 1);
        assert!(frame.windows(8).any(|window| window == b"\0me\0hush"));
    }

    #[test]
    fn a_private_node_shares_nothing() {
        let rabbitmq = Rabbitmq { server: "rabbitmq-server".into(), epmd: "epmd".into() };
        let Ok(recipe) = rabbitmq.recipe(Path::new("folder"), 5673) else {
            eprintln!("setpriv is not installed here: nothing to look at");
            return;
        };
        let (serve, afterwards) = (programs::spelled(&recipe.serve), programs::spelled(&recipe.afterwards));
        for word in ["HOME=folder", "RABBITMQ_NODE_PORT=5673", "RABBITMQ_DIST_PORT=", "ERL_EPMD_PORT="] {
            assert!(serve.contains(word), "{word} is missing: {serve}");
        }
        let epmd = serve.split("ERL_EPMD_PORT=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
        assert_eq!(afterwards, format!("epmd -port {epmd} -kill"));
    }
}
