//! The same database under two names: polled once, and written to through both.

use posthaste_core::{Tenant, TenantState, Tenants};
use posthaste_sqlx::{Database, MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture as _;

use crate::fixture::{Backend, SqlFixture};
use crate::support::{Directory, Journal, described, draft, eventually, run, state};

const NAMES: [&str; 2] = ["one", "other"];

fn twin_of(tenants: &Tenants, key: &str) -> Option<String> {
    match state(tenants, key) {
        Some(TenantState::Twin(of)) => Some(of.to_string()),
        _ => None,
    }
}

async fn polled_once<D: Backend>(fixture: &SqlFixture<D>, sources: [Database<D>; 2]) {
    assert_ne!(sources[0], sources[1], "two descriptions");
    let (journal, directory) = (Journal::default(), Directory::default());
    for (key, source) in NAMES.into_iter().zip(sources) {
        directory.put(Tenant::new(key, source));
    }
    let builder =
        journal.builder().discover(directory.clone()).refresh(std::time::Duration::from_millis(100));
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    let is_twin = |key: &str| twin_of(&tenants, key).is_some();
    eventually("one is the other's twin", async || is_twin(NAMES[0]) != is_twin(NAMES[1])).await;
    let (polled, twin) = if is_twin(NAMES[0]) { (NAMES[1], NAMES[0]) } else { (NAMES[0], NAMES[1]) };
    assert_eq!(twin_of(&tenants, twin).as_deref(), Some(polled));
    assert_eq!(state(&tenants, polled), Some(TenantState::Running));

    let mut published = Vec::new();
    for key in NAMES {
        let outbox = tenants.outbox::<SqlStore<D>>(key).await.unwrap();
        for _ in 0..5 {
            published.push(outbox.enqueue(draft()).await.unwrap().id());
            let mut tx = outbox.begin().await.unwrap();
            published.push(tx.publish(draft()).await.unwrap().id());
            tx.commit().await.unwrap();
        }
    }
    journal.reaches(published.len()).await;
    let mut handled = journal.of(polled);
    handled.sort();
    published.sort();
    assert_eq!(handled, published, "each once, and all from the one that is polled");
    assert!(is_twin(twin));

    // The one that is polled goes: the other takes over.
    directory.remove(polled);
    eventually("the twin is on its own", async || {
        state(&tenants, polled).is_none() && state(&tenants, twin) == Some(TenantState::Running)
    })
    .await;
    let late = tenants.outbox::<SqlStore<D>>(twin).await.unwrap().enqueue(draft()).await.unwrap().id();
    journal.reaches(published.len() + 1).await;
    assert_eq!(journal.of(twin), [late]);
    eventually("all is settled", async || tenants.stats().await.total.pending().value == 0).await;
    running.stop().await;
    let stats = posthaste_core::StoreAdmin::stats(&fixture.store).await.unwrap();
    assert_eq!((stats.done.value, stats.pending().value), (published.len() as u64 + 1, 0));
}

/// Two names of the same host lead to the same server.
async fn two_names_of_a_host<D: Backend>() {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let other = fixture.url.replacen("127.0.0.1", "localhost", 1);
    if other == fixture.url {
        eprintln!("skipped: {} is not on this machine", D::NAME);
    } else {
        polled_once(&fixture, [&fixture.url, &other].map(|url| described(&fixture, url))).await;
    }
    fixture.destroy().await;
}

/// OBX-066, OBX-121: by its number and by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_database_under_two_names_postgres() {
    two_names_of_a_host::<Postgres>().await;
}

/// OBX-066, OBX-121: by its number and by its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_database_under_two_names_mysql() {
    two_names_of_a_host::<MySql>().await;
}

/// OBX-066, OBX-121: a file, and a symbolic link to it.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_database_under_two_names_sqlite() {
    let fixture = SqlFixture::<Sqlite>::create().await;
    let file = fixture.url.trim_start_matches("sqlite://").split('?').next().unwrap().to_owned();
    let link = format!("{file}.link");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let sources = [file, link].map(|path| described(&fixture, &format!("sqlite://{path}")));
    polled_once(&fixture, sources).await;
    fixture.destroy().await;
}
