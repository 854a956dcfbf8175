//! How often a call goes to the server and back: counted on the wire, not timed.
//!
//! A batch of any size is one round trip, which makes a remote database usable. Only publishing on MySQL takes one for every
//! 64 messages, because statements of different lengths are expensive there (ADR 0026).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::{
    Birth, ClaimRequest, Failure, Inbox, InboxStore, Lease, MessageId, NewMessage, Once, Outcome, Received,
    Settlement, Store, TransactionalStore, Turn, WorkerId,
};
use posthaste_sqlx::SqlStore;
use posthaste_testkit::Fixture;
use sqlx_core::connection::Connection as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Backend, Connection, MySqlFixture, PgFixture, SqlFixture, in_the_clear};

/// Forwards to a server, and counts how often it answers after a client has spoken.
pub struct Counter {
    pub port: u16,
    trips: Arc<AtomicUsize>,
}

impl Counter {
    pub async fn before(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let trips = Arc::new(AtomicUsize::new(0));
        let count = trips.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&server).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let asked = Arc::new(AtomicBool::new(false));
                let (ask, trips) = (asked.clone(), count.clone());
                tokio::spawn(pass(from_client, to_server, move || ask.store(true, Ordering::SeqCst)));
                tokio::spawn(pass(from_server, to_client, move || {
                    if asked.swap(false, Ordering::SeqCst) {
                        trips.fetch_add(1, Ordering::SeqCst);
                    }
                }));
            }
        });
        Self { port, trips }
    }

    /// How many round trips this takes.
    pub async fn of<T>(&self, call: impl Future<Output = T>) -> (usize, T) {
        let before = self.trips.load(Ordering::SeqCst);
        let answer = call.await;
        (self.trips.load(Ordering::SeqCst) - before, answer)
    }

    /// How many round trips this takes of the store's one connection. When the caller has its answer, the driver asks
    /// the connection whether it is still alive, before it goes back to the pool: that trip is waited for, and is not
    /// the caller's.
    async fn of_store<D: Backend, T>(
        &self,
        store: &SqlStore<D>,
        call: impl Future<Output = T>,
    ) -> (usize, T) {
        let returned = async || {
            let deadline = std::time::Instant::now() + Duration::from_secs(120);
            while store.pool().num_idle() == 0 {
                assert!(std::time::Instant::now() < deadline, "the connection never came back");
                tokio::task::yield_now().await;
            }
        };
        returned().await;
        let both = async {
            let answer = call.await;
            returned().await;
            answer
        };
        let (trips, answer) = self.of(both).await;
        (trips - 1, answer)
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    seen: impl Fn() + Send,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        seen();
        if to.write_all(&buffer[..n]).await.is_err() {
            break;
        }
    }
}

/// The address in a URL, and the URL with another port of this machine instead.
pub fn through(url: &str, counter: impl Fn(&str) -> u16) -> String {
    let (head, rest) = url.split_once('@').unwrap();
    let (address, tail) = rest.split_once('/').unwrap();
    in_the_clear(&format!("{head}@127.0.0.1:{}/{tail}", counter(address)))
}

pub fn address_of(url: &str) -> String {
    let (_, rest) = url.split_once('@').unwrap();
    rest.split_once('/').unwrap().0.to_owned()
}

fn messages(count: usize) -> Vec<NewMessage> {
    (0..count).map(|n| NewMessage::bytes("t", format!("payload {n}")).build().unwrap()).collect()
}

/// OBX-120: every verb once to warm up, when its statement is prepared, and then counted, with batches of 1, 5 and 200.
async fn one_each<D: Backend>(fixture: SqlFixture<D>)
where
    Connection<D>: Send,
{
    let counter = Counter::before(address_of(&fixture.url)).await;
    let url = through(&fixture.url, |_| counter.port);
    let options = fixture.options.clone().max_connections(1);
    let store = SqlStore::<D>::connect_with(&url, &options).await.unwrap();
    store.check().await.unwrap();
    let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(200);
    let lease = Duration::from_secs(60);
    let mut user = Connection::<D>::connect(&url).await.unwrap();

    // The second round is the one that counts: by then every statement is prepared.
    for (round, size) in [(0, 1), (0, 5), (0, 200), (1, 1), (1, 5), (1, 200)] {
        let batch = messages(size);
        let (enqueue, _) = counter.of_store(&store, store.enqueue(&batch)).await;
        let (claim, claimed) = counter.of_store(&store, store.claim(&request)).await;
        let leases: Vec<Lease> = claimed.unwrap().iter().map(|message| message.lease()).collect();
        assert_eq!(leases.len(), size);
        let (renew, _) = counter.of_store(&store, store.renew(&leases, lease)).await;
        let mixed = |index: usize| match index % 3 {
            0 => Outcome::Ack,
            1 => Outcome::Defer { delay: lease },
            _ => Outcome::Abandon {
                delay: lease,
                failure: Failure::business("no"),
                max_attempts: 9,
                max_age: None,
            },
        };
        let settlements: Vec<Settlement> =
            leases.iter().enumerate().map(|(index, lease)| Settlement::new(*lease, mixed(index))).collect();
        let (settle, _) = counter.of_store(&store, store.settle(&settlements)).await;
        let (reap, _) = counter.of_store(&store, store.reap(100)).await;
        let (expire, _) = counter.of_store(&store, store.expire(100)).await;
        let publish_batch = messages(size);
        let (publish, _) = counter.of(store.insert(&mut user, &publish_batch, Birth::Ready)).await;
        let (survivors, _) = counter.of(store.survivors(&mut user, &leases)).await;
        let (turn, _) = counter.of_store(&store, store.turn("job", Turn::Every(lease))).await;
        let request = request.clone().limit(1_000);
        let published = store.claim(&request).await.unwrap();
        let acks: Vec<Settlement> =
            published.iter().map(|message| Settlement::new(message.lease(), Outcome::Ack)).collect();
        store.settle(&acks).await.unwrap();
        if round == 1 {
            let counted = [enqueue, claim, renew, settle, reap, expire, publish, survivors, turn];
            let inserts = if D::NAME == "mysql" { size.div_ceil(64) } else { 1 };
            // Several are a transaction.
            let enqueue = if inserts > 1 { inserts + 2 } else { 1 };
            assert_eq!(counted, [enqueue, 1, 1, 1, 1, 1, inserts, 1, 1], "batch of {size}");
        }
    }
    user.close().await.unwrap();
    store.close().await;
    fixture.destroy().await;
}

/// INB-001: a message that is not there is remembered in one round trip, and one that is there is known in two.
async fn inbox<D: Backend>(fixture: &SqlFixture<D>)
where
    Connection<D>: Send,
{
    let counter = Counter::before(address_of(&fixture.url)).await;
    let url = through(&fixture.url, |_| counter.port);
    let options = fixture.options.clone().max_connections(1);
    let store = SqlStore::<D>::connect_with(&url, &options).await.unwrap();
    store.check().await.unwrap();
    let mut user = Connection::<D>::connect(&url).await.unwrap();
    let inbox = Inbox::new(store.clone(), "stock").unwrap().keep_payload(true);
    for round in 0..2 {
        let mut message = Received::new("shop", MessageId::new(), "order.placed", "{}");
        let (first, once) = counter.of(inbox.once(&mut user, &message)).await;
        assert_eq!(once.unwrap(), Once::First);
        let (repeated, once) = counter.of(inbox.once(&mut user, &message)).await;
        assert_eq!(once.unwrap(), Once::Repeated);
        message.payload = "other".into();
        let (altered, once) = counter.of(inbox.once(&mut user, &message)).await;
        assert_eq!(once.unwrap(), Once::Altered);
        let (remembered, _) = counter.of_store(&store, store.remembered("stock", "shop", message.id)).await;
        let (forget, _) = counter.of_store(&store, store.forget("stock", Duration::from_secs(60), 100)).await;
        if round == 1 {
            assert_eq!([first, repeated, altered, remembered, forget], [1, 2, 2, 1, 1]);
        }
    }
    user.close().await.unwrap();
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_takes_one_each() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        inbox(&fixture).await;
        one_each(fixture).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_takes_one_each() {
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        inbox(&fixture).await;
        one_each(fixture).await;
    }
}
