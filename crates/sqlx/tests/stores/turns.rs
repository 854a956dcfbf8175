//! Turns of jobs when the database's clock is put back, which a fixture can only imitate by moving stored times.

use std::time::Duration;

use posthaste_core::{Store, Turn};
use posthaste_sqlx::{MySql, Postgres, Sqlite};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, SqlFixture};

/// F-09: a turn whose time lies an hour ahead does not keep other processes waiting for an hour.
async fn of_a_clock_that_was_put_back<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let every = Turn::Every(Duration::from_secs(5));
    assert!(fixture.store.turn("reap", every).await.unwrap());
    let later = match D::NAME {
        "postgres" => "update outbox_job set at = at + interval '1 hour'",
        "mysql" => "update posthaste_outbox_job set at = at + interval 1 hour",
        _ => "update posthaste_outbox_job set at = at + 3600000000",
    };
    fixture.run(later.to_owned()).await;
    assert!(fixture.store.turn("reap", every).await.unwrap());
    assert!(!fixture.store.turn("reap", every).await.unwrap());
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    of_a_clock_that_was_put_back::<Postgres>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    of_a_clock_that_was_put_back::<MySql>().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    of_a_clock_that_was_put_back::<Sqlite>().await;
}
