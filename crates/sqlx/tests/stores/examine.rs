//! Checks and holders of locks, on the real servers: faults are provoked, and found.

use std::time::{Duration, Instant};

use posthaste_core::{Finding, MessageId, NewMessage, Severity, Store, StoreAdmin};
use posthaste_sqlx::{MySql, Postgres, SqlStore, Sqlite};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture, SqliteFixture, unique};

fn of<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
    findings.iter().find(|finding| finding.check == check).unwrap_or_else(|| panic!("{check}: {findings:#?}"))
}

/// A migrated database has no fault in its tables; the server's settings are up to the server.
async fn as_made<D: Backend>(checks: &[&str]) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let findings = fixture.store.examine().await.unwrap();
    let names: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(names, checks, "one finding a check");
    for finding in &findings {
        assert_eq!(finding.remedy.is_none(), finding.severity == Severity::Fine, "{finding:?}");
        let own = [
            "tables",
            "indexes",
            "schema version",
            "version",
            "journal",
            "file",
            "numbers",
            "isolation of claims",
            "search path",
        ];
        assert!(!own.contains(&finding.check) || finding.severity == Severity::Fine, "{finding:?}");
        // The clock of a server on this machine is this machine's.
        assert!(finding.check != "clock" || finding.severity <= Severity::Notice, "{finding:?}");
    }
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_as_made() {
    let checks = [
        "version",
        "durability",
        "tables",
        "indexes",
        "oldest transaction",
        "locks",
        "autovacuum",
        "isolation",
        "numbers",
        "clock",
        "isolation of claims",
        "search path",
        "schema version",
    ];
    as_made::<Postgres>(&checks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_as_made() {
    let checks = [
        "version",
        "durability",
        "tables",
        "indexes",
        "oldest transaction",
        "numbers",
        "clock",
        "schema version",
    ];
    as_made::<MySql>(&checks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_as_made() {
    as_made::<Sqlite>(&["version", "durability", "journal", "indexes", "clock", "schema version", "file"])
        .await;
}

/// The finding matches the server's answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_the_servers() {
    if PgFixture::available() {
        let fixture = PgFixture::create().await;
        let safe = "select (current_setting('fsync') = 'on' and current_setting('full_page_writes') = 'on' \
                    and current_setting('synchronous_commit') <> 'off')::text";
        let is_safe = fixture.texts(safe).await == ["true"];
        let findings = fixture.store.examine().await.unwrap();
        assert_eq!(of(&findings, "durability").severity == Severity::Fine, is_safe, "{findings:#?}");
        fixture.destroy().await;
    }
    if MySqlFixture::available() {
        let fixture = MySqlFixture::create().await;
        let flush = fixture.texts("select cast(@@innodb_flush_log_at_trx_commit as char)").await;
        let findings = fixture.store.examine().await.unwrap();
        let durability = of(&findings, "durability");
        assert_eq!(
            durability.found.contains("innodb_flush_log_at_trx_commit"),
            flush != ["1"],
            "{durability:?}"
        );
        fixture.destroy().await;
    }
    let fixture = SqliteFixture::create().await;
    let findings = fixture.store.examine().await.unwrap();
    assert_eq!(of(&findings, "durability").severity, Severity::Fine, "the store sets it");
    fixture.destroy().await;
}

/// An unlogged outbox, an index that was dropped or is invalid, and tables of another version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_postgres_are_found() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    fixture.run("alter table outbox set unlogged".to_owned()).await;
    fixture.run("drop index outbox_new".to_owned()).await;
    fixture
        .run("update pg_index set indisvalid = false where indexrelid = 'outbox_key'::regclass".to_owned())
        .await;
    fixture.run("alter table outbox set (autovacuum_enabled = off)".to_owned()).await;
    fixture.run("update outbox_version set version = 2".to_owned()).await;
    let findings = fixture.store.examine().await.unwrap();
    let tables = of(&findings, "tables");
    assert_eq!((tables.severity, tables.found.as_str()), (Severity::Danger, "outbox is unlogged"));
    let indexes = of(&findings, "indexes");
    assert_eq!(indexes.severity, Severity::Warning);
    assert_eq!(indexes.found, "outbox_key is invalid, outbox_new is missing");
    assert_eq!(of(&findings, "autovacuum").severity, Severity::Warning);
    assert_eq!(of(&findings, "schema version").severity, Severity::Danger);
    fixture.run("alter table outbox set logged".to_owned()).await;
    fixture.run("drop index outbox_message_id".to_owned()).await;
    let findings = fixture.store.examine().await.unwrap();
    assert_eq!(of(&findings, "indexes").severity, Severity::Danger, "it keeps messages apart");
    fixture.destroy().await;
}

/// For commits and isolation, the settings of the URL and the role count, not the server's defaults.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_a_connection_are_found() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let url = format!(
        "{}%20-csynchronous_commit%3Doff%20-cdefault_transaction_isolation%3Dserializable",
        fixture.url
    );
    let store = SqlStore::<Postgres>::connect_with(&url, &fixture.options).await.unwrap();
    let findings = store.examine().await.unwrap();
    let durability = of(&findings, "durability");
    assert_eq!(durability.severity, Severity::Danger);
    assert!(durability.found.contains("synchronous_commit"), "{durability:?}");
    assert_eq!(of(&findings, "isolation").severity, Severity::Notice);
    store.close().await;
    fixture.destroy().await;
}

/// A transaction that is open is seen, with its session.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_transactions_are_seen() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let tx = fixture.begin().await;
    let findings = fixture.store.examine().await.unwrap();
    // Other tests have theirs.
    let oldest = of(&findings, "oldest transaction");
    assert!(oldest.found.starts_with("open for ") && oldest.found.contains("session "), "{oldest:?}");
    fixture.rollback(tx).await;
    fixture.destroy().await;
}

/// A missing right is a notice, and the other checks still run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_not_be_seen_is_a_notice() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    let user = &unique()[..16];
    let database = fixture.url.rsplit('/').next().unwrap();
    fixture.run(format!("create user '{user}'@'%' identified by 'pw'")).await;
    fixture.run(format!("grant select on {database}.* to '{user}'@'%'")).await;
    let url = fixture.url.replace("root@", &format!("{user}:pw@"));
    let store = SqlStore::<MySql>::connect(&url).await.unwrap();
    let findings = store.examine().await.unwrap();
    let oldest = of(&findings, "oldest transaction");
    assert_eq!(oldest.severity, Severity::Notice, "{oldest:?}");
    assert!(oldest.remedy.as_ref().unwrap().contains("right"), "{oldest:?}");
    assert_eq!(of(&findings, "indexes").severity, Severity::Fine, "{findings:#?}");
    store.close().await;
    fixture.run(format!("drop user '{user}'@'%'")).await;
    fixture.destroy().await;
}

/// Tables of another engine, and an index that was dropped, on MySQL and MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_mysql_are_found() {
    if !MySqlFixture::available() {
        return;
    }
    let fixture = MySqlFixture::create().await;
    fixture.run("alter table posthaste_outbox_pause engine = MyISAM, row_format = dynamic".to_owned()).await;
    fixture.run("drop index posthaste_outbox_done on posthaste_outbox".to_owned()).await;
    let findings = fixture.store.examine().await.unwrap();
    let tables = of(&findings, "tables");
    assert_eq!(
        (tables.severity, tables.found.as_str()),
        (Severity::Danger, "posthaste_outbox_pause is not InnoDB's")
    );
    let indexes = of(&findings, "indexes");
    assert_eq!(
        (indexes.severity, indexes.found.as_str()),
        (Severity::Warning, "posthaste_outbox_done is missing")
    );
    fixture.destroy().await;
}

/// An index that was dropped, in SQLite.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn faults_of_sqlite_are_found() {
    let fixture = SqliteFixture::create().await;
    fixture.run("drop index posthaste_outbox_dedup".to_owned()).await;
    let findings = fixture.store.examine().await.unwrap();
    let indexes = of(&findings, "indexes");
    assert_eq!(
        (indexes.severity, indexes.found.as_str()),
        (Severity::Danger, "posthaste_outbox_dedup is missing")
    );
    fixture.destroy().await;
}

// ---------------------------------------------------------------- holders

async fn message<D: Backend>(fixture: &SqlFixture<D>) -> MessageId {
    let message = NewMessage::bytes("t", "x").build().unwrap();
    fixture.store.enqueue(std::slice::from_ref(&message)).await.unwrap();
    message.id()
}

/// The session that locks a message's row is found, and none once it has ended, nor for a message that is not there.
async fn found<D: Backend>(lock: fn(MessageId) -> String, session: &str, is_named: fn(&str, &str) -> bool) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let fixture = SqlFixture::<D>::create().await;
    let (id, other) = (message(&fixture).await, message(&fixture).await);
    assert_eq!(fixture.store.holder(id).await.unwrap(), None, "it is free");
    let mut tx = fixture.begin().await;
    let session = D::texts(&mut tx, session.to_owned()).await.unwrap().remove(0);
    D::run(&mut tx, lock(id)).await.unwrap();
    let begin = Instant::now();
    let holder = fixture.store.holder(id).await.unwrap().expect("somebody holds it");
    // PostgreSQL would wait for as long as the transaction is open, and MySQL for 50 s.
    assert!(begin.elapsed() < Duration::from_secs(40), "{:?}", begin.elapsed());
    assert!(is_named(&holder.session, &session), "{holder:?}, not {session}");
    assert!(!holder.about.contains("update") && !holder.about.contains("select"), "{holder:?}");
    if D::NAME != "sqlite" {
        let since = holder.since.expect("since when");
        let open = std::time::SystemTime::now().duration_since(since).unwrap_or_default();
        assert!(open < Duration::from_secs(60), "{holder:?}");
        assert_eq!(fixture.store.holder(other).await.unwrap(), None, "the other one is free");
    }
    assert_eq!(fixture.store.holder(MessageId::new()).await.unwrap(), None, "there is none such");
    fixture.rollback(tx).await;
    assert_eq!(fixture.store.holder(id).await.unwrap(), None, "it is free again");
    let record = fixture.store.show(id).await.unwrap().unwrap().0;
    assert_eq!(
        (record.message.epoch, record.state),
        (0, posthaste_core::State::Ready),
        "nothing has changed"
    );
    fixture.destroy().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_names_the_holder() {
    let lock = |id| format!("select from outbox where message_id = '{id}' for update");
    found::<Postgres>(lock, "select pg_backend_pid()::text", |found, pid| found == format!("pid {pid}"))
        .await;
}

/// A row that was changed is locked, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_names_who_changes_it() {
    let lock = |id| format!("update outbox set attempts = 1 where message_id = '{id}'");
    found::<Postgres>(lock, "select pg_backend_pid()::text", |found, pid| found == format!("pid {pid}"))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_names_the_holder() {
    let lock = |id: MessageId| {
        format!("update posthaste_outbox set attempts = 1 where message_id = x'{}'", id.as_uuid().simple())
    };
    let session = "select cast(connection_id() as char)";
    found::<MySql>(lock, session, |found, id| found == format!("connection {id}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_tells_of_a_writer() {
    let lock = |_| "update posthaste_outbox set attempts = 1 where seq = -1".to_owned();
    // Linux tells which process it is.
    let is_named: fn(&str, &str) -> bool = if cfg!(target_os = "linux") {
        |found, _| found == format!("process {}", std::process::id())
    } else {
        |found, _| found.contains("writes to the file")
    };
    found::<Sqlite>(lock, "select 'nobody'", is_named).await;
}

/// Several that share a lock have no name, but are there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_tells_of_several() {
    if !PgFixture::available() {
        return;
    }
    let fixture = PgFixture::create().await;
    let id = message(&fixture).await;
    let (mut one, mut two) = (fixture.begin().await, fixture.begin().await);
    for tx in [&mut one, &mut two] {
        Postgres::run(tx, format!("select from outbox where message_id = '{id}' for share")).await.unwrap();
    }
    let holder = fixture.store.holder(id).await.unwrap().expect("somebody holds it");
    assert_eq!((holder.session.as_str(), holder.since), ("unknown", None), "{holder:?}");
    fixture.rollback(one).await;
    fixture.rollback(two).await;
    fixture.destroy().await;
}
