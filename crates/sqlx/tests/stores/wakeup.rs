//! Notifications of PostgreSQL: which task a nudge wakes, and what becomes of it when connections are lost.
//!
//! Every wait has a deadline. Tests that expect no notification wait briefly, and only where it cannot come late.

use std::task::Poll;
use std::time::{Duration, Instant};

use posthaste_core::{NewMessage, Outbox, Store};
use posthaste_sqlx::{PgStore, Postgres, SqlStore, StoreOptions};
use posthaste_testkit::Fixture;
use sqlx_core::pool::PoolOptions;

use crate::fixture::{MySqlFixture, PgFixture, SqliteFixture};

const PATIENCE: Duration = Duration::from_secs(120);

async fn wakes(store: &impl Store, within: Duration) -> bool {
    tokio::time::timeout(within, store.wakeup()).await.is_ok()
}

/// How many connections listen on a channel of ours, in the fixture's schema.
async fn listeners(fixture: &PgFixture) -> Vec<String> {
    let sql = format!(
        "select pid::text from pg_stat_activity where query ilike 'listen \"posthaste%' and pid <> pg_backend_pid() \
         and application_name = '{}'",
        name_of(fixture)
    );
    fixture.texts(&sql).await
}

fn name_of(fixture: &PgFixture) -> &str {
    fixture.url.rsplit("%3D").next().unwrap()
}

/// Another instance of the store, whose connections can be told from all others by their name.
async fn instance(fixture: &PgFixture) -> PgStore {
    let url = format!("{}&application_name={}", fixture.url, name_of(fixture));
    PgStore::connect_with(&url, &fixture.options).await.unwrap()
}

/// A store that listens by now: a new listener is woken once, for notifications that it may have missed.
async fn listening(fixture: &PgFixture) -> PgStore {
    let store = instance(fixture).await;
    assert!(wakes(&store, PATIENCE).await, "it does not listen");
    assert_eq!(listeners(fixture).await.len(), 1);
    store
}

async fn until<T: PartialEq + std::fmt::Debug>(expected: T, mut found: impl AsyncFnMut() -> T) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now = found().await;
        if now == expected {
            return;
        }
        assert!(Instant::now() < deadline, "expected {expected:?}, found {now:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Other processes are notified while the transaction is still open, so that they poll as soon as it is committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn others_are_told_before_the_commit() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = listening(&fixture).await;
    let outbox = Outbox::builder(fixture.store.clone()).build().await.unwrap();
    let mut tx = fixture.begin().await;
    outbox.publish(&mut tx, NewMessage::bytes("t", "x")).await.unwrap();
    assert!(wakes(&store, PATIENCE).await, "nobody was told");
    tx.commit().await.unwrap();
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_nudge_wakes_other_instances() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = listening(&fixture).await;
    let clone = store.keep_done(false);
    assert!(!wakes(&store, Duration::from_millis(200)).await, "nobody said anything");
    for _ in 0..3 {
        // No task waits: the nudge is kept for the next one that does, and only for that one.
        fixture.store.nudge().await.unwrap();
        assert!(wakes(&store, PATIENCE).await);
    }
    // All that wait are woken, clones with other settings included; they share one connection.
    let mut waiting = [store.clone(), store.clone(), clone.clone()]
        .map(|store| Box::pin(async move { wakes(&store, PATIENCE).await }));
    for task in &mut waiting {
        // A future waits once it has been polled.
        assert!(std::future::poll_fn(|context| Poll::Ready(task.as_mut().poll(context).is_pending())).await);
    }
    fixture.store.nudge().await.unwrap();
    for task in waiting {
        assert!(task.await);
    }
    assert_eq!(listeners(&fixture).await.len(), 1);
    // A nudge without a listener is no error.
    store.close().await;
    fixture.store.nudge().await.unwrap();
    fixture.destroy().await;
}

/// The listener's connection is ended by the server: it reconnects, wakes once for notifications that may have been
/// missed, and listens again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_listener_comes_back() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = listening(&fixture).await;
    for _ in 0..3 {
        let before = listeners(&fixture).await;
        fixture.run(format!("select pg_terminate_backend({})", before[0])).await;
        assert!(wakes(&store, PATIENCE).await, "woken when it is back");
        let after = listeners(&fixture).await;
        assert!(after.len() == 1 && after != before, "{after:?}");
        fixture.store.nudge().await.unwrap();
        assert!(wakes(&store, PATIENCE).await, "it hears again");
    }
    store.close().await;
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_and_prefixes_do_not_wake_each_other() {
    if !PgFixture::available() {
        return;
    }
    let (fixture, other) = (PgFixture::create().await, PgFixture::create().await);
    let prefixed = PgStore::connect_with(&fixture.url, &fixture.options.clone().prefix("p_")).await.unwrap();
    let store = listening(&fixture).await;
    other.store.nudge().await.unwrap();
    prefixed.nudge().await.unwrap();
    assert!(!wakes(&store, Duration::from_millis(300)).await, "that was not meant for us");
    fixture.store.nudge().await.unwrap();
    assert!(wakes(&store, PATIENCE).await);
    for store in [store, prefixed] {
        store.close().await;
    }
    fixture.destroy().await;
    other.destroy().await;
}

/// The connection goes with the store: when it is closed, and when its last clone is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listener_ends_with_its_store() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = listening(&fixture).await;
    store.close().await;
    assert_eq!(listeners(&fixture).await.len(), 0);
    assert!(!wakes(&store, Duration::from_millis(100)).await, "closed: it never resolves");
    assert!(!wakes(&instance_that_is_closed(&fixture).await, Duration::from_millis(100)).await);

    let store = listening(&fixture).await;
    let clone = store.keep_done(false);
    drop(store);
    fixture.store.nudge().await.unwrap();
    assert!(wakes(&clone, PATIENCE).await, "a clone is left");
    drop(clone);
    until(0, async || listeners(&fixture).await.len()).await;
    fixture.destroy().await;
}

async fn instance_that_is_closed(fixture: &PgFixture) -> PgStore {
    let store = instance(fixture).await;
    store.close().await;
    store
}

/// Listening can be turned off, and a store over a given pool does it on a connection of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_connection_of_its_own_or_not_at_all() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let deaf = PgStore::connect_with(&fixture.url, &fixture.options.clone().listen(false)).await.unwrap();
    assert!(!wakes(&deaf, Duration::from_millis(300)).await);
    deaf.nudge().await.unwrap();

    let url = format!("{}&application_name={}", fixture.url, name_of(&fixture));
    let pool = PoolOptions::<<Postgres as posthaste_sqlx::Dialect>::Db>::new().max_connections(1);
    let pool = pool.connect(&url).await.unwrap();
    let store = PgStore::from_pool(pool.clone(), &fixture.options).unwrap();
    assert!(wakes(&store, PATIENCE).await);
    assert_eq!(listeners(&fixture).await.len(), 1);
    let all_of_the_pool = pool.acquire().await.unwrap();
    fixture.store.nudge().await.unwrap();
    assert!(wakes(&store, PATIENCE).await, "without any connection of the pool");
    drop(all_of_the_pool);
    store.close().await;
    deaf.close().await;
    fixture.destroy().await;
}

/// The others have no notifications: a nudge is harmless, and wakes no task.
async fn silent<D: crate::fixture::Backend>(store: &SqlStore<D>) {
    store.nudge().await.unwrap();
    assert!(!wakes(store, Duration::from_millis(100)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_databases_are_silent() {
    let fixture = SqliteFixture::create().await;
    silent(&fixture.store).await;
    fixture.destroy().await;
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        silent(&fixture.store).await;
        fixture.destroy().await;
    }
}

/// Names are for logs: which database and which table, and no secret.
#[tokio::test]
async fn names_tell_where_and_no_secret() {
    let pool = PoolOptions::<<Postgres as posthaste_sqlx::Dialect>::Db>::new();
    let pool = pool.connect_lazy("postgres://ada:s3cret@db.example:6543/shop").unwrap();
    let store = PgStore::from_pool(pool, &StoreOptions::new().prefix("x_")).unwrap();
    assert_eq!(store.name(), "postgres db.example:6543/shop \"posthaste\".\"x_outbox\"");
}

/// A listener whose connection the network has forgotten hears nothing and meets no error. It asks, and begins again.
#[tokio::test]
async fn a_silent_listener_is_replaced() {
    let Some(fixture) = PgFixture::available().then(PgFixture::create) else { return };
    let fixture = fixture.await;
    let (proxy, url) = crate::atomicity::proxy(&fixture).await;
    let options = fixture.options.clone().answer_timeout(Duration::from_secs(1));
    let store = PgStore::connect_with(&url, &options).await.unwrap();
    assert!(wakes(&store, PATIENCE).await, "it listens");
    for _ in 0..2 {
        proxy.silence();
        assert!(wakes(&store, PATIENCE).await, "it listens again");
    }
    tokio::time::timeout(PATIENCE, store.close()).await.expect("it can be closed");
    fixture.destroy().await;
}
