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
    /// True while it has neither started nor been refused.
    fn is_live(&self) -> bool;
}

/// Where an entry is that is the first of its lane. It stays valid after the entry is gone, and then finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    lane: usize,
    number: u64,
}

pub(super) struct Lanes<E> {
    /// By priority, the lowest first.
    lanes: [VecDeque<E>; 3],
    /// How many times each lane has had another front, or more.
    gone: [u64; 3],
    len: usize,
    /// How many of them are not common.
    special: usize,
    /// How many were preferred to a waiting one of lower priority since the lowest was served.
    preferred: u32,
    /// The lane that was served last because of that.
    aged: usize,
}

impl<E: Ranked> Lanes<E> {
    pub(super) fn new() -> Self {
        Self {
            lanes: [const { VecDeque::new() }; 3],
            gone: [0; 3],
            len: 0,
            special: 0,
            preferred: 0,
            aged: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    #[cold]
    fn came(&mut self) {
        self.special += 1;
    }

    fn went(&mut self, entry: &E) {
        if !entry.is_common() {
            self.special -= 1;
        }
    }

    /// True when one is like another: all are common.
    #[inline]
    pub(super) fn is_uniform(&self) -> bool {
        self.special == 0
    }

    #[inline]
    pub(super) fn push(&mut self, entry: E) {
        self.len += 1;
        if !entry.is_common() {
            self.came();
        }
        self.lanes[entry.priority() as usize].push_back(entry);
    }

    /// Takes over what stands in `queue`, in order, and says how many. `uniform` when all of them are common.
    pub(super) fn take_over(&mut self, queue: &mut VecDeque<E>, uniform: bool) -> usize {
        let n = queue.len();
        if !uniform {
            queue.drain(..).for_each(|entry| self.push(entry));
            return n;
        }
        let lane = &mut self.lanes[Priority::Normal as usize];
        if lane.is_empty() {
            // Nothing is moved: each goes on in the memory of the other.
            std::mem::swap(lane, queue);
        } else {
            lane.append(queue);
        }
        self.len += n;
        n
    }

    /// Puts back what had been taken out, before all others of its priority.
    pub(super) fn push_front(&mut self, entry: E) {
        self.len += 1;
        if !entry.is_common() {
            self.came();
        }
        let lane = entry.priority() as usize;
        self.gone[lane] = self.gone[lane].wrapping_add(1);
        self.lanes[lane].push_front(entry);
    }

    /// The same, but behind those in front that are `back` already.
    pub(super) fn put_back(&mut self, entry: E, is_back: impl Fn(&E) -> bool) {
        let lane = entry.priority() as usize;
        match self.lanes[lane].iter().take_while(|entry| is_back(entry)).count() {
            0 => self.push_front(entry),
            at => {
                self.len += 1;
                self.special += usize::from(!entry.is_common());
                self.lanes[lane].insert(at, entry);
            }
        }
    }

    /// The entry that is next by priority, age and arrival.
    #[inline]
    pub(super) fn first(&self) -> Option<Place> {
        if self.len == 0 {
            return None;
        }
        let lane = if self.special == 0 {
            Priority::Normal as usize
        } else {
            self.next_lane()?
        };
        Some(Place {
            lane,
            number: self.gone[lane],
        })
    }

    /// The entry that is first in its lane, and has this place.
    #[inline]
    pub(super) fn get(&self, place: Place) -> Option<&E> {
        if self.gone[place.lane] != place.number {
            return None;
        }
        self.lanes[place.lane].front()
    }

    /// Takes that entry out to start it: the order by priority counts it.
    #[inline]
    pub(super) fn take(&mut self, place: Place) -> Option<E> {
        if self.special > 0 && self.get(place).is_some() {
            self.count(place.lane);
        }
        self.remove(place)
    }

    /// Takes that entry out.
    #[inline]
    pub(super) fn remove(&mut self, place: Place) -> Option<E> {
        self.get(place)?;
        let entry = self.lanes[place.lane].pop_front()?;
        self.gone[place.lane] = self.gone[place.lane].wrapping_add(1);
        self.len -= 1;
        self.went(&entry);
        Some(entry)
    }

    #[cfg(test)]
    pub(super) fn pop(&mut self) -> Option<E> {
        self.take(self.first()?)
    }

    /// The next `n` in line, or all there are, where all are common.
    #[inline]
    pub(super) fn pop_many(&mut self, n: usize) -> impl Iterator<Item = E> {
        let n = n.min(self.len);
        self.len -= n;
        let gone = &mut self.gone[Priority::Normal as usize];
        *gone = gone.wrapping_add(n as u64);
        self.lanes[Priority::Normal as usize].drain(..n)
    }

    #[cold]
    fn next_lane(&self) -> Option<usize> {
        let lowest = self.lanes.iter().position(|lane| !lane.is_empty())?;
        let highest = self.lanes.iter().rposition(|lane| !lane.is_empty())?;
        if self.preferred < AGEING {
            return Some(highest);
        }
        // Those of the lower priorities in turn: else one between two that always have tasks would starve.
        let above = (self.aged + 1..highest).find(|&lane| !self.lanes[lane].is_empty());
        Some(above.unwrap_or(lowest))
    }

    /// One of this lane starts.
    #[cold]
    fn count(&mut self, lane: usize) {
        let lowest = self.lanes.iter().position(|lane| !lane.is_empty());
        let highest = self.lanes.iter().rposition(|lane| !lane.is_empty());
        if lowest == highest {
            self.preferred = 0;
        } else if self.preferred >= AGEING {
            (self.preferred, self.aged) = (0, lane);
        } else {
            self.preferred += 1;
        }
    }

    /// The first of the lowest priority that there is.
    pub(super) fn lowest(&self) -> Option<&E> {
        self.lanes.iter().find_map(|lane| lane.front())
    }

    /// Takes out the one that has waited longest of the lowest priority there is: the first to be thrown out.
    pub(super) fn evict(&mut self) -> Option<E> {
        let lane = self.lanes.iter().position(|lane| !lane.is_empty())?;
        let number = self.gone[lane];
        self.remove(Place { lane, number })
    }

    /// Takes out what has been cancelled, or been run by the task that waited for it.
    pub(super) fn purge(&mut self) -> Vec<E> {
        let mut dead = Vec::new();
        for (lane, gone) in self.lanes.iter_mut().zip(&mut self.gone) {
            purge(lane, &mut dead);
            // Another may be its first now.
            *gone = gone.wrapping_add(1);
        }
        self.len -= dead.len();
        for entry in &dead {
            self.went(entry);
        }
        dead
    }

    /// Takes out everything, in the order in which it would have been served but for ageing. Those that were set `aside` are before all
    /// others of their priority but those that have been put back.
    pub(super) fn drain(&mut self, aside: impl Iterator<Item = E>, is_back: impl Fn(&E) -> bool) -> Vec<E> {
        (self.len, self.special) = (0, 0);
        let mut behind = [const { VecDeque::new() }; 3];
        for (lane, behind) in self.lanes.iter_mut().zip(&mut behind) {
            *behind = lane.split_off(lane.iter().take_while(|entry| is_back(entry)).count());
        }
        aside.for_each(|entry| self.lanes[entry.priority() as usize].push_back(entry));
        let lanes = self.lanes.iter_mut().zip(behind).rev();
        lanes.flat_map(|(lane, behind)| lane.drain(..).chain(behind)).collect()
    }
}

/// Moves what is dead out of `entries`, whose order stays.
pub(super) fn purge<E: Ranked>(entries: &mut VecDeque<E>, dead: &mut Vec<E>) {
    let live = VecDeque::with_capacity(entries.len());
    for entry in std::mem::replace(entries, live) {
        if entry.is_live() {
            entries.push_back(entry);
        } else {
            dead.push(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::entry::Entry;
    use crate::pool::wishes::Spec;
    use std::sync::Mutex;

    fn entry<'j>(priority: Priority, weight: u32) -> Entry<'j> {
        let spec = Spec {
            priority,
            weight,
            ..Spec::DEFAULT
        };
        Entry::own(Caller::current(), || (), &spec)
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

    /// Given endless tasks of the highest and the lowest priority, then those between have their turns.
    #[test]
    fn none_starves_between_two_priorities() {
        let mut lanes = Lanes::new();
        for _ in 0..100 {
            lanes.push(entry(Priority::Low, 1));
            lanes.push(entry(Priority::High, 1));
        }
        lanes.push(entry(Priority::Normal, 7));
        let before = std::iter::from_fn(|| lanes.pop()).take_while(|entry| entry.weight() != 7);
        assert!(before.count() as u32 <= 2 * (AGEING + 1));
    }

    #[test]
    fn all_are_alike_again_once_the_special_ones_have_gone() {
        let mut lanes = Lanes::new();
        lanes.push(entry(Priority::Normal, 1));
        assert!(lanes.is_uniform());
        lanes.push_front(entry(Priority::High, 1));
        lanes.push(entry(Priority::Normal, 2));
        assert_eq!((lanes.is_uniform(), lanes.len()), (false, 3));
        assert!(lanes.pop().is_some() && lanes.pop().is_some());
        assert!(!lanes.is_uniform());
        assert!(lanes.pop().is_some());
        assert_eq!((lanes.is_uniform(), lanes.len()), (true, 0));
    }

    /// Given tasks of weights 1 to 5, of which the third may be of high priority, when they are taken over in two parts, then
    /// they come in order.
    #[test]
    fn what_is_taken_over_stands_behind_what_was_there() {
        for (special, expected) in [(false, [1, 2, 3, 4, 5]), (true, [3, 1, 2, 4, 5])] {
            let made = |weight| match weight {
                3 if special => entry(Priority::High, weight),
                _ => entry(Priority::Normal, weight),
            };
            let mut lanes = Lanes::new();
            for part in [1..=2, 3..=5] {
                let mut part: VecDeque<_> = part.map(made).collect();
                let n = part.len();
                assert_eq!((lanes.take_over(&mut part, false), part.len()), (n, 0));
            }
            let order: Vec<_> = std::iter::from_fn(|| lanes.pop()).map(|entry| entry.weight()).collect();
            assert_eq!(order, expected);
        }
    }

    /// The same for common ones, which are not looked at one by one: into an empty lane, and behind others.
    #[test]
    fn what_is_common_is_taken_over_in_order() {
        let ran = Mutex::new(Vec::new());
        let mut lanes = Lanes::new();
        for part in [0..2, 2..5] {
            let ran = &ran;
            let made = |n| Entry::own(Caller::current(), move || ran.lock().unwrap().push(n), &Spec::DEFAULT);
            let mut part: VecDeque<_> = part.map(made).collect();
            let n = part.len();
            assert_eq!((lanes.take_over(&mut part, true), part.len()), (n, 0));
        }
        assert_eq!((lanes.len(), lanes.is_uniform()), (5, true));
        std::iter::from_fn(|| lanes.pop()).for_each(|entry| _ = entry.run(|_| ()));
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn many_are_taken_from_the_front_and_no_more_than_there_are() {
        let mut lanes = Lanes::new();
        (0..5).for_each(|_| lanes.push(entry(Priority::Normal, 1)));
        assert_eq!((lanes.pop_many(3).count(), lanes.len()), (3, 2));
        assert_eq!((lanes.pop_many(3).count(), lanes.len()), (2, 0));
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
