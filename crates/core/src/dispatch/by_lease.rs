//! A map by lease, for values that are looked up repeatedly while a message is under way.
//!
//! The database assigns the numbers of items, so no caller can choose them to collide: one multiplication is hash enough. Two
//! identical runs iterate over the map in the same order, which the simulation relies on.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::id::{Lease, WorkItemId};

pub(super) type ByLease<V> = HashMap<Lease, V, BuildHasherDefault<Multiply>>;

/// The same by message, of which there may be several leases.
pub(super) type ByItem<V> = HashMap<WorkItemId, V, BuildHasherDefault<Multiply>>;

#[derive(Debug, Default)]
pub(super) struct Multiply(u64);

impl Multiply {
    fn add(&mut self, value: u64) {
        // The golden ratio, as a fraction of 2^64: neighbours end up far apart.
        self.0 = (self.0 ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}

impl Hasher for Multiply {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.add(u64::from(*byte)));
    }

    fn write_i64(&mut self, value: i64) {
        self.add(value.cast_unsigned());
    }

    fn write_i32(&mut self, value: i32) {
        self.add(u64::from(value.cast_unsigned()));
    }

    fn finish(&self) -> u64 {
        // The map takes its place from the low bits, which a multiplication mixes least.
        self.0.rotate_left(26)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher as _;

    use super::*;
    use crate::id::WorkItemId;

    /// Leases as they occur, neighbours and the same item again, fill the map evenly.
    #[test]
    fn neighbours_do_not_collide() {
        let hasher = BuildHasherDefault::<Multiply>::default();
        let of = |item, epoch| hasher.hash_one(Lease { item: WorkItemId::new(item), epoch });
        let hashes: Vec<u64> = (0..1_000).flat_map(|n| [of(n, 1), of(n, 2), of(n * 1_024, 3)]).collect();
        let places: HashSet<u64> = hashes.iter().map(|hash| hash % 4_096).collect();
        // 3,000 of a good hash are at 2,127 of 4,096 places.
        assert!(places.len() > 1_900, "{}", places.len());
    }
}
