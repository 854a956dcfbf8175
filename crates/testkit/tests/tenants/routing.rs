//! Where writes go.

use std::time::Duration;

use posthaste_core::{ErrorKind, MemoryStore, NewMessage, Outbox, StoreAdmin as _, Tenant, Tenants, Uuid};
use posthaste_testkit::Remote;
use tokio::time::Instant;

use crate::support::{Directory, Journal, network, secs};

fn draft() -> NewMessage {
    NewMessage::bytes("t", "").build().unwrap()
}

/// OBX-066, OBX-072, OBX-074: each key has a store of its own, and keys are texts or UUIDs.
#[tokio::test(start_paused = true)]
async fn each_key_leads_to_its_own_store() {
    let (a, b, c) = (MemoryStore::new(), MemoryStore::new(), MemoryStore::new());
    let uuid = Uuid::now_v7();
    let builder =
        Tenants::builder().store("a", a.clone()).store(String::from("b"), b.clone()).store(uuid, c.clone());
    let tenants = builder.build().await.unwrap();
    for (outbox, count) in [
        (tenants.outbox::<MemoryStore>("a").await.unwrap(), 1),
        (tenants.outbox::<MemoryStore>(&String::from("b")).await.unwrap(), 2),
        (tenants.outbox::<MemoryStore>(uuid).await.unwrap(), 3),
        (tenants.outbox::<MemoryStore>(uuid.to_string().to_uppercase()).await.unwrap(), 1),
    ] {
        for _ in 0..count {
            outbox.enqueue(draft()).await.unwrap();
        }
    }
    for (store, count) in [(a, 1), (b, 2), (c, 4)] {
        assert_eq!(store.stats().await.unwrap().ready.value, count);
    }
    assert!(tenants.outbox::<MemoryStore>("A").await.is_err(), "texts are compared letter by letter");
}

/// OBX-121: an outbox is made once, however often it is asked for.
#[tokio::test(start_paused = true)]
async fn outboxes_are_made_once() {
    let (network, directory) = (network(), Directory::default());
    directory.put(Tenant::new("a", network.source("a", "")));
    let tenants = Tenants::builder().discover(directory.clone()).build().await.unwrap();
    let first: Outbox<Remote> = tenants.outbox("a").await.unwrap();
    for _ in 0..100 {
        let again: Outbox<Remote> = tenants.outbox("a").await.unwrap();
        assert_eq!(again.worker(), first.worker());
    }
    assert_eq!((network.stores("a"), directory.asked(), network.connects("a")), (1, 1, 0));
}

/// OBX-073: an unknown key is an error that names it, after one discovery that all concurrent callers share.
#[tokio::test(start_paused = true)]
async fn an_unknown_key_is_looked_for_once() {
    let directory = Directory::default();
    directory.put(Tenant::of("a", MemoryStore::new()));
    let tenants = Tenants::builder().discover(directory.clone()).build().await.unwrap();
    let asking: Vec<_> = (0..50)
        .map(|n| {
            let tenants = tenants.clone();
            tokio::spawn(
                async move { tenants.outbox::<MemoryStore>(format!("nobody-{n}")).await.unwrap_err() },
            )
        })
        .collect();
    for (n, asked) in asking.into_iter().enumerate() {
        let error = asked.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.to_string().contains(&format!("nobody-{n}")), "{error}");
    }
    assert_eq!(directory.asked(), 2, "one when it was built, one for all of them");
    // Repeated requests for an unknown key do not repeat discovery each time.
    let started = Instant::now();
    for _ in 0..5 {
        assert!(tenants.outbox::<MemoryStore>("nobody").await.is_err());
    }
    assert_eq!(directory.asked(), 7);
    assert!(started.elapsed() >= secs(4), "{:?}", started.elapsed());
    assert!(tenants.outbox::<MemoryStore>("a").await.is_ok());
    assert_eq!(directory.asked(), 7, "a known key costs no discovery");
}

/// OBX-072: the first request for a new tenant finds it.
#[tokio::test(start_paused = true)]
async fn a_new_key_is_found_when_it_is_needed() {
    let directory = Directory::default();
    let tenants = Tenants::builder().discover(directory.clone()).build().await.unwrap();
    for key in ["a", "b", "c"] {
        directory.put(Tenant::of(key, MemoryStore::new()));
        let asked = Instant::now();
        tenants.outbox::<MemoryStore>(key).await.unwrap().enqueue(draft()).await.unwrap();
        assert!(asked.elapsed() < Duration::from_millis(1_200), "{:?}", asked.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_can_tell_is_not_called_unknown() {
    let directory = Directory::default();
    directory.put(Tenant::of("a", MemoryStore::new()));
    let tenants = Tenants::builder().discover(directory.clone()).build().await.unwrap();
    directory.fail(true);
    let error = tenants.outbox::<MemoryStore>("b").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("tenant=b"), "{error}");
    assert!(tenants.outbox::<MemoryStore>("a").await.is_ok());
}

/// Mixed dialects: the error for the wrong type of store names the right one.
#[tokio::test(start_paused = true)]
async fn stores_of_several_types() {
    let network = network();
    let builder = Tenants::builder().store("a", MemoryStore::new()).tenant("b", network.source("b", ""));
    let tenants = builder.build().await.unwrap();
    assert!(tenants.outbox::<MemoryStore>("a").await.is_ok() && tenants.outbox::<Remote>("b").await.is_ok());
    let error = tenants.outbox::<MemoryStore>("b").await.unwrap_err().to_string();
    assert!(
        error.contains("store=b") && error.contains("Remote") && error.contains("MemoryStore"),
        "{error}"
    );
}

/// OBX-070, OBX-071: every error of a tenant's store names the tenant.
#[tokio::test(start_paused = true)]
async fn errors_name_the_store() {
    let network = network();
    network.set("b", posthaste_testkit::Reach::Refused);
    let tenants = Tenants::builder().tenant("acme", network.source("b", "")).build().await.unwrap();
    let outbox = tenants.outbox::<Remote>("acme").await.unwrap();
    let error = outbox.enqueue(draft()).await.unwrap_err().to_string();
    assert!(error.contains("store=acme"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_built() {
    let journal = Journal::default();
    let error = journal.builder().build().await.unwrap_err();
    assert!(error.to_string().contains("there are no tenants"), "{error}");
    let empty = Tenants::builder().store("", MemoryStore::new()).build().await.unwrap_err();
    assert!(empty.to_string().contains("the key of a tenant"), "{empty}");
    let twice =
        Tenants::builder().tenant("a", network().source("a", "")).tenant("a", network().source("b", ""));
    let error = twice.build().await.unwrap_err().to_string();
    assert!(error.contains("one key has two databases") && error.contains("tenant=a"), "{error}");
    let directory = Directory::default();
    directory.fail(true);
    let error = Tenants::builder().discover(directory).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "an error is not an empty list");
    let silent = Tenants::builder().store("a", MemoryStore::new()).build().await.unwrap();
    let error = silent.run(posthaste_core::Shutdown::new()).await.unwrap_err();
    assert!(error.to_string().contains("no handlers"), "{error}");
    let tenants = journal.builder().store("a", MemoryStore::new()).build().await.unwrap();
    let running = crate::support::run(&tenants);
    tokio::task::yield_now().await;
    let again = tokio::time::timeout(secs(5), tenants.run(posthaste_core::Shutdown::new())).await;
    let error = again.expect("it is refused at once").unwrap_err();
    assert!(error.to_string().contains("run already"), "{error}");
    running.stop().await;
}
