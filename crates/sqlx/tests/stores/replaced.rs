//! SQLite files that are replaced, moved or deleted while a store has them open: the store goes on with the new file, and fails while
//! there is none.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use posthaste_core::{
    ClaimRequest, Error, ErrorKind, MessageId, NewMessage, Severity, Store, StoreAdmin as _, WorkerId,
};
use posthaste_sqlx::{SqliteStore, StoreOptions};
use posthaste_testkit::Logs;
use tempfile::TempDir;

/// How long a test waits for a store to notice: it looks about once a second.
const PATIENCE: Duration = Duration::from_secs(60);

async fn store_in(file: &Path) -> SqliteStore {
    let store = SqliteStore::open(file).await.unwrap();
    store.migrate().await.unwrap();
    store
}

async fn enqueue(store: &SqliteStore) -> MessageId {
    let message = NewMessage::bytes("t", "x").build().unwrap();
    store.enqueue(std::slice::from_ref(&message)).await.unwrap();
    message.id()
}

/// A closed file with one message in it.
async fn file_with_a_message(file: &Path) -> MessageId {
    let store = store_in(file).await;
    let id = enqueue(&store).await;
    store.close().await;
    id
}

async fn claim(store: &SqliteStore) -> Result<Vec<MessageId>, Error> {
    let claimed = store.claim(&ClaimRequest::new(WorkerId::new("w").unwrap())).await?;
    Ok(claimed.iter().map(|message| message.id).collect())
}

/// What the first claim answers that is not empty.
async fn next_answer(store: &SqliteStore) -> Result<Vec<MessageId>, Error> {
    let begin = Instant::now();
    loop {
        let answer = claim(store).await;
        if !answer.as_ref().is_ok_and(Vec::is_empty) {
            return answer;
        }
        assert!(begin.elapsed() < PATIENCE, "the store still has the old file");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The first answer of a claim that is no error.
async fn first_success(store: &SqliteStore) -> Vec<MessageId> {
    let begin = Instant::now();
    loop {
        match claim(store).await {
            Ok(claimed) => return claimed,
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn beside(file: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", file.display()))
}

fn folder() -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::new().unwrap();
    let [file, other] = ["outbox.db", "other.db"].map(|name| folder.path().join(name));
    (folder, file, other)
}

/// Puts one file in the place of another, as a restore does that knows SQLite.
fn replace(file: &Path, other: &Path) {
    std::fs::rename(other, file).unwrap();
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(beside(file, suffix)).unwrap();
    }
}

#[tokio::test]
async fn messages_of_a_replacing_file_are_claimed() {
    let (_folder, file, other) = folder();
    let logs = Logs::default();
    let _listening = tracing::subscriber::set_default(logs.clone());
    let store = store_in(&file).await;
    enqueue(&store).await;
    assert_eq!(claim(&store).await.unwrap().len(), 1);
    let id = file_with_a_message(&other).await;
    replace(&file, &other);
    assert_eq!(next_answer(&store).await.unwrap(), [id]);
    // Transactions that the store begins for a user, and all its other calls, are on the new file as well.
    assert_eq!(store.stats().await.unwrap().leased.value, 1);
    assert_eq!(logs.events("the database file was replaced, opening the new one").len(), 1);
    store.close().await;
}

#[tokio::test]
async fn a_missing_file_is_an_error_until_it_is_back() {
    let (_folder, file, other) = folder();
    let store = store_in(&file).await;
    assert!(claim(&store).await.unwrap().is_empty());
    let id = enqueue(&store).await;
    std::fs::rename(&file, &other).unwrap();
    let finding = store.examine().await.unwrap().into_iter().find(|finding| finding.check == "file").unwrap();
    assert_eq!(finding.severity, Severity::Danger, "{finding:?}");
    let begin = Instant::now();
    let error = loop {
        match store.stats().await {
            Err(error) => break error,
            Ok(_) => assert!(begin.elapsed() < PATIENCE, "the store has noticed nothing"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("was moved or deleted while it was open"), "{error}");
    assert!(error.remedy().unwrap().contains("put the file back"), "{error}");
    assert!(!file.exists(), "no empty file takes its place");
    std::fs::rename(&other, &file).unwrap();
    assert_eq!(first_success(&store).await, [id]);
    store.close().await;
}

/// The new file would be read with the changes of the old one, and spoiled.
#[tokio::test]
async fn a_file_beside_the_log_of_another_is_not_opened() {
    let (_folder, file, other) = folder();
    let store = store_in(&file).await;
    enqueue(&store).await;
    assert_eq!(claim(&store).await.unwrap().len(), 1);
    let id = file_with_a_message(&other).await;
    std::fs::rename(&other, &file).unwrap();
    let error = next_answer(&store).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("replaced, but not its files -wal and -shm"), "{error}");
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(beside(&file, suffix)).unwrap();
    }
    assert_eq!(first_success(&store).await, [id]);
    store.close().await;
}

/// A pool that the store was given is never replaced, so its calls fail.
#[tokio::test]
async fn a_given_pool_has_the_old_file() {
    let (_folder, file, other) = folder();
    store_in(&file).await.close().await;
    let url = format!("sqlite://{}", file.display());
    let pool = sqlx_core::pool::PoolOptions::new().max_connections(1).connect(&url).await.unwrap();
    let store = SqliteStore::from_pool(pool, &StoreOptions::new()).unwrap();
    assert!(claim(&store).await.unwrap().is_empty());
    file_with_a_message(&other).await;
    replace(&file, &other);
    let error = next_answer(&store).await.unwrap_err();
    assert!(error.to_string().contains("was replaced while it was open"), "{error}");
    store.close().await;
}
