//! One connection, from its beginning to its end, on a thread of its own.
//!
//! The driver reconnects by itself and then sends what it had queued, maybe long after the sink has reported a failure. So a
//! connection that is lost ends here for good, with everything that was queued in it: its runtime is dropped. The next call
//! that needs one opens a new one.
//!
//! On its thread the log is off: at TRACE the driver writes whole messages.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_nats::jetstream::context::{Context, ContextBuilder};
use async_nats::{Client, ConnectError, ConnectErrorKind, Event, ServerError};
use tokio::sync::{oneshot, watch};
use tracing::{debug, info};

use crate::options::NatsOptions;

/// The driver must not come back by itself; the runtime is dropped long before this.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// Two unanswered pings end a connection.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// More acknowledgements than can be awaited at a time: a batch is published before the first is awaited.
const MOST_ACKS: usize = 1 << 20;
/// The most subjects that are remembered as forbidden.
const MOST_FORBIDDEN: usize = 1_000;
/// The most messages of a connection that may stay without an answer. The driver keeps an entry for each until it ends.
const MOST_UNANSWERED: usize = 10_000;

/// The state of a connection, as far as its thread has reported it.
#[derive(Default)]
struct News {
    ended: bool,
    /// Subjects that the user may not publish to, and how often the server has said so.
    forbidden: BTreeMap<String, u64>,
}

impl News {
    /// Counts that a subject is forbidden. False if it is not remembered, because too many are.
    fn forbid(&mut self, subject: &str) -> bool {
        if self.forbidden.len() >= MOST_FORBIDDEN && !self.forbidden.contains_key(subject) {
            return false;
        }
        *self.forbidden.entry(subject.to_owned()).or_default() += 1;
        true
    }
}

/// A connection that stands, or stood.
pub(crate) struct Link {
    client: Client,
    context: Context,
    news: watch::Receiver<News>,
    /// Taken, or dropped, it ends the connection.
    stop: Mutex<Option<oneshot::Sender<()>>>,
    unanswered: AtomicUsize,
}

impl Link {
    /// Connects, in one try. The error is a sentence without secrets.
    pub(crate) async fn open(options: &NatsOptions) -> Result<Self, String> {
        let (tell, told) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let (news, heard) = watch::channel(News::default());
        let own = options.clone();
        std::thread::Builder::new()
            .name("posthaste-nats".to_owned())
            .spawn(move || keep(&own, Arc::new(news), tell, stopped))
            .map_err(|error| format!("no thread for a connection: {error}"))?;
        let opened = tokio::time::timeout(options.patience(), told).await;
        let client = opened
            .map_err(|_| "the connection was not there in time".to_owned())?
            // The thread ended without a result: the driver panicked.
            .map_err(|_| "the driver gave up while it connected".to_owned())??;
        info!(server = %options.name(), "connected");
        let context = ContextBuilder::new().timeout(NEVER).max_ack_inflight(MOST_ACKS).build(client.clone());
        Ok(Self {
            client,
            context,
            news: heard,
            stop: Mutex::new(Some(stop)),
            unanswered: AtomicUsize::new(0),
        })
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Whether it is gone, or will be as soon as its thread notices: a closed connection must not be used again.
    pub(crate) fn has_ended(&self) -> bool {
        let is_closed = self.stop.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        is_closed || self.news.has_changed().is_err() || self.news.borrow().ended
    }

    /// Waits until it is gone.
    pub(crate) async fn ended(&self) {
        let _ = self.news.clone().wait_for(|news| news.ended).await;
    }

    /// Waits until the server says that this subject is forbidden; for ever, if it does not.
    pub(crate) async fn forbidden(&self, subject: &str) {
        self.forbidden_again(subject, 0).await;
    }

    /// Counts how often the server has said that this subject is forbidden.
    pub(crate) fn times_forbidden(&self, subject: &str) -> u64 {
        self.news.borrow().forbidden.get(subject).copied().unwrap_or_default()
    }

    /// Waits until the server has said more than `before` times that this subject is forbidden; for ever, if it does not.
    pub(crate) async fn forbidden_again(&self, subject: &str, before: u64) {
        let is_more = |news: &News| news.forbidden.get(subject).is_some_and(|times| *times > before);
        if self.news.clone().wait_for(is_more).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Counts a message that stays without an answer.
    pub(crate) fn leave_unanswered(&self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether to replace it: the driver remembers too many messages that will not be answered.
    pub(crate) fn is_worn_out(&self) -> bool {
        self.unanswered.load(Ordering::Relaxed) > MOST_UNANSWERED
    }

    /// Ends it, with everything that is queued in it or waits for an answer.
    pub(crate) fn close(&self) {
        drop(self.stop.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

/// The thread of a connection.
fn keep(
    options: &NatsOptions,
    news: Arc<watch::Sender<News>>,
    tell: oneshot::Sender<Result<Client, String>>,
    stopped: oneshot::Receiver<()>,
) {
    let _silence = tracing::dispatcher::set_default(&tracing::Dispatch::none());
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            runtime.block_on(live(options, news, tell, stopped));
            // Not waited for: a name that is being looked up cannot be hurried.
            runtime.shutdown_background();
        }
        Err(error) => drop(tell.send(Err(format!("no runtime for a connection: {error}")))),
    }
}

async fn live(
    options: &NatsOptions,
    news: Arc<watch::Sender<News>>,
    tell: oneshot::Sender<Result<Client, String>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let connected = tokio::select! {
        biased;
        _ = &mut stopped => return,
        connected = connect(options, Arc::clone(&news)) => connected,
    };
    let is_there = connected.is_ok();
    if tell.send(connected).is_err() || !is_there {
        return;
    }
    let mut heard = news.subscribe();
    tokio::select! {
        _ = stopped => {}
        _ = heard.wait_for(|news| news.ended) => {}
    }
    news.send_modify(|news| news.ended = true);
}

async fn connect(options: &NatsOptions, news: Arc<watch::Sender<News>>) -> Result<Client, String> {
    let driver = options.for_driver().await.map_err(|error| format!("the login cannot be read: {error}"))?;
    let has_connected = Arc::new(AtomicBool::new(false));
    let connected = Arc::clone(&has_connected);
    let delay = move |_| {
        if has_connected.load(Ordering::SeqCst) { NEVER } else { Duration::ZERO }
    };
    let hear = move |event: Event| {
        let news = Arc::clone(&news);
        async move { listen(&news, &event) }
    };
    let client = driver
        .ping_interval(PING_INTERVAL)
        .ignore_discovered_servers()
        .reconnect_delay_callback(delay)
        .event_callback(hear)
        .connect(options.servers())
        .await
        .map_err(|error| reason(&error))?;
    connected.store(true, Ordering::SeqCst);
    Ok(client)
}

fn listen(news: &watch::Sender<News>, event: &Event) {
    match event {
        Event::Disconnected | Event::Closed => news.send_modify(|news| news.ended = true),
        Event::ServerError(ServerError::Other(text)) => {
            if let Some(subject) = forbidden_subject(text) {
                news.send_if_modified(|news| news.forbid(subject));
            }
        }
        _ => debug!("something else was heard"),
    }
}

/// The subject in `Permissions Violation for Publish to "subject"`.
fn forbidden_subject(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("for Publish to ")?;
    rest.strip_prefix('"')?.split('"').next()
}

/// Why there is no connection, for people.
fn reason(error: &ConnectError) -> String {
    let mut text = error.to_string();
    let mut source = error.source().and_then(|source| source.source());
    while let Some(deeper) = source {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = deeper.source();
    }
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication => {
            format!("the server does not let this user in ({text}); check the login")
        }
        _ if text.contains("certificate") => format!("the server's certificate is not trusted: {text}"),
        _ if text.contains("corrupt message") || text.contains("InvalidContentType") => {
            "the server does not speak TLS".to_owned()
        }
        _ => format!("no connection: {text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_forbidden_subject_is_found_in_the_servers_words() {
        let text = r#"Permissions Violation for Publish to "shop.orders""#;
        assert_eq!(forbidden_subject(text), Some("shop.orders"));
        assert_eq!(forbidden_subject("Maximum Payload Violation"), None);
        assert_eq!(forbidden_subject(r#"Permissions Violation for Subscription to "x""#), None);
    }
}
