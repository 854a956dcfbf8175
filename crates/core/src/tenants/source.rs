//! Descriptions of tenants' databases: a discovery returns them, and stores are opened from them.
//!
//! A source is a description. Making or comparing one must never connect to anything, and showing one must never show a
//! secret.

use std::fmt::Debug;

use crate::error::Result;
use crate::store::StoreAdmin;

/// A description of a database, from which its store is opened.
///
/// Two that are equal describe the same database, reached in the same way: a store stays as it is for as long as its source
/// does.
pub trait Source: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// The store that it opens.
    type Store: StoreAdmin + Clone;

    /// Opens the store, without connecting. The first call notices that a database cannot be reached.
    fn open(&self) -> Result<Self::Store>;

    /// Switches a store that an older source opened, and all its clones, to this source, with another password for
    /// example, and returns true. Calls under way end as they began. Returns false, and does nothing, if this source
    /// describes another database, or one that has to be opened again.
    fn change(&self, store: &Self::Store) -> Result<bool>;
}

/// A store that is open already, and stays as it is for as long as its tenant is there.
#[derive(Clone)]
pub(crate) struct Opened<S>(pub(crate) S);

impl<S: Debug> Debug for Opened<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl<S> PartialEq for Opened<S> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<S: StoreAdmin + Clone> Source for Opened<S> {
    type Store = S;

    fn open(&self) -> Result<S> {
        Ok(self.0.clone())
    }

    fn change(&self, _: &S) -> Result<bool> {
        Ok(true)
    }
}
