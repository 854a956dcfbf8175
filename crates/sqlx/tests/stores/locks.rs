//! Rows that another session keeps locked: they hold up no settlement but their own, and the log, errors, `why` and the doctor name the
//! session.

use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::{
    ClaimRequest, ErrorKind, Failure, JoinStore as _, Lease, Message, MessageId, NewJoin, NewMessage, Outbox,
    Outcome, Reason, Schedule, Settings, Settled, Settlement, Severity, Shutdown, Store as _,
    StoreAdmin as _, WorkerId, handled, why,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use posthaste_testkit::Logs;
use sqlx_core::pool::PoolOptions;
use tokio::sync::Semaphore;

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

/// A message that another session has locked, and one whose join is locked, are told; the others of the batch are settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_message_holds_up_no_others() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let store = &fixture.store;
    let messages: Vec<NewMessage> = (0..8).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    store.enqueue(&messages).await.unwrap();
    let (step, locked) = (messages[2].id(), messages[5].id());
    let mut tx = fixture.begin().await;
    let join = NewJoin::expecting(2).build().unwrap();
    store.start_join(&mut tx, &join).await.unwrap();
    store.attach(&mut tx, join.id(), &[step]).await.unwrap();
    fixture.commit(tx).await;
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();

    let mut tx = fixture.begin().await;
    let lock = format!("select from outbox where message_id = '{locked}' for update");
    Postgres::run(&mut tx, format!("{lock}; select from outbox_join for update")).await.unwrap();
    let answers = async |outcome: Outcome, messages: &[Message]| {
        let settlements: Vec<_> =
            messages.iter().map(|message| Settlement::new(message.lease(), outcome.clone())).collect();
        let settled = store.settle(&settlements).await.unwrap().settled;
        let ids = messages.iter().map(|message| message.id);
        ids.zip(settled).filter(|(_, answer)| *answer != Settled::Applied).collect::<Vec<_>>()
    };
    assert_eq!(answers(Outcome::Ack, &claimed[..4]).await, [(step, Settled::Locked)]);
    let fail = Outcome::Fail { failure: Failure::permanent("no") };
    assert_eq!(answers(fail, &claimed[4..]).await, [(locked, Settled::Locked)]);
    let lasting = Duration::from_secs(60);
    let held = [claimed[2].lease(), claimed[5].lease()];
    assert_eq!(store.renew(&held, lasting).await.unwrap(), [Settled::Applied; 2], "they are still held");
    fixture.rollback(tx).await;

    let rest = [claimed[2].clone(), claimed[5].clone()];
    assert_eq!(answers(Outcome::Ack, &rest).await, []);
    let joins = fixture.texts("select completed_steps::text from outbox_join").await;
    assert_eq!(joins, ["1"], "counted once");
    fixture.destroy().await;
}

/// An outbox delivers everything else while another session keeps one of its messages locked, and that one once it is free; each once.
#[tokio::test]
async fn an_outbox_goes_on_beside_a_locked_message() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let logs = Logs::default();
    let _listening = tracing::subscriber::set_default(logs.clone());
    let messages: Vec<NewMessage> = (0..40).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
    fixture.store.enqueue(&messages).await.unwrap();
    let gate = Arc::new(Semaphore::new(0));
    let mut settings = Settings::default();
    (settings.workers, settings.reap) = (40, Schedule::off());
    let entering = Arc::clone(&gate);
    let outbox = Outbox::builder(fixture.store.clone())
        .settings(settings)
        .on_topic("t", move |_: Message| {
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
    let running = tokio::spawn(outbox.run(shutdown.clone()));
    let leased = async || {
        fixture
            .texts("select coalesce(sum(upper(i) - lower(i)), 0)::text from outbox_lease, unnest(items) i")
            .await
    };
    until("all are leased", async || leased().await == ["40"]).await;
    let mut tx = fixture.begin().await;
    let lock = format!("select from outbox where message_id = '{}' for update", messages[7].id());
    Postgres::run(&mut tx, lock).await.unwrap();
    gate.add_permits(40);

    let done = async || fixture.texts("select count(*)::text from outbox where state = 2").await;
    until("the others are done", async || done().await == ["39"]).await;
    until("the lock is logged", async || !logs.events(LOCKED).is_empty()).await;
    fixture.rollback(tx).await;
    until("all are done", async || done().await == ["40"]).await;
    shutdown.begin();
    running.await.unwrap().unwrap();
    let lines = logs.events(LOCKED);
    assert_eq!(lines.len(), 1, "one line for one message: {lines:?}");
    assert_eq!(lines[0].field("message_id"), messages[7].id().to_string());
    assert_eq!(fixture.texts("select distinct attempts || ' ' || lease_losses from outbox").await, ["0 0"]);
    assert_eq!(gate.available_permits(), 0, "each was handled once");
    fixture.destroy().await;
}

const LOCKED: &str = "message is locked by another session, its settlement waits";

/// Waits until something is so.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < Duration::from_secs(120), "it did not come true that {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
