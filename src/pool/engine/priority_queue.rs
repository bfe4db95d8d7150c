//! A priority queue: one lane for each priority, first come, first served within it.
//!
//! Plain data, behind its owner's lock. It runs and drops no user code.

use super::entry::{Entry, is_back};
use super::lane::Lane;
use super::scheduler::Kind;
use crate::pool::task_options::{AGEING, Priority};

/// The number of spaces that an empty lane of async tasks may keep. It frees more. Threads exchange the buffers of their lanes and of
/// the injector, and free none.
const KEPT: usize = 128;

/// The position of an entry at the head of its lane. Finds nothing once the entry has left the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Place {
    lane: usize,
    number: u64,
}

pub(in crate::pool) struct PriorityQueue<K: Kind> {
    /// By priority, the lowest first.
    by_priority: [Lane<K>; 3],
    /// Upper bounds on the number of times each lane's head has changed.
    gone: [u64; 3],
    len: usize,
    /// The number of entries that are not common.
    special: usize,
    /// The number of entries that overtook a waiting one of lower priority since ageing last served a lane.
    preferred: u32,
    /// The lane that ageing served last.
    aged: usize,
}

impl<K: Kind> PriorityQueue<K> {
    pub(in crate::pool) fn new() -> Self {
        Self {
            by_priority: [const { Lane::new() }; 3],
            gone: [0; 3],
            len: 0,
            special: 0,
            preferred: 0,
            aged: 0,
        }
    }

    pub(in crate::pool) fn len(&self) -> usize {
        self.len
    }

    #[cold]
    fn came(&mut self) {
        self.special += 1;
    }

    fn went(&mut self, entry: &Entry<K>) {
        if !entry.is_common() {
            self.special -= 1;
        }
    }

    /// Returns true when all entries are common.
    #[inline]
    pub(in crate::pool) fn is_uniform(&self) -> bool {
        self.special == 0
    }

    #[inline]
    pub(in crate::pool) fn push(&mut self, entry: Entry<K>) {
        self.len += 1;
        if !entry.is_common() {
            self.came();
        }
        self.by_priority[entry.priority() as usize].push(entry);
    }

    /// Takes over the `n` entries of `queue`, in order. `uniform` says that all of them are common.
    pub(in crate::pool) fn take_over(&mut self, queue: &mut Lane<K>, n: usize, uniform: bool) {
        if uniform {
            self.by_priority[Priority::Normal as usize].append(queue);
            self.len += n;
        } else {
            queue.drain().for_each(|entry| self.push(entry));
        }
    }

    /// Puts an entry back at the head of its priority.
    pub(in crate::pool) fn push_front(&mut self, entry: Entry<K>) {
        self.len += 1;
        if !entry.is_common() {
            self.came();
        }
        let lane = entry.priority() as usize;
        self.gone[lane] = self.gone[lane].wrapping_add(1);
        self.by_priority[lane].push_front(entry);
    }

    /// Puts an entry back behind the leading entries of its priority that were put back before.
    pub(in crate::pool) fn put_back(&mut self, entry: Entry<K>) {
        let lane = entry.priority() as usize;
        let back = self.by_priority[lane].pop_while(is_back);
        self.push_front(entry);
        back.into_iter()
            .rev()
            .for_each(|entry| self.by_priority[lane].push_front(entry));
    }

    /// Returns the position of the next entry by priority, age and arrival.
    #[inline]
    pub(in crate::pool) fn first(&self) -> Option<Place> {
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

    /// Returns the entry at this position, if it still heads its lane.
    #[inline]
    pub(in crate::pool) fn get(&self, place: Place) -> Option<&Entry<K>> {
        if self.gone[place.lane] != place.number {
            return None;
        }
        self.by_priority[place.lane].front()
    }

    /// Takes out the entry at this position to start it, and counts it for ageing.
    #[inline]
    pub(in crate::pool) fn take(&mut self, place: Place) -> Option<Entry<K>> {
        if self.special > 0 && self.get(place).is_some() {
            self.count(place.lane);
        }
        self.remove(place)
    }

    /// Takes out the entry at this position.
    #[inline]
    pub(in crate::pool) fn remove(&mut self, place: Place) -> Option<Entry<K>> {
        self.get(place)?;
        let lane = &mut self.by_priority[place.lane];
        let entry = lane.pop()?;
        if !K::THREADS && lane.is_empty() && lane.capacity() > KEPT {
            *lane = Lane::new();
        }
        self.gone[place.lane] = self.gone[place.lane].wrapping_add(1);
        self.len -= 1;
        self.went(&entry);
        Some(entry)
    }

    #[cfg(test)]
    pub(in crate::pool) fn pop(&mut self) -> Option<Entry<K>> {
        self.take(self.first()?)
    }

    /// Moves the next `n` entries, or all if there are fewer, to `lane`. All entries must be common.
    #[inline]
    pub(in crate::pool) fn move_to(&mut self, lane: &mut Lane<K>, n: usize) {
        let n = n.min(self.len);
        self.len -= n;
        let gone = &mut self.gone[Priority::Normal as usize];
        *gone = gone.wrapping_add(n as u64);
        self.by_priority[Priority::Normal as usize].move_to(lane, n);
    }

    #[cold]
    fn next_lane(&self) -> Option<usize> {
        let lowest = self.by_priority.iter().position(|lane| !lane.is_empty())?;
        let highest = self.by_priority.iter().rposition(|lane| !lane.is_empty())?;
        if self.preferred < AGEING {
            return Some(highest);
        }
        // Ageing alternates between the lower lanes: otherwise a lane between two that always have tasks would starve.
        let above = (self.aged + 1..highest).find(|&lane| !self.by_priority[lane].is_empty());
        Some(above.unwrap_or(lowest))
    }

    /// Counts the start of an entry of this lane, for ageing.
    #[cold]
    fn count(&mut self, lane: usize) {
        let lowest = self.by_priority.iter().position(|lane| !lane.is_empty());
        let highest = self.by_priority.iter().rposition(|lane| !lane.is_empty());
        if lowest == highest {
            self.preferred = 0;
        } else if self.preferred >= AGEING {
            (self.preferred, self.aged) = (0, lane);
        } else {
            self.preferred += 1;
        }
    }

    pub(super) fn has_live(&self) -> bool {
        self.by_priority.iter().any(Lane::has_live)
    }

    /// Returns the head of the lowest lane that is not empty.
    pub(in crate::pool) fn lowest(&self) -> Option<&Entry<K>> {
        self.by_priority.iter().find_map(|lane| lane.front())
    }

    /// Takes out the head of the lowest lane that is not empty: the first entry to evict.
    pub(in crate::pool) fn evict(&mut self) -> Option<Entry<K>> {
        let lane = self.by_priority.iter().position(|lane| !lane.is_empty())?;
        let number = self.gone[lane];
        self.remove(Place { lane, number })
    }

    /// Moves the dead entries to `dead`.
    pub(in crate::pool) fn purge(&mut self, dead: &mut Vec<Entry<K>>) {
        let before = dead.len();
        for (lane, gone) in self.by_priority.iter_mut().zip(&mut self.gone) {
            lane.purge(dead);
            // Its head may have changed.
            *gone = gone.wrapping_add(1);
        }
        self.len -= dead.len() - before;
        for entry in &dead[before..] {
            self.went(entry);
        }
    }

    /// Takes out all entries, in the order of service without ageing. Entries `aside` precede all others of their priority, except those
    /// that were put back.
    pub(in crate::pool) fn drain(&mut self, aside: impl Iterator<Item = Entry<K>>) -> Vec<Entry<K>> {
        (self.len, self.special) = (0, 0);
        let mut first = self.by_priority.each_mut().map(|lane| lane.pop_while(is_back));
        aside.for_each(|entry| first[entry.priority() as usize].push(entry));
        let by_priority = first.into_iter().zip(&mut self.by_priority).rev();
        by_priority
            .flat_map(|(first, lane)| first.into_iter().chain(lane.drain()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::task_options::TaskOptions;
    use crate::pool::threads::entry::Entry;
    use std::sync::{Arc, Mutex};

    fn entry<'j>(priority: Priority, weight: u32) -> Entry<'j> {
        let options = TaskOptions::DEFAULT.with(|options| (options.priority, options.weight) = (priority, weight));
        Entry::own(Caller::current(), || (), &options)
    }

    #[test]
    fn the_lowest_priority_is_served_after_the_bound_of_overtakers() {
        let mut by_priority = PriorityQueue::new();
        by_priority.push(entry(Priority::Low, 7));
        for _ in 0..100 {
            by_priority.push(entry(Priority::High, 1));
        }
        let before = std::iter::from_fn(|| by_priority.pop()).take_while(|entry| entry.weight() != 7);
        assert_eq!(before.count() as u32, AGEING);
    }

    /// Given many tasks of the highest and the lowest priority, a task of the priority between is still served.
    #[test]
    fn a_priority_between_two_others_does_not_starve() {
        let mut by_priority = PriorityQueue::new();
        for _ in 0..100 {
            by_priority.push(entry(Priority::Low, 1));
            by_priority.push(entry(Priority::High, 1));
        }
        by_priority.push(entry(Priority::Normal, 7));
        let before = std::iter::from_fn(|| by_priority.pop()).take_while(|entry| entry.weight() != 7);
        assert!(before.count() as u32 <= 2 * (AGEING + 1));
    }

    #[test]
    fn the_queue_is_uniform_again_once_its_special_entries_have_left() {
        let mut by_priority = PriorityQueue::new();
        by_priority.push(entry(Priority::Normal, 1));
        assert!(by_priority.is_uniform());
        by_priority.push_front(entry(Priority::High, 1));
        by_priority.push(entry(Priority::Normal, 2));
        assert_eq!((by_priority.is_uniform(), by_priority.len()), (false, 3));
        assert!(by_priority.pop().is_some() && by_priority.pop().is_some());
        assert!(!by_priority.is_uniform());
        assert!(by_priority.pop().is_some());
        assert_eq!((by_priority.is_uniform(), by_priority.len()), (true, 0));
    }

    /// Given tasks of weights 1 to 5, the third perhaps of high priority, when the queue takes them over in two parts, then
    /// they leave it in order.
    #[test]
    fn entries_taken_over_queue_behind_earlier_ones() {
        for (special, expected) in [(false, [1, 2, 3, 4, 5]), (true, [3, 1, 2, 4, 5])] {
            let made = |weight| match weight {
                3 if special => entry(Priority::High, weight),
                _ => entry(Priority::Normal, weight),
            };
            let mut by_priority = PriorityQueue::new();
            for part in [1..=2, 3..=5] {
                let (mut queue, n) = (Lane::new(), part.clone().count());
                part.map(made).for_each(|entry| queue.push(entry));
                by_priority.take_over(&mut queue, n, false);
                assert!(queue.is_empty());
            }
            assert_eq!(by_priority.len(), 5);
            let order: Vec<_> = std::iter::from_fn(|| by_priority.pop())
                .map(|entry| entry.weight())
                .collect();
            assert_eq!(order, expected);
        }
    }

    /// Given common entries, which the queue takes over without looking at each, into an empty lane and behind others, then
    /// they leave it in order.
    #[test]
    fn common_entries_are_taken_over_in_order() {
        let ran = Mutex::new(Vec::new());
        let mut by_priority = PriorityQueue::new();
        for part in [0..2, 2..5] {
            let ran = &ran;
            let made = |n| {
                Entry::own(
                    Caller::current(),
                    move || ran.lock().unwrap().push(n),
                    &TaskOptions::DEFAULT,
                )
            };
            let (mut queue, n) = (Lane::new(), part.len());
            part.map(made).for_each(|entry| queue.push(entry));
            by_priority.take_over(&mut queue, n, true);
            assert!(queue.is_empty());
        }
        assert_eq!((by_priority.len(), by_priority.is_uniform()), (5, true));
        std::iter::from_fn(|| by_priority.pop()).for_each(|entry| _ = entry.run(|_| ()));
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_move_takes_from_the_front_and_at_most_all_entries() {
        let (mut by_priority, mut lane) = (PriorityQueue::new(), Lane::new());
        (0..5).for_each(|_| by_priority.push(entry(Priority::Normal, 1)));
        by_priority.move_to(&mut lane, 3);
        assert_eq!((lane.count(), by_priority.len()), (3, 2));
        by_priority.move_to(&mut lane, 3);
        assert_eq!((lane.count(), by_priority.len()), (5, 0));
    }

    #[test]
    fn eviction_takes_the_oldest_entry_of_the_lowest_priority() {
        let mut by_priority = PriorityQueue::new();
        by_priority.push(entry(Priority::Normal, 1));
        by_priority.push(entry(Priority::Low, 2));
        by_priority.push(entry(Priority::Low, 3));
        assert_eq!(by_priority.evict().map(|entry| entry.weight()), Some(2));
        assert_eq!(by_priority.evict().map(|entry| entry.weight()), Some(3));
        assert_eq!(by_priority.evict().map(|entry| entry.weight()), Some(1));
        assert!(by_priority.evict().is_none() && by_priority.len() == 0);
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn an_empty_queue_of_async_tasks_gives_its_memory_back() {
        use crate::pool::tasks::cell::TaskCell;
        use crate::pool::{Tasks, engine::entry::Entry};
        let mut by_priority = PriorityQueue::<Tasks>::new();
        for _ in 0..10_000 {
            by_priority.push(Entry::held(
                Arc::new(TaskCell::of(async {}, Caller::current())) as _,
                &TaskOptions::DEFAULT,
                None,
            ));
        }
        assert_eq!(std::iter::from_fn(|| by_priority.pop()).count(), 10_000);
        assert_eq!(by_priority.by_priority[Priority::Normal as usize].capacity(), 0);
    }
}
