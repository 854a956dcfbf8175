//! A thousand SQLite files, some of them broken, on the handles of sixty-four connections.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use posthaste_core::{NewMessage, Settings, Source as _, Store as _, TenantState};
use posthaste_sqlx::{SqliteDatabase, SqliteStore, StoreOptions};
use tempfile::TempDir;
use tracing::Level;

use crate::support::{Journal, PATIENCE, listened, run, trouble};

const FILES: usize = 1_000;
const MESSAGES: usize = 5;
const CONNECTIONS: usize = 64;
const WITH_LATER_WORK: usize = 200;
/// How long before it is due that work is published, at least.
const LATER: Duration = Duration::from_secs(6);
/// The database, `-wal` and `-shm`.
const HANDLES: usize = 3;
/// How many publish at a time.
const PUBLISHERS: usize = 16;

struct Files {
    folder: TempDir,
}

impl Files {
    fn name(n: usize) -> String {
        format!("t{n:04}")
    }

    /// Every hundredth is broken: full of garbage, or not there with its folder.
    fn is_broken(n: usize) -> bool {
        n % 100 == 50
    }

    fn is_missing(n: usize) -> bool {
        Self::is_broken(n) && n % 200 == 50
    }

    fn healthy() -> impl Iterator<Item = usize> {
        (0..FILES).filter(|n| !Self::is_broken(*n))
    }

    fn path(&self, n: usize) -> PathBuf {
        let folder = if Self::is_missing(n) { self.folder.path().join("gone") } else { self.root() };
        folder.join(format!("{}.db", Self::name(n)))
    }

    fn root(&self) -> PathBuf {
        // As the system names open files.
        self.folder.path().canonicalize().unwrap()
    }

    fn source(&self, n: usize) -> SqliteDatabase {
        // Patient: here it is about what happens, not about how soon on a busy machine.
        let options = StoreOptions::tenant().acquire_timeout(PATIENCE);
        SqliteDatabase::new(format!("sqlite://{}", self.path(n).display())).unwrap().options(options)
    }

    /// One is migrated, the others are its copies.
    async fn create() -> Self {
        let files = Self { folder: TempDir::new().unwrap() };
        let first = SqliteStore::open(files.path(0)).await.unwrap();
        first.migrate().await.unwrap();
        first.close().await;
        let tables = std::fs::read(files.path(0)).unwrap();
        for n in 1..FILES {
            match (Self::is_broken(n), Self::is_missing(n)) {
                (_, true) => {}
                (true, _) => std::fs::write(files.path(n), "garbage".repeat(1_000)).unwrap(),
                _ => std::fs::write(files.path(n), &tables).unwrap(),
            }
        }
        files
    }

    /// Stores messages as other processes would: through stores that are closed afterwards, a few at a time.
    async fn publish(
        self: &Arc<Self>,
        into: &[usize],
        message: impl Fn() -> Vec<NewMessage> + Clone + Send + 'static,
    ) {
        let tasks: Vec<_> = into
            .chunks(into.len().div_ceil(PUBLISHERS))
            .map(|some| {
                let (files, some, message) = (Arc::clone(self), some.to_vec(), message.clone());
                tokio::spawn(async move {
                    for n in some {
                        let store = files.source(n).open().unwrap();
                        store.enqueue(&message()).await.unwrap();
                        store.close().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }
}

/// How many files of a folder this process has open, counted again and again.
struct Handles {
    /// Whether files answer so quickly here that hardly any gives its place to another.
    are_quick: bool,
    counts: Arc<Mutex<Vec<(Instant, usize)>>>,
    over: Arc<AtomicBool>,
    watching: std::thread::JoinHandle<()>,
}

impl Handles {
    fn watch(folder: PathBuf, are_quick: bool) -> Self {
        let (counts, over) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicBool>::default());
        let (counted, stop) = (Arc::clone(&counts), Arc::clone(&over));
        // A thread of its own: it checks even while all others work.
        let watching = std::thread::spawn(move || {
            while !stop.load(Ordering::SeqCst) {
                let (at, mut open) = (Instant::now(), open_files(&folder));
                if open > CONNECTIONS * HANDLES {
                    // The list is not read at one moment: a file that is closed and another that is opened meanwhile
                    // may both be in it.
                    open = open.min(open_files(&folder)).min(open_files(&folder));
                }
                counted.lock().unwrap().push((at, open));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { are_quick, counts, over, watching }
    }

    /// Asserts that most samples since then stay within the handles of so many connections, unless the disk is slow. A store that
    /// has not answered within 300 ms gives its place to another, and as many stores again may be that slow.
    fn within(&self, what: &str, connections: usize, since: Instant) {
        let counts = self.counts.lock().unwrap();
        let counts = counts.iter().filter(|(at, _)| *at >= since);
        let mut counts: Vec<usize> = counts.map(|(_, open)| *open).collect();
        counts.sort_unstable();
        let (samples, most) = (counts.len(), counts.last().copied().unwrap_or_default());
        let over = counts.iter().filter(|open| **open > connections * HANDLES).count();
        eprintln!("{what}: {most} handles at most, {over} of {samples} samples are over the budget");
        assert!(
            !self.are_quick || over * 2 <= samples,
            "{what}: {over} of {samples} samples are over the budget"
        );
        // Connections are closed by threads of their own, so a slow disk lets some overlap with their successors. All files would
        // be five times as many.
        let overlap = CONNECTIONS;
        assert!(most <= (connections + CONNECTIONS + overlap) * HANDLES, "{what}: {most} handles");
    }

    fn stop(self) {
        self.over.store(true, Ordering::SeqCst);
        self.watching.join().unwrap();
    }
}

fn open_files(folder: &Path) -> usize {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return 0 };
    open.flatten()
        .filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| path.parent() == Some(folder)))
        .count()
}

/// How long a machine may be busy with other things.
const HICCUP: Duration = Duration::from_secs(5);

/// Asserts that no file waits much longer than nine tenths of the others. If all are served in turn, the ratio is hardly more than
/// one, however slow the machine is and however much that changes; the median tells whether the last tenth is neglected together.
fn fair(what: &str, waits: impl IntoIterator<Item = Duration>) {
    let mut waits: Vec<Duration> = waits.into_iter().collect();
    waits.sort();
    let (median, ninth, most) = (waits[waits.len() / 2], waits[waits.len() * 9 / 10], waits[waits.len() - 1]);
    eprintln!("{what}: {median:.0?} at the median, {ninth:.0?} for nine tenths, {most:.0?} at most");
    let is_fair = most <= 2 * ninth + HICCUP && most <= 8 * median + HICCUP;
    assert!(is_fair, "{what}: the last one waited {most:?}, nine tenths {ninth:?}, half of them {median:?}");
}

/// F-17, OBX-066, OBX-070, OBX-071: of 1,000 files, of which 10 are corrupt or missing, all others are delivered, once, in turns
/// of similar waiting times, and on no more file handles than 64 connections have.
#[test]
fn slow_a_thousand_files() {
    listened(Level::INFO, async |logs| {
        let began = Instant::now();
        let (files, journal) = (Arc::new(Files::create().await), Journal::default());
        let healthy: Vec<usize> = Files::healthy().collect();
        let five = || (0..MESSAGES).map(|_| NewMessage::bytes("t", "").build().unwrap()).collect();
        let publishing = Instant::now();
        files.publish(&healthy, five).await;
        let prepared = publishing.elapsed();
        let each = prepared * u32::try_from(PUBLISHERS).unwrap() / u32::try_from(healthy.len()).unwrap();
        eprintln!("prepared in {:.1?}, {each:.1?} for each file", began.elapsed());

        // Housekeeping has tests of its own; of a thousand stores it would be half of the work.
        let mut settings = Settings::default();
        settings.workers = 16;
        for job in ["reap", "expire", "park", "prune", "stats"] {
            settings.set(job, "off").unwrap();
        }
        let mut builder = journal.builder().settings(settings);
        for n in 0..FILES {
            builder = builder.tenant(Files::name(n), files.source(n));
        }
        let tenants = builder.build().await.unwrap();
        let handles = Handles::watch(files.root(), each < Duration::from_millis(100));
        let started = Instant::now();
        let running = run(&tenants);
        journal.reaches(healthy.len() * MESSAGES).await;
        let first = journal.first_of_each(0);
        assert_eq!(first.len(), healthy.len(), "each healthy one, and nobody else");
        eprintln!("all handled after {:.1?}", started.elapsed());
        fair("the first message of each", first.values().map(|at| *at - started));
        handles.within("at work", CONNECTIONS, started);

        // Work for some, at one moment, when all have been found empty and are polled now and then.
        let mut random = fastrand::Rng::with_seed(17);
        let mut later = healthy.clone();
        random.shuffle(&mut later);
        later.truncate(WITH_LATER_WORK);
        // As long as all took before, for a fifth of them; and twice as long after each time that it was not enough.
        let (mut wait, mut rounds) = (LATER.max(prepared), 0);
        let (before, due, published) = loop {
            let publishing = Instant::now();
            let (before, due) = (journal.len(), SystemTime::now() + wait);
            let one = move || vec![NewMessage::bytes("t", "").due_at(due).build().unwrap()];
            files.publish(&later, one).await;
            let (left, published) = (due.duration_since(SystemTime::now()), Instant::now());
            handles.within("while others publish", CONNECTIONS + PUBLISHERS, publishing);
            journal.reaches(before + WITH_LATER_WORK).await;
            rounds += 1;
            match left {
                Ok(left) => break (before, published + left, published),
                Err(_) => assert!(rounds < 5, "publishing takes longer than {wait:?}"),
            }
            wait *= 2;
        };
        let first = journal.first_of_each(before);
        assert_eq!(first.len(), WITH_LATER_WORK);
        fair("work at one moment", first.values().map(|at| at.saturating_duration_since(due)));
        handles.within("later", CONNECTIONS, published);

        // The broken ones are reported, and logged once.
        for info in tenants.list() {
            let n: usize = info.key.as_str()[1..].parse().unwrap();
            assert_eq!(matches!(info.state, TenantState::Failing { .. }), Files::is_broken(n), "{info:?}");
            let error = trouble(&tenants, info.key.as_str());
            assert!(!Files::is_broken(n) || error.contains(&format!("store={}", info.key)), "{error}");
        }
        let stopping = Instant::now();
        running.stop().await;
        eprintln!("stopped in {:.1?}", stopping.elapsed());
        let failed = logs.events("a call to the store failed");
        assert_eq!(failed.len(), FILES - healthy.len(), "one line for each broken one");
        let lines = logs
            .all()
            .into_iter()
            .filter(|line| failed.iter().any(|one| one.field("store") == line.field("store")));
        assert_eq!(lines.count(), failed.len(), "and no other");

        // The result, in every file.
        let asked = Instant::now();
        let (stats, total) = (tenants.stats().await, healthy.len() * MESSAGES + rounds * WITH_LATER_WORK);
        handles.within("while all are asked", CONNECTIONS, asked);
        assert_eq!((stats.total.done.value, stats.total.pending().value), (total as u64, 0));
        for (n, (key, stats)) in stats.tenants.into_iter().enumerate() {
            let expected = MESSAGES + rounds * usize::from(later.contains(&n));
            match stats {
                Ok(stats) => assert_eq!(stats.done.value, expected as u64, "{key}"),
                Err(error) => {
                    assert!(Files::is_broken(n) && error.to_string().contains(key.as_str()), "{error}");
                }
            }
        }
        assert_eq!((journal.len(), journal.duplicates()), (total, 0));
        handles.stop();
        eprintln!("{:.1?} in all", began.elapsed());
    });
}
