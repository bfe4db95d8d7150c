//! One shard of the map: slots in a row, and an index of them by hash (open addressing, linear probing, deletion by
//! shifting back). Plain data: the caller has locked it.
//!
//! The only foreign code that runs in here is the comparison of two keys. Nothing is dropped in here either: what leaves
//! is handed out.

/// A key's place.
struct Slot<K, V> {
    key: K,
    value: V,
    hash: u32,
}

/// A cell of the index: the hash above, one more than the position of the slot below; zero when empty.
type Cell = u64;

const fn cell(hash: u32, position: usize) -> Cell {
    (hash as u64) << 32 | (position as u64 + 1)
}

const fn hash_of(cell: Cell) -> u32 {
    (cell >> 32) as u32
}

const fn position_of(cell: Cell) -> usize {
    (cell & u32::MAX as u64) as usize - 1
}

/// Invariant: each slot has exactly one cell, and no empty cell lies between it and the cell at which its hash starts.
pub(super) struct Table<K, V> {
    cells: Box<[Cell]>,
    slots: Vec<Slot<K, V>>,
    /// The slot that was last looked at for being dropped.
    hand: usize,
    max: usize,
}

/// The most slots that one table can have.
pub(super) const MAX_SLOTS: usize = u32::MAX as usize >> 1;

impl<K, V> Table<K, V> {
    /// What one entry takes in here at most, in bytes: when the index has just doubled.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<K, V>>() + (size_of::<Cell>() << 3).div_ceil(3);

    pub(super) fn new(max: usize) -> Self {
        Self {
            cells: Box::default(),
            slots: Vec::new(),
            hand: 0,
            max: max.min(MAX_SLOTS),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn has_room(&self) -> bool {
        self.slots.len() < self.max
    }

    /// The cells from the one at which `hash` starts to the first empty one.
    fn probe(&self, hash: u32) -> impl Iterator<Item = usize> + '_ {
        let mask = self.cells.len().wrapping_sub(1);
        (0..self.cells.len())
            .map(move |step| (hash as usize + step) & mask)
            .take_while(|&at| self.cells[at] != 0)
    }

    fn position(&self, hash: u32, is: impl Fn(&Slot<K, V>) -> bool) -> Option<usize> {
        self.probe(hash)
            .map(|at| self.cells[at])
            .filter(|&cell| hash_of(cell) == hash)
            .map(position_of)
            .find(|&position| is(&self.slots[position]))
    }

    /// The value of the key that `is` recognises.
    #[inline]
    pub(super) fn find(&mut self, hash: u32, is: impl Fn(&K) -> bool) -> Option<&mut V> {
        let position = self.position(hash, |slot| is(&slot.key))?;
        Some(&mut self.slots[position].value)
    }

    /// Adds a key that is not there. There must be room.
    pub(super) fn insert(&mut self, hash: u32, key: K, value: V) {
        if self.slots.len() == self.slots.capacity() {
            let more = self.slots.len().max(4).min(self.max - self.slots.len());
            self.slots.reserve_exact(more);
        }
        if (self.slots.len() + 1) * 4 > self.cells.len() * 3 {
            self.grow();
        }
        self.put(cell(hash, self.slots.len()));
        self.slots.push(Slot { key, value, hash });
    }

    #[cold]
    fn grow(&mut self) {
        let doubled = (self.cells.len() * 2).max(8);
        let old = std::mem::replace(&mut self.cells, vec![0; doubled].into_boxed_slice());
        for cell in old.into_iter().filter(|&cell| cell != 0) {
            self.put(cell);
        }
    }

    /// Writes a cell into the first empty place of its row; at least a quarter of all are empty.
    fn put(&mut self, cell: Cell) {
        let mask = self.cells.len() - 1;
        let mut at = hash_of(cell) as usize & mask;
        while self.cells[at] != 0 {
            at = (at + 1) & mask;
        }
        self.cells[at] = cell;
    }

    pub(super) fn remove(&mut self, position: usize) -> (K, V) {
        self.clear(cell(self.slots[position].hash, position));
        let slot = self.slots.swap_remove(position);
        if let Some(moved) = self.slots.get(position) {
            // The last slot has taken its place.
            let (from, to) = (cell(moved.hash, self.slots.len()), cell(moved.hash, position));
            let at = self.probe(moved.hash).find(|&at| self.cells[at] == from);
            if let Some(at) = at {
                self.cells[at] = to;
            }
        }
        (slot.key, slot.value)
    }

    /// Empties a cell, and moves those behind it back as long as that brings them no nearer than their start.
    fn clear(&mut self, cell: Cell) {
        let Some(mut hole) = self.probe(hash_of(cell)).find(|&at| self.cells[at] == cell) else {
            return;
        };
        let mask = self.cells.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.cells[at];
            if next == 0 {
                break;
            }
            let from_start = at.wrapping_sub(hash_of(next) as usize) & mask;
            if from_start >= at.wrapping_sub(hole) & mask {
                self.cells[hole] = next;
                hole = at;
            }
        }
        self.cells[hole] = 0;
    }

    /// Removes the key that `is` recognises.
    pub(super) fn take(&mut self, hash: u32, is: impl Fn(&K) -> bool) -> Option<(K, V)> {
        let position = self.position(hash, |slot| is(&slot.key))?;
        Some(self.remove(position))
    }

    /// Starts the hand anew, at the end.
    pub(super) fn rewind(&mut self) {
        self.hand = self.slots.len();
    }

    /// The position of the next slot whose value may go, as far as `may_go` can tell. Takes one off `looks` for each slot that
    /// it looks at. The hand goes down, so that the slot that fills a gap has been looked at.
    pub(super) fn sweep(&mut self, looks: &mut usize, may_go: impl Fn(&mut V) -> bool) -> Option<usize> {
        while *looks > 0 && !self.slots.is_empty() {
            *looks -= 1;
            let above = if self.hand == 0 { usize::MAX } else { self.hand };
            self.hand = above.min(self.slots.len()) - 1;
            if may_go(&mut self.slots[self.hand].value) {
                return Some(self.hand);
            }
        }
        None
    }

    /// The value in a slot, and the hash of its key.
    pub(super) fn slot(&mut self, position: usize) -> (u32, &mut V) {
        let slot = &mut self.slots[position];
        (slot.hash, &mut slot.value)
    }

    /// The position of the value that `is` recognises, under a key of this hash.
    pub(super) fn position_of_value(&self, hash: u32, is: impl Fn(&V) -> bool) -> Option<usize> {
        self.position(hash, |slot| is(&slot.value))
    }

    /// All values.
    pub(super) fn values(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().map(|slot| &mut slot.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    fn spread_out(key: u32) -> u32 {
        key.wrapping_mul(0x9e37_79b9)
    }

    proptest! {
        /// Given hashes that collide, when keys come and go, then the table holds what a map holds.
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u32..40, 0u8..3), 1..300), spread in 1u32..8) {
            let mut table = Table::<u32, u32>::new(1_000);
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
    fn a_sweep_looks_at_each_slot_once_also_when_it_drops_some() {
        let mut table = Table::<u32, u32>::new(100);
        for key in 0..100 {
            table.insert(key, key, key);
        }
        table.rewind();
        let (mut looks, mut seen) = (100, Vec::new());
        while let Some(position) = table.sweep(&mut looks, |_| true) {
            let value = *table.slot(position).1;
            seen.push(value);
            if value.is_multiple_of(3) {
                assert_eq!(table.remove(position), (value, value));
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..100).collect::<Vec<_>>());
        assert_eq!(table.len(), 66);
    }
}
