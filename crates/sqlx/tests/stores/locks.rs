//! Rows that another session keeps locked: they hold up no settlement but their own, and the log, errors, `why` and the doctor name the
//! session.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use posthaste_core::{
    ClaimRequest, ErrorKind, Failure, JoinStore as _, Lease, Message, MessageId, NewJoin, NewMessage, Outbox,
    Outcome, Reason, Schedule, Settings, Settled, Settlement, Severity, Shutdown, Store as _,
    StoreAdmin as _, WorkerId, handled, why,
};
use posthaste_sqlx::{Dialect, MySql, PgStore, Postgres, SqlStore};
use posthaste_testkit::Fixture;
use posthaste_testkit::Logs;
use sqlx_core::pool::PoolOptions;
use sqlx_core::transaction::Transaction;
use tokio::sync::Semaphore;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture};

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
    let Lease { item, epoch } = lease;
    let ack = || {
        let users = fixture.users.clone();
        let ack = format!("select ack({}, {epoch})", item.get());
        tokio::spawn(async move { Postgres::run(&mut users.acquire().await.unwrap(), ack).await })
    };
    let settling = [ack(), ack()];
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

/// Locks the row of a message until the transaction ends.
async fn lock<D: Backend>(fixture: &SqlFixture<D>, id: MessageId) -> Transaction<'static, D::Db> {
    let mut tx = fixture.begin().await;
    let lock = format!("select 1 from {} where message_id = {} for update", D::TABLE, D::literal(id));
    D::run(&mut tx, lock).await.unwrap();
    tx
}

/// The answers to settlements of these messages that are not `Applied`.
async fn unsettled<D: Dialect>(
    store: &SqlStore<D>,
    outcome: Outcome,
    messages: &[Message],
) -> Vec<(MessageId, Settled)> {
    let settlements: Vec<_> =
        messages.iter().map(|message| Settlement::new(message.lease(), outcome.clone())).collect();
    let settled = store.settle(&settlements).await.unwrap().settled;
    let ids = messages.iter().map(|message| message.id);
    ids.zip(settled).filter(|(_, answer)| *answer != Settled::Applied).collect()
}

/// Another session keeps one message locked: the others are settled, renewed, reaped and expired.
async fn holds_up_no_others<D: Backend>(renewed: Settled) {
    let fixture = SqlFixture::<D>::create().await;
    let store = &fixture.store;
    let messages: Vec<NewMessage> = (0..8).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    store.enqueue(&messages).await.unwrap();
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
    let tx = lock(&fixture, claimed[1].id).await;
    let locked = [(claimed[1].id, Settled::Locked)];
    assert_eq!(unsettled(store, Outcome::Ack, &claimed[..4]).await, locked);
    let fail = Outcome::Fail { failure: Failure::permanent("no") };
    assert_eq!(unsettled(store, fail, &[claimed[1].clone(), claimed[4].clone()]).await, locked);
    let held = [claimed[1].lease(), claimed[5].lease()];
    assert_eq!(store.renew(&held, MINUTE).await.unwrap(), [renewed, Settled::Applied]);
    fixture.rollback(tx).await;
    assert_eq!(unsettled(store, Outcome::Ack, &claimed[1..2]).await, []);

    fixture.advance(2 * MINUTE).await;
    let tx = lock(&fixture, claimed[6].id).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 2, "all but the locked one");
    fixture.rollback(tx).await;
    assert_eq!(store.reap(10).await.unwrap().ready, 1);

    let short = || NewMessage::bytes("t", "x").expires_after(MINUTE).build().unwrap();
    let expiring = [short(), short(), short()];
    store.enqueue(&expiring).await.unwrap();
    fixture.advance(2 * MINUTE).await;
    let tx = lock(&fixture, expiring[1].id()).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 2, "all but the locked one");
    fixture.rollback(tx).await;
    assert_eq!(store.expire(10).await.unwrap().messages, 1);
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_locked_message_holds_up_no_others_on_postgres() {
    if PgFixture::available() {
        // There a renewal needs the lease only.
        holds_up_no_others::<Postgres>(Settled::Applied).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_locked_message_holds_up_no_others_on_mysql() {
    if MySqlFixture::available() {
        holds_up_no_others::<MySql>(Settled::Locked).await;
    }
}

/// A step of a locked join is answered like a locked message, and is counted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_a_locked_join_holds_up_no_others() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = &fixture.store;
    let messages: Vec<NewMessage> = (0..4).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    store.enqueue(&messages).await.unwrap();
    let step = messages[2].id();
    let mut tx = fixture.begin().await;
    let join = NewJoin::expecting(2).build().unwrap();
    store.start_join(&mut tx, &join).await.unwrap();
    store.attach(&mut tx, join.id(), &[step]).await.unwrap();
    fixture.commit(tx).await;
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();

    let mut tx = fixture.begin().await;
    Postgres::run(&mut tx, "select from outbox_join for update".to_owned()).await.unwrap();
    assert_eq!(unsettled(store, Outcome::Ack, &claimed).await, [(step, Settled::Locked)]);
    fixture.rollback(tx).await;
    assert_eq!(unsettled(store, Outcome::Ack, &claimed[2..3]).await, []);
    let joins = fixture.texts("select completed_steps::text from outbox_join").await;
    assert_eq!(joins, ["1"], "counted once");
    fixture.destroy().await;
}

/// An outbox delivers everything else while another session keeps one of its messages locked, and that one once it is free; each once.
async fn outbox_goes_on<D: Backend>() {
    let fixture = SqlFixture::<D>::create().await;
    let logs = Logs::default();
    let _listening = tracing::subscriber::set_default(logs.clone());
    let messages: Vec<NewMessage> = (0..40).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    fixture.store.enqueue(&messages).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let mut settings = Settings::default();
    (settings.workers, settings.reap) = (40, Schedule::off());
    let (running, entering) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&gate));
    let counting = Arc::clone(&running);
    let outbox = Outbox::builder(fixture.store.clone())
        .settings(settings)
        .on_topic("t", move |_: Message| {
            counting.fetch_add(1, Ordering::Relaxed);
            let entering = Arc::clone(&entering);
            async move {
                entering.acquire().await.unwrap().forget();
                handled()
            }
        })
        .build()
        .await
        .unwrap();
    let shutdown = Shutdown::new();
    let run = tokio::spawn(outbox.run(shutdown.clone()));
    until("all are running", async || running.load(Ordering::Relaxed) == 40).await;
    let tx = lock(&fixture, messages[7].id()).await;
    gate.add_permits(40);

    let done = async || fixture.store.stats().await.unwrap().done.value;
    until("the others are done", async || done().await == 39).await;
    until("the lock is logged", async || !logs.events(LOCKED).is_empty()).await;
    fixture.rollback(tx).await;
    until("all are done", async || done().await == 40).await;
    shutdown.begin();
    run.await.unwrap().unwrap();
    let lines = logs.events(LOCKED);
    assert_eq!(lines.len(), 1, "one line for one message: {lines:?}");
    assert_eq!(lines[0].field("message_id"), messages[7].id().to_string());
    let counts = format!("select distinct concat(attempts, ' ', lease_losses) from {}", D::TABLE);
    assert_eq!(fixture.texts(&counts).await, ["0 0"]);
    assert_eq!((running.load(Ordering::Relaxed), gate.available_permits()), (40, 0), "each was handled once");
    fixture.destroy().await;
}

#[tokio::test]
async fn slow_an_outbox_goes_on_beside_a_locked_message_on_postgres() {
    if PgFixture::available() {
        outbox_goes_on::<Postgres>().await;
    }
}

#[tokio::test]
async fn slow_an_outbox_goes_on_beside_a_locked_message_on_mysql() {
    if MySqlFixture::available() {
        outbox_goes_on::<MySql>().await;
    }
}

const MINUTE: Duration = Duration::from_secs(60);
const LOCKED: &str = "message is locked by another session, its settlement waits";

/// Waits until something is so.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < Duration::from_secs(120), "it did not come true that {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
