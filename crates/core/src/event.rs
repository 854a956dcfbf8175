//! What users publish: typed values with the topic on the type.
//!
//! A stored topic never selects code by itself: the registered handler chooses the type, not the data.

use serde::Serialize;

use crate::error::Result;
use crate::message::{MessageBuilder, NewMessage};

/// A value that can be published. The topic is part of the type; no macro is needed.
///
/// ```
/// use posthaste_core::{Event, IntoMessage};
/// use serde::Serialize;
///
/// #[derive(Serialize)]
/// struct OrderPlaced { order_id: i64 }
///
/// impl Event for OrderPlaced {
///     const TOPIC: &'static str = "order.placed";
///
///     fn key(&self) -> Option<String> {
///         Some(self.order_id.to_string())          // messages of one order stay in order
///     }
/// }
///
/// let message = (&OrderPlaced { order_id: 42 }).into_message()?;
/// assert_eq!(message.topic(), "order.placed");
/// assert_eq!(message.payload(), br#"{"order_id":42}"#);
/// # Ok::<(), posthaste_core::Error>(())
/// ```
pub trait Event: Serialize {
    /// The topic of every event of this type.
    const TOPIC: &'static str;

    /// The ordering key of this event; none by default.
    fn key(&self) -> Option<String> {
        None
    }
}

/// Values that can be published: a reference to an event, a message, or a builder of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published",
    note = "publish a reference to an `Event`, as in `&order`, a `NewMessage`, or a builder of one"
)]
pub trait IntoMessage {
    /// The message, checked.
    fn into_message(self) -> Result<NewMessage>;
}

impl<E: Event> IntoMessage for &E {
    fn into_message(self) -> Result<NewMessage> {
        NewMessage::event(self).build()
    }
}

impl IntoMessage for NewMessage {
    fn into_message(self) -> Result<NewMessage> {
        Ok(self)
    }
}

/// The same message again, with the same id: what makes a repeated publish harmless.
impl IntoMessage for &NewMessage {
    fn into_message(self) -> Result<NewMessage> {
        Ok(self.clone())
    }
}

impl IntoMessage for MessageBuilder {
    fn into_message(self) -> Result<NewMessage> {
        self.build()
    }
}
