//! The entrance of the hot path. A publisher reserves a slot before it writes the row, so that a row is stored leased
//! only if there is room for it.
//!
//! A closed or full entrance is no error. The row is then stored ready, and the cold path finds it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::wake;
use crate::message::Message;
use crate::settings::Settings;

/// Room for one message in the hot queue; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    _place: OwnedSemaphorePermit,
    _bytes: Option<OwnedSemaphorePermit>,
}

/// A message that was committed, stored leased to this worker.
#[derive(Debug)]
pub(crate) struct Fresh {
    pub(crate) message: Arc<Message>,
    pub(crate) slot: Slot,
    /// When its lease ran at the latest: before the statement that wrote it.
    pub(crate) leased: Instant,
}

/// The dispatcher's end of an open hot path.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) receiver: UnboundedReceiver<Fresh>,
    /// Which opening this is: only the run that opened the entrance closes it.
    pub(crate) opening: Opening,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Opening(u64);

/// Whether a slot could be had.
#[derive(Debug)]
pub(crate) enum Room {
    /// Yes.
    Slot(Slot),
    /// No: the queue is full.
    Full,
    /// No: outcomes cannot be settled at the moment, which is logged where it is noticed.
    Paused,
    /// No: the outbox is not running, or the hot path is switched off.
    Closed,
}

#[derive(Debug)]
pub(crate) struct Door {
    /// Whether there is a hot path at all.
    exists: bool,
    places: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    /// Where fresh messages go while a dispatcher runs. Unbounded, because slots are the bound.
    sender: Option<UnboundedSender<Fresh>>,
    /// For as long as outcomes cannot be settled, nothing new is to come in.
    paused: bool,
    /// The last opening.
    opening: Opening,
}

impl Door {
    pub(crate) fn new(capacity: usize, bytes: usize) -> Self {
        let most = Semaphore::MAX_PERMITS;
        Self {
            exists: capacity > 0 && bytes > 0,
            places: Arc::new(Semaphore::new(capacity.min(most))),
            bytes: Arc::new(Semaphore::new(bytes.min(most))),
            inside: Mutex::default(),
        }
    }

    /// As the settings say.
    pub(crate) fn of(settings: &Settings) -> Self {
        Self::new(settings.hot_capacity as usize, settings.hot_bytes as usize)
    }

    /// Another entrance, closed, to the same room.
    pub(crate) fn beside(&self) -> Self {
        let (places, bytes) = (Arc::clone(&self.places), Arc::clone(&self.bytes));
        Self { exists: self.exists, places, bytes, inside: Mutex::default() }
    }

    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets fresh messages in; none if another dispatcher does already.
    pub(crate) fn open(&self) -> Option<Opened> {
        let mut inside = self.inside();
        if inside.sender.as_ref().is_some_and(|sender| !sender.is_closed()) {
            return None;
        }
        let (sender, receiver) = unbounded_channel();
        let opening = Opening(inside.opening.0 + 1);
        *inside = Inside { sender: Some(sender), paused: false, opening };
        Some(Opened { receiver, opening })
    }

    /// Closes the entrance, unless another run has opened it since.
    pub(crate) fn close(&self, opening: Opening) {
        let mut inside = self.inside();
        if inside.opening == opening {
            inside.sender = None;
        }
    }

    pub(crate) fn pause(&self, paused: bool) {
        self.inside().paused = paused;
    }

    /// Whether a dispatcher runs behind it.
    pub(crate) fn is_open(&self) -> bool {
        self.inside().sender.is_some()
    }

    /// Reserves room for a message with a payload of so many bytes.
    pub(crate) fn reserve(&self, bytes: usize) -> Room {
        {
            let inside = self.inside();
            if !self.exists || inside.sender.is_none() {
                return Room::Closed;
            }
            if inside.paused {
                return Room::Paused;
            }
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return Room::Full };
        let bytes = match u32::try_from(bytes) {
            Ok(0) => None,
            Ok(bytes) => match Arc::clone(&self.bytes).try_acquire_many_owned(bytes) {
                Ok(permit) => Some(permit),
                Err(_) => return Room::Full,
            },
            Err(_) => return Room::Full,
        };
        Room::Slot(Slot { _place: place, _bytes: bytes })
    }

    /// Hands a committed message over, or gives it back if the outbox no longer runs.
    pub(crate) fn hand_over(&self, fresh: Fresh) -> Result<(), Fresh> {
        let handed_over = match &self.inside().sender {
            Some(sender) => sender.send(fresh).map_err(|refused| refused.0),
            None => Err(fresh),
        };
        // The caller may compute, or block, from here on.
        wake::release_last_woken();
        handed_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R9: a run that ends late does not close the entrance of the run after it.
    #[test]
    fn only_the_run_that_opened_the_door_closes_it() {
        let door = Door::new(1, 1);
        let first = door.open().unwrap();
        assert!(door.open().is_none(), "one run at a time");
        door.close(first.opening);
        let second = door.open().unwrap();
        door.close(first.opening);
        assert!(door.is_open());
        door.close(second.opening);
        assert!(!door.is_open());
    }
}
