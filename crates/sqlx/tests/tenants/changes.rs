//! Tenants of one PostgreSQL server that appear, vanish, change their login and come back, during constant
//! publishing.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use posthaste_core::{ErrorKind, MessageId, Source as _, Tenant, TenantState, Tenants, WorkerId};
use posthaste_sqlx::{PgDatabase, PgStore, Postgres, StoreOptions};
use posthaste_testkit::{Census, Fate, History};
use tokio::task::JoinHandle;

use crate::fixture::{Backend as _, Connection, unique};
use crate::support::{
    Admin, Directory, Journal, PATIENCE, draft, eventually, of_many, postgres, run, state, url_with,
};

const TENANTS: usize = 6;
const LASTS: Duration = Duration::from_secs(6);
const REFRESH: Duration = Duration::from_millis(100);
/// No tenant comes and goes between two polls that are no further apart.
const BLINK: Duration = Duration::from_millis(50);

/// What makes a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Schema,
    Database,
}

/// Where one tenant's data is, and as whom it is reached.
#[derive(Clone, Debug)]
struct Home {
    key: String,
    /// By the two logins.
    urls: [String; 2],
    options: StoreOptions,
    /// Of the business.
    table: String,
}

impl Home {
    fn source(&self, login: usize) -> PgDatabase {
        PgDatabase::new(&self.urls[login]).unwrap().options(self.options.clone())
    }
}

/// The server, with the objects created there.
struct Town {
    kind: Kind,
    admin: Admin<Postgres>,
    name: String,
    logins: [String; 2],
    homes: Vec<Home>,
}

impl Town {
    async fn build(kind: Kind, url: &str) -> Self {
        let (admin, name) = (Admin::<Postgres>::new(url).await, unique());
        let logins = ["one", "two"].map(|suffix| format!("{name}_{suffix}"));
        for login in &logins {
            let grant = format!("do $$ begin execute format('grant %I to {login}', current_user); end $$");
            admin.run(format!("create role {login} login password 'pw'; {grant}")).await;
        }
        let mut homes = Vec::new();
        for n in 0..TENANTS {
            let key = format!("{name}_{n}");
            let database = (kind == Kind::Database).then_some(key.as_str());
            // Its connections are known by its key.
            let own = url_with(url, database, &format!("application_name={key}"));
            let urls = [0, 1].map(|login| as_login(&own, &logins[login]));
            let (options, table) = match kind {
                Kind::Schema => (StoreOptions::new().schema(&key), format!("{key}.business")),
                Kind::Database => (StoreOptions::new(), "business".to_owned()),
            };
            homes.push(Home { key, urls, options: of_many(options), table });
        }
        let town = Self { kind, admin, name, logins, homes };
        match kind {
            Kind::Schema => town.make_schemas(url).await,
            Kind::Database => town.make_databases(url).await,
        }
        town
    }

    async fn make_schemas(&self, url: &str) {
        for home in &self.homes {
            let store = PgDatabase::new(url).unwrap().options(home.options.clone()).open().unwrap();
            store.migrate().await.unwrap();
            store.close().await;
            self.admin.run(format!("create table {} (id uuid primary key)", home.table)).await;
        }
    }

    /// One is migrated, the others are its copies.
    async fn make_databases(&self, url: &str) {
        let template = format!("{}_template", self.name);
        self.admin.run(format!("create database {template}")).await;
        let own = url_with(url, Some(&template), "");
        let store = PgDatabase::new(&own).unwrap().open().unwrap();
        store.migrate().await.unwrap();
        store.close().await;
        let inside = Admin::<Postgres>::new(&own).await;
        inside.run("create table business (id uuid primary key)").await;
        inside.0.close().await;
        // Connections end a moment after they were closed, and a template must have none.
        let used = format!("select pid::text from pg_stat_activity where datname = '{template}'");
        eventually("the template is left", async || self.admin.texts(&used).await.is_empty()).await;
        for home in &self.homes {
            self.admin.run(format!("create database {} template {template}", home.key)).await;
        }
        self.admin.run(format!("drop database {template}")).await;
    }

    async fn destroy(self) {
        for home in &self.homes {
            let sql = match self.kind {
                Kind::Schema => format!("drop schema {} cascade", home.key),
                Kind::Database => format!("drop database {} with (force)", home.key),
            };
            self.admin.run(sql).await;
        }
        let left = format!("select pid::text from pg_stat_activity where usename like '{}%'", self.name);
        eventually("nobody is logged in", async || self.admin.texts(&left).await.is_empty()).await;
        for login in &self.logins {
            self.admin.run(format!("drop role {login}")).await;
        }
    }

    /// By whom a tenant's connections are made, and when that was, by the server's clock.
    async fn connections(&self, key: &str) -> Vec<(String, i64)> {
        let sql = format!(
            "select usename || ' ' || (extract(epoch from backend_start) * 1000000)::bigint \
             from pg_stat_activity where application_name = '{key}' and usename is not null"
        );
        self.admin.texts(sql).await.iter().map(|line| login_and_start(line)).collect()
    }

    async fn now(&self) -> i64 {
        let sql = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint::text";
        self.admin.texts(sql).await[0].parse().unwrap()
    }
}

fn login_and_start(line: &str) -> (String, i64) {
    let (login, start) = line.split_once(' ').unwrap();
    (login.to_owned(), start.parse().unwrap())
}

/// The URL with another user.
fn as_login(url: &str, login: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    format!("{scheme}://{login}:pw@{}/{path}", authority.rsplit('@').next().unwrap())
}

/// The producers' records.
#[derive(Debug, Default)]
struct Published {
    history: History,
    /// Where each message was put.
    places: Mutex<HashMap<MessageId, String>>,
}

/// Publishes, together with rows of the business, into one tenant, whenever it is there; some of it is rolled back.
async fn produce(tenants: Tenants, home: Home, published: Arc<Published>, stop: Arc<AtomicBool>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !stop.load(Ordering::SeqCst) {
        // Asking for an unknown tenant would start a discovery each time.
        if !matches!(state(&tenants, &home.key), Some(TenantState::Running | TenantState::Failing { .. })) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        let outbox = match tenants.outbox::<PgStore>(&home.key).await {
            Ok(outbox) => outbox,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                continue;
            }
        };
        let (message, is_kept) = (draft(), random.u8(..4) > 0);
        let id = message.id();
        published.places.lock().unwrap().insert(id, home.key.clone());
        let mut tx = outbox.begin().await.unwrap();
        if random.bool() {
            // By the hot path, or, as in a transaction that the user opened, by the cold one.
            tx.publish(message).await.unwrap();
        } else {
            outbox.publish(&mut *tx, message).await.unwrap();
        }
        row(&mut tx, &home.table, id).await;
        if is_kept {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let fate = if is_kept { Fate::Committed } else { Fate::RolledBack };
        published.history.enqueued(id, None, fate);
        tokio::time::sleep(Duration::from_millis(random.u64(..20))).await;
    }
}

async fn row(connection: &mut Connection<Postgres>, table: &str, id: MessageId) {
    Postgres::run(connection, format!("insert into {table} values ('{id}')")).await.unwrap();
}

/// When each tenant was certainly not in the list: from the first look that did not find it to the last.
type Absences = BTreeMap<String, Vec<(Instant, Instant)>>;

fn watch_list(tenants: &Tenants, homes: &[Home], stop: &Arc<AtomicBool>) -> JoinHandle<Absences> {
    let (tenants, stop) = (tenants.clone(), Arc::clone(stop));
    let keys: Vec<String> = homes.iter().map(|home| home.key.clone()).collect();
    tokio::spawn(async move {
        let (mut absences, mut absent) = (Absences::new(), HashSet::new());
        while !stop.load(Ordering::SeqCst) {
            let before = Instant::now();
            let listed: HashSet<String> = tenants.list().iter().map(|info| info.key.to_string()).collect();
            let after = Instant::now();
            for key in &keys {
                let times = absences.entry(key.clone()).or_default();
                if listed.contains(key) {
                    absent.remove(key);
                } else if absent.insert(key.clone()) {
                    times.push((after, after));
                } else if let Some((_, last)) = times.last_mut().filter(|(_, last)| before - *last < BLINK) {
                    *last = before;
                } else {
                    // It may have been there between two samples.
                    times.push((after, after));
                }
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        absences
    })
}

/// A login that a tenant's new connections have from one time to another, by the server's clock.
#[derive(Clone, Debug)]
struct Reign {
    key: String,
    login: String,
    from: i64,
    until: Option<i64>,
}

/// Every connection that was seen: whose it is, by whom, and since when.
type Seen = Arc<Mutex<HashSet<(String, String, i64)>>>;

fn watch_connections(town: &Arc<Town>, stop: &Arc<AtomicBool>) -> (Seen, JoinHandle<()>) {
    let (town, stop, seen) = (Arc::clone(town), Arc::clone(stop), Seen::default());
    let noted = Arc::clone(&seen);
    let watching = tokio::spawn(async move {
        while !stop.load(Ordering::SeqCst) {
            for home in &town.homes {
                let open = town.connections(&home.key).await;
                let mut seen = seen.lock().unwrap();
                seen.extend(open.into_iter().map(|(login, start)| (home.key.clone(), login, start)));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    (noted, watching)
}

/// The directory, as a script changes it.
struct Script {
    town: Arc<Town>,
    tenants: Tenants,
    directory: Directory,
    /// Which login each tenant has that is listed.
    listed: BTreeMap<usize, usize>,
    reigns: Vec<Reign>,
    random: fastrand::Rng,
}

/// How often each thing happened.
#[derive(Clone, Copy, Debug, Default)]
struct Happened {
    appeared: usize,
    gone: usize,
    short: usize,
    changed: usize,
}

impl Script {
    fn put(&mut self, n: usize, login: usize) {
        let home = &self.town.homes[n];
        self.directory.put(Tenant::new(home.key.as_str(), home.source(login)));
        self.listed.insert(n, login);
    }

    /// Ends the sessions of a tenant's old login before anything is changed about it.
    async fn before_change(&mut self, n: usize) {
        let now = self.town.now().await;
        let key = &self.town.homes[n].key;
        let open = self.reigns.iter_mut().rev().find(|reign| reign.key == *key && reign.until.is_none());
        if let Some(reign) = open {
            reign.until = Some(now);
        }
    }

    async fn change_login(&mut self, n: usize) {
        self.before_change(n).await;
        let login = 1 - self.listed[&n];
        self.put(n, login);
        let (town, key) = (Arc::clone(&self.town), self.town.homes[n].key.clone());
        let login = town.logins[login].clone();
        // Calls under way end with the old login: until then there are connections of both.
        eventually(&format!("{key} is reached by {login} alone"), async || {
            let open = town.connections(&key).await;
            !open.is_empty() && open.iter().all(|(by, _)| *by == login)
        })
        .await;
        self.reigns.push(Reign { key, login, from: town.now().await, until: None });
    }

    async fn step(&mut self, happened: &mut Happened) {
        let n = self.random.usize(..TENANTS);
        let key = self.town.homes[n].key.clone();
        if !self.listed.contains_key(&n) {
            let login = self.random.usize(..2);
            self.put(n, login);
            happened.appeared += 1;
        } else if self.random.bool() || self.listed.len() <= 2 {
            self.change_login(n).await;
            happened.changed += 1;
        } else {
            self.before_change(n).await;
            self.directory.remove(&key);
            self.listed.remove(&n);
            // Some are back before they are gone.
            if self.random.u8(..3) > 0 {
                eventually(&format!("{key} is gone"), async || state(&self.tenants, &key).is_none()).await;
                happened.gone += 1;
            } else {
                happened.short += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(self.random.u64(100..300))).await;
    }
}

async fn come_and_go(kind: Kind) {
    let Some(url) = postgres() else { return };
    let town = Arc::new(Town::build(kind, &url).await);
    let (journal, directory) = (Journal::default(), Directory::default());
    let tenants = journal.builder().discover(directory.clone()).refresh(REFRESH).build().await.unwrap();
    let (random, listed, reigns) = (fastrand::Rng::with_seed(79), BTreeMap::new(), Vec::new());
    let mut script =
        Script { town: Arc::clone(&town), tenants: tenants.clone(), directory, listed, reigns, random };
    for n in 0..TENANTS / 2 {
        script.put(n, n % 2);
    }
    let (stop, published) = (Arc::<AtomicBool>::default(), Arc::<Published>::default());
    let running = run(&tenants);
    let absences = watch_list(&tenants, &town.homes, &stop);
    let (seen, watching) = watch_connections(&town, &stop);
    let producers: Vec<_> = town
        .homes
        .iter()
        .zip(0..)
        .map(|(home, seed)| {
            let (published, stop) = (Arc::clone(&published), Arc::clone(&stop));
            tokio::spawn(produce(tenants.clone(), home.clone(), published, stop, seed))
        })
        .collect();

    let (began, mut happened) = (Instant::now(), Happened::default());
    let all_had_work = || town.homes.iter().all(|home| !journal.of(&home.key).is_empty());
    while began.elapsed() < LASTS
        || happened.gone < 2
        || happened.changed < 2
        || happened.appeared < 2
        || !all_had_work()
    {
        assert!(began.elapsed() < 2 * PATIENCE, "not everything has happened: {happened:?}");
        script.step(&mut happened).await;
    }
    stop.store(true, Ordering::SeqCst);
    for producer in producers {
        producer.await.unwrap();
    }
    let absences = absences.await.unwrap();
    watching.await.unwrap();

    // All tenants once more: messages written meanwhile are delivered.
    for n in 0..TENANTS {
        if !script.listed.contains_key(&n) {
            script.put(n, 0);
        }
    }
    eventually("everybody is there", async || {
        let list = tenants.list();
        list.len() == TENANTS && list.iter().all(|info| info.state == TenantState::Running)
    })
    .await;
    eventually("all is settled", async || {
        let stats = tenants.stats().await;
        stats.total.pending().value == 0 && stats.tenants.iter().all(|(_, stats)| stats.is_ok())
    })
    .await;

    // Every committed message was handled, once, nothing else was, and all of it from where it was put.
    let (worker, places) = (WorkerId::new("w").unwrap(), published.places.lock().unwrap().clone());
    for handled in journal.all() {
        published.history.delivered(&worker, handled.id);
        assert_eq!(places[&handled.id], handled.store, "from where it was put");
        let gone = absences[&handled.store].iter().find(|(from, to)| (*from..=*to).contains(&handled.at));
        assert!(gone.is_none(), "{} was handled while {} was gone", handled.id, handled.store);
    }
    published.history.no_loss(&HashSet::new()).unwrap();
    published.history.no_phantom().unwrap();
    published.history.delivered_once().unwrap();
    let stats = tenants.stats().await;
    published.history.conservation(&Census::of(&stats.total, 0)).unwrap();
    assert_eq!(stats.total.done.value, journal.len() as u64, "all of it is done");
    for (home, (key, stats)) in town.homes.iter().zip(&stats.tenants) {
        let inside = Admin::<Postgres>::new(&home.urls[0]).await;
        let rows = inside.texts(format!("select id::text from {}", home.table)).await.len() as u64;
        assert_eq!((key.as_str(), stats.as_ref().unwrap().done.value), (home.key.as_str(), rows));
        assert!(rows > 0, "{key} has had no work");
        inside.0.close().await;
    }

    // While a login reigned, no connection was made by another.
    let seen = seen.lock().unwrap().clone();
    let mut made = 0;
    for Reign { key, login, from, until } in &script.reigns {
        let until = until.unwrap_or(i64::MAX);
        for (_, by, _) in seen.iter().filter(|(of, _, at)| of == key && (*from..until).contains(at)) {
            assert_eq!(by, login, "a new connection of {key}'s");
            made += 1;
        }
    }
    let absent: usize = absences.values().map(Vec::len).sum();
    eprintln!(
        "{kind:?}: {happened:?}, {} messages, {} connections seen, {made} of them under a known login, {absent} absences",
        journal.len(),
        seen.len()
    );
    running.stop().await;
    for home in &town.homes {
        tenants.outbox::<PgStore>(&home.key).await.unwrap().store().close().await;
    }
    drop(script);
    Arc::into_inner(town).unwrap().destroy().await;
}

/// OBX-075, OBX-077, OBX-078, OBX-079: schemas of one database that come, go and change their login, during constant publishing:
/// no message is lost, made up, handled twice, or handled while its tenant is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_tenants_come_and_go_on_postgres_as_schemas() {
    come_and_go(Kind::Schema).await;
}

/// OBX-075, OBX-077, OBX-078, OBX-079: the same with databases of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_tenants_come_and_go_on_postgres_as_databases() {
    come_and_go(Kind::Database).await;
}
