//! Assertions for users' own tests: which messages were published.
//!
//! They read a store through its operators' seam, and change nothing. Failures name topics and numbers, and, because they
//! are the test's own data, the events.

use std::fmt::Debug;

use posthaste_core::{Event, Filter, Message, Record, State, StoreAdmin, Topics};
use serde::de::DeserializeOwned;

/// Every stored message of these topics, in the order of enqueueing: ready, leased, done or dead.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use posthaste_core::{MemoryStore, NewMessage, Outbox, Topics};
/// use posthaste_testkit::stored;
///
/// let store = MemoryStore::new();
/// let outbox = Outbox::builder(store.clone()).build().await?;
/// outbox.enqueue(NewMessage::bytes("invoice.sent", "7").key("customer-12")).await?;
///
/// let messages = stored(&store, &Topics::of(["invoice.*"])?).await;
/// assert_eq!(messages[0].message.key.as_deref(), Some("customer-12"));
/// # Ok(()) }
/// ```
pub async fn stored(store: &impl StoreAdmin, topics: &Topics) -> Vec<Record> {
    let filter = Filter { topics: topics.clone(), ..Filter::default() };
    let (mut records, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(&filter, after, 200).await.unwrap();
        records.extend(page.records);
        after = page.next;
        if after.is_none() {
            return records;
        }
    }
}

/// The events of this type that have been published, in the order of enqueueing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> posthaste_core::Result<()> {
/// use posthaste_core::{Event, MemoryStore, Outbox};
/// use posthaste_testkit::{assert_nothing_published, assert_published, published};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct OrderPlaced { order_id: i64 }
/// impl Event for OrderPlaced { const TOPIC: &'static str = "order.placed"; }
///
/// #[derive(Debug, Serialize, Deserialize)]
/// struct OrderCancelled { order_id: i64 }
/// impl Event for OrderCancelled { const TOPIC: &'static str = "order.cancelled"; }
///
/// async fn place_order(outbox: &Outbox<MemoryStore>) -> posthaste_core::Result<()> {      // the code under test
///     let mut tx = outbox.store().begin();
///     outbox.publish(&mut tx, &OrderPlaced { order_id: 42 }).await?;
///     tx.commit();
///     Ok(())
/// }
///
/// let outbox = Outbox::builder(MemoryStore::new()).build().await?;
/// place_order(&outbox).await?;
/// assert_published(outbox.store(), &OrderPlaced { order_id: 42 }).await;
/// assert_eq!(published::<OrderPlaced>(outbox.store()).await.len(), 1);
/// assert_nothing_published::<OrderCancelled>(outbox.store()).await;
/// # Ok(()) }
/// ```
///
/// # Panics
/// If a stored payload is no such event.
pub async fn published<E: Event + DeserializeOwned>(store: &impl StoreAdmin) -> Vec<E> {
    let topic = Topics::of([E::TOPIC]).unwrap();
    let decode = |message: &Message| message.json().unwrap_or_else(|error| panic!("{error}"));
    stored(store, &topic).await.iter().map(|record| decode(&record.message)).collect()
}

/// Asserts that this event has been published.
///
/// # Panics
/// If it was not; the panic lists what was published.
pub async fn assert_published<E>(store: &impl StoreAdmin, expected: &E)
where
    E: Event + DeserializeOwned + PartialEq + Debug,
{
    let events = published::<E>(store).await;
    assert!(
        events.contains(expected),
        "{expected:?} was not published; of {} there are {events:?}",
        E::TOPIC
    );
}

/// Asserts that no event of this type has been published.
///
/// # Panics
/// If one has.
pub async fn assert_nothing_published<E: Event + DeserializeOwned + Debug>(store: &impl StoreAdmin) {
    let events = published::<E>(store).await;
    assert!(events.is_empty(), "of {} there are {events:?}", E::TOPIC);
}

/// Asserts that everything published is done.
///
/// # Panics
/// If something is not; the message shows what, and why.
pub async fn assert_all_done(store: &impl StoreAdmin) {
    let records = stored(store, &Topics::all()).await;
    let open: Vec<String> = records
        .iter()
        .filter(|record| record.state != State::Done)
        .map(|record| {
            let error = record.last_error.as_deref().unwrap_or("no error");
            format!("{} {} is {}: {error}", record.message.topic, record.message.id, record.state)
        })
        .collect();
    assert!(open.is_empty(), "{} of {} are not done: {open:#?}", open.len(), records.len());
}
