//! Bytes in, the same bytes out: payloads, headers and names that were made to hurt.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use posthaste_core::{
    Bytes, Change, ClaimRequest, Failure, Filter, MAX_ERROR_BYTES, NewMessage, Outcome, Store, StoreAdmin,
    Topics,
};

use super::support::*;
use crate::Fixture;

/// Texts that mean something to SQL, to patterns, to JSON or to a terminal. At most 100 bytes each.
const HOSTILE: [&str; 16] = [
    "'; drop table posthaste_outbox; --",
    "\" or \"\"=\"",
    "it's",
    "''",
    "back\\slash\\",
    "\\'; select 1; --",
    "100%",
    "under_score%",
    "[a-z]",
    "$1 ?1 :name @p1",
    "tab\tnew\nline\r\u{1b}[31m",
    "{\"json\":null}",
    "ünï¢ødé ßẞ İı",
    "𝄞 clef, 😀 smile, \u{10ffff}",
    "\u{202e}right to left\u{feff}",
    "e\u{301} \u{e9}",
];

/// Enqueues a payload, and expects it back byte for byte from a claim and from a list.
async fn assert_round_trip<F: Fixture>(fixture: &F, payload: impl Into<Bytes>) {
    let payload = payload.into();
    let message = NewMessage::bytes("topic", payload.clone()).build().unwrap();
    let held = leased_from(fixture.store(), message).await;
    assert!(held.payload == payload, "a claim changed a payload of {} bytes", payload.len());
    let record = record(fixture.store(), held.id).await;
    assert!(record.message.payload == payload, "a look changed a payload of {} bytes", payload.len());
    apply(fixture.store(), held.lease(), Outcome::Ack).await;
}

/// OBX-005, OBX-006, OBX-011: payloads of any bytes are stored as they are, the empty one included.
pub async fn payloads_of_any_bytes<F: Fixture>(fixture: &Arc<F>) {
    let all: Vec<u8> = (0..=255).collect();
    let payloads: [&[u8]; 9] = [
        b"",
        b"\0",
        b"a\0b\0",
        b"\xff\xfe\xc0\x80",
        "𝄞😀".as_bytes(),
        b"{\"a\" :  1,\"a\":2}",
        b"\\x41",
        b"  trailing  ",
        &all,
    ];
    for payload in payloads {
        assert_round_trip(&**fixture, payload.to_vec()).await;
    }
}

/// HOT-007, F-13: a payload of the default limit.
pub async fn a_payload_of_1_mib<F: Fixture>(fixture: &Arc<F>) {
    let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(1 << 20).collect();
    assert_round_trip(&**fixture, random).await;
}

/// F-13: a payload far above the default limit, with a raised limit.
pub async fn a_payload_of_16_mib<F: Fixture>(fixture: &Arc<F>) {
    let random: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(16 << 20).collect();
    assert_round_trip(&**fixture, random).await;
}

/// OBX-011: a batch of payloads of different kinds and sizes does not mix them up.
pub async fn a_batch_of_different_payloads<F: Fixture>(fixture: &Arc<F>) {
    let sizes = [0, 1, 70_000, 0, 255, 65_536, 3];
    let message = |(n, size): (usize, &usize)| {
        let fill = u8::try_from(n).unwrap();
        NewMessage::bytes(format!("topic-{n}"), vec![fill; *size]).build().unwrap()
    };
    let batch: Vec<_> = sizes.iter().enumerate().map(message).collect();
    enqueue(fixture.store(), &batch).await;
    let claimed = claim(fixture.store(), 10).await;
    for (claimed, message) in claimed.iter().zip(&batch) {
        assert_eq!(claimed.topic.as_str(), message.topic());
        assert!(claimed.payload == message.payload());
    }
    assert_eq!(claimed.len(), batch.len());
}

/// HOT-007: headers of any characters are stored as they are; 64 KiB of them, too.
pub async fn headers_of_any_characters<F: Fixture>(fixture: &Arc<F>) {
    let mut builder = draft("topic").header("nul", "a\0b").header("\0", "nul").header("empty", "");
    for (n, text) in HOSTILE.iter().enumerate() {
        builder = builder.header(*text, format!("{n}")).header(format!("{n}"), *text);
    }
    let message = builder.build().unwrap();
    let held = leased_from(fixture.store(), message.clone()).await;
    assert_eq!(&held.headers, message.headers());
    let large = draft("topic").header("large", "x".repeat(65_000)).build().unwrap();
    let held = leased_from(fixture.store(), large.clone()).await;
    assert!(&held.headers == large.headers());
}

/// Protocol rule 18, OBX-010: hostile text in every field is text: stored, returned, claimed by and filtered by.
pub async fn hostile_text_is_text<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    for text in HOSTILE {
        let message = NewMessage::bytes(text, text)
            .key(text)
            .dedup_key(text)
            .content_type(text)
            .correlation_id(text)
            .aggregate(text, text)
            .tenant_id(text)
            .build()
            .unwrap();
        let id = enqueue_one(store, message.clone()).await;
        let request = ClaimRequest::new(worker(text)).lease(LEASE).topics(Topics::of([text]).unwrap());
        let claimed = store.claim(&request).await.unwrap();
        assert_eq!(claimed.len(), 1, "{text:?}");
        let held = &claimed[0];
        assert_eq!((held.id, held.topic.as_str(), held.content_type.as_str()), (id, text, text));
        for field in
            [&held.key, &held.correlation_id, &held.aggregate_type, &held.aggregate_id, &held.tenant_id]
        {
            assert_eq!(field.as_deref(), Some(text));
        }
        assert_eq!(record(store, id).await.worker, Some(worker(text)));
        let own = || Some(text.to_owned());
        for filter in [
            Filter { key: own(), ..Filter::default() },
            Filter { correlation_id: own(), ..Filter::default() },
            Filter { tenant_id: own(), ..Filter::default() },
            Filter { topics: Topics::of([text]).unwrap(), ..Filter::default() },
        ] {
            assert_eq!(listed(store, &filter).await, [id], "{filter:?}");
        }
        let outcome = Outcome::Fail { failure: Failure::permanent(text) };
        apply(store, held.lease(), outcome).await;
        assert_eq!(record(store, id).await.last_error, Some(format!("[BUSINESS] {text}")));
        let change = Change::new(only(&[id]), text, text).unwrap();
        assert_eq!(store.requeue(&change).await.unwrap(), [id]);
        let entry = &history(store, id).await[0];
        assert_eq!((entry.by.as_str(), entry.why.as_str()), (text, text));
        assert_eq!(store.bury(&change).await.unwrap(), [id]);
        assert_eq!(record(store, id).await.last_error, Some(format!("buried by {text}: {text}")));
    }
    assert_eq!(records(store).await.len(), HOSTILE.len());
}

/// OBX-010: a pattern's beginning is text, not a pattern of the database's own.
pub async fn prefixes_are_text<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let names = ["a%b.x", "aXb.x", "a_b.x", "a\\b.x", "a[b].x", "A%b.x", "a%b", "a%%b.x"];
    let batch: Vec<_> = names.iter().map(|topic| draft(topic).build().unwrap()).collect();
    let ids = enqueue(store, &batch).await;
    for (pattern, expected) in [
        ("a%*", vec![0, 6, 7]),
        ("a%b.*", vec![0]),
        ("a_*", vec![2]),
        ("a\\*", vec![3]),
        ("a[b]*", vec![4]),
        ("a%b*", vec![0, 6]),
        ("A*", vec![5]),
    ] {
        let topics = Topics::of([pattern]).unwrap();
        let expected: Vec<_> = expected.into_iter().map(|index: usize| ids[index]).collect();
        let filter = Filter { topics: topics.clone(), ..Filter::default() };
        assert_eq!(listed(store, &filter).await, expected, "{pattern}");
        let claimed = store.claim(&request(10).topics(topics)).await.unwrap();
        assert_eq!(claimed.iter().map(|message| message.id).collect::<Vec<_>>(), expected, "{pattern}");
        for message in claimed {
            apply(store, message.lease(), Outcome::Release).await;
        }
    }
}

/// OBX-007, OBX-009, HOT-008, rule 15: every name may use all of its bytes, with any characters.
pub async fn names_of_full_length<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let fill = |c: char, bytes: usize| {
        let mut text = c.to_string().repeat(bytes / c.len_utf8());
        text.push_str(&"x".repeat(bytes - text.len()));
        text
    };
    for c in ['a', 'é', '€', '😀'] {
        let name = fill(c, 255);
        assert_eq!(name.len(), 255);
        let message = NewMessage::bytes(name.clone(), "")
            .key(name.clone())
            .content_type(fill(c, 127))
            .correlation_id(name.clone())
            .aggregate(&name, &name)
            .tenant_id(name.clone())
            .build()
            .unwrap();
        let id = enqueue_one(store, message).await;
        let me = worker(&fill(c, 100));
        let request = ClaimRequest::new(me.clone()).topics(Topics::of([&name]).unwrap());
        let claimed = store.claim(&request).await.unwrap();
        let held = &claimed[0];
        assert_eq!((held.id, held.topic.as_str(), &held.content_type), (id, name.as_str(), &fill(c, 127)));
        for field in
            [&held.key, &held.correlation_id, &held.aggregate_type, &held.aggregate_id, &held.tenant_id]
        {
            assert_eq!(field.as_ref(), Some(&name));
        }
        apply(store, held.lease(), Outcome::Ack).await;
        assert_eq!(record(store, id).await.done_by, Some(me));
        let filter = Filter { key: Some(name.clone()), tenant_id: Some(name), ..Filter::default() };
        assert_eq!(listed(store, &filter).await, [id]);
    }
}

/// HOT-018, OBX-041, OBX-043, rule 10: an error text of any length and any characters can be recorded.
pub async fn error_texts_of_any_kind<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let texts =
        ["", "a\0b", &"x".repeat(10_000), &"é".repeat(10_000), &"😀".repeat(3_000), "𝄞\u{10ffff}\u{1}"];
    for text in texts {
        for abandon in [true, false] {
            let held = leased(store).await;
            let failure = Failure::business(text);
            let expected = failure.text().to_owned();
            assert!(expected.len() <= MAX_ERROR_BYTES && !expected.contains('\0'));
            let outcome = match abandon {
                true => Outcome::Abandon { delay: HOUR, failure, max_attempts: 9, max_age: None },
                false => Outcome::Fail { failure },
            };
            apply(store, held.lease(), outcome).await;
            assert_eq!(record(store, held.id).await.last_error, Some(expected));
        }
    }
}

/// Rule 10: a reason of full length can be recorded; the text of a burial is cut, not refused.
pub async fn reasons_of_full_length<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let id = enqueue_one(store, plain()).await;
    let (by, why) = ("é".repeat(50), "😀".repeat(250));
    let change = Change::new(Filter::default(), by.clone(), why.clone()).unwrap();
    assert_eq!(store.bury(&change).await.unwrap(), [id]);
    let entry = &history(store, id).await[0];
    assert_eq!((&entry.by, &entry.why), (&by, &why));
    assert_eq!(record(store, id).await.last_error, Some(format!("buried by {by}: {why}")));
}

/// HOT-007: a time that a publisher gives is kept to the millisecond, from 1970 on.
pub async fn times_are_kept<F: Fixture>(fixture: &Arc<F>) {
    for milliseconds in [0, 1, 999, 951_782_400_123, 1_709_210_096_789, 4_102_444_799_999] {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds);
        let id = enqueue_one(fixture.store(), draft("topic").occurred_at(time).build().unwrap()).await;
        let stored = record(fixture.store(), id).await.message.occurred_at;
        let off = stored.duration_since(time).unwrap_or_else(|error| error.duration());
        assert!(off < Duration::from_millis(1), "{time:?} became {stored:?}");
    }
}

/// HOT-007: the longest delay and the most distant times that a message may have can be stored.
pub async fn distant_times_are_kept<F: Fixture>(fixture: &Arc<F>) {
    let store = fixture.store();
    let century = Duration::from_secs(100 * 365 * 24 * 3_600);
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(253_370_764_799);
    let by_delay = draft("topic").delay(century).expires_after(century).build().unwrap();
    let by_time = draft("topic").due_at(far).expires_at(far).occurred_at(far).build().unwrap();
    let ids = enqueue(store, &[by_delay, by_time]).await;
    let delayed = record(store, ids[0]).await.message;
    assert_near(delayed.due_at, fixture.now().await + century);
    assert_near(delayed.expires_at.unwrap(), fixture.now().await + century);
    let distant = record(store, ids[1]).await.message;
    assert_near(distant.due_at, far);
    assert_near(distant.expires_at.unwrap(), far);
    assert_near(distant.occurred_at, far);
    assert!(claim(store, 10).await.is_empty());
    assert_eq!(store.expire(10).await.unwrap().messages, 0);
}
