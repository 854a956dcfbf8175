//! Payloads and headers that the database cannot read.

use std::sync::Arc;
use std::time::Duration;

use posthaste_core::{
    CannotOpen, Cipher, ClaimRequest, ENCRYPTION_HEADER, ErrorKind, FailureClass, HandlerError, JoinWait,
    Key, Keyring, Message, NewJoin, NewMessage, Outbox, Record, Sealed, State, Store, WorkerId,
};

use super::Scene;
use super::support::{HOUR, Journal, becomes, draft, eventually, outbox, record, records, run, settings};
use crate::{Fixture, ScriptedSink};

const CANARY: &str = "canary-2b7e1516";

fn key(of: u8) -> Key {
    Key::new([of; 32])
}

/// The keys of this year, and those of the last.
fn keys() -> Keyring {
    Keyring::new("this-year", key(2)).unwrap().and_old("last-year", key(1)).unwrap()
}

fn secret(topic: &str) -> NewMessage {
    NewMessage::json(topic, &CANARY).header("customer", CANARY).build().unwrap()
}

/// Whether the stored row of a message shows anything of its content.
fn shows(record: &Record) -> bool {
    let Message { payload, headers, .. } = &record.message;
    payload.windows(CANARY.len()).any(|window| window == CANARY.as_bytes())
        || headers.values().any(|value| value.contains(CANARY))
}

fn mark(record: &Record) -> Option<&str> {
    record.message.headers.get(ENCRYPTION_HEADER).map(String::as_str)
}

/// RMQ-012: the stored row shows nothing, on either path; handlers and sinks get the published payload, with its
/// headers.
pub async fn only_handlers_can_read<F: Fixture>(scene: &Scene<F>) {
    let (journal, sink) = (Journal::new(), ScriptedSink::new("sink"));
    let outbox = outbox(scene.store(), settings())
        .encryption(keys())
        .on_topic("t", journal.noting("handler"))
        .sink("t", sink.clone())
        .build()
        .await
        .unwrap();
    let cold = outbox.enqueue(secret("t")).await.unwrap().id();
    let running = run(&outbox);
    let mut tx = outbox.begin().await.unwrap();
    let hot = tx.publish(secret("t")).await.unwrap().id();
    tx.commit().await.unwrap();
    for id in [cold, hot] {
        becomes(outbox.store(), id, State::Done).await;
        let record = record(outbox.store(), id).await;
        assert!(!shows(&record) && mark(&record) == Some("1 this-year"));
        let mut read = record.message.clone();
        outbox.decrypt(&mut read).unwrap();
        assert_eq!(read.json::<String>().unwrap(), CANARY);
    }
    running.stop().await;
    assert_eq!((journal.count(), sink.taken().len()), (2, 2));
    for message in
        journal.calls().iter().map(|call| &call.message).chain(sink.taken().iter().map(|one| &**one))
    {
        assert_eq!(message.json::<String>().unwrap(), CANARY);
        assert_eq!(message.headers["customer"], CANARY);
        assert!(!message.headers.contains_key(ENCRYPTION_HEADER));
    }
}

/// RMQ-012: without keys nothing is encrypted, and processes with keys deliver plain messages, too.
pub async fn off_by_default<F: Fixture>(scene: &Scene<F>) {
    let plain = outbox(scene.store(), settings()).build().await.unwrap();
    let id = plain.enqueue(secret("t")).await.unwrap().id();
    assert!(shows(&record(plain.store(), id).await));
    let journal = Journal::new();
    let with_keys =
        outbox(scene.store(), settings()).encryption(keys()).on_topic("t", journal.noting("handler"));
    assert_eq!(with_keys.build().await.unwrap().drain().await.unwrap().delivered, 1);
}

/// RMQ-012: the new key encrypts, the old one still decrypts. A process without a message's key leaves the message
/// alone, uncharged.
pub async fn keys_change<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let build = async |keys: Keyring| {
        let mut settings = settings();
        settings.unroutable_delay = HOUR;
        let outbox =
            outbox(scene.store(), settings).encryption(keys).on_topic("t", journal.noting("handler"));
        outbox.build().await.unwrap()
    };
    let before = build(Keyring::new("last-year", key(1)).unwrap()).await;
    let after = build(keys()).await;
    let old = before.enqueue(secret("t")).await.unwrap().id();
    assert_eq!(mark(&record(before.store(), old).await), Some("1 last-year"));
    assert_eq!(after.drain().await.unwrap().delivered, 1);
    let new = after.enqueue(secret("t")).await.unwrap().id();
    assert_eq!(mark(&record(after.store(), new).await), Some("1 this-year"));
    before.drain().await.unwrap();
    let waits = record(before.store(), new).await;
    assert_eq!((waits.state, waits.message.attempts), (State::Ready, 0));
    assert_eq!(waits.error_class, Some(FailureClass::Unroutable));
    assert_eq!(
        waits.last_error.as_deref(),
        Some("[INFRA] the message is encrypted under `this-year`, which is not here; add it to the keyring")
    );
    scene.fixture.advance(2 * HOUR).await;
    assert_eq!(after.drain().await.unwrap().delivered, 1);
    assert_eq!(journal.ids(), [old, new]);
}

/// RMQ-012: a process without any keys leaves encrypted messages alone, too.
pub async fn without_keys<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let id = outbox(scene.store(), settings()).encryption(keys()).build().await.unwrap();
    let id = id.enqueue(secret("t")).await.unwrap().id();
    let blind =
        outbox(scene.store(), settings()).on_topic("t", journal.noting("handler")).build().await.unwrap();
    blind.drain().await.unwrap();
    let record = record(blind.store(), id).await;
    assert_eq!((record.state, record.message.attempts, journal.count()), (State::Ready, 0, 0));
    assert!(record.last_error.unwrap().contains("no keys are here"));
}

/// Forgeries by an attacker who can write to the table, but has no key.
async fn forged(store: &impl Store, from: &Message, change: impl FnOnce(&mut Message)) -> NewMessage {
    let mut forged = from.clone();
    change(&mut forged);
    let message = NewMessage::bytes(forged.topic.as_str(), forged.payload)
        .id(forged.id)
        .content_type(forged.content_type)
        .headers(forged.headers)
        .build()
        .unwrap();
    store.enqueue(std::slice::from_ref(&message)).await.unwrap();
    message
}

/// RMQ-012: bytes that were changed, cut or exchanged, another topic, another content type and another key are refused: the
/// message is dead, and no handler sees it.
pub async fn forgeries_are_refused<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .encryption(keys())
        .on_topic("*", journal.noting("handler"))
        .build()
        .await
        .unwrap();
    let store = outbox.store();
    // Never delivered themselves: the forgeries are made from them.
    let later = |topic| NewMessage::json(topic, &CANARY).delay(HOUR);
    let first = outbox.enqueue(later("t")).await.unwrap().id();
    let second = outbox.enqueue(later("t")).await.unwrap().id();
    let (first, second) = (record(store, first).await.message, record(store, second).await.message);
    let fresh = |message: &mut Message| message.id = posthaste_core::MessageId::new();
    let mut forgeries = Vec::new();
    forgeries.push(forged(store, &first, fresh).await);
    for at in [0, 23, 24, first.payload.len() - 1] {
        let flip = |message: &mut Message| {
            fresh(message);
            let mut bytes = message.payload.to_vec();
            bytes[at] ^= 1;
            message.payload = bytes.into();
        };
        forgeries.push(forged(store, &first, flip).await);
    }
    for length in [0, 1, 24, 40, first.payload.len() - 1] {
        let cut = |message: &mut Message| {
            fresh(message);
            message.payload.truncate(length);
        };
        forgeries.push(forged(store, &first, cut).await);
    }
    let claimed_key = |message: &mut Message| {
        fresh(message);
        message.headers.insert(ENCRYPTION_HEADER.to_owned(), "1 last-year".to_owned());
    };
    forgeries.push(forged(store, &first, claimed_key).await);
    assert_eq!(outbox.drain().await.unwrap().dead, forgeries.len() as u64);
    // The same id with the bytes, the topic or the content type of another: the row itself is changed.
    for change in ["payload", "topic", "content type"] {
        let id = outbox.enqueue(later("t")).await.unwrap().id();
        let mut stolen = record(store, id).await.message;
        match change {
            "payload" => stolen.payload = second.payload.clone(),
            "topic" => stolen.topic = posthaste_core::Topic::new("u").unwrap(),
            _ => stolen.content_type = "text/html".to_owned(),
        }
        let failure = outbox.decrypt(&mut stolen).unwrap_err();
        assert_eq!(failure.class(), FailureClass::Permanent, "{change}");
    }
    for message in forgeries {
        let record = record(store, message.id()).await;
        assert_eq!((record.state, record.error_class), (State::Dead, Some(FailureClass::Permanent)));
        assert!(record.last_error.unwrap().contains("cannot be decrypted"));
    }
    assert_eq!(journal.count(), 0);
}

/// RMQ-012: where only encrypted messages are accepted, others are dead, with the reason.
pub async fn plaintext_can_be_refused<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let plain = outbox(scene.store(), settings()).build().await.unwrap();
    let id = plain.enqueue(secret("t")).await.unwrap().id();
    let strict = outbox(scene.store(), settings()).encryption(keys().refuse_plaintext());
    let strict = strict.on_topic("t", journal.noting("handler")).build().await.unwrap();
    strict.enqueue(secret("t")).await.unwrap();
    let tally = strict.drain().await.unwrap();
    assert_eq!((tally.dead, tally.delivered, journal.count()), (1, 1, 1));
    assert!(record(strict.store(), id).await.last_error.unwrap().contains("not encrypted"));
}

/// RMQ-012, JOIN-055: steps, waits and continuations are encrypted, too, and a join works as it does without.
pub async fn joins_are_encrypted<F: Fixture>(scene: &Scene<F>) {
    let journal = Journal::new();
    let outbox = outbox(scene.store(), settings())
        .encryption(keys().refuse_plaintext())
        .on_topic("step", journal.noting("step"))
        .on_topic("after", journal.noting("after"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let mut tx = outbox.begin().await.unwrap();
    let join = NewJoin::of([secret("step"), secret("step")]).wait(JoinWait::on_complete(secret("after")));
    tx.start_join(join).await.unwrap();
    tx.commit().await.unwrap();
    eventually("the continuation is handled", async || {
        journal.calls().iter().any(|call| call.handler == "after")
    })
    .await;
    eventually("all are done", async || {
        records(outbox.store()).await.iter().all(|record| record.state == State::Done)
    })
    .await;
    running.stop().await;
    let records = records(outbox.store()).await;
    assert_eq!(records.len(), 4);
    assert!(records.iter().all(|record| !shows(record) && mark(record).is_some()));
    assert!(journal.calls().iter().all(|call| call.message.json::<String>().unwrap() == CANARY));
}

/// RMQ-012: those with a loop of their own get messages in plain, and never one that cannot be read.
pub async fn claims_are_decrypted<F: Fixture>(scene: &Scene<F>) {
    let outbox = outbox(scene.store(), settings()).encryption(keys()).build().await.unwrap();
    let id = outbox.enqueue(secret("t")).await.unwrap().id();
    let sealed = record(outbox.store(), id).await.message;
    let bad = forged(outbox.store(), &sealed, |message| message.id = posthaste_core::MessageId::new()).await;
    let claimed = outbox.claim(&ClaimRequest::new(WorkerId::new("mine").unwrap())).await.unwrap();
    assert_eq!(claimed.iter().map(|message| message.id).collect::<Vec<_>>(), [id]);
    assert_eq!(claimed[0].json::<String>().unwrap(), CANARY);
    assert_eq!(record(outbox.store(), bad.id()).await.state, State::Dead);
}

/// RMQ-012: a message that looks encrypted and is not cannot be published.
pub async fn its_header_is_reserved<F: Fixture>(scene: &Scene<F>) {
    let outbox = outbox(scene.store(), settings()).build().await.unwrap();
    let error = outbox.enqueue(draft("t").header(ENCRYPTION_HEADER, "1 mine")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// OBX-125: words of an encrypted message in an error are redacted, as of any other.
pub async fn errors_do_not_tell<F: Fixture>(scene: &Scene<F>) {
    let outbox = outbox(scene.store(), settings())
        .encryption(keys())
        .max_attempts(1)
        .on_topic("t", async |message: Arc<Message>| {
            let text = message.json::<String>().unwrap();
            Err::<(), _>(HandlerError::retry_after(Duration::ZERO, format!("cannot digest {text}")))
        })
        .build()
        .await
        .unwrap();
    let id = outbox.enqueue(secret("t")).await.unwrap().id();
    outbox.drain().await.unwrap();
    let text = record(outbox.store(), id).await.last_error.unwrap();
    assert_eq!(text, "[BUSINESS] cannot digest [redacted]");
    assert!(scene.logs.all().iter().all(|logged| !format!("{logged:?}").contains(CANARY)));
    let _: &Outbox<F::Store> = &outbox;
}

/// A cipher that panics costs its message an attempt, and its publisher an error; everything else goes on.
pub async fn a_panicking_cipher<F: Fixture>(scene: &Scene<F>) {
    /// Opens nothing, and seals all but a special topic.
    #[derive(Debug)]
    struct Panics;
    impl Cipher for Panics {
        fn seal(&self, plain: &[u8], _: &[u8]) -> posthaste_core::Result<Sealed> {
            assert!(!plain.ends_with(b"never"), "a cipher that panics");
            Ok(Sealed { key_id: "key".to_owned(), bytes: plain.to_vec() })
        }

        fn open(&self, _: &str, _: &[u8], _: &[u8]) -> Result<Vec<u8>, CannotOpen> {
            panic!("a cipher that panics")
        }
    }
    let store = scene.store();
    let journal = Journal::new();
    let outbox = outbox(store.clone(), settings())
        .encryption(Panics)
        .max_attempts(1)
        .on_topic("t", journal.noting("t"))
        .build()
        .await
        .unwrap();
    let running = run(&outbox);
    let refused = outbox.enqueue(NewMessage::bytes("t", "never").build().unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("the cipher panicked"), "{refused}");
    let id = outbox.enqueue(draft("t")).await.unwrap().id();
    becomes(&store, id, State::Dead).await;
    assert_eq!(record(&store, id).await.last_error.as_deref(), Some("[BUSINESS] the cipher panicked"));
    // Stored by another publisher, in plain.
    let plain = NewMessage::bytes("t", "plain").build().unwrap();
    store.enqueue(std::slice::from_ref(&plain)).await.unwrap();
    becomes(&store, plain.id(), State::Done).await;
    assert_eq!(journal.count(), 1);
    running.stop().await;
}
