//! The effect of a channel's end on unanswered messages, tested without a server.

use lapin::BasicProperties;
use posthaste_core::FailureClass;

use super::*;

fn parcels<'a>(payloads: &[(&str, &'a [u8])]) -> Vec<Parcel<'a>> {
    let parcel = |(index, (key, payload)): (usize, &(&str, &'a [u8]))| Parcel {
        index,
        payload,
        exchange: "e".into(),
        routing_key: (*key).into(),
        properties: BasicProperties::default(),
    };
    payloads.iter().enumerate().map(parcel).collect()
}

/// The classes of those judged, and which are sent again together.
fn regrouped(code: u16, text: &str, open: Vec<Parcel<'_>>) -> (Vec<(usize, FailureClass)>, Vec<Vec<usize>>) {
    let (judged, again) = regroup(code, text, open);
    let again = again.iter().map(|window| window.iter().map(|parcel| parcel.index).collect()).collect();
    (judged.into_iter().map(|(index, error)| (index, error.class())).collect(), again)
}

#[test]
fn a_missing_exchange_is_unroutable() {
    let (judged, again) = regrouped(NOT_FOUND, "NOT_FOUND", parcels(&[("a", b""), ("b", b"")]));
    assert_eq!((judged, again), ([0, 1].map(|n| (n, FailureClass::Unroutable)).into(), vec![]));
}

#[test]
fn a_forbidden_routing_key_harms_no_other() {
    let (judged, again) = regrouped(ACCESS_REFUSED, "no", parcels(&[("b", b""), ("a", b""), ("b", b"")]));
    assert_eq!((judged, again), (vec![], vec![vec![1], vec![0, 2]]));
    let (judged, again) = regrouped(ACCESS_REFUSED, "no", parcels(&[("b", b""), ("b", b"")]));
    assert_eq!((judged, again), ([0, 1].map(|n| (n, FailureClass::Unroutable)).into(), vec![]));
}

#[test]
fn the_largest_is_too_large() {
    let open = || parcels(&[("a", b"x"), ("a", b"xxx"), ("a", b"xx")]);
    let text = "PRECONDITION_FAILED - message size 3 is larger than configured max size 2";
    let (judged, again) = regrouped(PRECONDITION_FAILED, text, open());
    assert_eq!((judged, again), (vec![(1, FailureClass::TooLarge)], vec![vec![0, 2]]));
    let (judged, again) = regrouped(PRECONDITION_FAILED, text, parcels(&[("a", b"x")]));
    assert_eq!((judged, again), (vec![(0, FailureClass::TooLarge)], vec![]));
}

#[test]
fn whatever_else_it_is_each_tells_alone() {
    let (judged, again) = regrouped(PRECONDITION_FAILED, "hm", parcels(&[("a", b""), ("a", b"")]));
    assert_eq!((judged, again), (vec![], vec![vec![0], vec![1]]));
    for (code, class) in [(PRECONDITION_FAILED, FailureClass::Permanent), (405, FailureClass::Infrastructure)]
    {
        let (judged, again) = regroup(code, "hush", parcels(&[("a", b"")]));
        assert!(judged[0].1.class() == class && again.is_empty());
        assert!(!judged[0].1.failure().text().contains("hush"), "the text may quote the message");
    }
}
