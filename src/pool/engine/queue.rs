//! The queue of a pool as plain data, behind its owner's lock: the queued tasks, and the order in which they start. Two lanes for
//! each priority, the one for restored tasks first; first come, first served within each. It runs and drops no user code.
//!
//! A task that is awaited has a second entry, by which it starts before its turn. A task that is claimed by other means
//! than its entry here leaves that entry dead: a cancel, a start through the second entry, or a waiter that runs the task
//! inline. A dead entry counts for nothing, and takes no capacity. It is removed when its turn comes, or once dead entries
//! may be the majority.

use super::entry::Entry;
use super::group_limit::Membership;
use super::lane::Lane;
use super::scheduler::Kind;
use crate::pool::task_options::{AGEING, Priority};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of dead entries that are too few for a purge.
const FEW: usize = 16;

/// The number of spaces that an empty lane of async tasks may keep. It frees more. Threads exchange the buffers of their lanes and of
/// the injector, and free none.
const KEPT: usize = 128;

/// The position of an entry at the head of its lane. Finds nothing once the entry has left the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Place {
    lane: usize,
    number: u64,
}

/// The key of an entry. After the entry has left, the key finds nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Key {
    Queued(Place),
    Awaited(u64),
}

/// The key of an entry that was set aside: its priority and its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::pool) struct AsideKey(Priority, u64);

pub(in crate::pool) struct Entries<K: Kind> {
    /// By priority, the lowest first.
    by_priority: [Lane<K>; 3],
    /// Entries that were set aside and have come back, since their group has a place for them. They precede all others of their priority.
    restored: [Lane<K>; 3],
    /// Upper bounds on the number of times each lane's head has changed.
    gone: [u64; 3],
    len: usize,
    /// The number of entries that are not common.
    special: usize,
    /// The number of entries that overtook a waiting one of lower priority since ageing last served a lane.
    preferred: u32,
    /// The lane that ageing served last.
    aged: usize,
    /// Second entries of awaited tasks, whose first ones are in a lane or in a local queue.
    awaited: BTreeMap<u64, Entry<K>>,
    /// Entries whose group is at its limit. They are in no lane.
    aside: BTreeMap<AsideKey, Entry<K>>,
    /// The number of the next entry of `awaited` or `aside`.
    next: u64,
    /// The number of entries that have become dead since the last purge. Some of them may have left.
    died: usize,
    /// The number of entries at which a purge has looked.
    #[cfg(test)]
    pub(in crate::pool) looked_at: usize,
    /// The approximate number of common tasks taken out of the lanes.
    pub(in crate::pool) taken: u64,
}

impl Key {
    /// Returns true for the second entry of an awaited task.
    pub(super) fn is_awaited(self) -> bool {
        matches!(self, Self::Awaited(_))
    }
}

impl<K: Kind> Entries<K> {
    pub(in crate::pool) fn new() -> Self {
        Self {
            by_priority: [const { Lane::new() }; 3],
            restored: [const { Lane::new() }; 3],
            gone: [0; 3],
            len: 0,
            special: 0,
            preferred: 0,
            aged: 0,
            awaited: BTreeMap::new(),
            aside: BTreeMap::new(),
            next: 0,
            died: 0,
            #[cfg(test)]
            looked_at: 0,
            taken: 0,
        }
    }

    /// Returns the number of entries in the lanes.
    #[inline]
    pub(in crate::pool) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of queued tasks that other tasks await.
    #[inline]
    pub(in crate::pool) fn awaited_len(&self) -> usize {
        self.awaited.len()
    }

    /// Returns the number of entries in order or set aside, dead ones included.
    fn all(&self) -> usize {
        self.len + self.aside.len()
    }

    /// Counts an entry that has become dead.
    pub(in crate::pool) fn died(&mut self) {
        self.died += 1;
    }

    /// Returns true once dead entries may be the majority, and not a few.
    #[inline]
    pub(super) fn is_mostly_dead(&self) -> bool {
        self.died >= FEW && self.died * 2 > self.all()
    }

    /// Counts an entry that comes, and returns its lane.
    #[inline]
    fn enters(&mut self, entry: &Entry<K>) -> usize {
        self.len += 1;
        self.special += usize::from(!entry.is_common());
        entry.priority() as usize
    }

    /// Returns true when all entries in the lanes are common: none belongs to a group with a limit.
    #[inline]
    pub(in crate::pool) fn is_uniform(&self) -> bool {
        self.special == 0
    }

    #[inline]
    pub(in crate::pool) fn push(&mut self, entry: Entry<K>) {
        let lane = self.enters(&entry);
        self.by_priority[lane].push(entry);
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

    /// Puts an entry back at the head of its lane.
    pub(in crate::pool) fn push_front(&mut self, entry: Entry<K>) {
        let lane = self.enters(&entry);
        self.gone[lane] = self.gone[lane].wrapping_add(1);
        self.by_priority[lane].push_front(entry);
    }

    /// Returns the key of the next entry by priority, age and arrival.
    #[inline]
    pub(in crate::pool) fn first(&self) -> Option<Key> {
        if self.len == 0 {
            return None;
        }
        let lane = if self.special == 0 {
            Priority::Normal as usize
        } else {
            self.next_lane()?
        };
        Some(self.head(lane))
    }

    /// Returns true if no entry of this priority is in order.
    fn is_empty(&self, lane: usize) -> bool {
        self.by_priority[lane].is_empty() && self.restored[lane].is_empty()
    }

    /// Returns the key of the entry at the head of this lane.
    #[inline]
    fn head(&self, lane: usize) -> Key {
        let number = self.gone[lane];
        Key::Queued(Place { lane, number })
    }

    /// Returns the entry that has been awaited for longest, of the awaited entries that may start, or that a worker is to remove.
    pub(super) fn first_awaited(&self) -> Option<Key> {
        let must_wait = |entry: &Entry<K>| entry.member().is_some_and(|member| member.must_wait());
        let (number, _) = self.awaited.iter().find(|(_, entry)| !must_wait(entry))?;
        Some(Key::Awaited(*number))
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Entry<K>> {
        match key {
            Key::Queued(Place { lane, number }) if self.gone[lane] == number => {
                self.restored[lane].front().or(self.by_priority[lane].front())
            }
            Key::Queued(_) => None,
            Key::Awaited(number) => self.awaited.get(&number),
        }
    }

    /// Takes an entry out to start it, and counts it for ageing.
    #[inline]
    pub(super) fn take(&mut self, key: Key) -> Option<Entry<K>> {
        if let Key::Queued(place) = key {
            self.taken += 1;
            if self.special > 0 && self.get(key).is_some() {
                self.count(place.lane);
            }
        }
        self.remove(key)
    }

    #[inline]
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry<K>> {
        let place = match key {
            Key::Queued(place) => place,
            Key::Awaited(number) => return self.awaited.remove(&number),
        };
        self.get(key)?;
        let mut lane = &mut self.by_priority[place.lane];
        if !self.restored[place.lane].is_empty() {
            lane = &mut self.restored[place.lane];
        }
        let entry = lane.pop()?;
        if !K::THREADS && lane.is_empty() && lane.capacity() > KEPT {
            *lane = Lane::new();
        }
        self.gone[place.lane] = self.gone[place.lane].wrapping_add(1);
        self.len -= 1;
        self.special -= usize::from(!entry.is_common());
        Some(entry)
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Adds the second entry of a task that is awaited. Returns its number.
    pub(super) fn await_it(&mut self, entry: Entry<K>) -> u64 {
        let number = self.number();
        self.awaited.insert(number, entry);
        number
    }

    /// Removes an entry from the order, but not from the queue.
    pub(super) fn set_aside(&mut self, key: Key) -> Option<AsideKey> {
        let entry = self.remove(key)?;
        let key = AsideKey(entry.priority(), self.number());
        self.aside.insert(key, entry);
        Some(key)
    }

    /// Puts an entry that was set aside before the others of its priority, but behind restored ones that have not
    /// started. Returns `None` if the entry has left.
    pub(super) fn restore(&mut self, key: AsideKey) -> Option<Arc<Membership>> {
        let entry = self.aside.remove(&key)?;
        let (member, lane) = (entry.member().cloned(), self.enters(&entry));
        self.gone[lane] = self.gone[lane].wrapping_add(1);
        self.restored[lane].push(entry);
        member
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
        let (lowest, highest) = self.ends()?;
        if self.preferred < AGEING {
            return Some(highest);
        }
        // Ageing alternates between the lower lanes: otherwise a lane between two that always have tasks would starve.
        let above = (self.aged + 1..highest).find(|&lane| !self.is_empty(lane));
        Some(above.unwrap_or(lowest))
    }

    /// Returns the lowest and the highest lane that are not empty.
    fn ends(&self) -> Option<(usize, usize)> {
        let mut used = (0..self.gone.len()).filter(|&lane| !self.is_empty(lane));
        let lowest = used.next()?;
        Some((lowest, used.next_back().unwrap_or(lowest)))
    }

    /// Counts the start of an entry of this lane, for ageing.
    #[cold]
    fn count(&mut self, lane: usize) {
        if self.ends().is_none_or(|(lowest, highest)| lowest == highest) {
            self.preferred = 0;
        } else if self.preferred >= AGEING {
            (self.preferred, self.aged) = (0, lane);
        } else {
            self.preferred += 1;
        }
    }

    /// Returns true if a task waits here. Walks over dead entries.
    pub(super) fn has_live(&self) -> bool {
        let mut lanes = self.by_priority.iter().chain(&self.restored);
        lanes.any(Lane::has_live) || self.aside.values().any(Entry::is_live)
    }

    /// Removes the oldest entry of the lowest priority: the first to be evicted.
    pub(super) fn evict(&mut self) -> Option<Entry<K>> {
        let lowest = self.ends().map(|(lane, _)| lane);
        let aside = self.aside.first_entry().filter(|aside| {
            let priority = aside.key().0 as usize;
            lowest.is_none_or(|lane| priority < lane || (priority == lane && self.restored[lane].is_empty()))
        });
        match aside {
            Some(aside) => Some(aside.remove()),
            None => self.remove(self.head(lowest?)),
        }
    }

    /// Moves the dead entries of tasks that wait for their turn to `dead`.
    #[cold]
    pub(super) fn purge(&mut self, dead: &mut Vec<Entry<K>>) {
        self.died = 0;
        #[cfg(test)]
        {
            self.looked_at += self.all();
        }
        let before = dead.len();
        self.by_priority
            .iter_mut()
            .chain(&mut self.restored)
            .for_each(|lane| lane.purge(dead));
        // The heads may have changed.
        self.gone = self.gone.map(|gone| gone.wrapping_add(1));
        self.len -= dead.len() - before;
        self.special -= dead[before..].iter().filter(|entry| !entry.is_common()).count();
        dead.extend(self.take_aside(|_, entry| !entry.is_live()));
    }

    /// Removes the entries set aside that `goes` accepts.
    fn take_aside(&mut self, goes: impl Fn(&AsideKey, &Entry<K>) -> bool) -> impl Iterator<Item = Entry<K>> {
        let gone = self.aside.iter().filter(|(key, entry)| goes(key, entry));
        let keys: Vec<AsideKey> = gone.map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.aside.remove(&key))
    }

    /// Removes all entries, in the order in which they would have started, without ageing. Entries set aside precede all others
    /// of their priority, except restored ones. The second entries come last.
    pub(super) fn drain(&mut self) -> Vec<Entry<K>> {
        (self.len, self.special) = (0, 0);
        let mut entries = Vec::new();
        for priority in (0..self.gone.len()).rev() {
            entries.extend(self.restored[priority].drain());
            entries.extend(self.take_aside(|key, _| key.0 as usize == priority));
            entries.extend(self.by_priority[priority].drain());
        }
        entries.extend(std::mem::take(&mut self.awaited).into_values());
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::caller::Caller;
    use crate::pool::engine::group_limit::GroupLimit;
    use crate::pool::task_options::PoolOptions;
    use crate::pool::threads::entry::Entry;
    use crate::pool::threads::kind::Threads;
    use std::sync::{Arc, Mutex};

    fn entry<'j>(priority: Priority, weight: u32) -> Entry<'j> {
        let options =
            PoolOptions::DEFAULT.with(|options| (options.task.priority, options.task.weight) = (priority, weight));
        Entry::own(Caller::current(), || (), &options)
    }

    #[test]
    fn the_lowest_priority_is_served_after_the_bound_of_overtakers() {
        let mut queue = Entries::new();
        queue.push(entry(Priority::Low, 7));
        for _ in 0..100 {
            queue.push(entry(Priority::High, 1));
        }
        let before = std::iter::from_fn(|| queue.pop()).take_while(|entry| entry.weight() != 7);
        assert_eq!(before.count() as u32, AGEING);
    }

    /// Given many tasks of the highest and the lowest priority, a task of the priority between is still served.
    #[test]
    fn a_priority_between_two_others_does_not_starve() {
        let mut queue = Entries::new();
        for _ in 0..100 {
            queue.push(entry(Priority::Low, 1));
            queue.push(entry(Priority::High, 1));
        }
        queue.push(entry(Priority::Normal, 7));
        let before = std::iter::from_fn(|| queue.pop()).take_while(|entry| entry.weight() != 7);
        assert!(before.count() as u32 <= 2 * (AGEING + 1));
    }

    #[test]
    fn the_queue_is_uniform_again_once_its_special_entries_have_left() {
        let mut queue = Entries::new();
        queue.push(entry(Priority::Normal, 1));
        assert!(queue.is_uniform());
        queue.push_front(entry(Priority::High, 1));
        queue.push(entry(Priority::Normal, 2));
        assert_eq!((queue.is_uniform(), queue.len()), (false, 3));
        assert!(queue.pop().is_some() && queue.pop().is_some());
        assert!(!queue.is_uniform());
        assert!(queue.pop().is_some());
        assert_eq!((queue.is_uniform(), queue.len()), (true, 0));
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
            let mut queue = Entries::new();
            for part in [1..=2, 3..=5] {
                let (mut lane, n) = (Lane::new(), part.clone().count());
                part.map(made).for_each(|entry| lane.push(entry));
                queue.take_over(&mut lane, n, false);
                assert!(lane.is_empty());
            }
            assert_eq!(queue.len(), 5);
            let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|entry| entry.weight()).collect();
            assert_eq!(order, expected);
        }
    }

    /// Given common entries, which the queue takes over without looking at each, into an empty lane and behind others, then
    /// they leave it in order.
    #[test]
    fn common_entries_are_taken_over_in_order() {
        let ran = Mutex::new(Vec::new());
        let mut queue = Entries::new();
        for part in [0..2, 2..5] {
            let ran = &ran;
            let made = |n| {
                Entry::own(
                    Caller::current(),
                    move || ran.lock().unwrap().push(n),
                    &PoolOptions::DEFAULT,
                )
            };
            let (mut lane, n) = (Lane::new(), part.len());
            part.map(made).for_each(|entry| lane.push(entry));
            queue.take_over(&mut lane, n, true);
            assert!(lane.is_empty());
        }
        assert_eq!((queue.len(), queue.is_uniform()), (5, true));
        std::iter::from_fn(|| queue.pop()).for_each(|entry| _ = entry.run(|_| ()));
        assert_eq!(*ran.lock().unwrap(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_move_takes_from_the_front_and_at_most_all_entries() {
        let (mut queue, mut lane) = (Entries::new(), Lane::new());
        (0..5).for_each(|_| queue.push(entry(Priority::Normal, 1)));
        queue.move_to(&mut lane, 3);
        assert_eq!((lane.count(), queue.len()), (3, 2));
        queue.move_to(&mut lane, 3);
        assert_eq!((lane.count(), queue.len()), (5, 0));
    }

    #[test]
    fn eviction_takes_the_oldest_entry_of_the_lowest_priority() {
        let mut queue = Entries::new();
        queue.push(entry(Priority::Normal, 1));
        queue.push(entry(Priority::Low, 2));
        queue.push(entry(Priority::Low, 3));
        assert_eq!(queue.evict().map(|entry| entry.weight()), Some(2));
        assert_eq!(queue.evict().map(|entry| entry.weight()), Some(3));
        assert_eq!(queue.evict().map(|entry| entry.weight()), Some(1));
        assert!(queue.evict().is_none() && queue.len() == 0);
    }

    /// A queue in which three tasks of a full group are set aside, before another task of their priority and one of low priority; and the
    /// keys of the three.
    fn with_three_aside<'j>() -> (Entries<Threads<'j>>, [AsideKey; 3]) {
        let (mut queue, group) = (Entries::new(), GroupLimit::new(1));
        let keys = [1, 2, 3].map(|weight| {
            let options = PoolOptions::DEFAULT.with(|options| {
                (options.task.weight, options.limit) = (weight, Some(Arc::clone(&group)));
            });
            queue.push(Entry::own(Caller::current(), || (), &options));
            queue.set_aside(queue.first().unwrap()).unwrap()
        });
        queue.push(entry(Priority::Low, 5));
        queue.push(entry(Priority::Normal, 4));
        (queue, keys)
    }

    fn weights<'j>(entries: impl IntoIterator<Item = Entry<'j>>) -> Vec<u32> {
        entries.into_iter().map(|entry| entry.weight()).collect()
    }

    #[test]
    fn restored_entries_precede_those_aside_and_these_the_others_of_their_priority() {
        let (mut queue, keys) = with_three_aside();
        let first = queue.first().unwrap();
        assert!(queue.restore(keys[1]).is_some() && queue.restore(keys[0]).is_some());
        assert!(queue.get(first).is_none() && queue.restore(keys[0]).is_none());
        assert_eq!((queue.len(), queue.all()), (4, 5));
        assert_eq!(weights(queue.drain()), [2, 1, 3, 4, 5]);

        let (mut queue, keys) = with_three_aside();
        queue.restore(keys[1]).unwrap();
        queue.restore(keys[0]).unwrap();
        assert_eq!(weights(std::iter::from_fn(|| queue.pop())), [2, 1, 4, 5]);
        assert!(queue.has_live() && queue.len() == 0 && queue.is_uniform());

        let (mut queue, keys) = with_three_aside();
        queue.restore(keys[1]).unwrap();
        assert_eq!(weights(std::iter::from_fn(|| queue.evict())), [5, 2, 1, 3, 4]);
        let (mut queue, _) = with_three_aside();
        assert_eq!(weights(std::iter::from_fn(|| queue.evict())), [5, 1, 2, 3, 4]);

        // What comes back from a local queue is first in its lane, behind the restored ones.
        let (mut queue, keys) = with_three_aside();
        queue.restore(keys[0]).unwrap();
        queue.push_front(entry(Priority::Normal, 6));
        assert_eq!(weights(std::iter::from_fn(|| queue.pop())), [1, 6, 4, 5]);
    }

    /// Given more entries aside than in order, when many have died elsewhere, then a purge keeps those that live.
    #[test]
    fn a_purge_keeps_live_entries_wherever_they_are() {
        let (mut queue, keys) = with_three_aside();
        queue.restore(keys[2]).unwrap();
        assert!(queue.aside.values().next().unwrap().claim() && !queue.is_mostly_dead());
        (0..FEW).for_each(|_| queue.died());
        assert!(queue.is_mostly_dead());
        let first = queue.first().unwrap();
        let mut dead = Vec::new();
        queue.purge(&mut dead);
        assert!(!queue.is_mostly_dead() && queue.get(first).is_none());
        assert_eq!((weights(dead), queue.all(), queue.special), (vec![1], 4, 3));
        assert_eq!(weights(queue.drain()), [3, 2, 4, 5]);
    }

    #[test]
    #[cfg(feature = "tokio")]
    fn an_empty_queue_of_async_tasks_gives_its_memory_back() {
        use crate::pool::tasks::cell::TaskCell;
        use crate::pool::{Tasks, engine::entry::Entry};
        let (mut queue, group) = (Entries::<Tasks>::new(), GroupLimit::new(1));
        let member = PoolOptions::DEFAULT.with(|options| options.limit = Some(group));
        for options in [&member, &PoolOptions::DEFAULT] {
            for _ in 0..10_000 {
                let task = TaskCell::of(async {}, Caller::current(), options.of_task());
                queue.push(Entry::of(Arc::new(task) as _));
                if !options.is_common {
                    queue.set_aside(queue.first().unwrap()).unwrap();
                }
            }
        }
        let aside: Vec<_> = queue.aside.keys().copied().collect();
        assert_eq!(aside.into_iter().filter_map(|key| queue.restore(key)).count(), 10_000);
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), 20_000);
        let lanes = [&queue.by_priority, &queue.restored].map(|lanes| lanes[Priority::Normal as usize].capacity());
        assert_eq!(lanes, [0, 0]);
    }
}

#[cfg(test)]
mod purge_tests {
    use futures::future::poll_immediate;
    use std::sync::{Arc, Mutex};

    const QUEUE: usize = 256;

    /// Given a full queue, and submitters that wait for its room, when most of its tasks are cancelled, then the cancels look at few
    /// entries each, on average.
    macro_rules! cancels {
        ($pool:expr, $submit:ident, $task:expr) => {{
            let pool = $pool.max_queue(QUEUE).build().unwrap();
            let tasks: Vec<_> = (0..QUEUE).map(|_| pool.try_submit($task).unwrap()).collect();
            let mut waits: Vec<_> = (0..QUEUE).map(|_| Box::pin(pool.$submit($task))).collect();
            for waits in &mut waits {
                assert!(poll_immediate(waits.as_mut()).await.is_none());
            }
            assert!(tasks.iter().skip(8).all(|task| task.cancel()));
            let looked_at = pool.core().look().queue.looked_at;
            assert!((1..=4 * QUEUE).contains(&looked_at), "{looked_at}");
        }};
    }

    #[tokio::test]
    async fn cancels_at_a_full_queue_do_not_walk_it_on_threads() {
        let worker = Arc::new(Mutex::new(None));
        let given = Arc::clone(&worker);
        let spawns = move |worker| {
            *given.lock().unwrap() = Some(worker);
            Ok(())
        };
        cancels!(
            crate::WorkerPool::builder().workers(1).spawn_with(spawns),
            submit_async,
            || ()
        );
    }

    #[tokio::test]
    async fn cancels_at_a_full_queue_do_not_walk_it_with_async_tasks() {
        cancels!(crate::pool::TaskPool::builder(1), submit, async {});
    }
}
