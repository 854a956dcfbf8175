//! Cursors of PostgreSQL, where claims begin to read: they bound the cost of a claim with any backlog in front, and
//! hide no message.
//!
//! C1, C3 and C4 of the claim design. Costs are counted in buffers; an old transaction keeps delivered messages from
//! being removed.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Birth, Change, Filter, Message, MessageId, NewMessage, Outcome, Retention, Settled, Settlement, Store,
    StoreAdmin, TransactionalStore,
};
use posthaste_sqlx::Postgres;
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;
use serde_json::Value;

use crate::fixture::{Backend, PgFixture};
use crate::leases::{MANY, Tx, ack_all, claim, enqueue, ids, plain, queues, settle, within};

/// A transaction that is open for so long that nothing that is deleted from now on can be removed.
async fn an_old_transaction(fixture: &PgFixture) -> Tx {
    let mut tx = fixture.begin().await;
    let sql = "set transaction isolation level repeatable read; select count(*) from outbox";
    Postgres::run(&mut tx, sql.to_owned()).await.unwrap();
    tx
}

/// Messages of a topic, as one transaction of a publisher writes them.
async fn fill(fixture: &PgFixture, topic: &str, count: usize) {
    let fill = format!(
        "insert into outbox (message_id, created_at, due_at, epoch, attempts, lease_losses, state, priority, \
         order_policy, topic, payload, content_type) \
         select gen_random_uuid(), now(), now(), 0, 0, 0, 0, 0, 0, '{topic}', 'x', 'text/plain' \
         from generate_series(1, {count})"
    );
    fixture.run(fill).await;
}

/// Delivered messages that cannot be removed from the indexes.
async fn traces(fixture: &PgFixture, count: usize) {
    fill(fixture, "delivered", count).await;
    fixture.run("delete from outbox where topic = 'delivered'".to_owned()).await;
}

/// Delivers some messages, so that the cursor moves.
async fn settle_down(fixture: &PgFixture) {
    let store = fixture.store.keep_done(false);
    for _ in 0..200 {
        enqueue(&store, 1).await;
        let claimed = claim(&store, 1).await;
        ack_all(&store, &claimed).await;
    }
}

/// Buffers of a claim of which nothing remains: the least of some in one session, because the first ones load catalogues and plan.
async fn least_cost(fixture: &PgFixture) -> u64 {
    let mut least = u64::MAX;
    let mut session = fixture.users.acquire().await.unwrap();
    for _ in 0..6 {
        Postgres::run(&mut session, "begin".to_owned()).await.unwrap();
        let explain = "explain (analyze, buffers, format json) select * from claim('w', 50)".to_owned();
        let plan = Postgres::texts(&mut session, explain).await.unwrap().remove(0);
        Postgres::run(&mut session, "rollback".to_owned()).await.unwrap();
        let plan: Value = serde_json::from_str(&plan).unwrap();
        let of = |kind: &str| plan[0]["Plan"][format!("Shared {kind} Blocks")].as_u64().unwrap();
        least = least.min(of("Hit") + of("Read"));
    }
    least
}

async fn empty_cost(fixture: &PgFixture) -> u64 {
    enqueue(&fixture.store, 50).await;
    let cost = least_cost(fixture).await;
    let all = claim(&fixture.store, 50).await;
    ack_all(&fixture.store.keep_done(false), &all).await;
    cost
}

/// Asserts that a claim costs as much as with nothing in front, and a look-up for each transaction that was open when the cursor
/// moved, including other tests'.
async fn bounded(fixture: &PgFixture, what: &str, empty: u64) {
    let cost = least_cost(fixture).await;
    let open = "select (cardinality(segments) + 3 * cardinality(lease_late))::text from outbox_cursor order by id desc limit 1";
    let open: u64 = fixture.texts(open).await.first().map_or(0, |open| open.parse().unwrap());
    eprintln!("{what}: {cost} buffers, {empty} with nothing in front, {open} looks");
    assert!(
        cost <= empty * 13 / 10 + 200 + 4 * open,
        "{what}: {cost} buffers, {empty} with nothing in front, {open} looks"
    );
}

/// C3: delivered messages that cannot be removed yet.
#[test]
fn slow_delivered_ones_cost_nothing() {
    run(async |fixture: &Arc<PgFixture>| {
        let empty = empty_cost(fixture).await;
        let old = an_old_transaction(fixture).await;
        traces(fixture, 10 * MANY).await;
        enqueue(&fixture.store, 100).await;
        settle_down(fixture).await;
        bounded(fixture, "delivered", empty).await;
        old.rollback().await.unwrap();
    });
}

/// C3: paused messages, then resumed.
#[test]
fn slow_paused_ones_cost_nothing() {
    run(async |fixture: &Arc<PgFixture>| {
        let empty = empty_cost(fixture).await;
        fill(fixture, "paused", 10 * MANY).await;
        fixture.store.pause("paused", "ada", "test").await.unwrap();
        enqueue(&fixture.store, 100).await;
        settle_down(fixture).await;
        bounded(fixture, "paused", empty).await;
        assert!(claim(&fixture.store, 10).await.iter().all(|message| message.topic != "paused"));
        fixture.store.resume("paused").await.unwrap();
        assert!(claim(&fixture.store, 10).await.iter().all(|message| message.topic == "paused"));
    });
}

/// C3: what waits behind others of a few keys; and each key goes on when its first one is done.
#[test]
fn slow_blocked_ones_cost_nothing() {
    run(async |fixture: &Arc<PgFixture>| {
        let empty = empty_cost(fixture).await;
        let messages = queues(&fixture.store, 20, MANY / 20).await;
        fixture.run("analyze outbox".to_owned()).await;
        let heads = claim(&fixture.store, 50).await;
        assert_eq!(ids(&heads), messages[..20].iter().map(NewMessage::id).collect::<Vec<_>>());
        enqueue(&fixture.store, 100).await;
        settle_down(fixture).await;
        bounded(fixture, "blocked", empty).await;
        ack_all(&fixture.store, &heads).await;
        let next = claim(&fixture.store, 20).await;
        assert_eq!(ids(&next), messages[20..40].iter().map(NewMessage::id).collect::<Vec<_>>());
    });
}

/// Moves the cursor past so many delivered ones.
async fn move_the_cursor(fixture: &PgFixture) {
    traces(fixture, MANY).await;
    let moved = "select coalesce(max(id), 0)::text from outbox_cursor";
    let before = fixture.texts(moved).await;
    assert_eq!(claim(&fixture.store, 1).await, []);
    assert_ne!(fixture.texts(moved).await, before, "the cursor has not moved");
}

/// The next claim has exactly these.
async fn comes(fixture: &PgFixture, what: &str, expected: &[MessageId]) -> Vec<Message> {
    let claimed = claim(&fixture.store, 10).await;
    assert_eq!(ids(&claimed), expected, "{what}");
    claimed
}

/// C4: transactions that were open when the cursor moved, some of them before it first did, and commit late.
#[test]
fn slow_late_commits_are_found() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let mut late = Vec::new();
        for n in 0..20 {
            let mut tx = fixture.begin().await;
            let message = plain();
            fixture.store.insert(&mut *tx, std::slice::from_ref(&message), Birth::Ready).await.unwrap();
            late.push((message.id(), tx));
            if n % 5 == 0 {
                move_the_cursor(fixture).await;
            }
        }
        for (id, tx) in late.into_iter().rev() {
            tx.commit().await.unwrap();
            let claimed = comes(fixture, "committed late", &[id]).await;
            ack_all(&fixture.store, &claimed).await;
        }
        old.rollback().await.unwrap();
    });
}

/// C4: messages of a claim whose transaction is rolled back, although the cursor has moved past them.
#[test]
fn slow_claims_that_are_rolled_back_are_found() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let all = enqueue(&fixture.store, 3).await;
        let mut tx = fixture.begin().await;
        assert_eq!(within(&mut tx, "select seq::text from claim('other', 3)").await.len(), 3);
        move_the_cursor(fixture).await;
        tx.rollback().await.unwrap();
        comes(fixture, "rolled back", &all).await;
        old.rollback().await.unwrap();
    });
}

/// C2: leases of transactions that were open while the cursor moved, and commit late: their messages are not given out again.
#[test]
fn slow_late_leases_are_seen() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let mut claimers = Vec::new();
        for n in 0..3 {
            enqueue(&fixture.store, 3).await;
            let mut tx = fixture.begin().await;
            let claim = format!("select seq::text || ',' || epoch from claim('other-{n}', 3)");
            let held = within(&mut tx, &claim).await;
            assert_eq!(held.len(), 3);
            claimers.push((tx, held));
            move_the_cursor(fixture).await;
        }
        for (mut tx, held) in claimers {
            for lease in &held {
                let renewal = format!("select renew({lease})::text");
                assert_eq!(within(&mut tx, &renewal).await, ["0"]);
            }
            tx.commit().await.unwrap();
            assert_eq!(claim(&fixture.store, 10).await, [], "they are leased");
            let mut tx = fixture.begin().await;
            for lease in &held {
                assert_eq!(within(&mut tx, &format!("select ack({lease})::text")).await, ["0"]);
            }
            tx.commit().await.unwrap();
        }
        old.rollback().await.unwrap();
    });
}

/// C4: what comes back from a lease that the cursor has passed, by a release, a retry, a reap or a requeue.
#[test]
fn slow_what_comes_back_is_found() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let all = enqueue(&fixture.store, 3).await;
        let held = claim(&fixture.store, 3).await;
        move_the_cursor(fixture).await;
        assert_eq!(settle(&fixture.store, &held[0], Outcome::Release).await, Settled::Applied);
        comes(fixture, "released", &all[..1]).await;
        let failed = Outcome::Fail { failure: posthaste_core::Failure::permanent("broken") };
        assert_eq!(settle(&fixture.store, &held[1], failed).await, Settled::Applied);
        let requeue = Change::new(Filter::default(), "ada", "mended").unwrap();
        assert_eq!(fixture.store.requeue(&requeue).await.unwrap(), all[1..2]);
        comes(fixture, "requeued", &all[1..2]).await;
        fixture.advance(Duration::from_secs(10_000)).await;
        assert_eq!(fixture.store.reap(10).await.unwrap().ready, 3);
        for _ in 0..3 {
            assert_eq!(claim(&fixture.store, 10).await.len(), 1, "suspects come one by one");
        }
        old.rollback().await.unwrap();
    });
}

/// C4: the next one of a key, which the cursor has passed and another session has locked when its turn comes. Any claim finds it.
#[test]
fn slow_a_locked_next_one_is_found() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let messages = queues(&fixture.store, 1, 3).await;
        for (n, in_sql) in [(1, false), (2, true)] {
            let held = claim(&fixture.store, 1).await;
            move_the_cursor(fixture).await;
            let mut tx = fixture.begin().await;
            let next = held[0].item.get() + 1;
            within(&mut tx, &format!("select '' from outbox where seq = {next} for update")).await;
            ack_all(&fixture.store, &held).await;
            assert_eq!(claim(&fixture.store, 10).await, [], "it is locked");
            tx.rollback().await.unwrap();
            if in_sql {
                let mut tx = fixture.begin().await;
                assert_eq!(
                    within(&mut tx, "select seq::text from claim('sql', 9)").await,
                    [next.to_string()]
                );
                tx.rollback().await.unwrap();
            } else {
                let next = comes(fixture, "its turn", &[messages[n].id()]).await;
                assert_eq!(settle(&fixture.store, &next[0], Outcome::Release).await, Settled::Applied);
            }
        }
        old.rollback().await.unwrap();
    });
}

/// C4: the next one of a key, which the cursor has passed, once the dead one in front is pruned, with an archive or without.
#[test]
fn slow_what_waits_for_a_dead_one_is_found() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let store = &fixture.store;
        for retention in [Retention::done(Duration::ZERO), Retention::done(Duration::ZERO).archive()] {
            let messages = queues(store, 1, 3).await;
            let head = claim(store, 1).await.remove(0);
            move_the_cursor(fixture).await;
            let failed = Outcome::Fail { failure: posthaste_core::Failure::permanent("broken") };
            assert_eq!(settle(store, &head, failed).await, Settled::Applied);
            move_the_cursor(fixture).await;
            assert_eq!(store.prune(&retention.dead(Duration::ZERO), 10).await.unwrap(), 1);
            for message in &messages[1..] {
                let next = comes(fixture, "behind a dead one", &[message.id()]).await;
                ack_all(&store.keep_done(false), &next).await;
            }
        }
        old.rollback().await.unwrap();
    });
}

/// C1: a session that claims and leaves its transaction open holds only its own messages; the others drain the rest, each claim
/// as cheap as without it.
#[test]
fn slow_an_idle_claim_holds_up_no_other() {
    run(async |fixture: &Arc<PgFixture>| {
        let empty = empty_cost(fixture).await;
        fill(fixture, "t", MANY).await;
        let mut idle = fixture.begin().await;
        assert_eq!(within(&mut idle, "select seq::text from claim('idle', 10)").await.len(), 10);
        let mut drained = 0;
        while drained < MANY - 20 {
            let claimed = claim(&fixture.store, 100).await;
            assert!(!claimed.is_empty(), "{drained} of {MANY}");
            drained += claimed.len();
            let acks: Vec<_> = claimed.iter().map(|m| Settlement::new(m.lease(), Outcome::Ack)).collect();
            fixture.store.keep_done(false).settle(&acks).await.unwrap();
        }
        enqueue(&fixture.store, 100).await;
        settle_down(fixture).await;
        bounded(fixture, "beside an idle claim", empty).await;
        idle.rollback().await.unwrap();
    });
}

/// A cursor that a restored dump brought hides nothing, neither while this server has fewer transactions nor later.
#[test]
fn a_restored_cursor_is_not_used() {
    run(async |fixture: &Arc<PgFixture>| {
        let all = enqueue(&fixture.store, 2).await;
        for next_xid in ["1", "9000000000000000000"] {
            let cursor = format!(
                "insert into outbox_cursor (born, filter, next_xid, lease_from, lease_late, segments) \
                 values ('3', '', '{next_xid}', '{next_xid}', '{{}}', '{{}}')"
            );
            fixture.run(cursor).await;
            let claimed = comes(fixture, "beside a restored cursor", &all).await;
            for message in &claimed {
                assert_eq!(settle(&fixture.store, message, Outcome::Release).await, Settled::Applied);
            }
        }
    });
}

/// The first and the last priority there is have a place in a cursor, too.
#[test]
fn slow_the_first_and_the_last_priority() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        for priority in [i16::MIN, i16::MAX, 0] {
            let message = NewMessage::bytes("t", "x").priority(priority).build().unwrap();
            fixture.store.enqueue(std::slice::from_ref(&message)).await.unwrap();
            let held = comes(fixture, "its priority", &[message.id()]).await;
            move_the_cursor(fixture).await;
            assert_eq!(settle(&fixture.store, &held[0], Outcome::Release).await, Settled::Applied);
            let held = comes(fixture, "its priority", &[message.id()]).await;
            ack_all(&fixture.store.keep_done(false), &held).await;
        }
        old.rollback().await.unwrap();
    });
}

/// C4: the next claim of any client finds a message behind many due ones that cannot be taken.
#[test]
fn due_ones_behind_others_are_found() {
    run(async |fixture: &Arc<PgFixture>| {
        fixture.store.pause("paused", "ada", "test").await.unwrap();
        fill(fixture, "paused", 1_000).await;
        let all = enqueue(&fixture.store, 2).await;
        let later = "update outbox set born = null, due_at = now() + seq * interval '1 microsecond'";
        fixture.run(later.to_owned()).await;
        let mut tx = fixture.begin().await;
        assert_eq!(within(&mut tx, "select seq::text from claim('sql', 1)").await.len(), 1);
        comes(fixture, "behind paused ones", &all[1..]).await;
        tx.rollback().await.unwrap();
    });
}

/// P2: in a key with a long past that cannot be removed, a claim reads that past a few times, not once for each message that waits.
#[test]
fn slow_a_long_past_of_a_key() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        fill(fixture, "delivered", MANY).await;
        fixture.run("update outbox set key = 'key-000'".to_owned()).await;
        fixture.run("delete from outbox".to_owned()).await;
        queues(&fixture.store, 1, 500).await;
        let cost = least_cost(fixture).await;
        assert!(cost <= 8 * MANY as u64, "{cost} buffers with {MANY} delivered and 500 that wait");
        old.rollback().await.unwrap();
    });
}
