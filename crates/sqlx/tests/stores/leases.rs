//! What only PostgreSQL's leases can show, which are rows of their own: who waits for whom, what a lease holds, and how
//! claims go from key to key.
//!
//! Nothing here repeats the conformance suite. Cases that are about two at a time hold one of them in an open
//! transaction, so that they never depend on luck.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::{
    Birth, Change, ClaimRequest, Failure, Filter, Message, MessageId, NewMessage, OrderPolicy, Outcome,
    Settled, Settlement, State, Store, StoreAdmin, TransactionalStore, WorkerId,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;
use serde_json::Value;
use sqlx_core::transaction::Transaction;

use crate::fixture::{Backend, PgFixture};

/// Longer than any case takes.
const LEASE: Duration = Duration::from_secs(600);
/// For how long whoever must wait is watched.
const A_WHILE: Duration = Duration::from_millis(300);
/// So many that walking over them shows.
pub const MANY: usize = 20_000;

pub type Tx = Transaction<'static, <Postgres as posthaste_sqlx::Dialect>::Db>;

fn request(worker: &str, limit: u32) -> ClaimRequest {
    ClaimRequest::new(WorkerId::new(worker).unwrap()).limit(limit).lease(LEASE)
}

pub async fn claim(store: &PgStore, limit: u32) -> Vec<Message> {
    store.claim(&request("w", limit)).await.unwrap()
}

pub fn plain() -> NewMessage {
    NewMessage::bytes("topic", "x").build().unwrap()
}

pub async fn enqueue(store: &PgStore, count: usize) -> Vec<MessageId> {
    let messages: Vec<_> = (0..count).map(|_| plain()).collect();
    store.enqueue(&messages).await.unwrap();
    messages.iter().map(NewMessage::id).collect()
}

pub async fn settle(store: &PgStore, message: &Message, outcome: Outcome) -> Settled {
    store.settle(&[Settlement::new(message.lease(), outcome)]).await.unwrap().settled[0]
}

pub async fn ack_all(store: &PgStore, messages: &[Message]) {
    let acks: Vec<_> = messages.iter().map(|m| Settlement::new(m.lease(), Outcome::Ack)).collect();
    let settled = store.settle(&acks).await.unwrap().settled;
    assert!(settled.iter().all(|answer| *answer == Settled::Applied), "{settled:?}");
}

pub fn ids(messages: &[Message]) -> Vec<MessageId> {
    messages.iter().map(|message| message.id).collect()
}

fn everything() -> Change {
    Change::new(Filter::default(), "ada", "no longer wanted").unwrap()
}

/// Runs SQL in a transaction that stays open.
pub async fn within(tx: &mut Tx, sql: &str) -> Vec<String> {
    Postgres::texts(tx, sql.to_owned()).await.unwrap()
}

/// What a task answers that must wait until the transaction is committed.
async fn once_committed<T: Send + 'static>(tx: Tx, task: impl Future<Output = T> + Send + 'static) -> T {
    let mut task = tokio::spawn(task);
    let early = tokio::time::timeout(A_WHILE, &mut task).await.is_ok();
    tx.commit().await.unwrap();
    assert!(!early, "it did not wait");
    task.await.unwrap()
}

/// Asks again and again until it holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        // Long, because transactions of other tests in the same database keep vacuum from its work, too.
        assert!(begun.elapsed() < Duration::from_secs(120), "not within two minutes: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Buffers that a claim touches, of which nothing remains.
pub async fn claim_cost(fixture: &PgFixture, before: &str) -> u64 {
    let mut tx = fixture.begin().await;
    Postgres::run(&mut tx, before.to_owned()).await.unwrap();
    let explain = "explain (analyze, buffers, format json) select * from claim('w', 50)";
    let plan: Value = serde_json::from_str(&within(&mut tx, explain).await[0]).unwrap();
    tx.rollback().await.unwrap();
    let plan = &plan[0]["Plan"];
    let of = |kind: &str| plan[format!("Shared {kind} Blocks")].as_u64().unwrap();
    of("Hit") + of("Read")
}

// ---------------------------------------------------------------- two at a time

/// A claim that is not committed yet keeps its messages to itself.
#[test]
fn a_claim_waits_for_another() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let taken = within(&mut tx, "select seq::text from claim('other', 2)").await;
        assert_eq!(taken.len(), 2);
        let store = fixture.store.clone();
        let claimed = once_committed(tx, async move { claim(&store, 10).await }).await;
        assert_eq!(claimed.len(), 1);
    });
}

/// What is being taken cannot be buried.
#[test]
fn a_burial_waits_for_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        let all = enqueue(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        within(&mut tx, "select seq::text from claim('other', 2)").await;
        let store = fixture.store.clone();
        let buried = once_committed(tx, async move { store.bury(&everything()).await.unwrap() }).await;
        assert_eq!(buried, all[2..]);
    });
}

/// What is being taken does not expire.
#[test]
fn an_expiry_waits_for_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        let soon =
            NewMessage::bytes("topic", "x").expires_after(Duration::from_millis(1_500)).build().unwrap();
        fixture.store.enqueue(&[soon]).await.unwrap();
        let mut tx = fixture.begin().await;
        assert_eq!(within(&mut tx, "select seq::text from claim('other', 2)").await.len(), 1);
        eventually("it is past its expiry", async || {
            fixture.texts("select (expires_at < clock_timestamp())::text from outbox").await == ["true"]
        })
        .await;
        let store = fixture.store.clone();
        let expired = once_committed(tx, async move { store.expire(10).await.unwrap() }).await;
        assert_eq!(expired.messages, 0);
    });
}

/// Acks of neighbours, and of others, let go of exactly what was acked, whatever lies between.
#[test]
fn what_lies_between_stays_leased() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = fixture.store.keep_done(false);
        enqueue(&store, 9).await;
        let all = claim(&store, 9).await;
        let leased = async || fixture.texts("select items::text from outbox_lease").await;
        let first = all[0].item.get();
        let range = |from: i64, to: i64| format!("[{},{})", first + from, first + to);
        ack_all(&store, &[all[0].clone(), all[1].clone()]).await;
        assert_eq!(leased().await, [format!("{{{}}}", range(2, 9))], "neighbours");
        ack_all(&store, &[all[3].clone(), all[5].clone()]).await;
        let rest = [range(2, 3), range(4, 5), range(6, 9)].join(",");
        assert_eq!(leased().await, [format!("{{{rest}}}")], "others");
        assert!(claim(&store, 9).await.is_empty(), "nobody else gets them");
        // One of them is asked for twice, and another is gone: what is acked is what is let go.
        let sql = format!(
            "select settled::text from settle('{{{0},{0},{1}}}', '{{1,1,1}}', '{{0,0,0}}', '{{0,0,0}}', '{{null,null,null}}', \
             '{{null,null,null}}', '{{9,9,9}}', false)",
            first + 6,
            first + 5
        );
        assert_eq!(fixture.texts(&sql).await.last().unwrap(), "2", "it was gone");
        let rest = [range(2, 3), range(4, 5), range(7, 9)].join(",");
        assert_eq!(leased().await, [format!("{{{rest}}}")], "one of three");
        ack_all(&store, &[all[2].clone(), all[4].clone(), all[7].clone(), all[8].clone()]).await;
        assert!(leased().await.is_empty());
    });
}

/// Leases that are renewed get their numbers in the order in which they can be seen, because marks rely on it.
#[test]
fn a_renewal_waits_for_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 2).await;
        let held = claim(&fixture.store, 1).await;
        let mut tx = fixture.begin().await;
        within(&mut tx, "select seq::text from claim('other', 1)").await;
        let store = fixture.store.clone();
        let lease = held[0].lease();
        let renewed = once_committed(tx, async move { store.renew(&[lease], LEASE).await.unwrap() }).await;
        assert_eq!(renewed, [Settled::Applied]);
    });
}

/// A claim that is under way may leave a mark above what is released: whoever releases it is the one to know.
#[test]
fn a_release_waits_for_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 2).await;
        let held = claim(&fixture.store, 1).await.remove(0);
        let mut tx = fixture.begin().await;
        within(&mut tx, "select seq::text from claim('other', 1)").await;
        let store = fixture.store.clone();
        let released = once_committed(tx, async move { settle(&store, &held, Outcome::Release).await }).await;
        assert_eq!(released, Settled::Applied);
    });
}

/// Whoever acks what is just being renewed, by the same worker's heartbeat say, still holds it.
#[test]
fn an_ack_during_a_renewal() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let renewal = format!("select renew({}, 1)::text", held[0].item.get());
        assert_eq!(within(&mut tx, &renewal).await, ["0"]);
        let (store, message) = (fixture.store.clone(), held[0].clone());
        let settled = once_committed(tx, async move { settle(&store, &message, Outcome::Ack).await }).await;
        assert_eq!(settled, Settled::Applied);
    });
}

/// What its holder is just giving back is not lost.
#[test]
fn a_reap_passes_by_a_settlement() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        let held = claim(store, 1).await;
        let mut birth = fixture.begin().await;
        let worker = WorkerId::new("w").unwrap();
        let leased = Birth::Leased { worker: &worker, lease: LEASE };
        store.insert(&mut *birth, &[plain()], leased).await.unwrap();
        birth.commit().await.unwrap();
        fixture.advance(2 * LEASE).await;
        let mut tx = fixture.begin().await;
        let born = within(&mut tx, "select seq::text from outbox where state = 1").await.remove(0);
        for item in [held[0].item.get().to_string(), born] {
            assert_eq!(within(&mut tx, &format!("select release({item}, 1)::text")).await, ["0"]);
        }
        let (reaper, acker) = (store.clone(), tx);
        let reaped = tokio::spawn(async move { reaper.reap(10).await.unwrap() });
        tokio::time::sleep(A_WHILE).await;
        acker.commit().await.unwrap();
        assert_eq!(reaped.await.unwrap().ready, 0);
        assert_eq!(fixture.texts("select sum(lease_losses)::text from outbox").await, ["0"]);
    });
}

/// What the reaper has begun to take back cannot be given back any more, and the other way round.
#[test]
fn a_settlement_waits_for_a_reap() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 1).await;
        claim(&fixture.store, 1).await;
        fixture.advance(2 * LEASE).await;
        // The reaper has read leases, and has to wait before it changes messages.
        let mut tx = fixture.begin().await;
        let lock = "lock table outbox in access exclusive mode; set local lock_timeout = '300 ms'";
        Postgres::run(&mut tx, lock.to_owned()).await.unwrap();
        let reaper = Arc::clone(fixture);
        let reaped = tokio::spawn(async move { reaper.texts("select ready::text from reap()").await });
        eventually("the reaper waits", async || {
            let waiting =
                "select count(*)::text from pg_locks where not granted and relation = 'outbox'::regclass";
            within(&mut tx, waiting).await == ["1"]
        })
        .await;
        let released = Postgres::texts(&mut tx, "select release(seq, 1)::text from outbox".to_owned()).await;
        let given_back = released.is_ok_and(|answers| answers == ["0"]);
        if given_back {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let taken_back = reaped.await.unwrap() == ["1"];
        assert!(given_back != taken_back, "given back: {given_back}, taken back: {taken_back}");
    });
}

// ---------------------------------------------------------------- what a lease holds

/// Leases end with the last of their messages, however it ends.
#[test]
fn nothing_remains_of_a_lease() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 6).await;
        let held = claim(store, 6).await;
        let outcomes = [
            Outcome::Ack,
            Outcome::Defer { delay: LEASE },
            Outcome::Release,
            Outcome::Fail { failure: Failure::permanent("broken") },
        ];
        for (message, outcome) in held.iter().zip(outcomes) {
            assert_eq!(settle(store, message, outcome).await, Settled::Applied);
        }
        let items = "select array_to_string(array(select lower(i) || '-' || upper(i) from unnest(items) i), ' ') from outbox_lease";
        assert_eq!(
            fixture.texts(items).await,
            [format!("{}-{}", held[4].item.get(), held[5].item.get() + 1)]
        );
        // One that somebody deleted by hand is nobody's for ever.
        fixture.run(format!("delete from outbox where seq = {}", held[5].item.get())).await;
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 1);
        assert_eq!(fixture.texts(items).await, Vec::<String>::new());
    });
}

/// Of a lease, only what was asked for is kept.
#[test]
fn a_part_of_a_lease_is_kept() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 3).await;
        let held = claim(store, 3).await;
        assert_eq!(store.renew(&[held[1].lease()], 3 * LEASE).await.unwrap(), [Settled::Applied]);
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 2);
        for again in [&held[0], &held[2]] {
            assert_eq!(ids(&claim(store, 10).await), [again.id]);
        }
        assert_eq!(settle(store, &held[1], Outcome::Ack).await, Settled::Applied);
        assert_eq!(settle(store, &held[0], Outcome::Ack).await, Settled::Lost);
    });
}

/// A batch of two workers' messages says of each who did it.
#[test]
fn each_is_done_by_its_worker() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 2).await;
        let mut held = store.claim(&request("ada", 1)).await.unwrap();
        held.extend(store.claim(&request("bob", 1)).await.unwrap());
        ack_all(store, &held).await;
        assert_eq!(fixture.texts("select done_by from outbox order by seq").await, ["ada", "bob"]);
    });
}

/// What is in a lease is not taken again, although messages around it are.
#[test]
fn leased_ones_among_ready_ones() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        let all = enqueue(store, 5).await;
        let held = claim(store, 4).await;
        assert_eq!(settle(store, &held[0], Outcome::Release).await, Settled::Applied);
        assert_eq!(ids(&claim(store, 10).await), [all[0], all[4]]);
        assert_eq!(claim(store, 10).await, []);
        let leased = Filter { state: Some(State::Leased), ..Filter::default() };
        assert_eq!(store.list(&leased, None, 10).await.unwrap().records.len(), 5);
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.ready.value, stats.leased.value), (0, 5));
    });
}

/// A suspect that is held is not taken, expired, counted as ready or buried.
#[test]
fn a_leased_suspect() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        claim(store, 1).await;
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 1);
        assert_eq!(claim(store, 10).await.len(), 1);
        assert_eq!(claim(store, 10).await, []);
        let stats = store.stats().await.unwrap();
        assert_eq!((stats.ready.value, stats.leased.value), (0, 1));
        assert_eq!(stats.topics.iter().map(|topic| topic.state).collect::<Vec<_>>(), [State::Leased]);
        assert_eq!(store.bury(&everything()).await.unwrap(), []);
    });
}

/// A suspect is taken alone, although it was due among clean ones.
#[test]
fn a_suspect_among_clean_ones() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        let all = enqueue(store, 3).await;
        claim(store, 1).await;
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 1);
        assert_eq!(ids(&claim(store, 10).await), all[1..]);
        assert_eq!(ids(&claim(store, 10).await), all[..1]);
    });
}

/// Where done messages are deleted, whoever guesses the next epoch deletes nothing.
#[test]
fn only_what_is_held_is_deleted() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = fixture.store.keep_done(false);
        enqueue(&store, 1).await;
        let held = claim(&store, 1).await.remove(0);
        assert_eq!(settle(&store, &held, Outcome::Release).await, Settled::Applied);
        let guessed = Message { epoch: held.epoch + 1, ..held };
        assert_eq!(settle(&store, &guessed, Outcome::Ack).await, Settled::Lost);
        assert_eq!(claim(&store, 1).await.len(), 1);
    });
}

/// A message that is held is not parked behind one of its key that was committed after it, and died.
#[test]
fn leased_ones_are_not_parked() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        let keyed = || NewMessage::bytes("topic", "x").key("k").order(OrderPolicy::Park).build().unwrap();
        let mut tx = fixture.begin().await;
        store.insert(&mut *tx, &[keyed()], Birth::Ready).await.unwrap();
        store.enqueue(&[keyed()]).await.unwrap();
        let second = claim(store, 10).await;
        assert_eq!(second.len(), 1);
        tx.commit().await.unwrap();
        let first = claim(store, 10).await;
        let dead = Outcome::Fail { failure: Failure::permanent("broken") };
        assert_eq!(settle(store, &first[0], dead).await, Settled::Applied);
        assert_eq!(store.park(10).await.unwrap(), 0);
        assert_eq!(settle(store, &second[0], Outcome::Ack).await, Settled::Applied);
    });
}

// ---------------------------------------------------------------- from key to key

/// So many messages of each of so many keys, in turns.
async fn queues(store: &PgStore, keys: usize, each: usize) -> Vec<NewMessage> {
    let of = |n: usize| NewMessage::bytes("topic", "x").key(format!("key-{:03}", n % keys)).build().unwrap();
    let messages: Vec<_> = (0..keys * each).map(of).collect();
    for some in messages.chunks(1_000) {
        store.enqueue(some).await.unwrap();
    }
    messages
}

/// As if a claim had just taken long.
async fn from_key_to_key(fixture: &PgFixture) {
    fixture
        .run("insert into outbox_walk (again_at) values (clock_timestamp() + interval '1 hour')".to_owned())
        .await;
}

/// A claim does not walk over all that waits for its turn, and finds everything whose turn it is.
#[test]
fn slow_few_keys_do_not_cost_a_walk() {
    run(async |fixture: &Arc<PgFixture>| {
        let messages = queues(&fixture.store, 20, MANY / 20).await;
        fixture.run("analyze outbox".to_owned()).await;
        // The first one walks over everything, which is remembered.
        let heads = claim(&fixture.store, 50).await;
        assert_eq!(ids(&heads), messages[..20].iter().map(NewMessage::id).collect::<Vec<_>>());
        assert_eq!(fixture.texts("select count(*)::text from outbox_walk").await, ["1"]);
        fixture.run("update outbox_walk set again_at = again_at + interval '1 hour'".to_owned()).await;
        ack_all(&fixture.store, &heads).await;
        let with = claim_cost(fixture, "").await;
        let without = claim_cost(fixture, "delete from outbox_walk").await;
        eprintln!("claim of 50 of 20 keys: {with} buffers, walking over {MANY}: {without}");
        assert!(with * 20 < without, "{with} buffers, walking over all {without}");
        let next = claim(&fixture.store, 50).await;
        assert_eq!(ids(&next), messages[20..40].iter().map(NewMessage::id).collect::<Vec<_>>());
    });
}

/// Walks over everything are few: after one, claims go from key to key for 50 microseconds per entry, many times what an entry
/// takes.
#[test]
fn slow_few_keys_are_seldom_walked_over() {
    run(async |fixture: &Arc<PgFixture>| {
        queues(&fixture.store, 20, MANY / 20).await;
        fixture.run("analyze outbox".to_owned()).await;
        let least = Duration::from_micros(25) * u32::try_from(MANY).unwrap();
        let mut found = Vec::new();
        // A busy machine may keep the test waiting between the walk and the look at the clock: then once more.
        for _ in 0..10 {
            fixture.run("delete from outbox_walk".to_owned()).await;
            let heads = claim(&fixture.store, 50).await;
            let pause = "select extract(epoch from again_at - clock_timestamp())::text from outbox_walk";
            let pause: f64 = fixture.texts(pause).await[0].parse().unwrap();
            if pause >= least.as_secs_f64() {
                return;
            }
            found.push(pause);
            let back: Vec<_> = heads.iter().map(|m| Settlement::new(m.lease(), Outcome::Release)).collect();
            fixture.store.settle(&back).await.unwrap();
        }
        panic!("seconds until the next walk, at least {least:?} in one of ten: {found:?}");
    });
}

/// Whoever goes from key to key takes one message of a key at a time, in order, and each key has its turn, however few
/// messages are asked for.
#[test]
fn from_key_to_key_in_order() {
    run(async |fixture: &Arc<PgFixture>| {
        let messages = queues(&fixture.store, 10, 3).await;
        from_key_to_key(fixture).await;
        let mut delivered: Vec<Message> = Vec::new();
        let keys_of = |messages: &[Message]| -> HashSet<String> {
            messages.iter().filter_map(|message| message.key.clone()).collect()
        };
        for limit in [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 7, 50, 50, 50, 50] {
            let claimed = claim(&fixture.store, limit).await;
            assert_eq!(keys_of(&claimed).len(), claimed.len(), "one of a key at a time");
            ack_all(&fixture.store, &claimed).await;
            delivered.extend(claimed);
            if delivered.len() == 10 {
                assert!(keys_of(&delivered).len() >= 5, "only {:?} had a turn", keys_of(&delivered));
            }
        }
        let keys = keys_of(&delivered);
        assert_eq!(delivered.len(), messages.len());
        for key in keys {
            let of_key = |message: &&NewMessage| message.key() == Some(key.as_str());
            let published: Vec<_> = messages.iter().filter(of_key).map(NewMessage::id).collect();
            let came: Vec<_> =
                delivered.iter().filter(|one| one.key.as_ref() == Some(&key)).map(|one| one.id).collect();
            assert_eq!(came, published, "{key}");
        }
    });
}

/// Nor does going from key to key hide anything: neither what has no key, nor what may not be taken yet, nor what lies far
/// behind what waits.
#[test]
fn from_key_to_key_nothing_is_hidden() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        let held = queues(store, 1, 50).await;
        let first = claim(store, 1).await;
        assert_eq!(first[0].id, held[0].id());
        from_key_to_key(fixture).await;
        let scheduled =
            NewMessage::bytes("topic", "x").key("z").delay(Duration::from_secs(600)).build().unwrap();
        let blocked = NewMessage::bytes("topic", "x").key("z").build().unwrap();
        let plain = plain();
        store.enqueue(&[scheduled, blocked, plain.clone()]).await.unwrap();
        // Whoever holds something is told nothing, and asks again; whoever does not is given what there is.
        assert_eq!(claim(store, 5).await, []);
        let other = store.claim(&request("other", 5)).await.unwrap();
        assert_eq!(ids(&other), [plain.id()]);
        fixture
            .run("update outbox_walk set again_at = clock_timestamp() + interval '1 hour'".to_owned())
            .await;
        ack_all(store, &first).await;
        assert_eq!(ids(&claim(store, 5).await), [held[1].id()]);
    });
}
