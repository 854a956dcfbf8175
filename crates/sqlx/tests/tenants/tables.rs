//! A tenant whose database has no tables yet.

use std::time::{Duration, Instant};

use posthaste_core::{Store as _, StoreAdmin as _, TenantState};
use posthaste_sqlx::{MySql, Postgres, Sqlite};
use posthaste_testkit::Fixture as _;

use crate::fixture::{Backend, SqlFixture};
use crate::support::{Journal, described, draft, eventually, run, state, trouble};

/// How soon after it was migrated it must be served: no later than two of the longest pauses that a failing tenant has, with as
/// much time again for a slow machine.
const SOON: Duration = Duration::from_secs(60);

async fn fails_until_it_is_migrated<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let (good, bare) = (SqlFixture::<D>::create().await, SqlFixture::<D>::bare().await);
    let journal = Journal::default();
    let builder = journal.builder();
    let builder =
        builder.tenant("bare", described(&bare, &bare.url)).tenant("good", described(&good, &good.url));
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    eventually("the one without tables fails", async || !trouble(&tenants, "bare").is_empty()).await;
    let error = trouble(&tenants, "bare");
    assert!(error.contains("schema missing") && error.contains("store=bare"), "{error}");
    assert!(error.contains("migrate"), "what to do about it: {error}");
    for count in 1..=5 {
        good.store.enqueue(&[draft()]).await.unwrap();
        journal.reaches(count).await;
    }
    assert_eq!((journal.of("good").len(), state(&tenants, "good")), (5, Some(TenantState::Running)));
    assert!(trouble(&tenants, "bare").contains("schema missing"), "it still fails");

    bare.store.migrate().await.unwrap();
    bare.store.enqueue(&[draft()]).await.unwrap();
    let migrated = Instant::now();
    journal.reaches(6).await;
    let took = migrated.elapsed();
    eprintln!("{}: served {took:.1?} after it was migrated", D::NAME);
    assert!(took <= SOON, "{took:?}");
    assert_eq!(journal.of("bare").len(), 1);
    eventually("it is well", async || state(&tenants, "bare") == Some(TenantState::Running)).await;
    eventually("all is settled", async || bare.store.stats().await.unwrap().done.value == 1).await;
    running.stop().await;
    good.destroy().await;
    bare.destroy().await;
}

/// OBX-070, OBX-071: it fails with an error that names the missing tables, the others go on, and it is served soon
/// after its migration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_tables_postgres() {
    fails_until_it_is_migrated::<Postgres>().await;
}

/// OBX-070, OBX-071: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_tables_mysql() {
    fails_until_it_is_migrated::<MySql>().await;
}

/// OBX-070, OBX-071: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_without_tables_sqlite() {
    fails_until_it_is_migrated::<Sqlite>().await;
}
