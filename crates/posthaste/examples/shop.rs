//! A shop that sends a receipt for every order, through all failures: `cargo run --example shop --features sqlite`.
//!
//! The shop stores an order and publishes `order.placed` in one transaction; two workers send the receipts. Cards are
//! refused, a customer clicks twice, mailboxes are full, one address does not exist, and one worker dies in the middle
//! of its work. At the end the program checks the promises, and exits with an error if one does not hold.
//!
//! It needs nothing but SQLite, which is compiled in, and a temporary folder. Read it from top to bottom: first the
//! code that a program of your own would contain, then the show around it. It uses only the public interface.

#![allow(clippy::print_stdout, reason = "it is for looking at")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use posthaste::{
    Delivery, Event, ExponentialBackoff, FailureClass, Filter, HandlerError, HandlerResult, MessageId,
    NewMessage, OrderPolicy, Outbox, Record, Schedule, Shared, Shutdown, SqliteStore, State, Stats,
    StoreAdmin, Topics,
};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::SqliteConnectOptions;
use tokio::time::sleep;

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

// ---------------------------------------------------------------------------------------------------------------------
// The event
// ---------------------------------------------------------------------------------------------------------------------

/// The published event. The topic belongs to the type; messages with the same key are delivered one at a time, in
/// order.
#[derive(Serialize, Deserialize)]
struct OrderPlaced {
    number: i64,
    customer: String,
}

impl Event for OrderPlaced {
    const TOPIC: &'static str = "order.placed";

    fn key(&self) -> Option<String> {
        Some(self.customer.clone())
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Publishing: the shop
// ---------------------------------------------------------------------------------------------------------------------

/// Everything that the tasks of this program share.
struct Shop {
    /// The shop's own connections; posthaste has others.
    pool: SqlitePool,
    outbox: Outbox<SqliteStore>,
    post: Arc<Post>,
    closed: AtomicBool,
}

enum Checkout {
    Placed,
    /// The transaction was rolled back; a message with this id must never be seen.
    CardRefused(MessageId),
    /// The order had been placed before.
    SecondClick,
}

/// Stores an order and publishes its event in the same transaction: both, or neither.
async fn place_order(shop: &Shop, order: &OrderPlaced, card_is_good: bool) -> Result<Checkout> {
    let mut tx = shop.pool.begin().await?;
    sqlx::query("insert into orders (number, customer) values (?, ?)")
        .bind(order.number)
        .bind(&order.customer)
        .execute(&mut *tx)
        .await?;

    // `publish(&mut tx, order)` would do. The dedup key, which identifies the click, makes it once only.
    let message = NewMessage::event(order).dedup_key(format!("order-{}", order.number));
    let published = shop.outbox.publish(&mut tx, message).await?;

    if published.is_duplicate() {
        tx.rollback().await?;
        Ok(Checkout::SecondClick)
    } else if card_is_good {
        tx.commit().await?;
        Ok(Checkout::Placed)
    } else {
        tx.rollback().await?;
        Ok(Checkout::CardRefused(published.id()))
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Delivering: the workers
// ---------------------------------------------------------------------------------------------------------------------

/// The handler. Its first argument is the event, which determines the topic; shared values come after it.
async fn send_receipt(order: Delivery<OrderPlaced>, Shared(worker): Shared<Worker>) -> HandlerResult {
    sleep(Duration::from_millis(80)).await; // the mail server takes its time
    let number = order.number;
    if number == NO_SUCH_ADDRESS {
        worker.say(RED, &format!("order {number}: no such address; dead, with that reason"));
        return Err(HandlerError::dead("no such address")); // never again
    }
    if order.attempt() <= attempts_in_vain(number) {
        let (attempt, customer) = (order.attempt(), &order.customer);
        worker.say(
            YELLOW,
            &format!(
                "order {number}: mailbox full; attempt {attempt}, again later; {customer}'s next orders wait"
            ),
        );
        return Err("mailbox full".into()); // any error means: again later
    }
    let receipt = Receipt { id: order.message().id, number, customer: order.customer.clone() };
    if worker.post.sent(receipt) > 1 {
        worker.say(
            YELLOW,
            &format!("order {number}: receipt sent again, as its ack never came (at least once)"),
        );
    }
    worker.crash_perhaps(number).await;
    Ok(())
}

/// A process of its own in real life: an outbox with handlers, which claims, retries, renews leases, reaps and prunes.
async fn open_worker(store: &SqliteStore, worker: Worker) -> Result<Outbox<SqliteStore>> {
    let outbox = Outbox::builder(store.clone())
        .on(send_receipt)
        .share(worker)
        .workers(2)
        .order(Topics::all(), OrderPolicy::Skip) // when a message dies, its customer's others go on
        // Short, so that the example ends soon; in real life the defaults will do.
        .lease(LEASE)
        .poll(Duration::from_millis(5), Duration::from_millis(50))
        .retry(ExponentialBackoff::new(Duration::from_millis(200), Duration::from_secs(2)))
        .reap(Schedule::every(Duration::from_millis(100)))
        .build()
        .await?;
    Ok(outbox)
}

// ---------------------------------------------------------------------------------------------------------------------
// The show
// ---------------------------------------------------------------------------------------------------------------------

/// How long a claimed message is its worker's own, unless it is renewed.
const LEASE: Duration = Duration::from_millis(300);
const CUSTOMERS: [&str; 5] = ["ann", "bob", "cleo", "dan", "eve"];
const CHECKOUTS: i64 = 40;
const CLICKED_TWICE: i64 = 11;
const NO_SUCH_ADDRESS: i64 = 17;

fn card_is_good(number: i64) -> bool {
    number % 9 != 4
}

fn attempts_in_vain(number: i64) -> u32 {
    match number {
        6 => 2,
        18 | 28 => 1,
        _ => 0,
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.db");

    // The outbox's own tables, and the shop's, in the same database: that is what makes one transaction of both possible.
    let store = SqliteStore::open(&file).await?;
    store.migrate().await?;
    let pool = SqlitePool::connect_with(SqliteConnectOptions::new().filename(&file)).await?;
    sqlx::query("create table orders (number integer not null, customer text not null)")
        .execute(&pool)
        .await?;

    println!(
        "{CHECKOUTS} checkouts, {} customers, workers ada and ben, leases of {LEASE:?}\n",
        CUSTOMERS.len()
    );
    let post = Arc::new(Post { receipts: Mutex::default(), opened: Instant::now() });
    let [ada_stops, ben_stops] = [Shutdown::new(), Shutdown::new()];
    let ada = open_worker(&store, Worker { name: "ada", post: post.clone(), crashes: None }).await?;
    let ben =
        open_worker(&store, Worker { name: "ben", post: post.clone(), crashes: Some(ben_stops.clone()) })
            .await?;
    let running = [tokio::spawn(ada.run(ada_stops.clone())), tokio::spawn(ben.run(ben_stops.clone()))];

    // Publishing needs an outbox, too; it may run, or, as here, not.
    let outbox = Outbox::builder(store).order(Topics::all(), OrderPolicy::Skip).build().await?;
    let shop = Arc::new(Shop { pool, outbox, post, closed: AtomicBool::new(false) });
    let watching = tokio::spawn(watch(shop.clone()));
    let refused = open_for_business(&shop).await?;
    let drained = drain(&shop).await?;

    // A graceful shutdown: handlers finish, and nothing stays leased. `outbox.run(shutdown_signal())` does it on SIGTERM.
    ada_stops.begin();
    for worker in running {
        worker.await??;
    }
    shop.closed.store(true, Ordering::Relaxed);
    watching.await??;

    let all_is_well = verify(&shop, &refused, drained).await?;
    shop.outbox.store().close().await;
    shop.pool.close().await;
    Ok(if all_is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets the customers in. Answers with the messages of those whose card was refused.
async fn open_for_business(shop: &Shop) -> Result<Vec<MessageId>> {
    let mut refused = Vec::new();
    for number in 1..=CHECKOUTS {
        let customer = CUSTOMERS[usize::try_from(number)? % CUSTOMERS.len()];
        let order = OrderPlaced { number, customer: customer.to_owned() };
        let clicks = if number == CLICKED_TWICE { 2 } else { 1 };
        for _ in 0..clicks {
            match place_order(shop, &order, card_is_good(number)).await? {
                Checkout::Placed => {}
                Checkout::CardRefused(id) => {
                    refused.push(id);
                    shop.say(
                        "shop",
                        CYAN,
                        &format!("order {number}: card refused; rolled back, message and all"),
                    );
                }
                Checkout::SecondClick => {
                    shop.say(
                        "shop",
                        CYAN,
                        &format!("order {number}: {customer} clicked twice; known already"),
                    );
                }
            }
        }
        sleep(Duration::from_millis(30)).await;
    }
    Ok(refused)
}

/// Waits until every message is done or dead. False if that takes too long.
async fn drain(shop: &Shop) -> Result<bool> {
    while shop.post.opened.elapsed() < Duration::from_secs(10) {
        if shop.outbox.store().stats().await?.pending().value == 0 {
            return Ok(true);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}

/// Says every half second how the queue is.
async fn watch(shop: Arc<Shop>) -> Result {
    let mut next = Duration::ZERO;
    while !shop.is_closed() {
        if shop.post.opened.elapsed() >= next {
            let Stats { ready, scheduled, leased, done, dead, .. } = shop.outbox.store().stats().await?;
            let waiting = ready.value + scheduled.value;
            let line = format!(
                "{waiting:>2} ready, {:>2} leased, {:>2} done, {:>2} dead",
                leased.value, done.value, dead.value
            );
            shop.say("queue", DIM, &line);
            next += Duration::from_millis(500);
        }
        sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

// ---------------------------------------------------------------------------------------------------------------------
// The checks
// ---------------------------------------------------------------------------------------------------------------------

/// Compares the shop's own table, the outbox and the outside world.
async fn verify(shop: &Shop, refused: &[MessageId], drained: bool) -> Result<bool> {
    let store = shop.outbox.store();
    let orders: Vec<(i64, String)> =
        sqlx::query_as("select number, customer from orders order by rowid").fetch_all(&shop.pool).await?;
    let records = store.list(&Filter::default(), None, 200).await?.records;
    let in_state = |state| records.iter().filter(move |record| record.state == state);
    let receipts = std::mem::take(&mut *shop.post.receipts.lock().unwrap_or_else(PoisonError::into_inner));

    // Of each receipt the first copy, and how many copies there were.
    let mut first: Vec<&Receipt> = Vec::new();
    let mut copies: BTreeMap<MessageId, usize> = BTreeMap::new();
    for receipt in &receipts {
        let count = copies.entry(receipt.id).or_default();
        *count += 1;
        if *count == 1 {
            first.push(receipt);
        }
    }

    let committed: BTreeSet<i64> = orders.iter().map(|(number, _)| *number).collect();
    let sent: BTreeSet<i64> = first.iter().map(|receipt| receipt.number).collect();
    let without: Vec<i64> = committed.difference(&sent).copied().collect();
    let stored: BTreeSet<MessageId> = records.iter().map(|record| record.message.id).collect();
    let phantoms = refused.iter().filter(|id| copies.contains_key(id) || stored.contains(id)).count();
    let in_order = CUSTOMERS.iter().all(|customer| {
        let theirs = first.iter().filter(|receipt| receipt.customer == *customer);
        theirs.map(|receipt| receipt.number).is_sorted()
    });
    let retried = in_state(State::Done).filter(|record| record.message.attempts > 0).count();
    let again: Vec<&Record> = records
        .iter()
        .filter(|record| copies.get(&record.message.id).is_some_and(|sent| *sent > 1))
        .collect();
    let dead: Vec<&Record> = in_state(State::Dead).collect();
    let reason = dead.first().and_then(|record| record.last_error.as_deref()).unwrap_or("nothing");

    println!();
    let checks = [
        (drained, "nothing is ready or leased any more".to_owned()),
        (
            sent.is_subset(&committed) && without == [NO_SUCH_ADDRESS],
            format!(
                "{} orders committed: {} receipts sent, {} without",
                committed.len(),
                sent.len(),
                without.len()
            ),
        ),
        (
            phantoms == 0 && !refused.is_empty(),
            format!("{} rolled back: none was ever delivered", refused.len()),
        ),
        (
            orders.len() == committed.len() && stored.len() == orders.len(),
            "the second click stored nothing".into(),
        ),
        (in_order, format!("each of {} customers got their receipts in order", CUSTOMERS.len())),
        (retried == 3, format!("{retried} needed more than one attempt")),
        (
            !again.is_empty() && again.iter().all(|record| record.message.lease_losses > 0),
            format!("{} sent twice, where a worker lost its lease, and no other", again.len()),
        ),
        (
            dead.len() == 1
                && dead[0].error_class == Some(FailureClass::Permanent)
                && reason.contains("address"),
            format!("{} dead, and it says why: {reason}", dead.len()),
        ),
    ];
    for (holds, claim) in &checks {
        println!("  {}  {claim}", if *holds { paint(GREEN, "ok    ") } else { paint(RED, "FAILED") });
    }

    let Stats { ready, scheduled, leased, done, dead, .. } = store.stats().await?;
    let counts = [ready, scheduled, leased, done, dead].map(|count| format!("{:>10}", count.value));
    println!("\n  {}", paint(DIM, "     ready scheduled    leased      done      dead"));
    println!("  {}", counts.concat());
    println!(
        "\nNext: read crates/posthaste/examples/shop.rs from top to bottom. Then put OrderPolicy::Block for Skip,"
    );
    println!("and see cleo's later orders wait behind the dead one, and the checks notice.");
    Ok(checks.iter().all(|(holds, _)| *holds))
}

// ---------------------------------------------------------------------------------------------------------------------
// Small things
// ---------------------------------------------------------------------------------------------------------------------

/// A receipt that has left the house.
struct Receipt {
    id: MessageId,
    number: i64,
    customer: String,
}

/// The outside world.
struct Post {
    /// Sent receipts, in order.
    receipts: Mutex<Vec<Receipt>>,
    opened: Instant,
}

impl Post {
    /// Sends a receipt. Answers how often this one has been sent by now.
    fn sent(&self, receipt: Receipt) -> usize {
        let mut receipts = self.receipts.lock().unwrap_or_else(PoisonError::into_inner);
        receipts.push(receipt);
        receipts.iter().filter(|other| other.id == receipts[receipts.len() - 1].id).count()
    }

    fn receipts_sent(&self) -> usize {
        self.receipts.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn say(&self, who: &str, colour: &str, what: &str) {
        println!("{:5.2} s  {who:<6}  {}", self.opened.elapsed().as_secs_f32(), paint(colour, what));
    }
}

/// Shared by the handlers of one worker.
#[derive(Clone)]
struct Worker {
    name: &'static str,
    post: Arc<Post>,
    /// How it dies in the middle of its work, if it does.
    crashes: Option<Shutdown>,
}

impl Worker {
    fn say(&self, colour: &str, what: &str) {
        self.post.say(self.name, colour, what);
    }

    /// As after a kill -9: nothing is acked, nothing given back. Its messages come again when the leases have run
    /// out.
    async fn crash_perhaps(&self, number: i64) {
        let Some(process) = &self.crashes else { return };
        if self.post.receipts_sent() > 8 {
            self.say(RED, &format!("crashes; the receipt of order {number} is sent, but not acked"));
            process.now();
            std::future::pending::<()>().await;
        }
    }
}

impl Shop {
    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn say(&self, who: &str, colour: &str, what: &str) {
        self.post.say(who, colour, what);
    }
}

const RED: &str = "31";
const GREEN: &str = "32";
const YELLOW: &str = "33";
const CYAN: &str = "36";
const DIM: &str = "2";

/// The text in this colour, where there is a terminal whose owner likes colours.
fn paint(colour: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{colour}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
