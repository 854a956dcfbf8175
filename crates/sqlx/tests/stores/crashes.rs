//! Claims on PostgreSQL do not wait for the disk. After a crash of the server, or a failover to a standby, claims that were not
//! flushed are lost: no epoch is given out twice, and a stale settlement returns Lost.
//!
//! Here a statement forgets the leases. `processes/forgotten.rs` crashes a server.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{ClaimRequest, Message, NewMessage, Outcome, Settled, Settlement, Store, WorkerId};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;

use crate::fixture::{Backend as _, PgFixture};

/// Longer than any case takes.
const LEASE: Duration = Duration::from_secs(600);

async fn enqueue(store: &PgStore, count: usize) {
    let messages: Vec<_> = (0..count).map(|_| NewMessage::bytes("topic", "x").build().unwrap()).collect();
    store.enqueue(&messages).await.unwrap();
}

async fn claim(store: &PgStore, worker: &str, limit: u32) -> Vec<Message> {
    let request = ClaimRequest::new(WorkerId::new(worker).unwrap()).limit(limit).lease(LEASE);
    store.claim(&request).await.unwrap()
}

async fn settle(store: &PgStore, messages: &[Message], outcomes: &[Outcome]) -> Vec<Settled> {
    let settlements: Vec<_> = messages
        .iter()
        .zip(outcomes)
        .map(|(message, outcome)| Settlement::new(message.lease(), outcome.clone()))
        .collect();
    store.settle(&settlements).await.unwrap().settled
}

/// As a crash, or a failover, after which no claim is on disk.
async fn forget(fixture: &PgFixture) {
    fixture.run("truncate outbox_lease".to_owned()).await;
}

/// C2: calls of a worker whose lease the database has forgotten are answered Lost; those of the worker that has the message now, Applied.
#[test]
fn a_forgotten_lease_is_lost() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 4).await;
        let forgotten = claim(store, "a", 4).await;
        forget(fixture).await;
        let held = claim(store, "b", 4).await;
        assert_eq!(held.len(), 4);

        let leases: Vec<_> = forgotten.iter().map(Message::lease).collect();
        assert_eq!(store.renew(&leases, LEASE).await.unwrap(), [Settled::Lost; 4]);
        let mixed = [Outcome::Ack, Outcome::Release, Outcome::Defer { delay: LEASE }, Outcome::Ack];
        assert_eq!(settle(store, &forgotten, &mixed).await, [Settled::Lost; 4]);
        assert_eq!(settle(store, &forgotten, &[const { Outcome::Ack }; 4]).await, [Settled::Lost; 4]);

        let leases: Vec<_> = held.iter().map(Message::lease).collect();
        assert_eq!(store.renew(&leases, LEASE).await.unwrap(), [Settled::Applied; 4]);
        assert_eq!(settle(store, &held[..2], &[Outcome::Release, Outcome::Ack]).await, [Settled::Applied; 2]);
        assert_eq!(settle(store, &held[2..], &[const { Outcome::Ack }; 2]).await, [Settled::Applied; 2]);
        assert_eq!(claim(store, "c", 4).await.len(), 1);
    });
}

/// C2: no epoch is given out twice, however many claims were forgotten in between.
#[test]
fn epochs_are_never_given_out_twice() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        let mut given = HashSet::new();
        for round in 0..20 {
            let claimed = claim(store, "a", 1).await;
            assert!(given.insert(claimed[0].epoch), "{} again", claimed[0].epoch);
            if round % 2 == 0 {
                assert_eq!(settle(store, &claimed, &[Outcome::Release]).await, [Settled::Applied]);
                let claimed = claim(store, "a", 1).await;
                assert!(given.insert(claimed[0].epoch), "{} again", claimed[0].epoch);
            }
            forget(fixture).await;
        }
    });
}

/// A claim in a transaction of the caller's is committed as the caller wants it.
#[test]
fn a_users_transaction_waits_for_the_disk() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 2).await;
        for setting in ["local", "off"] {
            let mut tx = fixture.begin().await;
            Postgres::run(&mut tx, format!("set local synchronous_commit = {setting}")).await.unwrap();
            let claim = "select count(*)::text from claim('other', 1)".to_owned();
            assert_eq!(Postgres::texts(&mut tx, claim).await.unwrap(), ["1"]);
            let found = "select current_setting('synchronous_commit')".to_owned();
            assert_eq!(Postgres::texts(&mut tx, found).await.unwrap(), [setting]);
            tx.commit().await.unwrap();
        }
    });
}
