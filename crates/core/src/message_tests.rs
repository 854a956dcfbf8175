//! Tests of messages: limits, normalisation, and secrecy.

use super::*;

#[derive(Serialize)]
struct Placed {
    order: i64,
}

impl Event for Placed {
    const TOPIC: &'static str = "order.placed";
    fn key(&self) -> Option<String> {
        Some(format!("order-{}", self.order))
    }
}

enum Aggregates {
    Order,
}

impl AsRef<str> for Aggregates {
    fn as_ref(&self) -> &str {
        match self {
            Self::Order => "order",
        }
    }
}

fn refused(builder: MessageBuilder) -> String {
    let error = builder.build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    error.to_string()
}

/// HOT-007: the fields of a message, and their defaults.
#[test]
fn an_event_becomes_a_message() {
    let message = NewMessage::event(&Placed { order: 7 })
        .aggregate(Aggregates::Order, 7)
        .tenant_id("t1")
        .correlation_id("req-1")
        .header("a", "b")
        .priority(-3)
        .build()
        .unwrap();
    assert_eq!(message.topic(), "order.placed");
    assert_eq!(message.key(), Some("order-7"));
    assert_eq!(message.payload(), br#"{"order":7}"#);
    assert_eq!(message.content_type(), JSON);
    assert_eq!((message.aggregate_type(), message.aggregate_id()), (Some("order"), Some("7")));
    assert_eq!((message.tenant_id(), message.correlation_id()), (Some("t1"), Some("req-1")));
    assert_eq!(message.encoded_headers().as_deref(), Some(r#"{"a":"b"}"#));
    assert_eq!((message.due(), message.expires(), message.priority()), (When::Now, None, -3));
}

/// OBX-004, OBX-007: topics are 1 to 255 bytes.
#[test]
fn topics_have_bounds() {
    assert!(refused(NewMessage::bytes("", "")).contains("topic is empty"));
    assert!(
        refused(NewMessage::bytes("x".repeat(256), "")).contains("topic has 256 bytes, the limit is 255")
    );
    assert!(refused(NewMessage::bytes("a\0b", "")).contains("NUL"));
    assert!(NewMessage::bytes("x".repeat(255), "").build().is_ok());
    assert!(refused(NewMessage::bytes("😀".repeat(64), "")).contains("256 bytes"));
    assert!(NewMessage::bytes("😀".repeat(63), "").build().is_ok());
}

/// OBX-008, OBX-009: an empty correlation id is none; at most 255 bytes. The same for the other names.
#[test]
fn names_are_normalised_and_bounded() {
    let message =
        NewMessage::bytes("t", "").correlation_id("").key("").tenant_id("").dedup_key("").build().unwrap();
    assert_eq!((message.correlation_id(), message.key(), message.tenant_id()), (None, None, None));
    assert_eq!(message.dedup(), None);
    let long = "x".repeat(256);
    assert!(
        refused(NewMessage::bytes("t", "").correlation_id(&long)).contains("correlation id has 256 bytes")
    );
    assert!(refused(NewMessage::bytes("t", "").key(&long)).contains("key has 256 bytes"));
    assert!(refused(NewMessage::bytes("t", "").tenant_id(&long)).contains("tenant id has 256"));
    assert!(refused(NewMessage::bytes("t", "").aggregate(&long, 1)).contains("aggregate type has 256"));
    assert!(refused(NewMessage::bytes("t", "").aggregate("a", &long)).contains("aggregate id has 256"));
    assert!(NewMessage::bytes("t", "").correlation_id("x".repeat(255)).build().is_ok());
}

#[test]
fn headers_times_and_ids_have_bounds() {
    assert!(
        refused(NewMessage::bytes("t", "").header("a", "x".repeat(70_000))).contains("the limit is 65536")
    );
    assert!(refused(NewMessage::bytes("t", "").header("", "x")).contains("no name"));
    assert!(refused(NewMessage::bytes("t", "").delay(Duration::MAX)).contains("due time is out of range"));
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000);
    assert!(refused(NewMessage::bytes("t", "").expires_at(far)).contains("expiry is out of range"));
    assert!(refused(NewMessage::bytes("t", "").id(uuid::Uuid::nil())).contains("nil"));
    assert!(refused(NewMessage::bytes("t", "").content_type("")).contains("content type is empty"));
    let before_1970 = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
    assert!(NewMessage::bytes("t", "").due_at(before_1970).build().is_ok(), "long past means now");
}

/// HOT-007, OBX-114: a payload above the limit is refused, one at the limit is not.
#[test]
fn payloads_have_a_bound() {
    let message = NewMessage::bytes("t", vec![0; 11]).build().unwrap();
    assert!(message.check_payload(11).is_ok());
    let error = message.check_payload(10).unwrap_err();
    assert!(error.to_string().contains("payload has 11 bytes, the limit is 10"), "{error}");
    assert!(error.to_string().contains("max_payload_bytes"), "{error}");
}

#[test]
fn a_value_without_json_form_is_an_error_of_the_codec() {
    let error = NewMessage::json("t", &std::collections::BTreeMap::from([((1, 2), 3)])).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
}

/// OBX-125: neither payload, nor headers, nor key in `Debug` or in an error.
#[test]
fn nothing_of_the_content_is_shown() {
    let builder = NewMessage::bytes("t", "canary-payload").key("canary-key").header("canary-h", "canary-v");
    let message = builder.build().unwrap();
    assert!(!format!("{message:?}").contains("canary"), "{message:?}");
    let stored = Some(r#"{"canary": 1}"#);
    assert!(!format!("{:?}", decode_headers(stored).unwrap_err()).contains("canary"));
}

#[test]
fn headers_survive_their_stored_form() {
    let headers = Headers::from([("a".into(), "\0\u{1F600}\"".into()), ("b".into(), String::new())]);
    assert_eq!(decode_headers(encode_headers(&headers).as_deref()).unwrap(), headers);
    assert_eq!(decode_headers(None).unwrap(), Headers::new());
    assert!(decode_headers(Some("[1]")).is_err());
}
