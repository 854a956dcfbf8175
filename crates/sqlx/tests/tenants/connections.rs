//! How many connections a server sees.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use posthaste_core::{Source as _, Store as _};
use posthaste_sqlx::{PgDatabase, Postgres, StoreOptions};

use crate::fixture::unique;
use crate::support::{Admin, Journal, PATIENCE, draft, eventually, postgres, run, url_with};

const TENANTS: usize = 30;
const CONNECTIONS: usize = 5;
const ROUNDS: usize = 3;

/// The most connections at a time under a name, by the server's count, and by the ones that this process has open: a server
/// notices a moment later that one was closed.
#[derive(Default)]
struct Most {
    server: AtomicUsize,
    open: AtomicUsize,
    samples: AtomicUsize,
}

struct Watch {
    most: Arc<Most>,
    watching: tokio::task::JoinHandle<()>,
}

impl Watch {
    async fn begin(url: &str, name: &str) -> Self {
        let (most, admin) = (Arc::<Most>::default(), Admin::<Postgres>::new(url).await);
        let seen = Arc::clone(&most);
        let sql = format!("select client_port::text from pg_stat_activity where application_name = '{name}'");
        let watching = tokio::spawn(async move {
            loop {
                let ports = admin.texts(&sql).await;
                let established = established();
                let open =
                    ports.iter().filter(|port| established.contains(&port.parse().unwrap_or_default()));
                seen.open.fetch_max(open.count(), Ordering::SeqCst);
                seen.server.fetch_max(ports.len(), Ordering::SeqCst);
                seen.samples.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        Self { most, watching }
    }

    /// The most that were open; says the rest.
    fn tell(&self, when: &str) -> usize {
        let [server, open, samples] = [&self.most.server, &self.most.open, &self.most.samples]
            .map(|count| count.load(Ordering::SeqCst));
        eprintln!("{when}: {open} connections open at most, {server} at the server, in {samples} samples");
        assert!(samples >= 20 && open >= 2, "nobody looked");
        open
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.watching.abort();
    }
}

/// The local ports of all connections of this machine that are open.
fn established() -> HashSet<u32> {
    let lines = ["tcp", "tcp6"].map(|file| std::fs::read_to_string(format!("/proc/self/net/{file}")));
    let lines = lines.into_iter().flatten().collect::<String>();
    let port = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (local, state) = (words.next()?, words.nth(1)?);
        (state == "01").then(|| u32::from_str_radix(local.rsplit(':').next()?, 16).ok())?
    };
    lines.lines().filter_map(port).collect()
}

/// Thirty schemas with tables in them.
struct Schemas {
    url: String,
    name: String,
    admin: Admin<Postgres>,
}

impl Schemas {
    async fn create(url: String) -> Self {
        let (admin, name) = (Admin::<Postgres>::new(&url).await, unique());
        let schemas = Self { url, name, admin };
        for n in 0..TENANTS {
            let store = schemas.source(n, "made").open().unwrap();
            store.migrate().await.unwrap();
            store.close().await;
        }
        schemas
    }

    fn key(&self, n: usize) -> String {
        format!("{}_{n}", self.name)
    }

    /// As for one of many, with connections of this name.
    fn source(&self, n: usize, name: &str) -> PgDatabase {
        let options = StoreOptions::tenant().schema(self.key(n)).acquire_timeout(PATIENCE);
        let name = format!("application_name={}_{name}", self.name);
        PgDatabase::new(url_with(&self.url, None, &name)).unwrap().options(options)
    }

    /// All work is delivered, on as many connections as there may be.
    async fn are_served(&self) {
        let journal = Journal::default();
        let mut builder = journal.builder().connections(CONNECTIONS as u32);
        for n in 0..TENANTS {
            builder = builder.tenant(self.key(n), self.source(n, "served"));
        }
        let tenants = builder.build().await.unwrap();
        let watch = Watch::begin(&self.url, &format!("{}_served", self.name)).await;
        let done_before = tenants.stats().await.total.done.value;
        let running = run(&tenants);
        for round in 1..=ROUNDS {
            // By other processes: their connections have another name.
            for n in 0..TENANTS {
                let store = self.source(n, "publishes").open().unwrap();
                store.enqueue(&[draft(), draft()]).await.unwrap();
                store.close().await;
            }
            journal.reaches(2 * TENANTS * round).await;
        }
        let done = done_before + (2 * TENANTS * ROUNDS) as u64;
        eventually("all is settled", async || tenants.stats().await.total.done.value == done).await;
        let most = watch.tell("at the server");
        // A store that has not answered within 300 ms gives its place to another, and as many stores again may be that slow.
        assert!(most <= 2 * CONNECTIONS, "{most} connections");
        assert_eq!((journal.duplicates(), journal.first_of_each(0).len()), (0, TENANTS));
        running.stop().await;
        for n in 0..TENANTS {
            let outbox = tenants.outbox::<posthaste_sqlx::PgStore>(self.key(n)).await.unwrap();
            outbox.store().close().await;
        }
    }

    async fn destroy(self) {
        for n in 0..TENANTS {
            self.admin.run(format!("drop schema {} cascade", self.key(n))).await;
        }
    }
}

/// OBX-067, OBX-121: thirty tenants, each with pools of its own, are served on five connections, and so are the figures of all; all work
/// is delivered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connections_at_the_server() {
    let Some(url) = postgres() else { return };
    let schemas = Schemas::create(url).await;
    schemas.are_served().await;
    schemas.destroy().await;
}
