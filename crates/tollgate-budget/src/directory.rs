//! A table of what is shared by its key: bounded, and swept by a hand that passes over what is in use.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;

/// A hash function with a secret from the operating system: keys come from outside.
pub(crate) struct Hashing {
    seed: u64,
    shared: SharedSeed,
}

impl Hashing {
    pub(crate) fn new() -> Self {
        let random = RandomState::new();
        Self {
            seed: random.hash_one(0),
            shared: SharedSeed::from_u64(random.hash_one(1)),
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &(impl Hash + ?Sized)) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        key.hash(&mut hasher);
        hasher.finish()
    }
}

/// Entries that an eviction looks at before it gives up.
pub(crate) const LOOKS: usize = 16;

/// Plain data; the caller holds its lock. An entry that is referred to from outside stays.
pub(crate) struct Table<T> {
    entries: HashTable<(u64, Arc<T>)>,
    hand: usize,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: HashTable::new(),
            hand: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(&T) -> bool) -> Option<&Arc<T>> {
        let found = self.entries.find(hash, |(known, entry)| *known == hash && is(entry));
        found.map(|(_, entry)| entry)
    }

    /// Adds an entry that is not there.
    pub(crate) fn insert(&mut self, hash: u64, entry: Arc<T>) {
        self.entries.insert_unique(hash, (hash, entry), |(hash, _)| *hash);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.entries.iter().map(|(_, entry)| entry)
    }

    /// Removes the entry that is recognised, if nothing else refers to it.
    pub(crate) fn remove(&mut self, hash: u64, is: impl Fn(&T) -> bool) {
        let unused = |(known, entry): &(u64, Arc<T>)| *known == hash && Arc::strong_count(entry) == 1 && is(entry);
        if let Ok(entry) = self.entries.find_entry(hash, unused) {
            entry.remove();
        }
    }

    /// Removes one entry to which nothing else refers, and that `may_go`. Looks at a few from where it looked last.
    pub(crate) fn evict(&mut self, may_go: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut looks = LOOKS.min(self.entries.len());
        // A table that is full has an entry in every other bucket, about.
        for _ in 0..4 * LOOKS {
            self.hand = (self.hand + 1) % self.entries.num_buckets().max(1);
            let Ok(entry) = self.entries.get_bucket_entry(self.hand) else {
                continue;
            };
            let (_, found) = entry.get();
            if Arc::strong_count(found) == 1 && may_go(found) {
                return Some(entry.remove().0.1);
            }
            looks -= 1;
            if looks == 0 {
                break;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_passes_over_what_is_in_use() {
        let mut table = Table::new();
        let entries: Vec<Arc<u64>> = (0..10).map(Arc::new).collect();
        for entry in &entries {
            table.insert(**entry * 7, Arc::clone(entry));
        }
        assert!(table.evict(|_| true).is_none());
        drop(entries);
        let mut gone: Vec<u64> = std::iter::from_fn(|| table.evict(|entry| entry % 2 == 0))
            .map(|entry| *entry)
            .collect();
        gone.sort_unstable();
        assert_eq!(gone, [0, 2, 4, 6, 8]);
        assert_eq!(table.len(), 5);
        assert!(table.find(21, |entry| *entry == 3).is_some() && table.find(14, |entry| *entry == 2).is_none());
    }
}
