//! P8: what still waits for another session names that session within a second: the log, errors, `why` and the doctor.

use std::time::{Duration, Instant};

use posthaste_core::{
    ClaimRequest, ErrorKind, Lease, MessageId, NewMessage, Outcome, Reason, Settlement, Severity, Store as _,
    StoreAdmin as _, WorkerId, why,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use posthaste_testkit::Logs;
use sqlx_core::pool::PoolOptions;

use crate::fixture::{Backend, PgFixture};

/// A store whose statements give up on a lock after two seconds instead of ten.
async fn impatient(fixture: &PgFixture) -> PgStore {
    let pool = PoolOptions::new().max_connections(4).after_connect(|connection, _| {
        Box::pin(async move { Postgres::run(connection, "set lock_timeout = '2s'".to_owned()).await })
    });
    PgStore::from_pool(pool.connect(&fixture.url).await.unwrap(), &fixture.options).unwrap()
}

async fn leased(store: &PgStore) -> (MessageId, Lease) {
    store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
    (claimed[0].id, claimed[0].lease())
}

/// Waits until a session of this outbox waits for a lock.
async fn until_something_waits(store: &PgStore) {
    let begin = Instant::now();
    while store.lock_waits().await.unwrap().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing waits");
    }
}

/// A session that keeps the table locked, as a migration of a tool does that someone left open, is named by all that wait for it.
#[tokio::test]
async fn a_locked_table_names_its_session() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let logs = Logs::default();
    let _listening = tracing::subscriber::set_default(logs.clone());
    let store = impatient(&fixture).await;
    let (id, lease) = leased(&store).await;
    assert_eq!(store.lock_waits().await.unwrap(), []);
    let mut tx = fixture.begin().await;
    let pid = Postgres::texts(&mut tx, "select pg_backend_pid()::text".to_owned()).await.unwrap().remove(0);
    let session = format!("pid {pid}");
    Postgres::run(&mut tx, "set application_name = 'left open'; lock table outbox".to_owned()).await.unwrap();

    let error = store.settle(&[Settlement::new(lease, Outcome::Ack)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let blocked_by = error.context().find(|(name, _)| *name == "blocked by").expect("a session").1.to_owned();
    assert!(blocked_by.starts_with(&session) && blocked_by.contains("program left open"), "{blocked_by}");
    assert!(blocked_by.contains("state idle in transaction), open since"), "{blocked_by}");
    assert!(error.remedy().unwrap().contains(&session), "{error}");
    let lines = logs.events("a statement waits for a lock of another session");
    assert_eq!(
        (lines[0].field("operation"), lines[0].field("holder")),
        ("settle", blocked_by.as_str()),
        "{lines:?}"
    );

    let findings = store.examine().await.unwrap();
    let found = &findings.iter().find(|finding| finding.check == "locks").unwrap().found;
    assert!(
        found.starts_with(&format!("session {pid} (user ")) && found.ends_with("keeps a table locked"),
        "{found}"
    );

    // Nothing but the name of the session can be told about a message while nothing can be read.
    let told = why(&fixture.store, id, None).await.unwrap();
    let [Reason::Blocked { session: named, .. }] = &told.reasons[..] else { panic!("{told:?}") };
    assert_eq!(*named, session);
    assert!(told.explanation.contains(&format!("let {session} commit, or end it")), "{told:?}");

    let waiting = tokio::spawn({
        let store = fixture.store.clone();
        async move { store.settle(&[Settlement::new(lease, Outcome::Ack)]).await }
    });
    until_something_waits(&store).await;
    let findings = store.examine().await.unwrap();
    let found = findings.iter().find(|finding| finding.check == "locks").unwrap();
    assert_eq!(found.severity, Severity::Warning);
    assert!(found.found.contains(&format!("for session {pid} (user ")), "{found:?}");
    assert!(found.found.contains("program left open"), "{found:?}");
    let unread = findings.iter().find(|finding| finding.check == "numbers").unwrap();
    assert!(unread.found.contains("could not be looked at"), "{unread:?}");

    fixture.rollback(tx).await;
    waiting.await.unwrap().unwrap();
    assert_eq!(store.lock_waits().await.unwrap(), []);
    let findings = store.examine().await.unwrap();
    assert_eq!(findings.iter().find(|finding| finding.check == "locks").unwrap().severity, Severity::Fine);
    store.close().await;
    fixture.destroy().await;
}

/// A settlement that waits for a row is why its message is still leased; and of several that wait, the one is named that waits for
/// nothing itself.
#[tokio::test]
async fn a_settlement_that_waits_is_told() {
    if !PgFixture::available() {
        return;
    }
    let (fixture, other) = (PgFixture::create().await, PgFixture::create().await);
    let (id, lease) = leased(&fixture.store).await;
    let mut tx = fixture.begin().await;
    let pid = Postgres::texts(&mut tx, "select pg_backend_pid()::text".to_owned()).await.unwrap().remove(0);
    Postgres::run(&mut tx, format!("select from outbox where message_id = '{id}' for update")).await.unwrap();
    let settle = || {
        let store = fixture.store.clone();
        tokio::spawn(async move { store.settle(&[Settlement::new(lease, Outcome::Ack)]).await })
    };
    let settling = [settle(), settle()];
    let begin = Instant::now();
    let waits = loop {
        let waits = fixture.store.lock_waits().await.unwrap();
        if waits.len() >= 2 {
            break waits;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{waits:?}");
    };
    assert_eq!(waits[0].holder.session, format!("pid {pid}"), "{waits:?}");
    let told = why(&fixture.store, id, None).await.unwrap();
    let [Reason::Leased { .. }, Reason::Blocked { session, waiter, .. }] = &told.reasons[..] else {
        panic!("{told:?}")
    };
    assert_eq!((session, waiter), (&format!("pid {pid}"), &waits[0].waiter));
    assert_eq!(other.store.lock_waits().await.unwrap(), [], "another outbox is not affected");
    fixture.rollback(tx).await;
    for settled in settling {
        settled.await.unwrap().unwrap();
    }
    fixture.destroy().await;
    other.destroy().await;
}
