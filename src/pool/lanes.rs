//! The order of the queue: one lane for each priority, first come first served within it.
//!
//! Plain data, for its owner's lock. It runs nothing and drops nothing of a user's.

use super::entry::{AGEING, Priority};
use std::collections::VecDeque;

/// What can stand in a lane.
pub(super) trait Ranked {
    fn priority(&self) -> Priority;
    /// True for what has normal priority and nothing special about it: it can be thrown out, and takes one place.
    fn is_common(&self) -> bool;
    /// True for what may be thrown out of a full queue.
    fn is_evictable(&self) -> bool;
    /// True while it has neither started nor been refused.
    fn is_live(&self) -> bool;
    /// How many tasks it is: several stand together where they came together and are common.
    fn count(&self) -> usize {
        1
    }
    /// Takes the first `n` out of more than that.
    fn split(&mut self, _n: usize) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// Takes the first out of a queue: at most `n` tasks that stand together.
#[inline]
pub(super) fn take_front<E: Ranked>(queue: &mut VecDeque<E>, n: usize) -> Option<E> {
    let first = queue.front_mut()?;
    first.split(n).or_else(|| queue.pop_front())
}

/// Empties a queue task by task.
pub(super) fn one_by_one<E: Ranked>(queue: &mut VecDeque<E>) -> impl Iterator<Item = E> {
    let together = if seeded!("pool_drains_what_stands_together") {
        usize::MAX
    } else {
        1
    };
    std::iter::from_fn(move || take_front(queue, together))
}

pub(super) struct Lanes<E> {
    /// By priority, the lowest first.
    lanes: [VecDeque<E>; 3],
    len: usize,
    /// How many of them are not common.
    special: usize,
    /// How many of those are the pool's own, or have started: they take no room.
    roomless: usize,
    /// How many were preferred to a waiting one of lower priority since the lowest was served.
    preferred: u32,
}

impl<E: Ranked> Lanes<E> {
    pub(super) fn new() -> Self {
        Self {
            lanes: [const { VecDeque::new() }; 3],
            len: 0,
            special: 0,
            roomless: 0,
            preferred: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// How many wait to be started.
    pub(super) fn waiting(&self) -> usize {
        self.len - self.roomless
    }

    #[cold]
    fn came(&mut self, entry: &E) {
        self.special += 1;
        self.roomless += usize::from(!entry.is_evictable());
    }

    fn went(&mut self, entry: &E) {
        if !entry.is_common() {
            self.special -= 1;
            self.roomless -= usize::from(!entry.is_evictable());
        }
    }

    /// True when one is like another: all are common.
    #[inline]
    pub(super) fn is_uniform(&self) -> bool {
        self.special == 0
    }

    #[inline]
    pub(super) fn push(&mut self, entry: E) {
        self.len += entry.count();
        if !entry.is_common() {
            self.came(&entry);
        }
        self.lanes[entry.priority() as usize].push_back(entry);
    }

    /// Puts back what had been taken out, before all others of its priority.
    pub(super) fn push_front(&mut self, entry: E) {
        self.len += entry.count();
        if !entry.is_common() {
            self.came(&entry);
        }
        self.lanes[entry.priority() as usize].push_front(entry);
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<E> {
        if self.len == 0 {
            return None;
        }
        if self.special == 0 {
            return self.pop_common(1);
        }
        self.len -= 1;
        let lane = self.next_lane()?;
        let entry = take_front(&mut self.lanes[lane], 1)?;
        self.went(&entry);
        Some(entry)
    }

    /// The next in line where all are common: at most `n` tasks that stand together.
    #[inline]
    pub(super) fn pop_common(&mut self, n: usize) -> Option<E> {
        let entry = take_front(&mut self.lanes[Priority::Normal as usize], n)?;
        self.len -= entry.count();
        Some(entry)
    }

    #[cold]
    fn next_lane(&mut self) -> Option<usize> {
        let lowest = self.lanes.iter().position(|lane| !lane.is_empty())?;
        let highest = self.lanes.iter().rposition(|lane| !lane.is_empty())?;
        if lowest == highest || self.preferred >= AGEING {
            self.preferred = 0;
            return Some(lowest);
        }
        self.preferred += 1;
        Some(highest)
    }

    /// Takes out the one that has waited longest of the lowest priority there is: the first to be thrown out.
    pub(super) fn evict(&mut self) -> Option<E> {
        for lane in &mut self.lanes {
            if let Some(at) = lane.iter().position(|entry| entry.is_evictable()) {
                self.len -= 1;
                let entry = lane[at].split(1).or_else(|| lane.remove(at))?;
                self.went(&entry);
                return Some(entry);
            }
        }
        None
    }

    /// Takes out what has been cancelled, or been run by whoever waited for it.
    pub(super) fn purge(&mut self) -> Vec<E> {
        let mut dead = Vec::new();
        for lane in &mut self.lanes {
            let (live, gone): (VecDeque<_>, Vec<_>) = {
                let mut live = VecDeque::with_capacity(lane.len());
                let mut gone = Vec::new();
                for entry in lane.drain(..) {
                    if entry.is_live() {
                        live.push_back(entry);
                    } else {
                        gone.push(entry);
                    }
                }
                (live, gone)
            };
            *lane = live;
            dead.extend(gone);
        }
        self.len -= dead.len();
        for entry in &dead {
            self.went(entry);
        }
        dead
    }

    /// Takes out everything, task by task, in the order in which it would have been served but for ageing.
    pub(super) fn drain(&mut self) -> Vec<E> {
        (self.len, self.special, self.roomless) = (0, 0, 0);
        self.lanes.iter_mut().rev().flat_map(one_by_one).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::chunk::Chunk;
    use crate::pool::entry::{Entry, Plain};
    use crate::pool::wishes::Spec;

    fn entry<'j>(priority: Priority, weight: u32) -> Entry<'j> {
        let spec = Spec {
            priority,
            weight,
            ..Spec::DEFAULT
        };
        Entry::plain(Box::new(Plain::new(|| ())), &spec)
    }

    #[test]
    fn the_lowest_is_served_after_so_many_that_were_preferred() {
        let mut lanes = Lanes::new();
        lanes.push(entry(Priority::Low, 7));
        for _ in 0..100 {
            lanes.push(entry(Priority::High, 1));
        }
        let before = std::iter::from_fn(|| lanes.pop()).take_while(|entry| entry.weight() != 7);
        assert_eq!(before.count() as u32, AGEING);
    }

    #[test]
    fn all_are_alike_again_once_the_special_ones_have_gone() {
        let mut lanes = Lanes::new();
        lanes.push(entry(Priority::Normal, 1));
        assert!(lanes.is_uniform());
        lanes.push_front(entry(Priority::High, 1));
        lanes.push(entry(Priority::Normal, 2));
        assert_eq!((lanes.is_uniform(), lanes.len(), lanes.waiting()), (false, 3, 3));
        assert!(lanes.pop().is_some() && lanes.pop().is_some());
        assert!(!lanes.is_uniform());
        assert!(lanes.pop().is_some());
        assert_eq!((lanes.is_uniform(), lanes.len()), (true, 0));
    }

    /// Given a chunk of ten between two tasks, then it is split where it must be, and counts as ten.
    #[test]
    fn what_stands_together_is_taken_in_parts() {
        let mut lanes = Lanes::new();
        lanes.push(entry(Priority::Normal, 1));
        lanes.push(Entry::parts(Chunk::of((0..10).map(|_| || ())), &Spec::DEFAULT));
        lanes.push(entry(Priority::Normal, 1));
        assert_eq!((lanes.len(), lanes.is_uniform()), (12, true));
        let counts = [4, 4, 1, 2, 7].map(|n| lanes.pop_common(n).map_or(0, |entry| entry.count()));
        assert_eq!((counts, lanes.len()), ([1, 4, 1, 2, 3], 1));
        lanes.push_front(Entry::parts(Chunk::of((0..3).map(|_| || ())), &Spec::DEFAULT));
        assert_eq!(lanes.evict().map(|entry| entry.count()), Some(1));
        assert_eq!(lanes.pop().map(|entry| entry.count()), Some(1));
        assert_eq!(lanes.drain().len(), 2);
    }

    #[test]
    fn what_is_evicted_is_the_oldest_of_the_lowest() {
        let mut lanes = Lanes::new();
        lanes.push(entry(Priority::Normal, 1));
        lanes.push(entry(Priority::Low, 2));
        lanes.push(entry(Priority::Low, 3));
        assert_eq!(lanes.evict().map(|entry| entry.weight()), Some(2));
        assert_eq!(lanes.evict().map(|entry| entry.weight()), Some(3));
        assert_eq!(lanes.evict().map(|entry| entry.weight()), Some(1));
        assert!(lanes.evict().is_none() && lanes.len() == 0);
    }
}
