//! Discovery of tenants: new, changed and removed ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::{
    HandlerResult, Inbox, InboxStore as _, JoinWait, MemoryStore, Message, MessageId, NewJoin, NewMessage,
    Once, Received, Schedule, Settings, Shutdown, Store as _, StoreAdmin as _, Tenant, TenantInfo, TenantKey,
    TenantState, Tenants, TenantsBuilder,
};
use posthaste_testkit::{Network, Reach, Remote};
use tokio::time::{Instant, sleep};

use crate::support::{Directory, Journal, Running, enqueue, eventually, network, network_of, run, secs};

struct Scene {
    network: Network,
    directory: Directory,
    journal: Journal,
}

impl Scene {
    fn new() -> Self {
        Self { network: network(), directory: Directory::default(), journal: Journal::default() }
    }

    fn list(&self, name: &str) {
        self.list_as(name, name, "");
    }

    fn list_as(&self, key: &str, database: &str, password: &str) {
        self.directory.put(Tenant::new(key, self.network.source(database, password)));
    }

    async fn start(&self, builder: TenantsBuilder) -> (Tenants, Running) {
        let tenants = builder.discover(self.directory.clone()).build().await.unwrap();
        let running = run(&tenants);
        (tenants, running)
    }

    async fn run(&self) -> (Tenants, Running) {
        self.start(self.journal.builder().refresh(secs(1))).await
    }

    async fn handled(&self, count: usize) {
        eventually(&format!("{count} are handled"), secs(30), || self.journal.len() == count).await;
    }
}

fn state(tenants: &Tenants, key: &str) -> Option<TenantState> {
    let key = TenantKey::from(key);
    tenants.list().into_iter().find(|info: &TenantInfo| info.key == key).map(|info| info.state)
}

/// OBX-075, OBX-076: every five minutes by default.
#[tokio::test(start_paused = true)]
async fn discovered_every_five_minutes() {
    assert_eq!(Settings::default().tenants_refresh, secs(300));
    let scene = Scene::new();
    scene.list("a");
    let (_tenants, running) = scene.start(scene.journal.builder()).await;
    assert_eq!(scene.directory.asked(), 1);
    sleep(secs(3_600)).await;
    assert!((11..=13).contains(&scene.directory.asked()), "{}", scene.directory.asked());
    running.stop().await;
}

/// OBX-077, OBX-078, OBX-079: new ones are served, unchanged ones stay as they are, and removed ones are drained and then
/// left alone.
#[tokio::test(start_paused = true)]
async fn tenants_come_and_go() {
    let scene = Scene::new();
    scene.list("a");
    enqueue(&scene.network, "a", 10).await;
    let (tenants, running) = scene.run().await;
    scene.handled(10).await;
    scene.list("b");
    enqueue(&scene.network, "b", 10).await;
    scene.handled(20).await;
    scene.directory.remove("a");
    enqueue(&scene.network, "a", 10).await;
    eventually("a is gone", secs(30), || state(&tenants, "a").is_none()).await;
    assert_eq!(scene.journal.of("a").len(), 20, "drained before it was removed");
    enqueue(&scene.network, "a", 10).await;
    let reached = scene.network.reached("a");
    sleep(secs(60)).await;
    assert_eq!(
        (scene.journal.len(), scene.network.reached("a")),
        (30, reached),
        "nobody looks there any more"
    );
    assert!(tenants.outbox::<Remote>("a").await.is_err());
    // It comes back, with a store of its own.
    scene.list("a");
    scene.handled(40).await;
    assert_eq!((scene.network.stores("a"), scene.network.stores("b")), (2, 1));
    running.stop().await;
}

/// Named tenants are there whatever the discovery finds, beside the discovered ones.
#[tokio::test(start_paused = true)]
async fn named_tenants_stay() {
    let scene = Scene::new();
    scene.list("found");
    let builder = scene.journal.builder().tenant("named", scene.network.source("named", ""));
    let (tenants, running) = scene.start(builder).await;
    for _ in 0..3 {
        assert_eq!(tenants.refresh().await.unwrap(), posthaste_core::Changes::default());
    }
    scene.directory.remove("found");
    for name in ["named", "found"] {
        enqueue(&scene.network, name, 1).await;
    }
    scene.handled(2).await;
    for _ in 0..3 {
        tenants.refresh().await.unwrap();
    }
    eventually("the other is gone", secs(5), || state(&tenants, "found").is_none()).await;
    assert_eq!(state(&tenants, "named"), Some(TenantState::Running));
    enqueue(&scene.network, "named", 1).await;
    scene.handled(3).await;
    running.stop().await;
}

/// A store that is missing once is not removed; and an error is not an empty list.
#[tokio::test(start_paused = true)]
async fn missing_once_is_not_removed() {
    let scene = Scene::new();
    scene.list("a");
    scene.list("b");
    let tenants = scene.journal.builder().discover(scene.directory.clone()).build().await.unwrap();
    for _ in 0..5 {
        scene.directory.remove("a");
        assert_eq!(tenants.refresh().await.unwrap().missing, 1);
        scene.directory.fail(true);
        for _ in 0..5 {
            assert!(tenants.refresh().await.is_err());
        }
        scene.directory.fail(false);
        assert!(tenants.outbox::<Remote>("a").await.is_ok());
        scene.list("a");
        assert_eq!(tenants.refresh().await.unwrap(), posthaste_core::Changes::default());
    }
    assert_eq!((scene.network.stores("a"), scene.network.stores("b")), (1, 1));
    scene.directory.remove("a");
    assert_eq!(tenants.refresh().await.unwrap().missing, 1);
    assert_eq!(tenants.refresh().await.unwrap().removed, 1);
    assert_eq!(tenants.list().len(), 1);
}

/// A discovery that fails, hangs or panics changes nothing, and is tried again.
#[tokio::test(start_paused = true)]
async fn a_discovery_that_fails_changes_nothing() {
    let scene = Scene::new();
    scene.list("a");
    let (tenants, running) = scene.run().await;
    scene.directory.fail(true);
    scene.directory.remove("a");
    sleep(secs(60)).await;
    enqueue(&scene.network, "a", 5).await;
    scene.handled(5).await;
    assert_eq!(state(&tenants, "a"), Some(TenantState::Running));
    running.stop().await;

    let (first, network) = (AtomicBool::new(true), scene.network.clone());
    let discovery = move || {
        let is_first = first.swap(false, Ordering::SeqCst);
        let tenant = Tenant::new("a", network.source("a", ""));
        async move {
            assert!(is_first, "a defect of the discovery's");
            Ok(vec![tenant])
        }
    };
    let tenants = Tenants::builder().discover(discovery).build().await.unwrap();
    assert!(tenants.refresh().await.unwrap_err().to_string().contains("panicked"));
    let hanging = Tenants::builder().discover(|| async { std::future::pending().await });
    let asked = Instant::now();
    assert!(hanging.build().await.unwrap_err().to_string().contains("timed out"));
    assert_eq!(asked.elapsed().as_secs(), 30);
    assert_eq!(tenants.list().len(), 1);
}

/// Changed credentials: the same store goes on with the new ones.
#[tokio::test(start_paused = true)]
async fn a_new_password_behind_the_same_store() {
    let scene = Scene::new();
    scene.network.set_password("a", "old");
    scene.list_as("a", "a", "old");
    let (tenants, running) = scene.run().await;
    let outbox = tenants.outbox::<Remote>("a").await.unwrap();
    enqueue(&scene.network, "a", 10).await;
    scene.handled(10).await;
    scene.network.set_password("a", "new");
    scene.list_as("a", "a", "new");
    sleep(secs(2)).await;
    enqueue(&scene.network, "a", 10).await;
    scene.handled(20).await;
    outbox.enqueue(NewMessage::bytes("t", "")).await.unwrap();
    scene.handled(21).await;
    assert_eq!(scene.network.stores("a"), 1);
    assert_eq!(state(&tenants, "a"), Some(TenantState::Running));
    // The password is changed at the database first: the store fails, and is back as soon as the new one is known.
    // Open settlements are tried again at once, too.
    scene.network.set_password("a", "newer");
    let deadline = Instant::now() + secs(10);
    while !matches!(state(&tenants, "a"), Some(TenantState::Failing { .. })) {
        assert!(Instant::now() < deadline, "it fails");
        // A connection that was in use when it rested is closed the next time.
        outbox.store().rest().await;
        sleep(Duration::from_millis(5)).await;
    }
    enqueue(&scene.network, "a", 1).await;
    sleep(secs(30)).await;
    scene.list_as("a", "a", "newer");
    eventually("it is back", secs(2), || scene.journal.len() == 22).await;
    running.stop().await;
}

/// Another database under the same key: the old one is drained, the new one served.
#[tokio::test(start_paused = true)]
async fn another_database_under_the_same_key() {
    let scene = Scene::new();
    scene.list_as("a", "old", "");
    let (tenants, running) = scene.run().await;
    enqueue(&scene.network, "old", 5).await;
    enqueue(&scene.network, "new", 5).await;
    scene.handled(5).await;
    scene.list_as("a", "new", "");
    enqueue(&scene.network, "old", 5).await;
    scene.handled(15).await;
    sleep(secs(5)).await;
    let reached = scene.network.reached("old");
    sleep(secs(60)).await;
    assert_eq!(scene.network.reached("old"), reached, "nobody looks there any more");
    assert_eq!(tenants.list().len(), 1);
    assert!(tenants.list()[0].database.contains("new"));
    running.stop().await;
}

/// A tenant that comes back while it is drained goes on as before.
#[tokio::test(start_paused = true)]
async fn back_before_it_was_drained() {
    let scene = Scene::new();
    scene.list("a");
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (held, journal) = (Arc::clone(&gate), scene.journal.clone());
    let builder = Tenants::builder().refresh(secs(1)).on_topic("t", move |message: Message| {
        let (held, journal) = (Arc::clone(&held), journal.clone());
        async move {
            held.acquire().await.unwrap().forget();
            journal.note("a", message.id);
            HandlerResult::Ok(())
        }
    });
    let (tenants, running) = scene.start(builder).await;
    enqueue(&scene.network, "a", 4).await;
    sleep(secs(1)).await;
    scene.directory.remove("a");
    eventually("it is drained", secs(10), || state(&tenants, "a") == Some(TenantState::Draining)).await;
    assert!(tenants.outbox::<Remote>("a").await.is_err(), "no writes any more");
    scene.list("a");
    eventually("it is back", secs(10), || state(&tenants, "a") == Some(TenantState::Running)).await;
    gate.add_permits(100);
    scene.handled(4).await;
    enqueue(&scene.network, "a", 4).await;
    scene.handled(8).await;
    assert_eq!(scene.network.stores("a"), 1);
    running.stop().await;
}

/// R10: whenever a tenant comes back while it is drained, it is served again, without another discovery.
#[tokio::test(start_paused = true)]
async fn back_at_any_moment() {
    // Calls take longer than a discovery and than the steps below, so that each call of a drain is met.
    let scene = Scene { network: network_of(3, 100), ..Scene::new() };
    scene.list("a");
    let (tenants, running) = scene.start(scene.journal.builder().refresh(secs(3_600))).await;
    for (n, offset) in (0..300).step_by(7).enumerate() {
        scene.directory.remove("a");
        tenants.refresh().await.unwrap();
        tenants.refresh().await.unwrap();
        scene.list("a");
        sleep(Duration::from_millis(offset)).await;
        tenants.refresh().await.unwrap();
        enqueue(&scene.network, "a", 1).await;
        let is_served = || scene.journal.len() == n + 1;
        eventually(&format!("it is served, back after {offset} ms"), secs(120), is_served).await;
    }
    running.stop().await;
}

/// R7: a database that does not answer keeps no shutdown waiting, neither a graceful one nor one that is to end at once.
#[tokio::test(start_paused = true)]
async fn stopped_while_a_tenant_is_silent() {
    for at_once in [false, true] {
        let scene = Scene::new();
        scene.list("silent");
        scene.network.set("silent", Reach::Silent);
        let (_tenants, running) = scene.run().await;
        sleep(Duration::from_millis(100)).await;
        let began = Instant::now();
        if at_once {
            running.shutdown.now();
        }
        running.stop().await;
        assert!(began.elapsed() < secs(1), "{:?}, at once: {at_once}", began.elapsed());
    }
}

/// A removed tenant whose database is gone is given up in time, and messages due later stay where they are.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_drained() {
    let scene = Scene::new();
    scene.list("gone");
    scene.list("later");
    let mut settings = Settings::default();
    (settings.tenants_refresh, settings.tenants_drain) = (secs(1), secs(60));
    let (tenants, running) = scene.start(scene.journal.builder().settings(settings)).await;
    sleep(secs(1)).await;
    let later = NewMessage::bytes("t", "").delay(secs(3_600)).build().unwrap();
    scene.network.database("later").enqueue(&[later]).await.unwrap();
    scene.network.set("gone", Reach::Silent);
    tenants.outbox::<Remote>("gone").await.unwrap().store().rest().await;
    scene.directory.remove("gone");
    scene.directory.remove("later");
    eventually("what is due later is left", secs(10), || state(&tenants, "later").is_none()).await;
    assert_eq!(state(&tenants, "gone"), Some(TenantState::Draining));
    eventually("it is given up", secs(90), || state(&tenants, "gone").is_none()).await;
    assert_eq!(scene.network.database("later").stats().await.unwrap().scheduled.value, 1);
    running.stop().await;
}

/// The same database under two names is polled once, and both take writes.
#[tokio::test(start_paused = true)]
async fn the_same_database_under_two_names() {
    let scene = Scene::new();
    scene.list_as("a", "same", "");
    scene.list_as("b", "same", "");
    let (tenants, running) = scene.run().await;
    let twins = || tenants.list().into_iter().filter(|info| info.state.as_str() == "twin").count();
    eventually("one is the other's twin", secs(5), || twins() == 1).await;
    for key in ["a", "b"] {
        tenants.outbox::<Remote>(key).await.unwrap().enqueue(NewMessage::bytes("t", "")).await.unwrap();
    }
    scene.handled(2).await;
    sleep(secs(70)).await;
    let before = scene.network.reached("same");
    sleep(secs(30)).await;
    let looks = scene.network.reached("same") - before;
    assert!(looks <= 32, "{looks} calls in half a minute are those of two");
    // The one that is polled goes: the other takes over.
    let polled = tenants.list().into_iter().find(|info| info.state == TenantState::Running).unwrap();
    scene.directory.remove(polled.key.as_str());
    eventually("one is left", secs(30), || tenants.list().len() == 1 && twins() == 0).await;
    enqueue(&scene.network, "same", 1).await;
    scene.handled(3).await;
    running.stop().await;
}

/// One key for two databases is an error, and changes nothing.
#[tokio::test(start_paused = true)]
async fn one_key_for_two_databases() {
    let network = network();
    let both = Arc::new(AtomicBool::new(false));
    let (twice, known) = (Arc::clone(&both), network.clone());
    let discovery = move || {
        let mut tenants = vec![Tenant::new("a", known.source("a", ""))];
        if twice.load(Ordering::SeqCst) {
            tenants.push(Tenant::new("a", known.source("b", "")));
        }
        async move { Ok(tenants) }
    };
    let tenants = Tenants::builder().discover(discovery).build().await.unwrap();
    both.store(true, Ordering::SeqCst);
    let error = tenants.refresh().await.unwrap_err().to_string();
    assert!(error.contains("tenant=a") && error.contains("two databases"), "{error}");
    assert!(tenants.list()[0].database.ends_with('a'));
}

/// Administration over all tenants: figures of each, figures together, and errors for tenants that cannot be asked.
#[tokio::test(start_paused = true)]
async fn figures_of_all() {
    let scene = Scene::new();
    for (name, count) in [("a", 3), ("b", 4), ("bad", 0)] {
        scene.list(name);
        enqueue(&scene.network, name, count).await;
    }
    scene.network.set("bad", Reach::Refused);
    let builder = Tenants::builder().on_topic("other", async |_: Message| HandlerResult::Ok(()));
    let (tenants, running) = scene.start(builder).await;
    eventually("one fails", secs(5), || matches!(state(&tenants, "bad"), Some(TenantState::Failing { .. })))
        .await;
    let stats = tenants.stats().await;
    assert_eq!((stats.total.ready.value, stats.total.ready.exact), (7, true));
    assert_eq!((stats.total.topics.len(), stats.total.topics[0].count.value), (1, 7));
    let figures: Vec<_> = stats.tenants.iter().map(|(key, stats)| (key.as_str(), stats.is_ok())).collect();
    assert_eq!(figures, [("a", true), ("b", true), ("bad", false)]);
    let error = stats.tenants[2].1.as_ref().unwrap_err().to_string();
    assert!(error.contains("store=bad"), "{error}");
    assert_eq!(tenants.admin("b").await.unwrap().stats().await.unwrap().ready.value, 4);
    running.stop().await;
}

/// Joins and inboxes are each tenant's own.
#[tokio::test(start_paused = true)]
async fn joins_and_inboxes_of_each_tenant() {
    let (a, b, journal) = (MemoryStore::new(), MemoryStore::new(), Journal::default());
    let builder = journal.builder().store("a", a.clone()).store("b", b.clone());
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    let outbox = tenants.outbox::<MemoryStore>("a").await.unwrap();
    let mut tx = a.begin();
    let wait = JoinWait::on_complete(NewMessage::bytes("t", ""));
    let join = NewJoin::expecting(1).step(NewMessage::bytes("t", "")).wait(wait);
    outbox.start_join(&mut tx, join).await.unwrap();
    tx.commit();
    eventually("the step and the continuation are handled", secs(5), || journal.of("a").len() == 2).await;
    assert!(journal.of("b").is_empty() && b.stats().await.unwrap().done.value == 0);

    let inboxes = tenants.inboxes::<MemoryStore>(Inbox::new((), "stock").unwrap().keep_for(secs(1)).unwrap());
    let message = Received::new("orders", MessageId::new(), "order", "");
    for (key, store) in [("a", &a), ("b", &b)] {
        for once in [Once::First, Once::Repeated] {
            let mut tx = store.begin();
            assert_eq!(inboxes.of(key).await.unwrap().once(&mut tx, &message).await.unwrap(), once);
            tx.commit();
        }
    }
    std::thread::sleep(Duration::from_millis(1_100));
    let forgotten = inboxes.forget().await;
    assert_eq!(forgotten.iter().map(|(_, rows)| *rows.as_ref().unwrap()).collect::<Vec<_>>(), [1, 1]);
    running.stop().await;
}

/// The inboxes of all tenants forget by the schedule that they were given.
#[tokio::test(start_paused = true)]
async fn inboxes_forget_by_their_schedule() {
    let store = MemoryStore::new();
    let tenants = Tenants::builder().store("a", store.clone()).build().await.unwrap();
    let like = Inbox::new((), "stock").unwrap().keep_for(secs(1)).unwrap();
    let inboxes = tenants.inboxes::<MemoryStore>(like.prune(Schedule::every(secs(10))));
    let message = Received::new("orders", MessageId::new(), "order", "");
    let mut tx = store.begin();
    assert_eq!(inboxes.of("a").await.unwrap().once(&mut tx, &message).await.unwrap(), Once::First);
    tx.commit();
    std::thread::sleep(Duration::from_millis(1_100));
    let remembered = async || store.remembered("stock", "orders", message.id).await.unwrap().is_some();
    let shutdown = Shutdown::new();
    let running = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { inboxes.run(shutdown).await }
    });
    sleep(secs(9)).await;
    assert!(remembered().await, "not before its time");
    sleep(secs(2)).await;
    assert!(!remembered().await);
    shutdown.begin();
    running.await.unwrap();
}

/// Dropped, it stops, and gives back messages that were not started.
#[tokio::test(start_paused = true)]
async fn stops_when_it_is_told() {
    let scene = Scene::new();
    for name in ["a", "b", "c"] {
        scene.list(name);
        enqueue(&scene.network, name, 200).await;
    }
    let builder = Tenants::builder().on_topic("t", async |_: Message| {
        sleep(Duration::from_millis(100)).await;
        HandlerResult::Ok(())
    });
    let tenants = builder.discover(scene.directory.clone()).build().await.unwrap();
    let shutdown = Shutdown::new();
    let running = tokio::spawn(tenants.run(shutdown.clone()));
    sleep(secs(2)).await;
    shutdown.begin();
    running.await.unwrap().unwrap();
    for name in ["a", "b", "c"] {
        assert_eq!(scene.network.database(name).stats().await.unwrap().leased.value, 0, "{name}");
    }
    drop(tokio::time::timeout(secs(1), tenants.run(Shutdown::new())).await);
    sleep(secs(5)).await;
    let calls = scene.network.counts().1;
    sleep(secs(60)).await;
    assert_eq!(scene.network.counts().1, calls, "nothing goes on");
    assert!(tenants.outbox::<Remote>("a").await.is_ok());
}

/// A source with a defect.
#[derive(Clone, Debug, PartialEq)]
struct Defective;

impl posthaste_core::Source for Defective {
    type Store = posthaste_testkit::Remote;

    fn open(&self) -> posthaste_core::Result<Self::Store> {
        panic!("a defect of the source's")
    }

    fn change(&self, _: &Self::Store) -> posthaste_core::Result<bool> {
        Ok(true)
    }
}

/// R17: a source that panics when it is opened is one refused tenant. Discovery goes on, and finds later ones.
#[tokio::test(start_paused = true)]
async fn a_source_that_panics_does_not_end_discovery() {
    let scene = Scene::new();
    scene.list("a");
    let (tenants, running) = scene.run().await;
    scene.directory.put(Tenant::new("defective", Defective));
    let asked = scene.directory.asked();
    eventually("it was discovered", secs(30), || scene.directory.asked() > asked + 2).await;
    scene.list("z");
    eventually("a later one is found", secs(30), || state(&tenants, "z").is_some()).await;
    enqueue(&scene.network, "a", 1).await;
    enqueue(&scene.network, "z", 1).await;
    scene.handled(2).await;
    assert_eq!(tenants.refresh().await.unwrap().refused, 1);
    running.stop().await;
}
