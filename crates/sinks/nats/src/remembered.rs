//! A sink's memory from one batch to the next: a bounded set.
//!
//! Forgetting must be harmless: a full set is emptied.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most that is remembered.
const MOST: usize = 10_000;

pub(crate) struct Remembered<T>(Mutex<HashSet<T>>);

impl<T> Default for Remembered<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Eq + Hash> Remembered<T> {
    fn items(&self) -> MutexGuard<'_, HashSet<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, item: T) {
        let mut items = self.items();
        if items.len() >= MOST {
            items.clear();
        }
        items.insert(item);
    }

    pub(crate) fn contains<Q: Eq + Hash + ?Sized>(&self, item: &Q) -> bool
    where
        T: Borrow<Q>,
    {
        self.items().contains(item)
    }

    pub(crate) fn forget<Q: Eq + Hash + ?Sized>(&self, item: &Q)
    where
        T: Borrow<Q>,
    {
        self.items().remove(item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_does_not_grow_without_bound() {
        let remembered = Remembered::default();
        for n in 0..3 * MOST {
            remembered.add(n);
            assert!(remembered.contains(&n));
        }
        assert!(remembered.items().len() <= MOST);
        remembered.forget(&(3 * MOST - 1));
        assert!(!remembered.contains(&(3 * MOST - 1)));
    }
}
