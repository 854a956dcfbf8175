//! A connection to a server that has no client program: connected and read with a time limit, and nothing else.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::Address;

/// How long a server may take to accept, and then to say something.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to the first of the host's addresses that answers.
pub(super) fn connect(address: &Address, usual_port: u16) -> Result<TcpStream, String> {
    let place = (address.host.as_str(), address.port.unwrap_or(usual_port));
    let places = place.to_socket_addrs().map_err(|error| format!("its host is not known: {error}"))?;
    let mut refusal = "its host has no address".to_owned();
    for place in places {
        match TcpStream::connect_timeout(&place, PATIENCE) {
            Ok(stream) => {
                let limited =
                    stream.set_read_timeout(Some(PATIENCE)).and(stream.set_write_timeout(Some(PATIENCE)));
                return limited.map(|()| stream).map_err(|error| error.to_string());
            }
            Err(error) => refusal = format!("it does not accept connections: {error}"),
        }
    }
    Err(refusal)
}
