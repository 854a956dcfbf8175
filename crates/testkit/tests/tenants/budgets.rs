//! What unresponsive tenants may cost the others: connections, turns to claim, and time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use posthaste_core::{
    DrainFirst, Fair, HandlerResult, Message, Origin, Place, Schedule, Selection, Settings, SinkError,
    StoreAdmin as _, Tenant, Tenants, TenantsBuilder,
};
use posthaste_testkit::{Network, Reach, Remote, ScriptedSink, Shape};
use tokio::time::{Instant, sleep};

use crate::support::{Journal, Running, enqueue, eventually, network, network_of, run, secs, settings};

/// How many healthy tenants get work in a measurement.
const SAMPLE: usize = 200;
const ABC: [&str; 3] = ["a", "b", "c"];

fn name(n: usize) -> String {
    format!("t{n:05}")
}

/// Many tenants, of which some are to fall silent.
struct Town {
    network: Network,
    tenants: Tenants,
    running: Running,
    healthy: Vec<usize>,
    silent: Vec<usize>,
    random: fastrand::Rng,
}

impl Town {
    /// Starts so many tenants, of which these many are unreachable from the beginning or later.
    async fn start(count: usize, silent: usize, connections: u32, is_silent_at_start: bool) -> Self {
        let (network, mut random) = (network_of(3, 2), fastrand::Rng::with_seed(2));
        let mut numbers: Vec<usize> = (0..count).collect();
        random.shuffle(&mut numbers);
        let healthy = numbers.split_off(silent);
        if is_silent_at_start {
            numbers.iter().for_each(|n| network.set(&name(*n), Reach::Gone));
        }
        let known = network.clone();
        let discovery = move || {
            let tenants: Vec<_> =
                (0..count).map(|n| Tenant::new(name(n), known.source(&name(n), ""))).collect();
            async move { Ok(tenants) }
        };
        let tenants = Journal::default()
            .builder()
            .settings(settings(|settings| {
                (settings.tenants_idle, settings.tenants_connections) = (secs(1), connections);
            }))
            .discover(discovery)
            .build()
            .await
            .unwrap();
        let running = run(&tenants);
        Self { network, tenants, running, healthy, silent: numbers, random }
    }

    fn server_goes_away(&self) {
        self.silent.iter().for_each(|n| self.network.set(&name(*n), Reach::Gone));
    }

    /// Gives work to some healthy tenants within two seconds, and answers how long each waited to be found: the median, and
    /// the longest.
    async fn found_after(&mut self) -> (Duration, Duration) {
        self.random.shuffle(&mut self.healthy);
        let sample: Vec<usize> = self.healthy[..SAMPLE].to_vec();
        let mut asked = Vec::new();
        for n in &sample {
            self.network.take_claimed(&name(*n));
            enqueue(&self.network, &name(*n), 1).await;
            asked.push(Instant::now());
            sleep(Duration::from_millis(10)).await;
        }
        let mut waits = Vec::new();
        for (n, asked) in sample.iter().zip(asked) {
            let mut found = None;
            let deadline = asked + secs(60);
            while found.is_none() && Instant::now() < deadline {
                found = self.network.take_claimed(&name(*n));
                if found.is_none() {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            waits.push(found.unwrap_or(deadline) - asked);
        }
        waits.sort();
        (waits[SAMPLE / 2], waits[SAMPLE - 1])
    }

    fn failing(&self) -> usize {
        self.tenants.list().iter().filter(|info| info.state.as_str() == "failing").count()
    }
}

/// Fails if work was not found within three times the undisturbed median.
fn assert_undelayed(what: &str, undisturbed: (Duration, Duration), found: (Duration, Duration)) {
    println!("{what}: {:?} at the median, {:?} at most; undisturbed: {undisturbed:?}", found.0, found.1);
    assert!(found.0 <= 3 * undisturbed.0, "{what}: {found:?}, undisturbed {undisturbed:?}");
}

/// R2: 500 of 2,000 tenants never answer, on 16 connections. Work of the others is found as if they were not there: while the
/// silent ones are met for the first time, and afterwards.
#[tokio::test(start_paused = true)]
async fn slow_silent_tenants_do_not_delay_healthy_ones() {
    let mut calm = Town::start(2_000, 500, 16, false).await;
    let at_start = calm.found_after().await;
    sleep(secs(5)).await;
    let undisturbed = calm.found_after().await;
    calm.running.stop().await;

    let mut town = Town::start(2_000, 500, 16, true).await;
    let found = town.found_after().await;
    println!("started: {at_start:?} undisturbed, {found:?} with silent tenants");
    assert_undelayed("at the start", at_start.max(undisturbed), found);
    for round in 1..=3 {
        sleep(secs(10)).await;
        let found = town.found_after().await;
        assert_undelayed("later", undisturbed, found);
        assert!(found.1 <= 4 * undisturbed.0, "round {round}: the last of them {found:?}");
    }
    assert_eq!(town.failing(), 500);
    let (_, most_open) = town.network.connections();
    println!("{most_open} connections, {} attempts at most", town.network.most_attempts());
    assert!(most_open <= 16, "{most_open}");
    // They are found again once they are back.
    for n in town.silent.clone() {
        town.network.set(&name(n), Reach::Open);
    }
    eventually("all are back", secs(60), || town.failing() == 0).await;
    town.running.stop().await;
}

/// R2: the server of 2,000 of 10,000 tenants goes away while they run, with connections open: the tenants of the other
/// servers notice nothing.
#[tokio::test(start_paused = true)]
async fn slow_a_lost_server_delays_no_other_tenant() {
    let mut town = Town::start(10_000, 2_000, 64, false).await;
    sleep(secs(6)).await;
    let undisturbed = town.found_after().await;
    town.server_goes_away();
    let found = town.found_after().await;
    assert_undelayed("when it goes away", undisturbed, found);
    sleep(secs(8)).await;
    let found = town.found_after().await;
    assert_undelayed("later", undisturbed, found);
    println!(
        "{:?} connections, {} attempts at most",
        town.network.connections(),
        town.network.most_attempts()
    );
    assert!(town.failing() > 0);
    town.running.stop().await;
}

/// A handler of `t` that notes its messages, and takes a while.
fn busy(journal: &Journal, takes: Duration) -> TenantsBuilder {
    let journal = journal.clone();
    Tenants::builder().on_topic("t", move |message: Message, origin: Origin| {
        let journal = journal.clone();
        async move {
            sleep(takes).await;
            journal.note(origin.store(), message.id);
            HandlerResult::Ok(())
        }
    })
}

/// A network in which calls to databases that are gone take ten minutes.
fn network_that_hangs() -> Network {
    let ms = Duration::from_millis;
    Network::new(Shape { connect: ms(3), call: ms(2), patience: secs(600) })
}

fn over(builder: TenantsBuilder, network: &Network, names: &[impl AsRef<str>]) -> TenantsBuilder {
    let names = names.iter().map(AsRef::as_ref);
    names.fold(builder, |builder, name| builder.tenant(name, network.source(name, "")))
}

/// R3: two stores that have answered before hang, and there are two connections: the third tenant is still served, also when each
/// of the two has several calls under way.
#[tokio::test(start_paused = true)]
async fn stores_that_hang_keep_no_connection_from_others() {
    let (network, journal) = (network_that_hangs(), Journal::default());
    let two = housekeeping(Duration::from_millis(100), |settings| settings.tenants_connections = 2);
    let builder = over(journal.builder().settings(two), &network, &ABC);
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    eventually("all are reached", secs(5), || ABC.iter().all(|name| network.reached(name) > 3)).await;
    ["a", "b"].iter().for_each(|name| network.set(name, Reach::Gone));
    // Long enough for each of them to have an unanswered call under way.
    sleep(secs(10)).await;
    for round in 1..=5 {
        enqueue(&network, "c", 10).await;
        eventually("the third is served", secs(5), || journal.of("c").len() == 10 * round).await;
        sleep(secs(10)).await;
    }
    running.shutdown.now();
}

/// Settings with which housekeeping comes this often.
fn housekeeping(every: Duration, change: impl FnOnce(&mut Settings)) -> Settings {
    settings(|settings| {
        for schedule in [&mut settings.reap, &mut settings.expire, &mut settings.park, &mut settings.stats] {
            *schedule = Schedule::every(every);
        }
        change(settings);
    })
}

/// R2: where more calls wait than the connections can serve, a handled message is settled next, not after all of them.
#[tokio::test(start_paused = true)]
async fn settling_goes_before_everything_else() {
    let (network, journal) = (network_of(3, 20), Journal::default());
    let names: Vec<String> = (0..200).map(name).collect();
    let overloaded = housekeeping(Duration::from_millis(100), |settings| settings.tenants_connections = 2);
    let builder = busy(&journal, Duration::from_millis(500)).settings(overloaded);
    let builder = over(builder, &network, &names);
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    eventually("all are reached", secs(60), || names.iter().all(|name| network.reached(name) > 0)).await;
    enqueue(&network, &names[0], 1).await;
    eventually("it is handled", secs(600), || journal.len() == 1).await;
    let (_, before) = network.counts();
    let database = network.database(&names[0]);
    let deadline = Instant::now() + secs(600);
    while database.stats().await.unwrap().pending().value > 0 {
        assert!(Instant::now() < deadline, "it is settled");
        sleep(Duration::from_millis(5)).await;
    }
    let calls = network.counts().1 - before;
    println!("{calls} calls between a handler's end and its settlement");
    assert!(calls <= 8, "{calls} calls came first");
    running.shutdown.now();
}

/// R12: drain first does not wait for a tenant that cannot settle its messages: its database takes no writes, or is
/// gone.
#[tokio::test(start_paused = true)]
async fn drain_first_leaves_a_tenant_that_cannot_settle() {
    for is_gone in [false, true] {
        let (network, journal) = (network_that_hangs(), Journal::default());
        for name in ABC {
            enqueue(&network, name, 200).await;
        }
        network.set_read_only("a", !is_gone);
        let builder = busy(&journal, Duration::from_millis(50)).selection(DrainFirst::default());
        let builder = over(builder.workers(2).quantum(10), &network, &ABC);
        let tenants = builder.build().await.unwrap();
        let running = run(&tenants);
        let claimed = || network.claims().iter().any(|(store, found)| store == "a" && *found > 0);
        eventually("the first is being drained", secs(600), claimed).await;
        if is_gone {
            network.set("a", Reach::Gone);
        }
        let is_done = || journal.of("b").len() == 200 && journal.of("c").len() == 200;
        eventually("the others are handled", secs(120), is_done).await;
        running.shutdown.now();
    }
}

/// Remembers how many tenants were due at a time.
#[derive(Debug, Default)]
struct Watched {
    fair: Fair,
    due: HashSet<Place>,
    most: Arc<Mutex<usize>>,
}

impl Selection for Watched {
    fn due(&mut self, place: Place, tenant: &Arc<str>) {
        self.due.insert(place);
        let mut most = self.most.lock().unwrap();
        *most = (*most).max(self.due.len());
        self.fair.due(place, tenant);
    }

    fn next(&mut self) -> Option<Place> {
        let next = self.fair.next();
        next.inspect(|place| {
            self.due.remove(place);
        })
    }

    fn looked(&mut self, place: Place, found: Option<(u32, u32)>) {
        self.fair.looked(place, found);
    }

    fn gone(&mut self, place: Place) {
        self.due.remove(&place);
        self.fair.gone(place);
    }
}

/// R13: when a sink is back, a thousand idle tenants are not woken at once, and what waited for the sink is still sent soon.
#[tokio::test(start_paused = true)]
async fn a_sink_that_is_back_wakes_tenants_little_by_little() {
    let (network, sink, most) = (network(), ScriptedSink::new("broker"), Arc::new(Mutex::new(0)));
    let hour = secs(3_600);
    let quiet = housekeeping(hour, |settings| {
        (settings.tenants_idle, settings.tenants_connections) = (secs(1), 16);
        (settings.poll_ceiling, settings.tenants_idle_poll) = (hour, hour);
    });
    let builder = Tenants::builder()
        .settings(quiet)
        .selection(Watched { most: Arc::clone(&most), ..Watched::default() })
        .sink("t", sink.clone());
    let names: Vec<String> = (0..1_000).map(name).collect();
    let builder = over(builder, &network, &names);
    let tenants = builder.build().await.unwrap();
    let running = run(&tenants);
    // Polls double up to an hour: by then hardly any are left.
    sleep(secs(600)).await;
    sink.answer(|_| Err(SinkError::down("no broker")));
    sink.go_down("no broker");
    let first = tenants.outbox::<Remote>(names[0].as_str()).await.unwrap();
    first.enqueue(posthaste_core::NewMessage::bytes("t", "")).await.unwrap();
    eventually("the sink is down", secs(60), || sink.probes() > 0).await;
    // Other processes publish meanwhile, without a notification to this one.
    for name in &names[..50] {
        enqueue(&network, name, 1).await;
    }
    *most.lock().unwrap() = 0;
    sink.answer(|_| Ok(()));
    sink.come_up();
    eventually("everything is sent", secs(120), || sink.taken().len() == 51).await;
    let most = *most.lock().unwrap();
    println!("{most} tenants were due at a time");
    assert!(most <= 100, "{most} tenants were due at a time");
    running.stop().await;
}

/// R16: a tenant that is the only one keeps two claims under way while there is more than handlers can wait for, as an outbox
/// by itself does; one of two tenants does not.
#[tokio::test(start_paused = true)]
async fn a_sole_tenant_has_a_second_claim() {
    for (names, expected) in [(vec!["a"], 2), (vec!["a", "b"], 1)] {
        let (network, journal) = (network(), Journal::default());
        enqueue(&network, "a", 5_000).await;
        let builder = over(journal.builder(), &network, &names);
        let tenants = builder.build().await.unwrap();
        let running = run(&tenants);
        eventually("all are handled", secs(60), || journal.len() == 5_000).await;
        running.stop().await;
        assert_eq!(network.most_claims_at_a_time("a"), expected, "{names:?}");
    }
}
