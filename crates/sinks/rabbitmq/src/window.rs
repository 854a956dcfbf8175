//! A window of messages: all published, then all confirmed, and only then judged.
//!
//! The server says `return` and then `ack` for a message that no queue takes. lapin hands a return to whichever confirm is
//! completed next, and confirms come out of order and many at a time: of a window, it knows how many were returned, and not
//! which. The messages themselves know: a return carries its message's id. But one that has come may still wait for a
//! confirm to be handed to.
//!
//! Two things prove that no return of a confirmed message is left behind. Every confirm of the window is there: each return
//! comes before its own confirm. Or the message's own confirm carried no return: returns are handed out in the order in
//! which they came, so none was waiting at that moment. Without such a proof a message does not count as delivered.

use std::collections::HashSet;

use futures_util::future::join_all;
use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::time::{Instant, timeout_at};

use crate::link::Trouble;
use crate::quiet::quietly;

/// A message with all that is needed to publish it.
pub(crate) struct Parcel<'a> {
    /// Which of its batch it is.
    pub(crate) index: usize,
    pub(crate) payload: &'a [u8],
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
}

impl Parcel<'_> {
    /// Where it goes: exchange and routing key.
    pub(crate) fn route(&self) -> (ShortString, ShortString) {
        (self.exchange.clone(), self.routing_key.clone())
    }
}

/// The server's result for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It keeps it.
    Kept,
    /// No queue takes it.
    Returned,
    /// It could not keep it.
    Refused,
    /// Unknown.
    Unknown,
}

/// Publishes a window on a channel that has no other user, and returns what became of each message. The channel must not be
/// used again if there was trouble: late answers would be taken for answers to other messages.
pub(crate) async fn publish(
    channel: &Channel,
    parcels: &[Parcel<'_>],
    deadline: Instant,
) -> (Vec<Answer>, Option<Trouble>) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let publishing = parcels.iter().map(|parcel| {
        let Parcel { payload, exchange, routing_key, properties, .. } = parcel;
        let properties = properties.clone();
        channel.basic_publish(exchange.clone(), routing_key.clone(), options, payload, properties)
    });
    let Ok(published) = timeout_at(deadline, quietly(join_all(publishing))).await else {
        return (vec![Answer::Unknown; parcels.len()], Some(Trouble::Late));
    };
    let mut troubles = Vec::new();
    let mut confirmations = Vec::with_capacity(parcels.len());
    for confirm in published {
        // After the deadline, answers that have already arrived still count.
        let confirmed = match confirm {
            Ok(confirm) => match timeout_at(deadline, quietly(confirm)).await {
                Ok(confirmed) => confirmed.map_err(Trouble::from),
                Err(_) => Err(Trouble::Late),
            },
            Err(error) => Err(error.into()),
        };
        confirmations.push(confirmed.map_err(|trouble| troubles.push(trouble)).ok());
    }
    // The server's own error says most: the next one is only that the channel is closed.
    let worst = troubles.iter().position(|trouble| matches!(trouble, Trouble::Channel(..)));
    let trouble = (!troubles.is_empty()).then(|| troubles.swap_remove(worst.unwrap_or(0)));
    (judge(parcels, confirmations), trouble)
}

/// Says what became of each message, once every confirm is there that will come.
fn judge(parcels: &[Parcel<'_>], confirmations: Vec<Option<Confirmation>>) -> Vec<Answer> {
    let all_there = confirmations.iter().all(Option::is_some);
    let mut returned = HashSet::new();
    // Whether each was kept, and whether its confirm carried a return.
    let confirmed: Vec<Option<(bool, bool)>> = confirmations
        .into_iter()
        .map(|confirmation| {
            let confirmation = confirmation?;
            let is_kept = confirmation.is_ack();
            let carried = confirmation.take_message();
            let carries = carried.is_some();
            returned.extend(carried.map(|message| {
                let id = message.properties.message_id().clone();
                (id, message.exchange.clone(), message.routing_key.clone())
            }));
            Some((is_kept, carries))
        })
        .collect();
    let answer = |(parcel, confirmed): (&Parcel<'_>, Option<(bool, bool)>)| {
        let (exchange, routing_key) = parcel.route();
        if returned.contains(&(parcel.properties.message_id().clone(), exchange, routing_key)) {
            return Answer::Returned;
        }
        match confirmed {
            Some((true, carries)) if all_there || !carries => Answer::Kept,
            Some((false, _)) => Answer::Refused,
            // Confirmed, but its return may be among the returns that were not handed out.
            Some((true, _)) | None => Answer::Unknown,
        }
    };
    parcels.iter().zip(confirmed).map(answer).collect()
}

#[cfg(test)]
#[path = "window_tests.rs"]
mod tests;
