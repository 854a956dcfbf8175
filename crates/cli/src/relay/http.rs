//! The relay's HTTP server: health, metrics and the API, on one socket that stays open for as long as the relay runs.
//!
//! Connections are few (`places.rs`), and each has its time: a client that does not send a request, or take its answer, in time is cut. What
//! a request may do is decided in `auth.rs`, what it does in `api.rs`.

mod api;
mod auth;
mod changes;
mod cross_site;
mod error;
mod extract;
mod health;
mod limit;
mod messages;
mod patient;
mod places;
mod why;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use posthaste::{Error, ErrorKind, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tower_http::catch_panic::CatchPanicLayer;
use tracing::{debug, warn};

use self::limit::Limits;
use self::patient::Patient;
use self::places::{Place, Places, Visit};
use super::generation::{Current, Generation};
use super::prometheus::Metrics;

/// How long a connection may last: whoever is there for longer connects again.
const LIFE: Duration = Duration::from_secs(600);
/// How long requests under way may take when the relay ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// What every request can reach.
#[derive(Clone)]
pub(super) struct App {
    current: Current,
    metrics: Arc<Metrics>,
    limits: Arc<Limits>,
    /// Where the socket is, whatever the configuration says now.
    address: SocketAddr,
}

impl App {
    /// What runs now.
    fn generation(&self) -> Arc<Generation> {
        self.current.get()
    }
}

/// Opens the socket.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| {
        Error::new(ErrorKind::Configuration, format!("the relay cannot listen: {source}"))
            .with_context("listen", address)
            .with_remedy("give http.listen, or --listen, another address or port, or off")
    })
}

/// A server at work.
pub(super) struct Server {
    stop: watch::Sender<bool>,
    running: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Starts to answer on this socket.
    pub(super) fn start(listener: TcpListener, current: Current, metrics: Metrics) -> Self {
        let (stop, stopped) = watch::channel(false);
        let running = tokio::spawn(accept(listener, current, metrics, stopped));
        Self { stop, running }
    }

    /// Finishes what is under way, and closes the socket.
    pub(super) async fn stop(self) {
        let _ = self.stop.send(true);
        let _ = tokio::time::timeout(FAREWELL * 2, self.running).await;
    }
}

/// Everything that is answered.
fn router(app: &App) -> Router {
    let (router, rules) = api::router();
    let open = health::router();
    let router =
        router.route_layer(axum::middleware::from_fn_with_state((app.clone(), Arc::new(rules)), auth::guard));
    open.merge(router)
        .fallback(error::no_such_path)
        .method_not_allowed_fallback(error::no_such_method)
        .layer(axum::middleware::from_fn_with_state(app.clone(), cross_site::guard))
        .layer(CatchPanicLayer::custom(error::panicked))
        .layer(axum::middleware::from_fn(reserved_for_health))
        .layer(axum::middleware::map_response(with_headers))
        // Bodies are limited where they are read, by a configuration that may change.
        .layer(DefaultBodyLimit::disable())
        .with_state(app.clone())
}

/// On a reserved connection, answers one request for health or metrics, and refuses all others.
async fn reserved_for_health(request: Request, next: Next) -> Response {
    let Some(visit) = request.extensions().get::<Arc<Visit>>() else { return next.run(request).await };
    visit.asks();
    if !visit.is_reserved {
        return next.run(request).await;
    }
    let mut response = if health::is_for_machines(request.uri().path()) {
        next.run(request).await
    } else {
        error::too_many_connections().into_response()
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What every response says to browsers and caches.
async fn with_headers(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn accept(
    listener: TcpListener,
    current: Current,
    metrics: Metrics,
    mut stopped: watch::Receiver<bool>,
) {
    let Ok(address) = listener.local_addr() else { return };
    let http = current.get().config.http.clone();
    let app = App { current, metrics: Arc::new(metrics), limits: Arc::default(), address };
    let router = router(&app);
    let places = Places::new(http.connections, http.connections_per_address);
    let mut report = tokio::time::interval(limit::REPORT);
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            _ = stopped.changed() => break,
            Some(_) = connections.join_next() => continue,
            _ = report.tick() => {
                app.limits.report();
                continue;
            }
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, peer)) => {
                // Without a place the connection is closed at once.
                let Some(place) = places.take(peer) else { continue };
                let deadline = app.generation().config.http.deadline;
                connections.spawn(serve(stream, place, router.clone(), deadline, stopped.clone()));
            }
            Err(error) => {
                // Out of descriptors, most likely: others must end before there are some again.
                warn!(%error, "a connection to the relay was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    drop(listener);
    app.limits.report();
    let _ = tokio::time::timeout(FAREWELL, async { while connections.join_next().await.is_some() {} }).await;
}

/// Serves a connection, and keeps its place for as long as the requests on it were to take.
async fn serve(
    stream: TcpStream,
    place: Place,
    router: Router,
    deadline: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let visit = place.visit();
    tokio::select! {
        () = answer(stream, visit, router, deadline, stopped.clone()) => {}
        () = visit.evicted() => return,
    }
    if let Some(time) = visit.held_until() {
        tokio::select! {
            () = tokio::time::sleep_until(time.into()) => {}
            _ = stopped.changed() => {}
        }
    }
}

/// One connection, from its first byte to its last.
async fn answer(
    stream: TcpStream,
    visit: &Arc<Visit>,
    router: Router,
    deadline: Duration,
    mut stopped: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let router = router.layer(axum::Extension(Arc::clone(visit)));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(deadline)
        .max_buf_size(64 * 1024)
        .serve_connection(TokioIo::new(Patient::new(stream, deadline)), TowerToHyperService::new(router));
    tokio::pin!(connection);
    let life = tokio::time::sleep(LIFE);
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(peer = %visit.peer, %error, "a connection to the relay broke off");
            }
            return;
        }
        () = life => {}
        _ = stopped.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = tokio::time::timeout(FAREWELL, connection).await;
}
