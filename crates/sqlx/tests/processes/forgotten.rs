//! F-04: a claim on PostgreSQL does not wait for the disk, and a crash of the server forgets it. The worker that made it gets an
//! error, and the next holder has the message at another epoch.
//!
//! The server is the test's own.

use std::cell::OnceCell;
use std::time::Duration;

use posthaste_core::{
    ClaimRequest, Message, NewMessage, Outcome, Result, Settled, Settlement, Store, WorkerId,
};
use posthaste_sqlx::{PgStore, Postgres};

use crate::base::Base;
use crate::case::eventually;
use crate::fixture::{Backend as _, is_missing};
use crate::server;

/// How far the write-ahead log is on disk, and whether that is all of it.
const ON_DISK: &str = "select (pg_current_wal_flush_lsn() = pg_current_wal_insert_lsn())::text";

async fn claim(store: &PgStore, worker: &str) -> Result<Vec<Message>> {
    let request = ClaimRequest::new(WorkerId::new(worker).unwrap()).lease(Duration::from_secs(600));
    store.claim(&request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_claims_that_a_crash_forgets() {
    if is_missing(Postgres::NAME) {
        return;
    }
    let Some(mut server) = server::postgres() else {
        eprintln!("PostgreSQL's programs are not on this machine: nothing was crashed");
        return;
    };
    let url = format!("postgres://postgres@127.0.0.1:{}/postgres", server.port);
    let answers = async || Postgres::pool(&url, 1).await.is_ok();
    eventually("the server answers", answers).await;
    let users = Postgres::pool(&url, 1).await.unwrap();
    let mut connection = users.acquire().await.unwrap();
    // Only commits flush the WAL to disk.
    for sql in [
        "alter system set wal_writer_delay = '10s'",
        "alter system set autovacuum = off",
        "alter system set bgwriter_lru_maxpages = 0",
        "select pg_reload_conf()",
    ] {
        Postgres::run(&mut connection, sql.to_owned()).await.unwrap();
    }
    drop(connection);
    users.close().await;
    server.restart(server.recipe().fast).await;
    eventually("the server answers again", answers).await;

    let store = PgStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    store.enqueue(&[NewMessage::bytes("topic", "x").build().unwrap()]).await.unwrap();
    let users = Postgres::pool(&url, 1).await.unwrap();
    let on_disk = async || {
        let mut connection = users.acquire().await.unwrap();
        Postgres::texts(&mut connection, ON_DISK.to_owned()).await.unwrap()
    };
    assert_eq!(on_disk().await, ["true"], "what was published is");
    let forgotten = claim(&store, "a").await.unwrap();
    assert_eq!(on_disk().await, ["false"], "what was claimed is not");

    server.restart(server.recipe().immediate).await;
    eventually("the server answers after the crash", answers).await;
    let held = OnceCell::new();
    eventually("the store has connections again", async || {
        claim(&store, "b").await.is_ok_and(|claimed| held.set(claimed).is_ok())
    })
    .await;
    let held = held.into_inner().unwrap();
    assert_ne!(forgotten[0].epoch, held[0].epoch);
    let ack = async |message: &Message| {
        store.settle(&[Settlement::new(message.lease(), Outcome::Ack)]).await.unwrap().settled
    };
    assert_eq!(ack(&forgotten[0]).await, [Settled::Lost]);
    assert_eq!(ack(&held[0]).await, [Settled::Applied]);
    assert_eq!(claim(&store, "c").await.unwrap().len(), 0);
    users.close().await;
    store.close().await;
}
