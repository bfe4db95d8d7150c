//! One shard of the map: entries in the cells of an open hash table, with linear probing and deletion by shifting back.
//! A lookup in a large map touches one place of memory. Plain data: the caller has locked it.
//!
//! A hash starts at its proportional cell, `hash x cells / 2^32`. So any number of cells is possible, and a full map
//! has no more than it needs. If two entries want a cell, the one further from its start has it (Robin Hood hashing;
//! Celis, Larson and Munro, 1985): so hardly any key is far from its start.
//!
//! Evictions are spread over the table: the hand of the clock checks a block of cells and goes on far away. If it went
//! on in the next block, the oldest cells would lie side by side and overflow. Of a table whose keys all change, a
//! third would be one run of cells.
//!
//! The only foreign code that runs in here is the comparison of two keys. Nothing is dropped in here either: removed
//! entries are returned.

use std::num::NonZeroU32;

/// The hash of a key. Never zero, so that an empty cell needs no room to say so.
pub(super) type KeyHash = NonZeroU32;

struct Cell<K, V> {
    key: K,
    value: V,
    hash: KeyHash,
}

/// Invariant: no empty cell lies between an entry and the cell at which its hash starts, and one cell at least is empty.
pub(super) struct Table<K, V> {
    cells: Box<[Option<Cell<K, V>>]>,
    len: usize,
    /// The hand of the clock: the cell that eviction checked last.
    hand: usize,
    /// The blocks from one that the hand has checked to the next; has no divisor in common with their number.
    stride: usize,
    max: usize,
}

/// The most entries that one table can have.
pub(super) const MAX_SLOTS: usize = u32::MAX as usize >> 1;

/// The fewest cells, if there are any.
const MIN_CELLS: usize = 8;

/// How many cells a lookup compares at once.
const NEAR: usize = 4;

/// The number of neighbouring cells that eviction checks before it goes on elsewhere.
const BLOCK: usize = 8;

/// The cells for a number of entries: a quarter of all stay empty.
const fn cells_for(entries: usize) -> usize {
    entries + entries / 3 + 1
}

impl<K, V> Table<K, V> {
    /// The bytes of one entry in a full table.
    pub(super) const SLOT_BYTES: usize = (size_of::<Option<Cell<K, V>>>() << 2).div_ceil(3);

    pub(super) fn new(max: usize) -> Self {
        Self {
            cells: Box::default(),
            len: 0,
            hand: 0,
            stride: 1,
            max: max.min(MAX_SLOTS),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn has_room(&self) -> bool {
        self.len < self.max
    }

    /// The cell at which a hash starts.
    fn start(&self, hash: KeyHash) -> usize {
        ((u64::from(hash.get()) * self.cells.len() as u64) >> 32) as usize
    }

    fn after(&self, cell: usize) -> usize {
        if cell + 1 < self.cells.len() { cell + 1 } else { 0 }
    }

    /// The first of the cells from `start` on that has this hash. Checks all of them, without a branch that the
    /// processor would have to guess: most keys are here.
    fn near(&self, start: usize, hash: KeyHash) -> Option<usize> {
        let cells = self.cells.get(start..start + NEAR)?;
        let mut found = 0u32;
        for (at, cell) in cells.iter().enumerate() {
            let known = cell.as_ref().map_or(0, |entry| entry.hash.get());
            found |= u32::from(known == hash.get()) << at;
        }
        (found != 0).then(|| start + found.trailing_zeros() as usize)
    }

    fn position(&self, hash: KeyHash, is: impl Fn(&Cell<K, V>) -> bool) -> Option<usize> {
        let start = self.start(hash);
        match self.near(start, hash) {
            Some(at) if self.cells[at].as_ref().is_some_and(&is) => Some(at),
            _ => self.position_slow(start, hash, is),
        }
    }

    fn position_slow(&self, start: usize, hash: KeyHash, is: impl Fn(&Cell<K, V>) -> bool) -> Option<usize> {
        let (mut at, mut come) = (start, 0);
        // None when there are no cells at all, or when this one is empty.
        while let Some(entry) = self.cells.get(at)? {
            if entry.hash == hash && is(entry) {
                return Some(at);
            }
            if self.way(self.start(entry.hash), at) < come {
                // The key would have this cell.
                return None;
            }
            (at, come) = (self.after(at), come + 1);
        }
        None
    }

    /// The value of the key that `is` recognises.
    pub(super) fn find(&mut self, hash: KeyHash, is: impl Fn(&K) -> bool) -> Option<&mut V> {
        let position = self.position(hash, |entry| is(&entry.key))?;
        self.cells[position].as_mut().map(|entry| &mut entry.value)
    }

    /// Adds a key that is not there. There must be room.
    pub(super) fn insert(&mut self, hash: KeyHash, key: K, value: V) {
        if cells_for(self.len + 1) > self.cells.len() {
            self.grow();
        }
        self.len += 1;
        self.put(Cell { key, value, hash });
    }

    /// Doubles the cells. The sizes are halves of the last one, which is just enough for `max` entries.
    #[cold]
    fn grow(&mut self) {
        let most = 2 * self.cells.len().max(MIN_CELLS / 2);
        let mut cells = cells_for(self.max);
        while cells > most {
            cells = cells.div_ceil(2);
        }
        let larger = (0..cells).map(|_| None).collect();
        let old = std::mem::replace(&mut self.cells, larger);
        for entry in old.into_iter().flatten() {
            self.put(entry);
        }
        self.hand = 0;
        let blocks = self.blocks();
        // Multiples of the golden section are spread most evenly.
        let golden = blocks * 618 / 1_000;
        self.stride = (golden..).find(|&stride| gcd(stride, blocks) == 1).unwrap_or(1);
    }

    /// The distance from one cell on to another.
    fn way(&self, from: usize, to: usize) -> usize {
        if from <= to {
            to - from
        } else {
            to + self.cells.len() - from
        }
    }

    /// Puts an entry into a cell from the start of its hash on. An entry there that is nearer to its own start is moved
    /// on instead.
    fn put(&mut self, mut entry: Cell<K, V>) {
        let mut at = self.start(entry.hash);
        let mut come = 0;
        while let Some(there) = &self.cells[at] {
            let theirs = self.way(self.start(there.hash), at);
            if theirs < come {
                if let Some(there) = &mut self.cells[at] {
                    std::mem::swap(there, &mut entry);
                    come = theirs;
                }
            }
            at = self.after(at);
            come += 1;
        }
        self.cells[at] = Some(entry);
    }

    /// Removes the entry of a cell that is not empty, and moves those behind it back by one, up to the first at its start.
    pub(super) fn remove(&mut self, position: usize) -> Option<(K, V)> {
        let entry = self.cells[position].take()?;
        self.len -= 1;
        let (mut hole, mut at) = (position, self.after(position));
        // Entries lie in the order of their starts: none behind one that stays can move.
        while self.cells[at].as_ref().is_some_and(|next| self.start(next.hash) != at) {
            self.cells.swap(hole, at);
            (hole, at) = (at, self.after(at));
        }
        Some((entry.key, entry.value))
    }

    /// Removes the key that `is` recognises.
    pub(super) fn take(&mut self, hash: KeyHash, is: impl Fn(&K) -> bool) -> Option<(K, V)> {
        let position = self.position(hash, |entry| is(&entry.key))?;
        self.remove(position)
    }

    fn blocks(&self) -> usize {
        self.cells.len().div_ceil(BLOCK)
    }

    /// Moves the hand to the next cell: downwards in a block, and then to the top of another. It visits all cells before it returns to
    /// one.
    fn step(&mut self) {
        if self.hand % BLOCK != 0 {
            self.hand -= 1;
            return;
        }
        let block = (self.hand / BLOCK + self.stride) % self.blocks();
        self.hand = (block * BLOCK + BLOCK - 1).min(self.cells.len() - 1);
    }

    /// The cell of the next entry that `may_go` accepts. Takes one off `looks` for each entry checked.
    pub(super) fn sweep(&mut self, looks: &mut usize, may_go: impl Fn(&mut V) -> bool) -> Option<usize> {
        while *looks > 0 && self.len > 0 {
            self.step();
            let Some(entry) = &mut self.cells[self.hand] else {
                continue;
            };
            *looks -= 1;
            if may_go(&mut entry.value) {
                return Some(self.hand);
            }
        }
        None
    }

    /// The value in a cell, and the hash of its key.
    pub(super) fn slot(&mut self, position: usize) -> Option<(KeyHash, &mut V)> {
        let entry = self.cells[position].as_mut()?;
        Some((entry.hash, &mut entry.value))
    }

    /// The cell of the value that `is` recognises, under a key of this hash.
    pub(super) fn position_of_value(&self, hash: KeyHash, is: impl Fn(&V) -> bool) -> Option<usize> {
        self.position(hash, |entry| is(&entry.value))
    }

    /// All keys and values, and the hashes of the keys.
    pub(super) fn entries(&mut self) -> impl Iterator<Item = (KeyHash, &K, &mut V)> {
        let entries = self.cells.iter_mut().flatten();
        entries.map(|entry| (entry.hash, &entry.key, &mut entry.value))
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn spread_out(key: u32) -> KeyHash {
        KeyHash::MIN | key.wrapping_mul(0x9e37_79b9)
    }

    proptest! {
        /// Given hashes that collide, when keys come and go, then the table has the entries of a map.
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec((0u32..40, 0u8..3), 1..300), spread in 1u32..8, max in 40usize..1_000,
        ) {
            let mut table = Table::<u32, u32>::new(max);
            let mut map = HashMap::new();
            for (key, what) in steps {
                let hash = spread_out(key / spread);
                match what {
                    0 => {
                        let gone = table.take(hash, |&k| k == key).map(|(_, value)| value);
                        prop_assert_eq!(gone, map.remove(&key));
                    }
                    _ => {
                        let found = table.find(hash, |&k| k == key).copied();
                        prop_assert_eq!(found, map.get(&key).copied());
                        if found.is_none() {
                            table.insert(hash, key, key + 1);
                            map.insert(key, key + 1);
                        }
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for &key in map.keys() {
                    prop_assert!(table.find(spread_out(key / spread), |&k| k == key).is_some());
                }
            }
        }
    }

    #[test]
    fn a_sweep_visits_each_slot_once() {
        for max in [1, 7, 60, 100, 1_000] {
            let mut table = Table::<u32, u32>::new(max);
            for key in 0..max as u32 {
                table.insert(spread_out(key), key, key);
            }
            let (mut looks, mut seen) = (max, Vec::new());
            while let Some(position) = table.sweep(&mut looks, |_| true) {
                seen.push(*table.slot(position).unwrap().1);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..max as u32).collect::<Vec<_>>());
        }
    }

    /// Given a full table, when each new key evicts an old one, then the entries stay near the start of their hashes.
    #[test]
    fn evictions_leave_no_long_run_of_cells() {
        const MAX: u32 = 10_000;
        let mut table = Table::<u32, u32>::new(MAX as usize);
        for key in 0..6 * MAX {
            if !table.has_room() {
                let at = table.sweep(&mut 1, |_| true).unwrap();
                table.remove(at);
            }
            table.insert(spread_out(key), key, key);
        }
        let runs = table.cells.split(Option::is_none).map(<[_]>::len);
        assert!(runs.max() < Some(MAX as usize / 20), "of {MAX}");
    }

    #[test]
    fn the_last_cells_are_shared_with_the_first() {
        let mut table = Table::<u32, u32>::new(1_000);
        // All start at the last cell.
        for key in 0..500 {
            table.insert(KeyHash::MAX, key, key);
        }
        for key in (0..500).step_by(2) {
            assert_eq!(table.take(KeyHash::MAX, |&k| k == key), Some((key, key)));
        }
        for key in 0..500 {
            let found = table.find(KeyHash::MAX, |&k| k == key).is_some();
            assert_eq!(found, !key.is_multiple_of(2), "{key}");
        }
        for key in (1..500).step_by(2) {
            assert_eq!(table.take(KeyHash::MAX, |&k| k == key), Some((key, key)));
        }
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn a_full_table_takes_the_stated_bytes() {
        for max in [1, 2, 5, 64, 1_000, 1_001, 65_535] {
            let mut table = Table::<u64, u64>::new(max);
            for key in 0..max as u32 {
                table.insert(spread_out(key), key.into(), 0);
            }
            assert!(!table.has_room());
            let bytes = table.cells.len() * size_of::<Option<Cell<u64, u64>>>();
            assert!(bytes <= max * Table::<u64, u64>::SLOT_BYTES + 24, "{max}");
        }
    }
}
