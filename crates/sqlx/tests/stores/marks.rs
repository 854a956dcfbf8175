//! Where claims on PostgreSQL begin to walk while what was delivered cannot be removed from the index: that a mark bounds what a claim
//! costs, and hides nothing.
//!
//! Another transaction is open in all of these, so that nothing is removed.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    Birth, Message, MessageId, NewMessage, Outcome, Settled, Store, StoreAdmin, TransactionalStore,
};
use posthaste_sqlx::Postgres;
use posthaste_testkit::Fixture;
use posthaste_testkit::store_suite::run;

use crate::fixture::{Backend, PgFixture};
use crate::leases::{MANY, Tx, ack_all, claim, claim_cost, enqueue, eventually, ids, plain, settle, within};

/// A transaction that is open for so long that nothing that is deleted from now on can be removed.
async fn an_old_transaction(fixture: &PgFixture) -> Tx {
    let mut tx = fixture.begin().await;
    let sql = "set transaction isolation level repeatable read; select count(*) from outbox";
    Postgres::run(&mut tx, sql.to_owned()).await.unwrap();
    tx
}

/// Entries in the index of what is no longer there: so many that walking over them takes far longer than what a mark is made
/// for, on any machine.
async fn traces(fixture: &PgFixture) {
    traces_of(fixture, "now() - interval '1 hour'", 200_000).await;
}

/// So many of what was due then.
async fn traces_of(fixture: &PgFixture, due: &str, count: usize) {
    let fill = format!(
        "insert into outbox (message_id, created_at, due_at, epoch, attempts, lease_losses, state, priority, \
         order_policy, topic, payload, content_type) \
         select gen_random_uuid(), now(), {due}, 0, 0, 0, 0, 0, 0, 't', 'x', 'text/plain' \
         from generate_series(1, {count})"
    );
    fixture.run(fill).await;
    fixture.run("delete from outbox where topic = 't'".to_owned()).await;
}

/// Enqueues and delivers, as a relay would; done messages are deleted.
async fn deliver_many(fixture: &PgFixture) {
    traces(fixture).await;
    let store = fixture.store.keep_done(false);
    for _ in 0..MANY / 1_000 {
        enqueue(&store, 1_000).await;
    }
    loop {
        let claimed = claim(&store, 1_000).await;
        if claimed.is_empty() {
            return;
        }
        ack_all(&store, &claimed).await;
    }
}

/// Claims until a mark is above the time of all that was due before it.
async fn marked_above(fixture: &PgFixture, id: MessageId) {
    let above = format!(
        "select coalesce(bool_or(m.low > o.due_at), false)::text from outbox_mark m, outbox o where o.message_id = '{id}'"
    );
    eventually("claims begin above it", async || {
        assert_eq!(claim(&fixture.store, 1).await, []);
        fixture.texts(&above).await == ["true"]
    })
    .await;
}

/// What was delivered is not walked over again and again while it cannot be removed.
#[test]
fn slow_bound_the_cost_of_a_claim() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        deliver_many(fixture).await;
        enqueue(&fixture.store, 100).await;
        let (mut with, mut without) = (u64::MAX, u64::MAX);
        // From time to time a claim walks from the beginning, so that the cheaper of several counts.
        for _ in 0..5 {
            assert_eq!(claim(&fixture.store, 1).await.len(), 1);
            with = with.min(claim_cost(fixture, "").await);
            without = without.min(claim_cost(fixture, "delete from outbox_mark").await);
        }
        eprintln!("claim of 50 after {MANY}: {with} buffers, without marks {without}");
        assert!(with < 500 && with * 3 < without, "{with} buffers, without marks {without}");
        old.rollback().await.unwrap();
    });
}

/// Nor the traces of a priority that has nothing left, whether others have or not.
#[test]
fn slow_of_what_is_empty() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        traces(fixture).await;
        for worse in [0, 100] {
            let later = || NewMessage::bytes("topic", "x").priority(5).build().unwrap();
            let messages: Vec<NewMessage> = (0..worse).map(|_| later()).collect();
            fixture.store.enqueue(&messages).await.unwrap();
            let (mut with, mut without) = (u64::MAX, u64::MAX);
            for _ in 0..5 {
                claim(&fixture.store, 1).await;
                with = with.min(claim_cost(fixture, "").await);
                without = without.min(claim_cost(fixture, "delete from outbox_mark").await);
            }
            eprintln!("claim of 50, {worse} of a worse priority: {with} buffers, without marks {without}");
            assert!(with * 2 < without, "{worse}: {with} buffers, without marks {without}");
        }
        old.rollback().await.unwrap();
    });
}

/// What is published after a mark was made is above it, whatever its priority, and comes at once.
#[test]
fn slow_hide_nothing_new() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        traces(fixture).await;
        assert_eq!(claim(&fixture.store, 1).await, []);
        assert_eq!(fixture.texts("select count(*)::text from outbox_mark").await, ["1"]);
        for priority in [-1, 0, 5] {
            let message = NewMessage::bytes("topic", "x").priority(priority).build().unwrap();
            fixture.store.enqueue(std::slice::from_ref(&message)).await.unwrap();
            assert_eq!(ids(&claim(&fixture.store, 1).await), [message.id()], "priority {priority}");
        }
        old.rollback().await.unwrap();
    });
}

/// Leaves it to what the mark knows, when claims walk from the beginning again: not at once, and if it knows nothing, in an hour.
async fn for_an_hour(fixture: &PgFixture) {
    let sql = "update outbox_mark set until = now() + interval '1 hour', again_at = now() + interval '300 milliseconds'";
    fixture.run(sql.to_owned()).await;
}

/// Claims until one of this message comes.
async fn comes(fixture: &PgFixture, what: &str, id: MessageId) -> Message {
    let came = RefCell::new(None);
    eventually(what, async || {
        let claimed = claim(&fixture.store, 1).await.pop();
        let is_it = claimed.as_ref().is_some_and(|message| message.id == id);
        came.replace(claimed);
        is_it
    })
    .await;
    came.into_inner().unwrap()
}

/// What was committed late is below the mark, and delivered all the same: because somebody's transaction has ended, and not because
/// the mark is old. Others of the same age that are still open do not hide it.
#[test]
fn slow_do_not_hide_what_is_committed_late() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let (mut tx, message) = (fixture.begin().await, plain());
            fixture.store.insert(&mut *tx, std::slice::from_ref(&message), Birth::Ready).await.unwrap();
            open.push((tx, message.id()));
        }
        let due = within(&mut open[2].0, "select due_at::text from outbox").await.remove(0);
        deliver_many(fixture).await;
        let above = format!("select count(*)::text from outbox_mark where low > '{due}'");
        for ends_first in [1, 0, 0] {
            eventually("claims begin above it", async || {
                assert_eq!(claim(&fixture.store, 1).await, []);
                fixture.texts(&above).await == ["1"]
            })
            .await;
            let (tx, message) = open.remove(ends_first);
            // The next claim moves the mark.
            traces_of(fixture, "now()", 3_000).await;
            for_an_hour(fixture).await;
            tx.commit().await.unwrap();
            comes(fixture, "what was committed late", message).await;
        }
        old.rollback().await.unwrap();
    });
}

/// Nor if nobody has begun after it, and ended: snapshots do not list such a transaction.
#[test]
fn slow_know_the_newest_transaction() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        traces(fixture).await;
        let (mut tx, late) = (fixture.begin().await, plain());
        fixture.store.insert(&mut *tx, std::slice::from_ref(&late), Birth::Ready).await.unwrap();
        let earlier = "update outbox set due_at = due_at - interval '1 minute'";
        Postgres::run(&mut tx, earlier.to_owned()).await.unwrap();
        assert_eq!(claim(&fixture.store, 1).await, []);
        for_an_hour(fixture).await;
        tx.commit().await.unwrap();
        comes(fixture, "what was committed late", late.id()).await;
        old.rollback().await.unwrap();
    });
}

/// Those who write for a moment, as many do all the time, do not make claims walk from the beginning.
#[test]
fn slow_hold_while_others_write() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        deliver_many(fixture).await;
        // How often it was noted who writes, since a claim last walked from the beginning.
        let (notes, last) = (Cell::new(0), Cell::new(String::new()));
        eventually("it holds", async || {
            fixture.run("update outbox_mark set until = 'infinity', again_at = '-infinity'".to_owned()).await;
            traces_of(fixture, "now()", 3_000).await;
            let mut tx = fixture.begin().await;
            fixture.store.insert(&mut *tx, &[plain()], Birth::Ready).await.unwrap();
            // Somebody who began later has ended: only then do snapshots list the first.
            fixture.run("select pg_current_xact_id()".to_owned()).await;
            ack_all(&fixture.store, &claim(&fixture.store, 10).await).await;
            tx.commit().await.unwrap();
            let mut mark = fixture.texts("select until || '|' || seen from outbox_mark").await;
            let (until, seen) =
                mark.pop().unwrap().split_once('|').map(|(u, s)| (u.to_owned(), s.to_owned())).unwrap();
            let is_noted = last.replace(seen.clone()) != seen;
            notes.set(if until == "infinity" { notes.get() + usize::from(is_noted) } else { 0 });
            notes.get() >= 3
        })
        .await;
        old.rollback().await.unwrap();
    });
}

/// What nobody could know of is found after some time: here, what somebody wrote with a due time that is long past.
#[test]
fn slow_hide_nothing_for_ever() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        deliver_many(fixture).await;
        let past = plain();
        fixture.store.enqueue(std::slice::from_ref(&past)).await.unwrap();
        fixture.run("update outbox set due_at = due_at - interval '1 hour'".to_owned()).await;
        comes(fixture, "what was due long ago", past.id()).await;
        old.rollback().await.unwrap();
    });
}

/// What was taken before there was a mark stays its holder's, and when it is released, it comes again.
#[test]
fn slow_do_not_hide_what_is_released() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        enqueue(&fixture.store, 2).await;
        let held = claim(&fixture.store, 2).await;
        deliver_many(fixture).await;
        marked_above(fixture, held[0].id).await;
        for_an_hour(fixture).await;
        assert_eq!(fixture.store.stats().await.unwrap().leased.value, 2);
        assert_eq!(settle(&fixture.store, &held[0], Outcome::Release).await, Settled::Applied);
        let again = comes(fixture, "what was released", held[0].id).await;
        assert!(again.epoch > held[0].epoch);
        assert_eq!(settle(&fixture.store, &held[1], Outcome::Ack).await, Settled::Applied);
        old.rollback().await.unwrap();
    });
}

/// A mark stays behind the present, so that what is committed a little late is above it.
#[test]
fn slow_stay_behind() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        deliver_many(fixture).await;
        let ahead = "select count(*)::text from outbox_mark where low > clock_timestamp() - interval '700 milliseconds'";
        for _ in 0..20 {
            claim(&fixture.store, 1).await;
            assert_eq!(fixture.texts(ahead).await, ["0"]);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(fixture.texts("select count(*)::text from outbox_mark").await, ["1"]);
        old.rollback().await.unwrap();
    });
}

/// Once what was delivered has been removed, nothing remains of the mark.
#[test]
fn slow_go_away() {
    run(async |fixture: &Arc<PgFixture>| {
        let old = an_old_transaction(fixture).await;
        deliver_many(fixture).await;
        assert_eq!(fixture.texts("select count(*)::text from outbox_mark").await, ["1"]);
        old.rollback().await.unwrap();
        eventually("the mark is gone", async || {
            // Others may have transactions open in this database, too.
            fixture.run("vacuum outbox".to_owned()).await;
            assert_eq!(claim(&fixture.store, 1).await, []);
            fixture.texts("select count(*)::text from outbox_mark").await == ["0"]
        })
        .await;
    });
}
