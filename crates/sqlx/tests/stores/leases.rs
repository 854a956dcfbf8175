//! PostgreSQL's leases, which are rows of their own: lock waits, the messages of a lease, and the turns of keys.
//!
//! Nothing here repeats the conformance suite. Cases that are about two at a time hold one of them in an open
//! transaction, so that they never depend on luck.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use posthaste_core::{
    Birth, Change, ClaimRequest, Enqueued, Failure, Filter, Lease, Message, MessageId, NewMessage,
    OrderPolicy, Outcome, Settled, Settlement, State, Store, StoreAdmin, TransactionalStore, WorkerId,
};
use posthaste_sqlx::{PgStore, Postgres};
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;
use sqlx_core::transaction::Transaction;

use crate::fixture::{Backend, PgFixture};

/// Longer than any case takes.
const LEASE: Duration = Duration::from_secs(600);
/// How long a blocked call is observed.
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

/// The result of a task that must wait until the transaction is committed.
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

// ---------------------------------------------------------------- two at a time

/// C1: a claim that is not committed yet keeps its messages to itself, and nothing else.
#[test]
fn a_claim_passes_by_another() {
    run(async |fixture: &Arc<PgFixture>| {
        let all = enqueue(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let taken = within(&mut tx, "select seq::text from claim('other', 2)").await;
        assert_eq!(taken.len(), 2);
        assert_eq!(ids(&claim(&fixture.store, 10).await), all[2..]);
        tx.rollback().await.unwrap();
        assert_eq!(ids(&claim(&fixture.store, 10).await), all[..2]);
    });
}

/// A message that is being claimed cannot be buried.
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

/// A message that is being claimed does not expire.
#[test]
fn an_expiry_passes_by_a_claim() {
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
        assert_eq!(fixture.store.expire(10).await.unwrap().messages, 0);
        tx.commit().await.unwrap();
        assert_eq!(fixture.store.expire(10).await.unwrap().messages, 0, "it is leased");
    });
}

/// Acks end exactly the messages they name, also with others in between; the lease goes with its last message.
#[test]
fn what_lies_between_stays_leased() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = fixture.store.keep_done(false);
        enqueue(&store, 9).await;
        let all = claim(&store, 9).await;
        let leased = async || {
            let filter = Filter { state: Some(State::Leased), ..Filter::default() };
            let records = store.list(&filter, None, 10).await.unwrap().records;
            records.iter().map(|record| record.message.item.get() - all[0].item.get()).collect::<Vec<_>>()
        };
        ack_all(&store, &[all[0].clone(), all[1].clone()]).await;
        assert_eq!(leased().await, [2, 3, 4, 5, 6, 7, 8], "neighbours");
        ack_all(&store, &[all[3].clone(), all[5].clone()]).await;
        assert_eq!(leased().await, [2, 4, 6, 7, 8], "others");
        assert!(claim(&store, 9).await.is_empty(), "no other claim gets them");
        // One of them is acked twice, and another is gone: the acked messages end.
        let sql = format!(
            "select settled::text from settle('{{{0},{0},{1}}}', '{{{2},{2},{2}}}', '{{0,0,0}}', '{{0,0,0}}', '{{null,null,null}}', \
             '{{null,null,null}}', '{{9,9,9}}', false)",
            all[6].item.get(),
            all[5].item.get(),
            all[0].epoch
        );
        assert_eq!(fixture.texts(&sql).await.last().unwrap(), "2", "it was gone");
        assert_eq!(leased().await, [2, 4, 7, 8], "one of three");
        ack_all(&store, &[all[2].clone(), all[4].clone(), all[7].clone(), all[8].clone()]).await;
        assert_eq!(fixture.texts("select items::text from outbox_lease").await, Vec::<String>::new());
    });
}

/// C1: neither a renewal nor a release waits for a claim whose transaction stays open.
#[test]
fn renewals_and_releases_pass_by_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 2).await;
        let mut tx = fixture.begin().await;
        assert_eq!(within(&mut tx, "select seq::text from claim('other', 1)").await.len(), 1);
        assert_eq!(fixture.store.renew(&[held[0].lease()], LEASE).await.unwrap(), [Settled::Applied]);
        assert_eq!(settle(&fixture.store, &held[1], Outcome::Release).await, Settled::Applied);
        assert_eq!(ids(&claim(&fixture.store, 10).await), [held[1].id]);
        tx.rollback().await.unwrap();
    });
}

/// An ack does not wait for a renewal of the same lease, by the same worker's heartbeat say, and is not lost by it.
#[test]
fn an_ack_during_a_renewal() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let renewal = format!("select renew({}, {})::text", held[0].item.get(), held[0].epoch);
        assert_eq!(within(&mut tx, &renewal).await, ["0"]);
        assert_eq!(settle(&fixture.store, &held[0], Outcome::Ack).await, Settled::Applied);
        tx.commit().await.unwrap();
        ack_all(&fixture.store, &held[1..]).await;
        fixture.advance(2 * LEASE).await;
        assert_eq!(fixture.store.reap(10).await.unwrap().ready, 0);
        assert_eq!(fixture.texts("select items::text from outbox_lease").await, Vec::<String>::new());
    });
}

/// Stores a message that is leased at once.
async fn born(fixture: &PgFixture) -> Lease {
    let mut tx = fixture.begin().await;
    let worker = WorkerId::new("w").unwrap();
    let birth = Birth::Leased { worker: &worker, lease: LEASE };
    let stored = fixture.store.insert(&mut *tx, &[plain()], birth).await.unwrap();
    tx.commit().await.unwrap();
    let Enqueued::New { lease: Some(lease), .. } = stored[0] else { panic!("{stored:?}") };
    lease
}

/// A lease that has run out and is just being renewed stays with its holder.
#[test]
fn a_reap_passes_by_a_renewal() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        let leases = [claim(store, 1).await[0].lease(), born(fixture).await];
        for _ in 0..2 {
            fixture.advance(2 * LEASE).await;
            let mut tx = fixture.begin().await;
            for lease in leases {
                let renewal = format!("select renew({}, {})::text", lease.item.get(), lease.epoch);
                assert_eq!(within(&mut tx, &renewal).await, ["0"]);
            }
            assert_eq!(store.reap(10).await.unwrap().ready, 0);
            tx.commit().await.unwrap();
            assert_eq!(store.reap(10).await.unwrap().ready, 0);
        }
        assert_eq!(store.renew(&leases, LEASE).await.unwrap(), [Settled::Applied; 2]);
    });
}

/// A message that was stored leased, and whose lease has run out, may be on its way to another worker while its row
/// is locked.
#[test]
fn a_renewal_does_not_take_from_a_reap() {
    run(async |fixture: &Arc<PgFixture>| {
        let living = born(fixture).await;
        let mut tx = fixture.begin().await;
        within(&mut tx, "select seq::text from outbox for update").await;
        assert_eq!(
            fixture.store.renew(&[living], LEASE).await.unwrap(),
            [Settled::Applied],
            "it has not run out"
        );
        tx.rollback().await.unwrap();
        let lease = born(fixture).await;
        fixture.advance(2 * LEASE).await;
        let mut tx = fixture.begin().await;
        assert_eq!(within(&mut tx, "select ready::text from reap()").await, ["2"]);
        assert_eq!(fixture.store.renew(&[lease], LEASE).await.unwrap(), [Settled::Lost]);
        tx.commit().await.unwrap();
        assert_eq!(fixture.store.renew(&[lease], LEASE).await.unwrap(), [Settled::Lost]);
    });
}

fn abandon() -> Outcome {
    let failure = Failure::business("no");
    Outcome::Abandon { delay: Duration::ZERO, failure, max_attempts: 5, max_age: None }
}

/// C2: a settlement that waits for its message's row while the lease runs out, and the next holder comes and goes, is lost.
#[test]
fn a_settlement_that_waited_too_long_is_lost() {
    run(async |fixture: &Arc<PgFixture>| {
        for (keep_done, outcome) in
            [(true, Outcome::Ack), (false, Outcome::Ack), (true, Outcome::Release), (true, abandon())]
        {
            let store = fixture.store.keep_done(keep_done);
            enqueue(&store, 1).await;
            let held = claim(&store, 1).await.remove(0);
            fixture.advance(2 * LEASE).await;
            let mut tx = fixture.begin().await;
            assert_eq!(within(&mut tx, "select ready::text from reap()").await, ["1"]);
            let next = within(&mut tx, "select seq || ', ' || epoch from claim('next', 1)").await.remove(0);
            assert_eq!(within(&mut tx, &format!("select release({next})::text")).await, ["0"]);
            let settlement = Settlement::new(held.lease(), outcome);
            let late = async move { store.settle(&[settlement]).await.unwrap().settled };
            assert_eq!(once_committed(tx, late).await, [Settled::Lost]);
            let again = claim(&fixture.store, 1).await;
            assert_eq!(ids(&again), [held.id]);
            ack_all(&fixture.store, &again).await;
        }
    });
}

/// Of two renewals of one lease at a time, of which the first keeps a part, both keep it.
#[test]
fn two_renewals_at_once() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let renewal = format!("select renew({}, {})::text", held[0].item.get(), held[0].epoch);
        assert_eq!(within(&mut tx, &renewal).await, ["0"]);
        let (store, leases) = (fixture.store.clone(), [held[0].lease(), held[1].lease()]);
        let renewed = once_committed(tx, async move { store.renew(&leases, LEASE).await.unwrap() }).await;
        assert_eq!(renewed, [Settled::Applied; 2]);
        ack_all(&fixture.store, &held).await;
    });
}

/// A released message is free, also if a renewal of a part has just split its lease.
#[test]
fn a_release_beside_a_partial_renewal() {
    run(async |fixture: &Arc<PgFixture>| {
        let all = enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        let renewal = format!("select renew({}, {})::text", held[0].item.get(), held[0].epoch);
        assert_eq!(within(&mut tx, &renewal).await, ["0"]);
        let releases: Vec<_> = held.iter().map(|m| Settlement::new(m.lease(), Outcome::Release)).collect();
        let store = fixture.store.clone();
        let released =
            once_committed(tx, async move { store.settle(&releases).await.unwrap().settled }).await;
        assert_eq!(released, [Settled::Applied; 3]);
        assert_eq!(ids(&claim(&fixture.store, 10).await), all);
    });
}

/// What its holder is just giving back is not lost.
#[test]
fn a_reap_passes_by_a_settlement() {
    run(async |fixture: &Arc<PgFixture>| {
        let store = &fixture.store;
        enqueue(store, 1).await;
        let held = claim(store, 1).await;
        let born = born(fixture).await;
        fixture.advance(2 * LEASE).await;
        let mut tx = fixture.begin().await;
        for lease in [held[0].lease(), born] {
            let release = format!("select release({}, {})::text", lease.item.get(), lease.epoch);
            assert_eq!(within(&mut tx, &release).await, ["0"]);
        }
        let (reaper, acker) = (store.clone(), tx);
        let reaped = tokio::spawn(async move { reaper.reap(10).await.unwrap() });
        tokio::time::sleep(A_WHILE).await;
        acker.commit().await.unwrap();
        assert_eq!(reaped.await.unwrap().ready, 0);
        assert_eq!(fixture.texts("select sum(lease_losses)::text from outbox").await, ["0"]);
    });
}

/// Messages that the reaper has begun to take back cannot be released any more, and the other way round.
#[test]
fn a_settlement_waits_for_a_reap() {
    run(async |fixture: &Arc<PgFixture>| {
        enqueue(&fixture.store, 1).await;
        let epoch = claim(&fixture.store, 1).await[0].epoch;
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
        let released =
            Postgres::texts(&mut tx, format!("select release(seq, {epoch})::text from outbox")).await;
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
        // An ack that leaves others behind it leaves the lease as it is.
        let at = |n: usize| held[n].item.get();
        assert_eq!(fixture.texts(items).await, [format!("{}-{} {}-{}", at(0), at(0) + 1, at(4), at(5) + 1)]);
        // A message that was deleted by hand has no holder, for ever.
        fixture.run(format!("delete from outbox where seq = {}", held[5].item.get())).await;
        fixture.advance(2 * LEASE).await;
        assert_eq!(store.reap(10).await.unwrap().ready, 1);
        assert_eq!(fixture.texts(items).await, Vec::<String>::new());
    });
}

/// Of a lease, only the renewed messages are kept.
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

/// A batch of two workers' messages names each one's worker.
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

/// Messages in a lease are not taken again, although messages around them are.
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

/// Where done messages are deleted, guessing the next epoch deletes nothing.
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

// ---------------------------------------------------------------- keys

/// One message of a key at a time, in order, and each key has its turn, however few messages are asked for.
#[test]
fn keys_take_turns() {
    run(async |fixture: &Arc<PgFixture>| {
        let messages = queues(&fixture.store, 10, 3).await;
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

/// So many messages of each of so many keys, in turns.
pub async fn queues(store: &PgStore, keys: usize, each: usize) -> Vec<NewMessage> {
    let of = |n: usize| NewMessage::bytes("topic", "x").key(format!("key-{:03}", n % keys)).build().unwrap();
    let messages: Vec<_> = (0..keys * each).map(of).collect();
    for some in messages.chunks(1_000) {
        store.enqueue(some).await.unwrap();
    }
    messages
}
