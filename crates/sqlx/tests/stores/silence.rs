//! Connections that the network has forgotten: open at both ends, and no byte arrives any more. Every call on one ends with an
//! error, and the calls after it use new connections.

use std::time::Duration;

use posthaste_core::{
    ClaimRequest, ErrorKind, Lease, NewMessage, Retention, Store as _, WorkItemId, WorkerId,
};
use posthaste_sqlx::{SqlStore, StoreOptions};
use posthaste_testkit::{Fixture as _, Mode};
use sqlx_core::pool::PoolOptions;
use tokio::time::timeout;

use crate::atomicity::proxy;
use crate::fixture::{Backend, SqlFixture};

const PATIENCE: Duration = Duration::from_secs(120);

const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

fn options(like: &StoreOptions) -> StoreOptions {
    // One connection: a place that a lost connection keeps would stop everything.
    let options = like.clone().max_connections(1).acquire_timeout(Duration::from_secs(10));
    options.answer_timeout(ANSWER_TIMEOUT).listen(false)
}

fn claim() -> ClaimRequest {
    ClaimRequest::new(WorkerId::new("w").unwrap())
}

fn draft() -> NewMessage {
    NewMessage::json("t", &1).build().unwrap()
}

/// Calls that are under way when their connection falls silent: one statement, a lease's, a transaction's, an operator's.
#[derive(Clone, Copy, Debug)]
enum Call {
    Claim,
    Settle,
    Enqueue,
    Prune,
}

impl Call {
    const ALL: [Self; 4] = [Self::Claim, Self::Settle, Self::Enqueue, Self::Prune];

    async fn run<D: Backend>(self, store: &SqlStore<D>) -> posthaste_core::Result<()> {
        match self {
            Self::Claim => store.claim(&claim()).await.map(drop),
            Self::Settle => {
                let lease = Lease { item: WorkItemId::new(1), epoch: 1 };
                store.renew(&[lease], Duration::from_secs(30)).await.map(drop)
            }
            Self::Enqueue => store.enqueue(&[draft()]).await.map(drop),
            Self::Prune => store.prune(&Retention::done(Duration::ZERO), 10).await.map(drop),
        }
    }
}

/// The call ends, and the calls after it succeed. Returns whether the call was under way when its connection fell silent: then it
/// failed, and says why.
async fn falls_silent<D: Backend>(store: &SqlStore<D>, proxy: &posthaste_testkit::Proxy, call: Call) -> bool {
    store.check().await.unwrap();
    // The pool tests what comes back. A silent test would keep the call from the connection.
    let is_back = async {
        while store.pool().num_idle() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, is_back).await.expect("the connection comes back to its pool");
    proxy.set(Mode::Blackhole);
    let under_way = tokio::spawn({
        let store = store.clone();
        async move { call.run(&store).await }
    });
    // Long enough for the call to be sent; if a slow machine takes longer, it meets the silence at its next step.
    tokio::time::sleep(Duration::from_millis(200)).await;
    proxy.silence();
    proxy.set(Mode::Forward);
    let outcome = timeout(PATIENCE, under_way).await.expect("the call ends").unwrap();
    let was_under_way = outcome.is_err_and(|error| {
        let kinds = [ErrorKind::Unavailable, ErrorKind::CommitUnknown, ErrorKind::Busy];
        assert!(kinds.contains(&error.kind()), "{call:?}: {error}");
        error.kind() == ErrorKind::CommitUnknown || error.to_string().contains("the server has not answered")
    });
    let back = async {
        while let Err(error) = store.check().await {
            assert!([ErrorKind::Unavailable, ErrorKind::Busy].contains(&error.kind()), "{call:?}: {error}");
        }
    };
    timeout(PATIENCE, back).await.unwrap_or_else(|_| panic!("{call:?}: new connections are used"));
    was_under_way
}

/// Lets each kind of call meet a silent connection. A slow machine may need several tries to be in time.
async fn all_fall_silent<D: Backend>(store: &SqlStore<D>, proxy: &posthaste_testkit::Proxy) {
    for call in Call::ALL {
        let mut tries = 0;
        while !falls_silent(store, proxy, call).await {
            tries += 1;
            assert!(tries < 10, "{call:?} never met the silence");
        }
    }
}

async fn own_connections<D: Backend>() {
    let Some(fixture) = SqlFixture::<D>::available().then(SqlFixture::<D>::create) else { return };
    let fixture = fixture.await;
    let (proxy, url) = proxy(&fixture).await;
    let store = SqlStore::<D>::connect_with(&url, &options(&fixture.options)).await.unwrap();
    all_fall_silent(&store, &proxy).await;
    timeout(PATIENCE, store.close()).await.expect("a store with lost connections can be closed");
    fixture.destroy().await;
}

async fn users_pool<D: Backend>() {
    let Some(fixture) = SqlFixture::<D>::available().then(SqlFixture::<D>::create) else { return };
    let fixture = fixture.await;
    let (proxy, url) = proxy(&fixture).await;
    let pool = PoolOptions::<D::Db>::new().max_connections(1).acquire_timeout(Duration::from_secs(10));
    // Without a test before each use, so that the call itself meets the silence.
    let pool = pool.test_before_acquire(false).idle_timeout(None).max_lifetime(None);
    let pool = pool.connect(&url).await.unwrap();
    let store = SqlStore::<D>::from_pool(pool, &options(&fixture.options)).unwrap();
    all_fall_silent(&store, &proxy).await;
    fixture.destroy().await;
}

macro_rules! on_servers {
    ($($name:ident)*) => {
        mod postgres {
            $(#[tokio::test] async fn $name() { super::$name::<posthaste_sqlx::Postgres>().await; })*
        }
        mod mysql {
            $(#[tokio::test] async fn $name() { super::$name::<posthaste_sqlx::MySql>().await; })*
        }
    };
}
on_servers! { own_connections users_pool }
