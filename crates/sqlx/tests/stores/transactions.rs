//! Transactions that a store opens for its user: their connections, and failed commits.

use posthaste_core::{
    Birth, Enqueued, ErrorKind, NewMessage, Store, StoreAdmin, TransactionalStore, Transactions,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture;
use sqlx_core::pool::PoolOptions;

use crate::atomicity::{after_commit, proxy};
use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture};

fn message() -> NewMessage {
    NewMessage::bytes("t", "x").build().unwrap()
}

async fn stored<D: Backend>(fixture: &SqlFixture<D>) -> usize {
    fixture.store.list(&posthaste_core::Filter::default(), None, 100).await.unwrap().records.len()
}

/// A user's transaction has the settings of the database, not those of the store's own connections.
async fn settings_are_the_users<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let (ask, ours, users) = match D::NAME {
        "postgres" => (
            "select current_setting('enable_seqscan') || current_setting('plan_cache_mode') \
             || current_setting('statement_timeout')",
            "offforce_generic_plan40s",
            "onauto0",
        ),
        "mysql" => (
            "select concat(@@tx_isolation, @@innodb_lock_wait_timeout)",
            "READ-COMMITTED10",
            "REPEATABLE-READ50",
        ),
        _ => ("select 'the same'", "the same", "the same"),
    };
    let mut own = fixture.store.pool().acquire().await.unwrap();
    assert_eq!(D::texts(&mut own, ask.to_owned()).await.unwrap(), [ours]);
    drop(own);
    let mut tx = fixture.store.begin().await.unwrap();
    assert_eq!(D::texts(&mut tx, ask.to_owned()).await.unwrap(), [users]);
    fixture.store.rollback(tx).await.unwrap();

    // A store over a given pool opens them there.
    let pool = PoolOptions::<D::Db>::new().max_connections(1).connect(&fixture.url).await.unwrap();
    let store = SqlStore::<D>::from_pool(pool.clone(), &fixture.options).unwrap();
    let mut tx = store.begin().await.unwrap();
    assert!(pool.try_acquire().is_none(), "it is the pool's only connection");
    store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
    store.commit(tx).await.unwrap();
    assert_eq!(stored(&fixture).await, 1);
    store.close().await;
    fixture.destroy().await;
}

/// Transactions are not waited for by the store's own work, and close with it.
async fn pools_are_apart<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let options = fixture.options.clone().max_connections(1);
    let store = SqlStore::<D>::connect_with(&fixture.url, &options).await.unwrap();
    let tx = store.begin().await.unwrap();
    store.stats().await.unwrap();
    store.rollback(tx).await.unwrap();
    store.close().await;
    let error = store.begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(store.stats().await.unwrap_err().kind(), ErrorKind::Unavailable);
    fixture.destroy().await;
}

/// I3: the answer to the commit is lost: the error says that the outcome is unknown; the commit had taken place.
async fn a_lost_commit_is_unknown<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let (proxy, url) = proxy(&fixture).await;
    let store = SqlStore::<D>::connect_with(&url, &fixture.options).await.unwrap();
    let message = message();
    let mut tx = store.begin().await.unwrap();
    store.insert(&mut tx, std::slice::from_ref(&message), Birth::Ready).await.unwrap();
    proxy.set(after_commit::<D>());
    let error = store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitUnknown, "{error:?}");
    assert!(error.is_transient());
    assert_eq!(stored(&fixture).await, 1);
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
    postgres, Postgres: settings_are_the_users, pools_are_apart, a_lost_commit_is_unknown;
    mysql, MySql: settings_are_the_users, pools_are_apart, a_lost_commit_is_unknown;
    sqlite, Sqlite: settings_are_the_users, pools_are_apart;
}

/// A constraint that is checked at the commit refuses it: nothing is stored, and that is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_commit_is_known() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture
        .run(
            "create table parent (id int primary key); \
              create table child (id int references parent deferrable initially deferred)"
                .to_owned(),
        )
        .await;
    let mut tx = fixture.store.begin().await.unwrap();
    fixture.store.insert(&mut tx, &[message()], Birth::Ready).await.unwrap();
    Postgres::run(&mut tx, "insert into child values (1)".to_owned()).await.unwrap();
    let error = fixture.store.commit(tx).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Database, "{error}");
    assert!(error.to_string().contains("child"), "{error}");
    assert_eq!(stored(&fixture).await, 0);
    fixture.destroy().await;
}

/// A transaction in which a statement failed can only be rolled back, and PostgreSQL does so when told to commit: that
/// must not pass for a commit. Nor is anything said to be there that will be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_doomed_transaction_is_not_committed() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = &fixture.store;
    let mut tx = store.begin().await.unwrap();
    let worker = posthaste_core::WorkerId::new("w").unwrap();
    let birth = Birth::Leased { worker: &worker, lease: std::time::Duration::from_secs(60) };
    let enqueued = store.insert(&mut tx, &[message()], birth).await.unwrap();
    let posthaste_core::Enqueued::New { lease: Some(lease), .. } = enqueued[0] else {
        panic!("{enqueued:?}")
    };
    Postgres::run(&mut tx, "select 1 / 0".to_owned()).await.unwrap_err();
    assert!(store.survivors(&mut tx, &[lease]).await.is_err());
    assert!(
        store.survivors(&mut tx, &[]).await.is_err(),
        "nothing was published, and yet nothing can be committed"
    );
    store.rollback(tx).await.unwrap();

    // The result of an outbox's own transaction, with and without a message.
    let outbox = posthaste_core::Outbox::builder(store.clone()).build().await.unwrap();
    for publishes in [true, false] {
        let mut tx = outbox.begin().await.unwrap();
        if publishes {
            tx.publish(message()).await.unwrap();
        }
        Postgres::run(&mut tx, "select 1 / 0".to_owned()).await.unwrap_err();
        let error = tx.commit().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Database, "{error}");
    }
    // R17: and one that had failed before it was enlisted.
    let mut tx = store.begin().await.unwrap();
    Postgres::run(&mut tx, "select 1 / 0".to_owned()).await.unwrap_err();
    assert!(outbox.enlist(tx).commit().await.is_err());
    assert_eq!(stored(&fixture).await, 0);
    store.check().await.unwrap();
    fixture.destroy().await;
}

/// If the database rolls back the whole transaction because another one changed a row, the error reports it, in SQL and in
/// Rust, and nothing of the transaction is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_says_that_a_transaction_is_gone() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture.run("create table work (n int primary key)".to_owned()).await;
    let mut session = fixture.users.acquire().await.unwrap();
    // Only newer releases of MariaDB have it, and have it on.
    if MySql::run(&mut session, "set session innodb_snapshot_isolation = on".to_owned()).await.is_err() {
        return;
    }
    for (round, by_rust) in [false, true].into_iter().enumerate() {
        let key = format!("round-{round}");
        let begin = "set session transaction isolation level repeatable read; start transaction; \
                     insert into work values (1); select count(*) from posthaste_outbox";
        MySql::run(&mut session, begin.to_owned()).await.unwrap();
        let twin = NewMessage::bytes("t", "x").dedup_key(&key).build().unwrap();
        fixture.store.enqueue(&[twin]).await.unwrap();
        let text = if by_rust {
            let mine = NewMessage::bytes("t", "x").dedup_key(&key).build().unwrap();
            let error = fixture.store.insert(&mut session, &[mine], Birth::Ready).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            error.to_string()
        } else {
            let call = format!("call posthaste_enqueue('t', 'x', '{{\"dedup_key\": \"{key}\"}}', @id, @dup)");
            MySql::run(&mut session, call).await.unwrap_err().to_string()
        };
        assert!(text.contains("rolled") && text.contains("begin it again"), "{text}");
        MySql::run(&mut session, "commit".to_owned()).await.unwrap();
        assert!(fixture.texts("select 'one' from work").await.is_empty(), "it is gone, as the error says");
    }
    drop(session);
    fixture.destroy().await;
}

/// A twin that another transaction committed after the caller's snapshot is named all the same, by its dedup key or by its id,
/// and the caller's transaction goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_twins_newer_than_the_snapshot() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture.run("create table work (n int primary key)".to_owned()).await;
    let mut session = fixture.users.acquire().await.unwrap();
    drop(MySql::run(&mut session, "set session innodb_snapshot_isolation = off".to_owned()).await);
    let keyed = || NewMessage::bytes("t", "x").dedup_key("once").build().unwrap();
    let plain = message();
    for (n, (twin, mine)) in [(keyed(), keyed()), (plain.clone(), plain)].into_iter().enumerate() {
        let begin = format!(
            "set session transaction isolation level repeatable read; start transaction; insert into work values ({n}); \
             select count(*) from posthaste_outbox"
        );
        MySql::run(&mut session, begin).await.unwrap();
        fixture.store.enqueue(std::slice::from_ref(&twin)).await.unwrap();
        let enqueued = fixture.store.insert(&mut session, &[mine], Birth::Ready).await.unwrap();
        assert_eq!(enqueued, [Enqueued::Duplicate { id: twin.id() }]);
        let options = format!(
            "json_object('dedup_key', if({n} = 0, 'once', null), 'message_id', if({n} = 1, '{}', null))",
            twin.id()
        );
        MySql::run(&mut session, format!("call posthaste_enqueue('t', 'x', {options}, @id, @dup)"))
            .await
            .unwrap();
        let told =
            MySql::texts(&mut session, "select cast(@id as char) from dual where @dup".to_owned()).await;
        assert_eq!(told.unwrap(), [twin.id().to_string()]);
        MySql::run(&mut session, "commit".to_owned()).await.unwrap();
        assert_eq!(
            (stored(&fixture).await, fixture.texts("select 'one' from work").await.len()),
            (n + 1, n + 1)
        );
    }
    drop(session);
    fixture.destroy().await;
}
