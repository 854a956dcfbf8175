//! The key of a tenant: a text, or a UUID.

use std::fmt;
use std::sync::Arc;

use uuid::Uuid;

use crate::error::Result;
use crate::text;

/// The most bytes of a key.
const MAX_KEY_BYTES: usize = 200;

/// A tenant's key, by which writes find their database, and which names its store in logs, metrics and errors.
///
/// A UUID is the same key in capitals and small letters, as a text or as a [`Uuid`].
///
/// ```
/// use posthaste_core::{TenantKey, Uuid};
///
/// let uuid = Uuid::from_u128(0xf81d4fae_7dec_11d0_a765_00a0c91e6bf6);
/// assert_eq!(TenantKey::from("F81D4FAE-7DEC-11D0-A765-00A0C91E6BF6"), TenantKey::from(uuid));
/// assert_ne!(TenantKey::from("Acme"), TenantKey::from("acme"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantKey(Arc<str>);

impl TenantKey {
    /// As a text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.0
    }

    /// Refuses what cannot be a key.
    pub(crate) fn check(&self) -> Result<()> {
        text::required("the key of a tenant", self.0.to_string(), MAX_KEY_BYTES).map(drop)
    }
}

impl From<&str> for TenantKey {
    fn from(text: &str) -> Self {
        // Other spellings of a UUID, without hyphens for instance, may well be names.
        match Uuid::try_parse(text) {
            Ok(uuid) if text.len() == 36 => uuid.into(),
            _ => Self(text.into()),
        }
    }
}

impl From<String> for TenantKey {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for TenantKey {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

impl From<Uuid> for TenantKey {
    fn from(uuid: Uuid) -> Self {
        Self(uuid.hyphenated().to_string().into())
    }
}

impl From<&Uuid> for TenantKey {
    fn from(uuid: &Uuid) -> Self {
        (*uuid).into()
    }
}

impl From<&TenantKey> for TenantKey {
    fn from(key: &TenantKey) -> Self {
        key.clone()
    }
}

impl fmt::Display for TenantKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
