//! Turns of tenants: to be polled, to start a handler, to use a connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{
    ClaimRequest, DrainFirst, HandlerResult, MemoryStore, Message, MessageId, NewMessage, Origin, Place,
    RoundRobin, Selection, Store as _, StoreAdmin as _, TenantState, Tenants, TenantsBuilder, WorkerId,
};
use posthaste_testkit::{Network, Reach};
use tokio::time::{Instant, sleep};

use crate::support::{Journal, enqueue, eventually, network, run, secs, settings};

const ABC: [&str; 3] = ["a", "b", "c"];

fn over(builder: TenantsBuilder, network: &Network, names: &[&str]) -> TenantsBuilder {
    names.iter().fold(builder, |builder, name| builder.tenant(*name, network.source(name, "")))
}

fn draft() -> NewMessage {
    NewMessage::bytes("t", "").build().unwrap()
}

/// Stores a message that has lost two leases.
async fn suspect(store: &MemoryStore) -> MessageId {
    let message = draft();
    store.enqueue(std::slice::from_ref(&message)).await.unwrap();
    for _ in 0..2 {
        let worker = WorkerId::new("dead").unwrap();
        let request = ClaimRequest::new(worker).lease(Duration::from_millis(1));
        assert_eq!(store.claim(&request).await.unwrap().len(), 1);
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(store.reap(1).await.unwrap().ready, 1);
    }
    message.id()
}

/// The claims that found something, in their order.
fn found(network: &Network) -> Vec<String> {
    network.claims().into_iter().filter(|(_, found)| *found > 0).map(|(store, _)| store).collect()
}

/// OBX-067, OBX-068: one batch of each store in order, then again.
#[tokio::test(start_paused = true)]
async fn round_robin_takes_one_batch_of_each() {
    let (network, journal) = (network(), Journal::default());
    for name in ABC {
        enqueue(&network, name, 100).await;
    }
    let builder = journal.builder().selection(RoundRobin::default()).connections(1).workers(1).quantum(10);
    let tenants = over(builder, &network, &ABC).build().await.unwrap();
    let running = run(&tenants);
    eventually("all are handled", secs(60), || journal.len() == 300).await;
    running.stop().await;
    assert_eq!(
        network.claims().into_iter().map(|(_, found)| found).max(),
        Some(10),
        "never more than a quantum"
    );
    let claims = found(&network);
    // The first tenant that was reached has its first turn before the others are there.
    let turns: Vec<_> = claims.iter().skip_while(|store| **store != "a").collect();
    let busy = turns.len() - 3;
    assert!(busy > 6, "{claims:?}");
    for pair in turns[..busy].windows(2).skip(3) {
        assert_ne!(pair[0], pair[1], "nobody twice in a row while others wait: {claims:?}");
    }
}

/// OBX-069: the same store until it returns nothing.
#[tokio::test(start_paused = true)]
async fn drain_first_empties_one_store_at_a_time() {
    let (network, journal) = (network(), Journal::default());
    for name in ABC {
        enqueue(&network, name, 30).await;
    }
    let builder = journal.builder().selection(DrainFirst::default()).workers(1).quantum(10);
    let tenants = over(builder, &network, &ABC).build().await.unwrap();
    let running = run(&tenants);
    eventually("all are handled", secs(60), || journal.len() == 90).await;
    running.stop().await;
    let mut stores = found(&network);
    stores.dedup();
    assert_eq!(stores.len(), 3, "one after the other: {stores:?}");
    let mut handled = journal.stores();
    handled.dedup();
    assert_eq!(handled.len(), 3, "{handled:?}");
}

/// The last one that came is first.
#[derive(Debug, Default)]
struct Latest(VecDeque<Place>);

impl Selection for Latest {
    fn due(&mut self, place: Place, _: &Arc<str>) {
        self.0.push_front(place);
    }

    fn next(&mut self) -> Option<Place> {
        self.0.pop_front()
    }

    fn looked(&mut self, _: Place, _: Option<(u32, u32)>) {}

    fn gone(&mut self, place: Place) {
        self.0.retain(|other| *other != place);
    }
}

/// OBX-067: a user's own selection.
#[tokio::test(start_paused = true)]
async fn a_selection_of_one_s_own() {
    let (network, journal) = (network(), Journal::default());
    for name in ABC {
        enqueue(&network, name, 20).await;
    }
    let builder = journal.builder().selection(Latest::default()).connections(2);
    let tenants = over(builder, &network, &ABC).build().await.unwrap();
    let running = run(&tenants);
    eventually("all are handled", secs(60), || journal.len() == 60).await;
    running.stop().await;
}

/// No busy tenant starves another, by default: not at claims, and not at handlers.
#[tokio::test(start_paused = true)]
async fn a_busy_tenant_starves_nobody() {
    let (network, journal) = (network(), Journal::default());
    let small: Vec<String> = (0..20).map(|n| format!("small-{n}")).collect();
    enqueue(&network, "busy", 20_000).await;
    let handled = journal.clone();
    let slow = Tenants::builder().workers(2).on_topic("t", move |message: Message, origin: Origin| {
        let handled = handled.clone();
        async move {
            sleep(Duration::from_millis(10)).await;
            handled.note(origin.store(), message.id);
            HandlerResult::Ok(())
        }
    });
    let builder = over(slow, &network, &["busy"]);
    let names: Vec<&str> = small.iter().map(String::as_str).collect();
    let tenants = over(builder, &network, &names).build().await.unwrap();
    let running = run(&tenants);
    sleep(secs(5)).await;
    let before = journal.of("busy").len();
    for name in &names {
        enqueue(&network, name, 20).await;
    }
    let asked = Instant::now();
    eventually("the small ones are handled", secs(60), || {
        journal.counts().iter().filter(|(name, count)| name.starts_with("small") && **count == 20).count()
            == 20
    })
    .await;
    let meanwhile = journal.of("busy").len() - before;
    println!("400 of 20 others in {:?}, and {meanwhile} of the busy one", asked.elapsed());
    // 400 others at 5 ms each: two seconds of work. The busy one has had a turn among 21, and its earlier claims.
    assert!(meanwhile <= 150, "{meanwhile}");
    assert!(asked.elapsed() < secs(5), "{:?}", asked.elapsed());
    running.stop().await;
}

/// Handlers at a time, and messages in memory, are counted over all tenants.
#[tokio::test(start_paused = true)]
async fn limits_hold_over_all_tenants() {
    let network = network();
    let (running_now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let names: Vec<String> = (0..10).map(|n| format!("t{n}")).collect();
    for name in &names {
        enqueue(&network, name, 100).await;
    }
    let (now, peak) = (Arc::clone(&running_now), Arc::clone(&most));
    let builder = Tenants::builder()
        .settings(settings(|settings| (settings.workers, settings.cold_capacity) = (3, 40)))
        .on_topic("t", move |_: Message| {
            let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
            async move {
                peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_millis(20)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                HandlerResult::Ok(())
            }
        });
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tenants = over(builder, &network, &names).build().await.unwrap();
    let running = run(&tenants);
    let mut most_held = 0;
    for _ in 0..200 {
        sleep(Duration::from_millis(10)).await;
        let mut held = 0;
        for name in &names {
            held += network.database(name).stats().await.unwrap().leased.value;
        }
        most_held = most_held.max(held);
    }
    running.stop().await;
    println!("{} handlers at a time, {most_held} messages held", most.load(Ordering::SeqCst));
    assert_eq!(most.load(Ordering::SeqCst), 3);
    // Claims that are under way when the limit is reached may exceed it.
    assert!((3..=80).contains(&most_held), "{most_held}");
}

/// The room of the hot path is one for all tenants, too.
#[tokio::test(start_paused = true)]
async fn the_hot_path_has_room_for_all_together() {
    let (a, b) = (MemoryStore::new(), MemoryStore::new());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let held = Arc::clone(&gate);
    let builder = Tenants::builder().workers(1).hot_capacity(10).on_topic("t", move |_: Message| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.unwrap().forget();
            HandlerResult::Ok(())
        }
    });
    let tenants = builder.store("a", a.clone()).store("b", b.clone()).build().await.unwrap();
    let running = run(&tenants);
    sleep(secs(1)).await;
    for key in ["a", "b"] {
        let outbox = tenants.outbox::<MemoryStore>(key).await.unwrap();
        for _ in 0..10 {
            let mut tx = outbox.begin().await.unwrap();
            tx.publish(NewMessage::bytes("t", "")).await.unwrap();
            tx.commit().await.unwrap();
        }
    }
    assert!(a.stats().await.unwrap().leased.value >= 9);
    let leased = b.stats().await.unwrap().leased.value;
    assert!(leased <= 3, "{leased} were born leased although there was no room");
    gate.add_permits(100);
    sleep(secs(5)).await;
    let stats = tenants.stats().await;
    assert_eq!((stats.total.done.value, stats.total.pending().value), (20, 0));
    running.stop().await;
}

/// For tests of users: everything that is due, of all tenants.
#[tokio::test(start_paused = true)]
async fn all_are_drained() {
    let (network, journal) = (network(), Journal::default());
    for (name, count) in ABC.into_iter().zip([5, 0, 300]) {
        enqueue(&network, name, count).await;
    }
    let tenants = over(journal.builder(), &network, &ABC).build().await.unwrap();
    assert_eq!(tenants.drain().await.unwrap().delivered, 305);
    assert_eq!((journal.of("a").len(), journal.of("c").len()), (5, 300));
    network.set("b", Reach::Refused);
    tenants.outbox::<posthaste_testkit::Remote>("b").await.unwrap().store().rest().await;
    let error = tenants.drain().await.unwrap_err().to_string();
    assert!(error.contains("store=b"), "{error}");
}

/// A failing store costs the others nothing: neither their connections nor their time, and the log no line per attempt.
#[tokio::test(start_paused = true)]
async fn a_failing_store_costs_the_others_nothing() {
    let mut took = Vec::new();
    for failing in [0, 6] {
        let (network, journal) = (network(), Journal::default());
        let bad: Vec<String> = (0..failing).map(|n| format!("bad-{n}")).collect();
        for (n, name) in bad.iter().enumerate() {
            network.set(name, if n % 2 == 0 { Reach::Silent } else { Reach::Refused });
        }
        for name in ABC {
            enqueue(&network, name, 1_000).await;
        }
        let names: Vec<&str> = bad.iter().map(String::as_str).chain(ABC).collect();
        let tenants = over(journal.builder().connections(4), &network, &names).build().await.unwrap();
        let started = Instant::now();
        let running = run(&tenants);
        eventually("all are handled", secs(60), || journal.len() == 3_000).await;
        took.push(started.elapsed());
        // For a minute they are tried, but not much.
        sleep(secs(60)).await;
        for name in &bad {
            let connects = network.connects(name);
            assert!((4..20).contains(&connects), "{connects} attempts at {name}");
        }
        let failing_now = tenants.list().iter().filter(|info| info.state.as_str() == "failing").count();
        assert_eq!(failing_now, failing);
        assert!(network.connections().1 <= 4);
        // They are served soon after they are back.
        for name in &bad {
            enqueue(&network, name, 1).await;
            network.set(name, Reach::Open);
        }
        eventually("they are back", secs(25), || journal.len() == 3_000 + failing).await;
        assert!(tenants.list().iter().all(|info| info.state == TenantState::Running));
        running.stop().await;
    }
    println!("without: {:?}, with failing ones: {:?}", took[0], took[1]);
    assert!(took[1] <= took[0].mul_f64(1.25) + Duration::from_millis(400), "{took:?}");
}

/// As many silent stores as there are connections, retried as often as possible, do not keep other tenants waiting for long: an
/// unanswered call soon gives up its connection and its turn.
#[tokio::test(start_paused = true)]
async fn stores_that_fall_silent_keep_nobody_waiting() {
    let (network, journal, ms) = (network(), Journal::default(), Duration::from_millis);
    let eager = settings(|settings| {
        (settings.tenants_connections, settings.tenants_retry, settings.poll_ceiling) = (4, ms(100), ms(100));
    });
    let silent: Vec<String> = (0..4).map(|n| format!("silent-{n}")).collect();
    let names: Vec<&str> = silent.iter().map(String::as_str).chain(ABC).collect();
    let tenants = over(journal.builder().settings(eager), &network, &names).build().await.unwrap();
    let running = run(&tenants);
    eventually("all are reached", secs(5), || names.iter().all(|name| network.reached(name) > 2)).await;
    for name in &silent {
        network.set(name, Reach::Silent);
        let outbox = tenants.outbox::<posthaste_testkit::Remote>(name.as_str()).await.unwrap();
        outbox.store().rest().await;
    }
    let is_failing = |state: &TenantState| matches!(state, TenantState::Failing { .. });
    eventually("they fail", secs(30), || {
        tenants.list().iter().filter(|info| is_failing(&info.state)).count() == silent.len()
    })
    .await;
    // Jobs that began before they were known to fail have ended by then.
    sleep(secs(10)).await;
    for round in 1..=20 {
        for name in ABC {
            enqueue(&network, name, 10).await;
        }
        eventually("the others are handled", secs(1), || journal.len() == round * 30).await;
        sleep(ms(700)).await;
    }
    running.stop().await;
}

/// A store that fails after it was reached costs no more than one that never was: nothing but the attempts to claim, and those
/// ever less often.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_later_is_left_alone() {
    let (network, journal, hour) = (network(), Journal::default(), secs(3_600));
    let patient = settings(|settings| settings.tenants_retry = hour);
    let tenants = over(journal.builder().settings(patient), &network, &["a"]).build().await.unwrap();
    let running = run(&tenants);
    eventually("it is reached", secs(1), || network.reached("a") > 2).await;
    network.set("a", Reach::Refused);
    tenants.outbox::<posthaste_testkit::Remote>("a").await.unwrap().store().rest().await;
    sleep(2 * hour).await;
    assert!(matches!(tenants.list()[0].state, TenantState::Failing { .. }));
    let before = network.connects("a");
    sleep(4 * hour).await;
    let connects = network.connects("a") - before;
    assert!((3..=6).contains(&connects), "{connects} attempts in four hours");
    running.stop().await;
}

/// A message that lost two leases, and may be the one that kills the process, runs alone in it: no other tenant's handler
/// runs, and no other tenant's message is even held.
#[tokio::test(start_paused = true)]
async fn a_suspect_runs_alone_among_all_tenants() {
    let stores: Vec<MemoryStore> = (0..4).map(|_| MemoryStore::new()).collect();
    let suspect = suspect(&stores[0]).await;
    for store in &stores[1..] {
        store.enqueue(&(0..200).map(|_| draft()).collect::<Vec<_>>()).await.unwrap();
    }
    let now = Arc::new(AtomicUsize::new(0));
    let seen: Arc<Mutex<Vec<(usize, u64)>>> = Arc::default();
    let done = Arc::new(AtomicUsize::new(0));
    let handler = {
        let (now, seen, done, stores, suspect) =
            (Arc::clone(&now), Arc::clone(&seen), Arc::clone(&done), stores.clone(), suspect);
        move |message: Message| {
            let (now, seen, done, stores) =
                (Arc::clone(&now), Arc::clone(&seen), Arc::clone(&done), stores.clone());
            async move {
                let others = now.fetch_add(1, Ordering::SeqCst);
                if message.id == suspect {
                    for _ in 0..50 {
                        let mut held = 0;
                        for store in &stores[1..] {
                            held += store.stats().await.unwrap().leased.value;
                        }
                        seen.lock().unwrap().push((others.max(now.load(Ordering::SeqCst) - 1), held));
                        sleep(Duration::from_millis(10)).await;
                    }
                } else {
                    sleep(Duration::from_millis(5)).await;
                }
                now.fetch_sub(1, Ordering::SeqCst);
                done.fetch_add(1, Ordering::SeqCst);
                HandlerResult::Ok(())
            }
        }
    };
    let mut builder = Tenants::builder().on_topic("t", handler);
    for (n, store) in stores.iter().enumerate() {
        builder = builder.store(format!("t{n}"), store.clone());
    }
    let tenants = builder.build().await.unwrap();
    let started = Instant::now();
    let running = run(&tenants);
    eventually("all are handled", secs(20), || done.load(Ordering::SeqCst) == 601).await;
    running.stop().await;
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 50);
    assert!(seen.iter().all(|(others, held)| (*others, *held) == (0, 0)), "{seen:?}");
    assert!(
        started.elapsed() < secs(5),
        "nobody waits for longer than the suspect runs: {:?}",
        started.elapsed()
    );
}

/// While a suspect waits for the others, however long, it wakes no other task.
#[tokio::test(start_paused = true)]
async fn a_suspect_that_waits_keeps_nobody_awake() {
    let (slow, other) = (MemoryStore::new(), MemoryStore::new());
    let journal = Journal::default();
    let handled = journal.clone();
    let builder = Tenants::builder().workers(1).on_topic("t", move |message: Message, origin: Origin| {
        let handled = handled.clone();
        async move {
            handled.note(origin.store(), message.id);
            if origin.store() == "slow" {
                sleep(secs(200)).await;
            }
            HandlerResult::Ok(())
        }
    });
    let mut builder = builder.store("slow", slow.clone()).store("other", other.clone());
    for n in 0..5 {
        builder = builder.store(format!("idle-{n}"), MemoryStore::new());
    }
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    slow.enqueue(&[draft()]).await.unwrap();
    eventually("the slow one runs", secs(5), || journal.len() == 1).await;
    suspect(&other).await;
    // Longer than a lease: it need not wait for the others any more, but for the only slot.
    sleep(secs(60)).await;
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.worker_park_count(0);
    sleep(secs(60)).await;
    let parks = metrics.worker_park_count(0) - before;
    println!("{parks} times something happened in a minute");
    assert!(parks < 2_000, "{parks}");
    eventually("the suspect has run", secs(100), || journal.len() == 2).await;
    running.stop().await;
}

/// Unused connections are closed.
#[tokio::test(start_paused = true)]
async fn idle_stores_have_no_connections() {
    let (network, journal) = (network(), Journal::default());
    let hour = secs(3_600);
    let quiet = settings(|settings| {
        (settings.tenants_idle, settings.tenants_idle_poll) = (secs(10), hour);
        for schedule in [&mut settings.reap, &mut settings.expire, &mut settings.park, &mut settings.stats] {
            *schedule = posthaste_core::Schedule::every(hour);
        }
    });
    let tenants = over(journal.builder().settings(quiet), &network, &ABC).build().await.unwrap();
    let running = run(&tenants);
    eventually("they are reached", secs(1), || network.connections().0 >= 3).await;
    // Polls come less and less often, and at last there is a pause between those of all three.
    eventually("they rest", secs(600), || network.connections().0 == 0).await;
    // Publishing here wakes the store that is published to.
    let outbox = tenants.outbox::<posthaste_testkit::Remote>("b").await.unwrap();
    outbox.enqueue(NewMessage::bytes("t", "")).await.unwrap();
    eventually("it is handled", secs(1), || journal.len() == 1).await;
    running.stop().await;
}

/// The budget of connections is kept, however many stores have work.
#[tokio::test(start_paused = true)]
async fn connections_stay_within_the_budget() {
    let (network, journal) = (network(), Journal::default());
    let names: Vec<String> = (0..50).map(|n| format!("t{n}")).collect();
    for name in &names {
        enqueue(&network, name, 100).await;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tenants = over(journal.builder().connections(5), &network, &names).build().await.unwrap();
    let running = run(&tenants);
    eventually("all are handled", secs(120), || journal.len() == 5_000).await;
    running.stop().await;
    let (_, most) = network.connections();
    assert!((2..=5).contains(&most), "{most}");
    for name in names {
        assert_eq!(journal.of(name).len(), 100, "each once");
    }
}
