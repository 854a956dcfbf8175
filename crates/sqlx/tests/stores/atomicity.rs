//! Business rows and messages share one fate: with commits, rollbacks and savepoints, with connections that are lost in
//! the worst moment, with full disks and with conflicts.
//!
//! Every case has a business table beside the outbox, whose rows carry the ids of the messages, and reads both
//! through a connection of its own. I2 and I3 of the fault catalogue: a row exists if and only if its message does.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::slice::from_ref;

use posthaste_core::{
    Birth, Enqueued, ErrorKind, MessageId, NewMessage, Result, Store as _, TransactionalStore as _,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::{Fixture, Mode, Proxy};
use sqlx_core::executor::Executor as _;
use sqlx_core::pool::{Pool, PoolOptions};
use sqlx_core::row::Row as _;

use crate::fixture::{Backend, Connection, SqlFixture, in_the_clear};

/// How many messages are tried, where the moment of the loss may matter.
const TIMES: usize = 10;

/// A fixture with a business table, or nothing if there is no such database here.
async fn shop<D: Backend>() -> Option<SqlFixture<D>> {
    if !SqlFixture::<D>::available() {
        return None;
    }
    let fixture = SqlFixture::<D>::create().await;
    let id = match D::NAME {
        "postgres" => "uuid",
        "mysql" => "binary(16)",
        _ => "blob",
    };
    fixture.run(format!("create table business (id {id} not null primary key)")).await;
    Some(fixture)
}

fn draft(payload: &str) -> NewMessage {
    NewMessage::bytes("order.placed", payload.as_bytes().to_vec()).build().unwrap()
}

fn once(payload: &str, dedup: &str) -> NewMessage {
    NewMessage::bytes("order.placed", payload.as_bytes().to_vec()).dedup_key(dedup).build().unwrap()
}

async fn business<D: Backend>(connection: &mut Connection<D>, id: MessageId) -> Result<(), sqlx_core::Error> {
    D::run(connection, format!("insert into business (id) values ({})", D::literal(id))).await
}

async fn publish<D: Backend>(
    store: &SqlStore<D>,
    connection: &mut Connection<D>,
    message: &NewMessage,
) -> Result<Enqueued> {
    let enqueued = store.insert(connection, from_ref(message), Birth::Ready).await?;
    assert_eq!(enqueued.len(), 1);
    Ok(enqueued[0])
}

/// A user's work: a business row, and the message about it.
async fn work<D: Backend>(
    store: &SqlStore<D>,
    connection: &mut Connection<D>,
    message: &NewMessage,
) -> Result<Enqueued> {
    business::<D>(connection, message.id()).await.unwrap();
    publish(store, connection, message).await
}

async fn count<D: Backend>(fixture: &SqlFixture<D>, table: &str, column: &str, id: MessageId) -> usize {
    let mut connection = fixture.users.acquire().await.unwrap();
    let sql = format!("select {column} from {table} where {column} = {}", D::literal(id));
    D::ids(&mut connection, sql).await.len()
}

async fn stored<D: Backend>(fixture: &SqlFixture<D>, id: MessageId) -> usize {
    count(fixture, D::TABLE, "message_id", id).await
}

/// Whether both are there; that only one of them is must never happen (I3).
async fn exist<D: Backend>(fixture: &SqlFixture<D>, id: MessageId) -> bool {
    let both = (count(fixture, "business", "id", id).await, stored(fixture, id).await);
    assert!(both == (0, 0) || both == (1, 1), "business rows and messages: {both:?}");
    both == (1, 1)
}

async fn total<D: Backend>(fixture: &SqlFixture<D>) -> usize {
    let mut connection = fixture.users.acquire().await.unwrap();
    D::ids(&mut connection, format!("select message_id from {}", D::TABLE)).await.len()
}

// ---------------------------------------------------------------- commit, rollback, savepoint

/// OBX-003, HOT-002: the user's commit, rollback or rollback to a savepoint decides about both.
async fn the_transaction_decides<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let messages: Vec<NewMessage> = (0..4).map(|n| draft(&format!("{n}"))).collect();
    let [committed, rolled_back, before, after] = &messages[..] else { unreachable!() };

    let mut tx = fixture.begin().await;
    work(&fixture.store, &mut tx, committed).await.unwrap();
    assert!(!exist(&fixture, committed.id()).await, "nobody sees what is not committed");
    fixture.commit(tx).await;
    assert!(exist(&fixture, committed.id()).await);

    let mut tx = fixture.begin().await;
    work(&fixture.store, &mut tx, rolled_back).await.unwrap();
    fixture.rollback(tx).await;
    assert!(!exist(&fixture, rolled_back.id()).await);

    let mut tx = fixture.begin().await;
    work(&fixture.store, &mut tx, before).await.unwrap();
    fixture.savepoint(fixture.connection(&mut tx)).await;
    work(&fixture.store, &mut tx, after).await.unwrap();
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    fixture.commit(tx).await;
    assert!(exist(&fixture, before.id()).await);
    assert!(!exist(&fixture, after.id()).await);

    // A transaction that is dropped, as by a panic or an early return, is rolled back.
    let mut tx = fixture.begin().await;
    work(&fixture.store, &mut tx, rolled_back).await.unwrap();
    drop(tx);
    finished(&fixture, rolled_back.id()).await;
    assert!(!exist(&fixture, rolled_back.id()).await);
    fixture.destroy().await;
}

/// Waits until no transaction holds this business row any more: inserting the same one waits for its holder, in the
/// database and no longer than that allows. Nothing remains of it.
async fn finished<D: Backend>(fixture: &SqlFixture<D>, id: MessageId) {
    let mut tx = fixture.begin().await;
    if D::NAME == "postgres" {
        D::run(&mut tx, "set local lock_timeout = '30s'".to_owned()).await.unwrap();
    }
    match business::<D>(&mut tx, id).await {
        Ok(()) => {}
        Err(sqlx_core::Error::Database(error)) if error.is_unique_violation() => {}
        Err(error) => panic!("the transaction has not ended: {error}"),
    }
    tx.rollback().await.unwrap();
}

/// OBX-003: without a transaction each call is one of its own, and is there for all to see when it returns.
async fn a_plain_connection<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let mut connection = fixture.users.acquire().await.unwrap();
    for message in [draft("first"), once("second", "twice")] {
        let enqueued = publish(&fixture.store, &mut connection, &message).await.unwrap();
        assert_eq!(enqueued, Enqueued::New { id: message.id(), lease: None });
        assert_eq!(stored(&fixture, message.id()).await, 1, "committed when the call returns");
        let again = publish(&fixture.store, &mut connection, &message).await.unwrap();
        assert_eq!(again, Enqueued::Duplicate { id: message.id() });
    }
    // No transaction was left open: one can be begun, and rolled back without the former calls.
    let third = draft("third");
    let begin = if D::NAME == "mysql" { "start transaction" } else { "begin" };
    D::run(&mut connection, begin.to_owned()).await.unwrap();
    work(&fixture.store, &mut connection, &third).await.unwrap();
    D::run(&mut connection, "rollback".to_owned()).await.unwrap();
    assert!(!exist(&fixture, third.id()).await);
    assert_eq!(total(&fixture).await, 2);
    drop(connection);
    fixture.destroy().await;
}

// ---------------------------------------------------------------- lost connections

/// A proxy in front of the fixture's server, and the URL that leads through it.
pub async fn proxy<D: Backend>(fixture: &SqlFixture<D>) -> (Proxy, String) {
    let (login, rest) = fixture.url.split_once('@').unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let server: SocketAddr = tokio::net::lookup_host(address).await.unwrap().next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let url = in_the_clear(&format!("{login}@{}/{path}", proxy.addr()));
    (proxy, url)
}

/// The answer to a commit is lost. On the wire the word has a NUL behind it in one protocol and its command's number in
/// front of it in the other, which tells it from `read committed`.
pub fn after_commit<D: Backend>() -> Mode {
    Mode::CutAfterRequest(if D::NAME == "mysql" { b"\x03COMMIT".to_vec() } else { b"COMMIT\0".to_vec() })
}

async fn one_connection<D: Backend>(url: &str) -> Pool<D::Db> {
    PoolOptions::new().max_connections(1).connect(url).await.unwrap()
}

/// Does the work again in a new transaction, as a user would after an unknown outcome: the business row if it is
/// missing, and the very same message.
async fn repeat<D: Backend>(fixture: &SqlFixture<D>, message: &NewMessage, is_stored: bool) {
    let mut tx = fixture.begin().await;
    if !is_stored {
        business::<D>(&mut tx, message.id()).await.unwrap();
    }
    let enqueued = publish(&fixture.store, &mut tx, message).await.unwrap();
    fixture.commit(tx).await;
    assert_eq!(enqueued.id(), message.id());
    assert_eq!(enqueued.is_duplicate(), is_stored, "the answer says whether it was there");
    assert!(exist(fixture, message.id()).await);
}

/// I3, rule 7 of the protocol, crash point P5: the commit arrives, its answer does not. The user gets an error and
/// cannot know; both are stored, and publishing once more is harmless.
async fn commit_whose_answer_is_lost<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let users = one_connection::<D>(&url).await;
    for n in 0..TIMES {
        let message = if n % 2 == 0 { draft("lost") } else { once("lost", &format!("order {n}")) };
        let mut tx = users.begin().await.unwrap();
        work(&fixture.store, &mut tx, &message).await.unwrap();
        proxy.set(after_commit::<D>());
        tx.commit().await.expect_err("the answer was cut off");
        assert_eq!(proxy.answers_lost(), n + 1);
        finished(&fixture, message.id()).await;
        let is_stored = exist(&fixture, message.id()).await;
        assert!(is_stored, "the server had answered before the connection was cut");
        repeat(&fixture, &message, is_stored).await;
    }
    assert_eq!(total(&fixture).await, TIMES);
    users.close().await;
    fixture.destroy().await;
}

/// I2, crash point P4: the commit never arrives, and neither row exists.
async fn commit_that_never_arrives<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let users = one_connection::<D>(&url).await;
    for _ in 0..TIMES {
        let message = once("cut", "the only one");
        let mut tx = users.begin().await.unwrap();
        work(&fixture.store, &mut tx, &message).await.unwrap();
        // Nothing passes any more from here on; and then the connection is gone.
        proxy.set(Mode::Blackhole);
        proxy.cut();
        tx.commit().await.expect_err("there is no connection");
        proxy.set(Mode::Forward);
        finished(&fixture, message.id()).await;
        assert!(!exist(&fixture, message.id()).await);
    }
    let message = once("cut", "the only one");
    repeat(&fixture, &message, false).await;
    assert_eq!(total(&fixture).await, 1);
    users.close().await;
    fixture.destroy().await;
}

/// OBX-002, OBX-097, rule 7: a standalone enqueue whose answer is lost is an unknown outcome, and can be repeated. Where
/// it takes more than one statement, a loss before its commit leaves nothing, and is no unknown outcome.
async fn enqueue_whose_answer_is_lost<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let store = SqlStore::<D>::connect_with(&url, &fixture.options.clone().max_connections(1)).await.unwrap();
    for n in 0..TIMES {
        let marker = format!("marker {n} of an enqueue");
        let message = if n % 2 == 0 { draft(&marker) } else { once(&marker, &marker) };
        // Its payload goes over the wire in the request that stores it.
        proxy.set(Mode::CutAfterRequest(marker.into_bytes()));
        let error = store.enqueue(from_ref(&message)).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert_eq!(proxy.answers_lost(), n + 1);
        let in_parts = D::NAME == "mysql" && message.dedup().is_some();
        let (kind, found) =
            if in_parts { (ErrorKind::Unavailable, 0) } else { (ErrorKind::CommitUnknown, 1) };
        assert_eq!(error.kind(), kind, "{error:?}");
        assert_eq!(stored(&fixture, message.id()).await, found);
        let again = store.enqueue(from_ref(&message)).await.unwrap()[0];
        assert_eq!((again.id(), again.is_duplicate()), (message.id(), found == 1));
        assert_eq!(stored(&fixture, message.id()).await, 1);
    }
    assert_eq!(total(&fixture).await, TIMES);
    store.close().await;
    fixture.destroy().await;
}

/// The same for a batch that takes several statements: the answer to the commit of the store's own transaction is lost.
async fn enqueue_in_parts_whose_commit_is_lost<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let store = SqlStore::<D>::connect_with(&url, &fixture.options.clone().max_connections(1)).await.unwrap();
    // More than one statement takes.
    let messages: Vec<NewMessage> = (0..10_001).map(|n| draft(&format!("{n}"))).collect();
    proxy.set(after_commit::<D>());
    let error = store.enqueue(&messages).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitUnknown, "{error:?}");
    assert_eq!(total(&fixture).await, messages.len(), "the server had answered");
    let again = store.enqueue(&messages).await.unwrap();
    assert!(again.iter().all(Enqueued::is_duplicate));
    assert_eq!(total(&fixture).await, messages.len());
    store.close().await;
    fixture.destroy().await;
}

/// I2: the connection is lost while a batch goes in; of the user's transaction nothing remains.
async fn batch_in_a_lost_transaction<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (proxy, url) = proxy(&fixture).await;
    let users = one_connection::<D>(&url).await;
    let messages: Vec<NewMessage> = (0..100).map(|n| draft(&format!("line {n} of the batch"))).collect();
    let mut tx = users.begin().await.unwrap();
    business::<D>(&mut tx, messages[0].id()).await.unwrap();
    proxy.set(Mode::CutAfterRequest(b"line 50 of the batch".to_vec()));
    let error = fixture.store.insert(&mut tx, &messages, Birth::Ready).await.unwrap_err();
    // Not an unknown outcome: the user has not committed, and so nothing is.
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    tx.commit().await.expect_err("there is no connection");
    finished(&fixture, messages[0].id()).await;
    assert!(!exist(&fixture, messages[0].id()).await);
    assert_eq!(total(&fixture).await, 0);
    users.close().await;
    fixture.destroy().await;
}

// ---------------------------------------------------------------- conflicts

/// OBX-099, rule 5: two users publish the same two dedup keys in opposite order, and block each other. The database
/// chooses one; that user gets the conflict, posthaste retries nothing, and the other one goes on.
async fn a_deadlock_is_the_users<D: Backend>() {
    let Some(fixture) = shop::<D>().await else { return };
    let (mut first, mut second) = (fixture.begin().await, fixture.begin().await);
    let messages: Vec<_> = ["x", "y", "y", "x"].iter().map(|key| once("deadlock", key)).collect();
    work(&fixture.store, &mut first, &messages[0]).await.unwrap();
    work(&fixture.store, &mut second, &messages[1]).await.unwrap();
    let (one, other) = tokio::join!(
        publish(&fixture.store, &mut first, &messages[2]),
        publish(&fixture.store, &mut second, &messages[3])
    );
    let (winner, loser, error) = match (one, other) {
        (Err(error), _) => (second, first, error),
        (_, Err(error)) => (first, second, error),
        both => panic!("nobody lost: {both:?}"),
    };
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    assert!(error.is_transient());
    loser.rollback().await.unwrap();
    winner.commit().await.unwrap();
    // The winner has stored its own two: the other's twin went with its transaction.
    assert_eq!(total(&fixture).await, 2);
    let mut left = HashSet::new();
    for message in &messages[..2] {
        left.insert(exist(&fixture, message.id()).await);
    }
    assert_eq!(left.len(), 2, "one of the two transactions took place");
    fixture.destroy().await;
}

/// OBX-099: a transaction whose snapshot is older than a twin of its message. In READ COMMITTED it learns that the
/// message is a duplicate. At a stricter level PostgreSQL may neither show rows committed since the snapshot nor ignore
/// them, so it refuses (40001): the error is a conflict, the transaction is aborted, and it is the user's to roll back
/// and to begin again. posthaste retries nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_snapshot_older_than_a_twin() {
    let Some(fixture) = shop::<Postgres>().await else { return };
    for (level, refuses) in [("read committed", false), ("repeatable read", true), ("serializable", true)] {
        let twin = once("twin", level);
        let mine = once("mine", level);
        let mut tx = fixture.begin().await;
        Postgres::run(&mut tx, format!("set transaction isolation level {level}")).await.unwrap();
        assert!(Postgres::ids(&mut tx, "select id from business where false".to_owned()).await.is_empty());
        fixture.store.enqueue(from_ref(&twin)).await.unwrap();
        match work(&fixture.store, &mut tx, &mine).await {
            Ok(enqueued) => assert!(!refuses && enqueued == Enqueued::Duplicate { id: twin.id() }, "{level}"),
            Err(error) => {
                assert!(refuses, "{level}: {error:?}");
                assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
                assert!(Postgres::run(&mut tx, "select 1".to_owned()).await.is_err(), "it is aborted");
            }
        }
        tx.rollback().await.unwrap();
        assert!(!exist(&fixture, mine.id()).await);
        // Begun again, it sees the twin.
        let mut tx = fixture.begin().await;
        let again = publish(&fixture.store, &mut tx, &mine).await.unwrap();
        assert_eq!(again, Enqueued::Duplicate { id: twin.id() });
        tx.commit().await.unwrap();
    }
    fixture.destroy().await;
}

/// OBX-099: in SQLite a transaction that has read, and then wants to write behind another one's commit, cannot go on
/// (SQLITE_BUSY_SNAPSHOT, for which no time-out waits). It gets an error, and begins again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_snapshot_older_than_a_commit() {
    let Some(fixture) = shop::<Sqlite>().await else { return };
    let mine = draft("mine");
    let mut tx = fixture.begin().await;
    assert!(Sqlite::ids(&mut tx, "select id from business".to_owned()).await.is_empty());
    fixture.store.enqueue(&[draft("other")]).await.unwrap();
    let error = publish(&fixture.store, &mut tx, &mine).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    tx.rollback().await.unwrap();
    let mut tx = fixture.begin().await;
    work(&fixture.store, &mut tx, &mine).await.unwrap();
    tx.commit().await.unwrap();
    assert!(exist(&fixture, mine.id()).await);
    fixture.destroy().await;
}

// ---------------------------------------------------------------- full disks

/// As many pages as a SQLite file can have.
const ALL_PAGES: u32 = 1_073_741_823;

/// Leaves room for this many more pages, on this connection; none is as many as there can be.
async fn leave_room(connection: &mut Connection<Sqlite>, pages: Option<u32>) {
    let used: u32 = connection.fetch_one("pragma page_count").await.unwrap().get(0);
    let limit = pages.map_or(ALL_PAGES, |pages| used + pages);
    Sqlite::run(connection, format!("pragma max_page_count = {limit}")).await.unwrap();
}

/// F-08, I2, I3: the disk fills up in the user's transaction. It gets an error, and after its rollback, which SQLite
/// may have done by itself, neither row is there; with room again the same work succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_disk_full_in_a_users_transaction() {
    let Some(fixture) = shop::<Sqlite>().await else { return };
    let users = one_connection::<Sqlite>(&fixture.url).await;
    let large = "x".repeat(64 * 1024);
    let messages: Vec<NewMessage> = (0..50).map(|_| draft(&large)).collect();
    let mut connection = users.acquire().await.unwrap();
    leave_room(&mut connection, Some(100)).await;
    // One after the other, and all in one call.
    for size in [1, messages.len()] {
        Sqlite::run(&mut connection, "begin".to_owned()).await.unwrap();
        business::<Sqlite>(&mut connection, messages[0].id()).await.unwrap();
        let mut failure = None;
        for chunk in messages.chunks(size) {
            failure = fixture.store.insert(&mut connection, chunk, Birth::Ready).await.err();
            if failure.is_some() {
                break;
            }
        }
        let error = failure.expect("100 pages hold no 3 MB");
        assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
        assert!(error.is_transient());
        // SQLite may have rolled back already; then there is nothing to roll back.
        let _ = Sqlite::run(&mut connection, "rollback".to_owned()).await;
        assert!(!exist(&fixture, messages[0].id()).await);
        assert_eq!(total(&fixture).await, 0, "nothing of half a batch");
    }
    leave_room(&mut connection, None).await;
    Sqlite::run(&mut connection, "begin".to_owned()).await.unwrap();
    business::<Sqlite>(&mut connection, messages[0].id()).await.unwrap();
    fixture.store.insert(&mut connection, &messages, Birth::Ready).await.unwrap();
    Sqlite::run(&mut connection, "commit".to_owned()).await.unwrap();
    assert!(exist(&fixture, messages[0].id()).await);
    assert_eq!(total(&fixture).await, messages.len());
    drop(connection);
    users.close().await;
    fixture.destroy().await;
}

/// F-08, OBX-097: the same for a transaction of the store's own, whose batch takes more than one statement.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_disk_full_in_an_enqueue() {
    let Some(fixture) = shop::<Sqlite>().await else { return };
    let messages: Vec<NewMessage> = (0..1_500).map(|_| draft(&"x".repeat(400))).collect();
    // There is one connection in the store's pool; the first statement fits, the second does not.
    leave_room(&mut fixture.store.pool().acquire().await.unwrap(), Some(200)).await;
    let error = fixture.store.enqueue(&messages).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error:?}");
    assert!(error.is_transient());
    assert_eq!(total(&fixture).await, 0, "nothing of half a batch");
    leave_room(&mut fixture.store.pool().acquire().await.unwrap(), None).await;
    let enqueued = fixture.store.enqueue(&messages).await.unwrap();
    assert!(!enqueued.iter().any(Enqueued::is_duplicate));
    assert_eq!(total(&fixture).await, messages.len());
    fixture.destroy().await;
}

// ---------------------------------------------------------------- for each database

macro_rules! cases {
    ($($module:ident: $dialect:ident [$($case:ident),* $(,)?])*) => {$(
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case::<super::$dialect>().await;
                }
            )*
        }
    )*};
}

cases! {
    postgres: Postgres [
        the_transaction_decides, a_plain_connection, commit_whose_answer_is_lost, commit_that_never_arrives,
        enqueue_whose_answer_is_lost, enqueue_in_parts_whose_commit_is_lost, batch_in_a_lost_transaction,
        a_deadlock_is_the_users,
    ]
    mysql: MySql [
        the_transaction_decides, a_plain_connection, commit_whose_answer_is_lost, commit_that_never_arrives,
        enqueue_whose_answer_is_lost, enqueue_in_parts_whose_commit_is_lost, batch_in_a_lost_transaction,
        a_deadlock_is_the_users,
    ]
    sqlite: Sqlite [the_transaction_decides, a_plain_connection]
}
