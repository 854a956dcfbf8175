//! Backlogs in SQLite that a claim cannot take from: paused, without a handler, behind another of their key. A claim for other messages
//! takes about as many steps of SQLite's virtual machine as without them.
//!
//! C3 of the claim design.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use posthaste_core::{
    Change, ClaimRequest, Filter, Message, MessageId, NewMessage, Outcome, Settlement, Store, StoreAdmin,
    Topics, WorkerId,
};
use posthaste_sqlx::{Sqlite, SqliteStore};
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;

use crate::fixture::{Backend, SqliteFixture};

/// How many messages are in front.
const MANY: usize = 20_000;
/// How many each claim takes.
const LIMIT: u32 = 50;
const NOW: &str = "cast((julianday('now') - 2440587.5) * 86400000000 as integer)";

/// Messages with these values, an hour old: `n` counts them from 0.
async fn fill(fixture: &SqliteFixture, count: usize, values: Values) {
    let Values { topic, key, priority, lease_losses } = values;
    let fill = format!(
        "with recursive c (n) as (select 0 union all select n + 1 from c where n < {count} - 1) \
         insert into posthaste_outbox (message_id, created_at, due_at, epoch, attempts, lease_losses, state, priority, \
         order_policy, topic, key, payload, content_type) \
         select randomblob(16), {NOW}, {NOW} - 3600000000 + n, 0, 0, {lease_losses}, 0, {priority}, 0, {topic}, {key}, 'x', \
         'text/plain' from c"
    );
    fixture.run(fill).await;
}

/// SQL expressions.
#[derive(Clone, Copy)]
struct Values {
    topic: &'static str,
    key: &'static str,
    priority: &'static str,
    lease_losses: u32,
}

const PLAIN: Values = Values { topic: "'t'", key: "null", priority: "0", lease_losses: 0 };

/// A store that counts the steps of its only connection.
struct Counted {
    store: SqliteStore,
    steps: Arc<AtomicU64>,
}

impl Counted {
    async fn new(fixture: &SqliteFixture) -> Self {
        let steps = Arc::new(AtomicU64::new(0));
        let step = Arc::clone(&steps);
        let mut connection = fixture.store.pool().acquire().await.unwrap();
        connection.lock_handle().await.unwrap().set_progress_handler(1, move || {
            step.fetch_add(1, Ordering::Relaxed);
            true
        });
        drop(connection);
        Self { store: fixture.store.clone(), steps }
    }

    /// Claims, releases what it has, and answers it with the steps that the claim took. The first claim prepares the statement.
    async fn claim(&self, topics: &Topics) -> (Vec<Message>, u64) {
        let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(LIMIT).topics(topics.clone());
        let mut counted = (Vec::new(), 0);
        for _ in 0..2 {
            let before = self.steps.load(Ordering::Relaxed);
            let claimed = self.store.claim(&request).await.unwrap();
            counted = (claimed, self.steps.load(Ordering::Relaxed) - before);
            let releases: Vec<_> =
                counted.0.iter().map(|message| Settlement::new(message.lease(), Outcome::Release)).collect();
            self.store.settle(&releases).await.unwrap();
        }
        counted
    }
}

/// A claim of plain messages, alone and then with more in front, which `put` stores.
async fn bounded(fixture: &SqliteFixture, topics: Topics, put: impl AsyncFn(&SqliteFixture)) {
    let counted = Counted::new(fixture).await;
    fill(fixture, 2 * LIMIT as usize, PLAIN).await;
    let (_, alone) = counted.claim(&topics).await;
    put(fixture).await;
    let (claimed, steps) = counted.claim(&topics).await;
    eprintln!("{steps} steps, {alone} with nothing in front");
    assert_eq!(claimed.len(), LIMIT as usize);
    assert!(claimed.iter().all(|message| message.topic == "t"));
    assert!(steps <= alone * 13 / 10 + 500, "{steps} steps, {alone} with nothing in front");
}

fn all() -> Topics {
    Topics::all()
}

/// Lets these be older than all others.
async fn to_the_front(fixture: &SqliteFixture, topic: &str) {
    fixture
        .run(format!("update posthaste_outbox set due_at = due_at - 3600000000 where topic = '{topic}'"))
        .await;
}

#[test]
fn sqlite_paused_messages_cost_claims_nothing() {
    run(async |fixture: &Arc<SqliteFixture>| {
        bounded(fixture, all(), async |fixture| {
            fill(fixture, MANY, Values { topic: "'paused'", ..PLAIN }).await;
            to_the_front(fixture, "paused").await;
            fixture.store.pause("paus*", "ada", "test").await.unwrap();
        })
        .await;
        fixture.store.resume("paus*").await.unwrap();
        let claimed = fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
        assert!(claimed.iter().all(|message| message.topic == "paused"), "once resumed, the oldest go first");
    });
}

#[test]
fn sqlite_messages_without_a_handler_cost_claims_nothing() {
    run(async |fixture: &Arc<SqliteFixture>| {
        for topics in [Topics::of(["t"]).unwrap(), Topics::of(["t*"]).unwrap()] {
            bounded(fixture, topics, async |fixture| {
                fill(fixture, MANY, Values { topic: "'other'", ..PLAIN }).await;
                to_the_front(fixture, "other").await;
            })
            .await;
            fixture.clear().await;
        }
    });
}

#[test]
fn sqlite_messages_behind_their_key_cost_claims_nothing() {
    run(async |fixture: &Arc<SqliteFixture>| {
        let keys = Values { key: "'k' || (n % 20)", topic: "'keyed'", ..PLAIN };
        bounded(fixture, all(), async |fixture| {
            fill(fixture, MANY, keys).await;
            to_the_front(fixture, "keyed").await;
            let held = fixture
                .store
                .claim(&ClaimRequest::new(WorkerId::new("other").unwrap()).limit(20))
                .await
                .unwrap();
            assert_eq!(held.len(), 20);
            assert!(held.iter().all(|message| message.topic == "keyed"));
        })
        .await;
    });
}

/// 300 messages behind one that this worker has, and many that are free: no claim comes back empty.
#[test]
fn sqlite_messages_behind_a_held_one_leave_room_for_others() {
    run(async |fixture: &Arc<SqliteFixture>| {
        bounded(fixture, all(), async |fixture| {
            fill(fixture, 301, Values { key: "'k'", topic: "'keyed'", ..PLAIN }).await;
            to_the_front(fixture, "keyed").await;
            fill(fixture, MANY, PLAIN).await;
            let held =
                fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap()).limit(1)).await.unwrap();
            assert_eq!(held[0].topic, "keyed");
        })
        .await;
    });
}

#[test]
fn sqlite_many_priorities_cost_claims_nothing() {
    run(async |fixture: &Arc<SqliteFixture>| {
        bounded(fixture, all(), async |fixture| {
            fill(fixture, MANY, Values { priority: "n % 10000 - 5000", ..PLAIN }).await;
        })
        .await;
    });
}

/// Suspects of a paused topic, overdue, and their topics are not walked either.
#[test]
fn sqlite_suspects_that_cannot_be_taken_cost_claims_nothing() {
    run(async |fixture: &Arc<SqliteFixture>| {
        bounded(fixture, all(), async |fixture| {
            fill(fixture, 5_000, Values { topic: "'paused'", lease_losses: 1, ..PLAIN }).await;
            fixture.store.pause("paused", "ada", "test").await.unwrap();
        })
        .await;
    });
}

/// A backlog of few keys is drained in claims whose cost does not depend on how much is left.
#[test]
fn sqlite_long_queues_of_few_keys_are_drained() {
    run(async |fixture: &Arc<SqliteFixture>| {
        fill(fixture, 2_000, Values { key: "'k' || (n % 20)", ..PLAIN }).await;
        let counted = Counted::new(fixture).await;
        let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(LIMIT);
        let mut most = 0;
        for _ in 0..100 {
            let before = counted.steps.load(Ordering::Relaxed);
            let claimed = counted.store.claim(&request).await.unwrap();
            most = most.max(counted.steps.load(Ordering::Relaxed) - before);
            assert_eq!(claimed.len(), 20);
            let acks: Vec<_> =
                claimed.iter().map(|held| Settlement::new(held.lease(), Outcome::Ack)).collect();
            counted.store.settle(&acks).await.unwrap();
        }
        assert!(counted.store.claim(&request).await.unwrap().is_empty());
        assert!(most <= 15_000, "{most} steps for 20 messages");
    });
}

/// A message of each state, as version 10 had it, is what it was, and has its turn.
#[test]
fn sqlite_messages_of_version_10_have_their_turn() {
    const COLUMNS: &str = "message_id, created_at, epoch, attempts, priority, topic, payload, content_type, due_at, \
                           leased_until, lease_losses, state, order_policy, error_class, key";
    // Due time, lease, lease losses, state, order policy, error class and key; their ids count from 1.
    const ROWS: [&str; 13] = [
        "0, 9000000000000000, 0, 1, 0, null, 'leased'",
        "1, null, 0, 0, 0, null, 'leased'",
        "2, null, 0, 0, 0, null, 'leased'",
        "3, null, 0, 3, 0, 4, 'blocked'",
        "4, null, 0, 0, 0, null, 'blocked'",
        "5, null, 0, 3, 2, 4, 'skipped'",
        "6, null, 0, 0, 0, null, 'skipped'",
        "7, null, 0, 3, 1, 4, 'parked'",
        "9223372036854775807, null, 0, 0, 0, null, 'parked'",
        "8, null, 0, 2, 0, null, 'done'",
        "9, null, 0, 0, 0, null, 'done'",
        "10, null, 1, 0, 0, null, null",
        "11, null, 0, 0, 0, null, null",
    ];
    let test = async {
        let fixture = SqliteFixture::bare().await;
        let script = SqliteStore::migration_sql(&fixture.options).unwrap();
        let older = script.split("-- 0011_").next().unwrap();
        fixture
            .run(format!("{older} insert into posthaste_outbox_version (version) values (10); commit"))
            .await;
        for (n, values) in (1..).zip(ROWS) {
            let row = format!(
                "insert into posthaste_outbox ({COLUMNS}) \
                 values (x'{n:02x}000000000000000000000000000000', 0, 0, 0, 0, 't', 'x', 'text/plain', {values})"
            );
            fixture.run(row).await;
        }
        let dump = format!(
            "select {} from posthaste_outbox order by seq",
            COLUMNS
                .split(", ")
                .map(|column| format!("quote({column})"))
                .collect::<Vec<_>>()
                .join(" || ',' || ")
        );
        let before = fixture.texts(&dump).await;
        assert_eq!(before.len(), ROWS.len());
        fixture.store.migrate().await.unwrap();
        assert_eq!(fixture.texts(&dump).await, before);
        assert_eq!(fixture.texts("pragma integrity_check").await, ["ok"]);

        let claim = async || {
            let request = ClaimRequest::new(WorkerId::new("w").unwrap());
            let claimed = fixture.store.claim(&request).await.unwrap();
            claimed.iter().map(|message| message.id.as_uuid().as_bytes()[0]).collect::<Vec<_>>()
        };
        assert_eq!(claim().await, [0x0c], "the suspect is overdue");
        assert_eq!(claim().await, [0x07, 0x0b, 0x0d]);
        assert!(claim().await.is_empty());
        fixture.run("update posthaste_outbox set state = 2 where seq = 1".to_owned()).await;
        assert_eq!(claim().await, [0x02]);
        let change = Change::new(Filter::default(), "ada", "enough").unwrap();
        assert_eq!(fixture.store.bury(&change).await.unwrap().len(), 5);
        fixture.destroy().await;
    };
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(test);
}

/// Messages that other programs store with one key, in one statement or several, take turns.
#[test]
fn sqlite_rows_of_other_programs_take_turns() {
    run(async |fixture: &Arc<SqliteFixture>| {
        fill(fixture, 3, Values { key: "'k'", ..PLAIN }).await;
        fill(fixture, 2, Values { key: "'k'", ..PLAIN }).await;
        let mut tx = fixture.begin().await;
        for expected in 1..=5 {
            let claimed = {
                fixture.commit(tx).await;
                let request = ClaimRequest::new(WorkerId::new("w").unwrap());
                fixture.store.claim(&request).await.unwrap()
            };
            assert_eq!(claimed.iter().map(|held| held.item.get()).collect::<Vec<_>>(), [expected]);
            tx = fixture.begin().await;
            // Each of them ends as some program may end it.
            let end = match expected {
                1 => "delete from posthaste_outbox where seq = 1",
                2 => "update posthaste_outbox set state = 2 where seq = 2",
                3 => "update posthaste_outbox set state = 3, error_class = 8 where seq = 3",
                _ => "update posthaste_outbox set state = 3, order_policy = 2, error_class = 4 where seq = 4",
            };
            Sqlite::run(&mut tx, end.to_owned()).await.unwrap();
        }
        fixture.commit(tx).await;
    });
}

#[test]
fn sqlite_stats_count_what_waits() {
    run(async |fixture: &Arc<SqliteFixture>| {
        let keyed = || NewMessage::bytes("t", "x").key("k").build().unwrap();
        let messages: Vec<NewMessage> = (0..5).map(|_| keyed()).collect();
        let ids: Vec<MessageId> = messages.iter().map(NewMessage::id).collect();
        fixture.store.enqueue(&messages).await.unwrap();
        let stats = fixture.store.stats().await.unwrap();
        assert_eq!(stats.ready.value, ids.len() as u64);
        let later =
            NewMessage::bytes("t", "x").key("k").delay(std::time::Duration::from_secs(60)).build().unwrap();
        fixture.store.enqueue(&[later]).await.unwrap();
        let stats = fixture.store.stats().await.unwrap();
        assert_eq!((stats.ready.value, stats.scheduled.value, stats.parked.value), (5, 1, 0));
    });
}
