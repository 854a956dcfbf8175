//! A stolen backup: dumps by the databases' own tools, searched for secrets.

use std::process::Command;

use posthaste_core::{JoinWait, Key, Keyring, NewJoin, NewMessage, Outbox, handled};
use posthaste_testkit::Fixture;

use crate::fixture::{Backend, MySqlFixture, PgFixture, SqlFixture, SqliteFixture};

const CANARY: &str = "canary-of-a-customer";

fn secret(topic: &str) -> NewMessage {
    NewMessage::json(topic, &CANARY).header("customer", CANARY).build().unwrap()
}

/// Whether a dump shows it, as it is or in hexadecimal digits.
fn shows(dump: &[u8]) -> bool {
    let hex: String = CANARY.bytes().map(|byte| format!("{byte:02x}")).collect();
    let dump = dump.to_ascii_lowercase();
    [CANARY, &hex].iter().any(|what| dump.windows(what.len()).any(|window| window == what.as_bytes()))
}

/// Everything that an outbox writes: messages ready and done, a join with its steps, its wait and its continuation.
async fn use_it<D: Backend>(fixture: &SqlFixture<D>, keys: Option<Keyring>) {
    let builder = Outbox::builder(fixture.store.clone());
    let builder = match keys {
        Some(keys) => builder.encryption(keys),
        None => builder,
    };
    let outbox = builder.on_topic("t", async |_: posthaste_core::Message| handled()).build().await.unwrap();
    outbox.enqueue(secret("t")).await.unwrap();
    let mut tx = fixture.begin().await;
    let join = NewJoin::of([secret("t")]).wait(JoinWait::on_complete(secret("t")));
    outbox.start_join(fixture.connection(&mut tx), join).await.unwrap();
    fixture.commit(tx).await;
    outbox.enqueue(secret("nobody")).await.unwrap();
    assert!(outbox.drain().await.unwrap().delivered >= 4);
}

async fn only_ciphertext<D: Backend>(dump: fn(&SqlFixture<D>) -> Vec<u8>) {
    if !SqlFixture::<D>::available() {
        return;
    }
    let plain = SqlFixture::<D>::create().await;
    use_it(&plain, None).await;
    assert!(shows(&dump(&plain)), "a dump in which plain messages are not found proves nothing");
    plain.destroy().await;
    let fixture = SqlFixture::<D>::create().await;
    use_it(&fixture, Some(Keyring::new("key", Key::generate().unwrap()).unwrap())).await;
    let dump = dump(&fixture);
    assert!(dump.windows(20).any(|window| window == b"posthaste-encryption"), "it has the messages in it");
    assert!(!shows(&dump));
    fixture.destroy().await;
}

fn output(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// RMQ-012: a dump of the tables contains no plaintext.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres() {
    only_ciphertext(|fixture: &PgFixture| {
        let schema = fixture.url.rsplit("%3D").next().unwrap();
        output(Command::new("pg_dump").args(["-d", &fixture.url, "-n", schema]))
    })
    .await;
}

/// RMQ-012: the same for MySQL and MariaDB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql() {
    only_ciphertext(|fixture: &MySqlFixture| {
        let rest = fixture.url.strip_prefix("mysql://").unwrap();
        let (login, rest) = rest.split_once('@').unwrap();
        let (address, database) = rest.split_once('/').unwrap();
        let (host, port) = address.split_once(':').unwrap_or((address, "3306"));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        let mut command = Command::new("mariadb-dump");
        command.args(["--no-defaults", "--hex-blob", "--skip-lock-tables"]);
        command.args([&format!("-h{host}"), &format!("-P{port}"), &format!("-u{user}")]);
        if !password.is_empty() {
            command.arg(format!("-p{password}"));
        }
        output(command.arg(database))
    })
    .await;
}

/// RMQ-012: the same for SQLite: the bytes of its files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite() {
    only_ciphertext(|fixture: &SqliteFixture| {
        let file = fixture.url.strip_prefix("sqlite://").unwrap().split('?').next().unwrap().to_owned();
        let mut bytes = std::fs::read(&file).unwrap();
        bytes.extend(std::fs::read(format!("{file}-wal")).unwrap_or_default());
        bytes
    })
    .await;
}
