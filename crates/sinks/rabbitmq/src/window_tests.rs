//! Every order in which returns and confirms can come, without a server.

use lapin::message::{BasicReturnMessage, Delivery};

use super::*;

fn parcel(index: usize) -> Parcel<'static> {
    let properties = BasicProperties::default().with_message_id(format!("id-{index}").into());
    Parcel { index, payload: b"", exchange: "e".into(), routing_key: "k".into(), properties }
}

fn returned(index: usize) -> Option<BasicReturnMessage> {
    let mut delivery = Delivery::mock(0, "e".into(), "k".into(), false, Vec::new());
    delivery.properties = parcel(index).properties;
    Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
}

fn judged(confirmations: Vec<Option<Confirmation>>) -> Vec<Answer> {
    let parcels: Vec<_> = (0..confirmations.len()).map(parcel).collect();
    judge(&parcels, confirmations)
}

/// RMQ-003, M-16: it does not matter which confirm a return was handed to.
#[test]
fn a_return_belongs_to_its_message() {
    use Answer::{Kept, Returned};
    for at in 0..3 {
        let mut confirmations = vec![None, None, None];
        confirmations[at] = returned(1);
        let confirmations =
            confirmations.into_iter().map(|message| Some(Confirmation::Ack(message))).collect();
        assert_eq!(judged(confirmations), [Kept, Returned, Kept], "handed to {at}");
    }
}

/// RMQ-001, RMQ-003, M-15: while a confirm is missing, one that carried the return of another message proves nothing: the
/// return of its own may still wait. One that carried none proves that none was waiting.
#[test]
fn a_missing_confirm_leaves_open_only_what_it_must() {
    use Answer::{Kept, Refused, Returned, Unknown};
    let ack = |message| Some(Confirmation::Ack(message));
    assert_eq!(judged(vec![ack(None), None, ack(None)]), [Kept, Unknown, Kept]);
    assert_eq!(judged(vec![ack(returned(2)), None, ack(None)]), [Unknown, Unknown, Returned]);
    assert_eq!(judged(vec![ack(returned(0)), None]), [Returned, Unknown]);
    assert_eq!(judged(vec![Some(Confirmation::Nack(None)), None]), [Refused, Unknown]);
}

/// RMQ-001: a refused message is not kept, nor is one without a confirm.
#[test]
fn only_an_ack_is_an_ack() {
    use Answer::{Kept, Refused, Returned};
    let confirmations = vec![Confirmation::Ack(None), Confirmation::Nack(None), Confirmation::NotRequested];
    assert_eq!(judged(confirmations.into_iter().map(Some).collect()), [Kept, Refused, Refused]);
    assert_eq!(judged(vec![Some(Confirmation::Nack(returned(0)))]), [Returned]);
}
