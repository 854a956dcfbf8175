//! The shop: its tables, its orders, its handlers, and the check at the end.
//!
//! Its failures are made up; its transactions are not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use posthaste::{
    Change, Delivery, Event, Filter, FixedDelay, HandlerError, HandlerResult, JoinId, JoinWait, MessageId,
    NewJoin, NewMessage, Outbox, Policy, Result, Shared, SqliteStore, State, Stats, StoreAdmin as _, Topics,
};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::SqlitePool;
use tokio::time::{Instant, sleep, sleep_until};

use super::Summary;
use super::latency::Latency;

/// How many shelves are counted at stock-taking, which is one join.
pub(super) const SHELVES: u32 = 60;

macro_rules! events {
    ($($name:ident $topic:literal)*) => {$(
        #[derive(Clone, Copy, Debug, Serialize, Deserialize)]
        struct $name {
            order: i64,
        }

        impl Event for $name {
            const TOPIC: &'static str = $topic;
        }
    )*};
}
events! {
    Placed "order.placed"
    Charge "order.charge"
    Reserve "order.reserve"
    Label "order.label"
    Ship "order.ship"
    Apologise "order.apologise"
    Shelf "stock.shelf"
    Counted "stock.counted"
}

/// The shop's own counts, to compare with the tables.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) orders: AtomicU64,
    pub(super) rolled_back: AtomicU64,
    pub(super) shipped: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) retried: AtomicU64,
    pub(super) handled: AtomicU64,
    /// Messages of transactions that were rolled back, and came all the same.
    phantoms: AtomicU64,
}

impl Tally {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What handlers share.
#[derive(Clone, Debug)]
struct Desk {
    pool: SqlitePool,
    tally: Arc<Tally>,
    latency: Arc<Mutex<Latency>>,
    /// Whether the payment provider is down.
    down: Arc<AtomicBool>,
    news: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn tell(&self, news: String) {
        let mut all = lock(&self.news);
        all.push(news);
        let old = all.len().saturating_sub(6);
        all.drain(..old);
    }
}

/// The shop.
#[derive(Clone, Debug)]
pub(super) struct Shop {
    pub(super) store: SqliteStore,
    pub(super) outbox: Outbox<SqliteStore>,
    desk: Desk,
    stock_taking: JoinId,
    closed: Arc<AtomicBool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One time in `n`.
fn one_in(n: u32) -> bool {
    fastrand::u32(..n) == 0
}

/// What went wrong with the shop's own tables.
fn own(error: sqlx::Error) -> posthaste::Error {
    posthaste::Error::new(posthaste::ErrorKind::Database, "the shop's own tables").with_source(error)
}

async fn receipt(order: Delivery<Placed>, Shared(desk): Shared<Desk>) -> HandlerResult {
    lock(&desk.latency).begun(order.order, std::time::Instant::now());
    Tally::add(&desk.tally.handled);
    if order.order < 0 {
        Tally::add(&desk.tally.phantoms);
    }
    Ok(())
}

async fn charge(order: Delivery<Charge>, Shared(desk): Shared<Desk>) -> HandlerResult {
    sleep(Duration::from_millis(fastrand::u64(5..40))).await;
    if desk.down.load(Ordering::Relaxed) {
        Tally::add(&desk.tally.retried);
        // An outage of the provider: it costs the message no attempt.
        return Err(HandlerError::infrastructure("the payment provider is down"));
    }
    if order.order % 23 == 0 {
        desk.tell(format!("order {}: card refused, dead letter", order.order));
        return Err(HandlerError::dead("the card was refused"));
    }
    if one_in(6) {
        Tally::add(&desk.tally.retried);
        desk.tell(format!("order {}: payment failed, attempt {}; will retry", order.order, order.attempt()));
        return Err("the payment provider answered 500".into());
    }
    Tally::add(&desk.tally.handled);
    Ok(())
}

async fn reserve(_order: Delivery<Reserve>, Shared(desk): Shared<Desk>) -> HandlerResult {
    sleep(Duration::from_millis(fastrand::u64(1..20))).await;
    Tally::add(&desk.tally.handled);
    Ok(())
}

async fn label(order: Delivery<Label>, Shared(desk): Shared<Desk>) -> HandlerResult {
    if one_in(15) {
        Tally::add(&desk.tally.retried);
        desk.tell(format!("order {}: the label printer is jammed; will retry", order.order));
        return Err("the label printer is jammed".into());
    }
    Tally::add(&desk.tally.handled);
    Ok(())
}

/// The continuation of an order's join: all of its steps are done.
async fn ship(order: Delivery<Ship>, Shared(desk): Shared<Desk>) -> HandlerResult {
    end(&desk, order.order, "shipped").await?;
    Tally::add(&desk.tally.shipped);
    Ok(())
}

/// The continuation of a join with a step that is dead.
async fn apologise(order: Delivery<Apologise>, Shared(desk): Shared<Desk>) -> HandlerResult {
    end(&desk, order.order, "refused").await?;
    Tally::add(&desk.tally.refused);
    Ok(())
}

/// Writes down the end of an order; a second end would show.
async fn end(desk: &Desk, order: i64, end: &str) -> HandlerResult {
    Tally::add(&desk.tally.handled);
    let sql = "update orders set ended = ?, ends = ends + 1 where id = ?";
    sqlx::query(sql).bind(end).bind(order).execute(&desk.pool).await?;
    Ok(())
}

async fn count_shelf(_shelf: Delivery<Shelf>, Shared(desk): Shared<Desk>) -> HandlerResult {
    sleep(Duration::from_millis(fastrand::u64(50..400))).await;
    Tally::add(&desk.tally.handled);
    Ok(())
}

async fn stock_is_counted(_counted: Delivery<Counted>, Shared(desk): Shared<Desk>) -> HandlerResult {
    desk.tell(format!("stock-taking: all {SHELVES} shelves are counted"));
    Tally::add(&desk.tally.handled);
    Ok(())
}

impl Shop {
    /// Opens the shop in this file, and begins with its stock-taking, which lasts for most of this time.
    pub(super) async fn open(file: &Path, length: Duration) -> Result<Self> {
        let store = SqliteStore::open(file).await.map_err(|error| {
            error.with_remedy("check that the folder exists and can be written to, or name another --file")
        })?;
        store.migrate().await?;
        let pool = store.pool();
        let table =
            "create table orders (id integer primary key, ended text, ends integer not null default 0)";
        sqlx::query(table).execute(&pool).await.map_err(own)?;
        let desk = Desk {
            pool,
            tally: Arc::default(),
            latency: Arc::default(),
            down: Arc::default(),
            news: Arc::default(),
        };
        let soon = Policy::new().retry(FixedDelay(Duration::from_millis(800)));
        let outbox = Outbox::builder(store.clone())
            .share(desk.clone())
            .on(receipt)
            .on(charge)
            .on(reserve)
            .on(label)
            .on(ship)
            .on(apologise)
            .on(count_shelf)
            .on(stock_is_counted)
            .policy(Topics::of(["order.*"])?, soon)
            .workers(16)
            .worker("demo")
            .build()
            .await?;
        let mut tx = outbox.begin().await?;
        let shelves = (0..SHELVES).map(|shelf| {
            let after = length * 4 / 5 * shelf / SHELVES;
            NewMessage::event(&Shelf { order: shelf.into() }).delay(after)
        });
        let join = NewJoin::of(shelves).grouping_key("stock-taking");
        let join = tx.start_join(join.wait(JoinWait::on_complete(&Counted { order: 0 }))).await?;
        tx.commit().await?;
        Ok(Self { store, outbox, desk, stock_taking: join.id, closed: Arc::default() })
    }

    /// Takes orders for as long as it is open.
    pub(super) async fn trade(self, begin: Instant, length: Duration, rate: u64) -> Result<()> {
        let between = Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX);
        let mut next = begin;
        let mut order = 0;
        while begin.elapsed() < length && !self.closed.load(Ordering::Relaxed) {
            // The provider's outage: in the middle, for a fifth of the time.
            let part = begin.elapsed().as_secs_f64() / length.as_secs_f64();
            self.is_down((0.35..0.55).contains(&part));
            order += 1;
            self.place(order, order % 13 == 0).await?;
            next += between;
            sleep_until(next).await;
        }
        self.is_down(false);
        Ok(())
    }

    fn is_down(&self, down: bool) {
        if self.desk.down.swap(down, Ordering::Relaxed) != down {
            let state = if down { "is down: messages wait, and consume no attempts" } else { "is back" };
            self.desk.tell(format!("the payment provider {state}"));
        }
    }

    /// Saves an order and publishes its messages, in one transaction. If the customer changes their mind, all of it is rolled
    /// back; such messages carry a negative number, and must never be delivered.
    async fn place(&self, order: i64, changes_mind: bool) -> Result<()> {
        let number = if changes_mind { -order } else { order };
        let mut tx = self.outbox.begin().await?;
        sqlx::query("insert into orders (id) values (?)")
            .bind(number)
            .execute(&mut *tx)
            .await
            .map_err(own)?;
        tx.publish(&Placed { order: number }).await?;
        let steps = NewJoin::expecting(3)
            .step(&Charge { order: number })
            .step(&Reserve { order: number })
            .step(&Label { order: number })
            .grouping_key(format!("order-{order}"))
            .wait(JoinWait::on_complete(&Ship { order: number }).on_fail(&Apologise { order: number }));
        tx.start_join(steps).await?;
        if changes_mind {
            tx.rollback().await?;
            Tally::add(&self.desk.tally.rolled_back);
            return Ok(());
        }
        tx.commit().await?;
        lock(&self.desk.latency).committed(order, std::time::Instant::now());
        Tally::add(&self.desk.tally.orders);
        Ok(())
    }

    /// No more orders, and no more shelves than are being counted.
    pub(super) async fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Relaxed);
        let shelves = Filter { topics: Topics::of([Shelf::TOPIC])?, ..Filter::default() };
        self.store.bury(&Change::new(shelves, "demo", "Ctrl-C")?).await?;
        Ok(())
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub(super) fn tally(&self) -> &Tally {
        &self.desk.tally
    }

    pub(super) fn latency(&self) -> Option<super::latency::Percentiles> {
        lock(&self.desk.latency).percentiles()
    }

    pub(super) fn news(&self) -> Vec<String> {
        lock(&self.desk.news).clone()
    }

    pub(super) fn provider_is_down(&self) -> bool {
        self.desk.down.load(Ordering::Relaxed)
    }

    /// How many shelves are counted.
    pub(super) async fn shelves_counted(&self) -> Result<u32> {
        Ok(self.store.join(self.stock_taking).await?.map_or(0, |join| join.completed_steps))
    }

    /// The first dead letter, if there is one.
    pub(super) async fn dead_letter(&self) -> Result<Option<MessageId>> {
        let dead = Filter { state: Some(State::Dead), ..Filter::default() };
        Ok(self.store.list(&dead, None, 1).await?.records.first().map(|record| record.message.id))
    }

    /// Whether nothing is left to deliver.
    pub(super) async fn is_over(&self) -> Result<bool> {
        Ok(self.store.stats().await?.pending().value == 0)
    }

    /// Broken promises.
    pub(super) async fn check(&self) -> Result<Vec<String>> {
        let sql = "select count(*), coalesce(sum(ends = 1), 0), coalesce(sum(ends > 1), 0), coalesce(sum(id < 0), 0) \
                   from orders";
        let row: (i64, i64, i64, i64) = sqlx::query_as(sql).fetch_one(&self.desk.pool).await.map_err(own)?;
        let (saved, once, twice, undone) = row;
        let placed = i64::try_from(self.desk.tally.orders.load(Ordering::Relaxed)).unwrap_or(i64::MAX);
        let mut broken = Vec::new();
        let mut must = |holds: bool, what: String| {
            if !holds {
                broken.push(what);
            }
        };
        must(saved == placed, format!("{placed} orders were placed, and {saved} saved"));
        must(once == placed, format!("{once} of {placed} orders came to one end"));
        must(twice == 0, format!("{twice} orders came to more than one end"));
        must(undone == 0, format!("{undone} orders were rolled back, and saved"));
        let phantoms = self.desk.tally.phantoms.load(Ordering::Relaxed);
        must(phantoms == 0, format!("{phantoms} messages were rolled back, and delivered"));
        let counted = self.shelves_counted().await?;
        must(counted == SHELVES || self.is_closed(), format!("{counted} of {SHELVES} shelves were counted"));
        Ok(broken)
    }

    pub(super) fn summary(&self, url: &str, stats: &Stats, broken: Vec<String>) -> Summary {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let tally = self.tally();
        Summary {
            store: url.to_owned(),
            orders: read(&tally.orders),
            rolled_back: read(&tally.rolled_back),
            shipped: read(&tally.shipped),
            refused: read(&tally.refused),
            delivered: stats.done.value,
            retried: read(&tally.retried),
            dead: stats.dead.value,
            hot_latency_ms: self.latency(),
            broken,
        }
    }
}
