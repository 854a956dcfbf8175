//! The inbox: a consumer records a message in the transaction in which it acts, and recognises it later.
//!
//! A case has one transaction at a time: some databases have one writer.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Birth, ErrorKind, Inbox, InboxRecord, InboxStore, MAX_CONSUMER_BYTES, MessageId, Once, Received, Result,
    StoreAdmin, TransactionalStore,
};

use super::support::*;
use crate::{Effects, Fixture};

/// The consumer of most cases.
pub(crate) const CONSUMER: &str = "stock";
const SOURCE: &str = "shop";
/// The SHA-256 of `{}`.
const HASH: &str = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";

/// The inbox of the usual consumer.
pub(crate) fn inbox<F: Fixture>(fixture: &F) -> Inbox<F::Store> {
    Inbox::new(fixture.store().clone(), CONSUMER).unwrap()
}

/// A new message.
pub(crate) fn received() -> Received {
    Received::new(SOURCE, MessageId::new(), "order.placed", "{}")
}

/// The same message with another payload.
pub(crate) fn altered(message: &Received) -> Received {
    let mut altered = message.clone();
    altered.payload = "{ }".into();
    altered
}

/// Remembers a message in a transaction that is open.
pub(crate) async fn once_in<F: Fixture>(
    fixture: &F,
    tx: &mut F::Transaction,
    inbox: &Inbox<F::Store>,
    message: &Received,
) -> Once {
    inbox.once(fixture.connection(tx), message).await.unwrap()
}

/// Remembers a message in a transaction of its own.
pub(crate) async fn once<F: Fixture>(fixture: &F, inbox: &Inbox<F::Store>, message: &Received) -> Once {
    let mut tx = fixture.begin().await;
    let once = once_in(fixture, &mut tx, inbox, message).await;
    fixture.commit(tx).await;
    once
}

/// Acts upon a message, in a transaction that is open.
pub(crate) async fn act<S: TransactionalStore>(
    store: &S,
    connection: &mut S::Connection,
    consumer: &str,
    message: &Received,
) -> Result<()> {
    store.insert(connection, &[Effects::effect(consumer, message.id)], Birth::Ready).await.map(drop)
}

/// The usual consumer's row of a message.
pub(crate) async fn remembered<S: InboxStore>(store: &S, message: &Received) -> Option<InboxRecord> {
    store.remembered(CONSUMER, &message.source, message.id).await.unwrap()
}

/// I9 for the usual consumer.
pub(crate) async fn assert_acted<S: StoreAdmin>(store: &S, messages: &[&Received]) {
    let ids: Vec<_> = messages.iter().map(|message| message.id).collect();
    assert_eq!(Effects::of(store).await.exactly_once(&[CONSUMER], &ids), Ok(()));
}

/// INB-001: a message is first once; the same again is repeated; the same id with another payload is told apart, and changes
/// nothing.
pub async fn first_repeated_altered<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, message) = (inbox(&**fixture), received());
    assert!(once(&**fixture, &inbox, &message).await.is_first());
    for _ in 0..2 {
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated);
        assert_eq!(once(&**fixture, &inbox, &altered(&message)).await, Once::Altered);
    }
    // What else there is about it does not make it another message.
    let mut again = message.clone();
    (again.topic, again.redelivered, again.occurred_at) = ("other".into(), true, Some(SystemTime::now()));
    assert_eq!(once(&**fixture, &inbox, &again).await, Once::Repeated);
    assert_eq!(remembered(fixture.store(), &message).await.unwrap().topic, "order.placed");
    assert_eq!(once(&**fixture, &inbox, &received()).await, Once::First);
}

/// INB-001: another consumer has its own, and so has another source.
pub async fn consumers_and_sources_are_apart<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, message) = (inbox(&**fixture), received());
    let other_inbox = Inbox::new(fixture.store().clone(), "mail").unwrap();
    let mut elsewhere = message.clone();
    elsewhere.source = "other shop".into();
    assert_eq!(once(&**fixture, &inbox, &message).await, Once::First);
    assert_eq!(once(&**fixture, &other_inbox, &message).await, Once::First);
    assert_eq!(once(&**fixture, &inbox, &elsewhere).await, Once::First);
    for (inbox, message) in [(&inbox, &message), (&other_inbox, &message), (&inbox, &elsewhere)] {
        assert_eq!(once(&**fixture, inbox, message).await, Once::Repeated);
    }
    assert_eq!(once(&**fixture, &other_inbox, &elsewhere).await, Once::First);
}

/// Rule 18, INB-001: names that some collation takes for the same are not.
pub async fn names_are_compared_byte_by_byte<F: Fixture>(fixture: &Arc<F>) {
    let names = ["stock", "STOCK", "stock ", " stock", "stöck", "sto\u{308}ck", "ﬆock", "stock\u{200b}"];
    let message = received();
    for round in [Once::First, Once::Repeated] {
        for name in names {
            let inbox = Inbox::new(fixture.store().clone(), name).unwrap();
            assert_eq!(once(&**fixture, &inbox, &message).await, round, "consumer {name:?}");
        }
    }
    let inbox = Inbox::new(fixture.store().clone(), "sources").unwrap();
    for round in [Once::First, Once::Repeated] {
        for name in names {
            let mut message = message.clone();
            message.source = name.into();
            assert_eq!(once(&**fixture, &inbox, &message).await, round, "source {name:?}");
        }
    }
}

/// Rule 15: names as long as they may be, which differ in their last byte.
pub async fn names_of_full_length<F: Fixture>(fixture: &Arc<F>) {
    let name =
        |most: usize, last: &str| "é".repeat(most).chars().take((most - 1) / 2).collect::<String>() + last;
    for (consumer, source) in [("a", "a"), ("b", "a"), ("a", "b")] {
        let inbox = Inbox::new(fixture.store().clone(), name(MAX_CONSUMER_BYTES, consumer)).unwrap();
        let id = MessageId::from_uuid(posthaste_core::Uuid::from_u128(7));
        let message = Received::new(name(255, source), id, name(255, "t"), "");
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::First, "{consumer} {source}");
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated, "{consumer} {source}");
        let record =
            fixture.store().remembered(inbox.consumer(), &message.source, id).await.unwrap().unwrap();
        assert_eq!(record.topic, message.topic);
    }
}

/// INB-001: a transaction sees its own inbox rows; no other one sees them before the commit.
pub async fn seen_by_its_own_transaction<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, message) = (inbox(&**fixture), received());
    let mut tx = fixture.begin().await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::Repeated);
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &altered(&message)).await, Once::Altered);
    assert!(remembered(fixture.store(), &message).await.is_none());
    fixture.commit(tx).await;
    assert!(remembered(fixture.store(), &message).await.is_some());
}

/// INB-002: a row that was rolled back was never there.
pub async fn a_rollback_leaves_no_row<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, message) = (inbox(&**fixture), received());
    for _ in 0..3 {
        let mut tx = fixture.begin().await;
        assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
        fixture.rollback(tx).await;
        assert!(remembered(fixture.store(), &message).await.is_none());
    }
    // Not even its payload: another one with this id is no defect.
    assert_eq!(once(&**fixture, &inbox, &altered(&message)).await, Once::First);
}

/// INB-002: a savepoint rolled back inside a committed transaction removes the rows written since, and only those.
pub async fn a_savepoint_takes_it_back<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, before, after) = (inbox(&**fixture), received(), received());
    let mut tx = fixture.begin().await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &before).await, Once::First);
    fixture.savepoint(fixture.connection(&mut tx)).await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &after).await, Once::First);
    fixture.rollback_to_savepoint(fixture.connection(&mut tx)).await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &before).await, Once::Repeated);
    fixture.commit(tx).await;
    assert!(remembered(fixture.store(), &before).await.is_some());
    assert!(remembered(fixture.store(), &after).await.is_none());
    assert_eq!(once(&**fixture, &inbox, &after).await, Once::First);
}

/// INB-002: a transaction that is dropped, as by a panic, leaves no row.
pub async fn what_is_dropped_is_rolled_back<F: Fixture>(fixture: &Arc<F>) {
    let (inbox, message) = (inbox(&**fixture), received());
    let mut tx = fixture.begin().await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
    drop(tx);
    assert_eq!(once(&**fixture, &inbox, &message).await, Once::First);
}

/// INB-001, INB-002, M-17: the row and the consumer's changes commit together, or not at all.
pub async fn row_and_effect_share_one_fate<F: Fixture>(fixture: &Arc<F>) {
    let (store, inbox, message) = (fixture.store(), inbox(&**fixture), received());
    let mut tx = fixture.begin().await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
    act(store, fixture.connection(&mut tx), CONSUMER, &message).await.unwrap();
    fixture.rollback(tx).await;
    assert_acted(store, &[]).await;
    for round in [Once::First, Once::Repeated] {
        let mut tx = fixture.begin().await;
        let once = once_in(&**fixture, &mut tx, &inbox, &message).await;
        assert_eq!(once, round);
        if once.is_first() {
            act(store, fixture.connection(&mut tx), CONSUMER, &message).await.unwrap();
        }
        fixture.commit(tx).await;
        assert_acted(store, &[&message]).await;
    }
}

/// Rule 5: a message that is there dooms no transaction: what else it does is committed.
pub async fn a_transaction_goes_on<F: Fixture>(fixture: &Arc<F>) {
    let (store, inbox, message, next) = (fixture.store(), inbox(&**fixture), received(), received());
    once(&**fixture, &inbox, &message).await;
    let mut tx = fixture.begin().await;
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::Repeated);
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &altered(&message)).await, Once::Altered);
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &next).await, Once::First);
    act(store, fixture.connection(&mut tx), CONSUMER, &next).await.unwrap();
    fixture.commit(tx).await;
    assert_acted(store, &[&next]).await;
    assert!(remembered(store, &next).await.is_some());
}

/// INB-011: topic, hash and times are kept, and the payload if it is asked for.
pub async fn what_is_kept_for_audit<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let occurred = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
    for keep in [false, true] {
        let (inbox, mut message) = (inbox(&**fixture).keep_payload(keep), received());
        message.occurred_at = keep.then_some(occurred);
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::First);
        let record = remembered(store, &message).await.unwrap();
        let hash: String = record.payload_hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!((record.topic.as_str(), hash.as_str()), ("order.placed", HASH));
        assert_eq!(record.payload.as_deref(), keep.then_some(&b"{}"[..]));
        assert_eq!(record.occurred_at, keep.then_some(occurred));
        assert_near(record.received_at, fixture.now().await);
        // A repetition keeps the stored row.
        once(&**fixture, &inbox.keep_payload(!keep), &message).await;
        assert_eq!(remembered(store, &message).await.unwrap(), record);
    }
    assert!(remembered(store, &received()).await.is_none());
    let message = received();
    once(&**fixture, &inbox(&**fixture), &message).await;
    assert!(store.remembered("mail", &message.source, message.id).await.unwrap().is_none());
    assert!(store.remembered(CONSUMER, "other", message.id).await.unwrap().is_none());
}

/// Rule 10: a publisher's time may be nonsense, and stops no consumer.
pub async fn odd_times_stop_nobody<F: Fixture>(fixture: &Arc<F>) {
    let inbox = inbox(&**fixture);
    let epoch = SystemTime::UNIX_EPOCH;
    let (ages, before) = (Duration::from_secs(u64::from(u32::MAX) * 1_000), Duration::from_secs(86_400));
    for time in [epoch, epoch - before, epoch + ages, epoch + 2 * ages] {
        let mut message = received();
        message.occurred_at = Some(time);
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::First);
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated);
        assert!(remembered(fixture.store(), &message).await.unwrap().occurred_at.is_some());
    }
}

/// INB-011: payloads of no byte, of all bytes and of 16 MiB are kept, and told from almost the same.
pub async fn payloads_of_any_size<F: Fixture>(fixture: &Arc<F>) {
    let inbox = inbox(&**fixture).keep_payload(true);
    let large: Vec<u8> = (0..=255).cycle().take(16 << 20).collect();
    for payload in [Vec::new(), (0..=255).collect(), large] {
        let mut message = received();
        message.payload = payload.clone().into();
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::First);
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated);
        assert!(remembered(fixture.store(), &message).await.unwrap().payload == Some(payload.clone()));
        let mut longer = payload;
        longer.push(0);
        message.payload = longer.into();
        assert_eq!(once(&**fixture, &inbox, &message).await, Once::Altered);
    }
}

/// Rule 15: names that do not fit are refused before anything is written, and the transaction goes on.
pub async fn impossible_names_are_refused<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for name in ["", "a\0b", &"c".repeat(MAX_CONSUMER_BYTES + 1)] {
        assert_eq!(Inbox::new(store.clone(), name).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let (inbox, message) = (inbox(&**fixture), received());
    let mut tx = fixture.begin().await;
    for name in ["", "a\0b", &"c".repeat(256)] {
        let (mut source, mut topic) = (message.clone(), message.clone());
        (source.source, topic.topic) = (name.to_owned(), name.to_owned());
        for bad in [source, topic] {
            let error = inbox.once(fixture.connection(&mut tx), &bad).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        }
    }
    assert_eq!(once_in(&**fixture, &mut tx, &inbox, &message).await, Once::First);
    fixture.commit(tx).await;
    assert_eq!(once(&**fixture, &inbox, &message).await, Once::Repeated);
}
