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

/// Whether all of the write-ahead log is on disk, but for the header of the next page.
const ALL_ON_DISK: &str = "select (pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() <= 40)::text";

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
    let users = Postgres::pool(&url, 1).await.unwrap();
    let ask = async |sql: String| {
        let mut connection = users.acquire().await.unwrap();
        Postgres::texts(&mut connection, sql).await.unwrap().remove(0)
    };
    // The WAL writer flushes when it is woken for the first time, and then not within its delay.
    let fill =
        "set synchronous_commit = off; create table filler as select n from generate_series(1, 1000) n";
    Postgres::run(&mut users.acquire().await.unwrap(), fill.to_owned()).await.unwrap();
    eventually("the filler is on disk", async || ask(ALL_ON_DISK.to_owned()).await == "true").await;
    let before = ask("select pg_current_wal_insert_lsn()::text".to_owned()).await;
    store.enqueue(&[NewMessage::bytes("topic", "x").build().unwrap()]).await.unwrap();
    // A commit flushes all of its transaction. The server may have written something of its own since.
    let flushed = format!("select (pg_current_wal_flush_lsn() > '{before}')::text");
    assert_eq!(ask(flushed).await, "true", "what was published is on disk");
    let forgotten = claim(&store, "a").await.unwrap();
    assert_eq!(ask(ALL_ON_DISK.to_owned()).await, "false", "what was claimed is not");

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
