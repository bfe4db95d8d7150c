//! Shards: each lock guards the keys of one part of the hashes.

use super::hashing::Hashing;
use super::table::KeyHash;
use crate::sync::shim::Mutex;
use crossbeam_utils::CachePadded;
use std::hash::Hash;

/// Parts by the hash of a key, each behind a lock.
pub(super) struct Shards<T> {
    shards: Box<[Shard<T>]>,
    hashing: Hashing,
}

/// On cache lines of its own, so that threads with different keys do not disturb each other.
pub(super) type Shard<T> = CachePadded<Mutex<T>>;

/// No shard is smaller, unless it is the only one.
const MIN_SHARD: usize = 1_024;

impl<T> Shards<T> {
    /// Shards of `max_entries` in all, each made for its part of them: four per processor, rounded up to a power of two, as
    /// long as none becomes too small.
    pub(super) fn new(max_entries: usize, hashing: Hashing, make: impl Fn(usize) -> T) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let wanted = (4 * processors).next_power_of_two();
        let shards = (max_entries / MIN_SHARD).clamp(1, wanted);
        // A power of two, rounded down.
        let shards = 1 << shards.ilog2();
        let part = |shard: usize| max_entries / shards + usize::from(shard < max_entries % shards);
        Self {
            shards: (0..shards).map(|at| Shard::new(Mutex::new(make(part(at))))).collect(),
            hashing,
        }
    }

    /// The hash function with its secret, of shards that are dropped.
    pub(super) fn into_hashing(self) -> Hashing {
        self.hashing
    }

    pub(super) fn len(&self) -> usize {
        self.shards.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Shard<T>> {
        self.shards.iter()
    }

    /// The shard of a key, and the hash by which it is found there.
    pub(super) fn place<Q: Hash + ?Sized>(&self, key: &Q) -> (&Shard<T>, KeyHash) {
        let hash = self.hashing.hash(key);
        // The number of shards is a power of two: the upper bits say which, the lower ones where in it.
        let shard = (hash >> 32) as usize & (self.shards.len() - 1);
        (&self.shards[shard], KeyHash::MIN | hash as u32)
    }
}
