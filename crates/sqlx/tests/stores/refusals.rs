//! Failures outside of posthaste: each gets an error that names the cause and the remedy, and no secret.

use std::time::{Duration, Instant};

use posthaste_core::{
    ClaimRequest, Error, ErrorKind, Lease, NewMessage, Outcome, Settled, Settlement, Store, StoreAdmin as _,
    WorkItemId, WorkerId,
};
use posthaste_sqlx::{MySqlStore, PgStore, Sqlite, SqliteStore, StoreOptions};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, unique, url_of};

const SECRET: &str = "canary-Pa55word";

/// Says this, is of this kind, and gives nothing away, neither to a reader nor to a log of the whole chain.
#[track_caller]
fn says<T: std::fmt::Debug>(outcome: Result<T, Error>, kind: ErrorKind, texts: &[&str]) -> Error {
    let error = outcome.unwrap_err();
    let chain = format!("{error:?}");
    assert_eq!(error.kind(), kind, "{chain}");
    for text in texts {
        assert!(error.to_string().contains(text), "{text:?} is not in {error}");
    }
    assert!(!chain.contains(SECRET), "{chain}");
    error
}

/// OBX-125: a URL that cannot be understood is not quoted: it has a password in it.
#[tokio::test]
async fn wrong_urls() {
    for url in [format!("postgres://u:{SECRET}@host:port/db"), format!("nonsense {SECRET}"), String::new()] {
        says(PgStore::connect(&url).await, ErrorKind::Configuration, &["URL", "postgres://"]);
        says(
            MySqlStore::connect(&url).await,
            ErrorKind::Configuration,
            &["begin it with mysql:// or mariadb://"],
        );
    }
    let other = PgStore::connect(&format!("mysql://u:{SECRET}@127.0.0.1/db")).await;
    says(other, ErrorKind::Configuration, &["not one of this database", "postgres:// or postgresql://"]);
    // A misspelt sslmode would connect in plain text.
    let misspelt = PgStore::connect(&format!("postgres://u:{SECRET}@127.0.0.1/db?sslmod=verify-full")).await;
    says(misspelt, ErrorKind::Configuration, &["unknown option `sslmod`", "did you mean `sslmode`?"]);
    let misspelt = MySqlStore::connect(&format!("mysql://u:{SECRET}@127.0.0.1/db?ssl_mode=VERIFY_CA")).await;
    says(misspelt, ErrorKind::Configuration, &["unknown option `ssl_mode`", "did you mean `ssl-mode`?"]);
    let dropped = format!("postgres://u:{SECRET}@127.0.0.1/db?application_name=relay#1&sslmode=verify-full");
    says(PgStore::connect(&dropped).await, ErrorKind::Configuration, &["write it as %23"]);
    let other = MySqlStore::connect(&format!("mysql://u:{SECRET}@127.0.0.1/db?charset=latin1")).await;
    says(other, ErrorKind::Configuration, &["write it as charset=utf8mb4"]);
    let misspelt = SqliteStore::connect("sqlite://outbox.db?moode=ro").await;
    says(misspelt, ErrorKind::Configuration, &["unknown option `moode`", "did you mean `mode`?"]);
    let memory = SqliteStore::connect("sqlite::memory:").await;
    says(memory, ErrorKind::Configuration, &["another one for every connection", "MemoryStore"]);
    let missing = SqliteStore::connect("sqlite:///nowhere/at/all.db").await;
    says(missing, ErrorKind::Configuration, &["/nowhere/at/all.db", "created by SqliteStore::open"]);
}

/// A port with a silent listener is an error within the configured time-out.
#[tokio::test]
async fn silent_servers() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let options = StoreOptions::new().acquire_timeout(Duration::from_millis(200));
    let silent = MySqlStore::connect_with(&format!("mysql://u:{SECRET}@127.0.0.1:{port}/db"), &options).await;
    says(silent, ErrorKind::Unavailable, &["no answer in time", "check the host and the port"]);
}

/// A missing server is an error at once, with its address, not after the pool's time-out.
#[tokio::test]
async fn unreachable_servers() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let patience = Duration::from_secs(120);
    let options = StoreOptions::new().acquire_timeout(patience);
    let started = std::time::Instant::now();
    let url = format!("postgres://u:{SECRET}@127.0.0.1:{port}/db");
    let postgres = PgStore::connect_with(&url, &options).await;
    let error = says(
        postgres,
        ErrorKind::Unavailable,
        &[&format!("127.0.0.1:{port}/db"), "check that the server runs"],
    );
    assert!(error.is_transient());
    let url = format!("mysql://u:{SECRET}@127.0.0.1:{port}/db");
    let mysql = MySqlStore::connect_with(&url, &options).await;
    says(mysql, ErrorKind::Unavailable, &[&format!("127.0.0.1:{port}/db"), "check that the server runs"]);
    assert!(started.elapsed() < patience / 2, "{:?}", started.elapsed());
}

#[tokio::test]
async fn missing_databases_and_wrong_users() {
    if PgFixture::available() {
        let url = url_of("postgres", "postgres://postgres@127.0.0.1:5432/test");
        let (base, _) = url.rsplit_once('/').unwrap();
        let nowhere = PgStore::connect(&format!("{base}/{}", unique())).await;
        says(nowhere, ErrorKind::Configuration, &["does not exist", "create the database"]);
        let (_, address) = base.split_once('@').unwrap();
        let nobody = PgStore::connect(&format!("postgres://{}:{SECRET}@{address}/postgres", unique())).await;
        says(nobody, ErrorKind::Permission, &["check the user, the password and the grants"]);
    }
    if MySqlFixture::available() {
        let url = url_of("mysql", "mysql://root@127.0.0.1:3306/test");
        let (base, _) = url.rsplit_once('/').unwrap();
        let nowhere = MySqlStore::connect(&format!("{base}/{}", unique())).await;
        says(nowhere, ErrorKind::Configuration, &["Unknown database", "create the database"]);
        let (_, address) = base.split_once('@').unwrap();
        let nobody =
            MySqlStore::connect(&format!("mysql://{}:{SECRET}@{address}/test", &unique()[..12])).await;
        says(nobody, ErrorKind::Permission, &["check the user, the password and the grants"]);
    }
}

#[tokio::test]
async fn files_that_are_no_database_or_cannot_be_written() {
    let folder = tempfile::TempDir::new().unwrap();
    let text = folder.path().join("text.db");
    std::fs::write(&text, "this is no database, and long enough to tell: ".repeat(100)).unwrap();
    says(SqliteStore::open(&text).await, ErrorKind::Configuration, &["no SQLite database"]);
    says(SqliteStore::open(folder.path()).await, ErrorKind::Configuration, &["check the path"]);

    let file = folder.path().join("outbox.db");
    SqliteStore::open(&file).await.unwrap().migrate().await.unwrap();
    let read_only = SqliteStore::connect(&format!("sqlite://{}?mode=ro", file.display())).await.unwrap();
    let message = NewMessage::bytes("t", "x").build().unwrap();
    says(read_only.enqueue(&[message]).await, ErrorKind::Permission, &["permissions"]);
}

/// Impossible settings are refused before anything is connected to.
#[tokio::test]
async fn impossible_settings() {
    let connect =
        |options: StoreOptions| async move { SqliteStore::connect_with("sqlite::memory:", &options).await };
    let none = connect(StoreOptions::new().max_connections(0)).await;
    says(none, ErrorKind::Configuration, &["max_connections is 0", "1 to 1000"]);
    let never = connect(StoreOptions::new().acquire_timeout(Duration::ZERO)).await;
    says(never, ErrorKind::Configuration, &["acquire_timeout is 0ns"]);
    says(
        connect(StoreOptions::new().schema("s")).await,
        ErrorKind::Configuration,
        &["SQLite has no schemas"],
    );
    says(
        connect(StoreOptions::new().prefix("a b")).await,
        ErrorKind::Configuration,
        &["table prefix \"a b\""],
    );
}

/// A write lock that another connection holds for long means a busy database, not a broken one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_write_lock() {
    let fixture = SqliteFixture::create().await;
    let mut holder = fixture.users.acquire().await.unwrap();
    Sqlite::run(&mut holder, "begin immediate".to_owned()).await.unwrap();
    Sqlite::run(&mut fixture.store.pool().acquire().await.unwrap(), "pragma busy_timeout = 50".to_owned())
        .await
        .unwrap();
    let message = NewMessage::bytes("t", "x").build().unwrap();
    let error = says(fixture.store.enqueue(&[message]).await, ErrorKind::Busy, &["write lock"]);
    assert!(error.is_transient());
    names_this_process(&error);
    Sqlite::run(&mut holder, "rollback".to_owned()).await.unwrap();
    drop(holder);
    fixture.destroy().await;
}

/// Linux tells which process has a file locked.
fn names_this_process(error: &Error) {
    if cfg!(target_os = "linux") {
        let writer = error.context().find(|(name, _)| *name == "blocked by").expect("a process").1;
        assert!(writer.starts_with(&format!("process {}", std::process::id())), "{error}");
    }
}

/// A call behind one that waits for the write lock: not more connections would help, but an end of what holds the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_behind_one_that_waits_for_the_write_lock() {
    let fixture = SqliteFixture::create().await;
    let options = StoreOptions::new().acquire_timeout(Duration::from_secs(1));
    let store = SqliteStore::connect_with(&fixture.url, &options).await.unwrap();
    let mut holder = fixture.users.acquire().await.unwrap();
    Sqlite::run(&mut holder, "begin immediate".to_owned()).await.unwrap();
    let first = tokio::spawn({
        let store = store.clone();
        async move { store.enqueue(&[NewMessage::bytes("t", "x").build().unwrap()]).await }
    });
    let begin = Instant::now();
    let refused = loop {
        // Until the other call has the one connection, this one is answered.
        match store.stats().await {
            Ok(_) => assert!(begin.elapsed() < Duration::from_secs(60), "nothing waits"),
            refused => break refused,
        }
    };
    let error = says(refused, ErrorKind::Busy, &["waits for a lock", "write lock"]);
    assert!(!error.to_string().contains("max_connections"), "{error}");
    names_this_process(&error);
    Sqlite::run(&mut holder, "rollback".to_owned()).await.unwrap();
    first.await.unwrap().unwrap();
    drop(holder);
    store.close().await;
    fixture.destroy().await;
}

/// A file that another program has to itself cannot be opened, and it has neither a host nor a port.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_another_connection_has_to_itself() {
    let fixture = SqliteFixture::bare().await;
    fixture.store.close().await;
    let mut holder = fixture.users.acquire().await.unwrap();
    let exclusive = "pragma locking_mode = exclusive; pragma journal_mode = delete; begin exclusive";
    Sqlite::run(&mut holder, exclusive.to_owned()).await.unwrap();
    let options = StoreOptions::new().acquire_timeout(Duration::from_secs(1));
    let opened = SqliteStore::connect_with(&fixture.url, &options).await;
    let error = says(opened, ErrorKind::Busy, &["the file has been locked for 1s", "write lock"]);
    assert!(!error.to_string().contains("host"), "{error}");
    names_this_process(&error);
    Sqlite::run(&mut holder, "rollback; pragma locking_mode = normal".to_owned()).await.unwrap();
    drop(holder);
    fixture.destroy().await;
}

/// With any defaults of the server, the store's own connections have the settings that the statements need.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_server_defaults() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let pool = &fixture.store.pool();
        let show = |name: &'static str| async move {
            let mut connection = pool.acquire().await.unwrap();
            posthaste_sqlx::Postgres::texts(&mut connection, format!("show {name}")).await.unwrap().remove(0)
        };
        assert_eq!(show("default_transaction_isolation").await, "read committed");
        assert_eq!((show("jit").await, show("enable_seqscan").await), ("off".to_owned(), "off".to_owned()));
        fixture.destroy().await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        // A list of a thousand numbers is longer than this.
        let short = "set session group_concat_max_len = 64".to_owned();
        posthaste_sqlx::MySql::run(&mut fixture.store.pool().acquire().await.unwrap(), short).await.unwrap();
        let messages: Vec<_> = (0..1_000).map(|_| NewMessage::bytes("t", "x").build().unwrap()).collect();
        fixture.store.enqueue(&messages).await.unwrap();
        let request = ClaimRequest::new(WorkerId::new("w").unwrap()).limit(1_000);
        assert_eq!(fixture.store.claim(&request).await.unwrap().len(), 1_000);
        fixture.destroy().await;
    }
}

/// A pool without a free connection returns an error after its time-out, and not before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_exhausted_pool() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let options = fixture.options.clone().max_connections(1).acquire_timeout(Duration::from_secs(2));
    let store = PgStore::connect_with(&fixture.url, &options).await.unwrap();
    let held = store.pool().acquire().await.unwrap();
    says(store.check().await, ErrorKind::Busy, &["no connection came free", "max_connections"]);
    drop(held);
    store.check().await.unwrap();
    store.close().await;
    fixture.destroy().await;
}

/// Unknown and already settled leases are answers, not errors; see the suite for every combination.
async fn unknown_leases<D: Backend>() {
    let fixture = SqlFixture::<D>::create().await;
    let lease = Lease { item: WorkItemId::new(i64::MAX), epoch: i32::MAX };
    let settled = fixture.store.settle(&[Settlement::new(lease, Outcome::Ack)]).await.unwrap().settled;
    assert_eq!(settled, [Settled::Gone]);
    assert_eq!(fixture.store.renew(&[lease], Duration::from_secs(1)).await.unwrap(), [Settled::Gone]);
    let message = NewMessage::bytes("t", "x").build().unwrap();
    fixture.store.enqueue(&[message]).await.unwrap();
    let claimed = fixture.store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await.unwrap();
    let settlement = Settlement::new(claimed[0].lease(), Outcome::Ack);
    assert_eq!(
        fixture.store.settle(&[settlement.clone(), settlement]).await.unwrap().settled,
        [Settled::Applied, Settled::Lost]
    );
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_leases_are_answered() {
    if PgFixture::available() {
        unknown_leases::<posthaste_sqlx::Postgres>().await;
    }
    if MySqlFixture::available() {
        unknown_leases::<posthaste_sqlx::MySql>().await;
    }
    unknown_leases::<posthaste_sqlx::Sqlite>().await;
}

/// P16: a standby takes no claims, and says where to go. A read-only session answers as one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_is_no_place_to_claim() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let url = fixture.url.replace("options=", "options=-cdefault_transaction_read_only%3Don%20");
    assert_ne!(url, fixture.url);
    let standby = PgStore::connect_with(&url, &fixture.options).await.unwrap();
    let request = ClaimRequest::new(WorkerId::new("w").unwrap());
    for stored in [false, true] {
        if stored {
            let message = NewMessage::bytes("t", "x").build().unwrap();
            fixture.store.enqueue(&[message]).await.unwrap();
        }
        says(standby.claim(&request).await, ErrorKind::Permission, &["connect to the primary"]);
    }
    standby.close().await;
    fixture.destroy().await;
}
