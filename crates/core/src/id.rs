//! The identities of the protocol, each a type of its own so that one cannot be taken for another.
//!
//! Nothing here talks to a database: a [`MessageId`] exists before any SQL is sent, which is what makes a repeated
//! enqueue harmless.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::text;

/// A type of its own around a UUID.
macro_rules! uuid_id {
    ($(#[doc = $doc:literal])+ $name:ident, $what:literal) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(Uuid);

        impl $name {
            /// A new id, greater than every id made before in this process.
            #[allow(clippy::new_without_default, reason = "a default that differs every time would surprise")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id with this value.
            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            /// Its value.
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }

            /// Its sixteen bytes, in network order.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            pub(crate) const fn is_nil(&self) -> bool {
                self.0.is_nil()
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Uuid::parse_str(text).map(Self).map_err(|source| {
                    Error::invalid(concat!($what, " id is not a UUID"), "give it like 0198c7a1-…").with_source(source)
                })
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

uuid_id! {
    /// The logical identity of a message: the same for every retry, replay and broker header.
    ///
    /// New ids are UUIDs of version 7: ordered by time, and monotonic within one process.
    MessageId, "message"
}

impl MessageId {
    /// An id that follows from these facts: a UUID of version 8.
    pub(crate) fn derived(what: &[u8], facts: &[&[u8]]) -> Self {
        let hash = facts.iter().fold(Sha256::new().chain_update(what), |hash, fact| hash.chain_update(fact));
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The id that a foreign text stands for: itself if it is a UUID, else one that follows from it, the same every time.
    ///
    /// ```
    /// use posthaste_core::MessageId;
    ///
    /// let id = MessageId::new();
    /// assert_eq!(MessageId::of_text(&id.to_string()), id);
    /// assert_eq!(MessageId::of_text("order-42"), MessageId::of_text("order-42"));
    /// ```
    pub fn of_text(text: &str) -> Self {
        text.parse().unwrap_or_else(|_| Self::derived(b"posthaste foreign id", &[text.as_bytes()]))
    }
}

uuid_id! {
    /// The identity of a join, made before any SQL. New ids are UUIDs of version 7, as those of messages.
    JoinId, "join"
}

/// The row in the work queue: the table's own sequence, and so the order of enqueueing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct WorkItemId(i64);

impl WorkItemId {
    /// The item with this number.
    pub const fn new(seq: i64) -> Self {
        Self(seq)
    }

    /// Its number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for WorkItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for WorkItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The holder of a lease: 1 to 100 bytes. It is recorded for people to read; ownership itself is decided by the
/// epoch.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(String);

impl WorkerId {
    /// The most bytes that a worker's name may have.
    pub const MAX_BYTES: usize = 100;

    /// A worker with this name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        text::required("worker id", name.into(), Self::MAX_BYTES).map(Self)
    }

    /// A worker that no other process, and no other call in this one, has the name of: `NAME-PID-N-RANDOM`.
    ///
    /// A name too long for that is cut.
    pub fn unique(name: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let random = Uuid::now_v7().simple().to_string();
        let tail = format!("-{}-{n}-{}", std::process::id(), &random[24..]);
        let name = text::cut(name, Self::MAX_BYTES - tail.len());
        Self(if name.is_empty() { format!("worker{tail}") } else { name + &tail })
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The ownership of one claim of one message. Each claim of a message has another epoch, which tells a worker that lost
/// the message from the one that has it, even if both are the same process. Epochs have no order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease {
    /// The row.
    pub item: WorkItemId,
    /// Which claim of that row.
    pub epoch: i32,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOT-007: ids are time-ordered and monotonic within a process.
    #[test]
    fn message_ids_grow() {
        let ids: Vec<_> = (0..10_000).map(|_| MessageId::new()).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(ids[0].as_uuid().get_version_num(), 7);
    }

    #[test]
    fn unique_workers_differ_and_fit() {
        let long = "ü".repeat(90);
        let (a, b) = (WorkerId::unique(&long), WorkerId::unique(&long));
        assert_ne!(a, b);
        assert!(a.as_str().len() <= WorkerId::MAX_BYTES && a.as_str().starts_with("üü"));
        assert!(WorkerId::unique("").as_str().starts_with("worker-"));
        assert!(WorkerId::new("").is_err() && WorkerId::new("a\0b").is_err());
        assert!(WorkerId::new("x".repeat(100)).is_ok() && WorkerId::new("x".repeat(101)).is_err());
    }
}
