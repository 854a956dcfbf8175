//! What PostgreSQL's claims, which do not wait for the disk, make of a crash of the server: no epoch is given out twice, and what
//! was not forgotten is still held.
//!
//! A crash empties the table that is not logged; here a statement does. `processes/forgotten.rs` crashes a server.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    ClaimRequest, Failure, Filter, Message, NewMessage, Outcome, Settled, Settlement, State, Store,
    StoreAdmin, WorkerId,
};
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

fn epochs(messages: &[Message]) -> Vec<i32> {
    messages.iter().map(|message| message.epoch).collect()
}

async fn settle(store: &PgStore, messages: &[Message], outcomes: &[Outcome]) -> Vec<Settled> {
    let settlements: Vec<_> = messages
        .iter()
        .zip(outcomes)
        .map(|(message, outcome)| Settlement::new(message.lease(), outcome.clone()))
        .collect();
    store.settle(&settlements).await.unwrap().settled
}

/// As a crash after which every claim was found on disk.
async fn crash(fixture: &PgFixture) {
    fixture.run("truncate outbox_awake".to_owned()).await;
}

/// As a crash after which no claim was.
async fn crash_and_forget(fixture: &PgFixture) {
    fixture.run("truncate outbox_awake, outbox_lease".to_owned()).await;
}

/// Whoever holds a lease that the database has forgotten cannot change its message, and is told so; whoever has the message
/// now can.
#[test]
fn a_forgotten_lease_is_lost() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 4).await;
        let forgotten = claim(store, "a", 4).await;
        crash_and_forget(fixture).await;
        let held = claim(store, "b", 4).await;
        assert_eq!((epochs(&forgotten), epochs(&held)), (vec![1; 4], vec![2; 4]));

        let leases: Vec<_> = forgotten.iter().map(Message::lease).collect();
        assert_eq!(store.renew(&leases, LEASE).await.unwrap(), [Settled::Lost; 4]);
        let mixed = [Outcome::Ack, Outcome::Release, Outcome::Defer { delay: LEASE }, Outcome::Ack];
        assert_eq!(settle(store, &forgotten, &mixed).await, [Settled::Lost; 4]);
        assert_eq!(settle(store, &forgotten, &[const { Outcome::Ack }; 4]).await, [Settled::Lost; 4]);

        let leases: Vec<_> = held.iter().map(Message::lease).collect();
        assert_eq!(store.renew(&leases, LEASE).await.unwrap(), [Settled::Applied; 4]);
        assert_eq!(settle(store, &held[..2], &[Outcome::Release, Outcome::Ack]).await, [Settled::Applied; 2]);
        assert_eq!(settle(store, &held[2..], &[const { Outcome::Ack }; 2]).await, [Settled::Applied; 2]);
        assert_eq!(epochs(&claim(store, "c", 4).await), [4], "two steps from where it was released");
    });
}

/// No epoch is given out twice, however many crashes there are between claims that nobody remembers.
#[test]
fn epochs_are_never_given_out_twice() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        let mut given = Vec::new();
        for round in 0..6 {
            let claimed = claim(store, "a", 1).await;
            given.extend(epochs(&claimed));
            if round % 2 == 0 {
                assert_eq!(settle(store, &claimed, &[Outcome::Release]).await, [Settled::Applied]);
                let claimed = claim(store, "a", 1).await;
                given.extend(epochs(&claimed));
            }
            crash_and_forget(fixture).await;
        }
        assert!(given.is_sorted_by(|a, b| a < b), "{given:?}");
    });
}

/// What was on disk is held by the same worker at the same epoch, whatever happens to it next.
#[test]
fn what_was_not_forgotten_is_held() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 8).await;
        let held = claim(store, "a", 6).await;
        crash(fixture).await;
        assert_eq!(epochs(&claim(store, "b", 8).await), [2; 2], "only what nobody holds");
        let filter = Filter { state: Some(State::Leased), ..Filter::default() };
        let listing = store.list(&filter, None, 100).await.unwrap();
        let shown = listing.records.iter().map(|one| (one.message.epoch, one.worker.clone()));
        let shown: Vec<_> = shown.collect();
        let by = |worker: &str| Some(WorkerId::new(worker).unwrap());
        assert_eq!(&shown[..6], vec![(1, by("a")); 6]);
        assert_eq!(&shown[6..], vec![(2, by("b")); 2]);

        let leases: Vec<_> = held.iter().map(Message::lease).collect();
        assert_eq!(store.renew(&leases[..1], LEASE).await.unwrap(), [Settled::Applied]);
        let failed = Outcome::Abandon {
            delay: Duration::ZERO,
            failure: Failure::business("no"),
            max_attempts: 5,
            max_age: None,
        };
        let mixed = [Outcome::Ack, failed, Outcome::Release];
        assert_eq!(settle(store, &held[..3], &mixed).await, [Settled::Applied; 3]);
        assert_eq!(settle(store, &held[3..5], &[const { Outcome::Ack }; 2]).await, [Settled::Applied; 2]);
        assert_eq!(epochs(&claim(store, "c", 8).await), [3; 2], "two steps from where they were given up");
        // The last one, and the three that are held at the new step, run out.
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 5);
        let mut again = Vec::new();
        for _ in 0..5 {
            again.extend(epochs(&claim(store, "d", 1).await));
        }
        again.sort_unstable();
        assert_eq!(again, [3, 4, 4, 5, 5]);
    });
}

/// Whoever claims in a transaction of his own has it committed as he wants it; the crash is noted on disk all the same.
#[test]
fn a_users_transaction_waits_for_the_disk() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 2).await;
        let setting = async |name: &str| {
            let mut tx = fixture.begin().await;
            Postgres::run(&mut tx, format!("set local synchronous_commit = {name}")).await.unwrap();
            let epoch = "select epoch::text from claim('other', 1)".to_owned();
            let mut found = Postgres::texts(&mut tx, epoch).await.unwrap();
            let setting = "select current_setting('synchronous_commit')".to_owned();
            found.extend(Postgres::texts(&mut tx, setting).await.unwrap());
            tx.commit().await.unwrap();
            found
        };
        assert_eq!(setting("local").await, ["1", "local"]);
        crash(fixture).await;
        assert_eq!(setting("off").await, ["2", "on"]);
        assert_eq!(fixture.texts("select step::text from outbox_step").await, ["2"]);
    });
}
