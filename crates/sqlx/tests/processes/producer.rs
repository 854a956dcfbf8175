//! Producers as applications are: a business row and a message in one transaction of their own, some of them rolled back,
//! some with a savepoint that is, some with a dedup key that was used before.
//!
//! A producer never repeats a transaction whose fate it does not know, and never takes an unknown commit for either.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use posthaste_core::{MessageId, NewMessage, Outbox};
use posthaste_sqlx::{Dialect, SqlStore};
use sqlx_core::pool::Pool;
use tokio::task::JoinHandle;

use crate::base::Base;
use crate::check::Ledger;
use crate::journal::{hex, write_order};

type Failed = Box<dyn std::error::Error + Send + Sync>;

/// Producers at work.
pub struct Producers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Ledger>>,
}

impl Producers {
    /// Starts so many of them, each with a pause after each transaction.
    pub fn start<D: Base>(
        store: &SqlStore<D>,
        pool: &Pool<<D as Dialect>::Db>,
        count: u64,
        pause: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..count).map(|task| {
            let (store, pool, stop) = (store.clone(), pool.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let outbox = Outbox::builder(store).build().await.unwrap();
                let mut producer =
                    Producer::<D> { task, outbox, pool, ledger: Ledger::default(), dedup: None };
                for n in 0_u64.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if producer.transact(n).await.is_err() {
                        // Its outcome is in the tables. The next one has another id.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    tokio::time::sleep(pause).await;
                }
                producer.ledger
            })
        });
        Self { tasks: tasks.collect(), stop }
    }

    /// Stops them, and returns their records.
    pub async fn stop(self) -> Ledger {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Ledger::default();
        for task in self.tasks {
            let Ledger { committed, refused } = task.await.unwrap();
            all.committed.extend(committed);
            all.refused.extend(refused);
        }
        all
    }
}

struct Producer<D: Base> {
    task: u64,
    outbox: Outbox<SqlStore<D>>,
    pool: Pool<<D as Dialect>::Db>,
    ledger: Ledger,
    /// The dedup key of the transaction before, if that was committed.
    dedup: Option<String>,
}

impl<D: Base> Producer<D> {
    /// The keys of one producer are its own, so that their order is the order of its transactions.
    fn message(&self, n: u64, dedup: Option<&str>) -> NewMessage {
        let topic = match n {
            n if n % 23 == 5 => "flaky",
            n if n % 101 == 100 => "doomed",
            _ => "work",
        };
        let mut message = NewMessage::bytes(topic, vec![b'x'; 512]);
        if n.is_multiple_of(2) && topic != "doomed" {
            message = message.key(format!("p{}k{}", self.task, n / 2 % 10));
        }
        if let Some(dedup) = dedup {
            message = message.dedup_key(dedup);
        }
        message.build().unwrap()
    }

    async fn transact(&mut self, n: u64) -> Result<(), Failed> {
        let used = self.dedup.take();
        let fresh = (n % 17 == 3).then(|| format!("p{}d{n}", self.task));
        let message = self.message(n, used.as_deref().or(fresh.as_deref()));
        let mut gone: Vec<MessageId> = Vec::new();
        let mut tx = self.pool.begin().await?;
        let enqueued = self.outbox.publish(&mut tx, &message).await?;
        assert_eq!(enqueued.is_duplicate(), used.is_some(), "a dedup key that was used before, and no other");
        if !enqueued.is_duplicate() {
            write_order::<D>(&mut tx, message.id()).await?;
        }
        if n % 13 == 9 {
            let taken_back = self.message(1, None);
            D::run(&mut tx, "savepoint here".to_owned()).await?;
            self.outbox.publish(&mut tx, &taken_back).await?;
            write_order::<D>(&mut tx, taken_back.id()).await?;
            D::run(&mut tx, "rollback to savepoint here".to_owned()).await?;
            gone.push(taken_back.id());
        }
        if n % 20 == 7 {
            // Rolled back, or cut off before its commit: not there in either case.
            self.ledger.refused.extend(gone.into_iter().chain([message.id()]).map(hex));
            tx.rollback().await?;
            return Ok(());
        }
        // It is gone in any case.
        self.ledger.refused.extend(gone.into_iter().map(hex));
        tx.commit().await?;
        if enqueued.is_duplicate() {
            self.ledger.refused.push(hex(message.id()));
        } else {
            self.ledger.committed.push(hex(message.id()));
            self.dedup = fresh;
        }
        Ok(())
    }
}
