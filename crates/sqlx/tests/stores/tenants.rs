//! What stores need to be one of many: they rest, tell which queue they are, and go on with another login.
//!
//! Connections are counted where they cannot hide: at the server, and among the open files of this process. Every wait has a
//! deadline.

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use posthaste_core::{
    Birth, ClaimRequest, ErrorKind, NewMessage, Outcome, Settled, Settlement, Source, Store,
    TransactionalStore, Transactions, WorkerId,
};
use posthaste_sqlx::{
    Database, MySql, MySqlDatabase, PgDatabase, Postgres, SqlStore, Sqlite, SqliteDatabase, SqliteStore,
    StoreOptions,
};
use posthaste_testkit::Fixture;
use sqlx_core::pool::PoolOptions;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, unique};

const PATIENCE: Duration = Duration::from_secs(120);
const SECRET: &str = "s3cret";

/// What these tests need of a database beside its store.
#[async_trait]
trait Tenant: Backend {
    /// Whether there are logins at all.
    const LOGINS: bool = true;
    /// Makes a login that may use the fixture's tables, and its URL.
    async fn login(fixture: &SqlFixture<Self>, name: &str) -> String;
    async fn drop_login(fixture: &SqlFixture<Self>, name: &str);
    /// How many connections such a login has open; where there are none, how many files.
    async fn open(fixture: &SqlFixture<Self>, name: &str) -> usize;
    /// The user of this connection.
    const WHO: &'static str;
}

/// The URL with another user.
fn url_as(url: &str, user: &str, password: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let host = authority.rsplit('@').next().unwrap();
    format!("{scheme}://{user}:{password}@{host}/{path}")
}

#[async_trait]
impl Tenant for Postgres {
    const WHO: &'static str = "select current_user::text";

    async fn login(fixture: &PgFixture, name: &str) -> String {
        let sql = format!(
            "create role {name} login password '{SECRET}'; \
             do $$ begin execute format('grant %I to {name}', current_user); end $$"
        );
        fixture.run(sql).await;
        url_as(&fixture.url, name, SECRET)
    }

    async fn drop_login(fixture: &PgFixture, name: &str) {
        fixture.run(format!("drop role {name}")).await;
    }

    async fn open(fixture: &PgFixture, name: &str) -> usize {
        fixture.texts(&format!("select pid::text from pg_stat_activity where usename = '{name}'")).await.len()
    }
}

#[async_trait]
impl Tenant for MySql {
    const WHO: &'static str = "select substring_index(current_user(), '@', 1)";

    async fn login(fixture: &MySqlFixture, name: &str) -> String {
        let database = fixture.url.rsplit('/').next().unwrap();
        fixture.run(format!("create user '{name}'@'%' identified by '{SECRET}'")).await;
        fixture.run(format!("grant all on {database}.* to '{name}'@'%'")).await;
        url_as(&fixture.url, name, SECRET)
    }

    async fn drop_login(fixture: &MySqlFixture, name: &str) {
        fixture.run(format!("drop user '{name}'@'%'")).await;
    }

    async fn open(fixture: &MySqlFixture, name: &str) -> usize {
        let sql =
            format!("select cast(id as char) from information_schema.processlist where user = '{name}'");
        fixture.texts(&sql).await.len()
    }
}

#[async_trait]
impl Tenant for Sqlite {
    const LOGINS: bool = false;
    const WHO: &'static str = "select 'nobody'";

    async fn login(fixture: &SqliteFixture, _: &str) -> String {
        // No other process has the file open from now on.
        fixture.store.close().await;
        fixture.users.close().await;
        fixture.url.clone()
    }

    async fn drop_login(_: &SqliteFixture, _: &str) {}

    async fn open(fixture: &SqliteFixture, _: &str) -> usize {
        let file = fixture.url.trim_start_matches("sqlite://").split('?').next().unwrap();
        open_files(file)
    }
}

/// How many files of this database the process has open: itself, `-wal` and `-shm`.
fn open_files(database: &str) -> usize {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    let ours = |path: &Path| path.to_string_lossy().starts_with(database);
    open.flatten().filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| ours(&path))).count()
}

/// Can be told only where the system tells.
fn can_be_counted<D: Tenant>() -> bool {
    D::LOGINS || cfg!(target_os = "linux")
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

fn described<D: Tenant>(fixture: &SqlFixture<D>, url: &str) -> Database<D> {
    // Patient, because here it is about what happens, not about how soon on a busy machine.
    let options = fixture.options.clone().max_connections(2).listen(false).acquire_timeout(PATIENCE);
    Database::new(url).unwrap().options(options)
}

fn message() -> NewMessage {
    NewMessage::bytes("t", "x").build().unwrap()
}

fn request() -> ClaimRequest {
    ClaimRequest::new(WorkerId::new("w").unwrap()).limit(100).lease(Duration::from_secs(600))
}

async fn ack_all<D: Tenant>(store: &SqlStore<D>) -> usize {
    let claimed = store.claim(&request()).await.unwrap();
    let acks: Vec<_> = claimed.iter().map(|m| Settlement::new(m.lease(), Outcome::Ack)).collect();
    let settled = store.settle(&acks).await.unwrap().settled;
    assert!(settled.iter().all(|settled| *settled == Settled::Applied), "{settled:?}");
    settled.len()
}

async fn who<D: Tenant>(connection: &mut crate::fixture::Connection<D>) -> String {
    D::texts(connection, D::WHO.to_owned()).await.unwrap().remove(0)
}

/// A store that rests has no connection, and the next call finds it as it was. A transaction that is open keeps its own.
async fn rest_closes_connections<D: Tenant>() {
    if !SqlFixture::<D>::available() || !can_be_counted::<D>() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let name = unique();
    let store = described(&fixture, &D::login(&fixture, &name).await).open().unwrap();
    let clone = store.keep_done(false);
    assert_eq!(D::open(&fixture, &name).await, 0, "open() has connected");
    store.rest().await;
    assert_eq!(D::open(&fixture, &name).await, 0, "a rest has connected");
    for round in 0..3 {
        store.enqueue(&[message()]).await.unwrap();
        let tx = store.begin().await.unwrap();
        assert!(D::open(&fixture, &name).await >= 2, "one of each pool");
        store.rollback(tx).await.unwrap();
        clone.rest().await;
        if !D::LOGINS {
            assert_eq!(D::open(&fixture, &name).await, 0, "a file is open, round {round}");
        }
        until(0, async || D::open(&fixture, &name).await).await;
        store.rest().await;
    }
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
    let before = Instant::now();
    store.rest().await;
    assert!(before.elapsed() < PATIENCE, "it waited for the user");
    assert!(D::open(&fixture, &name).await >= 1, "the transaction's");
    store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
    store.commit(tx).await.unwrap();
    until(0, async || D::open(&fixture, &name).await).await;
    assert_eq!(ack_all(&clone).await, 5);
    store.close().await;
    D::drop_login(&fixture, &name).await;
    fixture.destroy().await;
}

/// A store over a user's pool leaves the pool's connections alone.
async fn a_given_pool_is_left_alone<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let pool = PoolOptions::<D::Db>::new().max_connections(1).connect(&fixture.url).await.unwrap();
    let store = SqlStore::<D>::from_pool(pool.clone(), &fixture.options).unwrap();
    store.enqueue(&[message()]).await.unwrap();
    store.rest().await;
    assert!(!pool.is_closed() && pool.size() == 1);
    assert!(!Database::new(&fixture.url).unwrap().options(fixture.options.clone()).change(&store).unwrap());
    store.check().await.unwrap();
    assert!(!pool.is_closed() && pool.size() == 1);
    store.close().await;
    assert!(pool.is_closed());
    fixture.destroy().await;
}

/// Many tasks that publish, claim and settle, each by itself and in transactions, until they are stopped. Every failure is a
/// panic. Each returns how many messages it published and how many it acked.
struct Work {
    tasks: Vec<tokio::task::JoinHandle<(usize, usize)>>,
    rounds: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl Work {
    fn begin<D: Tenant>(store: &SqlStore<D>) -> Self {
        let (rounds, stop) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let task = |_| {
            let (store, rounds, stop) = (store.clone(), Arc::clone(&rounds), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut published, mut acked) = (0, 0);
                while !stop.load(Ordering::SeqCst) {
                    store.enqueue(&[message()]).await.unwrap();
                    let mut tx = store.begin().await.unwrap();
                    store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
                    store.commit(tx).await.unwrap();
                    published += 2;
                    acked += ack_all(&store).await;
                    rounds.fetch_add(1, Ordering::SeqCst);
                }
                (published, acked)
            })
        };
        let tasks = (0..6).map(task).collect();
        Self { tasks, rounds, stop }
    }

    /// Until the next call.
    async fn goes_on(&self) {
        let before = self.rounds.load(Ordering::SeqCst);
        let deadline = Instant::now() + PATIENCE;
        while self.rounds.load(Ordering::SeqCst) == before
            && !self.tasks.iter().any(|task| task.is_finished())
        {
            assert!(Instant::now() < deadline, "nobody works any more");
            tokio::task::yield_now().await;
        }
    }

    /// All that was published, by others too, was claimed and acked, once.
    async fn end<D: Tenant>(self, store: &SqlStore<D>, by_others: usize) {
        self.stop.store(true, Ordering::SeqCst);
        let (mut published, mut acked) = (by_others, 0);
        for task in self.tasks {
            let (more, settled) = task.await.unwrap();
            published += more;
            acked += settled;
        }
        acked += ack_all(store).await;
        assert_eq!(published, acked);
    }
}

/// A store that rests in the middle of its callers' work goes unnoticed.
async fn rest_harms_nobody<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let store = described(&fixture, &fixture.url).open().unwrap();
    let work = Work::begin(&store);
    for round in 0..40 {
        if round % 4 == 0 {
            work.goes_on().await;
        }
        store.rest().await;
    }
    work.end(&store, 0).await;
    store.close().await;
    fixture.destroy().await;
}

/// A store goes on with another login while it is at work: no call fails, calls under way end with the old one, later
/// calls have the new one.
async fn another_login_takes_over<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let names = [unique(), unique()];
    let mut sources = Vec::new();
    for name in &names {
        sources.push(described(&fixture, &D::login(&fixture, name).await));
    }
    let store = sources[0].open().unwrap();
    let mut old = store.begin().await.unwrap();
    assert_eq!(who::<D>(&mut old).await, names[0]);
    let work = Work::begin(&store);
    for round in 1..20 {
        work.goes_on().await;
        assert!(sources[round % 2].change(&store.clone()).unwrap());
    }
    let mut new = store.begin().await.unwrap();
    assert_eq!(who::<D>(&mut new).await, names[1]);
    let mut own = store.pool().acquire().await.unwrap();
    assert_eq!(who::<D>(&mut own).await, names[1]);
    drop(own);
    assert_eq!(who::<D>(&mut old).await, names[0], "it keeps its connection");
    for mut tx in [old, new] {
        store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
        store.commit(tx).await.unwrap();
    }
    until(0, async || D::open(&fixture, &names[0]).await).await;
    assert!(D::open(&fixture, &names[1]).await > 0);
    work.end(&store, 2).await;

    // The first one's password no longer matters: it is not used.
    D::drop_login(&fixture, &names[0]).await;
    store.check().await.unwrap();
    store.close().await;
    D::drop_login(&fixture, &names[1]).await;
    fixture.destroy().await;
}

/// A wrong login is an error at the next call, and forgotten with the next right one.
async fn a_wrong_login_is_told<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let name = unique();
    let right = described(&fixture, &D::login(&fixture, &name).await);
    // PostgreSQL may trust connections from this machine, but not of an unknown user.
    let wrong = described(&fixture, &url_as(&fixture.url, &unique(), "wr0ng"));
    let store = right.open().unwrap();
    for _ in 0..2 {
        store.check().await.unwrap();
        assert!(wrong.change(&store).unwrap());
        for error in [store.check().await.unwrap_err(), store.begin().await.map(drop).unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Permission, "{error}");
            assert!(!format!("{error} {error:?}").contains("wr0ng"), "{error:?}");
        }
        assert!(right.change(&store).unwrap());
    }
    store.check().await.unwrap();
    store.close().await;
    D::drop_login(&fixture, &name).await;
    fixture.destroy().await;
}

fn unless_unavailable<T>(outcome: posthaste_core::Result<T>) -> Option<T> {
    outcome.map_err(|error| assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}")).ok()
}

/// Rests, changes and calls while the store is closed fail with "closed", if at all, and keep no other caller
/// waiting.
async fn closing_is_for_good<D: Tenant>() {
    if !SqlFixture::<D>::available() || !can_be_counted::<D>() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let name = unique();
    let source = described(&fixture, &D::login(&fixture, &name).await);
    for round in 0..10 {
        let store = source.open().unwrap();
        store.check().await.unwrap();
        let closed = Arc::<AtomicBool>::default();
        let tasks: Vec<_> = (0..6)
            .map(|kind| {
                let (store, source, closed) = (store.clone(), source.clone(), Arc::clone(&closed));
                tokio::spawn(async move {
                    loop {
                        let told = match kind {
                            0 | 1 => {
                                store.rest().await;
                                closed.load(Ordering::SeqCst)
                            }
                            2 | 3 => !source.change(&store).unwrap(),
                            4 => unless_unavailable(store.check().await).is_none(),
                            _ => match unless_unavailable(store.begin().await) {
                                Some(tx) => store.rollback(tx).await.is_err(),
                                None => true,
                            },
                        };
                        if told {
                            return assert!(closed.load(Ordering::SeqCst), "{kind}: nobody has closed it");
                        }
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for _ in 0..round * 20 {
            tokio::task::yield_now().await;
        }
        closed.store(true, Ordering::SeqCst);
        tokio::time::timeout(PATIENCE, store.close()).await.expect("close() does not end");
        for task in tasks {
            tokio::time::timeout(PATIENCE, task).await.expect("nobody told it").unwrap();
        }
        assert_eq!(store.check().await.unwrap_err().kind(), ErrorKind::Unavailable);
        tokio::time::timeout(PATIENCE, store.rest()).await.expect("a rest of what is closed");
        assert!(!source.change(&store).unwrap());
        until(0, async || D::open(&fixture, &name).await).await;
    }
    D::drop_login(&fixture, &name).await;
    fixture.destroy().await;
}

/// A caller that waits for the close waits until it is done, including connections that a rest or a change had begun
/// to close.
async fn close_waits_for_what_was_replaced<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let source = described(&fixture, &fixture.url);
    let store = source.open().unwrap();
    let tx = store.begin().await.unwrap();
    assert!(source.change(&store).unwrap());
    let closing = tokio::spawn({
        let store = store.clone();
        async move { store.close().await }
    });
    until(true, async || store.pool().is_closed()).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!closing.is_finished(), "a transaction is open");
    store.commit(tx).await.unwrap();
    tokio::time::timeout(PATIENCE, closing).await.expect("it has ended").unwrap();
    fixture.destroy().await;
}

/// What another source does not describe is not changed, and works on.
async fn another_queue_is_another_store<D: Tenant>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let source = described(&fixture, &fixture.url);
    let store = source.open().unwrap();
    store.check().await.unwrap();
    let options = || fixture.options.clone();
    let elsewhere = fixture.url.replacen("127.0.0.1", "localhost", 1).replacen("outbox.db", "other.db", 1);
    assert_ne!(elsewhere, fixture.url);
    for other in [
        source.clone().options(options().prefix("other_")),
        source.clone().options(options().keep_done(false)),
        described(&fixture, &elsewhere),
    ] {
        let pool = store.pool();
        assert!(other != source && !other.change(&store).unwrap(), "{other:?}");
        assert!(!pool.is_closed());
    }
    let same = source.clone().options(options().max_connections(1).acquire_timeout(Duration::from_secs(9)));
    assert!(same != source && same.change(&store).unwrap());
    store.check().await.unwrap();
    assert_eq!(store.pool().options().get_max_connections(), 1);
    assert_eq!(store.pool().options().get_acquire_timeout(), Duration::from_secs(9));
    let bad = source.clone().options(options().max_connections(0));
    assert_eq!(bad.change(&store).unwrap_err().kind(), ErrorKind::Configuration);
    assert_eq!(bad.open().unwrap_err().kind(), ErrorKind::Configuration);
    store.close().await;
    fixture.destroy().await;
}

macro_rules! on {
    ($($name:ident, $dialect:ty: $($case:ident),+;)+) => {
        $(mod $name {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case::<$dialect>().await;
            })+
        })+
    };
}

on! {
    postgres, Postgres: rest_closes_connections, a_given_pool_is_left_alone, rest_harms_nobody, another_login_takes_over,
        a_wrong_login_is_told, closing_is_for_good, close_waits_for_what_was_replaced, another_queue_is_another_store;
    mysql, MySql: rest_closes_connections, a_given_pool_is_left_alone, rest_harms_nobody, another_login_takes_over,
        a_wrong_login_is_told, closing_is_for_good, close_waits_for_what_was_replaced, another_queue_is_another_store;
    sqlite, Sqlite: rest_closes_connections, a_given_pool_is_left_alone, rest_harms_nobody,
        closing_is_for_good, close_waits_for_what_was_replaced, another_queue_is_another_store;
}

/// A rest closes the listener's connection if no task waits for it; a change of the login replaces it if one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_listener_rests_and_follows() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let names = [unique(), unique()];
    let mut sources = Vec::new();
    for name in &names {
        let source = described(&fixture, &Postgres::login(&fixture, name).await);
        sources.push(source.options(fixture.options.clone().listen(true)));
    }
    let open = async |name: &str| Postgres::open(&fixture, name).await;
    let wakes =
        async |store: &SqlStore<Postgres>| tokio::time::timeout(PATIENCE, store.wakeup()).await.is_ok();
    let store = sources[0].open().unwrap();
    assert!(wakes(&store).await, "whoever begins to listen may have missed something");
    assert_eq!(open(&names[0]).await, 1);
    store.rest().await;
    until(0, async || open(&names[0]).await).await;

    // A waiting task keeps it, and gets notifications after a change of the login.
    assert!(wakes(&store).await, "it begins again");
    let mut waiting = std::pin::pin!(store.wakeup());
    let mut waits = async || poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
    assert!(waits().await, "nobody said anything");
    store.rest().await;
    assert_eq!(open(&names[0]).await, 1, "somebody waits");
    assert!(waits().await);
    assert!(sources[1].change(&store).unwrap());
    until((0, 1), async || (open(&names[0]).await, open(&names[1]).await)).await;
    tokio::time::timeout(PATIENCE, waiting).await.expect("it listens anew");
    fixture.store.nudge().await.unwrap();
    assert!(wakes(&store).await);

    // Turned off, it is gone; and with the store.
    assert!(sources[1].clone().options(fixture.options.clone().listen(false)).change(&store).unwrap());
    until(0, async || open(&names[1]).await).await;
    assert!(sources[0].change(&store).unwrap());
    assert!(wakes(&store).await);
    store.close().await;
    until(0, async || open(&names[0]).await).await;
    for name in &names {
        Postgres::drop_login(&fixture, name).await;
    }
    fixture.destroy().await;
}

async fn identity<D: Tenant>(url: &str, options: &StoreOptions) -> String {
    let store = Database::<D>::new(url).unwrap().options(options.clone()).open().unwrap();
    let identity = store.identity().await.unwrap().unwrap();
    assert_eq!(store.identity().await.unwrap().as_ref(), Some(&identity), "it stays");
    store.close().await;
    identity
}

/// One queue has one identity under every name of its server and for every user; other schemas, prefixes and databases have
/// others, and so has a copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_of_postgres() {
    if !PgFixture::available() {
        return;
    }
    let (fixture, other) = (PgFixture::create().await, PgFixture::create().await);
    let options = &fixture.options;
    let itself = fixture.store.identity().await.unwrap().unwrap();
    let nobody = unique();
    fixture.run(format!("create role {nobody} login password '{SECRET}'")).await;
    let as_nobody = url_as(&fixture.url, &nobody, SECRET);
    for url in [&fixture.url, &fixture.url.replacen("127.0.0.1", "localhost", 1), &as_nobody] {
        assert_eq!(identity::<Postgres>(url, options).await, itself, "{url}");
    }
    assert!(!itself.contains(&nobody) && !itself.contains(SECRET));
    let mut seen = vec![itself, other.store.identity().await.unwrap().unwrap()];
    seen.push(identity::<Postgres>(&fixture.url, &options.clone().prefix("p_")).await);
    // Case tells names apart here.
    seen.push(identity::<Postgres>(&fixture.url, &options.clone().prefix("P_")).await);

    // A database and a copy of it, table by table and row by row.
    let (original, copy) = (unique(), unique());
    fixture.run(format!("create database {original}")).await;
    let url_of = |database: &str| {
        let (base, _) = fixture.url.rsplit_once('/').unwrap();
        format!("{base}/{database}")
    };
    let store = PgDatabase::new(url_of(&original)).unwrap().open().unwrap();
    store.migrate().await.unwrap();
    store.close().await;
    // Connections end a moment after they were closed, and a template must have none.
    let used = format!("select pid::text from pg_stat_activity where datname = '{original}'");
    until(0, async || fixture.texts(&used).await.len()).await;
    fixture.run(format!("create database {copy} template {original}")).await;
    for database in [&original, &copy] {
        seen.push(identity::<Postgres>(&url_of(database), &StoreOptions::tenant()).await);
    }
    for database in [&original, &copy] {
        fixture.run(format!("drop database {database} with (force)")).await;
    }
    all_differ(seen);
    fixture.run(format!("drop role {nobody}")).await;
    fixture.destroy().await;
    other.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_of_mysql() {
    if !MySqlFixture::available() {
        return;
    }
    let (fixture, other) = (MySqlFixture::create().await, MySqlFixture::create().await);
    let itself = fixture.store.identity().await.unwrap().unwrap();
    let database = fixture.url.rsplit('/').next().unwrap();
    let nobody = unique();
    fixture.run(format!("create user '{nobody}'@'%' identified by '{SECRET}'")).await;
    // The least right that lets a user choose the database.
    fixture.run(format!("grant select on {database}.posthaste_outbox_version to '{nobody}'@'%'")).await;
    let as_nobody = url_as(&fixture.url, &nobody, SECRET);
    let options = StoreOptions::tenant();
    for url in [&fixture.url, &fixture.url.replacen("127.0.0.1", "localhost", 1), &as_nobody] {
        assert_eq!(identity::<MySql>(url, &options).await, itself, "{url}");
    }
    assert_eq!(
        identity::<MySql>(&other.url, &options.clone().schema(database)).await,
        itself,
        "by its schema"
    );
    assert!(!itself.contains(&nobody) && !itself.contains(SECRET));
    let prefixed = identity::<MySql>(&fixture.url, &options.clone().prefix("p_")).await;
    all_differ(vec![itself, other.store.identity().await.unwrap().unwrap(), prefixed]);
    fixture.run(format!("drop user '{nobody}'@'%'")).await;
    fixture.destroy().await;
    other.destroy().await;
}

/// A file is one by all its names, a copy is another, and a database in memory has no identity.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_identity_of_sqlite() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = |name: &str| folder.path().join(name);
    let url = |name: &str| format!("sqlite://{}", file(name).display());
    let options = StoreOptions::tenant();
    let store = SqliteStore::open(file("a.db")).await.unwrap();
    store.migrate().await.unwrap();
    let itself = store.identity().await.unwrap().unwrap();
    store.close().await;
    std::fs::copy(file("a.db"), file("copy.db")).unwrap();
    std::fs::create_dir(file("sub")).unwrap();
    let mut same = vec![url("a.db"), url("sub/../a.db")];
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(file("a.db"), file("symbolic.db")).unwrap();
        std::fs::hard_link(file("a.db"), file("hard.db")).unwrap();
        same.extend([url("symbolic.db"), url("hard.db")]);
    }
    for url in same {
        assert_eq!(identity::<Sqlite>(&url, &options).await, itself, "{url}");
    }
    let upper = identity::<Sqlite>(&url("a.db"), &options.clone().prefix("P_")).await;
    assert_eq!(
        identity::<Sqlite>(&url("a.db"), &options.clone().prefix("p_")).await,
        upper,
        "the same tables"
    );
    all_differ(vec![itself, upper, identity::<Sqlite>(&url("copy.db"), &options).await]);

    let pool = PoolOptions::new().max_connections(1).connect("sqlite::memory:").await.unwrap();
    let store = SqliteStore::from_pool(pool, &StoreOptions::new()).unwrap();
    assert_eq!(store.identity().await.unwrap(), None);
}

fn all_differ(mut identities: Vec<String>) {
    let count = identities.len();
    identities.sort();
    identities.dedup();
    assert_eq!(identities.len(), count, "{identities:?}");
}

/// Needs no runtime, no server and no network.
#[test]
fn opening_connects_to_nothing() {
    PgDatabase::new("postgres://a@192.0.2.1/x").unwrap().open().unwrap();
    MySqlDatabase::new("mysql://a@192.0.2.1/x").unwrap().open().unwrap();
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("never.db");
    let source = SqliteDatabase::new(format!("sqlite://{}?mode=rwc", file.display())).unwrap();
    let store = source.open().unwrap();
    assert!(source.change(&store).unwrap());
    assert!(!file.exists());
}

/// A server that refuses, and one that never answers, get the right error within the configured time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_server_is_told_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let timeout = Duration::from_millis(300);
    let options = StoreOptions::tenant().acquire_timeout(timeout);
    for address in [silent.local_addr().unwrap(), closed] {
        let postgres = PgDatabase::new(format!("postgres://a:{SECRET}@{address}/x")).unwrap();
        unreachable(postgres.options(options.clone()), timeout).await;
        let mysql = MySqlDatabase::new(format!("mysql://a:{SECRET}@{address}/x")).unwrap();
        unreachable(mysql.options(options.clone()), timeout).await;
    }
}

async fn unreachable<D: Tenant>(source: Database<D>, timeout: Duration) {
    let store = source.open().unwrap();
    let before = Instant::now();
    // More than there are connections.
    let calls: Vec<_> = (0..4)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move { store.check().await.unwrap_err() })
        })
        .collect();
    for call in calls {
        let error = call.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
    }
    assert!(before.elapsed() < timeout + PATIENCE / 2, "{:?}", before.elapsed());
    store.rest().await;
    store.close().await;
}

/// Descriptions show address and options, but neither user nor password.
#[test]
fn descriptions_show_no_secret() {
    let source = PgDatabase::new(format!("postgres://ada:{SECRET}@db.example:6543/shop")).unwrap();
    let store = source.open().unwrap();
    let shown = format!("{source:?} {store:?} {}", store.name());
    assert!(
        shown.contains("postgres db.example:6543/shop") && shown.contains("max_connections: 4"),
        "{shown}"
    );
    let mysql =
        MySqlDatabase::new(format!("mysql://ada:{SECRET}@db.example:6543/shop?socket=/run/x.sock")).unwrap();
    let mysql = format!("{mysql:?}");
    assert!(mysql.contains("mysql /run/x.sock:6543/shop"), "{mysql}");
    let errors = [
        PgDatabase::new(format!("mysql://ada:{SECRET}@db.example/shop")).unwrap_err(),
        PgDatabase::new(format!("postgres://ada:{SECRET}@db.example:port/shop")).unwrap_err(),
        MySqlDatabase::new(format!("mysql://ada:{SECRET}@db.example:port/shop")).unwrap_err(),
        SqliteDatabase::new("sqlite::memory:").unwrap_err(),
    ];
    for error in &errors {
        assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    }
    for text in [shown, mysql, format!("{errors:?}"), errors.map(|error| error.to_string()).concat()] {
        assert!(!text.contains(SECRET) && !text.contains("ada"), "{text}");
    }
}

/// Descriptions are equal if they have the same URL and the same settings.
#[test]
fn descriptions_are_compared_by_url_and_settings() {
    let source = |url: &str| PgDatabase::new(url).unwrap();
    let one = source("postgres://ada:old@db.example/shop");
    assert_eq!(one, one.clone().options(StoreOptions::tenant()));
    assert_ne!(one, source("postgres://ada:new@db.example/shop"));
    assert_ne!(one, one.clone().options(StoreOptions::new()));
    assert_ne!(one, one.clone().options(StoreOptions::tenant().prefix("p_")));
}
