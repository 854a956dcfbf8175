//! One connection: opened once, never repaired. A broken one is replaced by another.
//!
//! Every wait in here has a deadline. Nothing in here knows a message.

use std::fmt;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_rs::Runtime;
use async_rs::traits::Reactor;
use futures_util::FutureExt as _;
use futures_util::stream::{BoxStream, StreamExt as _};
use lapin::protocol::AMQPErrorKind;
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties, ErrorKind, Event};
use tokio::time::{Instant, timeout, timeout_at};

use crate::quiet::{QuietKit, quietly, runtime};
use crate::server::RabbitServer;

/// How long a connection that is no longer needed may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What went wrong between us and the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The server closed the channel, with this code, for something that was asked of it.
    Channel(u16, String),
    /// The connection is lost, or was never there.
    Lost(String),
    /// There was no answer in time.
    Late,
}

impl From<lapin::Error> for Trouble {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(error) => {
                let text = error.get_message().to_string();
                match error.kind() {
                    AMQPErrorKind::Soft(_) => Self::Channel(error.get_id(), text),
                    AMQPErrorKind::Hard(_) => Self::Lost(text),
                }
            }
            ErrorKind::IOError(error) => Self::Lost(error.to_string()),
            _ => Self::Lost(error.to_string()),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(_, text) | Self::Lost(text) => {
                f.write_str(text)?;
                remedy(text).map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
            }
            Self::Late => f.write_str("no answer in time"),
        }
    }
}

/// The reaction to an error of the server or the client.
fn remedy(text: &str) -> Option<&'static str> {
    if text.contains("Login was refused") {
        Some("check the user, the password, and the user's rights on the virtual host")
    } else if text.contains("InvalidContentType") {
        Some("the port does not speak TLS: use amqp://, or the port for TLS, usually 5671")
    } else if text.contains("NOT_FOUND - no queue") {
        Some("create the queue, or declare it by a Topology")
    } else {
        None
    }
}

pub(crate) struct Link {
    connection: Option<Connection>,
    socket: Arc<Socket>,
    notices: Mutex<Notices>,
}

/// Events that the server sends by itself.
struct Notices {
    events: BoxStream<'static, Event>,
    blocked: Option<String>,
}

/// A second handle of the connection's socket, to cut it. lapin would wait for a server that says nothing, in a thread,
/// for as long as the process lives.
#[derive(Default)]
struct Socket(Mutex<Option<TcpStream>>);

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some(socket) = lock(&self.0).take() {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    /// Connects and declares the configured topology. One try.
    pub(crate) async fn connect(server: &RabbitServer, deadline: Instant) -> Result<Self, Trouble> {
        let deadline = deadline.min(Instant::now() + server.patience);
        let connecting = async {
            let link = Self::connected(server, deadline).await?;
            if !server.topology.is_empty() {
                let channel = link.channel(deadline).await?;
                server.topology.declare(&channel).await?;
            }
            Ok(link)
        };
        timeout_at(deadline, connecting).await.unwrap_or(Err(Trouble::Late))
    }

    async fn connected(server: &RabbitServer, deadline: Instant) -> Result<Self, Trouble> {
        // Cut when this future is dropped, too: the deadline may be over before the server has answered.
        let socket = Arc::new(Socket::default());
        let reach = reach(server, deadline, Arc::downgrade(&socket))?;
        let properties =
            ConnectionProperties::default().with_connection_name(server.connection_name.as_str().into());
        let connection =
            quietly(Connection::connector(server.uri.clone(), runtime(), reach, properties)).await?;
        let notices = Notices { events: connection.events_listener().boxed(), blocked: None };
        Ok(Self { connection: Some(connection), socket, notices: Mutex::new(notices) })
    }

    fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref().filter(|connection| connection.status().connected())
    }

    pub(crate) fn is_up(&self) -> bool {
        self.connection().is_some()
    }

    /// Why the server takes nothing from this connection at present, if so.
    pub(crate) fn blocked(&self) -> Option<String> {
        let mut notices = lock(&self.notices);
        while let Some(Some(event)) = notices.events.next().now_or_never() {
            match event {
                Event::ConnectionBlocked(reason) => notices.blocked = Some(reason),
                Event::ConnectionUnblocked => notices.blocked = None,
                _ => {}
            }
        }
        let is_blocked = self.connection()?.status().blocked();
        is_blocked.then(|| notices.blocked.clone().unwrap_or_else(|| "no reason given".to_owned()))
    }

    /// Opens a channel: a question that only a living server answers.
    pub(crate) async fn channel(&self, deadline: Instant) -> Result<Channel, Trouble> {
        let gone = || Trouble::Lost("the connection is closed".to_owned());
        let connection = self.connection().ok_or_else(gone)?;
        let opening = quietly(connection.create_channel());
        Ok(timeout_at(deadline, opening).await.unwrap_or_else(|_| Err(late()))?)
    }

    /// Says goodbye, if the server listens.
    pub(crate) async fn close(mut self) {
        if let Some(connection) = self.connection.take() {
            goodbye(&connection).await;
        }
    }
}

/// An error that becomes [`Trouble::Lost`]: a server that opens no channel in time is not there.
fn late() -> lapin::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "the server did not open a channel in time").into()
}

async fn goodbye(connection: &Connection) {
    let _ = timeout(GOODBYE, quietly(connection.close(200, "OK".into()))).await;
}

impl Drop for Link {
    fn drop(&mut self) {
        let Some(connection) = self.connection.take().filter(|connection| connection.status().connected())
        else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // The socket is closed after the closing handshake, not before.
        let socket = Arc::clone(&self.socket);
        runtime.spawn(async move {
            goodbye(&connection).await;
            drop(socket);
        });
    }
}

type Stream = AsyncTcpStream<<QuietKit as Reactor>::TcpStream>;

/// How lapin gets its stream: TCP, then TLS if it is asked for, before the deadline.
fn reach(
    server: &RabbitServer,
    deadline: Instant,
    socket: std::sync::Weak<Socket>,
) -> Result<impl AsyncFn(AMQPUri, Runtime<QuietKit>) -> lapin::Result<Stream> + Send + Sync + 'static, Trouble>
{
    #[cfg(feature = "tls")]
    let tls = if server.is_tls() {
        Some(server.tls.connector().map_err(|error| Trouble::Lost(error.to_string()))?)
    } else {
        None
    };
    #[cfg(not(feature = "tls"))]
    let _ = server;
    Ok(async move |uri: AMQPUri, runtime: Runtime<QuietKit>| -> lapin::Result<Stream> {
        let reaching = async {
            let host = uri.authority.host.as_str();
            let addresses = tokio::net::lookup_host((host, uri.authority.port)).await?;
            let mut stream = Err(std::io::Error::other("the host has no address"));
            for address in addresses {
                stream = runtime.tcp_connect_addr(address).await;
                if stream.is_ok() {
                    break;
                }
            }
            let stream = stream?;
            let gone = || std::io::Error::other("given up");
            *lock(&socket.upgrade().ok_or_else(gone)?.0) = Some(second_handle(stream.get_ref())?);
            let stream = AsyncTcpStream::Plain(stream);
            #[cfg(feature = "tls")]
            if let Some(tls) = &tls {
                return stream.into_rustls(tls, host).await;
            }
            Ok::<_, std::io::Error>(stream)
        };
        let late = |_| Err(std::io::ErrorKind::TimedOut.into());
        Ok(timeout_at(deadline, reaching).await.unwrap_or_else(late)?)
    })
}

#[cfg(unix)]
fn second_handle(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::fd::AsFd as _;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

#[cfg(windows)]
fn second_handle(socket: &tokio::net::TcpStream) -> std::io::Result<TcpStream> {
    use std::os::windows::io::AsSocket as _;
    Ok(socket.as_socket().try_clone_to_owned()?.into())
}
