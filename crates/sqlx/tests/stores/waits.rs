//! Calls that had to wait for another session: the time after the wait counts. A lease that has run out when it is granted
//! would lose its message for no fault of any worker.

use std::time::{Duration, SystemTime};

use posthaste_core::{
    ClaimRequest, Message, NewMessage, Outcome, Record, Settled, Settlement, Store, StoreAdmin, WorkerId,
};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, SqlFixture};

/// How long a call is kept waiting, at least, and for how long it leases or defers.
const WAIT: Duration = Duration::from_millis(300);
const SPAN: Duration = Duration::from_millis(200);

fn request() -> ClaimRequest {
    ClaimRequest::new(WorkerId::new("w").unwrap()).lease(SPAN)
}

/// Lets the call wait for a transaction that holds something, and answers when that ended, by the database's clock.
async fn behind<D: Backend>(
    fixture: &SqlFixture<D>,
    hold: &str,
    call: impl Future<Output = ()> + Send + 'static,
) -> SystemTime {
    let mut holder = fixture.users.acquire().await.unwrap();
    let begin = if D::NAME == "sqlite" { "begin immediate" } else { "begin" };
    D::run(&mut holder, begin.to_owned()).await.unwrap();
    D::run(&mut holder, hold.to_owned()).await.unwrap();
    let mut call = tokio::spawn(call);
    let early = tokio::time::timeout(WAIT, &mut call).await.is_ok();
    let now = match D::NAME {
        "postgres" => "select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text",
        "mysql" => "select cast(timestampdiff(microsecond, '1970-01-01', utc_timestamp(6)) as char)",
        _ => "select cast(cast(unixepoch('subsec') * 1000000 as integer) as text)",
    };
    let ended: u64 = D::texts(&mut holder, now.to_owned()).await.unwrap()[0].parse().unwrap();
    D::run(&mut holder, "commit".to_owned()).await.unwrap();
    assert!(!early, "it did not wait");
    call.await.unwrap();
    SystemTime::UNIX_EPOCH + Duration::from_micros(ended)
}

async fn stored<D: Backend>(fixture: &SqlFixture<D>) -> Record {
    fixture.store.list(&posthaste_core::Filter::default(), None, 10).await.unwrap().records.remove(0)
}

async fn leased<D: Backend>(store: &SqlStore<D>) -> Message {
    store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    let request = ClaimRequest::new(WorkerId::new("w").unwrap()).lease(Duration::from_secs(600));
    store.claim(&request).await.unwrap().remove(0)
}

/// A claim that waited leases from the moment it is granted.
async fn a_claim<D: Backend>(hold: &str) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    fixture.store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await.unwrap();
    let store = fixture.store.clone();
    let ended = behind(&fixture, hold, async move {
        assert_eq!(store.claim(&request()).await.unwrap().len(), 1);
    });
    let ended = ended.await;
    let until = stored(&fixture).await.leased_until.unwrap();
    assert!(until >= ended + SPAN, "{:?} too early", (ended + SPAN).duration_since(until));
    fixture.destroy().await;
}

/// So does a renewal.
async fn a_renewal<D: Backend>(hold: &str) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let lease = leased(&fixture.store).await.lease();
    let store = fixture.store.clone();
    let ended = behind(&fixture, hold, async move {
        assert_eq!(store.renew(&[lease], SPAN).await.unwrap(), [Settled::Applied]);
    });
    let ended = ended.await;
    let until = stored(&fixture).await.leased_until.unwrap();
    assert!(until >= ended + SPAN, "{:?} too early", (ended + SPAN).duration_since(until));
    fixture.destroy().await;
}

/// And a message that is deferred is due so long after it was deferred.
async fn a_deferral<D: Backend>(hold: &str) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let lease = leased(&fixture.store).await.lease();
    let store = fixture.store.clone();
    let ended = behind(&fixture, hold, async move {
        let defer = Settlement::new(lease, Outcome::Defer { delay: SPAN });
        assert_eq!(store.settle(&[defer]).await.unwrap().settled, [Settled::Applied]);
    });
    let ended = ended.await;
    let due = stored(&fixture).await.message.due_at;
    assert!(due >= ended + SPAN, "{:?} too early", (ended + SPAN).duration_since(due));
    fixture.destroy().await;
}

const PG_ROW: &str = "select 1 from outbox for update";
const MYSQL_ROW: &str = "select 1 from posthaste_outbox for update";

/// Claims never wait here, nor on MySQL: they skip locked rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_times_begin_after_the_wait() {
    a_renewal::<Postgres>("select 1 from outbox_lease for update").await;
    a_deferral::<Postgres>(PG_ROW).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_times_begin_after_the_wait() {
    a_renewal::<MySql>(MYSQL_ROW).await;
    a_deferral::<MySql>(MYSQL_ROW).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_times_begin_after_the_wait() {
    a_claim::<Sqlite>("select 1").await;
    a_renewal::<Sqlite>("select 1").await;
    a_deferral::<Sqlite>("select 1").await;
}

/// One statement that claims again and again, as a loop in PL/pgSQL does, sees messages published after it began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_loop_in_one_statement_sees_newer_messages() {
    if !SqlFixture::<Postgres>::available() {
        return;
    }
    let fixture = SqlFixture::<Postgres>::create().await;
    let looping = "do $$ declare v_found bigint; begin \
        perform enqueue('first', 'x'); perform pg_sleep(0.01); perform enqueue('second', 'x'); \
        select count(*) into v_found from claim('w'); \
        if v_found <> 2 then raise exception 'claimed %', v_found; end if; end $$";
    fixture.run(looping.to_owned()).await;
    fixture.destroy().await;
}
