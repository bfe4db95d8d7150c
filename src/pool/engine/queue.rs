//! The queue of a pool as plain data: the queued tasks, and the order in which they start.
//!
//! A task that is awaited has a second entry, by which it starts before its turn. A task that is claimed by other means
//! than its entry here leaves that entry dead: a cancel, a start through the second entry, or a waiter that runs the task
//! inline. A dead entry counts for nothing, and takes no capacity. It is removed when its turn comes, or once dead entries
//! are the majority.

use super::entry::{Entry, is_back};
use super::group_limit::Membership;
use super::priority_queue::{Place, PriorityQueue};
use super::scheduler::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of dead entries that are too few for a purge.
const FEW: usize = 16;

pub(in crate::pool) struct Entries<K: Kind> {
    pub(in crate::pool) by_priority: PriorityQueue<K>,
    /// Second entries of awaited tasks, whose first ones are in the priority queue or in a local queue.
    awaited: BTreeMap<u64, Entry<K>>,
    /// Entries whose group is at its limit, by priority. They are in no other queue.
    aside: [BTreeMap<u64, Entry<K>>; 3],
    /// The number of the next entry of `awaited` or `aside`.
    next: u64,
    /// The number of entries that have become dead since the last purge. Some of them may have left.
    died: usize,
    /// The number of entries at which a purge has looked.
    #[cfg(test)]
    pub(in crate::pool) looked_at: usize,
    /// The approximate number of common tasks taken out of the priority queue.
    pub(in crate::pool) taken: u64,
}

/// The key of an entry. After the entry has left, the key finds nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::pool) enum Key {
    Queued(Place),
    Awaited(u64),
}

/// The key of an entry that was set aside: its priority and its number.
#[derive(Clone, Copy)]
pub(in crate::pool) struct AsideKey(usize, u64);

impl<K: Kind> Entries<K> {
    pub(super) fn new() -> Self {
        Self {
            by_priority: PriorityQueue::new(),
            awaited: BTreeMap::new(),
            aside: Default::default(),
            next: 0,
            died: 0,
            #[cfg(test)]
            looked_at: 0,
            taken: 0,
        }
    }

    #[inline]
    pub(in crate::pool) fn len(&self) -> usize {
        self.by_priority.len()
    }

    /// Returns the number of queued tasks that other tasks await.
    #[inline]
    pub(in crate::pool) fn awaited_len(&self) -> usize {
        self.awaited.len()
    }

    /// Returns the number of entries in order or set aside, dead ones included.
    fn all(&self) -> usize {
        self.len() + self.aside.iter().map(BTreeMap::len).sum::<usize>()
    }

    /// Returns true if a task waits here. Walks over dead entries.
    pub(super) fn has_live(&self) -> bool {
        let mut aside = self.aside.iter().flat_map(BTreeMap::values);
        self.by_priority.has_live() || aside.any(Entry::is_live)
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

    /// Returns false if no entry in order belongs to a group with a limit. May return true without need.
    #[inline]
    pub(super) fn may_have_members(&self) -> bool {
        !self.by_priority.is_uniform()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<Key> {
        self.by_priority.first().map(Key::Queued)
    }

    /// Returns the entry that has been awaited for longest, of the awaited entries that may start, or that a worker is to remove.
    pub(super) fn first_awaited(&self) -> Option<Key> {
        let may_start = |entry: &Entry<K>| entry.member().is_none_or(|member| member.may_start());
        let first = self
            .awaited
            .iter()
            .find(|(_, entry)| may_start(entry) || !entry.is_live())?;
        Some(Key::Awaited(*first.0))
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Entry<K>> {
        match key {
            Key::Queued(place) => self.by_priority.get(place),
            Key::Awaited(number) => self.awaited.get(&number),
        }
    }

    /// Takes an entry out to start it, and counts it for the ageing of priorities.
    #[inline]
    pub(super) fn take(&mut self, key: Key) -> Option<Entry<K>> {
        match key {
            Key::Queued(place) => {
                self.taken += 1;
                self.by_priority.take(place)
            }
            key @ Key::Awaited(_) => self.remove(key),
        }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Entry<K>> {
        match key {
            Key::Queued(place) => self.by_priority.remove(place),
            Key::Awaited(number) => self.awaited.remove(&number),
        }
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
        let (priority, number) = (entry.priority() as usize, self.number());
        self.aside[priority].insert(number, entry);
        Some(AsideKey(priority, number))
    }

    /// Puts an entry that was set aside before the others of its priority, but behind restored ones that have not
    /// started. Returns `None` if the entry has left.
    pub(super) fn restore(&mut self, AsideKey(priority, number): AsideKey) -> Option<Arc<Membership>> {
        let entry = self.aside[priority].remove(&number)?;
        let member = entry.member().cloned();
        self.by_priority.put_back(entry);
        member
    }

    /// Removes all entries, in the order in which they would have started.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = Entry<K>> {
        let aside = std::mem::take(&mut self.aside).into_iter();
        let entries = self.by_priority.drain(aside.flat_map(BTreeMap::into_values));
        entries
            .into_iter()
            .chain(std::mem::take(&mut self.awaited).into_values())
    }

    /// Removes the oldest entry of the lowest priority: the first to be evicted.
    pub(super) fn evict(&mut self) -> Option<Entry<K>> {
        let lowest = self
            .by_priority
            .lowest()
            .map(|entry| (entry.priority() as usize, is_back(entry)));
        let aside = self.aside.iter_mut().enumerate().find(|(_, aside)| !aside.is_empty());
        if let Some((priority, aside)) = aside
            && lowest.is_none_or(|(lowest, is_back)| (priority, is_back) <= (lowest, false))
        {
            return aside.pop_first().map(|(_, entry)| entry);
        }
        self.by_priority.evict()
    }

    /// Moves the dead entries of tasks that wait for their turn to `dead`.
    #[cold]
    pub(super) fn purge(&mut self, dead: &mut Vec<Entry<K>>) {
        self.died = 0;
        #[cfg(test)]
        {
            self.looked_at += self.all();
        }
        self.by_priority.purge(dead);
        for aside in &mut self.aside {
            let gone = aside.iter().filter(|(_, entry)| !entry.is_live());
            let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
            dead.extend(gone.iter().filter_map(|number| aside.remove(number)));
        }
    }
}

#[cfg(test)]
mod tests {
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
