//! A list that only grows, and whose items stay where they are: the owner of an index may look without a lock, and keep the
//! reference as long as the list lives.
//!
//! The n-th chunk holds `2^n` items, so that no item is ever moved and none is allocated one by one. The handles of the later chunks
//! are allocated when the first of them is needed: most lists hold an item or two, and a service may have a list for each client.

use std::sync::OnceLock;

/// The list.
pub(crate) struct Arena<T> {
    first: [Chunk<T>; FIRST],
    later: OnceLock<Box<[Chunk<T>; 32 - FIRST]>>,
}

type Chunk<T> = OnceLock<Box<[OnceLock<T>]>>;

/// The chunks whose handles are in place: those of 7 items.
const FIRST: usize = 3;

/// Which chunk, and where in it.
#[inline]
fn place(index: u32) -> (usize, usize) {
    let n = u64::from(index) + 1;
    let chunk = n.ilog2();
    (chunk as usize, (n - (1 << chunk)) as usize)
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Self {
            first: [const { OnceLock::new() }; FIRST],
            later: OnceLock::new(),
        }
    }

    /// The item at `index`, if it has been put there.
    #[inline]
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        let (chunk, at) = place(index);
        let chunk = match self.first.get(chunk) {
            Some(chunk) => chunk,
            None => self.later.get()?.get(chunk - FIRST)?,
        };
        chunk.get()?[at].get()
    }

    /// Puts `item` at `index`; hands it back when `index` is occupied or too large.
    pub(crate) fn put(&self, index: u32, item: T) -> Result<(), T> {
        let (chunk, at) = place(index);
        let later = || {
            let later = self
                .later
                .get_or_init(|| Box::new([const { OnceLock::new() }; 32 - FIRST]));
            later.get(chunk - FIRST)
        };
        match self.first.get(chunk).or_else(later) {
            Some(cell) => cell.get_or_init(|| (0..1_usize << chunk).map(|_| OnceLock::new()).collect())[at].set(item),
            None => Err(item),
        }
    }

    /// All items, in order, up to the first empty index.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        (0..u32::MAX).map_while(|index| self.get(index))
    }
}

#[cfg(all(test, not(any(tollgate_loom, tollgate_shuttle))))]
mod tests {
    use super::Arena;

    #[test]
    fn items_stand_where_they_were_put() {
        let arena = Arena::new();
        for n in 0..100 {
            assert_eq!(arena.put(n, n * 10), Ok(()));
        }
        assert_eq!(arena.put(7, 1), Err(1));
        assert_eq!(arena.get(99), Some(&990));
        assert_eq!(arena.get(100), None);
        assert!(arena.iter().copied().eq((0..100).map(|n| n * 10)));
    }
}
