//! A lane: entries in order. The space of an entry is that of an inline closure. Two tasks with cells share it, so that a queued task
//! with a handle takes half as much.

use super::entry::{Body, Entry};
use super::scheduler::Kind;
use std::collections::VecDeque;
use std::iter;
use std::sync::Arc;

pub(in crate::pool) struct Lane<K: Kind>(VecDeque<Entry<K>>);

impl<K: Kind> Default for Lane<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Kind> Lane<K> {
    pub(in crate::pool) const fn new() -> Self {
        Self(VecDeque::new())
    }

    #[inline]
    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the number of spaces without an allocation.
    pub(super) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    #[inline]
    pub(in crate::pool) fn front(&self) -> Option<&Entry<K>> {
        self.0.front()
    }

    #[inline]
    pub(in crate::pool) fn push(&mut self, entry: Entry<K>) {
        match entry.0 {
            Body::Inline(task) => self.push_inline(|| task),
            Body::Cell(task, _) => self.push_cell(task),
        }
    }

    /// Adds an inline task that is made where it stays. The stores of a value that was made before would delay the loads of its copy.
    #[inline]
    pub(in crate::pool) fn push_inline(&mut self, make: impl FnOnce() -> K::Inline) {
        self.0.extend(iter::once_with(|| Entry(Body::Inline(make()))));
    }

    #[inline]
    pub(in crate::pool) fn push_cell(&mut self, task: Arc<K::Run>) {
        if let Some(Entry(Body::Cell(_, space @ None))) = self.0.back_mut() {
            *space = Some(task);
        } else {
            self.0.extend(iter::once_with(|| Entry::of(task)));
        }
    }

    pub(super) fn push_front(&mut self, entry: Entry<K>) {
        self.0.push_front(entry);
    }

    #[inline]
    pub(in crate::pool) fn pop(&mut self) -> Option<Entry<K>> {
        if let Some(Entry(Body::Cell(first, next))) = self.0.front_mut() {
            if let Some(next) = next.take() {
                return Some(Entry::of(std::mem::replace(first, next)));
            }
        }
        self.0.pop_front()
    }

    /// Moves all entries of `behind` to the end. Into an empty lane, no entry is moved: the buffers are swapped.
    pub(super) fn append(&mut self, behind: &mut Self) {
        if self.0.is_empty() {
            std::mem::swap(self, behind);
        } else {
            self.0.append(&mut behind.0);
        }
    }

    /// Moves the next `n` entries, or all if there are fewer, to `other`.
    #[inline]
    pub(super) fn move_to(&mut self, other: &mut Self, mut n: usize) {
        let mut spaces = 0;
        for space in &self.0 {
            let count = space.count();
            if count > n {
                break;
            }
            (n, spaces) = (n - count, spaces + 1);
        }
        other.0.extend(self.0.drain(..spaces));
        if n > 0 {
            if let Some(entry) = self.pop() {
                other.push(entry);
            }
        }
    }

    /// Takes out all entries.
    pub(in crate::pool) fn drain(&mut self) -> impl Iterator<Item = Entry<K>> {
        std::iter::from_fn(|| self.pop())
    }

    /// Returns the number of entries. Walks over them.
    #[cfg(test)]
    pub(in crate::pool) fn count(&self) -> usize {
        self.0.iter().map(Entry::count).sum()
    }

    pub(super) fn has_live(&self) -> bool {
        self.0.iter().any(Entry::any_is_live)
    }

    /// Moves the dead entries to `dead`, and preserves the order of the rest.
    pub(in crate::pool) fn purge(&mut self, dead: &mut Vec<Entry<K>>) {
        for entry in std::mem::take(self).drain() {
            if entry.is_live() {
                self.push(entry);
            } else {
                dead.push(entry);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::cell::{ClosureCell, Queued as _};
    use crate::pool::task_options::PoolOptions;
    use crate::pool::threads::entry::Entry;
    use crate::pool::threads::kind::Threads;
    use std::sync::Mutex;

    /// A lane of random entries beside a queue of their numbers.
    struct Twin<'j> {
        lane: Lane<Threads<'j>>,
        numbers: VecDeque<u32>,
    }

    /// Runs the entry, and returns its number.
    fn number(entry: Entry<'_>, ran: &Mutex<Vec<u32>>) -> u32 {
        let _ = entry.run(|_| ());
        ran.lock().unwrap().pop().unwrap()
    }

    /// Given random tasks with and without allocations of their own, and random operations, then the entries come out in order, those
    /// of cancelled tasks by a purge.
    #[test]
    fn a_lane_keeps_the_order_of_all_entries() {
        let ran = Mutex::new(Vec::new());
        let mut random = 1_u64;
        let mut below = |n: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % n
        };
        let [mut one, mut other] = [(); 2].map(|()| Twin {
            lane: Lane::new(),
            numbers: VecDeque::new(),
        });
        let mut dead = Vec::new();
        for next in 0..3_000 {
            let task = {
                let ran = &ran;
                move || ran.lock().unwrap().push(next)
            };
            let mut cancelled = false;
            let entry = match below(3) {
                0 => Entry::own(Caller::current(), task, &PoolOptions::DEFAULT),
                1 => Entry::own(
                    Caller::current(),
                    task,
                    &PoolOptions::DEFAULT.with(|options| options.task.weight = 2),
                ),
                _ => {
                    let cell = ClosureCell::of(task, Caller::current(), None);
                    cancelled = below(4) == 0 && cell.claim();
                    Entry::of(cell)
                }
            };
            match below(9) {
                0 => {
                    one.lane.push_front(entry);
                    one.numbers.extend((!cancelled).then_some(next));
                    if !cancelled {
                        one.numbers.rotate_right(1);
                    }
                }
                _ => {
                    one.lane.push(entry);
                    one.numbers.extend((!cancelled).then_some(next));
                }
            }
            one.lane.purge(&mut dead);
            assert_eq!(
                (one.lane.count(), one.lane.has_live()),
                (one.numbers.len(), !one.numbers.is_empty())
            );
            assert_eq!(dead.drain(..).count(), usize::from(cancelled));
            match below(5) {
                0 => {
                    let n = below(5) as usize;
                    one.lane.move_to(&mut other.lane, n);
                    other.numbers.extend(one.numbers.drain(..n.min(one.numbers.len())));
                }
                1 => {
                    one.lane.append(&mut other.lane);
                    one.numbers.append(&mut other.numbers);
                    assert!(other.lane.is_empty());
                }
                _ => assert_eq!(one.lane.pop().map(|entry| number(entry, &ran)), one.numbers.pop_front()),
            }
        }
        assert!(one.lane.drain().map(|entry| number(entry, &ran)).eq(one.numbers));
        assert!(other.lane.drain().map(|entry| number(entry, &ran)).eq(other.numbers));
    }

    #[test]
    fn two_tasks_with_handles_take_the_space_of_one_closure() {
        let mut lane = Lane::new();
        for _ in 0..5 {
            lane.push(Entry::of(ClosureCell::of(|| (), Caller::current(), None)));
        }
        assert_eq!((lane.count(), lane.0.len()), (5, 3));
    }
}
