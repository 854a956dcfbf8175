//! PostgreSQL at isolation levels other than READ COMMITTED, where a snapshot is older than the locks and two workers could hold
//! one message. Claims and settlements are refused there, with a remedy. A session gets there if a pooler drops our start-up
//! options and the database has another default.

use std::time::Duration;

use posthaste_core::{
    ClaimRequest, Error, ErrorKind, Lease, NewMessage, Outcome, Settlement, Severity, Store, StoreAdmin,
    WorkItemId, WorkerId,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use sqlx_core::pool::PoolOptions;
use sqlx_postgres::PgConnectOptions;

use crate::fixture::{Backend, PgFixture};

/// A store on connections whose start-up options are lost: they have the defaults of the database.
async fn behind_a_pooler(fixture: &PgFixture, level: &str) -> PgStore {
    let connect: PgConnectOptions = fixture.url.parse().unwrap();
    let connect = connect.options([("default_transaction_isolation", level)]);
    let pool = PoolOptions::new().max_connections(2).connect_with(connect).await.unwrap();
    PgStore::from_pool(pool, &fixture.options).unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Error>) {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    let text = error.to_string();
    assert!(text.contains("isolation level") && text.contains("ALTER ROLE"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_claimed_or_settled_at_other_levels() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let request = ClaimRequest::new(WorkerId::new("w").unwrap());
    let lease = Lease { item: WorkItemId::new(1), epoch: 1 };
    for level in ["repeatable read", "serializable"] {
        let store = behind_a_pooler(&fixture, level).await;
        // Publishing is safe at every level.
        store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
        refused(store.claim(&request).await);
        refused(store.renew(&[lease], Duration::from_secs(1)).await);
        refused(store.settle(&[Settlement::new(lease, Outcome::Ack)]).await);
        refused(store.settle(&[Settlement::new(lease, Outcome::Release)]).await);
        refused(store.reap(1).await);
        refused(store.expire(1).await);
        refused(store.park(1).await);

        let findings = store.examine().await.unwrap();
        let found = findings.iter().find(|finding| finding.check == "isolation of claims").unwrap();
        assert_eq!(found.severity, Severity::Danger, "{found:?}");
        assert!(found.remedy.as_ref().unwrap().contains("ALTER ROLE"), "{found:?}");
        store.close().await;
    }
    assert_eq!(fixture.store.claim(&request).await.unwrap().len(), 2, "at READ COMMITTED, all of them");
    fixture.destroy().await;
}

/// Two sessions whose snapshots are both older than either's claim never get the same message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_sessions_never_hold_one_message() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    for (level, expected) in [("read committed", 1), ("repeatable read", 0), ("serializable", 0)] {
        let (mut a, mut b) = (fixture.users.begin().await.unwrap(), fixture.users.begin().await.unwrap());
        let mut holders = 0;
        for session in [&mut a, &mut b] {
            let begin = format!("set transaction isolation level {level}; select 1 from outbox");
            Postgres::run(session, begin).await.unwrap();
        }
        let claim = "select seq::text from claim('w', 10, '1 minute')";
        holders += Postgres::texts(&mut a, claim.to_owned()).await.map_or(0, |seqs| seqs.len());
        drop(a.commit().await);
        holders += Postgres::texts(&mut b, claim.to_owned()).await.map_or(0, |seqs| seqs.len());
        drop(b.commit().await);
        assert_eq!(holders, expected, "{level}");
        fixture.run("delete from outbox_lease".to_owned()).await;
    }
    fixture.destroy().await;
}
